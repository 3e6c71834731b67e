"""Schedules: how often each kernel walks a row, what merges, and what passes between kernels."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from kgen.build import render_op
from kgen.ir import Role, verify
from kgen.load import load
from kgen.lower import RowOp, lower
from kgen.merging import MergeKind
from kgen.schedule import Form, Kernel, OpSchedule, schedule
from kgen.spec import Kind
from kgen.tiles import Tile, Tiles, live_matrices, planned, tile_rule, untuned
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
    plan = schedule(small_op("y = x * 2", "dx = max(dy)"))
    *_, walk = kernel(plan, "backward_streaming").walks
    assert [r.name for r in walk.stores] == ["dx"]
    # Without a reduction there is none: a program for each chunk stores it.
    assert kernel(schedule(shipped("row_totals")), "backward_streaming").form is Form.CHUNKS


def test_ops_without_column_sums_have_no_groups() -> None:
    plan = schedule(shipped("softmax"))
    forms = [Form.TILE, Form.RELOAD, Form.STREAMING]
    assert [k.form for k in plan.forward] == [k.form for k in plan.backward] == forms
    assert plan.column_sums == ()


def test_inference_only() -> None:
    plan = schedule(shipped("quant_rmsnorm"))
    assert plan.backward == ()
    assert [k.name for k in plan.kernels] == [
        "quant_rmsnorm_forward_resident",
        "quant_rmsnorm_forward_reload",
        "quant_rmsnorm_forward_streaming",
    ]


# --- rows in chunks, one a program --------------------------------------------------------------


@pytest.mark.parametrize(
    ("forward", "form"),
    [
        ("y = x * 2", Form.CHUNKS),
        ("y = x * scale + bias", Form.CHUNKS),
        ("y = x * (1 - share)", Form.CHUNKS),
        ("y = where(column < r, x, b)", Form.CHUNKS),
        ("y = x * sqrt(r)", Form.CHUNKS),
        ("t = r * 2\ny = x", Form.STREAMING),
        ("y = x * mean(x)", Form.STREAMING),
        ("y = sum(x)", Form.STREAMING),
    ],
)
def test_each_chunk_has_a_program_where_no_row_is_reduced(forward: str, form: Form) -> None:
    kinds = {"r": "per_row", "b": "per_column", "scale": "per_batch", "bias": "per_place"}
    inputs = {name: kind for name, kind in kinds.items() if re.search(rf"\b{name}\b", forward)}
    params = {"share": "{type: float, default: 0.5}"} if "share" in forward else {}
    outputs = {"t": "x", "y": "x"} if "t =" in forward else {"y": "x"}
    row_op = small_op(forward, inputs=inputs, params=params, outputs=outputs)
    assert forward_streaming(row_op).form is form


def test_kernels_of_single_chunks_have_no_loop() -> None:
    found = set()
    for path in ALL_SPECS:
        plan = planned(lower(load(path)))
        chunks = {each.name for each in plan.kernels if each.form is Form.CHUNKS}
        if not chunks:
            continue
        files = render_op(plan.row_op.spec)
        text = next(text for name, text in files.items() if name.endswith("kernels.py"))
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and node.name in chunks:
                assert not any(isinstance(part, ast.For | ast.While) for part in ast.walk(node))
                first = "tl.program_id(0) % n_chunks * BLOCK"
                columns = f"column = {first} + tl.arange(0, BLOCK)[None, :]"
                assert columns in [ast.unparse(statement) for statement in node.body]
                found.add(node.name)
        assert chunks <= found
    for name in ("gelu", "geglu", "swiglu", "squared_relu"):
        assert {f"{name}_forward_streaming", f"{name}_backward_streaming"} <= found
    assert "dyt_forward_streaming" in found and "softmax_backward_streaming" not in found


# --- rows that are read again -------------------------------------------------------------------


def reloads(row_op: RowOp, direction: str = "forward") -> list[tuple[list[str], list[str]]]:
    """What each walk of a kernel that reads rows again reduces to and what it stores, if any."""
    found = schedule(row_op).kernel(f"{direction}_reload")
    if found is None:
        return []
    return [([d.name for d in w.reductions], [r.name for r in w.stores]) for w in found.walks]


def test_rows_are_read_again_after_each_reduction_that_others_wait_for() -> None:
    """Nothing merges there: a row is reduced at one go, which takes no running values."""
    row_op = small_op("m = max(x)\ns = sum(exp(x - m))\ny = exp(x - m) / s")
    assert reloads(row_op) == [(["m"], []), (["s"], []), ([], ["y"])]
    again = kernel(schedule(row_op), "forward_reload")
    assert [(walk.merges, walk.online) for walk in again.walks] == 3 * [((), ())]
    row_op = small_op("a = mean(x)\nb = max(abs(x))\ny = (x - a) / b")
    assert reloads(row_op) == [(["a", "b"], []), ([], ["y"])]


def test_one_column_sum_is_added_to_in_the_last_walk() -> None:
    kernel_ = kernel(schedule(shipped("rmsnorm")), "backward_reload")
    assert kernel_.form is Form.RELOAD_GROUPS and kernel_.is_grouped and kernel_.is_whole
    assert reloads(shipped("rmsnorm"), "backward") == [
        (["mean_g_xhat"], []),
        ([], ["dx", "dweight"]),
    ]


@pytest.mark.parametrize(
    "forward",
    [
        "y = x * 2",
        "y = x * row",
        # Each matrix is read in one walk.
        "y = x + mean(w)",
        # What comes down to numbers is read once, or has nothing to wait for.
        "y = sum(x) + max(x)",
        "a = max(x)\ny = sum(exp(x - a))",
        # Two functions of the row would be worked out twice.
        "z = tanh(x)\nu = exp(x)\ny = z * mean(z) * u * max(u)",
        "z = silu(x)\na = max(z)\nb = sum(z - a)\ny = z * b",
    ],
)
def test_where_reading_again_does_not_pay(forward: str) -> None:
    inputs = {"w": "matrix"} if re.search(r"\bw\b", forward) else {}
    assert reloads(small_op(forward, inputs=inputs)) == []


@pytest.mark.parametrize(
    "forward",
    [
        "z = tanh(x)\ny = z * mean(z)",
        # Products and differences cost less than registers.
        "z = x * x - 2 * x + 1\nu = -z\ny = z * mean(z) * u * max(u)",
    ],
)
def test_little_may_be_worked_out_again(forward: str) -> None:
    assert len(reloads(small_op(forward))) == 2


@pytest.mark.parametrize("name", ["layernorm", "shared_gain", "dyt"])
def test_beside_several_column_sums_rows_stay_in_registers(name: str) -> None:
    plan = schedule(shipped(name))
    assert len(plan.column_sums) > 1
    assert plan.kernel("backward_reload") is None


@pytest.mark.parametrize("path", ALL_SPECS, ids=lambda path: path.stem)
def test_only_what_some_width_takes_is_planned(path: Path) -> None:
    row_op = lower(load(path))
    every, plan = schedule(row_op), planned(row_op)
    before = tile_rule(every)
    for direction, tiles in tile_rule(plan).items():
        assert tiles.whole == before[direction].whole
        assert tiles.reloaded == before[direction].reloaded
        again = plan.kernel(f"{direction}_reload")
        assert (again is not None) == bool(tiles.reloaded)
    left_out = {k.name for k in every.kernels} - {k.name for k in plan.kernels}
    assert all(name.endswith("_reload") for name in left_out)


# --- tiles --------------------------------------------------------------------------------------

# For a kind of op, and a direction of one: the widest rows in registers, and those read again, in
# words; the rows and warps of the tiles for 64, 512 and 4096 words and for the widest; the words
# and warps of a chunk, and of a tile of columns.
KINDS_OF_OP = [
    # Reads a row and writes one; more and more walks.
    ("dyt", "forward", 2048, 2048, [(16, 2), (2, 1), (1, 4)], (1024, 2), None),
    ("rmsnorm", "forward", 8192, 65536, [(16, 2), (2, 1), (1, 4), (1, 32)], (8192, 32), None),
    ("softmax", "forward", 8192, 32768, [(16, 2), (2, 1), (1, 4), (1, 32)], (16384, 16), None),
    ("layernorm", "forward", 8192, 32768, [(16, 2), (2, 1), (1, 4), (1, 32)], (16384, 16), None),
    # Reads and writes more; works out much in each walk; comes down to numbers.
    ("add_rmsnorm", "forward", 16384, 16384, [(16, 2), (2, 1), (1, 8), (1, 16)], (8192, 32), None),
    ("log_softmax", "forward", 16384, 16384, [(16, 2), (2, 1), (1, 8), (1, 16)], (8192, 32), None),
    ("logsumexp", "forward", 16384, 16384, [(16, 1), (2, 1), (1, 4), (1, 8)], (8192, 32), None),
    # Gradients without column sums.
    ("logsumexp", "backward", 2048, 2048, [(16, 2), (2, 1), (1, 4)], (1024, 2), None),
    ("softmax", "backward", 8192, 65536, [(16, 2), (2, 1), (1, 4), (1, 32)], (16384, 32), None),
    (
        "standard_softmax",
        *("backward", 16384, 16384, [(16, 2), (2, 1), (1, 8), (1, 16)], (16384, 32), None),
    ),
    # One column sum with and without rows read again, two, and three.
    (
        "rmsnorm",
        *("backward", 8192, 16384, [(32, 4), (4, 2), (2, 8), (1, 16)], (4096, 16), (2048, 4)),
    ),
    (
        "dropout_rmsnorm",
        *("backward", 8192, 8192, [(32, 4), (4, 2), (2, 8), (1, 16)], (4096, 16), (2048, 4)),
    ),
    (
        "layernorm",
        *("backward", 8192, 8192, [(32, 4), (4, 2), (2, 8), (1, 8)], (4096, 16), (2048, 4)),
    ),
    (
        "polynorm",
        *("backward", 4096, 4096, [(16, 4), (2, 2), (1, 8), (1, 8)], (4096, 16), (1024, 2)),
    ),
]


@pytest.mark.parametrize(
    ("name", "direction", "resident", "widest", "shapes", "chunk", "split"), KINDS_OF_OP
)
def test_tiles_by_kind_of_op(
    name: str,
    direction: str,
    resident: int,
    widest: int,
    shapes: list[tuple[int, int]],
    chunk: tuple[int, int],
    split: tuple[int, int] | None,
) -> None:
    plan = schedule(shipped(name))
    tiles = untuned(plan)[direction]
    kept = [tile.words for tile in tiles.whole if tile.words not in tiles.reloaded]
    assert (kept[-1], tiles.whole_words) == (resident, widest)
    by_words = {tile.words: (tile.rows, tile.warps) for tile in tiles.whole}
    some = [words for words in (64, 512, 4096, widest) if words <= widest]
    assert [by_words[words] for words in some] == shapes
    assert (tiles.streaming.words, tiles.streaming.warps) == chunk
    assert (plan.kernel(f"{direction}_split_columns") is None) == (split is None)
    assert split is None or (tiles.split.words, tiles.split.warps) == split


def test_tiles_get_shorter_with_more_matrices() -> None:
    """By half beyond six, and once more beyond twelve."""
    widest = {}
    for number in (1, 4, 5, 10, 11):
        names = [f"z{place}" for place in range(number)]
        formula = f"y = max({' + '.join(['x', *names])}) * x"
        row_op = small_op(formula, inputs=dict.fromkeys(names, "matrix"))
        plan = schedule(row_op)
        tiles = tile_rule(plan)["forward"]
        assert live_matrices(plan.forward[0]) == number + 2
        assert not tiles.reloaded
        widest[number + 2] = tiles.whole_words
    assert widest == {3: 16384, 6: 16384, 7: 8192, 12: 8192, 13: 4096}


def test_gradients_that_hold_little_too() -> None:
    """Three matrices, without a function and with one."""
    for name, warps in (("softmax", 8), ("log_softmax", 16)):
        row_op = lower(load(ROOT / "specs" / f"{name}.yaml"))
        tile = untuned(schedule(row_op))["backward"].tile(8192)
        assert tile is not None and tile.warps == warps


def test_rows_that_are_walked_once() -> None:
    """They come down to a number that nothing of the row waits for."""
    gradients = "dx = dy * r\ndr = sum(dy * x)"
    row_op = small_op("y = x * r", gradients, inputs={"r": "per_row"})
    tiles = tile_rule(schedule(row_op))["backward"]
    assert (tiles.whole_words, tiles.streaming) == (8192, Tile(8192, 1, 16))
    row_op = small_op("s = sum(x)\ny = x * 2", outputs={"y": "x", "s": "x"})
    tiles = tile_rule(schedule(row_op))["forward"]
    assert (tiles.whole_words, tiles.streaming) == (8192, Tile(16384, 1, 32))


@pytest.mark.parametrize(
    ("formula", "warps"),
    [
        ("m = max(x)\ny = x - m", 8),
        ("e = exp(x - max(x))\ny = e / sum(e)", 8),
        ("e = exp(x - max(x))\ny = e * e ** 3 / sum(e)", 8),
        ("e = exp(x - max(x))\ny = e / sum(e) / (1 + x * x)", 16),
        ("e = exp(x - max(x))\ny = e * tanh(x) / sum(e)", 16),
        ("e = exp(x - max(x))\ny = e ** 7 / sum(e)", 16),
        ("y = x / max(abs(x))", 8),
        ("y = x / max(abs(x)) / 3", 16),
        ("y = tanh(w) * x / max(abs(x))", 16),
    ],
)
def test_tiles_that_hold_little_have_half_the_warps(formula: str, warps: int) -> None:
    inputs = {"w": "per_column"} if "w" in formula else {}
    tiles = tile_rule(schedule(small_op(formula, inputs=inputs)))["forward"]
    tile = tiles.tile(8192)
    assert tile is not None
    assert tile.warps == warps


def all_tiles(tiles: Tiles) -> list[Tile]:
    return [*tiles.whole, tiles.streaming, tiles.split]


@pytest.mark.parametrize("path", ALL_SPECS, ids=lambda path: path.stem)
def test_tiles_are_powers_of_two_without_gaps(path: Path) -> None:
    plan = schedule(lower(load(path)))
    rule = tile_rule(plan)
    assert list(rule) == ["forward", *(each.name for each in plan.passes)]
    for tiles in rule.values():
        assert [tile.words for tile in tiles.whole] == [64 << i for i in range(len(tiles.whole))]
        assert set(tiles.reloaded) <= {tile.words for tile in tiles.whole[1:]}
        for tile in all_tiles(tiles):
            # All powers of two, and no more than a program can have.
            for size in (tile.words, tile.rows, tile.warps):
                assert size & (size - 1) == 0
            assert tile.words * tile.rows <= 65536
            assert 1 <= tile.warps <= 32
            # No lane without an element of its own.
            assert tile.words * tile.rows >= 32 * tile.warps
