"""Rules: what may differ between two runs does not count, and everything else does."""

import re
from pathlib import Path
from typing import Any

import pytest
from taped import CODEX as CODEX_AGENT
from taped import Client, live, output, user

from turntape.core.canonical import Item
from turntape.core.context import Context
from turntape.core.seam import Opened, Text
from turntape.replay.errors import RuleInvalid
from turntape.replay.presets import CODEX, preset_for
from turntape.replay.reading import Reader
from turntape.replay.rules import Ruleset, load_rules

LISTING = """Chunk ID: {chunk}
Wall time: {wall} seconds
Process exited with code 0
Original token count: {count}
Output:
total {total}
drwxr-xr-x {links} {owner} {owner} {size} {when} .
-rw-r--r-- 1 {owner} {owner}    2 {when} README.md
lrwxrwxrwx 1 {owner} {owner} {size} {when} link -> {cwd}/README.md
5 passed in {wall}s
"""
HERE = {"chunk": "0b8811", "wall": "0.0001", "count": 51, "total": 16, "links": 3, "owner": "root", "size": 4096}
THERE = {"chunk": "318bf0", "wall": "12.5", "count": 60, "total": 8, "links": 12, "owner": "ada", "size": 160}
ENVIRONMENT = """<environment_context>
  <cwd>{cwd}</cwd>
  <shell>bash</shell>
  <current_date>{date}</current_date>
  <timezone>{zone}</timezone>
  <filesystem><workspace_roots><root>{cwd}</root></workspace_roots></filesystem>
</environment_context>"""
SKILLS = "### Skill roots\n- `r0` = `{home}/skills/.system`\n- `r1` = `{cwd}/skills`\nDo not leave {cwd}."


def key(*items: dict[str, Any], rules: Any = ("codex",)) -> str:
    """The key of a conversation that came in one piece."""
    return Reader(Ruleset.of(rules)).read(Context().extend(map(Item.of, items))).fold.key


def run(cwd: str, home: str, date: str, zone: str, call_id: str, **listing: Any) -> list[dict[str, Any]]:
    developer = {**user(SKILLS.format(cwd=cwd, home=home)), "role": "developer", "id": f"msg_{call_id}"}
    return [
        developer,
        user(ENVIRONMENT.format(cwd=cwd, date=date, zone=zone)),
        {"type": "function_call", "call_id": call_id, "name": "exec", "arguments": f'{{"cmd":"ls {cwd}/src"}}'},
        output(call_id, LISTING.format(cwd=cwd, **listing)),
    ]


ONE = run("/tmp/a/repo", "/tmp/a/home", "2026-11-29", "Etc/UTC", "call_1", when="Nov 29 18:59", **HERE)
TWO = run("/home/ada/work", "/home/ada/.codex", "2027-01-02", "Europe/Rome", "call_2", when="2027-01-02 08:03", **THERE)


def test_two_runs_of_codex_in_two_places_are_one_conversation() -> None:
    """Folder, home, date, timezone, ids, chunk, times, counts, owners and sizes of folders do not count."""
    assert key(*ONE) == key(*TWO)
    assert key(*ONE, rules=()) != key(*TWO, rules=())


@pytest.mark.parametrize(
    "old, new",
    [
        ("    2 Nov", "    3 Nov"),  # the size of a file is its content's
        ("README.md", "README.txt"),
        ("-rw-r--r--", "-rwxr-xr-x"),
        ("code 0", "code 1"),
        ("5 passed", "4 passed"),
        ("link -> /tmp/a/repo/", "link -> /tmp/b/repo/"),
    ],
)
def test_what_means_something_still_counts(old: str, new: str) -> None:
    """A changed output of a tool is another conversation."""
    changed = {**ONE[3], "output": ONE[3]["output"].replace(old, new)}
    assert changed != ONE[3]
    assert key(*ONE[:3], changed) != key(*ONE)


