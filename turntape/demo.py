"""A small agent at work over one WebSocket: shows, turn by turn, what continuing a response saves."""

import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import orjson
import trio
import trio_websocket
from attrs import define, field

from turntape.core.session import Session
from turntape.transport.backends.script import Script
from turntape.transport.backends.scripted import ScriptedBackend
from turntape.transport.memory_store import MemoryStore
from turntape.transport.server import ServerSettings, serve

from .demo_tools import TOOLS, Toolbox

INSTRUCTIONS = (
    "You are a careful assistant with a folder of files. Use the tools, and say in one sentence what you are about to "
    "do. When the task is done, answer in one sentence."
)
TASK = "Read the files in the folder, work out what all orders come to, and write the total to report.md."
MAX_TURNS = 16
MAX_MESSAGE_BYTES = 64 * 2**20
CONNECT_S, TURN_S = 10.0, 300.0
TERMINAL = ("response.completed", "response.failed", "response.incomplete", "error")

Out = Callable[[str], object]


class DemoFailed(click.ClickException):
    """The demonstration cannot go on; says why and what to do.

    Attributes:
        exit_code: 1 if the server or its model said no, 2 for no base URL, 3 if there is no server to talk to.
    """

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # click reads it from the instance


@define
class _Turn:
    """One response, as it was received.

    Attributes:
        first_token_s: seconds from the request to the first delta; None if there was none.
        took_s: seconds from the request to the end.
    """

    response: dict[str, Any] = field(factory=dict)
    first_token_s: float | None = None
    took_s: float = 0.0

    @property
    def calls(self) -> list[dict[str, Any]]:
        return [item for item in self.response["output"] if item["type"] == "function_call"]

    @property
    def texts(self) -> list[str]:
        messages = (item for item in self.response["output"] if item["type"] == "message")
        return [part["text"] for item in messages for part in item["content"] if part["type"] == "output_text"]


async def run(url: str | None, key: str | None, out: Out) -> None:
    """Show the agent at work.

    Args:
        url: base URL of a running server, such as http://127.0.0.1:8765/v1; none: a server is started for this.
        key: API key for it, if it needs one.
        out: takes one line at a time.

    Raises:
        DemoFailed: by itself, in no group.
    """
    async with _server(url, out) as base, _connection(base, key) as socket:
        with tempfile.TemporaryDirectory(prefix="turntape-demo-") as folder:
            await _work(socket, Toolbox(Path(folder)), out)


@asynccontextmanager
async def _server(url: str | None, out: Out) -> AsyncIterator[str]:
    """The server to talk to: one of our own, with the built-in script, unless there is one."""
    if url:
        yield url
        return
    backend, shutdown = ScriptedBackend(Script.default()), trio.Event()
    settings = ServerSettings(default_model=backend.models[0], models=backend.models, grace_s=1.0)
    failed: DemoFailed | None = None
    async with trio.open_nursery() as nursery:
        starting = partial(
            serve, settings, new_session=Session, backend=backend, store=MemoryStore(), shutdown=shutdown
        )
        port = await nursery.start(starting)
        out("A server of its own, with the built-in scripted backend: the script is no model, the tools are real.")
        try:
            yield f"http://127.0.0.1:{port}/v1"
        except DemoFailed as exc:
            failed = exc  # kept out of the nursery, which would wrap it in a group
        shutdown.set()
    if failed is not None:
        raise failed


@asynccontextmanager
async def _connection(base: str, key: str | None) -> AsyncIterator[trio_websocket.WebSocketConnection]:
    url = _websocket_url(base)
    headers = [(b"authorization", b"Bearer " + key.encode())] if key else []
    try:
        async with trio_websocket.open_websocket_url(
            url,
            extra_headers=headers,
            max_message_size=MAX_MESSAGE_BYTES,
            connect_timeout=CONNECT_S,
            disconnect_timeout=CONNECT_S,
        ) as socket:
            yield socket
    except trio_websocket.ConnectionRejected as exc:
        raise _rejected(base, exc.status_code) from None
    except trio_websocket.DisconnectionTimeout:
        raise DemoFailed("the server did not answer the end of the connection.", 3) from None
    except trio_websocket.HandshakeError:
        message = f"no server answers at {base}; start one with 'turntape serve', or leave --url out."
        raise DemoFailed(message, 3) from None
    except trio_websocket.ConnectionClosed as exc:
        reason = exc.reason if isinstance(exc.reason, trio_websocket.CloseReason) else None
        detail = "" if reason is None else f": {reason.code} {reason.reason or reason.name}"
        raise DemoFailed(f"the server closed the connection{detail}.", 3) from None


def _websocket_url(base: str) -> str:
    try:
        parts = urlsplit(base)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0  # a port may be no number
    except ValueError:
        usable = False
    if not usable:
        raise DemoFailed(f"{base!r} is no base URL; write one like http://127.0.0.1:8765/v1.", 2)
    return parts._replace(
        scheme=parts.scheme.replace("http", "ws"), path=parts.path.rstrip("/") + "/responses"
    ).geturl()


