"""What waits in a lane and for how long: order, bounds, silence, and the clock."""

from peer import Peer, call, texts, types

from turntape.core.seam import Finish, Limits, Text, Tick, ToolCall


def test_a_lane_takes_its_creates_in_the_order_they_came():
    peer = Peer(answer=None)
    for text in ("one", "two", "three", "four"):
        peer.create(text)
    for _ in range(4):
        peer.sampled(Text("x"), Finish())
    assert [texts(peer.prompt(n)) for n in range(4)] == [["user: one"], ["user: two"], ["user: three"], ["user: four"]]


def test_what_needs_no_model_does_not_stop_the_lane_behind_it():
    peer = Peer(answer=None)
    peer.create("runs")
    peer.create("warm", generate=False)
    peer.create(temperature=9)
    peer.create("last")
    assert types(peer.sampled(Finish())) == ["created", "in_progress", "completed"] * 2 + ["error"]
    assert texts(peer.prompt()) == ["user: last"]


def test_text_counts_as_waiting_only_while_it_waits(monkeypatch):
    monkeypatch.setattr("turntape.core.lanes.MAX_WAITING_BYTES", 1000)
    peer = Peer()
    for _ in range(3):
        assert types(peer.create("x" * 2000))[-1] == "completed"  # nothing waits before it, so it need not fit
    peer.answer = None
    assert [peer.create("x" * 200) for _ in range(3)] == [[], [], []]
    assert [e["status"] for e in peer.create("x" * 1000)] == [429]


def test_the_default_lane_is_not_one_of_the_named_ones():
    peer = Peer(limits=Limits(n_lanes=2))
    for fields in ({}, {"stream_id": "a"}, {"stream_id": "b"}):
        assert types(peer.create(**fields))[-1] == "completed"
    assert [e["error"]["code"] for e in peer.create(stream_id="c")] == ["websocket_stream_limit_reached"]


def test_silence_is_counted_from_the_last_event_sent():
    peer = Peer(answer=None)
    peer.create(now=0.0)
    peer.feed(Tick(), now=1.0)
    assert types(peer.sent) == ["created", "in_progress"] and peer.session.deadline == 16.0


def test_a_parked_response_stays_silent_when_another_lane_is_kept_alive():
    peer = Peer(answer=call("f"), dialect="append")
    peer.create(stream_id="parked", now=0.0)
    peer.answer = None
    peer.create(stream_id="busy")
    peer.started()
    assert [event["stream_id"] for event in peer.feed(Tick(), now=15.0)] == ["busy"]


def test_a_repeated_in_progress_shows_no_output_like_the_first():
    peer = Peer(answer=None)
    peer.create(now=0.0)
    peer.sampled(Text("x"), ToolCall("c", "f"))
    assert [event["response"]["output"] for event in peer.feed(Tick(), now=15.0)] == [[]]


def test_a_response_tells_when_it_began_and_when_it_ended():
    peer = Peer(answer=None)
    peer.create(now=100.0)
    ended = peer.sampled(Text("x"), Finish(), now=130.0)[-1]["response"]
    assert (ended["created_at"], ended["completed_at"]) == (1_795_970_100, 1_795_970_130)


def test_an_old_connection_says_so_once_and_in_the_documented_words():
    peer = Peer(answer=None)
    peer.create(now=0.0)
    peer.started()
    peer.feed(Tick(), now=3600.0)
    peer.feed(Tick(), now=3630.0)
    [error] = [event["error"] for event in peer.sent if event["type"] == "error"]
    assert error["message"] == (
        "Responses websocket connection limit reached (60 minutes). Create a new websocket connection to continue."
    )
