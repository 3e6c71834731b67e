"""What is known of one spec while it is verified, and how it is put in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kgen.ir import Op
from kgen.lower import RowOp
from kgen.spec import Element
from kgen.verify.compare import AUTOGRAD, DERIVED, OWN, REFERENCE, Row, Table
from kgen.verify.measure import Measured
from kgen.verify.reference import Reference, described
from kgen.verify.samples import Sample
from kgen.verify.slopes import Detach
from torch import Tensor

_ARTICLES = {REFERENCE: "the ", DERIVED: "the "}


@dataclass(slots=True)
class Facts:
    """An op, its samples measured, and the table of comparisons.

    ``stopped`` are the detaches that keep a gradient back which the reference has.
    """

    op: RowOp
    reference: Reference
    measured: list[Measured]
    table: Table
    stopped: list[Detach] = field(default_factory=list)

    def expected(self, one: Measured, name: str, against: str) -> Tensor | None:
        """What a quantity has to be in one sample, by one side."""
        side = {
            REFERENCE: one.outputs,
            AUTOGRAD: one.expected,
            OWN: one.own,
            DERIVED: one.derived,
        }[against]
        return side.get(name)

    def got(self, one: Measured, name: str) -> Tensor:
        """What the formulas give."""
        return one.stored(name) if name in one.outputs else one.backward[name]

    def allowed(self, name: str, one: Measured) -> float:
        """What a quantity may lose: a sum over M rows sqrt(M) times as much as one number."""
        definition = self.op.backward.definition(name) if self.op.backward else None
        term = definition.term if definition else None
        is_sum = isinstance(term, Op) and term.op == "sum_rows"
        return float(one.sample.rows**0.5) if is_sum else 1.0

    def extent(self, row: Row) -> str:
        """``y[0, 3] is 0.31 where the reference gives 1.2 (...)``, and what failures share."""
        only = self.condition(row)
        only = f", only {only}" if only else ""
        return f"{self.worst(self.measured[row.failed[0]], row.quantity, row.against)}{only}"

    def worst(self, one: Measured, quantity: str, against: str) -> str:
        """The entry of a sample that is furthest off, and the call it is from."""
        expected = self.expected(one, quantity, against)
        assert expected is not None
        got = self.got(one, quantity).expand(expected.shape)
        error = (got - expected).abs()
        error[~expected.isfinite() & (got == expected)] = 0
        error[expected.isnan()] = -1
        error[error.isnan()] = float("inf")
        place = int(error.argmax())
        found, wanted = float(got.flatten()[place]), float(expected.flatten()[place])
        side = f"{_ARTICLES.get(against, '')}{against}"
        by = f"is {short(found)} where {side} gives {short(wanted)}"
        if short(found) == short(wanted):
            by = f"is off by {float(error.max()):.1g} where {side} gives {short(wanted)}"
        indices = [*divmod(place, expected.shape[-1])] if expected.dim() else []
        kept = [str(i) for i, size in zip(indices, expected.shape, strict=True) if size > 1]
        entry = f"{quantity}[{', '.join(kept)}]" if kept else quantity
        return f"{entry} {by} ({described(self.op, one.sample)})"

    def condition(self, row: Row) -> str:
        """What the failing samples have in common that others have not: an input, a setting."""
        failed = [self.measured[number].sample for number in row.failed]
        passed = [self.measured[number].sample for number in row.passed]
        for name, states in self._settings():
            for state, words in states.items():
                holds = [_state(sample, name) == state for sample in failed]
                others = [_state(sample, name) == state for sample in passed]
                if all(holds) and others and not any(others):
                    return words
        return ""

    def _settings(self) -> Iterator[tuple[str, dict[bool, str]]]:
        for entry in self.op.spec.inputs:
            if entry.absent is not None:
                given, missing = f"where {entry.name} is given", f"where {entry.name} is not given"
                yield entry.name, {True: given, False: missing}
        for param in self.op.spec.params:
            if param.element is Element.BOOL:
                yield param.name, {
                    value: f"with {param.name} {value}".lower() for value in (True, False)
                }


def short(value: float) -> str:
    """A number in two digits."""
    return f"{float(f'{value:.2g}'):g}"


def _state(sample: Sample, name: str) -> bool:
    if name in sample.inputs:
        return sample.inputs[name] is not None
    return bool(sample.params[name])
