"""Sums of products: the form in which gradients add up, cancel and share factors.

A product is a coefficient and factors with whole exponents; a factor is a term that is taken as it
stands, such as a name, a function's value or a parenthesis. Forward's own sums stay parentheses,
``(x - mu)``: multiplied out they would round differently. Only sums of gradients are kept apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from kgen.errors import KgenError, Problem
from kgen.formulas import text
from kgen.ir import (
    BUILTINS,
    COMPARISONS,
    LOGIC,
    Literal,
    Op,
    Program,
    Ref,
    Term,
    Type,
    join_kinds,
    walk,
)
from kgen.spec import Element, Kind

Factors = tuple[tuple[Term, int], ...]

_LARGEST_POWER = 8


@dataclass(frozen=True, slots=True)
class Poly:
    """A sum of products: what stands for each set of factors is its coefficient."""

    products: tuple[tuple[Factors, Fraction], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.products)

    def __len__(self) -> int:
        return len(self.products)

    def __add__(self, other: Poly) -> Poly:
        total = dict(self.products)
        for factors, coefficient in other.products:
            total[factors] = total.get(factors, Fraction(0)) + coefficient
        return poly_of(total)

    def __sub__(self, other: Poly) -> Poly:
        return self + other * number(-1)

    def __mul__(self, other: Poly) -> Poly:
        total: dict[Factors, Fraction] = {}
        for left, first in self.products:
            for right, second in other.products:
                factors = joined(left, right)
                total[factors] = total.get(factors, Fraction(0)) + first * second
        return poly_of(total)

    @property
    def kind(self) -> Kind:
        """How the value spreads."""
        return join_kinds([kind_of(factors) for factors, _ in self.products])


def poly_of(total: Mapping[Factors, Fraction]) -> Poly:
    """The sum in one order for all, without products whose coefficient is 0."""
    kept = ((factors, coefficient) for factors, coefficient in total.items() if coefficient)
    return Poly(tuple(sorted(kept, key=lambda product: _product_order(product[0]))))


def number(value: Fraction | float) -> Poly:
    """A number alone."""
    return Poly((((), Fraction(value)),)) if value else Poly()


def atom(term: Term, power: int = 1) -> Poly:
    """A term taken as it stands, to some power."""
    return Poly(((((term, power),), Fraction(1)),)) if power else number(1)


def joined(left: Factors, right: Factors, sign: int = 1) -> Factors:
    """The factors of a product (or of a quotient, with ``sign`` -1), in one order for all."""
    powers = dict(left)
    for term, power in right:
        powers[term] = powers.get(term, 0) + sign * power
    kept = ((term, power) for term, power in powers.items() if power)
    return tuple(sorted(kept, key=lambda pair: _order(pair[0])))


def kind_of(factors: Factors) -> Kind:
    """How a product spreads."""
    return join_kinds([term.type.kind for term, _ in factors])


def is_wide(term: Term) -> bool:
    """Whether a factor differs from column to column."""
    return term.type.kind in (Kind.MATRIX, Kind.PER_COLUMN)


def split(factors: Factors) -> tuple[Factors, Factors]:
    """The factors that differ from column to column, and those of a row or of all."""
    wide = tuple((term, power) for term, power in factors if is_wide(term))
    narrow = tuple((term, power) for term, power in factors if not is_wide(term))
    return wide, narrow


_TEXTS: dict[int, tuple[Term, str]] = {}
"""The texts of terms by identity, which costs less than a hash; each term is kept, so it stays."""


def _order(term: Term) -> str:
    known = _TEXTS.get(id(term))
    if known is None:
        known = _TEXTS[id(term)] = (term, text(term))
    return known[1]


def _product_order(factors: Factors) -> tuple[tuple[str, int], ...]:
    return tuple((_order(term), power) for term, power in factors)


def operation(op: str, *arguments: Term, like: str | None = None) -> Op:
    """An operation, with the kind that its arguments give it."""
    kinds = [argument.type.kind for argument in arguments]
    kind = Kind.PER_ROW if op in ("sum", "mean", "max", "min") else join_kinds(kinds)
    if op == "sum_rows":
        kind = Kind.PER_COLUMN
    return Op(op, arguments, Type(kind, _element(op, arguments)), arguments[0].at, like)


def _element(op: str, arguments: Sequence[Term]) -> Element:
    if op in _CONDITIONS:
        return Element.BOOL
    numbers = arguments[1:] if op == "where" else arguments
    whole = op in _KEEPS_WHOLE and all(a.type.element is Element.INT for a in numbers)
    return Element.INT if whole else Element.FLOAT


_KEEPS_WHOLE = frozenset(["add", "sub", "mul", "neg", "where", "maximum", "minimum", "abs"])
_CONDITIONS = frozenset([*COMPARISONS, *LOGIC])


def literal(value: Fraction | float, like: Term) -> Literal:
    """A number as a term, at the place of another; raises ``KgenError`` where it has no float."""
    result = as_float(value, like)
    if result.is_integer() and result == value and abs(result) < 2**53:
        return Literal(int(result), Type(Kind.SCALAR, Element.INT), like.at)
    return Literal(result, Type(Kind.SCALAR, Element.FLOAT), like.at)


def as_float(value: Fraction | float, like: Term) -> float:
    """The nearest float; raises ``KgenError`` if that is infinite or 0 and the value is not."""
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    is_lost = math.isinf(result) and isinstance(value, Fraction)
    if is_lost or (result == 0 and value != 0):
        message = "the constants of this formula multiply to a number that no float can hold"
        raise KgenError(Problem(message, like.at))
    return result


@dataclass(slots=True)
class Algebra:
    """Turns terms into sums of products, with what is known of the names of a program."""

    program: Program
    known: dict[Factors, Poly] = field(default_factory=dict)
    done: dict[Term, Poly] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Learn which products forward has summed: ``sum(e)`` is ``s``, where it has a name."""
        for definition in self.program.definitions:
            for term in walk(definition.term):
                if isinstance(term, Op) and term.op in ("sum", "mean"):
                    is_whole = term is definition.term
                    itself = Ref(definition.name, term.type, term.at) if is_whole else term
                    self._learn(term, itself)

    def _learn(self, term: Op, itself: Term) -> None:
        inside = self.poly(term.arguments[0])
        if len(inside) != 1:
            return
        ((factors, coefficient),) = inside.products
        wide, narrow = split(factors)
        if kind_of(wide) is not Kind.MATRIX or wide in self.known:
            return
        value = atom(itself) * _quotient(coefficient, narrow)
        self.done.clear()  # what was written out before may be known now
        self.known[wide] = value * atom(n_columns(term)) if term.op == "mean" else value

    def poly(self, term: Term) -> Poly:
        """The term as a sum of products."""
        if isinstance(term, Literal):
            return number(term.value) if math.isfinite(term.value) else atom(term)
        if isinstance(term, Ref):
            return atom(term)
        if term not in self.done:
            rule = _RULES.get(term.op)
            self.done[term] = rule(self, term) if rule else atom(term)
        return self.done[term]

    def product(self, term: Term) -> Poly:
        """The term as a single product: a sum is a parenthesis, a factor like any other."""
        found = self.poly(term)
        return found if len(found) < 2 else atom(term)

    def total(self, values: Poly, like: Term) -> Poly:
        """The sum over the row of every product; row values move out of it."""
        result = Poly()
        for factors, coefficient in values.products:
            result += self._total(factors, like) * number(coefficient)
        return result

    def _total(self, factors: Factors, like: Term) -> Poly:
        wide, narrow = split(factors)
        outside = Poly(((narrow, Fraction(1)),))
        if not wide:
            return outside * atom(n_columns(like))
        if wide in self.known:
            return outside * self.known[wide]
        if len(wide) == 1 and wide[0][1] == 1:
            expanded = self._expanded(wide[0][0], like)
            if expanded is not None:
                return outside * expanded
        if kind_of(wide) is not Kind.MATRIX:
            # A sum takes a matrix: a row value stays inside, or a condition makes one.
            row = next((f for f in narrow if f[0].type.kind is Kind.PER_ROW), None)
            if row is None:
                return outside * atom(operation("sum", as_matrix(term_of(wide, like), like)))
            outside = Poly(((joined(narrow, (row,), -1), Fraction(1)),))
            wide = joined(wide, (row,))
        return outside * atom(operation("sum", term_of(wide, like)))

    def _expanded(self, term: Term, like: Term) -> Poly | None:
        """The sum of a name or a parenthesis by its parts, if all of those are known."""
        if isinstance(term, Ref):
            definition = self.program.definition(term.name)
            if definition is None:
                return None
            term = definition.term
        inside = self.poly(term)
        if inside == atom(term):
            return None
        total = Poly()
        for factors, coefficient in inside.products:
            wide, narrow = split(factors)
            part = self.known.get(wide)
            if not wide:
                part = atom(n_columns(like))
            elif part is None and len(wide) == 1 and wide[0][1] == 1:
                part = self._expanded(wide[0][0], like)
            if part is None:
                return None
            total += part * Poly(((narrow, coefficient),))
        return total


