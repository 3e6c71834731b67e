"""What ops compute: the counts, what is the same computation, and what backward keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from kgen.cost import (
    Cost,
    How,
    Kept,
    backward_cost,
    dtype_used_in,
    forward_cost,
    kept,
)
from kgen.ir import Op, Program, walk
from kgen.load import load
from kgen.lower import RowOp, lower
from kgen.spec import Kind
from small_op import ROOT, shipped, small_op

ALL_SPECS = sorted([*(ROOT / "specs").glob("*.yaml"), *(ROOT / "tests" / "zoo").glob("*.yaml")])
FLAG = {"flag": "{type: bool, default: true}"}


def test_layernorm_counted_by_hand() -> None:
    row_op = shipped("layernorm")
    # x - mu, its square; the same difference times rstd, weight, bias. A mean divides once a row.
    assert forward_cost(row_op) == Cost(
        passes=2,
        row_reductions=2,
        column_sums=0,
        arithmetic=5,
        special=0,
        row_ops=4,
        column_ops=0,
        matrices_read=1,
        matrices_written=1,
    )
    # x - mu, xhat; g, g * xhat; g - mean, xhat * mean, their difference, dx; dy * xhat.
    assert backward_cost(row_op) == Cost(
        passes=2,
        row_reductions=2,
        column_sums=2,
        arithmetic=9,
        special=0,
        row_ops=2,
        column_ops=0,
        matrices_read=2,
        matrices_written=1,
    )


def test_softmax_counted_by_hand() -> None:
    row_op = shipped("softmax")
    forward, backward = forward_cost(row_op), backward_cost(row_op)
    assert (forward.arithmetic, forward.special, forward.element_ops) == (1, 2, 3)
    assert (forward.reductions, forward.flops, forward.row_ops) == (2, 5, 0)
    assert (backward.element_ops, backward.reductions, backward.matrices_read) == (3, 1, 2)
    assert (forward.passes, backward.passes) == (2, 2)


def element_ops(formula: str, *before: str) -> tuple[int, int]:
    cost = forward_cost(small_op("\n".join([*before, f"y = {formula}"])))
    return cost.arithmetic, cost.special


@pytest.mark.parametrize(
    ("formula", "arithmetic", "special"),
    [
        ("x", 0, 0),
        ("x + 1", 1, 0),
        ("-x", 1, 0),
        ("x ** 2", 1, 0),
        ("x ** 4", 3, 0),
        ("x ** 0.5", 0, 1),
        ("x ** -0.5", 0, 1),
        ("x ** -1", 0, 1),
        ("x ** -2", 1, 1),
        ("x ** 2.5", 0, 1),
        ("x / 3", 0, 1),
        ("where(x > 0, x, 0)", 2, 0),
        ("where(x > 0 and x < 1, x, 0)", 4, 0),
        ("exp(x) + exp(x)", 1, 1),
        ("silu(x)", 1, 1),
        ("silu(x) + sigmoid(x)", 2, 1),
        ("clamp(x, -1, 1)", 2, 0),
        ("cast(x, float16)", 1, 0),
        ("detach(x) + 1", 1, 0),
        ("x * column", 1, 0),
        ("tanh(x) * erf(x) - log(x)", 2, 3),
    ],
)
def test_operations_of_a_formula(formula: str, arithmetic: int, special: int) -> None:
    assert element_ops(formula) == (arithmetic, special)


@pytest.mark.parametrize(
    ("formula", "before"),
    [
        ("a + a", ["a = x * mean(x)"]),
        ("x * mean(x) + mean(x) * x", []),
        ("a + b", ["a = x * mean(x)", "b = mean(x) * x"]),
        ("a + a", ["s = sum(x) / N", "a = s * x"]),
    ],
)
def test_equal_terms_count_once(formula: str, before: list[str]) -> None:
    cost = forward_cost(small_op("\n".join([*before, f"y = {formula}"])))
    assert (cost.arithmetic, cost.row_reductions, cost.row_ops) == (2, 1, 1)


def test_a_difference_the_other_way_round_counts_again() -> None:
    assert element_ops("(x - 1) * (1 - x)") == (3, 0)


def test_operations_of_rows_columns_and_scalars() -> None:
    row_op = small_op(
        "y = x * (1 + weight) + exp(scale) * (eps * 2)",
        inputs={"weight": "per_column", "scale": "per_row"},
        params={"eps": "{default: 1.0}"},
    )
    cost = forward_cost(row_op)
    assert (cost.arithmetic, cost.column_ops, cost.row_ops) == (2, 1, 3)


def test_bool_params_count_at_their_defaults() -> None:
    forward = "y = exp(x) * mean(x) if flag and not (flag and flag) or flag else x + 1"
    yes = small_op(forward, params=FLAG)
    no = small_op(forward, params={"flag": "{type: bool, default: false}"})
    assert (forward_cost(yes).element_ops, forward_cost(yes).reductions) == (2, 1)
    assert (forward_cost(no).element_ops, forward_cost(no).reductions) == (1, 0)


def test_a_dead_branch_reads_nothing() -> None:
    row_op = small_op("y = x if flag else z", params=FLAG, inputs={"z": "matrix"})
    assert forward_cost(row_op).matrices_read == 1


def test_a_tensor_needed_for_its_dtype_is_not_read() -> None:
    row_op = small_op("y = x + a", "dx = dy\nda = sum(cast(dy, x))", inputs={"a": "per_row"})
    assert backward_cost(row_op).matrices_read == 1
    assert dtype_used_in(row_op, "x") == ("da",)
    assert [k for k in kept(row_op) if k.name == "x"] == [Kept("x", Kind.MATRIX, How.INPUT, ())]


@pytest.mark.parametrize(
    ("name", "passes"),
    [
        ("softmax", (2, 2)),  # the maximum and the sum in one walk
        ("quant_rmsnorm", (3, None)),  # the mean square, the maximum, the store
        ("squared_relu", (1, 1)),
        ("dyt", (1, 1)),  # column sums alone need no first kernel
        ("rmsnorm", (2, 2)),  # one kernel for the rows, one for the columns
        ("cross_entropy", (1, 1)),
    ],
)
def test_passes_over_a_long_row(name: str, passes: tuple[int, int | None]) -> None:
    row_op = shipped(name)
    backward = None if row_op.backward is None else backward_cost(row_op).passes
    assert (forward_cost(row_op).passes, backward) == passes


def operators(program: Program) -> int:
    """Matrix operators as written, a power as the products it stands for at most."""
    count = 0
    for definition in program.definitions:
        for term in walk(definition.term):
            if isinstance(term, Op) and term.type.kind is Kind.MATRIX:
                count += {"pow": 3, "clamp": 2, "silu": 2, "float": 0, "detach": 0}.get(term.op, 1)
    return count


@pytest.mark.parametrize("path", ALL_SPECS, ids=lambda path: path.stem)
def test_counts_are_within_what_is_written(path: Path) -> None:
    row_op = lower(load(path))
    assert 0 < forward_cost(row_op).flops <= operators(row_op.forward) + 4
    if row_op.backward is not None:
        cost = backward_cost(row_op)
        assert cost.element_ops <= operators(row_op.backward)
        sums = [r for r in row_op.backward.results if r.kind is Kind.PER_COLUMN]
        assert cost.column_sums == len(sums)


def test_names_do_not_change_the_counts() -> None:
    short = small_op("y = (x - mean(x)) * rsqrt(mean((x - mean(x)) ** 2) + 1)")
    long = small_op("""
        mu = mean(x)
        c = x - mu
        var = mean(c * c)
        rstd = rsqrt(1.0 + var)
        y = rstd * c
        """)
    assert forward_cost(short) == forward_cost(long)


def hows(row_op: RowOp) -> dict[str, tuple[How, tuple[str, ...]]]:
    return {value.name: (value.how, value.used_in) for value in kept(row_op)}


def test_what_layernorm_keeps_and_why() -> None:
    assert hows(shipped("layernorm")) == {
        "x": (How.INPUT, ("xhat",)),
        "weight": (How.INPUT, ("g",)),
        "mu": (How.SAVED, ("xhat",)),
        "rstd": (How.SAVED, ("xhat", "dx")),
    }


def test_what_is_reused_and_worked_out_again() -> None:
    assert hows(shipped("softmax")) == {"y": (How.REUSED, ("dx",))}
    assert hows(shipped("standard_softmax"))["z"] == (How.RECOMPUTED, ("dx",))
    assert hows(shipped("fp8_rows")) == {}


def test_every_saved_value_is_kept_for_something() -> None:
    for path in ALL_SPECS:
        row_op = lower(load(path))
        saved = {value.name for value in kept(row_op) if value.how is How.SAVED}
        assert saved == set(row_op.saved), path.stem
        assert all(value.used_in or value.how is How.INPUT for value in kept(row_op)), path.stem


def test_a_backward_may_be_compared_with_the_derived_one() -> None:
    spec = load(ROOT / "specs" / "softmax.yaml")
    derived = backward_cost(lower(replace(spec, backward="derive")))
    hand = backward_cost(lower(spec))
    assert (derived.reductions, derived.element_ops) == (hand.reductions, hand.element_ops)
