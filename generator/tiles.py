"""How large a piece of the matrix each program takes: tables of tiles, by the width of the row.

The figures behind the tables are in docs/schedules.md. What a spec says in its ``tuning`` takes the
place of what the rule has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kgen.errors import Problems
from kgen.functions import functions
from kgen.ir import Variable
from kgen.lower import RowOp
from kgen.schedule import KEPT_BLOCK, Form, Kernel, OpSchedule, Pass, schedule
from kgen.spec import (
    LARGEST_TILE,
    LONG_SCHEDULES,
    SCHEDULES,
    TUNED_WIDTHS,
    Element,
    Kind,
    TunedTile,
    Tuning,
)


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
# 32 elements a thread where a tile holds and works out little. A row may fill only half of its
# tile: then twice as many rows are on their way, and a full tile is no slower.
LIGHT_ROW_TILES = (*ROW_TILES[:6], Tile(4096, 1, 4), Tile(8192, 1, 8))
LIGHT = 3
"""The matrices that a light tile holds, and the functions of each element, together."""
# Rows that are read again: two or more programs fit on a multiprocessor, except for the longest.
RELOAD_TILES = (Tile(16384, 1, 16), Tile(32768, 1, 32), Tile(65536, 1, 32))
# Gradients read two rows, which fill the registers sooner.
GRADIENT_RELOAD_TILES = (Tile(16384, 1, 32), Tile(32768, 1, 32), Tile(65536, 1, 32))
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


ROW_REGISTERS = 32768
"""What a tile may fill with the rows that it reads or sums up where each element takes a register:
half of a multiprocessor's."""

THREAD_REGISTERS = 64
"""Of a thread's registers, so many hold rows without harm to what is worked out of them."""

WIDE_WORDS = 8192
"""Rows so wide fit where elements have 4 bytes, unless three column sums stand beside them, and no
wider ones where elements have 8."""

