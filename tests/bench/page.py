"""How large the page of a recording is, how long it takes to make, and to open in headless Chromium.

    python tests/bench/page.py [TURNS] [TOKENS]

Makes a recording of TURNS turns (200) with TOKENS deltas each (60) and 20 KB of tools in every request.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import browsing
from taped import CODEX, Recording, output, user

from turntape.core.seam import Arguments, Increment, Text, ToolCall
from turntape.replay.pages.timeline import timeline_page

TOOLS = [
    {"type": "function", "name": f"tool_{n}", "description": "What it does. " * 130, "parameters": {"type": "object"}}
    for n in range(10)
]
OPENED = "performance.getEntriesByType('navigation')[0].domComplete"


def recording(n_turns: int, n_tokens: int) -> bytes:
    made = Recording()
    client = made.client(agent=CODEX)
    item: object = user("Begin.")
    for n in range(n_turns):
        said: list[tuple[Increment, ...]] = [(Text(f"word{k} "),) for k in range(n_tokens)]
        said.append((ToolCall(f"call_{n}", "sh"), Arguments('{"cmd":"make test"}')))
        client.turn(item, say=tuple(said), tools=TOOLS)
        item = output(f"call_{n}", f"{n} tests passed in this run\n" * 100)
    return made.content


def main(n_turns: int = 200, n_tokens: int = 60) -> None:
    from turntape.replay.fixture import Fixture

    content = recording(n_turns, n_tokens)
    began = time.perf_counter()
    page = timeline_page(Fixture.parse(content)).encode()
    made_s = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as folder, browsing.chromium() as browser:
        path = Path(folder) / "page.html"
        path.write_bytes(page)
        times_s = []
        for _ in range(5):
            with browsing.opened(browser, path) as opened:
                opened.wait_for_load_state()
                times_s.append(opened.evaluate(OPENED) / 1000)
                n_elements = opened.evaluate("document.querySelectorAll('*').length")
    print(f"recording of {n_turns} turns, {n_tokens} deltas each: {len(content) / 1e6:.2f} MB")
    print(f"page: {len(page) / 1e6:.2f} MB, made in {made_s:.2f} s, {n_elements:,} elements at first")
    print(f"opened in {statistics.median(times_s):.2f} s (median of 5, navigation to load)")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
