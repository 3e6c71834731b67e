"""Padding lanes: what loads fill them with, and which reductions need a mask."""

from __future__ import annotations

import math

import pytest
from kgen.ir import Op, Program, is_reduction, walk
from kgen.lower import RowOp
from kgen.padding import choose_padding
from kgen.schedule import schedule
from small_op import kernel, kernels_text, shipped, small_op

COLUMNS = "tl.where(in_columns, "
ROWS = "tl.where(in_rows, "


def loads(row_op: RowOp) -> dict[str, float]:
    return dict(choose_padding(row_op.forward).loads)


def masked(forward: str, **sections: dict[str, str]) -> bool:
    """Whether any reduction of a forward is masked."""
    return COLUMNS in kernels_text(small_op(forward, **sections))  # type: ignore[arg-type]


def backward_of(row_op: RowOp) -> Program:
    assert row_op.backward is not None
    return row_op.backward


def test_softmax_loads_minus_infinity_and_masks_nothing() -> None:
    assert loads(shipped("softmax")) == {"x": -math.inf}
    text = kernels_text(shipped("softmax"))
    assert COLUMNS not in text
    assert (
        'x = tl.load(x_ptr + row * x_row_stride + column, mask=mask, other=float("-inf"))' in text
    )


def test_rmsnorm_loads_zeros_and_masks_nothing() -> None:
    assert loads(shipped("rmsnorm")) == {"x": 0.0}
    text = kernels_text(shipped("rmsnorm"))
    assert COLUMNS not in text
    assert ROWS not in text


def test_the_centred_square_of_layernorm_is_masked() -> None:
    text = kernels_text(shipped("layernorm"))
    assert "row_mean(tl.where(in_columns, (x - mu) * (x - mu), 0.0), n_columns)" in text
    assert "mu = row_mean(x, n_columns)" in text


@pytest.mark.parametrize(
    "forward",
    [
        "y = x * sum(x)",
        "y = x * mean(x * x)",
        "y = x * sum(abs(x))",
        "y = x * sum(x * 3)",
        "y = x * sum(sqrt(x * x))",
        "y = x * sum(maximum(x, 0))",
        "y = x * sum(x ** 4)",
        "y = x * sum(tanh(x) + silu(x))",
        "y = x * max(x)",
        "y = x * max(abs(x))",
        "y = x * min(x)",
        "y = x * min(x + 1)",
        "y = x * max(x - sum(x)) ",
        "y = x * sum(where(column == 3, x, 0))",
        "y = x * sum(x / 2)",
    ],
)
def test_neutral_without_a_mask(forward: str) -> None:
    # Each alone: with several, one load value has to do for all.
    assert not masked(forward) or forward.count("(x") > 1


@pytest.mark.parametrize(
    "forward",
    [
        "y = x * sum(x + 1)",
        "y = x * mean(x * 0 + 1)",
        "y = x * sum(cos)".replace("cos", "sigmoid(x) + 1"),
        "y = x * sum(where(x > 0, 1, 0))",
        "y = x * sum(x) * max(x)",
        "y = x * sum(x - mean(x))",
        "y = x * sum(x / column)",
        "y = x * sum(1 / x)",
    ],
)
def test_not_neutral_without_a_mask(forward: str) -> None:
    assert masked(forward)


def test_a_weight_is_zero_past_its_end() -> None:
    assert not masked("y = x + sum(x * weight)", inputs={"weight": "per_column"})
    assert masked("y = x + sum(x / weight)", inputs={"weight": "per_column"})


@pytest.mark.parametrize("formula", ["x / weight", "exp(x / weight)", "x / (column - N)"])
def test_a_divisor_may_be_zero_in_padding_alone(formula: str) -> None:
    """An optional weight reads 0 there when it is given, whatever its neutral value."""
    inputs = {"weight": "{kind: per_column, absent: 1}"} if "weight" in formula else {}
    assert masked(f"y = x + sum({formula})", inputs=inputs)


