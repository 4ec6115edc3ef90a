"""The scripted backend says what its script says, when the script says it, within what the request allows."""

from typing import Any

import orjson
import pytest
import trio
import trio.testing

from turntape.core.canonical import Item
from turntape.core.context import Context
from turntape.core.seam import (
    Arguments,
    Finish,
    Increment,
    Message,
    Reasoning,
    Refusal,
    StartSample,
    Summary,
    Text,
    ToolCall,
    Usage,
)
from turntape.core.wire import structure_create
from turntape.transport.backends.base import BackendError, Batch
from turntape.transport.backends.script import Script
from turntape.transport.backends.scripted import ScriptedBackend

LOOKUP = {
    "type": "function",
    "name": "lookup",
    "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
}
ADD = {
    "type": "function",
    "name": "add",
    "parameters": {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]},
}
PATCH = {"type": "custom", "name": "apply_patch"}
AGENTS = {"type": "namespace", "name": "agents", "description": "", "tools": [{**LOOKUP, "name": "spawn"}]}


def start(input: Any = "hi", *, parent: Context | None = None, model: str = "m", **fields: Any) -> StartSample:
    """What the session asks for when a client sends ``input`` after ``parent``."""
    request = structure_create({"model": model, "input": input, **fields})
    return StartSample("smp_1", model, request, (parent or Context()).extend(request.input.items), cached=0)


def script(text: str) -> ScriptedBackend:
    return ScriptedBackend(Script.parse(text), seed="test")


async def batches(backend: ScriptedBackend, start: StartSample) -> list[tuple[float, Batch]]:
    """Each batch, with the seconds since the request."""
    began, got = trio.current_time(), list[tuple[float, Batch]]()
    async with backend.sample(start) as channel:
        async for batch in channel:
            got.append((trio.current_time() - began, batch))
    return got


async def take(backend: ScriptedBackend, start: StartSample) -> list[Increment]:
    return [increment for _, batch in await batches(backend, start) for increment in batch]


def text_of(increments: list[Increment], *kinds: type) -> str:
    return "".join(
        increment.text
        for increment in increments
        if isinstance(increment, Text | Reasoning | Refusal | Summary | Arguments)
        and isinstance(increment, kinds or Text)
    )


def calls_of(increments: list[Increment]) -> list[tuple[str, str]]:
    """Name and arguments of each call."""
    calls = list[tuple[str, str]]()
    for increment in increments:
        if isinstance(increment, ToolCall):
            calls.append((increment.name, ""))
        elif isinstance(increment, Arguments):
            calls[-1] = (calls[-1][0], calls[-1][1] + increment.text)
    return calls


def output(text: str, call_id: str = "call_1") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


# --- conditions --------------------------------------------------------------------------------------

RULE = "[[rule]]\nwhen = {{ {when} }}\nsay = [{{ text = 'yes' }}]\n[[rule]]\nsay = [{{ text = 'no' }}]"
TURN = [
    {"role": "developer", "content": "Be kind."},
    {"role": "user", "content": "an earlier question"},
    output("an earlier answer"),
    {
        "role": "user",
        "content": [{"type": "input_text", "text": "Please list"}, {"type": "input_text", "text": "FILES"}],
    },
    output("one"),
    output("the last", "call_2"),
]


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ("model = 'm'", True),
        ("model = ['x*', 'm*']", True),
        ("model = 'n'", False),
        ("user_contains = 'list'", True),
        ("user_contains = ['absent', 'FILES']", True),
        ("user_contains = 'earlier question'", False),
        (r"user_matches = '(?i)list\s+files'", True),
        ("user_matches = '^FILES'", False),
        ("outputs = 2", True),
        ("outputs = 3", False),
        ("min_outputs = 2, max_outputs = 2", True),
        ("min_outputs = 3", False),
        ("max_outputs = 1", False),
        ("output_contains = 'the last'", True),
        ("output_contains = 'one'", False),
        ("output_matches = 'last$'", True),
        ("tools = ['lookup', 'apply_patch']", True),
        ("tools = ['lookup', 'absent']", False),
        ("any_tool = ['absent', 'lookup']", True),
        ("any_tool = 'custom:apply_patch'", True),
        ("any_tool = 'function:apply_patch'", False),
        ("any_tool = 'agents.spawn'", True),
        ("any_tool = 'spawn'", True),
        ("any_tool = 'brought'", True),
        ("no_tool = '*'", False),
        ("no_tool = 'absent'", True),
        ("mentions = 'kind'", True),
        ("mentions = 'earlier answer'", True),
        ("mentions = 'instructed'", True),
        ("mentions = 'nobody said this'", False),
        ("outputs = 2, model = 'n'", False),
    ],
)
async def test_a_rule_is_played_when_all_its_conditions_hold(when: str, expected: bool) -> None:
    """Each condition looks at what its name says, and a rule needs all of them."""
    brought = {"type": "additional_tools", "role": "developer", "tools": [{**LOOKUP, "name": "brought"}]}
    asked = start([brought, *TURN], tools=[LOOKUP, PATCH, AGENTS], instructions="as instructed")
    said = text_of(await take(script(RULE.format(when=when)), asked))
    assert said == ("yes" if expected else "no")


