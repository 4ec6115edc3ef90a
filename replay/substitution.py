"""A recorded take in the live client's terms: its working folder instead of the one of the recording.

A model names folders in its calls, and a call that names the recorded folder would act on a place that is not
there, and be echoed as text that no rule maps. So every learned value that a take says is replaced by what the
live conversation taught under the same placeholder. A take that says none is handed out as it was recorded.
"""

import itertools
import re
from collections.abc import Iterator

import attrs
from attrs import frozen

from turntape.core.seam import Arguments, Increment, Reasoning, Refusal, Sampled, Summary, Text, ToolCall

from .reading import Learned, json_form, occurrences
from .takes import Take

TextPiece = Text | Refusal | Reasoning | Summary | Arguments


@frozen
class Substitution:
    """Attributes:
    values: recorded value to live value, where they differ.
    """

    values: dict[str, str]
    pattern: re.Pattern[str] | None

    @classmethod
    def between(cls, recorded: Learned, live: Learned) -> "Substitution":
        theirs = {placeholder: value for value, placeholder in live.values}
        values = {
            value: theirs[placeholder]
            for value, placeholder in recorded.values
            if placeholder in theirs and theirs[placeholder] != value
        }
        return cls(values, occurrences(values))

    def applied(self, take: Take) -> Iterator[tuple[Increment, ...]]:
        """The batches of ``take``. A value may be split over increments: the one where it begins gets all of it."""
        batches = [event.batch for _, event in take.events if isinstance(event, Sampled)]
        if self.pattern is None:
            return iter(batches)
        increments = [increment for batch in batches for increment in batch]
        for run, as_json in _runs(increments):
            texts = [piece.text for piece in run.values()]
            for (n, piece), text in zip(run.items(), self._rewritten(texts, as_json), strict=True):
                increments[n] = attrs.evolve(piece, text=text)
        fresh = iter(increments)
        return iter([tuple(next(fresh) for _ in batch) for batch in batches])

    def _rewritten(self, texts: list[str], as_json: bool) -> list[str]:
        """``texts`` with live values; as many as there were."""
        assert self.pattern is not None
        live = {json_form(value): json_form(other) for value, other in self.values.items()}
        live |= {value: json_form(other) if as_json else other for value, other in self.values.items()}
        whole = "".join(texts)
        ends = [*itertools.accumulate(map(len, texts))]
        rewritten = [""] * len(texts)
        n = at = 0
        for start, stop, value in [(*match.span(), live[match[0]]) for match in self.pattern.finditer(whole)] + [
            (len(whole), len(whole), "")
        ]:
            while at < start:
                while ends[n] <= at:
                    n += 1
                upto = min(start, ends[n])
                rewritten[n] += whole[at:upto]
                at = upto
            if value:
                while ends[n] <= start:
                    n += 1
                rewritten[n] += value
            at = stop
        return rewritten


def _runs(increments: list[Increment]) -> Iterator[tuple[dict[int, TextPiece], bool]]:
    """The increments that make up one text, by their number, and whether that text is JSON."""
    run = dict[int, TextPiece]()
    as_json = False
    for n, increment in enumerate(increments):
        if isinstance(increment, TextPiece):
            if run and type(increment) is not type(next(iter(run.values()))):
                yield run, as_json
                run = {}
            run[n] = increment
            continue
        if run:
            yield run, as_json
        run = {}
        as_json = isinstance(increment, ToolCall) and not increment.custom
    if run:
        yield run, as_json
