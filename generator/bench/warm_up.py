"""Fills the caches of compiled kernels on disk, with several processes at a time."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from math import inf
from typing import Any, Protocol, TypeVar

Item = TypeVar("Item", contravariant=True)


class Work(Protocol[Item]):
    """What can run any of its items once, such as a bench all providers of a cell."""

    def fresh(self) -> Work[Item]:
        """The same with nothing imported yet, as another process takes it."""

    def once(self, item: Item, /) -> None:
        """Run an item, so that what it compiles is on disk."""


_work: Work[Any] | None = None


def warm_up(
    work: Work[Item], items: Sequence[Item], jobs: int, until: float, done: Callable[[], object]
) -> int:
    """Run every item once, in ``jobs`` processes; how many were run.

    ``until`` is when to stop by ``time.monotonic``, and ``done`` is called after each item.
    """
    finished, waiting = 0, list(reversed(items))
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, context, initializer=_start, initargs=(work.fresh(),))
    running: set[Future[None]] = set()
    try:
        while waiting or running:
            while waiting and len(running) < 2 * jobs:
                running.add(pool.submit(_run, waiting.pop()))
            left = max(0.0, until - time.monotonic())
            ended, running = wait(running, left if left < inf else None, FIRST_COMPLETED)
            if not ended:
                break
            for each in ended:
                if isinstance(each.exception(), BrokenProcessPool):
                    return finished
                finished += 1
                done()
    finally:
        for process in list((pool._processes or {}).values()) if running else ():
            process.terminate()
        pool.shutdown(wait=not running, cancel_futures=True)
    return finished


def _start(work: Work[Any]) -> None:
    global _work
    _work = work
    one_compiler()
    import torch._inductor.config

    # Choices among kernels are left to the process that has the GPU for itself.
    torch._inductor.config.autotune_local_cache = False


def one_compiler() -> None:
    """Let torch.compile start no processes of its own."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")


def _run(item: object) -> None:
    assert _work is not None
    _work.once(item)
