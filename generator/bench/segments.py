"""The kernels of a profile, cut into calls at the copies that stand between them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


class MeasureError(Exception):
    """A measurement that cannot be trusted, and why."""


@dataclass(frozen=True, slots=True)
class Ran:
    """Something that ran on the GPU: a kernel, a copy or a fill; times in microseconds."""

    name: str
    start: float
    duration: float


def cut(ran: Iterable[Ran], marker: str, calls: int) -> list[list[Ran]]:
    """What ran in each call: one copy stands before each and one after the last.

    ``marker`` is the name of the kernel that copies. Raises ``MeasureError`` if the number of
    copies is another, since then a call has run a kernel of that name or the profiler has lost
    something, and if a call ran nothing.
    """
    found: list[list[Ran]] = []
    before: list[str] = []
    copies = 0
    for event in sorted(ran, key=lambda event: event.start):
        if event.name == marker:
            copies += 1
            found.append([])
        elif found:
            found[-1].append(event)
        else:
            before.append(event.name)
    if before:
        raise MeasureError(f"'{before[0]}' ran before the first call")
    if copies != calls + 1:
        raise MeasureError(f"{copies} copies stand between {calls} calls, in place of {calls + 1}")
    if found.pop():
        raise MeasureError("something ran after the last call")
    if not all(found):
        raise MeasureError("a call ran nothing on the GPU")
    return found


def total(call: Iterable[Ran]) -> float:
    """The time of a call: the sum of what it ran, without the gaps between."""
    return sum(event.duration for event in call)
