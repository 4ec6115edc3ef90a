"""Which backend answers which model, what it is sent, and who answers in its place when it cannot."""

import gc
import itertools
import logging
from typing import Any

import pytest
import trio
import trio.testing
from serving import HELLO, Model, Server

from turntape.core.context import Context
from turntape.core.seam import Finish, StartSample, Text
from turntape.core.wire import structure_create
from turntape.transport.backends.base import BackendError, Batch
from turntape.transport.health import FIRST_PAUSE_S, LONGEST_PAUSE_S, N_FAILURES
from turntape.transport.router import ANY, Defaults, Route, Router, RouteTable, Upstream
from turntape.transport.truncating import BLOB_TOKENS, CERTAIN_BYTES, Truncator, item_tokens, shortened, split

DOWN = BackendError("The backend at a.test cannot be reached: nothing listens there.", status=502)
FULL = BackendError("Come back later.", code="rate_limit_exceeded", status=429, retry_after="7")
BUSY = BackendError("Its queue is full.", code="server_is_overloaded", status=503, retry_after="2")
BROKE = BackendError("No credit left.", code="insufficient_quota", status=402)
BAD_KEY = BackendError("Check the key.", code="invalid_api_key", status=401)
BAD_REQUEST = BackendError("Bad field.", code="invalid_prompt", status=400)
TOO_LONG = BackendError("Too long.", code="context_length_exceeded", status=400, param="input")


def start(input: Any = "hi", *, parent: Context | None = None, model: str = "m", **fields: Any) -> StartSample:
    request = structure_create({"model": model, "input": input, **fields})
    return StartSample("smp_1", model, request, (parent or Context()).extend(request.input.items), cached=0)


def saying(text: str) -> Model:
    return Model([[(0, ()), (0, (Text(text), Finish()))]])


def failing(error: BackendError) -> Model:
    return Model([[error]])


def upstream(backend: Model, name: str = "a") -> Upstream:
    return Upstream(name, backend)


def table(*routes: Route) -> RouteTable:
    by_name = {route.name: route for route in routes}
    return RouteTable(by_name, tuple(name for name in by_name if name != ANY))


def router(backend: Model, *fallbacks: Model, **settings: Any) -> Router:
    others = tuple(Route(name=f"f{n}", upstream=upstream(each, f"f{n}")) for n, each in enumerate(fallbacks))
    return Router(table(Route(name="m", upstream=upstream(backend), fallbacks=others, **settings)))


async def batches(router: Router, asked: StartSample | None = None) -> list[Batch]:
    async with router.sample(asked or start()) as channel:
        return [batch async for batch in channel]


async def text(router: Router, asked: StartSample | None = None) -> str:
    got = await batches(router, asked)
    return "".join(each.text for batch in got for each in batch if isinstance(each, Text))


async def refusal(router: Router, asked: StartSample | None = None) -> BackendError:
    with pytest.raises(BackendError) as caught:
        await batches(router, asked)
    return caught.value


# --- routes ---------------------------------------------------------------------------------------------


async def test_each_model_goes_to_its_backend_under_the_name_it_has_there() -> None:
    """The public name chooses; the backend hears its own name for it, in the request too."""
    one, two = saying("one"), saying("two")
    routes = Router(
        table(Route(name="fast", upstream=upstream(one), model="gpt-oss-120b"), Route(name="m", upstream=upstream(two)))
    )
    assert await text(routes, start(model="fast")) == "one"
    assert await text(routes, start(model="m")) == "two"
    assert (one.starts[0].model, one.starts[0].request.model) == ("gpt-oss-120b", "gpt-oss-120b")
    assert one.starts[0].request.raw["model"] == "gpt-oss-120b"
    assert two.starts[0].model == "m"
    assert routes.models == ("fast", "m")


async def test_a_name_that_no_table_has_is_refused_with_those_there_are() -> None:
    """404 with the names; a route for any name takes them all, as they were asked for."""
    backend = saying("x")
    error = await refusal(Router(table(Route(name="fast", upstream=upstream(backend)))), start(model="gpt-9"))
    assert (error.status, error.code, error.param) == (404, "model_not_found", "model")
    assert "'gpt-9'" in str(error) and "fast" in str(error)
    assert not backend.starts
    anything = Router(table(Route(name=ANY, upstream=upstream(backend))))
    assert await text(anything, start(model="gpt-9")) == "x"
    assert backend.starts[0].model == "gpt-9"
    assert anything.models == ()
    mapped = Router(table(Route(name=ANY, upstream=upstream(backend), model="qwen3")))
    assert await text(mapped, start(model="gpt-9")) == "x"
    assert backend.starts[1].model == "qwen3"