def test_listings_and_times_inside_json_do_not_count() -> None:
    """Code mode wraps what a command printed in a JSON text."""

    def wrapped(chunk: str, when: str, wall: str, owner: str) -> dict[str, Any]:
        listing = f'"output":"total 16\\ndrwxr-xr-x 3 {owner} {owner} 4096 {when} .\\n-rw-r--r-- 1 {owner} {owner} 2 {when} a\\n"'
        inner = f'{{"chunk_id":"{chunk}","wall_time_seconds":{wall},"original_token_count":51,{listing}}}'
        return output(
            "c", [{"type": "input_text", "text": f"Wall time {wall} seconds"}, {"type": "input_text", "text": inner}]
        )

    call = {"type": "function_call", "call_id": "c", "name": "exec", "arguments": "{}"}
    one, two = (
        wrapped("c2e1ca", "Nov 29 18:59", "0.000011126", "root"),
        wrapped("1131f7", "Dec  1  2026", "1.5e-05", "ada"),
    )
    assert key(call, one) == key(call, two)
    assert key(call, one) != key(call, wrapped("c2e1ca", "Nov 29 18:59", "0.1", "root") | {"output": "other"})


def test_the_clients_words_count_even_where_they_look_volatile() -> None:
    """Rules for tool outputs leave what a user wrote alone."""
    assert key(user("Wall time: 1.0 seconds")) != key(user("Wall time: 2.0 seconds"))


def test_a_value_that_is_learned_late_counts_nowhere_before() -> None:
    """The folder is named before the item that teaches it, in earlier turns too."""
    teach = "<cwd>{}</cwd>"

    def two_links(cwd: str) -> str:
        reader = Reader(Ruleset.of(["codex"]))
        first = Context().extend([Item.of(user(f"Look into {cwd}/src."))])
        early = reader.read(first).fold.key
        later = first.extend([Item.of(user(teach.format(cwd)))])
        late = reader.read(later)
        assert early != late.fold.key and len(late.all_states) == 2
        assert reader.read(later) is late
        return late.fold.key

    assert two_links("/a/b") == two_links("/c")
    assert two_links("/c") == key(user("Look into /c/src."), user(teach.format("/c")))


class Counting:
    """Masks nothing, and counts what it looked at."""

    def __init__(self) -> None:
        self.n = 0

    def text(self, text: str) -> str:
        self.n += 1
        return text


def test_a_history_that_comes_again_is_read_by_what_is_new() -> None:
    """Every POST of an agent has the whole conversation: an item of it is masked and put under the rules once."""
    masker, items = Counting(), [*map(Item.of, ONE)]
    reader = Reader(Ruleset.of(["codex"]), masker)  # type: ignore[arg-type]
    keys = {reader.read(Context().extend([*items, Item.of(user(str(n)))])).fold.key for n in range(5)}
    assert len(keys) == 5 and masker.n == len(items) + 5
    assert key(*ONE, user("3")) in keys


def test_a_learned_value_is_a_whole_name() -> None:
    """/src/a is not found in /src/ab or /src/a.c, and is in /src/a/b and at the end of a sentence."""
    rules = [{"rule": "learn", "pattern": "<cwd>(?P<value>[^<]+)</cwd>", "with": "CWD"}]

    def plain(text: str) -> str:
        reader = Reader(Ruleset.of(rules))
        item = Item.of(user(f"<cwd>/src/a</cwd> {text}"))
        learned = reader.read(Context().extend([item])).learned
        return str(reader.item(item, learned).value["content"][0]["text"])

    shown = plain("/src/ab /src/a.c /src/a/b /src/a-b -I/src/a. '/src/a'")
    assert shown == "<cwd>CWD</cwd> /src/ab /src/a.c CWD/b /src/a-b -ICWD. 'CWD'"


def test_a_second_value_of_a_rule_has_its_own_placeholder() -> None:
    """Two folders are not one."""

    def folders(first: str, second: str, used: str) -> str:
        return key(user(f"<cwd>{first}</cwd>"), user(f"<cwd>{second}</cwd> {used}"))

    assert folders("/a", "/b", "/b") == folders("/x", "/y", "/y") != folders("/x", "/y", "/x")


def test_the_root_folder_is_learned_where_it_is_named_only() -> None:
    """A one-character value would be found everywhere."""
    assert key(user("<cwd>/</cwd> see /etc/x")) == key(user("<cwd>/work</cwd> see /etc/x"))
    assert key(user("<cwd>/</cwd> see /etc/x")) != key(user("<cwd>/work</cwd> see /src/etc/x"))


