"""The page of a recording in a real browser: what a person sees and does there, and that no text of it can run."""

import random
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from browsing import CONTRAST, NAMELESS, chromium, opened
from playwright.sync_api import Browser, expect
from taped import CODEX, Client, Recording, output, user

from turntape.core.seam import (
    Arguments,
    ClientGone,
    Finish,
    Increment,
    Reasoning,
    Sampled,
    SampleFailed,
    Started,
    Text,
    ToolCall,
    Usage,
)
from turntape.replay.fixture import Fixture
from turntape.replay.pages.timeline import timeline_page

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def turn(client: Client, item: object, *said: Increment, wait: float = 0.5, **fields: object) -> None:
    """A turn whose first token comes after ``wait``, and the others every 50 ms."""
    start = client.ask(item, **fields)
    assert start is not None, client.sent[-1]
    client.feed(Started(start.sample_id), step=0.1)
    for n, increment in enumerate(said):
        client.feed(Sampled(start.sample_id, (increment,)), step=0.05 if n else wait - 0.1)
    client.feed(Sampled(start.sample_id, (Finish(usage=Usage(1200, 10, 1000)),)), step=0.05)


def work(n_turns: int = 6, *, task: str = "Fix the greeting.", seed: str = "00", texts: int = 3) -> Fixture:
    """An agent that reads files, with a warm-up, a lane beside, a refused request, a failure and a cancelled turn."""
    recording = Recording()
    client = recording.client(agent=CODEX, seed=seed * 16)
    client.ask(generate=False)
    item: object = user(task)
    for n in range(n_turns):
        words = (Text(f"word{k} ") for k in range(texts))
        turn(client, item, Reasoning("Hm."), *words, ToolCall(f"call_{n}", "sh"), Arguments(f'{{"cmd":"cat {n}.py"}}'))
        client.now += 40 if n == 2 else 1.5
        item = output(f"call_{n}", f"print({n})\n" * 3)
    last = client.last
    turn(client, user("Beside."), Text("Yes."), follow=False, stream_id="side")
    client.text('{"type":"response.create","model":"m","input":7,"stream_id":"side"}')
    client.last = last
    start = client.ask(item)
    assert start is not None
    client.feed(SampleFailed(start.sample_id, "rate_limit_exceeded", "Slow down.", status=429))
    start = client.ask(user("Again."), follow=False)
    assert start is not None
    client.feed(Sampled(start.sample_id, (Text("Well"),)))
    client.feed(ClientGone(1001))
    return Fixture.parse(recording.content, name="/home/somebody/work.jsonl")


PageOf = Callable[..., Path]


@pytest.fixture
def page_of(tmp_path: Path) -> PageOf:
    """Writes the page of one recording, or of two."""

    def write(*fixtures: Fixture) -> Path:
        path = tmp_path / "page.html"
        path.write_text(timeline_page(*fixtures), encoding="utf-8")
        return path

    return write


@pytest.fixture
def path(page_of: PageOf) -> Path:
    return page_of(work())


def test_a_click_on_a_turn_shows_what_was_asked_and_answered(browser: Browser, path: Path) -> None:
    """Its numbers, what was new, what it said, and every message on the wire, whole."""
    with opened(browser, path) as page:
        assert page.title() == "work.jsonl · Turntape"
        page.get_by_role("button", name="Turn 2, 800 ms, first token after 500 ms, 33 tok/s").click()
        panel = page.locator(".panel")
        expect(panel).to_be_focused()
        expect(panel.get_by_role("heading", name="Turn 2")).to_be_visible()
        for fact in ("1,200 (1,000 cached)", "1.60 s for tools", "33 tok/s", "500 ms"):
            expect(panel.get_by_text(fact, exact=True)).to_be_visible()
        expect(panel.locator(".item.output pre")).to_have_text("print(0)\n" * 3)
        expect(panel.locator(".item.call")).to_contain_text('"cmd": "cat 1.py"')
        panel.get_by_text("Frames").click()
        rows = panel.locator(".frames > li")
        expect(rows.first).to_contain_text("client →response.create")
        expect(rows.last).to_contain_text("← serverresponse.completed")
        run = rows.filter(has_text="delta \u00d7 1").last
        run.locator("summary").click()
        expect(run.locator("pre")).to_contain_text('"delta": "word2 "')
        expect(run.locator("pre")).to_contain_text('"sequence_number": ')
        panel.get_by_text("Settings of the request").click()
        expect(panel.locator("details").first).to_contain_text('"store": false')


