"""What only a GPU shows: compilations, sizes past 32 bits, CUDA graphs. Skipped without one."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
OPS = {"rmsnorm": 1, "layernorm": 2, "softmax": 0}
INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")

pytestmark = pytest.mark.skipif(
    INTERPRETED or not torch.cuda.is_available(), reason="needs a GPU and compiled kernels"
)


@pytest.fixture(params=list(OPS))
def op(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The ``op`` module of each generated package."""
    monkeypatch.syspath_prepend(str(ROOT / "generated"))
    return importlib.import_module(f"{request.param}.op")


def name_of(op: ModuleType) -> str:
    return op.__name__.partition(".")[0]


def run(op: ModuleType, rows: int, columns: int, **params: Any) -> list[torch.Tensor]:
    """One forward and backward in bfloat16; the output and all gradients."""
    return run_on(op, torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16), **params)


def run_on(op: ModuleType, x: torch.Tensor, **params: Any) -> list[torch.Tensor]:
    name, columns = name_of(op), x.shape[-1]
    weights = [torch.randn(columns, device="cuda", dtype=x.dtype) for _ in range(OPS[name])]
    leaves = [tensor.requires_grad_() for tensor in (x, *weights)]
    function: Callable[..., torch.Tensor] = getattr(op, name)
    y = function(*leaves, **params)
    return [y.detach(), *torch.autograd.grad(y, leaves, torch.randn_like(y))]


def compilations(op: ModuleType) -> int:
    """How many kernels of the op have been compiled on this device."""
    kernels = sys.modules[f"{name_of(op)}.kernels"]
    device = torch.cuda.current_device()
    caches = [getattr(value, "device_caches", None) for value in vars(kernels).values()]
    return sum(len(cache[device][0]) for cache in caches if cache is not None)


def test_sizes_within_a_bucket_share_their_kernels(op: ModuleType) -> None:
    for columns in (4096, 65536 if name_of(op) != "softmax" else 32768):
        for rows in (3, 64):  # column sums of one group of rows, and of several
            run(op, rows, columns)  # aligned
            run(op, rows, columns - 3)  # not a multiple of 16
        before = compilations(op)
        assert before
        for rows, narrower in ((1, 16), (2, 7), (63, 32), (1000, 1), (1024, 48), (17, 333)):
            run(op, rows, columns - narrower)
        for rows, room in ((3, 16), (64, 48), (5, 1024)):
            wide = torch.randn(rows, columns + room, device="cuda", dtype=torch.bfloat16)
            run_on(op, wide[:, :columns])
        if name_of(op) != "softmax":
            run(op, 64, columns, eps=0.1)
            run(op, 64, columns, eps=1)
        assert compilations(op) == before


@pytest.mark.parametrize("shape", [(500_000, 4096 + 512), (2**23 + 16, 260)], ids=str)
def test_more_elements_than_32_bits_count(op: ModuleType, shape: tuple[int, int]) -> None:
    assert shape[0] * shape[1] > 2**31
    x = torch.empty(shape, device="cuda", dtype=torch.bfloat16).normal_()
    name = name_of(op)
    weights = [torch.randn(shape[1], device="cuda", dtype=x.dtype) for _ in range(OPS[name])]
    leaves = [tensor.requires_grad_() for tensor in (x, *weights)]
    y = getattr(op, name)(*leaves)
    dx, *_ = torch.autograd.grad(y, leaves, y.detach())
    last = x.detach()[-64:].double().requires_grad_()
    wide = [weight.detach().double() for weight in weights]
    expected = getattr(op, f"{name}_reference")(last, *wide)
    torch.testing.assert_close(y[-64:].double(), expected, atol=1e-2, rtol=1.6e-2)
    (slope,) = torch.autograd.grad(expected, last, y.detach()[-64:].double())
    torch.testing.assert_close(dx[-64:].double(), slope, atol=3e-2, rtol=3e-2)


def test_forward_and_backward_in_a_cuda_graph(op: ModuleType) -> None:
    x = torch.randn(256, 1024, device="cuda", dtype=torch.bfloat16)
    name = name_of(op)
    weights = [torch.randn(1024, device="cuda", dtype=x.dtype) for _ in range(OPS[name])]
    leaves = [tensor.requires_grad_() for tensor in (x, *weights)]
    dy = torch.randn_like(x)

    def step() -> list[torch.Tensor]:
        y = getattr(op, name)(*leaves)
        return [y, *torch.autograd.grad(y, leaves, dy)]

    expected = [tensor.detach().clone() for tensor in step()]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    graph.replay()
    torch.cuda.synchronize()
    for found, value in zip(captured, expected, strict=True):
        assert torch.equal(found, value)


def test_the_host_never_waits(op: ModuleType) -> None:
    run(op, 32, 512)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        run(op, 32, 512)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_another_device_than_the_current_one(op: ModuleType) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    assert torch.cuda.current_device() == 0
    name = name_of(op)
    x = torch.randn(64, 1024, device="cuda:1", dtype=torch.bfloat16)
    weights = [torch.randn(1024, device="cuda:1", dtype=x.dtype) for _ in range(OPS[name])]
    dy = torch.randn_like(x)
    results = []
    for device in ("cuda:1", "cuda:0"):
        leaves = [tensor.to(device).requires_grad_() for tensor in (x, *weights)]
        y = getattr(op, name)(*leaves)
        results.append([y, *torch.autograd.grad(y, leaves, dy.to(device))])
        assert all(tensor.device == torch.device(device) for tensor in results[-1])
    for far, near in zip(*results, strict=True):
        assert torch.equal(far.cpu(), near.cpu())
    assert torch.cuda.current_device() == 0
