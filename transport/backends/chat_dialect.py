"""How one chat-completions server differs from another, as data: a ``Dialect`` is a row, and code asks the row."""

from collections.abc import Mapping
from typing import Any, Literal

from attrs import field, frozen

GENTLER_EFFORTS = {"minimal": "low", "xhigh": "high", "max": "high", "ultra": "high"}
"""Levels that many servers refuse, as the nearest one that all of them know."""

Code = Literal[
    "context_length_exceeded",
    "insufficient_quota",
    "invalid_api_key",
    "invalid_max_tokens",
    "invalid_prompt",
    "malformed_call",
    "model_not_found",
    "rate_limit_exceeded",
    "server_error",
    "server_is_overloaded",
]
"""What can be wrong: the canonical codes, "invalid_max_tokens" (an invalid_prompt), "malformed_call" (a server_error)."""


@frozen
class ErrorRule:
    """One of a server's own ways to say what is wrong; the first rule that holds decides, before all general ones.

    Attributes:
        match: regular expression, searched in code, param and message together, upper and lower case alike.
            "^$" is an error without any of them, such as an empty body.
        statuses: HTTP statuses that it comes with; empty for any.
    """

    code: Code
    match: str = ""
    statuses: tuple[int, ...] = ()


@frozen
class Dialect:
    """What may be sent to a server and under which name. The defaults suit one that nothing is known about.

    Attributes:
        developer_role: the role that developer messages get. "system" is understood everywhere.
        system_messages: "many" sends each where it stands. "merge_first" joins those that lead the conversation, and
            makes a later one a user's message: templates of many models refuse a system message that is not the first.
        max_field: name of the bound on output tokens. Ollama ignores "max_completion_tokens" without a word.
        effort_field: name of the reasoning effort, dots for depth; "" to leave it out.
        efforts: other names for effort levels; one that is not listed is sent as it is, "" leaves it out, and a
            table is put into the request as it stands.
        reasoning_fields: names under which reasoning text may come, in order of preference.
        reasoning_in: name under which reasoning goes back in history; "same" for the one that the server itself used,
            which is the one it knows (Cerebras refuses another); "content_thinking" for a thinking part of the
            content; "reasoning_details" for those, signatures and all, or else the text as "reasoning"; "none" for never.
        reasoning_scope: "tool_loop" sends it with messages that hold tool calls, as gpt-oss templates want it;
            "always" with every assistant message, an empty text where there is none.
        think_tags: content that begins with ``<think>`` is reasoning up to ``</think>``.
        tools_with_reasoning: "ok"; "if_not_asked" refuses tools together with an effort; "never" also without one,
            unless the effort is "none". For models that take both over the Responses API only.
        tool_choices: forms of ``tool_choice`` that are honoured: "none", "required", "named". Without "named" the tool
            is offered alone and "required"; without "none" no tools are offered; without "required" it is left out.
        parallel: ``parallel_tool_calls`` may be sent.
        strict: ``strict`` of a function may be sent.
        max_tools: bound on the number of tools; 0 for none.
        call_ids: regular expression that ids of calls must match; "" for none. Another id is replaced by a stable hash.
        call_id_length: of such a hash: letters and digits.
        formats: types of ``response_format`` that are honoured. Another is asked for in words, and not enforced.
        tools_with_format: tools and a ``response_format`` may stand in one request. Otherwise the format is asked for
            in words as long as tools are offered.
        image_urls: images may be http(s) URLs, not only data URLs.
        null_content: the content of an assistant's message that only calls may be null; otherwise it is left out.
        bridge: text of an assistant's message that is put between a tool's output and a user's message; "" for none.
        ask_usage: ``stream_options.include_usage`` may be sent.
        cached_paths: where usage (or ``timings``) has the reused tokens of the prompt; the first that is there counts.
        reasoning_paths: where usage has the reasoning tokens.
        reasoning_in_completion: ``completion_tokens`` counts reasoning too.
        truncates: it cuts a prompt that is too long without a word, and then counts only what it kept.
        cache_field: name of the prompt cache key; "" because an unknown field is an error on strict servers.
        cache_header: header that carries the same, for servers or routers that keep a conversation in one place.
        extra_body: fields that every request has.
        drop_params: fields that no request has, because they are refused.
        hints: fields that are left out from then on once the server has refused them by name.
        gzip: request bodies may be compressed.
        errors: its own ways to say what is wrong.
    """

    name: str = "unknown"
    developer_role: Literal["system", "developer"] = "system"
    system_messages: Literal["many", "merge_first"] = "merge_first"
    max_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    effort_field: str = "reasoning_effort"
    efforts: Mapping[str, Any] = field(factory=GENTLER_EFFORTS.copy)
    reasoning_fields: tuple[str, ...] = ("reasoning_content", "reasoning", "reasoning_text")
    reasoning_in: str = "same"
    reasoning_scope: Literal["tool_loop", "always"] = "tool_loop"
    think_tags: bool = True
    tools_with_reasoning: Literal["ok", "if_not_asked", "never"] = "ok"
    tool_choices: tuple[Literal["none", "required", "named"], ...] = ("none", "required")
    parallel: bool = True
    strict: bool = False
    max_tools: int = 0
    call_ids: str = ""
    call_id_length: int = 9
    formats: tuple[Literal["json_object", "json_schema"], ...] = ("json_object", "json_schema")
    tools_with_format: bool = True
    image_urls: bool = True
    null_content: bool = True
    bridge: str = ""
    ask_usage: bool = True
    cached_paths: tuple[str, ...] = (
        "prompt_tokens_details.cached_tokens",
        "prompt_cache_hit_tokens",
        "cached_tokens",
        "timings.cache_n",
    )
    reasoning_paths: tuple[str, ...] = ("completion_tokens_details.reasoning_tokens", "reasoning_tokens")
    reasoning_in_completion: bool = True
    truncates: bool = False
    cache_field: str = ""
    cache_header: str = ""
    extra_body: Mapping[str, Any] = field(factory=dict)
    drop_params: tuple[str, ...] = ()
    hints: tuple[str, ...] = ("stream_options", "reasoning_effort", "parallel_tool_calls")
    gzip: bool = False
    errors: tuple[ErrorRule, ...] = ()


DEFAULT = Dialect()
