"""Events without their secrets: what a recorder writes in place of what happened."""

import json
from typing import Any

import attrs
import orjson
from attrs import define, field

from turntape.core.seam import (
    ClientText,
    Encrypted,
    Event,
    Finish,
    Increment,
    Loaded,
    Opened,
    Sampled,
    SampleFailed,
    Saved,
    StoreFailed,
    Summary,
    ToolCall,
)

from .secrets import Masker, StreamMasker
from .substitution import TextPiece

_PLACES: dict[type[Any], str] = {
    ClientText: "a request",
    Loaded: "a stored response",
    Opened: "a client's User-Agent",
    Sampled: "an answer",
    SampleFailed: "a backend's refusal",
    StoreFailed: "a store's failure",
}


@define(eq=False)
class _Run:
    """The text that a sample is saying.

    Attributes:
        last: its last increment: all of one text have one kind, and one part.
    """

    last: TextPiece
    stream: StreamMasker

    def goes_on_with(self, increment: Increment) -> bool:
        return type(increment) is type(self.last) and _part(increment) == _part(self.last)


def _part(increment: Increment) -> int:
    return increment.part if isinstance(increment, Summary) else 0


@define(eq=False)
class EventMasker:
    """Masks the events of one session. A key may be split over many increments; no event is added for that.

    Attributes:
        found: what was masked in the event before, for people; "" if nothing was.
    """

    masker: Masker
    found: str = field(init=False, default="")
    _runs: dict[str, _Run] = field(init=False, factory=dict)  # by sample: as many as there are lanes at work

    def masked(self, event: Event) -> tuple[Event, ...]:
        """What is to be written for ``event``: itself, the same object, if there is no secret in it.

        A failure comes in two parts if the text before it was held to its end: the rest of that, and the failure.
        """
        self.found = ""
        match event:
            case Sampled():
                masked: Event = self._sampled(event)
            case ClientText(text):
                hidden = self._client_text(text)
                masked = event if hidden is text else ClientText(hidden)
            case SampleFailed(sample_id):
                rest = self._rest(sample_id)
                masked = self._fields(event)
                if rest is not None:
                    return Sampled(sample_id, (rest,)), masked
            case Loaded() | Opened() | StoreFailed() | Saved():
                masked = self._fields(event)
            case _:
                masked = event
        if self.found:
            self.found += f" in {_PLACES.get(type(event), 'an event')}"
        return (masked,)

    def forget(self, sample_id: str) -> None:
        """The sample was cancelled: what it still held was heard by nobody."""
        self._runs.pop(sample_id, None)

    def _text(self, text: str) -> str:
        hidden = self.masker.text(text)
        if hidden is not text:
            self.found = self.found or next(self.masker.certain(text)).kind
        return hidden

    def _client_text(self, text: str) -> str:
        hidden = self._text(text)
        if "\\u00" in hidden:  # ASCII may be escaped too: a key that was is read all the same
            try:
                plain = orjson.dumps(json.loads(hidden)).decode()
            except (ValueError, TypeError, RecursionError):
                return hidden
            again = self._text(plain)
            return hidden if again is plain else again
        return hidden

    def _fields(self, event: Any) -> Any:
        """``event`` with each text in it masked."""
        changed = dict[str, Any]()
        for attribute in attrs.fields(type(event)):
            value = getattr(event, attribute.name)
            hidden = self._value(value)
            if hidden is not value:
                changed[attribute.name] = hidden
        return attrs.evolve(event, **changed) if changed else event

    def _value(self, value: Any) -> Any:
        match value:
            case str():
                return self._text(value)
            case bytes():  # one JSON value
                text = value.decode()
                hidden = self._text(text)
                return value if hidden is text else hidden.encode()
            case tuple():
                inner = tuple(map(self._value, value))
                return value if all(a is b for a, b in zip(inner, value, strict=True)) else inner
        return value

    def _sampled(self, event: Sampled) -> Sampled:
        batch, run = event.batch, self._runs.get(event.sample_id)
        if run is not None and all(map(run.goes_on_with, batch)):
            whole = "".join(piece.text for piece in batch)  # type: ignore[union-attr]
            if run.stream.passes(whole):
                return event
        masked = list[Increment]()
        for increment in batch:
            run = self._runs.get(event.sample_id)
            if not isinstance(increment, TextPiece):
                self._end(event.sample_id, masked)
                masked.append(self._fields(increment) if isinstance(increment, ToolCall | Encrypted) else increment)
                continue
            if run is None or not run.goes_on_with(increment):
                self._end(event.sample_id, masked)
                run = self._runs[event.sample_id] = _Run(increment, self.masker.stream())
            text = run.stream.feed(increment.text)
            self.found = self.found or run.stream.found
            masked.append(increment if text == increment.text else attrs.evolve(increment, text=text))
        if any(isinstance(increment, Finish) for increment in batch):
            self.forget(event.sample_id)
        same = len(masked) == len(batch) and all(a is b for a, b in zip(masked, batch, strict=True))
        return event if same else attrs.evolve(event, batch=tuple(masked))

    def _end(self, sample_id: str, masked: list[Increment]) -> None:
        """The text ends here: what it held goes to its last increment in this batch, or is one of its own."""
        rest = self._rest(sample_id)
        if rest is None:
            return
        if masked and isinstance(last := masked[-1], TextPiece):
            masked[-1] = attrs.evolve(last, text=last.text + rest.text)
        else:
            masked.append(rest)

    def _rest(self, sample_id: str) -> TextPiece | None:
        run = self._runs.pop(sample_id, None)
        if run is None or not run.stream.holding:
            return None
        rest = attrs.evolve(run.last, text=run.stream.flush())
        self.found = self.found or run.stream.found
        return rest
