"""Expressions and terms -> formula text, as a spec would write it."""

from __future__ import annotations

import math

from kgen.expr import FUNCTIONS, OPERATORS, REDUCTIONS, Apply, Expr, Name, Number
from kgen.ir import FLOAT_FUNCTIONS, Literal, Op, Ref, Term, walk
from kgen.spec import Element

_LEVELS = {
    "or": 1,
    "and": 2,
    "not": 3,
    "less": 4,
    "less_equal": 4,
    "greater": 4,
    "greater_equal": 4,
    "equal": 4,
    "not_equal": 4,
    "add": 5,
    "sub": 5,
    "mul": 6,
    "div": 6,
    "floordiv": 6,
    "mod": 6,
    "neg": 7,
    "pow": 8,
}
_LOOSEST, _COMPARED, _UNARY, _POWER, _ATOM = 0, 4, 7, 8, 9
_PREFIXES = {"neg": "-", "not": "not "}

# These take floats whatever they are given, so a whole number among their arguments is one.
_TAKES_FLOATS = REDUCTIONS.union(FLOAT_FUNCTIONS, ["cast"])
# These give an int for ints.
_KEEPS_INTS = frozenset(
    {
        "add",
        "sub",
        "mul",
        "floordiv",
        "mod",
        "neg",
        "abs",
        "floor",
        "round",
        "maximum",
        "minimum",
        "clamp",
        "where",
        "detach",
    }
)


def expr_text(expr: Expr) -> str:
    """The expression in the syntax of formulas, with no parenthesis that could go.

    Parsing the text gives the expression back; only a negative number comes back as a ``neg``.
    """
    return _leveled(expr)[0]


def lines(name: str, value: Expr, width: int) -> list[str]:
    """``name = value``; where that is longer than ``width``, a line for each term of a sum."""
    whole = f"{name} = {expr_text(value)}"
    terms = _terms(value)
    if len(whole) <= width or len(terms) == 1:
        return [whole]
    return [f"{name} = (", *(f"  {term}" for term in terms), ")"]


def _terms(value: Expr) -> list[str]:
    """The terms of a sum, each but the first with its sign."""
    if not (isinstance(value, Apply) and value.function in ("add", "sub")):
        return [expr_text(value)]
    left, right = value.arguments
    return [*_terms(left), f"{OPERATORS[value.function]} {_within(right, _LEVELS['add'] + 1)}"]


def text(term: Term) -> str:
    """The term as a formula: ``expr_text(expr_of(term))``."""
    return expr_text(expr_of(term))


def expr_of(term: Term) -> Expr:
    """The expression that lowers to the term.

    Conversions to float are left out, since lowering puts them back, and a whole number among
    floats loses its ``.0``: a term of lowering comes back as it was but for such numbers.
    """
    if isinstance(term, Literal):
        return _number(term.value, term)
    if isinstance(term, Ref):
        return Name(term.name, term.at)
    if term.op == "float":
        return expr_of(term.arguments[0])
    shown = 1 if term.op == "random" else len(term.arguments)  # not the place of each number
    arguments = [_argument(term, index) for index in range(shown)]
    if term.op == "cast" and term.like is not None:
        arguments.append(Name(term.like, term.at))
    if _would_be_int(term):
        first = 1 if term.op == "where" else 0
        arguments[first] = Apply("mul", (Number(1.0, term.at), arguments[first]), term.at)
    return Apply(term.op, tuple(arguments), term.at)


def _leveled(expr: Expr) -> tuple[str, int]:
    """The text, and how tightly its outermost operator binds."""
    if isinstance(expr, Number):
        shown = repr(expr.value)
        return shown, _UNARY if shown.startswith("-") else _ATOM
    if isinstance(expr, Name):
        return expr.text, _ATOM
    name = expr.function
    if name in FUNCTIONS:
        return f"{name}({', '.join(map(expr_text, expr.arguments))})", _ATOM
    level = _LEVELS[name]
    if name in _PREFIXES:
        return f"{_PREFIXES[name]}{_within(expr.arguments[0], level)}", level
    left, right = expr.arguments
    # Operators of one level group to the left, powers to the right, and comparisons never.
    left_level = level + 1 if level in (_COMPARED, _POWER) else level
    right_level = _UNARY if level == _POWER else level + 1
    return f"{_within(left, left_level)} {OPERATORS[name]} {_within(right, right_level)}", level


def _within(expr: Expr, outer: int) -> str:
    """The text, in parentheses if it binds less tightly than ``outer``."""
    shown, level = _leveled(expr)
    return f"({shown})" if level < outer else shown


def _number(value: float | int, term: Term) -> Expr:
    """A number; infinity, pi and the sign of a negative number are spelt out."""
    if math.copysign(1, value) < 0:
        return Apply("neg", (_number(-value, term),), term.at)
    if math.isinf(value):
        return Name("inf", term.at)
    if value == math.pi:
        return Name("pi", term.at)
    return Number(value, term.at)


def _argument(term: Op, index: int) -> Expr:
    argument = term.arguments[index]
    if isinstance(argument, Literal) and _joins(term, index):
        value = argument.value
        is_whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
        # 0 has no sign.
        if is_whole and (value or math.copysign(1, value) > 0):
            return _number(int(value), argument)
    return expr_of(argument)


def _joins(term: Op, index: int) -> bool:
    """Whether a whole number in this place counts as the float it is without its ``.0``."""
    if term.op in _TAKES_FLOATS:
        return any(not isinstance(argument, Literal) for argument in term.arguments)
    first = 1 if term.op == "where" else 0
    others = [a for place, a in enumerate(term.arguments) if place >= first and place != index]
    if term.op == "div" and others[0].type.element is Element.INT:
        return True
    return any(_shows_float(other) and not _is_constant(other) for other in others)


def _would_be_int(term: Op) -> bool:
    """Whether lowering the formula would give an int where the term is a float."""
    is_float = term.type.element is Element.FLOAT and term.op in _KEEPS_INTS
    numbers = term.arguments[1:] if term.op == "where" else term.arguments
    return is_float and not any(map(_shows_float, numbers))


def _shows_float(term: Term) -> bool:
    """Whether the term's formula is a float, once conversions to float are left out."""
    is_conversion = isinstance(term, Op) and term.op == "float"
    return term.type.element is Element.FLOAT and not is_conversion


def _is_constant(term: Term) -> bool:
    """Whether a term is made of numbers and conditions alone, as lowering asks."""
    refs = (part for part in walk(term) if isinstance(part, Ref))
    return all(ref.type.element is Element.BOOL for ref in refs)
