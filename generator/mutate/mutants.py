"""All mutants of an op: the generated text with one fault in it."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kgen.mutate.catalogue import Kind, OpText
from kgen.mutate.source import Site


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault: its kind, its place, what stands there before and after, and the file's text."""

    kind: Kind
    file: str
    line: int
    function: str
    before: str
    after: str
    text: str

    @property
    def place(self) -> str:
        """``kernels.py:41 rmsnorm_forward_resident``."""
        return f"{self.file}:{self.line} {self.function}".rstrip()

    @property
    def change(self) -> str:
        """``n_columns -> BLOCK``."""
        return f"{self.before} -> {self.after}"


def mutants_of(op: OpText, kinds: Sequence[Kind]) -> list[Mutant]:
    """Every mutant of these kinds, in the order of the kinds, then of the text.

    Where two kinds make the same text, or one makes text that differs in form alone, the first
    counts. What only leads to a pivot is left as it is.
    """
    seen: set[str] = set()
    found: list[Mutant] = []
    for kind in kinds:
        for site in sorted(kind.finder(op), key=_position):
            if _is_before_pivot(site):
                continue
            shape = _shape(site)
            if shape not in seen:
                seen.add(shape)
                found.append(_mutant(kind, site))
    return found


def _is_before_pivot(site: Site) -> bool:
    """Whether a place serves a pivot alone: nearly any number does for one."""
    name = site.source.function_at(site.shown.lineno)  # type: ignore[attr-defined]
    body = site.source.functions[name].body
    targets = [ast.unparse(s.targets[0]) if isinstance(s, ast.Assign) else "" for s in body]
    pivots = [place for place, target in enumerate(targets) if target.endswith("_pivot")]
    if not pivots:
        return False
    first = max(place for place in range(pivots[0]) if targets[place] == "column")
    line: int = site.shown.lineno  # type: ignore[attr-defined]
    return body[first].lineno <= line <= (body[pivots[-1]].end_lineno or 0)


def _position(site: Site) -> tuple[str, int]:
    return site.source.name, site.source.span(site.shown)[0]


def _shape(site: Site) -> str:
    """What tells one mutant from another: the tree of the function that is changed."""
    source = site.source
    name = source.function_at(site.shown.lineno)  # type: ignore[attr-defined]
    function = source.functions[name]
    text = textwrap.dedent(" " * function.col_offset + source.edited(site.edits, function))
    return f"{source.name} {name} {ast.dump(ast.parse(text))}"


def spread(mutants: Sequence[Mutant], limit: int) -> list[Mutant]:
    """At most so many of them, evenly spread over all."""
    if limit >= len(mutants):
        return list(mutants)
    return [mutants[index * len(mutants) // limit] for index in range(limit)]


def _mutant(kind: Kind, site: Site) -> Mutant:
    source = site.source
    text = source.edited(site.edits)
    line: int = site.shown.lineno  # type: ignore[attr-defined]
    before = " ".join(source.piece(site.shown).split())
    after = " ".join(source.edited(site.edits, site.shown).split())
    if after == "pass":
        after = "(nothing)"
    return Mutant(kind, source.name, line, source.function_at(line), before, after, text)


def by_kind(mutants: Sequence[Mutant], kinds: Sequence[Kind]) -> Iterator[tuple[Kind, int]]:
    """Each kind with the number of its mutants."""
    for kind in kinds:
        yield kind, sum(mutant.kind is kind for mutant in mutants)
