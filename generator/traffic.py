"""What an op moves for given sizes: which kernels run, the bytes they read and write, the scratch.

The wrapper of the generated code decides the same things when it is called; here they are worked
out beforehand, from the same tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from kgen.cost import walks
from kgen.ir import Program, Result, Role, names_in
from kgen.schedule import KEPT_BLOCK, Form, Kernel, OpSchedule
from kgen.spec import COMPUTE, Element, Kind, Spec, gradient_name, second_gradient_name
from kgen.tiles import FEW_TILES, Tile, limits, rereads, tile_rule

DTYPE_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "int8": 1,
    "bool": 1,
}

_COMPUTED = (Role.SAVED, Role.STATISTIC)


@dataclass(frozen=True, slots=True)
class Setting:
    """An (M, N) matrix and what it runs on.

    Attributes:
        rows: M.
        columns: N.
        dtypes: the dtype of every input, by name.
        processors: the device's multiprocessors, which decide how many partial sums there are.
    """

    rows: int
    columns: int
    dtypes: Mapping[str, str]
    processors: int = 132

    def __post_init__(self) -> None:
        """Refuse sizes that make no matrix."""
        assert self.rows >= 1 and self.columns >= 1 and self.processors >= 1

    @property
    def compute(self) -> str:
        """The dtype of the arithmetic: float64 as soon as one input is."""
        return "float64" if "float64" in self.dtypes.values() else "float32"

    @property
    def compute_bytes(self) -> int:
        """Bytes of a value that the arithmetic makes."""
        return DTYPE_BYTES[self.compute]

    @property
    def elements(self) -> int:
        """M times N."""
        return self.rows * self.columns

    def values(self, kind: Kind) -> int:
        """How many values a tensor of some kind has; a row where several rows share it."""
        spread = {Kind.MATRIX: self.elements, Kind.PER_ROW: self.rows, Kind.SCALAR: 1}
        return spread.get(kind, self.columns)


@dataclass(frozen=True, slots=True)
class Launch:
    """What one direction runs for a row of N columns.

    Attributes:
        schedule: ``resident``, ``streaming`` or ``split``.
        kernels: the kernels that walk rows, in order.
        tile: rows, warps, stages and programs a multiprocessor.
        block: the columns of a tile, padding included.
        passes: walks over a row, of all kernels together.
    """

    schedule: str
    kernels: tuple[Kernel, ...]
    tile: Tile
    block: int
    passes: int


@dataclass(frozen=True, slots=True)
class Move:
    """A tensor that goes through memory: ``times`` counts the walks that read all of it."""

    name: str
    kind: Kind
    dtype: str
    bytes: int
    times: int
    is_write: bool


@dataclass(frozen=True, slots=True)
class Traffic:
    """One direction's launch, and all it reads and writes.

    Attributes:
        launch: the kernels.
        moves: the tensors; what rows share counts as one row, since it stays in the cache.
        groups: the groups of rows, each with partial column sums of its own; 0 without sums.
        partial_bytes: the scratch of the partial column sums.
        statistic_bytes: the scratch of row values between two kernels.
    """

    launch: Launch
    moves: tuple[Move, ...]
    groups: int
    partial_bytes: int
    statistic_bytes: int

    @property
    def bytes_read(self) -> int:
        """All bytes read; a second walk over a row may find it in the cache."""
        return sum(m.bytes * m.times for m in self.moves if not m.is_write)

    @property
    def bytes_written(self) -> int:
        """All bytes written."""
        return sum(m.bytes for m in self.moves if m.is_write)

    @property
    def bytes(self) -> int:
        """All bytes read and written."""
        return self.bytes_read + self.bytes_written

    @property
    def scratch_bytes(self) -> int:
        """Memory beside inputs, outputs and what is saved."""
        return self.partial_bytes + self.statistic_bytes


def directions(plan: OpSchedule) -> tuple[str, ...]:
    """``forward``, and ``backward`` and ``double_backward`` if there are any."""
    return ("forward", *(each.name for each in plan.passes))


def element_bytes(plan: OpSchedule, setting: Setting) -> int:
    """The size of the widest elements of the matrices; 8 where the arithmetic is in float64."""
    inputs = plan.row_op.spec.inputs
    matrices = [i for i in inputs if i.spread is Kind.MATRIX and i.element is not Element.BOOL]
    sizes = [DTYPE_BYTES[setting.dtypes[i.name]] for i in matrices]
    return 8 if setting.compute == "float64" else max([2, *sizes])


def boundaries(plan: OpSchedule, direction: str, element: int) -> tuple[int, ...]:
    """The longest rows of each schedule but the last, shorter ones first; N is a multiple of 16.

    ``element`` is the size in bytes of the matrices' elements: 2, 4, or 8 in float64.
    """
    tiles = tile_rule(plan)[direction]
    widest = limits(plan, direction, tiles)[element]
    again = rereads(plan, direction, tiles)[element]
    words = [tile.words for tile in tiles.whole if tile.words <= widest]
    ends = [now for now, wider in pairwise(words) if (now in again) != (wider in again)]
    return tuple(each * 4 // max(4, element) for each in (*ends, widest))


def launch(plan: OpSchedule, direction: str, columns: int, element: int) -> Launch:
    """What a direction runs for rows of ``columns`` elements of ``element`` bytes."""
    compute_bytes = max(4, element)
    block = max(plan.least_block, 1 << (columns - 1).bit_length())
    words = block * compute_bytes // 4
    kernels, tiles = _kernels(plan, direction), tile_rule(plan)[direction]
    long = tuple(k for k in kernels if not k.is_whole)
    held = element if columns % 16 == 0 else 8
    if words <= limits(plan, direction, tiles)[held]:
        wanted = max(words, tiles.whole[0].words)
        tile = next(tile for tile in tiles.whole if tile.words == wanted)
        schedule = "reload" if words in rereads(plan, direction, tiles)[held] else "resident"
        kernel = next(k for k in kernels if k.name.endswith(f"_{schedule}"))
        return Launch(schedule, (kernel,), tile, block, walks(kernel))
    passes = sum(walks(kernel) for kernel in long)
    if any(k.form is Form.SPLIT_COLUMNS for k in long):
        tile = tiles.chunk(words, is_split=True)
        return Launch("split", long, tile, tile.words * 4 // compute_bytes, passes)
    chunk = tiles.chunk(words, is_split=False)
    if compute_bytes == 8:
        chunk = replace(chunk, words=chunk.words // 2, warps=min(chunk.warps, 16))
    if held == 8:
        chunk = replace(chunk, stages=1)
    return Launch("streaming", long, chunk, chunk.words * 4 // compute_bytes, passes)


def traffic(plan: OpSchedule, direction: str, setting: Setting) -> Traffic:
    """What a direction moves when every result is asked for and every optional input is given."""
    chosen = launch(plan, direction, setting.columns, element_bytes(plan, setting))
    each = next((p for p in plan.passes if p.name == direction), None)
    sums = each.column_sums if each else ()
    statistics = each.statistics if each and chosen.schedule == "split" else ()
    groups = _groups(chosen, len(sums), plan.row_op.spec, setting) if sums else 0
    dtypes = _dtypes(plan.row_op.spec, setting)
    moves: list[Move] = []
    for kernel in chosen.kernels:
        kept = kernel.kept if chosen.block == KEPT_BLOCK else None
        moves += _moves(kernel, dtypes, groups, setting, kept)
    scratch = sums if groups > 1 else ()
    for name in scratch:
        size = groups * setting.columns * setting.compute_bytes
        moves.append(Move(name, Kind.PER_COLUMN, setting.compute, size, 1, False))
        size = setting.columns * DTYPE_BYTES[dtypes[name]]
        moves.append(Move(name, Kind.PER_COLUMN, dtypes[name], size, 1, True))
    return Traffic(
        chosen,
        tuple(moves),
        groups,
        len(scratch) * groups * setting.columns * setting.compute_bytes,
        len(statistics) * setting.rows * setting.compute_bytes,
    )


def least_bytes(plan: OpSchedule, direction: str, setting: Setting) -> int:
    """The bytes of every tensor that a direction is given and gives, each once."""
    program = _program(plan, direction)
    dtypes = _dtypes(plan.row_op.spec, setting)
    used = _used(program)
    given = [v for v in program.variables if v.name in used and v.role is not Role.PARAM]
    tensors = [(v.name, v.own_kind, v.role) for v in given]
    tensors += [(r.name, r.kind, r.role) for r in _stored(program, dtypes)]
    return sum(
        setting.values(kind) * DTYPE_BYTES[setting.compute if role in _COMPUTED else dtypes[name]]
        for name, kind, role in tensors
    )


def saved_bytes(plan: OpSchedule, setting: Setting) -> int:
    """The bytes of the row values that forward stores for backward."""
    return len(plan.row_op.saved) * setting.rows * setting.compute_bytes


def _kernels(plan: OpSchedule, direction: str) -> tuple[Kernel, ...]:
    if direction == "forward":
        return plan.forward
    return next(each.kernels for each in plan.passes if each.name == direction)


def _program(plan: OpSchedule, direction: str) -> Program:
    if direction == "forward":
        return plan.row_op.forward
    return next(each.program for each in plan.passes if each.name == direction)


def _groups(chosen: Launch, sums: int, spec: Spec, setting: Setting) -> int:
    """As the wrapper: what fills the device, fits the scratch, and has rows to walk."""
    tile = chosen.tile
    if setting.rows <= FEW_TILES * tile.rows:
        return 1
    column_tiles = -(-setting.columns // chosen.block)
    filling = tile.programs * setting.processors // column_tiles
    one_group = setting.columns * sums * setting.compute_bytes
    fitting = spec.limits.scratch_mib * 2**20 // one_group
    return max(1, min(filling, fitting, -(-setting.rows // tile.rows)))


def _moves(
    kernel: Kernel, dtypes: Mapping[str, str], groups: int, setting: Setting, kept: str | None
) -> Iterator[Move]:
    used = _used(kernel.program)
    for variable in kernel.program.variables:
        kind, name = variable.own_kind, variable.name
        if variable.role is Role.PARAM or name not in used:
            continue
        times = 1
        if kernel.walks and kind is Kind.MATRIX:
            times = 1 if name == kept else sum(name in walk.names for walk in kernel.walks)
        dtype = setting.compute if variable.role in _COMPUTED else dtypes[name]
        size = setting.values(kind) * DTYPE_BYTES[dtype]
        yield Move(name, kind, dtype, size, times, False)
    for result in _stored(kernel.program, dtypes):
        is_sum = result.kind is Kind.PER_COLUMN
        is_computed = (is_sum and groups > 1) or result.role in _COMPUTED
        dtype = setting.compute if is_computed else dtypes[result.name]
        count = setting.values(result.kind) * (groups if is_sum else 1)
        yield Move(result.tensor, result.kind, dtype, count * DTYPE_BYTES[dtype], 1, True)


def _stored(program: Program, dtypes: Mapping[str, str]) -> list[Result]:
    """The results, without gradients that have the values and the dtype of one before them."""
    again = {n for n, first in program.repeated.items() if dtypes[n] == dtypes[first]}
    return [result for result in program.results if result.name not in again]


def _used(program: Program) -> set[str]:
    return {name for d in program.definitions for name in names_in(d.term)}


def _dtypes(spec: Spec, setting: Setting) -> dict[str, str]:
    """The dtype of every input, output and gradient; row values in between are the arithmetic's."""
    found = dict(setting.dtypes)
    named = {**setting.dtypes, COMPUTE: setting.compute}
    found |= {o.name: named.get(o.dtype, o.dtype) for o in spec.outputs}
    first = {gradient_name(name): dtype for name, dtype in found.items()}
    again = {second_gradient_name(i.name): setting.dtypes[i.name] for i in spec.inputs}
    second = {gradient_name(name): dtype for name, dtype in first.items()}
    return {**second, **again, **first, **found}


def default_dtypes(spec: Spec, floats: str) -> dict[str, str]:
    """One float dtype for all float inputs, int64 for whole numbers, bool for conditions."""
    names = {Element.FLOAT: floats, Element.INT: "int64", Element.BOOL: "bool"}
    return {entry.name: names[entry.element] for entry in spec.inputs}
