"""Where a relay leads: the URL of an upstream, and what a request's path becomes there."""

from attrs import field, frozen

from turntape.transport.http_target import Target

LOCAL_BASE = "/v1"
"""The path that agents are told; the upstream's own takes its place."""


@frozen
class Upstream:
    """A server that speaks the Responses API.

    Attributes:
        target: its origin.
        base: path that stands in for ``/v1``; "" if the URL has none, and paths then pass as they are.
        query: of the URL, added to each request's own. It may hold a secret.
    """

    target: Target
    base: str
    query: str = field(default="", repr=False)

    @classmethod
    def parse(cls, url: str) -> "Upstream":
        """Raises ``ValueError``, whose text does not repeat the URL."""
        scheme, mark, rest = url.partition("://")
        http = {"ws": "http", "wss": "https"}.get(scheme.lower(), scheme)
        target = Target.parse(http + mark + rest)
        path, _, query = target.path.partition("?")
        return cls(target, path.rstrip("/"), query)

    @property
    def url(self) -> str:
        """The URL as it may be shown and kept: without its query."""
        return f"{self.target.scheme}://{self.target.where}{self.base}"

    def path(self, asked: str) -> str:
        """What ``asked``, a path with its query, is at the upstream."""
        path, mark, query = asked.partition("?")
        if self.base and (path == LOCAL_BASE or path.startswith(LOCAL_BASE + "/")):
            path = self.base + path.removeprefix(LOCAL_BASE)
        if not self.query:
            return path + mark + query
        return f"{path}?{query}&{self.query}" if query else f"{path}?{self.query}"
