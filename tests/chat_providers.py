"""Chat-completions servers of many makers, as far as they differ: how each streams, fails, and what each refuses.

What is known of each stands in ``transport/backends/dialects.toml`` with its sources; here it is played from the
other side, so that a row that does not fit its server fails a test.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatch
from typing import Any

from attrs import evolve, field, frozen
from chat_server import DONE, Reply, call, chunk, refusing, sse

PROMPT, OUTPUT, REASONED, CACHED = 100, 20, 8, 64
COMMON = frozenset({"model", "messages", "stream", "tools", "tool_choice", "temperature", "top_p", "response_format"})
USUAL = COMMON | {"stream_options", "parallel_tool_calls", "presence_penalty", "frequency_penalty", "max_tokens"}
MESSAGE = frozenset({"role", "content", "tool_calls", "tool_call_id"})
ERROR = {"type": "invalid_request_error"}


class Wrong(Exception):
    """The request is not one that this server takes; the text says why."""


@frozen
class Provider:
    """One server.

    Attributes:
        fields: of the request; another is refused.
        reasoning: name under which it streams reasoning; "parts" for thinking parts, "tags" for text in the content,
            "" if it tells none.
        remembers: name under which it takes reasoning back; another is refused. None for none at all.
        ids: what a call's id looks like.
        calls: how calls come: in "fragments", "whole", or whole and without an index: "bare".
        usage: where counts stand: in a chunk of their own if "asked" for; in the "finish" chunk; in "x_groq" there.
        counts_cached, counts_reasoning: names of both, or "".
        done: it ends a stream with ``[DONE]``.
        overflow, limited: its answers to a prompt that is too long, and to too many requests.
        efforts: levels that it takes, by a glob of the model; empty for any.
        check: more that it looks at.
        wants_key: the header that carries the key.
    """

    fields: frozenset[str]
    overflow: Reply
    limited: Reply
    reasoning: str = "reasoning_content"
    remembers: str | None = None
    ids: str = "call_abc123"
    calls: str = "fragments"
    usage: str = "asked"
    counts_cached: str = "prompt_tokens_details.cached_tokens"
    counts_reasoning: str = "completion_tokens_details.reasoning_tokens"
    reasoning_apart: bool = False
    done: bool = True
    finish: str = "tool_calls"
    efforts: Mapping[str, frozenset[str]] = field(factory=dict)
    check: Callable[[dict[str, Any]], None] = lambda request: None
    wants_key: str = "authorization"

    def answer(self, request: dict[str, Any]) -> Reply:
        """A turn with reasoning and a call of the first tool; with a text and no call after a tool's output."""
        try:
            self._check(request)
        except Wrong as exc:
            return refusing(400, {"error": {"message": f"WRONG: {exc}", **ERROR}})(request)
        return Reply([sse(each) for each in self._chunks(request)] + ([DONE] if self.done else []))

    # --- what it says -------------------------------------------------------------------------------

    def _chunks(self, request: dict[str, Any]) -> Iterator[Any]:
        yield chunk(role="assistant", content="")
        has_output = any(message["role"] == "tool" for message in request["messages"])
        if has_output or not request.get("tools"):
            yield chunk(content="It is ")
            yield self._finish("stop", request, content="42.")
        else:
            yield from self._thinking()
            *before, last = self._call(request["tools"][0]["function"]["name"])
            yield from before
            yield self._finish(self.finish, request, **last)
        if self.usage == "asked" and (request.get("stream_options") or {}).get("include_usage"):
            yield {"id": "c", "choices": [], "usage": self._counts()}

    def _thinking(self) -> Iterator[Any]:
        for text in ("Let me ", "look."):
            if self.reasoning == "parts":
                yield chunk(content=[{"type": "thinking", "thinking": [{"type": "text", "text": text}]}])
            elif self.reasoning not in ("", "tags"):
                yield chunk(**{self.reasoning: text, "content": None})
        if self.reasoning == "tags":
            for text in ("<thi", "nk>\nLet me ", "look.</th", "ink>\n\n"):
                yield chunk(content=text)

    def _call(self, name: str) -> list[Any]:
        arguments = '{"key":"answer"}'
        if self.calls == "fragments":
            pieces = [call(0, self.ids, name, ""), call(0, arguments=arguments[:5]), call(0, arguments=arguments[5:])]
            return [*(chunk(tool_calls=[piece]) for piece in pieces), {}]
        return [{"tool_calls": [call(0 if self.calls == "whole" else None, self.ids, name, arguments)]}]

    def _finish(self, reason: str, request: dict[str, Any], **delta: Any) -> Any:
        last = chunk(reason, **delta)
        if self.usage in ("finish", "x_groq"):
            last["usage"] = self._counts()
        if self.usage == "x_groq":
            last["x_groq"] = {"id": "req_1", "usage": self._counts()}
        return last

    def _counts(self) -> dict[str, Any]:
        output = OUTPUT - REASONED if self.reasoning_apart else OUTPUT
        counts: dict[str, Any] = {"prompt_tokens": PROMPT, "completion_tokens": output, "total_tokens": PROMPT + OUTPUT}
        for path, n in ((self.counts_cached, CACHED), (self.counts_reasoning, REASONED)):
            if path:
                *outer, name = path.split(".")
                inner = counts.setdefault(outer[0], {}) if outer else counts
                inner[name] = n
        return counts

    # --- what it refuses ----------------------------------------------------------------------------

    def _check(self, request: dict[str, Any]) -> None:
        if unknown := request.keys() - self.fields:
            raise Wrong(f"unknown fields {sorted(unknown)}")
        if request.get("tools") == []:
            raise Wrong("tools is empty")
        effort = request.get("reasoning_effort")
        levels = next((levels for glob, levels in self.efforts.items() if fnmatch(request["model"], glob)), None)
        if levels is not None and effort is not None and effort not in levels:
            raise Wrong(f"reasoning_effort {effort!r}")
        ids = set[str]()
        for message in request["messages"]:
            if message["role"] == "tool":
                if not isinstance(message["content"], str):
                    raise Wrong("a tool's content is not a string")
                if message["tool_call_id"] not in ids:
                    raise Wrong("a tool message without its call")
            ids |= {each["id"] for each in message.get("tool_calls") or ()}
            known = MESSAGE | ({self.remembers} if self.remembers and message["role"] == "assistant" else set())
            if unknown := message.keys() - known:
                raise Wrong(f"unknown fields {sorted(unknown)} in a message")
        self.check(request)


