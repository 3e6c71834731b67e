"""Asks worker processes what ops launch, and what that takes once it is compiled."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryFile
from typing import IO, Any

from kgen.errors import KgenError
from kgen.inspection.calls import Call
from kgen.inspection.data import Configuration, in_order
from kgen.inspection.resources import Resources
from kgen.inspection.targets import Target

# Configurations that are handed to a worker at a time.
SHARE = 8

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Inspected:
    """An op to inspect: its name, its spec, the folder of generated code, and the calls to make."""

    op: str
    spec: Path
    folder: Path
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Compiled:
    """What came of a configuration: what it takes, or why it does not compile; its code if asked.

    ``triton`` is the version that compiled it.
    """

    resources: Resources | None
    problem: str
    code: str
    triton: str


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the calls of an op launch on a target, and of each hash the call that launches it."""

    inspected: Inspected
    target: Target
    configurations: tuple[Configuration, ...]
    first_calls: Mapping[str, Call] = field(repr=False)
    triton: str


class Session:
    """Worker processes at hand; ``session`` makes one."""

    def __init__(self, workers: Sequence[_Worker]) -> None:
        self._jobs = len(workers)
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        for worker in workers:
            self._idle.put(worker)

    def recorded(self, ops: Iterable[Inspected], target: Target) -> list[Recorded]:
        """Run each op's wrapper, without compiling anything.

        Raises:
            KgenError: if the generated code does not take the calls.
        """
        ops = list(ops)
        requests = [(op, _request(op, target, op.calls)) for op in ops]
        answers = {op.op: told for op, told in self._answers(requests)}
        return [_recorded(op, target, answers[op.op]) for op in ops]

    def compiled(
        self,
        wanted: Iterable[tuple[Recorded, Sequence[str]]],
        form: str = "",
        progress: Progress = lambda count: None,
    ) -> dict[str, Compiled]:
        """Compile launches by their hashes.

        Args:
            wanted: of each op, the hashes to compile.
            form: the form of code to return, such as ``ptx``; '' for none.
            progress: called with the number of launches that were compiled since the last call.
        """
        requests = []
        for recorded, digests in wanted:
            for start in range(0, len(digests), SHARE):
                share = digests[start : start + SHARE]
                calls = dict.fromkeys(recorded.first_calls[digest] for digest in share)
                request = _request(recorded.inspected, recorded.target, tuple(calls))
                requests.append((recorded.inspected, {**request, "compile": share, "form": form}))
        found: dict[str, Compiled] = {}
        for _, told in self._answers(requests):
            for digest, taken in told["resources"].items():
                code = told["codes"].get(digest, "")
                found[digest] = _compiled(taken, code, told["triton"])
            progress(len(told["resources"]))
        return found

    def _answers(
        self, requests: Sequence[tuple[Inspected, Mapping[str, Any]]]
    ) -> Iterator[tuple[Inspected, dict[str, Any]]]:
        """Each request's answer, as they come."""
        pool = ThreadPoolExecutor(self._jobs)
        try:
            waiting = {pool.submit(self._answer, op, request): op for op, request in requests}
            for done in as_completed(waiting):
                yield waiting[done], done.result()
        finally:  # without waiting: what still runs ends with its worker
            pool.shutdown(wait=False, cancel_futures=True)

    def _answer(self, op: Inspected, request: Mapping[str, Any]) -> dict[str, Any]:
        worker = self._idle.get()
        try:
            told = worker.answer(request)
        finally:
            self._idle.put(worker)
        if "error" in told:
            raise KgenError(
                f"'{op.folder / op.op}' cannot be called as {op.spec} says: {told['error']}\n"
                f"is it up to date? `kgen check {op.spec}` tells"
            )
        return told


def _request(op: Inspected, target: Target, calls: Sequence[Call]) -> dict[str, Any]:
    return {
        "spec": str(op.spec.resolve()),
        "folder": str(op.folder.resolve()),
        "target": target.name,
        "calls": [asdict(call) for call in calls],
        "compile": (),
        "form": "",
    }


def _recorded(op: Inspected, target: Target, told: Mapping[str, Any]) -> Recorded:
    """One configuration for each kernel, dtype and hash."""
    places: dict[tuple[str, str], list[int]] = {}
    launches: dict[tuple[str, str], Mapping[str, Any]] = {}
    first_calls: dict[str, Call] = {}
    for launch in told["launches"]:
        call = op.calls[launch["call"]]
        key = (call.dtype, launch["digest"])
        launches.setdefault(key, launch)
        places.setdefault(key, []).append(call.columns)
        first_calls.setdefault(launch["digest"], call)
    found = (
        _configuration(op.op, dtype, columns, launches[dtype, digest])
        for (dtype, digest), columns in places.items()
    )
    return Recorded(op, target, tuple(in_order(found)), first_calls, told["triton"])


def _configuration(
    op: str, dtype: str, columns: Iterable[int], launch: Mapping[str, Any]
) -> Configuration:
    rest = {**launch["constants"], **launch["options"]}
    rows, block = rest.pop("ROWS", 0), rest.pop("BLOCK", 0)
    stages = [rest.pop(name) for name in ("num_stages", "STAGES") if name in rest]
    return Configuration(
        op=op,
        kernel=launch["kernel"],
        dtype=dtype,
        columns=tuple(sorted(set(columns))),
        rows=rows,
        block=block,
        warps=launch["warps"],
        stages=stages[-1] if stages else 0,
        options=" ".join(f"{name}={value}" for name, value in sorted(rest.items())),
        digest=launch["digest"],
    )


def _compiled(taken: Mapping[str, Any], code: str, triton: str) -> Compiled:
    if "error" in taken:
        return Compiled(None, taken["error"], "", triton)
    widths = {name: tuple(taken[name]) for name in ("loads", "stores")}
    return Compiled(Resources(**{**taken, **widths}), "", code, triton)


@dataclass(frozen=True, slots=True)
class _Worker:
    """A worker process, as seen from here."""

    process: subprocess.Popen[bytes]
    answers: IO[str]
    errors: IO[bytes]

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Raises ``KgenError`` if the process has ended."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # then no answer comes either
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        line = self.answers.readline()
        if not line:
            raise KgenError(f"the process that compiles has ended: {self._last_words()}")
        told: dict[str, Any] = json.loads(line)
        return told

    def _last_words(self) -> str:
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit code {self.process.poll()}"


@contextmanager
def session(jobs: int) -> Iterator[Session]:
    """A session with that many worker processes, which end with the block."""
    with ExitStack() as stack:
        yield Session([stack.enter_context(_worker()) for _ in range(jobs)])


# Where Triton keeps what it has compiled; all its other settings could change the result.
_KEPT = ("TRITON_CACHE_DIR", "TRITON_HOME")


@contextmanager
def _worker() -> Iterator[_Worker]:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("TRITON_") or name in _KEPT
    }
    environment |= {"TRITON_INTERPRET": "0", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    reader, writer = os.pipe()
    with os.fdopen(reader, encoding="utf-8") as answers, TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "kgen.inspection.worker", str(writer)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=environment,
            pass_fds=(writer,),
            start_new_session=True,
        )
        os.close(writer)
        try:
            yield _Worker(process, answers, errors)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.close()
