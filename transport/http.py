"""HTTP/1.1 on one connection: requests in, answers out, with h11 in between."""

import base64
import binascii
import contextlib
from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote

import h11
import orjson
import trio
from attrs import frozen

from turntape.core.errors import error_type

from .content_coding import ACCEPTED, DECODERS, TooLarge, Undecodable
from .outbox import Outbox
from .service import request_id

MAX_HEAD_BYTES = 1 << 16
HEAD_S = 30.0
"""How long a request's head may take from its first byte on, and a new connection's first request."""

KEEP_ALIVE_S = 75.0
"""How long a connection may stay open between two requests."""

BODY_S = 30.0
"""How long a client may pause while it sends a body."""

PIPELINED_BYTES = 1 << 16
"""What a client may send ahead while it is answered. Past it we stop reading, and no longer see it go."""

READ_BYTES = 1 << 16

PHRASES = {status.value: status.phrase for status in HTTPStatus}

Fields = tuple[tuple[str, str], ...]


@frozen
class Request:
    """The head of one request.

    Attributes:
        path: percent-decoded.
        headers: by lower-case name; repeated fields joined with ", ".
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]

    @property
    def upgrades(self) -> bool:
        """Whether this asks for a WebSocket."""
        return self.method == "GET" and _has_token(self.headers, "upgrade", "websocket")


@frozen
class Answer:
    """A whole response."""

    status: int
    body: bytes = b""
    headers: Fields = ()


class Refused(Exception):
    """The request gets ``answer`` and nothing else."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


def error_answer(
    status: int, message: str, *, code: str | None, param: str | None = None, headers: Fields = ()
) -> Answer:
    """The API's error body."""
    error = {"message": message, "type": error_type(status), "param": param, "code": code}
    return Answer(status, orjson.dumps({"error": error}), headers)


def handshake_key(request: Request) -> str:
    """The key of a WebSocket handshake, RFC 6455 section 4.2.1.

    Raises:
        Refused: the handshake is incomplete.
    """
    version, key = request.headers.get("sec-websocket-version", ""), request.headers.get("sec-websocket-key", "")
    if version != "13":
        raise Refused(
            error_answer(
                426 if version else 400,
                "Expected 'Sec-WebSocket-Version: 13'.",
                code="invalid_handshake",
                headers=(("sec-websocket-version", "13"), ("upgrade", "websocket"), ("connection", "upgrade")),
            )
        )
    try:
        complete = len(base64.b64decode(key, validate=True)) == 16 and _has_token(
            request.headers, "connection", "upgrade"
        )
    except (binascii.Error, ValueError):
        complete = False
    if not complete:
        message = "Expected 'Connection: Upgrade' and a 'Sec-WebSocket-Key' of 16 bytes in base64."
        raise Refused(error_answer(400, message, code="invalid_handshake"))
    return key


