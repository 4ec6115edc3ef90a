"""The scripted backend as a rig: it is its own server, so steps become a script's."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import trio
from attrs import asdict, define
from backends.rig import Call, Cut, End, Fail, Garbage, Hang, Overflow, Playing, Say, Step, Think, Turn, Wait

from turntape.core.seam import StartSample
from turntape.transport.backends import script
from turntape.transport.backends.base import Batch
from turntape.transport.backends.script import Rule, Script
from turntape.transport.backends.scripted import ScriptedBackend


def script_of(*turns: Turn) -> Script:
    """A script that plays one turn for each request; the last one again and again."""
    last = len(turns) - 1
    rules = [
        Rule(tuple(_step(step, first=not n) for n, step in enumerate(turn)), times=None if at == last else 1)
        for at, turn in enumerate(turns)
    ]
    return Script(tuple(rules), models=("m",))


def _step(step: Step, *, first: bool) -> script.Step:
    match step:
        case Say(text):
            return script.SayText(text)
        case Think(text):
            return script.SayReasoning(text)
        case Call(name, arguments, call_id, namespace, custom):
            name = f"{namespace}.{name}" if namespace else name
            return script.SayCall(f"custom:{name}" if custom else name, arguments, call_id)
        case End(reason, usage):
            return script.End(reason, asdict(usage) if usage is not None else {})
        case Wait(seconds):
            return script.Pause(seconds)
        case Hang():
            return script.Hang(started=True)
        case Cut():
            return script.Cut()
        case Fail(status, code, message, retry_after):
            return script.Fail(code, not first, message, status, retry_after)
        case Overflow():
            return script.Fail("context_length_exceeded", False, "The prompt is too long.", 400, param="input")
        case Garbage():
            raise AssertionError("a script is checked when it is read: it cannot say nonsense")


@define(eq=False)
class Watched:
    """A backend that says when a sample was left before its end."""

    inner: ScriptedBackend
    gone: trio.Event

    @property
    def models(self) -> tuple[str, ...]:
        return self.inner.models

    @trio.as_safe_channel
    async def sample(self, start: StartSample) -> AsyncGenerator[Batch, None]:
        try:
            async with self.inner.sample(start) as batches:
                async for batch in batches:
                    yield batch
        except (trio.Cancelled, GeneratorExit):
            self.gone.set()
            raise

    async def aclose(self) -> None:
        await self.inner.aclose()


class ScriptedRig:
    virtual_time = True
    where, key = "", ""
    cannot: ClassVar[dict[str, str]] = {
        "where": "there is no server to name",
        "key": "it takes no key",
        "garbage": "a script is checked when it is read: it cannot say nonsense",
        "cut": "a script's end without a finish is no error of the backend's own: the driver reports it",
    }

    @asynccontextmanager
    async def playing(self, *turns: Turn) -> AsyncIterator[Playing]:
        gone = trio.Event()
        backend: Any = Watched(ScriptedBackend(script_of(*turns)), gone)
        yield Playing(backend, gone=gone)
