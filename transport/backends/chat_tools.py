"""Tools as a chat-completions server takes them: every kind as a function, under a name that finds its way back."""

import re
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

import orjson
from attrs import field, frozen

from turntape.core.tools import Tool, ToolChoice

from .base import BackendError
from .chat_dialect import Dialect

MAX_NAME = 64  # OpenAI and Groq: [A-Za-z0-9_-]{1,64}
_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")


@frozen
class ToolKey:
    """What a client calls a tool."""

    name: str
    namespace: str | None = None
    custom: bool = False


@frozen
class ToolNames:
    """Names on the wire to the server, one to one with the client's. It only grows: a name once given stays."""

    wire: dict[ToolKey, str] = field(factory=dict)
    keys: dict[str, ToolKey] = field(factory=dict)

    def including(self, wanted: Iterable[ToolKey]) -> "ToolNames":
        """These names and one for each of ``wanted``; itself if it has them all.

        A tool in a namespace keeps its short name where that is unique, and is NAMESPACE__NAME where it is not.
        """
        new = [key for key in dict.fromkeys(wanted) if key not in self.wire]
        if not new:
            return self
        wire, keys = dict(self.wire), dict(self.keys)
        short = [key.name for key in new]
        for key in sorted(new, key=lambda key: key.namespace is not None):  # stable: plain names come first
            name = key.name
            if key.namespace is not None and (short.count(name) > 1 or name in keys):
                name = f"{key.namespace}__{name}"
            name = _unused(name, key, keys)
            wire[key], keys[name] = name, key
        return ToolNames(wire, keys)

    def of_call(self, key: ToolKey) -> str | None:
        """The name for a call in the history, or None if it needs a new one.

        Clients drop a namespace and change a tool's kind; what the server calls by that name is then meant.
        """
        return self.wire.get(key) or (key.name if key.name in self.keys else None)

    def key(self, name: str) -> ToolKey:
        """Whose name it is; one that was never given counts as a function of that name."""
        return self.keys.get(name) or ToolKey(name)


def _unused(name: str, key: ToolKey, taken: dict[str, ToolKey]) -> str:
    """``name`` if the rule allows it and nobody has it; otherwise as much of it as fits and a hash of its owner."""
    fitting = _FOREIGN.sub("_", name)
    if fitting == name and 0 < len(name) <= MAX_NAME and name not in taken:
        return name
    for salt in range(len(taken) + 2):
        owner = f"{salt}\0{key.namespace}\0{key.name}\0{key.custom}".encode("utf-8", "surrogatepass")
        suffix = "_" + blake2b(owner, digest_size=4).hexdigest()
        candidate = fitting[: MAX_NAME - len(suffix)] + suffix
        if candidate not in taken:
            return candidate
    raise AssertionError("more names taken than given")


def key_of(tool: Tool) -> ToolKey:
    return ToolKey(tool.name, tool.namespace, tool.custom)


@frozen
class Offer:
    """The tools of one request, rendered.

    Attributes:
        tools: what was offered; a request that offers the same needs no rendering.
        encoded: value of the field ``tools``, one encoded function per tool.
    """

    tools: tuple[Tool, ...] = ()
    names: ToolNames = ToolNames()
    encoded: tuple[bytes, ...] = ()

    def renewed(self, tools: tuple[Tool, ...], dialect: Dialect) -> "Offer":
        """The offer of ``tools`` to a conversation that was offered this one before."""
        if tools == self.tools:
            return self
        unique = tuple({key_of(tool): tool for tool in tools}.values())  # the last definition of a name holds
        names = self.names.including(map(key_of, unique))
        return Offer(tools, names, tuple(orjson.dumps(_function(tool, names, dialect)) for tool in unique))

    def named(self, names: ToolNames) -> "Offer":
        """The same with more names, which the conversation's own calls needed."""
        return self if names is self.names else Offer(self.tools, names, self.encoded)


def request_fields(offer: Offer, choice: ToolChoice, dialect: Dialect, parallel: bool | None) -> bytes:
    """``tools`` and the fields about them, each with a comma before it; b"" when there are no tools.

    What every server does anyway ("auto", parallel calls) is left out: strict ones refuse fields they do not know.

    Args:
        parallel: ``parallel_tool_calls`` as the client wrote it.

    Raises:
        BackendError: more tools than the server takes.
    """
    if not offer.encoded:
        return b""
    unique = list({key_of(tool): tool for tool in offer.tools}.values())
    only: Sequence[int] = range(len(unique))
    mode: Any = choice.mode
    if choice.only is not None:
        named = [n for n in only if unique[n].name in choice.only]
        if not named:
            mode = "none"
        elif "named" in dialect.tool_choices and mode == "required" and len(named) == 1:
            mode = {"type": "function", "function": {"name": offer.names.wire[key_of(unique[named[0]])]}}
        else:
            only = named
    if mode == "none" and "none" not in dialect.tool_choices:
        return b""
    if dialect.max_tools and len(only) > dialect.max_tools:
        raise BackendError(
            f"The request offers {len(only)} tools, and the backend takes no more than {dialect.max_tools}. "
            "Offer fewer, or choose among them with 'tool_choice' of type 'allowed_tools'.",
            code="invalid_prompt",
            status=400,
            param="tools",
        )
    fields = b',"tools":[' + b",".join(offer.encoded[n] for n in only) + b"]"
    if (isinstance(mode, dict) or mode in dialect.tool_choices) and "tool_choice" not in dialect.drop_params:
        fields += b',"tool_choice":' + orjson.dumps(mode)
    if parallel is False and dialect.parallel and "parallel_tool_calls" not in dialect.drop_params:
        fields += b',"parallel_tool_calls":false'
    return fields


def _function(tool: Tool, names: ToolNames, dialect: Dialect) -> dict[str, Any]:
    function: dict[str, Any] = {"name": names.wire[key_of(tool)]}
    description = _custom_description(tool) if tool.custom else tool.description
    if description:
        function["description"] = description
    if tool.custom:
        function["parameters"] = {
            "type": "object",
            "properties": {"input": {"type": "string", "description": "The tool's whole input, as free text."}},
            "required": ["input"],
            "additionalProperties": False,
        }
    else:
        function["parameters"] = tool.parameters or {"type": "object", "properties": {}}
        if dialect.strict and tool.strict is not None:
            function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _custom_description(tool: Tool) -> str:
    """The description, and the grammar in words: a function's schema cannot say it."""
    grammar = tool.format or {}
    parts = [tool.description or ""]
    if grammar.get("type") == "grammar":
        syntax, definition = grammar.get("syntax", "lark"), grammar.get("definition", "")
        parts.append(f"The text of `input` must match this {syntax} grammar:\n\n{definition}")
    return "\n\n".join(part for part in parts if part)