class HttpConnection:
    """The server's side of one connection; one request at a time.

    Network errors come as ``trio.BrokenResourceError`` from what awaits; a slow client as ``SlowClient``.

    Args:
        max_body_bytes: of a request body, before and after it is decompressed.
    """

    def __init__(self, outbox: Outbox, *, max_body_bytes: int) -> None:
        self._outbox, self._max_body_bytes = outbox, max_body_bytes
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._request: h11.Request | None = None
        self._head = b""  # of a streamed answer: leaves with the first chunk
        self._chunked = True
        self._body_begun = False
        self._eof = False
        self._n_requests = 0
        self.fields = [("x-request-id", request_id())]  # header fields that every answer to this request has
        self.room, self.flush = outbox.room, outbox.flush

    async def next_request(self) -> Request | None:
        """The next head; None once the client is done, or too slow. A bad head is answered here."""
        self.fields = [("x-request-id", request_id())]
        begun = bool(self._h11.trailing_data[0])
        with trio.move_on_after(KEEP_ALIVE_S if self._n_requests and not begun else HEAD_S) as patience:
            try:
                while (event := self._h11.next_event()) is h11.NEED_DATA:
                    self._h11.receive_data(bytes(await self._outbox.receive_some(READ_BYTES)))
                    if not begun:
                        begun, patience.deadline = True, trio.current_time() + HEAD_S
                if not isinstance(event, h11.Request):
                    return None
                self._n_requests += 1
                self._request, request = event, _request(event)
                self._chunked, self._body_begun = event.http_version >= b"1.1", False
                if not {"content-length", "transfer-encoding"} & request.headers.keys():
                    self._h11.next_event()  # the end of a message without a body
                return request
            except h11.RemoteProtocolError as exc:
                self.answer(_bad_request(exc))
        return None

    async def body(self) -> bytes:
        """The whole body, decompressed.

        Raises:
            Refused: 400, 408, 413 or 415.
        """
        assert self._request is not None
        encoding = _request(self._request).headers.get("content-encoding", "identity").strip().lower()
        decode = DECODERS.get(encoding)
        if decode is None and encoding not in ("identity", ""):
            raise Refused(
                error_answer(
                    415,
                    f"Content encoding {encoding[:64]!r} is not supported; send the body as it is, or as zstd or gzip.",
                    code="unsupported_content_encoding",
                    headers=(("accept-encoding", ACCEPTED),),
                )
            )
        body = await self._raw_body()
        if decode is None:
            return body
        try:
            # a bomb is bounded, but a large body still takes its time: off the loop
            return await trio.to_thread.run_sync(decode, body, self._max_body_bytes)
        except TooLarge:
            raise Refused(_too_large(self._max_body_bytes)) from None
        except Undecodable as exc:
            raise Refused(error_answer(400, str(exc), code="invalid_encoding")) from None

    async def _raw_body(self) -> bytes:
        assert self._request is not None
        self._body_begun = True
        for name, value in self._request.headers:
            if name == b"content-length" and int(value) > self._max_body_bytes:
                raise Refused(_too_large(self._max_body_bytes))  # before a 100 Continue invites it
        parts: list[bytes] = []
        n_bytes = 0
        try:
            while True:
                event = self._h11.next_event()
                if event is h11.NEED_DATA:
                    await self._more_body()
                elif isinstance(event, h11.Data):
                    parts.append(bytes(event.data))
                    n_bytes += len(event.data)
                    if n_bytes > self._max_body_bytes:
                        raise Refused(_too_large(self._max_body_bytes))
                else:
                    return b"".join(parts)
        except h11.RemoteProtocolError as exc:
            raise Refused(_bad_request(exc)) from None

    async def discard(self) -> None:
        """Read past a small body that nobody wanted, so that the connection can go on after the answer."""
        if self._request is None or self._body_begun or self._h11.their_state is not h11.SEND_BODY:
            return
        length = dict(self._request.headers).get(b"content-length")
        if length is not None and int(length) <= PIPELINED_BYTES and not self._h11.they_are_waiting_for_100_continue:
            with contextlib.suppress(Refused):
                await self._raw_body()

    async def _more_body(self) -> None:
        if self._h11.they_are_waiting_for_100_continue:
            self._outbox.put(self._h11.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
        with trio.move_on_after(BODY_S) as patience:
            self._h11.receive_data(bytes(await self._outbox.receive_some(READ_BYTES)))
        if patience.cancelled_caught:
            message = f"Nothing more of the body came for {BODY_S:g} s."
            raise Refused(error_answer(408, message, code="request_timeout"))

    @property
    def unanswered(self) -> bool:
        """Whether nothing of an answer has been made yet."""
        return self._h11.our_state in (h11.IDLE, h11.SEND_RESPONSE)

    def answer(self, answer: Answer) -> None:
        """Send a whole response."""
        # A response without a body is not given one; and a body that was not read leaves nothing to go on from.
        fields = [*answer.headers, *self.fields]
        if answer.status != 204:
            fields += [("content-type", "application/json"), ("content-length", str(len(answer.body)))]
        if self._h11.their_state in (h11.SEND_BODY, h11.ERROR):
            fields.append(("connection", "close"))
        sent = self._send_head(answer.status, fields)
        if answer.body and not (self._request is not None and self._request.method == b"HEAD"):
            sent += self._h11.send(h11.Data(data=answer.body)) or b""
        self._outbox.put(sent + (self._h11.send(h11.EndOfMessage()) or b""))

    def begin(self, fields: Fields) -> None:
        """Begin a streamed 200; its head leaves with the first chunk."""
        self._head = self._send_head(200, [*fields, *self.fields])

    def _send_head(self, status: int, fields: list[tuple[str, str]]) -> bytes:
        reason = PHRASES.get(status, "")
        return self._h11.send(h11.Response(status_code=status, headers=fields, reason=reason)) or b""

    def chunk(self, content: bytes, *, last: bool = False) -> None:
        """Send one chunk in one write."""
        if self._chunked and content:  # h11 would say the same, slower
            content = b"%x\r\n%b\r\n" % (len(content), content)
        if self._head:
            content, self._head = self._head + content, b""
        if last:
            content += self._h11.send(h11.EndOfMessage()) or b""
        self._outbox.put(content)

    async def gone(self) -> None:
        """Return once the client has closed its side; what it sends ahead is kept for its next request."""
        n_ahead = len(self._h11.trailing_data[0])
        try:
            while n_ahead <= PIPELINED_BYTES and not self._eof:
                received = await self._outbox.receive_some(READ_BYTES)
                n_ahead += len(received)
                self._eof = not received
                self._h11.receive_data(bytes(received))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return
        if not self._eof:
            await trio.sleep_forever()

    def next_cycle(self) -> bool:
        """Whether the connection can take another request."""
        if self._h11.our_state is not h11.DONE or self._h11.their_state is not h11.DONE:
            return False
        self._h11.start_next_cycle()
        self._request = None
        return True

    def hand_over(self) -> bytes:
        """What came behind an upgrade request; the connection is another protocol's from here on."""
        return bytes(self._h11.trailing_data[0])


def _request(event: h11.Request) -> Request:
    headers: dict[str, str] = {}
    for raw_name, raw_value in event.headers:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    path, _, query = event.target.decode("latin-1").partition("?")
    return Request(event.method.decode("latin-1"), unquote(path), dict(parse_qsl(query)), headers)


def _has_token(headers: Mapping[str, str], name: str, token: str) -> bool:
    return token in (part.strip().lower() for part in headers.get(name, "").split(","))


def _bad_request(exc: h11.RemoteProtocolError) -> Answer:
    reason = str(exc).partition(": bytearray(")[0]  # without the line at fault, which may hold a key
    return error_answer(exc.error_status_hint, f"Bad HTTP request: {reason}.", code="invalid_http")


def _too_large(limit: int) -> Answer:
    return error_answer(413, f"The body is larger than the {limit} bytes that are allowed.", code="request_too_large")