async def test_conditions_hold_over_the_whole_chain() -> None:
    """What earlier turns brought counts in a continuation, and a fork has counts of its own."""
    backend = script(
        "[[rule]]\nwhen = { outputs = 2, mentions = 'magic' }\nsay = [{ text = 'two of {last_user}' }]\n"
        "[[rule]]\nsay = [{ text = '{n_outputs}' }]"
    )
    first = start("magic")
    one = start([output("1")], parent=first.context)
    two = start([output("2")], parent=one.context)
    fork = start("other", parent=one.context)
    assert [text_of(await take(backend, each)) for each in (first, one, two, fork)] == ["0", "1", "two of magic", "0"]


async def test_a_turn_reads_only_what_is_new() -> None:
    """A long conversation costs no more per turn than a short one: no earlier item is looked at again."""
    backend = script(
        "[[rule]]\nwhen = { mentions = 'x' }\nsay = [{ text = '' }]\n[[rule]]\nsay = [{ text = '{n_outputs}' }]"
    )
    context = start("question").context
    for n in range(500):
        context = context.extend([Item.of(output(str(n)))])
    await take(backend, start([output("before")], parent=context))
    for link in context.links():
        for item in link.items:
            item.value.clear()  # whoever reads it again finds nothing to count
    assert text_of(await take(backend, start([output("new")], parent=context))) == "501"


async def test_a_rule_with_times_gives_way_to_the_next() -> None:
    """``times`` lets a server fail once and then answer."""
    backend = script("[[rule]]\ntimes = 1\nsay = [{ text = 'first' }]\n[[rule]]\nsay = [{ text = 'then' }]")
    assert [text_of(await take(backend, start())) for _ in range(3)] == ["first", "then", "then"]


async def test_no_rule_that_holds_is_a_refusal_that_says_why() -> None:
    """A script without an answer refuses the request, with what it saw and what to add."""
    with pytest.raises(BackendError, match=r"2 tool outputs since the user said 'Please list.*Add a last") as caught:
        await take(script("[[rule]]\nwhen = { model = 'other' }\nsay = [{ text = '' }]"), start(TURN))
    assert caught.value.status == 400


# --- what is said --------------------------------------------------------------------------------------