# --- what single servers look at --------------------------------------------------------------------------


def _roles(request: dict[str, Any]) -> list[str]:
    return [message["role"] for message in request["messages"]]


def _no_developer(request: dict[str, Any]) -> None:
    if "developer" in _roles(request):
        raise Wrong("role developer")


def _system_first(request: dict[str, Any]) -> None:
    _no_developer(request)
    if "system" in _roles(request)[1:]:
        raise Wrong("a system message that is not the first")


def _strings_only(request: dict[str, Any]) -> None:
    _system_first(request)
    if not isinstance(request.get("tool_choice", ""), str):
        raise Wrong("tool_choice is an object")


def _exclusive(request: dict[str, Any]) -> None:
    if "tools" in request and "response_format" in request:
        raise Wrong("tools and response_format")


def _cerebras(request: dict[str, Any]) -> None:
    _no_developer(request)
    _exclusive(request)


def _openai(request: dict[str, Any]) -> None:
    if any(len(each["id"]) > 40 for message in request["messages"] for each in message.get("tool_calls") or ()):
        raise Wrong("an id of more than 40 characters")


def _deepseek(request: dict[str, Any]) -> None:
    _no_developer(request)
    for message in request["messages"]:
        if message["role"] == "assistant" and "reasoning_content" not in message:
            raise Wrong("The reasoning_content in the thinking mode must be passed back to the API.")
    if (request.get("response_format") or {}).get("type") == "json_schema":
        raise Wrong("response_format type json_schema")


def _mistral(request: dict[str, Any]) -> None:
    _system_first(request)
    before = ""
    for message in request["messages"]:
        if before == "tool" and message["role"] == "user":
            raise Wrong("3230 user after tool")
        if message["role"] == "assistant" and not message.get("content", "x"):
            raise Wrong("an empty assistant")
        for each in message.get("tool_calls") or ():
            if not re.fullmatch(r"[a-zA-Z0-9]{9}", each["id"]):
                raise Wrong(f"3280 id {each['id']}")
        before = message["role"]


