"""Rewrites that several stages share: reductions on lines of their own, with readable names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from kgen.ir import (
    BUILTINS,
    Define,
    Literal,
    Op,
    Program,
    Ref,
    Term,
    is_reduction,
    names_in,
    substitute,
    verify,
)

_JOINED = {"mul": "_", "add": "_plus_", "sub": "_minus_", "div": "_over_"}
_POWERS: dict[float, str] = {2: "squared", 3: "cubed"}
_LONGEST_NAME = 28


def hoist(
    program: Program, only: Collection[str] | None = None, avoid: Collection[str] = ()
) -> Program:
    """Give every reduction inside a larger expression a definition, and a readable name.

    A reduction that is stored in every column counts as inside: it takes a walk of its own. With
    ``only``, definitions of other names stay as they are; names in ``avoid`` are not taken.
    """
    taken = set(avoid) | {v.name for v in program.variables} | {d.name for d in program.definitions}
    taken.update(BUILTINS)
    hoisted: dict[Term, str] = {}
    definitions: list[Define] = []
    for definition in program.definitions:
        term = definition.term
        if only is None or definition.name in only:
            is_whole = definition.name not in program.wide
            term = _hoist_inside(definition, is_whole, definitions, hoisted, taken)
        definitions.append(Define(definition.name, term, definition.text, definition.at))
    return verify(Program(program.variables, tuple(definitions), program.results))


def _hoist_inside(
    definition: Define,
    is_whole: bool,
    before: list[Define],
    hoisted: dict[Term, str],
    taken: set[str],
) -> Term:
    def visit(term: Term, outermost: bool) -> Term:
        if not isinstance(term, Op):
            return term
        arguments = tuple(visit(argument, False) for argument in term.arguments)
        rebuilt = Op(term.op, arguments, term.type, term.at, term.like)
        if outermost or not is_reduction(rebuilt):
            return rebuilt
        if rebuilt not in hoisted:
            name = _fresh(f"{term.op}_{describe(arguments[0]) or definition.name}", taken)
            hoisted[rebuilt] = name
            before.append(Define(name, rebuilt, None, term.at))
        return Ref(hoisted[rebuilt], term.type, term.at)

    return visit(definition.term, is_whole)


def _fresh(name: str, taken: set[str]) -> str:
    candidate, count = name, 1
    while candidate in taken:
        count += 1
        candidate = f"{name}_{count}"
    taken.add(candidate)
    return candidate


def describe(term: Term) -> str | None:
    """A name that says what a term is, such as ``g_xhat`` for ``g * xhat``; None when too long."""
    text = _describe(term)
    return text if text and len(text) <= _LONGEST_NAME else None


def _describe(term: Term) -> str | None:
    if isinstance(term, Ref):
        return term.name
    if isinstance(term, Literal):
        return None
    if term.op == "pow" and isinstance(term.arguments[1], Literal):
        base = _describe(term.arguments[0])
        power = _POWERS.get(term.arguments[1].value, "power")
        return f"{base}_{power}" if base else None
    if term.op == "mul" and term.arguments[0] == term.arguments[1]:
        base = _describe(term.arguments[0])
        return f"{base}_squared" if base else None
    parts = [part for part in map(_describe, term.arguments) if part]
    if term.op in _JOINED:
        return _JOINED[term.op].join(parts)
    return "_".join([term.op, *parts])


def inline(program: Program, term: Term, stop: Callable[[Define], bool]) -> Term:
    """The term with definitions put in place of their names, except those ``stop`` holds for."""
    values: Mapping[str, Term] = {}
    for name in names_in(term):
        definition = program.definition(name)
        if definition is not None and not stop(definition):
            values = {**values, name: inline(program, definition.term, stop)}
    return substitute(term, values)
