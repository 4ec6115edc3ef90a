"""One sample over all the requests that it takes: events of a token server in, increments and counts out; no I/O."""

from collections.abc import Sequence
from typing import Any

import orjson
from attrs import define

from turntape.core.seam import Finish, Increment, Usage

from .base import BackendError
from .chat_errors import Refusals
from .tokens_base import Speech
from .tokens_servers import Chunk, Reader, Server


@define(eq=False)
class Sampling:
    """Feed it the events of each answer.

    Args:
        n_prompt: tokens of the prompt, for a server that does not count.

    Attributes:
        n_ids: ids received so far.
        reason: why the server ended this answer, once it has.
        is_over: nothing more of this answer is worth reading.
    """

    speech: Speech
    refusals: Refusals
    n_prompt: int
    n_ids: int = 0
    reason: str | None = None
    is_over: bool = False
    _reader: Reader | None = None
    _has_done: bool = True
    _failure: BackendError | None = None
    _n_requests: int = 0
    _n_before: int = 0  # ids of earlier requests
    _n_output: int | None = None  # as this request's server counts them
    _usage: tuple[int, int] | None = None  # input and cached tokens of the first request

    def begin(self, server: Server, *, resumes: bool) -> list[Increment]:
        """Another request was accepted.

        Args:
            resumes: the speech had to be begun for the model.
        """
        self._reader, self._has_done = server.reader(), server.has_done
        self._n_requests += 1
        self._n_before, self._n_output = self.n_ids, None
        self.reason, self.is_over = None, False
        return self.speech.resume() if resumes else []

    def feed(self, events: Sequence[bytes]) -> list[Increment]:
        out: list[Increment] = []
        for event in events:
            if self.is_over:
                break
            if event.strip() == b"[DONE]":
                self.is_over = True
            elif (value := _object(event)) is None:
                self._fail(self.refusals.broken("sent an event that is not a JSON object"))
            else:
                assert self._reader is not None
                self._chunk(self._reader.read(value), out)
        return out

    def _chunk(self, chunk: Chunk, out: list[Increment]) -> None:
        if self.speech.ended and chunk.ids:  # the server does not stop where the model ends its turn
            self.reason, self.is_over = self.reason or "stop", True
            return
        self.n_ids += len(chunk.ids)
        out += self.speech.feed(chunk.ids, chunk.text)
        self.reason = chunk.reason or self.reason
        self._n_output = self._n_output if chunk.output_tokens is None else chunk.output_tokens
        if chunk.input_tokens is not None and self._n_requests == 1:
            self._usage = chunk.input_tokens, chunk.cached_tokens
        if chunk.failure is not None:
            self._fail(self.refusals.midstream(chunk.failure, self.n_ids, "token"))
        elif chunk.text and not chunk.ids and not self.n_ids and self._has_done:
            self._fail(self.refusals.broken("sends text without token ids; vLLM does so before version 0.10.2"))
        elif self.speech.turn is not None or (self.reason is not None and not self._has_done):
            self.is_over = True

    def _fail(self, failure: BackendError) -> None:
        self._failure, self.is_over = failure, True

    def end(self) -> list[Increment]:
        """The last answer ended: what was held back, and ``Finish``.

        Raises:
            BackendError: the server failed, gave up, or ended too early.
        """
        if self._failure is not None:
            raise self._failure
        if self.reason is None:
            raise self.refusals.broken("ended its answer without saying that it is finished")
        if self.reason not in ("stop", "length"):
            raise self.refusals.broken(f"gave up the answer (finish reason {self.reason[:32]!r})")
        out = self.speech.end()
        n_output = self.n_ids if self._n_output is None else self._n_before + self._n_output
        if self.n_ids + 1 >= n_output:  # some versions of vLLM lose ids; an end that is counted and not sent is none
            self.speech.keep()
        n_input, n_cached = self._usage or (self.n_prompt, 0)
        usage = Usage(n_input, n_output, min(n_cached, n_input), min(self.speech.n_reasoning, n_output))
        return [*out, Finish(self.reason, usage)]


def _object(event: bytes) -> dict[str, Any] | None:
    try:
        value = orjson.loads(event)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None
