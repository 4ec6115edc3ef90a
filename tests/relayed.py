"""Relay recordings made in a test: a client and an upstream that are scripted, and the lines that a relay leaves."""

import json
from collections.abc import Callable, Iterable
from typing import Any

import orjson
from attrs import define, field
from taped import TOOLS

from turntape.core.seam import (
    Arguments,
    ClientText,
    Effect,
    Event,
    Finish,
    Increment,
    Limits,
    Load,
    Loaded,
    Opened,
    Sampled,
    SampleFailed,
    Save,
    Saved,
    Send,
    Started,
    StartSample,
    Text,
    ToolCall,
)
from turntape.core.session import Session
from turntape.replay.fixture import Fixture

AGENT = "codex_exec/0.171.0 (Debian 12.0.0; x86_64) dumb"

Change = Callable[[dict[str, Any]], dict[str, Any] | None]
"""What an upstream does otherwise: an event as it sends it, or None for one that it leaves out."""


def call(call_id: str, arguments: str, name: str = "sh") -> tuple[Increment, ...]:
    return ToolCall(call_id, name), *map(Arguments, (arguments[:4], arguments[4:]))


@define
class RelayFile:
    """The lines of a relay's file, written by hand."""

    lines: list[dict[str, Any]] = field(factory=lambda: [{"turntape": 1}])
    n_sessions: int = 0
    n_sockets: int = 0

    def add(self, **line: Any) -> None:
        self.lines.append(line)

    @property
    def content(self) -> bytes:
        return b"".join(orjson.dumps(line) + b"\n" for line in self.lines)

    @property
    def fixture(self) -> Fixture:
        return Fixture.parse(self.content, name="relay.jsonl")

    def line_of(self, text: str, n: int = 0) -> int:
        """Number of the nth line that holds ``text``."""
        return [k for k, line in enumerate(self.lines, 1) if text in orjson.dumps(line).decode()][n]

    def socket(self, change: Change | None = None, **headers: str) -> "Exchange":
        exchange = self._session("websocket", "GET", change, headers)
        self.add(answer=exchange.number, t=0.01, status=101, headers={})
        return exchange

    def post(self, body: dict[str, Any], change: Change | None = None, path: str = "/v1/responses") -> "Exchange":
        """A POST that was sent; its answer is still to come."""
        exchange = self._session("http", "POST", change, {}, path, "sse" if body.get("stream") else "json")
        exchange.client(body)
        return exchange

    def _session(
        self,
        transport: str,
        method: str,
        change: Change | None,
        headers: dict[str, str],
        path: str = "/v1/responses",
        answers: str = "websocket",
    ) -> "Exchange":
        self.n_sessions += 1
        self.add(
            relay=self.n_sessions,
            t=0,
            wall=1_800_000_000.0,
            transport=transport,
            method=method,
            path=path,
            upstream="https://api.example.com/v1",
            headers={"user-agent": AGENT, **{name.replace("_", "-"): value for name, value in headers.items()}},
            rules=[],
        )
        dialect = "append" if "2026-02-04" in headers.get("openai_beta", "") else "current"
        return Exchange(self, self.n_sessions, answers, dialect, change)


