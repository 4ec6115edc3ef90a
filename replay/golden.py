"""A recording as a text to review: equal for two runs that differ only in what may differ, and whole otherwise."""

import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

import orjson
from attrs import define, field

from turntape.core.canonical import canonical
from turntape.core.seam import Opened
from turntape.core.session import Session

from .fixture import Fixture
from .packing import digest, encode
from .reading import Reader, Reading
from .rules import Ruleset
from .show import clean
from .takes import NewSession, Take, openings, takes
from .tracks import Track, tracks

TAB = "\t"

ESCAPED_NEWLINE = re.compile(r"(?<!\\)(?:\\\\)*\\n")
"""A newline as JSON writes it, and not a backslash before an n."""

MEDIA_BYTES = 256
"""Parts of a content that are no text are shown as JSON up to this size; a larger one, such as an image, by its hash."""


def golden(fixture: Fixture, new_session: NewSession = Session) -> str:
    """The conversations of a recording without times, ids, sizes and what its rules let differ; no text is cut.

    A prompt is shown from where it leaves what stands above; settings are shown where they change. Conversations
    stand in the order of their first turns, those that ran at the same time by their texts. An answer that was
    cancelled is left out: how far it came is chance.

    Raises:
        ReplayError: its rules cannot be used, or today's core does not start the samples that were recorded.
    """
    opened = openings(fixture)
    text = _Golden()
    ordered = text.ordered(tracks(takes(fixture, new_session), opened), opened)
    lines = chain.from_iterable(text.chapter(number, track) for number, track in enumerate(ordered, 1))
    return "\n".join(lines) + "\n"


@define(eq=False)
class _Golden:
    """Attributes:
    seen: where every conversation, and beginning of one, that has been shown stands.
    settings: as the turn before has shown them.
    """

    seen: set[str] = field(factory=set)
    settings: dict[str, Any] = field(factory=dict)
    n_turns: int = 0
    _readers: dict[bytes, Reader] = field(factory=dict)

    def reader(self, take: Take) -> Reader:
        own = encode(take.rules)
        if own not in self._readers:
            self._readers[own] = Reader(Ruleset.of(take.rules))
        return self._readers[own]

    def read(self, take: Take) -> Reading:
        return self.reader(take).read(take.start.context, take.start.request.instructions)

    def ordered(self, found: list[Track], opened: dict[int, Opened]) -> list[Track]:
        """``found``, those that began while the one before was at its first turn in the order of their prompts."""
        groups: list[list[Track]] = []
        busy_until = float("-inf")
        for track in found:
            first = track.takes[0]
            began = opened[track.session].wall + first.began
            if began >= busy_until:
                groups.append([])
            groups[-1].append(track)
            busy_until = max(busy_until, began + first.duration_s)
        return [track for group in groups for track in sorted(group, key=self._prompts)]

    def _prompts(self, track: Track) -> list[bytes]:
        return [state.form for state in self.read(track.takes[-1]).all_states]

    def chapter(self, number: int, track: Track) -> Iterator[str]:
        if number > 1:
            yield ""
        yield f"conversation {number}"
        for take in track.takes:
            self.n_turns += 1
            yield ""
            yield f"turn {self.n_turns}"
            yield from self._turn(take)

    def _turn(self, take: Take) -> Iterator[str]:
        reader, reading = self.reader(take), self.read(take)
        settings = {"model": take.start.model, **orjson.loads(reader.settings(take.start, reading.learned))}
        yield from _changed_settings(self.settings, settings)
        self.settings = settings
        states = reading.all_states
        shown = max((n for n, state in enumerate(states, 1) if state.key in self.seen), default=0)
        self.seen.update(state.key for state in states)
        if shown:
            yield f"  … {shown} item{'' if shown == 1 else 's'} as before"
        for state in states[shown:]:
            yield from _item(orjson.loads(state.form))
        if (failure := take.failure) is not None:
            yield f"  failed: {failure.status} {clean(failure.code)}: {clean(failure.message)}"
        elif (finish := take.finish) is None:
            yield "  not finished"
        else:
            yield from self._said(take, reader, reading)
            if finish.reason != "stop":
                yield f"  ended by {clean(finish.reason)}"

    def _said(self, take: Take, reader: Reader, reading: Reading) -> Iterator[str]:
        fold = reading.fold
        for item in take.said():
            plain = reader.item(item, reading.learned)
            numbers = dict(fold.open_calls)
            if item.opens_call and item.call_id is not None:
                numbers[item.call_id] = fold.n_calls + 1
            fold = fold.add(plain)
            yield from _item(orjson.loads(canonical(plain, numbers)))
        self.seen.add(fold.key)


