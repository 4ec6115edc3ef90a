"""The tokens backend keeps the promises of every backend, behind each kind of server, and appends to prompts only."""

import itertools
from pathlib import Path
from typing import Any

import orjson
import pytest
import trio
from backends.cases import (
    ADD,
    LOOKUP,
    SCHEMA,
    Cases,
    ask,
    batches,
    calls_of,
    failure,
    finish_of,
    items_of,
    reasoning_of,
    said,
    text_of,
)
from backends.rig import End, Playing, Say, Think
from backends.rig_tokens import TokensRig
from chat_server import HANG, Reply, sse
from token_server import (
    KINDS,
    Model,
    TokenServer,
    Voice,
    calling,
    lab,
    marked,
    resumed,
    saying,
    shown,
    thinking,
    vocabulary,
)

from turntape.core.canonical import Item
from turntape.core.context import Context
from turntape.core.harmony import END, RETURN
from turntape.core.seam import Increment, Usage
from turntape.transport import tokenizers
from turntape.transport.backends import tokens_spoken
from turntape.transport.backends.tokens import TokensBackend
from turntape.transport.http_client import HttpClient
from turntape.transport.http_connections import Connections


class TokensCases(Cases):
    __test__ = False  # its heirs are run

    async def test_usage(self, clock: Any) -> None:
        """Token counts are the server's own; tokens of reasoning are counted as they come."""
        turn = [Think("Hm."), Say("Counted."), End(usage=Usage(50, 17, 30))]
        async with self.rig.playing(turn) as playing:
            usage = finish_of(await said(playing, ask())).usage
            assert usage == Usage(50, 17, 30, usage.reasoning_tokens if usage else 0)
            assert 3 < usage.reasoning_tokens < 10


class TestVllm(TokensCases):
    __test__ = True
    rig = TokensRig("vllm")


class TestSglang(TokensCases):
    __test__ = True
    rig = TokensRig("sglang")


class TestLlamaCpp(TokensCases):
    __test__ = True
    rig = TokensRig("llamacpp")


# --- what only a backend of token ids can promise -----------------------------------------------------------


class Agent:
    """An agent on this backend: each turn goes on from the context of the one before, as the session does it."""

    def __init__(self, kind: str, nursery: trio.Nursery, model: Model = lab) -> None:
        self.server = TokenServer(nursery, kind=kind, model=model)
        client = HttpClient(Connections(connect=self.server.connect))
        ids = (f"call_{n}" for n in itertools.count())
        self.backend = TokensBackend(
            "http://tokens.test", client=client, tokenizer=vocabulary(), new_call_id=lambda: next(ids)
        )
        self.context = Context()

    async def turn(self, *items: dict[str, Any], **fields: Any) -> list[Increment]:
        """The model's answer to ``items``; what was said is in the context afterwards."""
        start = ask(list(items), context=self.context, **fields)
        heard = [i for batch in await batches(Playing(self.backend), start) for i in batch]
        said_items = items_of(heard, "")
        kept = [item for item in said_items if not item["type"].endswith("_output")]
        self.context = start.context.extend(map(Item.of, kept))
        return heard


def user(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text}


def output(heard: list[Increment], text: str) -> dict[str, Any]:
    [(call, _)] = calls_of(heard)
    return {"type": "function_call_output", "call_id": call.call_id, "output": text}


def looping(n_turns: int) -> Model:
    """Thinks and calls a tool in each of ``n_turns`` turns, then answers."""

    def model(prompt: str, schema: dict[str, Any] | None) -> str:
        n = prompt.count("<|start|>functions.")
        if n >= n_turns:
            return thinking("That is all.") + saying("Done.")
        return thinking(f"Step {n} of it.") + calling("lookup", f'{{"key": "k{n}"}}')

    return model


