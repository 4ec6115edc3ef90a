"""What verify says of relayed sessions: which order of an upstream's events holds, and at which line it does not."""

from collections.abc import Callable
from typing import Any

import pytest
from relayed import Change, RelayFile, call
from taped import Recording, output, user

from turntape.core.seam import Encrypted, Finish, Message, Reasoning, Refusal, Summary, Text
from turntape.replay.errors import Divergence
from turntape.replay.verify import verify

RICH = (
    (Summary("one", 0), Summary("two", 1), Encrypted("sealed")),
    (Reasoning("ra"), Reasoning("w")),
    (Message("commentary"), Text("Fir"), Text("st."), Refusal("But "), Refusal("no.")),
    call("call_1", '{"c":1}'),
)


def recording(change: Change | None = None) -> RelayFile:
    """Two turns, of which the first says a bit of everything."""
    file = RelayFile()
    one = file.socket(change)
    one.turn(user("Hi"), say=RICH)
    one.turn(output("call_1", "README"), say=[(Text("Done."),)])
    one.gone("client", 1000)
    return file


def diverges(file: RelayFile) -> Divergence:
    with pytest.raises(Divergence) as caught:
        verify(file.fixture)
    return caught.value


def test_what_holds_is_counted_and_named() -> None:
    """Nobody takes it for a proof to the byte."""
    held = "ladders, numbering and reconstruction hold (not byte-exact: another server made them)"
    verified = verify(recording().fixture)
    assert str(verified) == f"1 relayed session, 2 turns: {held}"
    assert (verified.n_relayed, verified.n_relayed_turns, verified.n_sessions) == (1, 2, 0)


def test_interleaved_lanes_hold() -> None:
    """Each lane has a ladder of its own."""
    file = RelayFile()
    one = file.socket()
    starts = [one.ask(user(name), stream_id=name, follow=False) for name in "ab"]
    for batch in ((Text("x"),), (Text("y"),), (Finish(),)):
        for start in starts:
            assert start is not None
            one.starts.append(start)
            one.say(batch, finish=None)
    assert verify(file.fixture).n_relayed_turns == 2


def without(*types: str) -> Change:
    return lambda event: None if event["type"].removeprefix("response.").startswith(types) else event


def strip(*names: str) -> Change:
    return lambda event: {name: value for name, value in event.items() if name not in names}


def no_output(event: dict[str, Any]) -> dict[str, Any]:
    return {**event, "response": {"id": event["response"]["id"]}} if "response" in event else event


@pytest.mark.parametrize(
    "change",
    [
        without("created", "in_progress"),
        without("content_part", "reasoning_summary_part"),
        strip("sequence_number"),
        strip("output_index"),
        strip("item_id"),
        no_output,
    ],
)
def test_what_may_be_left_out_is_no_deviation(change: Change) -> None:
    """Clients do without it, if it is left out altogether."""

    def numberless(event: dict[str, Any]) -> dict[str, Any] | None:
        changed = change(event)
        return None if changed is None else {n: v for n, v in changed.items() if n != "sequence_number"}

    assert verify(recording(numberless).fixture).n_relayed_turns == 2


def test_the_shortest_stream_that_clients_take_holds() -> None:
    """Items as they are done, and an end with an id."""

    def minimal(event: dict[str, Any]) -> dict[str, Any] | None:
        if event["type"] not in ("response.output_item.done", "response.completed"):
            return None
        return strip("sequence_number", "output_index")(no_output(event))

    assert verify(recording(minimal).fixture).n_relayed_turns == 2


def test_events_of_another_kind_pass() -> None:
    """What the protocol does not know it does not forbid."""
    file = recording()
    file.lines.insert(5, {"up": 1, "t": 0.2, "json": {"type": "keepalive"}})
    file.lines.insert(6, {"up": 1, "t": 0.2, "json": {"type": "response.lab_unknown", "note": 1}})
    verify(file.fixture)


Edit = Callable[[dict[str, Any]], object]


def setting(*path: Any, to: Any) -> Edit:
    def edit(event: dict[str, Any]) -> None:
        inner: Any = event
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = to

    return edit