def _sglang(request: dict[str, Any]) -> None:
    if request.get("tool_choice") == "required" and not request.get("tools"):
        raise Wrong("required without tools")


def _any(message: str, code: Any = None, status: int = 400, **more: Any) -> Reply:
    return refusing(status, {"error": {"message": message, "code": code, **ERROR, **more}})({})


def _flat(message: str, code: Any = None, status: int = 400, **more: Any) -> Reply:
    return refusing(status, {"object": "error", "message": message, "type": "error", "code": code, **more})({})


def _busy(reply: Reply) -> Reply:
    return evolve(reply, headers=[*reply.headers, ("retry-after", "7")])


LENGTH = "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens."
LOW_TO_HIGH = frozenset({"low", "medium", "high"})
GPT_OSS = {"*gpt-oss*": LOW_TO_HIGH}
_LIMIT = _busy(_any("Rate limit reached for requests", "rate_limit_exceeded", 429))
_OVERLOADED = _busy(_any("The server is busy", 503, 503))

OPENAI = Provider(
    fields=USUAL - {"max_tokens"} | {"max_completion_tokens", "reasoning_effort", "prompt_cache_key"},
    reasoning="",
    overflow=_any("Your input exceeds the context window of this model.", "context_length_exceeded"),
    limited=_LIMIT,
    check=_openai,
)
VLLM = Provider(
    fields=USUAL | {"reasoning_effort"},
    reasoning="reasoning",
    remembers="reasoning",
    ids="chatcmpl-tool-0f",
    overflow=_any(LENGTH, 400, param="input_tokens"),
    limited=_OVERLOADED,
    finish="stop",
    efforts=GPT_OSS,
)
SGLANG = Provider(
    fields=USUAL | {"reasoning_effort"},
    remembers="reasoning_content",
    counts_reasoning="reasoning_tokens",
    overflow=_flat("The input (9000 tokens) is longer than the model's context length (8192 tokens).", 400),
    limited=_busy(_flat("The request queue is full.", 503, 503)),
    efforts=GPT_OSS,
    check=_sglang,
)

