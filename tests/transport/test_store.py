"""Both stores keep the same promises; the one on disk also keeps them through a crash."""

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path

import orjson
import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turntape.core.seam import Record
from turntape.transport.memory_store import MemoryStore
from turntape.transport.sqlite_store import SqliteStore
from turntape.transport.store import Store, StoreError

NOW = int(time.time())


def item(name: str, **fields: object) -> bytes:
    return orjson.dumps({"type": "message", "id": name, "role": "user", "content": "hello", **fields})


def record(name: str, previous: str | None = None, *items: bytes, owner: str = "me", age_days: float = 0) -> Record:
    """A response with one input and one output item, unless ``items`` says otherwise."""
    response = orjson.dumps({"id": name, "object": "response", "output": [], "tools": [{"output": []}], "store": True})
    items = items or (item(f"msg_in_{name}"), item(f"msg_out_{name}"))
    return Record(name, previous, owner, int(NOW - age_days * 86400), response, items, n_output=1)


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    opened: Store = MemoryStore() if request.param == "memory" else await SqliteStore.open(tmp_path / "store.sqlite3")
    async with aclosing(opened):
        yield opened


async def test_a_chain_is_loaded_whole_and_in_order(store: Store) -> None:
    """Loading a response gives every item behind it, oldest first."""
    await store.save(record("a"))
    await store.save(record("b", "a", item("1"), item("2"), item("3")))
    await store.save(record("c", "b"))
    expected = (item("msg_in_a"), item("msg_out_a"), item("1"), item("2"), item("3"), item("msg_in_c"))
    assert await store.load("c", "me") == (*expected, item("msg_out_c"))
    assert await store.load("a", "me") == expected[:2]
    assert await store.load("nothing", "me") is None


async def test_two_continuations_of_one_response_do_not_see_each_other(store: Store) -> None:
    """A fork shares what came before it and nothing else."""
    for saved in (record("a"), record("b", "a"), record("c", "a")):
        await store.save(saved)
    assert await store.load("b", "me") == (*record("a").items, *record("b").items)
    assert await store.load("c", "me") == (*record("a").items, *record("c").items)


async def test_get_shows_what_was_saved_and_the_whole_input(store: Store) -> None:
    """GET shows the response byte for byte, and as input everything that the chain held before its output."""
    await store.save(record("a"))
    await store.save(record("b", "a"))
    found = await store.get("b", "me")
    assert found is not None
    assert found.response == record("b").response
    assert found.input_items == (*record("a").items, item("msg_in_b"))


async def test_a_response_without_output_is_shown_without(store: Store) -> None:
    """A warm-up has items and no output: all of it is input."""
    await store.save(Record("w", None, "me", NOW, b'{"id":"w","output":[]}', (item("1"),), n_output=0))
    found = await store.get("w", "me")
    assert found is not None
    assert (found.response, found.input_items) == (b'{"id":"w","output":[]}', (item("1"),))


async def test_the_same_id_twice_is_refused_and_changes_nothing(store: Store) -> None:
    """A stored response never changes."""
    await store.save(record("a"))
    with pytest.raises(StoreError, match="'a' is stored already"):
        await store.save(record("a", None, item("other")))
    assert await store.load("a", "me") == record("a").items


async def test_another_owner_finds_nothing(store: Store) -> None:
    """Whoever has another key can neither read, continue, refer to nor delete a response."""
    await store.save(record("a"))
    assert await store.load("a", "you") is None
    assert await store.get("a", "you") is None
    assert await store.items(("msg_in_a",), "you") == (None,)
    assert await store.delete("a", "you") is False
    with pytest.raises(StoreError, match="no longer stored"):
        await store.save(record("b", "a", owner="you"))
    assert await store.load("a", "me") == record("a").items


async def test_items_are_found_by_id_the_newest_first(store: Store) -> None:
    """``item_reference`` gives the newest item of that id, and None where there is none."""
    await store.save(record("a", None, item("1", content="old"), item("2")))
    await store.save(record("b", None, item("1", content="new"), b'{"type":"message","role":"user","content":"no id"}'))
    assert await store.items(("2", "missing", "1"), "me") == (item("2"), None, item("1", content="new"))
    assert await store.items((), "me") == ()


