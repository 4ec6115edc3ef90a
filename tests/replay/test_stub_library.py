"""Many fixtures in one stub: what it has not read yet is found, played, missed and named as if it had."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from stubbed import CALL, DONE, answered, refused, taken
from taped import CODEX, Client, Recording, live, output, user

from turntape.core.seam import Finish, Text
from turntape.replay import stub_library, stub_volumes
from turntape.replay.errors import FixtureUnreadable, ReplayError
from turntape.replay.fixture import Fixture
from turntape.replay.requests import NotReplayable
from turntape.replay.stub import FixtureBackend
from turntape.replay.takes import NewSession, Take, takes

N = 12


@pytest.fixture(autouse=True)
def _nothing_is_read_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with more recordings than are read whole, and with room for the takes of one of them."""
    monkeypatch.setattr(stub_library, "READ_AT_START", 0)
    monkeypatch.setattr(stub_volumes, "KEPT_BYTES", 1)


def many(folder: Path, play: Callable[[Client, int], None] | None = None, **opened: str) -> list[Path]:
    paths = []
    for n in range(N):
        recording = Recording()
        client = recording.client(seed=f"{n:032x}", **opened)
        (play or rollout)(client, n)
        paths.append(folder / f"{n}.jsonl")
        paths[-1].write_bytes(recording.content)
    return paths


def rollout(client: Client, n: int) -> None:
    client.ask(generate=False)
    client.turn(user(f"List {n}."), say=CALL)
    client.turn(output("call_1", f"README of {n}"), say=DONE)


async def played(backend: FixtureBackend, n: int, *, before: str = "") -> None:
    client = live()
    assert await answered(backend, client, user(f"{before}List {n}.")) == [(), *CALL, (Finish(),)]
    assert await answered(backend, client, output("call_1", f"README of {n}")) == [(), *DONE, (Finish(),)]


@pytest.mark.parametrize("agent", ["", CODEX])
async def test_any_of_many_fixtures_is_played(tmp_path: Path, agent: str) -> None:
    """In any order, by rules that reach into items and by none; each turn once."""
    backend = FixtureBackend.load(many(tmp_path, agent=agent))
    assert (backend.n_takes, backend.models) == (2 * N, ("m",))
    order = random.Random(7).sample(range(N), N)
    for n in order[1:]:
        await played(backend, n)
    assert (backend.n_played, backend.misses) == (2 * N - 2, [])
    assert backend.unused() == [f"{tmp_path / str(order[0])}.jsonl: none of its 2 turns was played"]


@pytest.mark.parametrize("agent", ["", CODEX])
async def test_a_request_reads_its_own_recording_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agent: str
) -> None:
    """The start and the first answer do not take longer for what nobody asks."""
    read = list[str]()

    def noted(fixture: Fixture, new_session: NewSession, lost: list[NotReplayable] | None = None) -> list[Take]:
        if lost is not None:  # of the whole of it
            read.append(fixture.name)
        return takes(fixture, new_session, lost)

    monkeypatch.setattr(stub_volumes, "takes", noted)
    paths = many(tmp_path, agent=agent)
    backend = FixtureBackend.load(paths)
    assert not read
    await played(backend, 5)
    assert read == [str(paths[5])]


async def test_sessions_of_many_fixtures_go_on_at_the_same_time(tmp_path: Path) -> None:
    """Takes that were put away between two turns are read again."""
    backend = FixtureBackend.load(many(tmp_path))
    clients = [live() for _ in range(N)]
    for n, client in enumerate(clients):
        await answered(backend, client, user(f"List {n}."))
    for n, client in enumerate(clients):
        assert await answered(backend, client, output("call_1", f"README of {n}")) == [(), *DONE, (Finish(),)]
    assert not backend.unused()


async def test_values_under_rules_are_found_in_what_is_unread(tmp_path: Path) -> None:
    """What a rule lets differ does so in the first request too."""

    def dated(client: Client, n: int) -> None:
        client.turn(user(f"<current_date>2026-11-29</current_date>List {n}."), say=CALL)
        client.turn(output("call_1", f"README of {n}"), say=DONE)

    backend = FixtureBackend.load(many(tmp_path, dated, agent=CODEX))
    await played(backend, 5, before="<current_date>2027-01-02</current_date>")


async def test_takes_of_one_conversation_come_in_the_order_of_the_files(tmp_path: Path) -> None:
    """Whichever of the files was read first."""

    def same(client: Client, n: int) -> None:
        client.turn(user(f"only {n}"), say=((Text("x"),),))
        client.turn(user("hi"), follow=False, say=((Text(f"{n}"),),))

    backend = FixtureBackend.load(many(tmp_path, same))
    for n in (7, 3, 0, 5):
        await taken(backend, live().ask(user(f"only {n}")))
    said = [(await taken(backend, live().ask(user("hi"))))[1] for _ in range(4)]
    assert said == [(Text(n),) for n in "0357"]