def test_failures_warm_ups_and_refused_requests_can_be_seen(browser: Browser, path: Path) -> None:
    """What went wrong has its place in time and its words."""
    with opened(browser, path) as page:
        expect(page.locator(".turn.failed")).to_contain_text("429 rate_limit_exceeded: Slow down.")
        expect(page.locator(".bar.failed")).to_have_count(1)
        expect(page.locator(".bar.open")).to_have_count(1)
        page.get_by_role("button", name="Warm-up at 100 ms").click()
        expect(page.locator(".panel")).to_contain_text("response.create")
        page.get_by_role("button", name="Refused request").click()
        expect(page.locator(".panel")).to_contain_text("← servererror")
        expect(page.get_by_role("group", name="session 1, side")).to_be_visible()


def test_everything_can_be_done_with_the_keyboard(browser: Browser, path: Path) -> None:
    """Arrows move along the timeline, Enter opens a turn, Escape goes back to it, / searches, + zooms."""
    with opened(browser, path) as page:
        page.locator(".timeline button").first.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Turn 3")).to_be_visible()
        page.get_by_role("button", name="Next turn").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Turn 4")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator(".panel")).to_be_hidden()
        expect(page.locator(".turn").nth(3)).to_be_focused()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Turn 5")).to_be_visible()
        page.keyboard.press("/")
        page.keyboard.type("cat 1.py")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Turn 2")).to_be_visible()
        before = page.locator(".grid").evaluate("(grid) => grid.clientWidth")
        page.locator(".panel").focus()
        page.keyboard.press("+")
        assert page.locator(".grid").evaluate("(grid) => grid.clientWidth") == 2 * before


def test_one_stop_of_the_tab_key_leads_past_all_turns(browser: Browser, page_of: PageOf) -> None:
    """Hundreds of turns are not hundreds of stops."""
    with opened(browser, page_of(work(60))) as page:
        page.locator("input[type=search]").focus()
        for _ in range(6):
            page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.closest('.turns') !== null")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement === document.body || !document.activeElement.closest('.turns')")


def test_a_search_marks_the_turns_that_hold_it(browser: Browser, path: Path) -> None:
    """Turns are counted and highlighted on the timeline and in the list, places in the panel; case does not matter."""
    with opened(browser, path) as page:
        page.get_by_role("searchbox").fill("PRINT(3)")
        expect(page.locator("#found")).to_have_text("1 turn")
        expect(page.locator(".bar.found")).to_have_count(1)
        expect(page.locator(".turn.found")).to_contain_text("print(3)")
        page.get_by_role("searchbox").press("Enter")
        assert page.evaluate("CSS.highlights.get('found').size") == 3
        page.get_by_role("searchbox").fill("nowhere to be found")
        expect(page.locator("#found")).to_have_text("0 turns")
        page.get_by_role("searchbox").fill("")
        expect(page.locator("#found")).to_have_text("")


def test_long_waits_are_drawn_shorter_unless_asked_to_scale(browser: Browser, path: Path) -> None:
    """Turns are wide enough to be seen although somebody went for coffee."""
    with opened(browser, path) as page:
        bar = page.locator(".bar").first
        short = bar.bounding_box()
        page.get_by_label("Shorten waits").uncheck()
        true = bar.bounding_box()
        assert short and true and short["width"] > 2 * true["width"]
        waits = page.locator(".wait.tools")
        expect(waits.nth(2)).to_have_attribute("title", "40.1 s for tools")


def test_a_link_names_a_turn(browser: Browser, path: Path) -> None:
    """The address of an open turn opens it again."""
    with opened(browser, path) as page:
        page.locator(".turn").nth(1).click()
        address = page.evaluate("location.hash")
        page.goto("about:blank")
        page.goto(path.as_uri() + address)
        expect(page.get_by_role("heading", name="Turn 2")).to_be_visible()


