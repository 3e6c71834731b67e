"""Schedules -> the views of ``op.py`` and ``__init__.py``: the wrapper's op-specific lines."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from kgen.ir import Role, Variable
from kgen.lower import differentiable_inputs, differentiable_outputs
from kgen.schedule import Kernel, OpSchedule, Tile, tile_rule
from kgen.spec import Element, Input, Kind, Output, Param, Spec
from kgen.view import header, pointers, strided

_DTYPE_LISTS = {Element.FLOAT: "FLOATS", Element.INT: "INTS", Element.BOOL: "BOOLS"}
_SHAPES = {Kind.MATRIX: ".shape", Kind.PER_ROW: ".shape[:-1]", Kind.PER_COLUMN: ".shape[-1:]"}
_SHAPE_DOCS = {Kind.MATRIX: "(..., N)", Kind.PER_ROW: "(...)", Kind.PER_COLUMN: "(N,)"}
_INT64 = 2**63
_PARTIAL = "(n_groups, n_columns), dtype=compute, device=device"
_LAYOUTS = {
    Kind.MATRIX: "its rows must be evenly spaced and its columns adjacent",
    Kind.PER_ROW: "its values must be evenly spaced",
    Kind.PER_COLUMN: "its values must be adjacent",
}


@dataclass(frozen=True, slots=True)
class ModuleView:
    """The ``torch.nn.Module`` around an op."""

    name: str
    holds: str
    parameters: str
    body: str
    inputs: str
    arguments: str
    representation: str


@dataclass(frozen=True, slots=True)
class OpView:
    """The file ``op.py``."""

    header: str
    op: str
    class_name: str
    summary: str
    source: str
    standard_imports: str
    uses_functional: bool
    kernel_names: tuple[str, ...]
    dtypes: str
    has_int: bool
    has_bool: bool
    has_companions: bool
    has_float_param: bool
    has_int_param: bool
    has_bool_param: bool
    max_columns: int
    scratch_mib: int
    sums: tuple[str, ...]
    backward: bool
    forward_resident: int
    backward_resident: int
    streaming_block: int
    streaming_warps: int
    split_block: int
    narrowest: int
    forward_tiles: str
    backward_tiles: str
    backward_tiles_doc: str
    backward_long_plan: str
    backward_resident_plan: str
    first: str
    returns: str
    parameters: str
    reference_parameters: str
    reference: str
    argument_docs: str
    return_docs: str
    checks: str
    inputs: str
    arguments: str
    float_inputs: str
    copies: str
    reference_call: str
    runtime_error: str
    problem_parameters: str
    layouts: str
    outputs: str
    forward_results: str
    outputs_alone: str
    forward_returns: str
    save_false: str
    save_parameter: str
    save_doc: str
    launch_parameters: str
    forward_allocations: str
    forward_arguments: str
    saved_tensors: str
    context: str
    upstream_parameters: str
    backward_call: str
    backward_parameters: str
    upstream_layouts: str
    gradient_allocations: str
    empty_gradients: str
    gradients: str
    n_sums: str
    column_bytes: str
    partials: str
    split_rows: str
    resident_arguments: str
    split_columns_arguments: str
    sum_arguments: str
    module: ModuleView | None


@dataclass(frozen=True, slots=True)
class InitView:
    """The file ``__init__.py``."""

    header: str
    summary: str
    exports: tuple[str, ...]
    all_exports: str


def init_view(plan: OpSchedule) -> InitView:
    """What the package offers."""
    spec = plan.row_op.spec
    names = [spec.op, f"{spec.op}_reference", "calls", *([spec.module] if spec.module else [])]
    ordered = tuple(sorted(names, key=lambda name: (not name[0].isupper(), name)))
    quoted = ", ".join(f'"{name}"' for name in ordered)
    return InitView(header(spec), spec.summary, ordered, quoted)


def op_view(plan: OpSchedule) -> OpView:
    """Every op-specific line of the wrapper."""
    spec = plan.row_op.spec
    writer = _Wrapper(plan)
    rule = tile_rule(plan)
    has = {p.element for p in spec.params}
    elements = {i.element for i in spec.inputs}
    sums = plan.column_sums
    return OpView(
        header=header(spec),
        op=spec.op,
        class_name=spec.module or "".join(part.capitalize() for part in spec.op.split("_")),
        summary=_sentence(spec.summary),
        source=spec.source,
        standard_imports=writer.standard_imports(),
        uses_functional=bool(re.search(r"\bF\.", spec.reference)),
        kernel_names=writer.kernel_names(),
        dtypes=", ".join(f"torch.{dtype}" for dtype in spec.dtypes),
        has_int=Element.INT in elements,
        has_bool=Element.BOOL in elements,
        has_companions=len(spec.inputs) > 1,
        has_float_param=Element.FLOAT in has,
        has_int_param=Element.INT in has,
        has_bool_param=Element.BOOL in has,
        max_columns=spec.limits.max_columns,
        scratch_mib=spec.limits.scratch_mib,
        sums=sums,
        backward=plan.row_op.backward is not None,
        forward_resident=rule.forward[-1].words,
        backward_resident=rule.backward[-1].words if rule.backward else 0,
        streaming_block=rule.streaming.words,
        streaming_warps=rule.streaming.warps,
        split_block=rule.split.words,
        narrowest=rule.forward[0].words,
        forward_tiles=_tiles(rule.forward, False),
        backward_tiles=_tiles(rule.backward, bool(sums)),
        backward_tiles_doc=", pipeline stages, programs a processor" if sums else "",
        backward_long_plan=writer.long_plan(rule.split, rule.streaming),
        backward_resident_plan=writer.resident_plan(rule.backward),
        first=writer.first,
        returns=writer.returns(),
        parameters=writer.parameters(),
        reference_parameters=writer.reference_parameters(),
        reference=spec.reference.strip("\n"),
        argument_docs=writer.argument_docs(),
        return_docs=writer.return_docs(),
        checks=writer.checks(),
        inputs=_join(i.name for i in spec.inputs),
        arguments=writer.arguments(),
        float_inputs=_join(i.name for i in writer.floats),
        copies=writer.copies(),
        reference_call=writer.reference_call(),
        runtime_error=(
            "when differentiated twice, or in forward mode"
            if writer.has_backward
            else "for an input that requires a gradient"
        ),
        problem_parameters=_lines(f"{_annotated(i)}," for i in spec.inputs),
        layouts=writer.layouts(),
        outputs=_join(o.name for o in spec.outputs),
        forward_results=writer.forward_results(),
        outputs_alone=writer.outputs_alone(),
        forward_returns=writer.forward_returns(),
        save_false=", save=False" if writer.has_backward else "",
        save_parameter="save: bool," if writer.has_backward else "",
        save_doc="; with ``save``, keeps what backward needs" if writer.has_backward else "",
        launch_parameters=writer.launch_parameters(),
        forward_allocations=writer.forward_allocations(),
        forward_arguments=writer.kernel_arguments(plan.forward[0]),
        saved_tensors=_join(writer.saved_tensors),
        context=writer.context(),
        upstream_parameters=writer.upstream_parameters(),
        backward_call=writer.backward_call(),
        backward_parameters=writer.backward_parameters(),
        upstream_layouts=writer.upstream_layouts(),
        gradient_allocations=writer.gradient_allocations(),
        empty_gradients=writer.empty_gradients(),
        gradients=writer.gradient_tuple(),
        n_sums=f"sum(total is not None for total in [{_join(sums)}])",
        column_bytes=writer.column_bytes(),
        partials=_lines(
            line
            for name in sums
            for line in (
                f"{name}_partial = None",
                f"if {name} is not None:",
                f"    {name}_partial = torch.empty({_PARTIAL})",
            )
        ),
        split_rows=writer.split_rows(rule.streaming),
        resident_arguments=writer.arguments_of("backward_resident"),
        split_columns_arguments=writer.arguments_of("backward_split_columns"),
        sum_arguments=_lines([*(f"{n}_partial," for n in sums), *(f"{n}," for n in sums)]),
        module=writer.module(),
    )


class _Wrapper:
    """Writes the op-specific lines from a schedule."""

    def __init__(self, plan: OpSchedule) -> None:
        self.plan = plan
        self.spec: Spec = plan.row_op.spec
        self.first = self.spec.inputs[0].name
        self.floats = [i for i in self.spec.inputs if i.element is Element.FLOAT]
        backward = plan.row_op.backward
        self.has_backward = backward is not None
        variables = backward.variables if backward else ()
        kept = (Role.INPUT, Role.SAVED, Role.OUTPUT)
        self.saved_variables = [v for v in variables if v.role in kept]
        forward = plan.row_op.forward
        tensors = {r.name: r.tensor for r in forward.results if r.role is Role.SAVED}
        self.saved_names = list(tensors.values())
        self.saved_tensors = [tensors.get(v.name, v.name) for v in self.saved_variables]
        self.backward_params = [v for v in variables if v.role is Role.PARAM]
        self.gradient_inputs = differentiable_inputs(self.spec) if backward else ()
        self.gradients = [f"d{i.name}" for i in self.gradient_inputs]

    # --- the file

    def standard_imports(self) -> str:
        lines = ["from collections import Counter"]
        lines.append("from contextlib import AbstractContextManager, nullcontext")
        if self.plan.column_sums:
            lines.append("from functools import cache")
        lines.append("from typing import Any, Literal, NamedTuple")
        if any(p.element is Element.FLOAT for p in self.spec.params):
            lines.insert(0, "import sys")
        if re.search(r"\bmath\.", self.spec.reference + self.checks()):
            lines.insert(0, "import math")
        return _lines(lines)

    def kernel_names(self) -> tuple[str, ...]:
        names = [k.name for k in self.plan.kernels]
        if self.plan.column_sums:
            names.append(f"{self.spec.op}_sum_groups")
        return tuple(sorted(names))

    def resident_plan(self, tiles: tuple[Tile, ...]) -> str:
        if not tiles:
            return ""
        names = "rows, warps, stages, programs" if self.plan.column_sums else "rows, warps"
        rest = names.removeprefix("rows, ")
        lookup = f"{names} = BACKWARD_TILES[max(words, {tiles[0].words})]"
        return f'{lookup}\nreturn Plan("resident", rows, block, {rest})'

    def long_plan(self, split: Tile, streaming: Tile) -> str:
        if self.plan.column_sums:
            rest = f"{split.warps}, {split.stages}, {split.programs}"
            return f'Plan("split", {split.rows}, SPLIT_BLOCK, {rest})'
        return f'Plan("streaming", {streaming.rows}, STREAMING_BLOCK, {streaming.warps})'

    # --- the public function

    def returns(self) -> str:
        outputs = self.spec.outputs
        if len(outputs) == 1:
            return "torch.Tensor"
        return f"tuple[{', '.join(['torch.Tensor'] * len(outputs))}]"

    def parameters(self) -> str:
        tensors = [f"{_annotated(i, default=True)}," for i in self.spec.inputs]
        params = [f"{_annotated_param(p)}," for p in self.spec.params]
        return _lines([*tensors, "*,", *params])

    def reference_parameters(self) -> str:
        tensors = [f"{_annotated(i, default=True)}," for i in self.spec.inputs]
        return _lines([*tensors, *(f"{_annotated_param(p)}," for p in self.spec.params)])

    def launch_parameters(self) -> str:
        tensors = [f"{_annotated(i)}," for i in self.spec.inputs]
        return _lines([*tensors, *(f"{p.name}: {p.element.value}," for p in self.spec.params)])

    def arguments(self) -> str:
        return _join([*(i.name for i in self.spec.inputs), *(p.name for p in self.spec.params)])

    def argument_docs(self) -> str:
        lines = []
        for input_ in self.spec.inputs:
            element = f", {self._dtype_docs(input_.element)}"
            absent = (
                "" if input_.absent is None else f", optional: {input_.absent:g} when not given"
            )
            lines.append(f"{input_.name}: {_SHAPE_DOCS[input_.kind]}{element}{absent}.")
        lines += [f"{p.name}: {_takes(p)}." for p in self.spec.params]
        return _lines(lines)

    def _dtype_docs(self, element: Element) -> str:
        dtypes = {Element.INT: ("int32", "int64"), Element.BOOL: ("bool",)}
        names = dtypes.get(element, self.spec.dtypes)
        return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"

    def return_docs(self) -> str:
        inputs = {i.name for i in self.spec.inputs}
        lines = []
        for output in self.spec.outputs:
            dtype = f"the dtype of {output.dtype}" if output.dtype in inputs else output.dtype
            kind = self.plan.row_op.output_kind(output)
            lines.append(f"{output.name}: {_SHAPE_DOCS[kind]}, {dtype}.")
        return _lines(lines)

    def checks(self) -> str:
        op, first = self.spec.op, self.first
        lines = [
            f'_check_tensor("{first}", {first}, FLOATS)',
            f"if {first}.dim() == 0 or {first}.shape[-1] == 0:",
            f"    shape = tuple({first}.shape)",
            '    takes = "(..., N) with N of at least 1"',
            f'    raise ValueError(f"{op}: {first} has shape {{shape}}; it takes {{takes}}")',
        ]
        for input_ in self.spec.inputs[1:]:
            name = input_.name
            shape = f"{first}{_SHAPES[input_.kind]}"
            checks = [
                f'_check_tensor("{name}", {name}, {_DTYPE_LISTS[input_.element]})',
                f'_check_companion("{name}", {name}, {shape}, {first})',
            ]
            if input_.absent is None:
                lines += checks
            else:
                lines += [f"if {name} is not None:", *(f"    {check}" for check in checks)]
        lines += [_param_check(p) for p in self.spec.params]
        return _lines(lines)

    def copies(self) -> str:
        lines = []
        for input_ in self.spec.inputs:
            name = input_.name
            given = _given(name, input_.absent)
            lines += [
                f"if {given}{_stride_text(name, input_.kind)} is None:",
                f"    {name} = _copied({name})",
            ]
        return _lines(lines)

    def reference_call(self) -> str:
        """The reference, in the dtypes that the kernels would have given."""
        outputs = self.spec.outputs
        call = f"{self.spec.op}_reference({self.arguments()})"
        if len(outputs) == 1:
            return f"return {call}.to({self._dtype(outputs[0])})"
        names = _join(o.name for o in outputs)
        return (
            f"{names} = {call}\nreturn {_join(f'{o.name}.to({self._dtype(o)})' for o in outputs)}"
        )

    def _dtype(self, output: Output) -> str:
        is_input = any(i.name == output.dtype for i in self.spec.inputs)
        return f"{output.dtype}.dtype" if is_input else f"torch.{output.dtype}"

    def layouts(self) -> str:
        return _lines(
            f'("{i.name}", {i.name}, {i.kind is not Kind.PER_ROW}, "{_LAYOUTS[i.kind]}"),'
            for i in self.spec.inputs
        )

    # --- forward

    def forward_results(self) -> str:
        names = [*(o.name for o in self.spec.outputs), *self.saved_names]
        return f"{names[0]}," if len(names) == 1 else _join(names)

    def outputs_alone(self) -> str:
        """The targets of a forward without gradients, where nothing is saved."""
        if not self.saved_names:
            return self.forward_results()
        return _join([*(o.name for o in self.spec.outputs), "*_"])

    def forward_returns(self) -> str:
        outputs = ["torch.Tensor"] * len(self.spec.outputs)
        saved = ["torch.Tensor | None"] * len(self.saved_names)
        return f"tuple[{', '.join(outputs + saved)}]"

    def forward_allocations(self) -> str:
        lines = [self._output_allocation(output) for output in self.spec.outputs]
        for name in self.saved_names:
            empty = f"torch.empty(n_rows, dtype=compute, device={self.first}.device)"
            lines.append(f"{name} = {empty} if save else None")
        return _lines(lines)

    def _output_allocation(self, output: Output) -> str:
        kind = self.plan.row_op.output_kind(output)
        shape = f"{self.first}{_SHAPES[kind]}"
        rest = f"dtype={self._dtype(output)}, device={self.first}.device"
        return f"{output.name} = torch.empty({shape}, {rest})"

    def arguments_of(self, suffix: str) -> str:
        kernel = self.plan.kernel(suffix)
        return "" if kernel is None else self.kernel_arguments(kernel)

    def kernel_arguments(self, kernel: Kernel) -> str:
        params = [v for v in kernel.program.variables if v.role is Role.PARAM]
        of_ctx = "backward" in kernel.name
        runtime = [v for v in params if v.type.element is not Element.BOOL]
        flags = [v for v in params if v.type.element is Element.BOOL]
        prefix = "ctx." if of_ctx else ""
        return _lines(
            [
                *(f"{name}," for name in pointers(kernel)),
                *(f"{_stride_text(v.name, v.type.kind)}," for v in strided(kernel.program)),
                "n_rows,",
                "n_columns,",
                *(f"{prefix}{v.name}," for v in runtime),
                *(f"{v.name.upper()}={prefix}{v.name}," for v in flags),
            ]
        )

    # --- autograd

    def context(self) -> str:
        first = self.first
        dtypes = [
            (
                f"{i.name}.dtype"
                if i.absent is None
                else f"None if {i.name} is None else {i.name}.dtype"
            )
            for i in self.gradient_inputs
        ]
        names = [f"ctx.d{i.name}_dtype" for i in self.gradient_inputs]
        lines = [f"ctx.shape, ctx.device = {first}.shape, {first}.device"]
        lines += [f"{name} = {dtype}" for name, dtype in zip(names, dtypes, strict=True)]
        lines.append(f"ctx.compute = _compute_dtype({_join(i.name for i in self.floats)})")
        lines += [f"ctx.{v.name} = {v.name}" for v in self.backward_params]
        if len(differentiable_outputs(self.spec)) > 1:
            lines.append("ctx.set_materialize_grads(False)")
        fixed = [o.name for o in self.spec.outputs if o not in differentiable_outputs(self.spec)]
        if fixed:
            lines.append(f"ctx.mark_non_differentiable({_join(fixed)})")
        return _lines(lines)

    def _upstream(self) -> list[Variable]:
        backward = self.plan.row_op.backward
        return [v for v in backward.variables if v.role is Role.UPSTREAM] if backward else []

    def upstream_parameters(self) -> str:
        used = {v.name for v in self._upstream()}
        several = len(differentiable_outputs(self.spec)) > 1
        kind = "torch.Tensor | None" if several else "torch.Tensor"
        names = [f"d{o.name}" if f"d{o.name}" in used else f"_d{o.name}" for o in self.spec.outputs]
        return _lines(f"{name}: {kind}," for name in names)

    def backward_call(self) -> str:
        upstream = [v.name for v in self._upstream()]
        names = [v.name for v in self.saved_variables]
        tensors = _join([*names, *upstream])
        returned = self._returned()
        lines = []
        if any(v.absent is not None for v in self._upstream()):
            nothing = " and ".join(f"{name} is None" for name in upstream)
            lines = [f"if {nothing}:", f"    return (None,) * {len(returned)}"]
        if names:
            lines.append(f"{_join(names)}{',' if len(names) == 1 else ''} = ctx.saved_tensors")
        lines += [
            "with torch.no_grad():",
            f"    gradients = _backward(ctx, {tensors})",
            "# Autograd runs backward with gradients enabled only under create_graph=True.",
            "if torch.is_grad_enabled():",
            f"    gradients = _once(gradients, {tensors})",
            f"{self.gradient_tuple()} = gradients",
        ]
        lines.append(f"return {_join(returned)}{',' if len(returned) == 1 else ''}")
        return _lines(lines)

    def _returned(self) -> list[str]:
        wanted = set(self.gradients)
        tensors = [f"d{i.name}" if f"d{i.name}" in wanted else "None" for i in self.spec.inputs]
        return [*tensors, *("None" for _ in self.spec.params)]

    def gradient_tuple(self) -> str:
        return f"({self.gradients[0]},)" if len(self.gradients) == 1 else _join(self.gradients)

    def backward_parameters(self) -> str:
        optional = {i.name for i in self.spec.inputs if i.absent is not None}
        lines = []
        for variable in [*self.saved_variables, *self._upstream()]:
            may_lack = variable.name in optional or variable.absent is not None
            kind = "torch.Tensor | None" if may_lack else "torch.Tensor"
            lines.append(f"{variable.name}: {kind},")
        return _lines(lines)

    def upstream_layouts(self) -> str:
        lines = []
        for variable in self._upstream():
            name = variable.name
            given = _given(name, variable.absent)
            lines += [
                f"if {given}{_stride_text(name, variable.type.kind)} is None:",
                '    calls["backward.copied"] += 1',
                f"    {name} = _copied({name})",
            ]
        return _lines(lines)

    def gradient_allocations(self) -> str:
        lines = []
        for input_ in self.gradient_inputs:
            name = f"d{input_.name}"
            index = self.spec.inputs.index(input_)
            shape = {
                Kind.MATRIX: "ctx.shape",
                Kind.PER_ROW: "ctx.shape[:-1]",
                Kind.PER_COLUMN: "n_columns",
            }[input_.kind]
            lines += [
                f"{name} = None",
                f"if ctx.needs_input_grad[{index}]:",
                f"    {name} = torch.empty({shape}, dtype=ctx.{name}_dtype, device=device)",
            ]
        return _lines(lines)

    def column_bytes(self) -> str:
        """The sizes of the matrices that a backward kernel with column sums reads."""
        if not self.plan.column_sums:
            return ""
        optional = {i.name for i in self.spec.inputs if i.absent is not None}
        sizes = []
        for variable in self.plan.backward[0].program.variables:
            name = variable.name
            if variable.type.kind is not Kind.MATRIX:
                continue
            may_lack = name in optional or variable.absent is not None
            sizes.append(
                f"(0 if {name} is None else {name}.itemsize)" if may_lack else f"{name}.itemsize"
            )
        total = " + ".join(sizes) or "1"
        return (
            f"max(1, {total})" if all(size.startswith("(") for size in sizes) and sizes else total
        )

    def empty_gradients(self) -> str:
        sums = self.plan.column_sums
        values = [
            f"{name}.zero_() if {name} is not None else None" if name in sums else name
            for name in self.gradients
        ]
        return f"({values[0]},)" if len(values) == 1 else _join(values)

    def split_rows(self, tile: Tile) -> str:
        """The launch of the split's first kernel, where something needs it."""
        kernel = self.plan.kernel("backward_split_rows")
        if kernel is None:
            return ""
        allocations = [
            f"{name} = torch.empty(n_rows, dtype=compute, device=device)"
            for name in self.plan.statistics
        ]
        launch = [
            f"{kernel.name}[(n_rows,)](",
            self.kernel_arguments(kernel),
            "COMPUTE=TRITON_DTYPES[compute],",
            "ROWS=1,",
            "BLOCK=STREAMING_BLOCK,",
            f"num_warps={tile.warps},",
            ")",
        ]
        lines = [*allocations, *launch]
        if self.plan.statistics_for is None:
            return _lines(lines)
        # Where nobody wants what they are for, the first kernel is not launched.
        absent = [f"{name} = None" for name in self.plan.statistics]
        inside = _lines(f"    {line}" for text in lines for line in text.splitlines())
        return _lines([*absent, f"if {self.plan.statistics_for} is not None:", inside])

    # --- the module

    def module(self) -> ModuleView | None:
        spec = self.spec
        if not spec.module:
            return None
        held = [i for i in spec.inputs if i.kind is Kind.PER_COLUMN and i.element is Element.FLOAT]
        rest = [i for i in spec.inputs if i not in held]
        optional = [i for i in held if i.absent is not None]
        params = [f"{_annotated_param(p)}," for p in spec.params]
        body = [f"self.{p.name} = {p.name}" for p in spec.params]
        for input_ in held:
            body += _module_parameter(input_)
        arguments = [i.name if i in rest else f"self.{i.name}" for i in spec.inputs]
        arguments += [f"{p.name}=self.{p.name}" for p in spec.params]
        shown = ["{self.columns}", *(f"{p.name}={{self.{p.name}}}" for p in spec.params)]
        shown += [f"{i.name}={{self.{i.name} is not None}}" for i in optional]
        return ModuleView(
            name=spec.module,
            holds=" and ".join(f"``{i.name}``" for i in held) or "its parameters",
            parameters=_lines([*params, *(f"{i.name}: bool = True," for i in optional)]),
            body=_lines(body),
            inputs=_join(_annotated(i, default=True) for i in rest),
            arguments=_join(arguments),
            representation=_text_of(shown),
        )


