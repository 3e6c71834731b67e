"""Optional inputs in a formula: the steps that fall away when the input is absent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kgen.ir import Literal, Op, Ref, Term, names_in

_NEUTRAL = {"mul": 1.0, "div": 1.0, "add": 0.0, "sub": 0.0}
_COMMUTES = ("mul", "add")
_MOST_STEPS = 4


@dataclass(frozen=True, slots=True)
class Step:
    """``value = value <op> operand``; only when ``needs`` is present, if it names an input."""

    op: str
    operand: Term
    needs: str | None


@dataclass(frozen=True, slots=True)
class Peeled:
    """A term as a start and steps upon it."""

    base: Term
    steps: tuple[Step, ...]

    @property
    def optional(self) -> set[str]:
        """The optional inputs that a step waits for."""
        return {step.needs for step in self.steps if step.needs}


def peel(term: Term, absent: Mapping[str, float]) -> Peeled | None:
    """The term with each optional input in a step of its own; None when one cannot be.

    ``absent`` maps the optional inputs to the values that they count as.
    """
    inside = [name for name in names_in(term) if name in absent]
    if not inside:
        return Peeled(term, ())
    steps: list[Step] = []
    rest = term
    while any(name in absent for name in names_in(rest)):
        taken = _outermost(rest, absent)
        if taken is None or len(steps) == _MOST_STEPS:
            return None
        rest, step = taken
        steps.append(step)
    needed = [step.needs for step in steps if step.needs]
    if sorted(needed) != sorted(inside):
        return None
    return Peeled(rest, tuple(reversed(steps)))


def _outermost(term: Term, absent: Mapping[str, float]) -> tuple[Term, Step] | None:
    if not isinstance(term, Op) or term.op not in _NEUTRAL:
        return None
    left, right = term.arguments
    if (name := _falls_away(term.op, right, absent)) is not None:
        return left, Step(term.op, right, name)
    if term.op in _COMMUTES and (name := _falls_away(term.op, left, absent)) is not None:
        return right, Step(term.op, left, name)
    if not any(name in absent for name in names_in(right)):
        return left, Step(term.op, right, None)
    if term.op in _COMMUTES and not any(name in absent for name in names_in(left)):
        return right, Step(term.op, left, None)
    return None


def _falls_away(op: str, operand: Term, absent: Mapping[str, float]) -> str | None:
    """The optional input that ``operand`` is made of, if its absence leaves the neutral value."""
    names = names_in(operand)
    if len(names) != 1 or names[0] not in absent:
        return None
    return names[0] if _value(operand, absent[names[0]]) == _NEUTRAL[op] else None


def _value(term: Term, absent: float) -> float | None:
    if isinstance(term, Literal):
        return float(term.value)
    if isinstance(term, Ref):
        return absent
    values = [_value(argument, absent) for argument in term.arguments]
    if len(values) == 1 and values[0] is not None and term.op == "neg":
        return -values[0]
    if len(values) != 2 or values[0] is None or values[1] is None:
        return None
    left, right = values[0], values[1]
    if term.op == "add":
        return left + right
    if term.op == "sub":
        return left - right
    if term.op == "mul":
        return left * right
    return None
