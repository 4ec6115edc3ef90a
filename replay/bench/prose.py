"""Text as agents send it: listings, logs and test results of a made-up program, as long as asked for."""

from random import Random

from attrs import define, field

N_LINES = 600
"""Different ones, from which texts are put together."""

WORDS = [
    "queue",
    "ledger",
    "harbor",
    "signal",
    "packet",
    "window",
    "cursor",
    "lantern",
    "anchor",
    "thread",
    "buffer",
    "ticket",
    "garden",
    "branch",
    "mirror",
    "compass",
    "worker",
    "parser",
    "socket",
    "marker",
    "bridge",
    "column",
    "folder",
    "kernel",
    "module",
    "record",
    "stream",
    "tunnel",
    "vector",
    "widget",
]
VERBS = [
    "read",
    "write",
    "open",
    "close",
    "merge",
    "split",
    "count",
    "drop",
    "send",
    "keep",
    "move",
    "find",
    "check",
    "parse",
    "build",
    "store",
]
STATES = ["passed", "failed", "skipped", "retried", "changed", "missing", "pending", "ready", "stale", "unknown"]


@define(eq=False)
class Writer:
    """Texts from one generator: the same state gives the same texts."""

    random: Random
    _lines: list[str] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._lines = [self._line() for _ in range(N_LINES)]

    def text(self, n_bytes: int) -> str:
        """Lines that take ``n_bytes`` as a JSON string, without its quotes."""
        parts, left = list[str](), n_bytes
        while left > 0:
            line = self.random.choice(self._lines)[: left if left <= 2 else left - 2]
            if left > len(line) + 2:
                parts.append(line + "\n")  # two bytes in JSON
                left -= len(line) + 2
            else:
                parts.append(line.ljust(left, "."))
                left = 0
        return "".join(parts)

    def _line(self) -> str:
        draw, name = self.random, self.random.choice
        match draw.randrange(4):
            case 0:
                return f"src/{name(WORDS)}/{name(WORDS)}.py:{draw.randrange(1, 900)}: {name(VERBS)}_{name(WORDS)}({name(WORDS)})"
            case 1:
                return (
                    f"    {name(WORDS)} = {name(VERBS)}_{name(WORDS)}({name(WORDS)}, limit={draw.randrange(10, 5000)})"
                )
            case 2:
                seconds = draw.randrange(1, 4000) / 1000
                return f"test_{name(VERBS)}_{name(WORDS)}_{name(STATES)} {name(STATES)} in {seconds:.3f} s"
            case _:
                return f"The {name(WORDS)} does not {name(VERBS)} the {name(WORDS)} while the {name(WORDS)} is {name(STATES)}."
