"""Random numbers in PyTorch: the functions that a generated wrapper carries, text for text."""

from __future__ import annotations

import torch


def random(seed: int, like: torch.Tensor) -> torch.Tensor:
    """Uniform numbers in [0, 1), one for each entry of ``like``, as the kernels draw them.

    Four neighbouring columns share a place in the sequence, and each row begins at one of its own.
    In float32, and in float64 where ``like`` is.
    """
    n_rows, n_columns = like.shape[:-1].numel(), like.shape[-1]
    n_fours = (n_columns + 3) // 4
    numbers = random_at(seed, torch.arange(n_rows * n_fours, device=like.device))
    numbers = numbers.reshape(n_rows, 4 * n_fours)[:, :n_columns].reshape(like.shape)
    return numbers.double() if like.dtype is torch.float64 else numbers


def random_at(seed: int, place: torch.Tensor) -> torch.Tensor:
    """``tl.rand4x(seed, place, n_rounds=7)``, the four numbers in a last dimension, in float32.

    This is Philox4x32 (Salmon and others 2011). Words of 32 bits stand in int64. A product of two
    may fill all 64 and turn negative; the mask takes the sign away again.
    """
    word = 0xFFFFFFFF
    first, second = place & word, (place >> 32) & word
    third = fourth = torch.zeros_like(place)
    key, other_key = seed & word, (seed >> 32) & word
    for _ in range(7):
        product, other = first * 0xD2511F53, third * 0xCD9E8D57
        first, second = ((other >> 32) & word) ^ second ^ key, other & word
        third, fourth = ((product >> 32) & word) ^ fourth ^ other_key, product & word
        key, other_key = (key + 0x9E3779B9) & word, (other_key + 0xBB67AE85) & word
    words = torch.stack((first, second, third, fourth), dim=-1)
    return torch.minimum(words, word - words).to(torch.float32) * 4.6566127342e-10
