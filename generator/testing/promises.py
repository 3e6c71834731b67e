"""Checks of what an op promises besides its results: the contract, scratch, autograd."""

from __future__ import annotations

import re

import pytest
import torch
from kgen.testing import paths
from kgen.testing.contract import Refusal
from kgen.testing.description import Op
from kgen.testing.interpreter import watched
from kgen.testing.layouts import (
    REFUSED_LAYOUTS,
    arrange,
)
from kgen.testing.report import Report
from kgen.testing.results import (
    Allocations,
    Result,
    backward,
    differentiate,
    forward,
    leaves_of,
    named,
    present,
    reference,
)
from kgen.testing.samples import (
    LONG,
    Arguments,
    arguments,
    upstream,
)


def check_refusal(op: Op, refusal: Refusal) -> None:
    """A wrong argument is refused before anything runs, by a message that names it."""
    before = sum(op.module.calls.values())
    with paths.constants(op, **refusal.constants):
        try:
            refusal.call(op)
        except (TypeError, ValueError) as error:
            raised: Exception | None = error
        else:
            raised = None
    with Report(op, refusal.shape, f"{refusal}") as report:
        report.expect(raised is not None, f"accepted, expected {refusal.error.__name__}")
        if raised is not None:
            kind, text = type(raised), str(raised)
            report.expect(kind is refusal.error, f"raised {kind.__name__}: {text}")
            report.expect(text.startswith(f"{op.name}: "), f"does not begin with the op: {text}")
            named_there = re.search(rf"\b{refusal.argument}\b", text)
            report.expect(named_there, f"does not name {refusal.argument}: {text}")
        report.expect(sum(op.module.calls.values()) == before, "something was launched or counted")


def check_way_out(op: Op, layout: str, way: str) -> None:
    """``on_unsupported="copy"`` and ``"reference"`` give the result and are counted."""
    shape = REFUSED_LAYOUTS[layout]
    call = arguments(op, shape, op.usual)
    matrix = arrange(present(call.tensors[op.matrix.name]), layout)
    strided = call.with_tensors({op.matrix.name: matrix})
    counted = {"copy": "forward.copied", "reference": "forward.reference"}[way]
    with Report(op, shape, f"{layout} with on_unsupported={way!r}") as report:
        got = forward(op, strided, on_unsupported=way)
        report.results(got, reference(op, strided))
        report.expect(got.calls[counted] == 1, f"counted {dict(got.calls)}")
        ran = paths.schedule_calls("forward", got.calls)
        report.expect(("forward.reference" in ran) == (way == "reference"), f"ran {ran}")
        if op.gradients:
            got = backward(op, strided, on_unsupported=way)
            report.results(got, reference(op, strided, like=got))
        plain = forward(op, call, on_unsupported=way)
        report.expect(not plain.calls[counted], f"contiguous rows counted {dict(plain.calls)}")


def check_too_long(op: Op) -> None:
    """Rows over the limit run through the reference if that is asked for, and only then."""
    call = arguments(op, (4, 33), op.usual)
    with Report(op, (4, 33), "N over the limit") as report, paths.constants(op, MAX_COLUMNS=32):
        got = forward(op, call, on_unsupported="reference")
        report.results(got, reference(op, call))
        report.expect(got.calls == {"forward.reference": 1}, f"counted {dict(got.calls)}")


