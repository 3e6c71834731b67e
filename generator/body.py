"""The statements of a kernel: loads, formulas, stores, and the walks around them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kgen.emit import Emitter, number, shape, through_float32
from kgen.ir import (
    Define,
    Op,
    Program,
    Ref,
    Result,
    Role,
    Sharing,
    Variable,
    names_in,
)
from kgen.merging import Guard, Merge, MergeKind, Online, OnlineSum
from kgen.padding import NEUTRAL, Padding, choose_padding
from kgen.peel import Peeled, peel
from kgen.schedule import KEPT_BLOCK, Form, Kernel, Walk, served
from kgen.spec import Element, Kind, Spec

FIRST_COLUMN = {
    Form.CHUNKS: "tl.program_id(0) % n_chunks * BLOCK",
    Form.SPLIT_COLUMNS: "tl.program_id(1) * BLOCK",
}
"""The first column of a program that has one tile of columns."""
ROW_OF_PART = {
    Kind.PER_BATCH: "(row.to(tl.int32) // n_places).to(tl.int64)",
    Kind.PER_PLACE: "(row.to(tl.int32) % n_places).to(tl.int64)",
}
"""The matrix that a row is of, and its place there, by a division in 32 bits: it is far shorter."""
_COMMENT = 88
_STRIDED = (Role.INPUT, Role.UPSTREAM)


@dataclass(frozen=True, slots=True)
class Body:
    """A kernel's statements as finished text, in the order of the file."""

    top: str
    walks: tuple[WalkText, ...]
    helpers: frozenset[str]


@dataclass(frozen=True, slots=True)
class WalkText:
    """A loop over the columns: what stands before, inside and after it.

    The last walk of several goes ``backwards``: it finds what was read last still in the cache.
    """

    before: str
    inside: str
    after: str
    backwards: bool = False


def kernel_body(spec: Spec, kernel: Kernel, several: bool) -> Body:
    """The text of one kernel below its index arithmetic; ``several``: of the op's gradients."""
    padding = choose_padding(kernel.program)
    emitter = Emitter(spec, padding, kernel.program)
    writer = _Writer(
        spec, kernel.program, emitter, padding, several, kernel.may_lack, kernel.partition
    )
    emitter.first_column = FIRST_COLUMN.get(kernel.form, emitter.first_column)
    if kernel.form in (Form.TILE, Form.CHUNKS):
        return _tile(writer, emitter)
    if kernel.form is Form.RELOAD:
        writer.params()
        _reload(writer, kernel)
        return Body(writer.take(), (), frozenset(emitter.helpers))
    if kernel.form is Form.STREAMING:
        return _streaming(writer, emitter, kernel)
    return _groups(writer, emitter, kernel)


def _reload(writer: _Writer, kernel: Kernel) -> None:
    """The statements of whole rows that are read again after each reduction."""
    writer.load_all(Kind.PER_ROW)
    for definition in kernel.before:
        writer.row_statement(definition)
    for place, walk_ in enumerate(kernel.walks):
        writer.forget_chunk()
        writer.gap()
        if place == 1:
            writer.line("# Read again: the cache has the row, and registers would be short.")
        writer.fetch(kernel.walks[place:], kernel.kept if place == 1 else None)
        for definition in walk_.definitions:
            writer.statement(definition, stores=walk_.stores)
        writer.store_row_values(walk_)
        for definition in (*walk_.reductions, *walk_.after):
            writer.row_statement(definition)


def _tile(writer: _Writer, emitter: Emitter) -> Body:
    program = writer.program
    writer.params()
    writer.load_all(Kind.MATRIX, Kind.PER_ROW)
    for definition in program.definitions:
        writer.statement(definition)
    return Body(writer.take(), (), frozenset(emitter.helpers))


