"""Rewrites that several stages share: reductions on lines of their own, with readable names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from kgen.errors import Span
from kgen.ir import (
    BUILTINS,
    Define,
    Literal,
    Op,
    Program,
    Ref,
    Term,
    Type,
    is_reduction,
    join_kinds,
    names_in,
    substitute,
    verify,
    walk,
)
from kgen.spec import Element, Kind

_JOINED = {"mul": "_", "add": "_plus_", "sub": "_minus_", "div": "_over_"}
_POWERS: dict[float, str] = {2: "squared", 3: "cubed"}
_LONGEST_NAME = 28
_NO_WORK = ("float", "cast", "detach")
_ROW_NUMBER = Type(Kind.PER_ROW, Element.FLOAT)


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
            name = fresh(f"{term.op}_{describe(arguments[0]) or definition.name}", taken)
            hoisted[rebuilt] = name
            before.append(Define(name, rebuilt, None, term.at))
        return Ref(hoisted[rebuilt], term.type, term.at)

    return visit(definition.term, is_whole)


def retyped(program: Program) -> Program | None:
    """The program with the kinds that follow from those of its variables.

    None where a reduction would be of no matrix.
    """
    kinds = {name: type_.kind for name, type_ in BUILTINS.items()}
    kinds |= {v.name: v.type.kind for v in program.variables}
    sound = True

    def visit(term: Term) -> Term:
        nonlocal sound
        if isinstance(term, Literal):
            return term
        if isinstance(term, Ref):
            return Ref(term.name, Type(kinds[term.name], term.type.element), term.at)
        arguments = tuple(map(visit, term.arguments))
        kind = term.type.kind
        if is_reduction(term) or term.op == "sum_rows":
            sound = sound and arguments[0].type.kind is Kind.MATRIX
        else:
            kind = join_kinds([argument.type.kind for argument in arguments])
        return Op(term.op, arguments, Type(kind, term.type.element), term.at, term.like)

    definitions: list[Define] = []
    for definition in program.definitions:
        term = visit(definition.term)
        kinds[definition.name] = term.type.kind
        definitions.append(Define(definition.name, term, definition.text, definition.at))
    whole = Program(program.variables, tuple(definitions), program.results)
    return verify(whole) if sound else None


def hoist_rows(program: Program) -> Program:
    """Give row values inside the formulas of matrices definitions: no chunk repeats them."""
    taken = {v.name for v in program.variables} | {d.name for d in program.definitions}
    taken.update(BUILTINS)
    names: dict[Term, Term] = {}
    definitions: list[Define] = []

    def visit(term: Term, holder: Define) -> Term:
        if not isinstance(term, Op):
            return term
        if term.type.kind is Kind.PER_ROW and term.op not in _NO_WORK:
            if term not in names:
                name = fresh(describe(term) or f"{holder.name}_row", taken)
                names[term] = Ref(name, term.type, term.at)
                definitions.append(Define(name, term, None, term.at))
            return names[term]
        arguments = tuple(visit(argument, holder) for argument in term.arguments)
        return Op(term.op, arguments, term.type, term.at, term.like)

    for definition in program.definitions:
        term = definition.term
        if definition.type.kind is Kind.MATRIX:
            term = visit(term, definition)
        definitions.append(Define(definition.name, term, definition.text, definition.at))
    return verify(Program(program.variables, tuple(definitions), program.results))


def share_rows(
    program: Program, others: Sequence[tuple[Define, ...]], avoid: Collection[str] = ()
) -> tuple[Program, list[tuple[Define, ...]]]:
    """Use the row numbers of a program where other formulas would work them out again.

    What has no name in the program gets one there; names in ``avoid`` are not taken.
    """
    taken = set(avoid) | {v.name for v in program.variables} | {d.name for d in program.definitions}
    taken.update(BUILTINS)
    wanted = sorted(_common_rows(program, others), key=lambda term: sum(1 for _ in walk(term)))
    formulas = list(others)
    for index, term in enumerate(wanted):
        whole = next((d for d in program.definitions if d.term == term), None)
        again = next((d for ds in formulas for d in ds if d.term == term), None)
        if whole is None and not _is_inside(program, term):
            continue  # a part of it has got a name after it was used here
        if whole is not None:
            name = whole.name
            program = _used_after(program, whole)
        elif again is not None:  # it keeps the name that it has there
            name = again.name
            formulas = [tuple(d for d in ds if d.name != name) for ds in formulas]
            program = _extracted(program, term, name)
        else:
            name = fresh(_row_name(program, term), taken)
            program = _extracted(program, term, name)
        values: dict[Term, Term] = {term: Ref(name, term.type, term.at)}
        formulas = [tuple(_with(d, values) for d in definitions) for definitions in formulas]
        wanted[index + 1 :] = [replace_terms(other, values) for other in wanted[index + 1 :]]
    return verify(program), formulas


def _common_rows(program: Program, others: Sequence[tuple[Define, ...]]) -> list[Term]:
    """The largest row numbers that both take a walk to compute."""
    walked: set[str] = set()
    rows: set[Term] = set()
    for definition in program.definitions:
        for term in walk(definition.term):
            if _takes_walk(term, walked):
                rows.add(term)
        if _takes_walk(definition.term, walked):
            walked.add(definition.name)
    found: dict[Term, None] = {}

    def look(term: Term) -> None:
        if term in rows and term.type == _ROW_NUMBER:
            found[term] = None
        elif isinstance(term, Op):
            for argument in term.arguments:
                look(argument)

    for definition in (d for definitions in others for d in definitions):
        look(definition.term)
    return list(found)


def _takes_walk(term: Term, walked: Collection[str]) -> bool:
    if not isinstance(term, Op) or term.type.kind is not Kind.PER_ROW:
        return False
    inside = list(walk(term))
    return any(map(is_reduction, inside)) or any(name in walked for name in names_in(term))


def _is_inside(program: Program, term: Term) -> bool:
    return any(term in set(walk(d.term)) for d in program.definitions)


def _used_after(program: Program, whole: Define) -> Program:
    """The program with a definition's name in place of its term, in the definitions after it."""
    values: dict[Term, Term] = {whole.term: Ref(whole.name, whole.type, whole.at)}
    place = program.definitions.index(whole) + 1
    after = tuple(_with(d, values) for d in program.definitions[place:])
    return Program(program.variables, (*program.definitions[:place], *after), program.results)