async def test_defaults_fill_what_a_request_leaves_open() -> None:
    """Sampling settings of the table hold for requests that say nothing; a request's own are never touched."""
    backend = saying("x")
    defaults = Defaults(temperature=0.2, top_p=0.5, max_output_tokens=100, reasoning_effort="low")
    routes = router(backend, defaults=defaults, max_output=300)
    await batches(routes, start(reasoning={"summary": "auto"}))
    await batches(routes, start(temperature=0, max_output_tokens=200, reasoning={"effort": "high"}))
    await batches(routes, start(max_output_tokens=9999))
    filled, own, much = (asked.request for asked in backend.starts)
    assert (filled.temperature, filled.top_p, filled.max_output_tokens) == (0.2, 0.5, 100)
    assert filled.reasoning is not None and (filled.reasoning.effort, filled.reasoning.summary) == ("low", "auto")
    assert filled.raw["reasoning"] == {"summary": "auto", "effort": "low"}
    assert filled.raw["temperature"] == 0.2
    assert own.reasoning is not None
    assert (own.temperature, own.max_output_tokens, own.reasoning.effort) == (0, 200, "high")
    assert much.max_output_tokens == 300


async def test_nothing_stands_between_a_lone_backend_and_its_reader() -> None:
    """Without a fallback the backend's own channel is handed out, and a request that needs no change is the same."""
    backend = saying("x")
    async with backend.sample(start()) as plain:
        kind = type(plain)
    routes = router(backend)
    asked = start()
    async with routes.sample(asked) as channel:
        assert type(channel) is kind
        assert [batch async for batch in channel] == [(), (Text("x"), Finish())]
    assert backend.starts[0] is asked


# --- connections ahead ------------------------------------------------------------------------------------


async def test_every_backend_is_connected_to_ahead(caplog: pytest.LogCaptureFixture) -> None:
    """Once each; one that cannot be reached keeps no other from it, and is no warning."""
    warmed: list[str] = []

    class Near(Model):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        async def warm(self) -> None:
            warmed.append(self.name)
            if self.name == "down":
                raise DOWN

    caplog.set_level(logging.DEBUG)
    down = upstream(Near("down"), "down")
    routes = (
        Route(name="a", upstream=down, fallbacks=(Route(name="b", upstream=upstream(Near("b"))),)),
        Route(name="c", upstream=down),
        Route(name="d", upstream=upstream(saying("a model file needs none"))),
    )
    router = Router(table(*routes))
    await router.warm()
    assert sorted(warmed) == ["b", "down"]
    [record] = caplog.records
    assert (record.levelname, record.getMessage()) == ("DEBUG", f"backend down: no connection ahead: {DOWN}")
    assert down.n_running == 0


# --- fallback -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [DOWN, FULL, BUSY, BROKE])
async def test_a_fallback_answers_when_the_first_is_down_or_full(
    error: BackendError, caplog: pytest.LogCaptureFixture
) -> None:
    """The client hears only the fallback; who runs the server reads a line with both names and the reason."""
    caplog.set_level(logging.WARNING)
    assert await text(router(failing(error), saying("two"))) == "two"
    [record] = caplog.records
    assert record.getMessage() == f"model m: f0 is asked instead, after {error.status} {error.code}: {error}"


async def test_a_fallback_answers_when_the_first_was_accepted_and_said_nothing() -> None:
    """A failure after the response began and before the first token is covered too."""
    first = Model([[(0, ()), DOWN]])
    got = await batches(router(first, saying("two")))
    assert [batch for batch in got if batch] == [(Text("two"), Finish())]


async def test_after_the_first_token_nobody_else_answers() -> None:
    """Half an answer of one model is never finished by another."""
    second = saying("two")
    routes = router(Model([[(0, ()), (0, (Text("hal"),)), DOWN]]), second)
    got = list[Batch]()
    with pytest.raises(BackendError, match="nothing listens"):
        async with routes.sample(start()) as channel:
            async for batch in channel:
                got.append(batch)
    assert got == [(), (Text("hal"),)]
    assert not second.starts


@pytest.mark.parametrize("error", [BAD_KEY, BAD_REQUEST, TOO_LONG])
async def test_what_is_wrong_with_the_request_or_the_key_is_said(error: BackendError) -> None:
    """Another backend does not hide a wrong key or a bad request."""
    second = saying("two")
    assert await refusal(router(failing(error), second)) is error
    assert not second.starts


