"""A server that takes token ids, for tests: vLLM, SGLang or llama.cpp by its routes, gpt-oss by what it says.

As a program, ``python tests/token_server.py PORT [KIND]`` serves the lab script on loopback and prints ``READY PORT``.
"""

import itertools
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import chat_server
import h11
import orjson
import trio
from attrs import define, evolve, field
from chat_server import DONE, ChatServer, Reply, Step, refusing, sse

from turntape.core.harmony import CALL, CHANNEL, CONSTRAIN, END, END_OF_TEXT, MESSAGE, RETURN, START
from turntape.transport.tokenizers import Vocabulary, read_harmony

MARKS = {
    "<|start|>": START,
    "<|channel|>": CHANNEL,
    "<|message|>": MESSAGE,
    "<|constrain|>": CONSTRAIN,
    "<|end|>": END,
    "<|call|>": CALL,
    "<|return|>": RETURN,
    "<|endoftext|>": END_OF_TEXT,
}
NAMES = {token: mark for mark, token in MARKS.items()}
KINDS = ("vllm", "sglang", "llamacpp")


@cache
def vocabulary() -> Vocabulary:
    return read_harmony()


def with_progress(request: dict[str, Any], reply: Reply) -> Reply:
    """llama.cpp's answer, with what it says of a prefill if that was asked for: a token that nobody sampled is in it."""
    if not request.get("return_progress") or reply.status != 200:
        return reply
    progress = {"total": 9, "cache": 0, "processed": 9, "time_ms": 1}
    said = sse({"content": "", "tokens": [0], "stop": False, "prompt_progress": progress})
    return evolve(reply, steps=itertools.chain([said], reply.steps))


def marked(text: str) -> list[int]:
    """Ids of text that is written with its markers."""
    ids: list[int] = []
    for part in re.split("(" + "|".join(map(re.escape, MARKS)) + ")", text):
        ids += [MARKS[part]] if part in MARKS else vocabulary().encode(part)
    return ids


def shown(ids: Sequence[int]) -> str:
    """The reverse of ``marked``."""
    parts: list[str] = []
    run: list[int] = []
    for token in [*ids, START]:
        if token in NAMES:
            parts += [vocabulary().decode(run).decode(), NAMES[token]]
            run = []
        else:
            run.append(token)
    return "".join(parts[:-1])


# --- what gpt-oss says -------------------------------------------------------------------------------------


def thinking(text: str) -> str:
    return f"<|channel|>analysis<|message|>{text}<|end|><|start|>assistant"


def saying(text: str) -> str:
    return f"<|channel|>final<|message|>{text}<|return|>"


def calling(name: str, arguments: str) -> str:
    return f" to=functions.{name}<|channel|>commentary <|constrain|>json<|message|>{arguments}<|call|>"


def instance(schema: dict[str, Any]) -> Any:
    """Something that matches a schema."""
    if "const" in schema:
        return schema["const"]
    if "anyOf" in schema:
        return instance(schema["anyOf"][0])
    match schema.get("type"):
        case "object":
            return {name: instance(each) for name, each in schema.get("properties", {}).items()}
        case "integer":
            return 7
        case "array":
            return []
    return "x"


def resumed(prompt: str, schema: dict[str, Any] | None) -> str | None:
    """What the model says where its answer was begun for it; None where it was not."""
    begun = prompt.rpartition("<|start|>")[2]
    if begun == "assistant":
        return None
    end = "<|call|>" if " to=functions" in begun else "<|return|>"
    if schema is not None:
        return orjson.dumps(instance(schema)).decode() + end
    if begun.endswith("<|message|>"):
        return "Without a tool, then." + end
    if begun.endswith(" to=functions"):
        name = re.findall(r"^type (\S+) =", prompt, re.MULTILINE)[-1]
        return f".{name}<|channel|>commentary <|constrain|>json<|message|>" + "{}<|call|>"
    return None


def lab(prompt: str, schema: dict[str, Any] | None) -> str:
    """The lab script of the chat server, in harmony: one call for each sample."""
    if (begun := resumed(prompt, schema)) is not None:
        return begun
    messages: list[dict[str, Any]] = []
    for message in prompt.split("<|start|>")[1:-1]:
        header, _, text = message.partition("<|message|>")
        author = re.match(r"[a-z]+", header)
        role = "tool" if header.startswith("functions.") else author[0] if author else "user"
        messages.append({"role": role, "content": text.removesuffix("<|end|>")})
    tools = [
        {
            "function": {
                "name": name,
                "parameters": {"properties": dict.fromkeys(re.findall(r"^(\w+)\??:", shape, re.MULTILINE))},
            }
        }
        for name, shape in re.findall(
            r"^type (\S+) = \((?:_: \{\n(.*?)\})?\) => any;", prompt, re.MULTILINE | re.DOTALL
        )
    ]
    reasons, calls, said = chat_server._plan({"messages": messages, "tools": tools})
    text = thinking("The user wants the lab steps.") if reasons else ""
    return text + (calling(calls[0][0], orjson.dumps(calls[0][1]).decode()) if calls else saying(said))


# --- how servers say it ------------------------------------------------------------------------------------


def vllm(ids: list[int], text: str = "", reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "token_ids": ids, "finish_reason": reason}]}


