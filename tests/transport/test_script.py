"""A script file is read exactly, and whatever is wrong with it is named with its place and its cure."""

import re
from pathlib import Path

import pytest

from turntape.transport.backends.script import STATUSES, Fail, Script, ScriptError, When

RULE = "[[rule]]\nsay = [{ text = 'a' }]\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "script: there is no [[rule]] table"),
        ("rule = [", "script: not valid TOML"),
        (
            "tokens_per_s = 'fast'\n" + RULE,
            "script: 'tokens_per_s' should be a number, 0 or more, but is 'fast' (a string)",
        ),
        ("tokens_per_s = -1\n" + RULE, "should be a number, 0 or more, but is -1"),
        ("tokens_per_s = nan\n" + RULE, "should be a number, 0 or more, but is nan"),
        ("tokens_per_s = true\n" + RULE, "but is True (a boolean)"),
        ("token_per_s = 1\n" + RULE, "script: unknown key 'token_per_s'; did you mean 'tokens_per_s'?"),
        ("models = [1]\n" + RULE, "'models' should be a string in quotes, or an array of strings, but is an array"),
        ("[model.x]\nspeed = 1\n" + RULE, "script: model.x: unknown key 'speed'"),
        ("model = { x = 1 }\n" + RULE, "script: model.x: should be a table, but is an integer"),
        ("rule = 'x'", "'rule' should be an array of tables, but is 'x' (a string)"),
        ("rule = [1]", "script: rule 1: should be a table, but is an integer"),
        (RULE + "[[rule]]\nname = 'bad'", "script: rule 2 (bad): 'say' is missing"),
        ("[[rule]]\nsay = 'hello'", "rule 1: 'say' should be an array of tables, but is 'hello' (a string)"),
        ("[[rule]]\nsay = ['hello']", "rule 1: say 1: should be a table, but is a string"),
        ("[[rule]]\nsay = [{ text = 'a', call = 'b' }]", "say 1: a step has exactly one of text, refusal"),
        ("[[rule]]\nsay = []", "rule 1: 'say' is empty, and a model always says something; give it a step, such as"),
        ("[[rule]]\nsay = [{ phase = 'commentary' }]", "here is none"),
        ("[[rule]]\nsay = [{ txt = 'a', phase = 'commentary' }]", "say 1: unknown key 'txt'; did you mean 'text'?"),
        ("[[rule]]\nsay = [{ text = 'a', fase = 'x' }]", "say 1: unknown key 'fase'; did you mean 'phase'?"),
        ("[[rule]]\nsay = [{ smoke = 'a' }]", "here is none"),
        ("[[rule]]\nsay = [{ text = 5 }]", "'text' should be a string in quotes, but is 5 (an integer)"),
        (
            "[[rule]]\nsay = [{ text = 'a', phase = 'x' }]",
            "'phase' should be one of 'commentary', 'final_answer', but is 'x'",
        ),
        (
            "[[rule]]\nsay = [{ text = 'a', repeat = 0 }]",
            "'repeat' should be a whole number from 1 to 1000000, but is 0",
        ),
        ("[[rule]]\nsay = [{ text = 'a', delay = 0 }]", "say 1: unknown key 'delay'"),
        ("[[rule]]\nsay = [{ cut = true }, { text = 'a' }]", "say 2: nothing can follow the step before it"),
        ("[[rule]]\nsay = [{ cut = false }]", "'cut' should be true"),
        (
            "[[rule]]\nsay = [{ text = 'a' }, { hang = true, started = false }]",
            "'started = false' is for the first step",
        ),
        (
            "[[rule]]\nsay = [{ fail = 'x', status = 200 }]",
            "'status' should be a whole number from 400 to 599, but is 200",
        ),
        ("[[rule]]\nsay = [{ finish = 'tool_calls' }]", "'finish' should be one of 'stop', 'length', 'content_filter'"),
        ("[[rule]]\nsay = [{ finish = 'stop', usage = { tokens = 1 } }]", "usage: unknown key 'tokens'"),
        ("[[rule]]\nsay = [{ call = 'mcp:x' }]", "'call': 'mcp:x' is no tool: write its name, or 'function:NAME'"),
        ("[[rule]]\nsay = [{ call = 'x', arguments = 5 }]", "'arguments' should be a table, or a string"),
        (
            "[[rule]]\nsay = [{ text = '' }]\nwhen = { outputs = '2' }",
            "rule 1: when: 'outputs' should be a whole number",
        ),
        ("[[rule]]\nsay = [{ text = '' }]\nwhen = { user = 'x' }", "rule 1: when: unknown key 'user'"),
        (
            "[[rule]]\nsay = [{ text = '' }]\nwhen = { user_matches = '(' }",
            "'user_matches' is not a regular expression: missing )",
        ),
        ("[[rule]]\nsay = [{ text = '' }]\ntimes = 0", "'times' should be a whole number from 1"),
    ],
)
def test_a_mistake_is_named_with_its_place_and_its_cure(text: str, said: str) -> None:
    """The first mistake stops the reading, and its message says where it is, what is there and what should be."""
    with pytest.raises(ScriptError) as caught:
        Script.parse(text)
    assert said in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A missing file, a folder and a binary file are script errors with their path."""
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for path, said in (("absent", "No such file"), (".", "Is a directory"), ("binary", "not UTF-8")):
        with pytest.raises(ScriptError, match=said) as caught:
            Script.load(tmp_path / path)
        assert str(tmp_path) in str(caught.value)


def test_a_script_is_loaded_from_a_file(tmp_path: Path) -> None:
    """What stands in the file is what the script has; what does not has its default."""
    (tmp_path / "s.toml").write_text("models = ['a', 'b']\nseed = 's'\n[[rule]]\nname = 'n'\nsay = [{ text = '' }]\n")
    loaded = Script.load(tmp_path / "s.toml")
    assert (loaded.models, loaded.seed, loaded.rules[0].name) == (("a", "b"), "s", "n")
    assert Script.parse(RULE).models == ("scripted",)


def test_the_built_in_script_is_valid_and_answers_everything() -> None:
    """The default script reads without error and ends in a rule without conditions."""
    last = Script.default().rules[-1]
    assert last.say and last.when == When()


def test_the_documentation_is_true() -> None:
    """Every script in docs/scripts.md can be read, and the mistake shown there is the one that is reported."""
    text = (Path(__file__).parents[2] / "docs" / "scripts.md").read_text(encoding="utf-8")
    examples = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    assert [len(Script.parse(example).rules) for example in examples] == [3, 1]
    mistaken = RULE + "[[rule]]\nname = 'tell the weather'\nwhen = { min_output = 1 }\nsay = [{ text = '' }]"
    with pytest.raises(ScriptError) as caught:
        Script.parse(mistaken, source="my-script.toml")
    assert f"    {caught.value}\n" in text


def test_a_failure_has_the_status_of_its_code() -> None:
    """A script that names a code gets the status that clients know it by, as documented, unless it names another."""

    def status(step: str) -> int:
        [failure] = Script.parse(f"[[rule]]\nsay = [{{ {step} }}]").rules[0].say
        assert isinstance(failure, Fail)
        return failure.status

    text = (Path(__file__).parents[2] / "docs" / "scripts.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\| `(\w+)` \| (\d{3}) \|$", text, re.MULTILINE)
    assert {code: status(f"fail = '{code}'") for code, _ in documented} == {code: int(n) for code, n in documented}
    assert {code for code, _ in documented} == STATUSES.keys()
    assert status("fail = 'of_my_own'") == 500
    assert status("fail = 'rate_limit_exceeded', status = 418") == 418
