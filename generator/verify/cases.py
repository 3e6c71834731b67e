"""The worked examples of a spec: whether the formulas give the numbers that it expects."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from decimal import Decimal
from typing import cast

import torch
from kgen.errors import KgenError, Problem, Span
from kgen.interpret import Number, dtype_of, element_dtype, rounded_to
from kgen.lower import RowOp
from kgen.spec import (
    COMPUTE,
    OUTPUT_DTYPES,
    Case,
    Element,
    Kind,
    Output,
    Spec,
    differentiable_inputs,
    differentiable_outputs,
    gradient_name,
)
from kgen.verify.compare import AUTOGRAD, CASES, REFERENCE, SPEC, Table, gap
from kgen.verify.facts import Facts
from kgen.verify.measure import Measured, Tensors, ahead, backward_of, measure
from kgen.verify.samples import Sample
from torch import Tensor

_OWN, _OTHERS = 1e-5, 2e-6
"""What numbers may be off beyond their last digit, by rounded inputs or a small eps: a share of
their own size, and of the largest one of the quantity, which others of it may cancel."""


def check_cases(op: RowOp, table: Table) -> list[Problem]:
    """Calculate every case that expects something, and say which numbers of it are wrong.

    A number is right if it is what the formulas give, rounded to the digits written, and if the
    generated test would take it. A spec that expects any number gets a row in the table.
    """
    problems: list[Problem] = []
    for number, case in enumerate(case for case in op.spec.cases if case.expect):
        try:
            found = list(_compared(op, case))
        except KgenError as error:
            found = [(math.inf, problem) for problem in error.problems]
        table.row(CASES, SPEC).add(number, max(error for error, _ in found))
        problems += [problem for _, problem in found if problem is not None]
    return problems


def refer_cases(facts: Facts, *, disagreements: bool) -> list[Problem]:
    """Hand every case to the reference, and say where it raises.

    With ``disagreements`` also which outputs and gradients of the formulas are not those that it
    gives.
    """
    problems: list[Problem] = []
    for case in facts.op.spec.cases:
        try:
            one = measure(facts.op, facts.reference, None, _sample(facts.op, case))
        except KgenError as error:
            for problem in error.problems:
                is_named = problem.message.startswith("case ")
                words = problem.message if is_named else f"case '{case.name}': {problem.message}"
                problems.append(Problem(words, problem.at))
            continue
        if disagreements:
            problems += _differing(facts, case, one)
    return problems


def _differing(facts: Facts, case: Case, one: Measured) -> Iterator[Problem]:
    """The quantities of a case for which formulas and reference give different numbers."""
    for name, expected in {**one.outputs, **one.expected}.items():
        got = facts.got(one, name)
        is_output = name in one.outputs
        allow = 1.0 if is_output else facts.allowed(name, one)
        error = gap(got, expected, allow=allow, limits=is_output)
        if error is not None and error > 1:
            words = facts.worst(one, name, REFERENCE if is_output else AUTOGRAD)
            yield _problem(case, f"disagrees: {words}")


def _compared(op: RowOp, case: Case) -> Iterator[tuple[float, Problem | None]]:
    """For every quantity that is expected its error, as a share of what is allowed."""
    sample = _sample(op, case)
    calculated = _calculated(op, sample, case)
    for name, value in case.expect:
        wanted = torch.tensor(value, dtype=torch.float64)
        got = calculated.get(name)
        if got is None:
            given = name.removeprefix("d")
            words = f"expects {name} and gives no {given}: give it, or expect no {name}"
            yield math.inf, _problem(case, words, case.place_of(name))
        elif got.shape != wanted.shape:
            shapes = f"shape {tuple(wanted.shape)}, and the formulas give {tuple(got.shape)}"
            yield math.inf, _problem(case, f"expects {name} of {shapes}", case.place_of(name))
        else:
            errors = _errors(op.spec, name, got, wanted)
            worst = float(errors.max())
            yield worst, None if worst <= 1 else _wrong(case, name, got, wanted, errors)


def _sample(op: RowOp, case: Case) -> Sample:
    """A case as a sample; raises ``KgenError`` for shapes that the op does not take."""
    spec, given = op.spec, dict(case.given)
    inputs = {entry.name: _tensor(given.get(entry.name), entry.element) for entry in spec.inputs}
    matrix = inputs[spec.inputs[0].name]
    assert matrix is not None
    shape = tuple(matrix.shape)
    for entry in spec.inputs:
        tensor = inputs[entry.name]
        if entry.shares_columns and tensor is not None and shape[-1] % tensor.shape[-1]:
            words = f"gives {entry.name} {tensor.shape[-1]} columns, which do not divide the"
            raise KgenError(_problem(case, f"{words} {shape[-1]} of {spec.inputs[0].name}"))
    upstream = {}
    for output in differentiable_outputs(spec):
        name = gradient_name(output.name)
        dy = upstream[output.name] = _tensor(given.get(name), Element.FLOAT)
        own = _shape(op, output, shape)
        if dy is not None and dy.shape != own:
            words = f"gives {name} of shape {tuple(dy.shape)}; it takes {own}"
            raise KgenError(_problem(case, words))
    params = {param.name: given.get(param.name, param.default) for param in spec.params}
    ints = [entry.name for entry in spec.inputs if entry.element is Element.INT]
    told = tuple(
        f"{name} = {textwrap.shorten(str(tensor.tolist()), 80)}"
        for name in ints
        if (tensor := inputs[name]) is not None
    )
    return Sample(shape, inputs, cast(dict[str, Number], params), upstream, told=told)


def _calculated(op: RowOp, sample: Sample, case: Case) -> Tensors:
    """What the formulas give, in the shapes that users see, without gradients of absent inputs."""
    forward, found = ahead(op, sample), {}
    for output in op.spec.outputs:
        columns = sample.shape[-1] if op.output_kind(output) is Kind.MATRIX else 1
        value = forward[output.name].expand(sample.rows, columns)
        found[output.name] = value.reshape(_shape(op, output, sample.shape))
    if all(name in found for name, _ in case.expect):
        return found
    backward = backward_of(op, sample, forward)
    for entry in differentiable_inputs(op.spec):
        given = sample.inputs[entry.name]
        if given is not None:
            name = gradient_name(entry.name)
            found[name] = torch.zeros(given.numel(), dtype=torch.float64)
            places = sample.flat_input(torch.arange(given.numel()).reshape(given.shape), entry)
            found[name][places.flatten()] = backward[name].expand(places.shape).flatten()
            found[name] = found[name].reshape(given.shape)
    return found


def _shape(op: RowOp, output: Output, shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape if op.output_kind(output) is Kind.MATRIX else shape[:-1]


def _tensor(value: object, element: Element) -> Tensor | None:
    return None if value is None else torch.tensor(value, dtype=element_dtype(element))


def _errors(spec: Spec, name: str, got: Tensor, wanted: Tensor) -> Tensor:
    """The difference of each entry, as a share of what is allowed."""
    stored = next((output.dtype for output in spec.outputs if output.name == name), COMPUTE)
    tolerance = spec.tolerances.get(stored, spec.tolerances["float32"])
    digits, sizes = wanted.clone().apply_(_half_a_digit), wanted.abs()
    allowed = digits + _OWN * sizes + _OTHERS * (float(sizes.max()) or 1.0)
    allowed = allowed.minimum(tolerance.absolute + tolerance.relative * sizes)
    right = got == wanted
    if stored in OUTPUT_DTYPES:  # either number may be the one before it is stored
        dtype = dtype_of(stored)
        held = rounded_to(wanted, dtype) if dtype.is_floating_point else wanted
        right |= rounded_to(got, dtype) == held
    errors = ((got - wanted).abs() / allowed).nan_to_num(nan=math.inf, posinf=math.inf)
    return errors.masked_fill(right, 0)


def _half_a_digit(number: float) -> float:
    """Half a unit of the last digit behind the point: 0.0005 for 0.125, and 0 for 3."""
    exponent = int(Decimal(repr(number)).normalize().as_tuple().exponent)
    return 0.5 * 10.0**exponent if exponent < 0 else 0.0


def _wrong(case: Case, name: str, got: Tensor, wanted: Tensor, errors: Tensor) -> Problem:
    """``expects y[0][1] = -0.175, and the formulas give -0.175412``: the worst entry."""
    entry, others = int(errors.argmax()), int((errors > 1).sum()) - 1
    indices = torch.unravel_index(torch.tensor(entry), errors.shape)
    place = name + "".join(f"[{int(index)}]" for index in indices)
    expected, calculated = float(wanted.flatten()[entry]), float(got.flatten()[entry])
    words = f"expects {place} = {expected:.12g}, and the formulas give "
    words += _shown(calculated, abs(calculated - expected))
    if others:
        words += f"; {others} more of {name} {'is' if others == 1 else 'are'} wrong"
    return _problem(case, words, case.place_of(name, entry))


def _shown(number: float, error: float) -> str:
    """A number in six digits, or in more if the others are what is wrong."""
    digits = (f"{number:.{count}g}" for count in range(6, 17))
    return next((text for text in digits if abs(float(text) - number) < 0.1 * error), f"{number}")


def _problem(case: Case, words: str, at: Span | None = None) -> Problem:
    return Problem(f"case '{case.name}' {words}", at or case.at)