def n_columns(like: Term) -> Ref:
    """``N``."""
    return Ref("N", BUILTINS["N"], like.at)


def as_matrix(term: Term, like: Term) -> Term:
    """The term as a matrix, where the language asks for one: the condition always holds."""
    inside = operation("less", Ref("column", BUILTINS["column"], like.at), n_columns(like))
    chosen = operation("where", inside, term, literal(0, like))
    if chosen.type.kind is Kind.MATRIX:
        return chosen
    row = operation("greater_equal", Ref("row", BUILTINS["row"], like.at), literal(0, like))
    return operation("where", row, chosen, literal(0, like))


def term_of(factors: Factors, like: Term) -> Term:
    """A product as a term, in the order of its factors."""
    above = [_power(term, power) for term, power in factors if power > 0]
    below = [_power(term, -power) for term, power in factors if power < 0]
    result: Term = above[0] if above else literal(1, like)
    for factor in above[1:]:
        result = operation("mul", result, factor)
    for factor in below:
        result = operation("div", result, factor)
    return result


def _power(term: Term, power: int) -> Term:
    return term if power == 1 else operation("pow", term, literal(power, term))


def _quotient(coefficient: Fraction, narrow: Factors) -> Poly:
    """One over a coefficient and row values."""
    return Poly(((joined((), narrow, -1), 1 / coefficient),))


