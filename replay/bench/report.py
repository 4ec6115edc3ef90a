"""What a bench found: medians and spreads of each design at each speed; as JSON both ways, and two beside each other."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import cattrs
import orjson
from attrs import field, frozen

from turntape.replay.errors import ReplayError

VERSION = 1


class ReportUnreadable(ReplayError):
    """The file is no report of a bench that this version reads."""


@frozen(kw_only=True)
class Spread:
    """One figure, measured some times."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        """None of nothing."""
        if not values:
            return None
        return cls(median=_rounded(median(values)), least=_rounded(min(values)), most=_rounded(max(values)))


@frozen(kw_only=True)
class TurnFigures:
    """One turn of the first session, by medians over the repeats; seconds.

    Attributes:
        turn: its number in the conversation, from 0.
        context_tokens: what it was asked with, estimated.
        overhead_s: what it took beyond the model's own time: server, client and network.
    """

    turn: int
    context_tokens: int
    ttft_s: float | None
    overhead_s: float
    after_s: float


@frozen(kw_only=True)
class Figures:
    """One design at one speed.

    Attributes:
        tokens_per_s: of the model; 0 is a model that takes no time.
        wall_s: of a session.
        overhead_s: of a session's turns, summed: what they took beyond the model's own time.
        ttft_s: median of a session's turns; with the model's reasoning in it, which is not shown.
        after_s: from the last delta to the terminal event, median of a session's turns.
        itl_p50_s, itl_p99_s: between two reads that brought deltas.
        achieved_tokens_per_s: of a session: all tokens by the time in which turns were answered.
        up_bytes, down_bytes, connections: of a session.
        cpu_per_turn_s, cpu_per_token_s: of the server's process, the model's own in it. None where it cannot be read.
        memory_bytes: of the server's process, after the run.
        turns: how it grows with the history.
    """

    shape: str
    design: str
    tokens_per_s: float
    sessions: int
    wall_s: Spread
    overhead_s: Spread
    ttft_s: Spread | None
    after_s: Spread
    itl_p50_s: Spread | None
    itl_p99_s: Spread | None
    achieved_tokens_per_s: Spread
    up_bytes: Spread
    down_bytes: Spread
    connections: Spread
    cpu_per_turn_s: Spread | None = None
    cpu_per_token_s: Spread | None = None
    memory_bytes: Spread | None = None
    turns: tuple[TurnFigures, ...] = ()

    @property
    def key(self) -> tuple[str, str, float, int]:
        """What has to be the same for two to be compared."""
        return self.shape, self.design, self.tokens_per_s, self.sessions


@frozen(kw_only=True)
class Setup:
    """What was asked for.

    Attributes:
        up_mbit_s, down_mbit_s: 0 is without a limit.
        cold: each POST opened its own connection.
        gap_cap_s: longest wait for tools and people that was played.
    """

    turntape: str
    seed: int
    repeat: int
    rtt_s: float = 0.0
    up_mbit_s: float = 0.0
    down_mbit_s: float = 0.0
    tls: bool = False
    slow_start: bool = False
    cold: bool = True
    gap_cap_s: float = 0.0


@frozen(kw_only=True)
class Worse:
    """A figure that is beyond the allowed ratio of its baseline."""

    key: tuple[str, str, float, int]
    name: str
    before: float
    now: float


COMPARED = ("wall_s", "overhead_s", "ttft_s", "cpu_per_turn_s", "up_bytes")
"""Of a baseline. Medians; the smaller, the better."""


@frozen(kw_only=True)
class Report:
    """One bench."""

    setup: Setup
    figures: tuple[Figures, ...] = field(factory=tuple)

    def worse(self, baseline: "Report", max_ratio: float) -> list[Worse]:
        """Figures that are more than ``max_ratio`` times those of ``baseline``, where both have them.

        Raises:
            ReplayError: the two were not measured alike, or have nothing in common.
        """
        for name in ("seed", "rtt_s", "up_mbit_s", "down_mbit_s", "tls", "slow_start", "cold", "gap_cap_s"):
            ours, theirs = getattr(self.setup, name), getattr(baseline.setup, name)
            if ours != theirs:
                raise ReplayError(
                    f'The baseline was measured with "{name}" {theirs!r}, and this with {ours!r}: measure both alike.'
                )
        before = {figures.key: figures for figures in baseline.figures}
        both = [(before[figures.key], figures) for figures in self.figures if figures.key in before]
        if not both:
            raise ReplayError("The baseline has no shape, design, speed and number of sessions in common with this.")
        return [worse for pair in both for worse in _worse(*pair, max_ratio)]

    def encode(self) -> bytes:
        """The file: indented JSON, keys in the order of the classes."""
        value = {"turntape_bench": VERSION, **_converter.unstructure(self)}
        return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)

    @classmethod
    def decode(cls, encoded: bytes, *, name: str = "report") -> "Report":
        """Raises ``ReportUnreadable``, which names ``name``, the field and what is wrong with it."""
        try:
            value = orjson.loads(encoded)
        except orjson.JSONDecodeError as exc:
            raise ReportUnreadable(f"{name}: is not JSON: {exc}.") from None
        version = value.pop("turntape_bench", None) if isinstance(value, dict) else None
        if type(version) is not int:
            raise ReportUnreadable(f'{name}: is no report of a bench, which has "turntape_bench": {VERSION}.')
        if version != VERSION:
            raise ReportUnreadable(
                f"{name}: is a report of version {version}; this version of Turntape reads version {VERSION}."
            )
        try:
            return _converter.structure(value, cls)
        except (cattrs.BaseValidationError, cattrs.StructureHandlerNotFoundError) as exc:
            raise ReportUnreadable(f"{name}: {cattrs.transform_error(exc)[0]}.") from None

    @classmethod
    def load(cls, path: str | Path) -> "Report":
        """Raises ``ReportUnreadable``."""
        try:
            encoded = Path(path).read_bytes()
        except OSError as exc:
            raise ReportUnreadable(f"{path}: cannot be read: {exc.strerror}.") from None
        return cls.decode(encoded, name=str(path))


def _worse(before: Figures, now: Figures, max_ratio: float) -> Iterator[Worse]:
    for name in COMPARED:
        was, is_ = getattr(before, name), getattr(now, name)
        if was is not None and is_ is not None and is_.median > max_ratio * was.median:
            yield Worse(key=now.key, name=name, before=was.median, now=is_.median)


def _rounded(value: float) -> float:
    return round(value, 7)


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
