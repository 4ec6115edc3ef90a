"""The chat and the tokens backend keep the promises of every backend with a real llama.cpp server and a real model."""

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import trio
from backends.cases import Cases, ask, failure, finish_of, items_of, said, served, text_of
from backends.chat_model import TEMPLATE
from backends.rig import Cut, Playing, Say
from backends.rig_llama_server import GONE_S, LlamaServerRig, Play, is_busy
from llama_server import LlamaServer

from turntape.core.seam import Increment, StartSample
from turntape.transport.http_client import HttpClient

SERVER = LlamaServer(4096, "hunter2-hunter2", TEMPLATE)


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    """The one that both backends ask."""
    try:
        SERVER.start()
        yield
    finally:
        SERVER.kill()


class LlamaServerCases(Cases):
    """The cases, and what only a server that reads and counts for itself can show."""

    __test__ = False  # its heirs are run
    rig: ClassVar[LlamaServerRig]

    async def test_usage(self, clock: Any) -> None:
        """Token counts are those of the server's own counters, over two turns, and the second reuses the first."""
        async with self.rig.playing([Say("Counted once.")], [Say("Counted twice.")]) as playing:
            start = ask("Count the words of this sentence, please.")
            first = await self._counted(playing, start)
            more = ask([*items_of(first, ""), {"role": "user", "content": "Again."}], context=start.context)
            second = await self._counted(playing, more)
            before, after = finish_of(first).usage, finish_of(second).usage
            assert before is not None
            assert after is not None
            known = before.input_tokens + before.output_tokens * (self.rig.kind == "tokens")  # chat spells it anew
            assert known - 2 <= after.cached_tokens < after.input_tokens

    async def _counted(self, playing: Playing, start: StartSample) -> list[Increment]:
        """What is said, once its counts are found to be right."""
        names = ("prompt_tokens_total", "prompt_tokens_cached_total", "tokens_predicted_total")
        before = [await self._play.count(name) for name in names]
        increments = await said(playing, start)
        read, reused, spoken = [await self._play.count(name) - n for name, n in zip(names, before, strict=True)]
        usage = finish_of(increments).usage
        assert usage is not None
        assert (usage.input_tokens, usage.cached_tokens, usage.output_tokens) == (read + reused, reused, spoken)
        return increments

    async def test_leaving_in_a_prefill(self, clock: Any) -> None:
        """Whoever leaves while the prompt is read ends that with its batch: most of it is never read."""
        async with self.rig.playing([Say("Never said.")], [Say("Whole.")]) as playing:
            read = await self._play.count("prompt_tokens_total")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(said, playing, ask("one two three four " * 700))
                await self._play.until(is_busy)
                nursery.cancel_scope.cancel()
            with trio.fail_after(GONE_S):
                await self._play.until(lambda slot: not is_busy(slot))
            assert await self._play.count("prompt_tokens_total") - read < 1400
            assert text_of(await said(playing)) == "Whole."

    async def test_a_server_that_dies_is_a_failed_response(self, clock: Any) -> None:
        """A server that is killed in mid-answer is response.failed for the client, whose connection lives."""
        async with self.rig.playing([Say("Once upon a"), Cut()], [Say("Whole.")]) as playing, served(playing) as ws:
            await ws.create()
            response = (await ws.until("response.failed"))[-1]["response"]
            assert response["error"]["code"] == "server_error"
            await ws.create()
            await ws.until("response.completed")

    async def test_a_server_that_is_not_there(self, clock: Any) -> None:
        """Without a server the error comes before the first event, and names its address."""
        async with self.rig.playing([Say("Never said.")]) as playing:
            SERVER.kill()
            try:
                heard, error = await failure(playing)
            finally:
                SERVER.start()
            assert heard == []
            assert (error.code, error.status) == ("server_error", 502)
            assert f"127.0.0.1:{SERVER.port}" in str(error)

    async def test_a_path_that_is_not_there(self, clock: Any) -> None:
        """A wrong path is no wrong model: the error says what to look at."""
        backend = self.rig.backend(f"http://127.0.0.1:{SERVER.port}/v2/v3", HttpClient())
        heard, error = await failure(Playing(backend))
        await backend.aclose()
        assert heard == []
        assert (error.code, error.status) == ("server_error", 502)
        assert "Check its URL" in str(error)

    @property
    def _play(self) -> Play:
        assert self.rig.play is not None
        return self.rig.play


class TestChat(LlamaServerCases):
    __test__ = True
    rig = LlamaServerRig("chat", SERVER)


class TestTokens(LlamaServerCases):
    __test__ = True
    rig = LlamaServerRig("tokens", SERVER)
