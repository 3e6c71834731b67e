"""The time that the kernels of a call take on the GPU, by PyTorch's profiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from kgen.bench.cold import NAME, Cold
from kgen.bench.segments import MeasureError, Ran, cut, total

Call = Callable[[], object]

# What profilers may list beside kernels, and is no work.
_WAITS = ("Context Sync", "Event Sync", "Stream Sync", "Stream Wait Event")


class Clock:
    """Measures calls, each of which starts with a cold cache.

    One session of the profiler holds any number of calls, which run in turn, with a read of a
    buffer before each: the calls are told apart by these reads, and the reads are not counted. The
    buffer is larger than the cache, unless what the calls move between two that share tensors fills
    the cache several times over: then one block is read, since programs too find the cache full of
    what others left.
    """

    def __init__(self) -> None:
        self._cold = Cold()
        self._profile([])  # the first session of a process may miss what runs first
        names = {event.name for event in self._profile([])}
        if not names:
            raise MeasureError("PyTorch's profiler sees no kernel; does CUPTI work here?")
        if names != {NAME}:
            raise MeasureError(
                f"the read of a large buffer runs {sorted(names)} in place of {NAME}"
            )

    def rounds(self, calls: Sequence[Call], count: int, apart: int = 0) -> list[list[list[Ran]]]:
        """For each call what it ran in each of ``count`` rounds, after a round that is not counted.

        ``apart`` is how many bytes are moved between two calls that share tensors. Raises
        ``MeasureError`` where the profile does not fit the calls, and what a call raises.
        """
        turns = [call for _ in range(count + 1) for call in calls]
        runs = cut(self._profile(turns, apart), NAME, len(turns))
        width = len(calls)
        return [runs[width + place :: width] for place in range(width)]

    def times(self, calls: Sequence[Call], count: int, apart: int = 0) -> list[float]:
        """Microseconds of ``count`` calls of each of several, which are of one kind."""
        return [total(run) for runs in self.rounds(calls, count, apart) for run in runs]

    def _profile(self, calls: Sequence[Call], apart: int = 0) -> list[Ran]:
        before = self._cold.mark if apart >= _TIMES * self._cold.cache else self._cold.read
        torch.cuda.synchronize()
        activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities, acc_events=True) as profile:
            for call in calls:
                before()
                call()
            before()
            torch.cuda.synchronize()
        events = profile.events()
        assert events is not None
        return [
            Ran(event.name, event.time_range.start, event.time_range.elapsed_us())
            for event in events
            if event.device_type.name == "CUDA"
            and not event.is_user_annotation
            and event.name not in _WAITS
        ]


# So many times the cache is moved between calls that share tensors, or it is cleared.
_TIMES = 3
COPY_BYTES = 2 * 2**27


def copy_time(clock: Clock, count: int) -> float:
    """Microseconds that PyTorch takes to copy a tensor of 2**27 bytes: the median.

    Three pairs of tensors take turns.
    """
    sources = [torch.randn(2**26, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    targets = [torch.empty_like(source) for source in sources]
    copies = [partial(t.copy_, s) for s, t in zip(sources, targets, strict=True)]
    times = sorted(clock.times(copies, count // 3, 2 * COPY_BYTES))
    return times[len(times) // 2]
