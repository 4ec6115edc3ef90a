"""Tool names there and back, tools as functions, and the custom input that is decoded while it comes."""

import itertools
import json
import re
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turntape.core.structuring import structure
from turntape.core.tools import Tool, ToolChoice, ToolDefinition, callable_tools
from turntape.transport.backends.chat_dialect import DEFAULT, Dialect
from turntape.transport.backends.chat_tools import Offer, ToolKey, ToolNames, request_fields
from turntape.transport.backends.custom_input import CustomInput

GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'}


def keys(*specs: str) -> list[ToolKey]:
    """``"ns.name"`` or ``"name"``."""
    return [ToolKey(spec.split(".")[-1], spec.split(".")[0] if "." in spec else None) for spec in specs]


def wires(names: ToolNames, *specs: str) -> list[str]:
    return [names.wire[key] for key in keys(*specs)]


# --- names -----------------------------------------------------------------------------------------------


def test_a_name_in_a_namespace_is_short_where_it_is_unique() -> None:
    """Namespaces are opened; only names that would clash carry theirs."""
    specs = ("exec", "agents.spawn", "agents.wait", "files.wait", "files.exec")
    names = ToolNames().including(keys(*specs))
    assert wires(names, *specs) == ["exec", "spawn", "agents__wait", "files__wait", "files__exec"]


def test_a_name_once_given_stays() -> None:
    """Tools that come later never rename what the conversation already uses."""
    names = ToolNames().including(keys("agents.wait"))
    later = names.including(keys("files.wait", "wait", "agents.wait"))
    assert wires(later, "agents.wait", "files.wait") == ["wait", "files__wait"]
    assert later.wire[ToolKey("wait")] not in ("wait", "files__wait")
    assert names.including(keys("agents.wait")) is names
    assert ToolKey("wait") not in names.wire, "the older names are as they were"


NAME = st.text(st.sampled_from("ab-_.é \ud800__"), max_size=70)
KEY = st.builds(ToolKey, NAME, st.none() | NAME, st.booleans())


@given(st.lists(st.lists(KEY, max_size=6), max_size=4))
def test_any_names_are_allowed_and_find_their_way_back(groups: list[list[ToolKey]]) -> None:
    """Whatever clients call their tools, every name obeys the servers' rule and belongs to one tool for good."""
    names, given_before = ToolNames(), dict[ToolKey, str]()
    for group in groups:
        names = names.including(group)
        assert given_before.items() <= names.wire.items()
        given_before = names.wire
    for key, name in names.wire.items():
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name)
        assert names.key(name) == key
    assert len(set(names.wire.values())) == len(names.wire)


def test_an_unknown_name_is_a_function_of_that_name() -> None:
    """A call of a tool that nobody offered reaches the client, who can say so."""
    assert ToolNames().key("nobody") == ToolKey("nobody")


# --- tools -----------------------------------------------------------------------------------------------


def tools(*definitions: dict[str, Any]) -> tuple[Tool, ...]:
    return callable_tools(structure(list(definitions), tuple[ToolDefinition, ...]))  # type: ignore[arg-type]


def functions(offer: Offer) -> list[dict[str, Any]]:
    return [orjson.loads(encoded)["function"] for encoded in offer.encoded]


def test_every_kind_of_tool_becomes_a_function() -> None:
    """Functions keep their schema, custom tools take one string, hosted ones are left out."""
    offered = tools(
        {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True},
        {"type": "function", "name": "g"},
        {"type": "custom", "name": "patch", "description": "Edits files.", "format": GRAMMAR},
        {"type": "namespace", "name": "ns", "description": "", "tools": [{"type": "function", "name": "h"}]},
        {"type": "web_search"},
    )
    f, g, patch, h = functions(Offer().renewed(offered, DEFAULT))
    assert f == {"name": "f", "description": "d", "parameters": {"type": "object"}}
    assert g == {"name": "g", "parameters": {"type": "object", "properties": {}}}
    assert h["name"] == "h"
    assert patch["parameters"]["required"] == ["input"]
    assert "Edits files." in patch["description"] and 'start: "x"' in patch["description"]
    assert functions(Offer().renewed(offered, Dialect(strict=True)))[0]["strict"] is True


def test_the_same_tools_are_rendered_once() -> None:
    """A client that sends its tools with every turn costs no second rendering."""
    definition = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    offer = Offer().renewed(tools(definition), DEFAULT)
    assert offer.renewed(tools(dict(definition)), DEFAULT) is offer
    assert offer.renewed(tools({**definition, "description": "new"}), DEFAULT) is not offer


def test_a_tool_that_is_defined_again_is_offered_once() -> None:
    """The latest definition of a tool holds, since servers refuse two functions of one name."""
    offered = tools({"type": "function", "name": "f"}, {"type": "function", "name": "f", "description": "new"})
    [only] = functions(Offer().renewed(offered, DEFAULT))
    assert only["description"] == "new"