PROVIDERS: dict[str, Provider] = {
    "openai": OPENAI,
    "azure": evolve(
        OPENAI, wants_key="api-key", limited=evolve(_LIMIT, headers=[*_LIMIT.headers[:1], ("retry-after-ms", "7000")])
    ),
    "cerebras": Provider(
        fields=USUAL - {"max_tokens"} | {"max_completion_tokens", "reasoning_effort", "prompt_cache_key"},
        reasoning="reasoning",
        remembers="reasoning",
        ids="4f0c1b2aa",
        usage="finish",
        overflow=Reply([], 400),
        limited=_busy(_flat("Tokens per minute limit exceeded - too many tokens processed.", "token_quota", 429)),
        efforts={**GPT_OSS, "*": LOW_TO_HIGH | {"none"}},
        check=_cerebras,
    ),
    "groq": Provider(
        fields=USUAL - {"max_tokens", "stream_options"} | {"max_completion_tokens", "reasoning_effort"},
        reasoning="reasoning",
        remembers="reasoning",
        ids="a1b2c3d4e",
        calls="whole",
        usage="x_groq",
        overflow=_any("Please reduce the length of the messages or completion.", None),
        limited=_busy(_any("Request too large: Limit 6000 tokens per minute, Requested 7000", "r", 413)),
        efforts={**GPT_OSS, "*qwen*": frozenset({"none", "default"}), "*": frozenset()},
        check=_exclusive,
    ),
    "vllm": VLLM,
    "sglang": SGLANG,
    "llamacpp": Provider(
        fields=USUAL | {"reasoning_effort", "return_progress"},
        remembers="reasoning_content",
        counts_reasoning="",
        overflow=_any(
            "request (9000 tokens) exceeds the available context size", 400, type="exceed_context_size_error"
        ),
        limited=_busy(_any("Loading model", 503, 503, type="unavailable_error")),
        check=_strings_only,
    ),
    "ollama": Provider(
        fields=COMMON | {"stream_options", "presence_penalty", "frequency_penalty", "max_tokens", "reasoning_effort"},
        reasoning="reasoning",
        remembers="reasoning",
        calls="whole",
        counts_cached="",
        counts_reasoning="",
        overflow=_any("the prompt exceeded max context length", None, 500),
        limited=_busy(_any("server busy, please try again.", None, 503)),
        efforts={"*": frozenset({"none", "low", "medium", "high", "max"})},
        check=_strings_only,
    ),
    "lmstudio": Provider(
        fields=USUAL - {"parallel_tool_calls"} | {"reasoning_effort"},
        reasoning="tags",
        ids="365174485",
        overflow=refusing(400, {"error": "The number of tokens to keep is greater than the context length."})({}),
        limited=_busy(refusing(429, {"error": "Too many requests"})({})),
        check=_strings_only,
    ),
    "openrouter": Provider(
        fields=USUAL | {"reasoning", "session_id"},
        reasoning="reasoning",
        remembers="reasoning",
        finish="stop",
        overflow=_any("Provider returned error", 400, metadata={"raw": '{"error":"prompt is too long: 9 > 8"}'}),
        limited=_busy(_any("Provider returned error", 429, 429, metadata={"error_type": "rate_limit_exceeded"})),
    ),
    "together": Provider(
        fields=USUAL | {"reasoning_effort", "context_length_exceeded_behavior"},
        reasoning="reasoning",
        remembers="reasoning",
        counts_cached="cached_tokens",
        overflow=_any("`inputs` tokens + `max_tokens` must be <= 8193. Given: 9000 `inputs` tokens", None, 403),
        limited=_LIMIT,
        efforts=GPT_OSS,
        check=_system_first,
    ),
    "fireworks": Provider(
        fields=USUAL | {"reasoning_effort", "prompt_cache_key", "context_length_exceeded_behavior"},
        remembers="reasoning_content",
        calls="bare",
        overflow=_any("The prompt is too long: 9000, model maximum context length: 8191", None),
        limited=_LIMIT,
        efforts=GPT_OSS,
        check=_no_developer,
    ),
    "deepseek": Provider(
        fields=USUAL - {"parallel_tool_calls"} | {"reasoning_effort", "thinking"},
        remembers="reasoning_content",
        usage="finish",
        counts_cached="prompt_cache_hit_tokens",
        overflow=_any(LENGTH, "invalid_request_error"),
        limited=_busy(_any("Too many concurrent requests", None, 429)),
        efforts={"*": frozenset({"low", "high", "max"})},
        check=_deepseek,
    ),
    "mistral": Provider(
        fields=USUAL - {"stream_options"} | {"reasoning_effort", "prompt_cache_key"},
        reasoning="parts",
        ids="D681PevKs",
        calls="bare",
        usage="finish",
        counts_reasoning="",
        overflow=_flat("Prompt contains 9000 tokens, too large for model with 8192 maximum context length", "3051"),
        limited=_busy(_flat("Requests rate limit exceeded", "1300", 429)),
        efforts={"*": LOW_TO_HIGH},
        check=_mistral,
    ),
    "nim": Provider(
        fields=USUAL - {"parallel_tool_calls"} | {"reasoning_effort"},
        remembers="reasoning_content",
        overflow=_flat(LENGTH, 400),
        limited=_busy(refusing(429, {"status": 429, "title": "Too Many Requests", "detail": "Slow down"})({})),
        efforts={"*": LOW_TO_HIGH},
        check=_system_first,
    ),
    "trtllm": Provider(
        fields=USUAL - {"max_tokens"} | {"max_completion_tokens"},
        remembers="reasoning_content",
        overflow=_flat("prompt length 9000 exceeds: context_length_exceeded", 400),
        limited=_OVERLOADED,
        check=_no_developer,
    ),
    "xai": Provider(
        fields=USUAL - {"presence_penalty", "frequency_penalty"} | {"reasoning_effort"},
        calls="whole",
        reasoning_apart=True,
        overflow=_any("This model's maximum prompt length is 8192 but the request contains 9000 tokens.", None),
        limited=_LIMIT,
        check=_no_developer,
    ),
    "azure-deepseek": evolve(SGLANG, wants_key="api-key"),
    "unknown": Provider(
        fields=USUAL,
        overflow=_any("Too many tokens in the prompt", None),
        limited=_busy(Reply([], 429)),
        remembers="reasoning_content",
        check=_strings_only,
    ),
}
