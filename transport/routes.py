"""Which path and method does what."""

import hashlib
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import trio
from attrs import frozen

from turntape.core.errors import ShuttingDown

from . import log
from .guard import Forbidden
from .http import Answer, Fields, HttpConnection, Refused, Request, error_answer
from .outbox import SlowClient
from .posts import run_post
from .service import Service
from .store import StoredResponse, StoreError

logger = logging.getLogger(__name__)

RESPONSES = "/v1/responses"
MODELS = "/v1/models"

PREFLIGHT_S = 600


@frozen
class Call:
    """One request of a client that has been let in.

    Attributes:
        owner: label of its key.
        named: what the path names: a response or a model.
    """

    service: Service
    connection: HttpConnection
    request: Request
    owner: str
    named: str


Handler = Callable[[Call], Awaitable[Answer | None]]
"""Gives what to answer; None where it has answered through the connection itself."""


async def answer_request(service: Service, connection: HttpConnection, request: Request) -> None:
    """Answer one request that is no accepted upgrade. Raises for a client that has gone, and nothing else."""
    try:
        answer = await _answer(service, connection, request)
    except Refused as exc:
        answer = exc.answer
    except StoreError as exc:
        log.store_failed("answer", str(exc))
        answer = error_answer(500, str(exc), code="server_error")
    except (SlowClient, trio.BrokenResourceError, trio.ClosedResourceError):
        raise
    except Exception:
        logger.exception("request crashed")
        answer = error_answer(500, "The server had an error while it answered.", code="server_error")
    if answer is not None and connection.unanswered:
        log.http_refused(request.method, request.path, answer.status, answer.body)
        await connection.discard()
        connection.answer(answer)
    await connection.flush()


def admit(service: Service, connection: HttpConnection, request: Request, *, needs_key: bool = True) -> str:
    """The owner label of the client, who may come in.

    Raises:
        Refused: 401, 403, or 503 while the server shuts down.
    """
    try:
        origin = service.guard.check_page(request.headers)
        if origin:
            allowed = "*" if "*" in service.guard.allow_origins else origin
            connection.fields += [("access-control-allow-origin", allowed), ("vary", "origin")]
        preflight = request.method == "OPTIONS" and origin  # a browser sends no key with it
        owner = service.guard.check_key(request.headers) if needs_key and not preflight else ""
    except Forbidden as exc:
        challenge: Fields = (("www-authenticate", "Bearer"),) if exc.status == 401 else ()
        raise Refused(error_answer(exc.status, str(exc), code=exc.code, headers=challenge)) from None
    if service.shutdown.is_set():
        raise Refused(
            error_answer(
                ShuttingDown.status,
                "The server is shutting down; try again.",
                code=ShuttingDown.code,
                headers=(("retry-after", str(ShuttingDown.retry_after)), ("connection", "close")),
            )
        )
    return owner


async def _answer(service: Service, connection: HttpConnection, request: Request) -> Answer | None:
    owner = admit(service, connection, request, needs_key=request.path != "/healthz")
    methods, named = _find(request.path)
    if request.method == "OPTIONS" and request.headers.get("origin"):
        return _preflight(request, methods)
    handler = methods.get(request.method) or (methods.get("GET") if request.method == "HEAD" else None)
    if handler is None:
        allow = ", ".join(sorted(methods))
        raise Refused(
            error_answer(
                405,
                f"Method {request.method[:32]} is not allowed on {request.path[:200]}; use {allow}.",
                code="method_not_allowed",
                headers=(("allow", allow),),
            )
        )
    return await handler(Call(service, connection, request, owner, named))


def _find(path: str) -> tuple[dict[str, Handler], str]:
    """What the path does by method, and what it names; raises ``Refused`` with 404."""
    for pattern, methods in ROUTES:
        if match := re.fullmatch(pattern, path.rstrip("/")):
            return methods, match[1] if match.lastindex else ""
    hint = f"this server answers at {RESPONSES}, {MODELS} and /healthz"
    raise Refused(error_answer(404, f"Unknown path {path[:200]!r}; {hint}.", code="not_found"))


def _preflight(request: Request, methods: dict[str, Handler]) -> Answer:
    asked = request.headers.get("access-control-request-headers", "")
    return Answer(
        204,
        headers=(
            ("access-control-allow-methods", ", ".join(sorted(methods))),
            ("access-control-allow-headers", asked if asked.isascii() and asked else "authorization, content-type"),
            ("access-control-max-age", str(PREFLIGHT_S)),
        ),
    )


# --- responses ----------------------------------------------------------------------------------------


async def _create(call: Call) -> Answer | None:
    return await run_post(call.service, call.connection, call.request.headers, call.owner)


async def _count(call: Call) -> Answer | None:
    return await run_post(call.service, call.connection, call.request.headers, call.owner, counts=True)


