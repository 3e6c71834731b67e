"""What results amount to: tables by op, ratios to the best of the others, and the worst cells."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from kgen.bench.cells import FIRST, Cell
from kgen.bench.results import OK, Measurement, Spread

OWN = "kgen"


@dataclass(frozen=True, slots=True)
class Table:
    """One op, direction and dtype: a row a shape, a column a provider."""

    op: str
    direction: str
    dtype: str
    providers: tuple[str, ...]
    rows: tuple[tuple[Cell, tuple[Measurement | None, ...]], ...]


@dataclass(frozen=True, slots=True)
class Ratio:
    """How fast kgen is beside others in one cell: the other's time over kgen's."""

    cell: Cell
    direction: str
    other: str
    value: float


def tables(measurements: Iterable[Measurement]) -> list[Table]:
    """All tables, those of the ops that most libraries have first."""
    grouped: dict[tuple[str, str, str], list[Measurement]] = {}
    for each in measurements:
        grouped.setdefault((each.op, each.dtype, each.direction), []).append(each)
    found = []
    for (op, dtype, direction), members in grouped.items():
        providers = tuple(dict.fromkeys(each.provider for each in members))
        by_key = {(each.cell, each.provider): each for each in members}
        cells = dict.fromkeys(each.cell for each in members)
        rows = tuple(
            (cell, tuple(by_key.get((cell, name)) for name in providers)) for cell in cells
        )
        found.append(Table(op, direction, dtype, providers, rows))
    place = {op: number for number, op in enumerate(FIRST)}
    return sorted(found, key=lambda table: place.get(table.op, len(FIRST)))


def ratios(
    measurements: Iterable[Measurement], others: Sequence[str] | None = None
) -> Iterator[Ratio]:
    """In each cell and direction, kgen beside the fastest of ``others`` (of all, if None)."""
    grouped: dict[tuple[Cell, str], dict[str, float]] = {}
    for each in measurements:
        if each.status == OK and each.time is not None and each.time.median > 0:
            grouped.setdefault((each.cell, each.direction), {})[each.provider] = each.time.median
    for (cell, direction), times in grouped.items():
        own = times.pop(OWN, None)
        known = {n: time for n, time in times.items() if others is None or n in others}
        if own is not None and known:
            other = min(known, key=lambda name: known[name])
            yield Ratio(cell, direction, other, known[other] / own)


def together(measurements: Iterable[Measurement]) -> list[Measurement]:
    """Forward and backward of each provider as one: the sum of both times, where both are known."""
    held = {each.key: each for each in measurements if each.time is not None}
    found = []
    for (cell, direction, provider), ahead in held.items():
        back = held.get((cell, "backward", provider))
        if direction == "forward" and back is not None and ahead.time and back.time:
            time = Spread(
                ahead.time.median + back.time.median,
                ahead.time.p20 + back.time.p20,
                ahead.time.p80 + back.time.p80,
            )
            found.append(replace(ahead, direction="both", time=time))
    return found


def geometric_mean(values: Sequence[float]) -> float:
    """The n-th root of the product of numbers above 0; of none it is nan."""
    if not values:
        return math.nan
    return math.exp(sum(map(math.log, values)) / len(values))


def providers_in(measurements: Iterable[Measurement]) -> tuple[str, ...]:
    """The names of all providers, kgen first, in the order in which they were measured."""
    names = dict.fromkeys(each.provider for each in measurements)
    return tuple(sorted(names, key=lambda name: name != OWN))
