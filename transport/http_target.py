"""Where a POST goes: a URL, checked, and the part of it that may be shown."""

import re
from urllib.parse import urlsplit

from attrs import field, frozen


@frozen
class Target:
    """Where a POST goes.

    Attributes:
        path: with the query, which may hold a secret: only ``where`` is for messages.
    """

    scheme: str
    host: str
    port: int
    path: str = field(repr=False)

    @classmethod
    def parse(cls, url: str) -> "Target":
        """Raises ``ValueError``, whose text does not repeat the URL."""
        if re.search(r"[^!-~]", url):
            raise ValueError("the URL holds a space or a character outside ASCII; percent-encode it")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as exc:
            raise ValueError(f"the URL cannot be read ({type(exc).__name__}); write http://HOST:PORT/v1") from None
        if parts.scheme not in ("http", "https"):
            raise ValueError("the URL must begin with http:// or https://")
        if "@" in parts.netloc:
            raise ValueError("the URL holds a user name or password; give a key apart from the URL instead")
        if not parts.hostname:
            raise ValueError("the URL names no host; write http://HOST:PORT/v1")
        try:
            parts.hostname.encode("idna")  # as the socket module will
        except UnicodeError:
            raise ValueError("the URL's host is no name: write 1 to 63 characters between its dots") from None
        if parts.fragment:
            raise ValueError("the URL holds a fragment (#...); leave it out")
        if port == 0:
            raise ValueError("the URL names port 0, which nothing can listen on")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return cls(parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80), path)

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.scheme, self.host, self.port

    @property
    def where(self) -> str:
        """Host, and the port if it is not the scheme's own: a Host header, and a name for messages."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == {"https": 443, "http": 80}[self.scheme] else f"{host}:{self.port}"