def _changed_settings(before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    for name, value in now.items():
        if name not in before or before[name] != value:
            yield from _tools(value, before.get(name)) if name == "tools" else _setting(name, value)
    for name in before:
        if name not in now:
            yield f"  {clean(name)}: no longer set"


def _setting(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, str) and ("\n" in value or len(value) > 80):
        return _block(name, value)
    return iter([f"  {clean(name)}: {clean(value if isinstance(value, str) else orjson.dumps(value).decode())}"])


def _tools(tools: Any, before: Any) -> Iterator[str]:
    """Each tool that is new or changed, whole; the names of all, if any is gone or the order is another."""
    tools = tools if isinstance(tools, list) else [tools]
    before = before if isinstance(before, list) else []
    if before:
        yield f"  tools: {', '.join(map(_tool_name, tools)) or 'none'}"
    for tool in tools:
        if tool not in before:
            yield from _block(f"tool {_tool_name(tool)}", _indented(tool))


def _tool_name(tool: Any) -> str:
    return clean(str(tool.get("name", tool.get("type"))) if isinstance(tool, dict) else "?")


def _item(form: dict[str, Any]) -> Iterator[str]:
    """One item of a conversation, given in its canonical form."""
    match form:
        case {"type": "message"}:
            phase = f" ({form['phase']})" if "phase" in form else ""
            return _block(f"{form.get('role', 'message')}{phase}", _content(form.get("content")))
        case {"type": "function_call" | "custom_tool_call", "name": name, "call_id": number}:
            full = f"{form['namespace']}.{name}" if "namespace" in form else name
            return _block(f"call {number} {full}", _arguments(form))
        case {"type": "function_call_output" | "custom_tool_call_output", "call_id": number}:
            return _block(f"output {number}", _content(form.get("output")))
        case {"type": "reasoning"}:
            texts = (_content(form[name]) for name in ("summary", "content") if name in form)
            return _block("reasoning", "\n".join(texts) or "(not in clear)")
        case _:
            return _block(str(form.get("type")), _indented({k: v for k, v in form.items() if k != "type"}))


def _arguments(form: dict[str, Any]) -> str:
    """A call's arguments, one a line if they are JSON."""
    text = str(form.get("arguments", form.get("input", "")))
    if form["type"] == "custom_tool_call":
        return text
    try:
        return _indented(orjson.loads(text))
    except ValueError:
        return text


def _content(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(map(_part, content if isinstance(content, list) else [content]))


def _part(part: Any) -> str:
    if isinstance(part, dict) and isinstance(text := part.get("text", part.get("refusal")), str):
        return text
    encoded = encode(part)
    if len(encoded) <= MEDIA_BYTES:
        return encoded.decode()
    kind = part.get("type", "part") if isinstance(part, dict) else "part"
    return f"({kind}, {len(encoded):,} bytes, BLAKE2b {digest(encoded)})"


def _indented(value: Any) -> str:
    """``value`` as JSON whose strings go on in the next line where they say so, so that a changed line is one line."""
    return ESCAPED_NEWLINE.sub("\\g<0>\n", orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def _block(label: str, text: str) -> Iterator[str]:
    """``text`` line by line under its label; what a terminal would obey is written out."""
    yield f"  {clean(label)}"
    for line in text.split("\n"):
        yield f"    | {clean(line, keep=TAB)}" if line else "    |"
