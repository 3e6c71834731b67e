"""Rows that break kernels: NaN, infinities, nothing but -inf, equal values, large and tiny ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from kgen.testing.samples import dtype_of


@dataclass(frozen=True, slots=True)
class Special:
    """A row made from a random one. ``factor`` widens the tolerance where float32 itself must."""

    change: Callable[[torch.Tensor], torch.Tensor]
    factor: float = 1.0
    smallest: float = 0.0
    largest: float = 1.0

    def fits(self, dtype: torch.dtype) -> bool:
        """Whether the dtype holds the row's values."""
        info = torch.finfo(dtype)
        return self.largest <= info.max and (not self.smallest or self.smallest >= info.tiny)


def _set(place: slice | int, value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(row: torch.Tensor) -> torch.Tensor:
        row = row.clone()
        row[place] = value
        return row

    return change


def _offset(row: torch.Tensor) -> torch.Tensor:
    return 1000 + torch.arange(row.numel(), dtype=row.dtype, device=row.device) / 1000


SPECIAL_ROWS: dict[str, Special] = {
    "zeros": Special(torch.zeros_like),
    "ones": Special(torch.ones_like, factor=10),
    "equal": Special(lambda row: torch.full_like(row, 0.0625)),
    "hundreds": Special(lambda row: row * 1000, largest=1e4),
    "large": Special(lambda row: row * 1e16, largest=1e18),
    "tiny": Special(lambda row: row * 1e-12, smallest=1e-13),
    # Of a variance by E[x^2] - E[x]^2 nothing is left here; of one around the mean, three digits.
    "offset": Special(_offset, factor=1000, largest=2000),
    # An online maximum that starts at 0 instead of -inf leaves exp with nothing but zeros here.
    "far_below_zero": Special(lambda row: -row.abs() - 500, factor=30, largest=2000),
    "nan_first": Special(_set(0, torch.nan)),
    "nan_last": Special(_set(-1, torch.nan)),
    "inf": Special(_set(1, torch.inf)),
    "minus_inf": Special(_set(-2, -torch.inf)),
    "both_inf": Special(lambda row: _set(0, torch.inf)(_set(-1, -torch.inf)(row))),
    "all_inf": Special(lambda row: torch.full_like(row, torch.inf)),
    "all_minus_inf": Special(lambda row: torch.full_like(row, -torch.inf)),
    "all_nan": Special(lambda row: torch.full_like(row, torch.nan)),
    "first_chunk_minus_inf": Special(_set(slice(0, 128), -torch.inf)),
    "last_chunks_minus_inf": Special(_set(slice(128, None), -torch.inf)),
    "one_finite": Special(lambda row: _set(-1, 1.5)(torch.full_like(row, -torch.inf))),
}


def special_cases(paths: Sequence[str], dtypes: Sequence[str]) -> list[tuple[str, str, str]]:
    """Every row on every path; those of the dtypes that hold its values take turns."""
    cases = []
    for place, (name, row) in enumerate(SPECIAL_ROWS.items()):
        holding = [dtype for dtype in dtypes if row.fits(dtype_of(dtype))]
        for turn, path in enumerate(paths if holding else ()):
            cases.append((name, path, holding[(place + turn) % len(holding)]))
    return cases
