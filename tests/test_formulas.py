"""Formula text: minimal parentheses, and back through the parser and lowering unchanged."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from kgen.errors import KgenError, Source, Span
from kgen.expr import FUNCTIONS, OPERATORS, Apply, Assignment, Expr, Name, Number, parse_formulas
from kgen.formulas import expr_of, expr_text, text
from kgen.ir import Define, Literal, Op, Ref, Term, Type
from kgen.load import load
from kgen.lower import RowOp, formulas_of
from kgen.spec import Element, Kind
from small_op import ROOT, small_op, term_of

ALL_SPECS = sorted([*(ROOT / "specs").glob("*.yaml"), *(ROOT / "tests" / "zoo").glob("*.yaml")])
HERE = Span(Source("formulas", ""), 1, 1)


def parsed(formula: str) -> Expr:
    (assignment,) = parse_formulas(f"y = {formula}", HERE)
    return assignment.value


def bare(expr: Expr) -> object:
    """The expression without positions; a negative number as the parser gives it."""
    match expr:
        case Number(value=value) if math.copysign(1, value) < 0:
            return ("neg", (type(value), -value))
        case Number(value=value):
            return (type(value), value)
        case Name(text=name):
            return name
        case Apply(function=function, arguments=arguments):
            return (function, *map(bare, arguments))


@pytest.mark.parametrize(
    "formula",
    [
        "a + b - c",
        "a - (b - c)",
        "a - (b + c)",
        "a * b / c // d % e",
        "a * (b / c)",
        "(a + b) * c",
        "-a ** 2",
        "(-a) ** 2",
        "a ** -b ** c",
        "(a ** b) ** c",
        "-(a * b)",
        "-a * b",
        "a * -b",
        "--a",
        "-2 * a",
        "2 ** -0.5",
        "(a < b) == (c < d)",
        "a < b and b < c or not d",
        "a and (b or c)",
        "a and (b and c)",
        "not (a or b)",
        "not a == b",
        "(not a) == b",
        "where(a > 0, b, -inf)",
        "clamp(a + b, -1, pi)",
        "exp(a - max(b)) / sum(exp(c))",
        "cast(a * b, float16)",
        "1e-05 + 0.5 + 2.0 + 1e+20",
    ],
)
def test_text_is_what_was_written(formula: str) -> None:
    assert expr_text(parsed(formula)) == formula


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("((a)) + ((b * c))", "a + b * c"),
        ("(a ** (b ** c))", "a ** b ** c"),
        ("-(a ** 2)", "-a ** 2"),
        ("(-a) * b", "-a * b"),
        ("(a < b) and (b < c)", "a < b and b < c"),
        ("a if b else c", "where(b, a, c)"),
        ("(a / b) * c", "a / b * c"),
        ("+a", "a"),
    ],
)
def test_parentheses_that_say_nothing_go(written: str, shown: str) -> None:
    assert expr_text(parsed(written)) == shown


def test_a_negative_number_gets_parentheses_where_it_needs_them() -> None:
    minus = Number(-2, HERE)
    a = Name("a", HERE)
    assert expr_text(Apply("pow", (minus, a), HERE)) == "(-2) ** a"
    assert expr_text(Apply("pow", (a, minus), HERE)) == "a ** -2"
    assert expr_text(Apply("mul", (minus, a), HERE)) == "-2 * a"
    assert expr_text(Number(-0.0, HERE)) == "-0.0"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(2, "2"), (2.0, "2.0"), (0.5, "0.5"), (1e-5, "1e-05"), (-math.inf, "-inf")],
)
def test_numbers(value: float, shown: str) -> None:
    assert expr_text(Number(value, HERE)) == shown


NAMES = st.sampled_from(["a", "b", "c_1", "dx", "N", "column", "inf", "pi"])
FLOATS = st.floats(0, allow_nan=False, allow_infinity=False)
LEAVES = st.one_of(
    st.builds(Name, NAMES, st.just(HERE)),
    st.builds(Number, st.one_of(st.integers(0, 2**63 - 1), FLOATS), st.just(HERE)),
)
TAKES = {**{name: 1 if name in ("neg", "not") else 2 for name in OPERATORS}, **FUNCTIONS}


def applications(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    def of(function: str) -> st.SearchStrategy[Expr]:
        arguments = [inner] * TAKES[function]
        if function == "cast":
            arguments[1] = st.builds(Name, NAMES, st.just(HERE))
        return st.builds(Apply, st.just(function), st.tuples(*arguments), st.just(HERE))

    return st.sampled_from(sorted(TAKES)).flatmap(of)


@settings(max_examples=200, deadline=None)
@given(st.recursive(LEAVES, applications, max_leaves=20))
def test_parsing_the_text_gives_the_expression(expr: Expr) -> None:
    assert bare(parsed(expr_text(expr))) == bare(expr)


@settings(max_examples=200, deadline=None)
@given(st.recursive(LEAVES, applications, max_leaves=12))
def test_no_parenthesis_could_go(expr: Expr) -> None:
    shown = expr_text(expr)
    for opened in (i for i, char in enumerate(shown) if char == "(" and not called(shown, i)):
        shorter = without_pair(shown, opened)
        with suppress(KgenError):  # as for chained comparisons
            assert bare(parsed(shorter)) != bare(expr), shorter


def called(formula: str, opened: int) -> bool:
    """Whether a parenthesis belongs to a call."""
    return opened > 0 and (formula[opened - 1].isalnum() or formula[opened - 1] == "_")


def without_pair(formula: str, opened: int) -> str:
    depth = 0
    for place in range(opened, len(formula)):
        depth += (formula[place] == "(") - (formula[place] == ")")
        if depth == 0:
            return f"{formula[:opened]} {formula[opened + 1 : place]} {formula[place + 1 :]}"
    raise AssertionError(formula)


def same(term: Term) -> object:
    """A term without positions, in which 2 among floats counts as 2.0."""
    match term:
        case Literal(value=value):
            return value
        case Ref(name=name):
            return (name, str(term.type))
        case Op(op=op, arguments=arguments, like=like):
            return (op, like, str(term.type), *map(same, arguments))


def assigned(define: Define) -> Assignment:
    """The definition as a formula, through its text."""
    (assignment,) = parse_formulas(f"{define.name} = {text(define.term)}", define.at)
    return assignment


@pytest.mark.parametrize("path", ALL_SPECS, ids=lambda path: path.stem)
def test_every_formula_of_every_spec_comes_back(path: Path) -> None:
    spec = replace(load(path), double_backward=False)
    forward, backwards = formulas_of(spec)
    again = replace(spec, forward=tuple(map(assigned, forward.definitions)))
    if backwards:
        again = replace(again, backward=tuple(map(assigned, backwards[0].definitions)))
    forward_again, backwards_again = formulas_of(again)
    before = [*forward.definitions, *(d for each in backwards for d in each.definitions)]
    after = [*forward_again.definitions, *(d for each in backwards_again for d in each.definitions)]
    for old, new in zip(before, after, strict=True):
        assert new.name == old.name
        assert same(new.term) == same(old.term), text(old.term)


INPUTS = {
    "weight": "per_column",
    "scale": "per_row",
    "target": "{kind: per_row, type: int}",
    "keep": "{kind: matrix, type: bool}",
}
PARAMS = {
    "eps": "{default: 1.5}",
    "width": "{type: int, default: 3}",
    "flag": "{type: bool, default: true}",
}
# A spec uses whatever it declares.
USES = "z = where(keep and flag, x + weight + scale + target, eps * width)"


def op_of(formula: str) -> RowOp:
    forward = f"{USES}\ny = {formula}"
    return small_op(forward, inputs=INPUTS, params=PARAMS, outputs={"y": "x", "z": "x"})


def written(row_op: RowOp) -> str:
    return text(term_of(row_op, "y"))


@pytest.mark.parametrize(
    ("formula", "shown"),
    [
        ("x ** 2.0", "x ** 2"),
        ("2.0 * x + 1.0", "2 * x + 1"),
        ("x * 2.5", "x * 2.5"),
        ("maximum(x, 0.0)", "maximum(x, 0)"),
        ("where(x > 0.0, x, -1.0)", "where(x > 0, x, -1)"),
        ("where(x > 0, 1.0, 0.0) * x", "where(x > 0, 1.0, 0.0) * x"),
        ("1 / N + 2.0 / x", "1 / N + 2 / x"),
        ("1.0 / N + x / 2.0", "1.0 / N + x / 2"),
        ("column * 2.0 + x", "column * 2.0 + x"),
        ("column // 2 + x", "column // 2 + x"),
        ("clamp(x, 0.0, 2.0 ** 60)", "clamp(x, 0, 1.152921504606847e+18)"),
        ("x * (row + column)", "x * (row + column)"),
        ("x - pi", "x - pi"),
        ("maximum(x, -inf)", "maximum(x, -inf)"),
        ("x * (1.0 if flag else 2.0)", "x * where(flag, 1.0, 2.0)"),
        (
            "x if flag and not (N > 1) else x - detach(max(x))",
            "where(flag and not N > 1, x, x - detach(max(x)))",
        ),
    ],
)
def test_whole_numbers_among_floats_lose_the_point(formula: str, shown: str) -> None:
    row_op = op_of(formula)
    assert written(row_op) == shown
    assert same(term_of(op_of(shown), "y")) == same(term_of(row_op, "y"))


FLOAT, INT = (Type(Kind.MATRIX, element) for element in (Element.FLOAT, Element.INT))


def test_a_float_made_of_ints_stays_a_float() -> None:
    columns, rows = Ref("column", INT, HERE), Ref("row", INT, HERE)
    converted = [Op("float", (ref,), FLOAT, HERE) for ref in (columns, rows)]
    total = Op("add", tuple(converted), FLOAT, HERE)
    assert text(total) == "1.0 * column + row"


FLOAT_FUNCTIONS = ["exp", "log1p", "sqrt", "rsqrt", "tanh", "sigmoid", "silu", "erf", "sign"]


def typed_formulas() -> st.SearchStrategy[str]:
    """Formulas that lowering takes, with more parentheses than they need."""
    names = ["x", "weight", "scale", "target", "eps", "width", "N", "row", "column", "pi", "inf"]
    number = st.one_of(
        st.sampled_from(names),
        st.sampled_from(["0", "1", "2", "7", "0.0", "1.0", "2.0", "-3", "-0.5", "1e-5", "3e20"]),
    )
    flags = st.sampled_from(["keep", "flag"])

    def grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        condition = st.one_of(
            flags,
            st.builds("({}) {} ({})".format, inner, st.sampled_from(["<", "==", ">="]), inner),
            st.builds("not (({}) < ({}))".format, inner, inner),
            st.builds(
                "(({0}) > ({1})) {2} {3}".format,
                inner,
                inner,
                st.sampled_from(["and", "or"]),
                flags,
            ),
        )
        operator = st.sampled_from(["+", "-", "*", "/", "//", "%", "**"])
        return st.one_of(
            st.builds("({}) {} ({})".format, inner, operator, inner),
            st.builds("-({})".format, inner),
            st.builds("{}({})".format, st.sampled_from(FLOAT_FUNCTIONS), inner),
            st.builds("{}({})".format, st.sampled_from(["abs", "floor", "round"]), inner),
            st.builds("{}({}, {})".format, st.sampled_from(["maximum", "minimum"]), inner, inner),
            st.builds("clamp({}, {}, {})".format, inner, inner, inner),
            st.builds("where({}, {}, {})".format, condition, inner, inner),
            st.builds("{}(x + ({}))".format, st.sampled_from(["sum", "mean", "max"]), inner),
            st.builds("cast({}, {})".format, inner, st.sampled_from(["x", "float16"])),
            st.builds("detach({})".format, inner),
        )

    return st.recursive(number, grow, max_leaves=10)


@settings(max_examples=100, deadline=None)
@given(typed_formulas())
def test_lowering_the_text_gives_the_term(formula: str) -> None:
    try:
        row_op = op_of(f"x + ({formula})")
    except KgenError:
        assume(False)  # a constant without a value, such as 1 / 0
    again = op_of(written(row_op))
    assert same(term_of(again, "y")) == same(term_of(row_op, "y")), written(row_op)
    assert written(again) == written(row_op)
    assert bare(expr_of(term_of(again, "y"))) == bare(parsed(written(row_op)))