@pytest.mark.parametrize(
    ("choice", "dialect", "expected", "n_tools"),
    [
        ("auto", DEFAULT, None, 3),
        ("none", DEFAULT, "none", 3),
        ("required", DEFAULT, "required", 3),
        ({"type": "function", "name": "g"}, DEFAULT, "required", 1),
        (
            {"type": "custom", "name": "p"},
            Dialect(tool_choices=("none", "required", "named")),
            {"type": "function", "function": {"name": "p"}},
            3,
        ),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]}, DEFAULT, None, 1),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"name": "f"}, {"name": "g"}]},
            DEFAULT,
            "required",
            2,
        ),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]}, DEFAULT, "none", 3),
    ],
)
def test_tool_choice(choice: Any, dialect: Dialect, expected: Any, n_tools: int) -> None:
    """Each choice as any server honours it: by a string, and by offering only what may be called."""
    offered = tools(
        {"type": "function", "name": "f"}, {"type": "function", "name": "g"}, {"type": "custom", "name": "p"}
    )
    fields = request_fields(Offer().renewed(offered, dialect), structure(choice, ToolChoice), dialect, None)
    sent = orjson.loads(b"{" + fields[1:] + b"}")
    assert sent.get("tool_choice") == expected
    assert len(sent["tools"]) == n_tools


def test_without_tools_nothing_about_tools_is_sent() -> None:
    """vLLM refuses an empty list, and others a choice without tools."""
    assert request_fields(Offer(), ToolChoice("required"), DEFAULT, False) == b""


def test_parallel_calls_are_mentioned_only_to_forbid_them() -> None:
    """What every server does anyway is left out, for those that refuse fields they do not know."""
    offer = Offer().renewed(tools({"type": "function", "name": "f"}), DEFAULT)
    for parallel, expected in ((True, False), (None, False), (False, True)):
        assert (b"parallel_tool_calls" in request_fields(offer, ToolChoice(), DEFAULT, parallel)) is expected


# --- custom input ----------------------------------------------------------------------------------------


def decoded(text: str, cuts: list[int]) -> tuple[str, list[str]]:
    """The whole input, and the pieces before the end."""
    decoder, edges = CustomInput(), [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    fed = [decoder.feed(text[a:b]) for a, b in itertools.pairwise(edges)]
    return "".join(fed) + decoder.end(), fed


CUTS = st.lists(st.integers(0, 10_000), max_size=15)
TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('"\\\n\U0001f600/u{}'))


@given(TEXT, st.booleans(), st.sampled_from([(",", ":"), (", ", ": ")]), CUTS)
def test_input_is_decoded_wherever_it_is_cut(text: str, ascii_only: bool, separators: Any, cuts: list[int]) -> None:
    """The input comes out as it was, whatever the escapes and the fragments, and no piece holds half a character."""
    arguments = json.dumps({"input": text, "more": 1}, ensure_ascii=ascii_only, separators=separators)
    whole, fed = decoded(arguments, cuts)
    assert whole == text
    for piece in fed:
        piece.encode()


@given(st.text(st.sampled_from('\\u"d83Dc0eE 0x') | st.characters(exclude_categories=["Cs"])), CUTS)
def test_any_arguments_give_an_input(arguments: str, cuts: list[int]) -> None:
    """No arguments are so broken that the decoder fails, and how they were cut never matters."""
    for text in (arguments, '{"input":"' + arguments):
        assert decoded(text, cuts)[0] == decoded(text, [])[0]
        decoded(text, cuts)[0].encode()


def test_input_is_passed_on_as_it_comes() -> None:
    """What is certain does not wait for the end."""
    decoder = CustomInput()
    assert decoder.feed('{"inp') == ""
    assert decoder.feed('ut": "a\\') == "a"
    assert decoder.feed("nb\\ud83d") == "\nb"
    assert decoder.feed('\\ude00c"') == "\U0001f600c"
    assert decoder.feed("}") == decoder.end() == ""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"patch":"x"}', "x"),
        ('{"note":1,"input":"x","other":"y"}', "x"),
        ('"x"', "x"),
        ("*** Begin Patch\n", "*** Begin Patch\n"),
        ('{"input": 5}', '{"input": 5}'),
        ("{}", ""),
        ("", ""),
        ('{"inp', ""),
        ('{"input":"cut sho', "cut sho"),
        ('{"input":"half \\ud83d', "half \ufffd"),
        ('{"input":"lone \\ude00 low"}', "lone \ufffd low"),
        ('{"input":"odd \\q"}', "odd q"),
        ('{"input":"raw\nbreak"}', "raw\nbreak"),
    ],
)
def test_input_of_models_that_do_not_keep_to_the_schema(arguments: str, expected: str) -> None:
    """Free text, other keys, cut and broken JSON: the tool gets what was most likely meant."""
    for cuts in ([], list(range(len(arguments)))):
        assert decoded(arguments, cuts)[0] == expected
