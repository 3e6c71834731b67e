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
    """Measures calls, each of which starts with the same state of the cache.

    One session of the profiler holds any number of calls, which run in turn, with a copy of a
    buffer larger than the cache before each: the calls are told apart by these copies, and the
    copies are not counted. So no call finds its data, and none pays for what another has left to
    write.
    """

    def __init__(self) -> None:
        self._cold = Cold()
        self._profile([])  # the first session of a process may miss what runs first
        names = {event.name for event in self._profile([])}
        if not names:
            raise MeasureError("PyTorch's profiler sees no kernel; does CUPTI work here?")
        if names != {NAME}:
            raise MeasureError(
                f"the copy of a large buffer runs {sorted(names)} in place of {NAME}"
            )

    def rounds(self, calls: Sequence[Call], count: int) -> list[list[list[Ran]]]:
        """For each call what it ran in each of ``count`` rounds, after a round that is not counted.

        Raises ``MeasureError`` where the profile does not fit the calls, and what a call raises.
        """
        turns = [call for _ in range(count + 1) for call in calls]
        runs = cut(self._profile(turns), NAME, len(turns))
        width = len(calls)
        return [runs[width + place :: width] for place in range(width)]

    def times(self, calls: Sequence[Call], count: int) -> list[float]:
        """Microseconds of ``count`` calls of each of several, which are of one kind."""
        return [total(run) for runs in self.rounds(calls, count) for run in runs]

    def _profile(self, calls: Sequence[Call]) -> list[Ran]:
        before = self._cold.copy
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


COPY_BYTES = 2 * 2**27


def copy_time(clock: Clock, count: int) -> float:
    """Microseconds that PyTorch takes to copy a tensor of 2**27 bytes: the median."""
    source = torch.randn(2**26, device="cuda", dtype=torch.bfloat16)
    times = sorted(clock.times([partial(torch.empty_like(source).copy_, source)], count))
    return times[len(times) // 2]
