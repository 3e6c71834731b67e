"""Lowering: the kind and element of every name, and what backward reuses, saves and recomputes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from kgen.build import render_all
from kgen.errors import KgenError
from kgen.ir import Define, Literal, Op, Program, Ref, Result, Role, Type, Variable, verify, walk
from kgen.load import load, load_text
from kgen.lower import RowOp, lower
from kgen.spec import Element, Kind
from small_op import ROOT, shipped, small_op, term_of

ALL_SPECS = sorted([*(ROOT / "specs").glob("*.yaml"), *(ROOT / "tests" / "zoo").glob("*.yaml")])
FLOAT_MATRIX = Type(Kind.MATRIX, Element.FLOAT)


def kinds(row_op: RowOp) -> dict[str, str]:
    return {d.name: str(d.type) for d in row_op.forward.definitions}


def backward_of(row_op: RowOp) -> Program:
    assert row_op.backward is not None
    return row_op.backward


def reads(row_op: RowOp, *roles: Role) -> list[str]:
    return [v.name for v in backward_of(row_op).variables if v.role in roles]


def computes(row_op: RowOp) -> list[str]:
    return [d.name for d in backward_of(row_op).definitions]


@pytest.mark.parametrize("path", ALL_SPECS, ids=lambda path: path.stem)
def test_programs_verify(path: Path) -> None:
    row_op = lower(load(path))
    verify(row_op.forward)
    if row_op.backward is not None:
        verify(row_op.backward)


def test_kinds_of_layernorm() -> None:
    assert kinds(shipped("layernorm")) == {
        "mu": "per_row float",
        "rstd": "per_row float",
        "y": "matrix float",
    }


def test_kinds_of_every_combination() -> None:
    row_op = small_op(
        """
        each = scale * 2
        columns = weight + column
        both = each * columns
        number = eps * N
        flag = x > number
        count = where(flag, 1, 0)
        counted = sum(count)
        first = row == 0 and column < queries
        y = both + counted + where(first, x, number)
        """,
        inputs={"scale": "per_row", "weight": "per_column"},
        params={"eps": "{default: 1.0}", "queries": "{type: int, default: 2}"},
    )
    assert kinds(row_op) == {
        "each": "per_row float",
        "columns": "per_column float",
        "both": "matrix float",
        "number": "scalar float",
        "flag": "matrix bool",
        "count": "matrix int",
        "counted": "per_row float",
        "first": "matrix bool",
        "y": "matrix float",
    }


@pytest.mark.parametrize(
    ("formula", "element"),
    [
        ("column + 1", Element.INT),
        ("column * N // 2 % 3", Element.INT),
        ("-column", Element.INT),
        ("abs(row - column)", Element.INT),
        ("maximum(column, 3)", Element.INT),
        ("clamp(column, 0, 3)", Element.INT),
        ("floor(column)", Element.INT),
        ("round(column)", Element.INT),
        ("where(x > 0, 1, 0)", Element.INT),
        ("where(x > 0, 1, 0.5)", Element.FLOAT),
        ("where(x > 0, column, x)", Element.FLOAT),
        ("column / 2", Element.FLOAT),
        ("column ** 2", Element.FLOAT),
        ("2 ** column", Element.FLOAT),
        ("column * 0.5", Element.FLOAT),
        ("column // 2.0", Element.FLOAT),
        ("sign(column - 3)", Element.FLOAT),
        ("exp(column)", Element.FLOAT),
        ("cast(column, float16)", Element.FLOAT),
        ("sum(where(x > 0, 1, 0))", Element.FLOAT),
        ("column < 3", Element.BOOL),
        ("not (column < 3 or row == 1)", Element.BOOL),
        ("x > 0 if row == 0 else x > 1", Element.BOOL),
    ],
)
def test_elements(formula: str, element: Element) -> None:
    used = "a" if element is Element.BOOL else "a > 0"
    row_op = small_op(f"a = {formula}\ny = x + where({used}, 1, 0)")
    assert term_of(row_op, "a").type.element is element


@pytest.mark.parametrize(
    "formula", ["column / N", "N / 2", "row / column", "column * 0.1", "N * 0.1"]
)
def test_whole_numbers_among_constants_join_the_arithmetic(formula: str) -> None:
    """Beside a constant alone they would stay in float32, whatever the inputs are."""
    terms = list(walk(term_of(small_op(f"a = {formula}\ny = x + a"), "a")))
    assert any(isinstance(term, Op) and term.op == "float" for term in terms)


def test_whole_numbers_beside_tensors_stay_as_they_are() -> None:
    terms = list(walk(term_of(small_op("y = x * column + N"), "y")))
    assert not any(isinstance(term, Op) and term.op == "float" for term in terms)


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        ("2 * 3", 6),
        ("7 // -2", -4),
        ("-7 % 3", 2),
        ("1 / 4", 0.25),
        ("2 ** 3", 8.0),
        ("-inf", float("-inf")),
        ("sqrt(16) + 1", 5.0),
        ("round(2.5)", 2),
        ("maximum(2, 3.5)", 3.5),
    ],
)
def test_constants_are_folded(formula: str, value: float) -> None:
    term = term_of(small_op(f"y = x + ({formula})"), "y")
    assert isinstance(term, Op)
    folded = term.arguments[1]
    assert isinstance(folded, Literal)
    assert folded.value == value


# --- what backward is given ---------------------------------------------------------------------


def test_rmsnorm_saves_its_statistic() -> None:
    row_op = shipped("rmsnorm")
    assert row_op.saved == ("rstd",)
    assert reads(row_op, Role.OUTPUT) == []
    assert "rstd" not in computes(row_op)


def test_layernorm_saves_both_statistics() -> None:
    row_op = shipped("layernorm")
    assert row_op.saved == ("mu", "rstd")
    assert computes(row_op) == ["xhat", "g", "dx", "dweight", "dbias"]


def test_softmax_reuses_its_output_and_saves_nothing() -> None:
    row_op = shipped("softmax")
    assert row_op.saved == ()
    assert reads(row_op, Role.INPUT, Role.OUTPUT) == ["y"]


def test_a_backward_of_its_upstream_alone_reads_nothing_else() -> None:
    row_op = small_op("y = x + sum(x) * 0", "dx = dy")
    assert row_op.saved == ()
    assert [v.name for v in backward_of(row_op).variables] == ["dy"]


def test_a_recomputed_matrix_saves_the_reduction_inside() -> None:
    row_op = small_op("p = x * mean(x * x)\ny = p + 1", "dx = dy * p")
    assert row_op.saved == ("mean_x_squared",)
    assert computes(row_op) == ["p", "dx"]
    assert [r.tensor for r in row_op.forward.results] == ["y", "mean_x_squared"]


def test_a_matrix_nobody_needs_again_is_not_hoisted() -> None:
    row_op = small_op("p = x * mean(x * x)\ny = p + 1", "dx = dy * x")
    assert row_op.saved == ()
    assert [d.name for d in row_op.forward.definitions] == ["p", "y"]


def test_a_statistic_of_a_statistic_is_saved_alone() -> None:
    row_op = small_op("s = sum(x)\nr = 1 / (s * s + 1)\ny = x * r", "dx = dy * r")
    assert row_op.saved == ("r",)


def test_a_row_value_without_a_walk_is_recomputed() -> None:
    row_op = small_op(
        "r = scale * 2\ny = x * r",
        "dx = dy * r\ndscale = 2 * sum(dy * x)",
        inputs={"scale": "per_row"},
    )
    assert row_op.saved == ()
    assert "r" in computes(row_op)


def test_a_condition_is_recomputed_from_a_saved_number() -> None:
    """Saved values are floats, so a bool or a whole number is worked out again."""
    row_op = small_op(
        """
        is_large = max(x) > 1
        place = where(is_large, row, 0)
        y = where(is_large, x, 0) + place
        """,
        "dx = where(is_large and place >= 0, dy, 0)",
    )
    assert row_op.saved == ("max_x",)
    assert computes(row_op) == ["is_large", "place", "dx"]


LSE = "lse = log(sum(exp(x)))"
FLOATS = ("float16", "bfloat16", "float32")


def test_a_row_output_in_the_dtype_of_the_arithmetic_is_reused() -> None:
    row_op = small_op(LSE, "dx = dlse * exp(x - lse)", outputs={"lse": "compute"})
    assert row_op.saved == ()
    assert reads(row_op, Role.UPSTREAM, Role.OUTPUT) == ["lse", "dlse"]


def test_a_float32_row_output_is_reused_when_nothing_rounds_it() -> None:
    row_op = small_op(LSE, "dx = dlse * exp(x - lse)", outputs={"lse": "float32"}, dtypes=FLOATS)
    assert row_op.saved == ()
    assert reads(row_op, Role.OUTPUT) == ["lse"]


@pytest.mark.parametrize(("dtype", "dtypes"), [("float32", ()), ("x", FLOATS), ("float16", FLOATS)])
def test_a_rounded_row_output_is_saved_beside(dtype: str, dtypes: tuple[str, ...]) -> None:
    row_op = small_op(LSE, "dx = dlse * exp(x - lse)", outputs={"lse": dtype}, dtypes=dtypes)
    assert row_op.saved == ("lse",)
    assert [(r.name, r.tensor) for r in row_op.forward.results] == [
        ("lse", "lse"),
        ("lse", "saved_lse"),
    ]


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn"])
def test_a_quantised_output_is_recomputed(dtype: str) -> None:
    row_op = small_op("q = x * 3\ny = q * 2", "dx = dy * q", outputs={"q": dtype, "y": "x"})
    assert reads(row_op, Role.OUTPUT) == []
    assert computes(row_op) == ["q", "dx"]


def test_an_output_of_whole_numbers_is_recomputed() -> None:
    row_op = small_op(
        "sure = where(x > 0, 1, 0)\ny = x * sure",
        "dx = dy * sure",
        outputs={"y": "x", "sure": "float32"},
    )
    assert computes(row_op) == ["sure", "dx"]


def test_several_outputs_may_each_lack_a_gradient() -> None:
    row_op = shipped("add_rmsnorm")
    upstream = [v for v in backward_of(row_op).variables if v.role is Role.UPSTREAM]
    assert [(v.name, v.absent) for v in upstream] == [("dy", 0.0), ("dh", 0.0)]


def test_optional_inputs_keep_their_neutral_value() -> None:
    program = shipped("layernorm").forward
    assert [(v.name, v.absent) for v in program.variables if v.role is Role.INPUT] == [
        ("x", None),
        ("weight", 1.0),
        ("bias", 0.0),
    ]


# --- verify -------------------------------------------------------------------------------------

RMSNORM = shipped("rmsnorm").forward


def broken(change: str) -> Program:
    rstd, y = RMSNORM.definitions
    if change == "order":
        return replace(RMSNORM, definitions=(y, rstd))
    if change == "twice":
        return replace(RMSNORM, definitions=(rstd, rstd, y))
    if change == "shadows an input":
        return replace(RMSNORM, definitions=(replace(rstd, name="x"), y))
    if change == "shadows a builtin":
        return replace(RMSNORM, definitions=(replace(rstd, name="row"), y))
    if change == "two variables":
        return replace(RMSNORM, variables=(*RMSNORM.variables, RMSNORM.variables[0]))
    if change == "no result":
        return replace(RMSNORM, results=(*RMSNORM.results, Result("z", Kind.MATRIX, Role.OUTPUT)))
    if change == "kind of a result":
        return replace(RMSNORM, results=(Result("y", Kind.PER_ROW, Role.OUTPUT),))
    if change == "kind of a variable":
        weight = Variable("weight", FLOAT_MATRIX, Role.INPUT, 1.0)
        variables = [weight if v.name == "weight" else v for v in RMSNORM.variables]
        return replace(RMSNORM, variables=tuple(variables))
    return replace(RMSNORM, definitions=(rstd, Define("y", wrong_term(change), None, y.at)))


def wrong_term(change: str) -> Op:
    at = RMSNORM.definitions[0].at
    x = Ref("x", FLOAT_MATRIX, at)
    rstd = Ref("rstd", Type(Kind.PER_ROW, Element.FLOAT), at)
    total = Op("sum_rows", (x,), Type(Kind.PER_COLUMN, Element.FLOAT), at)
    wrong = {
        "kind of a product": Op("mul", (x, rstd), rstd.type, at),
        "kind of a reduction": Op("sum", (x,), FLOAT_MATRIX, at),
        "reduction of a row value": Op("sum", (rstd,), rstd.type, at),
        "inner column sum": Op("mul", (x, total), FLOAT_MATRIX, at),
    }
    return wrong[change]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("order", "rstd is used before it is defined"),
        ("twice", "rstd is defined twice"),
        ("shadows an input", "x is defined twice"),
        ("shadows a builtin", "row is defined twice"),
        ("two variables", "x stands for two values"),
        ("no result", "the result z has no definition"),
        ("kind of a result", "the result y is matrix, not per_row"),
        ("kind of a variable", "weight changes its type"),
        ("kind of a product", "mul has the wrong kind"),
        ("kind of a reduction", "sum does not give a per_row value"),
        ("reduction of a row value", "sum of no matrix"),
        ("inner column sum", "sum_rows inside another expression"),
    ],
)
def test_verify_catches(change: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        verify(broken(change))


def test_the_wrong_kinds_of_all_specs_are_shown_at_once() -> None:
    text = (ROOT / "specs" / "softmax.yaml").read_text(encoding="utf-8")
    wrong = text.replace("sum(e)", "sum(sum(e))")
    specs = [load_text(wrong, "specs/one.yaml"), load_text(wrong, "specs/two.yaml")]
    with pytest.raises(KgenError) as caught:
        render_all(specs)
    assert [problem.at.source.path for problem in caught.value.problems if problem.at] == [
        "specs/one.yaml",
        "specs/two.yaml",
    ]


def test_gradients_of_the_same_values() -> None:
    row_op = small_op(
        "y = x + b + c * 2 + d * weight",
        """
        dx = dy
        db = dx
        dc = dy * 2
        dd = dy * weight
        dweight = sum_rows(dy * d)
        """,
        inputs={"b": "matrix", "c": "matrix", "d": "matrix", "weight": "per_column"},
    )
    assert backward_of(row_op).repeated == {"db": "dx"}
    assert backward_of(shipped("add_rmsnorm")).repeated == {"dresidual": "dx"}
    assert backward_of(shipped("swiglu")).repeated == {}
