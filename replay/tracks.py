"""Which turns of a recording follow one another: the rows of its timeline, and the chapters of its golden text."""

from collections.abc import Iterable, Mapping

from attrs import define, field

from turntape.core.canonical import Fold
from turntape.core.seam import Opened

from .takes import Take


@define(eq=False)
class Track:
    """The turns of one lane of a WebSocket, or those of the POSTs that continue one conversation.

    Attributes:
        session: of its first turn.
        lane: the ``stream_id``; None for the default lane and for POSTs.
        takes: in the order in which they were asked.
    """

    session: int
    transport: str
    lane: str | None
    takes: list[Take] = field(factory=list)


def tracks(found: Iterable[Take], opened: Mapping[int, Opened]) -> list[Track]:
    """Every turn, in the track to which it belongs; tracks in the order of their first turns.

    Each POST is a session of its own, so it is the conversation that says which of them belong together: a POST
    goes to the track whose last turn, its answer included, it continues.

    Args:
        opened: the first event of each session.
    """
    order: list[Track] = []
    lanes: dict[tuple[int, str | None], Track] = {}
    ends: dict[str, Track] = {}  # the track that a conversation of this key ends
    for take in found:
        transport = opened[take.session].transport
        if transport == "websocket":
            lane = take.start.request.raw.get("stream_id")
            where = take.session, lane if isinstance(lane, str) else None
            if (track := lanes.get(where)) is None:
                track = lanes[where] = Track(take.session, transport, where[1])
                order.append(track)
        else:
            continued = _continued(take, ends)
            track = ends.pop(continued) if continued is not None else Track(take.session, transport, None)
            if continued is None:
                order.append(track)
            fold = take.start.context.fold
            for item in take.said() if take.whole else ():
                fold = fold.add(item)
            ends[fold.key] = track
        track.takes.append(take)
    return order


def _continued(take: Take, ends: Mapping[str, Track]) -> str | None:
    """The latest point of the conversation at which a track ends."""
    found, fold = None, Fold()
    for item in take.start.context.items_after(None):
        fold = fold.add(item)
        if fold.key in ends:
            found = fold.key
    return found
