"""Small ops that once came out wrong, each compared with its formulas on every schedule."""

from __future__ import annotations

import importlib
import itertools
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import torch
from kgen import output
from kgen.build import render_all
from kgen.load import load_text
from kgen.testing.interpreter import repair

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="runs kernels on CPU tensors"
)


@dataclass(frozen=True)
class Small:
    """The sections of a spec, and the gradients that its formulas come to, in PyTorch."""

    forward: str
    reference: str
    inputs: str = "{x: matrix}"
    params: str = "{}"
    output: str = "x"
    backward: str = "none"


SMALL = {
    "nested_reduction": Small(
        "y = x * rsqrt(mean((x - mean(x)) ** 2) + 1)",
        "return x * torch.rsqrt(x.var(-1, correction=0, keepdim=True) + 1)",
    ),
    "chained_merges": Small(
        "m = max(x)\ns = mean(exp(x - m))\nv = mean((exp(x - m) - s) ** 2)\ny = x * s + v + m",
        "m = x.amax(-1, keepdim=True)\ne = torch.exp(x - m)\ns = e.mean(-1, keepdim=True)\n"
        "return x * s + e.var(-1, correction=0, keepdim=True) + m",
    ),
    "chosen_constant": Small(
        "y = x * (0.1 if flag else pi) ** -2",
        "return x * (0.1 if flag else torch.pi) ** -2",
        params="{flag: {type: bool, default: true}}",
    ),
    "chosen_block": Small(
        "y = maximum(x, 0.0 if flag else mean(x))",
        "return torch.maximum(x, 0 * x if flag else x.mean(-1, keepdim=True))",
        params="{flag: {type: bool, default: true}}",
    ),
    "sum_of_a_choice": Small(
        "y = x + sum(0.0 if flag else x)",
        "return x + (0.0 if flag else x.sum(-1, keepdim=True))",
        params="{flag: {type: bool, default: true}}",
    ),
    "whole_numbers_stored_as_floats": Small(
        "y = where(x > 0, 1, 0)", "return (x > 0).to(x.dtype)", output="bfloat16"
    ),
    "wide_products": Small(
        "y = x * where(column * column * N > 3000000000, 2, 1)",
        "n = x.shape[-1]\nc = torch.arange(n, device=x.device)\n"
        "return x * torch.where(c * c * n > 3000000000, 2, 1)",
    ),
    "cast_to_a_tensor_not_read": Small(
        "y = x + a",
        "return x + a.unsqueeze(-1)",
        inputs="{x: matrix, a: per_row}",
        backward="dx = dy\nda = sum(cast(dy, x))",
    ),
    "row_value_of_one_gradient": Small(
        "y = x * a",
        "return x * a.unsqueeze(-1)",
        inputs="{x: matrix, a: per_row}",
        backward="dx = dy * a\nb = mean(x * dy) * N\nda = b",
    ),
    "statistic_of_a_column_sum": Small(
        "y = x * w",
        "return x * w",
        inputs="{x: matrix, w: per_column}",
        backward="g = x + 0 * mean(dy * x)\ndx = dy * w\ndw = sum_rows(g * dy)",
    ),
    "optional_behind_a_guard": Small(
        "y = x * w * z",
        "return x * z if w is None else x * w * z",
        inputs="{x: matrix, z: matrix, w: {kind: per_column, absent: 1, grad: false}}",
        backward="dx = dy * w * z\ndz = dy * w * x",
    ),
}


def built(name: str, small: Small, folder: Path) -> ModuleType:
    """The generated ``op`` module of a small op."""
    blocks = {"forward": small.forward, "reference": small.reference, "backward": small.backward}
    lines = [f"op: {name}", "summary: A small op.", "source: a test", f"inputs: {small.inputs}"]
    lines += [f"params: {small.params}", f"outputs: {{y: {small.output}}}"]
    for key, text in blocks.items():
        if text == "none":
            lines.append(f"{key}: none")
        else:
            lines += [f"{key}: |", *(f"  {line}" for line in text.splitlines())]
    spec = load_text("\n".join(lines) + "\n", f"specs/{name}.yaml")
    output.write(output.plan_changes(render_all([spec]), folder, [name]), folder)
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(f"{name}.op")
    finally:
        sys.path.remove(str(folder))


DIRECTIONS = ("FORWARD", "BACKWARD")


def lower_boundaries(op: ModuleType, schedule: str) -> None:
    """Make rows of 37 columns in float64 take a schedule that the op has."""
    widest = {"RESIDENT": 1024 if schedule == "resident" else 8}
    widest["WHOLE"] = 8 if schedule == "long" else 1024
    for direction in DIRECTIONS:
        for name, words in widest.items():
            if hasattr(op, f"{direction}_{name}_WORDS"):
                setattr(op, f"{direction}_{name}_WORDS", words)
        if hasattr(op, f"{direction}_RELOADED"):
            setattr(op, f"{direction}_RELOADED", {8: (128,) if schedule == "reload" else ()})
        for name in ("STREAMING", "SPLIT"):
            if hasattr(op, f"{direction}_{name}_BLOCK"):
                setattr(op, f"{direction}_{name}_BLOCK", 16)
    vars(op)["_remembered"].clear()


def schedules_of(op: ModuleType) -> list[str]:
    reloads = any(hasattr(op, f"{direction}_RELOADED") for direction in DIRECTIONS)
    return ["resident", *(["reload"] if reloads else []), "long"]


@pytest.mark.parametrize("name", SMALL)
def test_small_op(name: str, tmp_path: Path) -> None:
    repair()
    small = SMALL[name]
    op = built(name, small, tmp_path)
    function, reference = getattr(op, name), getattr(op, f"{name}_reference")
    shapes = {"x": (3, 37), "z": (3, 37), "a": (3,), "w": (37,)}
    names = [part for part in ("x", "z", "a", "w") if f"{part}:" in small.inputs]
    values = [torch.randn(shapes[part], dtype=torch.float64) for part in names]
    flags: list[dict[str, bool]] = [{}]
    if "flag" in small.params:
        flags = [{"flag": True}, {"flag": False}]
    for schedule, params in itertools.product(schedules_of(op), flags):
        lower_boundaries(op, schedule)
        op.calls.clear()
        with torch.no_grad():
            found, wanted = function(*values, **params), reference(*values, **params)
        torch.testing.assert_close(found.double(), wanted.double(), rtol=1e-12, atol=1e-12)
        if small.backward != "none":
            compare_gradients(function, reference, values, names)
        ran = {call.partition(".")[2] for call in op.calls} - {"column_sums"}
        takes = {"long": {"streaming", "split"}, "reload": {"reload", "streaming", "split"}}
        assert ran <= takes.get(schedule, {"resident"}) and (
            schedule != "reload" or schedule in ran
        )


def compare_gradients(
    function: object, reference: object, values: list[torch.Tensor], names: list[str]
) -> None:
    """Every subset of the gradients, against autograd of the reference."""
    trained = [name for name in names if name != "w" or "z" not in names]
    for size in range(1, len(trained) + 1):
        for chosen in itertools.combinations(trained, size):
            results = []
            for call in (function, reference):
                leaves = [
                    v.clone().requires_grad_(n in chosen)
                    for n, v in zip(names, values, strict=True)
                ]
                y = call(*leaves)  # type: ignore[operator]
                dy = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
                wanted = [leaf for leaf in leaves if leaf.requires_grad]
                results.append(torch.autograd.grad(y, wanted, dy))
            for got, expected in zip(*results, strict=True):
                torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-11)
