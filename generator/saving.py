"""What every backward recomputes, reuses and has saved: from lowered formulas to programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kgen.ir import (
    Define,
    Program,
    Result,
    Role,
    Type,
    Variable,
    is_reduction,
    names_in,
    needed,
    verify,
    walk,
)
from kgen.rewrite import hoist, share_rows
from kgen.spec import COMPUTE, Element, Kind, Spec, differentiable_outputs


@dataclass(frozen=True, slots=True)
class Formulas:
    """The lowered formulas of a backward, which may use every name of forward.

    ``upstream`` are the gradients that it is given, ``results`` those that it gives.
    """

    upstream: tuple[Variable, ...]
    definitions: tuple[Define, ...]
    results: tuple[Result, ...]


@dataclass(frozen=True, slots=True)
class Programs:
    """Forward with its saved values as results, and a program for each backward."""

    forward: Program
    backwards: tuple[Program, ...]
    saved: tuple[str, ...]


def with_backwards(spec: Spec, forward: Program, backwards: Sequence[Formulas]) -> Programs:
    """Decide what each backward recomputes and reuses; forward saves what any of them needs."""
    reused = _reused_outputs(spec, forward)
    names = [d.name for each in backwards for d in each.definitions]
    forward, shared = share_rows(forward, [each.definitions for each in backwards], names)
    backwards = [
        Formulas(each.upstream, definitions, each.results)
        for each, definitions in zip(backwards, shared, strict=True)
    ]
    again = [_recomputed(forward, each.definitions, reused) for each in backwards]
    forward = hoist(forward, only=set[str]().union(*again), avoid=names)
    reduced = _reduced_names(forward)
    programs = []
    saved: set[str] = set()
    for formulas, recomputed in zip(backwards, again, strict=True):
        program = _program(spec, forward, formulas, recomputed, reused)
        saved |= {v.name for v in program.variables if v.role is Role.SAVED}
        programs.append(program)
    assert saved <= reduced, "only statistics are saved"
    kept = tuple(d.name for d in forward.definitions if d.name in saved)
    outputs = {o.name for o in spec.outputs}
    extra = tuple(
        Result(name, Kind.PER_ROW, Role.SAVED, f"saved_{name}" if name in outputs else name)
        for name in kept
    )
    whole = needed(Program(forward.variables, forward.definitions, (*forward.results, *extra)))
    return Programs(verify(whole), tuple(programs), kept)


def _program(
    spec: Spec, forward: Program, formulas: Formulas, recomputed: set[str], reused: set[str]
) -> Program:
    """One backward: its formulas, after the forward definitions that it works out again."""
    used = {name for d in formulas.definitions for name in names_in(d.term)}
    again: list[Define] = []
    for definition in reversed(forward.definitions):
        if definition.name in used and definition.name in recomputed:
            again.append(definition)
            used.update(names_in(definition.term))
    reduced = _reduced_names(forward)
    saved = [
        d.name for d in forward.definitions if d.name in (used & reduced) and d.name not in reused
    ]
    variables = (
        *forward.variables,
        *(Variable(name, _type_of(forward, name), Role.SAVED) for name in saved),
        *(
            Variable(o.name, Type(_type_of(forward, o.name).kind, Element.FLOAT), Role.OUTPUT)
            for o in spec.outputs
            if o.name in used & reused
        ),
        *formulas.upstream,
    )
    definitions = (*reversed(again), *formulas.definitions)
    return verify(needed(verify(Program(variables, definitions, formulas.results))))


def _reused_outputs(spec: Spec, forward: Program) -> set[str]:
    """The outputs that backward may read: matrices, and row values that no dtype has rounded."""
    exact = (COMPUTE,) if "float64" in spec.dtypes else (COMPUTE, "float32")
    floats = differentiable_outputs(spec)
    return {
        output.name
        for output, result in zip(spec.outputs, forward.results, strict=True)
        if (result.kind is Kind.MATRIX or output.dtype in exact)
        and output in floats
        and _type_of(forward, output.name).element is Element.FLOAT
    }


def _type_of(program: Program, name: str) -> Type:
    definition = program.definition(name)
    assert definition is not None
    return definition.type


def _reduced_names(program: Program) -> set[str]:
    """The per_row numbers that take a walk over the row to compute."""
    deep: dict[str, Element] = {}
    for definition in program.definitions:
        reduces = any(is_reduction(t) for t in walk(definition.term))
        if definition.type.kind is Kind.PER_ROW and (
            reduces or any(n in deep for n in names_in(definition.term))
        ):
            deep[definition.name] = definition.type.element
    return {name for name, element in deep.items() if element is Element.FLOAT}


def _recomputed(forward: Program, defines: Iterable[Define], reused: set[str]) -> set[str]:
    """The forward names that backward works out again: all but statistics and outputs."""
    reduced = _reduced_names(forward)
    wanted = {name for d in defines for name in names_in(d.term)}
    again: set[str] = set()
    for definition in reversed(forward.definitions):
        name = definition.name
        if name in wanted and name not in reused and name not in reduced:
            again.add(name)
            wanted.update(names_in(definition.term))
    return again