def test_a_rule_can_be_for_one_place() -> None:
    """``items`` names the types, ``at`` the path."""
    rule = {"rule": "replace", "items": ["message"], "at": "content.*.text", "pattern": r"\d+", "with": "N"}
    assert key(user("take 1"), rules=[rule]) == key(user("take 22"), rules=[rule])
    other = {**rule, "at": "content.*.name"}
    assert key(user("take 1"), rules=[other]) != key(user("take 2"), rules=[other])


def settings(client: Client, rules: Any, **fields: Any) -> bytes:
    start = client.ask(user("<cwd>/w</cwd>"), follow=False, **fields)
    assert start is not None
    reader = Reader(Ruleset.of(rules))
    return reader.settings(start, reader.read(start.context, start.request.instructions).learned)


def test_settings_count_unless_they_are_ignored() -> None:
    """Exact by default: only how a request is sent and kept does not count."""
    plain = settings(live(), ["codex"])
    assert settings(live(), ["codex"], stream=True, store=True, temperature=None, prompt_cache_key="x") == plain
    assert settings(live(), [], prompt_cache_key="x") != settings(live(), [])
    for changed in ({"temperature": 0.5}, {"instructions": "x"}, {"tools": []}, {"reasoning": {"effort": "low"}}):
        assert settings(live(), ["codex"], **changed) != plain
        ignoring = ["codex", {"rule": "ignore", "fields": [*changed]}]
        assert settings(live(), ignoring, **changed) == settings(live(), ignoring)


def test_instructions_teach_and_are_rewritten() -> None:
    """Other agents name the folder in their instructions."""
    rules = [{"rule": "learn", "pattern": "You work in (?P<value>/\\S+)", "with": "CWD"}]
    one = settings(live(), rules, instructions="You work in /a/b")
    assert one == settings(live(), rules, instructions="You work in /c")


def test_an_item_is_read_once() -> None:
    """A turn's cost follows what is new: what was read stays read."""
    reader = Reader(Ruleset.of(["codex"]))
    n_read = 0
    plain = reader.item

    def counting(item: Item, learned: Any) -> Item:
        nonlocal n_read
        n_read += 1
        return plain(item, learned)

    reader.item = counting  # type: ignore[method-assign]
    client = live()
    for n in range(30):
        start = client.turn(user(f"<cwd>/w</cwd> {n}"), say=((Text("x"),),))
        reader.read(start.context)
    assert n_read == 59  # 30 questions and the 29 answers between them


def test_call_ids_are_the_takes_own() -> None:
    """Which id a call has does not count; which call an output answers does."""

    def parallel(one: str, two: str, swapped: bool = False) -> str:
        calls = [{"type": "function_call", "call_id": c, "name": "f", "arguments": "{}"} for c in (one, two)]
        outputs = [output(c, text) for c, text in zip((two, one) if swapped else (one, two), "ab", strict=True)]
        return key(*calls, *outputs)

    assert parallel("c1", "c2") == parallel("x", "y") != parallel("x", "y", swapped=True)


@pytest.mark.parametrize(
    "rule, problem",
    [
        ("claude", "The preset 'claude' is not known; there is 'codex'."),
        (
            {"rule": "drop"},
            '"rule" should be "replace", "learn", or "ignore", "warn" or "exact" with an array "fields"',
        ),
        ({"rule": "warn", "fields": [1]}, 'an array "fields"'),
        ({"rule": "ignore", "fields": ["input"]}, "the conversation is always compared"),
        ({"rule": "replace", "kind": "colour"}, '"kind" should be one of date, hash, number, path, time, uuid'),
        ({"rule": "replace", "kind": ["date"]}, '"kind" should be one of'),
        (
            {"rule": "replace", "kind": "date", "pattern": "x"},
            "'pattern' is not part of it; a kind has a pattern of its own",
        ),
        ({"rule": "replace", "kind": "date", "with": 1}, '"with" should be a string'),
        (7, '"rule" should be'),
        ({"rule": "ignore", "fields": "user"}, 'an array "fields"'),
        ({"rule": "replace", "pattern": "(", "with": ""}, "its regular expression is wrong"),
        ({"rule": "replace", "pattern": "a", "with": r"\7"}, "its regular expression is wrong"),
        ({"rule": "replace", "pattern": "a{1,99999999999}", "with": ""}, "its regular expression is wrong"),
        ({"rule": "replace", "pattern": "(" * 5000 + ")" * 5000, "with": ""}, "its regular expression is wrong"),
        ({"rule": "replace", "pattern": "a"}, '"pattern" and "with" should be strings'),
        ({"rule": "replace", "pattern": "a", "with": "b", "item": []}, "'item' is not part of it"),
        ({"rule": "replace", "pattern": "a", "with": "b", "items": "x"}, '"items" should be an array'),
        ({"rule": "learn", "pattern": "a", "with": "b"}, 'a group named "value"'),
        ({"rule": "\ud800"}, '"rule" should be'),
    ],
)
def test_a_rule_that_cannot_be_used_is_explained(rule: Any, problem: str) -> None:
    with pytest.raises(RuleInvalid, match=re.escape(problem)):
        Ruleset.of([rule])


