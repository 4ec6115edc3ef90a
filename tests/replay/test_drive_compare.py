"""Reports of drives: what is no report, and two of them beside each other under thresholds."""

import re
from typing import Any

import attrs
import orjson
import pytest
from attrs import evolve
from driven import AS_RECORDED, driven, says, two_steps
from running import ROOT
from serving import Model

from turntape.core.seam import Text
from turntape.replay.drive import report
from turntape.replay.drive.comparing import NotComparable, Thresholds, compare
from turntape.replay.drive.report import Report, ReportUnreadable
from turntape.replay.drive.run import Settings
from turntape.replay.drive.table import report_table


async def good() -> Report:
    return await driven(two_steps(), backend=Model([*AS_RECORDED]))


async def bad() -> Report:
    return await driven(two_steps(), backend=Model([AS_RECORDED[0], says(Text("Two files."))]))


def slower(report: Report, factor: float) -> Report:
    """The same, with every time ``factor`` times as long."""

    def scaled(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: scaled(inner) if not key.endswith("_s") else _times(inner, factor) for key, inner in value.items()
            }
        return [*map(scaled, value)] if isinstance(value, list) else value

    value = orjson.loads(report.encode())
    return Report.decode(orjson.dumps({**value, "timings": scaled(value["timings"])}))


def _times(seconds: float | None, factor: float) -> float | None:
    return None if seconds is None else seconds * factor


async def test_two_equal_reports_are_within_every_threshold() -> None:
    """A report is as good as itself."""
    report = await good()
    found = compare(report, report, Thresholds(max_ttft_ratio=1.0, max_wall_ratio=1.0, allow_departures=0))
    assert found.beyond == () and found.n_changed == 0
    assert (found.ttft_ratio, found.wall_ratio) == (1.0, 1.0)


async def test_a_changed_verdict_counts_unless_it_is_only_to_be_shown() -> None:
    """Both verdicts stand side by side."""
    one, other = await good(), await bad()
    found = compare(one, other, Thresholds())
    assert found.n_changed == 1 and found.beyond == ("1 verdict is not what it was",)
    assert found.runs[0].turns[1].verdicts == ("equal", "text")
    table = found.table()
    assert "equal → text" in table and table.startswith("fixture\n") and "fixture, time" not in table
    assert "TTFT as long, wall time as long" in compare(one, one, Thresholds()).table()
    assert compare(one, other, Thresholds(same_verdicts=False)).beyond == ()


@pytest.mark.parametrize(
    ("thresholds", "n_beyond"),
    [
        (Thresholds(), 0),
        (Thresholds(max_ttft_ratio=2.5), 0),
        (Thresholds(max_ttft_ratio=1.5), 1),
        (Thresholds(max_wall_ratio=1.5), 1),
        (Thresholds(max_ttft_ratio=1.5, max_wall_ratio=1.5), 2),
    ],
)
async def test_times_count_only_where_a_threshold_is_given(thresholds: Thresholds, n_beyond: int) -> None:
    """Twice as slow is beyond 1.5 and within 2.5."""
    report = await good()
    assert len(compare(report, slower(report, 2.0), thresholds).beyond) == n_beyond


async def test_departures_may_not_grow() -> None:
    """As many as before are allowed, or as many as is said."""

    async def free(*turns: Any) -> Report:
        return await driven(two_steps(), backend=Model([*turns]), settings=Settings(mode="free"))

    kept, left = await free(*AS_RECORDED), await free(says(Text("No.")))
    shown = Thresholds(same_verdicts=False)
    assert compare(kept, left, shown).beyond == ("1 departure, more than 0",)
    assert compare(left, left, shown).beyond == () == compare(left, kept, shown).beyond
    assert compare(kept, left, evolve(shown, allow_departures=1)).beyond == ()
    assert compare(left, left, evolve(shown, allow_departures=0)).beyond == ("1 departure, more than 0",)


async def test_a_run_that_is_missing_counts() -> None:
    """A fixture that was not driven today is no success."""
    report, again = await good(), await driven(two_steps(), backend=Model([*AS_RECORDED]), settings=Settings(repeat=2))
    found = compare(again, report, Thresholds())
    assert found.only_in == ("report A: fixture, time 2",) and len(found.beyond) == 1


async def test_reports_of_other_fixtures_are_not_compared() -> None:
    """There is nothing to say of them."""
    report = await good()
    run = evolve(report.verdicts.runs[0], fixture="other.jsonl")
    with pytest.raises(NotComparable, match="no run in common"):
        compare(report, evolve(report, verdicts=evolve(report.verdicts, runs=(run,))), Thresholds())


async def test_what_was_set_up_otherwise_is_said() -> None:
    """Two designs of one backend can be compared, and nobody takes them for the same."""
    http = await driven(two_steps(), backend=Model([*AS_RECORDED]), settings=Settings(design="http"))
    assert compare(await good(), http, Thresholds()).differs == ("design: A create, B http",)


@pytest.mark.parametrize(
    ("change", "says_"),
    [
        (lambda value: value.pop("turntape_drive"), "is no report of a drive"),
        (lambda value: value.update(turntape_drive=2), "version 2"),
        (lambda value: value["timings"].update(wall_s="1"), "$.timings.wall_s"),
        (lambda value: value["timings"].pop("wall_s"), "$.timings"),
        (lambda value: value["verdicts"]["runs"][0].update(more=1), "more"),
        (lambda value: value["timings"]["runs"][0]["turns"].pop(), "same runs and turns"),
        (lambda value: value["verdicts"]["runs"][0]["counts"].update(equal=True), "counts"),
    ],
)
async def test_what_is_no_report_is_named_with_its_field(change: Any, says_: str) -> None:
    """Nothing that is wrong in a file is read as if it were right."""
    value = orjson.loads((await good()).encode())
    change(value)
    with pytest.raises(ReportUnreadable) as refused:
        Report.decode(orjson.dumps(value), name="today.json")
    assert str(refused.value).startswith("today.json: ") and says_ in str(refused.value)


@pytest.mark.parametrize("text", [b"", b"[]", b"1", b"{", b"\xff"])
def test_what_is_no_json_object_is_no_report(text: bytes) -> None:
    """The file is named, and what it should be."""
    with pytest.raises(ReportUnreadable, match=r"^today\.json: "):
        Report.decode(text, name="today.json")


async def test_a_table_shows_what_differs_and_nothing_that_a_terminal_obeys() -> None:
    """A backend cannot move the cursor of whoever reads its report."""
    report = await driven(two_steps(), backend=Model([AS_RECORDED[0], says(Text("\x1b[2J\x07Two."))]))
    table = report_table(report)
    assert "1 equal, 1 text" in table and "One file." in table
    assert table.isprintable() or all(c.isprintable() or c == "\n" for c in table)


def test_the_documented_keys_of_a_report_are_its_keys() -> None:
    """docs/replay.md names every field of a report and every verdict."""
    section = (
        (ROOT / "docs" / "replay.md").read_text(encoding="utf-8").partition("### The report")[2].partition("\n## ")[0]
    )
    named = set(re.findall(r"`(\w+)`", section))
    classes = [cls for cls in vars(report).values() if isinstance(cls, type) and attrs.has(cls)]
    fields = {field.name for cls in classes for field in attrs.fields(cls)}
    assert fields - named == set()
    whole = (ROOT / "docs" / "replay.md").read_text(encoding="utf-8")
    assert [verdict for verdict in report.VERDICTS if f"| `{verdict}` |" not in whole] == []
    assert [verdict for verdict in report.CALL_VERDICTS if f"`{verdict}`" not in section] == []