@pytest.mark.parametrize("width", [320, 360, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_can_be_read_on_any_screen(browser: Browser, path: Path, width: int, dark: bool) -> None:
    """Nothing sticks out sideways, texts have contrast, controls have names, and a phone's panel covers the page."""
    with opened(browser, path, width=width, height=700, dark=dark) as page:
        for step in range(2):
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.evaluate(CONTRAST) == []
            assert page.evaluate(NAMELESS) == []
            if not step:
                page.locator(".turn").nth(1).click()
                page.get_by_text("Frames").click()
        box = page.locator(".panel").bounding_box()
        assert box and (box["width"] == width) == (width < 800)


def test_two_recordings_stand_side_by_side(browser: Browser, page_of: PageOf) -> None:
    """The turns that differ are marked, and in them the words that do."""
    path = page_of(work(3), work(4, task="Fix the friendly greeting.", seed="11"))
    with opened(browser, path) as page:
        expect(page.get_by_role("heading", level=1)).to_have_count(2)
        expect(page.locator(".tile").last).to_contain_text("3 of 7")
        first = page.locator(".turn").first
        expect(first.locator(".badge")).to_have_text("prompt")
        first.click()
        expect(page.locator(".side")).to_have_count(2)
        expect(page.locator(".side ins")).to_have_text(["friendly "])
        expect(page.locator(".side del")).to_have_count(0)
        expect(page.locator(".badge", has_text="only in B")).to_have_count(1)
        assert page.evaluate(CONTRAST) == []
        page.set_viewport_size({"width": 320, "height": 700})
        assert page.evaluate("document.documentElement.scrollWidth") <= 320


HOSTILE = (
    "</script></style><script>window.ran = 1</script><img src=x onerror='window.ran = 2'>\u2028'\"`${window.ran = 3}"
)


def test_no_text_of_a_recording_runs(browser: Browser, page_of: PageOf) -> None:
    """Markup in every string, from the file's name to a tool's, is shown as the text that it is."""
    recording = Recording()
    client = recording.client(agent=HOSTILE)
    call = ToolCall(HOSTILE, HOSTILE, HOSTILE)
    said = (Reasoning(HOSTILE), Text(HOSTILE), Text(HOSTILE), call, Arguments(HOSTILE))
    settings = {"model": HOSTILE, "instructions": HOSTILE, HOSTILE: HOSTILE}
    turn(client, user(HOSTILE), *said, **settings)
    turn(client, output(HOSTILE, HOSTILE), *said, **settings)
    client.text(HOSTILE)
    start = client.ask(user("x"), follow=False, model=HOSTILE)
    assert start is not None
    client.feed(SampleFailed(start.sample_id, HOSTILE, HOSTILE))
    fixture = Fixture.parse(recording.content, name=HOSTILE.replace("/", "|"))
    with opened(browser, page_of(fixture, fixture)) as page:
        for n in range(page.locator(".turn").count()):
            page.locator(".turn").nth(n).click()
            for summary in page.locator(".side > details > summary").all():
                summary.click()
            for summary in page.locator(".frames summary").all()[:12]:
                summary.click()
        page.get_by_role("searchbox").fill(HOSTILE)
        page.get_by_role("button", name="Refused request").first.click()
        expect(page.locator(".frames q").first).to_contain_text("</script>")
        assert page.locator("img, body script:not([id]):not([type=module])").count() == 0
        assert page.evaluate("window.ran") is None


def test_markup_that_got_into_the_page_would_not_run_either(browser: Browser, path: Path) -> None:
    """The policy of the page lets its own script run, by its hash, and nothing else, and lets nothing be fetched."""
    with opened(browser, path, wrong=True) as page:
        refused = page.evaluate(
            """async () => {
              const refused = [];
              document.addEventListener("securitypolicyviolation", (event) => refused.push(event.effectiveDirective));
              const script = document.createElement("script");
              script.textContent = "window.ran = 1";
              document.body.append(script);
              document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='window.ran = 2'><p style='color: red'>");
              await fetch("https://example.invalid/").catch(() => refused.push("fetch"));
              await new Promise((done) => setTimeout(done));
              return refused;
            }"""
        )
        assert page.evaluate("window.ran") is None
        assert {"script-src-elem", "img-src", "style-src-attr", "connect-src", "fetch"} <= set(refused)


def test_two_hundred_turns_are_a_few_thousand_elements(browser: Browser, page_of: PageOf) -> None:
    """What a page draws at first grows with its turns, and not with their tokens; it is not much larger than its file."""
    with opened(browser, page_of(work(200, texts=60))) as page:
        expect(page.locator(".turn")).to_have_count(203)
        assert page.evaluate("document.querySelectorAll('*').length") < 203 * 15
        page.locator(".turn").nth(150).click()
        page.get_by_text("Frames").click()
        expect(page.locator(".frames q", has_text="word59").first).to_be_visible()


def test_a_huge_text_is_cut_until_all_of_it_is_wanted(browser: Browser, page_of: PageOf) -> None:
    """A page opens although an agent read a megabyte aloud."""
    recording = Recording()
    turn(recording.client(), user("line\n" * 200_000 + "the end"), Text("ok"))
    with opened(browser, page_of(recording.fixture)) as page:
        page.locator(".turn").click()
        text = page.locator(".item.user pre")
        assert len(text.inner_text()) < 10_000
        page.get_by_role("button", name="Show all 1,000,007 characters").click()
        assert text.evaluate("(text) => text.textContent.endsWith('the end')")


def test_a_recording_without_turns_is_a_page_too(browser: Browser, page_of: PageOf) -> None:
    """There is always something to see."""
    recording = Recording()
    recording.client(agent=CODEX).text("no json")
    with opened(browser, page_of(recording.fixture)) as page:
        expect(page.locator(".turns")).to_have_text("No turn was recorded.")
        expect(page.get_by_role("button", name="Refused request")).to_be_visible()
    with opened(browser, page_of(Fixture.parse(b'{"turntape":1}\n'))) as page:
        expect(page.locator(".turns")).to_have_text("No turn was recorded.")


def test_a_time_beyond_the_calendar_does_no_harm(browser: Browser, page_of: PageOf) -> None:
    """An edited recording opens, with its sessions one after the other."""
    recording = Recording()
    for seed in ("00", "11"):
        turn(recording.client(seed=seed * 16), user("Hi"), Text("ok"))
    edited = recording.content.replace(b'"wall":1800000000.0', b'"wall":9e12', 1)
    with opened(browser, page_of(Fixture.parse(edited))) as page:
        expect(page.locator(".bar")).to_have_count(2)
        first, second = (page.locator(".bar").nth(n).bounding_box() for n in range(2))
        assert first and second and first["x"] + first["width"] < second["x"]


def test_marked_words_are_all_that_differs(browser: Browser, path: Path) -> None:
    """Without the marked ranges any two texts are equal, and equal texts have none."""
    source = "\n".join(
        files("turntape.replay.pages").joinpath(name).read_text() for name in ("elements.js", "texts.js")
    )
    seeded = random.Random(7)
    some = ["the", " ", "cat", "\n", "é", "sat", ".", "on"]
    pairs = [["".join(seeded.choices(some, k=seeded.randrange(30))) for _ in range(2)] for _ in range(300)]
    with opened(browser, path) as page:
        left = page.evaluate(
            "(pairs) => {"
            + source
            + """
              const without = (text, ranges) => ranges.reduceRight((rest, [from, to]) => rest.slice(0, from) + rest.slice(to), text);
              return pairs.map(([a, b]) => { const [x, y] = differences(a, b); return [without(a, x), without(b, y), x.length + y.length]; });
            }""",
            [*pairs, ["same text", "same text"], ["", "new"], ["one two three", "one 2 three"]],
        )
    assert all(mine == theirs for mine, theirs, _ in left)
    assert left[-3] == ["same text", "same text", 0]
    assert left[-1] == ["one  three", "one  three", 2]
