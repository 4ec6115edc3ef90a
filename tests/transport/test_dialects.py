"""The table of chat-completions servers: what it says is checked when it is read, and the right row is found."""

import attrs
import pytest

from turntape.transport.backends.chat import ChatBackend, completions_target
from turntape.transport.backends.chat_dialect import DEFAULT
from turntape.transport.backends.dialects import DialectError, dialect_for, preset_for, presets, read_table, table

ROW = 'source = "here"\nconfidence = "assumed"\n'


@pytest.mark.parametrize(
    ("backend", "model", "row"),
    [
        ("cerebras", "gpt-oss-120b", "cerebras-gpt-oss"),
        ("cerebras", "zai-glm-4.7", "cerebras"),
        ("https://api.cerebras.ai/v1", "GPT-OSS-120B", "cerebras-gpt-oss"),
        ("https://API.groq.com/openai/v1", "qwen/qwen3-32b", "groq-qwen"),
        ("https://res.openai.azure.com/openai/v1", "my-deployment", "azure"),
        ("azure", "DeepSeek-V3", "azure-deepseek"),
        ("openai", "gpt-5.6-codex", "openai-tools-elsewhere"),
        ("openai", "gpt-5.4", "openai-effort-elsewhere"),
        ("openai", "gpt-4.1", "openai"),
        ("http://192.168.0.9:11434/v1", "qwen3:8b", "ollama"),
        ("http://[::1]:1234/v1", "x", "lmstudio"),
        ("http://127.0.0.1:8000/v1", "openai/gpt-oss-20b", "unknown-gpt-oss"),
        ("http://127.0.0.1:8000/v1", "x", "unknown"),
        ("http://api.cerebras.ai.evil.test/v1", "x", "unknown"),
        ("http://[bad", "x", "unknown"),
        ("", "x", "unknown"),
    ],
)
def test_the_first_row_that_fits_holds(backend: str, model: str, row: str) -> None:
    """A server is known by its preset's name, its host or its usual port; a model by a glob; the rest is unknown."""
    assert dialect_for(backend, model).name == row


def test_a_host_that_nobody_knows_has_the_defaults() -> None:
    """The last row says nothing of its own, so that the class tells what an unknown host is sent."""
    assert dialect_for("", "x") == DEFAULT


def test_a_name_that_is_no_preset_is_refused() -> None:
    """A misspelt name is an error that lists the names, never an unknown host."""
    with pytest.raises(ValueError, match=r"no backend 'celebras'; known are azure, cerebras.*vllm"):
        dialect_for("celebras", "m")
    with pytest.raises(ValueError, match="another URL for each user"):
        ChatBackend.of_preset("azure", "k")


def test_presets_can_be_used() -> None:
    """Every named server has a URL that can be called, except one that each user has for themselves."""
    for name, preset in presets().items():
        assert preset.name == name
        if not preset.base_url:
            assert preset.hosts
            continue
        assert completions_target(preset.base_url).path.endswith("/chat/completions")
        assert preset_for(preset.base_url) in (preset, None)
        assert ChatBackend.of_preset(name, "k").target.path.endswith("/chat/completions")
        assert preset.auth == "none" or preset.key_env
    assert {
        "cerebras",
        "openai",
        "vllm",
        "sglang",
        "llamacpp",
        "ollama",
        "lmstudio",
        "groq",
        "openrouter",
    } <= presets().keys()


def test_every_row_says_where_it_is_from_and_can_be_reached() -> None:
    """Each row has a source, each preset has a row for any model, and no row is hidden behind an earlier one."""
    for row in table().rows:
        assert row.source
        backend = "" if row.backend == "*" else row.backend
        assert dialect_for(backend, row.models[0].replace("*", "")).name == row.name
    for name in presets():
        assert not dialect_for(name, "some-model").name.startswith("unknown")


def test_a_row_extends_another() -> None:
    """What a row does not say is as in the row that it extends."""
    assert attrs.evolve(dialect_for("cerebras", "gpt-oss-120b"), name="", efforts={}) == attrs.evolve(
        dialect_for("cerebras", "x"), name="", efforts={}
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = [", "not valid TOML"),
        ("[rows]", "unknown table 'rows'"),
        ("[[row]]\nbackend = '*'\n" + ROW, "number 1: needs a 'name'"),
        ("[[row]]\nname = 'a'\nbackend = '*'\nbogus = 1\n" + ROW, r"bogus.*\[\[row\]\] 'a'"),
        ("[[row]]\nname = 'a'\nbackend = '*'\nmax_tools = '3'\n" + ROW, r"\[\[row\]\] 'a'\.max_tools"),
        ("[[row]]\nname = 'a'\nbackend = '*'\nstrict = 1\n" + ROW, r"\[\[row\]\] 'a'\.strict"),
        ("[[row]]\nname = 'a'\nbackend = '*'\nmax_field = 'n'\n" + ROW, r"'a'\.max_field"),
        ("[[row]]\nname = 'a'\nbackend = '*'\ntool_choices = ['some']\n" + ROW, r"'a'\.tool_choices"),
        ("[[row]]\nname = 'a'\nbackend = '*'\ncall_ids = '['\n" + ROW, "no regular expression"),
        ("[[row]]\nname = 'a'\nbackend = '*'\nerrors = [{code = 'odd'}]\n" + ROW, r"'a'\.errors"),
        ("[[row]]\nname = 'a'\nbackend = 'b'\n" + ROW, r"no \[backend.b\]"),
        ("[[row]]\nname = 'a'\nbackend = '*'\nextends = 'b'\n" + ROW, "extends 'b'"),
        ("[[row]]\nname = 'a'\nbackend = '*'\nextends = 'a'\n" + ROW, "extends 'a'"),
        ("[[row]]\nname = 'a'\nbackend = '*'\nsource = 'x'\nconfidence = 'sure'", r"'a'\.confidence"),
        ("[[row]]\nname = 'a'\nbackend = '*'\nconfidence = 'assumed'", r"'a'\.source"),
        ("[backend.b]\nauth = 'basic'", r"\[backend\.b\]\.auth"),
        ("[backend.b]\nport = 1", r"port.*\[backend\.b\]"),
    ],
)
def test_a_table_with_a_mistake_is_refused(text: str, message: str) -> None:
    """Unknown keys, wrong kinds and names that lead nowhere are errors that say where."""
    with pytest.raises(DialectError, match=message):
        read_table(text)
