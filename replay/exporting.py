"""Recordings as a workload of AIPerf, a load generator: its ``mooncake_trace`` with whole Responses requests.

Each turn is one line: the request with its whole conversation, how long the client waited before it, and how long the
answer was. AIPerf sends the requests of a session one after another as they stand, and discards what is answered.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import define, field

from turntape.core.seam import Opened

from .fixture import Fixture
from .reconstruction import not_replayable
from .takes import Take, refeed, takes
from .tracks import Track, tracks

DELIVERY = frozenset(
    {"type", "input", "stream", "stream_id", "stream_options", "generate", "store", "background", "client_metadata"}
    | {"previous_response_id", "response_id", "model"}
)
"""Fields of a request that are set anew, or say how it was delivered."""


@define
class Workload:
    """Lines for AIPerf.

    Attributes:
        n_sessions: conversations.
        uncounted: turns whose backend counted no tokens; AIPerf is not told how long their answers were.
        left_out: turns without a whole answer: refused, cancelled or cut off.
        not_replayable: what relays recorded and is in no line, or not in full; each with its place.
    """

    lines: list[dict[str, Any]]
    n_sessions: int
    uncounted: int
    left_out: int
    not_replayable: list[str] = field(factory=list)

    def __str__(self) -> str:
        parts = ((self.n_sessions, "session"), (len(self.lines), "turn"))
        return ", ".join(f"{n:,} {name}{'' if n == 1 else 's'}" for n, name in parts)


def workload(fixtures: Sequence[Fixture]) -> Workload:
    """
    Raises:
        Divergence: today's core does not start the samples that were recorded.
    """
    made = Workload([], 0, 0, 0)
    names = _names([fixture.name for fixture in fixtures])
    for fixture, name in zip(fixtures, names, strict=True):
        found = takes(fixture)
        opened = {s.session: s.event for s, _, _ in refeed(fixture) if isinstance(s.event, Opened)}
        made.not_replayable += [f"{fixture.name}:{one.line}: {one.problem}" for one in not_replayable(fixture)]
        made.left_out += sum(take.finish is None for take in found)
        for number, track in enumerate(tracks([take for take in found if take.finish is not None], opened), 1):
            made.n_sessions += 1
            made.lines += _lines(track, opened, f"{name}-{number}")
    made.uncounted = sum("output_length" not in line for line in made.lines)
    return made


def _names(paths: Sequence[str]) -> list[str]:
    """A name for each fixture: its file's, with a number where two have the same."""
    stems = [Path(path).stem for path in paths]
    return [stem if stems.count(stem) == 1 else f"{stem}-{stems[:n].count(stem) + 1}" for n, stem in enumerate(stems)]


def _lines(track: Track, opened: dict[int, Opened], session_id: str) -> Iterator[dict[str, Any]]:
    ended: float | None = None  # seconds since 1970
    for take in track.takes:
        began = opened[take.session].wall + take.began
        line: dict[str, Any] = {"session_id": session_id}
        if ended is not None:
            line["delay"] = round(max(0.0, began - ended) * 1000, 3)
        usage = take.finish.usage if take.finish is not None else None
        if usage is not None and usage.output_tokens > 0:
            line["output_length"] = usage.output_tokens
        yield {**line, "payload": _request(take)}
        ended = began + take.duration_s


def _request(take: Take) -> dict[str, Any]:
    """What a client would send that keeps no chain: everything in one request, and no reasoning, which is its backend's own."""
    items = [item.value for item in take.start.context.items_after(None) if item.type != "reasoning"]
    settings = {name: value for name, value in take.start.request.raw.items() if name not in DELIVERY}
    ours = [{name: value for name, value in item.items() if name not in ("id", "status")} for item in items]
    return {"model": take.start.model, **settings, "input": ours, "stream": True, "store": False}
