"""Which plans are worth a try, as data: ranges that held the fastest for some thirty ops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kgen.tune.plans import Candidate, Direction, plan_by


@dataclass(frozen=True, slots=True)
class Whole:
    """Tiles of whole rows: every combination within these bounds.

    ``elements`` bounds what a thread holds, ``several`` a tile of several rows.
    """

    schedule: str
    widths: tuple[int, int]
    rows: tuple[int, ...]
    warps: tuple[int, ...]
    elements: tuple[int, int]
    several: int = 8192
    stages: int = 1
    programs: tuple[int, ...] = (1,)
    warps_a_processor: tuple[int, int] = (1, 32)


ROWS = (1, 2, 4, 8, 16, 32)
RESIDENT = Whole("resident", (64, 32768), ROWS, (1, 2, 4, 8, 16, 32), (8, 64))
RELOAD = Whole("reload", (8192, 65536), (1,), (4, 8, 16, 32), (16, 128))
RESIDENT_GROUPS = Whole(
    "resident",
    (64, 8192),
    ROWS,
    (2, 4, 8, 16),
    (16, 32),
    stages=3,
    programs=(1, 2, 3, 4),
    warps_a_processor=(4, 16),
)
RELOAD_GROUPS = Whole("reload", (8192, 32768), (1,), (8, 16, 32), (8, 64))
MANY_ROWS, MANY_ELEMENTS = 8, 4096
"""Tiles of so many rows and more have at most so many elements."""
LEAST_FOR_FEW, FEW_ELEMENTS, FEW_WARPS = 16384, 8, 4
"""Narrower rows have so few elements a thread with no more warps than these."""

LEAST_STREAMING = 8192
STREAMING = (
    Candidate("streaming", 1, 1024, 4),
    Candidate("streaming", 1, 2048, 4),
    Candidate("streaming", 1, 2048, 8),
    Candidate("streaming", 1, 4096, 8),
    Candidate("streaming", 1, 4096, 16),
    Candidate("streaming", 1, 8192, 16),
    Candidate("streaming", 1, 8192, 32),
    Candidate("streaming", 1, 16384, 16),
    Candidate("streaming", 1, 16384, 32),
    Candidate("streaming", 1, 1024, 4, stages=4),
    Candidate("streaming", 1, 2048, 8, stages=2),
    Candidate("streaming", 1, 2048, 8, stages=4),
    Candidate("streaming", 1, 4096, 16, stages=2),
    Candidate("streaming", 1, 8192, 32, stages=4),
    Candidate("streaming", 1, 16384, 32, stages=4),
)
LEAST_CHUNKS = 4096
CHUNKS = (
    Candidate("streaming", 1, 1024, 2),
    Candidate("streaming", 1, 1024, 4),
    Candidate("streaming", 1, 2048, 4),
    Candidate("streaming", 1, 2048, 8),
    Candidate("streaming", 1, 4096, 8),
    Candidate("streaming", 1, 4096, 16),
    Candidate("streaming", 1, 8192, 16),
)
"""Where each chunk has a program: as tiles of whole rows, 8 to 16 elements a thread."""
LEAST_SPLIT = 8192
SPLIT = (
    Candidate("split", 1, 2048, 4, 4, 2),
    Candidate("split", 2, 1024, 4, 3, 2),
    Candidate("split", 1, 1024, 4, 3, 4),
    Candidate("split", 4, 2048, 8, 3, 1),
    Candidate("split", 1, 512, 2, 3, 8),
    Candidate("split", 1, 1024, 2, 3, 4),
)


def candidates(direction: Direction, words: int) -> tuple[Candidate, ...]:
    """What to measure for rows of ``words`` words: with the rule's plan and that of the spec."""
    known = [
        plan_by(tiles, words, direction.is_split) for tiles in (direction.rule, direction.tiles)
    ]
    families = (RESIDENT_GROUPS, RELOAD_GROUPS) if direction.is_split else (RESIDENT, RELOAD)
    for family in families[: 1 + direction.can_reload]:
        known.extend(_whole(family, words))
    if direction.is_split:
        known += SPLIT if words >= LEAST_SPLIT else ()
    elif words >= (LEAST_CHUNKS if direction.has_chunks else LEAST_STREAMING):
        chunks = CHUNKS if direction.has_chunks else STREAMING
        known += [p for p in chunks if p.block < words and p.block * p.stages <= words]
    return tuple(dict.fromkeys(known))


def _whole(family: Whole, words: int) -> Iterator[Candidate]:
    if not family.widths[0] <= words <= family.widths[1]:
        return
    for rows in family.rows:
        most = MANY_ELEMENTS if rows >= MANY_ROWS else family.several
        for warps in family.warps if rows == 1 or rows * words <= most else ():
            elements = rows * words // (32 * warps)
            is_idle = elements <= FEW_ELEMENTS and warps > FEW_WARPS and words < LEAST_FOR_FEW
            if not family.elements[0] <= elements <= family.elements[1]:
                continue
            if is_idle and family.programs == (1,):
                continue
            for programs in family.programs:
                least, most_warps = family.warps_a_processor
                if least <= programs * warps <= most_warps:
                    yield Candidate(family.schedule, rows, words, warps, family.stages, programs)