async def test_every_kind_of_step_reaches_the_session_in_order() -> None:
    """Reasoning, summaries, messages with their phase, refusals and calls come as the script lists them."""
    backend = script("""
        [[rule]]
        say = [
          { reasoning = "hm" },
          { summary = ["one", "two"] },
          { text = "a", phase = "commentary" },
          { text = "b" },
          { refusal = "c" },
          { call = "lookup", arguments = { key = "{last_user}" } },
          { call = "agents.spawn", arguments = "{not json" },
          { call = "custom:apply_patch", arguments = "*** Begin" },
          { call = "unheard_of", call_id = "call_mine" },
        ]
    """)
    said = await take(backend, start('say "hi"', tools=[LOOKUP, PATCH, AGENTS]))
    calls = [increment for increment in said if isinstance(increment, ToolCall)]
    assert said[:8] == [
        Reasoning("hm"),
        Summary("one", 0),
        Summary("two", 1),
        Message("commentary"),
        Text("a"),
        Message(),
        Text("b"),
        Refusal("c"),
    ]
    assert [(call.name, call.namespace, call.custom) for call in calls] == [
        ("lookup", None, False),
        ("spawn", "agents", False),
        ("apply_patch", None, True),
        ("unheard_of", None, False),
    ]
    assert calls_of(said) == [
        ("lookup", '{"key":"say \\"hi\\""}'),
        ("spawn", "{not json"),
        ("apply_patch", "*** Begin"),
        ("unheard_of", "{}"),
    ]
    assert calls[-1].call_id == "call_mine"
    assert isinstance(said[-1], Finish) and said[-1].reason == "stop"


@pytest.mark.parametrize(
    "text", ["", "Hello, world!", "  two  spaces\n\n\tand tabs ", "naïve 日本語 🙂🙂🙂🙂🙂", "a" * 1000]
)
async def test_tokens_join_to_the_text(text: str) -> None:
    """Cutting a text into tokens loses and adds nothing."""
    said = await take(script(f"[[rule]]\nsay = [{{ text = {orjson.dumps(text).decode()} }}]"), start())
    assert text_of(said) == text
    assert all(0 < len(increment.text) <= 16 for increment in said if isinstance(increment, Text))


async def test_templates_replace_their_names_and_nothing_else() -> None:
    """Braces that are no template stay, and what a template brings is not read again."""
    backend = script("[[rule]]\nsay = [{ text = '{model} {last_output} {unknown} {{n_outputs}} ${last_user}' }]")
    said = text_of(await take(backend, start([{"role": "user", "content": "{model}"}, output("out")])))
    assert said == "m out {unknown} {1} ${model}"


async def test_a_template_is_bounded() -> None:
    """A huge tool output does not come back whole."""
    said = text_of(await take(script("[[rule]]\nsay = [{ text = '{last_output}' }]"), start([output("x" * 100_000)])))
    assert said == "x" * 2000


async def test_missing_arguments_are_the_least_that_fits() -> None:
    """A call without arguments gets what its schema requires."""
    said = await take(script("[[rule]]\nsay = [{ call = 'function:*' }]"), start(tools=[PATCH, LOOKUP]))
    assert calls_of(said) == [("lookup", '{"key":""}')]


async def test_call_ids_are_fresh_or_repeatable() -> None:
    """Without a seed no two calls share an id; with one, the same conversation gives the same ids."""
    parsed = Script.parse("[[rule]]\nsay = [{ call = 'lookup' }, { call = 'lookup' }]")

    async def ids(backend: ScriptedBackend, text: str) -> list[str]:
        return [each.call_id for each in await take(backend, start(text)) if isinstance(each, ToolCall)]

    random = [*await ids(ScriptedBackend(parsed), "a"), *await ids(ScriptedBackend(parsed), "a")]
    assert len(set(random)) == 4
    assert all(len(name) == 29 and name.startswith("call_") for name in random)
    seeded = [*await ids(ScriptedBackend(parsed, seed="s"), "a"), *await ids(ScriptedBackend(parsed, seed="s"), "b")]
    assert len(set(seeded)) == 4
    assert seeded[:2] == await ids(ScriptedBackend(parsed, seed="s"), "a")


# --- how it ends ---------------------------------------------------------------------------------------


async def test_usage_counts_what_was_said() -> None:
    """Output tokens are the tokens that came, reasoning among them; input is estimated over the whole prompt."""
    backend = script("[[rule]]\nsay = [{ reasoning = 'so so' }, { text = 'yes yes yes' }]")
    finish = (await take(backend, start(tools=[LOOKUP])))[-1]
    later = (await take(backend, start(tools=[LOOKUP], instructions="x" * 400)))[-1]
    assert isinstance(finish, Finish) and finish.usage is not None
    assert isinstance(later, Finish) and later.usage is not None
    assert (finish.usage.output_tokens, finish.usage.reasoning_tokens) == (5, 2)
    assert later.usage.input_tokens == finish.usage.input_tokens + 100


