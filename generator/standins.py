"""Values of forward that can stand in for a factor of a gradient: ``e / s`` is softmax's ``y``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from kgen.algebra import (
    Algebra,
    Factors,
    Poly,
    atom,
    joined,
    kind_of,
    operation,
    rewrite,
    split,
    term_of,
)
from kgen.ir import Op, Program, Ref, Term, walk
from kgen.rewrite import describe
from kgen.spec import Kind


@dataclass(frozen=True, slots=True)
class StandIn:
    """``base`` equals ``value`` times other factors: those are ``replacement``.

    ``made`` is the term to define ``name`` by, where forward has no name for it.
    """

    name: str
    base: Factors
    replacement: Poly
    made: Term | None = None


def stand_ins(program: Program, algebra: Algebra) -> tuple[StandIn, ...]:
    """All candidates, those that forward names first."""
    found = [*_named(program, algebra), *_logarithms(program, algebra), *_made(program, algebra)]
    unique: dict[tuple[Factors, Poly], StandIn] = {}
    for candidate in found:
        unique.setdefault((candidate.base, candidate.replacement), candidate)
    return tuple(unique.values())


def _named(program: Program, algebra: Algebra) -> Iterator[StandIn]:
    """``y = e / s`` lets ``y * s`` stand for ``e``."""
    for definition in program.definitions:
        if definition.type.kind is Kind.MATRIX:
            itself = Ref(definition.name, definition.type, definition.at)
            yield from _of_product(algebra, definition.term, definition.name, itself, None)


def _made(program: Program, algebra: Algebra) -> Iterator[StandIn]:
    """A product inside a formula, such as ``x * rstd``, as a definition of its own."""
    for definition in program.definitions:
        for term in walk(definition.term):
            is_product = isinstance(term, Op) and term.op in ("mul", "div")
            if not is_product or term.type.kind is not Kind.MATRIX:
                continue
            values = algebra.product(term)
            if len(values) != 1:
                continue
            ((factors, _),) = values.products
            wide, narrow = split(factors)
            matrices = tuple(f for f in wide if f[0].type.kind is Kind.MATRIX)
            rows = tuple(f for f in narrow if f[0].type.kind is Kind.PER_ROW)
            if not rows or len(matrices) != 1 or matrices[0][1] != 1:
                continue
            if any(power > 0 for _, power in rows):
                made: Term = operation("mul", matrices[0][0], term_of(rows, term))
                name = _hat(matrices[0][0])
            else:
                made = term_of((*matrices, *rows), term)
                name = describe(made) or _hat(matrices[0][0])
            itself = Ref(name, made.type, term.at)
            yield from _of_product(algebra, made, name, itself, made)


def _hat(term: Term) -> str:
    """``xhat`` for ``x`` and for ``(x - mu)``, as in papers."""
    names = [t.name for t in walk(term) if isinstance(t, Ref) and t.type.kind is Kind.MATRIX]
    return f"{names[0]}hat" if names else "hat"


def _of_product(
    algebra: Algebra, term: Term, name: str, itself: Ref, made: Term | None
) -> Iterator[StandIn]:
    values = algebra.product(term)
    if len(values) != 1:
        return
    ((factors, coefficient),) = values.products
    wide, narrow = split(factors)
    if kind_of(wide) is not Kind.MATRIX or any(power < 0 for _, power in wide):
        return
    if any(factor.type.kind is Kind.PER_COLUMN for factor, _ in wide):
        return  # a weight may be 0
    if wide == ((itself, 1),) or (not narrow and len(wide) == 1 and wide[0][1] == 1):
        return
    rest = Poly(((joined((), narrow, -1), 1 / coefficient),))
    yield StandIn(name, wide, atom(itself) * rest, made)


def _logarithms(program: Program, algebra: Algebra) -> Iterator[StandIn]:
    """``exp(z - m)`` over ``s`` is ``exp(y)``, where ``y = z - m - log(s)``."""
    exponentials = {
        term: definition
        for definition in program.definitions
        for term in walk(definition.term)
        if isinstance(term, Op) and term.op == "exp" and term.type.kind is Kind.MATRIX
    }
    for term, definition in exponentials.items():
        base = Ref(definition.name, definition.type, term.at) if definition.term == term else term
        exponent = _inlined(program, algebra, term.arguments[0])
        for other in program.definitions:
            rest = _logarithm(algebra, _inlined(program, algebra, other.term) - exponent)
            if rest is None or not rest:
                continue
            if other.type.kind is Kind.MATRIX:
                itself = Ref(other.name, other.type, term.at)
                value = atom(operation("exp", itself))
                yield StandIn(other.name, ((base, 1),), value * _powers(rest, -1))
        yield from _less_logarithm(program, algebra, term, base)


def _less_logarithm(program: Program, algebra: Algebra, term: Op, base: Term) -> Iterator[StandIn]:
    """``exp(x - m)`` over ``s`` is ``exp(x - lse)``, where ``lse = m + log(s)``."""
    difference = term.arguments[0]
    if not (isinstance(difference, Op) and difference.op == "sub"):
        return
    values, center = difference.arguments
    if center.type.kind is not Kind.PER_ROW:
        return
    for other in program.definitions:
        if other.type.kind is not Kind.PER_ROW:
            continue
        shift = _inlined(program, algebra, other.term) - _inlined(program, algebra, center)
        rest = _logarithm(algebra, shift)
        if rest:
            itself = Ref(other.name, other.type, term.at)
            value = operation("exp", operation("sub", values, itself))
            yield StandIn(other.name, ((base, 1),), atom(value) * _powers(rest, 1))


def _inlined(program: Program, algebra: Algebra, term: Term) -> Poly:
    """The term with the names of sums and differences replaced by what they stand for."""

    def change(factors: Factors) -> Poly | None:
        if len(factors) != 1 or factors[0][1] != 1 or not isinstance(factors[0][0], Ref):
            return None
        definition = program.definition(factors[0][0].name)
        if definition is None or not isinstance(definition.term, Op):
            return None
        if definition.term.op not in ("add", "sub", "neg", "log"):
            return None
        return _inlined(program, algebra, definition.term)

    return rewrite(algebra.poly(term), change)


def _logarithm(algebra: Algebra, values: Poly) -> Poly | None:
    """What a sum of logarithms alone is the logarithm of."""
    result = Poly((((), Fraction(1)),))
    for factors, coefficient in values.products:
        if len(factors) != 1 or coefficient.denominator != 1 or factors[0][1] != 1:
            return None
        term = factors[0][0]
        if not (isinstance(term, Op) and term.op == "log"):
            return None
        inside = algebra.product(term.arguments[0])
        if len(inside) != 1:
            return None
        result *= _powers(inside, int(coefficient))
    return result if values else None


def _powers(values: Poly, power: int) -> Poly:
    """A single product to some power."""
    ((factors, coefficient),) = values.products
    raised = tuple((term, power * times) for term, times in factors)
    return Poly(((raised, coefficient**power),))