async def test_deleting_hides_a_response_and_leaves_its_descendants_whole(store: Store) -> None:
    """A deleted response is gone for every reader, while what continues it goes on."""
    for saved in (record("a"), record("b", "a"), record("c", "b")):
        await store.save(saved)
    assert await store.delete("b", "me") is True
    assert await store.delete("b", "me") is False
    assert await store.get("b", "me") is None
    assert await store.load("b", "me") is None
    assert await store.items(("msg_out_b", "msg_out_a"), "me") == (None, item("msg_out_a"))
    await store.save(record("d", "c"))
    whole = await store.load("d", "me")
    assert whole == tuple(entry for name in "abcd" for entry in record(name).items)


async def test_deleting_the_last_descendant_takes_hidden_ancestors_along(store: Store) -> None:
    """What was deleted leaves the store as soon as nothing needs it: its id is free again."""
    for saved in (record("a"), record("b", "a"), record("c", "b")):
        await store.save(saved)
    await store.delete("b", "me")
    with pytest.raises(StoreError, match="stored already"):
        await store.save(record("b"))
    await store.delete("c", "me")
    await store.save(record("b"))
    assert await store.load("a", "me") == record("a").items


async def test_sixty_four_tasks_save_at_once(store: Store) -> None:
    """Concurrent chains neither block nor mix."""

    async def chain(name: str) -> None:
        for n in range(5):
            await store.save(record(f"{name}.{n}", f"{name}.{n - 1}" if n else None))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for n in range(64):
                nursery.start_soon(chain, f"task{n}")
    for n in range(64):
        items = await store.load(f"task{n}.4", "me")
        assert items == tuple(entry for k in range(5) for entry in record(f"task{n}.{k}").items)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=25))
def test_any_order_of_saves_and_deletes_gives_the_same_from_both_stores(
    tmp_path: Path, steps: list[tuple[int, bool]]
) -> None:
    """Memory and SQLite agree on every read, whatever tree was built and pruned."""

    async def both() -> None:
        stores: list[Store] = [MemoryStore(), await SqliteStore.open(tmp_path / f"{time.monotonic_ns()}")]
        try:
            for n, (parent, delete) in enumerate(steps):
                outcomes = []
                for each in stores:
                    if delete:
                        outcomes.append(str(await each.delete(f"r{parent}", "me")))
                        continue
                    try:
                        await each.save(record(f"r{n % 10}", f"r{parent}" if parent < n else None))
                        outcomes.append("saved")
                    except StoreError as exc:
                        outcomes.append(str(exc))
                assert outcomes[0] == outcomes[1]
                names = [f"r{k}" for k in range(10)]
                assert [await stores[0].load(k, "me") for k in names] == [await stores[1].load(k, "me") for k in names]
        finally:
            for each in stores:
                await each.aclose()

    trio.run(both)


# --- memory only -----------------------------------------------------------------------------------


async def test_memory_drops_the_stalest_turns_and_never_an_ancestor() -> None:
    """A full memory store loses conversations that rested longest, last turn first; the others stay whole."""
    size = sum(map(len, record("a").items)) + len(record("a").response)
    store = MemoryStore(max_bytes=4 * size)
    for saved in (record("a"), record("b", "a"), record("x"), record("y", "x")):
        await store.save(saved)
    await store.save(record("z", "y"))
    assert await store.load("b", "me") is None
    assert await store.load("a", "me") == record("a").items
    assert await store.load("z", "me") == tuple(entry for name in "xyz" for entry in record(name).items)
    assert await store.items(("msg_in_b",), "me") == (None,)


async def test_one_conversation_beyond_the_bound_is_refused_with_the_cure() -> None:
    """A store that is full of one chain says so, and keeps that chain."""
    size = sum(map(len, record("a").items)) + len(record("a").response)
    store = MemoryStore(max_bytes=2 * size)
    await store.save(record("a"))
    await store.save(record("b", "a"))
    with pytest.raises(StoreError, match="run the server with a store on disk"):
        await store.save(record("c", "b"))
    assert await store.load("b", "me") is not None


async def test_a_conversation_that_cannot_fit_costs_no_other_its_turns() -> None:
    """Nothing is dropped for a save that is refused."""
    size = sum(map(len, record("a").items)) + len(record("a").response)
    store = MemoryStore(max_bytes=3 * size)
    await store.save(record("a"))
    with pytest.raises(StoreError, match="larger than the memory store"):
        await store.save(record("b", None, *[item(str(n)) for n in range(20)]))
    assert await store.load("a", "me") == record("a").items