def check_scratch(op: Op, budget_rows: int, path: str) -> None:
    """Column sums in a scratch of so many rows, however many rows the matrix has.

    The groups of rows that are summed depend on it, so the sums are checked as well.
    """
    shape, sums = (17, 301), len(op.column_gradients)
    call = arguments(op, shape, op.usual)
    budget = budget_rows * 4 * shape[1] * sums
    others = 2 * 4 * shape[1] * sums + 64 * shape[0]  # the gradients themselves, values of rows
    with Report(op, shape, f"scratch of {budget_rows} rows, {path}") as report:
        with paths.on_path(op, path), paths.constants(op, SCRATCH_BYTES=budget), watched():
            leaves = leaves_of(op, call, op.column_gradients)
            outputs = named(op, op.function(*leaves.values(), **call.params))
            above = upstream(op, outputs)
            with Allocations() as seen:
                gradients = differentiate(outputs, leaves, above)
        got = Result(outputs, gradients, above)
        report.results(got, reference(op, call, like=got))
        report.expect(
            seen.bytes <= budget + others,
            f"backward allocated {seen.bytes} bytes, {budget} for sums and {others} for the rest",
        )


def check_untouched(op: Op, path: str) -> None:
    """Inputs and upstream gradients are read, never written."""
    call = arguments(op, LONG, op.usual)
    with Report(op, LONG, f"arguments after the call, {path}") as report, paths.on_path(op, path):
        above = upstream(op, forward(op, call).outputs)
        kept = {
            name: tensor.clone()
            for name, tensor in {**call.tensors, **above}.items()
            if tensor is not None
        }
        if op.gradients:
            backward(op, call, given=above)
        for name, tensor in {**call.tensors, **above}.items():
            if tensor is not None:
                report.same(f"{name} afterwards", tensor, kept[name])


def check_grad_mode(op: Op) -> None:
    """Results require a gradient if an input does and grad mode is on; else nothing is saved."""
    call = arguments(op, LONG, op.usual)
    with Report(op, LONG, "requires_grad") as report, watched():
        for entry in op.inputs:
            if entry.name not in op.gradients:
                continue
            leaf = present(call.tensors[entry.name]).detach().requires_grad_()
            tensors = call.with_tensors({entry.name: leaf}).tensors.values()
            for enabled in (True, False):
                with torch.set_grad_enabled(enabled):
                    outputs = named(op, op.function(*tensors, **call.params))
                tracked = any(out.requires_grad for out in outputs.values())
                report.expect(tracked == enabled, f"{entry.name}: {tracked}, grad mode {enabled}")
        plain = named(op, op.function(*call.tensors.values(), **call.params))
        report.expect(
            not any(out.requires_grad for out in plain.values()), "requires grad for no reason"
        )


def check_twice(op: Op) -> None:
    """A second differentiation raises; it never leaves a term out in silence."""
    call = arguments(op, (3, 33), op.dtypes[-1])
    if not _has_second_order(op, call):
        pytest.skip("the first derivative does not depend on the inputs: there is no second")
    for upstream_needs in (False, True):
        case = f"second derivative, dy.requires_grad={upstream_needs}"
        with Report(op, (3, 33), case) as report, watched():
            leaf = present(call.tensors[op.gradients[0]]).detach().requires_grad_()
            tensors = call.with_tensors({op.gradients[0]: leaf}).tensors.values()
            outputs = named(op, op.function(*tensors, **call.params))
            above = upstream(op, outputs)
            used = [name for name, dy in above.items() if dy is not None]
            dys = [present(above[name]).requires_grad_(upstream_needs) for name in used]
            try:
                (first,) = torch.autograd.grad(
                    [outputs[name] for name in used], leaf, dys, create_graph=True
                )
                torch.autograd.grad((first * leaf).sum(), leaf)
            except RuntimeError:
                continue
            report.expect(False, "no RuntimeError: the second-order term was dropped")


def _has_second_order(op: Op, call: Arguments) -> bool:
    """Whether the reference's derivative depends on the first input that has one."""
    leaf = present(call.tensors[op.gradients[0]]).detach().requires_grad_()
    tensors = call.with_tensors({op.gradients[0]: leaf}).tensors.values()
    outputs = named(op, op.reference(*tensors, **call.params))
    total = sum(((out * torch.rand_like(out)).sum() for out in outputs.values()), torch.zeros(()))
    (first,) = torch.autograd.grad(total, leaf, create_graph=True)
    return bool(first.requires_grad)
