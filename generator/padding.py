"""What padding lanes hold: which neutral value a masked load takes, and which sums need a mask."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal as OneOf

from kgen.constants import evaluate
from kgen.ir import REDUCTIONS, Literal, Op, Program, Ref, Role, Term, Variable, walk
from kgen.spec import Kind

# What is known of a value in a padding lane: the number itself, that it is finite, or nothing.
Lane = float | OneOf["finite", "any"]

_BOUNDED = frozenset({"neg", "abs", "tanh", "sigmoid", "float", "detach", "erf", "silu", "random"})
NEUTRAL = {"sum": 0.0, "mean": 0.0, "max": -math.inf, "min": math.inf, "sum_rows": 0.0}
_CANDIDATES = (0.0, -math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class Padding:
    """The value that padding lanes of each matrix are loaded with, and what is known of terms."""

    program: Program
    loads: Mapping[str, float]

    def is_neutral(self, op: str, operand: Term) -> bool:
        """Whether a reduction of ``operand`` is right without a mask around it."""
        if op == "sum_rows":
            lane = _evaluate(operand, _row_lanes(self.program, self.loads))
        else:
            lane = self._past_columns(operand)
            if op == "max" and lane == 0.0 and _is_never_negative(operand):
                return True
        return lane == NEUTRAL[op]

    def _past_columns(self, term: Term) -> Lane:
        return _evaluate(term, _column_lanes(self.program, self.loads), statistic="finite")


def choose_padding(program: Program) -> Padding:
    """The load values that leave the fewest reductions in need of a mask; 0 where it is all one."""
    matrices = [
        v for v in program.variables if v.type.kind is Kind.MATRIX and v.role is not Role.PARAM
    ]
    reductions = list(_reductions(program))
    free = [v for v in matrices if v.absent is None and v.type.element.value == "float"]
    fixed = {v.name: v.absent or 0.0 for v in matrices if v not in free}
    only_sums = all(op in ("sum", "mean", "sum_rows") for op, _ in reductions)
    candidates = _CANDIDATES[:1] if only_sums or len(free) > 4 else _CANDIDATES
    best, fewest = Padding(program, {**fixed, **{v.name: 0.0 for v in free}}), math.inf
    for values in itertools.product(candidates, repeat=len(free)):
        loads = {**fixed, **dict(zip((v.name for v in free), values, strict=True))}
        padding = Padding(program, loads)
        masks = sum(not padding.is_neutral(op, operand) for op, operand in reductions)
        if masks < fewest:
            best, fewest = padding, masks
    return best


def _reductions(program: Program) -> Iterator[tuple[str, Term]]:
    for definition in program.definitions:
        for term in walk(definition.term):
            if isinstance(term, Op) and (term.op in REDUCTIONS or term.op == "sum_rows"):
                yield term.op, term.arguments[0]


def _column_lanes(program: Program, loads: Mapping[str, float]) -> dict[str, Lane]:
    """Lanes past the last column of a real row.

    A statistic of the row counts as finite: one that is not has spoilt its row already.
    """
    lanes: dict[str, Lane] = {"N": "finite", "row": "finite", "column": "finite"}
    for variable in program.variables:
        lanes[variable.name] = _column_lane(variable, loads)
    for definition in program.definitions:
        if definition.type.kind is Kind.PER_ROW:
            lanes[definition.name] = "finite"
        else:
            lanes[definition.name] = _evaluate(definition.term, lanes, statistic="finite")
    return lanes


def _column_lane(variable: Variable, loads: Mapping[str, float]) -> Lane:
    if variable.name in loads:
        return loads[variable.name]
    if variable.type.kind is Kind.PER_COLUMN:
        return 0.0 if not variable.absent else "finite"
    if variable.type.kind is Kind.PER_ROW and variable.role in (Role.INPUT, Role.UPSTREAM):
        return "any"
    return "finite"


def _row_lanes(program: Program, loads: Mapping[str, float]) -> dict[str, Lane]:
    """Lanes past the last row, in real columns: statistics are what a row of padding gives."""
    lanes: dict[str, Lane] = {"N": "finite", "row": "finite", "column": "finite"}
    for variable in program.variables:
        if variable.name in loads:
            lanes[variable.name] = loads[variable.name]
        elif variable.type.kind is Kind.PER_ROW:
            lanes[variable.name] = 0.0 if not variable.absent else "finite"
        elif variable.role is Role.PARAM:
            lanes[variable.name] = "finite"
        else:
            lanes[variable.name] = "any"
    for definition in program.definitions:
        lanes[definition.name] = _evaluate(definition.term, lanes)
    return lanes


def _evaluate(term: Term, lanes: Mapping[str, Lane], statistic: Lane | None = None) -> Lane:
    """What a lane of ``term`` holds, ``statistic`` being what is known of a reduction there.

    Without one the reduction is that of a row of such lanes alone.
    """
    if isinstance(term, Literal):
        return float(term.value)
    if isinstance(term, Ref):
        return lanes.get(term.name, "any")
    if term.op in REDUCTIONS and statistic is not None:
        return statistic
    arguments = [_evaluate(argument, lanes, statistic) for argument in term.arguments]
    if term.op in REDUCTIONS or term.op == "sum_rows":
        is_kept = arguments[0] == 0.0 or term.op in ("max", "min")
        return arguments[0] if is_kept else "any"
    if "any" in arguments and term.op != "where":
        return "any"
    if term.op == "div" and _may_be_zero_alone(term.arguments[1], arguments[1]):
        return "any"
    if all(isinstance(argument, float) for argument in arguments):
        return _known(term.op, [a for a in arguments if isinstance(a, float)])
    return _partly_known(term.op, arguments)


def _is_never_negative(term: Term) -> bool:
    return isinstance(term, Op) and term.op in ("abs", "exp", "sigmoid")


def _may_be_zero_alone(divisor: Term, lane: Lane) -> bool:
    """Whether a divisor can be 0 in a padding lane without being 0 in the rest of its row."""
    return lane == "finite" and divisor.type.kind in (Kind.MATRIX, Kind.PER_COLUMN)


def _known(op: str, values: list[float]) -> Lane:
    result = evaluate(op, values)
    return "any" if result is None or math.isnan(result) else float(result)


def _partly_known(op: str, lanes: list[Lane]) -> Lane:
    """Rules where some operands are only known to be finite."""
    if op == "where":
        return lanes[1] if lanes[1] == lanes[2] and lanes[1] != "any" else "any"
    if op == "mul":
        return 0.0 if 0.0 in lanes else "finite" if all(_is_finite(x) for x in lanes) else "any"
    if op == "div":
        return 0.0 if lanes[0] == 0.0 else "finite" if all(map(_is_finite, lanes)) else "any"
    if op in ("add", "sub"):
        return _sum_lane(op, lanes)
    # Not exp, nor a power: what a real column keeps small may overflow for a padding lane's 0.
    return "finite" if op in _BOUNDED else "any"


def _sum_lane(op: str, lanes: list[Lane]) -> Lane:
    infinite = [x for x in lanes if isinstance(x, float) and math.isinf(x)]
    if not infinite:
        return "finite"
    return -infinite[0] if op == "sub" and lanes[1] == infinite[0] else infinite[0]


def _is_finite(lane: Lane) -> bool:
    return lane == "finite" or (isinstance(lane, float) and math.isfinite(lane))
