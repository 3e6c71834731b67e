"""How large a piece of the matrix each program takes: tables of tiles, by the width of the row.

The figures behind the tables are in docs/schedules.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kgen.lower import RowOp
from kgen.schedule import Form, Kernel, OpSchedule, Pass, schedule
from kgen.spec import Element, Kind


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile for rows of up to ``words`` padded columns (4-byte words of the compute type)."""

    words: int
    rows: int
    warps: int
    stages: int = 1
    programs: int = 1


# 16 elements a thread; enough programs share a multiprocessor to keep its memory busy.
ROW_TILES = (
    Tile(64, 16, 2),
    Tile(128, 8, 2),
    Tile(256, 4, 2),
    Tile(512, 2, 1),
    Tile(1024, 1, 2),
    Tile(2048, 1, 4),
    Tile(4096, 1, 8),
    Tile(8192, 1, 16),
    Tile(16384, 1, 16),
    Tile(32768, 1, 16),
)
# Rows that are read again: two or more programs fit on a multiprocessor, except for the longest.
RELOAD_TILES = (Tile(16384, 1, 16), Tile(32768, 1, 32), Tile(65536, 1, 32))
# A program walks over many tiles, whose loads are on their way while it works, with the column sums
# in registers: 32 elements a thread, and as many stages as hide the memory.
GROUP_TILES = (
    Tile(64, 32, 4, 3, 4),
    Tile(128, 16, 4, 3, 4),
    Tile(256, 8, 2, 3, 4),
    Tile(512, 4, 2, 3, 4),
    Tile(1024, 4, 4, 3, 2),
    Tile(2048, 2, 4, 3, 2),
    Tile(4096, 2, 8, 3, 1),
    Tile(8192, 1, 16, 3, 1),
)
# With three column sums and more, half of it.
MANY_SUMS_TILES = (
    Tile(64, 16, 4, 3, 4),
    Tile(128, 8, 4, 3, 4),
    Tile(256, 4, 2, 3, 4),
    Tile(512, 2, 2, 3, 4),
    Tile(1024, 1, 2, 3, 4),
    Tile(2048, 1, 4, 3, 2),
    Tile(4096, 1, 8, 3, 2),
)
RELOAD_GROUP_TILES = (Tile(16384, 1, 16),)


