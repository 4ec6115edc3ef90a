"""What a chat template is told besides the conversation: the effort of a request, and what the configuration says."""

from pathlib import Path
from typing import Any

import pytest
import trio
from backends import chat_model
from backends.cases import ask, batches
from backends.rig import Playing
from backends.rig_template import LlamaCpp, over, plain, said
from backends.test_tokens_files import Agent, answering
from chat_server import Reply

from turntape.core.wire import structure_create
from turntape.transport.backends.template_variables import looks_at, variables
from turntape.transport.backends.tokens import TokensBackend
from turntape.transport.http_client import HttpClient
from turntape.transport.http_connections import Connections

SWITCHED = chat_model.TEMPLATE.replace(
    "{%- if add_generation_prompt %}",
    "{{- '[' ~ persona ~ ']' if persona }}"
    "{{- '[no thinking]' if enable_thinking is defined and enable_thinking is false }}"
    "{%- if add_generation_prompt %}",
)


@pytest.mark.parametrize(
    ("code", "is_read"),
    [
        ("{%- if enable_thinking is defined and not enable_thinking %}", True),
        ("{{ '/nothink' if (enable_thinking is defined) }}", True),
        ("{% if not enable_thinking is defined %}", True),
        ("{{ message.enable_thinking }}", False),
        ("{{ 'enable_thinking' }}", False),
        ("{%- set enable_thinking = 5 %}", False),
        ("{% if enable_thinking == 5 %}", True),
        ("enable_thinking", False),
        ("{{ enable_thinking_more }}", False),
    ],
)
def test_only_a_variable_that_is_read_counts(code: str, is_read: bool) -> None:
    """Attributes, texts and what a template sets itself are none of its variables."""
    assert looks_at(code, "enable_thinking") is is_read


@pytest.mark.parametrize(
    ("effort", "told"),
    [
        (None, {}),
        ("none", {"enable_thinking": False, "thinking": False, "reasoning_effort": "none"}),
        ("minimal", {"enable_thinking": True, "thinking": True, "reasoning_effort": "minimal"}),
        ("high", {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}),
    ],
)
def test_an_effort_in_the_template_s_own_words(effort: str | None, told: dict[str, Any]) -> None:
    """Each variable that the template knows follows the effort; what the configuration says stands before it."""
    template = "{{ enable_thinking }}{{ thinking }}{{ reasoning_effort }}"
    request = structure_create({"model": "m", "input": "", "reasoning": {"effort": effort}})
    assert variables(template, request, {}) == told
    assert variables("{{ messages }}", request, {}) == {}
    assert variables(template, request, {"thinking": 5}) == {**told, "thinking": 5}


async def test_the_prompt_follows_effort_and_configuration(tmp_path: Path) -> None:
    """Files of a model: the template's own words for no thinking are in the prompt of a request that asks for none."""
    async with trio.open_nursery() as nursery:
        agent = Agent("vllm", nursery, chat_model.write(tmp_path / "m", SWITCHED), answering("Done.", "Done."))
        agent.backend.variables = {"persona": "pirate"}
        for effort, is_told in (("none", True), ("high", False)):
            await agent.turn("Go.", reasoning={"effort": effort})
            text = chat_model.decode(agent.prompt)
            assert ("[no thinking]" in text.rpartition("<|im_end|>")[2]) is is_told
            assert "[pirate]" in text
        nursery.cancel_scope.cancel()


async def test_llama_cpp_is_told_in_its_own_field() -> None:
    """Its template route takes variables as ``chat_template_kwargs``; marks of the family are kept as text."""
    asked: list[dict[str, Any]] = []

    class Server(LlamaCpp):
        def route(self, request: dict[str, Any]) -> Reply:
            if self.paths[-1] == "/apply-template":
                asked.append(request)
            if self.paths[-1] == "/props":
                return Reply(
                    [b'{"chat_template": "{% if tools %}{{ thinking }}[TOOL_CALLS][ARGS]"}'],
                    headers=(("content-type", "application/json"),),
                )
            return super().route(request)

    async with trio.open_nursery() as nursery:
        server = Server(nursery, lambda request: Reply([said("Hi."), over()]), plain)
        client = HttpClient(Connections(connect=server.connect))
        backend = TokensBackend("http://model.test", client=client, variables={"persona": "pirate"})
        await batches(Playing(backend), ask("Go.", reasoning={"effort": "none"}))
        assert asked[-1]["chat_template_kwargs"] == {"thinking": False, "persona": "pirate"}
        assert {"[TOOL_CALLS]", "[ARGS]"} <= set(server.bodies[-1]["preserved_tokens"])
        await backend.aclose()
        nursery.cancel_scope.cancel()
