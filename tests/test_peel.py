"""Optional inputs: steps that fall away with them, or a value that stands for them."""

from __future__ import annotations

import pytest
from kgen.emit import Emitter
from kgen.padding import choose_padding
from kgen.peel import peel
from small_op import kernels_text, small_op, term_of

OPTIONAL = {
    "weight": "{kind: per_column, absent: 1}",
    "bias": "{kind: per_column, absent: 0}",
    "gain": "{kind: per_row, absent: 0}",
    "z": "{kind: matrix, absent: 1}",
}


def steps(formula: str) -> list[str] | None:
    """The base of a formula and its steps, each with the input it waits for."""
    inputs = {name: kind for name, kind in OPTIONAL.items() if name in formula}
    row_op = small_op(f"s = mean(x)\ny = {formula} + 0 * s", inputs=inputs)
    term = term_of(row_op, "y").arguments[0]  # type: ignore[union-attr]
    absent = {v.name: v.absent for v in row_op.forward.variables if v.absent is not None}
    emitter = Emitter(row_op.spec, choose_padding(row_op.forward), row_op.forward)
    peeled = peel(term, absent)
    if peeled is None:
        return None
    lines = [emitter.text(peeled.base)]
    for step in peeled.steps:
        lines.append(f"{step.op} {emitter.text(step.operand)} {step.needs or ''}".strip())
    return lines


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("x", ["x"]),
        ("x * weight", ["x", "mul weight weight"]),
        ("weight * x", ["x", "mul weight weight"]),
        ("x / weight", ["x", "div weight weight"]),
        ("x + bias", ["x", "add bias bias"]),
        ("bias + x", ["x", "add bias bias"]),
        ("x - bias", ["x", "sub bias bias"]),
        ("x * s * weight + bias", ["x * s", "mul weight weight", "add bias bias"]),
        ("(x * weight + bias) * 2", ["x", "mul weight weight", "add bias bias", "mul 2"]),
        ("2 * (x * weight)", ["x", "mul weight weight", "mul 2"]),
        ("x * (1 + bias)", ["x", "mul 1 + bias bias"]),
        ("x * (gain + 1)", ["x", "mul gain + 1 gain"]),
        ("x * (1 - bias)", ["x", "mul 1 - bias bias"]),
        ("x * (2 + bias)", ["2", "add bias bias", "mul x"]),
        ("x + -bias", ["x", "add -bias bias"]),
        ("x + 3 * bias", ["x", "add 3 * bias bias"]),
        ("x * weight * (1 + gain)", ["x", "mul weight weight", "mul 1 + gain gain"]),
        ("x * z", ["x", "mul z z"]),
    ],
)
def test_steps(formula: str, expected: list[str]) -> None:
    assert steps(formula) == expected


@pytest.mark.parametrize(
    "formula",
    [
        "weight / x",
        "bias - x",
        "exp(x * weight)",
        "x * exp(bias)",
        "x * bias",
        "x + weight",
        "x * weight + x * weight",
        "x * weight * weight",
        "where(weight > 0, x, 0)",
        "x * (weight + bias)",
        "mean(x * weight) * x",
        "x * weight + 1 - 2 * s + 3 * s - 4 * s",
    ],
)
def test_what_cannot_be_peeled(formula: str) -> None:
    assert steps(formula) is None


def test_a_peeled_input_is_loaded_where_it_is_used() -> None:
    text = kernels_text(small_op("y = x * weight", inputs={"weight": OPTIONAL["weight"]}))
    assert "if weight_ptr is not None:\n    weight = tl.load(" in text
    assert "    y = y * weight" in text
    assert "tl.full" not in text


def test_a_start_that_is_a_number_becomes_a_tensor() -> None:
    """It may be all there is, and functions of ``tl`` take tensors."""
    text = kernels_text(small_op("s = 2 + bias\ny = x * exp(s)", inputs={"bias": OPTIONAL["bias"]}))
    assert "s = tl.full((1, BLOCK), 2, COMPUTE)" in text


def test_steps_keep_their_order() -> None:
    inputs = {name: OPTIONAL[name] for name in ("weight", "bias")}
    text = kernels_text(small_op("y = x * weight + bias", inputs=inputs))
    first, second = text.index("y = y * weight"), text.index("y = y + bias")
    assert first < second


@pytest.mark.parametrize(
    ("kind", "element", "absent", "fill"),
    [
        ("per_column", "float", "1", "(1, BLOCK), 1.0, COMPUTE"),
        ("per_row", "float", "0.5", "(ROWS, 1), 0.5, COMPUTE"),
        ("matrix", "float", "0", "(ROWS, BLOCK), 0.0, COMPUTE"),
        ("per_row", "int", "3", "(ROWS, 1), 3, tl.int64"),
        ("matrix", "bool", "true", "(ROWS, BLOCK), 1, tl.int1"),
    ],
)
def test_a_value_stands_for_what_cannot_be_peeled(
    kind: str, element: str, absent: str, fill: str
) -> None:
    condition = "other" if element == "bool" else "other > 0"
    inputs = {"other": f"{{kind: {kind}, type: {element}, absent: {absent}}}"}
    text = kernels_text(small_op(f"y = where({condition}, x, 0)", inputs=inputs))
    assert f"else:\n    other = tl.full({fill})" in text


def test_one_use_that_cannot_be_peeled_fills_all() -> None:
    text = kernels_text(
        small_op("a = x * weight\ny = a + exp(weight)", inputs={"weight": OPTIONAL["weight"]})
    )
    assert "weight = tl.full((1, BLOCK), 1.0, COMPUTE)" in text
    assert "a = x * weight" in text


def test_an_input_of_two_definitions_is_loaded_once() -> None:
    text = kernels_text(
        small_op("a = x * weight\ny = (a + 1) * weight", inputs={"weight": OPTIONAL["weight"]})
    )
    resident = text.split("_lanes")[0]
    assert resident.count("weight = tl.load(") == text.count("y = y * weight")
