"""A whole server does per turn only what is new: socket, driver, core, recorder, store and backend together."""

import io
import statistics
import sys

import trio
from serving import Server

from turntape.core.session import Session
from turntape.replay.recorder import Recorder, Tape
from turntape.transport.backends.script import Script
from turntape.transport.backends.scripted import ScriptedBackend
from turntape.transport.sqlite_store import SqliteStore

SCRIPT = """
[[rule]]
say = [{ text = "On it." }, { call = "tool_1", arguments = { a = 1 } }]
"""
TOOLS = [{"type": "function", "name": f"tool_{n}", "description": "d" * 500} for n in range(20)]


async def test_turn_200_costs_at_most_5_percent_more_than_turn_20(nursery, tmp_path):
    """Counted in Python calls of the event loop's thread, recorder and store on; neighbours smooth scheduling."""
    store = await SqliteStore.open(tmp_path / "responses.sqlite3")
    tape = Tape(io.BytesIO())
    backend = ScriptedBackend(Script.parse(SCRIPT, source="test"), seed=1)
    server = Server(nursery, backend, store=store, new_session=lambda: Recorder(Session(), tape))
    ws = await server.websocket()
    n_calls = 0

    def profile(frame, event, argument):
        nonlocal n_calls
        n_calls += event == "call"

    async def turn(items, **fields):
        nonlocal n_calls
        n_calls = 0
        sys.setprofile(profile)
        try:
            await ws.create(items, tools=TOOLS, store=True, **fields)
            response = (await ws.until("response.completed"))[-1]["response"]
            await trio.testing.wait_all_tasks_blocked()
        finally:
            sys.setprofile(None)
        costs.append(n_calls)
        return response

    costs: list[int] = []
    with trio.fail_after(60):
        response = await turn("go")
        for _ in range(204):
            call = response["output"][-1]
            result = {"type": "function_call_output", "call_id": call["call_id"], "output": "x" * 50}
            response = await turn([result], previous_response_id=response["id"])
    await store.aclose()
    early, late = statistics.median(costs[16:25]), statistics.median(costs[196:205])
    assert late <= 1.05 * early, (early, late)
    assert tape.n_turns == 205