def _rejected(base: str, status: int) -> DemoFailed:
    cure = {401: "give a key with --key-file.", 426: "its WebSocket is switched off: start it with --websocket."}
    return DemoFailed(f"{base} refused the WebSocket with status {status}; {cure.get(status, 'is the path right?')}", 3)


async def _work(socket: trio_websocket.WebSocketConnection, toolbox: Toolbox, out: Out) -> None:
    """Do the task: each turn sends what is new, and names the response that it continues."""
    await trio.to_thread.run_sync(toolbox.fill)
    out(f"Task: {TASK}\n")
    new: list[dict[str, Any]] = [{"role": "user", "content": TASK}]
    whole, previous_id = list(new), ""
    n_sent = n_whole = 0
    began = trio.current_time()
    for number in range(1, MAX_TURNS + 1):
        request = {"type": "response.create", "instructions": INSTRUCTIONS, "tools": TOOLS, "store": False}
        named = {"previous_response_id": previous_id} if previous_id else {}
        text = orjson.dumps({**request, **named, "input": new})
        stateless = len(orjson.dumps({**request, "input": whole}))
        turn = await _turn(socket, text.decode())
        out(f"turn {number}  {_cost(turn, len(text), stateless)}")
        n_sent, n_whole = n_sent + len(text), n_whole + stateless
        for said in turn.texts:
            out(f"        says   {_short(said)}")
        new = [await _answer(toolbox, call, out) for call in turn.calls]
        out("")
        if not new:
            break
        previous_id = turn.response["id"]
        whole += turn.response["output"] + new
    else:
        raise DemoFailed(f"the model was not done after {MAX_TURNS} turns.")
    await _report(toolbox, out)
    out(
        f"{number} turns over one connection in {trio.current_time() - began:.2f} s: {n_sent:,} bytes sent, "
        f"where whole conversations would have been {n_whole:,}."
    )


async def _turn(socket: trio_websocket.WebSocketConnection, text: str) -> _Turn:
    turn, began = _Turn(), trio.current_time()
    with trio.move_on_after(TURN_S):
        await socket.send_message(text)
        while True:
            event = _event(await socket.get_message())
            if turn.first_token_s is None and event["type"].endswith(".delta"):
                turn.first_token_s = trio.current_time() - began
            if event["type"] in TERMINAL:
                break
        turn.took_s = trio.current_time() - began
        if event["type"] == "error":
            raise DemoFailed(f"the server refused the request: {event['error']['message']}")
        turn.response = event["response"]
        if turn.response["status"] != "completed":
            why = turn.response.get("error") or turn.response.get("incomplete_details") or {}
            raise DemoFailed(f"the response is {turn.response['status']}: {why.get('message') or why.get('reason')}")
        return turn
    raise DemoFailed(f"no answer within {TURN_S:g} s.")


def _event(text: str | bytes) -> dict[str, Any]:
    try:
        event = orjson.loads(text)
    except orjson.JSONDecodeError:
        event = None
    if not isinstance(event, dict) or not isinstance(event.get("type"), str):
        raise DemoFailed("the server sent something that is no event of the Responses API; is the URL right?")
    return event


async def _answer(toolbox: Toolbox, call: dict[str, Any], out: Out) -> dict[str, Any]:
    """Run the tool that was called: its output is the input of the next turn."""
    output = await trio.to_thread.run_sync(toolbox.call, call["name"], call["arguments"])
    out(f"        calls  {call['name']} {_short(call['arguments'])}")
    out(f"        gets   {_short(output)}")
    return {"type": "function_call_output", "call_id": call["call_id"], "output": output}


def _cost(turn: _Turn, n_sent: int, n_whole: int) -> str:
    """What one turn took, beside what it would have taken without a connection that remembers."""
    usage = turn.response.get("usage") or {}
    cached = (usage.get("input_tokens_details") or {}).get("cached_tokens", 0)
    first = "no token" if turn.first_token_s is None else f"first token after {turn.first_token_s * 1000:.0f} ms"
    return (
        f"sent {n_sent:,} of {n_whole:,} bytes | {first}, all after {turn.took_s * 1000:.0f} ms | "
        f"{usage.get('input_tokens', 0):,} tokens in, {cached:,} of them remembered, {usage.get('output_tokens', 0):,} out"
    )


async def _report(toolbox: Toolbox, out: Out) -> None:
    path = trio.Path(toolbox.folder / "report.md")
    if await path.exists():
        out("report.md now says:")
        for line in (await path.read_text(encoding="utf-8")).strip().splitlines():
            out(f"    {line}")
        out("")


def _short(text: str) -> str:
    line = " / ".join(filter(None, map(str.strip, text.splitlines())))
    return line if len(line) <= 110 else line[:107] + "..."