@pytest.mark.parametrize("kind", KINDS)
async def test_a_loop_of_30_turns_encodes_each_token_once_and_prefills_the_suffix(kind: str) -> None:
    """Each turn encodes the tool's output and nothing else, and the server reads that and at most 2 tokens more."""
    async with trio.open_nursery() as nursery:
        agent = Agent(kind, nursery, looping(30))
        fields: dict[str, Any] = {"tools": [LOOKUP], "instructions": "Look things up. " * 50}
        heard = await agent.turn(user("Go."), **fields)
        encoded, sent = [agent.backend.n_encoded], 0
        words = sum(len(marked(word)) for word in ("functions.lookup", " to=assistant", "commentary"))  # encoded once
        for n in range(30):
            text = f"value {n} " * 20
            n_text = len(vocabulary().encode(text))
            heard = await agent.turn(output(heard, text), **fields)
            encoded.append(agent.backend.n_encoded)
            assert encoded[-1] - encoded[-2] == n_text + (words if n == 0 else 0)
            new = n_text + len(marked("<|start|>functions.lookup to=assistant<|channel|>commentary<|message|><|end|>"))
            prompt = agent.server.prompts[-1]
            assert len(prompt) - agent.server.n_cached[-1] <= new + len(marked("<|start|>assistant")) + 2
            sent += len(prompt)
            usage = finish_of(heard).usage
            assert usage is not None
            assert (usage.input_tokens, usage.cached_tokens) == (len(prompt), agent.server.n_cached[-1])
        assert text_of(heard) == "Done."
        assert sent > 10 * encoded[-1]
        nursery.cancel_scope.cancel()


async def test_reasoning_goes_when_its_turn_has_ended() -> None:
    """A tool loop reads its own reasoning; after the answer it is gone, and stays gone."""
    async with trio.open_nursery() as nursery:
        agent = Agent("vllm", nursery, looping(1))
        heard = await agent.turn(user("Go."), tools=[LOOKUP])
        await agent.turn(output(heard, "v"), tools=[LOOKUP])
        assert "Step 0 of it." in shown(agent.server.prompts[-1])
        n_encoded = agent.backend.n_encoded
        await agent.turn(user("Again."), tools=[LOOKUP])
        prompt = shown(agent.server.prompts[-1])
        assert "Step 0" not in prompt
        assert "That is all." not in prompt
        assert prompt.count("Done.") == 1
        assert agent.backend.n_encoded - n_encoded == len(vocabulary().encode("Again."))
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("is_chained", [True, False], ids=["chained", "whole history"])
async def test_the_sampled_ids_stay_even_where_text_would_be_encoded_otherwise(is_chained: bool) -> None:
    """What the model wrote in unusual tokens goes back in these tokens, even if nothing links the requests."""
    letters = [token for letter in "answer" for token in vocabulary().encode(letter)]

    def play(prompt: str, schema: Any, voice: Voice) -> Reply:
        return Reply([voice.chunk([*marked("<|channel|>final<|message|>"), *letters, RETURN]), voice.end()])

    async with trio.open_nursery() as nursery:
        agent = Agent("vllm", nursery)
        agent.server.play = play
        heard = await agent.turn(user("Go."))
        assert text_of(heard) == "answer"
        if is_chained:
            await agent.turn(user("Again."))
        else:
            agent.context = Context()
            await agent.turn(user("Go."), *items_of(heard, ""), user("Again."))
        text = b",".join(b"%d" % token for token in [*letters, END])
        assert text in b",".join(b"%d" % token for token in agent.server.prompts[-1])
        nursery.cancel_scope.cancel()


