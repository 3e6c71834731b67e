"""Schedules -> the views of ``op.py`` and ``__init__.py``: the wrapper's op-specific lines."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kgen.check import reference_names
from kgen.ir import Role, seeds_in
from kgen.schedule import OpSchedule
from kgen.spec import COMPUTE, Element, Input, Kind, Output, Param, Spec, is_batched
from kgen.tiles import FEW_TILES, limits, tile_rule
from kgen.view import header, strided
from kgen.view_autograd import (
    AutogradView,
    arguments_before,
    autograd_view,
    first_arguments,
    runtime_params,
)
from kgen.view_module import ModuleView, module_view
from kgen.view_pass import (
    PassView,
    chunks_of_step,
    grid,
    is_by_itemsize,
    is_limited,
    kernel_choice,
    kernel_numbers,
    kernel_params,
    kernel_tensors,
    pass_view,
    plan_constants,
    plan_text,
    tiles_text,
)
from kgen.view_words import (
    annotated,
    annotated_param,
    empty_like,
    given,
    join,
    lines,
    row_stride,
    wrapped,
)

_DTYPE_LISTS = {Element.FLOAT: "FLOATS", Element.INT: "INTS", Element.BOOL: "BOOLS"}
_SHAPES = {
    Kind.MATRIX: "{x}.shape",
    Kind.PER_ROW: "{x}.shape[:-1]",
    Kind.PER_COLUMN: "{x}.shape[-1:]",
    Kind.PER_BATCH: "{x}.shape[:-2] + {x}.shape[-1:]",
    Kind.PER_PLACE: "{x}.shape[-2:]",
    Kind.SCALAR: "torch.Size()",
}
_SHAPE_DOCS = {
    Kind.MATRIX: "(..., N)",
    Kind.PER_ROW: "(...)",
    Kind.PER_COLUMN: "(N,)",
    Kind.PER_BATCH: "(..., N), for each matrix a row",
    Kind.PER_PLACE: "(T, N), for each place in a matrix a row",
    Kind.SCALAR: "()",
}
_INT64 = 2**63
_LAYOUTS = {
    Kind.MATRIX: "its rows must be evenly spaced and its columns adjacent",
    Kind.PER_ROW: "its values must be evenly spaced",
    Kind.PER_COLUMN: "its values must be adjacent",
    Kind.PER_BATCH: "its rows must be evenly spaced and its columns adjacent",
    Kind.PER_PLACE: "its rows must be evenly spaced and its columns adjacent",
    Kind.SCALAR: "its value must be stored without a pending negation",
}
_WITHOUT_COLUMNS = (Kind.PER_ROW, Kind.SCALAR)
# What op.py takes from launch.py for a backward alone.
_FOR_BACKWARD = ("UNKNOWN", "are_hooked", "layout")
# When a call raises RuntimeError, by how many backwards the op has.
_RUNTIME_ERRORS = (
    "for an input that requires a gradient",
    "when differentiated twice, or in forward mode",
    "when differentiated three times, or in forward mode",
)


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
    uses_random: bool
    kernel_names: tuple[str, ...]
    dtypes: str
    has_int: bool
    has_bool: bool
    has_companions: bool
    shared: str
    is_batched: bool
    folds: bool
    has_float_param: bool
    has_int_param: bool
    has_bool_param: bool
    max_columns: int
    scratch_mib: int
    has_sums: bool
    forward_constants: str
    forward_kernels: str
    unrolls: bool
    forward_steps: str
    block: str
    forward_plan: str
    by_itemsize: bool
    reloads: bool
    is_limited: bool
    matrices: str
    few_tiles: int
    launch_names: str
    forward_tiles: str
    first: str
    returns: str
    parameters: str
    reference_parameters: str
    reference: str
    argument_docs: str
    return_docs: str
    param_checks: str
    key: str
    checks: str
    inputs: str
    call_again: str
    call_arguments: str
    call_parameters: str
    flags: str
    plan_arguments: str
    plan_parameters: str
    arguments: str
    float_inputs: str
    copies: str
    reference_call: str
    runtime_error: str
    problem_parameters: str
    layouts: str
    outputs: str
    saves_rows: bool
    forward_results: str
    outputs_alone: str
    forward_returns: str
    save_doc: str
    launch_parameters: str
    forward_allocations: str
    forward_tensors: str
    forward_params: str
    forward_grid: str
    forward_numbers: str
    autograd: AutogradView | None
    passes: tuple[PassView, ...]
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
    summary = wrapped(spec.summary, 94)
    closed = f"{summary}\n" if "\n" in summary else summary
    return InitView(header(spec), closed, ordered, quoted)


def op_view(plan: OpSchedule) -> OpView:
    """Every op-specific line of the wrapper."""
    spec = plan.row_op.spec
    writer = _Wrapper(plan)
    rule = tile_rule(plan)
    forward = rule["forward"]
    has = {p.element for p in spec.params}
    elements = {i.element for i in spec.inputs}
    class_name = spec.module or "".join(part.capitalize() for part in spec.op.split("_"))
    has_backward = bool(plan.passes)
    passes = tuple(
        pass_view(plan, each, rule[each.name], arguments_before(plan, each)) for each in plan.passes
    )
    by_itemsize = is_by_itemsize(plan, "forward", forward)
    is_sized = by_itemsize or any(each.by_itemsize for each in passes)
    has_itemsize = is_sized or any(each.split_rows for each in passes)
    return OpView(
        header=header(spec),
        op=spec.op,
        class_name=class_name,
        summary=wrapped(_sentence(spec.summary), 93),
        source=wrapped(f"Source: {spec.source}", 96, "    "),
        standard_imports=writer.standard_imports(),
        uses_functional=bool(re.search(r"\bF\.", spec.reference)),
        uses_random="random" in reference_names(spec.reference),
        kernel_names=writer.kernel_names(),
        dtypes=", ".join(f"torch.{dtype}" for dtype in spec.dtypes),
        has_int=Element.INT in elements,
        has_bool=Element.BOOL in elements,
        has_companions=len(spec.inputs) > 1,
        shared=join(i.name for i in spec.inputs if i.shares_columns),
        is_batched=is_batched(spec),
        folds=any(each.folds for each in passes),
        has_float_param=Element.FLOAT in has,
        has_int_param=Element.INT in has,
        has_bool_param=Element.BOOL in has,
        max_columns=spec.limits.max_columns,
        scratch_mib=spec.limits.scratch_mib,
        has_sums=writer.has_sums,
        forward_constants=plan_constants(plan, "forward", forward, False),
        forward_kernels=kernel_choice(f"{spec.op}_forward", forward, True),
        forward_steps=(
            chunks_of_step("plan.stages", matrices=writer.strided_matrices())
            if forward.unrolls(is_split=False)
            else ""
        ),
        unrolls=plan.unrolls,
        block=_block(plan),
        forward_plan=plan_text(plan, "forward", forward, False),
        by_itemsize=by_itemsize,
        reloads=any(tiles.reloaded for tiles in rule.values()),
        is_limited=any(is_limited(limits(plan, name, tiles)) for name, tiles in rule.items()),
        matrices=writer.matrices() if has_itemsize else "",
        forward_tiles=tiles_text(forward.whole, False),
        few_tiles=FEW_TILES,
        launch_names=writer.launch_names(),
        first=writer.first,
        returns=writer.returns(),
        parameters=writer.parameters(),
        reference_parameters=writer.reference_parameters(),
        reference=spec.reference.strip("\n"),
        argument_docs=writer.argument_docs(),
        return_docs=writer.return_docs(),
        param_checks=lines(_param_check(p) for p in spec.params),
        key=writer.key(),
        checks=writer.checks(),
        inputs=join(i.name for i in spec.inputs),
        call_again=join(
            [*(i.name for i in spec.inputs), *(f"{p.name}={p.name}" for p in spec.params)]
        ),
        call_arguments=join([*(i.name for i in spec.inputs), *writer.flags]),
        call_parameters=lines(
            [
                *(f"{annotated(i)}," for i in spec.inputs),
                *(f"{name}: bool," for name in writer.flags),
            ]
        ),
        flags=lines(f"self.{name} = {name}" for name in writer.flags),
        plan_arguments=join(i.name for i in writer.read_by_plan()),
        plan_parameters=lines(f"{annotated(i)}," for i in writer.read_by_plan()),
        arguments=join(first_arguments(spec)),
        float_inputs=writer.floats(),
        copies=writer.copies(),
        reference_call=writer.reference_call(),
        runtime_error=_RUNTIME_ERRORS[len(plan.passes)],
        problem_parameters=lines(f"{annotated(i)}," for i in spec.inputs),
        layouts=writer.layouts(),
        outputs=join(o.name for o in spec.outputs),
        saves_rows=bool(writer.saved_names),
        forward_results=writer.forward_results(),
        outputs_alone=writer.outputs_alone(),
        forward_returns=writer.forward_returns(),
        save_doc="; keeps what a backward will need" if has_backward else "",
        launch_parameters=writer.launch_parameters(),
        forward_allocations=writer.forward_allocations(),
        forward_tensors=f"({kernel_tensors(plan.forward[0])})",
        forward_params=kernel_params(plan.forward[0]),
        forward_grid=grid(plan.forward),
        forward_numbers=kernel_numbers(plan.forward[0]),
        autograd=autograd_view(plan, class_name),
        passes=passes,
        module=module_view(spec),
    )


class _Wrapper:
    """Writes the op-specific lines from a schedule."""

    def __init__(self, plan: OpSchedule) -> None:
        self.plan = plan
        self.spec: Spec = plan.row_op.spec
        self.first = self.spec.inputs[0].name
        self.has_sums = any(each.column_sums for each in plan.passes)
        self.flags = [p.name for p in self.spec.params if p.element is Element.BOOL]
        forward = plan.row_op.forward
        self.saved_names = [r.tensor for r in forward.results if r.role is Role.SAVED]

    # --- the file

    def standard_imports(self) -> str:
        text = ["from collections import Counter"]
        if self.has_sums:
            text.append("from functools import cache")
        names = ["Any"] * bool(self.plan.passes) + ["Literal", "NamedTuple"]
        text.append(f"from typing import {join(names)}")
        if any(p.element is Element.FLOAT for p in self.spec.params):
            text.insert(0, "import sys")
        if re.search(r"\bmath\.", self.spec.reference):
            text.insert(0, "import math")
        return lines(text)

    def kernel_names(self) -> tuple[str, ...]:
        sums = {self.plan.sum_groups(each) for each in self.plan.passes} - {None}
        return tuple(sorted([*(k.name for k in self.plan.kernels), *map(str, sums)]))

    # --- the public function

    def returns(self) -> str:
        outputs = self.spec.outputs
        if len(outputs) == 1:
            return "torch.Tensor"
        return f"tuple[{', '.join(['torch.Tensor'] * len(outputs))}]"

    def parameters(self) -> str:
        tensors = [f"{annotated(i, default=True)}," for i in self.spec.inputs]
        params = [f"{annotated_param(p)}," for p in self.spec.params]
        return lines([*tensors, "*,", *params])

    def reference_parameters(self) -> str:
        tensors = [f"{annotated(i, default=True)}," for i in self.spec.inputs]
        return lines([*tensors, *(f"{annotated_param(p)}," for p in self.spec.params)])

    def launch_parameters(self) -> str:
        tensors = [f"{annotated(i)}," for i in self.spec.inputs]
        params = [f"{p.name}: {p.element.value}," for p in runtime_params(self.spec)]
        return lines([*tensors, *params])

    def argument_docs(self) -> str:
        text = []
        for input_ in self.spec.inputs:
            element = f", {self._dtype_docs(input_.element)}"
            absent = (
                "" if input_.absent is None else f", optional: {input_.absent:g} when not given"
            )
            words = f"{input_.name}: {self._shape_docs(input_)}{element}{absent}."
            text.append(wrapped(words, 92, "    "))
        seeds = seeds_in(self.plan.row_op.forward)
        for param in self.spec.params:
            words = f"{param.name}: {_takes(param)}"
            if param.name in seeds:
                words += "; the same seed draws the same numbers: every call takes one of its own"
            text.append(wrapped(f"{words}.", 92, "    "))
        return lines(text)

    def _shape_docs(self, input_: Input) -> str:
        words = "(..., T, N)" if self._is_batch(input_.kind) else _SHAPE_DOCS[input_.kind]
        if not input_.shares_columns:
            return words
        return f"{words.replace('N', 'K')}, an entry for every N / K columns"

    def _is_batch(self, kind: Kind) -> bool:
        return kind is Kind.MATRIX and is_batched(self.spec)

    def _dtype_docs(self, element: Element) -> str:
        dtypes = {Element.INT: ("int32", "int64"), Element.BOOL: ("bool",)}
        names = dtypes.get(element, self.spec.dtypes)
        return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"

    def return_docs(self) -> str:
        inputs = {i.name for i in self.spec.inputs}
        text = []
        for output in self.spec.outputs:
            dtype = f"the dtype of {output.dtype}" if output.dtype in inputs else output.dtype
            dtype = "float32, or float64 when an input is" if output.dtype == COMPUTE else dtype
            kind = self.plan.row_op.output_kind(output)
            shape = "(..., T, N)" if self._is_batch(kind) else _SHAPE_DOCS[kind]
            text.append(f"{output.name}: {shape}, {dtype}.")
        return lines(text)

    def checks(self) -> str:
        op, first = self.spec.op, self.first
        batched = is_batched(self.spec)
        text = [
            f'_check_tensor("{first}", {first}, FLOATS)',
            f"if {first}.dim() {'< 2' if batched else '== 0'} or {first}.shape[-1] == 0:",
            f"    shape = tuple({first}.shape)",
            f'    takes = "(..., {"T, " if batched else ""}N) with N of at least 1"',
            f'    raise ValueError(f"{op}: {first} has shape {{shape}}; it takes {{takes}}")',
        ]
        for input_ in self.spec.inputs[1:]:
            name = input_.name
            shape = _SHAPES[input_.kind].format(x=first)
            if input_.shares_columns:
                shape = f'_sharing("{name}", {name}, {shape})'
            checks = [
                f'_check_tensor("{name}", {name}, {_DTYPE_LISTS[input_.element]})',
                f'_check_companion("{name}", {name}, {shape}, {first})',
            ]
            if input_.absent is None:
                text += checks
            else:
                text += [f"if {name} is not None:", *(f"    {check}" for check in checks)]
        return lines(text)

    def key(self) -> str:
        """What checks, plans and kernels depend on; of most params not the values."""
        words = [f"facts({i.name})" for i in self.spec.inputs]
        seeds = seeds_in(self.plan.row_op.forward)
        for param in self.spec.params:
            if param.element is Element.BOOL:
                words.append(param.name)
            elif param.element is Element.INT and param.name not in seeds:
                words.append(f"-(2**31) <= {param.name} < 2**31")
        return join([*words, "torch.is_grad_enabled()"])

    def read_by_plan(self) -> list[Input]:
        """The inputs whose strides and shapes kernels are given."""
        program = self.plan.forward[0].program
        names = {v.name for v in strided(program)}
        names |= {v.name for v in program.variables if v.sharing and v.sharing.columns}
        return [i for i in self.spec.inputs if i.name in names]

    def strided_matrices(self) -> list[str]:
        """The matrices whose strides the forward kernels are given."""
        return [i.name for i in self.read_by_plan() if i.spread is Kind.MATRIX]

    def matrices(self) -> str:
        """What is loaded for every element of a row."""
        matrices = (i for i in self.spec.inputs if i.spread is Kind.MATRIX)
        return join(i.name for i in matrices if i.element is not Element.BOOL)

    def launch_names(self) -> str:
        """What op.py takes from launch.py."""
        names = ["UNKNOWN", "Launch", "Launches", "are_hooked", "facts", "layout", "remember"]
        if self.plan.passes:
            return join(names)
        asked = ["UNKNOWN"] * self.plan.unrolls
        return join(name for name in names if name not in _FOR_BACKWARD or name in asked)

    def copies(self) -> str:
        text = []
        for input_ in self.spec.inputs:
            name = input_.name
            is_given = given(name, input_.absent)
            text += [
                f"if {is_given}{row_stride(name, input_.kind)} is None:",
                f"    {name} = _copied({name})",
            ]
        return lines(text)

    def reference_call(self) -> str:
        """The reference, in the dtypes that the kernels would have given."""
        outputs = self.spec.outputs
        arguments = [*(i.name for i in self.spec.inputs), *(p.name for p in self.spec.params)]
        call = f"{self.spec.op}_reference({join(arguments)})"
        text = []
        if any(o.dtype == COMPUTE for o in outputs):
            text.append(f"compute = _compute_dtype({self.floats()})")
        if len(outputs) == 1:
            return lines([*text, f"return {call}.to({self._dtype(outputs[0])})"])
        converted = join(f"{o.name}.to({self._dtype(o)})" for o in outputs)
        return lines([*text, f"{join(o.name for o in outputs)} = {call}", f"return {converted}"])

    def floats(self) -> str:
        """The float inputs, which decide the dtype of the arithmetic."""
        return join(i.name for i in self.spec.inputs if i.element is Element.FLOAT)

    def _dtype(self, output: Output) -> str:
        if output.dtype == COMPUTE:
            return "compute"
        is_input = any(i.name == output.dtype for i in self.spec.inputs)
        return f"{output.dtype}.dtype" if is_input else f"torch.{output.dtype}"

    def layouts(self) -> str:
        return lines(
            f'("{i.name}", {i.name}, {i.kind not in _WITHOUT_COLUMNS}, "{_LAYOUTS[i.kind]}"),'
            for i in self.spec.inputs
        )

    # --- forward

    def forward_results(self) -> str:
        names = [*(o.name for o in self.spec.outputs), *self.saved_names]
        return f"{names[0]}," if len(names) == 1 else join(names)

    def outputs_alone(self) -> str:
        """The targets of a forward without gradients, where nothing is saved."""
        if not self.saved_names:
            return self.forward_results()
        return join([*(o.name for o in self.spec.outputs), "*_"])

    def forward_returns(self) -> str:
        outputs = ["torch.Tensor"] * len(self.spec.outputs)
        saved = ["torch.Tensor | None"] * len(self.saved_names)
        return f"tuple[{', '.join(outputs + saved)}]"

    def forward_allocations(self) -> str:
        text = [self._output_allocation(output) for output in self.spec.outputs]
        for name in self.saved_names:
            empty = empty_like("call.row_values")
            text += [f"{name} = None", "if call.is_differentiated:", f"    {name} = {empty}"]
        return lines(text)

    def _output_allocation(self, output: Output) -> str:
        kind = self.plan.row_op.output_kind(output)
        dtype = "call.compute" if output.dtype == COMPUTE else self._dtype(output)
        if kind is Kind.MATRIX:
            like = self._like(output)
            return f"{output.name} = {empty_like(like, '' if dtype == f'{like}.dtype' else dtype)}"
        shape = _SHAPES[kind].format(x="call")
        return f"{output.name} = torch.empty({shape}, dtype={dtype}, device=call.device)"

    def _like(self, output: Output) -> str:
        """An input of an output's shape, and of its dtype if there is one."""
        inputs = (i for i in self.spec.inputs if i.kind is Kind.MATRIX and i.absent is None)
        return next((i.name for i in inputs if i.name == output.dtype), self.first)


def _block(plan: OpSchedule) -> str:
    """The columns of a tile that holds a row."""
    padded = "triton.next_power_of_2(n_columns)"
    return padded if plan.least_block == 1 else f"max({plan.least_block}, {padded})"


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
    least_text = "-MAX_FLOAT" if low is None else repr(float(low))
    most_text = "MAX_FLOAT" if high is None else repr(float(high))
    bounds = f"{least_text}, {most_text}"
    return f'{name} = _check_float("{name}", {name}, "{_takes(param)}", {bounds})'


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
