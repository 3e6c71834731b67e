"""Goes through the cells: draws, runs, checks, then measures all providers of a cell together."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from kgen.bench.cells import SMALL, Cell
from kgen.bench.inputs import Arguments, draw
from kgen.bench.kernel_time import COPY_BYTES, Call, Clock, copy_time
from kgen.bench.latency import latencies
from kgen.bench.moved import directions_of, moved_bytes
from kgen.bench.providers import BUILT_IN, Provider, provider_of
from kgen.bench.results import FAILED, OK, WRONG, Measurement, spread_of, with_share
from kgen.bench.segments import Ran, total
from kgen.bench.subject import Subject, subject_of
from kgen.bench.textbook import textbook_of
from kgen.bench.trial import (
    Results,
    Trial,
    expected_of,
    named,
    trial_of,
    wrong_gradient,
    wrong_output,
)
from kgen.errors import KgenError
from kgen.spec import Spec

FORWARD, BACKWARD, BOTH = "forward", "backward", "forward + backward"


@dataclass(slots=True)
class Tried:
    """A provider that has run once; ``problems`` holds status and note of each direction."""

    name: str
    trial: Trial | None = None
    problems: dict[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(slots=True)
class Bench:
    """The ops by name, the folder of their code, the providers that are asked for."""

    specs: Mapping[str, Spec]
    folder: Path
    names: Sequence[str]
    calls: int = 12
    directions: Sequence[str] = (FORWARD, BACKWARD)
    device: str = "cuda"
    copy_gbps: float = 0.0
    _clock: Clock | None = field(default=None, init=False)
    _subjects: dict[str, Subject] = field(default_factory=dict, init=False)
    _libraries: dict[str, Provider] = field(default_factory=dict, init=False)

    def start(self) -> float:
        """Warm the GPU and measure the copy, in GB/s; raises ``MeasureError`` if that fails."""
        self._clock = Clock()
        copy_time(self._clock, 100)
        self.copy_gbps = round(COPY_BYTES / copy_time(self._clock, 100) / 1e3, 1)
        return self.copy_gbps

    def fresh(self) -> Bench:
        """The same with nothing imported yet, as another process takes it."""
        return Bench(self.specs, self.folder, self.names, device=self.device)

    def versions(self) -> dict[str, str]:
        """The versions of the libraries that are compared; raises ``KgenError`` for a bad one."""
        libraries = {name: self._library(name) for name in self.names}
        return {each.name: each.version for each in libraries.values() if each is not None}

    def kernel_times(self, cell: Cell) -> list[Measurement]:
        """All providers in all directions of one cell, measured in one session."""
        subject = self._subject(cell.op)
        done: list[Measurement] = []
        ready: list[tuple[Measurement, Call]] = []
        for tried in self._tried(cell, subject):
            for direction in directions_of(subject.row_op):
                if direction not in self.directions:
                    continue
                moved = moved_bytes(subject.row_op, direction, cell.rows, cell.columns, cell.dtype)
                record = replace(_record(cell, tried, direction), moved=moved)
                if direction in tried.problems:
                    status, note = tried.problems[direction]
                    done.append(replace(record, status=status, note=note))
                elif tried.trial is not None:
                    ready.append((record, _call(subject, tried.trial, direction)))
        done += self._timed(ready)
        ready.clear()
        tidy()
        labels = [self._label(name) for name in self.names]
        return sorted(done, key=lambda each: labels.index(each.provider))

    def latencies(self, cell: Cell) -> list[Measurement]:
        """Whole calls of one cell: inference, and forward and backward together."""
        subject = self._subject(cell.op)
        found: list[Measurement] = []
        for tried in self._tried(cell, subject):
            for direction in (FORWARD, BOTH)[: len(directions_of(subject.row_op))]:
                record = _record(cell, tried, direction)
                problems = [
                    tried.problems[d] for d in direction.split(" + ") if d in tried.problems
                ]
                if problems or tried.trial is None:
                    status, note = problems[0]
                    found.append(replace(record, status=status, note=note))
                    continue
                call = tried.trial.inference if direction == FORWARD else tried.trial.step
                try:
                    call()
                    found.append(replace(record, time=spread_of(latencies(call))))
                except Exception as error:
                    found.append(replace(record, status=FAILED, note=reason(error)))
                    require_alive(tried.name)
        tidy()
        return found

    def once(self, cell: Cell) -> None:
        """Run each provider once, so that what it compiles is on disk; failures are let be."""
        for tried in self._tried(cell, self._subject(cell.op), check=False):
            if tried.trial is not None and (cell.rows, cell.columns, cell.dtype) in SMALL:
                tried.trial.inference()
            tidy()

    def _tried(self, cell: Cell, subject: Subject, check: bool = True) -> Iterator[Tried]:
        """Every provider that has the op, run once on arguments of its own."""
        arguments, expected, unknown = None, None, ""
        try:
            arguments = draw(subject.row_op, cell, self.device)
            expected = expected_of(subject, arguments) if check else None
        except Exception as error:
            unknown = f"the reference failed: {reason(error)}"
        for name in self.names:
            label = self._label(name)
            try:
                call, dtypes = self._implementation(name, subject)
                if call is None:
                    continue
                if arguments is None or unknown:
                    tried = failed(label, unknown)
                else:
                    trial = trial_of(subject, call, arguments, dtypes)
                    tried = try_out(label, trial, arguments, expected)
                    del trial
            except Exception as error:
                tried = failed(label, reason(error))
            require_alive(label)
            yield tried

    def _implementation(
        self, name: str, subject: Subject
    ) -> tuple[Callable[..., Any] | None, Mapping[str, str] | None]:
        """What a provider has for an op, or None, and the dtypes in which it wants inputs."""
        if name == "kgen":
            return subject.function, None
        if name == "pytorch":
            return subject.reference, None
        if name == "textbook":
            return textbook_of(subject), None
        if name == "compile":
            return compiled(subject.reference), None
        library = self._library(name)
        assert library is not None
        op = subject.spec.op
        return library.calls.get(op), library.dtypes.get(op)

    def _label(self, name: str) -> str:
        library = self._library(name)
        return name if library is None else library.name

    def _library(self, name: str) -> Provider | None:
        if name in BUILT_IN:
            return None
        if name not in self._libraries:
            self._libraries[name] = provider_of(name)
        return self._libraries[name]

    def _subject(self, op: str) -> Subject:
        if op not in self._subjects:
            self._subjects[op] = subject_of(self.specs[op], self.folder)
        return self._subjects[op]

    def _timed(self, ready: Sequence[tuple[Measurement, Call]]) -> list[Measurement]:
        """Measure together; if that fails, each alone, to find the one that it fails for."""
        assert self._clock is not None
        if not ready:
            return []
        try:
            runs = self._clock.rounds([call for _, call in ready], self.calls)
        except Exception as error:
            require_alive(", ".join(dict.fromkeys(record.provider for record, _ in ready)))
            if len(ready) > 1:
                return [each for one in ready for each in self._timed([one])]
            return [replace(ready[0][0], status=FAILED, note=reason(error))]
        return [self._filled(record, run) for (record, _), run in zip(ready, runs, strict=True)]

    def _filled(self, record: Measurement, runs: Sequence[Sequence[Ran]]) -> Measurement:
        times = [total(run) for run in runs]
        kernels = sorted(len(run) for run in runs)[len(runs) // 2]
        done = replace(record, calls=len(runs), kernels=kernels, time=spread_of(times))
        return with_share(done, self.copy_gbps)


def try_out(name: str, trial: Trial, arguments: Arguments, expected: Results | None) -> Tried:
    """Run forward, and backward if there is one, and compare; a backward may fail alone."""
    tried = Tried(name, trial)
    subject = trial.subject
    trains = subject.row_op.backward is not None
    outputs = trial.start() if trains else named(subject, trial.inference())
    wrong = wrong_output(subject, outputs, expected) if expected else None
    if wrong:
        tried.problems |= {FORWARD: (WRONG, wrong), BACKWARD: (WRONG, wrong)}
        return tried
    if trains:
        try:
            gradients = trial.gradients()
            rows = math.prod(arguments.shape[:-1])
            wrong = wrong_gradient(subject, gradients, expected, rows) if expected else None
            if wrong:
                tried.problems[BACKWARD] = WRONG, wrong
        except Exception as error:
            tried.problems[BACKWARD] = FAILED, reason(error)
    return tried


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.compile``, as if it were the only function, of which backward can run again."""
    import torch._functorch.config

    torch.compiler.reset()
    # Else backward may use up what forward has saved, and raises where its graph is kept.
    torch._functorch.config.donated_buffer = False
    return torch.compile(function, dynamic=False)


def failed(name: str, note: str) -> Tried:
    """A provider of which nothing can be timed."""
    return Tried(name, None, {FORWARD: (FAILED, note), BACKWARD: (FAILED, note)})


def reason(error: BaseException) -> str:
    """Why something failed, in one short line."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return "out of memory"
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words}"[:160]


def require_alive(name: str) -> None:
    """Raise ``KgenError`` if the GPU takes no more work: a kernel has gone astray."""
    try:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    except Exception as error:
        raise KgenError(
            f"the GPU gave up after {name}, and this process cannot use it any more: "
            f"{reason(error)}; leave it out with --provider"
        ) from None


def tidy() -> None:
    """Give back what the last cell held."""
    gc.collect()
    torch.cuda.empty_cache()


def _record(cell: Cell, tried: Tried, direction: str) -> Measurement:
    return Measurement(cell.op, cell.rows, cell.columns, cell.dtype, direction, tried.name, OK)


def _call(subject: Subject, trial: Trial, direction: str) -> Call:
    if direction == BACKWARD:
        return trial.backward
    return trial.forward if subject.row_op.backward is not None else trial.inference
