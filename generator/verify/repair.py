"""Looks for the one small edit of a formula that makes everything agree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from kgen.errors import KgenError
from kgen.formulas import text
from kgen.interpret import Scope, scope_of
from kgen.ir import Define, Op, Program, Term, names_in, walk
from kgen.verify.compare import ABSOLUTE, RELATIVE
from kgen.verify.edits import Edit, edits
from torch import Tensor

MOST_EDITS = 40_000
"""Tried for one search: what a long spec is given up after."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What a result has to be where it is finite; NaN and infinity ask for nothing."""

    value: Tensor
    counts: Tensor
    bound: float

    def met(self, got: Tensor) -> bool:
        """Whether a result is as it should be."""
        close = (got - self.value).abs() <= self.bound
        return bool((close | ~self.counts).all())


def goal(value: Tensor) -> Goal:
    """The goal of a value that is known to be right."""
    counts = value.isfinite()
    largest = float(value[counts].abs().max()) if counts.any() else 0.0
    return Goal(value, counts, ABSOLUTE + RELATIVE * largest)


@dataclass(slots=True)
class Trial:
    """A program with the arguments of one sample, and what its results have to be."""

    program: Program
    scope: Scope
    goals: Mapping[str, Goal]
    dtypes: Mapping[str, torch.dtype]
    parts: dict[int, Tensor] = field(default_factory=dict)

    def agrees(self, edit: Edit, after: Sequence[Define]) -> bool:
        """Whether all results are right with the edit; ``after`` are the definitions it changes."""
        values = dict(self.scope.values)
        changed = Scope(self.scope.shape, values, self.scope.dtypes, self.scope.entries)
        try:
            changed.values[edit.name] = self._evaluate(changed, edit.term)
            for definition in after:
                changed.values[definition.name] = changed.evaluate(definition.term)
        except (KgenError, RuntimeError):
            return False  # a shape or a division that the edit has broken
        return all(
            goal.met(self._stored(name, changed.values[name])) for name, goal in self.goals.items()
        )

    def _evaluate(self, scope: Scope, term: Term) -> Tensor:
        """The value of an edited term, of which most parts are the program's own."""
        known = self.parts.get(id(term))
        if known is not None:
            return known
        if not isinstance(term, Op):
            return scope.evaluate(term)
        return scope.apply(term, [self._evaluate(scope, argument) for argument in term.arguments])

    def _stored(self, name: str, value: Tensor) -> Tensor:
        dtype = self.dtypes.get(name, torch.float64)
        return value if dtype is torch.float64 else value.to(dtype).to(torch.float64)


def trial(
    program: Program,
    values: Mapping[str, Tensor | float | int | bool],
    wanted: Mapping[str, Tensor],
    dtypes: Mapping[str, torch.dtype] | None = None,
    entries: Mapping[str, Tensor] | None = None,
) -> Trial:
    """A trial with the program's values worked out as it stands."""
    with torch.no_grad():
        scope = scope_of(program, values, entries)
        parts: dict[int, Tensor] = {}
        for definition in program.definitions:
            for term in walk(definition.term):
                parts[id(term)] = scope.evaluate(term)
            scope.values[definition.name] = parts[id(definition.term)]
    goals = {name: goal(value) for name, value in wanted.items()}
    return Trial(program, scope, goals, dtypes or {}, parts)


def repairs(
    trials: Sequence[Trial],
    suspects: Iterable[str],
    numbers: Sequence[float] = (),
    masks: Sequence[Term] = (),
    *,
    insert: bool,
) -> dict[str, Edit]:
    """For each suspect the simplest edit that makes every trial agree, if there is one.

    ``numbers``, ``masks`` and ``insert`` say which edits are tried: see ``edits``.
    """
    program = trials[0].program
    budget = iter(range(MOST_EDITS))
    found: dict[str, Edit] = {}
    with torch.no_grad():
        for name in suspects:
            after = _after(program, name)
            mending = [
                edit
                for edit in edits(program, name, numbers, masks, insert=insert)
                if next(budget, None) is not None
                and all(trial.agrees(edit, after) for trial in trials)
            ]
            if mending:
                found[name] = min(mending, key=_slip)
    return found


def _slip(edit: Edit) -> tuple[int, int]:
    """The likelier slips first, and of those the shorter to tell."""
    return edit.rank, len(text(edit.old)) + len(text(edit.new))


def _after(program: Program, name: str) -> list[Define]:
    """The definitions whose value hangs on that of ``name``, in order."""
    changed, after = {name}, []
    for definition in program.definitions:
        if changed.intersection(names_in(definition.term)):
            changed.add(definition.name)
            after.append(definition)
    return after


def feeding(program: Program, results: Iterable[str]) -> list[str]:
    """The definitions that results hang on, themselves included, in the program's order."""
    wanted = set(results)
    for definition in reversed(program.definitions):
        if definition.name in wanted:
            wanted.update(names_in(definition.term))
    return [d.name for d in program.definitions if d.name in wanted]
