"""Schedules: how often each kernel walks a row, what merges, and what passes between kernels."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kgen.ir import Role, verify
from kgen.load import load
from kgen.lower import RowOp, lower
from kgen.merging import MergeKind
from kgen.schedule import Form, Kernel, OpSchedule, schedule
from kgen.spec import Kind
from kgen.tiles import FORWARD_TILES, GROUP_TILES, live_matrices, tile_rule
from small_op import ROOT, kernel, shipped, small_op

ALL_SPECS = sorted([*(ROOT / "specs").glob("*.yaml"), *(ROOT / "tests" / "zoo").glob("*.yaml")])


def forward_streaming(row_op: RowOp) -> Kernel:
    return kernel(schedule(row_op), "forward_streaming")


def walks(row_op: RowOp) -> int:
    return len(forward_streaming(row_op).walks)


def merges(row_op: RowOp) -> list[MergeKind]:
    return [merge.kind for walk in forward_streaming(row_op).walks for merge in walk.merges]


@pytest.mark.parametrize("path", ALL_SPECS, ids=lambda path: path.stem)
def test_every_program_verifies(path: Path) -> None:
    for each in schedule(lower(load(path))).kernels:
        verify(each.program)


@pytest.mark.parametrize("path", ALL_SPECS, ids=lambda path: path.stem)
def test_every_walk_finds_what_it_uses(path: Path) -> None:
    """Row values are ready before the walk, and the rest is worked out or loaded inside."""
    for each in schedule(lower(load(path))).kernels:
        known = {v.name for v in each.program.variables} | {d.name for d in each.before}
        for walk in each.walks:
            assert {r.name for r in walk.stores} <= known | {d.name for d in walk.definitions}
            known |= {d.name for d in (*walk.reductions, *walk.after)}
            known |= {d.name for m in walk.merges for d in (m.statistic, m.total)}
            known |= {s.total.name for o in walk.online for s in o.sums}
            known |= {o.maximum.name for o in walk.online}
        if each.form is Form.STREAMING:
            assert {
                d.name for d in each.program.definitions if d.type.kind is Kind.PER_ROW
            } <= known


@pytest.mark.parametrize(
    ("name", "number", "merged"),
    [
        ("rmsnorm", 2, []),
        ("layernorm", 2, [MergeKind.MOMENTS]),
        ("softmax", 2, [MergeKind.EXP_SUM]),
        ("log_softmax", 2, [MergeKind.EXP_SUM]),
        ("standardize", 2, [MergeKind.MOMENTS]),
        ("standard_softmax", 3, [MergeKind.MOMENTS, MergeKind.EXP_SUM]),
        ("dyt", 1, []),
        ("row_totals", 1, []),
    ],
)
def test_walks_of_a_forward(name: str, number: int, merged: list[MergeKind]) -> None:
    row_op = shipped(name)
    assert walks(row_op) == number
    assert merges(row_op) == merged


def test_each_dependent_reduction_takes_a_walk() -> None:
    row_op = small_op("""
        a = mean(x)
        b = mean(abs(x - a))
        c = max((x - a) / b)
        y = (x - a) / b / c
        """)
    assert walks(row_op) == 4
    names = [[r.name for r in w.reductions] for w in forward_streaming(row_op).walks]
    assert names == [["a"], ["b"], ["c"], []]


def test_independent_reductions_share_a_walk() -> None:
    row_op = small_op("y = sum(x) + max(x) + min(x * x)", outputs={"y": "x"})
    assert walks(row_op) == 1


@pytest.mark.parametrize(
    "forward",
    [
        "m = max(x)\ny = x * sum(exp(x - m))",
        "y = x * sum(exp(x - max(x)))",
        "m = max(x)\ne = exp(x - m)\ny = e / sum(e)",
        "z = x * 2\nm = max(z)\nd = z - m\ny = x * mean(exp(d))",
    ],
)
def test_maximum_and_exponentials_merge(forward: str) -> None:
    assert merges(small_op(forward)) == [MergeKind.EXP_SUM]
    assert walks(small_op(forward)) == 2


@pytest.mark.parametrize(
    "forward",
    [
        "mu = mean(x)\ny = x * mean((x - mu) ** 2)",
        "mu = mean(x)\ny = x * sum((x - mu) * (x - mu))",
        "c = x - mean(x)\ny = c * rsqrt(mean(c * c) + 1)",
        "h = x + 1\nmu = mean(h)\ny = x * mean((h - mu) ** 2)",
    ],
)
def test_mean_and_centred_squares_merge(forward: str) -> None:
    assert merges(small_op(forward)) == [MergeKind.MOMENTS]
    assert walks(small_op(forward)) == 2


@pytest.mark.parametrize(
    "forward",
    [
        "m = max(x * 2)\ny = x * sum(exp(x - m))",
        "m = min(x)\ny = x * sum(exp(x - m))",
        "m = max(x)\ny = x * sum(exp(m - x))",
        "m = max(x) + 1\ny = x * sum(exp(x - m))",
        "m = max(x)\ny = x * max(exp(x - m))",
        "m = mean(x)\ny = x * sum(exp(x - m))",
        "mu = max(x)\ny = x * mean((x - mu) ** 2)",
        "mu = sum(x)\ny = x * mean((x - mu) ** 2)",
        "mu = mean(x)\ny = x * mean((x - mu) ** 3)",
        "mu = mean(x)\ny = x * mean((mu - x) ** 2)",
        "mu = mean(x)\ny = x * mean((x - mu) * x)",
        "mu = mean(x)\ny = x * mean((2 * x - mu) ** 2)",
    ],
)
def test_look_alikes_do_not_merge(forward: str) -> None:
    assert merges(small_op(forward)) == []
    assert walks(small_op(forward)) == 3


def online(row_op: RowOp) -> list[tuple[str, list[str]]]:
    """Each maximum that sums are rescaled beside, with these sums."""
    groups = [group for walk in forward_streaming(row_op).walks for group in walk.online]
    return [(group.maximum.name, [each.total.name for each in group.sums]) for group in groups]


@pytest.mark.parametrize(("name", "number"), [("logsumexp", 1), ("cross_entropy", 1)])
def test_a_loss_takes_one_walk(name: str, number: int) -> None:
    assert walks(shipped(name)) == number
    assert merges(shipped(name)) == [MergeKind.EXP_SUM]


def test_causal_softmax_takes_two_walks() -> None:
    assert walks(shipped("causal_softmax")) == 2


LOW = "top = max(x)\nm = where(top == -inf, 0, top)\n"
BOTH = "top = max(x)\nm = where(abs(top) == inf, 0, top)\n"


@pytest.mark.parametrize(
    ("forward", "maximum", "sums"),
    [
        ("m = max(x)\ns = sum(exp(x - m))\nt = mean(exp(x - m))\ny = x * s + t", "m", ["s", "t"]),
        ("m = max(x)\ns = sum(x * exp(x - m))\ny = x * s", "m", ["s"]),
        ("m = max(x)\ns = sum(exp(x - m) / w * 2)\ny = x * s", "m", ["s"]),
        ("m = max(x)\ns = sum(where(column > 3, exp(x - m), 0))\ny = x * s", "m", ["s"]),
        (
            f"{BOTH}e = exp(x - m)\nr = sum(where(column == 2, 0, e))\ns = sum(e)\ny = x * s + r",
            "top",
            ["r", "s"],
        ),
        (f"{LOW}s = sum(where(w > 0, w, 1) * exp(x - m))\ny = x * s", "top", ["s"]),
        (f"{LOW}s = sum(where(w > 0, w * exp(x - m), 0))\ny = x * s", "top", ["s"]),
        # A row value of an earlier walk is a factor like others.
        ("a = mean(x)\nm = max(x - a)\ns = sum(a * exp(x - a - m))\ny = x * s", "m", ["s"]),
    ],
)
def test_sums_beside_a_maximum(forward: str, maximum: str, sums: list[str]) -> None:
    row_op = small_op(forward, inputs={"w": "matrix"} if re.search(r"\bw\b", forward) else {})
    assert online(row_op) == [(maximum, sums)]
    assert merges(row_op) == []
    assert walks(row_op) == 2 + ("a = " in forward)


@pytest.mark.parametrize(
    "forward",
    [
        f"{BOTH}y = x * sum(exp(x - m))",
        f"{LOW}y = x * sum(exp(x - m))",
        "top = max(x)\nm = where(top > -inf, top, 0)\ny = x * sum(exp(x - m))",
        "top = max(x)\nm = where(inf > abs(top), top, 0)\ny = x * sum(exp(x - m))",
        "m = detach(max(x))\ny = x * sum(exp(x - m))",
    ],
)
def test_guarded_maxima_merge_too(forward: str) -> None:
    assert merges(small_op(forward)) == [MergeKind.EXP_SUM]
    assert walks(small_op(forward)) == 2


@pytest.mark.parametrize(
    "forward",
    [
        "m = max(x)\ny = x * sum(m * exp(x - m))",
        "m = max(x)\ny = x * sum((x - m) * exp(x - m))",
        "m = max(x)\ny = x * sum(exp(x - m) ** 2)",
        "m = max(x)\ny = x * sum(exp(x - m) + 1)",
        "m = max(x)\ny = x * sum(where(x < m, exp(x - m), 0))",
        "m = max(x)\ny = x * sum(where(x < 0, exp(x - m), 1))",
        "top = max(x)\nm = maximum(top, 0)\ny = x * sum(exp(x - m))",
        "top = max(x)\nm = where(top == -inf, top, 0)\ny = x * sum(exp(x - m))",
        "top = max(x)\nm = where(top == inf, 0, top)\ny = x * sum(exp(x - m))",
        "top = max(x)\nm = where(top == -inf, 1, top)\ny = x * sum(exp(x - m))",
        # With NaN in the row this one is 0, and terms without NaN are numbers.
        "top = max(x)\nm = where(top > -inf, top, 0)\ny = x * sum(where(x < 2, exp(x - m), 0))",
        # Unguarded: which rows of -inf give NaN cannot be told beside weights.
        "m = max(x)\ny = x * sum(where(x < 0, x * exp(x - m), 0))",
    ],
)
def test_what_cannot_be_rescaled(forward: str) -> None:
    assert merges(small_op(forward)) == [] == online(small_op(forward))
    assert walks(small_op(forward)) == 3


def test_two_maxima_in_one_walk() -> None:
    """The divergence of two softmaxes; its weights depend on neither maximum."""
    row_op = small_op(
        """
        a = max(x)
        b = max(w)
        s = sum(exp(x - a))
        t = sum(exp(w - b))
        u = sum(exp(x - a) * (x - w))
        y = u / s + log(t) + b - a - log(s)
        """,
        inputs={"w": "matrix"},
        outputs={"y": "float32"},
    )
    assert walks(row_op) == 1
    assert merges(row_op) == [MergeKind.EXP_SUM]
    assert online(row_op) == [("a", ["s", "u"])]


# --- the split ----------------------------------------------------------------------------------


def given(plan: OpSchedule) -> list[str]:
    program = kernel(plan, "backward_split_columns").program
    return [v.name for v in program.variables if v.role is Role.STATISTIC]


def test_rmsnorm_splits_at_one_statistic() -> None:
    plan = schedule(shipped("rmsnorm"))
    assert plan.statistics == ("mean_g_xhat",)
    assert given(plan) == ["mean_g_xhat"]
    assert plan.column_sums == ("dweight",)


def test_layernorm_splits_at_two() -> None:
    plan = schedule(shipped("layernorm"))
    assert plan.statistics == ("mean_g", "mean_g_xhat")
    assert plan.column_sums == ("dweight", "dbias")
    rows = kernel(plan, "backward_split_rows")
    assert [r.name for r in rows.program.results] == ["mean_g", "mean_g_xhat"]
    assert len(rows.walks) == 1


def test_without_a_reduction_there_is_nothing_to_split() -> None:
    plan = schedule(shipped("dyt"))
    assert plan.statistics == ()
    assert plan.kernel("backward_split_rows") is None
    assert [k.form for k in plan.backward] == [Form.GROUPS, Form.SPLIT_COLUMNS]


def test_row_gradients_come_from_the_first_kernel() -> None:
    plan = schedule(shipped("gemma_rmsnorm"))
    rows = kernel(plan, "backward_split_rows").program
    columns = kernel(plan, "backward_split_columns").program
    assert [r.name for r in rows.results] == ["dscale", "mean_g_xhat"]
    assert [r.name for r in columns.results] == ["dx", "dweight"]


def test_a_gradient_that_is_a_statistic_in_every_column() -> None:
    plan = schedule(
        small_op(
            "t = sum(x)\ny = t * b + 0 * x",
            "dx = sum(dy * b)\ndb = sum_rows(dy * t)",
            inputs={"b": "per_column"},
        )
    )
    assert plan.statistics == ("sum_dy_b",)
    assert [r.name for r in kernel(plan, "backward_split_columns").program.results] == ["dx", "db"]


def test_conditions_do_not_pass_between_kernels() -> None:
    plan = schedule(
        small_op(
            "y = x * b",
            "is_large = max(dy) > 1\ndx = where(is_large, dy * b, 0)\ndb = sum_rows(dy * x)",
            inputs={"b": "per_column"},
        )
    )
    assert plan.statistics == ("max_dy",)


def test_a_row_value_that_is_stored_in_every_column_is_stored_in_a_walk() -> None:
    plan = schedule(shipped("row_totals"))
    (walk,) = kernel(plan, "backward_streaming").walks
    assert [r.name for r in walk.stores] == ["dx"]


def test_ops_without_column_sums_have_no_groups() -> None:
    plan = schedule(shipped("softmax"))
    assert [k.form for k in plan.kernels] == [Form.TILE, Form.STREAMING, Form.TILE, Form.STREAMING]
    assert plan.column_sums == ()


def test_inference_only() -> None:
    plan = schedule(shipped("quant_rmsnorm"))
    assert plan.backward == ()
    assert [k.name for k in plan.kernels] == [
        "quant_rmsnorm_forward_resident",
        "quant_rmsnorm_forward_streaming",
    ]


# --- tiles --------------------------------------------------------------------------------------


def test_tiles_get_shorter_with_more_matrices() -> None:
    assert tile_rule(schedule(shipped("rmsnorm"))).forward == FORWARD_TILES
    assert tile_rule(schedule(shipped("rmsnorm"))).backward == GROUP_TILES
    plan = schedule(shipped("add_rmsnorm"))
    assert live_matrices(plan.forward[0]) == 4
    assert tile_rule(plan).forward == FORWARD_TILES[:-1]


@pytest.mark.parametrize("path", ALL_SPECS, ids=lambda path: path.stem)
def test_tiles_are_powers_of_two_without_gaps(path: Path) -> None:
    rule = tile_rule(schedule(lower(load(path))))
    for tiles in (rule.forward, rule.backward):
        assert [tile.words for tile in tiles] == [64 << index for index in range(len(tiles))]
