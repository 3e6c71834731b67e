"""What the lanes of a tile hold that no row or column stands behind, and what that does to sums.

A tile is wider than the row and may be taller than the rows that are left. The lanes beyond must
hold a value that leaves each reduction as it is: 0 in a sum, -inf in a maximum. This module follows
the values of such lanes through a function's text, so that a fault in a mask or in the value of a
masked load is looked for only where it reaches a result.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kgen.mutate.reading import MASKS, Function, reduction_axis
from kgen.mutate.source import called, keyword, names_in


@dataclass(frozen=True, slots=True)
class Unknown:
    """Some finite number, or nothing known at all."""

    is_finite: bool


FINITE: Final = Unknown(True)
ANY: Final = Unknown(False)
Lane = float | bool | Unknown

_NEUTRAL = {"row_max": -math.inf, "row_min": math.inf, "merge_exp_sum": -math.inf}
_JOINS = {"nan_maximum": -math.inf, "nan_minimum": math.inf}
_FUNCTIONS: Mapping[str, Callable[[float], float]] = {
    "exp": math.exp,
    "tl.abs": abs,
    "tl.sqrt": math.sqrt,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
}
_OPERATORS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


@dataclass
class _Lanes:
    """One walk through a function, for the lanes past the last column or past the last row."""

    function: Function
    past_columns: bool
    values: Mapping[int, float]
    unguarded: frozenset[int]
    known: dict[str, Lane] = field(default_factory=dict)
    reached: list[bool] = field(default_factory=list)

    def walk(self) -> list[bool]:
        """Whether each reduction, in the order of the text, gets its neutral value."""
        for name in self.function.parameters:
            if self.function.holds.get(name) == "matrix":  # what a helper is called with
                self.known[name] = -math.inf if "exp" in self.function.name else 0.0
        self.known["in_columns"] = self.known["in_spans"] = not self.past_columns
        self.known["in_rows"] = self.past_columns
        for statement in self.function.statements:
            if isinstance(statement, ast.Assign):
                value = self.value(statement.value)
                for target in statement.targets:
                    self._assign(target, value)
            elif isinstance(statement, ast.AugAssign):
                self._accumulate(statement)
            elif isinstance(statement, ast.Return | ast.Expr) and statement.value is not None:
                self.value(statement.value)
        return self.reached

    def _assign(self, target: ast.expr, value: Lane) -> None:
        if isinstance(target, ast.Name) and target.id not in MASKS[1:]:
            self.known[target.id] = value
        elif isinstance(target, ast.Tuple):
            for part in target.elts:
                self._assign(part, FINITE)

    def _accumulate(self, statement: ast.AugAssign) -> None:
        value = self.value(statement.value)
        if isinstance(statement.target, ast.Name):
            if self.past_columns and self.function.holds.get(statement.target.id) == "matrix":
                self.reached.append(value == 0.0)  # added up lane by lane, reduced after the loop
            self.known[statement.target.id] = FINITE

    def value(self, node: ast.expr) -> Lane:
        """What is known of an expression in such a lane."""
        if id(node) in self.values:
            return self.values[id(node)]
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, float | int) else ANY
        if isinstance(node, ast.Name):
            return self.known.get(node.id, FINITE)
        if isinstance(node, ast.UnaryOp):
            value = self.value(node.operand)
            if isinstance(value, Unknown) or not isinstance(node.op, ast.USub):
                return value if isinstance(node.op, ast.USub) else ANY
            return -value
        if isinstance(node, ast.BinOp):
            return self._operation(node)
        if isinstance(node, ast.Compare):
            return self._comparison(node)
        if isinstance(node, ast.IfExp):
            first, second = self.value(node.body), self.value(node.orelse)
            return first if first == second else ANY
        return self._call(node) if isinstance(node, ast.Call) else ANY

    def _operation(self, node: ast.BinOp) -> Lane:
        first, second = self.value(node.left), self.value(node.right)
        if isinstance(node.op, ast.BitAnd):
            if False in (first, second) and bool in (type(first), type(second)):
                return False
            return second if first is True else ANY
        apply = _OPERATORS.get(type(node.op))
        if apply is None:
            return ANY
        if isinstance(first, Unknown) or isinstance(second, Unknown):
            return _partly_known(node.op, first, second)
        try:
            return apply(first, second)
        except (ZeroDivisionError, OverflowError):
            return ANY

    def _comparison(self, node: ast.Compare) -> Lane:
        # A column past the last equals no column that a row can point to.
        is_equality = len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq)
        return False if self.past_columns and is_equality and "column" in names_in(node) else ANY

    def _call(self, node: ast.Call) -> Lane:
        name = called(node)
        if name == "tl.load":
            return self._load(node)
        if name == "float" and isinstance(node.args[0], ast.Constant):
            return float(str(node.args[0].value))
        if name == "tl.where":
            return self._where(node)
        if name in ("tl.zeros", "tl.full"):
            return 0.0 if name == "tl.zeros" else self.value(node.args[1])
        if isinstance(node.func, ast.Attribute) and node.func.attr == "to":
            return self.value(node.func.value)
        if reduction_axis(node) is not None:
            return self._reduction(node, name)
        values = [self.value(argument) for argument in node.args]
        if name in _JOINS and len(values) == 2:
            return self._join(node, values, _JOINS[name])
        if name in ("tl.cast", "spread"):
            return values[0]
        only = values[0] if len(values) == 1 else ANY
        if name in _FUNCTIONS and not isinstance(only, Unknown):
            try:
                return _FUNCTIONS[name](only)
            except (ValueError, OverflowError):
                return ANY
        return FINITE if values and all(value is FINITE for value in values) else ANY

    def _load(self, node: ast.Call) -> Lane:
        mask, other = keyword(node, "mask"), keyword(node, "other")
        is_real = self.value(mask) if mask is not None else True
        if is_real is False:
            return self.value(other) if other is not None else ANY
        return FINITE if is_real is True else ANY

    def _where(self, node: ast.Call) -> Lane:
        condition, yes, no = node.args
        if id(node) in self.unguarded:
            return self.value(yes)
        holds = self.value(condition)
        chosen, other = self.value(yes), self.value(no)
        if isinstance(holds, bool):
            return chosen if holds else other
        if chosen == other:
            return chosen
        return FINITE if all(_is_finite(value) for value in (chosen, other)) else ANY

    def _reduction(self, node: ast.Call, name: str) -> Lane:
        values = [self.value(argument) for argument in node.args]
        operand = 2 if name.startswith("merge_") else 0
        along_rows = reduction_axis(node) == 1
        if along_rows == self.past_columns and name != "group_sum" and len(values) > operand:
            is_lanes = self.function.kind_of(node.args[operand]) == "matrix"
            is_accumulated = isinstance(node.args[operand], ast.Name) and (
                node.args[operand].id.endswith("_lanes")  # type: ignore[attr-defined]
            )
            if is_lanes and not is_accumulated:
                self.reached.append(values[operand] == _NEUTRAL.get(name, 0.0))
        if self.past_columns or name.startswith("merge_"):
            return FINITE
        if values and values[0] in (0.0, -math.inf, math.inf):
            return values[0]
        return ANY

    def _join(self, node: ast.Call, values: list[Lane], neutral: float) -> Lane:
        accumulated = isinstance(node.args[0], ast.Name) and node.args[0].id.endswith("_lanes")
        if accumulated:
            if self.past_columns:
                self.reached.append(values[1] == neutral)
            return FINITE
        first, second = values
        if isinstance(first, Unknown) or isinstance(second, Unknown):
            return FINITE if all(_is_finite(value) for value in values) else ANY
        return max(first, second) if neutral < 0 else min(first, second)


def _partly_known(op: ast.operator, first: Lane, second: Lane) -> Lane:
    known, other = (second, first) if isinstance(first, Unknown) else (first, second)
    if other is not FINITE or (isinstance(known, float | int) and math.isnan(known)):
        return ANY
    if isinstance(known, Unknown):
        return FINITE if known is FINITE else ANY
    if isinstance(op, ast.Mult | ast.Div) and known == 0:
        return 0.0 if isinstance(op, ast.Mult) or known is first else ANY
    if isinstance(op, ast.Add | ast.Sub) and math.isinf(known):
        return known if known is first or isinstance(op, ast.Add) else -known
    return ANY if math.isinf(known) else FINITE


def _is_finite(value: Lane) -> bool:
    return value.is_finite if isinstance(value, Unknown) else math.isfinite(value)


def spoils(
    function: Function,
    values: Mapping[int, float] | None = None,
    unguarded: frozenset[int] = frozenset(),
) -> bool:
    """Whether a reduction that is right would be wrong with other values in the padding lanes.

    Args:
        function: the function whose reductions are looked at.
        values: by the ``id`` of a node, the value that it has instead.
        unguarded: the ``id`` of each ``tl.where`` whose first branch is always taken.
    """
    for past_columns in (True, False):
        if not past_columns and function.has_single_rows:
            continue
        right = _Lanes(function, past_columns, {}, frozenset()).walk()
        wrong = _Lanes(function, past_columns, values or {}, unguarded).walk()
        if any(before and not after for before, after in zip(right, wrong, strict=True)):
            return True
    return False
