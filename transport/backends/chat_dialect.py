"""How one chat-completions server differs from another, as data: a ``Dialect`` is a row, and code asks the row."""

from collections.abc import Mapping

from attrs import field, frozen

GENTLER_EFFORTS = {"minimal": "low", "xhigh": "high", "max": "high", "ultra": "high"}
"""Levels that many servers refuse, as the nearest one that all of them know."""


@frozen
class Dialect:
    """What may be sent to a server and under which name. The defaults suit one that nothing is known about.

    Attributes:
        developer_role: the role that developer messages get. "system" is understood everywhere.
        max_field: name of the bound on output tokens. Ollama ignores "max_completion_tokens" without a word.
        effort_field: name of the reasoning effort; None to leave it out.
        efforts: other names for effort levels; one that is not listed is sent as it is.
        reasoning_fields: names under which reasoning text may come, in order of preference.
        reasoning_in: name under which reasoning goes back in history; "" for the one that the server itself used,
            which is the one it knows (Cerebras refuses another); None for never.
        reasoning_scope: "tool_loop" sends it with messages that hold tool calls, as gpt-oss templates want it;
            "always" with every assistant message.
        named_choice: a tool can be named in ``tool_choice``. Otherwise it is offered alone and "required", which
            servers that know only strings (llama.cpp, LM Studio) and those that ignore the field honour too.
        parallel: ``parallel_tool_calls`` may be sent.
        strict: ``strict`` of a function may be sent.
        ask_usage: ``stream_options.include_usage`` may be sent.
        cache_field: name of the prompt cache key; None because an unknown field is an error on strict servers.
    """

    name: str = "default"
    developer_role: str = "system"
    max_field: str = "max_tokens"
    effort_field: str | None = "reasoning_effort"
    efforts: Mapping[str, str] = field(factory=GENTLER_EFFORTS.copy)
    reasoning_fields: tuple[str, ...] = ("reasoning_content", "reasoning", "reasoning_text")
    reasoning_in: str | None = ""
    reasoning_scope: str = "tool_loop"
    named_choice: bool = False
    parallel: bool = True
    strict: bool = False
    ask_usage: bool = True
    cache_field: str | None = None


DEFAULT = Dialect()
