"""What one launch may be: a schedule and a tile, as the wrapper's ``Plan`` has it."""

from __future__ import annotations

from dataclasses import dataclass

from kgen.schedule import Form, OpSchedule, schedule
from kgen.tiles import Tile, Tiles, is_chunked, tile_rule, untuned


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """The fields of a wrapper's ``Plan``, with ``block`` in 4-byte words of the arithmetic."""

    schedule: str
    rows: int
    block: int
    warps: int
    stages: int = 1
    programs: int = 1

    def __str__(self) -> str:
        shape = f"{self.schedule} {self.rows} x {self.block}, {self.warps} warps"
        if self.stages == self.programs == 1:
            return shape
        if self.schedule == "streaming":
            return f"{shape}, {self.stages} stages"
        return f"{shape}, {self.stages} stages, {self.programs} programs"

    @property
    def is_long(self) -> bool:
        """Whether rows are walked in chunks."""
        return self.schedule in ("streaming", "split")

    @property
    def rank(self) -> int:
        """The place of its schedule: resident, reload, and in chunks."""
        return 2 if self.is_long else int(self.schedule == "reload")

    @property
    def tile(self) -> Tile:
        """The tile, which is as wide as the row where it spans whole rows."""
        return Tile(self.block, self.rows, self.warps, self.stages, self.programs)


@dataclass(frozen=True, slots=True)
class Direction:
    """A direction of an op before it is tuned.

    Attributes:
        name: ``forward``, ``backward`` or ``double_backward``.
        rule: the tiles of the rule.
        tiles: the tiles that the spec has by now.
        is_split: whether gradients are summed over rows.
        can_reload: whether there is a kernel that reads rows again.
        has_chunks: whether each chunk of a long row has a program of its own.
    """

    name: str
    rule: Tiles
    tiles: Tiles
    is_split: bool
    can_reload: bool
    has_chunks: bool


def directions_of(plan: OpSchedule) -> tuple[Direction, ...]:
    """The directions of an op."""
    plan = schedule(plan.row_op)
    rule, tiles = untuned(plan), tile_rule(plan)
    found = [("forward", plan.forward, False)]
    found += [(each.name, each.kernels, bool(each.column_sums)) for each in plan.passes]
    again = (Form.RELOAD, Form.RELOAD_GROUPS)
    return tuple(
        Direction(
            name,
            rule[name],
            tiles[name],
            is_split=sums,
            can_reload=any(k.form in again for k in kernels),
            has_chunks=is_chunked(kernels),
        )
        for name, kernels, sums in found
    )


def plan_by(tiles: Tiles, words: int, is_split: bool) -> Candidate:
    """What rows of ``words`` words take; ``is_split`` where gradients are summed over rows."""
    tile = tiles.tile(words)
    if tile is not None:
        return whole_plan(tile, "reload" if words in tiles.reloaded else "resident")
    return _long_plan(tiles.chunk(words, is_split), is_split)


def whole_plan(tile: Tile, schedule: str) -> Candidate:
    """Whole rows in a tile."""
    return Candidate(schedule, tile.rows, tile.words, tile.warps, tile.stages, tile.programs)


def chunk_plan(tiles: Tiles, is_split: bool) -> Candidate:
    """Rows too wide for a tile, where their width has no chunk of its own."""
    return _long_plan(tiles.split if is_split else tiles.streaming, is_split)


def _long_plan(tile: Tile, is_split: bool) -> Candidate:
    if is_split:
        return whole_plan(tile, "split")
    return Candidate("streaming", 1, tile.words, tile.warps, tile.stages)
