"""What of a program's formulas takes a GPU long for each element, as the kernels write them."""

from __future__ import annotations

from kgen.ir import SPECIAL, Literal, Op, Program, Ref, Term, walk
from kgen.spec import Kind

PRODUCTS = (1, 2, 3, 4)
"""Powers that are written as products."""


def functions(program: Program) -> int:
    """How many functions, divisions and the like each element takes; equal ones count once."""
    terms = {term for each in program.definitions for term in walk(each.term)}
    return sum(isinstance(term, Op) and _is_slow(program, term) for term in terms)


def adds_exp(program: Program, term: Term) -> bool:
    """Whether a term is a row's sum of exponentials, or 1 in its place."""
    term = _defined(program, term)
    if isinstance(term, Op) and term.op == "where":
        ones = [t for t in term.arguments[1:] if isinstance(t, Literal) and t.value == 1]
        return len(ones) == 1 and any(adds_exp(program, each) for each in term.arguments[1:])
    if not (isinstance(term, Op) and term.op == "sum"):
        return False
    operand = _defined(program, term.arguments[0])
    if isinstance(operand, Op) and operand.op == "where":
        return any(_is_exp(_defined(program, branch)) for branch in operand.arguments[1:])
    return _is_exp(operand)


def _is_slow(program: Program, term: Op) -> bool:
    # A value of the columns alone takes as long where a program has one row.
    if term.op not in SPECIAL or term.type.kind not in (Kind.MATRIX, Kind.PER_COLUMN):
        return False
    second = term.arguments[-1]
    if term.op == "pow":
        return not (isinstance(second, Literal) and second.value in PRODUCTS)
    return term.op != "div" or not adds_exp(program, second)


def _defined(program: Program, term: Term) -> Term:
    """What a name stands for."""
    definition = program.definition(term.name) if isinstance(term, Ref) else None
    return term if definition is None else _defined(program, definition.term)


def _is_exp(term: Term) -> bool:
    return isinstance(term, Op) and term.op == "exp"
