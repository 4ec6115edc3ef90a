"""What a relayed session says, masked and in order: deltas wait as long as they may be a part of a secret."""

import base64
import json
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

import orjson
import trio
from attrs import define, field, frozen

from ..packing import BLOB_BYTES, LISTS, digest
from ..secrets import Masker, StreamMasker

DELTA, DONE = ".delta", ".done"
ENDS = ("response.completed", "response.failed", "response.incomplete", "response.done", "error")
"""Events after which a response says nothing more."""

HELD_MESSAGES, HELD_CHARS = 4096, 8 << 20
"""What waits at most while a delta may be the beginning of a secret; ours. No key is that long."""

OPEN_STREAMS = 1024
"""Texts that have begun and not ended, of one session; ours. Real ones have a few for each lane."""

VARIES = ("delta", "sequence_number", "obfuscation")
"""Fields in which one delta differs from the next of the same text."""

PART = 1 << 16
"""Characters after which whoever looks at a large message lets others have their turn."""

KNOWN_VALUES = 1 << 16
"""How many values are known to hold no secret at most; ours."""

Stream = tuple[Any, ...]
"""What a delta is a part of: kind, item and place, and the lane last."""


@frozen(eq=False)
class Looked:
    """What a large message says, found out beforehand.

    Attributes:
        value: the JSON object that it is; {} if it is none.
        masked: the whole of it; the same object if there is nothing to mask.
    """

    value: dict[str, Any]
    masked: str


@define(eq=False)
class Screen:
    """A masker that looks once at a large value: tools, instructions and histories come again with each request.

    Args:
        masker: what it finds in the parts of a message is what it would find in the whole: no secret spans two fields.
    """

    masker: Masker
    _clean: set[str] = field(init=False, factory=set)  # names of values that hold no secret

    def text(self, text: str, value: Mapping[str, Any]) -> str:
        """``text`` masked, the same object if there is nothing to mask.

        Args:
            value: the JSON object that ``text`` is; empty if it is none.
        """
        steps = self._steps(text, value)
        try:
            while True:
                next(steps)
        except StopIteration as end:
            masked: str = end.value
        return masked

    async def look(self, text: str) -> Looked:
        """Read and mask a large message; others have their turn after each ``PART``."""
        value = loads(text)
        await trio.lowlevel.checkpoint()
        steps, n_looked_at = self._steps(text, value), 0
        try:
            while True:
                n_looked_at += next(steps)
                if n_looked_at >= PART:
                    n_looked_at = 0
                    await trio.lowlevel.checkpoint()
        except StopIteration as end:
            return Looked(value, end.value)

    def _steps(self, text: str, value: Mapping[str, Any]) -> Generator[int, None, str]:
        """Give ``text`` masked, and on the way how many characters have been looked at."""
        if len(text) >= BLOB_BYTES and value:
            for piece in _pieces(value):
                if not (yield from self._is_clean(piece)):
                    break
            else:
                return text
        return (yield from self._masked(text))

    def _masked(self, text: str) -> Generator[int, None, str]:
        if len(text) <= PART:
            yield len(text)
            return self.masker.text(text)
        stream, told = self.masker.stream(), list[str]()
        for start in range(0, len(text), PART):
            told.append(stream.feed(text[start : start + PART]))
            yield PART
        told.append(stream.flush())
        masked = "".join(told)
        return text if masked == text else masked

    def _is_clean(self, piece: dict[str, Any]) -> Generator[int, None, bool]:
        encoded = compact(piece)
        yield len(encoded)
        if len(encoded) < BLOB_BYTES:
            return self.masker.text(encoded) is encoded
        name = digest(encoded.encode())
        if name in self._clean:
            return True
        if (yield from self._masked(encoded)) is not encoded:
            return False
        if len(self._clean) >= KNOWN_VALUES:
            self._clean.clear()
        self._clean.add(name)
        return True