@define
class Exchange:
    """One relayed session. The upstream is a session of the core with ids of its own, unless ``up`` says otherwise."""

    file: RelayFile
    number: int
    answers: str
    dialect: str
    change: Change | None
    now: float = 0.0
    last: str | None = None
    store: dict[str, Any] = field(factory=dict)
    starts: list[StartSample] = field(factory=list)
    _server: Session = field(factory=Session)
    _delta: dict[str, Any] | None = None
    _head: bool = False

    def __attrs_post_init__(self) -> None:
        opened = Opened(
            seed=f"{self.number:02x}" * 16,
            wall=1_800_000_000.0,
            transport=self.answers,
            dialect=self.dialect,
            limits=Limits(n_kept=99),
        )
        self._server.receive(opened, now=0.0)

    def tick(self) -> float:
        self.now = round(self.now + 0.1, 6)
        return self.now

    def client(self, message: dict[str, Any] | str) -> list[Effect]:
        text = message if isinstance(message, str) else orjson.dumps(message).decode()
        self.file.add(
            client=self.number, t=self.tick(), **({"text": text} if isinstance(message, str) else {"json": message})
        )
        return self._serve(ClientText(text))

    def up(self, *messages: Any) -> None:
        """Messages of one read."""
        t = self.tick()
        for message in messages:
            self._up(message, t)

    def gone(self, by: str, code: int | None = None) -> None:
        self.file.add(gone=self.number, t=self.tick(), by=by, code=code, reason="")

    def ask(self, *items: Any, follow: bool = True, **fields: Any) -> StartSample | None:
        """A create that continues the last response, if there is one."""
        if follow and self.last is not None:
            fields = {"previous_response_id": self.last, **fields}
        self.client(
            {"type": "response.create", "model": "m", "store": False, "input": [*items], "tools": TOOLS, **fields}
        )
        return self.starts[-1] if self.starts else None

    def append(self, *items: Any) -> None:
        self.client({"type": "response.append", "input": [*items]})

    def say(self, *batches: Iterable[Increment], finish: Increment | None = Finish()) -> None:  # noqa: B008 - immutable
        """What the upstream's model says to the last request: each batch in one read."""
        sample_id = self.starts[-1].sample_id
        self.feed(Started(sample_id))
        for batch in batches:
            self.feed(Sampled(sample_id, tuple(batch)))
        if finish is not None:
            self.feed(Sampled(sample_id, (finish,)))

    def fail(self, code: str, message: str, status: int = 500, retry_after: str | None = None) -> None:
        self.feed(SampleFailed(self.starts[-1].sample_id, code, message, status, retry_after=retry_after))

    def turn(
        self, *items: Any, say: Iterable[Iterable[Increment]] = ((Text("Hel"), Text("lo.")),), **fields: Any
    ) -> None:
        self.ask(*items, **fields)
        self.say(*say)

    def feed(self, event: Event) -> None:
        self.tick()
        self._serve(event)

    # --- the upstream ---------------------------------------------------------------------------------

    def _serve(self, event: Event) -> list[Effect]:
        effects = self._server.receive(event, now=self.now)
        for effect in effects:
            match effect:
                case StartSample():
                    self.starts.append(effect)
                case Send(entries):
                    for entry in entries:
                        self._event(orjson.loads(entry))
                case Save(lane):
                    self._serve(Saved(lane))
                case Load(lane):
                    self._serve(Loaded(lane, None))
        return effects

    def _event(self, event: dict[str, Any]) -> None:
        response = event.get("response")
        if event["type"] in ("response.completed", "response.incomplete", "response.done"):
            self.last = event["response"]["id"]
        if self.answers == "json":
            if event["type"] not in ("response.completed", "response.incomplete"):
                return
            event = response  # type: ignore[assignment]
        if self.answers != "websocket" and not self._head:
            self._head = True
            self.file.add(answer=self.number, t=self.now, status=200, headers={})
        changed = event if self.change is None else self.change(event)
        if changed is not None:
            self._up(changed, self.now)

    def _up(self, message: Any, t: float) -> None:
        """A line, or one string more of a short one."""
        if not (isinstance(message, dict) and str(message.get("type")).endswith(".delta")):
            form = {"text": message} if isinstance(message, str) else {"json": message}
            self.file.add(up=self.number, t=t, **form)
            return
        last, self._delta = self._delta, message
        if last is None or not _follows(last, message):
            self.file.add(up=self.number, t=t, json=message)
            return
        line = self.file.lines[-1]
        if line.get("u") == self.number and line["t"] == t:
            line["d"].append(message["delta"])
            line.get("o", []).append(message.get("obfuscation"))
        else:
            padding = {"o": [message["obfuscation"]]} if "obfuscation" in message else {}
            self.file.add(u=self.number, t=t, d=[message["delta"]], **padding)


def _follows(last: dict[str, Any], message: dict[str, Any]) -> bool:
    if last.get("sequence_number") is not None and message.get("sequence_number") != last["sequence_number"] + 1:
        return False
    return json.dumps(_bare(last)) == json.dumps(_bare(message))


def _bare(delta: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in delta.items() if name not in ("delta", "sequence_number", "obfuscation")}
