"""What is wrong with a spec, each thing at its line."""

from __future__ import annotations

from kgen.errors import Problem
from kgen.verify.blame_backward import blame_gradients
from kgen.verify.blame_forward import blame_forward
from kgen.verify.compare import (
    DERIVED,
    DIFFERENCES,
    DOUBLE,
    GRADCHECK,
    REFERENCE,
)
from kgen.verify.facts import Facts
from kgen.verify.lines import (
    FAULT,
    backward_line,
)


def blame(facts: Facts) -> list[Problem]:
    """What is wrong, each at its line; at least one problem for a table that does not agree."""
    problems = _without_numbers(facts)
    wrong = [row for row in facts.table.failed(REFERENCE) if row.failed]
    if wrong:
        problems += blame_forward(facts, wrong)
    elif not problems and facts.op.backward is not None:
        problems += blame_gradients(facts) or _leftover(facts)
    return list(dict.fromkeys(problems))


def _without_numbers(facts: Facts) -> list[Problem]:
    return [
        Problem(
            f"the reference never gives a finite {row.quantity}, so there is nothing to compare",
            facts.reference.line_of(),
        )
        for row in facts.table.failed(REFERENCE)
        if not row.failed
    ]


def _leftover(facts: Facts) -> list[Problem]:
    """Gradients agree with autograd on both sides; something else does not."""
    spec, problems = facts.op.spec, []
    for against in (DERIVED, DOUBLE):
        for row in facts.table.failed(against):
            words = f"{row.quantity} disagrees with {against}, the formulas being right"
            problems.append(Problem(f"{words}; {FAULT}", spec.backward_at))
    for row in facts.table.failed(DIFFERENCES):
        at = backward_line(facts, row.quantity).at
        problems.append(
            Problem(
                f"'{row.quantity}' disagrees with finite differences of the forward formulas, "
                "though autograd gives the same: is a jump or a detach in the way?",
                at,
            )
        )
    if facts.table.failed(GRADCHECK):
        problems.append(
            Problem(
                "torch.autograd.gradcheck of the reference fails: its gradient is not the slope of "
                "its outputs, so it proves nothing; does it detach or round something?",
                facts.reference.line_of(),
            )
        )
    return problems
