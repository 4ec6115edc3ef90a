"""A drive: every fixture, as often as asked, against one server; its report."""

import secrets
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol

import trio

from turntape.core.seam import Limits
from turntape.core.session import Session
from turntape.replay.errors import ReplayError
from turntape.transport.backends.base import Backend
from turntape.transport.memory_store import MemoryStore
from turntape.transport.server import ServerSettings, serve

from .course import Course
from .probe import Probe
from .report import Report, Setup, Timings, TurnVerdict, Verdicts
from .run import Run, Settings, counted
from .wire import Server

WEEK_S = 7 * 86400.0
CLOSE_S = 1.0
OWN_NAME = "the drive's own server"


class Progress(Protocol):
    """Who wants to know how far a drive is."""

    def turn(self, run: Run, verdict: TurnVerdict) -> None:
        """A turn was judged."""
        ...

    def run(self, run: Run) -> None:
        """A run is over."""
        ...


def check(settings: Settings, *, at_url: bool) -> None:
    """Raises ``ReplayError`` for what cannot be done, with the reason."""
    if at_url and settings.mode == "forced" and settings.design == "append":
        raise ReplayError(
            "Forced mode cannot append to a response of a server at a URL: an open response holds what that server's own "
            "model said, and there is no way to put the recorded answer in its place. Use --design create or http, which "
            "send the recorded conversation, or --mode free, or drive the backend itself with --backend."
        )


async def drive_backend(
    courses: Sequence[Course],
    settings: Settings,
    setup: Setup,
    backend: Backend,
    progress: Progress,
    stop: trio.CancelScope | None = None,
) -> Report:
    """Drive ``backend`` through a server of our own, which nobody else can use."""
    probe = Probe(backend)
    async with _own_server(probe) as server:
        return await drive(courses, settings, setup, server, probe, progress, stop)


async def drive_at(
    courses: Sequence[Course],
    settings: Settings,
    setup: Setup,
    server: Server,
    progress: Progress,
    stop: trio.CancelScope | None = None,
) -> Report:
    """Drive a server of others; ``check`` says what cannot be done there."""
    try:
        return await drive(courses, settings, setup, server, None, progress, stop)
    finally:
        with trio.move_on_after(CLOSE_S, shield=True):
            await server.client.aclose()


async def drive(
    courses: Sequence[Course],
    settings: Settings,
    setup: Setup,
    server: Server,
    probe: Probe | None,
    progress: Progress,
    stop: trio.CancelScope | None = None,
) -> Report:
    pairs = [(repeat, course) for repeat in range(1, settings.repeat + 1) for course in courses]
    runs: list[Run] = []
    for number, (repeat, course) in enumerate(pairs, 1):
        run = Run(number, repeat, course, settings, server, probe)
        run.on_turn = partial(progress.turn, run)
        runs.append(run)
    began, wall = trio.current_time(), time.time()
    waiting = iter(runs)
    with stop or trio.CancelScope():
        async with trio.open_nursery() as nursery:
            for _ in range(min(settings.parallel, len(runs))):
                nursery.start_soon(_play, waiting, progress)
    runs = [run for run in runs if run.begun]
    verdicts = [run.verdict() for run in runs]
    return Report(
        setup=setup,
        verdicts=Verdicts(
            mode=settings.mode,
            design=settings.design,
            counts=counted([turn for verdict in verdicts for turn in verdict.turns]),
            fixtures=tuple(course.played() for course in courses),
            runs=tuple(verdicts),
        ),
        timings=Timings(
            began=round(wall, 3),
            wall_s=round(trio.current_time() - began, 6),
            runs=tuple(run.timings(began) for run in runs),
        ),
    )


async def _play(waiting: Iterator[Run], progress: Progress) -> None:
    """One run after the other, from those that no other task has taken."""
    for run in waiting:
        await run.play()
        progress.run(run)


@asynccontextmanager
async def _own_server(probe: Probe) -> AsyncIterator[Server]:
    """On loopback and a free port, with a key that only this process knows, as long as the block."""
    key, shutdown = secrets.token_urlsafe(32), trio.Event()
    limits = Limits(max_age_s=WEEK_S)  # recorded sessions may be longer than one connection of a real server
    settings = ServerSettings(keys=frozenset({key}), limits=limits, grace_s=1.0, max_connections=1 << 16)
    async with trio.open_nursery() as nursery:
        port = await nursery.start(
            partial(serve, settings, new_session=Session, backend=probe, store=MemoryStore(), shutdown=shutdown)
        )
        server = Server(f"http://127.0.0.1:{port}/v1", key, OWN_NAME)
        try:
            yield server
        finally:
            with trio.move_on_after(CLOSE_S, shield=True):
                await server.client.aclose()
            shutdown.set()
