"""Sums of products -> terms, in the order in which people write them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from kgen.algebra import Algebra, Factors, Poly, as_float, joined, literal, operation, split
from kgen.factoring import is_parenthesis, is_total
from kgen.ir import Literal, Op, Ref, Term


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes sums. ``first`` are the names that come first in a product: what arrives."""

    algebra: Algebra
    own: frozenset[Term]
    arriving: tuple[str, ...]
    first: tuple[str, ...]

    def written(self, values: Poly, like: Term) -> Term:
        """A sum of products in the order in which people write it."""
        parts = sorted(values.products, key=self._sum_rank)
        result: Term | None = None
        for factors, coefficient in parts:
            product = self._product(factors, abs(coefficient), like)
            if result is None:
                result = product if coefficient > 0 else _negated(product)
            else:
                result = operation("add" if coefficient > 0 else "sub", result, product)
        return literal(0, like) if result is None else result

    def _sum_rank(self, part: tuple[Factors, Fraction]) -> tuple[bool, int, int]:
        factors, coefficient = part
        reduced = sum(is_total(term) for term, _ in factors)
        return (coefficient < 0, reduced, len(factors))

    def _product(self, factors: Factors, coefficient: Fraction, like: Term) -> Term:
        """Factors of the column, times one value of the row."""
        factors, means = _means(factors)
        wide, narrow = split(factors)
        above = [self._power(t, p) for t, p in sorted(wide, key=self._pair_rank) if p > 0]
        below = [self._power(t, -p) for t, p in wide if p < 0]
        rows = [self._power(t, p) for t, p in sorted(narrow, key=self._pair_rank) if p > 0]
        rows += [operation("mean", self._operand(term)) for term in means]
        under = [self._power(t, -p) for t, p in narrow if p < 0]
        factor, divisor = _as_numbers(coefficient, like)
        if divisor != 1:
            under.append(literal(divisor, like))
        if factor != 1 or not (rows or above):
            rows.insert(0, literal(factor, like))
        columns = _chain("mul", above) if above else None
        row = _chain("mul", rows) if rows else None
        if columns is None:
            result = row
        elif row is None:
            result = columns
        elif self._comes_first(row) or (is_parenthesis(columns) and columns not in self.own):
            result = operation("mul", row, columns)
        else:
            for divided in under:
                row = operation("div", row, divided)
            result, under = operation("mul", columns, row), []
        assert result is not None
        for divided in (*below, *under):
            result = operation("div", result, divided)
        return result

    def _comes_first(self, row: Term) -> bool:
        """Numbers and gradients do: ``2 * x``, ``dlse * p``."""
        is_arriving = isinstance(row, Ref) and row.name in self.arriving
        return isinstance(row, Literal) or is_arriving

    def _pair_rank(self, pair: tuple[Term, int]) -> tuple[int, int]:
        return self.rank(pair[0])

    def rank(self, term: Term) -> tuple[int, int]:
        """What comes first in a product: what arrives, then names, functions, sums."""
        if isinstance(term, Ref):
            return (0, self.first.index(term.name)) if term.name in self.first else (1, 0)
        return (4 if is_total(term) else 3 if is_parenthesis(term) else 2, 0)

    def _power(self, term: Term, power: int) -> Term:
        written = self._atom(term)
        return written if power == 1 else operation("pow", written, literal(power, term))

    def _atom(self, term: Term) -> Term:
        if not isinstance(term, Op) or term in self.own:
            return term
        if term.op == "sum":
            return operation("sum", self._operand(term))
        if term.op == "where":
            condition, *branches = term.arguments
            written = [self.written(self.algebra.poly(b), b) for b in branches]
            return operation("where", condition, *written)
        if term.op in ("add", "sub"):
            return self.written(self.algebra.poly(term), term)
        return term

    def _operand(self, term: Term) -> Term:
        assert isinstance(term, Op)
        return self.written(self.algebra.poly(term.arguments[0]), term)


def _chain(op: str, terms: Sequence[Term]) -> Term:
    result = terms[0]
    for term in terms[1:]:
        result = operation(op, result, term)
    return result


def _negated(term: Term) -> Term:
    return operation("neg", term)


def _as_numbers(coefficient: Fraction, like: Term) -> tuple[Fraction | float, int]:
    """A factor and a whole divisor: decimals for powers of two, ``/ 3`` for thirds."""
    divisor = coefficient.denominator
    if divisor & (divisor - 1) == 0 or divisor > 1000:
        return as_float(coefficient, like) if divisor != 1 else coefficient, 1
    return Fraction(coefficient.numerator), divisor


def _means(factors: Factors) -> tuple[Factors, list[Term]]:
    """Sums over the row beside ``/ N``, as means."""
    powers = dict(factors)
    columns = next((t for t in powers if isinstance(t, Ref) and t.name == "N"), None)
    means: list[Term] = []
    for term, power in factors:
        if columns is None or powers[columns] >= 0:
            break
        if power == 1 and isinstance(term, Op) and term.op == "sum":
            means.append(term)
            powers[columns] += 1
            del powers[term]
    return joined((), tuple(powers.items())), means
