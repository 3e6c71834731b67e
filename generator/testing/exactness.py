"""Checks of results against each other, to the bit."""

from __future__ import annotations

import pytest
import torch
from kgen.testing import paths
from kgen.testing.description import Input, Op
from kgen.testing.expectations import (
    both,
    by_row,
    expect_agreement,
    expect_column_sums,
)
from kgen.testing.layouts import (
    INPUT_LAYOUTS,
    UPSTREAM_LAYOUTS,
    arrange,
    canonical,
    spread,
)
from kgen.testing.report import Report
from kgen.testing.results import (
    Result,
    backward,
    forward,
    present,
)
from kgen.testing.samples import (
    LONG,
    Tensors,
    arguments,
    dtype_of,
    generator,
    upstream,
)


def check_integers(op: Op, dtype: str, path: str) -> None:
    """Whole numbers in [-8, 8] are exact in every dtype: only the last rounding may differ.

    Arithmetic is in float32 whatever the storage, so a float16 or bfloat16 result must be the
    rounded float32 result to the bit. Compiled kernels may add a row in another order for another
    dtype; there a result may be the next number, now and then.
    """
    narrow = arguments(op, LONG, dtype, integers=True, vary=False)
    wide = narrow.with_tensors(
        {
            name: tensor.float()
            for name, tensor in narrow.tensors.items()
            if tensor is not None and tensor.is_floating_point()
        }
    )
    with Report(op, LONG, f"whole numbers, {dtype} {path}") as report, paths.on_path(op, path):
        got, exact = forward(op, narrow), forward(op, wide)
        if op.gradients and not op.reuses_outputs:
            got = backward(op, narrow, integers=True)
            above = {name: _float(dy) for name, dy in got.upstream.items()}
            exact = backward(op, wide, given=above)
        found = got.quantities()
        for name, value in exact.quantities().items():
            if value is not None:
                _expect_rounded(report, name, present(found[name]), value)


def check_bits(op: Op, dtype: str, path: str) -> None:
    """The same bits twice, in any order of the rows, and for a row whatever comes with it."""
    shape = (17, 301) if path == "shipped" else (7, 201)  # where rows share a tile, and alone
    n_rows = shape[0]
    call = arguments(op, shape, dtype)
    order = torch.randperm(n_rows, generator=generator("order"))
    with Report(op, shape, f"bits, {dtype} {path}") as report, paths.on_path(op, path):
        first = both(op, call)
        again = both(op, call, first.upstream)
        for name, value in first.quantities().items():
            report.same(f"{name} a second time", again.quantities()[name], value)
        if op.positional:
            return
        for chosen in (order, order[:5], order[:1]):
            some = both(op, call.rows(op, chosen), _rows(first.upstream, chosen))
            _expect_rows(report, first, some, chosen)
        # Without gradients another kernel is compiled, whose last bits may be others.
        inference = forward(op, call)
        for row in range(0, n_rows, 3):
            chosen = torch.tensor([row])
            _expect_rows(report, inference, forward(op, call.rows(op, chosen)), chosen)


def check_wanted(op: Op, wanted: tuple[str, ...], path: str) -> None:
    """Gradients for some inputs only: the same as among all, and the others cost nothing."""
    call = arguments(op, LONG, op.usual)
    with Report(op, LONG, f"gradients of {wanted} alone, {path}") as report:
        with paths.on_path(op, path):
            full = backward(op, call)
            got = backward(op, call, wanted=wanted, given=full.upstream)
        report.expect(tuple(got.gradients) == wanted, f"gradients of {tuple(got.gradients)}")
        for name in wanted:
            found, expected = got.gradients.get(name), present(full.gradients[name])
            if name in op.column_gradients and found is not None:
                report.steady(f"d{name}", found, expected)
            else:
                report.same(f"d{name}", found, expected)
        expect_column_sums(report, got)


def check_input_layout(op: Op, layout: str, path: str) -> None:
    """Strided rows are taken as they are, without a copy, and change nothing."""
    shape = INPUT_LAYOUTS[layout]
    call = arguments(op, shape, op.usual)
    strided: Tensors = {
        entry.name: spread(tensor) if entry.kind == "per_row" else arrange(tensor, layout)
        for entry in op.inputs
        if _takes_strides(entry, layout) and (tensor := call.tensors[entry.name]) is not None
    }
    plain = {name: canonical(present(tensor)) for name, tensor in strided.items()}
    with Report(op, shape, f"{layout} inputs, {path}") as report, paths.on_path(op, path):
        expected = both(op, call.with_tensors(plain))
        for some in _together_and_alone(strided):
            got = both(op, call.with_tensors({**plain, **some}), expected.upstream)
            expect_agreement(report, got, expected)
            report.expect(not got.calls["forward.copied"], f"of {[*some]} one was copied")