FEW_TILES = 4
"""So few tiles of rows are one group: to walk them takes less time than to launch a kernel that
adds up what several groups have left."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """What the plans of one direction are made of.

    Attributes:
        whole: tiles that span rows, by width; wider rows are walked in chunks.
        reloaded: the widths whose rows are read again after each reduction; others that a tile
            spans stay in registers.
        streaming: the chunk of a row's walk, or of that of the split's first kernel; ``stages`` of
            them are a step of it.
        split: the tile of the split's second kernel.
        chunks: by width, what rows take in place of the streaming chunk, or of the split's tile.
    """

    whole: tuple[Tile, ...]
    reloaded: tuple[int, ...]
    streaming: Tile
    split: Tile = Tile(2048, 1, 4, 4, 2)
    chunks: tuple[tuple[int, Tile], ...] = ()

    @property
    def whole_words(self) -> int:
        """The widest rows that one tile spans."""
        return self.whole[-1].words

    def tile(self, words: int) -> Tile | None:
        """The tile that spans rows of ``words`` words, or None if they are walked in chunks."""
        return next((tile for tile in self.whole if tile.words == words), None)

    def chunk(self, words: int, is_split: bool) -> Tile:
        """What rows of ``words`` words are walked in; split where gradients are summed up."""
        return dict(self.chunks).get(words, self.split if is_split else self.streaming)

    def unrolls(self, is_split: bool) -> bool:
        """Whether steps of a walk take several chunks."""
        walked = [self.streaming, *(tile for _, tile in self.chunks if not is_split)]
        return any(tile.stages > 1 for tile in walked)

    def rank(self, words: int) -> int:
        """The place of their schedule: resident, reload, and in chunks."""
        return 2 if words > self.whole_words else int(words in self.reloaded)


CHUNKED = Tiles(ROW_TILES[:6], (), Tile(1024, 1, 2))
"""16 elements a thread where each chunk of a row has a program. Rows longer than two chunks have no
tile of their own: up to half of it would be padding."""


def planned(row_op: RowOp) -> OpSchedule:
    """Every kernel of an op that some width takes."""
    plan = schedule(row_op)
    rule, longest = tile_rule(plan), row_op.spec.limits.max_columns
    passes = tuple(
        replace(each, kernels=_taken(each.kernels, rule[each.name], longest))
        for each in plan.passes
    )
    return OpSchedule(row_op, _taken(plan.forward, rule["forward"], longest), passes)


def _taken(kernels: tuple[Kernel, ...], tiles: Tiles, longest: int) -> tuple[Kernel, ...]:
    unrolls = tiles.unrolls(any(kernel.form is Form.SPLIT_COLUMNS for kernel in kernels))
    kernels = tuple(replace(k, unrolls=unrolls and k.form is Form.STREAMING) for k in kernels)
    if not tiles.reloaded:
        again = _reload(kernels)
        return tuple(kernel for kernel in kernels if kernel is not again)
    keeps = KEPT_BLOCK in tiles.reloaded and longest > KEPT_BLOCK // 2
    return tuple(replace(k, keeps=keeps and k.form is Form.RELOAD) for k in kernels)


def live_matrices(kernel: Kernel) -> int:
    """The matrices that a tile of this kernel holds at once: those it reads, and those it makes."""
    made = [r for r in kernel.program.results if r.kind is Kind.MATRIX]
    return len(_matrices_read(kernel)) + len(made)


def _matrices_read(kernel: Kernel) -> list[Variable]:
    """Those that take registers: a condition takes a bit."""
    read = [v for v in kernel.program.variables if v.type.kind is Kind.MATRIX]
    return [v for v in read if v.type.element is not Element.BOOL]


def tile_rule(plan: OpSchedule) -> dict[str, Tiles]:
    """The tiles of each direction, by its name, with what the spec says in place of the rule's.

    Raises:
        KgenError: where the spec's tuning does not fit the op's kernels.
    """
    spec = plan.row_op.spec
    if not spec.tuning:
        return untuned(plan)
    plan = schedule(plan.row_op)  # with the kernels that no width takes by now: the rule asks
    rule = untuned(plan)
    problems = Problems()
    for tuning in spec.tuning:
        name = tuning.direction
        kernels, sums = _kernels_and_sums(plan, name)
        rule[name] = _Retiling(tuning, rule[name], kernels, bool(sums), problems).tiles()
    problems.raise_if_any()
    return rule


def limits(plan: OpSchedule, direction: str, tiles: Tiles) -> dict[int, int]:
    """The widest rows that one tile spans, in words, by the bytes of the matrices' elements.

    ``tiles`` are those of the direction.
    Elements of 2 bytes take half a register each as they are loaded, and wider ones one or two. As
    those of 8 bytes are rows that vectors do not fit, whose elements take registers for addresses.
    """
    kernels, sums = _kernels_and_sums(plan, direction)
    widest = tiles.whole_words
    fitting = ROW_REGISTERS // max(1, len(_matrices_read(kernels[0])) + sums)
    wide = max(WIDE_WORDS, 1 << fitting.bit_length() - 1)
    single = wide // 2 if sums > 2 else wide
    return {2: widest, 4: min(widest, single), 8: min(widest, wide // 2, WIDE_WORDS)}


def rereads(plan: OpSchedule, direction: str, tiles: Tiles) -> dict[int, tuple[int, ...]]:
    """The widths that are read again after each reduction, by the bytes of the matrices' elements.

    ``tiles`` are those of the direction. Rows of 4 bytes an element fill the first cache sooner, so
    they stay in registers wherever a thread has enough.
    """
    kernels, sums = _kernels_and_sums(plan, direction)
    rows = len(_matrices_read(kernels[0])) + sums
    widest = limits(plan, direction, tiles)
    again = [tile for tile in tiles.whole if tile.words in tiles.reloaded]
    return {
        2: tiles.reloaded,
        4: tuple(
            tile.words
            for tile in again
            if tile.words <= widest[4] and rows * tile.words > THREAD_REGISTERS * 32 * tile.warps
        ),
        8: tuple(tile.words for tile in again if tile.words <= widest[8]),
    }


def _kernels_and_sums(plan: OpSchedule, direction: str) -> tuple[tuple[Kernel, ...], int]:
    """The kernels of a direction, and how many column sums they make."""
    for each in plan.passes:
        if each.name == direction:
            return each.kernels, len(each.column_sums)
    return plan.forward, 0


def untuned(plan: OpSchedule) -> dict[str, Tiles]:
    """The tiles of each direction by the rule alone; ``plan`` has every kernel that there is."""
    rule = {"forward": _forward_tiles(plan.forward)}
    for each in plan.passes:
        rule[each.name] = _sum_tiles(each) if each.column_sums else _gradient_tiles(each)
    return rule


def rank_of(tile: TunedTile) -> int:
    """The place of its schedule: resident, reload, and in chunks."""
    assert tile.schedule is not None
    return min(SCHEDULES.index(tile.schedule), 2)


def reached(rule: Tiles, said: Mapping[int, int], words: int) -> int:
    """The place of the schedule of a width: that of the rule, between those that are said."""
    if words in said:
        return said[words]
    rank = rule.rank(words)
    for width, place in sorted(said.items()):
        rank = max(rank, place) if width < words else min(rank, place)
    return rank


class _Retiling:
    """Puts the tuning of one direction in place of the rule."""

    def __init__(
        self,
        tuning: Tuning,
        rule: Tiles,
        kernels: tuple[Kernel, ...],
        has_sums: bool,
        problems: Problems,
    ) -> None:
        self.tuning, self.rule, self.kernels = tuning, rule, kernels
        self.has_sums, self.problems = has_sums, problems

    def tiles(self) -> Tiles:
        """The tiles, or those of the rule where there is a problem."""
        before = len(self.problems)
        self._check_kernels()
        is_wrong = len(self.problems) > before
        streaming, split = self._streaming(), self._split()
        if is_wrong:
            return self.rule
        said = {words: rank_of(tile) for words, tile in self.tuning.widths if tile.schedule}
        ranks = {words: reached(self.rule, said, words) for words in TUNED_WIDTHS}
        chunks = self._chunks(split if self.has_sums else streaming)
        whole = [tile for words in TUNED_WIDTHS if (tile := self._tile(words, ranks[words]))]
        if len(self.problems) > before:
            return self.rule
        reloaded = tuple(words for words in TUNED_WIDTHS if ranks[words] == 1)
        return Tiles(tuple(whole), reloaded, streaming, split, chunks)

    def _check_kernels(self) -> None:
        """Schedules that the direction has, and values that its kernels take."""
        name = self.tuning.direction
        long = "split" if self.has_sums else "streaming"
        for _, tile in self.tuning.widths:
            if tile.schedule == "reload" and _reload(self.kernels) is None:
                message = f"{name} has no kernel that reads rows again: write resident or {long}"
                self.problems.add(message, tile.reason_at)
            elif tile.schedule in LONG_SCHEDULES and tile.schedule != long:
                what = "sums" if self.has_sums else "does not sum"
                message = f"{name} {what} gradients over rows, so its long rows are {long}"
                self.problems.add(f"{message}, got '{tile.schedule}'", tile.reason_at)
            is_walked = tile.schedule == "streaming"
            for value in () if self.has_sums else tile.values:
                if value.name == "programs":
                    message = f"{name} sums no gradients over rows, so its programs take one tile"
                    self.problems.add(f"{message} each: remove 'programs'", value.at)
                elif value.name == "stages" and not (is_chunked(self.kernels) or is_walked):
                    message = f"'stages' of {name} are the chunks of a step of a walk"
                    advice = "write 'schedule: streaming' beside it, or remove it"
                    self.problems.add(f"{message}: {advice}", value.at)
            self._check_steps(tile)

    def _check_steps(self, tile: TunedTile) -> None:
        """Steps are of walks."""
        for value in tile.values if is_chunked(self.kernels) else ():
            if value.name == "stages":
                message = f"each chunk of {self.tuning.direction} has a program, and nothing walks"
                self.problems.add(f"{message}: remove 'stages'", value.at)

    def _streaming(self) -> Tile:
        tuned, tile = self.tuning.streaming, self.rule.streaming
        if tuned is None:
            return tile
        if not any(kernel.form in (Form.STREAMING, Form.CHUNKS) for kernel in self.kernels):
            message = f"no kernel of {self.tuning.direction} walks rows in chunks"
            self.problems.add(f"{message}: remove 'streaming'", tuned.at)
        self._check_steps(tuned)
        return self._retiled(replace(tile, words=tuned.value("block", tile.words)), tuned)

    def _split(self) -> Tile:
        tuned = self.tuning.split
        if tuned is None:
            return self.rule.split
        if not self.has_sums:
            message = f"{self.tuning.direction} sums no gradients over rows, so nothing is split"
            self.problems.add(f"{message}: remove 'split'", tuned.at)
        return self._retiled(
            replace(self.rule.split, words=tuned.value("block", self.rule.split.words)), tuned
        )

    def _chunks(self, usual: Tile) -> tuple[tuple[int, Tile], ...]:
        """By width, where rows are walked in other chunks than the usual one."""
        found = []
        for words, tuned in self.tuning.widths:
            if tuned.schedule in LONG_SCHEDULES and tuned.values:
                chunk = self._retiled(
                    replace(usual, words=tuned.value("block", usual.words)), tuned
                )
                found += [(words, chunk)] * (chunk != usual)
        return tuple(found)

    def _tile(self, words: int, rank: int) -> Tile | None:
        tuned = dict(self.tuning.widths).get(words)
        tile = self.rule.tile(words)
        if rank == 2:
            for value in tuned.values if tuned is not None and tuned.schedule is None else ():
                message = f"rows of {words} words are walked in chunks"
                advice = f"say 'schedule' beside '{value.name}', or remove it"
                self.problems.add(f"{message}: {advice}", value.at)
            return None
        if tile is not None:
            return tile if tuned is None else self._retiled(tile, tuned)
        if tuned is not None and {"rows", "warps"} <= {value.name for value in tuned.values}:
            return self._retiled(Tile(words, 1, 1), tuned)
        at = self.tuning.at if tuned is None else tuned.at
        message = f"the rule of {self.tuning.direction} has no tile for rows of {words} words"
        advice = "add an entry with its" if tuned is None else "say its"
        self.problems.add(f"{message}: {advice} rows and warps", at)
        return None

    def _retiled(self, tile: Tile, tuned: TunedTile) -> Tile:
        tile = Tile(
            tile.words,
            tuned.value("rows", tile.rows),
            tuned.value("warps", tile.warps),
            tuned.value("stages", tile.stages),
            tuned.value("programs", tile.programs),
        )
        if tile.rows * tile.words > LARGEST_TILE:
            message = f"a tile has at most {LARGEST_TILE} elements"
            advice = "take fewer rows" if tile.rows > 1 else "rows so wide are walked in chunks"
            shape = f"{tile.rows} x {tile.words}"
            self.problems.add(f"{message}, got {shape}: {advice}", tuned.at)
        return tile


def _forward_tiles(kernels: tuple[Kernel, ...]) -> Tiles:
    walks = _walks(kernels)
    live = live_matrices(kernels[0])
    if not any(r.kind is Kind.MATRIX for r in kernels[0].program.results):
        # Rows come down to numbers, and nothing waits for a store: twice as much a thread.
        lighter = tuple(replace(t, warps=max(1, t.warps // 2)) for t in ROW_TILES)
        return _shortened(Tiles(_up_to(lighter, 16384), (), Tile(8192, 1, 32)), live)
    if is_chunked(kernels):
        return CHUNKED
    if walks == 1:
        return _shortened(Tiles(_up_to(ROW_TILES, 8192), (), Tile(16384, 1, 32)), live)
    chunk = Tile(8192, 1, 32) if walks == 2 else Tile(16384, 1, 16)
    if _reload(kernels) is None or live > 2:
        return _shortened(Tiles(_up_to(ROW_TILES, 16384), (), chunk), live)
    # One more walk is one more row to keep in the cache.
    again = RELOAD_TILES if walks == 2 else RELOAD_TILES[:-1]
    return Tiles((*_short_tiles(kernels[0]), *again), _widths(again), chunk)


def _gradient_tiles(each: Pass) -> Tiles:
    live, chunk = live_matrices(each.kernels[0]), Tile(16384, 1, 32)
    if is_chunked(each.kernels):
        return CHUNKED
    if _walks(each.kernels) == 1:
        return _shortened(Tiles(_up_to(ROW_TILES, 8192), (), Tile(8192, 1, 16)), live)
    if _reload(each.kernels) is None or live > 3:
        return _shortened(Tiles(_up_to(ROW_TILES, 16384), (), chunk), live)
    again = GRADIENT_RELOAD_TILES
    return Tiles((*_short_tiles(each.kernels[0]), *again), _widths(again), chunk)


def _sum_tiles(each: Pass) -> Tiles:
    live, chunk = live_matrices(each.kernels[0]), Tile(4096, 1, 16)
    if len(each.column_sums) > 2:
        split = Tile(1024, 1, 2, 3, 4)
        return _shortened(Tiles(MANY_SUMS_TILES, (), chunk, split), live)
    tiles = GROUP_TILES
    if len(each.column_sums) == 2:
        tiles = (*GROUP_TILES[:-1], replace(GROUP_TILES[-1], warps=8))
    if _reload(each.kernels) is None:
        return _shortened(Tiles(tiles, (), chunk), live)
    return Tiles((*tiles, *RELOAD_GROUP_TILES), _widths(RELOAD_GROUP_TILES), chunk)


def _short_tiles(kernel: Kernel) -> tuple[Tile, ...]:
    """Those of rows that stay in registers, where longer ones are read again."""
    is_light = live_matrices(kernel) + functions(kernel.program) <= LIGHT
    return LIGHT_ROW_TILES if is_light else _up_to(ROW_TILES, 8192)


def _widths(tiles: tuple[Tile, ...]) -> tuple[int, ...]:
    return tuple(tile.words for tile in tiles)


def _up_to(tiles: tuple[Tile, ...], words: int) -> tuple[Tile, ...]:
    return tuple(tile for tile in tiles if tile.words <= words)


def _shortened(tiles: Tiles, live: int) -> Tiles:
    """Shorter by half for each doubling of the matrices beyond six that a program holds."""
    usual, words = 6, tiles.whole_words
    while usual < live:
        usual, words = usual * 2, words // 2
    return replace(tiles, whole=_up_to(tiles.whole, words))


def _walks(kernels: tuple[Kernel, ...]) -> int:
    """How often rows are read where nothing merges and they do not stay in registers."""
    again = [k for k in kernels if k.form in (Form.RELOAD, Form.RELOAD_GROUPS, Form.STREAMING)]
    return max((len(kernel.walks) for kernel in again), default=1)


def is_chunked(kernels: Sequence[Kernel]) -> bool:
    """Whether each chunk of a row has a program."""
    return any(kernel.form is Form.CHUNKS for kernel in kernels)


def _reload(kernels: tuple[Kernel, ...]) -> Kernel | None:
    """The kernel that reads whole rows again, if there is one."""
    forms = (Form.RELOAD, Form.RELOAD_GROUPS)
    return next((kernel for kernel in kernels if kernel.form in forms), None)
