"""Recordings made in a test: sessions that are fed by hand, and the bytes they leave."""

import io
import json
from typing import Any

from attrs import define, field

from turntape.core.seam import (
    ClientText,
    Effect,
    Event,
    Finish,
    Increment,
    Opened,
    Sampled,
    Send,
    Started,
    StartSample,
)
from turntape.core.session import Session
from turntape.replay.fixture import Fixture
from turntape.replay.recorder import Recorder, Tape

CODEX = "codex_exec/0.171.0 (Debian 12.0.0; x86_64) dumb"

TOOLS = [{"type": "function", "name": "sh", "parameters": {"type": "object", "properties": {}}, "strict": False}]


def user(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def output(call_id: str, text: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


@define
class Client:
    """One session and the client that feeds it, with a clock that moves a tenth of a second a step."""

    session: Any
    seed: str = "00" * 16
    opened: dict[str, Any] = field(factory=dict)
    now: float = 0.0
    last: str | None = None
    sent: list[dict[str, Any]] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.feed(Opened(seed=self.seed, wall=1_800_000_000.0, **self.opened), step=0.0)

    def feed(self, event: Event, step: float = 0.1) -> list[Effect]:
        self.now = round(self.now + step, 6)
        effects: list[Effect] = self.session.receive(event, now=self.now)
        for effect in effects:
            for entry in effect.data if isinstance(effect, Send) else ():
                self.sent.append(json.loads(entry))
                if self.sent[-1]["type"] in ("response.completed", "response.done"):
                    self.last = self.sent[-1]["response"]["id"]
        return effects

    def text(self, text: str) -> list[Effect]:
        return self.feed(ClientText(text))

    def ask(self, *items: Any, follow: bool = True, **fields: Any) -> StartSample | None:
        """Send a create that continues the last response; return the sample it starts."""
        if follow and self.last is not None:
            fields = {"previous_response_id": self.last, **fields}
        body = {"type": "response.create", "model": "m", "store": False, "input": [*items], "tools": TOOLS, **fields}
        effects = self.text(json.dumps(body, separators=(",", ":"), ensure_ascii=False))
        return next((effect for effect in effects if isinstance(effect, StartSample)), None)

    def turn(self, *items: Any, say: tuple[tuple[Increment, ...], ...], **fields: Any) -> StartSample:
        """A whole turn: asked, accepted, said in these batches, finished."""
        start = self.ask(*items, **fields)
        assert start is not None, self.sent[-1]
        self.feed(Started(start.sample_id))
        for batch in say:
            self.feed(Sampled(start.sample_id, batch))
        self.feed(Sampled(start.sample_id, (Finish(),)))
        return start


@define
class Recording:
    """A tape in memory."""

    out: io.BytesIO = field(factory=io.BytesIO)
    tape: Tape = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.tape = Tape(self.out)

    def client(self, *, rules: Any = None, seed: str = "00" * 16, **opened: Any) -> Client:
        return Client(Recorder(Session(), self.tape, rules), seed, opened)

    @property
    def content(self) -> bytes:
        return self.out.getvalue()

    @property
    def fixture(self) -> Fixture:
        return Fixture.parse(self.content)


def live(**opened: Any) -> Client:
    """A client whose session is not recorded and shares no id with any recording."""
    return Client(Session(), "ff" * 16, opened)
