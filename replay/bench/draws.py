"""Distributions that agent sessions were fitted with, drawn from a seeded generator."""

import math
from collections.abc import Sequence
from random import Random
from typing import Protocol, TypeVar

from attrs import frozen

T = TypeVar("T")


class Draw(Protocol):
    """A distribution."""

    def draw(self, random: Random) -> float: ...


@frozen
class Constant:
    value: float

    def draw(self, random: Random) -> float:
        return self.value


@frozen
class LogNormal:
    """
    Args:
        sigma: of the logarithm.
        least, most: what is drawn beyond them is set to them.
    """

    median: float
    sigma: float
    least: float = 0.0
    most: float = math.inf

    def draw(self, random: Random) -> float:
        drawn = self.median * math.exp(random.gauss(0.0, self.sigma))
        return min(max(drawn, self.least), self.most)


@frozen
class Mixture:
    """One of several, each as often as its weight says."""

    parts: tuple[tuple[float, Draw], ...]

    def draw(self, random: Random) -> float:
        return chosen(self.parts, random).draw(random)


@frozen
class Count:
    """A whole number.

    Args:
        weights: how often 0, 1, 2, … come.
    """

    weights: tuple[float, ...]

    def draw(self, random: Random) -> int:
        return random.choices(range(len(self.weights)), self.weights)[0]


def chosen(parts: Sequence[tuple[float, T]], random: Random) -> T:
    return random.choices([part for _, part in parts], [weight for weight, _ in parts])[0]
