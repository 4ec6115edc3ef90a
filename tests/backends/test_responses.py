"""The responses backend keeps the promises of every backend, whichever Responses server is behind it."""

from backends.cases import Cases
from backends.rig_responses import PlainRig, TurntapeRig

from turntape.transport.backends.responses_upstreams import upstream_named


class TestOverHttp(Cases):
    rig = TurntapeRig("http")


class TestOverWebSocket(Cases):
    rig = TurntapeRig("ws")


class TestNativeOverWebSocket(Cases):
    rig = TurntapeRig("ws", upstream_named("turntape"))


class TestStoredOverHttp(Cases):
    rig = TurntapeRig("http", upstream_named("turntape"), store=True)


class TestPlain(Cases):
    rig = PlainRig()
