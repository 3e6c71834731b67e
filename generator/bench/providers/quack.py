"""QuACK: https://github.com/Dao-AILab/quack.

Its layer norm comes without autograd, which is added here; it wants weights in float32, and is
given them so.
"""

from __future__ import annotations

from typing import Any

import torch
from kgen.bench.providers import Provider, version_of
from torch import Tensor


def quack() -> Provider:
    """The ops that QuACK has."""
    from quack.cross_entropy import cross_entropy as quack_cross_entropy
    from quack.rmsnorm import layernorm_bwd, layernorm_fwd
    from quack.rmsnorm import rmsnorm as quack_rmsnorm
    from quack.softmax import softmax

    class LayerNorm(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Any:
            y, rstd, mean = layernorm_fwd(x, weight, bias, eps, return_rstd=True, return_mean=True)
            ctx.save_for_backward(x, weight, rstd, mean)
            return y

        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> Any:
            x, weight, rstd, mean = ctx.saved_tensors
            return *layernorm_bwd(x, weight, dy, rstd, mean), None

    def rmsnorm(x: Tensor, weight: Tensor, *, eps: float) -> Any:
        return quack_rmsnorm(x, weight, eps=eps)

    def gemma_rmsnorm(x: Tensor, weight: Tensor, *, eps: float) -> Any:
        return quack_rmsnorm(x, weight, eps=eps, weight_offset=1.0)

    def add_rmsnorm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> Any:
        return quack_rmsnorm(x, weight, residual=residual, eps=eps, prenorm=True)

    def layernorm(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Any:
        return LayerNorm.apply(x, weight, bias, eps)  # type: ignore[no-untyped-call]

    def cross_entropy(x: Tensor, target: Tensor, *, ignore_index: int, **unused: object) -> Any:
        return quack_cross_entropy(x, target, ignore_index=ignore_index, reduction="none")

    calls = {
        "rmsnorm": rmsnorm,
        "llama_rmsnorm": rmsnorm,
        "gemma_rmsnorm": gemma_rmsnorm,
        "head_rmsnorm": rmsnorm,  # a weight of two dimensions is one for each head
        "add_rmsnorm": add_rmsnorm,
        "layernorm": layernorm,
        "softmax": softmax,
        "cross_entropy": cross_entropy,
    }
    wide = {"weight": "float32", "bias": "float32"}
    return Provider("quack", version_of("quack-kernels"), calls, {"layernorm": wide})
