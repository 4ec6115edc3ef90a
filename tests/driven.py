"""A drive in memory: a recorded client, our server, and a backend that says what a test wants, on one clock."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio
import trio.testing
from attrs import define, field
from serving import Model, Turn
from taped import Recording, output, user

from turntape.core.seam import Arguments, Finish, Increment, Text, ToolCall
from turntape.core.session import Session
from turntape.replay.drive.course import Course
from turntape.replay.drive.driving import drive
from turntape.replay.drive.probe import Probe
from turntape.replay.drive.report import Report, RunVerdict, Setup, TurnVerdict
from turntape.replay.drive.run import Run, Settings
from turntape.replay.drive.wire import Server
from turntape.transport.backends.base import Backend
from turntape.transport.http_client import HttpClient
from turntape.transport.http_connections import Connections
from turntape.transport.memory_store import MemoryStore
from turntape.transport.server import ServerSettings, serve_connection
from turntape.transport.service import Service

SETUP = Setup(turntape="0", target="model")


def says(*increments: Increment, reason: str = "stop") -> Turn:
    """A turn of a backend: accepted, then all at once."""
    return [(0.0, ()), (0.0, (*increments, Finish(reason)))]


def calls(call_id: str, arguments: str = "{}", name: str = "sh") -> tuple[Increment, ...]:
    return ToolCall(call_id, name), Arguments(arguments)


def two_steps() -> Recording:
    """One call, and an answer: each step of the recording's clock is a tenth of a second."""
    recording = Recording()
    client = recording.client()
    client.turn(user("List the files."), say=(calls("c1", '{"cmd":"ls"}'),))
    client.turn(output("c1", "a.txt"), say=((Text("One "),), (Text("file."),)))
    return recording


AS_RECORDED = (says(*calls("live", '{"cmd": "ls"}')), says(Text("One file.")))
"""What a backend says that says what ``two_steps`` recorded, in other pieces and under another call id."""


@define
class Watched:
    """Progress, kept."""

    turns: list[TurnVerdict] = field(factory=list)
    runs: list[int] = field(factory=list)

    def turn(self, run: Run, verdict: TurnVerdict) -> None:
        self.turns.append(verdict)

    def run(self, run: Run) -> None:
        self.runs.append(run.number)


@asynccontextmanager
async def memory_server(backend: Backend) -> AsyncIterator[Server]:
    """Our server over memory streams."""
    settings = ServerSettings()
    service = Service(settings, Session, backend, MemoryStore(), trio.Event())
    async with trio.open_nursery() as nursery:

        async def connect(host: str, port: int) -> trio.abc.Stream:
            ours, theirs = trio.testing.memory_stream_pair()
            nursery.start_soon(serve_connection, service, theirs)
            return ours

        yield Server("http://127.0.0.1/v1", client=HttpClient(Connections(connect=connect)))
        nursery.cancel_scope.cancel()


async def driven(
    *recordings: Recording | Course, backend: Backend, at_url: bool = False, settings: Settings | None = None
) -> Report:
    """The report of driving ``backend``.

    Args:
        at_url: as a server of somebody else's, of which the drive sees only the wire.
    """
    courses = [one if isinstance(one, Course) else Course.of(one.fixture) for one in recordings]
    probe = None if at_url else Probe(backend)
    async with memory_server(probe or backend) as server:
        return await drive(courses, settings or Settings(), SETUP, server, probe, Watched())


async def verdicts(recording: Recording, turns: Sequence[Turn], **options: object) -> list[TurnVerdict]:
    """What is found about each turn when a backend says ``turns``, one after the other."""
    run = await first_run(recording, turns, **options)
    return [*run.turns]


async def first_run(recording: Recording, turns: Sequence[Turn], **options: object) -> RunVerdict:
    report = await driven(recording, backend=Model([*turns]), settings=Settings(**options))  # type: ignore[arg-type]
    return report.verdicts.runs[0]
