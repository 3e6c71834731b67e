"""The line of forward, or of the reference, that makes an output wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from kgen.errors import KgenError, Problem, Span
from kgen.expr import Assignment
from kgen.formulas import expr_of, text
from kgen.ir import Define, Literal, Program, Ref
from kgen.lower import RowOp, lower
from kgen.spec import Element, Spec
from kgen.verify.blame_backward import blame_gradients
from kgen.verify.compare import (
    AUTOGRAD,
    OWN,
    Row,
    Table,
    gap,
    same,
)
from kgen.verify.edits import Edit
from kgen.verify.facts import Facts
from kgen.verify.lines import (
    chosen,
    defined,
    masks_of,
    mended_words,
    one_of,
    origin,
    wrong_words,
)
from kgen.verify.measure import Measured, ahead, measure, referenced
from kgen.verify.repair import Trial, feeding, repairs, trial


def blame_forward(facts: Facts, wrong: Sequence[Row]) -> list[Problem]:
    """The outputs are wrong: by a line of forward, or by the reference."""
    spec, table = facts.op.spec, facts.table
    row = wrong[0]
    extent = facts.extent(row)
    if _agrees_with_wide_constants(facts, wrong):
        message = (
            f"the reference makes float32 tensors of its constants: {extent}; torch.where of two "
            "numbers, torch.tensor(0.5) or torch.arange give them, unless told dtype=x.dtype"
        )
        return [Problem(message, facts.reference.line_of())]
    if at := _narrowed(facts, row):
        message = (
            f"the reference rounds to a narrow dtype here: {extent}; leave the dtype alone, "
            "since it is called with float64 to be exact"
        )
        return [Problem(message, at)]
    plain = lower(dataclasses.replace(spec, backward="none", double_backward=False)).forward
    some = chosen(facts, (*row.failed, *row.passed[:3]))
    trials = [_forward_trial(facts, plain, one) for one in some]
    suspects = feeding(plain, [r.quantity for r in wrong])
    numbers = [*facts.reference.numbers(), *_defaults(spec)]
    found = repairs(trials, suspects, numbers, insert=False)
    found = found or repairs(trials, suspects, masks=masks_of(plain), insert=True)
    differing = _differing(facts, plain, suspects, some)
    name, edit = one_of(found, differing, mends=lambda e: _mends_backward(facts, e, some))
    if name is None:
        name = differing[0] if differing else origin(plain, row.quantity)
    definition = defined(plain, name)
    is_written = isinstance(spec.backward, tuple)
    if is_written and not table.failed(OWN) and not _breaks(facts, row):
        return [_odd_reference(facts, extent, definition, edit, differing)]
    message = f"{wrong_words(name, wrong)}: {extent}{mended_words(edit)}"
    if not is_written:
        message += f"; or the reference is wrong, line {facts.reference.line_of().line}"
    if is_written and not table.failed(AUTOGRAD):
        message += "; the backward formulas agree with the reference"
    problems = [Problem(message, edit.old.at if edit else definition.at)]
    if edit is not None and is_written and table.failed(AUTOGRAD):
        problems += _then_backward(facts, edit)
    return problems


def _breaks(facts: Facts, row: Row) -> bool:
    """Whether the formulas give no number where the reference gives one."""
    return any(
        not facts.got(one, row.quantity)[one.outputs[row.quantity].isfinite()].isfinite().all()
        for one in (facts.measured[number] for number in row.failed)
    )


def _agrees_with_wide_constants(facts: Facts, wrong: Sequence[Row]) -> bool:
    """Whether all is well when tensors made of plain numbers are float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        for row in wrong:
            for number in row.failed:
                one = facts.measured[number]
                again, _, _ = referenced(facts.op, facts.reference, one.sample, False)
                error = gap(facts.got(one, row.quantity), again[row.quantity])
                if error is not None and error > 1:
                    return False
    finally:
        torch.set_default_dtype(before)
    return True