async def test_fallbacks_are_asked_in_order_and_the_last_refusal_is_told() -> None:
    """Each once; if none can, the client hears why the last could not, with its retry-after."""
    first, second, third = failing(DOWN), failing(DOWN), failing(FULL)
    error = await refusal(router(first, second, third))
    assert (error.status, error.retry_after) == (429, "7")
    assert [len(each.starts) for each in (first, second, third)] == [1, 1, 1]


async def test_a_bug_of_a_backend_is_not_covered_up() -> None:
    """Only what a backend reports goes to the fallback."""
    second = saying("two")
    with pytest.raises(ZeroDivisionError):
        await batches(router(Model([[ZeroDivisionError()]]), second))
    assert not second.starts


async def test_leaving_ends_the_backends_sample_at_once(autojump_clock: trio.testing.MockClock) -> None:
    """Cancelled before or after the first token, behind a fallback or not, nothing runs on."""
    for fallbacks in ((), (saying("two"),)):
        for turn in ([(100.0, ())], [(0, ()), (0, (Text("x"),)), (100.0, ())]):
            backend = Model([turn])
            with trio.move_on_after(1):
                await batches(router(backend, *fallbacks))
            assert len(backend.starts) == 1
            assert backend.n_running == 0


# --- health ---------------------------------------------------------------------------------------------


async def test_a_backend_that_keeps_failing_is_left_alone(autojump_clock: trio.testing.MockClock) -> None:
    """After a few failures in a row requests are refused here, with when to come back and why."""
    backend = failing(DOWN)
    routes = router(backend)
    for _ in range(N_FAILURES):
        assert await refusal(routes) is DOWN
    error = await refusal(routes)
    assert len(backend.starts) == N_FAILURES
    assert (error.status, error.code, error.retry_after) == (503, "server_is_overloaded", "1")
    assert "The backend a failed 5 times in a row" in str(error)
    assert "nothing listens there" in str(error)


async def test_a_backend_that_is_left_alone_goes_to_its_fallback(autojump_clock: trio.testing.MockClock) -> None:
    """Nobody waits for a server that is known to be down."""
    backend, second = failing(DOWN), saying("two")
    routes = router(backend, second)
    for _ in range(N_FAILURES + 3):
        assert await text(routes) == "two"
    assert len(backend.starts) == N_FAILURES


async def test_one_trial_brings_a_backend_back(autojump_clock: trio.testing.MockClock) -> None:
    """After the pause one request is let through, and from its first sign of life on all are."""
    turns: Any = [[DOWN]] * N_FAILURES + [[(0, ()), (5.0, (Text("x"), Finish()))]]
    backend = Model(turns)
    routes = router(backend)
    for _ in range(N_FAILURES):
        await refusal(routes)
    await trio.sleep(FIRST_PAUSE_S)
    got = list[str]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_note, routes, got)
        await trio.testing.wait_all_tasks_blocked()  # the trial was accepted, and says nothing for a while
        nursery.start_soon(_note, routes, got)
    assert got == ["x", "x"]
    assert await text(routes) == "x"


async def _note(routes: Router, got: list[str]) -> None:
    got.append(await text(routes))


async def test_only_one_trial_at_a_time(autojump_clock: trio.testing.MockClock) -> None:
    """While a trial has no answer the others are still refused; one that its client gave up frees the place."""
    backend = Model([*[[DOWN]] * N_FAILURES, [(100.0, ())]])
    routes = router(backend)
    for _ in range(N_FAILURES):
        await refusal(routes)
    await trio.sleep(FIRST_PAUSE_S)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(batches, routes)
        await trio.testing.wait_all_tasks_blocked()
        assert (await refusal(routes)).status == 503
        nursery.cancel_scope.cancel()
    with trio.move_on_after(1) as scope:
        await batches(routes)
    assert scope.cancelled_caught, "the next trial was let through"


async def test_a_trial_that_hangs_keeps_the_others_out_for_a_while_only(autojump_clock: trio.testing.MockClock) -> None:
    """A trial that nobody answers is followed by another, long before it is given up."""
    backend = Model([*[[DOWN]] * N_FAILURES, [(600.0, ())], HELLO])
    routes = router(backend)
    for _ in range(N_FAILURES):
        await refusal(routes)
    await trio.sleep(FIRST_PAUSE_S)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(batches, routes)
        await trio.sleep(LONGEST_PAUSE_S - 0.1)
        assert (await refusal(routes)).status == 503
        await trio.sleep(0.1)
        assert await text(routes)
        nursery.cancel_scope.cancel()