def _text_of(parts: list[str]) -> str:
    """The parts of a text as one f-string, or one a line where they are many."""
    whole = f'f"{", ".join(parts)}"'
    if len(whole) <= 80:
        return whole
    return _lines(f'f"{part}{"" if part is parts[-1] else ", "}"' for part in parts)


def _module_parameter(input_: Input) -> list[str]:
    name = input_.name
    start = 0.0 if input_.absent is None else input_.absent
    full = f"torch.full((columns,), {start!r}, device=device, dtype=dtype)"
    parameter = f"torch.nn.Parameter({full})"
    if input_.absent is None:
        return [f"self.{name} = {parameter}"]
    return [f"self.{name} = {parameter} if {name} else None"]


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines)


def _join(names: Iterable[str]) -> str:
    return ", ".join(names)


def _tiles(tiles: tuple[Tile, ...], is_grouped: bool) -> str:
    rows = []
    for tile in tiles:
        rest = f", {tile.stages}, {tile.programs}" if is_grouped else ""
        rows.append(f"{tile.words}: ({tile.rows}, {tile.warps}{rest}),")
    return _lines(rows)


def _annotated(input_: Input, default: bool = False) -> str:
    if input_.absent is None:
        return f"{input_.name}: torch.Tensor"
    return f"{input_.name}: torch.Tensor | None{' = None' if default else ''}"


