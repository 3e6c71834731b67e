"""The schedule of a backward, first or double -> the view of the function that launches it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kgen.ir import Result, Role, Variable
from kgen.schedule import Kernel, OpSchedule, Pass
from kgen.spec import Element, Input, Kind, Spec, gradient_name, second_gradient_name
from kgen.tiles import Tile, Tiles, is_chunked, limits, rereads
from kgen.view import extents, pointers, shares_columns, strided
from kgen.view_words import empty_like, given, join, lines, row_stride, tensor_type, tuple_of

_SHAPES = {
    Kind.MATRIX: "call.shape",
    Kind.PER_ROW: "call.shape[:-1]",
    Kind.PER_COLUMN: "call.n_columns",
}
_SUM_SHAPES = {
    Kind.PER_BATCH: "call.shape[:-2] + call.shape[-1:]",
    Kind.PER_PLACE: "call.shape[-2:]",
}


@dataclass(frozen=True, slots=True)
class PassView:
    """The function that launches a backward's kernels, its plan and its constants."""

    name: str
    constant: str
    constants: str
    tiles: str
    tiles_doc: str
    plan: str
    by_itemsize: bool
    sums: tuple[str, ...]
    parameters: str
    key: str
    key_of_saved: str
    copies: str
    allocations: str
    empty: str
    launches: str
    gradients: str
    plan_arguments: str
    plan_parameters: str
    n_sums: str
    groups: str
    column_bytes: str
    whole_kernel: str
    whole_kernels: str
    steps: str
    grid: str
    resident_numbers: str
    split_rows: str
    split_columns_numbers: str
    sum_launches: str
    launches_of_sums: str
    folds: bool


def pass_view(plan: OpSchedule, each: Pass, tiles: Tiles, arguments: Sequence[str]) -> PassView:
    """The view of one pass; ``arguments`` are those that its gradients are for, by position."""
    writer = _PassWriter(plan, each, arguments)
    sums = each.column_sums
    names = [result.name for result in each.program.results]
    planned = writer.read_by_plan()
    needs = ["needs: tuple[bool, ...],"] * bool(sums)
    return PassView(
        name=each.name,
        constant=each.name.upper(),
        constants=plan_constants(plan, each.name, tiles, bool(sums)),
        tiles=tiles_text(tiles.whole, bool(sums)),
        tiles_doc=", pipeline stages, programs a processor" if sums else "",
        plan=plan_text(plan, each.name, tiles, bool(sums)),
        by_itemsize=is_by_itemsize(plan, each.name, tiles),
        sums=sums,
        parameters=tensor_parameters(plan.row_op.spec, read_by(each)),
        key=writer.key(),
        key_of_saved=writer.key_of_saved(),
        copies=writer.copies(),
        allocations=writer.allocations(),
        empty=tuple_of([writer.zeros(name) if name in sums else name for name in names]),
        launches=writer.launches(),
        gradients=tuple_of(names),
        plan_arguments=join(["call", *["needs"] * bool(sums), *(v.name for v in planned)]),
        plan_parameters=lines([*needs, tensor_parameters(plan.row_op.spec, planned)]),
        n_sums=writer.n_sums(),
        groups=writer.groups(),
        column_bytes=writer.column_bytes(),
        whole_kernel=whole_kernel(f"{plan.row_op.spec.op}_{each.name}", tiles),
        whole_kernels=kernel_choice(f"{plan.row_op.spec.op}_{each.name}", tiles, not sums),
        steps=("" if sums or not tiles.unrolls(is_split=False) else writer.steps("plan.stages")),
        grid="" if sums else grid(each.kernels),
        resident_numbers=writer.numbers_of("resident"),
        split_rows=writer.split_rows(tiles.streaming),
        split_columns_numbers=writer.numbers_of("split_columns"),
        sum_launches=writer.sum_launches() if sums else "",
        launches_of_sums=writer.launches_of_sums(),
        folds=bool(writer.folds()),
    )