async def test_pauses_grow_and_are_bounded(autojump_clock: trio.testing.MockClock) -> None:
    """Each failed trial doubles the pause, up to its bound."""
    backend = failing(DOWN)
    routes = router(backend)
    for _ in range(N_FAILURES):
        await refusal(routes)
    pauses = list[int]()
    for _ in range(8):
        error = await refusal(routes)
        pauses.append(int(error.retry_after or 0))
        await trio.sleep(pauses[-1])
        assert await refusal(routes) is DOWN
    assert pauses[0] == FIRST_PAUSE_S
    assert pauses[:5] == [1, 2, 4, 8, 16]
    assert pauses[-1] == LONGEST_PAUSE_S


@pytest.mark.parametrize("error", [FULL, BUSY, BAD_KEY, BAD_REQUEST])
async def test_a_backend_that_refuses_is_not_down(error: BackendError) -> None:
    """Refusals of requests, however many, do not trip a backend."""
    backend = failing(error)
    routes = router(backend)
    for _ in range(3 * N_FAILURES):
        assert await refusal(routes) is error


async def test_failures_count_only_in_a_row() -> None:
    """A backend that answers in between is not left alone."""
    fails_often: Any = ([[DOWN]] * (N_FAILURES - 1) + [HELLO]) * 3
    backend = Model(fails_often)
    routes = router(backend)
    for _ in range(3):
        for _ in range(N_FAILURES - 1):
            assert await refusal(routes) is DOWN
        assert await text(routes) == "hello"


# --- another table --------------------------------------------------------------------------------------


class Closing(Model):
    n_closed = 0

    async def aclose(self) -> None:
        self.n_closed += 1


async def test_a_new_table_holds_from_the_next_sample_on(autojump_clock: trio.testing.MockClock) -> None:
    """A sample under way keeps its backend, which is closed when the sample has ended; one that stays is not."""
    old, kept, new = Closing([[(0, ()), (5.0, (Text("old"), Finish()))]]), Closing(), saying("new")
    staying = Route(name="kept", upstream=upstream(kept))
    routes = Router(table(Route(name="m", upstream=upstream(old)), staying))
    got = list[str]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_note, routes, got)
        await trio.testing.wait_all_tasks_blocked()
        await routes.replace(
            table(Route(name="m", upstream=upstream(new)), staying, Route(name="n", upstream=upstream(new)))
        )
        assert await text(routes) == "new"
        assert old.n_closed == 0
    assert got == ["old"]
    assert (old.n_closed, kept.n_closed) == (1, 0)
    assert routes.models == ("m", "kept", "n")
    await routes.replace(table(Route(name="m", upstream=upstream(new))))
    assert kept.n_closed == 1
    await routes.aclose()


async def test_a_backend_that_cannot_be_closed_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """Its bug is logged; the sample that ended last is whole, and the others are closed."""

    class Broken(Model):
        async def aclose(self) -> None:
            raise ZeroDivisionError

    kept = Closing()
    staying = Route(name="n", upstream=upstream(kept))
    routes = Router(table(Route(name="m", upstream=upstream(Broken(), "odd")), staying))
    async with routes.sample(start()) as channel:
        await routes.replace(table(staying))
        assert [batch async for batch in channel][-1] == (Text("lo"), Finish())
    assert "backend odd: cannot be closed" in caplog.text
    await routes.aclose()
    assert kept.n_closed == 1


async def test_the_list_of_models_is_that_of_the_table(nursery: trio.Nursery) -> None:
    """/v1/models has the public names, after a new table the new ones."""
    routes = Router(table(Route(name="fast", upstream=upstream(saying("x")), model="secret-name")))
    server = Server(nursery, routes)
    http = server.http()
    listed = (await http.ask("GET", "/v1/models")).json["data"]
    assert [model["id"] for model in listed] == ["fast"]
    await routes.replace(table(Route(name="other", upstream=upstream(saying("x")))))
    listed = (await http.ask("GET", "/v1/models")).json["data"]
    assert [model["id"] for model in listed] == ["other"]
    assert (await http.ask("GET", "/v1/models/fast")).status == 404
    refused = await http.post(model="fast")
    assert (refused.status, refused.error["code"]) == (404, "model_not_found")
    assert (await http.post(model="other")).json["model"] == "other"


# --- windows --------------------------------------------------------------------------------------------


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def tool_turn(n: int, size: int = 400) -> list[dict[str, Any]]:
    return [
        {"type": "function_call", "call_id": f"c{n}", "name": "sh", "arguments": "{}"},
        {"type": "function_call_output", "call_id": f"c{n}", "output": str(n) * size},
    ]