@pytest.mark.parametrize(
    "type_, n, edit, problem",
    [
        ("response.in_progress", 0, setting("sequence_number", to=5), "its sequence_number is 5 after 0"),
        ("response.created", 0, setting("sequence_number", to=1), "its sequence_number is 1, and it is the first"),
        ("response.in_progress", 0, setting("response", "id", to="resp_other"), "its response is 'resp_other'"),
        ("response.output_item.added", 1, setting("output_index", to=3), "its output_index is 3; the next item is 1"),
        ("response.output_item.done", 0, setting("item", "id", to="rs_other"), "its item is 'rs_other'"),
        ("response.reasoning_summary_part.added", 1, setting("summary_index", to=2), "the next part is 1"),
        ("response.output_text.done", 0, setting("text", to="Forst."), "its text is not what its deltas said"),
        ("response.refusal.done", 0, setting("refusal", to="But"), "its refusal is not what its deltas said"),
        ("response.content_part.done", 1, setting("part", "text", to="Fir"), "its part is not"),
        ("response.function_call_arguments.done", 0, setting("arguments", to="{}"), "its arguments is not"),
        ("response.output_item.done", 3, setting("item", "arguments", to="{}"), "its arguments is not"),
        ("response.output_item.done", 2, setting("item", "content", 0, "text", to="!"), "its content 0 is not"),
        ("response.completed", 0, setting("response", "output", 2, "phase", to="final_answer"), "its output is not"),
        ("response.completed", 0, setting("response", "id", to="resp_other"), "its response is 'resp_other'"),
    ],
)  # fmt: skip
def test_a_deviation_is_found_at_its_line(type_: str, n: int, edit: Edit, problem: str) -> None:
    """With the event's type and what is wrong with it."""
    file = recording()
    events = [line for line in file.lines if line.get("json", {}).get("type") == type_ and "up" in line]
    edit(events[n]["json"])
    diverged = diverges(file)
    assert problem in str(diverged) and repr(type_) in str(diverged)
    assert file.lines[diverged.line - 1] is events[n]


@pytest.mark.parametrize(
    "type_, problem",
    [
        ("response.output_item.added", "its item was not added before"),
        ("response.content_part.added", "was not added before"),
        ("response.output_item.done", "of which 1 items are not done"),
    ],
)
def test_an_event_that_is_missing_among_others_is_a_deviation(type_: str, problem: str) -> None:
    """A server that sends such events for one item has to for all."""
    file = recording(strip("sequence_number"))
    missing = [line for line in file.lines if line.get("json", {}).get("type") == type_]
    file.lines.remove(missing[-2] if len(missing) > 2 else missing[-1])
    assert problem in str(diverges(file))


def test_two_responses_at_once_on_a_lane_are_a_deviation() -> None:
    """A lane answers one request after the other."""
    file = recording()
    created = next(line for line in file.lines if line.get("json", {}).get("type") == "response.in_progress")
    created["json"] = {**created["json"], "type": "response.created", "sequence_number": 0}
    assert "is created while another of its lane goes on" in str(diverges(file))


def test_deltas_of_short_lines_count_too() -> None:
    """A short line is as many events as it has strings."""
    file = recording()
    short = next(line for line in file.lines if "u" in line)
    short["d"].append("more")
    assert diverges(file).line == file.lines.index(short) + 2


def test_mixed_files_say_both() -> None:
    """A recording of this server's own and a relayed one may share a file."""
    own = Recording()
    own.client().turn(user("hi"), say=((Text("x"),),))
    relayed = recording()
    lines = [
        {**line, **{key: 2 for key in ("relay", "answer", "client", "up", "u", "gone") if key in line}}
        for line in relayed.lines
    ]
    merged = RelayFile(lines=lines)
    content = own.content + merged.content.split(b"\n", 1)[1]
    shown = str(verify(type(merged.fixture).parse(content)))
    assert shown.startswith("1 session, 5 steps, 1 turn: equal byte for byte; 1 relayed session, 2 turns: ladders")
