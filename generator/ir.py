"""The row program: typed SSA definitions over four kinds, and the check run after every pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from kgen.errors import Span
from kgen.spec import Element, Kind


@dataclass(frozen=True, slots=True)
class Type:
    """How a value spreads over the matrix, and what its entries are."""

    kind: Kind
    element: Element

    def __str__(self) -> str:
        return f"{self.kind.value} {self.element.value}"


@dataclass(frozen=True, slots=True)
class Literal:
    """A number."""

    value: float | int
    type: Type
    at: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Ref:
    """A use of a variable, of a definition or of a built-in name."""

    name: str
    type: Type
    at: Span = field(compare=False)

    def __hash__(self) -> int:
        return hash(self.name)


@dataclass(frozen=True, slots=True)
class Op:
    """A function of terms.

    ``like`` is what a ``cast`` rounds to, and the shared input whose gradient a ``sum_rows`` is.
    """

    op: str
    arguments: tuple[Term, ...]
    type: Type
    at: Span = field(compare=False)
    like: str | None = None
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Work the hash out once: terms are deep, and looked up often."""
        object.__setattr__(self, "_hash", hash((self.op, self.arguments, self.type, self.like)))

    def __hash__(self) -> int:
        return self._hash


Term = Literal | Ref | Op

REDUCTIONS = ("sum", "mean", "max", "min")
COMPARISONS = ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")
LOGIC = ("and", "or", "not")
FLOAT_FUNCTIONS = (
    "exp",
    "log",
    "log1p",
    "sqrt",
    "rsqrt",
    "tanh",
    "sigmoid",
    "silu",
    "erf",
    "sign",
    "pow",
)
"""Functions that take floats and give floats, whatever they are given."""
SPECIAL = frozenset({*FLOAT_FUNCTIONS, "random", "div", "floordiv", "mod"}) - {"sign"}
"""Operations that take a GPU several instructions an element."""
RANDOM_ROUNDS = 7
"""Rounds of Philox for a random number: the fewest that pass BigCrush in Salmon and others 2011."""
RANDOM_WORDS = 4
"""Random numbers that one call of Philox gives: those of neighbouring columns."""
BUILTINS = {
    "N": Type(Kind.SCALAR, Element.INT),
    "row": Type(Kind.PER_ROW, Element.INT),
    "column": Type(Kind.PER_COLUMN, Element.INT),
}


class Role(Enum):
    """Where the tensor behind a variable comes from, or what a result is for."""

    INPUT = "input"
    PARAM = "param"
    SAVED = "saved"
    OUTPUT = "output"
    UPSTREAM = "upstream"
    GRADIENT = "gradient"
    STATISTIC = "statistic"


@dataclass(frozen=True, slots=True)
class Sharing:
    """How the entries of an input serve several rows or columns.

    ``kind`` is the input's own: a ``PER_BATCH`` value is a matrix to formulas. With ``columns`` an
    entry serves several adjacent columns.
    """

    kind: Kind
    columns: bool


@dataclass(frozen=True, slots=True)
class Variable:
    """A value a program is given. ``absent`` is what an optional one counts as."""

    name: str
    type: Type
    role: Role
    absent: float | None = None
    sharing: Sharing | None = None

    @property
    def own_kind(self) -> Kind:
        """How its tensor spreads: that of an input which is shared, not what formulas see."""
        return self.type.kind if self.sharing is None else self.sharing.kind

    @property
    def fills_matrix(self) -> bool:
        """Whether its tensor has an entry for every place of the matrix."""
        return self.type.kind is Kind.MATRIX and self.sharing is None


@dataclass(frozen=True, slots=True)
class Define:
    """``name = term``, with the spec's words when the spec has this line."""

    name: str
    term: Term
    text: str | None
    at: Span = field(compare=False)

    @property
    def type(self) -> Type:
        """The type of the value."""
        return self.term.type


@dataclass(frozen=True, slots=True)
class Result:
    """A definition that leaves the kernel as a tensor, which may go by a name of its own."""

    name: str
    kind: Kind
    role: Role
    called: str | None = None

    @property
    def tensor(self) -> str:
        """The tensor's name in signatures."""
        return self.called or self.name


@dataclass(frozen=True, slots=True)
class Program:
    """What one direction of an op computes for every row."""

    variables: tuple[Variable, ...]
    definitions: tuple[Define, ...]
    results: tuple[Result, ...]

    def variable(self, name: str) -> Variable | None:
        """The variable of that name, if there is one."""
        return next((v for v in self.variables if v.name == name), None)

    @property
    def wide(self) -> set[str]:
        """The names of the results that fill a matrix."""
        return {result.name for result in self.results if result.kind is Kind.MATRIX}

    def definition(self, name: str) -> Define | None:
        """The definition of that name, if there is one."""
        return next((d for d in self.definitions if d.name == name), None)

    @property
    def repeated(self) -> dict[str, str]:
        """For each matrix gradient with the values of one before it, the first such."""
        found: dict[str, str] = {}
        first: dict[Term, str] = {}
        for result in self.results:
            if result.kind is Kind.MATRIX and result.role is Role.GRADIENT:
                earlier = first.setdefault(self._origin(result.name), result.name)
                if earlier != result.name:
                    found[result.name] = earlier
        return found

    def _origin(self, name: str) -> Term:
        """The term that a name stands for in the end, where definitions only name others."""
        definition = self.definition(name)
        assert definition is not None
        term = definition.term
        is_defined = isinstance(term, Ref) and self.definition(term.name) is not None
        return self._origin(term.name) if isinstance(term, Ref) and is_defined else term


