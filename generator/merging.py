"""Dependent reductions that one walk over the row can do together: which they are, and how.

A sum of exponentials less the row's maximum is rescaled whenever the maximum grows. It comes out
as if the maximum had been known before, but for three rows: one with NaN of which a condition
leaves every term out gives NaN, not 0; where a guard takes 0 in place of inf, terms far below a
finite value that is left out may count as 0; weights near the largest float may overflow early.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import astuple, dataclass, field, replace
from enum import Enum

from kgen.ir import Define, Literal, Op, Program, Ref, Term, is_reduction, names_in, walk
from kgen.rewrite import inline
from kgen.spec import Kind


class MergeKind(Enum):
    """Two dependent reductions that one walk can do together."""

    EXP_SUM = "exp_sum"  # max(v) and sum(exp(v - max)), rescaled as the maximum grows
    MOMENTS = "moments"  # mean(v) and the sum of (v - mean) ** 2, about a pivot near the mean


class Guard(Enum):
    """The infinite maxima that are replaced by 0 before they are subtracted."""

    NONE = "none"
    MINUS_INF = "-inf"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class Merge:
    """``total`` is brought up to date beside ``statistic``; both reduce ``values``.

    ``guard`` is what stands between a maximum and its exponentials.
    """

    kind: MergeKind
    statistic: Define
    total: Define
    values: Term
    guard: Guard = Guard.NONE


@dataclass(frozen=True, slots=True)
class OnlineSum:
    """A sum or mean of ``exp(values - center)``, some terms left out or with other factors.

    Attributes:
        total: the reduction.
        maximum: the maximum of the same values.
        center: the name of the maximum, or of what a guard makes of it.
        guard: that guard.
        is_plain: whether each term is the exponential alone.
        is_masked: whether a condition leaves terms out.
        is_weighted: whether terms have a factor that may not be finite.
    """

    total: Define
    maximum: Define
    center: str
    guard: Guard
    is_plain: bool
    is_masked: bool
    is_weighted: bool


@dataclass(frozen=True, slots=True)
class Online:
    """A maximum and the sums that are rescaled while it grows.

    Attributes:
        maximum: the maximum of the row.
        sums: the sums, in the order of the formulas.
        guards: row values between the maximum and its exponentials, worked out in every chunk.
        definitions: the matrices that depend on the maximum so far.
        before: the name of the maximum before a chunk.
        so_far: the name of the maximum while the walk goes on.
    """

    maximum: Define
    sums: tuple[OnlineSum, ...]
    guards: tuple[Define, ...]
    definitions: tuple[Define, ...]
    before: str
    so_far: str

    @property
    def values(self) -> Term:
        """What the maximum is of."""
        assert isinstance(self.maximum.term, Op)
        return self.maximum.term.arguments[0]

    @property
    def is_shifted(self) -> bool:
        """Whether 0 stands in for a maximum of -inf until the walk is over."""
        return self.so_far != self.maximum.name


@dataclass(slots=True)
class Merging:
    """What merges in a program. ``beside`` maps each total to the statistic it is ready with."""

    pairs: list[Merge] = field(default_factory=list)
    sums: dict[str, list[OnlineSum]] = field(default_factory=dict)
    beside: dict[str, str] = field(default_factory=dict)

    @property
    def merges(self) -> tuple[Merge, ...]:
        """The pairs, among them each maximum with a single plain sum."""
        found = {merge.total.name: merge for merge in self.pairs}
        for each in (sums[0] for sums in self.sums.values() if _is_pair(sums)):
            values = _operand(each.maximum)
            merge = Merge(MergeKind.EXP_SUM, each.maximum, each.total, values, each.guard)
            found[each.total.name] = merge
        return tuple(found[name] for name in self.beside if name in found)

    @property
    def online(self) -> tuple[tuple[OnlineSum, ...], ...]:
        """The other sums, those of one maximum together."""
        return tuple(tuple(sums) for sums in self.sums.values() if not _is_pair(sums))


def _is_pair(sums: list[OnlineSum]) -> bool:
    return len(sums) == 1 and sums[0].is_plain


def find_merges(program: Program) -> Merging:
    """What can be accumulated in the walk that finds the mean or the maximum it depends on."""
    found = Merging()
    for total in program.definitions:
        if not (isinstance(total.term, Op) and total.term.op in ("sum", "mean")):
            continue
        if (merge := _moments(program, total)) is not None:
            # What is itself complete only after the walk cannot be merged upon in the same walk.
            taken = {m.statistic.name for m in found.pairs} | set(found.beside)
            if merge.statistic.name not in taken:
                found.pairs.append(merge)
                found.beside[total.name] = merge.statistic.name
        elif (each := _online_sum(program, total, found)) is not None:
            found.sums.setdefault(each.maximum.name, []).append(each)
            found.beside[total.name] = each.maximum.name
    return found


def known_after(program: Program, beside: Mapping[str, str]) -> dict[str, int]:
    """After how many walks each definition is known."""
    known: dict[str, int] = {}
    for definition in program.definitions:
        level = max((known.get(name, 0) for name in names_in(definition.term)), default=0)
        if definition.name in beside:
            level = known[beside[definition.name]]
        elif is_reduction(definition.term):
            level += 1
        known[definition.name] = level
    return known


def _moments(program: Program, total: Define) -> Merge | None:
    difference = _squared(inline(program, _operand(total), _is_row_value))
    if not (isinstance(difference, Op) and difference.op == "sub"):
        return None
    values, center = difference.arguments
    mean = program.definition(center.name) if isinstance(center, Ref) else None
    if mean is None or not isinstance(mean.term, Op) or mean.term.op != "mean":
        return None
    if inline(program, _operand(mean), _is_row_value) != values:
        return None
    return Merge(MergeKind.MOMENTS, mean, total, _operand(mean))


def _online_sum(program: Program, total: Define, found: Merging) -> OnlineSum | None:
    operand = inline(program, _operand(total), _is_row_value)
    for exponential in walk(operand):
        parts = _exponent(exponential)
        guarded = _guarded(program, parts[1]) if parts is not None else None
        if parts is None or guarded is None:
            continue
        maximum, guard, keeps_nan = guarded
        if inline(program, _operand(maximum), _is_row_value) != parts[0]:
            continue
        known = known_after(program, found.beside)
        late = {name for name, level in known.items() if level >= known[maximum.name]}
        factors = _factors(operand, exponential, late)
        if factors is None or (factors.is_masked and not keeps_nan):
            continue
        is_plain = operand == exponential
        each = OnlineSum(total, maximum, parts[1].name, guard, is_plain, *astuple(factors))
        if _agree([each, *found.sums.get(maximum.name, [])]):
            return each
    return None


def _agree(sums: list[OnlineSum]) -> bool:
    """Whether one way of doing a maximum of -inf is right for all sums.

    Where nothing guards from it, each term is NaN, but the sum of a row that a condition leaves
    out is 0. The walk cannot tell such rows once it puts 0 in place of -inf, for weights to count.
    """
    unguarded = [each for each in sums if each.guard is Guard.NONE]
    return not (any(s.is_masked for s in unguarded) and any(s.is_weighted for s in unguarded))


def _exponent(term: Term) -> tuple[Term, Ref] | None:
    """The values and the row value of ``exp(values - row_value)``."""
    difference = term.arguments[0] if isinstance(term, Op) and term.op == "exp" else None
    if not (isinstance(difference, Op) and difference.op == "sub"):
        return None
    values, center = difference.arguments
    is_row_value = isinstance(center, Ref) and center.type.kind is Kind.PER_ROW
    return (values, center) if is_row_value and isinstance(center, Ref) else None


@dataclass(frozen=True, slots=True)
class _Factors:
    """What the terms of a sum have beside an exponential."""

    is_masked: bool = False
    is_weighted: bool = False


def _factors(term: Term, exponential: Term, late: Collection[str]) -> _Factors | None:
    """The factors of the exponential; None if the term is no such product, or one is known late."""
    if term == exponential:
        return _Factors()
    if not isinstance(term, Op):
        return None
    first, *others = term.arguments
    if term.op in ("neg", "float", "detach"):
        return _factors(first, exponential, late)
    if term.op == "where" and _is_known(first, late):
        return _branches(others, exponential, late)
    if term.op == "mul" and _is_known(first, late):
        first, others = others[0], [first]
    if term.op not in ("mul", "div") or not _is_known(others[0], late):
        return None
    inside = _factors(first, exponential, late)
    if inside is None or (isinstance(others[0], Literal) and math.isfinite(others[0].value)):
        return inside
    return replace(inside, is_weighted=True)


def _branches(branches: list[Term], exponential: Term, late: Collection[str]) -> _Factors | None:
    kept = [branch for branch in branches if not _is_zero(branch)]
    inside = [_factors(branch, exponential, late) for branch in kept]
    found = [each for each in inside if each is not None]
    if not found or len(found) < len(inside):
        return None
    return _Factors(
        is_masked=len(kept) == 1 or any(each.is_masked for each in found),
        is_weighted=any(each.is_weighted for each in found),
    )


def _is_known(term: Term, late: Collection[str]) -> bool:
    return not any(name in late for name in names_in(term))


def _is_zero(term: Term) -> bool:
    if isinstance(term, Op) and term.op == "float":
        return _is_zero(term.arguments[0])
    return isinstance(term, Literal) and term.value == 0


# By guard and comparison of the maximum: whether it holds for what is replaced, and NaN is kept.
_TESTS: Mapping[tuple[Guard, str], tuple[bool, bool]] = {
    (Guard.BOTH, "equal"): (True, True),
    (Guard.BOTH, "greater_equal"): (True, True),
    (Guard.BOTH, "not_equal"): (False, True),
    (Guard.BOTH, "less"): (False, False),
    (Guard.MINUS_INF, "equal"): (True, True),
    (Guard.MINUS_INF, "less_equal"): (True, True),
    (Guard.MINUS_INF, "not_equal"): (False, True),
    (Guard.MINUS_INF, "greater"): (False, False),
}
_TURNED = {
    "less": "greater",
    "less_equal": "greater_equal",
    "greater": "less",
    "greater_equal": "less_equal",
}


def _guarded(program: Program, center: Ref) -> tuple[Define, Guard, bool] | None:
    """The maximum behind a row value, its guard, and whether NaN stays NaN."""
    term = _undetached(inline(program, center, lambda definition: is_reduction(definition.term)))
    guard, keeps_nan = Guard.NONE, True
    if isinstance(term, Op) and term.op == "where":
        condition, yes, no = term.arguments
        zero, term = (yes, no) if _is_zero(yes) else (no, yes)
        tested = _tested(condition, term)
        if tested is None or tested not in _TESTS or not _is_zero(zero):
            return None
        is_replaced, keeps_nan = _TESTS[tested]
        if is_replaced is not (zero is yes):
            return None
        guard = tested[0]
    maximum = program.definition(term.name) if isinstance(term, Ref) else None
    if maximum is None or not isinstance(maximum.term, Op) or maximum.term.op != "max":
        return None
    return maximum, guard, keeps_nan


def _tested(condition: Term, maximum: Term) -> tuple[Guard, str] | None:
    """What a comparison of a maximum with an infinity guards from, and which it is."""
    if not (isinstance(condition, Op) and len(condition.arguments) == 2):
        return None
    left, right = condition.arguments
    op = condition.op
    if isinstance(left, Literal):
        left, right, op = right, left, _TURNED.get(op, op)
    if not isinstance(right, Literal):
        return None
    if left == maximum and right.value == -math.inf:
        return Guard.MINUS_INF, op
    is_size = isinstance(left, Op) and left.op == "abs" and left.arguments[0] == maximum
    return (Guard.BOTH, op) if is_size and right.value == math.inf else None


def _undetached(term: Term) -> Term:
    if not isinstance(term, Op):
        return term
    if term.op == "detach":
        return _undetached(term.arguments[0])
    return Op(term.op, tuple(map(_undetached, term.arguments)), term.type, term.at, term.like)


def _squared(term: Term) -> Term | None:
    if not isinstance(term, Op):
        return None
    base = term.arguments[0]
    power = term.arguments[1] if len(term.arguments) == 2 else None
    if term.op == "pow" and isinstance(power, Literal) and power.value == 2:
        return base
    return base if term.op == "mul" and power == base else None


def _operand(reduction: Define) -> Term:
    assert isinstance(reduction.term, Op)
    return reduction.term.arguments[0]


def _is_row_value(definition: Define) -> bool:
    return definition.type.kind is Kind.PER_ROW