def _narrowed(facts: Facts, row: Row) -> Span | None:
    """Where the reference rounds to float32, if that explains the difference."""
    for number in row.failed:
        one = facts.measured[number]
        expected = one.outputs[row.quantity]
        error = (facts.got(one, row.quantity) - expected).abs()
        if not float(error.max()) <= 1e-5 * float(expected.abs().max()):
            return None
    return facts.reference.narrowing()


def _forward_trial(facts: Facts, plain: Program, one: Measured) -> Trial:
    return trial(plain, one.sample.values(facts.op), one.outputs, one.dtypes)


def _differing(
    facts: Facts, plain: Program, suspects: Sequence[str], some: Sequence[Measured]
) -> list[str]:
    """The names that the reference assigns too, and to which it gives another value."""
    different: list[str] = []
    for one in some:
        theirs = facts.reference.local_values(one.sample)
        ours = ahead(facts.op, one.sample, plain)
        for name in suspects:
            if name in theirs and theirs[name].shape == ours[name].shape:
                error = gap(ours[name], theirs[name], limits=False)
                if error is not None and error > 1 and name not in different:
                    different.append(name)
    return [name for name in suspects if name in different]


def _odd_reference(
    facts: Facts, extent: str, definition: Define, edit: Edit | None, differing: Sequence[str]
) -> Problem:
    """The forward formulas and those of backward agree with each other: look at the reference."""
    reference = facts.reference
    at = reference.line_of(differing[0] if differing else None)
    place = f"line {definition.at.line}, '{definition.text or definition.name}'"
    message = f"the reference is the odd one out: {extent}"
    message += ", while forward and backward agree with each other"
    if edit is None:
        return Problem(f"{message}; if the reference is right, mend {place}", at)
    number = edit.new.value if isinstance(edit.new, Literal) else None
    if number is not None and isinstance(edit.old, Ref):
        at = reference.place_of(float(number)) or at
        words = f"it counts with {text(edit.new)} whatever {edit.old.name} is"
        return Problem(f"{message}; {words}: {place} uses {edit.old.name}", at)
    return Problem(
        f"{message}; if the reference is right, mend {place}: with {text(edit.new)} in place of "
        f"{text(edit.old)} it agrees",
        at,
    )


def _mends_backward(facts: Facts, edit: Edit, some: Sequence[Measured]) -> bool:
    """Whether the backward formulas agree with the reference once forward is edited."""
    op = _edited(facts.op.spec, edit)
    if op is None or op.backward is None:
        return False
    for one in some:
        again = measure(op, facts.reference, None, one.sample)
        if not all(same(again.backward[n].expand(v.shape), v) for n, v in again.expected.items()):
            return False
    return True


def _then_backward(facts: Facts, edit: Edit) -> list[Problem]:
    """What is still wrong with backward when forward is mended."""
    op = _edited(facts.op.spec, edit)
    if op is None or op.backward is None:
        return []
    measured = [measure(op, facts.reference, None, one.sample) for one in facts.measured]
    mended = Facts(op, facts.reference, measured, Table())
    for number, one in enumerate(mended.measured):
        for name, value in one.expected.items():
            for against, expected in ((AUTOGRAD, value), (OWN, one.own[name])):
                allow = mended.allowed(name, one)
                error = gap(one.backward[name], expected, allow=allow, limits=False)
                mended.table.row(name, against).add(number, error)
    return [] if mended.table.agrees else blame_gradients(mended)


def _edited(spec: Spec, edit: Edit) -> RowOp | None:
    """The op with one formula of forward edited."""
    forward = tuple(
        Assignment(a.name, expr_of(edit.term), text(edit.term), a.at) if a.name == edit.name else a
        for a in spec.forward
    )
    try:
        return lower(dataclasses.replace(spec, forward=forward))
    except KgenError:
        return None


def _defaults(spec: Spec) -> list[float]:
    return [float(p.default) for p in spec.params if p.element is Element.FLOAT]