def read_by(each: Pass) -> list[Variable]:
    """The tensors that a pass reads: what was kept, then the gradients that arrive."""
    read = [v for v in each.program.variables if v.role is not Role.PARAM]
    return sorted(read, key=lambda variable: variable.role is Role.UPSTREAM)


def belongs_to(spec: Spec) -> dict[str, str]:
    """For the name of every gradient, of either order, the tensor that it is the gradient for."""
    inputs = [i.name for i in spec.inputs]
    above = [gradient_name(o.name) for o in spec.outputs]
    return {
        **{gradient_name(name): name for name in (*inputs, *above)},
        **{second_gradient_name(name): name for name in inputs},
    }


def takes_dtype(spec: Spec, each: Pass, result: Result) -> bool:
    """Whether the dtype of a gradient has to be kept: what it is the gradient for is not read."""
    source = belongs_to(spec)[result.name]
    folded = {i.name for i in spec.inputs if i.folds_columns}
    repeated = each.program.repeated
    compared = {*repeated, *repeated.values()}
    read = {variable.name for variable in read_by(each)} - folded
    return source not in read or result.name in compared


def may_lack(spec: Spec, variable: Variable) -> bool:
    """Whether a tensor is None for an absent optional input, or for a gradient nobody gives."""
    optional = {i.name for i in spec.inputs if i.absent is not None}
    return variable.name in optional or variable.absent is not None


def tensor_parameters(spec: Spec, variables: Sequence[Variable]) -> str:
    """Tensors as parameters of a function, one a line."""
    return lines(f"{v.name}: {tensor_type(may_lack(spec, v))}," for v in variables)


def kernel_tensors(kernel: Kernel) -> str:
    """The tensors that a kernel is launched with; a gradient that is another's tensor only once."""
    repeated = kernel.program.repeated
    return join(
        f"None if {name} is {repeated[name]} else {name}" if name in repeated else name
        for name in pointers(kernel)
    )


def kernel_numbers(kernel: Kernel) -> str:
    """What is known of a kernel's other arguments beforehand, one a line."""
    flags = [v for v in kernel.program.variables if _is_flag(v)]
    return lines(
        [
            *(f"{row_stride(v.name, v.type.kind)}," for v in strided(kernel.program)),
            *(f"{_extent(word, kernel)}," for word in extents(kernel)),
            *(f"{v.name.upper()}=call.{v.name}," for v in flags),
            *(["SPAN=call.span,"] if shares_columns(kernel.program) else []),
        ]
    )


def kernel_params(kernel: Kernel, prefix: str = "") -> str:
    """The params that a kernel is launched with, each after a comma; ``prefix`` stands before."""
    params = [v for v in kernel.program.variables if v.role is Role.PARAM and not _is_flag(v)]
    return "".join(f", {prefix}{v.name}" for v in params)


def _is_flag(variable: Variable) -> bool:
    """Whether a param is compiled into the kernels."""
    return variable.role is Role.PARAM and variable.type.element is Element.BOOL


def _extent(word: str, kernel: Kernel) -> str:
    """The argument for one of a kernel's sizes."""
    if not word.endswith("_width"):
        return word
    name = word.removesuffix("_width")
    variable = kernel.program.variable(name)
    width = f"n_columns // {name}.shape[-1]"
    lacks = variable is not None and variable.absent is not None
    return f"1 if {name} is None else {width}" if lacks else width


def tiles_text(tiles: tuple[Tile, ...], is_grouped: bool) -> str:
    """The lines of a table of tiles."""
    rows = []
    for tile in tiles:
        rest = f", {tile.stages}, {tile.programs}" if is_grouped else ""
        rows.append(f"{tile.words}: ({tile.rows}, {tile.warps}{rest}),")
    return lines(rows)


