"""What an operation gives for plain numbers: for constants in formulas and for padding lanes."""

from __future__ import annotations

import math
from collections.abc import Callable


def evaluate(op: str, values: list[float]) -> float | None:
    """The number that ``op`` gives, NaN included; None for an operation without a rule."""
    rule = _RULES.get(op)
    if rule is None:
        return None
    try:
        return rule(*values)
    except OverflowError:
        return math.inf
    except (ArithmeticError, ValueError):
        return math.nan


def _exp(x: float) -> float:
    return 0.0 if x == -math.inf else math.exp(x)


def _power(base: float, exponent: float) -> float:
    result = base**exponent
    return math.nan if isinstance(result, complex) else result


def _sigmoid(x: float) -> float:
    return 1 / (1 + _exp(-x)) if x > -700 else 0.0


_RULES: dict[str, Callable[..., float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "neg": lambda a: -a,
    "pow": _power,
    "exp": _exp,
    "log": lambda a: math.log(a) if a != 0 else -math.inf,
    "log1p": lambda a: math.log1p(a) if a != -1 else -math.inf,
    "sqrt": math.sqrt,
    "rsqrt": lambda a: 1 / math.sqrt(a),
    "tanh": math.tanh,
    "erf": math.erf,
    "abs": abs,
    "sigmoid": _sigmoid,
    "silu": lambda a: a * _sigmoid(a),
    "floor": lambda a: math.floor(a) if math.isfinite(a) else a,
    "round": lambda a: round(a) if math.isfinite(a) else a,
    "sign": lambda a: a if math.isnan(a) else (a > 0) - (a < 0),
    "maximum": max,
    "minimum": min,
    "clamp": lambda value, low, high: min(max(value, low), high),
    "where": lambda condition, a, b: a if condition else b,
    "float": float,
    "detach": float,
}
