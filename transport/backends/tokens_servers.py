"""Servers that take token ids, as data and small pure functions: what each is asked, and what its chunks say."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import orjson
from attrs import define, frozen

from .chat_usage import is_count, read_usage

MAX_ID = 1 << 31
"""Ids are below it in every vocabulary."""


@frozen
class Ask:
    """One request for tokens.

    Attributes:
        prompt: token ids as JSON numbers, commas between, in pieces; each but the first begins with its comma.
        max_tokens: None for as many as fit.
        settings: temperature and such, under their OpenAI names, as far as the client set them.
        stop_ids: sampling ends with any of these.
        schema: JSON Schema that everything sampled must match, or None.
        marks: texts that are to be shown though they may be special tokens.
    """

    model: str
    prompt: Sequence[bytes]
    max_tokens: int | None
    settings: Mapping[str, float]
    stop_ids: Sequence[int] = ()
    schema: Mapping[str, Any] | None = None
    marks: Sequence[str] = ()

    def body(self, prompt_field: str, rest: Mapping[str, Any]) -> tuple[bytes, ...]:
        return b'{"' + prompt_field.encode() + b'":[', *self.prompt, b"]," + orjson.dumps(rest)[1:]


@frozen
class Chunk:
    """What one event of an answer says.

    Attributes:
        ids: sampled since the chunk before.
        text: of the same ids, without most special tokens.
        reason: "stop" or "length" once sampling has ended; anything else says that it was given up.
        input_tokens: of the whole prompt, None until the server says so; ``output_tokens`` likewise.
        failure: the server's error object.
    """

    ids: Sequence[int] = ()
    text: str = ""
    reason: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int = 0
    failure: Mapping[str, Any] | None = None


class Reader(Protocol):
    """Reads the events of one answer."""

    def read(self, event: dict[str, Any]) -> Chunk: ...


class Server(Protocol):
    """A kind of server.

    Attributes:
        name: as in the option ``server``.
        path: where tokens are asked for.
        has_done: an answer ends with ``[DONE]``.
    """

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> str: ...

    @property
    def has_done(self) -> bool: ...

    def body(self, ask: Ask) -> tuple[bytes, ...]: ...

    def reader(self) -> Reader: ...


def _ids(value: object) -> list[int]:
    """What can be a token's id. Anything else means nothing in any vocabulary."""
    return [token for token in value if type(token) is int and 0 <= token < MAX_ID] if isinstance(value, list) else []


def _count(value: object) -> int | None:
    return value if is_count(value) else None


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


# --- vLLM --------------------------------------------------------------------------------------------------


@frozen
class VllmReader:
    def read(self, event: dict[str, Any]) -> Chunk:
        if event.get("error"):
            return Chunk(failure=event)
        choices = event.get("choices")
        choice = _object(choices[0]) if isinstance(choices, list) and choices else {}
        text, reason = choice.get("text"), choice.get("finish_reason")
        counted = event.get("usage")
        usage = read_usage(counted) if isinstance(counted, dict) else None
        return Chunk(
            _ids(choice.get("token_ids")),
            text if isinstance(text, str) else "",
            reason if isinstance(reason, str) else None,
            usage.input_tokens if usage else None,
            usage.output_tokens if usage else None,
            usage.cached_tokens if usage else 0,
        )


@frozen
class Vllm:
    """``/v1/completions``: no parser of the server's own stands between, unlike on its chat route."""

    name: str = "vllm"
    path: str = "/v1/completions"
    has_done: bool = True

    def body(self, ask: Ask) -> tuple[bytes, ...]:
        rest: dict[str, Any] = {
            "model": ask.model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            "max_tokens": ask.max_tokens,  # null is "as many as fit"; left out it is 16
            "skip_special_tokens": False,
            **ask.settings,
        }
        if ask.stop_ids:
            rest["stop_token_ids"] = list(ask.stop_ids)
        if ask.schema is not None:
            rest["structured_outputs"] = {"json": ask.schema}
        return ask.body("prompt", rest)

    def reader(self) -> Reader:
        return VllmReader()


# --- SGLang ------------------------------------------------------------------------------------------------


