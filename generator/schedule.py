"""IR -> schedules: how each kernel walks the row, and what merges into one walk. Pure data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from kgen.ir import (
    RANDOM_WORDS,
    Define,
    Op,
    Program,
    Result,
    Role,
    Term,
    Type,
    Variable,
    drawn_in,
    is_reduction,
    names_in,
    needed,
    verify,
    walk,
)
from kgen.lower import RowOp
from kgen.merging import Guard, Merge, Merging, Online, OnlineSum, find_merges, known_after
from kgen.rewrite import fresh, hoist, hoist_rows, retyped
from kgen.spec import BATCHED_KINDS, Element, Kind, Spec, gradient_name

KEPT_BLOCK = 32768
"""Of rows so wide, one program has a multiprocessor for itself: it keeps one matrix in registers,
and reads the others again. Narrower rows leave room for another program; wider ones do not fit."""


class Form(Enum):
    """The loop structure of a kernel."""

    TILE = "tile"  # whole rows in registers, one tile a program
    RELOAD = "reload"  # whole rows, read again after each reduction, one tile a program
    GROUPS = "groups"  # whole rows in registers, each program walks a group of tiles
    RELOAD_GROUPS = "reload_groups"  # the same, read again after each reduction
    STREAMING = "streaming"  # rows in chunks of columns, several walks
    CHUNKS = "chunks"  # rows in chunks of columns, one chunk a program
    SPLIT_COLUMNS = "split_columns"  # tiles of columns, each program walks a group of rows


@dataclass(frozen=True, slots=True)
class Walk:
    """One pass over the columns, and the per_row values that are ready after it."""

    definitions: tuple[Define, ...]
    reductions: tuple[Define, ...]
    merges: tuple[Merge, ...]
    online: tuple[Online, ...]
    stores: tuple[Result, ...]
    after: tuple[Define, ...]

    @property
    def names(self) -> set[str]:
        """The names whose values the walk takes."""
        definitions = [*self.definitions, *self.reductions]
        for each in self.online:
            definitions += [*each.definitions, each.maximum, *(s.total for s in each.sums)]
        terms = [d.term for d in definitions] + [m.values for m in self.merges]
        return {name for term in terms for name in names_in(term)}


@dataclass(frozen=True, slots=True)
class Kernel:
    """One ``@triton.jit`` function. ``walks`` and ``before`` are for those that read rows again.

    ``may_lack`` names the statistics that are not there when nobody wants what they serve. With a
    ``partition``, ``PER_BATCH`` or ``PER_PLACE``, all rows of a program are those of one matrix, or
    those of one place in all matrices. One that ``keeps`` reads rows of ``KEPT_BLOCK`` again, and
    one that ``unrolls`` walks several chunks a step.
    """

    name: str
    form: Form
    program: Program
    before: tuple[Define, ...] = ()
    walks: tuple[Walk, ...] = ()
    may_lack: tuple[str, ...] = ()
    partition: Kind | None = None
    keeps: bool = False
    unrolls: bool = False

    @property
    def is_grouped(self) -> bool:
        """Whether each program walks over a group of rows."""
        return self.form in (Form.GROUPS, Form.RELOAD_GROUPS, Form.SPLIT_COLUMNS)

    @property
    def is_whole(self) -> bool:
        """Whether a tile spans whole rows."""
        return self.form not in (Form.STREAMING, Form.CHUNKS, Form.SPLIT_COLUMNS)

    @property
    def kept(self) -> str | None:
        """Of the matrices that are read again, the one that registers hold at ``KEPT_BLOCK``."""
        if not self.keeps or len(self.walks) != 2 or self.may_lack:
            return None
        first, last = (walk_.names for walk_ in self.walks)
        again = [
            v
            for v in self.program.variables
            if v.name in first & last and v.type.kind is Kind.MATRIX and v.sharing is None
        ]
        is_plain = len(again) == 2 and again[-1].absent is None
        return again[-1].name if is_plain else None


@dataclass(frozen=True, slots=True)
class Pass:
    """The kernels of one backward: ``name`` is ``backward`` or ``double_backward``.

    ``statistics`` pass from the split's first kernel to its second; ``statistics_for`` is the one
    gradient that they serve, if it is one and may be left out. Of the ``column_sums``, those in
    ``partial_sums`` go over the rows of one part of the ``partition`` each.
    """

    name: str
    program: Program
    kernels: tuple[Kernel, ...]
    statistics: tuple[str, ...] = ()
    column_sums: tuple[str, ...] = ()
    statistics_for: str | None = None
    partition: Kind | None = None
    partial_sums: tuple[str, ...] = ()

    @property
    def results(self) -> tuple[Result, ...]:
        """The gradients that it gives."""
        return self.program.results


@dataclass(frozen=True, slots=True)
class OpSchedule:
    """All kernels of an op: forward's, and those of its backward and double backward if any."""

    row_op: RowOp
    forward: tuple[Kernel, ...]
    passes: tuple[Pass, ...] = ()

    @property
    def backward(self) -> tuple[Kernel, ...]:
        """The kernels of the first backward."""
        return self.passes[0].kernels if self.passes else ()

    @property
    def statistics(self) -> tuple[str, ...]:
        """The row values that pass between the kernels of the first backward's split."""
        return self.passes[0].statistics if self.passes else ()

    @property
    def column_sums(self) -> tuple[str, ...]:
        """The first gradients that are sums over all rows."""
        return self.passes[0].column_sums if self.passes else ()

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Every kernel that walks rows, in the order of the file."""
        return (*self.forward, *(kernel for each in self.passes for kernel in each.kernels))

    @property
    def unrolls(self) -> bool:
        """Whether a kernel walks several chunks a step."""
        return any(kernel.unrolls for kernel in self.kernels)

    @property
    def least_block(self) -> int:
        """The fewest columns of a tile: of random numbers, four are drawn together."""
        definitions = (d for kernel in self.kernels for d in kernel.program.definitions)
        return RANDOM_WORDS if any(drawn_in(d.term) for d in definitions) else 1

    def sum_groups(self, each: Pass) -> str | None:
        """The kernel that adds the groups' column sums of a pass, if it has any.

        It knows only how many sums there are, so passes with as many as the first share it.
        """
        if not each.column_sums:
            return None
        is_shared = len(each.column_sums) == len(self.column_sums)
        return f"{self.row_op.spec.op}_{'' if is_shared else 'double_'}sum_groups"

    def kernel(self, suffix: str) -> Kernel | None:
        """The kernel named ``<op>_<suffix>``, if the op has it."""
        name = f"{self.row_op.spec.op}_{suffix}"
        return next((k for k in self.kernels if k.name == name), None)


def schedule(row_op: RowOp) -> OpSchedule:
    """Every kernel of an op."""
    op = row_op.spec.op
    forward = _of_rows(f"{op}_forward", row_op.forward)
    programs = (("backward", row_op.backward), ("double_backward", row_op.double_backward))
    passes = tuple(
        _pass(row_op.spec, name, program) for name, program in programs if program is not None
    )
    return OpSchedule(row_op, forward, passes)


def _pass(spec: Spec, name: str, program: Program) -> Pass:
    """Whole rows in registers or in chunks, and tiles of columns where some are summed."""
    made = _pass_of_rows(f"{spec.op}_{name}", name, program)
    batched = {gradient_name(i.name): i.kind for i in spec.inputs if i.kind in BATCHED_KINDS}
    partial_sums = tuple(n for n in made.column_sums if n in batched)
    if not partial_sums:
        return made
    partition = batched[partial_sums[0]]
    kernels = tuple(
        (
            replace(k, partition=partition, program=_in_one_part(k.program, partition))
            if k.is_grouped
            else k
        )
        for k in made.kernels
    )
    return replace(made, kernels=kernels, partition=partition, partial_sums=partial_sums)


def _in_one_part(program: Program, partition: Kind) -> Program:
    """The program for rows of one part of the matrix, whose shared row is as per_column values."""
    narrowed = {
        v.name: Type(Kind.PER_COLUMN, v.type.element)
        for v in program.variables
        if v.sharing is not None and v.sharing.kind is partition
    }
    variables = tuple(replace(v, type=narrowed.get(v.name, v.type)) for v in program.variables)
    return retyped(Program(variables, program.definitions, program.results)) or program


def _pass_of_rows(prefix: str, name: str, program: Program) -> Pass:
    sums = tuple(r.name for r in program.results if r.kind is Kind.PER_COLUMN)
    if not sums:
        return Pass(name, program, _of_rows(prefix, program))
    rows, columns, statistics = _split(program)
    whole = _whole(prefix, program, Form.GROUPS)
    split_columns = Kernel(f"{prefix}_split_columns", Form.SPLIT_COLUMNS, columns)
    if not rows.results:
        return Pass(name, program, (*whole, split_columns), (), sums)
    split_rows = streaming(f"{prefix}_split_rows", rows)
    gradient = _only_served(rows, columns, statistics)
    if gradient is not None:
        split_columns = replace(split_columns, may_lack=statistics)
    return Pass(name, program, (*whole, split_rows, split_columns), statistics, sums, gradient)


def served(program: Program) -> dict[str, set[str]]:
    """For every name, the results that depend on it."""
    results = {r.name: {r.name} for r in program.results}
    for definition in reversed(program.definitions):
        for name in names_in(definition.term):
            results[name] = results.get(name, set()) | results.get(definition.name, set())
    return results


def _only_served(rows: Program, columns: Program, statistics: tuple[str, ...]) -> str | None:
    """The matrix gradient that every statistic is for, if the first kernel makes nothing else."""
    if any(r.role is not Role.STATISTIC for r in rows.results):
        return None
    matrices = {r.name for r in columns.results if r.kind is Kind.MATRIX}
    serves = served(columns)
    names = set[str]().union(*(serves.get(name, set()) for name in statistics))
    return names.pop() if len(names) == 1 and names <= matrices else None


def _split(program: Program) -> tuple[Program, Program, tuple[str, ...]]:
    """The program of the row statistics, and the one that uses them tile of columns by tile."""
    program = hoist(program)
    levels = known_after(program, {})
    results = [r for r in program.results if r.kind is not Kind.PER_ROW]
    wide = needed(Program(program.variables, program.definitions, tuple(results)))
    made = {r.name for r in results}
    wanted = set(made)
    statistics: list[str] = []
    for definition in reversed(wide.definitions):
        if definition.name not in wanted:
            continue
        if definition.name not in made and _is_statistic(definition, levels):
            statistics.insert(0, definition.name)
        else:
            wanted.update(names_in(definition.term))

    row_results = [r for r in program.results if r.kind is Kind.PER_ROW]
    row_results += [Result(name, Kind.PER_ROW, Role.STATISTIC) for name in statistics]
    rows = needed(Program(program.variables, program.definitions, tuple(row_results)))
    given = tuple(
        Variable(d.name, d.type, Role.STATISTIC)
        for d in program.definitions
        if d.name in statistics
    )
    rest = tuple(d for d in program.definitions if d.name not in statistics)
    columns = needed(Program((*program.variables, *given), rest, tuple(results)))
    return verify(rows), verify(columns), tuple(statistics)


def _is_statistic(definition: Define, levels: dict[str, int]) -> bool:
    """Whether a value is a number that takes a walk; conditions follow from such numbers."""
    is_number = definition.type == Type(Kind.PER_ROW, Element.FLOAT)
    return is_number and levels[definition.name] > 0


def _of_rows(prefix: str, program: Program) -> tuple[Kernel, ...]:
    """The kernels of a program without column sums, for short rows and for longer ones."""
    return (*_whole(prefix, program, Form.TILE), streaming(f"{prefix}_streaming", program))


def _whole(prefix: str, program: Program, form: Form) -> tuple[Kernel, ...]:
    """The kernels whose tiles span whole rows."""
    resident = Kernel(f"{prefix}_resident", form, program)
    again = reload(f"{prefix}_reload", program, form)
    return (resident,) if again is None else (resident, again)


def reload(name: str, program: Program, form: Form) -> Kernel | None:
    """The kernel that reads whole rows again after each reduction, where it pays.

    The cache still has them, and the registers are free while a reduction is on its way. It does
    not pay where much is worked out again with them, nor beside several column sums, which leave
    too few registers for rows that long.
    """
    sums = tuple(r for r in program.results if r.kind is Kind.PER_COLUMN)
    program = hoist_rows(hoist(program))
    walks = _walks(program, Merging(), sums)
    if not walks or not walks[-1].stores or not _reads_again(program, walks):
        return None
    if len(sums) > 1 or _repeated(walks) > 1:
        return None
    form = Form.RELOAD_GROUPS if form is Form.GROUPS else Form.RELOAD
    before = _row_values(program, known_after(program, {}), 0)
    return Kernel(name, form, program, before, walks)


def _reads_again(program: Program, walks: tuple[Walk, ...]) -> bool:
    """Whether several walks take the values of one matrix."""
    matrices = {v.name for v in program.variables if v.type.kind is Kind.MATRIX}
    read = [name for walk_ in walks for name in walk_.names & matrices]
    return len(read) > len(set(read))


def _repeated(walks: tuple[Walk, ...]) -> int:
    """How many matrices are worked out again in later walks, those that only take products not."""
    seen: set[str] = set()
    count = 0
    for walk_ in walks:
        heavy = [d for d in walk_.definitions if d.type.kind is Kind.MATRIX and _is_heavy(d.term)]
        count += sum(d.name in seen for d in heavy)
        seen |= {d.name for d in heavy}
    return count


def _is_heavy(term: Term) -> bool:
    light = ("add", "sub", "mul", "neg")
    return any(isinstance(t, Op) and t.op not in light for t in walk(term))


def streaming(name: str, program: Program) -> Kernel:
    """The kernel that takes rows in chunks: as few walks as the reductions' order allows.

    Where it reduces no row, and gives no value of one, nothing ties a row's chunks together: each
    has a program.
    """
    program = hoist_rows(hoist(program))
    is_reduced = any(is_reduction(part) for d in program.definitions for part in walk(d.term))
    if not is_reduced and all(r.kind is not Kind.PER_ROW for r in program.results):
        return Kernel(name, Form.CHUNKS, program)
    merging = find_merges(program)
    before = _row_values(program, known_after(program, merging.beside), 0)
    return Kernel(name, Form.STREAMING, program, before, _walks(program, merging))


def _walks(program: Program, merging: Merging, sums: tuple[Result, ...] = ()) -> tuple[Walk, ...]:
    """The walks over a row; ``sums`` over all rows are added to in the last."""
    levels = known_after(program, merging.beside)
    merged = {*merging.beside, *merging.beside.values()}
    together = _together(program, merging.online, levels)
    wide = [r for r in program.results if r.kind is Kind.MATRIX]
    last = max(
        [levels[d.name] for d in program.definitions if is_reduction(d.term)]
        + [levels.get(r.name, 0) + 1 for r in (*wide, *sums)],
        default=0,
    )
    walks = []
    for number in range(1, last + 1):
        reductions = tuple(
            d
            for d in program.definitions
            if is_reduction(d.term) and levels[d.name] == number and d.name not in merged
        )
        joined = tuple(m for m in merging.merges if levels[m.total.name] == number)
        online = tuple(o for o in together if levels[o.maximum.name] == number)
        stores = tuple(r for r in wide if levels.get(r.name, 0) + 1 == number)
        if number == last:
            stores += sums
        roots = [d.term for d in reductions] + [m.values for m in joined]
        for each in online:
            roots += [d.term for d in (each.maximum, *(s.total for s in each.sums))]
        definitions = _elementwise(program, roots, stores)
        walks.append(
            Walk(
                tuple(d for d in definitions if levels[d.name] < number),
                reductions,
                joined,
                online,
                stores,
                _row_values(program, levels, number),
            )
        )
    return tuple(walks)


def _together(
    program: Program, groups: Iterable[tuple[OnlineSum, ...]], levels: dict[str, int]
) -> list[Online]:
    """Each maximum with its sums, and what between them depends on the maximum so far."""
    taken = {v.name for v in program.variables} | {d.name for d in program.definitions}
    found = []
    for sums in groups:
        maximum = sums[0].maximum
        definitions = _elementwise(program, [each.total.term for each in sums], ())
        late = tuple(d for d in definitions if levels[d.name] == levels[maximum.name])
        # A weight that is not finite has to spoil its sum beside exp(-inf - m) too, which is 0.
        is_shifted = any(each.is_weighted and each.guard is Guard.NONE for each in sums)
        before = fresh(f"{maximum.name}_before", taken)
        so_far = fresh(f"{maximum.name}_so_far", taken) if is_shifted else maximum.name
        found.append(Online(maximum, sums, _guards(program, sums), late, before, so_far))
    return found


def _guards(program: Program, sums: tuple[OnlineSum, ...]) -> tuple[Define, ...]:
    """The row values between a maximum and what the sums take from their values."""
    maximum = sums[0].maximum.name
    wanted = {each.center for each in sums} - {maximum}
    found: list[Define] = []
    for definition in reversed(program.definitions):
        if definition.name in wanted:
            found.insert(0, definition)
            wanted.update(set(names_in(definition.term)) - {maximum})
    return tuple(found)


def _row_values(program: Program, levels: dict[str, int], number: int) -> tuple[Define, ...]:
    """The per_row and scalar definitions that are ready after walk ``number``."""
    return tuple(
        d
        for d in program.definitions
        if d.type.kind in (Kind.PER_ROW, Kind.SCALAR)
        and not is_reduction(d.term)
        and levels[d.name] == number
    )


def _elementwise(
    program: Program, roots: list[Term], stores: tuple[Result, ...]
) -> tuple[Define, ...]:
    """The definitions to work out inside a chunk for some reductions and stores."""
    wanted = {name for root in roots for name in names_in(root)}
    wanted |= {r.name for r in stores}
    kept = []
    for definition in reversed(program.definitions):
        in_chunk = definition.type.kind in (Kind.MATRIX, Kind.PER_COLUMN)
        if definition.name in wanted and in_chunk:
            kept.append(definition)
            wanted.update(names_in(definition.term))
    return tuple(reversed(kept))
