"""What passes through a relay, written down: one session of a fixture for each WebSocket and each POST."""

import base64
import json
import time
from collections.abc import Mapping
from typing import Any, Literal

import orjson
import trio
from attrs import define, field

from turntape.core.seam import ClientText, Opened
from turntape.transport.websocket import dialect_of

from ..packing import BLOB_BYTES
from ..presets import preset_for
from ..recorder import Tape
from ..secrets import Masker, StreamMasker, allowed_headers

Side = Literal["client", "upstream"]

CREATE = "response.create"
DELTA = ".delta"
ENDS = ("response.completed", "response.failed", "response.incomplete", "response.done", "error")
"""Events after which a response says nothing more."""

COUNTED_CALLS = ("function_call", "custom_tool_call")

SHORT_CHARS = BLOB_BYTES // 4
"""A longer delta has a line of its own."""

HELD_MESSAGES, HELD_CHARS = 4096, 8 << 20
"""What waits at most while a delta may be the beginning of a secret; ours. No key is that long."""

OPEN_STREAMS = 1024
"""Texts that have begun and not ended, of one session; ours. Real ones have a few for each lane."""

_VARIES = ("delta", "sequence_number", "obfuscation")


@define(eq=False)
class _Message:
    """A message that is about to be written, masked.

    Attributes:
        value: of a delta, with its ``delta`` masked; else None.
        form: how ``value`` is encoded, to the byte: "json" or "spaced"; "text" if neither.
        stream: what a delta is part of.
        is_delta: of a kind that short lines repeat.
        plain: ``value`` with what was really said, which may be a secret; None if that is ``value`` itself.
    """

    key: str
    at: float
    text: str = ""
    value: dict[str, Any] | None = None
    form: str = "text"
    stream: tuple[Any, ...] = ()
    masked: bool = False
    is_delta: bool = False
    plain: dict[str, Any] | None = None


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
        masker: of the session: it knows the client's own key too.

    Attributes:
        n_open: requests that wait for the end of their answer.
    """

    tape: Tape
    masker: Masker
    n_open: int = field(init=False, default=0)
    _number: int = field(init=False, default=0)
    _started: float = field(init=False, default=0.0)
    _streams: dict[tuple[Any, ...], StreamMasker] = field(init=False, factory=dict)
    _held: list[_Message] = field(init=False, factory=list)
    _n_held: int = field(init=False, default=0)  # characters
    _n_warmups: int = field(init=False, default=0)
    _template: _Message | None = field(init=False, default=None)  # the last delta in full, counted on
    _short: _Short | None = field(init=False, default=None)
    _over: bool = field(init=False, default=False)

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
        agent = headers.get("user-agent", "")
        dialect = dialect_of(headers) if transport == "websocket" else "current"
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

    def client(self, content: str | bytes, *, at: float) -> None:
        """A whole message of the client; bytes if it is none of text."""
        value = _loads(content) if isinstance(content, str) else {}
        if value.get("type", CREATE) == CREATE:
            self.n_open += 1
            self._n_warmups += value.get("generate") is False
        self._put(self._whole("client", content, at))

    def up(self, content: str | bytes, *, at: float) -> None:
        """A whole message of the upstream: a WebSocket message, the data of an event, or a body."""
        value = _loads(content) if isinstance(content, str) else {}
        type_ = value.get("type")
        if isinstance(type_, str) and type_.endswith(DELTA) and isinstance(value.get("delta"), str):
            assert isinstance(content, str)
            self._delta(content, value, at)
            return
        if isinstance(type_, str):
            self._end_streams(type_, value)
        message = self._whole("up", content, at)
        message.is_delta = isinstance(type_, str) and type_.endswith(DELTA)
        self._put(message)
        if type_ == "response.output_item.done" and _kind(value.get("item")) in COUNTED_CALLS:
            self.tape.n_calls += 1
        if type_ in ENDS or value.get("object") == "response":
            self._ended(value, type_)

    def read(self) -> None:
        """All that one read brought has been told."""
        self._flush_short()

    def unread(self, by: Side, reason: str, *, at: float) -> None:
        """From here on something that ``by`` sent is not in the recording."""
        if self._over:
            return
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
        """Write what waits for the end of what may be a secret: nothing more of it will come."""
        for stream in [*self._streams]:
            self._end_stream(stream)
        self._write_held(all_of_them=True)
        self._flush_short()

    # --- masking ----------------------------------------------------------------------------------

    def _whole(self, key: str, content: str | bytes, at: float) -> _Message:
        if isinstance(content, bytes):
            return _Message(key, at, base64.b64encode(_masked_bytes(content, self.masker)).decode(), form="bytes")
        text = self.masker.text(content)
        if text is not content and '"logprobs"' in text:  # they say the same, token by token
            text = orjson.dumps(_without_logprobs(_loads(text))).decode()
        return _Message(key, at, text)

    def _delta(self, content: str, value: dict[str, Any], at: float) -> None:
        stream = _stream_of(value, value["type"])
        masker = self._streams.get(stream)
        if masker is None:
            if len(self._streams) >= OPEN_STREAMS:
                self.release()
            masker = self._streams[stream] = self.masker.stream()
        said, form, masked = value["delta"], _form(value, content), False
        if not self._repeats(value):
            rest = _compact({**value, "delta": ""})
            if masked := (clean := self.masker.text(rest)) != rest:
                value = {**_loads(clean), "delta": said}
        message = _Message("up", at, content, value, form, stream, masked=masked, is_delta=True)
        if (delta := masker.feed(said)) != said:
            message.plain, message.value = value, _without_logprobs({**value, "delta": delta})
        self._put(message)

    def _repeats(self, value: dict[str, Any]) -> bool:
        """Whether ``value`` is the last delta in full but for what varies from one to the next."""
        before = self._template.value if self._template else None
        return (
            before is not None
            and [*value] == [*before]
            and all(value[name] == before[name] for name in value if name not in _VARIES)
        )

    def _end_streams(self, type_: str, value: dict[str, Any]) -> None:
        if type_.endswith(".done") and (stream := _stream_of(value, type_.removesuffix(".done") + DELTA)):
            self._end_stream(stream)
        if type_ in ENDS:
            lane = value.get("stream_id")
            for stream in [stream for stream in self._streams if stream[-1] == lane]:
                self._end_stream(stream)

    def _end_stream(self, stream: tuple[Any, ...]) -> None:
        masker = self._streams.pop(stream, None)
        if masker is None or not (rest := masker.flush()):
            return
        for message in reversed(self._held):
            if message.stream == stream and message.value is not None:
                message.plain = message.plain or message.value
                message.value = {**message.value, "delta": message.value["delta"] + rest}
                return

    # --- writing ----------------------------------------------------------------------------------

    def _put(self, message: _Message) -> None:
        if self._over:
            return  # a body that was still on its way when it had been refused
        self._held.append(message)
        self._n_held += len(message.text)
        self._write_held(all_of_them=len(self._held) > HELD_MESSAGES or self._n_held > HELD_CHARS)

    def _write_held(self, *, all_of_them: bool) -> None:
        """Write what waits, unless a delta among it may be part of a secret; with ``all_of_them`` even then."""
        holding = [stream for stream, masker in self._streams.items() if masker.holding]
        if holding and not all_of_them:
            return
        for stream in holding:
            self._end_stream(stream)
        held, self._held, self._n_held = self._held, [], 0
        _settle(held)
        for message in held:
            if not self._as_short(message):
                self._in_full(message)

    def _in_full(self, message: _Message) -> None:
        self._flush_short()
        if message.form == "bytes":
            self._line(message.key, message.at, {"bytes": message.text})
            return
        text = message.text
        if message.is_delta:
            self._template = message if message.form != "text" else None
        if message.value is not None:
            if message.form == "spaced":
                text = _spaced(message.value)
            elif message.form == "json" or message.masked:
                text = _compact(message.value)
        packed = self.tape.packer.event(ClientText(text))
        del packed["type"]
        self._line(message.key, message.at, packed)

    def _as_short(self, message: _Message) -> bool:
        """Add ``message`` to a short line, if it is one delta more like the last."""
        last, value = self._template, message.value
        if last is None or value is None or last.form != message.form or not self._repeats(value):
            return False
        if len(value["delta"]) >= SHORT_CHARS or not _is_text(value["delta"]):
            return False
        before = last.value
        assert before is not None
        number, padding = value.get("sequence_number"), value.get("obfuscation")
        if "sequence_number" in value and not _follows(number, before["sequence_number"]):
            return False
        if "obfuscation" in value and not (isinstance(padding, str) and _is_text(padding)):
            return False
        if number is not None:
            before["sequence_number"] = number
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

    def _ended(self, value: dict[str, Any], type_: object) -> None:
        self.n_open = max(0, self.n_open - 1)
        if type_ != "error":
            if self._n_warmups and not _output_of(value):
                self._n_warmups -= 1
            else:
                self.tape.n_turns += 1
                if type_ is None or value.get("object") == "response":  # a body: no event told of its items
                    self.tape.n_calls += sum(_kind(item) in COUNTED_CALLS for item in _output_of(value))
        self._flush_short()
        self.tape.flush()


def _settle(held: list[_Message]) -> None:
    """Let deltas that only waited, and hold no secret after all, be what they were: in the same pieces."""
    waited = {message.stream for message in held if message.plain is not None}
    for stream in waited:
        messages = [message for message in held if message.stream == stream]
        said = "".join((message.plain or message.value or {})["delta"] for message in messages)
        told = "".join((message.value or {})["delta"] for message in messages)
        for message in messages:
            if said == told:
                message.value = message.plain or message.value
            elif message.plain is not None:
                message.masked = True


def _stream_of(value: Mapping[str, Any], type_: str) -> tuple[Any, ...]:
    """What a delta belongs to; the lane last."""
    places = (value.get(name) for name in ("item_id", "output_index", "content_index", "summary_index", "stream_id"))
    return (type_, *(place if isinstance(place, str | int) else None for place in places))


def _output_of(value: dict[str, Any]) -> list[Any]:
    response = value.get("response", value)
    output = response.get("output") if isinstance(response, dict) else None
    return output if isinstance(output, list) else []


def _kind(item: Any) -> Any:
    return item.get("type") if isinstance(item, dict) else None


def _loads(text: str) -> dict[str, Any]:
    """The JSON object that ``text`` is; {} if it is none."""
    try:
        value = orjson.loads(text)
    except ValueError:
        try:
            value = json.loads(text)  # lone surrogates, deep nesting
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}


def _follows(number: object, before: object) -> bool:
    return type(number) is int and type(before) is int and number == before + 1


def _is_text(text: str) -> bool:
    """Whether ``text`` can stand in a line: it holds no lone surrogate."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _form(value: dict[str, Any], text: str) -> str:
    """How ``value`` is encoded in ``text``: "json", "spaced", or "text" for any other way."""
    try:
        if orjson.dumps(value).decode() == text:
            return "json"
    except orjson.JSONEncodeError:
        return "text"
    return "spaced" if _spaced(value) == text else "text"


def _compact(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        return json.dumps(value, separators=(",", ":"))


def _spaced(value: Any) -> str:
    return json.dumps(value)


def _without_logprobs(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: [] if name == "logprobs" and isinstance(inner, list) else _without_logprobs(inner)
            for name, inner in value.items()
        }
    return [*map(_without_logprobs, value)] if isinstance(value, list) else value


def _masked_bytes(content: bytes, masker: Masker) -> bytes:
    try:
        return masker.text(content.decode()).encode()
    except UnicodeDecodeError:
        return content
