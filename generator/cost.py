"""What an op computes: passes, reductions and operations for each element, and what it keeps.

The counts are of what is to be computed, not of how it is written: equal terms count once, by
whatever names the formulas give them, and ``a * b`` equals ``b * a``. So the formulas of two
backwards can be compared. Bool params count at their defaults, optional inputs as given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from kgen.ir import (
    REDUCTIONS,
    SPECIAL,
    Literal,
    Op,
    Program,
    Ref,
    Role,
    Term,
    Type,
    Variable,
    dtypes_in,
    names_in,
)
from kgen.lower import RowOp
from kgen.schedule import Kernel, schedule
from kgen.spec import Element, Kind, Spec


@dataclass(frozen=True, slots=True)
class Cost:
    """The counts of one direction of an op.

    Attributes:
        passes: walks over a row too long to stay in registers; a shorter one is read once.
        row_reductions: sums, means, maxima and minima along the row.
        column_sums: sums over all rows.
        arithmetic: operations for each element of the matrix: ``+``, ``where``, comparisons ...
        special: likewise the functions and divisions, which take several instructions.
        row_ops: operations for each row, or fewer: of scalars too, and the division of a mean.
        column_ops: operations for each column alone, such as ``1 + weight``.
        matrices_read: matrices that are read, inputs, outputs and upstream gradients together.
        matrices_written: matrices that are written; one where gradients have the same values.
    """

    passes: int
    row_reductions: int
    column_sums: int
    arithmetic: int
    special: int
    row_ops: int
    column_ops: int
    matrices_read: int
    matrices_written: int

    @property
    def reductions(self) -> int:
        """Row reductions and column sums."""
        return self.row_reductions + self.column_sums

    @property
    def element_ops(self) -> int:
        """Operations for each element of the matrix, reductions not counted."""
        return self.arithmetic + self.special

    @property
    def flops(self) -> int:
        """Operations for each element of the matrix; every reduction takes one."""
        return self.element_ops + self.reductions


class How(Enum):
    """How a value of forward is there in backward."""

    INPUT = "input"
    REUSED = "output"
    SAVED = "saved"
    RECOMPUTED = "recomputed"


_ORDER = (How.INPUT, How.SAVED, How.REUSED, How.RECOMPUTED)


@dataclass(frozen=True, slots=True)
class Kept:
    """A value of forward that backward needs, and the formulas that use it.

    ``used_in`` is empty where a ``cast`` needs no more than the dtype.
    """

    name: str
    kind: Kind
    how: How
    used_in: tuple[str, ...]


def forward_cost(row_op: RowOp) -> Cost:
    """The counts of forward, run for gradients: it makes what backward has saved."""
    kernels = schedule(row_op).forward
    return _cost(row_op.spec, row_op.forward, kernels)


def backward_cost(row_op: RowOp) -> Cost:
    """The counts of backward with every gradient asked for; the op must have a backward."""
    assert row_op.backward is not None
    return _cost(row_op.spec, row_op.backward, schedule(row_op).passes[0].kernels)


def double_backward_cost(row_op: RowOp) -> Cost:
    """The counts of the double backward; the op must have one."""
    assert row_op.double_backward is not None
    return _cost(row_op.spec, row_op.double_backward, schedule(row_op).passes[1].kernels)


def walks(kernel: Kernel) -> int:
    """How often a kernel goes over each row."""
    return max(1, len(kernel.walks))


def kept(row_op: RowOp) -> tuple[Kept, ...]:
    """What backwards take from forward: inputs, outputs, saved values, and what they make anew.

    Nothing for an op without a backward.
    """
    hows = {Role.INPUT: How.INPUT, Role.OUTPUT: How.REUSED, Role.SAVED: How.SAVED}
    found: dict[tuple[str, How], Kept] = {}
    for program in _backwards(row_op):
        taken = [(v.name, v.own_kind, hows[v.role]) for v in program.variables if v.role in hows]
        taken += [
            (d.name, d.type.kind, How.RECOMPUTED)
            for d in program.definitions
            if row_op.forward.definition(d.name) or _is_forward_name(row_op.spec, d.name)
        ]
        for name, kind, how in taken:
            before = found[name, how].used_in if (name, how) in found else ()
            users = dict.fromkeys((*before, *_used_in(program, name)))
            found[name, how] = Kept(name, kind, how, tuple(users))
    return tuple(sorted(found.values(), key=lambda value: _ORDER.index(value.how)))


def dtype_used_in(row_op: RowOp, name: str) -> tuple[str, ...]:
    """The formulas of backwards that round to the dtype of a name."""
    definitions = [d for program in _backwards(row_op) for d in program.definitions]
    return tuple(dict.fromkeys(d.name for d in definitions if name in dtypes_in(d.term)))


def _backwards(row_op: RowOp) -> tuple[Program, ...]:
    return tuple(p for p in (row_op.backward, row_op.double_backward) if p is not None)


def _used_in(program: Program, name: str) -> tuple[str, ...]:
    return tuple(d.name for d in program.definitions if name in names_in(d.term))


def _is_forward_name(spec: Spec, name: str) -> bool:
    """Whether a name is forward's even if forward itself has no use for it."""
    return any(formula.name == name for formula in spec.forward)


