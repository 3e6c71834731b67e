"""Liger-Kernel: https://github.com/linkedin/Liger-Kernel.

Left out are its ``jsd`` and ``kl_div``, which give one number for all rows. Its ``poly_norm`` takes
three weights in one tensor, so a small kernel that stacks them counts as part of the call.
"""

from __future__ import annotations

from typing import Any

import torch
from kgen.bench.providers import Provider, version_of
from torch import Tensor


def liger() -> Provider:
    """The ops that Liger-Kernel has, called as its users do, in its own defaults."""
    from liger_kernel.transformers import functional as liger

    def rmsnorm(x: Tensor, weight: Tensor, *, eps: float) -> Any:
        return liger.liger_rms_norm(x, weight, eps)

    def gemma_rmsnorm(x: Tensor, weight: Tensor, *, eps: float) -> Any:
        return liger.liger_rms_norm(x, weight, eps, 1.0, "gemma")

    def add_rmsnorm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> Any:
        return liger.liger_fused_add_rms_norm(x, residual, weight, eps)

    def layernorm(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Any:
        return liger.liger_layer_norm(x, weight, bias, eps)

    def modulated_rmsnorm(x: Tensor, scale: Tensor, shift: Tensor, *, eps: float) -> Any:
        return liger.liger_modulated_rms_norm(x, None, scale, shift, eps)

    def groupnorm(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Any:
        groups, channels = weight.shape
        split = x.view(x.shape[0], groups * channels, -1)
        flat = weight.view(-1), bias.view(-1)
        return liger.liger_group_norm(split, *flat, groups * channels, groups, eps).view(x.shape)

    def dyt(x: Tensor, alpha: Tensor, weight: Tensor, bias: Tensor) -> Any:
        return liger.liger_dyt(x, alpha.view(1), weight, bias)

    def polynorm(
        x: Tensor, cubic: Tensor, square: Tensor, linear: Tensor, bias: Tensor, *, eps: float
    ) -> Any:
        return liger.liger_poly_norm(x, torch.stack((cubic, square, linear)), bias, eps)

    def geglu(gate: Tensor, up: Tensor, *, approximate: bool) -> Any:
        if not approximate:
            raise NotImplementedError("its GELU is the one with tanh")
        return liger.liger_geglu(gate, up)

    def cross_entropy(
        x: Tensor,
        target: Tensor,
        *,
        ignore_index: int,
        label_smoothing: float,
        z_loss: float,
        capped: bool,
        softcap: float,
    ) -> Any:
        return liger.liger_cross_entropy(
            x,
            target,
            ignore_index=ignore_index,
            reduction="none",
            label_smoothing=label_smoothing,
            lse_square_scale=z_loss,
            softcap=softcap if capped else None,
        )

    calls = {
        "rmsnorm": rmsnorm,
        "llama_rmsnorm": rmsnorm,
        "gemma_rmsnorm": gemma_rmsnorm,
        "add_rmsnorm": add_rmsnorm,
        "layernorm": layernorm,
        "modulated_rmsnorm": modulated_rmsnorm,
        "groupnorm": groupnorm,
        "dyt": dyt,
        "polynorm": polynorm,
        "softmax": liger.liger_softmax,
        "cross_entropy": cross_entropy,
        "geglu": geglu,
        "swiglu": liger.liger_swiglu,
        "squared_relu": liger.liger_relu_squared,
    }
    return Provider("liger", version_of("liger-kernel"), calls)
