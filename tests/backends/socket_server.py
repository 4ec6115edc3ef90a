"""A Responses server of scripted WebSocket answers: it can say what no well-behaved one would."""

from collections.abc import Sequence
from typing import Any

import orjson
import trio
import trio.testing
from attrs import define, field
from trio_websocket import ConnectionClosed, wrap_server_stream

Answer = Sequence[dict[str, Any] | str | int | float]
"""Events, in a write each; a text is sent as it is, an ``int`` is a close with this code, a ``float`` a pause."""


def completed(text: str = "hello", response_id: str = "resp_1", *output: dict[str, Any]) -> Answer:
    """A short answer."""
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": text}],
    }
    response = {"id": response_id, "output": [*output, message]}
    return [
        {"type": "response.created", "response": {"id": response_id}},
        {"type": "response.completed", "response": response},
    ]


def error(status: int | None, code: str, **more: Any) -> dict[str, Any]:
    own = {} if status is None else {"status": status}
    return {"type": "error", **own, "error": {"code": code, "message": "It is not to be."}, **more}


@define(eq=False)
class SocketServer:
    """Attributes:
    answers: one for each request, whichever connection it comes by; the last again and again.
    requests: decoded, each with the number of its connection.
    """

    nursery: trio.Nursery
    answers: list[Answer]
    requests: list[tuple[int, dict[str, Any]]] = field(factory=list)
    n_connections: int = 0

    async def connect(self, host: str, port: int) -> trio.abc.Stream:
        ours, theirs = trio.testing.memory_stream_pair()
        self.n_connections += 1
        self.nursery.start_soon(self._serve, theirs, self.n_connections)
        return ours

    async def _serve(self, stream: trio.abc.Stream, number: int) -> None:
        try:
            ws = await (await wrap_server_stream(self.nursery, stream, max_message_size=1 << 24)).accept()
            while True:
                self.requests.append((number, orjson.loads(await ws.get_message())))
                for step in self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]:
                    match step:
                        case int():
                            await ws.aclose(step)
                            return
                        case float():
                            await trio.sleep(step)
                        case str():
                            await ws.send_message(step)
                        case _:
                            await ws.send_message(orjson.dumps(step).decode())
        except (ConnectionClosed, trio.BrokenResourceError):
            pass  # the client left
