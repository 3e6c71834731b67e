"""The bytes that a call must move: every matrix that it is given or gives, once."""

from __future__ import annotations

from collections.abc import Mapping

from kgen.ir import names_in
from kgen.lower import RowOp
from kgen.spec import COMPUTE, Kind, gradient_name
from kgen.traffic import DTYPE_BYTES, default_dtypes

DIRECTIONS = ("forward", "backward")


def directions_of(row_op: RowOp) -> tuple[str, ...]:
    """``forward``, and ``backward`` if the op has one."""
    return DIRECTIONS if row_op.backward is not None else DIRECTIONS[:1]


def matrices(row_op: RowOp, direction: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The matrices that a direction reads and those that it writes, by name.

    Of gradients that are equal, as those of the two terms of a sum are, the first stands for all:
    one tensor can be both.
    """
    program = row_op.backward if direction == "backward" else row_op.forward
    assert program is not None
    used = {name for d in program.definitions for name in names_in(d.term)}
    read = tuple(v.name for v in program.variables if v.fills_matrix and v.name in used)
    stored = (r for r in program.results if r.name not in program.repeated)
    return read, tuple(r.tensor for r in stored if r.kind is Kind.MATRIX)


def moved_bytes(row_op: RowOp, direction: str, rows: int, columns: int, dtype: str) -> int:
    """The bytes of these matrices; what rows or columns share, and row values, do not count."""
    read, written = matrices(row_op, direction)
    dtypes = _dtypes(row_op, dtype)
    return rows * columns * sum(DTYPE_BYTES[dtypes[name]] for name in (*read, *written))


def _dtypes(row_op: RowOp, floats: str) -> Mapping[str, str]:
    compute = "float64" if floats == "float64" else "float32"
    found = default_dtypes(row_op.spec, floats)
    named = {**found, COMPUTE: compute}
    found |= {o.name: named.get(o.dtype, o.dtype) for o in row_op.spec.outputs}
    return found | {gradient_name(name): dtype for name, dtype in found.items()}