async def test_a_history_from_elsewhere_is_rendered_from_its_items() -> None:
    """A conversation that this process did not sample makes the same prompt as the reference's rules."""
    async with trio.open_nursery() as nursery:
        agent = Agent("llamacpp", nursery)
        await agent.turn(
            {"type": "message", "role": "developer", "content": "Be brief.<|end|>"},
            user("Hi."),
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
            {"type": "function_call", "call_id": "c", "name": "lookup", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "v"}]},
            tools=[LOOKUP],
            reasoning={"effort": "high"},
        )
        prompt = agent.server.prompts[-1]
        assert "Reasoning: high" in shown(prompt)
        assert shown(prompt).endswith(
            "<|start|>developer<|message|># Instructions\n\nBe brief.<|end|><|end|><|start|>user<|message|>Hi.<|end|>"
            "<|start|>assistant<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.lookup<|channel|>"
            "commentary <|constrain|>json<|message|>{}<|call|><|start|>functions.lookup to=assistant<|channel|>commentary"
            "<|message|>v<|end|><|start|>assistant"
        )
        assert prompt.count(END) == 6  # the seventh is prose
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_schema_binds_the_answer_and_not_the_thinking(kind: str) -> None:
    """The model thinks freely; from the answer's first token on the server is given the schema."""
    async with trio.open_nursery() as nursery:
        agent = Agent(kind, nursery, bound)
        form = {"type": "json_schema", "name": "n", "schema": SCHEMA}
        heard = await agent.turn(user("Weather?"), text={"format": form})
        assert reasoning_of(heard) == "Sunny."
        assert orjson.loads(text_of(heard)) == {"city": "x", "degrees": 7}
        assert agent.server.schemas == [None, SCHEMA]
        assert shown(agent.server.prompts[-1]).endswith("Sunny.<|end|><|start|>assistant<|channel|>final<|message|>")
        assert agent.server.n_gone == 1  # the request that was not bound
        nursery.cancel_scope.cancel()


def bound(prompt: str, schema: dict[str, Any] | None) -> str:
    return resumed(prompt, schema) or thinking("Sunny.") + saying("It will be " + "very " * 50 + "sunny.")


async def test_a_named_tool_is_called_after_thinking_with_arguments_that_match() -> None:
    """The call is begun for the model, and its schema binds the arguments; in the history it stands as a call."""
    async with trio.open_nursery() as nursery:
        agent = Agent("vllm", nursery, bound)
        choice = {"type": "function", "name": "add"}
        heard = await agent.turn(user("Weather?"), tools=[LOOKUP, ADD], tool_choice=choice)
        assert reasoning_of(heard) == "Sunny."
        [(call, arguments)] = calls_of(heard)
        assert (call.name, orjson.loads(arguments)) == ("add", {"a": 7, "b": 7})
        await agent.turn(output(heard, "14"), tools=[LOOKUP, ADD])
        expected = (
            '<|start|>assistant to=functions.add<|channel|>commentary <|constrain|>json<|message|>{"a":7,"b":7}<|call|>'
        )
        assert expected in shown(agent.server.prompts[-1])
        nursery.cancel_scope.cancel()


async def test_incremental_ids_of_sglang() -> None:
    """SGLang with --incremental-streaming-output sends only what is new."""

    def play(prompt: str, schema: Any, voice: Voice) -> Reply:
        voice.incremental = True
        ids = marked(saying("a a a a"))
        return Reply([*(voice.chunk([token]) for token in ids), voice.end()])

    async with trio.open_nursery() as nursery:
        agent = Agent("sglang", nursery)
        agent.server.play = play
        assert text_of(await agent.turn(user("Go."))) == "a a a a"
        nursery.cancel_scope.cancel()


async def test_a_server_that_takes_no_ids_is_named() -> None:
    """A server that is none of the three is refused with what to do instead."""
    async with trio.open_nursery() as nursery:
        agent = Agent("another", nursery)
        _, error = await failure(Playing(agent.backend))
        assert "chat+URL" in str(error)
        assert "tokens.test" in str(error)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("media_type", "says"),
    [
        ("text/html", "answered with a web page; check its URL"),
        ("application/json", "answered with application/json, in which there is no event"),
    ],
)
async def test_an_answer_that_is_no_stream_is_named_by_what_came(media_type: str, says: str) -> None:
    """What stands at the URL may answer everything with 200."""
    async with trio.open_nursery() as nursery:
        agent = Agent("vllm", nursery)
        agent.server.play = lambda prompt, schema, voice: Reply([b"{}"], headers=[("content-type", media_type)])
        _, error = await failure(Playing(agent.backend))
        assert says in str(error)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("arguments", [{"server": "ollama"}, {"renderer": "jinja"}, {"key": "a b"}])
def test_arguments_that_cannot_be_used(arguments: dict[str, str]) -> None:
    """A wrong argument is an error at once."""
    with pytest.raises(ValueError, match=r"must be|holds"):
        TokensBackend("http://h", **arguments)  # type: ignore[arg-type]