async def test_a_hidden_parent_stays_while_it_is_continued() -> None:
    """Room for a continuation of a deleted response is not made by dropping that response with its last child."""
    size = sum(map(len, record("a").items)) + len(record("a").response)
    store = MemoryStore(max_bytes=3 * size)
    for saved in (record("a"), record("b", "a"), record("x")):
        await store.save(saved)
    await store.delete("a", "me")
    await store.save(record("c", "a"))
    assert await store.load("b", "me") is None
    assert await store.load("c", "me") == (*record("a").items, *record("c").items)


# --- SQLite only ------------------------------------------------------------------------------------

CHILD = """
import sys, trio, orjson
from turntape.core.seam import Record
from turntape.transport.sqlite_store import SqliteStore

async def main():
    store = await SqliteStore.open(sys.argv[1])
    previous = None
    while True:
        name = sys.stdin.readline().strip()
        items = (b'{"type":"message","id":"in_%s"}' % name.encode(), b'{"type":"message","id":"out_%s"}' % name.encode())
        await store.save(Record(name, previous, "me", 2_000_000_000, b'{"output":[]}', items, 1))
        print("saved", name, flush=True)
        previous = name

trio.run(main)
"""


def test_what_was_saved_survives_kill_9(tmp_path: Path) -> None:
    """Once ``save`` has returned, a killed process loses nothing, and the next one reads the chain."""
    path = tmp_path / "store.sqlite3"
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None and child.stdout is not None
    with child:
        for name in ("a", "b", "c"):
            child.stdin.write(name + "\n")
            child.stdin.flush()
            assert child.stdout.readline() == f"saved {name}\n"
        child.send_signal(signal.SIGKILL)
        child.wait(10)

    async def read() -> tuple[bytes, ...] | None:
        async with aclosing(await SqliteStore.open(path)) as store:
            return await store.load("c", "me")

    items = trio.run(read)
    assert items is not None
    assert [orjson.loads(entry)["id"] for entry in items] == ["in_a", "out_a", "in_b", "out_b", "in_c", "out_c"]


async def test_each_commit_is_synced(tmp_path: Path) -> None:
    """The writer runs with FULL synchronisation and a write-ahead log: a power cut takes back nothing that was said."""
    async with aclosing(await SqliteStore.open(tmp_path / "s")) as store:
        assert store._writer.execute("PRAGMA synchronous").fetchone() == (2,)
        assert store._writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)


async def test_many_waiting_saves_share_a_commit(tmp_path: Path) -> None:
    """Saves that wait together are written in far fewer transactions than there are saves."""
    async with aclosing(await SqliteStore.open(tmp_path / "s")) as store:
        commits = []
        store._writer.set_trace_callback(lambda statement: commits.append(1) if statement == "COMMIT" else None)
        async with trio.open_nursery() as nursery:
            for n in range(64):
                nursery.start_soon(store.save, record(f"r{n}"))
        assert len(commits) <= 16


async def test_one_refused_save_leaves_the_others_of_its_commit_alone(tmp_path: Path) -> None:
    """In a group, each save succeeds or fails for itself."""
    refused = []

    async def save(saved: Record) -> None:
        try:
            await store.save(saved)
        except StoreError:
            refused.append(saved.response_id)

    async with aclosing(await SqliteStore.open(tmp_path / "s")) as store:
        await store.save(record("taken"))
        async with trio.open_nursery() as nursery:
            for name in ("a", "taken", "b", "c"):
                nursery.start_soon(save, record(name))
        assert refused == ["taken"]
        assert [await store.load(name, "me") for name in "abc"] == [record(name).items for name in "abc"]


async def test_two_processes_worth_of_stores_share_one_file(tmp_path: Path) -> None:
    """A chain begun through one store continues through another on the same file."""
    async with (
        aclosing(await SqliteStore.open(tmp_path / "s")) as one,
        aclosing(await SqliteStore.open(tmp_path / "s")) as two,
    ):

        async def chain(store: SqliteStore, name: str) -> None:
            for n in range(20):
                await store.save(record(f"{name}{n}", f"{name}{n - 1}" if n else None))

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(chain, one, "p")
                nursery.start_soon(chain, two, "q")
        await two.save(record("end", "p19"))
        items = await one.load("end", "me")
        assert items is not None and len(items) == 42


