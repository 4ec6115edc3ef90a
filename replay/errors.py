"""What can be wrong with a recording. Every message is a sentence or two for a terminal."""

from attrs import define


class ReplayError(Exception):
    """A fixture cannot be read, written or replayed."""


@define(eq=False)
class FixtureUnreadable(ReplayError):
    """The file is not a fixture that this version reads.

    Attributes:
        where: the file's name, or "fixture" if it has none.
        line: counted from 1, as editors do; 0 if no line is at fault.
    """

    where: str
    line: int
    problem: str

    def __str__(self) -> str:
        place = f"{self.where}:{self.line}" if self.line else self.where
        return f"{place}: {self.problem}"


@define(eq=False)
class Divergence(ReplayError):
    """A line of the recording is not what a session of today makes of the same events.

    Attributes:
        line: the first line that differs.
        problem: what differs, in a sentence without an end.
        expected: the recorded side around the first difference.
        got: today's side around the same place.
    """

    where: str
    line: int
    problem: str
    expected: str = ""
    got: str = ""

    def __str__(self) -> str:
        shown = f"{self.where}:{self.line}: {self.problem}"
        return f"{shown}\n  recorded: {self.expected}\n  today:    {self.got}" if self.expected or self.got else shown


class RuleInvalid(ReplayError):
    """A matching rule of a fixture cannot be understood."""