async def test_a_script_can_report_usage_of_its_own() -> None:
    """Counts given in the script replace those that were counted, one by one."""
    backend = script(
        "[[rule]]\nsay = [{ text = 'a' }, { finish = 'stop', usage = { input_tokens = 7, cached_tokens = 3 } }]"
    )
    assert (await take(backend, start()))[-1] == Finish("stop", Usage(7, 1, 3, 0))


@pytest.mark.parametrize("reason", ["stop", "length", "content_filter"])
async def test_a_script_decides_the_finish(reason: str) -> None:
    """The sample ends for the reason given."""
    last = (await take(script(f"[[rule]]\nsay = [{{ text = 'a' }}, {{ finish = '{reason}' }}]"), start()))[-1]
    assert isinstance(last, Finish) and last.reason == reason


@pytest.mark.parametrize(
    ("n_max", "said", "reason"), [(1, "one", "length"), (2, "one two", "length"), (3, "one two three", "stop")]
)
async def test_max_output_tokens_cuts(n_max: int, said: str, reason: str) -> None:
    """No more tokens come than were allowed, and the finish says so exactly if something was left unsaid."""
    got = await take(script("[[rule]]\nsay = [{ text = 'one two three' }]"), start(max_output_tokens=n_max))
    last = got[-1]
    assert isinstance(last, Finish) and last.usage is not None
    assert (text_of(got), last.reason, last.usage.output_tokens) == (said, reason, n_max)


async def test_a_cut_stream_has_no_finish() -> None:
    """``cut`` ends the stream as a broken upstream does."""
    said = await take(script("[[rule]]\nsay = [{ text = 'half' }, { cut = true }]"), start())
    assert said == [Message(), Text("half")]


async def test_a_failure_at_the_front_is_a_refusal() -> None:
    """A rule that begins with ``fail`` refuses before the request is accepted, with all the script says of it."""
    backend = script(
        "[[rule]]\nsay = [{ fail = 'rate_limit_exceeded', status = 429, retry_after = 1.5, message = 'Slow.', param = 'x' }]"
    )
    got = list[Batch]()
    with pytest.raises(BackendError, match=r"^Slow\.$") as caught:
        async with backend.sample(start()) as channel:
            async for batch in channel:
                got.append(batch)
    assert got == []
    error = caught.value
    assert (error.code, error.status, error.retry_after, error.param) == ("rate_limit_exceeded", 429, "1.5", "x")


@pytest.mark.parametrize(
    "say", ["{ text = 'a' }, { fail = 'server_error' }", "{ fail = 'server_error', started = true }"]
)
async def test_a_failure_later_follows_what_was_said(say: str) -> None:
    """A failure after the start comes after acceptance and after everything before it."""
    got = list[Increment]()
    n_batches = 0
    with pytest.raises(BackendError):
        async with script(f"[[rule]]\nsay = [{say}]").sample(start()) as channel:
            async for batch in channel:
                n_batches += 1
                got += batch
    assert n_batches > 0
    assert text_of(got) == ("a" if "text" in say else "")


async def test_a_hanging_sample_ends_when_nobody_wants_it(autojump_clock: trio.testing.MockClock) -> None:
    """``hang`` says nothing more for as long as anybody waits, and leaves nothing running."""
    got = list[Batch]()
    with trio.move_on_after(3600) as scope:
        async with script("[[rule]]\nsay = [{ text = 'a' }, { hang = true }]").sample(start()) as channel:
            async for batch in channel:
                got.append(batch)
    assert scope.cancelled_caught
    assert got == [(), (Message(), Text("a"))]


# --- when it comes ---------------------------------------------------------------------------------------


