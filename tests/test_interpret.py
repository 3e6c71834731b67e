"""The interpreter of programs: what every function gives, and against PyTorch readings of specs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from kgen.errors import KgenError
from kgen.interpret import Number, run
from kgen.load import load
from kgen.lower import RowOp, lower
from kgen.spec import Element
from kgen.verify.measure import measure
from kgen.verify.reference import Reference
from kgen.verify.samples import samples
from small_op import ROOT, small_op
from torch import Tensor

ALL_SPECS = sorted([*(ROOT / "specs").glob("*.yaml"), *(ROOT / "tests" / "zoo").glob("*.yaml")])
X = torch.tensor([[1.0, -2.0, 0.5], [-0.25, 3.0, 2.5]], dtype=torch.float64)


def value(formula: str, x: Tensor = X, before: str = "", **values: Tensor | Number) -> Tensor:
    """What ``y = formula`` gives, for a matrix x, inputs c (per_column), k (int, per_row)."""
    row_op = small_op(
        f"{before}\nused = c + k + where(flag, 1, 0) + n + p\nz = x + used - used\ny = {formula}"
        "\nw = y + z * 0",
        inputs={"c": "per_column", "k": "{kind: per_row, type: int}", "flag": _FLAG},
        params={"n": "{type: int, default: 3}", "p": "{default: 0.5}"},
        outputs={"y": "x", "w": "x"},
    )
    given: dict[str, Tensor | Number] = {
        "x": x,
        "c": torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64),
        "k": torch.tensor([[2], [-1]]),
        "flag": torch.tensor([[True, False, True], [False, True, True]]),
        "n": 3,
        "p": 0.5,
    }
    return run(row_op.forward, {**given, **values})["y"].expand(x.shape)


_FLAG = "{kind: matrix, type: bool}"
COLUMNS = torch.arange(3)
NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("x + c", X + torch.tensor([1.0, 2.0, 3.0])),
        ("x - k", X - torch.tensor([[2], [-1]])),
        ("x * n / p", X * 6),
        ("x ** 2 + abs(x) ** 0.5", X**2 + X.abs().sqrt()),
        ("x ** -1", 1 / X),
        ("-x", -X),
        ("x // p", torch.floor(X / 0.5)),
        ("x % 2", torch.remainder(X, 2)),
        ("x + (column - 5) // 2", X + torch.tensor([-3, -2, -2])),
        ("x + (column - 5) % -3", X + torch.tensor([-2, -1, 0])),
        ("x + k / 2", X + torch.tensor([[1.0], [-0.5]])),
        ("x + column * N + row", X + COLUMNS * 3 + torch.tensor([[0], [1]])),
        ("where((x > 0) and flag or (k < 0), x, -1)", torch.where(X == -2, -1.0, X)),
        ("where(not (x <= 0.5), 1, 0)", (X > 0.5).double()),
        ("where((x == 0.5) or (k != 2) or (x >= 1), 1, 0)", torch.tensor([[1.0, 0, 1], [1, 1, 1]])),
        ("1 if x < 0 else pi", torch.where(X < 0, 1.0, torch.full_like(X, math.pi))),
        ("exp(x) + log(abs(x)) + log1p(abs(x))", X.exp() + X.abs().log() + X.abs().log1p()),
        ("sqrt(abs(x)) + rsqrt(abs(x))", X.abs().sqrt() + X.abs().rsqrt()),
        ("tanh(x) + sigmoid(x) + erf(x)", X.tanh() + X.sigmoid() + X.erf()),
        ("silu(x)", torch.nn.functional.silu(X)),
        ("sign(x) + floor(x)", X.sign() + X.floor()),
        ("round(x)", torch.tensor([[1.0, -2, 0], [0, 3, 2]])),
        ("maximum(x, 0) + minimum(x, c)", X.clamp(min=0) + torch.minimum(X, COLUMNS + 1.0)),
        ("clamp(x, -p, 1)", X.clamp(-0.5, 1)),
        ("maximum(x, 0) + maximum(k, 0) + abs(k)", X.clamp(min=0) + torch.tensor([[4], [1]])),
        ("x - detach(x)", X * 0),
        ("x - sum(x)", X - X.sum(1, keepdim=True)),
        ("x - mean(x)", X - X.mean(1, keepdim=True)),
        ("max(x) + min(x) + x", X + X.amax(1, keepdim=True) + X.amin(1, keepdim=True)),
        ("sum(where(column == k, x, 0)) + x", X + torch.tensor([[0.5], [0.0]])),
    ],
)
def test_what_functions_give(formula: str, expected: Tensor) -> None:
    found = value(formula).to(torch.float64)
    torch.testing.assert_close(found, expected.to(torch.float64), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(
    ("formula", "row", "expected"),
    [
        ("max(x) + x * 0", [1.0, NAN, 2.0], [NAN, NAN, NAN]),
        ("maximum(x, 0)", [NAN, -1.0, 1.0], [NAN, 0.0, 1.0]),
        ("minimum(x, 0)", [NAN, -1.0, 1.0], [NAN, -1.0, 0.0]),
        ("clamp(x, 0, 1)", [NAN, -INF, INF], [NAN, 0.0, 1.0]),
        ("sign(x)", [NAN, -INF, 0.0], [NAN, -1.0, 0.0]),
        ("round(x)", [0.5, 1.5, -2.5], [0.0, 2.0, -2.0]),
        ("where(x > 0, x, -inf)", [1.0, NAN, -1.0], [1.0, -INF, -INF]),
    ],
)
def test_strange_numbers(formula: str, row: list[float], expected: list[float]) -> None:
    x = torch.tensor([row, row], dtype=torch.float64)
    torch.testing.assert_close(
        value(formula, x)[0], torch.tensor(expected, dtype=torch.float64), equal_nan=True
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float8_e4m3fn", "int8"])
def test_cast_rounds_as_torch_does(dtype: str) -> None:
    expected = (X * 1.1).to(torch.float32 if "8_" in dtype else torch.float64)
    expected = expected.to(getattr(torch, dtype)).to(torch.float64)
    assert torch.equal(value(f"cast(x * 1.1, {dtype})"), expected)
    assert not torch.equal(expected, X * 1.1)


def test_cast_to_an_input_rounds_to_that_input() -> None:
    assert torch.equal(value("cast(x * 1.1, x)"), X * 1.1)
    assert torch.equal(value("cast(x * 1.1, k)"), (X * 1.1).trunc())


def test_gradients_pass_cast_and_stop_at_detach() -> None:
    row_op = small_op("r = cast(x * 3, float16)\ny = r + detach(x) * 5")
    x = X.clone().requires_grad_()
    found = run(row_op.forward, {"x": x})
    (gradient,) = torch.autograd.grad(found["y"].sum(), x, create_graph=True)
    assert torch.equal(gradient, torch.full_like(X, 3.0))
    (inner,) = torch.autograd.grad(found["y"].sum(), found["r"])
    assert torch.equal(inner, torch.ones_like(X))


def test_absent_inputs_count_as_their_neutral_value() -> None:
    row_op = small_op(
        "y = x * sum(gate) + bias",
        inputs={"gate": "{kind: matrix, absent: 2}", "bias": "{kind: per_column, absent: 1}"},
    )
    assert torch.equal(run(row_op.forward, {"x": X})["y"], X * 6 + 1)


def test_a_whole_number_is_not_divided_by_zero() -> None:
    with pytest.raises(KgenError, match=r"a whole number is divided by zero here"):
        value("x + column // (n - 3)")


def test_the_shape_comes_from_all_values() -> None:
    row_op = small_op("t = sum(x)\ny = t", "dx = dy", outputs={"y": "x"})
    assert row_op.backward is not None
    found = run(row_op.backward, {"x": X, "dy": torch.ones(2, 1)})
    assert found["dx"].shape == (2, 1) and found["dx"].dtype == torch.float64


@pytest.mark.parametrize("path", ALL_SPECS, ids=lambda path: path.stem)
def test_specs_against_their_references(path: Path) -> None:
    """Every definition is float64, int64 or bool, and the outputs are those of the reference."""
    row_op = lower(load(path))
    reference = Reference(row_op)
    for sample in samples(row_op)[:8]:
        one = measure(row_op, reference, None, sample)
        for output in row_op.spec.outputs:
            torch.testing.assert_close(
                one.stored(output.name), one.outputs[output.name], rtol=1e-11, atol=1e-12
            )
        _check_elements(row_op, one.forward)


def _check_elements(row_op: RowOp, found: dict[str, Tensor]) -> None:
    dtypes = {
        Element.FLOAT: torch.float64,
        Element.INT: torch.int64,
        Element.BOOL: torch.bool,
    }
    assert set(found) == {d.name for d in row_op.forward.definitions}
    for definition in row_op.forward.definitions:
        assert found[definition.name].dtype is dtypes[definition.type.element], definition.name
