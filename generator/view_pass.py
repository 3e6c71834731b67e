"""The schedule of a backward, first or double -> the view of the function that launches it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kgen.ir import Role, Variable
from kgen.schedule import Kernel, OpSchedule, Pass
from kgen.spec import Element, Input, Kind, Spec, gradient_name, second_gradient_name
from kgen.tiles import Tile, Tiles
from kgen.view import extents, pointers, strided
from kgen.view_words import given, join, lines, row_stride, tensor_type, tuple_of

_SHAPES = {Kind.MATRIX: "ctx.shape", Kind.PER_ROW: "ctx.shape[:-1]", Kind.PER_COLUMN: "n_columns"}
_SUM_SHAPES = {
    Kind.PER_BATCH: "ctx.shape[:-2] + ctx.shape[-1:]",
    Kind.PER_PLACE: "ctx.shape[-2:]",
}
_PARTIAL = "(n_groups, n_columns), dtype=compute, device=device"


@dataclass(frozen=True, slots=True)
class PassView:
    """The function that launches a backward's kernels, its plan and its constants."""

    name: str
    constant: str
    constants: str
    tiles: str
    tiles_doc: str
    plan: str
    sums: tuple[str, ...]
    parameters: str
    layouts: str
    allocations: str
    empty: str
    gradients: str
    n_sums: str
    column_bytes: str
    partials: str
    whole_kernel: str
    whole_kernels: str
    resident_arguments: str
    split_rows: str
    split_columns_arguments: str
    groups: str
    sum_launches: str
    folds: str


