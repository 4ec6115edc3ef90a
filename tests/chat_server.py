"""A chat-completions server for tests: answers from a script, remembers what it was asked, and can misbehave.

As a program, ``python tests/chat_server.py PORT`` serves the lab script on loopback and prints ``READY PORT``.
"""

import gzip
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import h11
import orjson
import trio
import trio.testing
from attrs import define, field

DONE = b"data: [DONE]\n\n"
HANG = "hang"
"""A step that sends nothing until the client is gone."""
CUT = "cut"
"""A step that closes the connection in the middle of the body."""

Step = bytes | float | str


@define
class Reply:
    """One answer.

    Attributes:
        steps: each ``bytes`` is one chunk of the body, a number waits that many seconds; then ``HANG`` and ``CUT``.
        raw: sent in place of any HTTP, and the connection closed.
    """

    steps: Iterable[Step] = ()
    status: int = 200
    headers: Sequence[tuple[str, str]] = (("content-type", "text/event-stream"),)
    raw: bytes | None = None


Script = Callable[[dict[str, Any]], Reply]


def sse(*chunks: object) -> bytes:
    """Chunks as events: one read's worth."""
    return b"".join(b"data: " + (c if isinstance(c, bytes) else orjson.dumps(c)) + b"\n\n" for c in chunks)


def chunk(finish_reason: str | None = None, /, **delta: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def call(index: int | None, id: str | None = None, name: str | None = None, arguments: str | None = None) -> Any:
    """One entry of ``tool_calls``; what is None is left out."""
    function = {k: v for k, v in (("name", name), ("arguments", arguments)) if v is not None}
    entry = {"index": index, "id": id, "type": "function" if id else None, "function": function}
    return {k: v for k, v in entry.items() if v is not None}


def usage(prompt: int = 10, output: int = 5, **more: Any) -> dict[str, Any]:
    counts = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output, **more}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [], "usage": counts}


def saying(*chunks: object) -> Script:
    """The same chunks for every request, one read each."""
    return lambda request: Reply([sse(c) for c in chunks])


def refusing(status: int, body: Any, **headers: str) -> Script:
    encoded = body if isinstance(body, bytes) else orjson.dumps(body)
    kind = ("content-type", "application/json")
    return lambda request: Reply([encoded], status, (kind, *((k.replace("_", "-"), v) for k, v in headers.items())))


# --- the lab script --------------------------------------------------------------------------------------

PATCH = "*** Begin Patch\n*** Add File: hello.txt\n+hello from the lab\n*** End Patch\n"
LIST, CREATE = "ls -la && echo LAB-STEP-1", "echo hello from the lab > hello.txt && cat hello.txt"


def _plan(request: dict[str, Any]) -> tuple[bool, list[tuple[str, dict[str, Any]]], str]:
    """Whether it reasons first, the calls it makes, and else its message."""
    messages = request["messages"]
    last_user = max((n for n, m in enumerate(messages) if m["role"] == "user"), default=-1)
    n = sum(m["role"] == "tool" for m in messages[last_user + 1 :])
    tools = {tool["function"]["name"]: tool["function"] for tool in request.get("tools") or ()}
    if tools.keys() & {"lookup", "add"}:
        if n == 0 and "lookup" in tools:
            return True, [("lookup", {"key": "answer"})], ""
        if n == 1 and "add" in tools:
            return False, [("add", {"a": 40, "b": 2}), ("lookup", {"key": "colour"})], ""
    elif "exec" in tools and n < 2:
        command = orjson.dumps(CREATE if n else LIST).decode()
        return n == 0, [("exec", {"input": f"const r = await tools.exec_command({{cmd: {command}}}); text(r);"})], ""
    elif "exec_command" in tools:
        if n == 1 and "apply_patch" in tools:
            return False, [("apply_patch", {"input": PATCH})], ""
        if n < 2:
            return n == 0, [("exec_command", {"cmd": CREATE if n else LIST})], ""
        return False, [], "LAB-DONE: listed files and created hello.txt."
    elif tools and n == 0:
        name, function = next(iter(tools.items()))
        properties = (function.get("parameters") or {}).get("properties") or {}
        return False, [(name, dict.fromkeys(properties, "San Francisco, CA"))], ""
    return False, [], f"LAB-DONE after {n} tool outputs."


_call_numbers = itertools.count(1)