async def _not_upgraded(call: Call) -> Answer:
    """GET without an upgrade, or with one that is switched off. 426 sends Codex to HTTP at once (2026-11)."""
    if call.service.settings.websocket:
        message, upgrade = "GET opens a WebSocket here; upgrade, or use POST.", "websocket"
    else:
        message, upgrade = "WebSockets are switched off on this server; use POST.", "HTTP/1.1"
    return error_answer(
        426, message, code="upgrade_required", headers=(("upgrade", upgrade), ("connection", "upgrade"))
    )


async def _stored(call: Call) -> StoredResponse:
    found = await call.service.store.get(call.named, call.owner)
    if found is None:
        raise Refused(_not_found(call.named))
    return found


def _not_found(response_id: str) -> Answer:
    return error_answer(
        404, f"Response with id {response_id[:128]!r} not found.", code="not_found", param="response_id"
    )


async def _get(call: Call) -> Answer:
    if call.request.query.get("stream") == "true":
        return error_answer(
            400, "Only a background response can be streamed again.", code="unsupported_parameter", param="stream"
        )
    return Answer(200, (await _stored(call)).response)


async def _delete(call: Call) -> Answer:
    if not await call.service.store.delete(call.named, call.owner):
        return _not_found(call.named)
    return Answer(200, orjson.dumps({"id": call.named, "object": "response", "deleted": True}))


async def _cancel(call: Call) -> Answer:
    return error_answer(400, "Only a background response can be cancelled.", code="invalid_request_error")


async def _input_items(call: Call) -> Answer:
    query, response_id = call.request.query, call.named
    order, limit, after = query.get("order", "desc"), query.get("limit", "20"), query.get("after")
    if order not in ("asc", "desc"):
        message = f"Invalid value for 'order': expected 'asc' or 'desc', but got {order[:64]!r}."
        return error_answer(400, message, code="invalid_value", param="order")
    if not (limit.isascii() and limit.isdigit() and len(limit) < 4 and 1 <= int(limit) <= 100):
        message = f"Invalid value for 'limit': expected an integer between 1 and 100, but got {limit[:64]!r}."
        return error_answer(400, message, code="invalid_value", param="limit")
    items = (await _stored(call)).input_items
    positions = iter(range(len(items)) if order == "asc" else reversed(range(len(items))))
    if after is not None and not any(_item(response_id, items, n)["id"] == after for n in positions):
        message = f"Invalid value for 'after': no input item has the id {after[:128]!r}."
        return error_answer(400, message, code="invalid_value", param="after")
    page = [_item(response_id, items, n) for n, _ in zip(positions, range(int(limit)), strict=False)]
    listed = {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": next(positions, None) is not None,
    }
    return Answer(200, orjson.dumps(listed))


def _item(response_id: str, items: tuple[bytes, ...], n: int) -> dict[str, Any]:
    """One input item as a list shows it: with a type, an id that is the same each time, and content in parts."""
    item: dict[str, Any] = orjson.loads(items[n])
    item.setdefault("type", "message")
    if not item.get("id"):
        prefix = "msg" if item["type"] == "message" else "item"
        item["id"] = f"{prefix}_{hashlib.blake2b(f'{response_id}/{n}'.encode(), digest_size=16).hexdigest()}"
    if item["type"] == "message" and isinstance(item.get("content"), str):
        kind = "output_text" if item.get("role") == "assistant" else "input_text"
        item["content"] = [{"type": kind, "text": item["content"]}]
    return item


# --- the rest -----------------------------------------------------------------------------------------


def _model(service: Service, name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": service.started_at, "owned_by": "turntape"}


async def _models(call: Call) -> Answer:
    listed = [_model(call.service, name) for name in call.service.models]
    return Answer(200, orjson.dumps({"object": "list", "data": listed}))


async def _get_model(call: Call) -> Answer:
    if call.named not in call.service.models:
        message = f"The model {call.named[:128]!r} does not exist."
        return error_answer(404, message, code="model_not_found", param="model")
    return Answer(200, orjson.dumps(_model(call.service, call.named)))


async def _health(call: Call) -> Answer:
    return Answer(200, b'{"status":"ok"}')


ROUTES: tuple[tuple[str, dict[str, Handler]], ...] = (
    (RESPONSES, {"POST": _create, "GET": _not_upgraded}),
    (f"{RESPONSES}/input_tokens", {"POST": _count}),
    (f"{RESPONSES}/([^/]+)", {"GET": _get, "DELETE": _delete}),
    (f"{RESPONSES}/([^/]+)/input_items", {"GET": _input_items}),
    (f"{RESPONSES}/([^/]+)/cancel", {"POST": _cancel}),
    (MODELS, {"GET": _models}),
    (f"{MODELS}/(.+)", {"GET": _get_model}),  # names may hold slashes
    ("/healthz", {"GET": _health}),
)
"""A pattern for the path, and what each method does; the first match counts."""
