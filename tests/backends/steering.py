"""What makes a real model say the words of a script: fields of a request to llama.cpp that leave it nothing else to say.

The model samples each token itself, and the server streams, counts and ends the answer as it does for anybody.
"""

from collections.abc import Sequence
from typing import Any

import orjson
from backends.rig import Call, Cut, End, Fail, Hang, Overflow, Say, Step, Think, Turn, ended

CALL = "<tool_call>\n"
"""How this template's calls begin."""

MAX_FREE_TOKENS = 80
"""Of an answer whose words are the model's own."""

Body = dict[str, Any]


def is_steered(path: str) -> bool:
    """Whether a POST there asks for an answer."""
    return path.endswith(("/chat/completions", "/completion"))


def text_of(turn: Turn) -> str:
    """The turn as the model writes it."""
    return "".join(map(_written, turn))


def _written(step: Step) -> str:
    match step:
        case Say(text):
            return text
        case Think(text):
            return f"<think>\n{text}</think>\n\n"
        case Call(name, arguments):
            close = "}\n</tool_call>" if arguments.endswith("}") else ""  # a broken call ends nowhere
            return f'{CALL}{{"name": "{name}", "arguments": {_arguments(step)}{close}'
    return ""


def _arguments(call: Call) -> str:
    return orjson.dumps({"input": call.arguments}).decode() if call.custom else call.arguments


def steered(body: Body, turn: Turn, *, n_ctx: int, eos: int, ids: Sequence[int]) -> Body:
    """``body``, and what makes the model say ``turn``.

    Where the request itself binds the answer (a format, a required call) that alone is left to bind it.

    Args:
        n_ctx: the server's window, in tokens.
        eos: the token that ends an answer.
        ids: the tokens of ``text_of(turn)``.
    """
    limit = "max_tokens" if "messages" in body else "n_predict"
    body = {**body, "temperature": 0, "seed": 7, limit: MAX_FREE_TOKENS}
    if isinstance(turn[0], Overflow):
        return _too_long(body, n_ctx)
    if "json_schema" in body or "response_format" in body:
        return body
    tools = body.get("tools", ())
    if tools and body.get("tool_choice") == "required":
        return _begun(body)
    match turn:
        case [Call() as call] if tools and body.get("tool_choice") != "none":
            return _called(body, call, eos)
    match ended(turn)[-1]:
        case End("stop"):
            body[limit] = n_ctx
            rules = f"root ::= {_literal(text_of(turn))}"
        case End("length"):
            body[limit] = len(ids)
            body["logit_bias"] = [[token, 50] for token in ids]  # else it may spell them in more
            rules = f'root ::= {_literal(text_of(turn))} " and so on"'
        case Hang() | Cut() | Fail():
            body[limit] = n_ctx
            rules = f'root ::= {_literal(text_of(turn))} more\nmore ::= " on" more'
        case last:
            raise AssertionError(f"a real model cannot be made to {last}")
    if tools:
        body["tool_choice"] = "none"  # llama.cpp takes no grammar beside tools that may be called; they are shown still
    return {**body, "grammar": rules}


def _literal(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _too_long(body: Body, n_ctx: int) -> Body:
    if "prompt" in body:
        return {**body, "prompt": body["prompt"] * (n_ctx // len(body["prompt"]) + 1)}
    return {**body, "messages": [*body["messages"], {"role": "user", "content": "word " * n_ctx}]}


def _begun(body: Body) -> Body:
    """The call is begun; which it is, of those that are allowed, is between the model and the server."""
    return {**body, "messages": [*body["messages"], {"role": "assistant", "content": CALL}]}


def _called(body: Body, call: Call, eos: int) -> Body:
    """Required, of one tool, with one value for its arguments, and over after that."""
    [tool] = [tool for tool in body["tools"] if tool["function"]["name"].rpartition("__")[2] == call.name]
    only = {"const": orjson.loads(_arguments(call))}
    narrowed = {**tool, "function": {**tool["function"], "parameters": only}}
    return {**_begun(body), "tools": [narrowed], "tool_choice": "required", "logit_bias": [[eos, 100]]}
