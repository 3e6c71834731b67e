"""Emitted text: it means what the formula means, for random formulas and for known hard ones.

The text is run here on plain numbers with a stand-in for ``tl``, helper functions included.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from kgen.emit import HELPERS, Emitter, helper_sources, number
from kgen.errors import KgenError
from kgen.padding import choose_padding
from small_op import kernels_text, small_op, term_of

INPUTS = {"a": "per_row", "b": "per_column", "keep": "{kind: matrix, type: bool}"}
PARAMS = {
    "eps": "{default: 0.5}",
    "k": "{type: int, default: 2}",
    "fast": "{type: bool, default: true}",
    "wide": "{type: bool, default: true}",
}


def emitted(formula: str) -> str:
    used = "where(keep and fast and wide, x * a * b * eps * k, 0)"
    row_op = small_op(f"f = {formula}\ny = f + {used}", inputs=INPUTS, params=PARAMS)
    padding = choose_padding(row_op.forward)
    return Emitter(row_op.spec, padding, row_op.forward).text(term_of(row_op, "f"))


# --- a stand-in for Triton on numbers -------------------------------------------------------------


def quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*map(np.float64, arguments))

    return call


def choose(condition: Any, yes: Any, no: Any) -> Any:
    return np.where(condition, yes, no)[()]


def extremum(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda left, right, propagate_nan=None: function(left, right)


def sigmoid(value: Any) -> Any:
    return 1 / (1 + np.exp(-value))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "exp": quiet(np.exp),
    "log": quiet(np.log),
    "sqrt": quiet(np.sqrt),
    "rsqrt": quiet(lambda value: 1 / np.sqrt(value)),
    "erf": quiet(lambda value: np.float64(math.erf(value))),
    "sigmoid": quiet(sigmoid),
    "abs": np.abs,
    "floor": np.floor,
}
TL = SimpleNamespace(
    **FUNCTIONS,
    where=choose,
    maximum=extremum(np.maximum),
    minimum=extremum(np.minimum),
    cast=lambda value, dtype: dtype(value),
    full=lambda shape, value, dtype: dtype(value),
    int64=np.int64,
    float64=np.float64,
    PropagateNan=SimpleNamespace(ALL=None),
    constexpr=None,
)
# What the formula's own words mean.
MEANING: dict[str, Callable[..., Any]] = {
    **FUNCTIONS,
    "log1p": quiet(np.log1p),
    "tanh": quiet(np.tanh),
    "silu": quiet(lambda value: value * sigmoid(value)),
    "sign": np.sign,
    "round": np.round,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "clamp": lambda value, low, high: np.minimum(np.maximum(value, low), high),
    "where": choose,
}


def helpers() -> dict[str, Any]:
    names: dict[str, Any] = {"tl": TL, "triton": SimpleNamespace(jit=lambda function: function)}
    for source in HELPERS.values():
        exec(source, names)
    return names


HELPER_NAMES = helpers()


def values(numbers: list[float], flags: list[bool]) -> dict[str, Any]:
    x, a, b, eps = map(np.float64, numbers)
    fast, wide, keep = flags
    return {
        **{"x": x, "a": a, "b": b, "eps": eps, "k": np.int64(-3), "keep": np.bool_(keep)},
        **{"column": np.int64(5), "row": np.int64(2), "N": np.int64(7), "n_columns": np.int64(7)},
        **{"fast": fast, "wide": wide, "FAST": fast, "WIDE": wide, "COMPUTE": np.float64},
        **{"inf": math.inf, "pi": math.pi},
    }


def run(text: str, names: dict[str, Any]) -> float:
    with np.errstate(all="ignore"):
        return float(eval(text, dict(names)))


# --- random formulas ------------------------------------------------------------------------------

FLOATS = st.sampled_from(["x", "a", "b", "eps", "0.1", "2.5", "3", "1", "0"])
WHOLE = st.sampled_from(["column", "row", "N", "k", "3", "2", "1"])
DIVISORS = st.sampled_from(["2", "3", "-4", "k", "N", "column"])
ONE = ["exp", "sqrt", "rsqrt", "tanh", "sigmoid", "silu", "erf", "abs", "log", "log1p"]
STEPS = ["floor", "round", "sign"]
FLAGS = ["fast", "wide", "keep"]


def parenthesised(text: str) -> st.SearchStrategy[str]:
    return st.sampled_from([text, f"({text})"])


@st.composite
def conditions(draw: st.DrawFn, depth: int) -> str:
    if depth == 0:
        return draw(st.sampled_from(FLAGS))
    match draw(st.sampled_from(["flag", "compare", "not", "and", "or"])):
        case "flag":
            return draw(st.sampled_from(FLAGS))
        case "compare":
            symbol = draw(st.sampled_from(["<", "<=", ">", ">=", "==", "!="]))
            return f"({draw(st.sampled_from(['x', 'a', 'column']))} {symbol} {draw(FLOATS)})"
        case "not":
            return f"(not {draw(conditions(depth - 1))})"
        case word:
            return f"({draw(conditions(depth - 1))} {word} {draw(conditions(depth - 1))})"


@st.composite
def integers(draw: st.DrawFn, depth: int) -> str:
    if depth == 0:
        return draw(WHOLE)
    symbol = draw(st.sampled_from(["+", "-", "*", "//", "%"]))
    if symbol in ("//", "%"):
        return f"(({draw(integers(depth - 1))}) {symbol} {draw(DIVISORS)})"
    return draw(parenthesised(f"{draw(integers(depth - 1))} {symbol} {draw(integers(depth - 1))}"))


@st.composite
def formulas(draw: st.DrawFn, depth: int) -> str:
    if depth == 0:
        return draw(st.one_of(FLOATS, WHOLE))
    inner = formulas(depth - 1)
    match draw(
        st.sampled_from(["binary", "binary", "neg", "call", "pow", "if", "two", "int", "step"])
    ):
        case "binary":
            text = f"{draw(inner)} {draw(st.sampled_from(['+', '-', '*', '/']))} {draw(inner)}"
        case "neg":
            text = f"-{draw(inner)}"
        case "call":
            return f"{draw(st.sampled_from(ONE))}({draw(inner)})"
        case "pow":
            power = draw(
                st.sampled_from(["2", "3", "4", "0.5", "-1", "-2", "-0.5", "5", "1.5", "0"])
            )
            text = f"{draw(st.sampled_from(['x', 'a', '(x + a)', 'abs(b)']))} ** {power}"
        case "if":
            return f"({draw(inner)} if {draw(conditions(2))} else {draw(inner)})"
        case "two":
            return f"{draw(st.sampled_from(['maximum', 'minimum']))}({draw(inner)}, {draw(inner)})"
        case "int":
            return draw(integers(2))
        case _:
            # A step of a value with rounding errors would fall on either side.
            return f"{draw(st.sampled_from(STEPS))}({draw(st.sampled_from(['x', 'a', 'b']))})"
    return draw(parenthesised(text))


NUMBERS = st.lists(
    st.sampled_from([-2.5, -1.0, -0.3, 0.0, 0.004, 0.5, 1.5, 2.0]), min_size=4, max_size=4
)


@settings(max_examples=300, deadline=None)
@given(formulas(4), NUMBERS, st.lists(st.booleans(), min_size=3, max_size=3))
def test_text_means_what_the_formula_means(
    formula: str, numbers: list[float], flags: list[bool]
) -> None:
    names = values(numbers, flags)
    try:
        text = emitted(formula)
    except KgenError:
        assume(False)
    with np.errstate(all="ignore"):
        try:
            expected = run(formula, {**MEANING, **names})
        except ZeroDivisionError:
            assume(False)
    assume(not abs(expected) > 1e6)
    found = run(text, {**HELPER_NAMES, **names})
    assert np.isclose(found, expected, rtol=1e-6, atol=1e-6, equal_nan=True), text


@settings(max_examples=40, deadline=None)
@given(formulas(3))
def test_the_same_text_every_time(formula: str) -> None:
    try:
        first = emitted(formula)
    except KgenError:
        assume(False)
    assert emitted(formula) == first


# --- known hard ones ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        ("x - (a - b)", "x - (a - b)"),
        ("(x - a) - b", "x - a - b"),
        ("x / (a * b)", "x / (a * b)"),
        ("x * (a / b)", "x * (a / b)"),
        ("x + (a + b)", "x + (a + b)"),
        ("-(x + a)", "-(x + a)"),
        ("-x * a", "-x * a"),
        ("x - -a", "x - -a"),
        ("-x ** 2", "-(x * x)"),
        ("(-x) ** 2", "-x * -x"),
        ("(x + 1) ** 2", "(x + 1) * (x + 1)"),
        ("x ** 3 / a ** 2", "x * x * x / (a * a)"),
        ("1 / x ** -1", "1 / (1.0 / x)"),
        ("x ** -2", "1.0 / (x * x)"),
        ("x ** 0.5", "tl.sqrt(x)"),
        ("x ** -0.5", "tl.rsqrt(x)"),
        ("x ** a", "power(x, a)"),
        ("2 ** x", "power(tl.full((1, 1), 2.0, COMPUTE), x)"),
        ("where(x > 0 and x < 1, x, 0)", "tl.where((x > 0) & (x < 1), x, 0)"),
        ("where(not (x > 0 or keep), x, a)", "tl.where(~((x > 0) | keep), x, a)"),
        ("where((x > 0) or (x < 1 and keep), x, a)", "tl.where((x > 0) | (x < 1) & keep, x, a)"),
        ("x if fast else a", "x if FAST else a"),
        ("1 + (x if fast else a)", "1 + (x if FAST else a)"),
        ("(x if fast else a) if wide else b", "(x if FAST else a) if WIDE else b"),
        ("x if fast else (a if wide else b)", "x if FAST else a if WIDE else b"),
        ("x if fast and not wide else a", "x if FAST and not WIDE else a"),
        ("x if (fast or wide) and fast else a", "x if (FAST or WIDE) and FAST else a"),
        ("where(fast and x > 0, x, a)", "tl.where(FAST & (x > 0), x, a)"),
        ("column % 3 + N // 2", "column % 3 + n_columns // 2"),
        ("(column - 3) % 4", "floor_modulo_int(column - 3, 4)"),
        ("(column + 3) // k", "floor_divide_int(column + 3, k)"),
        ("x // 2", "floor_divide(x, 2)"),
        ("column / N", "tl.cast(column, COMPUTE) / n_columns"),
        ("mean(x * x) + eps", "row_mean(x * x, n_columns) + eps"),
        ("sum(x - a)", "row_sum(tl.where(in_columns, x - a, 0.0))"),
        ("max(x * b)", 'row_max(tl.where(in_columns, x * b, float("-inf")))'),
        ("maximum(x, 0.1)", "nan_maximum(x, tl.full((1, 1), 0.1, COMPUTE))"),
        ("maximum(x, 0.5)", "nan_maximum(x, 0.5)"),
        ("maximum(column, 3)", "tl.maximum(column, 3)"),
        ("clamp(column, 0, 3)", "clamp_int(column, 0, 3)"),
        ("clamp(x, -1, 1)", "clamp(x, -1, 1)"),
        ("cast(x + a, float16)", "(x + a).to(tl.float16).to(COMPUTE)"),
        ("cast(x, float8_e4m3fn)", "x.to(tl.float32).to(tl.float8e4nv).to(COMPUTE)"),
        ("cast(x, a)", "x.to(a_ptr.dtype.element_ty).to(COMPUTE)"),
        ("cast(2.5, x)", "tl.full((1, 1), 2.5, COMPUTE).to(x_ptr.dtype.element_ty).to(COMPUTE)"),
        ("detach(x) * 2", "x * 2"),
    ],
)  # fmt: skip
def test_text(formula: str, text: str) -> None:
    assert emitted(formula) == text


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        ("where(keep, 0.1, 3.0)", "tl.where(keep, tl.full((1, 1), 0.1, COMPUTE), 3.0)"),
        ("where(keep, x, 0.1)", "tl.where(keep, x, tl.full((1, 1), 0.1, COMPUTE))"),
        ("where(keep, 1.0, 2.0) / 3", "tl.where(keep, tl.full((1, 1), 1.0, COMPUTE), 2.0) / 3"),
        ("log(0.1 if fast else 0.3)", "tl.log(tl.full((1, 1), 0.1 if FAST else 0.3, COMPUTE))"),
        ("log(2 if fast else eps)", "tl.log(tl.full((1, 1), 2, COMPUTE) if FAST else eps)"),
        ("column * 0.1", "tl.cast(column, COMPUTE) * 0.1"),
    ],
)  # fmt: skip
def test_constants_are_as_precise_as_the_arithmetic(formula: str, text: str) -> None:
    """Triton takes a bare number as float32, which float64 rows would notice."""
    assert emitted(formula) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2, "2"),
        (0.1, "0.1"),
        (1e-30, "1e-30"),
        (-0.0, "-0.0"),
        (1e300, "1e+300"),
        (math.inf, 'float("inf")'),
        (-math.inf, 'float("-inf")'),
    ],
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text
    assert eval(text) == value


@pytest.mark.parametrize(
    ("base", "exponent"), [(-2, 3), (-2, 4), (-2, -1), (0, 0), (0, 2), (0, -1), (3, 2.5), (-2, 0.5)]
)
def test_power(base: float, exponent: float) -> None:
    with np.errstate(all="ignore"):
        found = HELPER_NAMES["power"](np.float64(base), np.float64(exponent))
        assert np.isclose(found, np.float64(base) ** np.float64(exponent), equal_nan=True)


@pytest.mark.parametrize("left", range(-7, 8))
@pytest.mark.parametrize("right", [-3, -1, 1, 2, 5])
def test_whole_division_rounds_down_whatever_the_machine_does(left: int, right: int) -> None:
    """C's ``%`` and ``/`` round towards zero; so does Triton's arithmetic on whole numbers."""

    class Machine(int):
        def __mod__(self, other: int) -> Machine:
            return Machine(math.fmod(int(self), int(other)))

        def __floordiv__(self, other: int) -> Machine:
            return Machine(int(self) / int(other))

        def __add__(self, other: int) -> Machine:
            return Machine(int(self) + int(other))

        def __sub__(self, other: int) -> Machine:
            return Machine(int(self) - int(other))

    divide, modulo = HELPER_NAMES["floor_divide_int"], HELPER_NAMES["floor_modulo_int"]
    assert divide(Machine(left), Machine(right)) == left // right
    assert modulo(Machine(left), Machine(right)) == left % right


HALVES = [-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.49, -3.51]
LARGE = [2.0**22 + 0.5, -(2.0**22) - 1.5, 2.0**51 + 0.5, 2.0**51 + 1.5, -(2.0**52) - 1, 2.0**60]


@pytest.mark.parametrize("value", [*HALVES, *LARGE])
def test_halves_round_to_even(value: float) -> None:
    assert HELPER_NAMES["round_half_even"](np.float64(value)) == round(value)


def test_helpers_come_before_those_that_call_them() -> None:
    known: set[str] = set()
    for name, source in HELPERS.items():
        called = {other for other in HELPERS if f"{other}(" in source.split("(", 1)[1]}
        assert called <= known | {name}, name
        known.add(name)


@pytest.mark.parametrize("name", HELPERS)
def test_helpers_bring_what_they_call(name: str) -> None:
    text = "\n".join(helper_sources({name}))
    for other in HELPERS:
        if f"{other}(" in text or f", {other}," in text:
            assert f"def {other}(" in text


# --- names of hoisted reductions ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operand", "name"),
    [
        ("x * x", "mean_x_squared"),
        ("x ** 2", "mean_x_squared"),
        ("x ** 3", "mean_x_cubed"),
        ("x * b", "mean_x_b"),
        ("x - a", "mean_x_minus_a"),
        ("x + a", "mean_x_plus_a"),
        ("x / b", "mean_x_over_b"),
        ("abs(x)", "mean_abs_x"),
        ("exp(x) * silu(x) * sigmoid(x) * tanh(x)", "mean_y"),
    ],
)
def test_names_of_reductions(operand: str, name: str) -> None:
    inputs = {"a": "per_row", "b": "per_column"}
    row_op = small_op(f"y = x * 2 * mean({operand}) * a * b", inputs=inputs)
    assert f"{name}_lanes +=" in kernels_text(row_op)


def test_equal_reductions_have_one_name() -> None:
    text = kernels_text(small_op("p = x * mean(x)\ny = p + mean(x)"))
    assert text.count("mean_x_lanes = ") == 1


def test_a_taken_name_is_not_taken_again() -> None:
    text = kernels_text(small_op("mean_x = x * 3\ny = mean_x * mean(x)"))
    assert "mean_x_2_lanes +=" in text
