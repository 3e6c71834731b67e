"""Gradients without autograd: finite differences, and what each ``detach`` leaves out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from kgen.errors import Span
from kgen.formulas import text
from kgen.interpret import Number, entry_sums, run
from kgen.ir import Define, Op, Program, Term, walk
from kgen.lower import RowOp
from kgen.spec import differentiable_inputs
from kgen.verify.measure import Measured, backward_of, own_gradients
from kgen.verify.reference import Reference
from kgen.verify.samples import Sample, small_samples
from torch import Tensor

_STEPS = (1e-3, 1e-4, 1e-5)
_RELATIVE = 1e-6
_SEEDS = 3


@dataclass(frozen=True, slots=True)
class Detach:
    """One ``detach`` of the forward formulas, and the formulas without it."""

    words: str
    at: Span
    without: Program


def detaches(op: RowOp) -> Iterator[Detach]:
    """Every ``detach`` in the forward formulas."""
    program = op.forward
    for definition in program.definitions:
        for term in walk(definition.term):
            if isinstance(term, Op) and term.op == "detach":
                yield Detach(text(term), term.at, _without(program, term))


def lost(op: RowOp, detach: Detach, measured: Measured) -> dict[str, Tensor]:
    """The inputs' gradients as they are when this ``detach`` lets them through."""
    _, gradients = own_gradients(op, measured.sample, detach.without)
    return {name: gradients[name] for name in measured.backward if name in gradients}


def slope_errors(op: RowOp, sample: Sample) -> dict[str, float]:
    """For every gradient the error against finite differences, as a share of what is allowed.

    Central differences of fourth order along one random direction, of the smaller error of several
    steps: a kink between two steps spoils the larger of them only. Rounding by ``cast`` is left
    out, as it is in gradients.
    """
    program = _smooth(op.forward)
    values, above = sample.values(op), sample.above(op)
    with torch.no_grad():
        backward = backward_of(op, sample, run(op.forward, values))
        errors: dict[str, float] = {}
        for entry in differentiable_inputs(op.spec):
            base = values.get(entry.name)
            if not isinstance(base, Tensor):
                continue
            direction, count = _direction(base), torch.ones(())
            entries = sample.entries(op).get(entry.name)
            if entries is not None:  # one step for all places of an entry
                direction = direction.flatten()[entries]
                count = entry_sums(torch.ones_like(base), entries)
            flow = backward[f"d{entry.name}"].expand(base.shape) * direction / count

            def along(
                step: float, name: str = entry.name, b: Tensor = base, d: Tensor = direction
            ) -> float:
                return _weighted(program, {**values, name: b + step * d}, above)

            size = abs(along(0.0))
            bound = _RELATIVE * (float(flow.abs().sum()) + 1e-3 * size + 1e-3)
            errors[f"d{entry.name}"] = min(
                abs(_fourth_order(along, step) - float(flow.sum())) / bound for step in _STEPS
            )
    return errors


def passes_gradcheck(op: RowOp, reference: Reference) -> list[bool]:
    """``torch.autograd.gradcheck`` of the reference, for each choice of inputs and bool params.

    A choice passes if one of several random samples does: the others may sit on a kink.
    """
    draws = [small_samples(op, seed) for seed in range(_SEEDS)]
    return [any(_gradcheck(op, reference, s) for s in group) for group in zip(*draws, strict=True)]


def _gradcheck(op: RowOp, reference: Reference, sample: Sample) -> bool:
    names = [i.name for i in differentiable_inputs(op.spec) if sample.inputs[i.name] is not None]
    leaves = [_present(sample.inputs[name]).clone().requires_grad_() for name in names]

    def run_reference(*tensors: Tensor) -> tuple[Tensor, ...]:
        inputs = {**sample.inputs, **dict(zip(names, tensors, strict=True))}
        outputs = reference.outputs(sample, inputs).values()
        return tuple(o for o in outputs if o.dtype is torch.float64 and o.requires_grad)

    if not run_reference(*leaves):
        return True
    with reference.differentiated(sample):
        return torch.autograd.gradcheck(
            run_reference, leaves, raise_exception=False, check_undefined_grad=False
        )


def _present(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor


def _weighted(
    program: Program, values: Mapping[str, Tensor | Number], above: Mapping[str, Tensor]
) -> float:
    """The outputs times their upstream gradients, summed."""
    found = run(program, values)
    return sum(float((found[name[1:]] * dy).sum()) for name, dy in above.items())


def _fourth_order(along: Callable[[float], float], step: float) -> float:
    near = along(step) - along(-step)
    far = along(2 * step) - along(-2 * step)
    return (8 * near - far) / (12 * step)


def _direction(like: Tensor) -> Tensor:
    seed = torch.Generator().manual_seed(like.numel())
    drawn = torch.randn(like.shape, generator=seed, dtype=torch.float64)
    return drawn.clamp(-2, 2)


def _smooth(program: Program) -> Program:
    """The program without rounding to dtypes."""
    return _rewritten(program, lambda term: term.arguments[0] if term.op == "cast" else term)


def _without(program: Program, detach: Op) -> Program:
    """The program in which one ``detach`` is its argument."""
    return _rewritten(
        program, lambda term: term.arguments[0] if term == detach and term.at == detach.at else term
    )


def _rewritten(program: Program, change: Callable[[Op], Term]) -> Program:
    def visit(term: Term) -> Term:
        if not isinstance(term, Op):
            return term
        arguments = tuple(visit(argument) for argument in term.arguments)
        return change(Op(term.op, arguments, term.type, term.at, term.like))

    definitions = tuple(Define(d.name, visit(d.term), d.text, d.at) for d in program.definitions)
    return Program(program.variables, definitions, program.results)


def rounds(op: RowOp) -> bool:
    """Whether the forward formulas round to a named dtype, which no gradient sees."""
    inputs = {entry.name for entry in op.spec.inputs}
    terms = (t for d in op.forward.definitions for t in walk(d.term))
    return any(isinstance(t, Op) and t.op == "cast" and t.like not in inputs for t in terms)