def _row_name(program: Program, term: Term) -> str:
    assert isinstance(term, Op)
    inside = describe(term.arguments[0] if is_reduction(term) else term)
    if inside is not None and not is_reduction(term):
        return inside
    return f"{term.op}_{inside or _holder(program, term).name}"


def _holder(program: Program, term: Term) -> Define:
    """The first definition that a term is part of."""
    return next(d for d in program.definitions if term in set(walk(d.term)))


def _extracted(program: Program, term: Term, name: str) -> Program:
    """The program with a definition of its own for a term inside one."""
    first = _holder(program, term)
    values: dict[Term, Term] = {term: Ref(name, term.type, term.at)}
    definitions: list[Define] = []
    for definition in program.definitions:
        if definition is first:
            definitions.append(Define(name, term, None, term.at))
        definitions.append(_with(definition, values))
    return Program(program.variables, tuple(definitions), program.results)


def _with(definition: Define, values: Mapping[Term, Term]) -> Define:
    term = replace_terms(definition.term, values)
    return Define(definition.name, term, definition.text, definition.at)


def replace_terms(term: Term, values: Mapping[Term, Term]) -> Term:
    """The term with each of the keys inside it replaced by its value."""
    if term in values:
        return values[term]
    if isinstance(term, Op):
        arguments = tuple(replace_terms(argument, values) for argument in term.arguments)
        return Op(term.op, arguments, term.type, term.at, term.like)
    return term


def fresh(name: str, taken: set[str]) -> str:
    """The name, or one like it that is not taken; it is taken then."""
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


def _one(at: Span) -> Literal:
    return Literal(1, Type(Kind.SCALAR, Element.INT), at)


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
    if term.op == "float":
        return _describe(term.arguments[0])
    if term.op in ("add", "sub") and term.arguments[0] == _one(term.at):
        inside = _describe(term.arguments[1])
        return f"one_{'plus' if term.op == 'add' else 'minus'}_{inside}" if inside else None
    arguments = term.arguments[:1] if term.op == "random" else term.arguments
    parts = [part for part in map(_describe, arguments) if part]
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
