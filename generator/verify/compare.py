"""How far two values are from each other, as a share of what is allowed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import Tensor

ABSOLUTE, RELATIVE = 1e-11, 1e-10
"""What float64 may lose: ``ABSOLUTE + RELATIVE * max(|expected|)``."""

REFERENCE = "reference"
AUTOGRAD = "autograd of the reference"
OWN = "autograd of the formulas"
DERIVED = "derived backward"
DIFFERENCES = "finite differences"
WITHOUT = "gradients without it"
DOUBLE = "autograd, twice"
GRADCHECK = "gradcheck"
CASES, SPEC = "cases", "the spec"


def gap(got: Tensor, expected: Tensor, *, allow: float = 1.0, limits: bool = True) -> float | None:
    """The largest difference divided by what is allowed (times ``allow``); above 1 disagrees.

    Entries where ``expected`` is NaN, and with ``limits`` false also those where it is infinite,
    have no right answer and do not count; None when no entry counts. Sums of M rows may lose
    ``sqrt(M)`` times as much, which ``allow`` says.
    """
    if expected.dim() == 0:  # a gradient that is the same number everywhere
        expected = expected.expand(got.shape)
    got = got.expand(expected.shape)
    known = ~expected.isnan() if limits else expected.isfinite()
    if not known.any():
        return None
    infinite = expected.isinf() & known
    if (infinite & (got != expected)).any():
        return math.inf
    finite = known & ~infinite
    if not finite.any():
        return 0.0
    found, wanted = got[finite], expected[finite]
    if not found.isfinite().all():
        return math.inf
    bound = allow * (ABSOLUTE + RELATIVE * float(wanted.abs().max()))
    return float((found - wanted).abs().max()) / bound


def same(got: Tensor, expected: Tensor) -> bool:
    """Whether two values of one shape, or broadcasting to it, agree wherever they are finite."""
    if got.shape != expected.shape:
        return False
    error = gap(got, expected, limits=False)
    return error is not None and error <= 1


@dataclass(slots=True)
class Row:
    """One line of the table: a quantity against one side, over all samples.

    ``failed`` are the numbers of the samples that disagree. ``note`` replaces the verdict of a
    disagreement that is as it should be.
    """

    quantity: str
    against: str
    worst: float = 0.0
    cases: int = 0
    failed: list[int] = field(default_factory=list)
    passed: list[int] = field(default_factory=list)
    note: str | None = None

    def add(self, number: int, error: float | None) -> None:
        """Count a sample; one in which no entry counts is left out."""
        if error is None:
            return
        self.cases += 1
        self.worst = max(self.worst, error)
        (self.failed if error > 1 else self.passed).append(number)

    @property
    def agrees(self) -> bool:
        """Whether no sample disagrees; with the reference itself at least one must be compared."""
        if self.note is not None:
            return True
        return not self.failed and (self.cases > 0 or self.against != REFERENCE)

    @property
    def has_error(self) -> bool:
        """Whether the comparison measures an error, and does not only pass or fail."""
        return self.against != GRADCHECK

    @property
    def verdict(self) -> str:
        """The last column of the table."""
        if self.note is not None:
            return self.note
        if not self.cases:
            return "not compared"
        return "agrees" if self.agrees else "DISAGREES"


@dataclass(slots=True)
class Table:
    """The rows of one spec, in the order they were first asked for."""

    rows: dict[tuple[str, str], Row] = field(default_factory=dict)

    def row(self, quantity: str, against: str) -> Row:
        """The row of that quantity and side."""
        return self.rows.setdefault((quantity, against), Row(quantity, against))

    def failed(self, against: str) -> list[Row]:
        """The rows of one side that do not agree."""
        return [row for row in self.rows.values() if row.against == against and not row.agrees]

    @property
    def agrees(self) -> bool:
        """Whether every row agrees."""
        return all(row.agrees for row in self.rows.values())
