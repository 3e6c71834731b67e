"""Small edits of a formula: the slips of a pen that a repair tries to undo, simplest first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kgen.ir import BUILTINS, REDUCTIONS, Literal, Op, Program, Ref, Term, Type, join_kinds
from kgen.spec import Element, Kind

_SWAPPED = {
    "add": ("sub",),
    "sub": ("add",),
    "mul": ("div",),
    "div": ("mul",),
    "sum": ("mean",),
    "mean": ("sum",),
    "max": ("min",),
    "min": ("max",),
    "maximum": ("minimum",),
    "minimum": ("maximum",),
    "sqrt": ("rsqrt",),
    "rsqrt": ("sqrt",),
    "exp": ("log",),
    "log": ("exp", "log1p"),
    "log1p": ("log",),
    "tanh": ("sigmoid",),
    "sigmoid": ("tanh", "silu"),
    "silu": ("sigmoid",),
    "less": ("greater",),
    "greater": ("less",),
    "less_equal": ("greater_equal",),
    "greater_equal": ("less_equal",),
    "equal": ("not_equal",),
    "not_equal": ("equal",),
}
_UNARY = frozenset(
    ["exp", "log", "log1p", "sqrt", "rsqrt", "tanh", "sigmoid", "silu", "erf", "abs", "sign", "neg"]
)
_COMPARISONS = frozenset(["less", "less_equal", "greater", "greater_equal", "equal", "not_equal"])
_FACTORS = (2.0, 0.5)
_FUNCTIONS = ("neg", "abs", "exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "silu")


@dataclass(frozen=True, slots=True)
class Edit:
    """``new`` in place of ``old`` in the definition called ``name``, which makes it ``term``.

    The lower the ``rank``, the likelier the slip that the edit undoes.
    """

    name: str
    old: Term
    new: Term
    term: Term
    rank: int = 0


def edits(
    program: Program,
    name: str,
    numbers: Sequence[float] = (),
    masks: Sequence[Term] = (),
    *,
    insert: bool,
) -> Iterator[Edit]:
    """The edits of one definition that keep its type.

    ``numbers`` are constants worth trying. With ``insert`` not the small ones, but those that put
    in what was forgotten: a sum or mean of known names, or one of the conditions in ``masks``.
    """
    definition = program.definition(name)
    assert definition is not None
    known = _known(program, name)
    for old, rebuild in _places(definition.term, lambda term: term):
        some = _inserted(old, known, masks) if insert else _small(old, known, numbers)
        for rank, new in some:
            if new is None or new == old or new.type.element is not old.type.element:
                continue
            term = rebuild(new)
            if term is not None and term.type == definition.type and term != definition.term:
                yield Edit(name, old, new, term, rank)


def make(op: str, *arguments: Term | None, like: Term | None = None) -> Op | None:
    """The operation on these terms, or None where their kinds do not fit."""
    given = [argument for argument in arguments if argument is not None]
    if len(given) < len(arguments) or any(isinstance(a, Op) and a.op == "sum_rows" for a in given):
        return None  # a sum over rows stands alone
    element = Element.BOOL if op in _COMPARISONS else Element.FLOAT
    at, name = given[0].at, None
    if isinstance(like, Op):
        at, name, element = like.at, like.like, like.type.element
    if op in REDUCTIONS or op == "sum_rows":
        if given[0].type.kind is not Kind.MATRIX:
            return None
        kind = Kind.PER_COLUMN if op == "sum_rows" else Kind.PER_ROW
        return Op(op, tuple(given), Type(kind, Element.FLOAT), at, name)
    kind = join_kinds([argument.type.kind for argument in given])
    return Op(op, tuple(given), Type(kind, element), at, name)


Rebuild = Callable[[Term], Term | None]


def _places(term: Term, rebuild: Rebuild) -> Iterator[tuple[Term, Rebuild]]:
    """Every term inside, innermost last, with what the whole becomes when it is replaced."""
    yield term, rebuild
    if isinstance(term, Op):
        # Of a random number its seed alone: the rest is its place.
        inside = term.arguments[:1] if term.op == "random" else term.arguments
        for index, argument in enumerate(inside):
            yield from _places(argument, _replacing(term, index, rebuild))


def _replacing(term: Op, index: int, outer: Rebuild) -> Rebuild:
    def rebuild(new: Term) -> Term | None:
        arguments = list(term.arguments)
        arguments[index] = new
        made = make(term.op, *arguments, like=term)
        return None if made is None else outer(made)

    return rebuild


def _known(program: Program, name: str) -> list[Ref]:
    """The floats that a definition may use; column sums are none of them."""
    types: dict[str, Type] = {v.name: v.type for v in program.variables}
    sums = set()
    at = program.definitions[0].at
    for definition in program.definitions:
        if definition.name == name:
            at = definition.at
            break
        types[definition.name] = definition.type
        if isinstance(definition.term, Op) and definition.term.op == "sum_rows":
            sums.add(definition.name)
    return [
        Ref(known, type_, at)
        for known, type_ in types.items()
        if type_.element is Element.FLOAT and known not in sums
    ]


Ranked = tuple[int, Term | None]


def _small(old: Term, known: Sequence[Ref], numbers: Sequence[float]) -> Iterator[Ranked]:
    yield from ((0, term) for term in _swapped(old))
    if old.type.element is Element.INT:
        yield from ((1, term) for term in _whole(old))
    if old.type.element is not Element.FLOAT:
        return
    yield from _powers(old)
    yield from ((1, term) for term in _dropped(old))
    yield from ((2, term) for term in _moved(old))
    yield from ((3, term) for term in _numbers(old, numbers))
    if isinstance(old, Ref):
        yield from ((4, r) for r in known if r.name != old.name and r.type == old.type)
    columns = Ref("N", BUILTINS["N"], old.at)
    factors: list[Term] = [*known, *(_literal(value, old) for value in _FACTORS), columns]
    for factor in factors:
        yield 5, make("mul", old, factor)
        yield 5, make("div", old, factor)
    yield from ((6, make(op, old)) for op in _FUNCTIONS)


def _swapped(old: Term) -> Iterator[Term | None]:
    if isinstance(old, Op):
        for op in _SWAPPED.get(old.op, ()):
            yield make(op, *old.arguments, like=old)


def _whole(old: Term) -> Iterator[Term | None]:
    """Counts that are one off."""
    one = Literal(1, Type(Kind.SCALAR, Element.INT), old.at)
    if isinstance(old, Op) and old.op in ("add", "sub"):
        yield from (a for a in old.arguments if a.type.kind is old.type.kind)
    elif isinstance(old, Ref) and old.name in BUILTINS:
        for op in ("sub", "add"):
            yield Op(op, (old, one), old.type, old.at)


def _powers(old: Term) -> Iterator[Ranked]:
    if isinstance(old, Op) and old.op == "pow" and isinstance(old.arguments[1], Literal):
        base, value = old.arguments[0], float(old.arguments[1].value)
        likely, others = [value + 1, value - 1], [-value, value / 2, 2 * value]
    elif isinstance(old, Ref) or (isinstance(old, Op) and old.op in REDUCTIONS):
        base, likely, others = old, [2.0, 3.0], [-1.0]
    else:
        return
    for rank, powers in ((0, likely), (4, others)):
        for power in powers:
            yield rank, base if power == 1 else make("pow", base, _literal(power, old))


def _dropped(old: Term) -> Iterator[Term | None]:
    """One term, factor or function less; or the other way round."""
    if not isinstance(old, Op):
        return
    if old.op in ("add", "mul", "sub", "div"):
        left, right = old.arguments
        yield left
        yield right if old.op != "sub" else make("neg", right)
        if old.op in ("sub", "div"):
            yield make(old.op, right, left)
    elif old.op in _UNARY or old.op in ("pow", "detach"):
        yield old.arguments[0]
    elif old.op == "where":
        condition, yes, no = old.arguments
        yield yes
        yield no
        yield make("where", condition, no, yes, like=old)
    elif old.op == "mean":
        columns = Ref("N", BUILTINS["N"], old.at)
        one = Literal(1, Type(Kind.SCALAR, Element.INT), old.at)
        fewer = Op("sub", (columns, one), columns.type, old.at)
        yield make("div", make("sum", old.arguments[0]), fewer)


def _moved(old: Term) -> Iterator[Term | None]:
    """A term on the wrong side of a function or a parenthesis."""
    if not isinstance(old, Op):
        return
    if old.op in ("add", "sub"):
        for index, argument in enumerate(old.arguments):
            if isinstance(argument, Op) and (argument.op in _UNARY or argument.op == "pow"):
                inside = list(old.arguments)
                inside[index] = argument.arguments[0]
                yield make(argument.op, make(old.op, *inside), *argument.arguments[1:])
    if old.op in _UNARY or old.op == "pow" or old.op in REDUCTIONS:
        inner, *rest = old.arguments
        if isinstance(inner, Op) and inner.op in ("add", "sub"):
            left, right = inner.arguments
            yield make(inner.op, make(old.op, left, *rest), right)
            yield make(inner.op, left, make(old.op, right, *rest))
        if isinstance(inner, Op) and (inner.op in (*_UNARY, "pow") or inner.op in REDUCTIONS):
            swapped = make(old.op, inner.arguments[0], *rest)
            yield make(inner.op, swapped, *inner.arguments[1:])
    if old.op in ("mul", "div"):
        left, right = old.arguments
        for op in ("add", "sub"):
            if isinstance(left, Op) and left.op == op:  # (a - b) * c for a - b * c
                yield make(op, left.arguments[0], make(old.op, left.arguments[1], right))
    if old.op in ("add", "sub"):
        left, right = old.arguments
        for op in ("mul", "div"):
            if isinstance(right, Op) and right.op == op:  # a - b * c for (a - b) * c
                yield make(op, make(old.op, left, right.arguments[0]), right.arguments[1])
            if isinstance(left, Op) and left.op == op:  # a * b + c for a * (b + c)
                yield make(op, left.arguments[0], make(old.op, left.arguments[1], right))


def _numbers(old: Term, numbers: Sequence[float]) -> Iterator[Term | None]:
    if isinstance(old, Literal):
        value = float(old.value)
        for other in (value + 1, value - 1, 2 * value, value / 2, -value, *numbers):
            yield _literal(other, old)
        if value:
            yield _literal(1 / value, old)
    elif isinstance(old, Ref) and old.type.kind is Kind.SCALAR:
        yield from (_literal(number, old) for number in numbers)


def _inserted(old: Term, known: Sequence[Ref], masks: Sequence[Term]) -> Iterator[Ranked]:
    if old.type.element is not Element.FLOAT:
        return
    for mask in masks:
        zero, least = _literal(0.0, old), _literal(-math.inf, old)
        for branches in ((zero, old), (old, zero), (old, least)):
            kind = join_kinds([mask.type.kind, old.type.kind])
            yield 0, Op("where", (mask, *branches), Type(kind, Element.FLOAT), old.at)
    for ref in known:
        yield 0, make("add", old, ref)
        yield 0, make("sub", old, ref)
    if old.type.kind is not Kind.MATRIX:
        return
    matrices = [ref for ref in known if ref.type.kind is Kind.MATRIX]
    inner: list[Op | None] = []
    for place, left in enumerate(matrices):
        products: list[Term | None] = [left]
        products += [make("mul", left, right) for right in matrices[place:]]
        inner += [make(op, product) for product in products for op in ("sum", "mean")]
    for reduced in inner:
        for forgotten in (reduced, *(make("mul", factor, reduced) for factor in matrices)):
            yield 0, make("sub", old, forgotten)
            yield 0, make("add", old, forgotten)


def _literal(value: float, near: Term) -> Literal:
    return Literal(value, Type(Kind.SCALAR, Element.FLOAT), near.at)
