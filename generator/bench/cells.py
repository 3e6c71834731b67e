"""What is measured: ops, shapes and dtypes, in the order in which they are measured."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kgen.errors import KgenError
from kgen.spec import Spec

LONG = (
    (65536, 512),
    (32768, 1024),
    (16384, 2048),
    (16384, 4096),
    (8192, 8192),
    (4096, 16384),
    (2048, 32768),
    (1024, 65536),
    (512, 131072),
    (256, 262144),
)
"""Rows and columns of some 2**25 to 2**26 elements: from the rows of heads to those of logits."""

PRESETS = {"long": LONG}

SMALL = ((128, 257, "float32"), (1, 4096, "bfloat16"), (32, 4096, "bfloat16"))
"""Where the time of a call is not that of its kernels."""

FIRST = ("rmsnorm", "layernorm", "softmax", "add_rmsnorm")
"""The ops that most libraries have: they come before all others."""

_SHAPE = re.compile(r"(\d+)x(\d+)(?:\.\.(\d+)/(\d+))?")
_TAKES = (
    "it takes ROWSxCOLUMNS, such as 16384x4096, ROWSxFIRST..LAST/STEP, such as "
    f"4096x256..12672/128, or {', '.join(PRESETS)}; several with commas between"
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One op on an (M, N) matrix whose float inputs are all of one dtype."""

    op: str
    rows: int
    columns: int
    dtype: str

    def __str__(self) -> str:
        return f"{self.op} {self.rows}x{self.columns} {self.dtype}"


def shapes_of(texts: Iterable[str]) -> tuple[tuple[int, int], ...]:
    """Rows and columns of ``--shapes``, each once; raises ``KgenError`` for any other text."""
    found: list[tuple[int, int]] = []
    for text in texts:
        for part in text.split(","):
            found.extend(PRESETS.get(part.strip()) or _shapes_in(part.strip()))
    return tuple(dict.fromkeys(found))


def _shapes_in(text: str) -> Iterator[tuple[int, int]]:
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise KgenError(f"--shapes is '{text}'; {_TAKES}")
    rows, first, last, step = (None if part is None else int(part) for part in match.groups())
    assert rows is not None and first is not None
    if rows == 0 or first == 0 or step == 0 or (last is not None and last < first):
        raise KgenError(f"--shapes is '{text}', which is empty; {_TAKES}")
    for columns in range(first, (last or first) + 1, step or 1):
        yield rows, columns


def cells_of(
    specs: Sequence[Spec], shapes: Iterable[tuple[int, int]], dtypes: Iterable[str]
) -> tuple[Cell, ...]:
    """The cells that the ops take: rows of more columns, and other dtypes, are left out."""
    return tuple(
        Cell(spec.op, rows, columns, dtype)
        for spec in in_order(specs)
        for dtype in dtypes
        for rows, columns in shapes
        if columns <= spec.limits.max_columns and dtype in spec.dtypes
    )


def small_cells_of(specs: Sequence[Spec]) -> tuple[Cell, ...]:
    """The cells whose latency is measured."""
    return tuple(
        Cell(spec.op, rows, columns, dtype)
        for spec in in_order(specs)
        for rows, columns, dtype in SMALL
        if columns <= spec.limits.max_columns and dtype in spec.dtypes
    )


def in_order(specs: Iterable[Spec]) -> list[Spec]:
    """The specs, those of the ops that most libraries have first."""
    place = {op: number for number, op in enumerate(FIRST)}
    return sorted(specs, key=lambda spec: place.get(spec.op, len(FIRST)))
