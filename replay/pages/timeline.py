"""The page of one recording, or of two side by side: what it shows, and where each thing stands in time."""

import math
from bisect import bisect_left
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import asdict, define, evolve, field

from turntape.core.canonical import Fold, Item
from turntape.core.session import Session
from turntape.replay.fixture import Fixture
from turntape.replay.reconstruction import not_replayable
from turntape.replay.requests import NotReplayable
from turntape.replay.takes import NewSession, Take, takes
from turntape.replay.tracks import Track, tracks

from .alignment import aligned
from .assembly import page
from .frames import Frame, Wire, packed, references, wires

SCRIPTS = (
    "elements.js",
    "texts.js",
    "items.js",
    "scale.js",
    "panel.js",
    "model.js",
    "heading.js",
    "timeline.js",
    "turns.js",
    "page.js",
)
STYLES = ("style.css", "recording.css")

LONGEST_DAY_S = 7 * 86400.0
"""Sessions further apart than this do not share a scale of time: one of them was edited, or joined to the file."""


def timeline_page(fixture: Fixture, other: Fixture | None = None, *, new_session: NewSession = Session) -> str:
    """An HTML document that shows ``fixture``, beside ``other`` if there is one.

    Raises:
        ReplayError: today's core does not start the samples that were recorded, or a fixture's rules cannot be used.
    """
    views = [_View(each, takes(each, new_session), wires(each, new_session)) for each in (fixture, other) if each]
    shown: dict[str, Any] = {"fixtures": [view.shown() for view in views]}
    if len(views) == 2:
        shown["pairs"] = aligned(*(view.tracks for view in views))
    title = " and ".join(Path(view.fixture.name).name for view in views)
    return page(f"{title} · Turntape", shown, SCRIPTS, STYLES)


