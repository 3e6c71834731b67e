"""Values that columns share: loaded once for a vector or for each column, with equal bits."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from kgen import testing
from kgen.build import render_all
from kgen.load import load
from kgen.output import plan_changes, write
from kgen.testing.paths import on_path
from kgen.testing.results import Result, backward, reference
from kgen.testing.samples import Arguments, generator

ROOT = Path(__file__).resolve().parent.parent
PATHS = {
    "groupnorm": ROOT / "specs" / "groupnorm.yaml",
    "batch_scale": ROOT / "tests" / "zoo" / "batch_scale.yaml",
    "shared_gain": ROOT / "tests" / "zoo" / "shared_gain.yaml",
}
BATCHES, PLACES = 3, 2
# The shapes of the values that columns share, but for the last dimension.
SHARED = {
    "groupnorm": {"weight": (PLACES,), "bias": (PLACES,)},
    "batch_scale": {"scale": (BATCHES,), "bias": ()},
    "shared_gain": {"weight": ()},
}
VECTOR = {torch.bfloat16: 8, torch.float32: 4, torch.float64: 2}

Find = Callable[[str], testing.Op]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ops above, built into a package ``sharing``."""
    base = tmp_path_factory.mktemp("built")
    specs = [load(path) for path in PATHS.values()]
    write(plan_changes(render_all(specs), base / "sharing", list(PATHS)), base / "sharing")
    return base


@pytest.fixture
def find(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Find:
    """Any of the ops by its name, as its generated tests describe it."""
    monkeypatch.syspath_prepend(str(folder))

    def found(name: str) -> testing.Op:
        op = importlib.import_module(f"sharing.{name}.test_{name}").OP
        assert isinstance(op, testing.Op)
        testing.require_device(op)
        return op

    return found


def arguments(op: testing.Op, columns: int, width: int, dtype: torch.dtype) -> Arguments:
    """Random values; those that columns share serve ``width`` of them."""

    def drawn(name: str, *shape: int) -> torch.Tensor:
        values = torch.randn(shape, generator=generator(name, shape), dtype=torch.float64)
        return values.to(dtype).to(op.device)

    shapes = {name: (*own, columns // width) for name, own in SHARED[op.name].items()}
    tensors = {name: drawn(name, *shape) for name, shape in shapes.items()}
    gain = {"gain": drawn("gain")} if op.name == "shared_gain" else {}
    return Arguments({"x": drawn("x", BATCHES, PLACES, columns), **gain, **tensors}, {})


def results(op: testing.Op, call: Arguments, path: str) -> Result:
    with on_path(op, path):
        return backward(op, call)


@pytest.mark.parametrize("path", ["shipped", "lowered"])
@pytest.mark.parametrize("dtype", list(VECTOR), ids=str)
@pytest.mark.parametrize("width", [8, 24])
@pytest.mark.parametrize("name", list(PATHS))
def test_the_bits_are_those_of_values_for_each_column(
    find: Find, name: str, width: int, dtype: torch.dtype, path: str
) -> None:
    op, columns = find(name), 24 * 9
    shared = arguments(op, columns, width, dtype)
    alone = Arguments(dict(shared.tensors), {})
    for each in SHARED[name]:
        alone.tensors[each] = shared.tensors[each].repeat_interleave(width, dim=-1)
    got, expected = results(op, shared, path), results(op, alone, path)
    for output in op.outputs:
        assert torch.equal(got.outputs[output.name], expected.outputs[output.name])
    assert torch.equal(got.gradients["x"], expected.gradients["x"])
    with testing.Report(op, (BATCHES, PLACES, columns), f"{width} columns") as report:
        report.results(got, reference(op, shared, like=got))


@pytest.mark.parametrize("dtype", list(VECTOR), ids=str)
@pytest.mark.parametrize("widths", [(8, 8), (16, 8), (24, 16), (8, 12), (6, 6), (1, 1), (8, None)])
def test_a_span_is_a_vector_where_all_values_serve_whole_ones(
    find: Find, widths: tuple[int | None, ...], dtype: torch.dtype
) -> None:
    find("groupnorm")
    wrapper = importlib.import_module("sharing.groupnorm.op")
    x = torch.empty(2, 3, 48, dtype=dtype)
    shared = [None if width is None else torch.empty(3, 48 // width) for width in widths]
    vector = VECTOR[dtype]
    divides = all(width % vector == 0 for width in widths if width is not None)
    assert wrapper._span(x.itemsize, 48, *shared) == (vector if divides else 1)
    assert wrapper._span(x.itemsize, 48, None, None) == 1
