"""Which cases to run where all combinations would be too many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

First = TypeVar("First")
Second = TypeVar("Second")
Third = TypeVar("Third")


def in_turn(
    cases: Iterable[First], values: Sequence[Second], count: int
) -> list[tuple[First, Second]]:
    """Every case with ``count`` of the values, which take turns.

    Of four dtypes taken by twos a case gets the first and the third or the second and the fourth:
    a narrow one and a wide one.
    """
    apart = max(len(values) // count, 1)
    return [
        (case, values[(place + turn * apart) % len(values)])
        for place, case in enumerate(cases)
        for turn in range(min(count, len(values)))
    ]


def by_pairs(
    first: Iterable[First], second: Iterable[Second], third: Sequence[Third]
) -> list[tuple[First, Second, Third]]:
    """Every pair of a first and a second value in one case, with third values that take turns.

    A first value meets every third value too if there are as many second ones, and a second value
    does if there are as many first ones.
    """
    others = list(second)
    return [
        (value, other, third[(place + turn) % len(third)])
        for place, value in enumerate(first)
        for turn, other in enumerate(others)
    ]
