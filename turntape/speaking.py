"""Finds out whether a server speaks the protocol that it is to be asked in, without asking for a token.

A POST without a body can mean nothing to any server: one that has the route refuses it (400 or 422, mostly), one that
has not answers 404 or 405. Since a gateway may answer 404 for want of a model, it is asked once more with the model's
name, and a conversation that is a number. Whatever else comes says nothing about the protocol.
"""

import re
from collections.abc import Iterator, Sequence

import orjson
import trio
from attrs import frozen

from turntape.transport.backends.chat import ChatBackend
from turntape.transport.backends.chat_errors import Refusals
from turntape.transport.backends.responses import ResponsesBackend
from turntape.transport.http_client import HttpClient
from turntape.transport.http_connections import HttpError
from turntape.transport.http_target import Target
from turntape.transport.websocket_client import Rejected, WebSocketClient

from .plan import PlannedBackend

ANSWER_S = 20.0
"""How long a server may take to refuse a request without a body."""

MAX_BODY_BYTES = 64 * 1024

PATHS = {"chat": "/chat/completions", "responses": "/responses"}
"""The routes by which forms of ``--backend`` ask."""

NAMES = {"chat": "chat completions", "responses": "the Responses API"}

ROUTES = (*PATHS.values(), "/completions")
"""What a base URL may end in all the same."""

CHECK = "Check its URL: it usually ends in /v1."

UNKNOWN_ROUTE = (404, 405)
KNOWN_ROUTE = (400, 401, 415, 422)


class NotSpoken(Exception):
    """The server cannot be asked so; says why and what to do. Holds no key."""


def base_url(url: str) -> tuple[str, str]:
    """The HTTP base URL of a server, and the query with its mark, for its base URL or one of its routes."""
    base, mark, query = url.partition("?")
    base = re.sub(r"^ws", "http", base).rstrip("/")
    for route in ROUTES:
        base = base.removesuffix(route)
    return base, mark + query


@frozen
class Speaking:
    """One server under test.

    Args:
        headers: to send with each request; they may hold the key.
    """

    planned: PlannedBackend
    client: HttpClient
    headers: Sequence[tuple[str, str]]
    refusals: Refusals

    async def check(self, backend: ChatBackend | ResponsesBackend, model: str) -> bool:
        """Whether ``backend`` is known to reach a route that is there; False if that cannot be told.

        Args:
            model: one to name; "" for none.

        Raises:
            NotSpoken: it is known not to, or the key is refused there.
        """
        form = "responses" if isinstance(backend, ResponsesBackend) else "chat"
        if self.planned.url.startswith("ws"):
            return await self._check_websocket(backend.target)
        status, error = await self._asked(backend.target)
        if status in UNKNOWN_ROUTE and model:
            status, error = await self._asked(
                backend.target, orjson.dumps({"model": model, "messages": 0, "input": 0, "stream": True})
            )
        if status == 401:
            raise NotSpoken(error)
        if status not in UNKNOWN_ROUTE:
            return status in KNOWN_ROUTE
        raise NotSpoken(
            f"The backend at {self.refusals.where} does not speak {NAMES[form]} there (HTTP {status}). "
            f"{await self.cure(PATHS[form]) or CHECK}"
        )

    async def cure(self, path: str = "") -> str:
        """A sentence with the form of ``--backend`` that the server answers to; "" if none is found.

        Args:
            path: the route by which a preset asks.
        """
        for spec, target in self._others(path):
            status, _ = await self._asked(target)
            if status in KNOWN_ROUTE:
                return f"Try {spec}."
        return ""

    def _others(self, path: str) -> Iterator[tuple[str, Target]]:
        """Every other form that this server could be reached by, the likeliest first."""
        base, query = base_url(self.planned.url)
        spec = self.planned.table.spec
        own = spec.name if spec.kind == "preset" else spec.kind
        first = re.sub(r"/v\d+[a-z]*$", "", base) + "/v1"
        for root in dict.fromkeys((first, base)):
            forms = dict.fromkeys((own, *PATHS) if own in PATHS or spec.kind == "preset" else PATHS)
            for form in forms:
                if f"{form}+{root}" != str(spec):
                    yield f"{form}+{root}", Target.parse(root + PATHS.get(form, path) + query)

    async def _asked(self, target: Target, body: bytes = b"") -> tuple[int, str]:
        """The status that answers, and the refusal in words; 0 if nothing that can be read does."""
        headers = (("Content-Type", "application/json"), *self.headers)
        with trio.move_on_after(ANSWER_S):
            try:
                async with self.client.post(target, headers, (body,)) as response:
                    said = await response.body(MAX_BODY_BYTES)
            except HttpError:
                return 0, ""
            error = self.refusals.refused(response.status, response.headers, said)
            if error.code == "model_not_found":  # the route is there, and wants a model
                return 400, str(error)
            return response.status, str(error)
        return 0, ""

    async def _check_websocket(self, target: Target) -> bool:
        try:
            socket = await WebSocketClient.open(self.client.connections, target, self.headers)
        except HttpError as exc:
            raise NotSpoken(str(self.refusals.failed(exc))) from None
        except Rejected as exc:
            if exc.status in (401, 403, 429) or exc.status >= 500:
                raise NotSpoken(str(self.refusals.refused(exc.status, exc.headers, exc.body))) from None
            raise NotSpoken(
                f"The backend at {self.refusals.where} does not speak {NAMES['responses']} over a WebSocket there "
                f"(HTTP {exc.status}). {await self.cure() or CHECK}"
            ) from None
        await socket.aclose()
        return True
