"""The conformance suite of backends: what every one of them promises, whatever its server speaks.

To plug a backend in, write a ``Rig`` (rig.py) in ``rig_mine.py``, and a test file ``test_mine.py``::

    from backends.cases import Cases
    from backends.rig_mine import MyRig

    class TestMine(Cases):
        rig = MyRig()

A case that needs something names it; a rig that cannot do that says why in ``cannot``, and the case is skipped with
this reason. The names: reasoning, phases, custom, namespace, malformed, several, length, content_filter, usage, cached,
cut, midstream, garbage, slow, refusals (or one of them by its status: "429"), retry_after, overflow, gone, key, where,
history, choice, named, allowed, format, call_ids, chunks, silence (to say no more before a cut).

Cases of the protocol's list carry its number: C43, C44, C45, C73, C74.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar, TypeVar

import orjson
import pytest
import trio
import trio.testing
from backends.rig import (
    Asked,
    Call,
    Cut,
    End,
    Fail,
    Garbage,
    Hang,
    Overflow,
    Playing,
    Rig,
    Say,
    Step,
    Think,
    Turn,
    Wait,
)
from serving import Server, WebSocket

from turntape.core.context import Context
from turntape.core.seam import (
    Arguments,
    Finish,
    Increment,
    Message,
    Reasoning,
    StartSample,
    Summary,
    Text,
    ToolCall,
    Usage,
)
from turntape.core.wire import structure_create
from turntape.transport.backends.base import BackendError, Batch

LOOKUP: dict[str, Any] = {
    "type": "function",
    "name": "lookup",
    "description": "Looks a key up.",
    "parameters": {
        "type": "object",
        "properties": {"key": {"type": "string"}},
        "required": ["key"],
        "additionalProperties": False,
    },
}
ADD: dict[str, Any] = {
    "type": "function",
    "name": "add",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
}
PATCH: dict[str, Any] = {"type": "custom", "name": "apply_patch", "description": "Applies a patch."}
SPAWN: dict[str, Any] = {"type": "function", "name": "spawn", "parameters": {"type": "object", "properties": {}}}
AGENTS: dict[str, Any] = {"type": "namespace", "name": "agents", "description": "Agents.", "tools": [SPAWN]}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}},
    "required": ["city", "degrees"],
    "additionalProperties": False,
}

Case = TypeVar("Case", bound=Callable[..., object])

COUNTS = Usage(input_tokens=50, output_tokens=7, cached_tokens=30, reasoning_tokens=3)


def ask(items: Any = "hi", *, context: Context | None = None, **fields: Any) -> StartSample:
    """What the session asks of a backend for such a create."""
    request = structure_create({"model": "m", "input": items, "store": False, **fields})
    return StartSample("smp_1", "m", request, (context or Context()).extend(request.input.items), 0)


async def batches(playing: Playing, start: StartSample | None = None) -> list[Batch]:
    async with playing.backend.sample(start or ask()) as channel:
        return [batch async for batch in channel]


async def said(playing: Playing, start: StartSample | None = None) -> list[Increment]:
    """Everything that a sample says, in a row."""
    return [increment for batch in await batches(playing, start) for increment in batch]


async def failure(playing: Playing, start: StartSample | None = None) -> tuple[list[Increment], BackendError]:
    """What a sample says before it fails, and how it fails."""
    heard: list[Increment] = []
    caught: list[BackendError] = []

    def note(group: BaseExceptionGroup[BackendError]) -> None:
        exc: BaseException = group
        while isinstance(exc, BaseExceptionGroup):
            exc = exc.exceptions[0]
        assert isinstance(exc, BackendError)
        caught.append(exc)

    try:
        async with playing.backend.sample(start or ask()) as channel:
            async for batch in channel:
                heard += batch
    except* BackendError as group:
        note(group)
    assert caught, f"it did not fail, but said {heard}"
    return heard, caught[0]


def text_of(increments: Sequence[Increment]) -> str:
    return "".join(i.text for i in increments if isinstance(i, Text))


def reasoning_of(increments: Sequence[Increment]) -> str:
    return "".join(i.text for i in increments if isinstance(i, Reasoning | Summary))


def calls_of(increments: Sequence[Increment]) -> list[tuple[ToolCall, str]]:
    """Each call with the whole text of its arguments."""
    calls: list[tuple[ToolCall, str]] = []
    for increment in increments:
        if isinstance(increment, ToolCall):
            calls.append((increment, ""))
        elif isinstance(increment, Arguments):
            calls[-1] = (calls[-1][0], calls[-1][1] + increment.text)
    return calls


def finish_of(increments: Sequence[Increment]) -> Finish:
    last = increments[-1]
    assert isinstance(last, Finish)
    assert sum(isinstance(i, Finish) for i in increments) == 1
    return last


def items_of(increments: Sequence[Increment], output: str) -> list[dict[str, Any]]:
    """What was said as items of a conversation, and ``output`` as the output of each call."""
    items: list[dict[str, Any]] = []
    if reasoning := reasoning_of(increments):
        items.append({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": reasoning}]})
    if text := text_of(increments):
        items.append({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]})
    for call, arguments in calls_of(increments):
        named = {"call_id": call.call_id, "name": call.name}
        if call.namespace is not None:
            named["namespace"] = call.namespace
        if call.custom:
            items.append({"type": "custom_tool_call", **named, "input": arguments})
        else:
            items.append({"type": "function_call", **named, "arguments": arguments})
    for call, _ in calls_of(increments):
        kind = "custom_tool_call_output" if call.custom else "function_call_output"
        items.append({"type": kind, "call_id": call.call_id, "output": output})
    return items


@asynccontextmanager
async def served(playing: Playing) -> AsyncIterator[WebSocket]:
    """A client of a whole server on this backend."""
    async with trio.open_nursery() as nursery:
        yield await Server(nursery, playing.backend).websocket()
        nursery.cancel_scope.cancel()


async def error_of(ws: WebSocket) -> dict[str, Any]:
    """The first event, which is to be an error."""
    event = await ws.event()
    assert event["type"] == "error", event
    return event


def needs(*names: str) -> Callable[[Case], Case]:
    """The case is skipped if the rig cannot do one of these."""

    def mark(case: Case) -> Case:
        case.needs = names  # type: ignore[attr-defined]
        return case

    return mark


class Cases:
    """The cases. Each takes a clock: the test's own where the rig allows it, so that nothing here waits in fact."""

    rig: ClassVar[Rig]

    @pytest.fixture
    def clock(self, request: pytest.FixtureRequest) -> trio.testing.MockClock | None:
        """The test's clock; skips a case that needs what the rig cannot do."""
        callspec = getattr(request.node, "callspec", None)
        status = callspec.params.get("status", "") if callspec is not None else ""
        for name in (*getattr(request.function, "needs", ()), str(status)):
            if reason := self.rig.cannot.get(name):
                pytest.skip(f"{name}: {reason}")
        return trio.testing.MockClock(autojump_threshold=0) if self.rig.virtual_time else None

    # --- what is said -----------------------------------------------------------------------------------

    async def test_text(self, clock: Any) -> None:
        """The request is accepted first, then text comes piece by piece, and the last batch holds the one finish."""
        text = "Hello, Wörld 👋 — 你好, tokens of every kind."
        async with self.rig.playing([Say(text, n_chunks=4)]) as playing:
            accepted, *rest = await batches(playing)
            assert accepted == ()
            assert all(rest), "an empty batch after the first says nothing"
            increments = [increment for batch in rest for increment in batch]
            assert text_of(increments) == text
            assert finish_of(increments).reason == "stop"
            if "chunks" not in self.rig.cannot:
                assert sum(isinstance(i, Text) for i in increments) >= 2

    async def test_two_samples_at_once(self, clock: Any) -> None:
        """Samples that run side by side each get their own answer."""
        async with self.rig.playing([Say("first or second", n_chunks=3)]) as playing:
            heard: list[str] = []

            async def one() -> None:
                heard.append(text_of(await said(playing, ask("go"))))

            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(one)
            assert heard == ["first or second"] * 3

    @needs("reasoning")
    async def test_reasoning(self, clock: Any) -> None:
        """Reasoning stands before the text, and apart from it."""
        async with self.rig.playing([Think("Let me see.", n_chunks=2), Say("Seen.")]) as playing:
            increments = await said(playing)
            assert (reasoning_of(increments), text_of(increments)) == ("Let me see.", "Seen.")
            kinds = [type(i) for i in increments if not isinstance(i, Message)]
            assert kinds.index(Text) > max(n for n, kind in enumerate(kinds) if kind in (Reasoning, Summary))

    async def test_one_call(self, clock: Any) -> None:
        """A call has an id, its tool's name and its arguments; the sample ends as a turn of its own."""
        async with self.rig.playing([Call("lookup", '{"key":"answer"}', "call_7")]) as playing:
            increments = await said(playing, ask(tools=[LOOKUP]))
            [(call, arguments)] = calls_of(increments)
            assert (call.name, call.namespace, call.custom) == ("lookup", None, False)
            assert orjson.loads(arguments) == {"key": "answer"}
            assert call.call_id
            if "call_ids" not in self.rig.cannot:
                assert call.call_id == "call_7"
            assert finish_of(increments).reason == "stop"

    @needs("several")
    async def test_text_and_several_calls(self, clock: Any) -> None:
        """Text and two calls come in their order, and the calls have ids of their own."""
        turn: Turn = [Say("First this."), Call("add", '{"a":40,"b":2}'), Call("lookup", '{"key":"colour"}')]
        async with self.rig.playing(turn) as playing:
            increments = await said(playing, ask(tools=[LOOKUP, ADD]))
            (add, sum_), (lookup, key) = calls_of(increments)
            assert (add.name, lookup.name) == ("add", "lookup")
            assert (orjson.loads(sum_), orjson.loads(key)) == ({"a": 40, "b": 2}, {"key": "colour"})
            assert add.call_id != lookup.call_id
            assert text_of(increments) == "First this."
            assert finish_of(increments).reason == "stop"

    @needs("custom")
    async def test_a_custom_call(self, clock: Any) -> None:
        """A custom tool's input is free text, whatever the server's dialect makes of it."""
        patch = '*** Begin Patch\n+say "hé" \\ done\n*** End Patch\n'
        async with self.rig.playing([Call("apply_patch", patch, custom=True, n_chunks=5)]) as playing:
            [(call, text)] = calls_of(await said(playing, ask(tools=[PATCH])))
            assert (call.name, call.custom, text) == ("apply_patch", True, patch)

    @needs("namespace")
    async def test_a_call_in_a_namespace(self, clock: Any) -> None:
        """A call of a namespace's tool names both."""
        async with self.rig.playing([Call("spawn", "{}", namespace="agents")]) as playing:
            [(call, arguments)] = calls_of(await said(playing, ask(tools=[LOOKUP, AGENTS])))
            assert (call.namespace, call.name, arguments) == ("agents", "spawn", "{}")

    @needs("malformed")
    async def test_malformed_arguments(self, clock: Any) -> None:
        """Arguments that are no JSON are the client's to judge: they arrive as they are, and the chain goes on."""
        async with self.rig.playing([Call("lookup", '{"key": "ans')], [Say("Again, then.")]) as playing:
            start = ask(tools=[LOOKUP])
            first = await said(playing, start)
            [(_, arguments)] = calls_of(first)
            assert arguments == '{"key": "ans'
            again = ask(items_of(first, "malformed"), context=start.context, tools=[LOOKUP])
            assert text_of(await said(playing, again)) == "Again, then."

    @needs("length")
    async def test_an_answer_cut_by_a_limit(self, clock: Any) -> None:
        """An answer that reached a limit says so."""
        await self._stop("length")

    @needs("content_filter")
    async def test_an_answer_cut_by_a_filter(self, clock: Any) -> None:
        """An answer that a filter stopped says so."""
        await self._stop("content_filter")

    async def _stop(self, reason: str) -> None:
        async with self.rig.playing([Say("Once upon a"), End(reason)]) as playing:
            increments = await said(playing)
            assert text_of(increments) == "Once upon a"
            assert finish_of(increments).reason == reason

    @needs("usage")
    async def test_usage(self, clock: Any) -> None:
        """Token counts are the server's own, cached and reasoning tokens included."""
        async with self.rig.playing([Say("Counted."), End(usage=COUNTS)]) as playing:
            usage = finish_of(await said(playing)).usage
            assert usage is not None
            assert (usage.input_tokens, usage.output_tokens) == (50, 7)
            if "cached" not in self.rig.cannot:
                assert usage.cached_tokens == 30
            if "reasoning" not in self.rig.cannot:
                assert usage.reasoning_tokens == 3

    async def test_a_tool_loop(self, clock: Any) -> None:
        """The next turn continues the conversation: what was said and what the tool answered are in it."""
        turns: list[Turn] = [[Call("lookup", '{"key":"answer"}')], [Say("It is 42.")]]
        async with self.rig.playing(*turns) as playing:
            start = ask("What is the answer?", tools=[LOOKUP])
            first = await said(playing, start)
            more = ask(items_of(first, "forty-two"), context=start.context, tools=[LOOKUP])
            assert text_of(await said(playing, more)) == "It is 42."
            if playing.asked and "history" not in self.rig.cannot:
                assert len(playing.asked) == 2
                for words in ("What is the answer?", "lookup", "forty-two"):
                    assert words in playing.asked[1].prompt

    # --- what goes wrong --------------------------------------------------------------------------------

    @needs("cut")
    async def test_a_cut_stream(self, clock: Any) -> None:
        """An answer that breaks off is a failure, after everything that was said; the next request is served."""
        async with self.rig.playing([Say("Once upon a"), Cut()], [Say("Whole.")]) as playing:
            heard, error = await failure(playing)
            self._heard(heard, "Once upon a")
            assert not any(isinstance(i, Finish) for i in heard)
            assert (error.code, error.status // 100) == ("server_error", 5)
            self._names_the_server(error)
            assert text_of(await said(playing)) == "Whole."

    @needs("midstream")
    async def test_a_failure_in_mid_stream(self, clock: Any) -> None:
        """An error that the server reports after it began is that failure, not a finish."""
        turn: Turn = [Say("Once upon a"), Fail(503, "server_is_overloaded", "The server is overloaded.")]
        async with self.rig.playing(turn, [Say("Whole.")]) as playing:
            heard, error = await failure(playing)
            self._heard(heard, "Once upon a")
            assert error.code in ("server_is_overloaded", "server_error")
            assert text_of(await said(playing)) == "Whole."

    @pytest.mark.parametrize("before", [[], [Say("Once upon a")]])
    @needs("garbage")
    async def test_garbage(self, before: list[Step], clock: Any) -> None:
        """A server that talks nonsense fails the sample, and nothing else."""
        async with self.rig.playing([*before, Garbage()], [Say("Whole.")]) as playing:
            _, error = await failure(playing)
            assert (error.code, error.status) == ("server_error", 502)
            self._names_the_server(error)
            assert text_of(await said(playing)) == "Whole."

    @pytest.mark.parametrize(
        ("status", "code", "message"),
        [
            (401, "invalid_api_key", "Incorrect API key provided."),
            (404, "model_not_found", "The model 'm' does not exist."),
            (429, "rate_limit_exceeded", "Rate limit reached for requests per minute."),
            (500, "server_error", "The server had an error."),
            (503, "server_is_overloaded", "The server is overloaded."),
        ],
    )
    @needs("refusals")
    async def test_refusals(self, status: int, code: str, message: str, clock: Any) -> None:
        """A refusal before the first event keeps its meaning: the code, the status, and who said it."""
        async with self.rig.playing([Fail(status, code, message)], [Say("Served.")]) as playing:
            heard, error = await failure(playing)
            assert heard == []
            assert (error.code, error.status) == (code, status)
            self._names_the_server(error)
            assert text_of(await said(playing)) == "Served."

    @pytest.mark.parametrize(("status", "code"), [(429, "rate_limit_exceeded"), (503, "server_is_overloaded")])
    @needs("refusals", "retry_after")
    async def test_retry_after(self, status: int, code: str, clock: Any) -> None:
        """When to come back is passed on as the server wrote it."""
        async with self.rig.playing([Fail(status, code, "Come back later.", retry_after="7")]) as playing:
            _, error = await failure(playing)
            assert (error.code, error.status, error.retry_after) == (code, status, "7")

    @needs("refusals", "key")
    async def test_a_key_is_never_repeated(self, clock: Any) -> None:
        """A server that repeats the key in its refusal does not get it into a message."""
        message = f"Incorrect API key provided: {self.rig.key}"
        async with self.rig.playing([Fail(401, "invalid_api_key", message)]) as playing:
            _, error = await failure(playing)
            assert error.code == "invalid_api_key"
            assert self.rig.key not in f"{error} {playing.backend!r}"

    @needs("overflow")
    async def test_overflow(self, clock: Any) -> None:
        """A prompt that is too long has a code of its own, since agents shorten it and try again."""
        async with self.rig.playing([Overflow()]) as playing:
            heard, error = await failure(playing)
            assert heard == []
            assert (error.code, error.status) == ("context_length_exceeded", 400)

    @needs("gone")
    async def test_leaving_closes_the_request(self, clock: Any) -> None:
        """Whoever stops reading ends the request at once, and the next one is served."""
        async with self.rig.playing([Say("Once upon a"), Hang()], [Say("Whole.")]) as playing:
            async with playing.backend.sample(ask()) as channel:
                async for batch in channel:
                    if any(isinstance(i, Text) for i in batch):
                        break
            with trio.fail_after(playing.gone_s):
                await playing.gone.wait()
            assert text_of(await said(playing)) == "Whole."

    def _heard(self, increments: Sequence[Increment], text: str) -> None:
        """This is what was said before it broke off."""
        if "silence" in self.rig.cannot:
            assert text_of(increments).startswith(text)
        else:
            assert text_of(increments) == text

    def _names_the_server(self, error: BackendError) -> None:
        if "where" not in self.rig.cannot:
            assert self.rig.where in str(error)

    # --- through a whole server -------------------------------------------------------------------------

    @needs("overflow")
    async def test_C43_context_overflow(self, clock: Any) -> None:
        """Context overflow is an error with status 400 and code context_length_exceeded, and the connection lives."""
        async with self.rig.playing([Overflow()], [Say("Fits.")]) as playing, served(playing) as ws:
            await ws.create(truncation="disabled")
            event = await error_of(ws)
            assert (event["status"], event["error"]["code"]) == (400, "context_length_exceeded")
            await ws.create()
            assert (await ws.until("response.completed"))[-1]["response"]["status"] == "completed"

    @needs("refusals", "retry_after")
    async def test_C44_capacity(self, clock: Any) -> None:
        """A rate limit is an error with status 429 and when to come back, in both places where clients look."""
        turn: Turn = [Fail(429, "rate_limit_exceeded", "Rate limit reached.", retry_after="7")]
        async with self.rig.playing(turn, [Say("Now.")]) as playing, served(playing) as ws:
            await ws.create()
            event = await error_of(ws)
            assert (event["status"], event["error"]["code"]) == (429, "rate_limit_exceeded")
            assert event["headers"]["retry-after"] == event["error"]["headers"]["retry-after"] == "7"
            await ws.create()
            await ws.until("response.completed")

    @needs("slow")
    async def test_C45_a_long_prefill(self, clock: Any) -> None:
        """A prefill of 400 s never leaves an agent without an event for 300 s: it would give up."""
        async with self.rig.playing([Wait(400.0), Say("At last.")]) as playing, served(playing) as ws:
            await ws.create()
            heard, longest, before = list[str](), 0.0, trio.current_time()
            while not heard or heard[-1] != "response.completed":
                heard.append((await ws.event())["type"])
                longest, before = max(longest, trio.current_time() - before), trio.current_time()
            assert longest < 20
            assert heard.count("response.in_progress") > 20
            assert "response.output_text.delta" in heard

    @needs("gone")
    async def test_a_client_that_leaves(self, clock: Any) -> None:
        """When the client leaves, the backend's request is closed within 250 ms."""
        async with self.rig.playing([Say("Once upon a"), Hang()]) as playing, served(playing) as ws:
            await ws.create()
            await ws.until("response.output_text.delta")
            await ws.stream.aclose()
            with trio.fail_after(playing.gone_s):
                await playing.gone.wait()

    @needs("midstream")
    async def test_a_failed_sample_is_a_failed_response(self, clock: Any) -> None:
        """A failure after the first event is response.failed with its code, and the connection lives."""
        async with (
            self.rig.playing([Say("Once upon a"), Fail(500, "server_error")], [Say("Whole.")]) as playing,
            served(playing) as ws,
        ):
            await ws.create()
            response = (await ws.until("response.failed"))[-1]["response"]
            assert response["error"]["code"] == "server_error"
            await ws.create()
            await ws.until("response.completed")

    # --- what the request decides -----------------------------------------------------------------------

    @needs("choice", "named")
    async def test_C73_tool_choice_named(self, clock: Any) -> None:
        """A named tool is the one that is called."""
        await self._choose({"type": "function", "name": "add"}, "required", {"add"})

    @needs("choice")
    async def test_C73_tool_choice_required(self, clock: Any) -> None:
        """Some tool is called."""
        await self._choose("required", "required", {"add", "lookup"})

    @needs("choice")
    async def test_C73_tool_choice_none(self, clock: Any) -> None:
        """No tool is called."""
        await self._choose("none", "none", set())

    @pytest.mark.parametrize("mode", ["auto", "required"])
    @needs("choice", "allowed")
    async def test_C73_allowed_tools(self, mode: str, clock: Any) -> None:
        """Only the allowed tools may be called."""
        choice = {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "add"}]}
        await self._choose(choice, mode, {"add"})

    async def _choose(self, choice: Any, mode: str, allowed: set[str]) -> None:
        """Ask with such a choice; the server must hear of it, or the answer must show it."""
        turn: Turn = [Call("lookup", '{"key":"x"}')] if allowed != {"add"} else [Say("I would rather talk.")]
        async with self.rig.playing(turn) as playing:
            increments = await said(playing, ask(tools=[LOOKUP, ADD], tool_choice=choice))
            if playing.asked:
                asked: Asked = playing.asked[0]
                assert asked.mode == mode
                if mode != "none":
                    assert asked.tools == allowed
                return
            names = {call.name for call, _ in calls_of(increments)}
            assert names <= allowed
            assert names or mode != "required"

    @needs("format")
    async def test_C74_json_schema(self, clock: Any) -> None:
        """A strict schema binds the answer."""
        form = {"type": "json_schema", "name": "weather", "schema": SCHEMA, "strict": True}
        async with self.rig.playing([Say('{"city":"Paris","degrees":20}')]) as playing:
            increments = await said(playing, ask("The weather?", text={"format": form}))
            if playing.asked:
                assert playing.asked[0].schema == SCHEMA
            answer = orjson.loads(text_of(increments))
            assert answer.keys() == {"city", "degrees"}
            assert isinstance(answer["city"], str)
            assert isinstance(answer["degrees"], int)


__all__ = ["Cases"]