def test_a_kind_is_replaced_by_its_name_or_by_what_the_rule_says() -> None:
    """In the items and at the place that the rule is for."""
    rule = {"rule": "replace", "kind": "date", "items": ["message"], "at": "content.*.text"}
    assert key(user("on 2026-11-29"), rules=[rule]) == key(user("on 2027-01-02"), rules=[rule])
    assert key(user("on 2026-11-29"), rules=[rule]) == key(user("on <date>"), rules=())
    assert key(user("on 2026-11-29"), rules=[{**rule, "with": r"\1"}]) == key(user(r"on \1"), rules=())
    other = {**rule, "items": ["function_call_output"]}
    assert key(user("on 2026-11-29"), rules=[other]) != key(user("on 2027-01-02"), rules=[other])


def test_the_last_policy_of_a_setting_holds() -> None:
    """A run may be stricter or looser than the preset of its fixture."""
    policies = [{"rule": rule, "fields": ["user", "model"]} for rule in ("ignore", "warn", "exact", "warn")]
    assert [Ruleset.of(policies[:n]).ignored for n in (1, 2, 3)] == [{"user", "model"}, set(), set()]
    assert [Ruleset.of(policies[:n]).warned for n in (2, 3, 4)] == [{"user", "model"}, set(), {"user", "model"}]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("[", "is not JSON: "),
        ("{}", "should be an array of rules"),
        ('[{"rule":"drop"}]', 'The rule {"rule":"drop"} cannot be used'),
        ('["claude"]', "The preset 'claude' is not known"),
        ("[" + " " * 1_100_000 + "]", "is larger than 1,048,576 bytes"),
    ],
)
def test_a_file_of_rules_that_cannot_be_used_is_explained(content: str, problem: str, tmp_path: Path) -> None:
    """With its name, and the rule in it."""
    path = tmp_path / "rules.json"
    path.write_text(content)
    with pytest.raises(RuleInvalid, match=re.escape(problem)) as caught:
        load_rules(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_file_of_rules_holds_what_an_open_line_holds(tmp_path: Path) -> None:
    path = tmp_path / "rules.json"
    path.write_text('["codex", {"rule":"ignore","fields":["user"]}]')
    assert load_rules(path) == ["codex", {"rule": "ignore", "fields": ["user"]}]


@pytest.mark.parametrize(
    ("agent", "is_codex"),
    [
        (CODEX_AGENT, True),
        ("codex-tui/0.171.0 (Mac OS 15; arm64)", True),
        ("editor/0.171.0 (Debian 12.0.0; x86_64) dumb (editor; 1)", True),
        ("my editor/0.171.0 (Debian 12.0.0; x86_64) xterm-256color (my editor; 2.0)", True),
        ("editor/0.171.0 (Debian 12.0.0; x86_64) dumb (other; 1)", False),
        ("Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko)", False),
        ("OpenAI/Python 3.57.0", False),
        ("", False),
    ],
)
def test_codex_is_known_by_its_agent(agent: str, is_codex: bool) -> None:
    """Also where another program uses its app-server, which then presents that program's name."""
    assert preset_for(Opened(seed="00", wall=0.0, agent=agent)) == (("codex",) if is_codex else ())


def test_presets_are_valid() -> None:
    assert Ruleset.of(["codex"]) == Ruleset.of(CODEX)
