"""Tools for a model whose template knows none: told in words, called between marks, and held to their schemas by a grammar.

The marks and the shape of a call are those of Hermes, which many models have seen in training::

    <tool_call>{"name":"NAME","arguments":{...}}</tool_call>

llama.cpp samples under a grammar (LLGuidance's Lark), so that what stands between the marks is a call to a tool that
was offered, with arguments that match its schema.
"""

from collections.abc import Iterable
from typing import Any

import orjson
from attrs import frozen

from turntape.core.tools import ToolChoice

from .chat_tools import Offer, key_of

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_OUTPUT_OPEN, _OUTPUT_CLOSE = "<tool_response>", "</tool_response>"

_INSTRUCTIONS = f"""# Tools

You can call the tools below. To call one, write a line of this form and end your message after it:
{OPEN}{{"name":"NAME","arguments":{{...}}}}{CLOSE}
The arguments are a JSON object that matches the tool's parameters. The output of the call comes in the next message,
between {_OUTPUT_OPEN} and {_OUTPUT_CLOSE}.
"""


# --- the prompt -----------------------------------------------------------------------------------------


def in_words(offer: Offer) -> str:
    """The tools as part of a system message."""
    return _INSTRUCTIONS + "".join(f"\n{encoded.decode()}" for encoded in offer.encoded)


def without_tools(messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Chat messages in which calls and outputs are text, as the model writes and is told them.

    Messages of users that follow each other are joined, since templates without tools often insist on turns.
    """
    out: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for message in messages:
        role, content = message["role"], message.get("content")
        if calls := message.get("tool_calls"):
            names.update((call["id"], call["function"]["name"]) for call in calls)
            content = _with_calls(content or "", [call["function"] for call in calls])
        elif role == "tool":
            role = "user"
            name = names.get(message["tool_call_id"], "")
            content = f"{_OUTPUT_OPEN}\n{name}: {content}\n{_OUTPUT_CLOSE}"
        if role == "user" and out and out[-1]["role"] == "user":
            before = out[-1]["content"]
            if isinstance(before, str) and isinstance(content, str):
                out[-1] = {"role": role, "content": f"{before}\n\n{content}"}
                continue
        out.append({"role": role, "content": content})
    return out


def _with_calls(content: str, functions: list[dict[str, Any]]) -> str:
    if content and not content[-1].isspace():
        content += "\n"
    return content + "\n".join(
        f'{OPEN}{{"name":{orjson.dumps(function["name"]).decode()},"arguments":{function["arguments"]}}}{CLOSE}'
        for function in functions
    )


# --- the grammar ----------------------------------------------------------------------------------------


@frozen
class Rules:
    """What the answer must look like.

    Attributes:
        grammar: for llama.cpp; "" for free text.
        begins: what an answer under the grammar begins with, if that is known.
        reads_calls: calls are looked for in the answer.
    """

    grammar: str = ""
    begins: str = ""
    reads_calls: bool = False


def rules(
    offer: Offer, choice: ToolChoice, format_schema: dict[str, Any] | None, *, parallel: bool, strict: bool = True
) -> Rules:
    """The rules for one sample.

    Args:
        format_schema: JSON schema of the text that is asked for, or None.
        parallel: several calls may follow each other where calling is left to the model.
        strict: arguments match the tools' schemas; otherwise they are any JSON object.
    """
    schemas = [
        (offer.names.wire[key_of(tool)], orjson.loads(encoded)["function"]["parameters"] if strict else {})
        for tool, encoded in zip({key_of(tool): tool for tool in offer.tools}.values(), offer.encoded, strict=True)
        if choice.only is None or tool.name in choice.only
    ]
    answer = None if format_schema is None else f"%json {_compact(format_schema)}"
    if not schemas or choice.mode == "none":
        if answer is not None:
            return Rules(_lark([f"start: {answer}"]))
        if not offer.encoded:
            return Rules()
        return Rules(_lark(["start: TEXT", rf"TEXT: /(.|\n)*/ & ~/(.|\n)*{OPEN}(.|\n)*/"]))
    calls = [
        f"call{n}: {_quoted(_opening(name))} %json {_compact(_closed(schema))} {_quoted('}')}"
        for n, (name, schema) in enumerate(schemas)
    ]
    calls.append("one: " + " | ".join(f"call{n}" for n in range(len(schemas))))
    calls.append(f"call: {_quoted(OPEN)} one {_quoted(CLOSE)}")
    if choice.mode == "required":
        return Rules(_lark(["start: call", *calls]), OPEN, True)
    more = " more*" if parallel else ""
    calls.append(r"more: /\n?/ call")
    if answer is not None:
        return Rules(_lark([f"start: call{more} | answer", f"answer: {answer}", *calls]), "", True)
    free = [f"start: first{more} | TEXT", r"TEXT: /(.|\n)*/", f"first: said one {_quoted(CLOSE)}"]
    return Rules(_lark([*free, rf"said[lazy]: /(.|\n)*{OPEN}/", *calls]), "", True)


def _lark(lines: list[str]) -> str:
    return "\n".join(["%llguidance {}", *lines, ""])


def _opening(name: str) -> str:
    return f'{{"name":{orjson.dumps(name).decode()},"arguments":'


def _quoted(text: str) -> str:
    return orjson.dumps(text).decode()


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object that invents no properties, where the tool does not say."""
    closed = {"additionalProperties": False} if schema.get("properties") else {}
    return {"type": "object", **closed, **schema}


def _compact(schema: dict[str, Any]) -> str:
    """The schema, for JSON without blanks: small models like to fill their window with them."""
    return orjson.dumps({**schema, "x-guidance": {"whitespace_flexible": False}}).decode()
