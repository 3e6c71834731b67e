"""All comparisons of one spec, and the report of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from kgen.errors import KgenError, Problem
from kgen.lower import RowOp, lower
from kgen.spec import Spec, differentiable_inputs, gradient_name
from kgen.verify.blame import blame
from kgen.verify.cases import check_cases, refer_cases
from kgen.verify.compare import (
    AUTOGRAD,
    DERIVED,
    DIFFERENCES,
    DOUBLE,
    GRADCHECK,
    OWN,
    REFERENCE,
    WITHOUT,
    Row,
    Table,
    gap,
)
from kgen.verify.double import double_backward
from kgen.verify.facts import Facts
from kgen.verify.measure import Measured, measure
from kgen.verify.reference import Reference
from kgen.verify.samples import are_compared, samples
from kgen.verify.slopes import detaches, lost, passes_gradcheck, rounds, slope_errors

AS_REFERENCE = "as the reference"
_DOUBLE_CASES = 12


@dataclass(slots=True)
class Report:
    """What was found for one spec: the table, what is wrong, and what is worth knowing."""

    spec: Spec
    rows: list[Row]
    problems: list[Problem] = field(default_factory=list)
    remarks: list[Problem] = field(default_factory=list)

    @property
    def agrees(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify(spec: Spec) -> Report:
    """Run every comparison; raises ``KgenError`` for a spec or a reference that cannot be run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the samples are small: threads would only wait for each other
    try:
        return _verified(spec)
    finally:
        torch.set_num_threads(threads)


def _verified(spec: Spec) -> Report:
    op = lower(spec)
    derived, remark = _derived(spec, op)
    reference = Reference(op)
    measured, refused, remarks = _all_measured(op, reference, derived)
    facts = Facts(op, reference, measured, Table())
    remarks += [] if remark is None else [remark]
    _compare_outputs(facts)
    if op.backward is not None:
        _compare_gradients(facts)
        _compare_slopes(facts)
        remarks += _compare_detached(facts)
        _compare_double(facts)
        _check_reference(facts)
    problems = [*refused, *([] if facts.table.agrees else blame(facts))]
    numbers = check_cases(op, facts.table)
    problems += refer_cases(facts, disagreements=not problems)
    problems = list(dict.fromkeys([*problems, *numbers]))
    rows = sorted(facts.table.rows.values(), key=_order(facts))
    return Report(spec, rows, problems, remarks)


def _derived(spec: Spec, op: RowOp) -> tuple[RowOp | None, Problem | None]:
    """The op with the backward that kgen derives, where the spec has another."""
    if op.backward is None or spec.backward == "derive":
        return None, None
    try:
        return lower(dataclasses.replace(spec, backward="derive", double_backward=False)), None
    except KgenError as error:
        reason = error.problems[0]
        return None, Problem(f"no derived backward to compare with: {reason.message}", reason.at)


def _all_measured(
    op: RowOp, reference: Reference, derived: RowOp | None
) -> tuple[list[Measured], list[Problem], list[Problem]]:
    """What could be measured, and the samples that the reference refuses: problems and remarks.

    A reference need not take an input that is equal to a param unless the formulas compare the two:
    a seed may be no column.
    """
    measured: list[Measured] = []
    problems: list[Problem] = []
    remarks: list[Problem] = []
    for sample in samples(op):
        try:
            measured.append(measure(op, reference, derived, sample))
        except KgenError as error:
            if sample.equal is None:
                raise
            if are_compared(op, *sample.equal):
                problems += error.problems
            else:
                remarks += error.problems
    return measured, problems, remarks


def _compare_outputs(facts: Facts) -> None:
    for output in facts.op.spec.outputs:
        row = facts.table.row(output.name, REFERENCE)
        for number, one in enumerate(facts.measured):
            row.add(number, gap(one.stored(output.name), one.outputs[output.name]))


def _compare_gradients(facts: Facts) -> None:
    for entry in differentiable_inputs(facts.op.spec):
        name = gradient_name(entry.name)
        for against in (AUTOGRAD, OWN, DERIVED):
            if against == DERIVED and not any(one.derived for one in facts.measured):
                continue
            row = facts.table.row(name, against)
            for number, one in enumerate(facts.measured):
                expected = facts.expected(one, name, against)
                if expected is not None:
                    allow = facts.allowed(name, one)
                    got = one.backward[name]
                    row.add(number, gap(got, expected, allow=allow, limits=False))


def _compare_slopes(facts: Facts) -> None:
    for number, one in enumerate(facts.measured):
        if one.sample.scale != 1 or one.sample.shape[-1] != 7:
            continue
        for name, error in slope_errors(facts.op, one.sample).items():
            facts.table.row(name, DIFFERENCES).add(number, error if error == error else None)


def _compare_detached(facts: Facts) -> list[Problem]:
    """What each ``detach`` leaves out of the gradients: nothing, or what the reference does too."""
    remarks = []
    table = facts.table
    for detach in detaches(facts.op):
        row = table.row(_shortened(detach.words), WITHOUT)
        as_reference = True
        for number, one in enumerate(facts.measured):
            through = lost(facts.op, detach, one)
            errors = [gap(one.own[name], through[name], limits=False) for name in through]
            row.add(number, max((e for e in errors if e is not None), default=None))
            if row.failed and row.failed[-1] == number:
                for name in through.keys() & one.expected.keys():
                    error = gap(one.own[name], one.expected[name], limits=False)
                    as_reference = as_reference and (error is None or error <= 1)
        if row.failed and as_reference:
            row.note = AS_REFERENCE
            remarks.append(
                Problem(
                    "a gradient flows here and is stopped, in the reference as well; finite "
                    "differences see it",
                    detach.at,
                )
            )
            for other in table.failed(DIFFERENCES):
                other.note = AS_REFERENCE
        elif row.failed:
            facts.stopped.append(detach)
    return remarks


def _compare_double(facts: Facts) -> None:
    if facts.op.double_backward is None:
        return
    for number, one in enumerate(facts.measured[:_DOUBLE_CASES]):
        got, expected = double_backward(facts.op, facts.reference, one.sample)
        for name, value in expected.items():
            allow = max(1, one.sample.rows) ** 0.5
            error = gap(got[name], value, allow=allow, limits=False)
            facts.table.row(name, DOUBLE).add(number, error)


def _check_reference(facts: Facts) -> None:
    row = facts.table.row("reference", GRADCHECK)
    for number, passed in enumerate(passes_gradcheck(facts.op, facts.reference)):
        row.add(number, 0.0 if passed else float("inf"))
    stops = any(r.note == AS_REFERENCE for r in facts.table.rows.values())
    if row.failed and (rounds(facts.op) or stops):
        row.note = "rounds, as the formulas" if rounds(facts.op) else AS_REFERENCE


def _order(facts: Facts) -> Callable[[Row], int]:
    """Rows of one quantity stand together, in the order of their first ones."""
    first = {
        row.quantity: place for place, row in reversed([*enumerate(facts.table.rows.values())])
    }
    return lambda row: first[row.quantity]


def _shortened(words: str) -> str:
    return words if len(words) <= 24 else words[:21] + "..."