FEW_TILES = 32
"""So few tiles of rows are one group: to walk them takes less time than to launch a kernel that
adds up what several groups have left."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """What the plans of one direction are made of.

    Attributes:
        whole: tiles that span rows, by width; wider rows are walked in chunks.
        resident_words: the widest rows that stay in registers; up to the widest tile they are read
            again after each reduction.
        streaming: the chunk of a row's walk, or of that of the split's first kernel.
        split: the tile of the split's second kernel.
    """

    whole: tuple[Tile, ...]
    resident_words: int
    streaming: Tile
    split: Tile = Tile(2048, 1, 4, 4, 2)

    @property
    def whole_words(self) -> int:
        """The widest rows that one tile spans."""
        return self.whole[-1].words

    @property
    def reloads(self) -> bool:
        """Whether rows of some widths are read again."""
        return self.resident_words < self.whole_words


def planned(row_op: RowOp) -> OpSchedule:
    """Every kernel of an op that some width takes."""
    plan = schedule(row_op)
    rule = tile_rule(plan)
    passes = tuple(
        replace(each, kernels=_taken(each.kernels, rule[each.name])) for each in plan.passes
    )
    return OpSchedule(row_op, _taken(plan.forward, rule["forward"]), passes)


def _taken(kernels: tuple[Kernel, ...], tiles: Tiles) -> tuple[Kernel, ...]:
    again = _reload(kernels)
    return kernels if tiles.reloads else tuple(k for k in kernels if k is not again)


def live_matrices(kernel: Kernel) -> int:
    """The matrices that a tile of this kernel holds at once: those it reads, and those it makes."""
    read = [v for v in kernel.program.variables if v.type.kind is Kind.MATRIX]
    made = [r for r in kernel.program.results if r.kind is Kind.MATRIX]
    return len([v for v in read if v.type.element is not Element.BOOL]) + len(made)


def tile_rule(plan: OpSchedule) -> dict[str, Tiles]:
    """The tiles of each direction, by its name."""
    rule = {"forward": _forward_tiles(plan.forward)}
    for each in plan.passes:
        rule[each.name] = _sum_tiles(each) if each.column_sums else _gradient_tiles(each)
    return rule


def _forward_tiles(kernels: tuple[Kernel, ...]) -> Tiles:
    walks = _walks(kernels)
    live = live_matrices(kernels[0])
    if not any(r.kind is Kind.MATRIX for r in kernels[0].program.results):
        # Rows come down to numbers, and nothing waits for a store: twice as much a thread.
        lighter = tuple(replace(t, warps=max(1, t.warps // 2)) for t in ROW_TILES)
        return _shortened(Tiles(_up_to(lighter, 16384), 16384, Tile(16384, 1, 32)), live)
    if walks == 1:
        return _shortened(Tiles(_up_to(ROW_TILES, 8192), 8192, Tile(8192, 1, 16)), live)
    chunk = Tile(8192, 1, 32) if walks == 2 else Tile(16384, 1, 16)
    if _reload(kernels) is None or live > 2:
        return _shortened(Tiles(_up_to(ROW_TILES, 16384), 16384, chunk), live)
    # One more walk is one more row to keep in the cache.
    again = RELOAD_TILES if walks == 2 else RELOAD_TILES[:-1]
    return Tiles((*_up_to(ROW_TILES, 8192), *again), 8192, chunk)


def _gradient_tiles(each: Pass) -> Tiles:
    live, chunk = live_matrices(each.kernels[0]), Tile(16384, 1, 32)
    if _walks(each.kernels) == 1:
        return _shortened(Tiles(_up_to(ROW_TILES, 8192), 8192, Tile(8192, 1, 16)), live)
    if _reload(each.kernels) is None or live > 3:
        return _shortened(Tiles(_up_to(ROW_TILES, 16384), 16384, chunk), live)
    return Tiles((*ROW_TILES, RELOAD_TILES[-1]), 32768, chunk)


def _sum_tiles(each: Pass) -> Tiles:
    live, chunk = live_matrices(each.kernels[0]), Tile(4096, 1, 16)
    if len(each.column_sums) > 2:
        split = Tile(1024, 1, 2, 3, 4)
        return _shortened(Tiles(MANY_SUMS_TILES, 4096, chunk, split), live)
    tiles = GROUP_TILES
    if len(each.column_sums) == 2:
        tiles = (*GROUP_TILES[:-1], replace(GROUP_TILES[-1], warps=8))
    if _reload(each.kernels) is None:
        return _shortened(Tiles(tiles, 8192, chunk), live)
    return Tiles((*tiles, *RELOAD_GROUP_TILES), 8192, chunk)


def _up_to(tiles: tuple[Tile, ...], words: int) -> tuple[Tile, ...]:
    return tuple(tile for tile in tiles if tile.words <= words)


def _shortened(tiles: Tiles, live: int) -> Tiles:
    """Shorter by half for each doubling of the matrices beyond six that a program holds."""
    usual, words = 6, tiles.whole_words
    while usual < live:
        usual, words = usual * 2, words // 2
    return replace(tiles, whole=_up_to(tiles.whole, words), resident_words=words)


def _walks(kernels: tuple[Kernel, ...]) -> int:
    """How often rows are read where nothing merges and they do not stay in registers."""
    again = [k for k in kernels if k.form in (Form.RELOAD, Form.RELOAD_GROUPS, Form.STREAMING)]
    return max((len(kernel.walks) for kernel in again), default=1)


def _reload(kernels: tuple[Kernel, ...]) -> Kernel | None:
    """The kernel that reads whole rows again, if there is one."""
    forms = (Form.RELOAD, Form.RELOAD_GROUPS)
    return next((kernel for kernel in kernels if kernel.form in forms), None)
