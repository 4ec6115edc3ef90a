"""Listens on one port for a relay, and stops without cutting off answers in flight."""

from functools import partial

import trio
from attrs import define, field

from turntape.transport.guard import is_loopback
from turntape.transport.server import UnsafeHost, open_listeners

from .pump import Pump
from .relay import Relay

SETTLE_S = 0.5
"""What connections get that have just ended, so that the recording has their ends too; ours."""


async def serve(
    relay: Relay,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    grace_s: float = 30.0,
    max_connections: int = 1024,
    shutdown: trio.Event,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Relay until ``shutdown``; then accept no more, let answers in flight end, and cut off all else.

    Starts with the port that is listened on.

    Args:
        grace_s: the longest that answers in flight may take.
        max_connections: open at once; further ones wait to be accepted.

    Raises:
        UnsafeHost: other machines could reach it, and no key is needed.
        OSError: the port cannot be listened on.
    """
    if not relay.guard.keys and not is_loopback(host):
        raise UnsafeHost(
            f"Host {host!r} can be reached by other machines, and no API key is configured: "
            "configure one, or listen on 127.0.0.1."
        )
    listeners = await open_listeners(host, port)
    server = _Server(relay, trio.CapacityLimiter(max_connections))
    async with trio.open_nursery() as connections:  # outlives the listeners
        async with trio.open_nursery() as listening:
            listening.start_soon(
                partial(trio.serve_listeners, server.connection, listeners, handler_nursery=connections)
            )
            task_status.started(listeners[0].socket.getsockname()[1])
            await shutdown.wait()
            listening.cancel_scope.cancel()
        with trio.move_on_after(grace_s):
            await server.wait_idle()
        with trio.move_on_after(SETTLE_S):
            await server.wait_empty()
        connections.cancel_scope.cancel()


@define(eq=False)
class _Server:
    """The connections of one relay."""

    relay: Relay
    limiter: trio.CapacityLimiter
    pumps: set[Pump] = field(factory=set)

    async def connection(self, stream: trio.abc.Stream) -> None:
        async with self.limiter:
            pump = Pump(self.relay, stream)
            self.pumps.add(pump)
            try:
                await pump.run()
            finally:
                self.pumps.discard(pump)
                self.relay.progressed()

    async def wait_empty(self) -> None:
        """Return once no connection is open."""
        while self.pumps:
            await self.relay.progress()

    async def wait_idle(self) -> None:
        """Return once nobody waits for an answer."""
        while any(pump.busy for pump in self.pumps):
            await self.relay.progress()