async def test_what_a_probe_says() -> None:
    """A probe tells the kind of server and how prompts are made."""
    async with trio.open_nursery() as nursery:
        agent = Agent("sglang", nursery)
        probe = await agent.backend.probe()
        assert (probe.server, probe.renderer) == ("sglang", "harmony")
        nursery.cancel_scope.cancel()


async def test_ids_that_were_lost_on_the_way_are_not_kept() -> None:
    """Where fewer ids come than the server says it sampled, the history is made from the text that was said."""

    def play(prompt: str, schema: Any, voice: Voice) -> Reply:
        ids = marked(saying("answer"))
        return Reply([voice.chunk(ids), voice.end(counts=(10, 0, len(ids) + 2))])

    async with trio.open_nursery() as nursery:
        agent = Agent("vllm", nursery)
        agent.server.play = play
        await agent.turn(user("Go."))
        n_encoded = agent.backend.n_encoded
        await agent.turn(user("Again."))
        assert agent.backend.n_encoded - n_encoded >= len(marked("answer")) + len(marked("Again."))
        assert "<|start|>assistant<|channel|>final<|message|>answer<|end|>" in shown(agent.server.prompts[-1])
        nursery.cancel_scope.cancel()


async def test_a_vllm_that_sends_no_ids_is_told_of() -> None:
    """Text alone cannot be read as harmony: the error names the version that sends ids."""

    def play(prompt: str, schema: Any, voice: Voice) -> Reply:
        return Reply([sse({"choices": [{"index": 0, "text": "Hi", "finish_reason": None}]}), voice.end()])

    async with trio.open_nursery() as nursery:
        agent = Agent("vllm", nursery)
        agent.server.play = play
        _, error = await failure(Playing(agent.backend))
        assert (error.code, error.status) == ("server_error", 502)
        assert "0.10.2" in str(error)
        nursery.cancel_scope.cancel()


async def test_a_server_that_does_not_stop_is_left() -> None:
    """What comes after the end of the turn is none of it, and its request is closed."""

    def play(prompt: str, schema: Any, voice: Voice) -> Reply:
        return Reply([voice.chunk(marked(saying("All."))), voice.chunk(marked("More")), HANG])

    async with trio.open_nursery() as nursery:
        agent = Agent("llamacpp", nursery)
        agent.server.play = play
        heard = await agent.turn(user("Go."))
        assert (text_of(heard), finish_of(heard).reason) == ("All.", "stop")
        nursery.cancel_scope.cancel()


async def test_without_a_vocabulary_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A missing vocabulary is an error that says what to install, never a download."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tokenizers, "find_spec", lambda name: None)
    monkeypatch.setattr(tokenizers, "read_harmony", tokenizers.read_harmony.__wrapped__)
    async with trio.open_nursery() as nursery:
        agent = Agent("vllm", nursery)
        agent.backend.tokenizer = None
        _, error = await failure(Playing(agent.backend))
        assert "turntape[tokens]" in str(error)
        nursery.cancel_scope.cancel()


def test_a_vocabulary_with_another_hash_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file in the cache that was changed is passed over and left alone."""
    (tmp_path / tokenizers.CACHE_KEY).write_bytes(b"IQ== 0\n")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    assert tokenizers.read_harmony.__wrapped__().encode("hello world") == [24912, 2375]
    assert (tmp_path / tokenizers.CACHE_KEY).exists()


def test_what_was_said_lately_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old answers make room for new ones."""
    monkeypatch.setattr(tokens_spoken, "MAX_RECENT_BYTES", 5000)
    takes, context = tokens_spoken.Takes(), Context()
    for n in range(20):
        takes.keep(context, [tokens_spoken.Spoken("message", [n] * 50, [f"said {n}"], mark="final")])

    def recalled(n: int) -> bool:
        return takes.recalled(Item.of({"type": "message", "role": "assistant", "content": f"said {n}"})) is not None

    assert [recalled(0), recalled(19)] == [False, True]
