"""How large a piece of the matrix each program takes: tables of tiles, by the width of the row."""

from __future__ import annotations

from dataclasses import dataclass

from kgen.schedule import Kernel, OpSchedule, Pass
from kgen.spec import Element, Kind


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile for rows of up to ``words`` padded columns (4-byte words of the compute type)."""

    words: int
    rows: int
    warps: int
    stages: int = 1
    programs: int = 1


FORWARD_TILES = (
    Tile(64, 32, 4),
    Tile(128, 16, 4),
    Tile(256, 8, 4),
    Tile(512, 4, 4),
    Tile(1024, 2, 4),
    Tile(2048, 2, 8),
    Tile(4096, 1, 8),
    Tile(8192, 1, 4),
    Tile(16384, 1, 8),
    Tile(32768, 1, 16),
)
GROUP_TILES = (
    Tile(64, 32, 4, 3, 4),
    Tile(128, 16, 4, 3, 4),
    Tile(256, 8, 2, 3, 3),
    Tile(512, 4, 2, 3, 3),
    Tile(1024, 4, 4, 3, 2),
    Tile(2048, 4, 8, 3, 1),
    Tile(4096, 2, 8, 3, 1),
    Tile(8192, 1, 8, 3, 1),
    Tile(16384, 1, 16, 3, 1),
)


FEW_TILES = 32
"""So few tiles of rows are one group: to walk them takes less time than to launch a kernel that
adds up what several groups have left."""


@dataclass(frozen=True, slots=True)
class TileRule:
    """What the wrapper's plans are made of: a table for rows kept whole, and the chunks."""

    forward: tuple[Tile, ...]
    backward: tuple[Tile, ...]
    streaming: Tile
    split: Tile
    double_backward: tuple[Tile, ...] = ()


def live_matrices(kernel: Kernel) -> int:
    """The matrices that a tile of this kernel holds at once: those it reads, and those it makes."""
    read = [v for v in kernel.program.variables if v.type.kind is Kind.MATRIX]
    made = [r for r in kernel.program.results if r.kind is Kind.MATRIX]
    return len([v for v in read if v.type.element is not Element.BOOL]) + len(made)


def tile_rule(plan: OpSchedule) -> TileRule:
    """Tiles by width, shorter by half for each doubling of the matrices a program holds."""
    forward = _within(FORWARD_TILES, 2, live_matrices(plan.forward[0]))
    tables = {each.name: _pass_tiles(each) for each in plan.passes}
    streaming_tile, split_tile = Tile(8192, 1, 16), Tile(2048, 1, 8, 3, 4)
    return TileRule(
        forward,
        tables.get("backward", ()),
        streaming_tile,
        split_tile,
        tables.get("double_backward", ()),
    )


def _pass_tiles(each: Pass) -> tuple[Tile, ...]:
    tiles = GROUP_TILES if each.column_sums else FORWARD_TILES
    return _within(tiles, 3, live_matrices(each.kernels[0]))


def _within(tiles: tuple[Tile, ...], usual: int, live: int) -> tuple[Tile, ...]:
    drop = 0
    while usual < live:
        usual *= 2
        drop += 1
    return tiles[: len(tiles) - drop]