@define
class SglangReader:
    """Ids come as a whole each time, or with ``--incremental-streaming-output`` as what is new."""

    n_read: int = 0
    last: int | None = None
    is_whole: bool | None = None  # as the second chunk shows

    def read(self, event: dict[str, Any]) -> Chunk:
        if event.get("error"):
            return Chunk(failure=event)
        meta = _object(event.get("meta_info"))
        ids, n_output = _ids(event.get("output_ids")), _count(meta.get("completion_tokens"))
        if self.is_whole is None and self.n_read:
            self.is_whole = n_output is not None and len(ids) >= n_output
        new = ids[self.n_read :] if self.is_whole else ids
        self.n_read += len(new)
        finish = _object(meta.get("finish_reason"))
        reason = finish.get("type") if isinstance(finish.get("type"), str) else None
        if reason == "abort":
            error = {"message": finish.get("message"), "code": finish.get("status_code")}
            return Chunk(new, reason=reason, failure={"error": error})
        matched = finish.get("matched")
        self.last = new[-1] if new else self.last
        if type(matched) is int and self.last != matched:  # trimmed, though it was asked not to be
            new = [*new, matched]
        return Chunk(
            new,
            "",
            reason,
            _count(meta.get("prompt_tokens")),
            n_output,
            _count(meta.get("cached_tokens")) or 0,
        )


@frozen
class Sglang:
    """``/generate``, its own route: it reports cached tokens without a flag."""

    name: str = "sglang"
    path: str = "/generate"
    has_done: bool = True

    def body(self, ask: Ask) -> tuple[bytes, ...]:
        sampling: dict[str, Any] = {
            "max_new_tokens": ask.max_tokens,  # null is "as many as fit"; left out it is 128
            "skip_special_tokens": False,
            "no_stop_trim": True,
            **ask.settings,
        }
        if ask.stop_ids:
            sampling["stop_token_ids"] = list(ask.stop_ids)
        if ask.schema is not None:
            sampling["json_schema"] = orjson.dumps(ask.schema).decode()
        return ask.body("input_ids", {"sampling_params": sampling, "stream": True})

    def reader(self) -> Reader:
        return SglangReader()


# --- llama.cpp ---------------------------------------------------------------------------------------------


@frozen
class LlamaCppReader:
    def read(self, event: dict[str, Any]) -> Chunk:
        if event.get("error"):
            return Chunk(failure=event)
        if "prompt_progress" in event:
            return Chunk()  # of a prefill; its one token, 0, was not sampled
        text = event.get("content")
        text = text if isinstance(text, str) else ""
        if event.get("stop") is not True:
            return Chunk(_ids(event.get("tokens")), text)
        timings = _object(event.get("timings"))
        cached, prefilled = _count(timings.get("cache_n")), _count(timings.get("prompt_n"))
        n_input = None if cached is None or prefilled is None else cached + prefilled
        return Chunk(
            (),  # the last chunk repeats nothing
            text,
            "length" if event.get("stop_type") == "limit" else "stop",
            n_input if n_input is not None else _count(event.get("tokens_evaluated")),
            _count(timings.get("predicted_n")) or _count(event.get("tokens_predicted")),
            cached or 0,
        )


@frozen
class LlamaCpp:
    """``/completion``, its own route: ``/v1/completions`` gives text only. It stops where the model file says."""

    name: str = "llamacpp"
    path: str = "/completion"
    has_done: bool = False

    def body(self, ask: Ask) -> tuple[bytes, ...]:
        rest: dict[str, Any] = {
            "stream": True,
            "cache_prompt": True,
            "return_progress": True,  # it sees that we left when it says something: else a whole prefill goes on
            "n_predict": -1 if ask.max_tokens is None else ask.max_tokens,
            **ask.settings,
        }
        if ask.schema is not None:
            rest["json_schema"] = ask.schema
        if ask.marks:
            rest["preserved_tokens"] = list(ask.marks)  # without it a special token has no text
        return ask.body("prompt", rest)

    def reader(self) -> Reader:
        return LlamaCppReader()


SERVERS: Mapping[str, Server] = {server.name: server for server in (Vllm(), Sglang(), LlamaCpp())}
