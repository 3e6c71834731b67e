"""What formulas cost, to choose between ways to write them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kgen.ir import REDUCTIONS, Op, Program, Ref, Term, is_reduction, names_in, walk
from kgen.rewrite import replace_terms
from kgen.spec import Kind

_FREE = ("float", "detach")
_FUNCTIONS = frozenset(
    {"exp", "log", "log1p", "sqrt", "rsqrt", "tanh", "sigmoid", "silu", "erf", "random", "div"}
)


def price(
    program: Program, formulas: Sequence[tuple[str, Term]], outputs: Collection[str]
) -> tuple[int, ...]:
    """What a backward of these formulas reads, reduces and computes, forward's values included."""
    saved = _saved_rows(program)
    terms = [replace_terms(term, saved) for _, term in formulas]
    made = {name for name, _ in formulas}
    wanted = {name for term in terms for name in names_in(term)} - made
    matrices, rows = set[str](), set[str]()
    for definition in reversed(program.definitions):
        if definition.name not in wanted:
            continue
        if definition.type.kind is Kind.PER_ROW:
            rows.add(definition.name)
        elif definition.name in outputs and definition.type.kind is Kind.MATRIX:
            matrices.add(definition.name)
        else:
            terms.append(definition.term)
            wanted.update(names_in(definition.term))
    matrices |= {
        v.name for v in program.variables if v.name in wanted and v.type.kind is Kind.MATRIX
    }
    operations = [t for term in terms for t in walk(term) if isinstance(t, Op)]
    reductions = sum(t.op in (*REDUCTIONS, "sum_rows") for t in operations)
    wide = [t for t in operations if t.type.kind is Kind.MATRIX and t.op not in _FREE]
    functions = sum(t.op in _FUNCTIONS for t in wide)
    narrow = sum(t.type.kind is Kind.PER_ROW for t in operations) + len(rows)
    return (len(matrices), reductions, len(wide), functions, narrow, len(formulas))


def _saved_rows(program: Program) -> dict[Term, Term]:
    """The row values without a name that forward saves when backward uses them."""
    found: dict[Term, Term] = {}
    for definition in program.definitions:
        for term in walk(definition.term):
            if term.type.kind is Kind.PER_ROW and any(map(is_reduction, walk(term))):
                found[term] = Ref("saved", term.type, term.at)
    return found