def _groups(writer: _Writer, emitter: Emitter, kernel: Kernel) -> Body:
    program = writer.program
    writer.params()
    if kernel.form is not Form.RELOAD_GROUPS:
        writer.load_all(Kind.PER_COLUMN)
    sums = [r.name for r in program.results if r.kind is Kind.PER_COLUMN]
    for name in sums:
        writer.line(f"{name} = tl.zeros((1, BLOCK), COMPUTE)")
    before = writer.take()
    if kernel.form is Form.RELOAD_GROUPS:
        _reload(writer, kernel)
    else:
        writer.load_all(Kind.MATRIX, Kind.PER_ROW)
        for definition in program.definitions:
            writer.statement(definition)
    inside = writer.take()
    for name in sums:
        writer.line(f"if {name}_partial_ptr is not None:")
        place = f"{name}_partial_ptr + group * n_columns + column"
        writer.line(f"    tl.store({place}, {name}, mask=in_columns)")
    after = writer.take()
    return Body("", (WalkText(before, inside, after),), frozenset(emitter.helpers))


def _streaming(writer: _Writer, emitter: Emitter, kernel: Kernel) -> Body:
    writer.params()
    writer.load_all(Kind.PER_ROW)
    for definition in kernel.before:
        writer.row_statement(definition)
    top = writer.take()
    last = len(kernel.walks) - 1
    turns = last > 0 and bool(kernel.walks[-1].stores)
    walks = tuple(
        _walk_text(writer, kernel.walks[at:], backwards=turns and at == last)
        for at in range(len(kernel.walks))
    )
    return Body(top, walks, frozenset(emitter.helpers))


def _walk_text(writer: _Writer, walks: Sequence[Walk], backwards: bool) -> WalkText:
    """The first of the walks that are left."""
    walk_ = walks[0]
    writer.forget_chunk()
    if any(merge.kind is MergeKind.MOMENTS for merge in walk_.merges):
        writer.first_chunk(walk_)
    for merge in walk_.merges:
        writer.start_merge(merge)
    for online in walk_.online:
        writer.start_online(online)
    for reduction in walk_.reductions:
        writer.start_reduction(reduction)
    before = writer.take()

    writer.start_at("last_start - back" if backwards else "start")
    writer.fetch(walks)
    for definition in walk_.definitions:
        writer.statement(definition, stores=walk_.stores)
    writer.store_row_values(walk_)
    for merge in walk_.merges:
        writer.step_merge(merge)
    for online in walk_.online:
        writer.step_online(online)
    for reduction in walk_.reductions:
        writer.step_reduction(reduction)
    inside = writer.take()

    for merge in walk_.merges:
        writer.end_merge(merge)
    for online in walk_.online:
        writer.end_online(online)
    for reduction in walk_.reductions:
        writer.end_reduction(reduction)
    for definition in walk_.after:
        writer.row_statement(definition)
    return WalkText(before, inside, writer.take(), backwards)


