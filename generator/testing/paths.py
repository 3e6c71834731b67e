"""Which schedule a row takes, and how to make short rows take the schedules of long ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from kgen.testing.description import Op


def _reloaded(*widths: int) -> dict[int, tuple[int, ...]]:
    """Rows of these widths are read again, whatever the size of their elements."""
    return dict.fromkeys((2, 4, 8), widths)


SPLIT_VALUES = ("chunk", "rows", "warps", "stages", "programs")
"""What ``_CHUNKS`` have where rows are split."""

# The constants of op.py that a path changes. Forward and backward differ, so that the boundary of
# one cannot pass for that of the other. Few rows are to make several groups of column sums, and
# rows of 512 words take chunks of their own where the op has such widths.
BOUNDARIES: dict[str, dict[str, object]] = {
    "shipped": {"FEW_TILES": 0},
    "lowered": {
        "FORWARD_RESIDENT_WORDS": 64,
        "FORWARD_WHOLE_WORDS": 128,
        "FORWARD_RELOADED": _reloaded(128),
        "FORWARD_STREAMING_BLOCK": 128,
        "FORWARD_CHUNKS": {512: (64, 1, 4, 2, 1)},
        "BACKWARD_RESIDENT_WORDS": 32,
        "BACKWARD_WHOLE_WORDS": 64,
        "BACKWARD_RELOADED": _reloaded(64),
        "BACKWARD_STREAMING_BLOCK": 64,
        "BACKWARD_SPLIT_BLOCK": 64,
        "BACKWARD_CHUNKS": {512: (32, 2, 4, 2, 2)},
        "DOUBLE_BACKWARD_RESIDENT_WORDS": 16,
        "DOUBLE_BACKWARD_WHOLE_WORDS": 32,
        "DOUBLE_BACKWARD_RELOADED": _reloaded(32),
        "DOUBLE_BACKWARD_STREAMING_BLOCK": 64,
        "DOUBLE_BACKWARD_SPLIT_BLOCK": 64,
        "DOUBLE_BACKWARD_CHUNKS": {},
        "SUM_GROUPS": 2,
        "SPLIT_SUM_GROUPS": 2,
        "FEW_TILES": 0,
    },
    # Rows that are read again after each reduction.
    "reread": {
        "FORWARD_WHOLE_WORDS": 1024,
        "FORWARD_RELOADED": _reloaded(32, 64, 128, 256, 512, 1024),
        "BACKWARD_WHOLE_WORDS": 1024,
        "BACKWARD_RELOADED": _reloaded(16, 32, 64, 128, 256, 512, 1024),
        "DOUBLE_BACKWARD_WHOLE_WORDS": 1024,
        "DOUBLE_BACKWARD_RELOADED": _reloaded(8, 16, 32, 64, 128, 256, 512, 1024),
        "FEW_TILES": 0,
    },
    # For gradcheck, which can only afford rows of a few columns.
    "tiny": {
        "FORWARD_RESIDENT_WORDS": 2,
        "FORWARD_WHOLE_WORDS": 8,
        "FORWARD_RELOADED": _reloaded(4, 8),
        "FORWARD_STREAMING_BLOCK": 16,
        "FORWARD_CHUNKS": {},
        "BACKWARD_RESIDENT_WORDS": 2,
        "BACKWARD_WHOLE_WORDS": 8,
        "BACKWARD_RELOADED": _reloaded(4, 8),
        "BACKWARD_STREAMING_BLOCK": 16,
        "BACKWARD_SPLIT_BLOCK": 8,
        "BACKWARD_CHUNKS": {},
        "DOUBLE_BACKWARD_RESIDENT_WORDS": 2,
        "DOUBLE_BACKWARD_WHOLE_WORDS": 8,
        "DOUBLE_BACKWARD_RELOADED": _reloaded(4, 8),
        "DOUBLE_BACKWARD_STREAMING_BLOCK": 16,
        "DOUBLE_BACKWARD_SPLIT_BLOCK": 8,
        "DOUBLE_BACKWARD_CHUNKS": {},
        "FEW_TILES": 0,
    },
}


@contextmanager
def constants(op: Op, **values: object) -> Iterator[None]:
    """Set constants of the generated module, for a while. Those it has not got are left out."""
    before = {name: getattr(op.module, name) for name in values if hasattr(op.module, name)}
    try:
        for name in before:
            setattr(op.module, name, values[name])
        _forget(op)
        yield
    finally:
        for name, value in before.items():
            setattr(op.module, name, value)
        _forget(op)


def _forget(op: Op) -> None:
    """Have the module work everything out again, from the constants that it has now."""
    getattr(op.module, "_remembered", {}).clear()


@contextmanager
def on_path(op: Op, path: str) -> Iterator[None]:
    """Lower the boundaries between the schedules as the path says."""
    with constants(op, **{name: _as_held(op, name, v) for name, v in BOUNDARIES[path].items()}):
        yield


def _as_held(op: Op, name: str, value: object) -> object:
    """A constant as the module holds it: where rows are not split, a chunk, its warps, and perhaps
    how many of them are a step of the walk."""
    held = getattr(op.module, name, None) if name.endswith("_CHUNKS") else None
    length = len(next(iter(held.values()))) if held else len(SPLIT_VALUES)
    if not isinstance(value, dict) or length == len(SPLIT_VALUES):
        return value
    places = [SPLIT_VALUES.index(name) for name in ("chunk", "warps", "stages")[:length]]
    return {words: tuple(chunk[place] for place in places) for words, chunk in value.items()}


def schedules(op: Op, n_columns: int, itemsize: int) -> tuple[str, str]:
    """The calls that a forward and a backward of rows this long must be counted as.

    ``itemsize`` is the size in bytes of the matrices' elements: 2, 4, or 8 in float64.
    """
    return (
        _schedule(op, "forward", n_columns, itemsize),
        _schedule(op, "backward", n_columns, itemsize),
    )


def double_schedule(op: Op, n_columns: int, itemsize: int) -> str:
    """The call that a double backward of rows this long must be counted as."""
    return _schedule(op, "double_backward", n_columns, itemsize)


def _schedule(op: Op, direction: str, n_columns: int, itemsize: int) -> str:
    words = _padded(n_columns) * max(4, itemsize) // 4
    prefix = direction.upper()
    element = itemsize if n_columns % 16 == 0 else 8
    widest = getattr(op.module, f"{prefix}_WIDEST", {}).get(element, words)
    resident = getattr(op.module, f"{prefix}_RESIDENT_WORDS", 0)
    if words <= min(getattr(op.module, f"{prefix}_WHOLE_WORDS", resident), widest):
        reloaded = getattr(op.module, f"{prefix}_RELOADED", {}).get(element, ())
        return f"{direction}.{'reload' if words in reloaded else 'resident'}"
    is_split = hasattr(op.module, f"{op.name}_{direction}_split_columns")
    return f"{direction}.{'split' if is_split else 'streaming'}"


def wrong_path(expected: str, calls: Counter[str]) -> str | None:
    """What to say when the calls of one pass are not the one expected, else ``None``."""
    if calls[expected] == 1 and len(schedule_calls(expected.split(".")[0], calls)) == 1:
        return None
    return f"expected one call of {expected}, counted {dict(calls)}"


def schedule_calls(prefix: str, calls: Counter[str]) -> set[str]:
    """The schedules of a pass (``"forward"``, ``"backward"``) among the calls."""
    names = {
        f"{prefix}.{name}" for name in ("resident", "reload", "streaming", "split", "reference")
    }
    return names & {name for name, count in calls.items() if count}


def _padded(n_columns: int) -> int:
    return 1 << max(n_columns - 1, 0).bit_length()
