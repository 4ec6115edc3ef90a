"""Listens on one port for HTTP and WebSocket, and stops without dropping turns in flight."""

import logging
from collections.abc import Callable
from functools import partial

import trio

from . import log
from .backends.base import Backend
from .driver import SessionLike
from .guard import is_loopback
from .http import HttpConnection, Refused, error_answer, handshake_key
from .ledger.meter import Taker
from .outbox import Outbox, SlowClient
from .routes import RESPONSES, admit, answer_request
from .service import ServerSettings, Service
from .store import Store
from .websocket import serve_websocket

__all__ = ["ServerSettings", "UnsafeHost", "open_listeners", "serve", "serve_connection"]

logger = logging.getLogger(__name__)

BACKLOG = 2048


class UnsafeHost(ValueError):
    """The settings would let anybody on the network in; the text says what to change."""


async def serve(
    settings: ServerSettings,
    *,
    new_session: Callable[[], SessionLike],
    backend: Backend,
    store: Store,
    shutdown: trio.Event,
    ledger: Taker | None = None,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until ``shutdown``; then stop accepting, let turns in flight end, and cut off what outlasts the grace.

    Starts with the port that is listened on. The backend, the store and the ledger stay open: they are the caller's.

    Args:
        new_session: a fresh session for each WebSocket and each POST, or a recorder around one.
        ledger: gets a record of each response.

    Raises:
        UnsafeHost: other machines could reach the server, and no key is needed.
        OSError: the port cannot be listened on.
    """
    if not settings.keys and not is_loopback(settings.host):
        raise UnsafeHost(
            f"Host {settings.host!r} can be reached by other machines, and no API key is configured: "
            "configure one, or listen on 127.0.0.1."
        )
    service = Service(settings, new_session, backend, store, shutdown, ledger)
    listeners = await open_listeners(settings.host, settings.port)
    port: int = listeners[0].socket.getsockname()[1]
    async with trio.open_nursery() as connections:  # outlives the listeners
        async with trio.open_nursery() as listening:
            # serve_listeners waits and goes on when descriptors run out
            listening.start_soon(
                partial(
                    trio.serve_listeners, partial(serve_connection, service), listeners, handler_nursery=connections
                )
            )
            task_status.started(port)
            await shutdown.wait()
            listening.cancel_scope.cancel()
        logger.info("shutting down: finishing what is in flight, for at most %g s", settings.grace_s)
        with trio.move_on_after(settings.grace_s):
            await service.wait_idle()
        connections.cancel_scope.cancel()


async def open_listeners(host: str, port: int) -> list[trio.SocketListener]:
    """Sockets that listen on every address of ``host``; on one of them if the port is 0. Raises ``OSError``."""
    listeners = await trio.open_tcp_listeners(port, host=host, backlog=BACKLOG)
    if port == 0:
        # a name with several addresses would get several ports, and a client has only one of them
        for listener in listeners[1:]:
            await listener.aclose()
        del listeners[1:]
    return listeners


async def serve_connection(service: Service, stream: trio.abc.Stream) -> None:
    """Serve one client to its end, whatever it does. Nothing but ``Cancelled`` leaves here, so that no
    connection can disturb another or the server."""
    outbox = Outbox(stream)
    service.n_open += 1
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outbox.run)
            if service.n_open > service.settings.max_connections:
                await _refuse(outbox)
            else:
                await _serve_client(service, outbox)
            nursery.cancel_scope.cancel()
    except* (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # the client left
    except* SlowClient as group:
        logger.warning("client dropped: %s", group.exceptions[0])
    except* Exception:
        logger.exception("connection crashed")
    finally:
        service.n_open -= 1
        await trio.aclose_forcefully(outbox)


async def _refuse(outbox: Outbox) -> None:
    """503, for a WebSocket too: 429 on an upgrade is fatal to Codex (2026-11)."""
    connection = HttpConnection(outbox, max_body_bytes=0)
    message = "The server has as many connections as it takes; try again."
    connection.answer(
        error_answer(503, message, code="slow_down", headers=(("retry-after", "1"), ("connection", "close")))
    )
    await outbox.linger()


async def _serve_client(service: Service, outbox: Outbox) -> None:
    """Answer requests until the client is done, or has upgraded to a WebSocket and is done with that."""
    connection = HttpConnection(outbox, max_body_bytes=service.settings.max_message_bytes)
    while (request := await connection.next_request()) is not None:
        with service.at_work():
            if request.upgrades and request.path.rstrip("/") == RESPONSES and service.settings.websocket:
                try:
                    owner, key = admit(service, connection, request), handshake_key(request)
                except Refused as exc:
                    log.http_refused(request.method, request.path, exc.answer.status, exc.answer.body)
                    connection.answer(exc.answer)
                else:
                    early = connection.hand_over()
                    headers = request.headers
                    await serve_websocket(service, outbox, key=key, early=early, headers=headers, owner=owner)
                    return
            else:
                await answer_request(service, connection, request)
        if not connection.next_cycle():
            break
    await outbox.linger()
