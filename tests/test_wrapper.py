"""What a generated wrapper promises beyond the op's own tests: odd tensors, odd autograd."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def op(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "generated"))
    return importlib.import_module("layernorm.op")


@pytest.fixture
def device(op: ModuleType) -> str:
    if not op.INTERPRETED and not torch.cuda.is_available():
        pytest.skip("needs a GPU or TRITON_INTERPRET=1")
    return "cpu" if op.INTERPRETED else "cuda"


def test_empty_leading_dimensions_are_no_stride_problem(op: ModuleType, device: str) -> None:
    x = torch.empty(2, 0, 4, device=device, requires_grad=True)
    y = op.layernorm(x)
    assert y.shape == (2, 0, 4)
    (dx,) = torch.autograd.grad(y, x, y)
    assert dx.shape == (2, 0, 4)


def test_negated_views_are_refused_or_copied(op: ModuleType, device: str) -> None:
    complex_x = torch.randn(3, 1, dtype=torch.complex64, device=device)
    x = complex_x.conj().imag
    assert x.is_neg()
    with pytest.raises(ValueError, match="layernorm: x "):
        op.layernorm(x, eps=1)
    bias = torch.zeros(1, device=device)
    found = op.layernorm(x, None, bias, eps=1, on_unsupported="copy")
    torch.testing.assert_close(found, op.layernorm(x.resolve_neg().contiguous(), eps=1))


class Wrapper(torch.Tensor):
    """A subclass without memory of its own, as DTensor is."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        made: Wrapper = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        return made

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @classmethod
    def __tensor_unflatten__(cls, parts: dict[str, torch.Tensor], *_: object) -> Wrapper:
        return cls(parts["inner"])

    @classmethod
    def __torch_dispatch__(cls, *_: object, **__: object) -> None:
        raise NotImplementedError


def test_tensors_without_memory_are_refused(op: ModuleType) -> None:
    with pytest.raises(TypeError, match="x is a Wrapper; it takes a plain"):
        op.layernorm(Wrapper(torch.ones(2, 4)))


def test_a_parameter_is_a_plain_tensor(op: ModuleType, device: str) -> None:
    assert op.LayerNorm(4, device=device)(torch.ones(2, 4, device=device)).requires_grad


def test_forward_mode_raises(op: ModuleType, device: str) -> None:
    x = torch.randn(2, 4, device=device)
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="forward"):
        op.layernorm(forward_ad.make_dual(x, torch.ones_like(x)))


def test_a_first_derivative_may_be_changed_in_place(op: ModuleType, device: str) -> None:
    x = torch.randn(2, 4, device=device, requires_grad=True)
    (dx,) = torch.autograd.grad((op.layernorm(x) ** 2).sum(), x, create_graph=True)
    with torch.no_grad():
        dx.mul_(2)
    with pytest.raises(RuntimeError, match="second derivative"):
        torch.autograd.grad(dx.sum(), x)


def test_checkpointed_with_a_graph(op: ModuleType, device: str) -> None:
    x = torch.randn(2, 4, device=device, requires_grad=True)
    y = checkpoint(op.layernorm, x, use_reentrant=False)
    (dx,) = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)
    assert dx.shape == x.shape


def test_only_a_copy_counts_as_copied(op: ModuleType, device: str) -> None:
    before = op.calls["forward.copied"]
    with pytest.raises(ValueError, match="at most"):
        op.layernorm(torch.ones(1, op.MAX_COLUMNS + 1, device=device), on_unsupported="copy")
    assert op.calls["forward.copied"] == before


def test_the_reference_path_keeps_the_declared_dtype(
    op: ModuleType, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(op, "layernorm_reference", lambda x, *_: x.float())
    x = torch.randn(4, 6, device=device, dtype=torch.bfloat16).t()
    assert op.layernorm(x, on_unsupported="reference").dtype is torch.bfloat16


def test_frozen_rows_skip_the_statistics(
    op: ModuleType, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(op, "BACKWARD_RESIDENT_WORDS", 4)
    launched: list[str] = []
    kernel = op.layernorm_backward_split_rows

    class Counted:
        def __getitem__(self, grid: object) -> object:
            launched.append("split_rows")
            return kernel[grid]

    monkeypatch.setattr(op, "layernorm_backward_split_rows", Counted())
    monkeypatch.setattr(op, "_remembered", {})
    x = torch.randn(3, 9, device=device)
    weight = torch.randn(9, device=device, requires_grad=True)
    (dweight,) = torch.autograd.grad(op.layernorm(x, weight).sum(), weight)
    assert launched == []
    leaf = x.clone().requires_grad_()
    _, again = torch.autograd.grad(op.layernorm(leaf, weight).sum(), (leaf, weight))
    assert launched == ["split_rows"]
    assert torch.equal(dweight, again)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_gradients_of_the_same_values_are_one_tensor(
    monkeypatch: pytest.MonkeyPatch, device: str, dtype: torch.dtype
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "generated"))
    module = importlib.import_module("add_rmsnorm.op")
    for words in (module.BACKWARD_WHOLE_WORDS, 4):
        monkeypatch.setattr(module, "BACKWARD_WHOLE_WORDS", words)
        monkeypatch.setattr(module, "_remembered", {})
        x = torch.randn(3, 9, device=device, requires_grad=True)
        residual = torch.randn(3, 9, device=device).to(dtype).requires_grad_()
        y, h = module.add_rmsnorm(x, residual)
        both = torch.autograd.grad([y, h], [x, residual], [y, h], retain_graph=True)
        assert [g.dtype for g in both] == [x.dtype, dtype]
        assert (both[0] is both[1]) == (x.dtype == dtype)
        for leaf, found in zip((x, residual), both, strict=True):
            (alone,) = torch.autograd.grad([y, h], leaf, [y, h], retain_graph=True)
            assert torch.equal(alone, found)
        # A leaf's own gradient is a tensor of its own, which may be changed in place.
        torch.autograd.backward([y, h], [y.detach(), h.detach()])
        assert x.grad is not None and residual.grad is not None
        assert x.grad.data_ptr() != residual.grad.data_ptr()


def test_no_rows_and_gradients_of_the_same_values(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "generated"))
    module = importlib.import_module("add_rmsnorm.op")
    leaves = [torch.empty(0, 9, device=device, requires_grad=True) for _ in range(2)]
    y, _ = module.add_rmsnorm(*leaves)
    assert [g.shape for g in torch.autograd.grad(y, leaves, y)] == [(0, 9), (0, 9)]