def _annotated_param(param: Param) -> str:
    return f"{param.name}: {param.element.value} = {param.default!r}"


def _given(name: str, absent: float | None) -> str:
    """What stands before a question about a tensor that may not be there."""
    return "" if absent is None else f"{name} is not None and "


def _stride_text(name: str, kind: Kind) -> str:
    columns = ", has_columns=False" if kind is Kind.PER_ROW else ""
    return f"_row_stride({name}{columns})"


def _takes(param: Param) -> str:
    if param.element is Element.BOOL:
        return "True or False; each compiles to a kernel of its own"
    article = "an int" if param.element is Element.INT else "a finite float"
    low, high = param.minimum, param.maximum
    if low is not None and high is not None:
        return f"{article} from {_plain(low)} to {_plain(high)}"
    if low is not None:
        return f"{article} of at least {_plain(low)}"
    return article if high is None else f"{article} of at most {_plain(high)}"


def _plain(value: float) -> str:
    return repr(value).removesuffix(".0")


def _param_check(param: Param) -> str:
    name = param.name
    if param.element is Element.BOOL:
        return f'_check_bool("{name}", {name})'
    low, high = param.minimum, param.maximum
    if param.element is Element.INT:
        least = -_INT64 if low is None else int(low)
        most = _INT64 - 1 if high is None else int(high)
        return f'{name} = _check_int("{name}", {name}, "{_takes(param)}", {least}, {most})'
    least_text = "-math.inf" if low is None else repr(float(low))
    most_text = "math.inf" if high is None else repr(float(high))
    bounds = f"{least_text}, {most_text}"
    return f'{name} = _check_float("{name}", {name}, "{_takes(param)}", {bounds})'


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
