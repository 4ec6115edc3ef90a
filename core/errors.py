"""Errors that a client can cause. Each class carries the wire code and status it becomes."""

from typing import ClassVar

from attrs import define

SHOWN = 128
"""Characters of a client's own value that an error repeats: enough to show which it was."""


@define(eq=False)
class ProtocolError(Exception):
    """The client asked for something that the protocol does not allow here.

    Raised only inside ``core``; ``Session.receive`` turns it into a server event. Nothing else
    changes, except that a refused create evicts its own lane's parent and abandons a parked response.

    Attributes:
        param: the field at fault, as a JSON path without the leading ``$.``.
    """

    message: str
    param: str | None = None

    code: ClassVar[str] = "invalid_request_error"
    status: ClassVar[int] = 400
    retry_after: ClassVar[str | None] = None

    def __str__(self) -> str:
        return self.message


class InvalidJson(ProtocolError):
    """The text is not JSON, or not an object."""

    code = "invalid_json"


class UnsupportedEventType(ProtocolError):
    code = "unsupported_event_type"


class InvalidField(ProtocolError):
    """A field has the wrong kind of value, or one outside its range."""

    code = "invalid_value"


class MissingField(ProtocolError):
    code = "missing_required_parameter"


class UnknownField(ProtocolError):
    """A field that exists only on the other transport."""

    code = "unknown_parameter"


class UnsupportedField(ProtocolError):
    """A field or value that is in the API but that this server cannot honour."""

    code = "unsupported_parameter"


class InvalidStreamId(ProtocolError):
    code = "invalid_stream_id"


class StreamLimitReached(ProtocolError):
    code = "websocket_stream_limit_reached"


class ConnectionLimitReached(ProtocolError):
    code = "websocket_connection_limit_reached"


class ResponseNotFound(ProtocolError):
    """An append with nothing to append to."""

    code = "response_not_found"


class PreviousResponseNotFound(ProtocolError):
    code = "previous_response_not_found"


class ItemNotFound(ProtocolError):
    """An ``item_reference`` to an item that neither this connection nor the store holds."""

    code = "item_not_found"


class ToolOutputMismatch(ProtocolError):
    """An output without its call, or a call without its output."""

    code = "invalid_tool_output"


class QueueFull(ProtocolError):
    code, status, retry_after = "rate_limit_exceeded", 429, "1"


class ShuttingDown(ProtocolError):
    """Agents come back to a 503 with this code; ``server_is_overloaded`` would end their turn."""

    code, status, retry_after = "slow_down", 503, "1"


class StoreUnavailable(ProtocolError):
    code, status = "server_error", 500


@define(eq=False)
class BackendRefused(ProtocolError):
    """The backend answered before a response existed: its code, status and patience are passed on."""

    code: str = "server_error"  # type: ignore[misc]  # the one error whose code is not its class's
    status: int = 500  # type: ignore[misc]
    retry_after: str | None = None  # type: ignore[misc]


def error_type(status: int) -> str:
    """The ``error.type`` that goes with an HTTP status, as OpenAI's API pairs them."""
    if status == 401:
        return "authentication_error"
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"
