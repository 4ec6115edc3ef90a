"""What passes through a relay, written down: one session of a fixture for each WebSocket and each POST."""

import time
from collections.abc import Mapping
from typing import Any, Literal

import trio
from attrs import define, field

from turntape.core.seam import ClientText, Opened
from turntape.transport.websocket import dialect_of

from ..packing import BLOB_BYTES
from ..presets import preset_for
from ..recorder import Tape
from ..secrets import Masker, allowed_headers
from .masking import DELTA, ENDS, Looked, MaskedMessages, Outgoing, Screen, loads, repeats

Side = Literal["client", "upstream"]

CREATE = "response.create"
COUNTED_CALLS = ("function_call", "custom_tool_call")

SHORT_CHARS = BLOB_BYTES // 4
"""A longer delta has a line of its own."""


@define(eq=False)
class _Short:
    """A line of deltas that one read brought; it may still grow.

    Attributes:
        padding: of each, if the upstream pads its deltas.
    """

    t: float
    deltas: list[str] = field(factory=list)
    padding: list[str] = field(factory=list)


@define(eq=False)
class TapSession:
    """Writes one relayed session to ``tape``. Its times are those of the reads that messages arrived in.

    Nothing of it waits: each call is over when it returns. Call ``read`` when all of one read has been told.

    Args:
        screen: of the session: it knows the client's own key too.

    Attributes:
        n_open: requests that wait for the end of their answer.
    """

    tape: Tape
    screen: Screen
    n_open: int = field(init=False, default=0)
    _number: int = field(init=False, default=0)
    _started: float = field(init=False, default=0.0)
    _messages: MaskedMessages = field(init=False)
    _n_warmups: int = field(init=False, default=0)
    _last: Outgoing | None = field(init=False, default=None)  # the last delta in full, counted on
    _short: _Short | None = field(init=False, default=None)
    _over: bool = field(init=False, default=False)

    def __attrs_post_init__(self) -> None:
        self._messages = MaskedMessages(self.screen, self._write)

    @property
    def masker(self) -> Masker:
        return self.screen.masker

    def begin(
        self, *, at: float, transport: str, method: str, path: str, upstream: str, headers: Mapping[str, str]
    ) -> None:
        """The session begins.

        Args:
            at: when its request was read; this and all times on Trio's clock.
            headers: of the request, all of them: those that may be kept are.
        """
        self.tape.n_sessions += 1
        self._number, self._started = self.tape.n_sessions, at
        wall = time.time() - (trio.current_time() - at)
        dialect = dialect_of(headers) if transport == "websocket" else "current"
        agent = headers.get("user-agent", "")
        self.tape.line(
            {
                "relay": self._number,
                "t": 0,
                "wall": wall,
                "transport": transport,
                "method": method,
                "path": self.masker.text(path),
                "upstream": self.masker.text(upstream),
                "headers": allowed_headers(headers, self.masker),
                "rules": preset_for(Opened(seed="", wall=wall, dialect=dialect, agent=agent)),
            }
        )

    def answer(self, status: int, headers: Mapping[str, str], *, at: float) -> None:
        """The head of the upstream's answer."""
        self._flush_short()
        self._line("answer", at, {"status": status, "headers": allowed_headers(headers, self.masker)})

    def client(self, content: str | bytes, *, at: float, looked: Looked | None = None) -> None:
        """A whole message of the client; bytes if it is none of text."""
        if self._over:
            return  # a body that was still on its way when it had been refused
        value = _value(content, looked)
        if value.get("type", CREATE) == CREATE:
            self.n_open += 1
            self._n_warmups += value.get("generate") is False
        self._messages.whole("client", content, value, at, looked=looked)

    def up(self, content: str | bytes, *, at: float, looked: Looked | None = None) -> None:
        """A whole message of the upstream: a WebSocket message, the data of an event, or a body."""
        value = _value(content, looked)
        type_ = value.get("type")
        is_delta = isinstance(type_, str) and type_.endswith(DELTA)
        if is_delta and isinstance(value.get("delta"), str):
            assert isinstance(content, str)
            self._messages.delta(content, value, at)
            return
        if isinstance(type_, str):
            self._messages.end(type_, value)
        self._messages.whole("up", content, value, at, is_delta=is_delta, looked=looked)
        if type_ == "response.output_item.done":
            self.tape.n_calls += _is_call(value.get("item"))
        if type_ in ENDS or value.get("object") == "response":
            self._ended(value, type_)

    def read(self) -> None:
        """All that one read brought has been told."""
        self._flush_short()

    def unread(self, by: Side, reason: str, *, at: float) -> None:
        """Something that ``by`` sent is not in the recording."""
        if not self._over:
            self.release()
            self._line("unread", at, {"by": by, "reason": reason})

    def gone(self, by: Side, *, at: float, code: int | None = None, reason: str = "") -> None:
        """The end, told once."""
        if not self._over:
            self._over, self.n_open = True, 0
            self.release()
            self._line("gone", at, {"by": by, "code": code, "reason": self.masker.text(reason)})
            self.tape.flush()

    def release(self) -> None:
        """Write all that was told: nothing more will come."""
        self._messages.release()
        self._flush_short()

    def _ended(self, value: dict[str, Any], type_: object) -> None:
        """Count an answer that has come to its end."""
        self.n_open = max(0, self.n_open - 1)
        output = _output_of(value)
        if self._n_warmups and not output and type_ != "error":
            self._n_warmups -= 1
        elif type_ != "error":
            self.tape.n_turns += 1
            if type_ not in ENDS:  # a body: no event told of its items
                self.tape.n_calls += sum(map(_is_call, output))
        self._flush_short()
        self.tape.flush()

    # --- lines ----------------------------------------------------------------------------------------

    def _write(self, message: Outgoing) -> None:
        if self._as_short(message):
            return
        self._flush_short()
        if message.is_delta:
            self._last = message if message.value is not None and message.form != "text" else None
        if message.form == "bytes":
            self._line(message.key, message.at, {"bytes": message.text})
            return
        packed = self.tape.packer.event(ClientText(message.encoded()))
        del packed["type"]
        self._line(message.key, message.at, packed)

    def _as_short(self, message: Outgoing) -> bool:
        """Add ``message`` to a short line, if it is one delta more like the last."""
        last, value = self._last, message.value
        if last is None or value is None or last.form != message.form or not repeats(value, last.value):
            return False
        if len(value["delta"]) >= SHORT_CHARS or not _is_text(value["delta"]):
            return False
        assert last.value is not None
        number, padding = value.get("sequence_number"), value.get("obfuscation")
        if "sequence_number" in value and not _follows(number, last.value["sequence_number"]):
            return False
        if "obfuscation" in value and not (isinstance(padding, str) and _is_text(padding)):
            return False
        if number is not None:
            last.value["sequence_number"] = number
        t = self._time(message.at)
        if self._short is None or self._short.t != t:
            self._flush_short()
            self._short = _Short(t)
        self._short.deltas.append(value["delta"])
        if padding is not None:
            self._short.padding.append(padding)
        return True

    def _flush_short(self) -> None:
        if self._short is not None:
            short, self._short = self._short, None
            padding = {"o": short.padding} if short.padding else {}
            self.tape.line({"u": self._number, "t": short.t, "d": short.deltas, **padding})

    def _line(self, key: str, at: float, fields: dict[str, Any]) -> None:
        self.tape.line({key: self._number, "t": self._time(at), **fields})

    def _time(self, at: float) -> float:
        return round(at - self._started, 6)


def _value(content: str | bytes, looked: Looked | None) -> dict[str, Any]:
    if looked is not None:
        return looked.value
    return loads(content) if isinstance(content, str) else {}


def _output_of(value: dict[str, Any]) -> list[Any]:
    response = value.get("response", value)
    output = response.get("output") if isinstance(response, dict) else None
    return output if isinstance(output, list) else []


def _is_call(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") in COUNTED_CALLS


def _follows(number: object, before: object) -> bool:
    return type(number) is int and type(before) is int and number == before + 1


def _is_text(text: str) -> bool:
    """Whether ``text`` can stand in a line: it holds no lone surrogate."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)
