"""Sums of exponentials that are rescaled while the maximum grows: whatever the rows hold, long
rows in chunks give what rows in registers give, and what the formulas say.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from kgen import output
from kgen.build import render_all
from kgen.load import load_text
from kgen.lower import lower
from kgen.schedule import schedule
from kgen.testing.interpreter import repair, watched
from small_op import kernel

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="runs kernels on CPU tensors"
)

COLUMNS, BLOCK = 21, 8
NAMES = ("s", "t", "u")
SPEC = """
op: online
summary: Sums of exponentials.
source: a test
inputs:
  {inputs}
outputs: {{{outputs}}}
forward: |
  {forward}
backward: none
reference: |
  {column}
  z = {values}
  top = z.amax(-1, keepdim=True)
  m = {center}
  e = torch.exp(z - m)
  return {sums}
"""
INPUTS = {
    "x": "x: matrix",
    "v": "v: matrix",
    "keep": "keep: {kind: matrix, type: bool}",
    "target": "target: {kind: per_row, type: int}",
}
VALUES = {
    "whole": ("x * 1", "x"),
    "masked": ("where(keep, x, -inf)", "torch.where(keep, x, -torch.inf)"),
}
LOW = "torch.where(top == -torch.inf, 0.0, top)"
BOTH = "torch.where(top.abs() == torch.inf, 0.0, top)"
# What is subtracted from the values, in a spec and in PyTorch.
CENTERS = {
    "max": ("m = max(z)", "top"),
    "detached": ("m = detach(max(z))", "top"),
    "low": ("top = max(z)\nm = where(top == -inf, 0, top)", LOW),
    "low_turned": ("top = max(z)\nm = where(-inf != top, top, 0)", LOW),
    "both": ("top = max(z)\nm = where(abs(top) == inf, 0, top)", BOTH),
    "both_turned": ("top = max(z)\nm = top if inf != abs(top) else 0", BOTH),
}
# Sums of terms, in a spec and in PyTorch.
SUMS = {
    "plain": [("sum(exp(z - m))", "e.sum(-1)")],
    "shared": [("sum(exp(z - m))", "e.sum(-1)"), ("mean(exp(z - m))", "e.mean(-1)")],
    "masked": [
        ("sum(where(column == target, 0, exp(z - m)))", "e.where(column != target, 0).sum(-1)"),
        ("sum(where(keep, exp(z - m), 0))", "e.where(keep, 0).sum(-1)"),
        ("sum(where(column == target, exp(z - m), 0))", "e.where(column == target, 0).sum(-1)"),
    ],
    "weighted": [
        ("mean(v * exp(z - m))", "(v * e).mean(-1)"),
        ("sum(exp(z - m) * (z - 1) / 2)", "(e * (z - 1) / 2).sum(-1)"),
        ("sum(exp(z - m))", "e.sum(-1)"),
    ],
}


def text(values: str, center: str, sums: str) -> str:
    """A spec of one kind of each, with the inputs that it uses."""
    pairs = list(zip(NAMES, SUMS[sums], strict=False))
    forward = [f"z = {VALUES[values][0]}", *CENTERS[center][0].split("\n")]
    forward += [f"{name} = {terms}" for name, (terms, _) in pairs]
    inputs = [line for name, line in INPUTS.items() if re.search(rf"\b{name}\b", str(forward))]
    return SPEC.format(
        inputs="\n  ".join(inputs),
        outputs=", ".join(f"{name}: float64" for name, _ in pairs),
        forward="\n  ".join(forward),
        column="column = torch.arange(x.shape[-1])" if "column" in str(forward) else "",
        values=VALUES[values][1],
        center=CENTERS[center][1],
        sums=", ".join(terms for _, (_, terms) in pairs).replace("target", "target.unsqueeze(-1)"),
    )


def built(spec: str, folder: Path) -> ModuleType:
    """The op, with rows of more than a block walked in chunks."""
    files = render_all([load_text(spec, "specs/online.yaml")])
    output.write(output.plan_changes(files, folder, ["online"]), folder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "online"]:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    try:
        op = importlib.import_module("online.op")
    finally:
        sys.path.remove(str(folder))
    for name in ("FORWARD_RESIDENT_WORDS", "FORWARD_STREAMING_BLOCK"):
        assert hasattr(op, name)
        setattr(op, name, BLOCK)
    return op


def rows(dtype: torch.dtype) -> torch.Tensor:
    """Ordinary rows; infinities and NaN in each place; chunks of nothing but one; mixtures."""
    generator = torch.Generator().manual_seed(0)
    found = [10 * torch.randn(4, COLUMNS, generator=generator), torch.zeros(1, COLUMNS)]
    parts = [slice(BLOCK), slice(BLOCK, 2 * BLOCK), slice(2 * BLOCK, None), slice(None)]
    for value in (-torch.inf, torch.inf, torch.nan, 200.0, -200.0):
        for part in (3, BLOCK + 3, COLUMNS - 1, *parts):
            row = torch.randn(1, COLUMNS, generator=generator)
            row[:, part] = value
            found.append(row)
    pools = [[-torch.inf, 200.0], [-torch.inf, torch.inf], [torch.nan, -torch.inf]]
    pools += [[-200.0, 200.0], [torch.inf, 200.0], [torch.inf, -200.0], [torch.nan, torch.inf]]
    for pool in pools:
        values = torch.randn(4, COLUMNS, generator=generator)
        kinds = torch.randint(0, len(pool) + 1, values.shape, generator=generator)
        for kind, value in enumerate(pool):
            values[kinds == kind] = value
        found.append(values)
    return torch.cat(found).to(dtype)


CASES = [
    *(("whole", "max", sums) for sums in SUMS),
    *(("whole", "both", sums) for sums in SUMS),
    *(("whole", "low", sums) for sums in ("plain", "masked", "weighted")),
    *(("masked", "max", sums) for sums in ("masked", "weighted")),
    ("masked", "low", "shared"),
    ("masked", "both", "masked"),
]


@pytest.mark.parametrize(("values", "center", "sums"), CASES)
def test_sums_in_chunks(values: str, center: str, sums: str, tmp_path: Path) -> None:
    repair()
    spec = text(values, center, sums)
    op = built(spec, tmp_path)
    for dtype, step in ((torch.float32, 1), (torch.float64, 3), (torch.float16, 3)):
        x = rows(dtype)[::step]
        generator = torch.Generator().manual_seed(1)
        v = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(dtype)
        keep = torch.rand(x.shape, generator=generator) < 0.7
        keep[::5] = False
        keep[1::5, :BLOCK] = False
        target = torch.randint(-1, COLUMNS, x.shape[:1], generator=generator)
        given = {"x": x, "v": v, "keep": keep, "target": target}
        given = {name: value for name, value in given.items() if f"  {name}: " in spec}
        op.calls.clear()
        with watched():
            found = op.online(*given.values())
        assert op.calls["forward.streaming"] == 1
        compute = torch.promote_types(dtype, torch.float32)
        for name in given.keys() & {"x", "v"}:
            given[name] = given[name].to(compute)
        wanted = op.online_reference(*given.values())
        if isinstance(found, torch.Tensor):
            found, wanted = (found,), (wanted,)
        eps = torch.finfo(compute).eps
        for name, mine, its in zip(NAMES, found, wanted, strict=False):
            close = torch.isclose(mine, its.double(), rtol=600 * eps, atol=30 * eps, equal_nan=True)
            close |= is_free(name, x, keep, mine, its) if sums == "masked" else False
            wrong = (~close).nonzero().flatten().tolist()
            lines = [f"{x[row].tolist()}: {mine[row]}, not {its[row]}" for row in wrong]
            assert not wrong, "\n".join([f"{name}, {dtype}", *lines])


def is_free(
    name: str, x: torch.Tensor, keep: torch.Tensor, mine: torch.Tensor, its: torch.Tensor
) -> torch.Tensor:
    """The rows in which a sum with terms left out may differ: no accumulator can know.

    Of a row with NaN whose terms are all left out, and, where a maximum of inf counts as 0, of
    terms far below a finite value that is itself left out: they may count as 0.
    """
    is_empty = x.isnan().any(-1) & ((name == "u") | ~keep.any(-1))
    is_below = x.isinf().any(-1) & (x == 200).any(-1) & (mine == 0) & (its < 1e3)
    return is_empty & mine.isnan() & (its == 0) | is_below


@pytest.mark.parametrize("sums", SUMS)
@pytest.mark.parametrize("center", CENTERS)
def test_one_walk(center: str, sums: str) -> None:
    plan = schedule(lower(load_text(text("masked", center, sums), "specs/online.yaml")))
    assert len(kernel(plan, "forward_streaming").walks) == 1
