"""Headless Chromium for tests of pages: what a page did wrong, and what it asked of any network, fails the test."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import programs
from playwright.sync_api import Browser, Page, sync_playwright

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def chromium() -> Iterator[Browser]:
    """One browser with a profile of its own, for many pages."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=programs.chromium(), args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(
    browser: Browser, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False, wrong: bool = False
) -> Iterator[Page]:
    """The page in ``path``. It must end without an error, and ask for nothing but itself.

    Args:
        wrong: errors and requests that are refused are expected, and not looked at.
    """
    problems: list[str] = []
    requests: list[str] = []
    page = browser.new_page(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", reduced_motion="reduce"
    )
    page.set_default_timeout(10_000)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text))
    page.on("request", lambda request: requests.append(request.url.partition("#")[0]))
    try:
        page.goto(path.as_uri())
        yield page
    finally:
        page.close()
    assert wrong or {*requests} == {path.as_uri()}
    assert wrong or not problems


CONTRAST = """
() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const style = getComputedStyle(at);
      if (style.backgroundImage !== "none") return null;
      const color = rgba(style.backgroundColor);
      if (color[3] === 255) return color;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || ["SCRIPT", "NOSCRIPT", "STYLE"].includes(element.tagName) || element.closest("[disabled]")) continue;
    const back = behind(element);
    if (!element.checkVisibility() || back === null) continue;
    const [one, other] = [luminance(rgba(getComputedStyle(element).color)), luminance(back)].sort((a, b) => b - a);
    const ratio = (one + 0.05) / (other + 0.05);
    if (ratio < 4.5) poor.push(`${element.tagName}.${element.className}: ${element.textContent.slice(0, 20)} ${ratio.toFixed(2)}`);
  }
  return poor;
}
"""
"""Elements with text of their own whose contrast is below 4.5, the least of WCAG 2.2 AA; pictures behind a text pass."""

NAMELESS = """
() => [...document.querySelectorAll("button, input, summary, svg")]
  .filter((each) => each.checkVisibility() && !(each.getAttribute("aria-label") || each.textContent.trim() || each.labels?.length))
  .map((each) => each.outerHTML)
"""
"""Controls and pictures that have no name for a screen reader."""
