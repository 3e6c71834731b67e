"""The ``torch.nn.Module`` around an op: what its parameters start from, and what it hands on."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from kgen.load import load, load_text
from kgen.lower import lower
from kgen.schedule import schedule
from kgen.spec import Kind, Spec
from kgen.view_op import op_view

ROOT = Path(__file__).resolve().parent.parent
SPECS = [spec for path in sorted((ROOT / "specs").glob("*.yaml")) if (spec := load(path)).module]
COLUMNS = 6


@pytest.fixture
def op(spec: Spec, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "generated"))
    op = importlib.import_module(f"{spec.op}.op")
    if not op.INTERPRETED and not torch.cuda.is_available():
        pytest.skip("needs a GPU or TRITON_INTERPRET=1")
    return op


def made(spec: Spec, op: ModuleType, **given: Any) -> Any:
    assert spec.module
    device = "cpu" if op.INTERPRETED else "cuda"
    return getattr(op, spec.module)(COLUMNS, device=device, **given)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.op)
def test_a_module_calls_its_op_with_its_parameters(spec: Spec, op: ModuleType) -> None:
    module = made(spec, op, dtype=torch.float64)
    device = next(module.parameters()).device
    rows = torch.Generator(device).manual_seed(0)
    given, held = {}, {}
    for entry in spec.inputs:
        if entry.is_parameter:
            held[entry.name] = getattr(module, entry.name)
        else:
            assert entry.kind is Kind.MATRIX
            given[entry.name] = torch.randn(
                3, COLUMNS, generator=rows, device=device, dtype=torch.float64
            )
    with torch.no_grad():
        for parameter in held.values():
            parameter.uniform_(0.5, 1.5)
    found, expected = module(**given), getattr(op, spec.op)(**given, **held)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert str(COLUMNS) in repr(module) and set(held) == set(dict(module.named_parameters()))


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.op)
def test_parameters_start_from_what_the_spec_says(spec: Spec, op: ModuleType) -> None:
    """A norm of rows keeps them as they are, whether its weight may be left out or not."""
    module = made(spec, op)
    for entry in spec.inputs:
        if entry.is_parameter:
            start = entry.absent if entry.start is None else entry.start
            assert getattr(module, entry.name).eq(start).all() and start is not None
            if entry.absent is not None:
                assert getattr(made(spec, op, **{entry.name: False}), entry.name) is None


def test_a_start_takes_the_place_of_the_neutral_value() -> None:
    path = ROOT / "specs" / "rmsnorm.yaml"
    text = path.read_text(encoding="utf-8")
    assert text.count("{kind: per_column, absent: 1}") == 1
    text = text.replace("absent: 1}", "absent: 1, start: 0.25}")
    module = op_view(schedule(lower(load_text(text, "specs/rmsnorm.yaml")))).module
    assert module is not None and "torch.full((columns,), 0.25," in module.body