async def test_the_speeds_are_kept_exactly(autojump_clock: trio.testing.MockClock) -> None:
    """Acceptance, first token and every later token come at the second the script says."""
    backend = script(
        "accept_s = 1\nfirst_token_s = 0.25\ntokens_per_s = 10\n[[rule]]\nsay = [{ text = 'one two three' }]"
    )
    got = await batches(backend, start())
    assert [round(at, 6) for at, _ in got] == [1.0, 1.25, 1.35, 1.45]
    assert [batch[: 2 - (n > 1)] for n, (_, batch) in enumerate(got)] == [
        (),
        (Message(), Text("one")),
        (Text(" two"),),
        (Text(" three"),),
    ]


async def test_a_fast_stream_brings_all_that_is_due_at_once(autojump_clock: trio.testing.MockClock) -> None:
    """At thousands of tokens a second the rate is kept, with no more than 250 batches a second."""
    backend = script("tokens_per_s = 4000\n[[rule]]\nsay = [{ text = 'word ', repeat = 2000 }]")
    got = await batches(backend, start())
    n_tokens = sum(isinstance(each, Text) for _, batch in got for each in batch)
    assert got[-1][0] == pytest.approx(n_tokens / 4000, abs=0.005)
    assert len(got) < 250 * got[-1][0] + 3


async def test_flat_out_comes_in_bounded_batches(autojump_clock: trio.testing.MockClock) -> None:
    """Without a speed nothing waits, and no batch is larger than 64 increments and a beginning."""
    got = await batches(script("[[rule]]\nsay = [{ text = 'word ', repeat = 1000 }]"), start())
    assert got[-1][0] == 0
    assert max(len(batch) for _, batch in got) <= 66
    assert text_of([each for _, batch in got for each in batch]) == "word " * 1000


async def test_flat_out_lets_others_run() -> None:
    """An endless fast stream does not hold the loop: a timeout ends it."""
    with trio.move_on_after(0.05) as scope:
        async with script("[[rule]]\nsay = [{ text = 'word ', repeat = 1000000 }]").sample(start()) as channel:
            async for _ in channel:
                pass
    assert scope.cancelled_caught


async def test_a_pause_is_silence_between_two_steps(autojump_clock: trio.testing.MockClock) -> None:
    """What was said before a pause is out before it."""
    got = await batches(script("[[rule]]\nsay = [{ text = 'a' }, { pause = 5 }, { text = 'b' }]"), start())
    assert [(at, text_of(list(batch))) for at, batch in got] == [(0, ""), (0, "a"), (5, "b")]


async def test_the_narrower_speed_wins(autojump_clock: trio.testing.MockClock) -> None:
    """A rule's speed goes before its model's, and that before the script's, value by value."""
    backend = script("""
        accept_s = 8
        first_token_s = 8
        tokens_per_s = 0.1
        [model."fast*"]
        first_token_s = 4
        tokens_per_s = 0.5
        [[rule]]
        tokens_per_s = 1
        say = [{ text = "one two" }]
    """)
    assert [at for at, _ in await batches(backend, start(model="faster"))] == [8, 12, 13]
    assert [at for at, _ in await batches(backend, start(model="slow"))] == [8, 16, 17]


async def test_nothing_is_made_until_it_is_asked_for(autojump_clock: trio.testing.MockClock) -> None:
    """A client that does not read keeps the stream from running ahead."""
    async with script("[[rule]]\nsay = [{ text = 'word ', repeat = 1000000 }]").sample(start()) as channel:
        assert await channel.receive() == ()
        await trio.sleep(100)
        assert len(await channel.receive()) <= 66


# --- what the request demands ------------------------------------------------------------------------------

SCRIPT = """
[[rule]]
when = { tools = "lookup" }
say = [{ reasoning = "hm" }, { call = "lookup", arguments = { key = "k" } }, { call = "add", arguments = { a = 1 } }]
[[rule]]
when = { user_contains = "call blindly" }
say = [{ call = "lookup" }]
[[rule]]
say = [{ text = "text" }]
"""


def function(name: str) -> dict[str, str]:
    return {"type": "function", "name": name}