@define(eq=False)
class _View:
    fixture: Fixture
    found: list[Take]
    wires: dict[int, Wire]
    tracks: list[Track] = field(init=False)
    offsets: dict[int, float] = field(init=False)
    lost: list[NotReplayable] = field(init=False)
    _seen: set[str] = field(factory=set)
    _claimed: set[tuple[int, int]] = field(factory=set)  # client frames that led to a turn: session, index

    def __attrs_post_init__(self) -> None:
        opened = {number: wire.opened for number, wire in self.wires.items() if wire.opened}
        self.tracks = tracks(self.found, opened)
        self.offsets = _offsets(self.wires)
        self.lost = not_replayable(self.fixture)

    def shown(self) -> dict[str, Any]:
        turns = [
            self._turn(take, number) for number, track in enumerate(self.tracks) for take in track.takes
        ]  # in the order of tracks, so that aligned() and the page count alike
        shown = {
            "name": Path(self.fixture.name).name,
            "whole": self.fixture.whole,
            "counts": asdict(evolve(self.fixture.counts, n_turns=len(self.found))),
            "sessions": {number: {"at": self.offsets[number], **wire.shown} for number, wire in self.wires.items()},
            "tracks": [
                {"session": track.session, "transport": track.transport, "lane": track.lane} for track in self.tracks
            ],
            "turns": turns,
            "marks": [mark for number, wire in self.wires.items() for mark in self._marks(number, wire)],
        }
        blobs = self.fixture.blobs
        shown["blobs"] = {name: blobs[name] for name in references([shown["sessions"], turns]) if name in blobs}
        return shown

    def _turn(self, take: Take, track: int) -> dict[str, Any]:
        context = take.start.context
        known = next((link for link in context.links() if link.fold.key in self._seen), None)
        fold, n_before = (known.fold, known.n_items) if known else (Fold(), 0)
        items, n_shown = context.items_after(known), 0
        for n, item in enumerate(items, 1):
            fold = fold.add(item)
            if fold.key in self._seen:
                n_shown = n
            self._seen.add(fold.key)
        said = take.said()
        for item in said:
            fold = fold.add(item)
        self._seen.add(fold.key)
        usage = take.finish.usage if take.finish else None
        failure = take.failure
        return {
            "track": track,
            "session": take.session,
            "line": take.line,
            "model": take.start.model,
            "at": round(self.offsets[take.session] + take.began, 6),
            "first": take.first_token_s if math.isfinite(take.first_token_s) else None,
            "took": take.duration_s,
            "n_reads": sum(1 for _, event in take.events if getattr(event, "batch", ())),
            "end": take.finish.reason if take.finish else "failed" if failure else "open",
            "failure": f"{failure.status} {failure.code}: {failure.message}" if failure else None,
            "usage": asdict(usage) if usage else None,
            "lost": [each.problem for each in self.lost if each.session == take.session and each.line == take.line],
            "before": n_before + n_shown,
            "prompt": [self._packed(item) for item in items[n_shown:]],
            "said": [self._packed(item) for item in said],
            "frames": self._frames_of(take, self.tracks[track].lane),
        }

    def _packed(self, item: Item) -> Any:
        return packed(item.value, self.fixture.blobs, item.encoded)

    def _frames_of(self, take: Take, lane: str | None) -> list[int]:
        """Indices of the session's frames: the request of a turn, its first other frame, and the one behind its last."""
        frames = self.wires[take.session].frames
        start = bisect_left(frames, take.line, key=lambda frame: frame.line)
        first = start + 1 if start < len(frames) and frames[start].asks else start
        ask = next((n for n in range(first - 1, -1, -1) if frames[n].asks and frames[n].lane == lane), start)
        self._claimed.add((take.session, ask))
        over = take.began + take.duration_s
        end = next((n for n in range(first, len(frames)) if _is_behind(frames[n], lane, over)), len(frames))
        return [ask, first, end]

    def _marks(self, number: int, wire: Wire) -> list[dict[str, Any]]:
        """Messages of the client that led to no turn: warm-ups, refused requests."""
        track_of = {track.lane: n for n, track in enumerate(self.tracks) if track.session == number}
        marks = []
        for n, frame in enumerate(wire.frames):
            if not frame.asks or (number, n) in self._claimed:
                continue
            end = next((m for m in range(n + 1, len(wire.frames)) if wire.frames[m].asks), len(wire.frames))
            answers = [
                f.row["s"]
                for f in wire.frames[n + 1 : end]
                if f.lane == frame.lane and isinstance(f.row.get("s"), dict)
            ]
            refused = any(answer.get("type") in ("error", "response.failed") for answer in answers)
            asked = frame.row.get("c")
            warm = isinstance(asked, Mapping) and asked.get("generate") is False
            lost = [each.problem for each in self.lost if each.session == number and each.line == frame.line]
            kind = "refused" if refused else "warm-up" if warm else "lost" if lost else "message"
            marks.append(
                {
                    "session": number,
                    "track": track_of.get(frame.lane),
                    "lane": frame.lane,
                    "at": round(self.offsets[number] + frame.at, 6),
                    "kind": kind,
                    "lost": lost,
                    "frames": [n, n + 1, end],
                }
            )
        return marks


def _is_behind(frame: Frame, lane: str | None, over: float) -> bool:
    return frame.asks and frame.lane == lane and frame.at >= over


def _offsets(found: Mapping[int, Wire]) -> dict[int, float]:
    """Seconds from the beginning of the page's scale to each session's: by the clock, or else one after the other."""
    walls = {number: float(wire.shown["wall"]) for number, wire in found.items()}
    if not walls:
        return {}
    first = min(walls.values())
    if max(walls.values()) - first <= LONGEST_DAY_S:
        return {number: round(wall - first, 6) for number, wall in walls.items()}
    offsets, at = {}, 0.0
    for number, wire in found.items():
        offsets[number] = at
        at += max((frame.at for frame in wire.frames), default=0.0) + 1.0
    return offsets
