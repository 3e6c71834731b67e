"""Checks of what an op promises besides its results: the contract, scratch, autograd."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

import pytest
import torch
from kgen.testing import paths
from kgen.testing.contract import Refusal
from kgen.testing.description import Input, Op
from kgen.testing.expectations import expect_dtypes, expect_schedules
from kgen.testing.interpreter import watched
from kgen.testing.layouts import (
    REFUSED_LAYOUTS,
    arrange,
    spread,
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


def _refused(entry: Input, tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """The values in a form that the kernels do not take."""
    if entry.kind == "scalar" and tensor.is_floating_point():
        return torch._neg_view(tensor.neg())
    return _arranged(tensor, layout) if entry.kind == "matrix" else spread(tensor)


def check_way_out(op: Op, layout: str, way: str) -> None:
    """``on_unsupported="copy"`` and ``"reference"`` give the result and are counted.

    Every tensor has strides that the kernels do not take, and the reference may give its result
    in any dtype.
    """
    shape = REFUSED_LAYOUTS[layout]
    call = arguments(op, shape, op.usual)
    strided = call.with_tensors(
        {
            entry.name: _refused(entry, tensor, layout)
            for entry in op.inputs
            if (tensor := call.tensors[entry.name]) is not None
        }
    )
    counted = {"copy": "forward.copied", "reference": "forward.reference"}[way]
    wide = {f"{op.name}_reference": _in_float64(op.reference)}
    with Report(op, shape, f"{layout} with on_unsupported={way!r}") as report:
        with paths.constants(op, **wide):
            got = forward(op, strided, on_unsupported=way)
        report.results(got, reference(op, strided))
        expect_dtypes(report, call, got, contiguous=way == "copy")
        report.expect(got.calls[counted] == 1, f"counted {dict(got.calls)}")
        ran = paths.schedule_calls("forward", got.calls)
        report.expect(("forward.reference" in ran) == (way == "reference"), f"ran {ran}")
        if op.gradients:
            got = backward(op, strided, on_unsupported=way)
            report.results(got, reference(op, strided, like=got))
        plain = forward(op, call, on_unsupported=way)
        report.expect(not plain.calls[counted], f"contiguous rows counted {dict(plain.calls)}")


def _arranged(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """The matrix in that layout; a row of one value has a mean that float32 gets right.

    A variance of zeros would magnify its rounding beyond any tolerance, in the reference too.
    """
    if layout == "one_value" and tensor.is_floating_point():
        tensor = (8 * tensor).round() / 8
    return arrange(tensor, layout)


def _in_float64(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose float results are all in float64."""

    def wide(*arguments: Any, **keywords: Any) -> Any:
        made = function(*arguments, **keywords)
        results = made if isinstance(made, tuple) else (made,)
        results = tuple(r.double() if r.is_floating_point() else r for r in results)
        return results if isinstance(made, tuple) else results[0]

    return wide


def check_too_long(op: Op) -> None:
    """Rows over the limit run through the reference if that is asked for, and only then."""
    call = arguments(op, (4, 33), op.usual)
    with Report(op, (4, 33), "N over the limit") as report, paths.constants(op, MAX_COLUMNS=32):
        got = forward(op, call, on_unsupported="reference")
        report.results(got, reference(op, call))
        report.expect(got.calls == {"forward.reference": 1}, f"counted {dict(got.calls)}")


def check_at_the_limit(op: Op) -> None:
    """Rows as long, and as many, as the limits allow run in the kernels."""
    shape = (4, 33)
    call = arguments(op, shape, op.usual)
    limits = {"MAX_COLUMNS": shape[1], "MAX_ROWS": shape[0]}
    with Report(op, shape, "N and M at the limits") as report, paths.constants(op, **limits):
        got = forward(op, call)
        expect_schedules(report, call, got, ("forward",))
        report.results(got, reference(op, call))


def check_scratch(op: Op, budget_rows: int, path: str) -> None:
    """Column sums in a scratch of so many rows, however many rows the matrix has.

    The groups of rows that are summed depend on it, so the sums are checked as well.
    """
    call = arguments(op, (7, 201), op.usual)
    with Report(op, (7, 201), f"scratch of {budget_rows} rows, {path}") as report:
        with paths.on_path(op, path):
            got = _expect_bytes(report, call, op.column_gradients, budget_rows)
        report.results(got, reference(op, call, like=got))


