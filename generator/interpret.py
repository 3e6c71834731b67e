"""Runs a row program with PyTorch, in float64 unless told: what the formulas say, exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from kgen.errors import KgenError, Problem
from kgen.ir import Literal, Op, Program, Ref, Term
from kgen.philox import random
from kgen.spec import OUTPUT_DTYPES, Element, Kind
from torch import Tensor

Number = float | int | bool


def run(
    program: Program,
    values: Mapping[str, Tensor | Number],
    entries: Mapping[str, Tensor] | None = None,
    floats: torch.dtype = torch.float64,
) -> dict[str, Tensor]:
    """The value of every definition by name, each of the shape of its kind or broadcast to less.

    ``values`` gives the program's variables: a matrix as (M, N), per_row as (M, 1), per_column as
    (1, N), a scalar as a number or (); one that may be absent can be left out. M and N are those
    that the values broadcast to, so values that the program does not use may be given too.
    ``entries`` numbers, for an input whose entries serve several rows or columns, the entry that
    each place of its value holds; its gradient is then the sum over all places of an entry. Floats
    count as ``floats``, and everything lies where the values do. Autograd flows through every
    function, through ``cast`` as the identity and not through ``detach``. Raises ``KgenError``
    where whole numbers are divided by zero.
    """
    scope = scope_of(program, values, entries, floats)
    found: dict[str, Tensor] = {}
    for definition in program.definitions:
        found[definition.name] = scope.evaluate(definition.term)
        scope.values[definition.name] = found[definition.name]
    return found


@dataclass(slots=True)
class Scope:
    """The values that terms may refer to, for a matrix of ``shape``."""

    shape: tuple[int, int]
    values: dict[str, Tensor]
    dtypes: dict[str, torch.dtype] = field(default_factory=dict)
    entries: Mapping[str, Tensor] = field(default_factory=dict)
    floats: torch.dtype = torch.float64

    def evaluate(self, term: Term) -> Tensor:
        """The value of a term; names in it must be known."""
        if isinstance(term, Literal):
            return torch.tensor(term.value, dtype=element_dtype(term.type.element, self.floats))
        if isinstance(term, Ref):
            return self.values[term.name]
        return self.apply(term, [self.evaluate(argument) for argument in term.arguments])

    def apply(self, term: Op, arguments: Sequence[Tensor]) -> Tensor:
        """The value of an operation, given those of its arguments."""
        dtype = element_dtype(term.type.element, self.floats)
        if term.op == "cast":
            return self._cast(arguments[0], term.like or "")
        entries = self.entries.get(term.like or "")
        if term.op == "sum_rows" and entries is not None:
            return entry_sums(arguments[0].to(dtype).expand(self.shape), entries)
        if term.op in _REDUCTIONS:
            return _REDUCTIONS[term.op](arguments[0].to(dtype).expand(self.shape))
        if term.op == "random":
            seed, row, _ = arguments
            return random(int(seed), torch.empty(self.shape, device=row.device)).to(dtype)
        if term.op in _CHOICES:
            return _CHOICES[term.op](arguments)
        if term.op == "where":
            condition, yes, no = arguments
            return torch.where(condition, yes.to(dtype), no.to(dtype))
        if term.op in ("floordiv", "mod") and dtype is torch.int64 and not arguments[1].all():
            raise KgenError(Problem("a whole number is divided by zero here", term.at))
        return _FUNCTIONS[term.op](*(argument.to(dtype) for argument in arguments))

    def _cast(self, value: Tensor, like: str) -> Tensor:
        dtype = self.dtypes.get(like) or dtype_of(like)
        if dtype is self.floats:
            return value
        rounded: Tensor = _Round.apply(value, dtype)  # type: ignore[no-untyped-call]
        return rounded


def entry_sums(values: Tensor, entries: Tensor) -> Tensor:
    """At each place the sum of the values at all places that hold the same entry."""
    places = entries.expand(values.shape).flatten()
    totals = values.new_zeros(int(places.max()) + 1 if len(places) else 1)
    return totals.index_add(0, places, values.flatten())[entries]


def scope_of(
    program: Program,
    values: Mapping[str, Tensor | Number],
    entries: Mapping[str, Tensor] | None = None,
    floats: torch.dtype = torch.float64,
) -> Scope:
    """A scope with the variables of a program and the built-in names."""
    tensors = [value for value in values.values() if isinstance(value, Tensor)]
    shapes = [tensor.shape for tensor in tensors]
    shape = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    rows, columns = (1, 1, *shape)[-2:]
    device = tensors[0].device if tensors else None
    built_in = {
        "N": torch.tensor(columns),
        "row": torch.arange(rows, device=device).unsqueeze(1),
        "column": torch.arange(columns, device=device).unsqueeze(0),
    }
    scope = Scope((rows, columns), built_in, entries=entries or {}, floats=floats)
    for variable in program.variables:
        value = values.get(variable.name, variable.absent)
        assert value is not None, f"the program needs a value for {variable.name}"
        given = torch.as_tensor(value, dtype=element_dtype(variable.type.element, floats))
        scope.values[variable.name] = given.expand(shape_of(variable.type.kind, scope.shape))
        if isinstance(value, Tensor) and not value.is_floating_point():
            scope.dtypes[variable.name] = value.dtype
        else:
            scope.dtypes[variable.name] = given.dtype
    return scope


def element_dtype(element: Element, floats: torch.dtype = torch.float64) -> torch.dtype:
    """The dtype that values of an element type are calculated in."""
    whole = {Element.INT: torch.int64, Element.BOOL: torch.bool}
    return whole.get(element, floats)


def shape_of(kind: Kind, shape: tuple[int, int]) -> tuple[int, ...]:
    """The shape of a value of some kind beside a matrix of ``shape``."""
    rows, columns = shape
    shapes = {Kind.PER_ROW: (rows, 1), Kind.PER_COLUMN: (1, columns), Kind.SCALAR: ()}
    return shapes.get(kind, shape)


def dtype_of(name: str) -> torch.dtype:
    """``torch.float16`` for ``"float16"``."""
    assert name in OUTPUT_DTYPES, f"{name} is no dtype"
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def rounded_to(value: Tensor, dtype: torch.dtype) -> Tensor:
    """The value after a trip through ``dtype``; to eight bits by way of float32, as on a GPU."""
    own = value.dtype
    if dtype.itemsize == 1 and dtype.is_floating_point:
        value = value.to(torch.float32)
    return value.to(dtype).to(own)


class _Round(torch.autograd.Function):
    """Rounds to a dtype; the identity for gradients."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, dtype: torch.dtype) -> Tensor:
        return rounded_to(value, dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


_REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda values: values.sum(1, keepdim=True),
    "mean": lambda values: values.mean(1, keepdim=True),
    "max": lambda values: values.amax(1, keepdim=True),
    "min": lambda values: values.amin(1, keepdim=True),
    "sum_rows": lambda values: values.sum(0, keepdim=True),
}

