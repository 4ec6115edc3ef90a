"""Adds up what a ledger holds, for people and for programs."""

from collections.abc import Iterator
from datetime import UTC, datetime

import click
import orjson
from attrs import asdict, define

from turntape.transport.ledger import json_lines, sqlite
from turntape.transport.ledger.record import LedgerError, UsageRecord

from .ledgers import BARE, LedgerSpec
from .options import EnvironmentFailed


@define
class Sum:
    """What the responses of one kind used together.

    Attributes:
        failed, cancelled: among the responses.
        uncounted: samples whose tokens are not known, and not in the sums.
        estimated: responses with tokens that the backend did not count.
    """

    responses: int = 0
    failed: int = 0
    cancelled: int = 0
    samples: int = 0
    uncounted: int = 0
    estimated: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    sampling_s: float = 0.0

    def add(self, record: UsageRecord) -> None:
        self.responses += record.responses
        self.failed += record.responses * (record.status == "failed")
        self.cancelled += record.responses * (record.status == "cancelled")
        self.samples += record.samples
        self.uncounted += record.uncounted
        self.estimated += record.responses * record.estimated
        self.input_tokens += record.input_tokens
        self.cached_tokens += record.cached_tokens
        self.output_tokens += record.output_tokens
        self.reasoning_tokens += record.reasoning_tokens
        self.sampling_s = round(self.sampling_s + record.sampling_s, 6)


def usage(ledger: LedgerSpec, *, by: str, since: float, as_json: bool) -> int:
    """Print the sums for each value of ``by``, the largest first, days in their order.

    Raises:
        EnvironmentFailed: there is no such ledger, or it cannot be read.
    """
    sums: dict[str, Sum] = {}
    total = Sum()
    try:
        for record in _read(ledger, since):
            sums.setdefault(_key(record, by), Sum()).add(record)
            total.add(record)
    except LedgerError as exc:
        raise EnvironmentFailed(str(exc)) from exc
    ordered = sorted(sums.items(), key=lambda pair: pair[0])
    if by != "day":
        ordered.sort(key=lambda pair: pair[1].input_tokens + pair[1].output_tokens, reverse=True)
    if as_json:
        said = [{by: name, **asdict(each)} for name, each in ordered]
        click.echo(orjson.dumps({"by": by, "sums": said, "total": asdict(total)}, option=orjson.OPT_INDENT_2))
        return 0
    if not sums:
        click.echo(f"no responses in {ledger}")
        return 0
    heads = (by, "responses", "failed", "cancelled", "input", "cached", "output", "reasoning")
    rows: list[tuple[str, ...]] = [heads, *(_row(name, each) for name, each in ordered)]
    if len(ordered) > 1:
        rows.append(_row("total", total))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        numbers = "  ".join(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        click.echo(f"{row[0].ljust(widths[0])}  {numbers}")
    if total.estimated:
        click.echo(f"{total.estimated} of them with tokens that the backend did not count: those are estimated")
    if total.uncounted:
        click.echo(
            f"{total.uncounted} samples broke off or were refused: what they used is not known, and not in the sums"
        )
    return 0


def _read(ledger: LedgerSpec, since: float) -> Iterator[UsageRecord]:
    if ledger.kind in BARE:
        raise click.UsageError(f"--ledger {ledger}: there is nothing to read here; name the file that serve writes")
    read = sqlite.read if ledger.kind == "sqlite" else json_lines.read
    return read(ledger.path, since)


def _key(record: UsageRecord, by: str) -> str:
    if by == "day":
        return datetime.fromtimestamp(record.at, UTC).strftime("%Y-%m-%d")
    value: str = getattr(record, by)
    return value or "(none)"


def _row(name: str, each: Sum) -> tuple[str, ...]:
    shown = "".join(c if c.isprintable() else "?" for c in name[:60])
    counts = (each.responses, each.failed, each.cancelled, each.input_tokens, each.cached_tokens)
    return (shown, *(f"{n:,}" for n in (*counts, each.output_tokens, each.reasoning_tokens)))