@define(eq=False)
class Voice:
    """Puts ids into the words of a kind of server, one chunk after another.

    Attributes:
        cached: tokens of the prompt that the server says it had.
    """

    kind: str
    n_prompt: int
    cached: int = 0
    so_far: list[int] = field(factory=list)
    incremental: bool = False

    def chunk(self, ids: Sequence[int]) -> bytes:
        self.so_far += ids
        text = shown(ids) if all(token in NAMES for token in ids) else ""
        match self.kind:
            case "vllm":
                return sse(vllm([*ids], text))
            case "sglang":
                return sse(self._sglang(ids, None))
        return sse({"content": text, "tokens": [*ids], "stop": False})

    def end(self, reason: str = "stop", counts: tuple[int, int, int] | None = None) -> bytes:
        """Args: counts: of prompt, cached and sampled tokens, if not those that were seen."""
        n_input, n_cached, n_output = counts or (self.n_prompt, self.cached, len(self.so_far))
        match self.kind:
            case "vllm":
                details = {"prompt_tokens_details": {"cached_tokens": n_cached}}
                usage = {"prompt_tokens": n_input, "completion_tokens": n_output, **details}
                return sse(vllm([], "", reason), {"choices": [], "usage": usage}) + DONE
            case "sglang":
                finish = {"type": reason, "matched": self.so_far[-1]} if reason == "stop" else {"type": reason}
                return sse(self._sglang([], finish, (n_input, n_cached, n_output))) + DONE
        timings = {"cache_n": n_cached, "prompt_n": n_input - n_cached, "predicted_n": n_output}
        stop_type = "limit" if reason == "length" else "eos"
        return sse({"content": "", "tokens": [], "stop": True, "stop_type": stop_type, "timings": timings})

    def _sglang(
        self, new: Sequence[int], finish: dict[str, Any] | None, counts: tuple[int, int, int] | None = None
    ) -> dict[str, Any]:
        n_input, n_cached, n_output = counts or (self.n_prompt, self.cached, len(self.so_far))
        meta = {"prompt_tokens": n_input, "cached_tokens": n_cached, "completion_tokens": n_output}
        ids = [*new] if self.incremental else [*self.so_far]
        return {"text": "", "output_ids": ids, "meta_info": {**meta, "finish_reason": finish}}


Model = Callable[[str, dict[str, Any] | None], str]
"""From a prompt, shown with its markers, and a schema, to what is sampled, with its markers."""


@define(eq=False)
class TokenServer(ChatServer):
    """Serves one kind's routes. Prompts are cached as the real servers do it: by their longest known beginning.

    Attributes:
        root: the model's name upstream.
        encode: from what the model says to ids; ``decode`` from ids to what it is shown.
        prompts: ids of each prompt, in the order of arrival.
        schemas: what each was bound to, or None.
        bodies: each request as it came, from vLLM's and SGLang's routes.
        n_cached: how much of each was known.
    """

    kind: str = "vllm"
    model: Model = lab
    play: Callable[[str, dict[str, Any] | None, Voice], Reply] | None = None
    root: str = "openai/gpt-oss-20b"
    encode: Callable[[str], list[int]] = marked
    decode: Callable[[Sequence[int]], str] = shown
    bodies: list[dict[str, Any]] = field(factory=list)
    prompts: list[list[int]] = field(factory=list)
    schemas: list[dict[str, Any] | None] = field(factory=list)
    n_cached: list[int] = field(factory=list)
    _known: list[list[int]] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.script = self._route

    async def _request(self, http: h11.Connection, stream: trio.abc.Stream) -> tuple[h11.Request, bytes] | None:
        request = await super()._request(http, stream)
        return request and (request[0], request[1] or b"{}")

    def _route(self, request: dict[str, Any]) -> Reply:
        json = (("content-type", "application/json"),)
        match self.kind, self.paths[-1]:
            case "vllm", "/version":
                return Reply([orjson.dumps({"version": "0.33.0"})], headers=json)
            case "vllm", "/v1/models":
                return Reply([orjson.dumps({"data": [{"id": "m", "root": self.root}]})], headers=json)
            case "vllm", "/v1/completions":
                self.bodies.append(request)
                return self._sample(request["prompt"], request.get("structured_outputs", {}).get("json"))
            case "sglang", "/get_model_info":
                return Reply([orjson.dumps({"model_path": self.root})], headers=json)
            case "sglang", "/generate":
                self.bodies.append(request)
                schema = request["sampling_params"].get("json_schema")
                return self._sample(request["input_ids"], schema and orjson.loads(schema))
            case "llamacpp", "/props":
                template = "{{ '<|start|>assistant<|channel|>analysis' }}"
                return Reply([orjson.dumps({"chat_template": template, "model_path": "m.gguf"})], headers=json)
            case "llamacpp", "/completion":
                return with_progress(request, self._sample(request["prompt"], request.get("json_schema")))
        return refusing(404, {"detail": "Not Found"})(request)

    def _sample(self, prompt: list[int], schema: dict[str, Any] | None) -> Reply:
        cached = max((_common(prompt, known) for known in self._known), default=0)
        self.prompts.append(prompt)
        self.schemas.append(schema)
        self.n_cached.append(cached)
        voice = Voice(self.kind, len(prompt), cached)
        if self.play is not None:
            return self.play(self.decode(prompt), schema, voice)
        ids = self.encode(self.model(self.decode(prompt), schema))
        self._known = [*self._known[-7:], prompt + ids[:-1]]  # the last one is sampled and not read
        return Reply(_steps(ids, voice))


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    n = min(len(a), len(b))
    return next((at for at in range(n) if a[at] != b[at]), n)


def _steps(ids: list[int], voice: Voice) -> Iterator[Step]:
    for at in range(0, len(ids), 3):
        yield voice.chunk(ids[at : at + 3])
    yield voice.end()


async def main(port: int, kind: str) -> None:
    vocabulary()
    async with trio.open_nursery() as nursery:
        print(f"READY {await TokenServer(nursery, kind=kind).listen(port)}", flush=True)


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "vllm")