@dataclass(slots=True)
class _Writer:
    """Collects lines, and remembers what the kernel has loaded already."""

    spec: Spec
    program: Program
    emitter: Emitter
    padding: Padding
    several: bool
    may_lack: tuple[str, ...]
    partition: Kind | None
    lines: list[str] = field(default_factory=list)
    loaded: set[str] = field(default_factory=set)
    filled: set[str] = field(default_factory=set)
    guarded: set[str] = field(default_factory=set)
    owners: dict[str, set[str]] = field(default_factory=dict)
    open_guard: str | None = None
    eviction: dict[str, str] = field(default_factory=dict)
    reads_again: bool = False
    is_last: bool = False
    reads_spans: bool = False
    has_spans: bool = False

    def __post_init__(self) -> None:
        """Sort the optional inputs: those whose absence drops steps, and those given a value."""
        variables = self.program.variables
        absent = {v.name: v.absent for v in variables if v.absent is not None}
        for definition in self.program.definitions:
            used = {name for name in names_in(definition.term) if name in absent}
            alone = {name for name in used if peel(definition.term, {name: absent[name]}) is None}
            self.filled |= alone
            together = {name: absent[name] for name in used - self.filled}
            if peel(definition.term, together) is None:
                self.filled |= used
        self.guarded = set(absent) - self.filled
        self.owners = served(self.program)

    # --- lines

    def line(self, text: str) -> None:
        """Add one line."""
        self.lines.append(text)

    def gap(self) -> None:
        """An empty line, unless there is one or nothing stands above."""
        if self.lines and self.lines[-1]:
            self.lines.append("")

    def take(self) -> str:
        """The text so far; starts anew."""
        if self.reads_spans and not self.has_spans:
            self.lines = [*self._spans(), *self.lines]
            self.has_spans = True
        text = "\n".join(self.lines).rstrip("\n")
        self.lines = []
        self.open_guard, self.reads_spans = None, False
        return text

    def _spans(self) -> list[str]:
        """The columns that begin a span: SPAN columns, for which a shared value is loaded once."""
        first = "" if self.emitter.first_column == "0" else f"{self.emitter.first_column} + "
        return [
            f"span = {first}tl.arange(0, BLOCK // SPAN)[None, :] * SPAN",
            "in_spans = span < n_columns",
        ]

    def start_at(self, column: str) -> None:
        """Go on with the tile that starts at another column."""
        self.emitter.first_column = column
        self.has_spans = False

    def forget_chunk(self) -> None:
        """A new walk loads matrices and columns again."""
        per_row = (Kind.PER_ROW, Kind.SCALAR)
        self.loaded = {
            v.name
            for v in self.program.variables
            if v.name in self.loaded and v.type.kind in per_row
        }

    # --- loads

    def params(self) -> None:
        """Float params arrive as float64 and join the arithmetic's type here; scalars are read."""
        for variable in self.program.variables:
            if variable.role is Role.PARAM and variable.type.element is Element.FLOAT:
                self.line(f"{variable.name} = tl.full((1, 1), {variable.name}, COMPUTE)")
            elif variable.role is Role.INPUT and variable.type.kind is Kind.SCALAR:
                self._load(variable)

    def load_all(self, *kinds: Kind) -> None:
        """Load every variable of some kinds."""
        self.gap()
        used = {name for d in self.program.definitions for name in names_in(d.term)}
        used |= {result.name for result in self.program.results}
        for variable in self.program.variables:
            is_read = variable.role is not Role.PARAM and variable.name in used
            # Shared values wait until they are used, where rows have their own: registers are few.
            waits = variable.sharing is not None and variable.type.kind is Kind.MATRIX
            if is_read and variable.type.kind in kinds and not waits:
                self._load(variable)

    def fetch(self, walks: Sequence[Walk], kept: str | None = None) -> None:
        """Load the matrices that the first of the walks uses, and tell the cache what is to stay.

        Where rows are read several times, what no later walk reads need not be kept. The matrix
        ``kept`` stays in registers in rows of one width.
        """
        later = set[str]().union(*(each.names for each in walks[1:]))
        self.reads_again = self.reads_again or len(walks) > 1
        self.is_last = len(walks) == 1
        for variable in self.program.variables:
            is_read = variable.name in walks[0].names and variable.type.kind is Kind.MATRIX
            if is_read and variable.sharing is None:
                if self.reads_again:
                    is_first = variable.name not in self.eviction
                    # Loads that differ in nothing would become one, and stay in registers.
                    hint = "evict_last" if is_first else ""
                    self.eviction[variable.name] = hint if variable.name in later else "evict_first"
                if variable.name == kept:
                    self.loaded.add(kept)
                    stays = f"{kept} stays in registers from its first load"
                    self.line(f"# In blocks of {KEPT_BLOCK}, {stays}.")
                    self.line(f"if BLOCK != {KEPT_BLOCK}:")
                    self.line(f"    {kept} = {self._load_text(variable)}")
                else:
                    self._load(variable)

    def _load(self, variable: Variable) -> None:
        if variable.name in self.loaded:
            return
        self.loaded.add(variable.name)
        self.open_guard = None
        load = f"{variable.name} = {self._load_text(variable)}"
        if variable.absent is None and variable.name not in self.may_lack:
            self.line(load)
            return
        self.line(f"if {variable.name}_ptr is not None:")
        self.line(f"    {load}")
        if variable.name in self.filled:
            fill = f"tl.full({shape(variable.type.kind)}, {_fill(variable)})"
            self.line("else:")
            self.line(f"    {variable.name} = {fill}")

    def _load_text(self, variable: Variable) -> str:
        name, kind = variable.name, variable.type.kind
        is_float = variable.type.element is Element.FLOAT
        padding = self.padding.loads.get(name, 0.0)
        other = number(padding if is_float else int(padding))
        place, mask = f"{name}_ptr + column", "in_columns"
        if kind is Kind.SCALAR:
            dtype = {Element.FLOAT: "COMPUTE", Element.INT: "tl.int64", Element.BOOL: "tl.int1"}
            return f"tl.full((1, 1), tl.load({name}_ptr), {dtype[variable.type.element]})"
        if kind is Kind.PER_ROW:
            stride = f" * {name}_row_stride" if variable.role in _STRIDED else ""
            place, mask = f"{name}_ptr + row{stride}", "in_rows"
        elif kind is Kind.MATRIX:
            stride = f"{name}_row_stride" if variable.role in _STRIDED else "n_columns"
            place, mask = f"{name}_ptr + row * {stride} + column", "mask"
        if variable.sharing is not None:
            place = self._shared_place(variable, variable.sharing)
        shares_columns = variable.sharing is not None and variable.sharing.columns
        if shares_columns:
            needs_rows = kind is not Kind.PER_COLUMN and not self._has_all_rows(variable)
            mask = "in_rows & in_spans" if needs_rows else "in_spans"
            self.reads_spans = True
        convert = ".to(COMPUTE)" if is_float and not self._is_computed(variable) else ""
        kept = self.eviction.get(name, "")
        policy = f', eviction_policy="{kept}"' if kept else ""
        load = f"tl.load({place}, mask={mask}, other={other}{policy}){convert}"
        return f"{self.emitter.use('spread')}({load}, SPAN)" if shares_columns else load

    def _has_all_rows(self, variable: Variable) -> bool:
        """Whether rows beyond the last have a value to read, and may hold it: nothing adds rows."""
        is_of_place = variable.sharing is not None and variable.sharing.kind is Kind.PER_PLACE
        return is_of_place and not any(r.kind is Kind.PER_COLUMN for r in self.program.results)

    def _shared_place(self, variable: Variable, sharing: Sharing) -> str:
        """Where the entry lies that serves each row and column."""
        name = variable.name
        column = "column"
        if sharing.columns:
            column = f"{self.emitter.use('shared_column')}(span, {name}_width)"
        if sharing.kind is Kind.PER_COLUMN:
            return f"{name}_ptr + {column}"
        row = {Kind.PER_BATCH: "batch_index", Kind.PER_PLACE: "place_index"}[sharing.kind]
        if sharing.kind is self.partition and variable.type.kind is Kind.MATRIX:
            # There the name stands for one number, and a matrix needs one for each row.
            row = ROW_OF_PART[sharing.kind]
        return f"{name}_ptr + {row} * {name}_row_stride + {column}"

    @staticmethod
    def _is_computed(variable: Variable) -> bool:
        return variable.role in (Role.SAVED, Role.STATISTIC)

    def _load_columns(self, names: Iterable[str]) -> None:
        """Per_column values are loaded where they are first used."""
        for name in names:
            variable = self.program.variable(name)
            if variable is None or variable.role is Role.PARAM or name in self.guarded:
                continue
            self._load(variable)

    def first_chunk(self, walk_: Walk) -> None:
        """Read a row's first chunk for the pivots that sums of squares are about."""
        merges = [merge for merge in walk_.merges if merge.kind is MergeKind.MOMENTS]
        wanted = {name for merge in merges for name in names_in(merge.values)}
        definitions: list[Define] = []
        for definition in reversed(walk_.definitions):
            if definition.name in wanted:
                definitions.insert(0, definition)
                wanted.update(names_in(definition.term))
        self.line("# Sums about a mean of the row's own lose no digits to cancellation.")
        self.line("column = tl.arange(0, BLOCK)[None, :]")
        self.start_at("0")
        self.line("in_columns = column < n_columns")
        self.line("mask = in_rows & in_columns")
        for variable in self.program.variables:
            if variable.name in wanted and variable.type.kind is Kind.MATRIX:
                self._load(variable)
        for definition in definitions:
            self.statement(definition, stores=())
        for merge in merges:
            self._load_columns(names_in(merge.values))
            values = self.emitter.masked("sum", merge.values)
            mean = f"{self.emitter.use('row_mean')}({values}, tl.minimum(n_columns, BLOCK))"
            self.line(f"{merge.statistic.name}_pivot = {mean}")
        self.forget_chunk()

    # --- statements

    def row_statement(self, definition: Define) -> None:
        """A formula line between the walks; only a walk can store a whole row."""
        stores = [r for r in self.program.results if r.kind is not Kind.MATRIX]
        is_stored = any(r.name == definition.name for r in stores)
        self._statement(definition, stores, self._guard(definition) if is_stored else None)

    def store_row_values(self, walk_: Walk) -> None:
        """What a walk stores in all columns alike."""
        inside = {d.name for d in walk_.definitions}
        for result in walk_.stores:
            if result.name not in inside:
                self.lines.extend(self._store(result, None))

    def statement(self, definition: Define, stores: Iterable[Result] | None = None) -> None:
        """A formula line, with the store of its value if it is a result."""
        results = self.program.results if stores is None else stores
        # In a walk, what feeds a reduction is needed whatever the results.
        is_stored = stores is None or any(r.name == definition.name for r in results)
        self._statement(definition, results, self._guard(definition) if is_stored else None)

    def _statement(self, definition: Define, stores: Iterable[Result], guard: str | None) -> None:
        made = [r for r in stores if r.name == definition.name]
        if isinstance(definition.term, Op) and definition.term.op == "sum_rows":
            self._column_sum(definition)
            return
        self._load_columns(names_in(definition.term))
        before = set(self.loaded)
        code = self._code(definition)
        if guard is not None:
            self.loaded = before  # what is loaded behind a guard is not there for others
        spaced = len(code) > 1 or bool(made) or guard is not None
        # The spec's line stands above what it became, unless that is the same.
        if definition.text and code != [definition.text]:
            code = [*_comment(definition.text), *code]
        for result in made:
            code = [*code, *self._store(result, guard)]
        if spaced and guard != self.open_guard:
            self.gap()
        if guard is not None:
            if guard != self.open_guard:
                self.line(f"if {guard} is not None:")
            code = [f"    {line}" for line in code]
        self.lines.extend(code)
        if spaced and guard is None:
            self.gap()
        self.open_guard = guard

    def _code(self, definition: Define) -> list[str]:
        peeled = self._peeled(definition)
        name = definition.name
        if peeled is None or not peeled.steps:
            return [f"{name} = {self.emitter.start(definition.term, definition.type)}"]
        lines = [f"{name} = {self.emitter.start(peeled.base, definition.type)}"]
        for step in peeled.steps:
            template = Op(
                step.op, (_itself(definition), step.operand), definition.type, definition.at
            )
            update = f"{name} = {self.emitter.text(template)}"
            if step.needs is None:
                lines.append(update)
                continue
            lines.append(f"if {step.needs}_ptr is not None:")
            variable = self.program.variable(step.needs)
            if variable is not None and step.needs not in self.loaded:
                self.loaded.add(step.needs)
                lines.append(f"    {step.needs} = {self._load_text(variable)}")
            lines.append(f"    {update}")
        return lines

    def _peeled(self, definition: Define) -> Peeled | None:
        absent = {
            v.name: v.absent
            for v in self.program.variables
            if v.absent is not None and v.name in self.guarded
        }
        return peel(definition.term, absent)

    def _guard(self, definition: Define) -> str | None:
        """The pointer of the only optional result that a definition serves."""
        owners = self.owners.get(definition.name, set())
        if len(owners) != 1:
            return None
        result = next(r for r in self.program.results if r.name in owners)
        is_sum = result.kind is Kind.PER_COLUMN
        return None if is_sum or not self._is_optional(result) else f"{result.tensor}_ptr"

    def _is_optional(self, result: Result) -> bool:
        """A gradient that is the only one is always wanted; others have to be asked for."""
        gradients = [r for r in self.program.results if r.role is Role.GRADIENT]
        return result.role is Role.SAVED or (
            result.role is Role.GRADIENT and (len(gradients) > 1 or self.several)
        )

    def _store(self, result: Result, guard: str | None) -> list[str]:
        pointer = f"{result.tensor}_ptr"
        dtypes = {o.name: o.dtype for o in self.spec.outputs if result.role is Role.OUTPUT}
        value = result.name + through_float32(dtypes.get(result.name, ""))
        definition = self.program.definition(result.name)
        is_int = definition is not None and definition.type.element is Element.INT
        if is_int and not self._holds_ints(dtypes.get(result.name, "")):
            value = f"{result.name}.to(COMPUTE)"
        if result.kind is Kind.PER_ROW:
            store = f"tl.store({pointer} + row, {value}, mask=in_rows)"
        else:
            # Streamed past the cache, which the rows are to stay in.
            cached = ', cache_modifier=".cs"' if self.reads_again and self.is_last else ""
            place = f"{pointer} + row * n_columns + column"
            store = f"tl.store({place}, {value}, mask=mask{cached})"
        if self._is_optional(result) and guard != pointer:
            return [f"if {pointer} is not None:", f"    {store}"]
        return [store]

    def _holds_ints(self, dtype: str) -> bool:
        inputs = {i.name: i.element for i in self.spec.inputs}
        return dtype.startswith("int") or inputs.get(dtype) is Element.INT

    def _column_sum(self, definition: Define) -> None:
        assert isinstance(definition.term, Op)
        self._load_columns(names_in(definition.term))
        text = self.emitter.reduction("sum_rows", definition.term.arguments[0])
        self.gap()
        self.open_guard = None
        self.line(f"if {definition.name}_partial_ptr is not None:")
        if definition.text:
            self.lines.extend(f"    {line}" for line in _comment(definition.text))
        self.line(f"    {definition.name} += {text}")

    # --- reductions along a walk

    def start_reduction(self, reduction: Define) -> None:
        """The lanes that a reduction accumulates in."""
        op = _op(reduction)
        if op in ("sum", "mean"):
            self.line(f"{reduction.name}_lanes = tl.zeros((ROWS, BLOCK), COMPUTE)")
        else:
            start = number(NEUTRAL[op])
            self.line(f"{reduction.name}_lanes = tl.full((ROWS, BLOCK), {start}, COMPUTE)")

    def step_reduction(self, reduction: Define) -> None:
        """Add a chunk."""
        assert isinstance(reduction.term, Op)
        op, operand = reduction.term.op, reduction.term.arguments[0]
        self._load_columns(names_in(operand))
        lanes = f"{reduction.name}_lanes"
        values = self.emitter.masked(op, operand)
        if op in ("sum", "mean"):
            self.line(f"{lanes} += {values}")
        else:
            helper = self.emitter.use("nan_maximum" if op == "max" else "nan_minimum")
            self.line(f"{lanes} = {helper}({lanes}, {values})")

    def end_reduction(self, reduction: Define) -> None:
        """From lanes to one value a row."""
        op = _op(reduction)
        helper = self.emitter.use(f"row_{op}")
        columns = ", n_columns" if op == "mean" else ""
        if reduction.text:
            self.lines.extend(_comment(reduction.text))
        self.line(f"{reduction.name} = {helper}({reduction.name}_lanes{columns})")
        self._store_row_value(reduction)

    def start_merge(self, merge: Merge) -> None:
        """The running values of two reductions done together."""
        statistic, total = merge.statistic.name, merge.total.name
        if merge.kind is MergeKind.MOMENTS:
            for name in (statistic, total):
                self.line(f"{name}_lanes = tl.zeros((ROWS, BLOCK), COMPUTE)")
            return
        self._merge_words(merge)
        self.line(f'{statistic} = tl.full((ROWS, 1), {number(NEUTRAL["max"])}, COMPUTE)')
        self.line(f"{total} = tl.zeros((ROWS, 1), COMPUTE)")

    def _merge_words(self, merge: Merge) -> None:
        for definition in (merge.statistic, merge.total):
            if definition.text:
                self.lines.extend(_comment(definition.text))

    def step_merge(self, merge: Merge) -> None:
        """Merge a chunk."""
        self._load_columns(names_in(merge.values))
        pair = f"{merge.statistic.name}, {merge.total.name}"
        if merge.kind is MergeKind.EXP_SUM:
            values = self.emitter.masked("max", merge.values)
            call = f"{self.emitter.use('merge_exp_sum')}({pair}, {values})"
            self.line(f"{pair} = {call}")
            return
        statistic, total = merge.statistic.name, merge.total.name
        pivot, away = f"{statistic}_pivot", f"{statistic}_from_pivot"
        away_values = f"{self.emitter.text(merge.values)} - {pivot}"
        self.line(f"{away} = tl.where(in_columns, {away_values}, 0.0)")
        self.line(f"{statistic}_lanes += {away}")
        self.line(f"{total}_lanes += {away} * {away}")

    def end_merge(self, merge: Merge) -> None:
        """What the running values still lack after the last chunk."""
        statistic, total = merge.statistic.name, merge.total.name
        if merge.kind is MergeKind.EXP_SUM and merge.guard is Guard.NONE:
            self._spoil(statistic, [total])
        elif merge.kind is MergeKind.EXP_SUM and merge.guard is Guard.BOTH:
            self.line("# The merge has taken inf from inf, which is NaN, where the guard takes 0.")
            is_inf = f'{statistic} == float("inf")'
            self.line(f'{total} = tl.where({is_inf}, float("inf"), {total})')
        if merge.kind is MergeKind.MOMENTS:
            self._end_moments(merge)
        elif _op(merge.total) == "mean":
            self.line(f"{total} = {self.emitter.use('row_quotient')}({total}, n_columns)")
        self._store_row_value(merge.statistic)
        self._store_row_value(merge.total)

    def _end_moments(self, merge: Merge) -> None:
        """The mean, and the sum or mean of squares about it, from those about the pivot."""
        statistic, total = merge.statistic.name, merge.total.name
        self._merge_words(merge)
        given = f"{statistic}_pivot, {statistic}_lanes, {total}_lanes, n_columns"
        self.line(f"{statistic}, {total} = {self.emitter.use('moments')}({given})")
        if _op(merge.total) == "sum":
            self.line(f"{total} = {total} * n_columns")

    def _spoil(self, maximum: str, totals: list[str]) -> None:
        """Make NaN of sums of exponentials that no guard keeps from a maximum of -inf."""
        self.line(f"# exp({maximum} - {maximum}) is NaN in a row of -inf alone.")
        for name in totals:
            self.line(f'{name} = tl.where({maximum} == float("-inf"), float("nan"), {name})')

    def start_online(self, online: Online) -> None:
        """The running maximum and its sums."""
        self.line(f'{online.so_far} = tl.full((ROWS, 1), float("-inf"), COMPUTE)')
        for each in online.sums:
            self.line(f"{each.total.name} = tl.zeros((ROWS, 1), COMPUTE)")

    def step_online(self, online: Online) -> None:
        """Add a chunk: the formulas below the maximum take the maximum so far."""
        self._load_columns(names_in(online.values))
        maximum, so_far = online.maximum.name, online.so_far
        if online.maximum.text:
            self.lines.extend(_comment(online.maximum.text))
        self.line(f"{online.before} = {so_far}")
        join, chunk = self.emitter.use("nan_maximum"), self.emitter.reduction("max", online.values)
        self.line(f"{so_far} = {join}({so_far}, {chunk})")
        if online.is_shifted:
            self.line("# While all is -inf, shift by 0: exp(-inf) adds nothing.")
            self.line(f'{maximum} = tl.where({so_far} == float("-inf"), 0.0, {so_far})')
        for definition in (*online.guards, *online.definitions):
            self.statement(definition, stores=())
        for each in online.sums:
            self._step_sum(online, each)

    def _step_sum(self, online: Online, each: OnlineSum) -> None:
        assert isinstance(each.total.term, Op)
        total, operand = each.total.name, each.total.term.arguments[0]
        self._load_columns(names_in(operand))
        if each.total.text:
            self.gap()
            self.lines.extend(_comment(each.total.text))
        chunk = self.emitter.reduction("sum", operand)
        if each.guard is Guard.NONE and not online.is_shifted:
            helper, scales = "rescale_open_sum", f"{online.before}, {each.center}"
        else:
            helper, scales = "rescale_exp_sum", f"{online.before}, {online.so_far}, {each.center}"
        self.line(f"{total} = {self.emitter.use(helper)}({total}, {scales})")
        self.line(f"{total} += {chunk}")

    def end_online(self, online: Online) -> None:
        """What the running values still lack after the last chunk."""
        if online.is_shifted:
            maximum = online.maximum.name
            self.line(f"{maximum} = {online.so_far}")
            unguarded = [s.total.name for s in online.sums if s.guard is Guard.NONE]
            self._spoil(maximum, unguarded)
        for each in online.sums:
            if _op(each.total) == "mean":
                quotient = self.emitter.use("row_quotient")
                self.line(f"{each.total.name} = {quotient}({each.total.name}, n_columns)")
        self._store_row_value(online.maximum)
        for each in online.sums:
            self._store_row_value(each.total)

    def _store_row_value(self, definition: Define) -> None:
        for result in self.program.results:
            if result.name == definition.name:
                self.lines.extend(self._store(result, None))


def _comment(text: str) -> list[str]:
    """A formula as comment lines that fit wherever it stands."""
    if len(text) <= _COMMENT:
        return [f"# {text}"]
    # A long one is a sum: it goes on with the sign of a term.
    lines, rest = [], "# "
    for part in re.split(r" (?=[-+] )", text):
        if len(rest) + len(part) > _COMMENT and rest.strip("# "):
            lines.append(rest.rstrip())
            rest = "#     "
        rest += f"{part} "
    return [*lines, rest.rstrip()]


def _fill(variable: Variable) -> str:
    """The value and dtype that an absent input counts as."""
    assert variable.absent is not None
    if variable.type.element is Element.FLOAT:
        return f"{number(variable.absent)}, COMPUTE"
    is_bool = variable.type.element is Element.BOOL
    return f"{int(variable.absent)}, {'tl.int1' if is_bool else 'tl.int64'}"


def _op(definition: Define) -> str:
    assert isinstance(definition.term, Op)
    return definition.term.op


def _itself(definition: Define) -> Ref:
    return Ref(definition.name, definition.type, definition.at)
