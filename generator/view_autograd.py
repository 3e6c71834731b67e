"""The schedule of an op -> the view of its autograd functions: what they take, save and hand on.

The first function's backward is the first pass. Where there is a double backward, it goes through a
second function, whose forward is the first pass and whose backward is the second. What a pass
differentiates is thereby an argument of the function that it is the backward of.

An input that a double backward is for, and whose values no pass reads, is not kept: an edge of the
graph is, which takes its place in the second function and leads to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kgen.ir import Role, Variable
from kgen.lower import input_variables
from kgen.schedule import OpSchedule, Pass
from kgen.spec import (
    Element,
    Param,
    Spec,
    differentiable_inputs,
    differentiable_outputs,
    gradient_name,
)
from kgen.view_pass import (
    belongs_to,
    may_lack,
    read_by,
    takes_dtype,
    tensor_parameters,
)
from kgen.view_words import dtype_of, join, lines, tensor_type, tuple_of, unpacked

_KEPT = (Role.INPUT, Role.SAVED, Role.OUTPUT)


@dataclass(frozen=True, slots=True)
class SecondView:
    """The autograd function around the first pass."""

    name: str
    parameters: str
    saved_tensors: str
    context: str
    first_call: str
    upstream_parameters: str
    body: str


@dataclass(frozen=True, slots=True)
class AutogradView:
    """What is op-specific in the autograd functions; ``missing`` is the last one's message."""

    name: str
    arguments: str
    edge_parameters: str
    saved_tensors: str
    context: str
    upstream_parameters: str
    body: str
    missing: str
    second: SecondView | None


def autograd_view(plan: OpSchedule, class_name: str) -> AutogradView | None:
    """The autograd functions of an op, if it has a backward."""
    if not plan.passes:
        return None
    writer = _Autograd(plan, class_name)
    op = plan.row_op.spec.op
    missing = (
        f'"{op}: there is no third derivative; for Hessian-vector products use "\n'
        '"torch.autograd.functional.vhp"'
    )
    if writer.second is None:
        missing = (
            f'"{op}: there is no second derivative; build it with "\n'
            '"`double_backward: true` in its spec"'
        )
    return AutogradView(
        name=f"_{class_name}Function",
        arguments=join([*first_arguments(plan.row_op.spec), *writer.edge_calls(), "call"]),
        edge_parameters=writer.edge_parameters(),
        saved_tensors=join(writer.saved_tensors()),
        context=writer.first_context(),
        upstream_parameters=writer.first_upstream(),
        body=writer.first_body(),
        missing=missing,
        second=None if writer.second is None else writer.second_view(writer.second),
    )


def first_arguments(spec: Spec) -> list[str]:
    """What the first autograd function takes, by position, before edges and what is planned."""
    return [*(i.name for i in spec.inputs), *(p.name for p in runtime_params(spec))]


def runtime_params(spec: Spec) -> list[Param]:
    """The params that kernels are given; the others are compiled into them."""
    return [p for p in spec.params if p.element is not Element.BOOL]


def arguments_before(plan: OpSchedule, each: Pass) -> list[str]:
    """What the autograd function takes that a pass is the backward of, by position.

    The second function takes the context of the first, and tensors.
    """
    if each is plan.passes[0]:
        return [*first_arguments(plan.row_op.spec), *_edges(plan).values(), "call"]
    return ["forward_ctx", *(v.name for v in _second_tensors(plan))]


def _second_tensors(plan: OpSchedule) -> list[Variable]:
    return [*_kept(plan, *plan.passes), *_above(plan, *plan.passes)]


def _kept(plan: OpSchedule, *passes: Pass) -> list[Variable]:
    """The tensors of forward that passes read, and the inputs that a double backward is for."""
    spec = plan.row_op.spec
    found = {v.name: v for each in passes for v in read_by(each) if v.role in _KEPT}
    sources = belongs_to(spec)
    twice = {sources[r.name] for each in passes if each in plan.passes[1:] for r in each.results}
    inputs = [v for v in input_variables(spec) if v.role is Role.INPUT]
    order = dict.fromkeys([*plan.row_op.saved, *(o.name for o in spec.outputs)])
    rest = [found[name] for name in order if name in found]
    return [*(v for v in inputs if v.name in found or v.name in twice), *rest]


def _edges(plan: OpSchedule) -> dict[str, str]:
    """For inputs that a double backward is for, though no pass reads them: their edges' names."""
    spec = plan.row_op.spec
    read = {v.name for each in plan.passes for v in read_by(each)}
    taken = {*first_arguments(spec), *plan.row_op.saved, *(o.name for o in spec.outputs)}
    taken |= belongs_to(spec).keys()
    edges: dict[str, str] = {}
    for variable in _kept(plan, *plan.passes):
        if variable.name not in read:
            edge = f"{variable.name}_edge"
            while edge in taken:
                edge += "_"
            edges[variable.name] = edge
            taken.add(edge)
    return edges


