"""Measures one cell after another until all are done or the time is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from kgen.bench.cells import Cell
from kgen.bench.results import Measurement, Store

EVERY = 5.0
"""Seconds between two writes of the results: what a kill can lose."""


def measure(
    kernel_times: Callable[[Cell], list[Measurement]],
    latencies: Callable[[Cell], list[Measurement]],
    cells: Sequence[Cell],
    small: Sequence[Cell],
    store: Store,
    until: float,
    done: Callable[[], object],
) -> None:
    """Fill the store, and write it now and then, at the end, and if a cell fails for good.

    ``until`` is when to stop by ``time.monotonic``; the run then says which cells are missing.
    """
    work = [(kernel_times, cell, store.measurements) for cell in cells]
    work += [(latencies, cell, store.latencies) for cell in small]
    written = time.monotonic()
    left = [str(cell) for _, cell, _ in work]
    try:
        for run, cell, into in work:
            if time.monotonic() >= until:
                break
            into.extend(run(cell))
            left.pop(0)
            done()
            if time.monotonic() - written > EVERY:
                store.write()
                written = time.monotonic()
    finally:
        store.run = replace(store.run, missing=tuple(left))
        store.write()