def _cost(spec: Spec, program: Program, kernels: tuple[Kernel, ...]) -> Cost:
    counter = _Counter({p.name: bool(p.default) for p in spec.params if p.element is Element.BOOL})
    for definition in program.definitions:
        counter.names[definition.name] = counter.number(definition.term)
    wanted = [counter.names[r.name] for r in program.results if r.name in counter.names]
    made = [operation for operation in counter.reached(wanted) if not operation.is_free]
    whole = [o for o in made if o.type.kind is Kind.MATRIX]
    special = [o for o in whole if o.op in SPECIAL]
    narrow = [o for o in made if o.op not in _REDUCES]
    used = counter.variables(wanted)
    return Cost(
        passes=sum(walks(kernel) for kernel in kernels if not kernel.is_whole),
        row_reductions=sum(o.op in REDUCTIONS for o in made),
        column_sums=sum(o.op == "sum_rows" for o in made),
        arithmetic=len(whole) - len(special),
        special=len(special),
        row_ops=sum(o.type.kind in (Kind.PER_ROW, Kind.SCALAR) for o in narrow),
        column_ops=sum(o.type.kind is Kind.PER_COLUMN for o in narrow),
        matrices_read=sum(_is_matrix(v) and v.name in used for v in program.variables),
        matrices_written=sum(r.kind is Kind.MATRIX for r in program.results)
        - len(program.repeated),
    )


def _is_matrix(variable: Variable) -> bool:
    return variable.fills_matrix


_REDUCES = (*REDUCTIONS, "sum_rows")
_COMMUTES = frozenset({"add", "mul", "maximum", "minimum", "equal", "not_equal", "and", "or"})
_NUMBER = Type(Kind.SCALAR, Element.FLOAT)


@dataclass(frozen=True, slots=True)
class _Operation:
    """An operation on values, which are known by number; ``op`` is ``name`` for a variable."""

    op: str
    arguments: tuple[int, ...]
    type: Type
    label: str = ""

    @property
    def is_free(self) -> bool:
        return self.op in ("name", "number")


@dataclass(slots=True)
class _Counter:
    """Gives equal values equal numbers. ``flags`` are the bool params."""

    flags: Mapping[str, bool]
    names: dict[str, int] = field(default_factory=dict)
    numbers: dict[_Operation, int] = field(default_factory=dict)
    operations: list[_Operation] = field(default_factory=list)

    def number(self, term: Term) -> int:
        """The number of a term's value."""
        if isinstance(term, Literal):
            return self._of("number", (), _NUMBER, str(float(term.value)))
        if isinstance(term, Ref):
            if term.name in self.names:
                return self.names[term.name]
            return self._of("name", (), term.type, term.name)
        if term.op in ("float", "detach"):
            return self.number(term.arguments[0])
        if term.op == "where" and (chosen := self._truth(term.arguments[0])) is not None:
            return self.number(term.arguments[1 if chosen else 2])
        if term.op == "pow" and isinstance(term.arguments[1], Literal):
            return self._power(term, float(term.arguments[1].value))
        arguments = tuple(map(self.number, term.arguments))
        if term.op == "mean":
            total = self._of("sum", arguments, term.type)
            columns = self._of("name", (), Type(Kind.SCALAR, Element.INT), "N")
            return self._of("div", (total, columns), term.type)
        if term.op == "silu":
            factor = self._of("sigmoid", arguments, term.type)
            return self._of("mul", (*arguments, factor), term.type)
        if term.op == "clamp":
            value, low, high = arguments
            raised = self._of("maximum", (value, low), term.type)
            return self._of("minimum", (raised, high), term.type)
        return self._of(term.op, arguments, term.type, term.like or "")

    def reached(self, wanted: list[int]) -> list[_Operation]:
        """Every operation that some values take, once."""
        seen: set[int] = set()
        left = list(wanted)
        while left:
            value = left.pop()
            if value not in seen:
                seen.add(value)
                left.extend(self.operations[value].arguments)
        return [self.operations[value] for value in sorted(seen)]

    def variables(self, wanted: list[int]) -> set[str]:
        """The names of the variables that some values depend on."""
        return {o.label for o in self.reached(wanted) if o.op == "name"}

    def _of(self, op: str, arguments: tuple[int, ...], type_: Type, label: str = "") -> int:
        if op in _COMMUTES:
            arguments = tuple(sorted(arguments))
        operation = _Operation(op, arguments, type_, label)
        if operation not in self.numbers:
            self.numbers[operation] = len(self.operations)
            self.operations.append(operation)
        return self.numbers[operation]

    def _power(self, term: Op, exponent: float) -> int:
        """A power as kernels write it: roots, products, or one over them."""
        base = self.number(term.arguments[0])
        if exponent in (0.5, -0.5):
            return self._of("sqrt" if exponent > 0 else "rsqrt", (base,), term.type)
        if exponent not in (-2, -1, 1, 2, 3, 4):
            return self._of("pow", (base, self.number(term.arguments[1])), term.type)
        value = base
        for _ in range(int(abs(exponent)) - 1):
            value = self._of("mul", (value, base), term.type)
        if exponent > 0:
            return value
        one = self._of("number", (), _NUMBER, "1.0")
        return self._of("div", (one, value), term.type)

    def _truth(self, condition: Term) -> bool | None:
        """What a condition of bool params alone comes to; None for another."""
        if isinstance(condition, Ref):
            return self.flags.get(condition.name)
        if not isinstance(condition, Op) or condition.op not in ("and", "or", "not"):
            return None
        values = [self._truth(argument) for argument in condition.arguments]
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return None
        if condition.op == "not":
            return not known[0]
        return all(known) if condition.op == "and" else any(known)
