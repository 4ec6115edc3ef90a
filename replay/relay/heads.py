"""Heads of requests: found among bytes, understood, and sent on with nothing changed but their host and path."""

import re
from collections.abc import Iterable, Mapping

import h11
from attrs import field, frozen

MAX_HEAD_BYTES = 1 << 17
"""Ours. Real heads have under 4 KiB; those with cookies and long metadata under 64."""

_END = re.compile(rb"\n\r?\n")
_HOST = re.compile(rb"(?im)^(host[ \t]*:[ \t]*)[^\r\n]*")


class HeadError(Exception):
    """The head cannot be sent on; the text says why.

    Attributes:
        status: of the answer.
        code: machine-readable reason.
    """

    def __init__(self, message: str, *, status: int = 400, code: str = "invalid_request") -> None:
        super().__init__(message)
        self.status, self.code = status, code


@frozen(eq=False)
class RequestHead:
    """The head of one request.

    Attributes:
        raw: its bytes.
        target: path and query, as they were sent.
        headers: by lower-case name; repeated fields joined with ", ".
        body: finds where the request ends, in what follows the head.
    """

    raw: bytes = field(repr=False)
    method: str
    target: str
    headers: Mapping[str, str] = field(repr=False)
    body: h11.Connection = field(repr=False)

    @classmethod
    def parse(cls, raw: bytes) -> "RequestHead":
        """Raises ``HeadError``."""
        parser = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        parser.receive_data(raw)
        try:
            event = parser.next_event()
        except h11.RemoteProtocolError as exc:
            raise HeadError(f"The request cannot be read as HTTP/1.1: {exc}.") from None
        if not isinstance(event, h11.Request):
            raise HeadError("The request cannot be read as HTTP/1.1.")
        method, target = event.method.decode("ascii"), event.target.decode("ascii")
        if not target.startswith("/") and target != "*":
            raise HeadError("Expected a path in the request line: this is no proxy for other hosts.")
        headers = joined(event.headers)
        if "transfer-encoding" in headers and "content-length" in headers:
            raise HeadError("The request gives its length twice, as Content-Length and by Transfer-Encoding: send one.")
        return cls(raw, method, target, headers, parser)

    @property
    def path(self) -> str:
        """Without the query, which may hold a secret."""
        return self.target.partition("?")[0]

    @property
    def upgrades(self) -> bool:
        """Whether this asks for another protocol on the connection."""
        return "upgrade" in self.headers and "upgrade" in tokens(self.headers.get("connection", ""))

    @property
    def wants_websocket(self) -> bool:
        return self.upgrades and self.method == "GET" and "websocket" in tokens(self.headers["upgrade"])

    def sent_to(self, *, host: str, target: str) -> bytes:
        """The same bytes, asking ``host`` for ``target``."""
        line, end, fields = self.raw.lstrip(b"\r\n").partition(b"\n")
        line = line.replace(self.target.encode(), target.encode(), 1)
        return line + end + _HOST.sub(lambda match: match[1] + host.encode("idna"), fields, count=1)


def split_head(received: bytes) -> tuple[bytes, bytes] | None:
    """The head at the beginning of ``received`` and what follows it; None if it has not come to its end.

    Blank lines before a request count to its head, as RFC 9112, section 2.2, allows them.

    Raises:
        HeadError: it is too large.
    """
    start = len(received) - len(received.lstrip(b"\r\n"))
    match = _END.search(received, start)
    end = match.end() if match else len(received)
    if end > MAX_HEAD_BYTES:
        raise HeadError(f"The head of the request has more than {MAX_HEAD_BYTES:,} bytes.", status=431)
    return (received[:end], received[end:]) if match else None


def joined(fields: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Header fields by lower-case name; repeated ones joined with ", "."""
    headers: dict[str, str] = {}
    for name, value in fields:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers


def tokens(value: str) -> list[str]:
    """Elements of a comma-separated header, in lower case."""
    return [element.strip().lower() for element in value.split(",") if element.strip()]