def _pieces(value: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for name, inner in value.items():
        if name in LISTS and isinstance(inner, list):
            yield from ({name: element} for element in inner)
        elif name == "response" and isinstance(inner, dict):
            yield from _pieces(inner)
        else:
            yield {name: inner}


@define(eq=False)
class Outgoing:
    """A message that can be written down.

    Attributes:
        key: of its line: ``client`` or ``up``.
        at: seconds on Trio's clock.
        text: the whole message; base64 if ``form`` is "bytes".
        value: of a delta, the same as JSON.
        form: how ``value`` is encoded in ``text``: "json" or "spaced" as the format has them, or "text".
        is_delta: of a kind that short lines repeat.
        stream: of a delta.
        plain: ``value`` with what was really said, while that may be a secret; None if it is ``value``.
    """

    key: str
    at: float
    text: str
    value: dict[str, Any] | None = None
    form: str = "text"
    is_delta: bool = False
    stream: Stream = ()
    plain: dict[str, Any] | None = None
    _changed: bool = False

    def mask(self, value: dict[str, Any]) -> None:
        """Let ``value`` stand for what was said."""
        self.plain, self.value = self.plain or self.value, value

    def settle(self, *, masked: bool) -> None:
        """Say ``value`` for good if it hides something, else what was really said."""
        if self.plain is None:
            return
        if masked:
            self._changed = True
        else:
            self.value = self.plain
        self.plain = None

    def encoded(self) -> str:
        """The message as it is to be read again."""
        if self.value is None or (self.form == "text" and not self._changed):
            return self.text
        return spaced(self.value) if self.form == "spaced" else compact(self.value)


@define(eq=False)
class MaskedMessages:
    """Passes on the messages of one session, masked.

    Args:
        write: gets each, in the order in which they came.
    """

    screen: Screen
    write: Callable[[Outgoing], None]
    _streams: dict[Stream, StreamMasker] = field(init=False, factory=dict)
    _held: list[Outgoing] = field(init=False, factory=list)
    _n_held: int = field(init=False, default=0)  # characters
    _clean: dict[str, Any] | None = field(init=False, default=None)  # a delta that holds no secret but perhaps in it

    @property
    def masker(self) -> Masker:
        return self.screen.masker

    def whole(
        self,
        key: str,
        content: str | bytes,
        value: dict[str, Any],
        at: float,
        *,
        is_delta: bool = False,
        looked: Looked | None = None,
    ) -> None:
        """A message that says all that it says at once.

        Args:
            value: the JSON object that it is; {} if it is none.
            looked: what ``screen`` has found out about it, if it has.
        """
        if isinstance(content, bytes):
            text = base64.b64encode(_masked_bytes(content, self.masker)).decode()
            self._put(Outgoing(key, at, text, form="bytes"))
            return
        text = looked.masked if looked else self.screen.text(content, value)
        if text is not content and '"logprobs"' in text and (masked := loads(text)):
            text = compact(_without_logprobs(masked))
        self._put(Outgoing(key, at, text, is_delta=is_delta))

    def delta(self, content: str, value: dict[str, Any], at: float) -> None:
        """A message of the upstream's whose ``delta`` is a piece of a text."""
        stream = _stream_of(value, value["type"])
        masker = self._streams.get(stream)
        if masker is None:
            if len(self._streams) >= OPEN_STREAMS:
                self.release()
            masker = self._streams[stream] = self.masker.stream()
        said = value["delta"]
        message = Outgoing("up", at, content, value, _form(value, content), True, stream)
        if not repeats(value, self._clean):
            rest = compact({**value, "delta": ""})
            if (clean := self.masker.text(rest)) == rest:
                self._clean = value
            else:
                value = {**loads(clean), "delta": said}
                message.mask(value)
                message.settle(masked=True)
        if (told := masker.feed(said)) != said:
            message.mask(_without_logprobs({**value, "delta": told}))
        self._put(message)

    def end(self, type_: str, value: dict[str, Any]) -> None:
        """An event of the upstream's, after which texts that it ends go on no more."""
        if type_.endswith(DONE):
            self._end_stream(_stream_of(value, type_.removesuffix(DONE) + DELTA))
        elif type_ in ENDS:
            lane = value.get("stream_id")
            for stream in [stream for stream in self._streams if stream[-1] == lane]:
                self._end_stream(stream)

    def release(self) -> None:
        """Pass on what waits: nothing more of it will come."""
        for stream in [*self._streams]:
            self._end_stream(stream)
        self._pass_on()

    def _put(self, message: Outgoing) -> None:
        self._held.append(message)
        self._n_held += len(message.text)
        if any(masker.holding for masker in self._streams.values()):
            if len(self._held) < HELD_MESSAGES and self._n_held < HELD_CHARS:
                return
            for stream in [stream for stream, masker in self._streams.items() if masker.holding]:
                self._end_stream(stream)
        self._pass_on()

    def _end_stream(self, stream: Stream) -> None:
        masker = self._streams.pop(stream, None)
        if masker is None or not (rest := masker.flush()):
            return
        for message in reversed(self._held):
            if message.stream == stream and message.value is not None:
                message.mask({**message.value, "delta": message.value["delta"] + rest})
                return

    def _pass_on(self) -> None:
        held, self._held, self._n_held = self._held, [], 0
        for stream in {message.stream for message in held if message.plain is not None}:
            waited = [message for message in held if message.stream == stream]
            said = "".join((message.plain or message.value or {})["delta"] for message in waited)
            told = "".join((message.value or {})["delta"] for message in waited)
            for message in waited:
                message.settle(masked=said != told)
        for message in held:
            self.write(message)


def repeats(value: dict[str, Any], before: dict[str, Any] | None) -> bool:
    """Whether two deltas differ in nothing but ``VARIES``, the order of their fields included."""
    return (
        before is not None
        and [*value] == [*before]
        and all(value[name] == before[name] for name in value if name not in VARIES)
    )


def loads(text: str) -> dict[str, Any]:
    """The JSON object that ``text`` is; {} if it is none."""
    try:
        value = orjson.loads(text)
    except ValueError:
        try:
            value = json.loads(text)  # lone surrogates, deep nesting
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}


def compact(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        return json.dumps(value, separators=(",", ":"))


def spaced(value: Any) -> str:
    return json.dumps(value)


def _form(value: dict[str, Any], text: str) -> str:
    try:
        if orjson.dumps(value).decode() == text:
            return "json"
    except orjson.JSONEncodeError:
        return "text"
    return "spaced" if spaced(value) == text else "text"


def _stream_of(value: Mapping[str, Any], type_: str) -> Stream:
    places = (value.get(name) for name in ("item_id", "output_index", "content_index", "summary_index", "stream_id"))
    return (type_, *(place if isinstance(place, str | int) else None for place in places))


def _without_logprobs(value: Any) -> Any:
    """``value`` without those, which say a masked text once more, token by token."""
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
