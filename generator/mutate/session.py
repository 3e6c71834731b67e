"""Runs mutants against the generated tests: folders, the worker process, verdicts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Any

from kgen.errors import KgenError
from kgen.mutate.catalogue import OpText
from kgen.mutate.mutants import Mutant
from kgen.mutate.order import first_tests

# The package around the op, so that no op's name hides a module that the tests import.
PACKAGE = "mutated"
LIMIT_S = 60.0

Progress = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant: killed, timed out, crashed or survived, and by which test.

    ``why`` is the beginning of the test's message. All but survivors are dead.
    """

    mutant: Mutant
    outcome: str
    test: str
    why: str

    @property
    def survived(self) -> bool:
        """Whether every test passed."""
        return self.outcome == "survived"


@dataclass(frozen=True, slots=True)
class Baseline:
    """The generated tests on the code as it is: how many ran, and the first that failed."""

    tests: int
    failed: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Session:
    """The mutants of one op in a folder of their own; ``session`` makes one."""

    op: OpText
    folder: Path
    worker: _Worker
    jobs: int
    limit_s: float

    def baseline(self) -> Baseline:
        """Run all tests on the code as it is, each job a share of them."""
        place = self._write("right", {})
        tasks = [self._task(n, place, share=(n, self.jobs)) for n in range(self.jobs)]
        answers = list(self._answers(tasks))
        for answer in answers:
            if answer["verdict"] != "survived":
                return Baseline(0, answer["test"] or answer["verdict"], answer["why"])
        return Baseline(sum(answer["tests"] for answer in answers))

    def verdicts(self, mutants: Sequence[Mutant], progress: Progress) -> list[Verdict]:
        """Run all tests on each mutant until one fails; calls ``progress`` after each mutant."""
        tasks = []
        for number, mutant in enumerate(mutants):
            place = self._write(f"mutant_{number}", {mutant.file: mutant.text})
            tasks.append(self._task(number, place, first=first_tests(mutant)))
        found: dict[int, Verdict] = {}
        for answer in self._answers(tasks):
            number = answer["number"]
            found[number] = Verdict(
                mutants[number], answer["verdict"], answer["test"], answer["why"]
            )
            progress()
        return [found[number] for number in range(len(mutants))]

    def _write(self, name: str, changed: Mapping[str, str]) -> Path:
        place = self.folder / name
        package = place / PACKAGE / self.op.op
        package.mkdir(parents=True)
        (place / "pytest.ini").write_text("[pytest]\n")
        (place / PACKAGE / "__init__.py").write_text("")
        for file, text in {**self.op.files, **changed}.items():
            (package / file).write_text(text, encoding="utf-8")
        return place

    def _task(
        self,
        number: int,
        place: Path,
        first: Sequence[str] = (),
        share: tuple[int, int] = (0, 1),
    ) -> dict[str, object]:
        test = place / PACKAGE / self.op.op / f"test_{self.op.op}.py"
        return {
            "number": number,
            "folder": str(place),
            "test": str(test),
            "first": list(first),
            "share": share,
        }

    def _answers(self, tasks: Sequence[dict[str, object]]) -> Iterator[dict[str, Any]]:
        """Hand the tasks to the worker, and give its verdicts as they come."""
        told = {"tasks": tasks, "jobs": self.jobs, "limit_s": self.limit_s}
        with suppress(BrokenPipeError):  # then no answer comes either
            self.worker.tasks.write(json.dumps(told).encode() + b"\n")
            self.worker.tasks.flush()
        for _ in tasks:
            line = self.worker.verdicts.readline()
            if not line:
                why = self.worker.last_words()
                raise KgenError(f"the tests of '{self.op.op}' could not be run: {why}")
            yield json.loads(line)


@dataclass(frozen=True, slots=True)
class _Worker:
    """The worker process, as seen from here."""

    tasks: IO[bytes]
    verdicts: IO[str]
    errors: IO[bytes]

    def last_words(self) -> str:
        """The last line that it wrote on its standard error."""
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "the process that runs them ended"


@contextmanager
def _worker(folder: Path) -> Iterator[_Worker]:
    """The worker process, which ends with the block, and all that it has forked with it."""
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    environment.pop("PYTEST_ADDOPTS", None)
    reader, writer = os.pipe()
    with os.fdopen(reader) as verdicts, TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "kgen.mutate.worker", str(writer)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            cwd=folder,
            env=environment,
            pass_fds=(writer,),
            start_new_session=True,
        )
        os.close(writer)
        assert process.stdin is not None
        try:
            yield _Worker(process.stdin, verdicts, errors)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            with suppress(BrokenPipeError):
                process.stdin.close()


@contextmanager
def session(op: OpText, jobs: int = 2, limit_s: float = LIMIT_S) -> Iterator[Session]:
    """A session in a temporary folder.

    Args:
        op: the generated files.
        jobs: how many mutants meet the tests at a time.
        limit_s: the seconds within which a test must end.
    """
    with TemporaryDirectory(prefix="kgen-mutate-") as name, _worker(Path(name)) as worker:
        yield Session(op, Path(name), worker, jobs, limit_s)
