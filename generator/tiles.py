"""How large a piece of the matrix each program takes: tables of tiles, by the width of the row."""

from __future__ import annotations

from dataclasses import dataclass

from kgen.schedule import Form, Kernel, OpSchedule, Pass
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
    split: Tile

    @property
    def whole_words(self) -> int:
        """The widest rows that one tile spans."""
        return self.whole[-1].words

    @property
    def reloads(self) -> bool:
        """Whether rows of some widths are read again."""
        return self.resident_words < self.whole_words


def live_matrices(kernel: Kernel) -> int:
    """The matrices that a tile of this kernel holds at once: those it reads, and those it makes."""
    read = [v for v in kernel.program.variables if v.type.kind is Kind.MATRIX]
    made = [r for r in kernel.program.results if r.kind is Kind.MATRIX]
    return len([v for v in read if v.type.element is not Element.BOOL]) + len(made)


def tile_rule(plan: OpSchedule) -> dict[str, Tiles]:
    """The tiles of each direction, by its name."""
    rule = {"forward": _tiles(plan.forward, FORWARD_TILES, 2)}
    for each in plan.passes:
        rule[each.name] = _pass_tiles(each)
    return rule


def _pass_tiles(each: Pass) -> Tiles:
    return _tiles(each.kernels, GROUP_TILES if each.column_sums else FORWARD_TILES, 3)


def _tiles(kernels: tuple[Kernel, ...], tiles: tuple[Tile, ...], usual: int) -> Tiles:
    """Tiles by width, shorter by half for each doubling of the matrices a program holds."""
    drop = 0
    while usual < live_matrices(kernels[0]):
        usual *= 2
        drop += 1
    whole = tiles[: len(tiles) - drop]
    again = any(k.form in (Form.RELOAD, Form.RELOAD_GROUPS) for k in kernels)
    resident = whole[-1].words // (2 if again else 1)
    is_split = any(k.form is Form.SPLIT_COLUMNS for k in kernels)
    return Tiles(whole, resident, Tile(4096 if is_split else 8192, 1, 16), Tile(2048, 1, 4, 4, 2))