async def test_what_can_never_fit_is_refused_here() -> None:
    """400 with the window, before anything is sent; what might fit goes to the backend, which counts for real."""
    backend = saying("x")
    routes = router(backend, context_window=100)
    error = await refusal(routes, start("x" * (CERTAIN_BYTES * 100 + 100)))
    assert (error.status, error.code, error.param) == (400, "context_length_exceeded", "input")
    assert "its context window has 100" in str(error)
    assert not backend.starts
    assert await text(routes, start("x" * 1000)) == "x"


def test_an_image_is_not_counted_by_its_bytes() -> None:
    """A megabyte of picture is not a quarter of a million tokens."""
    picture = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 1_000_000}
    items = start([{"role": "user", "content": [picture]}]).context.items
    assert BLOB_TOKENS <= item_tokens(items[0]) < 2 * BLOB_TOKENS


async def test_auto_drops_the_oldest_turns_and_keeps_what_must_stay() -> None:
    """Instructions, the last user message and the latest turn stay; calls go with their outputs."""
    backend = saying("x")
    items = [{"role": "developer", "content": "rules"}, user("old " * 200), said("yes"), user("do it")]
    for n in range(8):
        items += tool_turn(n)
    routes = router(backend, context_window=800)
    await batches(routes, start(items, truncation="auto", max_output_tokens=100))
    sent = [item.value for item in backend.starts[0].context.items_after(None)]
    assert sent[0]["content"] == "rules"
    assert sent[1]["content"] == "do it"
    assert sent[-1] == items[-1]
    assert "old " not in str(sent)
    calls = [item["call_id"] for item in sent if item.get("type") == "function_call"]
    outputs = [item["call_id"] for item in sent if item.get("type") == "function_call_output"]
    assert calls == outputs == [f"c{n}" for n in range(8 - len(calls), 8)]
    assert 2 <= len(calls) <= 4
    assert Truncator().tokens(backend.starts[0].context) <= 700


async def test_auto_goes_on_from_what_it_cut() -> None:
    """The next turn's prompt is the last one's and what is new: its prefix stays, and nothing is rendered again."""
    backend = saying("x")
    routes = router(backend, context_window=1000)
    context, cut = Context(), list[Context]()
    for n in range(30):
        asked = start([user(f"turn {n} " + "y" * 300)], parent=context, truncation="auto", max_output_tokens=100)
        context = asked.context
        await batches(routes, asked)
        cut.append(backend.starts[-1].context)
    n_kept_prefix = sum(after.parent is before for before, after in itertools.pairwise(cut))
    assert n_kept_prefix > 20
    assert all(Truncator().tokens(each) <= 900 for each in cut)
    assert cut[-1].items_after(None)[-1].value["content"].startswith("turn 29 ")


async def test_auto_is_shortened_again_when_the_backend_counts_more() -> None:
    """Without a window in the table the backend's own refusal is what shortens."""
    backend = Model([[TOO_LONG], [TOO_LONG], HELLO])
    items = [each for n in range(16) for each in (user(f"q{n} " + "z" * 200), said("a"))] + [user("last")]
    assert await text(router(backend), start(items, truncation="auto")) == "hello"
    lengths = [asked.context.n_items for asked in backend.starts]
    assert lengths[0] == 33 and lengths[0] > lengths[1] > lengths[2] > 0
    assert backend.starts[2].context.items_after(None)[-1].value["content"] == "last"


async def test_without_auto_nothing_is_dropped() -> None:
    """A conversation is the client's: it is refused, not changed."""
    backend = failing(TOO_LONG)
    items = [user("q"), said("a"), user("last")]
    assert await refusal(router(backend), start(items)) is TOO_LONG
    assert len(backend.starts) == 1
    assert backend.starts[0].context.n_items == 3


def test_turns_begin_where_nothing_is_open() -> None:
    """Parallel calls and outputs in any order are one turn, and an answer begins another."""
    calls = [*tool_turn(1), *tool_turn(2)]
    items = [user("a"), calls[0], calls[2], calls[3], calls[1], said("b"), user("c")]
    context = start(items).context
    assert [len(turn) for turn in split(context.items)] == [5, 1, 1]
    assert shortened(context, 10**6) is context


async def test_conversations_are_not_kept_alive() -> None:
    """What was cut or measured goes with its conversation."""
    truncator = Truncator()
    for window in (None, 50):
        asked = start([user("x" * 400), said("y"), user("z")], truncation="auto")
        fitted = next(truncator.attempts(asked, window)).context
        assert fitted.n_items == (3 if window is None else 1)
        del asked, fitted
    gc.collect()
    assert len(truncator._measured) == len(truncator._shorter) == 0
