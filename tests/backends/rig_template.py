"""A llama.cpp with a chat template, played: what it serves, and the tokens backend before it as a rig."""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import orjson
import trio
from backends.rig import Asked, Call, End, Fail, Say, Think, Turn, Turns, ended, pieces
from backends.rig_served import ServedRig, client_of, trouble
from chat_server import ChatServer, Reply, Script, sse
from chat_server import Step as ServerStep
from h11 import Connection, Request
from token_server import instance, with_progress

from turntape.transport.backends.base import Backend
from turntape.transport.backends.tokens import TokensBackend

EOS = 999


class LlamaCpp(ChatServer):
    """A llama.cpp whose tokens are bytes, and whose template is a function."""

    def __init__(self, nursery: trio.Nursery, play: Script, template: Callable[[list[dict[str, Any]]], str]) -> None:
        super().__init__(nursery, self.route)
        self.play, self.template = play, template
        self.prompts: list[list[int]] = []
        self.bodies: list[dict[str, Any]] = []
        self.tokenized: list[str] = []

    async def _request(self, http: Connection, stream: trio.abc.Stream) -> tuple[Request, bytes] | None:
        request = await super()._request(http, stream)
        return request and (request[0], request[1] or b"{}")

    def route(self, request: dict[str, Any]) -> Reply:
        match self.paths[-1]:
            case "/props":
                answer: dict[str, Any] = {"chat_template": "{% if tools %}", "model_path": "qwen.gguf"}
            case "/apply-template":
                answer = {"prompt": self.template(request["messages"])}
            case "/tokenize":
                self.tokenized.append(request["content"])
                answer = {"tokens": [*request["content"].encode()]}
            case "/completion":
                self.prompts.append(request["prompt"])
                self.bodies.append(request)
                return with_progress(request, self.play(request))
            case _:
                raise AssertionError(self.paths[-1])
        return Reply([orjson.dumps(answer)], headers=(("content-type", "application/json"),))


def said(text: str) -> bytes:
    return sse({"content": text, "tokens": [*text.encode()], "stop": False})


def over(stop_type: str = "eos", counts: tuple[int, int, int] = (9, 0, 3)) -> bytes:
    """The end of sampling, with the tokens of the prompt, of its cached part, and of the answer."""
    n_input, n_cached, n_output = counts
    timings = {"cache_n": n_cached, "prompt_n": n_input - n_cached, "predicted_n": n_output}
    end = sse({"content": "", "tokens": [EOS], "stop": False}) if stop_type == "eos" else b""
    return end + sse({"content": "", "tokens": [], "stop": True, "stop_type": stop_type, "timings": timings})


def spoken(text: str) -> Iterator[bytes]:
    yield from map(said, pieces(text, len(text) // 3 + 1))
    yield over()


def plain(messages: list[dict[str, Any]]) -> str:
    """A template that lets prompts grow."""
    parts: list[str] = []
    for message in messages:
        content = message.get("content") or ""
        for call in message.get("tool_calls") or ():
            function = call["function"]
            content += f'<tool_call>{{"name": "{function["name"]}", "arguments": {function["arguments"]}}}</tool_call>'
        parts.append(f"[{message['role']}]{content}[end]")
    return "".join([*parts, "[assistant]"])


def _steps(turn: Turn) -> Iterator[ServerStep]:
    for step in ended(turn):
        match step:
            case Say(text, n):
                yield from map(said, pieces(text, n))
            case Think(text, n):
                yield from map(said, ["<think>\n", *pieces(text, n), "</think>\n\n"])
            case Call(name, arguments, _, _, custom, n):
                arguments = orjson.dumps({"input": arguments}).decode() if custom else arguments
                close = "}</tool_call>" if arguments.endswith("}") else ""  # a broken call ends nowhere
                yield from map(said, [f'<tool_call>{{"name": "{name}", "arguments": ', *pieces(arguments, n), close])
            case End(reason, usage):
                counts = usage and (usage.input_tokens, usage.cached_tokens, usage.output_tokens)
                yield over("limit" if reason == "length" else "eos", counts or (9, 0, 3))
            case _:
                yield trouble(step)


class TemplateRig(ServedRig):
    cannot: ClassVar[dict[str, str]] = {
        "content_filter": "llama.cpp has no filter",
        "call_ids": "models with a template give calls no ids",
    }
    overflow: ClassVar[dict[str, Any]] = {
        "code": 400,
        "message": "the request exceeds the available context size, try increasing it",
        "type": "exceed_context_size_error",
    }

    def error(self, fail: Fail) -> dict[str, Any]:
        return {"message": fail.message, "code": fail.status, "type": fail.code}

    async def begin(self, nursery: trio.Nursery, turns: Turns, asked: list[Asked]) -> tuple[ChatServer, Backend]:
        def play(request: dict[str, Any]) -> Reply:
            turn, schema = turns.take(), request.get("json_schema")
            match turn:
                case [Say(text), *_] if schema is not None and not text.startswith("{"):
                    return Reply(spoken(orjson.dumps(instance(schema)).decode()))
            return self.refusal(turn) or Reply(_steps(turn))

        server = LlamaCpp(nursery, play, plain)
        return server, TokensBackend(f"http://{self.where}/v1", key=self.key, client=client_of(server))
