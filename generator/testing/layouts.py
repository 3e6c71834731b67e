"""The same values in other strides: what tensors look like in other people's programs."""

from __future__ import annotations

import torch
from kgen.testing.samples import Shape

# Layouts of a matrix that kernels take as they are, each with a shape that shows it.
INPUT_LAYOUTS: dict[str, Shape] = {
    "wider_rows": (3, 129),
    "wider_rows_rank_3": (2, 3, 65),
    "packed_thirds": (3, 48),
    "offset": (3, 129),
    "same_row": (3, 129),
    "odd_strides_of_size_one": (1, 5, 1, 65),
    "odd_stride_of_one_row": (1, 129),
    "odd_stride_of_one_column": (5, 1),
    "rank_1": (129,),
}

# Layouts of an upstream gradient, and whether the kernels need a copy of it.
UPSTREAM_LAYOUTS: dict[str, bool] = {
    "wider_rows": False,
    "offset": False,
    "same_row": False,
    "transposed": True,
    "every_second_column": True,
    "one_value": True,
}

# Layouts of a matrix that are refused unless a copy is asked for.
REFUSED_LAYOUTS: dict[str, Shape] = {
    "transposed": (5, 33),
    "every_second_column": (5, 33),
    "one_value": (5, 33),
    "apart": (3, 4, 33),
    "swapped": (3, 4, 33),
}


def arrange(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """The values in another layout; ``same_row`` and ``one_value`` repeat the first ones."""
    shape = tensor.shape
    match layout:
        case "wider_rows" | "wider_rows_rank_3":
            return _framed(tensor, (*shape[:-1], shape[-1] + 3))[..., : shape[-1]]
        case "packed_thirds":
            wide = tensor.new_full((*shape[:-1], 3 * shape[-1]), _filler(tensor))
            wide[..., shape[-1] : 2 * shape[-1]] = tensor
            return wide[..., shape[-1] : 2 * shape[-1]]
        case "offset":
            return torch.cat([tensor.new_full((1,), _filler(tensor)), tensor.flatten()])[1:].view(
                shape
            )
        case "same_row":
            return tensor[:1].clone().expand(shape)
        case "one_value":
            return tensor.flatten()[0].clone().expand(shape)
        case "transposed":
            return tensor.movedim(-1, 0).contiguous().movedim(0, -1)
        case "every_second_column":
            wide = tensor.new_full((*shape[:-1], 2 * shape[-1]), _filler(tensor))
            wide[..., ::2] = tensor
            return wide[..., ::2]
        case "apart":
            return _framed(tensor, (shape[0], shape[1] + 2, *shape[2:]))[:, : shape[1]]
        case "swapped":
            return tensor.transpose(0, 1).contiguous().transpose(0, 1)
        case "rank_1":
            return tensor
    assert layout.startswith("odd_stride"), layout
    strides = [7777 if n == 1 else stride for n, stride in zip(shape, tensor.stride(), strict=True)]
    if shape[-1] == 1:
        strides = [*strides[:-2], 1, 7777]
    return tensor.as_strided(shape, strides)


def spread(tensor: torch.Tensor) -> torch.Tensor:
    """The values of a per-row tensor, two elements apart."""
    wide = tensor.new_full((*tensor.shape, 2), _filler(tensor))
    wide[..., 0] = tensor
    return wide[..., 0]


def canonical(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy, also where ``contiguous()`` would leave odd strides as they are."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _framed(tensor: torch.Tensor, shape: Shape) -> torch.Tensor:
    """A larger tensor that begins with this one in every dimension."""
    frame = tensor.new_full(shape, _filler(tensor))
    frame[tuple(slice(n) for n in tensor.shape)] = tensor
    return frame


def _filler(tensor: torch.Tensor) -> float:
    """What stands between the values, where nothing must ever be read."""
    return torch.nan if tensor.is_floating_point() else 0