def _takes_strides(entry: Input, layout: str) -> bool:
    """Whether an input has rows of its own, in as many dimensions as the layout is for."""
    if entry.kind in ("matrix", "per_row"):
        return True
    return entry.kind == "per_place" and len(INPUT_LAYOUTS[layout]) == 2


def check_upstream_layout(op: Op, layout: str, path: str) -> None:
    """An upstream gradient in any strides, copied only if the kernels cannot take it."""
    call = arguments(op, (3, 129), op.usual)
    if all(out.dim() == 1 for out in forward(op, call).outputs.values()):
        call = arguments(op, (2, 3, 129), op.usual)  # values of rows can then be unevenly spaced
    with Report(op, (3, 129), f"{layout} upstream, {path}") as report, paths.on_path(op, path):
        drawn = upstream(op, forward(op, call).outputs)
        strided: Tensors = {n: arrange(dy, layout) for n, dy in drawn.items() if dy is not None}
        plain = {name: canonical(present(dy)) for name, dy in strided.items()}
        expected = backward(op, call, given=plain)
        for some in _together_and_alone(strided):
            got = backward(op, call, given={**drawn, **plain, **some})
            expect_agreement(report, got, expected)
            if all(out.shape == (3, 129) for out in expected.outputs.values()):
                copied = bool(got.calls["backward.copied"])
                report.expect(copied == UPSTREAM_LAYOUTS[layout], f"counted {dict(got.calls)}")
        report.expect(not expected.calls["backward.copied"], "a contiguous gradient was copied")


def check_sum(op: Op) -> None:
    """``result.sum().backward()``, where every stride of the upstream gradient is 0."""
    call = arguments(op, LONG, op.usual)
    with Report(op, LONG, "sum().backward()") as report:
        outputs = forward(op, call).outputs
        ones = {
            name: torch.ones_like(out) for name, out in outputs.items() if out.is_floating_point()
        }
        expect_agreement(
            report,
            backward(op, call, given={n: one[..., :1].expand_as(one) for n, one in ones.items()}),
            backward(op, call, given=ones),
        )


def check_far_rows(op: Op, path: str) -> None:
    """Rows so far apart that their offsets need more than 32 bits, in one gigantic tensor."""
    far, shape = 2**30, (3, 201)
    call = arguments(op, shape, op.dtypes[0])
    dtype = dtype_of(op.dtypes[0])
    try:
        # The rows lie in the second half: offsets that wrap around stay inside the tensor.
        memory = torch.empty(4 * far + 2 * shape[1], dtype=dtype, device=op.device)
    except RuntimeError as error:  # torch.OutOfMemoryError is one too
        pytest.skip(f"no memory for rows far apart: {error}")

    def spread_out(tensor: torch.Tensor, start: int) -> torch.Tensor:
        rows = memory.as_strided(shape, (far, 1), 2 * far + start)
        return rows.copy_(tensor)

    with Report(op, shape, f"rows far apart, {path}") as report, paths.on_path(op, path):
        expected = both(op, call)
        matrix = spread_out(present(call.tensors[op.matrix.name]), 0)
        above = dict(expected.upstream)
        for name, dy in above.items():
            if dy is not None and dy.shape == shape:
                above[name] = spread_out(dy, shape[1])
                break
        got = both(op, call.with_tensors({op.matrix.name: matrix}), above)
        expect_agreement(report, got, expected)


def _together_and_alone(tensors: Tensors) -> list[Tensors]:
    """All of them, and each by itself: the strides of one must not pass for those of another."""
    alone: list[Tensors] = [{name: tensor} for name, tensor in tensors.items()]
    return [tensors, *alone] if len(alone) > 1 else [tensors]


def _float(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.float()


def _rows(tensors: Tensors, index: torch.Tensor) -> Tensors:
    return {
        name: None if tensor is None else tensor[index.to(tensor.device)].clone()
        for name, tensor in tensors.items()
    }


def _expect_rows(report: Report, whole: Result, some: Result, chosen: torch.Tensor) -> None:
    found = some.quantities()
    for name, value in by_row(report.op, whole).items():
        if name in found:
            expected = value[chosen.to(value.device)]
            report.same(f"{name} of {len(chosen)} rows", found[name], expected)


def _expect_rounded(report: Report, name: str, got: torch.Tensor, exact: torch.Tensor) -> None:
    if not got.is_floating_point() or report.op.interpreted:
        report.same(name, got, exact.to(got.dtype))
        return
    rounded = exact.to(got.dtype)
    step = torch.finfo(got.dtype).eps * rounded.double().abs()
    differs = got.double() != rounded.double()
    near = (got.double() - rounded.double()).abs() <= step + torch.finfo(got.dtype).tiny
    report.expect(near.all(), f"{name}: {int((~near).sum())} elements off by more than a step")
    share = differs.double().mean().item()
    report.expect(share <= 0.02, f"{name}: {share:.1%} of the elements are not the rounded float32")