async def test_a_miss_names_the_nearest_turn_of_all(tmp_path: Path) -> None:
    """Also of those that nothing was asked of."""
    backend = FixtureBackend.load(many(tmp_path))
    await answered(backend, client := live(), user("List 3."))
    error = await refused(backend, client.ask(output("call_1", "README of 4")))
    assert f"Nearest is turn 2, at {tmp_path / '3.jsonl'}:" in str(error) and "README of 3" in str(error)
    error = await refused(backend, live().ask(user("List 9."), temperature=0.5))
    assert f"Nearest is turn 1, at {tmp_path / '9.jsonl'}:" in str(error) and "its settings differ" in str(error)
    error = await refused(backend, live().ask(user("List 8."), *_said(8), output("call_1", "README of 8")))
    assert "Turn 2 is asked before turn 1" in str(error)


def _said(n: int) -> list[dict[str, str]]:
    return [{"type": "function_call", "call_id": "call_1", "name": "sh", "arguments": '{"cmd":"ls"}'}]


async def test_an_edited_fixture_among_many_plays_what_it_says_now(tmp_path: Path) -> None:
    """Its index is that of what was recorded; what answers is what stands in it."""
    paths = many(tmp_path)
    paths[4].write_bytes(paths[4].read_bytes().replace(b"List 4.", b"Sort 4."))  # no offset has changed
    paths[6].write_bytes(paths[6].read_bytes().replace(b"List 6.", b"Please list 6."))
    backend = FixtureBackend.load(paths)
    for n, text in ((4, "Sort 4."), (6, "Please list 6.")):
        client = live()
        assert await answered(backend, client, user(text)) == [(), *CALL, (Finish(),)]
        assert await answered(backend, client, output("call_1", f"README of {n}")) == [(), *DONE, (Finish(),)]
    assert "List 4." in str(await refused(backend, live().ask(user("List 4."))))


@pytest.mark.parametrize("header", [b"", b"hello\n", b'{"turntape":99}\n'])
def test_a_file_among_many_that_is_no_fixture_is_named_at_the_start(tmp_path: Path, header: bytes) -> None:
    """One that is empty, something else, or of an unknown version."""
    paths = many(tmp_path)
    paths[8].write_bytes(header and header + paths[8].read_bytes().partition(b"\n")[2])
    with pytest.raises(FixtureUnreadable, match=r"8\.jsonl"):
        FixtureBackend.load(paths)
    with pytest.raises(ReplayError, match="nowhere"):
        FixtureBackend.load([*paths[:8], tmp_path / "nowhere.jsonl"])


async def test_a_file_among_many_that_was_cut_off_is_played_as_far_as_it_goes(tmp_path: Path) -> None:
    """It is a shorter recording, wherever it ends."""
    paths = many(tmp_path)
    content = paths[2].read_bytes()
    paths[2].write_bytes(content[: content.index(b"README of 2") + 4])
    backend = FixtureBackend.load(paths)
    assert backend.n_takes == 2 * N - 1
    assert await answered(backend, live(), user("List 2.")) == [(), *CALL, (Finish(),)]


async def test_a_line_that_is_broken_is_named_once_it_is_needed(tmp_path: Path) -> None:
    """By the request that it could answer, and by a miss; the others are played."""
    paths = many(tmp_path)
    content = paths[5].read_bytes()
    paths[5].write_bytes(content.replace(b'"type":"Started"', b'"type":"Startet"'))
    backend = FixtureBackend.load(paths)
    await played(backend, 4)
    error = await refused(backend, live().ask(user("List 5.")))
    assert "cannot be played: " in str(error) and f"{paths[5]}:" in str(error) and error.code == "fixture_miss"
    error = await refused(backend, live().ask(user("What?")))
    assert f"Not looked at, since it cannot be played: {paths[5]}:" in str(error)
    await played(backend, 6)
    assert len(backend.misses) == 2


async def test_a_file_that_has_changed_is_not_played(tmp_path: Path) -> None:
    """What was found at the start is not what is there: that is said, and nothing is guessed."""
    paths = many(tmp_path)
    backend = FixtureBackend.load(paths)
    paths[3].write_bytes(paths[2].read_bytes() + b"\n")
    error = await refused(backend, live().ask(user("List 3.")))
    assert f"{paths[3]}: has changed since the stub began" in str(error)
    paths[1].unlink()
    assert "cannot be read" in str(await refused(backend, live().ask(user("List 1."))))


async def test_a_fault_strikes_in_a_fixture_that_is_unread(tmp_path: Path) -> None:
    """Turns are known by their numbers at the start; another number is refused."""
    paths = many(tmp_path)
    backend = FixtureBackend.load(paths, faults=["3.jsonl:1:429"])
    assert (await refused(backend, live().ask(user("List 3.")))).code == "rate_limit_exceeded"
    with pytest.raises(ReplayError, match=r"no turn 3 to play in .*7\.jsonl; its turns are 1 to 2"):
        FixtureBackend.load(paths, faults=["7.jsonl:3:429"])
