"""What several checks ask of a result."""

from __future__ import annotations

import torch
from kgen.testing import paths
from kgen.testing.description import Op
from kgen.testing.report import Report
from kgen.testing.results import (
    Result,
    backward,
    forward,
    present,
)
from kgen.testing.samples import (
    Arguments,
    Tensors,
    dtype_of,
)


def both(op: Op, call: Arguments, given: Tensors | None = None) -> Result:
    """Outputs and gradients, or outputs alone for an op that has no gradients."""
    return backward(op, call, given=given) if op.gradients else forward(op, call)


def by_row(op: Op, result: Result) -> dict[str, torch.Tensor]:
    """The quantities that have a row for each row of the matrix."""
    columns = {f"d{name}" for name in op.column_gradients}
    found = result.quantities()
    return {name: present(value) for name, value in found.items() if name not in columns}


def expect_schedules(report: Report, call: Arguments, got: Result, passes: tuple[str, ...]) -> None:
    """The passes ran by the schedules that rows this long must take, and nothing was copied."""
    if not report.n_rows:
        return
    for name, expected in zip(
        passes, paths.schedules(report.op, report.shape[-1], call.itemsize(report.op)), strict=False
    ):
        wrong = paths.wrong_path(expected, got.calls)
        report.expect(wrong is None, f"{name}: {wrong}")
    report.expect(not got.calls["forward.copied"], "forward copied an input")
    report.expect(not got.calls["backward.copied"], "backward copied an upstream gradient")


def expect_column_sums(report: Report, got: Result) -> None:
    """Column sums are added, and counted, if one of them is wanted, and only then."""
    needed = any(name in report.op.column_gradients for name in got.gradients)
    counted = bool(got.calls["backward.column_sums"])
    report.expect(needed or not counted, "column sums that nobody wants")
    report.expect(counted or not needed, f"column sums are not counted in {dict(got.calls)}")


def expect_dtypes(report: Report, call: Arguments, got: Result, *, contiguous: bool = True) -> None:
    """Outputs and gradients have the dtypes, layouts and devices that they should.

    Kernels write ``contiguous`` outputs; the reference may pass on the strides of its input.
    """
    for output in report.op.outputs:
        like = call.tensors.get(output.dtype)
        if output.dtype == "compute":
            wanted = call.compute
        else:
            wanted = dtype_of(output.dtype) if like is None else like.dtype
        found = got.outputs[output.name]
        report.expect(found.dtype == wanted, f"{output.name}: {found.dtype}, not {wanted}")
        dense = found.is_contiguous() or not contiguous
        report.expect(dense, f"{output.name}: not contiguous")
        report.expect(found.device.type == report.op.device, f"{output.name}: on {found.device}")
    for name, gradient in got.gradients.items():
        tensor = present(call.tensors[name])
        if gradient is not None:
            right = gradient.dtype == tensor.dtype and gradient.device == tensor.device
            report.expect(right, f"d{name}: {gradient.dtype} on {gradient.device}")


def expect_neighbours(report: Report, before: Result, got: Result) -> None:
    """The rows around the middle one have the bits they had before."""
    others = torch.tensor([0, 2])
    found = got.quantities()
    for name, value in by_row(report.op, before).items():
        kept = present(found[name])[others.to(value.device)]
        report.same(f"{name} of the other rows", kept, value[others.to(value.device)])


def expect_agreement(report: Report, got: Result, expected: Result) -> None:
    """Two calls that differ in the layout of their arguments give the same."""
    found = got.quantities()
    for name, value in expected.quantities().items():
        if value is not None:
            report.steady(name, present(found[name]), value)