async def test_the_file_and_new_folders_are_for_their_user_only(tmp_path: Path) -> None:
    """Conversations are private: file 0600, folders 0700, whatever the umask."""
    path = tmp_path / "new" / "deeper" / "store.sqlite3"
    umask = os.umask(0)
    try:
        async with aclosing(await SqliteStore.open(path)) as store:
            await store.save(record("a"))
            modes = {entry.name: stat.S_IMODE(entry.stat().st_mode) for entry in path.parent.iterdir()}
    finally:
        os.umask(umask)
    assert modes == {f"store.sqlite3{suffix}": 0o600 for suffix in ("", "-wal", "-shm")}
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in (path.parent, path.parent.parent)} == {0o700}


def _foreign(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()


def _newer(path: Path) -> None:
    async def make() -> None:
        await (await SqliteStore.open(path)).aclose()

    trio.run(make)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (
            lambda path: path.write_bytes(b"not a database, but long enough to be read as one" * 40),
            "file is not a database",
        ),
        (lambda path: path.mkdir(), "Is a directory"),
        (_foreign, "another program's database"),
        (_newer, "schema version 99, but this Turntape knows version 1"),
    ],
    ids=["text", "folder", "foreign", "newer"],
)
def test_a_file_that_is_no_store_is_refused_and_left_alone(
    tmp_path: Path, prepare: Callable[[Path], object], said: str
) -> None:
    """Opening says what is the matter with which file, and changes nothing in it."""
    path = tmp_path / "file"
    prepare(path)
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(StoreError, match=said) as caught:
        trio.run(SqliteStore.open, path)
    assert str(path) in str(caught.value)
    assert (path.read_bytes() if path.is_file() else b"") == before


def test_a_path_below_a_file_is_refused(tmp_path: Path) -> None:
    """A store cannot be where a folder cannot be."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="cannot be opened"):
        trio.run(SqliteStore.open, tmp_path / "file" / "store.sqlite3")


async def test_opening_removes_what_expired_but_no_link_of_a_living_chain(tmp_path: Path) -> None:
    """Retention drops old responses; an old one that a young one continues stays."""
    path = tmp_path / "s"
    async with aclosing(await SqliteStore.open(path)) as store:
        for saved in (
            record("dead", age_days=40),
            record("dead_child", "dead", age_days=35),
            record("root", age_days=50),
            record("middle", "root", age_days=45),
            record("young", "middle", age_days=1),
            record("old_fork", "root", age_days=44),
        ):
            await store.save(saved)
    async with aclosing(await SqliteStore.open(path, retention_days=30)) as store:
        found = [n for n in ("dead", "dead_child", "root", "middle", "young", "old_fork") if await store.load(n, "me")]
        assert found == ["root", "middle", "young"]
        assert await store.items(("msg_in_dead", "msg_in_root"), "me") == (None, item("msg_in_root"))
        await store.save(record("dead"))  # nothing of it is left


async def test_a_closed_store_says_so(tmp_path: Path) -> None:
    """After closing, every call is an error and none hangs; closing twice is fine."""
    store = await SqliteStore.open(tmp_path / "s")
    await store.aclose()
    await store.aclose()
    with trio.fail_after(10), pytest.raises(StoreError, match="closed"):
        await store.save(record("a"))
    with trio.fail_after(10), pytest.raises(StoreError, match="closed"):
        await store.load("a", "me")


async def test_a_save_that_is_under_way_is_finished_by_closing(tmp_path: Path) -> None:
    """Closing waits for what was asked before it."""
    store = await SqliteStore.open(tmp_path / "s")
    async with trio.open_nursery() as nursery:
        for n in range(20):
            nursery.start_soon(store.save, record(f"r{n}"))
        await trio.testing.wait_all_tasks_blocked(0)
        await store.aclose()
    async with aclosing(await SqliteStore.open(tmp_path / "s")) as store:
        assert [await store.load(f"r{n}", "me") for n in range(20)] == [record(f"r{n}").items for n in range(20)]


async def test_a_file_that_cannot_be_written_fails_each_save_and_nothing_else(tmp_path: Path) -> None:
    """A failed write is a StoreError with its reason and a cure, and reading goes on."""
    async with aclosing(await SqliteStore.open(tmp_path / "s")) as store:
        await store.save(record("a"))
        store._writer.execute("PRAGMA query_only = ON")  # what a full or read-only disk comes to
        with pytest.raises(StoreError, match=r"could not be stored: .*readonly.*set 'store' to false"):
            await store.save(record("b"))
        store._writer.execute("PRAGMA query_only = OFF")
        assert await store.load("a", "me") == record("a").items
        await store.save(record("b"))