def test_any_scale_of_a_row_may_be_infinite() -> None:
    assert masked("y = x + sum(x * scale)", inputs={"scale": "per_row"})


def test_a_param_is_finite() -> None:
    assert not masked("y = x + sum(x * gain)", params={"gain": "{default: 2.0}"})
    assert masked("y = x + sum(x / gain + gain)", params={"gain": "{default: 2.0}"})


def test_an_optional_matrix_is_padded_with_what_stands_for_it() -> None:
    row_op = small_op("y = x * sum(z)", inputs={"z": "{kind: matrix, absent: 1}"})
    assert loads(row_op)["z"] == 1.0
    text = kernels_text(row_op)
    assert "other=1.0" in text
    assert "row_sum(tl.where(in_columns, z, 0.0))" in text


def test_whole_numbers_are_padded_with_what_stands_for_them() -> None:
    inputs = {"z": "{kind: matrix, type: int, absent: 5}"}
    text = kernels_text(small_op("y = x * sum(z - 5)", inputs=inputs))
    assert "mask=mask, other=5)" in text
    assert COLUMNS not in text


def test_the_statistics_of_a_real_row_are_finite() -> None:
    assert not masked("y = x * sum(x * mean(x))")


# --- rows past the last -----------------------------------------------------------------------


def needs_row_mask(row_op: RowOp) -> bool:
    program = backward_of(row_op)
    padding = choose_padding(program)
    sums = [d.term for d in program.definitions if isinstance(d.term, Op)]
    return any(
        not padding.is_neutral("sum_rows", term.arguments[0])
        for term in sums
        if term.op == "sum_rows"
    )


def test_column_sums_of_a_product_with_a_saved_statistic() -> None:
    assert not needs_row_mask(shipped("rmsnorm"))
    assert not needs_row_mask(shipped("layernorm"))


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("rsqrt(scale)", True),
        ("1 / scale", True),
        ("log(scale)", True),
        ("rsqrt(scale + 1)", False),
        ("exp(scale)", False),
        ("scale * 2", False),
    ],
)
def test_column_sums_of_a_recomputed_row_value(formula: str, expected: bool) -> None:
    """A row past the last reads 0, of which rsqrt is infinite, and 0 times that is NaN."""
    row_op = small_op(
        f"r = {formula}\ny = x * r * weight",
        "dx = dy * r * weight\ndweight = sum_rows(dy * x * r)",
        inputs={"scale": "{kind: per_row, grad: false}", "weight": "per_column"},
    )
    assert needs_row_mask(row_op) == expected
    assert (ROWS in kernels_text(row_op)) == expected


def test_column_sums_of_what_is_not_zero_in_a_row_past_the_last() -> None:
    row_op = small_op(
        "y = x + sigmoid(x) * weight",
        "dx = dy\ndweight = sum_rows(dy * 0 + sigmoid(x))",
        inputs={"weight": "per_column"},
    )
    assert needs_row_mask(row_op)


def test_the_column_kernel_of_a_split_masks_rows_alone() -> None:
    plan = schedule(shipped("gemma_rmsnorm"))
    program = kernel(plan, "backward_split_columns").program
    assert not any(isinstance(d.term, Op) and d.term.op == "mean" for d in program.definitions)
    assert ROWS not in kernels_text(shipped("gemma_rmsnorm"))


def test_an_exponential_of_padding_may_overflow() -> None:
    """exp(0 - lse) is infinite for rows far below 0, and 0 * inf is NaN: the sum needs a mask."""
    op = small_op(
        forward="m = max(x)\nlse = m + log(sum(exp(x - m)))\ny = x - lse",
        backward="p = exp(x - lse)\ndx = p * (dy - sum(dy * p))",
    )
    assert op.backward is not None
    (reduced,) = [t for d in op.backward.definitions for t in walk(d.term) if is_reduction(t)]
    assert isinstance(reduced, Op)
    assert not choose_padding(op.backward).is_neutral("sum", reduced.arguments[0])