# The operands keep their own dtypes: the result is bool whatever they are.
_CHOICES: dict[str, Callable[[Sequence[Tensor]], Tensor]] = {
    "less": lambda pair: pair[0] < pair[1],
    "less_equal": lambda pair: pair[0] <= pair[1],
    "greater": lambda pair: pair[0] > pair[1],
    "greater_equal": lambda pair: pair[0] >= pair[1],
    "equal": lambda pair: pair[0] == pair[1],
    "not_equal": lambda pair: pair[0] != pair[1],
    "and": lambda pair: pair[0] & pair[1],
    "or": lambda pair: pair[0] | pair[1],
    "not": lambda only: ~only[0],
}


def _floordiv(left: Tensor, right: Tensor) -> Tensor:
    if left.is_floating_point():
        return torch.floor(left / right)
    return torch.div(left, right, rounding_mode="floor")


def _mod(left: Tensor, right: Tensor) -> Tensor:
    """The remainder with the sign of the divisor, as in Python."""
    return left - right * _floordiv(left, right)


_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "floordiv": _floordiv,
    "mod": _mod,
    "neg": lambda a: -a,
    "pow": torch.pow,
    "exp": torch.exp,
    "log": torch.log,
    "log1p": torch.log1p,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": lambda a: a * torch.sigmoid(a),
    "erf": torch.erf,
    "abs": torch.abs,
    "sign": lambda a: torch.where(a.isnan(), a, torch.sign(a)),
    "floor": torch.floor,
    "round": torch.round,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "clamp": lambda a, low, high: torch.minimum(torch.maximum(a, low), high),
    "float": lambda a: a,
    "detach": lambda a: a.detach(),
}