def is_limited(widest: Mapping[int, int]) -> bool:
    """Whether rows of wider elements are walked in chunks earlier."""
    return len(set(widest.values())) > 1


def is_by_itemsize(plan: OpSchedule, direction: str, tiles: Tiles) -> bool:
    """Whether the schedule depends on the size of the matrices' elements."""
    return bool(tiles.reloaded) or is_limited(limits(plan, direction, tiles))


def plan_constants(plan: OpSchedule, direction: str, tiles: Tiles, is_split: bool) -> str:
    """The boundaries between the schedules of a direction, and the widths of its chunks."""
    prefix = direction.upper()
    widest = limits(plan, direction, tiles)
    text = [f"{prefix}_{_whole_name(tiles)} = {tiles.whole_words}"]
    if tiles.reloaded:
        text.append(f"{prefix}_RELOADED = {rereads(plan, direction, tiles)}")
    if is_limited(widest):
        text.append(f"{prefix}_WIDEST = {widest}")
    text.append(f"{prefix}_STREAMING_BLOCK = {tiles.streaming.words}")
    if is_split:
        text.append(f"{prefix}_SPLIT_BLOCK = {tiles.split.words}")
    if tiles.chunks:
        names = _chunk_names(tiles, is_split)
        stages = "pipeline stages" if is_split else "chunks a step"
        values = join(["chunk", *(stages if name == "stages" else name for name in names)])
        chunks = (f"{words}: {_chunk_text(tile, names)}" for words, tile in tiles.chunks)
        text += [
            f"# Widths that have chunks of their own, in words -> {values}.",
            f"{prefix}_CHUNKS = {{{join(chunks)}}}",
        ]
    return lines(text)


def _chunk_names(tiles: Tiles, is_split: bool) -> tuple[str, ...]:
    """What stands beside the words of a chunk: fields of ``Tile``."""
    if is_split:
        return "rows", "warps", "stages", "programs"
    return ("warps", "stages") if tiles.unrolls(is_split) else ("warps",)


def _chunk_text(tile: Tile, names: Sequence[str], block: str = "") -> str:
    """A chunk as a tuple; ``block`` stands for its words."""
    return f"({join([block or str(tile.words), *(str(getattr(tile, n)) for n in names)])})"


def _whole_name(tiles: Tiles) -> str:
    """The constant of the widest rows that one tile spans."""
    return "WHOLE_WORDS" if tiles.reloaded else "RESIDENT_WORDS"


def plan_text(plan: OpSchedule, direction: str, tiles: Tiles, is_split: bool) -> str:
    """The lines that choose a plan for rows of ``words`` words, in tiles of ``block`` columns."""
    prefix, chunk = direction.upper(), tiles.split if is_split else tiles.streaming
    boundary = f"{prefix}_{_whole_name(tiles)}"
    is_widest = is_limited(limits(plan, direction, tiles))
    if is_widest:
        boundary = f"min({boundary}, {prefix}_WIDEST[element])"
    name = "split" if is_split else "streaming"
    block, warps = f"{prefix}_{name.upper()}_BLOCK", str(chunk.warps)
    rest = f", {chunk.stages}, {chunk.programs}" if is_split else ""
    names = "rows, warps, stages, programs" if is_split else "rows, warps"
    rows, own = str(chunk.rows), []
    if tiles.chunks:
        given = _chunk_names(tiles, is_split)
        usual = _chunk_text(chunk, given, block)
        own = [f"    {join(['block', *given])} = {prefix}_CHUNKS.get(words, {usual})"]
        block, warps = "block", "warps"
        if is_split:
            rows, rest = "rows", ", stages, programs"
    comment = []
    if is_split:
        block += " * 4 // compute.itemsize"
    else:
        why = "since numbers take two registers and functions many"
        comment = [f"    # float64: a quarter of the columns, {why}."]
        block += " * 16 // compute.itemsize**2"
        if tiles.unrolls(is_split):
            stages = "stages" if tiles.chunks else str(chunk.stages)
            rest = f", {chunks_of_step(stages, *SEVERAL_FIT)}"
            comment.append(
                "    # One chunk a step then, and where no vector fits: registers are short."
            )
        if 32 in (chunk.warps, *(each.warps for _, each in tiles.chunks)):
            most = "128 // compute.itemsize"
            warps = f"min(warps, {most})" if tiles.chunks else most
    text = [
        *["element = itemsize if n_columns % 16 == 0 else 8"]
        * is_by_itemsize(plan, direction, tiles),
        f"if words > {boundary}:",
        *own,
        *comment,
        f'    return Plan("{name}", {rows}, {block}, {warps}{rest})',
        f"{names} = {prefix}_TILES[max(words, {tiles.whole[0].words})]",
    ]
    schedule = '"resident"'
    if tiles.reloaded:
        schedule = "schedule"
        is_reloaded = f"words in {prefix}_RELOADED[element]"
        text.append(f'schedule = "reload" if {is_reloaded} else "resident"')
    text.append(f"return Plan({schedule}, rows, block, {names.removeprefix('rows, ')})")
    return lines(text)