def _add(algebra: Algebra, term: Op) -> Poly:
    left, right = term.arguments
    return algebra.poly(left) + algebra.poly(right)


def _sub(algebra: Algebra, term: Op) -> Poly:
    left, right = term.arguments
    return algebra.poly(left) - algebra.poly(right)


def _mul(algebra: Algebra, term: Op) -> Poly:
    left, right = map(algebra.poly, term.arguments)
    # A number goes into a sum; anything else leaves it a parenthesis.
    if _is_number(left) or _is_number(right):
        return left * right
    first, second = map(algebra.product, term.arguments)
    return first * second


def _is_number(values: Poly) -> bool:
    return len(values) == 1 and not values.products[0][0]


def _div(algebra: Algebra, term: Op) -> Poly:
    left, right = term.arguments
    below = algebra.product(right)
    if not below:
        return atom(term)
    ((factors, coefficient),) = below.products
    over = _quotient(coefficient, factors)
    return (algebra.poly(left) if not factors else algebra.product(left)) * over


def _pow(algebra: Algebra, term: Op) -> Poly:
    base, exponent = term.arguments
    value = exponent.value if isinstance(exponent, Literal) else None
    if value is None or value != int(value) or not 0 < abs(value) <= _LARGEST_POWER:
        return atom(term)
    power = int(value)
    found = algebra.product(base)
    if not found:
        return atom(term)
    ((factors, coefficient),) = found.products
    return Poly(((tuple((f, p * power) for f, p in factors), coefficient**power),))


def _mean(algebra: Algebra, term: Op) -> Poly:
    return algebra.total(algebra.poly(term.arguments[0]), term) * atom(n_columns(term), -1)


_RULES: dict[str, Callable[[Algebra, Op], Poly]] = {
    "add": _add,
    "sub": _sub,
    "neg": lambda algebra, term: algebra.poly(term.arguments[0]) * number(-1),
    "mul": _mul,
    "div": _div,
    "pow": _pow,
    "sum": lambda algebra, term: algebra.total(algebra.poly(term.arguments[0]), term),
    "mean": _mean,
    "float": lambda algebra, term: algebra.poly(term.arguments[0]),
}


def rewrite(values: Poly, change: Callable[[Factors], Poly | None]) -> Poly:
    """The sum with every product that ``change`` has a form for put in that form."""
    total: dict[Factors, Fraction] = {}
    for factors, coefficient in values.products:
        changed = change(factors)
        parts = ((factors, Fraction(1)),) if changed is None else changed.products
        for part, size in parts:
            total[part] = total.get(part, Fraction(0)) + size * coefficient
    return poly_of(total)


def inverse(values: Poly) -> Poly:
    """One over a single product."""
    ((factors, coefficient),) = values.products
    return Poly(((joined((), factors, -1), 1 / coefficient),))


def plain(values: Poly, like: Term) -> Term:
    """A sum of products as a term, in any order; it is written well later."""
    result: Term | None = None
    for factors, coefficient in values.products:
        product = term_of(factors, like)
        if coefficient != 1:
            factor, divisor = coefficient.numerator, coefficient.denominator
            if factor != 1:
                product = operation("mul", literal(factor, like), product)
            if divisor != 1:
                product = operation("div", product, literal(divisor, like))
        result = product if result is None else operation("add", result, product)
    return literal(0, like) if result is None else result
