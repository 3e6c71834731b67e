"""Rows that are read again, and rows in chunks: what the kernels load, and what comes out.

Small ops run under the interpreter against float64; that the compiler keeps every load is seen in
what it makes of a kernel.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
import torch
from kgen import output
from kgen.build import render_all
from kgen.load import load, load_text
from kgen.lower import lower
from kgen.testing.interpreter import repair, watched
from kgen.tiles import planned
from kgen.view import kernels_view
from small_op import kernel_text, small_op

interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="runs kernels on CPU tensors"
)
SPEC = """\
op: few_rows
summary: A small op.
source: a test
inputs: {{x: matrix}}
outputs: {{{outputs}}}
forward: |
  {forward}
backward: none
reference: |
  return x
"""
ROOT = Path(__file__).parent.parent
BLOCK = 16
MOMENTS = ("mu = mean(x)\nvar = mean((x - mu) ** 2)", {"mu": "float32", "var": "float32"})
PLACES = ("m = max(x)\ny = (x - m) * column + sum(exp(x - m))", {"y": "x"})


def built(forward: str, outputs: dict[str, str], folder: Path) -> ModuleType:
    """The ``op`` module of some formulas, in a process that has not seen it before."""
    named = ", ".join(f"{name}: {dtype}" for name, dtype in outputs.items())
    text = SPEC.format(outputs=named, forward=forward.replace("\n", "\n  "))
    files = render_all([load_text(text, "specs/few_rows.yaml")])
    output.write(output.plan_changes(files, folder, ["few_rows"]), folder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "few_rows"]:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("few_rows.op")
    finally:
        sys.path.remove(str(folder))


def limited(op: ModuleType, **constants: object) -> ModuleType:
    """The op with other boundaries between its schedules."""
    for name, value in constants.items():
        assert hasattr(op, name)
        setattr(op, name, value)
    vars(op)["_remembered"].clear()
    return op


def in_chunks(op: ModuleType) -> ModuleType:
    for name in ("FORWARD_RESIDENT_WORDS", "FORWARD_WHOLE_WORDS"):
        if hasattr(op, name):
            limited(op, **{name: BLOCK})
    return limited(op, FORWARD_STREAMING_BLOCK=BLOCK)


def run(op: ModuleType, x: torch.Tensor, schedule: str) -> tuple[torch.Tensor, ...]:
    repair()
    op.calls.clear()
    with torch.no_grad(), watched():
        found = op.few_rows(x)
    assert op.calls == Counter({f"forward.{schedule}": 1})
    return found if isinstance(found, tuple) else (found,)


# --- mean and variance about a pivot ------------------------------------------------------------


def rows_of(name: str, columns: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, columns, generator=generator)
    if name == "far":
        return 1e4 + x
    if name == "far_below":
        return 10 * x - 1e5
    if name == "chunk_far":  # the first chunk is one value, far from all others
        x[:, :BLOCK] = torch.tensor([[1e3], [-1e4], [1.0], [0.0]])
        return x
    if name == "last_far":
        x[:, -1] = 1e4
        return x
    return x


@interpreted
@pytest.mark.parametrize("columns", [8 * BLOCK, 8 * BLOCK + 1, 8 * BLOCK - 1, 2 * BLOCK + 1])
@pytest.mark.parametrize("name", ["near", "far", "far_below", "chunk_far", "last_far"])
def test_a_variance_in_chunks_loses_no_digits(name: str, columns: int, tmp_path: Path) -> None:
    x = rows_of(name, columns)
    mean, variance = run(in_chunks(built(*MOMENTS, tmp_path)), x, "streaming")
    exact = x.double()
    wanted = exact.var(-1, correction=0)
    assert ((variance.double() - wanted) / wanted).abs().max() <= 1e-5
    assert (mean.double() - exact.mean(-1)).abs().max() <= 1e-6 * exact.abs().max()


@interpreted
@pytest.mark.parametrize("columns", [BLOCK + 1, 4 * BLOCK, 5 * BLOCK + 3])
def test_a_constant_row_has_no_variance(columns: int, tmp_path: Path) -> None:
    """Exactly: what cancels is 0 in every lane where the pivot is the value."""
    values = torch.tensor([0.0, 1.0, -3.0, 1e4, 0.1, 1 / 3, 1e-20, -7e18])
    op = in_chunks(built(*MOMENTS, tmp_path))
    mean, variance = run(op, values[:, None].expand(-1, columns).contiguous(), "streaming")
    assert torch.equal(variance, torch.zeros(len(values)))
    assert torch.equal(mean, values)


# --- rows read again, and walked backwards ------------------------------------------------------


def of_places(x: torch.Tensor) -> torch.Tensor:
    wide = x.double()
    away = wide - wide.amax(-1, keepdim=True)
    return away * torch.arange(x.shape[-1]) + away.exp().sum(-1, keepdim=True)


@interpreted
@pytest.mark.parametrize("columns", [17, 31, 32, 33, 47, 48, 49, 100])
def test_columns_of_a_walk_backwards(columns: int, tmp_path: Path) -> None:
    """Every column counts itself, whatever is left over for the last chunk."""
    x = torch.randn(3, columns, generator=torch.Generator().manual_seed(0))
    (found,) = run(in_chunks(built(*PLACES, tmp_path)), x, "streaming")
    torch.testing.assert_close(found.double(), of_places(x), rtol=1e-5, atol=1e-4)


@interpreted
@pytest.mark.parametrize("columns", [5, 17, 32, 33, 100])
def test_rows_read_again(columns: int, tmp_path: Path) -> None:
    x = torch.randn(3, columns, generator=torch.Generator().manual_seed(0))
    widths = dict.fromkeys((2, 4, 8), (8, 32, 64, 128))
    op = limited(built(*PLACES, tmp_path), FORWARD_WHOLE_WORDS=1024, FORWARD_RELOADED=widths)
    (found,) = run(op, x, "reload")
    torch.testing.assert_close(found.double(), of_places(x), rtol=1e-5, atol=1e-4)


# --- what is loaded -----------------------------------------------------------------------------


def hints(text: str, name: str) -> list[str]:
    """The eviction policy of every load of a tensor, or nothing."""
    loads = [line for line in text.split("\n") if f"tl.load({name}_ptr" in line]
    policies = [re.search(r'eviction_policy="(\w+)"', load) for load in loads]
    return [policy[1] if policy else "" for policy in policies]


def test_loads_of_one_matrix_differ_from_walk_to_walk() -> None:
    """Or they would become one, and their values stay in registers."""
    row_op = small_op("m = max(x)\ns = sum(exp(x - m) * z)\ny = x * s", inputs={"z": "matrix"})
    text = kernel_text(row_op, "forward_reload")
    assert hints(text, "x") == ["evict_last", "", "evict_first"]
    assert hints(text, "z") == ["evict_first"]
    assert 'cache_modifier=".cs"' in text
    # A row that is read once needs no hint.
    assert set(hints(kernel_text(row_op, "forward_resident"), "x")) == {""}
    assert ".cs" not in kernel_text(row_op, "forward_resident")


@pytest.mark.parametrize(
    ("forward", "walks"),
    [("y = x * mean(x)", 2), ("m = max(x)\ny = exp(x - m) / sum(exp(x - m))", 3)],
)
def test_every_walk_reads_every_matrix_once(forward: str, walks: int) -> None:
    found = hints(kernel_text(small_op(forward), "forward_reload"), "x")
    assert len(found) == walks and len(set(found)) == walks
    assert (found[0], found[-1]) == ("evict_last", "evict_first")


@pytest.mark.parametrize(
    ("name", "kept"),
    [("softmax", "dy"), ("l2norm", "dy"), ("log_softmax", None), ("rmsnorm", None)],
)
def test_of_rows_of_one_width_registers_hold_one_matrix(name: str, kept: str | None) -> None:
    """Not where such rows stay in registers as they are, nor where sums over rows fill them."""
    plan = planned(lower(load(ROOT / "specs" / f"{name}.yaml")))
    kernel = plan.kernel("backward_reload")
    assert kernel is not None and kernel.kept == kept
    (body,) = (each.body for each in kernels_view(plan).kernels if each.name == kernel.name)
    assert ("if BLOCK != 32768:" in body.top) == (kept is not None)
    if kept is not None:
        again = body.top.split("if BLOCK != 32768:")[1]
        assert again.strip().startswith(f"{kept} = tl.load({kept}_ptr")
        assert hints(body.top, kept) == ["evict_last", "evict_first"]


def test_no_matrix_is_kept_in_rows_that_are_not_taken() -> None:
    text = (ROOT / "specs" / "softmax.yaml").read_text(encoding="utf-8")
    for longest, kept in ((16384, None), (16385, "dy")):
        spec = load_text(f"{text}limits: {{max_columns: {longest}}}\n", "specs/softmax.yaml")
        kernel = planned(lower(spec)).kernel("backward_reload")
        assert kernel is not None and kernel.kept == kept


def test_hints_of_chunks() -> None:
    """The last walk of several lets go; a single walk says nothing."""
    text = kernel_text(small_op("y = x * mean(x)"), "forward_streaming")
    assert hints(text, "x") == ["evict_last", "evict_first"]
    single = kernel_text(small_op("y = x * 2"), "forward_streaming")
    assert hints(single, "x") == [""] and ".cs" not in single