SEVERAL_FIT = ("n_columns % 16 == 0", "compute.itemsize == 4")
"""Where registers hold several chunks: with vectors, and not in float64."""


def chunks_of_step(stages: str, *conditions: str, matrices: Sequence[str] = ()) -> str:
    """How many chunks are a step: one unless all is so, and the rows of ``matrices`` aligned."""
    aligned = [f"_are_aligned({join(matrices)})"] if matrices else []
    return f"{stages} if {' and '.join([*conditions, *aligned])} else 1"


def whole_kernel(prefix: str, tiles: Tiles) -> str:
    """What is launched for whole rows: one kernel, or one of several that was chosen before."""
    return "kernel" if tiles.reloaded else f"{prefix}_resident"


def kernel_choice(prefix: str, tiles: Tiles, is_streamed: bool) -> str:
    """The kernels that take the same arguments, by schedule; nothing where there is only one."""
    names = ["resident"]
    names += ["reload"] if tiles.reloaded else []
    names += ["streaming"] if is_streamed else []
    return lines(f'"{name}": {prefix}_{name},' for name in names) if len(names) > 1 else ""


def grid(kernels: Sequence[Kernel]) -> str:
    """The programs of a direction that sums nothing over rows; a whole row is one tile."""
    tiles = ["triton.cdiv(n_rows, plan.rows)"]
    tiles += ["triton.cdiv(n_columns, plan.block)"] * is_chunked(kernels)
    return tuple_of([" * ".join(tiles)])


