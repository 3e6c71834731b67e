"""The calls of an op that make its wrapper choose every configuration it has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from kgen.spec import Spec

# Of the two dtypes of 16 bits one is enough: they take the same tiles and the same loads.
DTYPES = ("bfloat16", "float32", "float64")
# Narrower rows are not called: their tiles hold as many elements as those of rows of 256 columns,
# and wider numbers take the tiles of bfloat16, whose registers are scarce where rows are long.
NARROWEST = {"bfloat16": 256, "float32": 8192, "float64": 4096}
# Widths that no vector fits, beside the widest of all.
ODD_COLUMNS = (4095, 8191)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an op, with all gradients asked for.

    ``optional`` says whether the optional inputs are given. ``flags`` are values of bool params,
    which choose code when a kernel is compiled; a param that is not named has its default.
    """

    dtype: str
    columns: int
    optional: bool = True
    flags: tuple[tuple[str, bool], ...] = ()


def calls_of(spec: Spec, dtype: str | None = None, columns: int | None = None) -> tuple[Call, ...]:
    """Every dtype, width and choice of bool params, in that order.

    ``dtype`` and ``columns`` leave one dtype and one width, which may be any that the op takes.
    """
    return tuple(
        Call(each, width, flags=flags)
        for each in ((dtype,) if dtype is not None else dtypes_of(spec))
        for width in ((columns,) if columns is not None else columns_of(spec, each))
        for flags in _flags_of(spec)
    )


def dtypes_of(spec: Spec) -> tuple[str, ...]:
    """The dtypes that are compiled: those of ``DTYPES`` that the op takes, or all it takes."""
    return tuple(dtype for dtype in DTYPES if dtype in spec.dtypes) or tuple(spec.dtypes)


def columns_of(spec: Spec, dtype: str = DTYPES[0]) -> tuple[int, ...]:
    """The widest row of each power-of-two bucket, odd ones, and the widest odd one.

    The narrowest buckets are left out, down to the one that the op's widest row is in.
    """
    most, narrowest = spec.limits.max_columns, NARROWEST.get(dtype, 256)
    found = {
        *(2**power for power in range(most.bit_length())),
        *(min(n, most) for n in ODD_COLUMNS),
    }
    edge = {most, most - 1 if most % 2 == 0 else most}
    return tuple(sorted({n for n in found if n >= narrowest} | edge))


def _flags_of(spec: Spec) -> Iterator[tuple[tuple[str, bool], ...]]:
    """The default of every bool param first, then all other choices."""
    params = [param for param in spec.params if isinstance(param.default, bool)]
    choices = [(bool(param.default), not param.default) for param in params]
    for values in product(*choices):
        yield tuple(zip((param.name for param in params), values, strict=True))
