"""The page of a drive's report in a real browser: verdicts, times beside the recorded ones, and what differs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import evolve
from browsing import CONTRAST, NAMELESS, chromium, opened
from playwright.sync_api import Browser, expect

from turntape.replay.drive.report import (
    Called,
    CallVerdict,
    Departure,
    Failure,
    LeftOut,
    Pace,
    Played,
    Report,
    RunTimings,
    RunVerdict,
    Setup,
    StructuredVerdict,
    TextVerdict,
    Timings,
    TurnTimings,
    TurnVerdict,
    Verdicts,
)
from turntape.replay.pages.drive import drive_page

pytestmark = pytest.mark.clients

SAME = TextVerdict(equal=True, n_recorded=5, n_got=5)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def report(*turns: TurnVerdict, target: str = "vllm", ttft_s: float = 0.4, n_runs: int = 1) -> Report:
    """Runs of these turns, each of which takes two seconds."""
    paces = [Pace(ttft_s=at, took_s=2.0, tokens_per_s=50.0, input_tokens=900, output_tokens=80) for at in (ttft_s, 0.3)]
    timings = tuple(
        TurnTimings(
            turn=turn.turn,
            thread=turn.thread,
            began_s=n * 2.5,
            waited_s=0.5,
            overhead_before_s=0.01,
            overhead_after_s=0.001,
            got=Pace() if turn.failure else paces[0],
            recorded=paces[1],
        )
        for n, turn in enumerate(turns)
    )
    counts = {turn.verdict: 1 for turn in turns}
    runs = tuple(
        RunVerdict(run=n, fixture="fix.jsonl", repeat=n, counts=counts, turns=turns) for n in range(1, n_runs + 1)
    )
    took = tuple(
        RunTimings(run=n, began_s=0.0, wall_s=9.0, waited_s=1.0, recorded_wall_s=8.0, turns=timings)
        for n in range(1, n_runs + 1)
    )
    left_out = (LeftOut(where="fix.jsonl:40", reason="it was cancelled"),)
    return Report(
        setup=Setup(turntape="0.1.0", target=target),
        verdicts=Verdicts(
            mode="forced",
            design="create",
            counts=counts,
            fixtures=(Played(fixture="fix.jsonl", n_turns=len(turns), n_threads=1, left_out=left_out),),
            runs=runs,
        ),
        timings=Timings(began=1_800_000_000.0, wall_s=9.0, runs=took),
    )


def turn(number: int, verdict: str = "equal", text: TextVerdict = SAME, **more: object) -> TurnVerdict:
    where = f"fix.jsonl:{number * 10}"
    return TurnVerdict(turn=number, where=where, thread=1, verdict=verdict, text=text, **more)  # type: ignore[arg-type]


DIFFERENT = (
    turn(1),
    turn(
        2,
        "text",
        TextVerdict(equal=False, n_recorded=29, n_got=28, at=8, recorded="I found one old bug and fixed it.", got="I found two old bugs and fixed it."),
    ),
    turn(
        3,
        "arguments",
        calls=(
            CallVerdict(verdict="arguments", recorded=Called(name="sh", arguments='{"cmd":"ls"}'), got=Called(name="sh", arguments='{"cmd":"ls -l"}')),
            CallVerdict(verdict="missing", recorded=Called(name="view", arguments="{}")),
        ),
        structured=StructuredVerdict(valid=False, problem="$.n is no number"),
        finish_recorded="stop",
        finish_got="length",
    ),
    turn(4, "failed", failure=Failure(code="rate_limit_exceeded", message="Slow down.", status=429)),
)  # fmt: skip


def write(path: Path, *reports: Report) -> Path:
    path = path / "drive.html"
    path.write_text(drive_page(*reports), encoding="utf-8")
    return path


def test_every_turn_has_its_verdict_and_what_differs(browser: Browser, tmp_path: Path) -> None:
    """Words that differ are marked, calls stand side by side, a failure has its words, times their recorded ones."""
    with opened(browser, write(tmp_path, report(*DIFFERENT))) as page:
        turns = page.locator(".driven > li")
        expect(turns).to_have_count(4)
        expect(turns.locator("summary .badge")).to_have_text(["equal", "text", "arguments", "failed"])
        expect(turns.nth(0).locator(".numbers")).to_have_text("400 ms2.00 s50 tok/s")
        for n in range(1, 4):
            turns.nth(n).locator("summary").click()
        expect(turns.nth(1).locator("del")).to_have_text(["one", "bug"])
        expect(turns.nth(1).locator("ins")).to_have_text(["two", "bugs"])
        for said in ('{"cmd":"ls -l"}', "nothing", "$.n is no number", "Recorded end: stop; this one: length."):
            expect(turns.nth(2).get_by_text(said)).to_be_visible()
        expect(turns.nth(3)).to_contain_text("429 rate_limit_exceeded: Slow down.")
        expect(turns.nth(1)).to_contain_text("First token after400 msrecorded 300 ms")
        page.get_by_text("1 recorded turn left out").click()
        expect(page.get_by_text("fix.jsonl:40: it was cancelled")).to_be_visible()


def test_a_bar_of_the_timeline_leads_to_its_turn(browser: Browser, tmp_path: Path) -> None:
    """What looks slow can be opened where it is seen."""
    with opened(browser, write(tmp_path, report(*DIFFERENT))) as page:
        page.get_by_role("link", name="Turn 2: text, 2.00 s, first token after 400 ms").click()
        expect(page.locator("#run-1-turn-2 .findings")).to_be_visible()


def test_two_reports_stand_beside_each_other(browser: Browser, tmp_path: Path) -> None:
    """Turn by turn, with the verdicts that changed."""
    other = report(turn(1, "text"), *DIFFERENT[1:3], target="today", ttft_s=0.8)
    with opened(browser, write(tmp_path, report(*DIFFERENT), other)) as page:
        expect(page.get_by_role("heading", level=1)).to_have_text(["Avllm", "Btoday"])
        expect(page.locator(".tile").last).to_have_text("Verdicts that changed2")
        first = page.locator(".driven > li").first
        expect(first.locator(".line")).to_have_count(2)
        expect(first.locator("summary")).to_contain_text("changed")
        expect(first.locator(".line").nth(1)).to_contain_text("800 ms")
        assert page.locator(".row:not(.axis)").count() == 2


def test_a_departure_says_what_was_expected_and_what_came(browser: Browser, tmp_path: Path) -> None:
    """In a free drive the point where the model left the recorded path is the result."""
    one = report(turn(1))
    departure = Departure(
        turn=1,
        where="fix.jsonl:10",
        thread=1,
        reason="The recording has no output for this call.",
        expected=(Called(name="sh", arguments='{"cmd":"ls"}'),),
        got=(Called(name="rm", arguments='{"path":"/"}'),),
    )
    [run] = one.verdicts.runs
    gone = evolve(run, departures=(departure,), not_reached=("fix.jsonl:20",))
    one = evolve(one, verdicts=evolve(one.verdicts, runs=(gone,)))
    with opened(browser, write(tmp_path, one)) as page:
        for said in ("Departed at turn 1", "no output for this call", 'rm {"path":"/"}', "Not reached: fix.jsonl:20."):
            expect(page.get_by_text(said)).to_be_visible()


@pytest.mark.parametrize("width", [320, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_can_be_read_on_any_screen(browser: Browser, tmp_path: Path, width: int, dark: bool) -> None:
    """Nothing sticks out sideways, texts have contrast, and everything has a name."""
    path = write(tmp_path, report(*DIFFERENT), report(*DIFFERENT, target="x" * 80))
    with opened(browser, path, width=width, dark=dark) as page:
        for summary in page.locator(".driven summary").all():
            summary.click()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(CONTRAST) == []
        assert page.evaluate(NAMELESS) == []


def test_no_text_of_a_report_runs(browser: Browser, tmp_path: Path) -> None:
    """What a model said stays what it said."""
    hostile = "</script><img src=x onerror='window.ran = 1'>\u2028"
    text = TextVerdict(equal=False, n_recorded=99, n_got=99, recorded=hostile, got=hostile + "x")
    call = CallVerdict(verdict="extra", got=Called(name=hostile, arguments=hostile))
    failure = Failure(code=hostile, message=hostile)
    bad = report(turn(1, hostile, text, calls=(call,), failure=failure, finish_got=hostile), target=hostile)
    with opened(browser, write(tmp_path, bad)) as page:
        page.locator(".driven summary").first.click()
        expect(page.locator(".findings")).to_contain_text("<img src=x")
        assert page.locator("img").count() == 0 and page.evaluate("window.ran") is None


def test_hundreds_of_runs_are_drawn_when_they_are_opened(browser: Browser, tmp_path: Path) -> None:
    """A page of many runs is quick to open, and each of them is there."""
    with opened(browser, write(tmp_path, report(*DIFFERENT, n_runs=300))) as page:
        expect(page.locator(".run")).to_have_count(300)
        assert page.locator(".driven").count() == 1
        page.locator(".run").nth(299).locator("summary").first.click()
        expect(page.locator(".driven")).to_have_count(2)
