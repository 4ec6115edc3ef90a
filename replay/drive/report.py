"""What a drive found: verdicts, which are the same each time, and timings beside them; as JSON both ways.

docs/replay.md is the specification of the file.
"""

from pathlib import Path
from typing import Any

import cattrs
import orjson
from attrs import field, frozen

from turntape.replay.errors import ReplayError

VERSION = 1

VERDICTS = ("equal", "text", "finish", "invalid", "arguments", "calls", "capped", "failed")
"""Of a turn, each worse than those before it. docs/replay.md says what each means."""

CALL_VERDICTS = ("equal", "arguments", "different", "missing", "extra")


UNREACHED = (502, 504)
"""Statuses of a server error where a backend was not reached, or broke off."""

QUOTED, QUOTED_BEFORE = 2000, 200
"""Characters of a text that a report quotes, and how many of them stand before the first difference."""


class ReportUnreadable(ReplayError):
    """The file is no report of a drive that this version reads."""


@frozen(kw_only=True)
class Called:
    """A tool call: its tool's name, with its namespace before it, and its arguments or input as they were written."""

    name: str
    arguments: str


@frozen(kw_only=True)
class CallVerdict:
    """One recorded call beside the one that came in its place.

    Attributes:
        verdict: one of ``CALL_VERDICTS``; "arguments" is the same tool with other arguments.
        recorded: None for one that is extra.
        got: None for one that is missing.
    """

    verdict: str
    recorded: Called | None = None
    got: Called | None = None


@frozen(kw_only=True)
class TextVerdict:
    """What the messages of one turn say.

    Attributes:
        equal: they say the same; nothing is then quoted.
        n_recorded, n_got: characters of the whole texts.
        at: where they part, in characters; None if they do not.
        quoted_from: where the quotations begin.
        recorded, got: quotations of at most ``QUOTED`` characters.
    """

    equal: bool
    n_recorded: int
    n_got: int
    at: int | None = None
    quoted_from: int = 0
    recorded: str = ""
    got: str = ""


@frozen(kw_only=True)
class StructuredVerdict:
    """Whether a text for which the request has a JSON schema is valid by it; ``problem`` is empty if it is."""

    valid: bool
    problem: str = ""


@frozen(kw_only=True)
class Failure:
    """Why a backend gave no whole answer: an error of the protocol, or of the connection."""

    code: str
    message: str
    status: int = 500

    @property
    def is_of_the_way(self) -> bool:
        """It is of the connection, or of the key, and says nothing of the model."""
        return self.code == "invalid_api_key" or (self.code == "server_error" and self.status in UNREACHED)


@frozen(kw_only=True)
class TurnVerdict:
    """One turn.

    Attributes:
        turn: its number in its run, from 1, in recorded order.
        where: file and line where its recorded sample was started; "" for one beyond the recording.
        thread: number of the conversation that it belongs to, from 1: several run beside each other.
        verdict: one of ``VERDICTS``.
        finish_recorded, finish_got: "stop", "length" or "content_filter"; None if it did not finish.
    """

    turn: int
    where: str
    thread: int
    verdict: str
    text: TextVerdict
    calls: tuple[CallVerdict, ...] = ()
    structured: StructuredVerdict | None = None
    finish_recorded: str | None = None
    finish_got: str | None = None
    failure: Failure | None = None


@frozen(kw_only=True)
class Departure:
    """Where a free run left the recorded path for good.

    Attributes:
        turn: its number in the run.
        reason: in a sentence.
        expected: calls whose recorded outputs were still to be had.
        got: the calls that came.
    """

    turn: int
    where: str
    thread: int
    reason: str
    expected: tuple[Called, ...] = ()
    got: tuple[Called, ...] = ()


@frozen(kw_only=True)
class RunVerdict:
    """One fixture, played once.

    Attributes:
        run: number, from 1.
        repeat: the how-manieth time that this fixture is played, from 1.
        counts: how many turns have each verdict; those that none has are left out.
        not_reached: lines of the recorded turns behind a departure or a failure.
    """

    run: int
    fixture: str
    repeat: int
    counts: dict[str, int] = field(factory=dict)
    departures: tuple[Departure, ...] = ()
    not_reached: tuple[str, ...] = ()
    turns: tuple[TurnVerdict, ...] = ()


@frozen(kw_only=True)
class LeftOut:
    """A recorded turn that is not played, and why."""

    where: str
    reason: str


@frozen(kw_only=True)
class Played:
    """A fixture, and what of it can be played."""

    fixture: str
    n_turns: int
    n_threads: int
    left_out: tuple[LeftOut, ...] = ()


@frozen(kw_only=True)
class Verdicts:
    """Everything that the same fixtures and the same outputs of a backend give again, byte for byte."""

    mode: str
    design: str
    counts: dict[str, int] = field(factory=dict)
    fixtures: tuple[Played, ...] = ()
    runs: tuple[RunVerdict, ...] = ()


@frozen(kw_only=True)
class Pace:
    """How one answer came.

    Attributes:
        ttft_s: seconds from the request to the first increment; None if there was none.
        took_s: seconds from the request to the end.
        itl_p50_s, itl_p99_s: seconds between two reads that brought increments; None for fewer than two.
        tokens_per_s: of the output, from the first increment to the last.
        input_tokens, cached_tokens, output_tokens, reasoning_tokens: None if nobody counted.
    """

    ttft_s: float | None = None
    took_s: float | None = None
    itl_p50_s: float | None = None
    itl_p99_s: float | None = None
    tokens_per_s: float | None = None
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None


