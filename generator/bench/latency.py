"""The time of whole calls, launches and all, by events on the GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch

WARM_UP, SAMPLES, CALLS = 20, 50, 20


def latencies(call: Callable[[], object]) -> list[float]:
    """Microseconds a call, of each of 50 samples of 20 calls in a row, after 20 calls."""
    for _ in range(WARM_UP):
        call()
    torch.cuda.synchronize()
    found = []
    for _ in range(SAMPLES):
        start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        start.record()
        for _ in range(CALLS):
            call()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) * 1000 / CALLS)
    return found
