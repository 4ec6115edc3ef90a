"""A backend keeps its promises behind the router too: alone on its route, and as the fallback of one that is down."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from attrs import evolve, frozen
from backends.cases import Cases
from backends.rig import Playing, Rig, Turn
from backends.rig_chat import ChatRig
from serving import Model

from turntape.transport.backends.base import BackendError
from turntape.transport.router import ANY, Route, Router, RouteTable, Upstream


@frozen
class RoutedRig:
    """The server of another rig, asked through a router.

    Args:
        behind_dead: another backend stands before it, and is down.
    """

    inner: Rig
    behind_dead: bool

    @property
    def cannot(self) -> Mapping[str, str]:
        return self.inner.cannot

    @property
    def virtual_time(self) -> bool:
        return self.inner.virtual_time

    @property
    def where(self) -> str:
        return self.inner.where

    @property
    def key(self) -> str:
        return self.inner.key

    @asynccontextmanager
    async def playing(self, *turns: Turn) -> AsyncIterator[Playing]:
        async with self.inner.playing(*turns) as playing:
            route = Route(name=ANY, upstream=Upstream("rig", playing.backend))
            if self.behind_dead:
                dead = Model([[BackendError("Nothing listens there.", status=502)]])
                route = Route(name=ANY, upstream=Upstream("dead", dead), fallbacks=(route,))
            yield evolve(playing, backend=Router(RouteTable({ANY: route}, ("m",))))


class TestAlone(Cases):
    rig = RoutedRig(ChatRig(), behind_dead=False)


class TestAsFallback(Cases):
    rig = RoutedRig(ChatRig(), behind_dead=True)