@pytest.mark.parametrize(
    ("choice", "calls", "text"),
    [
        ("auto", ["lookup", "add"], ""),
        ("required", ["lookup", "add"], ""),
        ("none", [], "text"),
        (function("lookup"), ["lookup"], ""),
        (function("add"), ["add"], ""),
        ({"type": "allowed_tools", "mode": "auto", "tools": [function("add")]}, [], "text"),
        ({"type": "allowed_tools", "mode": "required", "tools": [function("add")]}, ["add"], ""),
    ],
)
async def test_tool_choice_is_honoured(choice: Any, calls: list[str], text: str) -> None:
    """No call comes that the choice rules out, and one comes where the choice demands it."""
    said = await take(script(SCRIPT), start(tools=[LOOKUP, ADD], tool_choice=choice))
    assert [name for name, _ in calls_of(said)] == calls
    assert text_of(said) == text


async def test_a_required_call_fits_its_schema() -> None:
    """Where a call is demanded and the script makes none, the first tool is called with the least that fits."""
    said = await take(script("[[rule]]\nsay = [{ text = 'text' }]"), start(tools=[ADD, LOOKUP], tool_choice="required"))
    assert calls_of(said) == [("add", '{"a":0}')]
    assert text_of(said) == ""


async def test_a_rule_that_may_not_call_says_so() -> None:
    """A rule of nothing but a call is never silent when the call is ruled out."""
    said = await take(script(SCRIPT), start("call blindly", tools=[LOOKUP], tool_choice="none"))
    assert calls_of(said) == []
    assert "does not allow that call" in text_of(said)


async def test_one_call_at_a_time_if_asked() -> None:
    """``parallel_tool_calls: false`` leaves the first call."""
    said = await take(script(SCRIPT), start(tools=[LOOKUP, ADD], parallel_tool_calls=False))
    assert [name for name, _ in calls_of(said)] == ["lookup"]


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "n": {"type": "integer", "minimum": 3}},
    "required": ["name", "n"],
    "additionalProperties": False,
}


async def test_structured_output_fits_its_schema() -> None:
    """With a JSON schema the answer is JSON that fits it, whatever the script would say."""
    text = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}}
    said = await take(script("[[rule]]\nsay = [{ text = 'a' }, { text = 'b' }]"), start(text=text))
    assert orjson.loads(text_of(said)) == {"name": "", "n": 3}


async def test_a_script_may_bring_its_own_json() -> None:
    """A rule that speaks JSON is played as it is, and stays JSON whatever its templates bring."""
    text = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}
    backend = script("""[[rule]]\nsay = [{ text = '{"name":"{last_user}","n":9}' }]""")
    said = await take(backend, start('a "quoted" \\ line\n', text=text))
    assert orjson.loads(text_of(said)) == {"name": 'a "quoted" \\ line\n', "n": 9}


async def test_json_mode_wraps_the_text() -> None:
    """``json_object`` gives the text as an object."""
    said = await take(
        script("[[rule]]\nsay = [{ text = 'say: {last_user}' }]"),
        start('"hi"', text={"format": {"type": "json_object"}}),
    )
    assert orjson.loads(text_of(said)) == {"text": 'say: "hi"'}


async def test_a_schema_without_an_example_is_the_clients_mistake() -> None:
    """A schema that nothing can be made for is refused by name, in the format and in a tool; it crashes nothing."""
    endless = {"type": "array", "minItems": 1_000_000_000}
    text = {"format": {"type": "json_schema", "name": "x", "schema": endless}}
    with pytest.raises(BackendError, match=r"schema of text\.format, but that asks for more") as refused:
        await batches(script('[[rule]]\nsay = [{ text = "hi" }]'), start(text=text))
    assert (refused.value.status, refused.value.code, refused.value.param) == (
        400,
        "invalid_prompt",
        "text.format.schema",
    )
    tool = {"type": "function", "name": "f", "parameters": {"type": "object", "required": 7}}
    with pytest.raises(BackendError, match="schema of tool 'f', but that is no JSON Schema") as failed:
        await batches(script('[[rule]]\nsay = [{ call = "f" }]'), start(tools=[tool]))
    assert (failed.value.status, failed.value.param) == (400, "tools")
