"""From a recording to a rollout: its turns as they were asked and answered, with the waits between them."""

from turntape.core.context import estimate_tokens
from turntape.core.seam import Usage
from turntape.replay.drive.course import Course
from turntape.replay.drive.course import Turn as RecordedTurn
from turntape.replay.drive.recorded_tools import sendable
from turntape.replay.reading import DELIVERY

from .rollout import Item, Rollout, Turn, encoded_bytes


def recorded(course: Course) -> Rollout:
    """Everything of ``course`` that can be played. Turns with equal settings share them."""
    places = {turn.number: (n, at) for n, thread in enumerate(course.threads) for at, turn in enumerate(thread)}
    known = list[Item]()
    threads = tuple(tuple(_turn(turn, places, known) for turn in thread) for thread in course.threads)
    return Rollout(course.name, threads)


def _turn(turn: RecordedTurn, places: dict[int, tuple[int, int]], known: list[Item]) -> Turn:
    start, thread = turn.take.start, places[turn.number][0]
    settings = {name: value for name, value in start.request.raw.items() if name not in DELIVERY}
    if start.request.raw.get("store") is not None:
        settings["store"] = start.request.raw["store"]
    settings = next((one for one in known if one == settings), settings)
    if not any(one is settings for one in known):
        known.append(settings)
    said = tuple(sendable(item) for item in turn.take.said())
    usage = _usage(turn)
    return Turn(
        settings=settings,
        new=tuple(map(sendable, turn.new)),
        said=said,
        anew=turn.before is None,
        output_tokens=usage.output_tokens if usage is not None else estimate_tokens(encoded_bytes(said)),
        reasoning_tokens=usage.reasoning_tokens if usage is not None else 0,
        gap_s=turn.gap_s,
        after=tuple(places[other.number] for other in turn.after if places[other.number][0] != thread),
    )


def _usage(turn: RecordedTurn) -> Usage | None:
    """What the backend counted."""
    return turn.take.finish.usage if turn.take.finish is not None else None
