"""Both sides of the seam: what can happen to a session, and what it can ask for.

Everything nondeterministic is an event. No class here holds a live object: each becomes JSON and
back, which is all that a recorder needs. A ``stream_id`` names a lane; ``None`` is the default lane.
Fields of type ``bytes`` hold one JSON value as ``orjson.dumps`` writes it (compact, keys in order).
"""

from attrs import field, frozen

from .context import Context
from .wire import ResponseCreate

# --- increments: what a model does, in the one alphabet that every backend is mapped to -------------


@frozen
class Message:
    """An assistant message begins. Needed only for a phase, or to begin a second message after a first."""

    phase: str | None = None  # "commentary" or "final_answer"


@frozen
class Text:
    """Visible text of the open message; begins one if none is open."""

    text: str


@frozen
class Refusal:
    """Text of a refusal; begins a refusal part, and a message if none is open."""

    text: str


@frozen
class Reasoning:
    """Raw reasoning text of the open reasoning item; begins one if none is open."""

    text: str


@frozen
class Summary:
    """Text of a reasoning summary. ``part`` counts from 0; a higher number begins the next part."""

    text: str
    part: int = 0


@frozen
class Encrypted:
    """The open reasoning item as the backend wants it back, in a form that only the backend reads; ends the item.

    Begins an item of its own if no reasoning item is open.
    """

    content: str


@frozen
class ToolCall:
    """A call begins. ``call_id`` belongs to the take: a stub hands out the recorded one.

    Attributes:
        name: the tool's own name, without its namespace.
        custom: a custom tool, whose ``Arguments`` are free text and not JSON.
    """

    call_id: str
    name: str
    namespace: str | None = None
    custom: bool = False


@frozen
class Arguments:
    """More of the open call's JSON arguments, or of a custom call's input."""

    text: str


@frozen
class Usage:
    """Token counts as the backend reports them for one sample.

    Attributes:
        input_tokens: the whole prompt, cached part included.
        cached_tokens: the part of the prompt that was not prefilled again.
        output_tokens: everything sampled, reasoning included.
    """

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0


@frozen
class Finish:
    """The sample is whole. A sample that ends without one has failed.

    Attributes:
        reason: "stop" (tool calls included), "length" or "content_filter".
        usage: None if the backend does not count; the session then estimates.
    """

    reason: str = "stop"
    usage: Usage | None = None


Increment = Message | Text | Refusal | Reasoning | Summary | Encrypted | ToolCall | Arguments | Finish


# --- events: from the client, the backend, the store, or the server itself ----------------------------


@frozen
class Limits:
    """Bounds and choices of one session. They are part of ``Opened``, so a recording replays under its own.

    Attributes:
        max_age_s: the connection's age at which it stops accepting creates. Source: OpenAI WebSocket guide, 60 min.
        drain_s: how long a response that runs at that age may still take.
        keepalive_s: silence of an open response after which ``response.in_progress`` is repeated. Ours: agents give
            up after 300 s, and neither pings nor SSE comments count for them.
        accept_s: how long ``response.created`` waits for the backend to accept.
        n_lanes: distinct named lanes over the connection's life. Source: OpenAI WebSocket guide.
        n_in_flight: lanes at work at once. Source: OpenAI WebSocket guide.
        n_waiting: client events waiting in all FIFOs together; ours: the guide names no limit.
        n_kept: finished responses that each lane remembers. Source: OpenAI WebSocket guide, the most recent one.
        n_referable: items of this connection that ``item_reference`` can name; ours.
        fill_missing_outputs: answer a call that has no output with "aborted" rather than refuse the request.
    """

    max_age_s: float = 3600.0
    drain_s: float = 60.0
    keepalive_s: float = 15.0
    accept_s: float = 1.0
    n_lanes: int = 32
    n_in_flight: int = 16
    n_waiting: int = 256
    n_kept: int = 1
    n_referable: int = 4096
    fill_missing_outputs: bool = False


@frozen
class Opened:
    """First event of every session, and the origin of its time: ``now`` is 0.0 here.

    Attributes:
        seed: 128 random bits, hex: every id of the session follows from it.
        wall: seconds since 1970, UTC.
        transport: "websocket", or one HTTP POST answered as "sse" or "json".
        dialect: "current"; "append" (the client offered the prototype: ended samples that want tool outputs park);
            "legacy" (an append client that offered nothing).
        owner: a label of the key, never the key. Stored responses are found by their owner only.
        agent: the client's User-Agent.
        default_model: the model of a request that names none; "" if there is none.
    """

    seed: str
    wall: float
    transport: str = "websocket"
    dialect: str = "current"
    owner: str = ""
    agent: str = ""
    default_model: str = ""
    limits: Limits = field(factory=Limits)


