"""Measures what may be launched: every plan of a width, through the wrapper, with cold caches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import torch
from kgen.bench.cells import Cell
from kgen.bench.inputs import Tensors, draw
from kgen.bench.kernel_time import Clock
from kgen.bench.runner import reason, require_alive, tidy
from kgen.bench.segments import total
from kgen.bench.subject import Subject, subject_of
from kgen.bench.trial import mismatch
from kgen.lower import lower
from kgen.schedule import schedule
from kgen.spec import Spec, gradient_name
from kgen.tune.candidates import candidates
from kgen.tune.launching import Launching
from kgen.tune.plans import Candidate, Direction, directions_of

MOST_ELEMENTS, NARROW = 2**26, 2048
"""Of a matrix that is measured; with rows of at most so many columns it is half of that."""

ROWS_TO_COMPILE = 2048
AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Item:
    """Rows of one width in one direction, and of their plans those of one slice to compile."""

    op: str
    words: int
    direction: str
    first: int = 0
    last: int = AT_ONCE


@dataclass(frozen=True, slots=True)
class Refused:
    """A plan without a time, and why: it could not be launched, or its results are others."""

    item: Item
    plan: Candidate
    why: str


@dataclass(slots=True)
class Measuring:
    """The ops by name, and the folder with the code that ``building`` writes of them."""

    specs: Mapping[str, Spec]
    folder: Path
    dtype: str
    rounds: int = 7
    device: str = "cuda"
    refused: list[Refused] = field(default_factory=list)
    _subjects: dict[str, Subject] = field(default_factory=dict, init=False)
    _ready: tuple[tuple[str, int], Launching] | None = field(default=None, init=False)

    @property
    def compute_bytes(self) -> int:
        """The size of a number of the arithmetic."""
        return compute_bytes(self.dtype)

    @property
    def gpu(self) -> str:
        """The name of the GPU."""
        return str(torch.cuda.get_device_properties(torch.cuda.current_device()).name)

    def count(self, item: Item) -> int:
        """How many plans there are to try."""
        return len(candidates(self._direction(item), item.words))

    def fresh(self) -> Measuring:
        """The same with nothing imported yet, as another process takes it."""
        return Measuring(self.specs, self.folder, self.dtype, device=self.device)

    def once(self, item: Item) -> None:
        """Launch the plans of a slice on fewer rows, so that they are compiled on disk."""
        direction = self._direction(item)
        launching = self._launching(item.op, item.words, ROWS_TO_COMPILE)
        launching.start(direction.name)
        for plan in candidates(direction, item.words)[item.first : item.last]:
            try:
                launching.run(direction.name, plan, self.compute_bytes)
            except Exception as error:  # it is refused when it is measured
                require_alive(f"{item.op} by {plan}: {reason(error)}")

    def times(self, item: Item, clock: Clock) -> dict[Candidate, float]:
        """Microseconds by plan, medians; raises ``MeasureError`` if the profile is not sound."""
        direction = self._direction(item)
        launching = self._launching(item.op, item.words, MOST_ELEMENTS)
        launching.start(direction.name)
        ready: dict[Candidate, Callable[[], object]] = {}
        expected: Tensors | None = None
        for plan in candidates(direction, item.words):
            run = partial(launching.run, direction.name, plan, self.compute_bytes)
            try:
                found = launching.results(direction.name, run())
                torch.cuda.synchronize()
            except Exception as error:
                self.refused.append(Refused(item, plan, reason(error)))
                require_alive(f"{item.op} by {plan}")
                continue
            wrong = None if expected is None else self._difference(item.op, found, expected)
            if wrong is not None:
                self.refused.append(Refused(item, plan, wrong))
                continue
            expected = found if expected is None else expected
            ready[plan] = run
        runs = clock.rounds(list(ready.values()), self.rounds) if ready else []
        return {
            plan: median(total(run) for run in each) for plan, each in zip(ready, runs, strict=True)
        }

    def forget(self) -> None:
        """Give back the memory of the last width."""
        self._ready = None
        tidy()

    def _difference(self, op: str, found: Tensors, expected: Tensors) -> str | None:
        """How results differ from those of the rule's plan, within the op's tolerances."""
        subject = self._subject(op)
        summed = {gradient_name(entry.name) for entry in subject.spec.inputs if entry.is_summed}
        assert self._ready is not None
        terms = self._ready[1].rows
        for name, tensor in found.items():
            count = terms if name in summed else 1
            if problem := mismatch(subject, name, tensor, expected[name], count):
                return problem.replace("the reference", "the rule's plan")
        return None

    def _direction(self, item: Item) -> Direction:
        plan = schedule(lower(self.specs[item.op]))
        return next(each for each in directions_of(plan) if each.name == item.direction)

    def _subject(self, op: str) -> Subject:
        if op not in self._subjects:
            self._subjects[op] = subject_of(self.specs[op], self.folder)
        return self._subjects[op]

    def _launching(self, op: str, words: int, most_rows: int) -> Launching:
        if self._ready is None or self._ready[0] != (op, words):
            self.forget()
            columns = columns_of(words, self.dtype)
            rows = min(most_rows, rows_of(columns))
            subject = self._subject(op)
            cell = Cell(op, rows, columns, self.dtype)
            self._ready = (op, words), Launching(subject, draw(subject.row_op, cell, self.device))
        return self._ready[1]


def compute_bytes(dtype: str) -> int:
    """The size of a number of the arithmetic for inputs of a dtype."""
    return 8 if dtype == "float64" else 4


def columns_of(words: int, dtype: str) -> int:
    """Columns of rows that are so wide in the arithmetic."""
    return words * 4 // compute_bytes(dtype)


def rows_of(columns: int) -> int:
    """Rows that make a matrix of 2**25 to 2**26 elements."""
    return max(1, (MOST_ELEMENTS // 2 if columns <= NARROW else MOST_ELEMENTS) // columns)


def slices(items: Sequence[Item], count: Callable[[Item], int]) -> list[Item]:
    """The items cut into slices of few plans, for processes to compile."""
    return [
        Item(item.op, item.words, item.direction, first, first + AT_ONCE)
        for item in items
        for first in range(0, count(item), AT_ONCE)
    ]