def _above(plan: OpSchedule, *passes: Pass) -> list[Variable]:
    """The gradients of the outputs that passes read."""
    found = {v.name: v for each in passes for v in read_by(each) if v.role is Role.UPSTREAM}
    names = (gradient_name(o.name) for o in plan.row_op.spec.outputs)
    return [found[name] for name in names if name in found]


class _Autograd:
    """Writes the op-specific lines of the autograd functions."""

    def __init__(self, plan: OpSchedule, class_name: str) -> None:
        self.plan = plan
        self.spec = plan.row_op.spec
        self.first = plan.passes[0]
        self.second = plan.passes[1] if len(plan.passes) > 1 else None
        self.second_name = f"_{class_name}BackwardFunction"
        self.kept = _kept(plan, *plan.passes)
        self.edges = _edges(plan)
        self.params = [
            p.name
            for p in runtime_params(self.spec)
            if any(each.program.variable(p.name) for each in plan.passes)
        ]

    def as_edges(self, variables: Sequence[Variable]) -> list[Variable]:
        """The variables, with edges in place of inputs that no pass reads."""
        return [replace(v, name=self.edges.get(v.name, v.name)) for v in variables]

    # --- the first function

    def edge_calls(self) -> list[str]:
        text = []
        for variable in self.kept:
            name = variable.name
            lacks = f"None if {name} is None else " if may_lack(self.spec, variable) else ""
            if name in self.edges:
                text.append(f"{lacks}_GradientEdge.apply({name})")
        return text

    def edge_parameters(self) -> str:
        edges = [v for v in self.kept if v.name in self.edges]
        return tensor_parameters(self.spec, self.as_edges(edges))

    def saved_tensors(self) -> list[str]:
        """What forward saves, by the names that tensors have there."""
        results = self.plan.row_op.forward.results
        tensors = {r.name: r.tensor for r in results if r.role is Role.SAVED}
        return [tensors.get(v.name, v.name) for v in self.as_edges(self.kept)]

    def first_context(self) -> str:
        text = ["ctx.call, ctx.are_hooked = call, are_hooked()", *self._dtypes(self.first)]
        text += [f"ctx.{name} = {name}" for name in self.params]
        for input_ in differentiable_inputs(self.spec):
            if input_.folds_columns:
                lacks = f"None if {input_.name} is None else " if input_.absent is not None else ""
                text.append(f"ctx.{input_.name}_shape = {lacks}{input_.name}.shape")
        differentiable = differentiable_outputs(self.spec)
        if len(self.spec.outputs) > 1:  # else zeros would be allocated for those not used
            text.append("ctx.set_materialize_grads(False)")
        fixed = [o.name for o in self.spec.outputs if o not in differentiable]
        if fixed:
            text.append(f"ctx.mark_non_differentiable({join(fixed)})")
        return lines(text)

    def first_upstream(self) -> str:
        names = [gradient_name(o.name) for o in self.spec.outputs]
        used = {v.name for v in _above(self.plan, *self.plan.passes)}
        return _upstream_parameters(names, used, len(self.spec.outputs) > 1)

    def first_body(self) -> str:
        above = _above(self.plan, self.first)
        returned = self._returned(self.first, arguments_before(self.plan, self.first))
        may_all_lack = len(self.spec.outputs) > 1
        text = _nothing(above, len(returned)) if may_all_lack else []
        if self.kept:
            names = [v.name for v in self.as_edges(self.kept)]
            text.append(f"{unpacked(names)} = ctx.saved_tensors")
        if self.second is None:
            text += self._last(self.first, [*self.kept, *above])
        else:
            arguments = join(map(self._handed_on, _second_tensors(self.plan)))
            text += [
                "# Autograd runs backward with gradients enabled only under create_graph=True.",
                "if torch.is_grad_enabled():",
                f"    gradients = {self.second_name}.apply(ctx, {arguments})",
                "else:",
                f"    gradients = _backward(ctx, {join(v.name for v in read_by(self.first))})",
            ]
        return lines([*text, *_returns(self.first, returned)])

    def _handed_on(self, variable: Variable) -> str:
        """An argument of the second function; a value alone where nothing is differentiated by it.

        A saved output would bring a graph of its own, and a tensor that no gradient of the second
        order is for would have the second pass called when nobody wants what it gives.
        """
        assert self.second is not None
        name, sources = variable.name, belongs_to(self.spec)
        twice = {sources[result.name] for result in self.second.results}
        is_plain = variable.role is Role.SAVED or variable.type.element is not Element.FLOAT
        if is_plain or name in twice:
            return self.edges.get(name, name)
        lacks = may_lack(self.spec, variable)
        return f"None if {name} is None else {name}.detach()" if lacks else f"{name}.detach()"

    # --- the second function

    def second_view(self, second: Pass) -> SecondView:
        kept = self.as_edges(self._second_kept(second))
        context = [
            f"ctx.{name} = forward_ctx.{name}" for name in ("call", *self._params_of(second))
        ]
        context.append("ctx.are_hooked = forward_ctx.are_hooked or are_hooked()")
        context += self._dtypes(second)
        names = [gradient_name(result.name) for result in self.first.results]
        upstream = [v for v in read_by(second) if v.name in names]
        return SecondView(
            name=self.second_name,
            parameters=tensor_parameters(self.spec, self.as_edges(_second_tensors(self.plan))),
            saved_tensors=join(v.name for v in kept),
            context=lines(context),
            first_call=self._first_call(),
            upstream_parameters=_upstream_parameters(names, {v.name for v in upstream}, True),
            body=self._second_body(second, kept, upstream),
        )

    def _first_call(self) -> str:
        """What the second function returns; to autograd one tensor cannot be two outputs."""
        call = f"_backward({join(['forward_ctx', *(v.name for v in read_by(self.first))])})"
        repeated = self.first.program.repeated
        if not repeated:
            return f"return {call}"
        names = [result.name for result in self.first.results]
        text = [f"{unpacked(names)} = {call}"]
        for name, first in repeated.items():
            text += [
                f"if {name} is {first} and {name} is not None:",
                f"    {name} = {name}.clone()  # to autograd one tensor is not two outputs",
            ]
        return lines([*text, f"return {unpacked(names)}"])

    def _second_kept(self, second: Pass) -> list[Variable]:
        """What the second pass reads besides the gradients that arrive, and what it is for."""
        return [*_kept(self.plan, second), *_above(self.plan, second)]

    def _second_body(self, second: Pass, kept: list[Variable], upstream: list[Variable]) -> str:
        returned = self._returned(second, arguments_before(self.plan, second))
        text = _nothing(upstream, len(returned))
        if kept:
            text.append(f"{unpacked([v.name for v in kept])} = ctx.saved_tensors")
        text += self._last(second, [*kept, *upstream])
        return lines([*text, *_returns(second, returned)])

    # --- both

    def _params_of(self, each: Pass) -> list[str]:
        return [name for name in self.params if each.program.variable(name)]

    def _dtypes(self, each: Pass) -> list[str]:
        """The dtype of each gradient: that of what it is the gradient for."""
        sources = belongs_to(self.spec)
        optional = {i.name for i in self.spec.inputs if i.absent is not None}
        optional |= {v.name for v in _above(self.plan, *self.plan.passes) if v.absent is not None}
        shown = self.edges if each is self.second else {}
        text = []
        for result in each.results:
            if not takes_dtype(self.spec, each, result):
                continue
            source = sources[result.name]
            dtype = dtype_of(shown.get(source, source), source in optional)
            text.append(f"ctx.{result.name}_dtype = {dtype}")
        return text

    def _returned(self, each: Pass, arguments: Sequence[str]) -> list[str]:
        """What a function's backward returns: a gradient, or None, for every argument."""
        sources = belongs_to(self.spec)
        gradients = {sources[r.name]: r.name for r in each.results}
        return [gradients.get(name, "None") for name in arguments]

    def _last(self, each: Pass, sources: Sequence[Variable]) -> list[str]:
        """The launch of the last pass, whose gradients cannot be differentiated again."""
        launched = f"gradients = _{each.name}(ctx, {join(v.name for v in read_by(each))})"
        return [
            "# Autograd runs backward with gradients enabled only under create_graph=True.",
            "if torch.is_grad_enabled():",
            "    with torch.no_grad():",
            f"        {launched}",
            f"    gradients = _once(gradients, {join(v.name for v in sources)})",
            "else:",
            f"    {launched}",
        ]


def _upstream_parameters(names: Sequence[str], used: set[str], may_all_lack: bool) -> str:
    shown = [name if name in used else f"_{name}" for name in names]
    return lines(f"{name}: {tensor_type(may_all_lack)}," for name in shown)


def _nothing(upstream: Sequence[Variable], count: int) -> list[str]:
    """Where no gradient arrives, none is handed on."""
    condition = " and ".join(f"{v.name} is None" for v in upstream)
    return [f"if {condition}:", f"    return (None,) * {count}"]


def _returns(each: Pass, returned: Sequence[str]) -> list[str]:
    names = [result.name for result in each.results]
    return [f"{tuple_of(names)} = gradients", f"return {unpacked(returned)}"]