@frozen
class ClientText:
    """One WebSocket text message, or the body of one POST, exactly as received."""

    text: str


@frozen
class ClientGone:
    """The client left. No effect after this one's reaches it."""

    code: int | None = None  # WebSocket close code, if there was a close frame


@frozen
class Started:
    """The backend accepted the request of this sample."""

    sample_id: str


@frozen
class Sampled:
    """All increments of one read of the backend, for a sample we started."""

    sample_id: str
    batch: tuple[Increment, ...]


@frozen
class SampleFailed:
    """The backend refused the request, or failed after it began.

    Attributes:
        status: what the HTTP status of the refusal should be.
        retry_after: seconds as the backend wrote them, for a client that should come back.
    """

    sample_id: str
    code: str
    message: str = ""
    status: int = 500
    param: str | None = None
    retry_after: str | None = None


@frozen
class Record:
    """What a store holds of one response. Chains share: ``items`` begin after those of ``previous_id``.

    Attributes:
        previous_id: the nearest stored ancestor, or None.
        response: the Response object as its terminal event carries it.
        items: every item since ``previous_id``, oldest first.
        n_output: how many of ``items``, at the end, came after the request: its output, and what was appended to it.
    """

    response_id: str
    previous_id: str | None
    owner: str
    created_at: int
    response: bytes
    items: tuple[bytes, ...]
    n_output: int


@frozen
class Loaded:
    """The store's answer to ``Load``.

    Attributes:
        items: every item of the chain, oldest first; None if there is no such response for this owner.
        referenced: the stored item for each of ``Load.item_ids``, None where there is none.
    """

    stream_id: str | None
    items: tuple[bytes, ...] | None
    referenced: tuple[bytes | None, ...] = ()


@frozen
class Saved:
    """The record is durable: its terminal event may go out."""

    stream_id: str | None


@frozen
class StoreFailed:
    """The store could not do it. ``message`` goes to the client."""

    stream_id: str | None
    message: str


@frozen
class Drain:
    """The server is shutting down: finish what is in flight, accept nothing new."""


@frozen
class Tick:
    """``Session.deadline`` has passed."""


Event = (
    Opened | ClientText | ClientGone | Started | Sampled | SampleFailed | Loaded | Saved | StoreFailed | Drain | Tick
)


# --- effects: performed by the driver, in order -------------------------------------------------------


@frozen
class Send:
    """Deliver server events to the client, one per entry, encoded. ``type`` is the first key of each."""

    data: tuple[bytes, ...]


@frozen
class StartSample:
    """Ask the backend for batches.

    Attributes:
        model: the requested model, or the session's default.
        request: the create whose settings hold for this sample (instructions, tools, tool_choice, text, ...).
        context: the conversation to continue; instructions and the request's tools are not part of it.
        cached: tokens of ``context`` that earlier turns of this connection already hold.
    """

    sample_id: str
    model: str
    request: ResponseCreate
    context: Context
    cached: int


@frozen
class CancelSample:
    """Nobody wants this sample any more: end its request now."""

    sample_id: str


@frozen
class Load:
    """Fetch from the store; answer with ``Loaded`` or ``StoreFailed``.

    Attributes:
        owner: whose records may be read.
        response_id: the chain's last response, or None if only items are wanted.
        item_ids: items that the request refers to and that this connection does not have.
    """

    stream_id: str | None
    owner: str
    response_id: str | None
    item_ids: tuple[str, ...] = ()


@frozen
class Save:
    """Make ``record`` durable; answer with ``Saved`` or ``StoreFailed``. A terminal event waits for it."""

    stream_id: str | None
    record: Record


ABNORMAL = 1006
"""Close code of a connection that dies without a close frame, RFC 6455 section 7.4.1. Only a stub orders that, as a fault."""


@frozen
class Close:
    """End the connection, after everything sent before. ``code`` is a WebSocket close code, or ``ABNORMAL``."""

    code: int
    reason: str = ""


Effect = Send | StartSample | CancelSample | Load | Save | Close


def event_type(encoded: bytes) -> str:
    """Return the ``type`` of one encoded server event: it is always the first key."""
    return encoded[9 : encoded.index(b'"', 9)].decode()
