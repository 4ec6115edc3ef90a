"""What the ledger holds of one response, and what writes it."""

from collections.abc import Sequence
from typing import Protocol

from attrs import frozen


class LedgerError(Exception):
    """The ledger cannot be opened, written or read; names it and says what to do."""


@frozen(kw_only=True)
class UsageRecord:
    """One response, or the sum of several. Never a prompt, an answer or a key.

    Attributes:
        at: its end, seconds since 1970, UTC.
        owner: the label of the client's key; "" where no key is asked for.
        agent: program and version that the client's User-Agent begins with.
        response_id: "" if the backend refused the request, and for a sum.
        model: as it was asked for.
        backend: who answered, as the configuration names it; "" if nobody was asked.
        upstream_model: the name that the backend knows.
        status: "completed", "incomplete", "failed", or "cancelled" if nobody waited for its end.
        error: the code, if it failed.
        responses: how many this record stands for: 1, but for a sum.
        samples: how often the backend was asked; more than once in a response that tool outputs were appended to.
        uncounted: samples among them whose tokens are not known and not in the counts: they broke off.
        estimated: the backend did not count all of it, and the rest is estimated from bytes.
        input_tokens: the whole prompts, cached parts included.
        output_tokens: everything sampled, reasoning included.
        ttft_s: seconds from the request to the first sampled increment; None if there was none.
        sampling_s: seconds that the backend was at it.
        duration_s: seconds from the first request to the end, tools between included.
    """

    at: float
    owner: str
    agent: str
    transport: str
    dialect: str
    response_id: str
    model: str
    backend: str
    upstream_model: str
    status: str
    error: str | None = None
    responses: int = 1
    samples: int = 1
    uncounted: int = 0
    estimated: bool = False
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    ttft_s: float | None = None
    sampling_s: float = 0.0
    duration_s: float = 0.0


class Sink(Protocol):
    """Where records go. Everything here blocks: it is called from a thread."""

    def write(self, records: Sequence[UsageRecord]) -> None:
        """Keep all of them, so that they survive ``kill -9``, or none. Raises ``LedgerError``."""
        ...

    def close(self) -> None: ...