@frozen(kw_only=True)
class TurnTimings:
    """One turn; times are in seconds.

    Attributes:
        began_s: since its run began, when the request went out.
        waited_s: for the tools, or for the person, before that.
        overhead_before_s: of the server: from the request's departure to the backend's being asked, and from the
            backend's first increment to its arrival. None where there is no backend of our own.
        overhead_after_s: from the end of the backend's answer to the arrival of the terminal event.
        got, recorded: the pace of either answer.
    """

    turn: int
    thread: int
    began_s: float
    waited_s: float
    overhead_before_s: float | None = None
    overhead_after_s: float | None = None
    got: Pace
    recorded: Pace


@frozen(kw_only=True)
class RunTimings:
    """One run.

    Attributes:
        began_s: since the drive began.
        wall_s: from its first request to its last event, tool time as asked for.
        waited_s: seconds in which nothing was asked of the backend.
        recorded_wall_s: the same turns as they were recorded.
        input_tokens, cached_tokens, output_tokens: sums of those turns that were counted.
    """

    run: int
    began_s: float
    wall_s: float
    waited_s: float
    recorded_wall_s: float
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    turns: tuple[TurnTimings, ...] = ()


@frozen(kw_only=True)
class Timings:
    """All that differs from time to time.

    Attributes:
        began: seconds since 1970.
    """

    began: float
    wall_s: float
    runs: tuple[RunTimings, ...] = ()


@frozen(kw_only=True)
class Setup:
    """What was asked for.

    Attributes:
        target: the backend's name, or the URL without its query.
        model: that took the place of the recorded ones; "" if they were kept.
        tool_time: "recorded", "zero", or a factor such as "x0.5".
    """

    turntape: str
    target: str
    model: str = ""
    tool_time: str = "recorded"
    repeat: int = 1
    parallel: int = 1


@frozen(kw_only=True)
class Report:
    """One drive."""

    setup: Setup
    verdicts: Verdicts
    timings: Timings

    @property
    def unanswered(self) -> Failure | None:
        """Why there was nobody to answer, if no turn was: not reached, or the key was refused. Other refusals are answers."""
        turns = [turn for run in self.verdicts.runs for turn in run.turns]
        failures = [turn.failure for turn in turns if turn.failure is not None and turn.failure.is_of_the_way]
        said = any(time.got.ttft_s is not None for run in self.timings.runs for time in run.turns)
        return failures[0] if turns and len(failures) == len(turns) and not said else None

    def encode(self) -> bytes:
        """The file: indented JSON, keys in the order of the classes."""
        value = {"turntape_drive": VERSION, **_converter.unstructure(self)}
        return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)

    @classmethod
    def decode(cls, encoded: bytes, *, name: str = "report") -> "Report":
        """Raises ``ReportUnreadable``, which names ``name``, the field and what is wrong with it."""
        try:
            value = orjson.loads(encoded)
        except orjson.JSONDecodeError as exc:
            raise ReportUnreadable(
                f"{name}: is not JSON: {exc}. A report is made with turntape drive … --json FILE."
            ) from None
        version = value.pop("turntape_drive", None) if isinstance(value, dict) else None
        if type(version) is not int:
            raise ReportUnreadable(
                f'{name}: is no report of a drive, which has "turntape_drive": {VERSION}; make one with '
                "turntape drive … --json FILE."
            )
        if version != VERSION:
            raise ReportUnreadable(
                f"{name}: is a report of version {version}; this version of Turntape reads version {VERSION}."
            )
        try:
            report = _converter.structure(value, cls)
        except (cattrs.BaseValidationError, cattrs.StructureHandlerNotFoundError) as exc:
            raise ReportUnreadable(f"{name}: {cattrs.transform_error(exc)[0]}.") from None
        if report.turn_numbers(report.verdicts.runs) != report.turn_numbers(report.timings.runs):
            raise ReportUnreadable(f'{name}: "verdicts" and "timings" are not of the same runs and turns.')
        return report

    @staticmethod
    def turn_numbers(runs: "tuple[RunVerdict, ...] | tuple[RunTimings, ...]") -> list[tuple[int, list[int]]]:
        """Number of each run, and those of its turns."""
        return [(run.run, [turn.turn for turn in run.turns]) for run in runs]

    @classmethod
    def load(cls, path: str | Path) -> "Report":
        """Raises ``ReportUnreadable``."""
        try:
            encoded = Path(path).read_bytes()
        except OSError as exc:
            raise ReportUnreadable(f"{path}: cannot be read: {exc.strerror}.") from None
        return cls.decode(encoded, name=str(path))


def _exactly(*kinds: type) -> Any:
    """A hook that coerces nothing: "1" is no number, and 1 is no text."""

    def check(value: Any, _: Any) -> Any:
        if type(value) not in kinds:
            names = " or ".join(kind.__name__ for kind in kinds)
            raise TypeError(f"expected {names}, got {type(value).__name__}")
        return value

    return check


def _made() -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=True)
    converter.register_structure_hook(str, _exactly(str))
    converter.register_structure_hook(bool, _exactly(bool))
    converter.register_structure_hook(int, _exactly(int))
    converter.register_structure_hook(float, _exactly(float, int))
    return converter


_converter = _made()
