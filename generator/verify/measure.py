"""What every side gives for one sample: the formulas, the reference, autograd of either."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from kgen.interpret import Number, entry_sums, rounded_to, run
from kgen.ir import Program, Role
from kgen.lower import RowOp
from kgen.spec import Kind, differentiable_inputs, differentiable_outputs
from kgen.verify.reference import Reference
from kgen.verify.samples import Sample
from torch import Tensor

Tensors = dict[str, Tensor]


@dataclass(slots=True)
class Measured:
    """Values by name, detached, each (M, N), (M, 1) or (1, N).

    ``forward`` and ``backward`` hold every definition of the formulas, ``outputs`` what the
    reference returns, ``expected`` its gradients by autograd, ``own`` the gradients of the
    formulas' outputs by autograd, also with respect to forward names, and ``derived`` every
    definition of the backward that kgen derives. Gradients are called ``d<name>``.
    """

    sample: Sample
    forward: Tensors
    outputs: Tensors
    dtypes: dict[str, torch.dtype]
    backward: Tensors = field(default_factory=dict)
    expected: Tensors = field(default_factory=dict)
    own: Tensors = field(default_factory=dict)
    derived: Tensors = field(default_factory=dict)

    def stored(self, name: str, value: Tensor | None = None) -> Tensor:
        """An output of the formulas in the dtype that the reference returned it in."""
        value = self.forward[name] if value is None else value
        dtype = self.dtypes[name]
        return value if dtype is torch.float64 else rounded_to(value, dtype)


def measure(op: RowOp, reference: Reference, derived: RowOp | None, sample: Sample) -> Measured:
    """Run all sides, without gradients where none arrives.

    Raises ``KgenError`` for a reference that fails.
    """
    arrives = any(dy is not None for dy in sample.upstream.values())
    with_gradients = op.backward is not None and arrives
    outputs, dtypes, expected = referenced(op, reference, sample, with_gradients)
    if not with_gradients:
        with torch.no_grad():
            return Measured(sample, run(op.forward, sample.values(op)), outputs, dtypes)
    forward, own = own_gradients(op, sample, op.forward)
    backward = backward_of(op, sample, forward)
    found = {} if derived is None else backward_of(derived, sample, ahead(derived, sample))
    return Measured(sample, forward, outputs, dtypes, backward, expected, own, found)


def ahead(op: RowOp, sample: Sample, program: Program | None = None) -> Tensors:
    """Every definition of a forward program, without a graph."""
    with torch.no_grad():
        return run(program or op.forward, sample.values(op))


def backward_of(
    op: RowOp, sample: Sample, forward: Mapping[str, Tensor], program: Program | None = None
) -> Tensors:
    """Every definition of a backward program, from what forward has saved."""
    program = program or op.backward
    assert program is not None
    with torch.no_grad():
        return run(program, backward_values(op, sample, forward, program), sample.entries(op))


def backward_values(
    op: RowOp, sample: Sample, forward: Mapping[str, Tensor], program: Program
) -> dict[str, Tensor | Number]:
    """What a backward program is given: the arguments, saved values and upstream gradients."""
    saved = {
        v.name: forward[v.name] for v in program.variables if v.role in (Role.SAVED, Role.OUTPUT)
    }
    return {**sample.values(op), **saved, **sample.above(op)}


def own_gradients(op: RowOp, sample: Sample, program: Program) -> tuple[Tensors, Tensors]:
    """The definitions of a forward program, and autograd's gradients of inputs and definitions."""
    values = sample.values(op)
    leaves: Tensors = {}
    for entry in differentiable_inputs(op.spec):
        given = values.get(entry.name, entry.absent)
        assert given is not None
        tensor = torch.as_tensor(given, dtype=torch.float64)
        tensor = tensor.expand(_shape(entry.spread, sample)).clone().requires_grad_()
        values[entry.name] = leaves[entry.name] = tensor
    with torch.enable_grad():
        forward = run(program, values)
    towards = leaves | {n: v for n, v in forward.items() if v.requires_grad}
    above = sample.above(op)
    tops = {n: dy for n, dy in above.items() if forward[n[1:]].requires_grad}
    gradients: Tensors = {}
    if tops and towards:
        found = torch.autograd.grad(
            [forward[name[1:]].expand(dy.shape) for name, dy in tops.items()],
            list(towards.values()),
            list(tops.values()),
            allow_unused=True,
        )
        gradients = {
            f"d{name}": value
            for name, value in zip(towards, found, strict=True)
            if value is not None
        }
    for name, leaf in leaves.items():
        gradients.setdefault(f"d{name}", torch.zeros_like(leaf))
    for name, entries in sample.entries(op).items():
        if f"d{name}" in gradients:
            gradients[f"d{name}"] = entry_sums(gradients[f"d{name}"], entries)
    return {name: value.detach() for name, value in forward.items()}, gradients


def referenced(
    op: RowOp, reference: Reference, sample: Sample, with_gradients: bool
) -> tuple[Tensors, dict[str, torch.dtype], Tensors]:
    """The reference's outputs, the dtypes it returned them in, and its gradients by autograd."""
    inputs = {name: None if t is None else t.clone() for name, t in sample.inputs.items()}
    leaves: Tensors = {}
    if with_gradients:
        for entry in differentiable_inputs(op.spec):
            tensor = inputs[entry.name]
            if tensor is not None:
                leaves[entry.name] = tensor.requires_grad_()
    with torch.set_grad_enabled(with_gradients):
        returned = reference.outputs(sample, inputs)
    with reference.differentiated(sample):
        gradients = pulled(op, sample, returned, leaves)
    given = {entry.name: entry for entry in op.spec.inputs}
    flat = {
        output.name: sample.flat(
            returned[output.name].detach().to(torch.float64), op.output_kind(output)
        )
        for output in op.spec.outputs
    }
    expected = {
        f"d{name}": sample.flat_input(value.detach(), given[name])
        for name, value in gradients.items()
    }
    return flat, {name: value.dtype for name, value in returned.items()}, expected


def pulled(
    op: RowOp,
    sample: Sample,
    returned: Mapping[str, Tensor],
    leaves: Mapping[str, Tensor],
    above: Mapping[str, Tensor] | None = None,
    create_graph: bool = False,
) -> Tensors:
    """The gradients of the leaves for the sample's upstream gradients; zeros where none arrives."""
    tops = {
        output.name: tensor
        for output in differentiable_outputs(op.spec)
        if (tensor := (above or sample.upstream).get(output.name)) is not None
        and returned[output.name].requires_grad
    }
    if not leaves:
        return {}
    if not tops:
        return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    found = torch.autograd.grad(
        [returned[name] for name in tops],
        list(leaves.values()),
        [tops[name].to(returned[name].dtype) for name in tops],
        allow_unused=True,
        create_graph=create_graph,
    )
    return {
        name: torch.zeros_like(leaf) if value is None else value
        for (name, leaf), value in zip(leaves.items(), found, strict=True)
    }


def _shape(kind: Kind, sample: Sample) -> tuple[int, ...]:
    columns = sample.shape[-1]
    return {
        Kind.MATRIX: (sample.rows, columns),
        Kind.PER_ROW: (sample.rows, 1),
        Kind.PER_COLUMN: (1, columns),
        Kind.SCALAR: (),
    }[kind]
