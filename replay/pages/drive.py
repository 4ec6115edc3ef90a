"""The page of a drive's report, or of two reports beside each other."""

import orjson

from turntape.replay.drive.report import Report

from .assembly import page

SCRIPTS = ("elements.js", "texts.js", "scale.js", "drive_turns.js", "drive_runs.js", "drive.js")
STYLES = ("style.css", "drive.css")


def drive_page(report: Report, other: Report | None = None) -> str:
    """An HTML document: every turn with its verdict, its times beside the recorded ones, and what differs.

    Args:
        other: a report of the same fixtures, for comparison: today's, if ``report`` is the baseline.
    """
    reports = [each for each in (report, other) if each is not None]
    title = " and ".join(each.setup.target for each in reports)
    shown = {"reports": [orjson.loads(each.encode()) for each in reports]}
    return page(f"Drive of {title} · Turntape", shown, SCRIPTS, STYLES)