class _PassWriter:
    """Writes the op-specific lines of one pass."""

    def __init__(self, plan: OpSchedule, each: Pass, arguments: Sequence[str]) -> None:
        self.plan, self.each = plan, each
        self.spec = plan.row_op.spec
        sources = belongs_to(self.spec)
        self.needs = {
            result.name: f"needs[{list(arguments).index(sources[result.name])}]"
            for result in each.results
        }

    def key(self) -> str:
        """What the launches depend on."""
        upstream = [v for v in read_by(self.each) if v.role is Role.UPSTREAM]
        return join(["needs", *(f"layout({v.name})" for v in upstream)])

    def key_of_saved(self) -> str:
        """What they depend on too where saved tensors may come back as others."""
        saved = [v for v in read_by(self.each) if v.role is not Role.UPSTREAM]
        words = [f"layout({v.name})" for v in saved]
        return join(words)

    def copies(self) -> str:
        """Gradients arrive in any strides."""
        names = [v.name for v in read_by(self.each)]
        text = []
        for variable in self.each.program.variables:
            if variable.role is not Role.UPSTREAM:
                continue
            name = variable.name
            is_given = given(name, variable.absent)
            again = join(["ctx", *(f"_copied({n})" if n == name else n for n in names)])
            text += [
                f"if {is_given}{row_stride(name, variable.type.kind)} is None:",
                f'    calls["{self.each.name}.copied"] += 1',
                f"    return _{self.each.name}({again})",
            ]
        return lines(text)

    def allocations(self) -> str:
        repeated = self.each.program.repeated
        text = []
        for result in self.each.results:
            name = result.name
            empty = self._room(result)
            is_given = f"{source.name} is not None and " if (source := self._like(result)) else ""
            text += [f"{name} = None", f"if {is_given}{self.needs[name]}:"]
            if name not in repeated:
                text.append(f"    {name} = {empty}")
                continue
            first = repeated[name]
            text += [
                f"    # The values of {first}: one tensor serves both where their dtypes agree.",
                f"    is_same = {first} is not None and ctx.{first}_dtype is ctx.{name}_dtype",
                f"    {name} = {first} if is_same else {empty}",
            ]
        return lines(text)

    def _like(self, result: Result) -> Variable | None:
        """The optional input that a gradient is allocated like."""
        source = next(
            (v for v in read_by(self.each) if v.name == belongs_to(self.spec)[result.name]), None
        )
        input_ = self.summed(result.name)
        is_folded = input_ is not None and input_.folds_columns
        return None if source is None or is_folded or not may_lack(self.spec, source) else source

    def _room(self, result: Result) -> str:
        """The allocation of a gradient, like a tensor of its shape if one is read."""
        name, input_ = result.name, self.summed(result.name)
        dtype = f"ctx.{name}_dtype"
        read = {v.name: v for v in read_by(self.each)}
        source = read.get(belongs_to(self.spec)[name])
        is_folded = input_ is not None and input_.folds_columns
        if source is not None and not is_folded:
            return empty_like(source.name)  # given, for it needs a gradient
        matrices = (v.name for v in read.values() if v.fills_matrix and not may_lack(self.spec, v))
        like = next(matrices, None)
        if like is not None and result.kind is Kind.MATRIX:
            return empty_like(like, dtype)
        shape = _SHAPES[result.kind] if input_ is None else _sum_shape(input_)
        if is_folded:
            dtype = "call.compute"
        return f"torch.empty({shape}, dtype={dtype}, device=call.device)"

    def n_sums(self) -> str:
        """How many column sums are wanted."""
        return f"sum([{join(self.needs[name] for name in self.each.column_sums)}])"

    def read_by_plan(self) -> list[Variable]:
        """The tensors that the plan looks at."""
        kernels = [k.program for k in self.each.kernels]
        names = {v.name for program in kernels for v in strided(program)}
        for program in kernels:
            names |= {v.name for v in program.variables if v.sharing and v.sharing.columns}
        if self.each.column_sums:
            names |= {v.name for v in self.each.program.variables if v.fills_matrix}
        return [v for v in read_by(self.each) if v.name in names]

    def steps(self, stages: str, *conditions: str) -> str:
        """The chunks of a step, which depend on the strides of the matrices too."""
        matrices = [v.name for v in self.read_by_plan() if v.type.kind is Kind.MATRIX]
        return chunks_of_step(stages, *conditions, matrices=matrices)

    def summed(self, gradient: str) -> Input | None:
        """The input whose gradient is a sum, if this is the gradient of one."""
        source = belongs_to(self.spec)[gradient]
        inputs = (i for i in self.spec.inputs if i.name == source and i.is_summed)
        return next(inputs, None) if gradient in self.each.column_sums else None

    def folds(self) -> list[str]:
        """The sums over columns that share an entry, from the sums of every column."""
        text = []
        for name in self.each.column_sums:
            if self._is_folded(name):
                text += [f"if {name} is not None:", f"    {name} = {self._folded(name, name)}"]
        return text

    def zeros(self, name: str) -> str:
        """A sum over no rows."""
        zero = f"{name}.zero_()"
        value = self._folded(name, zero) if self._is_folded(name) else zero
        return f"{value} if {name} is not None else None"

    def _is_folded(self, name: str) -> bool:
        input_ = self.summed(name)
        return input_ is not None and input_.folds_columns

    def _folded(self, name: str, sums: str) -> str:
        source = belongs_to(self.spec)[name]
        return f"_folded({sums}, ctx.{source}_shape, ctx.{name}_dtype)"

    def groups(self) -> str:
        """The lines that divide the groups of rows among the parts of the matrix."""
        if self.each.partition is None:
            return ""
        parts, rows = "n_batches", "n_places"
        if self.each.partition is Kind.PER_PLACE:
            parts, rows = rows, parts
        return lines(
            [
                f"n_splits = max(1, min(n_groups // {parts}, triton.cdiv({rows}, plan.rows)))",
                f"n_groups = {parts} * n_splits",
            ]
        )

    def whole_sums(self) -> list[str]:
        """The column sums over all rows."""
        return [n for n in self.each.column_sums if n not in self.each.partial_sums]

    def sum_launches(self) -> str:
        """The launches of the kernel that adds up the groups' sums: of all groups, and by part."""
        parts = "n_places" if self.each.partition is Kind.PER_PLACE else "n_batches"
        text = []
        if self.whole_sums():
            text += self._sum_launch("all_sums", self.whole_sums(), "1", "n_groups")
        if self.each.partial_sums:
            text += self._sum_launch("part_sums", self.each.partial_sums, parts, "n_splits")
        return lines(text)

    def _sum_launch(self, target: str, names: Sequence[str], parts: str, groups: str) -> list[str]:
        wanted = "n_sums"
        if len(names) < len(self.each.column_sums):
            wanted = " or ".join(self.needs[name] for name in names)
            wanted = f"({wanted})" if " or " in wanted else wanted
        tile = "triton.cdiv(n_columns, sum_block)"
        # There may be more parts than the second axis of a grid can have programs.
        axes = [tile] if self.each.partition is None else [parts, tile]
        if len(self.each.column_sums) > 1:
            axes.append(str(len(self.each.column_sums)))
        grid = tuple_of(axes) if len(axes) == 1 else f"({join(axes)})"
        return [
            f"{target} = None",
            f"if {groups} > 1 and {wanted}:",
            f"    {target} = Launch(",
            f"        {self.plan.sum_groups(self.each)},",
            f"        {grid},",
            "        device,",
            f"        {groups},",
            "        n_columns,",
            "        COMPUTE=TRITON_DTYPES[compute],",
            "        GROUPS=sum_groups,",
            "        BLOCK=sum_block,",
            "        num_warps=8,",
            "    )",
        ]

    def launches_of_sums(self) -> str:
        """What the plan says of the column sums, one a line."""
        words = ["n_sums", "n_groups"]
        text = [
            *["sums=all_sums,"] * bool(self.whole_sums()),
            *(f"{word}={word}," for word in words),
            "partial=torch.empty((), dtype=compute, device=device).expand(n_groups, n_columns),",
        ]
        if self.each.partial_sums:
            text += ["part_sums=part_sums,", "n_splits=n_splits,"]
        return lines(text)

    def launches(self) -> str:
        """The lines of the function that launches: scratch, the kernels, what is left to add."""
        if not self.each.column_sums:
            return _start("main", self._kernel("resident"))
        return lines([*self._partials(), *self._main(), *self._sums(), *self.folds()])

    def _kernel(self, suffix: str) -> Kernel:
        kernel = self.plan.kernel(f"{self.each.name}_{suffix}")
        assert kernel is not None
        return kernel

    def _partials(self) -> list[str]:
        """Room for the groups' sums; where there is one group, they are the sums themselves."""
        text = []
        for name in self.each.column_sums:
            count = "n_splits" if name in self.each.partial_sums else "n_groups"
            text += [
                f"{name}_partial = {name}",
                f"if {name} is not None and launches.{count} > 1:",
                f"    {name}_partial = {empty_like('launches.partial')}",
            ]
        return text

    def _main(self) -> list[str]:
        resident, split = self._kernel("resident"), self._kernel("split_columns")
        rows = self.plan.kernel(f"{self.each.name}_split_rows")
        if rows is None and kernel_tensors(resident) == kernel_tensors(split):
            return [_start("main", resident)]
        text = []
        if rows is not None:
            text += [
                *(f"{name} = None" for name in self.each.statistics),
                f"if launches.rows is not None{self._is_wanted()}:",
                *(
                    f"    {name} = torch.empty(call.n_rows, dtype=call.compute, device=call.device)"
                    for name in self.each.statistics
                ),
                f"    {_start('rows', rows)}",
            ]
        return [
            *text,
            f'if launches.path != "{self.each.name}.split":',
            f"    {_start('main', resident)}",
            "else:",
            f"    {_start('main', split)}",
        ]

    def _is_wanted(self) -> str:
        """Where nobody wants what the statistics are for, the first kernel is not launched."""
        wanted = self.each.statistics_for
        return "" if wanted is None else f" and {wanted} is not None"

    def _sums(self) -> list[str]:
        text = []
        for target, names in (("sums", self.whole_sums()), ("part_sums", self.each.partial_sums)):
            if names:
                shown = [n if n in names else None for n in self.each.column_sums]
                partials = (f"{n}_partial" if n else "None" for n in shown)
                tensors = join([*partials, *(n or "None" for n in shown)])
                text += [
                    f"if launches.{target} is not None:",
                    f"    launches.{target}(({tensors}))",
                ]
        text += [
            "if launches.n_sums:",
            f'    calls["{self.each.name}.column_sums"] += 1',
        ]
        return text

    def column_bytes(self) -> str:
        """The sizes of the matrices that a kernel with column sums reads."""
        if not self.each.column_sums:
            return ""
        sizes = []
        for variable in self.each.program.variables:
            name = variable.name
            if not variable.fills_matrix:
                continue
            sizes.append(
                f"(0 if {name} is None else {name}.itemsize)"
                if may_lack(self.spec, variable)
                else f"{name}.itemsize"
            )
        total = " + ".join(sizes) or "1"
        return (
            f"max(1, {total})" if all(size.startswith("(") for size in sizes) and sizes else total
        )

    def numbers_of(self, suffix: str) -> str:
        kernel = self.plan.kernel(f"{self.each.name}_{suffix}")
        return "" if kernel is None else kernel_numbers(kernel)

    def split_rows(self, tile: Tile) -> str:
        """The launch of the split's first kernel, where something needs it."""
        kernel = self.plan.kernel(f"{self.each.name}_split_rows")
        if kernel is None:
            return ""
        return lines(
            [
                "rows = Launch(",
                f"    {kernel.name},",
                "    (n_rows,),",
                "    device,",
                *(f"    {line}" for line in kernel_numbers(kernel).splitlines()),
                "    COMPUTE=TRITON_DTYPES[compute],",
                "    ROWS=1,",
                f"    BLOCK={self.each.name.upper()}_STREAMING_BLOCK * 2 // call.itemsize,",
                *[f"    STAGES={self.steps(str(tile.stages), *SEVERAL_FIT)},"] * kernel.unrolls,
                f"    num_warps={tile.warps},",
                ")",
            ]
        )


def _start(target: str, kernel: Kernel) -> str:
    """One of the planned launches, with its tensors and params."""
    return f"launches.{target}(({kernel_tensors(kernel)}){kernel_params(kernel, 'ctx.')})"


def _sum_shape(input_: Input) -> str:
    """The shape of the sums of every column that the gradient of an input is made of."""
    return _SUM_SHAPES.get(input_.kind, "call.n_columns")
