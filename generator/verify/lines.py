"""Lines of a spec: which ones to suspect, and how they are put in words."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from kgen.expr import Assignment
from kgen.formulas import text
from kgen.ir import Define, Op, Program, Ref, Term, walk
from kgen.spec import Element, Spec
from kgen.verify.compare import Row
from kgen.verify.edits import Edit
from kgen.verify.facts import Facts
from kgen.verify.measure import Measured

FAULT = "this is a fault of kgen, not of the spec: please report it with the spec"


def one_of(
    found: Mapping[str, Edit],
    accused: Iterable[str],
    doubtful: Collection[str] = (),
    mends: Callable[[Edit], bool] | None = None,
) -> tuple[str | None, Edit | None]:
    """The edit to believe: the only one, one of an accused line, or else the likeliest slip.

    ``doubtful`` lines go before others where slips are as likely, and edits for which ``mends``
    holds before those for which it does not.
    """
    names = [name for name in accused if name in found][:1] or list(found)
    if len(names) > 1 and mends is not None:
        names = [name for name in names if mends(found[name])] or names
    likeliest = min(reversed(names), key=lambda n: (found[n].rank, n not in doubtful), default=None)
    return (None, None) if likeliest is None else (likeliest, found[likeliest])


def chosen(facts: Facts, numbers: Iterable[int]) -> list[Measured]:
    """Up to six of the samples, of several rows and columns where there are such."""
    ones = [facts.measured[number] for number in dict.fromkeys(numbers)]
    wide = [one for one in ones if min(one.sample.rows, one.sample.shape[-1]) > 1]
    return (wide or ones)[:6]


def written_backward(spec: Spec) -> tuple[Assignment, ...]:
    """The formulas of backward that the spec has itself."""
    return spec.backward if isinstance(spec.backward, tuple) else ()


def origin(program: Program, name: str) -> str:
    """The definition that gives a result its value, through lines that only rename it."""
    definition = program.definition(name)
    while definition is not None and isinstance(definition.term, Ref):
        further = program.definition(definition.term.name)
        if further is None:
            break
        definition = further
    return definition.name if definition is not None else name


def backward_line(facts: Facts, name: str) -> Define:
    """The definition of that name in backward."""
    program = facts.op.backward
    assert program is not None
    return defined(program, name)


def defined(program: Program, name: str) -> Define:
    """The definition of that name, which there is."""
    definition = program.definition(name)
    assert definition is not None
    return definition


def wrong_words(name: str, wrong: Sequence[Row]) -> str:
    """``'g' is wrong, and with it dx``."""
    others = [row.quantity for row in wrong if row.quantity != name]
    return f"'{name}' is wrong" + (f", and with it {' and '.join(others)}" if others else "")


def mended_words(edit: Edit | None) -> str:
    """What the edit would change, after the words of the problem."""
    if edit is None:
        return ""
    return f"; with {text(edit.new)} in place of {text(edit.old)} it agrees"


def masks_of(program: Program) -> list[Term]:
    """The conditions that the forward formulas use."""
    terms = (term for d in program.definitions for term in walk(d.term))
    bools = (t for t in terms if isinstance(t, Op) and t.type.element is Element.BOOL)
    return list(dict.fromkeys(bools))