def pass_view(plan: OpSchedule, each: Pass, tiles: Tiles, arguments: Sequence[str]) -> PassView:
    """The view of one pass; ``arguments`` are those that its gradients are for, by position."""
    writer = _PassWriter(plan, each)
    sums = each.column_sums
    names = [result.name for result in each.program.results]
    return PassView(
        name=each.name,
        constant=each.name.upper(),
        constants=plan_constants(each.name, tiles, bool(sums)),
        tiles=tiles_text(tiles.whole, bool(sums)),
        tiles_doc=", pipeline stages, programs a processor" if sums else "",
        plan=plan_text(each.name, tiles, bool(sums)),
        sums=sums,
        parameters=tensor_parameters(plan.row_op.spec, read_by(each)),
        layouts=writer.layouts(),
        allocations=writer.allocations(arguments),
        empty=tuple_of([writer.zeros(name) if name in sums else name for name in names]),
        gradients=tuple_of(names),
        n_sums=f"sum(total is not None for total in [{join(sums)}])",
        column_bytes=writer.column_bytes(),
        partials=writer.partials(),
        whole_kernel=whole_kernel(f"{plan.row_op.spec.op}_{each.name}", tiles),
        whole_kernels=kernel_choice(f"{plan.row_op.spec.op}_{each.name}", tiles, not sums),
        resident_arguments=writer.arguments_of("resident"),
        split_rows=writer.split_rows(tiles.streaming),
        split_columns_arguments=writer.arguments_of("split_columns"),
        groups=writer.groups(),
        sum_launches=writer.sum_launches() if sums else "",
        folds=writer.folds(),
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


def may_lack(spec: Spec, variable: Variable) -> bool:
    """Whether a tensor is None for an absent optional input, or for a gradient nobody gives."""
    optional = {i.name for i in spec.inputs if i.absent is not None}
    return variable.name in optional or variable.absent is not None


def tensor_parameters(spec: Spec, variables: Sequence[Variable]) -> str:
    """Tensors as parameters of a function, one a line."""
    return lines(f"{v.name}: {tensor_type(may_lack(spec, v))}," for v in variables)


def kernel_arguments(kernel: Kernel, prefix: str = "") -> str:
    """What a kernel is launched with, one a line; ``prefix`` stands before the params.

    A gradient that is the same tensor as one before it is stored once.
    """
    repeated = kernel.program.repeated
    params = [v for v in kernel.program.variables if v.role is Role.PARAM]
    runtime = [v for v in params if v.type.element is not Element.BOOL]
    flags = [v for v in params if v.type.element is Element.BOOL]
    return lines(
        [
            *(
                (
                    f"None if {name} is {repeated[name]} else {name},"
                    if name in repeated
                    else f"{name},"
                )
                for name in pointers(kernel)
            ),
            *(f"{row_stride(v.name, v.type.kind)}," for v in strided(kernel.program)),
            *(f"{_extent(word, kernel)}," for word in extents(kernel)),
            *(f"{prefix}{v.name}," for v in runtime),
            *(f"{v.name.upper()}={prefix}{v.name}," for v in flags),
        ]
    )


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


def plan_constants(direction: str, tiles: Tiles, is_split: bool) -> str:
    """The boundaries between the schedules of a direction, and the widths of its chunks."""
    prefix = direction.upper()
    text = [f"{prefix}_RESIDENT_WORDS = {tiles.resident_words}"]
    if tiles.reloads:
        text.append(f"{prefix}_RELOAD_WORDS = {tiles.whole_words}")
    text.append(f"{prefix}_STREAMING_BLOCK = {tiles.streaming.words}")
    if is_split:
        text.append(f"{prefix}_SPLIT_BLOCK = {tiles.split.words}")
    return lines(text)


def plan_text(direction: str, tiles: Tiles, is_split: bool) -> str:
    """The lines that choose a plan for rows of ``words`` words, in tiles of ``block`` columns."""
    prefix, chunk = direction.upper(), tiles.split if is_split else tiles.streaming
    boundary = f"{prefix}_{'RELOAD' if tiles.reloads else 'RESIDENT'}_WORDS"
    name = "split" if is_split else "streaming"
    block = f"{prefix}_{name.upper()}_BLOCK * 4 // compute.itemsize"
    rest = f", {chunk.stages}, {chunk.programs}" if is_split else ""
    names = "rows, warps, stages, programs" if is_split else "rows, warps"
    text = [
        f"if words > {boundary}:",
        f'    return Plan("{name}", {chunk.rows}, {block}, {chunk.warps}{rest})',
        f"{names} = {prefix}_TILES[max(words, {tiles.whole[0].words})]",
    ]
    schedule = '"resident"'
    if tiles.reloads:
        schedule = "schedule"
        is_resident = f"words <= {prefix}_RESIDENT_WORDS"
        text.append(f'schedule = "resident" if {is_resident} else "reload"')
    text.append(f"return Plan({schedule}, rows, block, {names.removeprefix('rows, ')})")
    return lines(text)


def whole_kernel(prefix: str, tiles: Tiles) -> str:
    """What is launched for whole rows: one kernel, or one of several that was chosen before."""
    return "kernel" if tiles.reloads else f"{prefix}_resident"


def kernel_choice(prefix: str, tiles: Tiles, is_streamed: bool) -> str:
    """The kernels that take the same arguments, by schedule; nothing where there is only one."""
    names = ["resident"]
    names += ["reload"] if tiles.reloads else []
    names += ["streaming"] if is_streamed else []
    return lines(f'"{name}": {prefix}_{name},' for name in names) if len(names) > 1 else ""


class _PassWriter:
    """Writes the op-specific lines of one pass."""

    def __init__(self, plan: OpSchedule, each: Pass) -> None:
        self.plan, self.each = plan, each
        self.spec = plan.row_op.spec

    def layouts(self) -> str:
        """Gradients arrive in any strides."""
        text = []
        for variable in self.each.program.variables:
            if variable.role is not Role.UPSTREAM:
                continue
            name = variable.name
            is_given = given(name, variable.absent)
            text += [
                f"if {is_given}{row_stride(name, variable.type.kind)} is None:",
                f'    calls["{self.each.name}.copied"] += 1',
                f"    {name} = _copied({name})",
            ]
        return lines(text)

    def allocations(self, arguments: Sequence[str]) -> str:
        sources, repeated = belongs_to(self.spec), self.each.program.repeated
        text = []
        for result in self.each.program.results:
            name, index = result.name, list(arguments).index(sources[result.name])
            input_ = self.summed(name)
            shape = _SHAPES[result.kind] if input_ is None else _sum_shape(input_)
            is_folded = input_ is not None and input_.folds_columns
            dtype = "compute" if is_folded else f"ctx.{name}_dtype"
            empty = f"torch.empty({shape}, dtype={dtype}, device=device)"
            text += [f"{name} = None", f"if ctx.needs_input_grad[{index}]:"]
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

    def summed(self, gradient: str) -> Input | None:
        """The input whose gradient is a sum, if this is the gradient of one."""
        source = belongs_to(self.spec)[gradient]
        inputs = (i for i in self.spec.inputs if i.name == source and i.is_summed)
        return next(inputs, None) if gradient in self.each.column_sums else None

    def folds(self) -> str:
        """The sums over columns that share an entry, from the sums of every column."""
        text = []
        for name in self.each.column_sums:
            if self._is_folded(name):
                text += [f"if {name} is not None:", f"    {name} = {self._folded(name, name)}"]
        return lines(text)

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

    def sum_launches(self) -> str:
        """The launches of the kernel that adds up the groups' sums: of all groups, and by part."""
        whole = [n for n in self.each.column_sums if n not in self.each.partial_sums]
        parts = "n_places" if self.each.partition is Kind.PER_PLACE else "n_batches"
        text = []
        if whole:
            text += self._sum_launch(whole, "1", "n_groups")
        if self.each.partial_sums:
            text += self._sum_launch(self.each.partial_sums, parts, "n_splits")
        if self.each.partial_sums:
            text.append("if n_sums:")
        text.append(f'    calls["{self.each.name}.column_sums"] += 1')
        return lines(text)

    def _sum_launch(self, names: Sequence[str], parts: str, groups: str) -> list[str]:
        sums = self.each.column_sums
        condition = "n_sums"
        if len(names) < len(sums):
            condition = " or ".join(f"{name} is not None" for name in names)
        if set(names) & set(self.each.partial_sums):
            condition = f"({condition})" if " or " in condition else condition
            condition = f"n_splits > 1 and {condition}"
        shown = [name in names for name in sums]
        tile = "triton.cdiv(n_columns, SUM_BLOCK)"
        # There may be more parts than the second axis of a grid can have programs.
        grid = f"{tile}," if self.each.partition is None else f"{parts}, {tile}"
        return [
            f"if {condition}:",
            f"    {self.plan.sum_groups(self.each)}[({grid})](",
            *(
                f"        {f'{n}_partial' if is_shown else 'None'},"
                for n, is_shown in zip(sums, shown, strict=True)
            ),
            *(
                f"        {n if is_shown else 'None'},"
                for n, is_shown in zip(sums, shown, strict=True)
            ),
            f"        {groups},",
            "        n_columns,",
            "        COMPUTE=TRITON_DTYPES[compute],",
            "        GROUPS=SUM_GROUPS,",
            "        BLOCK=SUM_BLOCK,",
            "    )",
        ]

    def partials(self) -> str:
        return lines(
            line
            for name in self.each.column_sums
            for line in (
                f"{name}_partial = None",
                f"if {name} is not None:",
                f"    {name}_partial = {self._partial(name)}",
            )
        )

    def _partial(self, name: str) -> str:
        """Room for the groups' sums; where a part is one group, they are the sums themselves."""
        empty = f"torch.empty({_PARTIAL})"
        return f"{name} if n_splits == 1 else {empty}" if name in self.each.partial_sums else empty

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

    def arguments_of(self, suffix: str) -> str:
        kernel = self.plan.kernel(f"{self.each.name}_{suffix}")
        return "" if kernel is None else kernel_arguments(kernel, "ctx.")

    def split_rows(self, tile: Tile) -> str:
        """The launch of the split's first kernel, where something needs it."""
        kernel = self.plan.kernel(f"{self.each.name}_split_rows")
        if kernel is None:
            return ""
        allocations = [
            f"{name} = torch.empty(n_rows, dtype=compute, device=device)"
            for name in self.each.statistics
        ]
        launch = [
            f"{kernel.name}[(n_rows,)](",
            kernel_arguments(kernel, "ctx."),
            "COMPUTE=TRITON_DTYPES[compute],",
            "ROWS=1,",
            f"BLOCK={self.each.name.upper()}_STREAMING_BLOCK * 4 // compute.itemsize,",
            f"num_warps={tile.warps},",
            ")",
        ]
        text = [*allocations, *launch]
        if self.each.statistics_for is None:
            return lines(text)
        # Where nobody wants what they are for, the first kernel is not launched.
        absent = [f"{name} = None" for name in self.each.statistics]
        inside = lines(f"    {line}" for part in text for line in part.splitlines())
        return lines([*absent, f"if {self.each.statistics_for} is not None:", inside])


def _sum_shape(input_: Input) -> str:
    """The shape of the sums of every column that the gradient of an input is made of."""
    return _SUM_SHAPES.get(input_.kind, "n_columns")
