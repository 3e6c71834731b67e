"""The line of backward, or of the reference, that makes a gradient wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kgen.errors import Problem
from kgen.ir import Program, Role, Type, Variable
from kgen.lower import RowOp, input_variables
from kgen.spec import Element, differentiable_outputs, gradient_name
from kgen.verify.compare import (
    AUTOGRAD,
    OWN,
    Row,
)
from kgen.verify.edits import Edit
from kgen.verify.facts import Facts
from kgen.verify.lines import (
    FAULT,
    backward_line,
    chosen,
    masks_of,
    mended_words,
    one_of,
    origin,
    written_backward,
    wrong_words,
)
from kgen.verify.measure import backward_values
from kgen.verify.repair import feeding, repairs, trial
from kgen.verify.witnesses import Witnesses


def blame_gradients(facts: Facts) -> list[Problem]:
    """The outputs are right, and gradients are not."""
    spec, table = facts.op.spec, facts.table
    theirs = {row.quantity: row for row in table.failed(AUTOGRAD)}
    ours = {row.quantity: row for row in table.failed(OWN)}
    if (theirs or ours) and facts.stopped:
        row = [*theirs.values(), *ours.values()][0]
        return [
            Problem(
                "this detach stops a gradient that the reference lets through: "
                f"{facts.extent(row)}",
                detach.at,
            )
            for detach in facts.stopped
        ]
    if spec.backward == "derive":
        if not ours and theirs:
            return [_other_gradient(facts, row) for row in theirs.values()]
        return [Problem(f"{facts.extent(r)}; {FAULT}", spec.backward_at) for r in ours.values()]
    both = [theirs[name] for name in theirs if name in ours]
    problems = _backward_lines(facts, both) if both else []
    for name, row in theirs.items():
        if name not in ours:
            problems.append(_other_gradient(facts, row))
    for name, row in ours.items():
        if name not in theirs:
            at = backward_line(facts, name).at
            words = f"'{name}' does not differentiate the forward formulas"
            problems.append(Problem(f"{words}: it is {facts.extent(row)}", at))
    return problems


def _other_gradient(facts: Facts, row: Row) -> Problem:
    return Problem(
        f"autograd of the reference gives another {row.quantity} than autograd of the formulas, "
        f"though the outputs agree: {facts.extent(row)}; does the reference detach something?",
        facts.reference.line_of(),
    )


def _backward_lines(facts: Facts, wrong: Sequence[Row]) -> list[Problem]:
    """The lines of backward to blame: one for all wrong gradients, or one for each."""
    left = list(wrong)
    problems: list[Problem] = []
    for insert in (False, True):
        groups = [left, *([row] for row in left)] if len(left) > 1 else [left]
        for group in groups:
            if group and all(row in left for row in group):
                found = _repair_backward(facts, group, insert=insert)
                if found:
                    problems.append(_backward_problem(facts, group, found))
                    left = [row for row in left if row not in group]
    problems += [_backward_problem(facts, [row], {}) for row in left]
    return list(dict.fromkeys(problems))


def _repair_backward(facts: Facts, wrong: Sequence[Row], *, insert: bool) -> dict[str, Edit]:
    program = _with_everything(facts.op)
    names = [row.quantity for row in wrong]
    others = {row.quantity for row in facts.table.failed(AUTOGRAD)}.difference(names)
    failed = [number for row in wrong for number in row.failed[:4]]
    passed = [number for row in wrong for number in row.passed[:2]]
    trials = []
    for one in chosen(facts, (*failed, *passed)):
        wanted = {n: one.expected[n] for n in names if n in one.expected}
        wanted |= {n: v for n, v in one.expected.items() if n not in others}
        values = {**one.forward, **backward_values(facts.op, one.sample, one.forward, program)}
        trials.append(trial(program, values, wanted, entries=one.sample.entries(facts.op)))
    written = {assignment.name for assignment in written_backward(facts.op.spec)}
    # A line that alone makes several gradients wrong is found when all are repaired together.
    shared = set(feeding(program, others)).difference(names)
    suspects = [n for n in feeding(program, names) if n in written and n not in shared]
    if insert:
        witnesses = Witnesses(facts, chosen(facts, failed))
        suspects = [name for name in suspects if not witnesses.confirm(name)]
    return repairs(trials, suspects, masks=masks_of(facts.op.forward), insert=insert)


def _with_everything(op: RowOp) -> Program:
    """The backward program, which may also use the arguments and names that it does not use."""
    program = op.backward
    assert program is not None
    upstream = [
        Variable(gradient_name(r.name), Type(r.kind, Element.FLOAT), Role.UPSTREAM, 0.0)
        for r in op.forward.results
        if r.role is Role.OUTPUT and r.name in {o.name for o in differentiable_outputs(op.spec)}
    ]
    saved = [Variable(d.name, d.type, Role.SAVED) for d in op.forward.definitions if d.text]
    taken = {v.name for v in program.variables} | {d.name for d in program.definitions}
    more = [v for v in (*_arguments(op), *saved, *upstream) if v.name not in taken]
    return Program((*program.variables, *more), program.definitions, program.results)


def _arguments(op: RowOp) -> list[Variable]:
    return list(input_variables(op.spec))


def _backward_problem(facts: Facts, wrong: Sequence[Row], found: Mapping[str, Edit]) -> Problem:
    program = facts.op.backward
    assert program is not None
    row = wrong[0]
    written = {assignment.name for assignment in written_backward(facts.op.spec)}
    suspects = [n for n in feeding(program, [r.quantity for r in wrong]) if n in written]
    witnesses = Witnesses(facts, chosen(facts, (*row.failed, *row.passed[:2])))
    accused = [name for name in suspects if witnesses.against(name)]
    doubtful = [name for name in suspects if not witnesses.confirm(name)]
    name, edit = one_of(found, accused, doubtful)
    if name is None:
        name = accused[0] if accused else origin(program, row.quantity)
    definition = backward_line(facts, name)
    message = f"{wrong_words(name, wrong)}: {facts.extent(row)}{mended_words(edit)}"
    return Problem(message, edit.old.at if edit else definition.at)