def walk(term: Term) -> Iterator[Term]:
    """The term and all terms inside it, outermost first."""
    yield term
    if isinstance(term, Op):
        for argument in term.arguments:
            yield from walk(argument)


def names_in(term: Term) -> tuple[str, ...]:
    """The names that a term uses, in order of first use."""
    return tuple(dict.fromkeys(t.name for t in walk(term) if isinstance(t, Ref)))


def drawn_in(term: Term) -> list[Op]:
    """The random numbers in a term."""
    return [t for t in walk(term) if isinstance(t, Op) and t.op == "random"]


def seeds_in(program: Program) -> set[str]:
    """The names that seeds of random numbers are made of."""
    found: set[str] = set()
    for definition in reversed(program.definitions):
        drawn = [t.arguments[0] for t in drawn_in(definition.term)]
        terms = [definition.term] if definition.name in found else drawn
        found.update(name for term in terms for name in names_in(term))
    return found


def dtypes_in(term: Term) -> set[str]:
    """The names whose dtype a term rounds to: their tensors are needed, though not their values."""
    casts = (t for t in walk(term) if isinstance(t, Op) and t.op == "cast")
    return {cast.like for cast in casts if cast.like is not None}


def substitute(term: Term, values: Mapping[str, Term]) -> Term:
    """The term with each reference to a key replaced by its value."""
    if isinstance(term, Ref):
        return values.get(term.name, term)
    if isinstance(term, Op):
        arguments = tuple(substitute(argument, values) for argument in term.arguments)
        return Op(term.op, arguments, term.type, term.at, term.like)
    return term


def is_reduction(term: Term) -> bool:
    """Whether the term's outermost operation goes along the row."""
    return isinstance(term, Op) and term.op in REDUCTIONS


def join_kinds(kinds: list[Kind]) -> Kind:
    """The kind of an elementwise operation: its operands broadcast."""
    present = {kind for kind in kinds if kind is not Kind.SCALAR}
    if not present:
        return Kind.SCALAR
    if len(present) == 1:
        return present.pop()
    return Kind.MATRIX


def needed(program: Program) -> Program:
    """The program without definitions and variables that no result depends on."""
    wanted = {result.name for result in program.results}
    kept: list[Define] = []
    for definition in reversed(program.definitions):
        if definition.name in wanted:
            kept.append(definition)
            wanted.update(names_in(definition.term))
            wanted.update(dtypes_in(definition.term))
    variables = tuple(v for v in program.variables if v.name in wanted)
    return Program(variables, tuple(reversed(kept)), program.results)


def verify(program: Program) -> Program:
    """The program itself; raises ``AssertionError`` when a pass has broken an invariant."""
    known: dict[str, Type] = dict(BUILTINS)
    for variable in program.variables:
        assert variable.name not in known, f"{variable.name} stands for two values"
        known[variable.name] = variable.type
    for definition in program.definitions:
        assert definition.name not in known, f"{definition.name} is defined twice"
        for term in walk(definition.term):
            _verify_term(term, known, definition)
        known[definition.name] = definition.type
    for result in program.results:
        assert result.name in known, f"the result {result.name} has no definition"
        kind = known[result.name].kind
        fits = kind in (result.kind, Kind.SCALAR, *_NARROWER[result.kind])
        assert fits, f"the result {result.name} is {kind.value}, not {result.kind.value}"
    return program


_NARROWER = {
    Kind.MATRIX: (Kind.PER_ROW, Kind.PER_COLUMN),
    Kind.PER_ROW: (),
    Kind.PER_COLUMN: (),
    Kind.SCALAR: (),
}


def _verify_term(term: Term, known: Mapping[str, Type], definition: Define) -> None:
    if isinstance(term, Ref):
        assert term.name in known, f"{term.name} is used before it is defined"
        assert known[term.name] == term.type, f"{term.name} changes its type"
    elif isinstance(term, Op):
        if term.op in REDUCTIONS:
            assert term.type.kind is Kind.PER_ROW, f"{term.op} does not give a per_row value"
            assert term.arguments[0].type.kind is Kind.MATRIX, f"{term.op} of no matrix"
        elif term.op == "sum_rows":
            assert term is definition.term, "sum_rows inside another expression"
            assert term.type.kind is Kind.PER_COLUMN
        else:
            kinds = [argument.type.kind for argument in term.arguments]
            assert term.type.kind is join_kinds(kinds), f"{term.op} has the wrong kind"
