r"""Formulas -> LaTeX, in the vector style of papers: ``\mu = \frac{1}{N} \sum_j x``.

Rows are numbered i and columns j, so a sum over j goes along the row, and one over i over all
rows. Products are elementwise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from kgen.expr import Apply, Assignment, Expr, Name, Number

# How tightly the outermost operator of a text binds. An open one reaches to the right as far as a
# sum sign does, so that nothing but a term can follow it.
_CASES, _OR, _AND, _NOT, _COMPARED, _MODULO, _SUM, _OPEN, _PRODUCT, _FRACTION, _POWER, _ATOM = (
    range(12)
)

_GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau upsilon"
    " phi chi psi omega"
)
_SYMBOLS = {
    **{name: rf"\{name}" for name in _GREEK.split(" ")},
    "eps": r"\varepsilon",
    "lam": r"\lambda",
}
_BUILTINS = {"N": "N", "row": "i", "column": "j", "inf": r"\infty", "pi": r"\pi"}
_COMPARISONS = {
    "less": "<",
    "less_equal": r"\leq",
    "greater": ">",
    "greater_equal": r"\geq",
    "equal": "=",
    "not_equal": r"\neq",
}
_LOGIC = {"and": (r"\wedge", _AND), "or": (r"\vee", _OR)}
_OPERATORS = {
    "log": r"\log",
    "tanh": r"\tanh",
    "maximum": r"\max",
    "minimum": r"\min",
    **{
        name: rf"\mathrm{{{name}}}"
        for name in ("sigmoid", "silu", "erf", "sign", "round", "clamp", "detach", "random")
    },
}
_SUMS = {"sum": r"\sum_j", "mean": r"\frac{1}{N} \sum_j", "sum_rows": r"\sum_i"}
_EXTREMA = {"max": r"\max_j", "min": r"\min_j"}


@dataclass(frozen=True, slots=True)
class Block:
    """Formulas under a heading, such as ``forward``."""

    title: str
    formulas: Sequence[Assignment]


def document(blocks: Iterable[Block], gradients: Iterable[str]) -> str:
    """One ``align*`` for each block; ``gradients`` are the names that mean a gradient."""
    writer = Latex(frozenset(gradients))
    return "\n".join(f"% {block.title}\n{writer.align(block.formulas)}" for block in blocks)


@dataclass(frozen=True, slots=True)
class Latex:
    """Writes LaTeX; ``gradients`` are the names that mean a gradient, such as ``dx``."""

    gradients: frozenset[str] = field(default=frozenset())

    def align(self, formulas: Sequence[Assignment]) -> str:
        """The formulas in an ``align*`` block."""
        lines = [rf"  {self.name(f.name)} &= {self.text(f.value)}" for f in formulas]
        body = " \\\\\n".join(lines)
        return f"\\begin{{align*}}\n{body}\n\\end{{align*}}"

    def text(self, expr: Expr) -> str:
        """An expression, with the parentheses it needs."""
        return self._leveled(expr)[0]

    def name(self, name: str) -> str:
        r"""A name as a symbol: ``\mu``, ``\hat{x}``, ``\mathrm{d}y`` or ``\mathrm{rstd}``."""
        if name in _BUILTINS:
            return _BUILTINS[name]
        if name in self.gradients:
            prefix, of = (r"\mathrm{d}^2", name[2:]) if name[1:2] == "2" else (_D, name[1:])
            return f"{prefix} {self.name(of)}"
        if name in _SYMBOLS:
            return _SYMBOLS[name]
        if re.fullmatch(r"[a-z]", name) and name not in "ij":
            return name
        if match := re.fullmatch(r"([a-z])([0-9]+)", name):
            return f"{match[1]}_{{{match[2]}}}"
        if match := re.fullmatch(r"([a-z])hat", name):
            return rf"\hat{{{match[1]}}}"
        escaped = name.replace("_", r"\_")
        return rf"\mathrm{{{escaped}}}"

    def _within(self, expr: Expr, least: int) -> str:
        """The text, in parentheses if it binds less tightly than ``least``."""
        text, level = self._leveled(expr)
        return rf"\left({text}\right)" if level < least else text

    def _call(self, function: str, arguments: Iterable[Expr]) -> tuple[str, int]:
        return rf"{function}\left({', '.join(map(self.text, arguments))}\right)", _ATOM

    def _leveled(self, expr: Expr) -> tuple[str, int]:
        if isinstance(expr, Number):
            return _number(expr.value)
        if isinstance(expr, Name):
            text = self.name(expr.text)
            return text, _PRODUCT if text.startswith(r"\mathrm{d}") else _ATOM
        name, arguments = expr.function, expr.arguments
        if name in _COMPARISONS:
            left, right = (self._within(argument, _COMPARED + 1) for argument in arguments)
            return f"{left} {_COMPARISONS[name]} {right}", _COMPARED
        if name in _LOGIC:
            symbol, level = _LOGIC[name]
            left, right = (self._within(argument, level) for argument in arguments)
            return f"{left} {symbol} {right}", level
        if name in _OPERATORS:
            return self._call(_OPERATORS[name], arguments)
        if name in _SUMS:
            return f"{_SUMS[name]} {self._within(arguments[0], _OPEN)}", _OPEN
        if name in _EXTREMA:
            return self._extremum(_EXTREMA[name], arguments[0])
        special: Callable[[tuple[Expr, ...]], tuple[str, int]] = getattr(self, f"_{name}")
        return special(arguments)

    def _extremum(self, symbol: str, value: Expr) -> tuple[str, int]:
        text, level = self._leveled(value)
        return (f"{symbol} {text}", _OPEN) if level == _ATOM else self._call(symbol, [value])

    def _add(self, arguments: tuple[Expr, ...]) -> tuple[str, int]:
        return self._sum("+", *arguments)

    def _sub(self, arguments: tuple[Expr, ...]) -> tuple[str, int]:
        return self._sum("-", *arguments)

    def _sum(self, sign: str, left: Expr, right: Expr) -> tuple[str, int]:
        return f"{self._within(left, _SUM)} {sign} {self._within(right, _SUM + 1)}", _SUM

    def _neg(self, arguments: tuple[Expr, ...]) -> tuple[str, int]:
        return f"-{self._within(arguments[0], _SUM + 1)}", _SUM

    def _mul(self, arguments: tuple[Expr, ...]) -> tuple[str, int]:
        left, right = self._within(arguments[0], _PRODUCT), self._within(arguments[1], _OPEN)
        level = min(_PRODUCT, self._leveled(arguments[1])[1])
        sign = r"\cdot" if right[0].isdigit() else r"\,"
        return f"{left} {sign} {right}", _OPEN if level == _OPEN else _PRODUCT

    def _div(self, arguments: tuple[Expr, ...]) -> tuple[str, int]:
        above, below = map(self.text, arguments)
        return rf"\frac{{{above}}}{{{below}}}", _FRACTION

    def _floordiv(self, arguments: tuple[Expr, ...]) -> tuple[str, int]:
        return rf"\left\lfloor {self._div(arguments)[0]} \right\rfloor", _ATOM

    def _mod(self, arguments: tuple[Expr, ...]) -> tuple[str, int]:
        left, right = (self._within(argument, _PRODUCT) for argument in arguments)
        return rf"{left} \bmod {right}", _MODULO

    def _pow(self, arguments: tuple[Expr, ...]) -> tuple[str, int]:
        base, exponent = arguments
        if (value := _value(exponent)) in (0.5, -0.5):
            return self._sqrt((base,)) if value == 0.5 else self._rsqrt((base,))
        return f"{self._within(base, _ATOM)}^{{{self.text(exponent)}}}", _POWER

    def _exp(self, arguments: tuple[Expr, ...]) -> tuple[str, int]:
        return rf"\mathrm{{e}}^{{{self.text(arguments[0])}}}", _POWER

    def _sqrt(self, arguments: tuple[Expr, ...]) -> tuple[str, int]:
        return rf"\sqrt{{{self.text(arguments[0])}}}", _ATOM

    def _rsqrt(self, arguments: tuple[Expr, ...]) -> tuple[str, int]:
        return rf"\frac{{1}}{{{self._sqrt(arguments)[0]}}}", _FRACTION

    def _log1p(self, arguments: tuple[Expr, ...]) -> tuple[str, int]:
        return rf"\log\left(1 + {self._within(arguments[0], _SUM + 1)}\right)", _ATOM

    def _abs(self, arguments: tuple[Expr, ...]) -> tuple[str, int]:
        return rf"\left|{self.text(arguments[0])}\right|", _ATOM

    def _floor(self, arguments: tuple[Expr, ...]) -> tuple[str, int]:
        return rf"\left\lfloor {self.text(arguments[0])} \right\rfloor", _ATOM

    def _not(self, arguments: tuple[Expr, ...]) -> tuple[str, int]:
        return rf"\neg {self._within(arguments[0], _ATOM)}", _NOT

    def _cast(self, arguments: tuple[Expr, ...]) -> tuple[str, int]:
        value, like = arguments
        return self._call(rf"\mathrm{{cast}}_{{{self.text(like)}}}", [value])

    def _where(self, arguments: tuple[Expr, ...]) -> tuple[str, int]:
        condition, yes, no = map(self.text, arguments)
        chosen = rf"{yes} & \text{{if }} {condition} \\ {no} & \text{{otherwise}}"
        return rf"\begin{{cases}} {chosen} \end{{cases}}", _CASES


_D = r"\mathrm{d}"


def _number(value: float | int) -> tuple[str, int]:
    """A number; powers of ten are written as such."""
    if math.copysign(1, value) < 0:
        return f"-{_number(-value)[0]}", _SUM
    if math.isinf(value):
        return r"\infty", _ATOM
    digits, _, exponent = repr(value).removesuffix(".0").partition("e")
    if not exponent:
        return digits, _ATOM
    power = f"10^{{{int(exponent)}}}"
    return (power, _POWER) if digits == "1" else (rf"{digits} \cdot {power}", _PRODUCT)


def _value(expr: Expr) -> float | None:
    """The number that an expression is, if it is one."""
    if isinstance(expr, Number):
        return float(expr.value)
    if isinstance(expr, Apply) and expr.function == "neg":
        value = _value(expr.arguments[0])
        return None if value is None else -value
    return None