def lab(request: dict[str, Any]) -> Reply:
    """The script that real clients are tested with: a function of the conversation alone, call ids apart."""
    reasons, calls, message = _plan(request)
    chunks = [chunk(role="assistant", content="")]
    if reasons:
        chunks += [chunk(reasoning=text) for text in ("The user wants ", "the lab steps.")]
    for index, (name, arguments) in enumerate(calls):
        text = orjson.dumps(arguments).decode()
        chunks.append(chunk(tool_calls=[call(index, f"call_lab{next(_call_numbers)}", name, "")]))
        chunks += [chunk(tool_calls=[call(index, arguments=text[at : at + 16])]) for at in range(0, len(text), 16)]
    words = message.split(" ") if message else []
    chunks += [chunk(content=word + " " * (n < len(words) - 1)) for n, word in enumerate(words)]
    chunks.append(chunk("tool_calls" if calls else "stop"))
    prompt = len(orjson.dumps(request["messages"])) // 4
    details = {"prompt_tokens_details": {"cached_tokens": prompt // 2}}
    chunks.append(usage(prompt, len(chunks), **details, completion_tokens_details={"reasoning_tokens": 2 * reasons}))
    is_slow = any("LAB-SLOW" in str(m.get("content")) for m in request["messages"] if m["role"] == "user")
    return Reply(_steps(chunks, 0.5 if is_slow else 0.0))


def _steps(chunks: Sequence[object], pause_s: float) -> Iterator[Step]:
    for each in chunks:
        yield sse(each)
        if pause_s:
            yield pause_s
    yield DONE


# --- the server ------------------------------------------------------------------------------------------


@define(eq=False)
class ChatServer:
    """Serves ``script``, over memory streams or sockets.

    Attributes:
        requests: decoded bodies, in the order of arrival.
        headers: of the same requests.
        on_connection: number of the connection that each came by.
        n_gone: clients that left while an answer was due.
        deaf_after: requests that a connection answers before it dies without a word; None for no bound.
    """

    nursery: trio.Nursery
    script: Script = lab
    requests: list[dict[str, Any]] = field(factory=list)
    paths: list[str] = field(factory=list)
    headers: list[dict[str, str]] = field(factory=list)
    on_connection: list[int] = field(factory=list)
    n_connections: int = 0
    n_gone: int = 0
    gone: trio.Event = field(factory=trio.Event)
    deaf_after: int | None = None

    async def connect(self, host: str, port: int) -> trio.abc.Stream:
        """A memory stream to this server, whatever the host."""
        ours, theirs = trio.testing.memory_stream_pair()
        self.nursery.start_soon(self.serve, theirs)
        return ours

    async def listen(self, port: int = 0, *, ssl_context: Any = None) -> int:
        """Serve on loopback; return the port."""
        listeners: Any = await trio.open_tcp_listeners(port, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        if ssl_context is not None:
            listeners = [trio.SSLListener(each, ssl_context, https_compatible=True) for each in listeners]
        self.nursery.start_soon(trio.serve_listeners, self.serve, listeners)
        return int(port)

    async def serve(self, stream: trio.abc.Stream) -> None:
        self.n_connections += 1
        number = self.n_connections
        try:
            async with stream:
                http = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
                for n in itertools.count():
                    request = await self._request(http, stream)
                    if request is None or (self.deaf_after is not None and n >= self.deaf_after):
                        return
                    head, body = request
                    headers = {k.decode(): v.decode() for k, v in head.headers}
                    is_packed = headers.get("content-encoding") == "gzip"
                    self.requests.append(orjson.loads(gzip.decompress(body) if is_packed else body))
                    self.paths.append(head.target.decode())
                    self.headers.append(headers)
                    self.on_connection.append(number)
                    await self._answer(http, stream, self.script(self.requests[-1]))
                    if http.our_state is not h11.DONE:
                        return
                    http.start_next_cycle()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._note_gone()
        except h11.RemoteProtocolError:
            pass  # not HTTP, such as TLS to a port without it: close

    def _note_gone(self) -> None:
        self.n_gone += 1
        self.gone.set()

    async def _request(self, http: h11.Connection, stream: trio.abc.Stream) -> tuple[h11.Request, bytes] | None:
        """Head and body; None if the client left between requests."""
        head: h11.Request | None = None
        body = bytearray()
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                received = await stream.receive_some(65536)
                if not received:
                    return None
                http.receive_data(received)
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                assert head is not None
                return head, bytes(body)

    async def _answer(self, http: h11.Connection, stream: trio.abc.Stream, reply: Reply) -> None:
        if reply.raw is not None:
            await stream.send_all(reply.raw)
            return
        head = http.send(h11.Response(status_code=reply.status, headers=list(reply.headers)))
        await stream.send_all(head or b"")
        for step in reply.steps:
            if step == CUT:
                return
            if step == HANG:
                await self._until_gone(stream)
                return
            if isinstance(step, bytes):
                await stream.send_all(http.send(h11.Data(data=step)) or b"")
            elif isinstance(step, float):
                await trio.sleep(step)
        await stream.send_all(http.send(h11.EndOfMessage()) or b"")

    async def _until_gone(self, stream: trio.abc.Stream) -> None:
        while await stream.receive_some(65536):
            pass
        self._note_gone()


async def main(port: int) -> None:
    async with trio.open_nursery() as nursery:
        print(f"READY {await ChatServer(nursery).listen(port)}", flush=True)


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]))