def check_memory(op: Op, wanted: tuple[str, ...], path: str, dtype: str | None = None) -> None:
    """Backward makes room for the gradients that are wanted, in the dtypes of their inputs.

    A gradient that nobody wants, or one that autograd has to round afterwards, shows nowhere else:
    in the first dtype that the op takes unless told, the narrowest.
    """
    dtype = dtype or op.dtypes[0]
    case = f"memory for gradients of {wanted}, {dtype} {path}"
    with Report(op, LONG, case) as report, paths.on_path(op, path):
        _expect_bytes(report, arguments(op, LONG, dtype), wanted, budget_rows=1)


def _expect_bytes(
    report: Report, call: Arguments, wanted: Collection[str], budget_rows: int
) -> Result:
    """Run backward for these inputs and watch what it allocates.

    It may take the gradients themselves, for each column sum so many rows of scratch, and some
    values of rows. Where each place has sums of its own, the scratch has a row for each at least;
    sums of columns that share an entry are made column by column first.
    """
    op, (n_rows, n_columns) = report.op, report.shape
    sums = [op.input(name) for name in wanted if name in op.column_gradients]
    row_bytes = n_columns * call.compute.itemsize
    budget = budget_rows * len(sums) * row_bytes
    parts = n_rows if any(op.input(n).kind == "per_place" for n in op.column_gradients) else 1
    scratch = max(budget_rows, parts) * len(sums) * row_bytes
    scratch += sum(
        (n_rows if entry.kind == "per_place" else 1) * row_bytes
        for entry in sums
        if entry.shares_columns or entry.kind == "scalar"
    )
    gradients = sum(present(call.tensors[name]).nbytes for name in wanted)
    others = 8 * call.compute.itemsize * n_rows
    with paths.constants(op, SCRATCH_BYTES=budget), watched():
        leaves = leaves_of(op, call, wanted)
        outputs = named(op, op.function(*leaves.values(), **call.params))
        above = upstream(op, outputs)
        with Allocations() as seen:
            found = differentiate(outputs, leaves, above)
    report.expect(
        seen.bytes <= gradients + scratch + others,
        f"backward allocated {seen.bytes} bytes; {gradients} for gradients, {scratch} for sums and "
        f"{others} for values of rows would do",
    )
    return Result(outputs, found, above)


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


def check_inference_only(op: Op) -> None:
    """An op without gradients says so when one would be needed, whichever input asks for it."""
    call = arguments(op, LONG, op.usual)
    for entry in op.inputs:
        if not entry.differentiable:
            continue
        leaf = present(call.tensors[entry.name]).detach().requires_grad_()
        tensors = call.with_tensors({entry.name: leaf}).tensors.values()
        with Report(op, LONG, f"{entry.name} requires a gradient") as report, watched():
            with torch.no_grad():
                op.function(*tensors, **call.params)
            try:
                op.function(*tensors, **call.params)
            except RuntimeError as error:
                told = str(error).startswith(f"{op.name}: ")
                report.expect(told, f"does not begin with the op: {error}")
            else:
                report.expect(False, "no RuntimeError: the gradient would be missing in silence")


def check_changed(op: Op) -> None:
    """A tensor written to between forward and backward raises, or changes no gradient.

    Autograd notices it only of what was saved by ``save_for_backward``.
    """
    call = arguments(op, LONG, op.usual)
    expected = backward(op, call)
    with Report(op, LONG, "a tensor changed before backward") as report, watched():
        for name in (*call.tensors, *expected.outputs):
            fresh = call.with_tensors(
                {n: None if t is None else t.clone() for n, t in call.tensors.items()}
            )
            leaves = leaves_of(op, fresh)
            outputs = named(op, op.function(*leaves.values(), **call.params))
            tensor = leaves[name] if name in leaves else outputs[name]
            if tensor is None:
                continue
            with torch.no_grad():
                _change(tensor)
            try:
                found = differentiate(outputs, leaves, expected.upstream)
            except RuntimeError:
                continue
            for gradient, value in expected.gradients.items():
                report.same(f"d{gradient} after a change of {name}", found[gradient], value)


def _change(tensor: torch.Tensor) -> None:
    if tensor.is_floating_point():
        tensor.mul_(1.5).add_(0.25)
    else:
        tensor.zero_()


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
