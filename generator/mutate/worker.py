"""The process in which mutants meet the tests: imports PyTorch once, forks once a mutant.

Run as ``python -m kgen.mutate.worker DESCRIPTOR``. Each line of the standard input is a batch of
tasks as JSON, and one verdict a line goes out to the file descriptor. Nothing here runs in the
command itself, which imports neither PyTorch nor pytest.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kgen.mutate.order import arranged

QUIET = ("-x", "-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:faulthandler")


@dataclass(frozen=True, slots=True)
class Task:
    """One run of the tests: a folder with the op, patterns of the tests to begin with.

    With a share ``(i, n)`` only every n-th test runs, from the i-th on.
    """

    number: int
    folder: str
    test: str
    first: Sequence[str] = ()
    share: tuple[int, int] = (0, 1)


@dataclass
class _Run:
    """A forked process that runs a task, and what it has told so far."""

    task: Task
    process: Any
    pipe: Any
    heard: float = field(default_factory=time.monotonic)
    verdict: dict[str, object] | None = None


class _Listener:
    """A pytest plugin: puts the tests in order and tells how each ends."""

    def __init__(self, task: Task, pipe: Any) -> None:
        self.task, self.pipe = task, pipe
        self.tests = 0

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        names = [item.nodeid.rpartition("::")[2] for item in items]
        first, step = self.task.share
        items[:] = [items[i] for i in arranged(names, self.task.first)][first::step]

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._failed("the import of the generated code", report)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self._failed(report.nodeid.rpartition("::")[2], report)
        elif report.when == "call":
            self.tests += 1
            self.pipe.send({})  # a sign of life

    def _failed(self, test: str, report: Any) -> None:
        crash = getattr(report.longrepr, "reprcrash", None)
        why = " ".join(str(crash.message if crash else report.longrepr).split())[:500]
        self.pipe.send({"verdict": "killed", "test": test, "why": why})


def serve(tasks: Sequence[Task], jobs: int, limit_s: float, out: int) -> None:
    """Run every task, ``jobs`` at a time, and write a line of JSON as each ends."""
    import multiprocessing
    from multiprocessing.connection import wait

    fork = multiprocessing.get_context("fork")
    waiting, running, parent = list(reversed(tasks)), list[_Run](), os.getppid()
    while (waiting or running) and os.getppid() == parent:  # else nobody listens any more
        while waiting and len(running) < jobs:
            task = waiting.pop()
            reader, writer = fork.Pipe(duplex=False)
            process = fork.Process(target=_run, args=(task, writer))
            process.start()
            writer.close()
            running.append(_Run(task, process, reader))
        wait([run.pipe for run in running], timeout=1.0)
        for run in list(running):
            _listen(run, limit_s)
            if run.verdict is not None:
                running.remove(run)
                line = json.dumps({"number": run.task.number, **run.verdict}) + "\n"
                os.write(out, line.encode())


def _listen(run: _Run, limit_s: float) -> None:
    """Take in what a run has sent; give it a verdict if it has ended or is stuck."""
    try:
        while run.pipe.poll():
            message = run.pipe.recv()
            run.heard = time.monotonic()
            if message:
                run.verdict = message
                break
    except EOFError:
        run.process.join()
        code = run.process.exitcode
        why = f"the process ended by signal {-code}" if code < 0 else f"it ended with {code}"
        run.verdict = {"verdict": "crashed", "test": "", "why": why}
    if run.verdict is None and time.monotonic() - run.heard > limit_s:
        why = f"no test ended within {limit_s:.0f} s"
        run.verdict = {"verdict": "timed out", "test": "", "why": why}
    if run.verdict is not None:
        run.process.kill()
        run.process.join()
        run.pipe.close()


def _warm_up() -> None:
    """Import all that the tests import, so that the forked processes need not."""
    import kgen.testing.interpreter as interpreter
    import torch

    torch.set_num_threads(1)
    interpreter.repair()


def _run(task: Task, pipe: Any) -> None:
    """What a forked process does."""
    import pytest

    listener = _Listener(task, pipe)
    options = ["-c", str(Path(task.folder, "pytest.ini")), "--rootdir", task.folder]
    with suppress(BrokenPipeError):
        code = pytest.main([*QUIET, *options, task.test], plugins=[listener])
        if code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            pipe.send({"verdict": "survived", "test": "", "why": "", "tests": listener.tests})
        else:
            pipe.send({"verdict": "crashed", "test": "", "why": f"pytest ended with {int(code)}"})


def main() -> None:
    """Read batches of tasks and serve them; the standard output is not used."""
    _warm_up()
    for line in sys.stdin:
        told = json.loads(line)
        tasks = [Task(**task) for task in told["tasks"]]
        serve(tasks, told["jobs"], told["limit_s"], int(sys.argv[1]))


if __name__ == "__main__":
    main()
