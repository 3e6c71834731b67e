"""Rewrites of sums of products: values put in for factors, and common factors taken out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

from kgen.algebra import (
    Algebra,
    Factors,
    Poly,
    atom,
    inverse,
    is_wide,
    joined,
    number,
    operation,
    plain,
    rewrite,
)
from kgen.ir import Literal, Op, Ref, Term, walk


@dataclass(slots=True)
class Factoring:
    """Rewrites for one program. What is in ``own``, forward's terms, stays as it is.

    While ``merges`` is true, sums over a row are single ones; before, they are taken apart.
    """

    algebra: Algebra
    own: frozenset[Term]
    like: Term
    merges: bool = False
    parts: dict[Term, frozenset[Term]] = field(default_factory=dict)

    def replaced(self, values: Poly, base: Factors, replacement: Poly) -> Poly:
        """The sum with ``base`` replaced in every product, also inside sums and choices."""

        terms = [term for term, _ in base]

        def change(factors: Factors) -> Poly | None:
            if not any(self._has(term, wanted) for term, _ in factors for wanted in terms):
                return None
            result = self._rebuilt(factors, lambda p: self.replaced(p, base, replacement))
            return rewrite(result, lambda fs: self._with_base(fs, base, replacement))

        return rewrite(values, change)

    def _has(self, term: Term, wanted: Term) -> bool:
        """Whether a factor is or contains another."""
        if term not in self.parts:
            self.parts[term] = frozenset(walk(term))
        return wanted in self.parts[term]

    def _rebuilt(self, factors: Factors, change: Callable[[Poly], Poly]) -> Poly:
        """A product with each of its factors changed inside."""
        result = number(1)
        for term, power in factors:
            inside = self.inside(term, change)
            if inside is None:
                result *= atom(term, power)
                continue
            for _ in range(abs(power)):
                result *= inside if power > 0 else inverse(inside)
        return result

    def _with_base(self, factors: Factors, base: Factors, replacement: Poly) -> Poly | None:
        powers = dict(factors)
        if len(base) == 1:
            times = powers.get(base[0][0], 0) // base[0][1]
        else:
            times = min(powers.get(term, 0) // power for term, power in base)
        if times == 0 or (times < 0 and len(base) > 1):
            return None
        result = Poly(((factors, Fraction(1)),))
        for _ in range(abs(times)):
            result *= replacement if times > 0 else inverse(replacement)
        taken = tuple((term, power * times) for term, power in base)
        return result * Poly(((joined((), taken, -1), Fraction(1)),))

    def inside(self, term: Term, change: Callable[[Poly], Poly]) -> Poly | None:
        """A factor that is a sum over the row, a parenthesis or a choice, changed inside."""
        if not isinstance(term, Op) or term in self.own:
            return None
        if term.op == "sum":
            inside = change(self.algebra.poly(term.arguments[0]))
            if self.merges:
                return atom(operation("sum", plain(inside, term)))
            return self.algebra.total(inside, term)
        if term.op == "where":
            condition, *branches = term.arguments
            changed = [plain(change(self.algebra.poly(b)), term) for b in branches]
            return atom(operation("where", condition, *changed))
        if term.op in ("add", "sub"):
            return atom(plain(change(self.algebra.poly(term)), term))
        return None

    def chosen_once(self, values: Poly) -> Poly:
        """``where(c, a, 0) + where(c, 0, b)`` as ``where(c, a, b)``."""
        groups: dict[Term, list[tuple[Factors, Fraction, Op]]] = {}
        for factors, coefficient in values.products:
            for term, power in factors:
                if power == 1 and isinstance(term, Op) and term.op == "where" and has_zero(term):
                    groups.setdefault(term.arguments[0], []).append((factors, coefficient, term))
                    break
        for condition, parts in groups.items():
            if len(parts) < 2:
                continue
            branches = [Poly(), Poly()]
            for factors, coefficient, term in parts:
                values -= Poly(((factors, coefficient),))
                rest = Poly(((joined(factors, ((term, 1),), -1), coefficient),))
                for side in (0, 1):
                    branches[side] += rest * self.algebra.product(term.arguments[1 + side])
            written = [plain(branch, condition) for branch in branches]
            values += atom(operation("where", condition, *written))
        return values

    def summed_once(self, values: Poly, once: frozenset[Term]) -> Poly:
        """``r * sum(a) + r * sum(b)`` as ``r * sum(a + b)``: one reduction for two."""
        groups: dict[Factors, list[tuple[Factors, Fraction, Term]]] = {}
        for factors, coefficient in values.products:
            term = next((t for t, power in factors if t in once and power == 1), None)
            if term is not None:
                rest = joined(factors, ((term, 1),), -1)
                groups.setdefault(rest, []).append((factors, coefficient, term))
        for rest, parts in groups.items():
            if len(parts) < 2:
                continue
            inside = Poly()
            for factors, coefficient, term in parts:
                assert isinstance(term, Op)
                values -= Poly(((factors, coefficient),))
                inside += self.algebra.poly(term.arguments[0]) * number(coefficient)
            total = operation("sum", plain(inside, parts[0][2]))
            values += atom(total) * Poly(((rest, Fraction(1)),))
        return values

    def factored(self, values: Poly) -> Poly:
        """The sum with what its products have in common taken out."""
        values = rewrite(values, lambda factors: self._rebuilt(factors, self.factored))
        if len(values) < 2:
            return values
        common, coefficient = _common(values)
        if common or coefficient != 1:
            outside = Poly(((common, coefficient),))
            rest = self.factored(values * inverse(outside))
            return outside * self._parenthesis(rest)
        return self._partly_factored(values)

    def _partly_factored(self, values: Poly) -> Poly:
        counts = Counter(
            term for factors, _ in values.products for term, power in factors if power > 0
        )
        several = [term for term, count in counts.items() if count > 1]
        if not several:
            return values
        several.sort(key=lambda term: (not is_wide(term), -counts[term]))
        factor = several[0]
        inside, outside = Poly(), Poly()
        for factors, coefficient in values.products:
            product = Poly(((factors, coefficient),))
            if dict(factors).get(factor, 0) > 0:
                inside += product * atom(factor, -1)
            else:
                outside += product
        taken = atom(factor) * self._parenthesis(self.factored(inside))
        return taken + (self._partly_factored(outside) if len(outside) > 1 else outside)

    def _parenthesis(self, values: Poly) -> Poly:
        return values if len(values) < 2 else atom(plain(values, self.like))


def renamed(values: Poly, old: str, new: str) -> Poly:
    """The sum with a name replaced."""

    def change(factors: Factors) -> Poly:
        result = number(1)
        for term, power in factors:
            if isinstance(term, Ref) and term.name == old:
                term = Ref(new, term.type, term.at)
            result *= atom(term, power)
        return result

    return rewrite(values, change)


def divisors(values: Poly) -> set[Term]:
    """The factors that are divided by, also inside sums, parentheses and choices."""
    found: set[Term] = set()
    for factors, _ in values.products:
        for term, power in factors:
            found |= {term} if power < 0 else set()
            inside = [t for t in walk(term) if isinstance(t, Op)]
            found |= {t.arguments[1] for t in inside if t.op == "div"}
    return found


def _common(values: Poly) -> tuple[Factors, Fraction]:
    """What all products share: factors at their smallest power, and a coefficient."""
    (first, size), *others = values.products
    common = dict(first)
    for factors, _ in others:
        powers = dict(factors)
        for term, power in list(common.items()):
            other = powers.get(term, 0)
            if power * other <= 0:
                del common[term]
            else:
                common[term] = min(power, other) if power > 0 else max(power, other)
    same = all(abs(coefficient) == abs(size) for _, coefficient in others)
    is_negative = all(c < 0 for _, c in values.products)
    coefficient = abs(size) if same else Fraction(1)
    return joined((), tuple(common.items())), -coefficient if is_negative else coefficient


def has_zero(term: Op) -> bool:
    """Whether a choice gives 0 on one side."""
    return any(isinstance(b, Literal) and b.value == 0 for b in term.arguments[1:])


def is_total(term: Term) -> bool:
    """Whether a term is a sum over the row."""
    return isinstance(term, Op) and term.op in ("sum", "mean")


def is_parenthesis(term: Term) -> bool:
    """Whether a term is a sum of terms."""
    return isinstance(term, Op) and term.op in ("add", "sub")
