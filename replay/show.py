"""A fixture as text for a terminal: what was said in each turn, what it cost, and how long it took."""

import math
import textwrap
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import orjson
from attrs import define, evolve, field

from turntape.core.canonical import Fold, Item
from turntape.core.seam import Opened, StartSample
from turntape.core.session import Session

from .fixture import Fixture
from .lines import Relayed
from .reconstruction import not_replayable
from .takes import NewSession, Take, openings, takes

WIDTH = 110
MAX_LINES = 8
"""Lines shown of one text; a longer one is cut in its middle."""

LABEL = 11

TRANSPORTS = {"websocket": "WebSocket", "sse": "POST answered by an event stream", "json": "POST answered at once"}
DIALECTS = {"append": "response.append", "legacy": "response.append as old clients use it"}
"""Beside ``response.create``, which all others use."""


def transcript(fixture: Fixture, new_session: NewSession = Session) -> str:
    """The conversations of a recording, turn by turn in the order in which they were asked.

    A prompt is shown from where it leaves what earlier turns have shown. Times are seconds: of a session since
    its opening, of a turn since its sample was started.
    """
    return "\n".join(map(clean, _Transcript(fixture).lines(takes(fixture, new_session)))) + "\n"


@define(eq=False)
class _Transcript:
    """Attributes:
    seen: keys of every conversation, and beginning of one, that has been shown.
    """

    fixture: Fixture
    seen: set[str] = field(factory=set)

    def lines(self, found: list[Take]) -> Iterator[str]:
        counts = evolve(self.fixture.counts, n_turns=len(found))  # as they are shown: also those without an end
        n_open = sum(not take.whole for take in found)
        unfinished = f"; {n_open} turn{'' if n_open == 1 else 's'} not finished" if n_open else ""
        yield f"{self.fixture.name}: {counts}{unfinished}" + ("" if self.fixture.whole else "; cut off")
        number = 0
        relays = {line.session: line.upstream for line in self.fixture.lines if isinstance(line, Relayed)}
        for session, event in openings(self.fixture).items():
            yield ""
            yield _session_line(session, event, relays.get(session))
            own = [take for take in found if take.session == session]
            for take in own:
                number += 1
                yield ""
                yield from self._turn(number, take)
            if not own:
                yield "  no turn"
        if lost := not_replayable(self.fixture):
            yield ""
            yield "not replayable:"
            yield from (f"  {one}" for one in lost)

    def _turn(self, number: int, take: Take) -> Iterator[str]:
        start = take.start
        lane = start.request.raw.get("stream_id")
        on_lane = f"  lane {lane}" if isinstance(lane, str) else ""
        yield f"turn {number}  {start.model}{on_lane}  +{take.began:.3f} s  line {take.line}"
        yield from self._prompt(start)
        fold = take.start.context.fold
        for item in take.said():
            fold = fold.add(item)
            yield from _item(item)
        self.seen.add(fold.key)
        yield "  " + " · ".join(_outcome(take))

    def _prompt(self, start: StartSample) -> Iterator[str]:
        """The items that no earlier turn has shown."""
        fold, items, shown = Fold(), start.context.items_after(None), 0
        for n, item in enumerate(items, 1):
            fold = fold.add(item)
            if fold.key in self.seen:
                shown = n
            self.seen.add(fold.key)
        if shown:
            yield f"  … {shown} item{'' if shown == 1 else 's'} as before"
        for item in items[shown:]:
            yield from _item(item)


def _session_line(number: int, opened: Opened, upstream: str | None) -> str:
    """
    Args:
        upstream: whose answers a relay recorded; None for our own.
    """
    try:
        when = datetime.fromtimestamp(opened.wall, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        when = f"{opened.wall:g} s after 1970"  # edited: beyond the calendar
    way = ", ".join(filter(None, (TRANSPORTS.get(opened.transport, opened.transport), DIALECTS.get(opened.dialect))))
    relayed = f"relayed to {upstream.partition('?')[0]}" if upstream is not None else ""
    parts = [f"session {number}", when, way, relayed, opened.agent]
    return "  ".join(part for part in parts if part)


def _item(item: Item) -> Iterator[str]:
    value = item.value
    match item.type:
        case "message":
            yield from _text(str(value.get("role", "message")), _content(value.get("content")))
        case "function_call" | "custom_tool_call":
            yield from _call(value.get("name"), value.get("namespace"), value.get("arguments", value.get("input", "")))
        case "function_call_output" | "custom_tool_call_output":
            yield from _text("output", _content(value.get("output")))
        case "reasoning":
            texts = [_content(value.get(name)) for name in ("summary", "content")]
            yield from _text("reasoning", "\n".join(filter(None, texts)) or "(not in clear)")
        case "additional_tools":
            yield from _text("tools", ", ".join(str(tool.get("name", tool.get("type"))) for tool in value["tools"]))
        case other:
            yield from _text(other, orjson.dumps(value).decode())


def _content(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = (
        str(part.get("text", part.get("refusal", f"({part.get('type')})"))) for part in parts if isinstance(part, dict)
    )
    return "\n".join(texts)


def _outcome(take: Take) -> Iterator[str]:
    if (failure := take.failure) is not None:
        yield f"failed: {failure.status} {failure.code}: {failure.message}"
    elif (finish := take.finish) is None:
        yield "not finished: cancelled, or the recording ends here"
    else:
        if finish.reason != "stop":
            yield f"ended by {finish.reason}"
        if (usage := finish.usage) is not None:
            yield f"{usage.input_tokens:,} tokens in ({usage.cached_tokens:,} cached), {usage.output_tokens:,} out" + (
                f" ({usage.reasoning_tokens:,} reasoning)" if usage.reasoning_tokens else ""
            )
    if math.isfinite(take.first_token_s):
        yield f"first token {take.first_token_s:.3f} s"
    if take.events:
        yield f"{take.duration_s:.3f} s in all"


def _call(name: object, namespace: object, arguments: object) -> Iterator[str]:
    full = f"{namespace}.{name}" if namespace else str(name)
    yield from _text("call", f"{full} {arguments}")


def _text(label: str, text: str) -> Iterator[str]:
    """``text`` under its label, wrapped, cut in the middle if it is long."""
    lines = [
        wrapped
        for line in clean(text, keep="\n\t").expandtabs(4).splitlines() or [""]
        for wrapped in textwrap.wrap(line, WIDTH, break_on_hyphens=False, drop_whitespace=False) or [""]
    ]
    for n, line in enumerate(_shortened(lines)):
        yield f"  {label if n == 0 else '':<{LABEL}}{line}".rstrip()


def clean(text: str, keep: str = "") -> str:
    """Control characters are shown, not sent: a model's name or a failure may hold what a terminal obeys."""
    return "".join(c if c in keep or c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def _shortened(lines: list[str]) -> Iterable[str]:
    if len(lines) <= MAX_LINES:
        return lines
    n_tail = 2
    head, tail = lines[: MAX_LINES - 1 - n_tail], lines[-n_tail:]
    return [*head, f"… {len(lines) - len(head) - len(tail)} more lines …", *tail]
