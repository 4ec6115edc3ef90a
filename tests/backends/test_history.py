"""What a backend sends for a turn follows what is new: counted in calls and in pieces, never in seconds."""

import sys

import orjson
import pytest
from attrs import define, field
from token_server import vocabulary

from turntape.core.canonical import Item
from turntape.core.context import Context
from turntape.core.harmony import START
from turntape.core.seam import StartSample
from turntape.core.tools import ToolDefinition
from turntape.core.wire import ResponseCreate, converter
from turntape.transport.backends import tokens_harmony
from turntape.transport.backends.chat_dialect import DEFAULT
from turntape.transport.backends.chat_request import encode_request
from turntape.transport.backends.messages import Renderer
from turntape.transport.backends.tokens_harmony import HarmonyRenderer

TOOLS = [{"type": "function", "name": f"tool_{n}", "description": "d" * 500} for n in range(20)]
USER = {"type": "message", "role": "user", "content": "Go."}
CHECKED = converter.structure(TOOLS, tuple[ToolDefinition, ...])


@define
class Asker:
    """Asks a renderer turn after turn for what is sent, and keeps what that took.

    Attributes:
        costs: calls of Python and C functions for each turn.
        sent: pieces of the latest request.
    """

    context: Context = field(factory=lambda: Context().extend([Item.of(USER)]))
    costs: list[int] = field(factory=list)
    sent: tuple[bytes, ...] = ()

    async def turn(self, ask, tools=CHECKED):
        start = StartSample("smp", "m", ResponseCreate(tools=tools), self.context, 0)
        n = 0

        def profile(frame, event, argument):
            nonlocal n
            n += event in ("call", "c_call")

        sys.setprofile(profile)
        try:
            self.sent = await ask(start)
        finally:
            sys.setprofile(None)
        self.costs.append(n)
        call_id = f"call_{len(self.costs)}"
        call = {"type": "function_call", "call_id": call_id, "name": "tool_1", "arguments": "{}"}
        self.context = self.context.extend([Item.of(call)])
        output = {"type": "function_call_output", "call_id": call_id, "output": "x" * 50}
        self.context = self.context.extend([Item.of(output)])


def chat():
    renderer = Renderer(DEFAULT)

    async def ask(start):
        rendered = renderer.render(start.context, start.request.callable_tools)
        return encode_request("m", start.request, rendered, DEFAULT)

    return ask


def tokens():
    renderer = HarmonyRenderer(vocabulary(), lambda: "call")

    async def ask(start):
        return tuple((await renderer.prompt(start)).pieces)

    return ask


@pytest.mark.parametrize("backend", [chat, tokens])
async def test_turn_400_costs_what_turn_20_did_and_is_a_few_strings(backend):
    """At most 1.05 times the calls, and its history is no string for each turn."""
    ask, asker = backend(), Asker()
    for _ in range(400):
        await asker.turn(ask)
    early, late = (sorted(asker.costs[at - 20 : at]) for at in (20 + 20, 400))
    assert late[10] <= 1.05 * early[10], (early, late)
    assert len(asker.sent) < 100


def history(sent: bytes) -> bytes:
    """A request without its end: a chat's settings, or the ids that open the answer."""
    messages, has_settings, _ = sent.partition(b'],"tools"')
    return messages if has_settings else sent.rpartition(b",%d," % START)[0]


@pytest.mark.parametrize("backend", [chat, tokens])
async def test_what_was_sent_is_how_the_next_request_begins(backend):
    """A model server's prefix cache finds all of the history again."""
    ask, asker = backend(), Asker()
    before = b""
    for _ in range(150):
        await asker.turn(ask)
        sent = b"".join(asker.sent)
        assert sent.startswith(before)
        before = history(sent)


async def test_a_renderer_that_keeps_nothing_sends_the_same_and_encodes_all_of_it_again():
    """The switch for measuring changes what a prompt costs, and no id of it."""
    keeping = HarmonyRenderer(vocabulary(), lambda: "call", today=lambda: "2026-11-29")
    forgetful = HarmonyRenderer(vocabulary(), lambda: "call", today=lambda: "2026-11-29", keeps=False)

    async def ask(start):
        one, other = await keeping.prompt(start), await forgetful.prompt(start)
        assert b"".join(one.pieces) == b"".join(other.pieces) and one.n_tokens == other.n_tokens
        return one.pieces

    asker = Asker()
    for _ in range(10):
        await asker.turn(ask)
    before = keeping.n_encoded, forgetful.n_encoded
    await asker.turn(ask)
    assert keeping.n_encoded - before[0] < 100
    assert forgetful.n_encoded - before[1] > 1000


async def test_tools_become_functions_once_for_all_conversations(monkeypatch):
    """The same JSON in every request of two conversations is looked at once; other JSON is other functions."""
    made = []
    plain = tokens_harmony._function
    monkeypatch.setattr(tokens_harmony, "_function", lambda tool, names: made.append(tool) or plain(tool, names))
    ask, prompts = tokens(), []
    for tools in (TOOLS, TOOLS, [*TOOLS, {**TOOLS[0], "name": "another"}]):
        asker = Asker()
        for _ in range(3):
            checked = converter.structure(orjson.loads(orjson.dumps(tools)), tuple[ToolDefinition, ...])
            await asker.turn(ask, tools=checked)
        prompts.append(asker.sent)
    assert len(made) == 20 + 21
    assert prompts[0] == prompts[1] != prompts[2]
