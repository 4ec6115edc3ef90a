"""Harmony against OpenAI's own package: the same conversation is the same tokens, and every sample can be read."""

import gzip
import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turntape.core.harmony import Function, Harmony
from turntape.transport.tokenizers import PATTERN, Vocabulary, load_harmony

reference = pytest.importorskip("openai_harmony", reason="the reference, openai-harmony, is not installed")


@cache
def vocabulary() -> Vocabulary:
    return trio.run(load_harmony)


@pytest.fixture(scope="module")
def encoding(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The reference, with the same vocabulary file."""
    folder: Path = tmp_path_factory.mktemp("vocabulary")
    spec = find_spec("bpe_openai")
    if spec is None or spec.origin is None:
        pytest.skip("the vocabulary's package, bpe-openai, is not installed")
    packed = Path(spec.origin).with_name("data") / "o200k_base.tiktoken.gz"
    (folder / "o200k_base.tiktoken").write_bytes(gzip.decompress(packed.read_bytes()))
    os.environ["TIKTOKEN_ENCODINGS_BASE"] = str(folder)
    try:
        return reference.load_harmony_encoding(reference.HarmonyEncodingName.HARMONY_GPT_OSS)
    finally:
        del os.environ["TIKTOKEN_ENCODINGS_BASE"]


# Markers among the text: none of it may become a marker.
MARKS = [
    "<|end|>",
    "<|start|>",
    "<|call|>",
    "<|channel|>final",
    "<|message|>",
    "<|constrain|>json",
    "  \n",
    "\r\n",
    "é€𝄞",
]
texts = st.lists(st.one_of(st.text(max_size=12), st.sampled_from(MARKS)), max_size=4).map("".join)
names = st.from_regex(r"[a-z_][A-Za-z0-9_-]{0,12}", fullmatch=True)
scalars = st.one_of(st.none(), st.booleans(), st.integers(-999, 10**9), st.sampled_from([0.5, 1.0]), texts)


def schemas(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    objects = st.dictionaries(names, inner, max_size=3).flatmap(
        lambda found: st.fixed_dictionaries(
            {"type": st.just("object"), "properties": st.just(found)},
            optional={"required": st.lists(st.sampled_from([*found, "absent"]), max_size=3), "description": texts},
        )
    )
    arrays = st.fixed_dictionaries({"type": st.just("array")}, optional={"items": inner})
    choices = st.fixed_dictionaries({"oneOf": st.lists(inner, min_size=1, max_size=3)}, optional=NOTES)
    return st.one_of(objects, arrays, choices)


NOTES: dict[str, Any] = {
    "description": texts,
    "title": texts,
    "default": scalars,
    "nullable": st.booleans(),
    "examples": st.lists(scalars, max_size=2),
    "enum": st.lists(st.one_of(texts, st.integers(0, 9)), max_size=3),
}
KINDS = st.sampled_from(["string", "number", "integer", "boolean", "null", "unknown", ["string", "integer"], []])
leaves = st.one_of(
    st.fixed_dictionaries({"type": KINDS}, optional=NOTES),
    st.sampled_from([{}, {"anyOf": [{"type": "string"}]}, {"$ref": "#/x"}]),
)
functions = st.builds(
    Function,
    names,
    texts,
    st.one_of(
        st.none(),
        st.fixed_dictionaries(
            {
                "type": st.just("object"),
                "properties": st.dictionaries(names, st.recursive(leaves, schemas, max_leaves=6)),
            },
            optional={"required": st.lists(names, max_size=2), "description": texts},
        ),
    ),
)
messages = st.one_of(
    st.tuples(st.just("user"), texts),
    st.tuples(st.sampled_from(["analysis", "commentary", "final"]), texts),
    st.tuples(st.just("call"), names, texts),
    st.tuples(st.just("output"), names, texts),
    st.tuples(st.just("developer"), texts.filter(bool)),
)


def ours(harmony: Harmony, said: tuple[str, ...]) -> list[int]:
    match said:
        case ("user", text):
            return harmony.message("user", text)
        case ("developer", text):
            return harmony.developer(text)
        case ("call", name, text):
            return harmony.call(name, text)
        case ("output", name, text):
            return harmony.output(name, text)
    return harmony.message("assistant", said[1], channel=said[0])


def theirs(said: tuple[str, ...]) -> Any:
    new, role = reference.Message.from_role_and_content, reference.Role
    match said:
        case ("user", text):
            return new(role.USER, text)
        case ("developer", text):
            return new(role.DEVELOPER, reference.DeveloperContent.new().with_instructions(text))
        case ("call", name, text):
            call = new(role.ASSISTANT, text).with_channel("commentary").with_recipient(f"functions.{name}")
            return call.with_content_type("<|constrain|>json")
        case ("output", name, text):
            author = reference.Author.new(role.TOOL, f"functions.{name}")
            output = reference.Message.from_author_and_content(author, text)
            return output.with_recipient("assistant").with_channel("commentary")
    return new(role.ASSISTANT, said[1]).with_channel(said[0])


def head(instructions: str, offered: list[Function], effort: str) -> list[Any]:
    system = reference.SystemContent.new().with_conversation_start_date("2026-11-29")
    system = system.with_reasoning_effort(reference.ReasoningEffort(effort.capitalize()))
    developer = reference.DeveloperContent.new()
    if instructions:
        developer = developer.with_instructions(instructions)
    if offered:
        described = [reference.ToolDescription.new(f.name, f.description, parameters=f.parameters) for f in offered]
        developer = developer.with_function_tools(described)
    new, role = reference.Message.from_role_and_content, reference.Role
    return [new(role.SYSTEM, system), *([new(role.DEVELOPER, developer)] if instructions or offered else [])]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    texts,
    st.lists(functions, max_size=3, unique_by=lambda f: f.name),
    st.sampled_from(["low", "medium", "high"]),
    st.lists(messages, max_size=6),
)
def test_a_conversation_is_the_same_tokens_as_in_the_reference(
    encoding: Any, instructions: str, offered: list[Function], effort: str, said: list[tuple[str, ...]]
) -> None:
    """Whatever the instructions, tools and messages say, they become the ids that OpenAI's package makes."""
    harmony = Harmony(vocabulary())
    mine = harmony.system(date="2026-11-29", effort=effort, has_functions=bool(offered))
    mine += harmony.developer(instructions, offered)
    for each in said:
        mine += ours(harmony, each)
    conversation = reference.Conversation.from_messages([*head(instructions, offered, effort), *map(theirs, said)])
    keep = reference.RenderConversationConfig(auto_drop_analysis=False)
    expected = encoding.render_conversation_for_completion(conversation, reference.Role.ASSISTANT, keep)
    assert encoding.decode_utf8(mine + harmony.prompt()) == encoding.decode_utf8(expected)
    assert mine + harmony.prompt() == expected


@given(texts)
def test_text_cannot_forge_a_marker(text: str) -> None:
    """A message holds three markers, its own, whatever stands in it."""
    ids = Harmony(vocabulary()).message("user", text)
    assert sum(token >= 199998 for token in ids) == 3


def test_the_pattern_is_tiktokens_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text is cut where OpenAI's vocabulary cuts it."""
    from tiktoken_ext import openai_public

    monkeypatch.setattr(openai_public, "load_tiktoken_bpe", lambda *_, **__: {})
    assert openai_public.o200k_base()["pat_str"] == PATTERN


def test_only_new_text_is_counted() -> None:
    """The count of encoded tokens is that of the text: markers need no vocabulary, and a header's words are kept."""
    harmony = Harmony(vocabulary())
    ids = harmony.message("user", "hello world")
    assert harmony.n_encoded == len(ids) - 3
    harmony.message("user", "hello world")
    assert harmony.n_encoded == len(ids) - 3 + 2
