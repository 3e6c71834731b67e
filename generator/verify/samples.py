"""The arguments that a spec is verified with: the same ones on every machine."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, product

import torch
from kgen.interpret import Number
from kgen.ir import COMPARISONS, LOGIC, REDUCTIONS, Literal, Op, Program, Ref, Term, walk
from kgen.lower import RowOp
from kgen.spec import Element, Input, Kind, Param, differentiable_outputs, is_batched
from torch import Tensor

SHAPES = ((4, 7), (3, 1), (1, 5), (5, 16), (4, 2), (3, 33), (2, 2, 6), (9,))
"""Rows and columns, an op's leading dimensions before the last; (4, 7) is what most cases have."""

_SUBSETS, _SWITCHES = 64, 16
_APART = frozenset({*REDUCTIONS, *COMPARISONS, *LOGIC, "random"})


@dataclass(frozen=True, slots=True)
class Sample:
    """One call, in the shapes that a user passes: ``shape`` is the matrix's.

    ``inputs`` holds None for an optional input that is not given, ``upstream`` None for an output
    whose gradient takes no part. ``equal`` names an int input that has the value of an int param
    in some places, and that param. ``told`` are the values of inputs that messages tell.
    """

    shape: tuple[int, ...]
    inputs: Mapping[str, Tensor | None]
    params: Mapping[str, Number]
    upstream: Mapping[str, Tensor | None]
    scale: float = 1.0
    equal: tuple[str, str] | None = None
    told: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """How many rows the matrix has when it is seen as one of rank 2."""
        return math.prod(self.shape[:-1])

    def flat_input(self, tensor: Tensor, entry: Input) -> Tensor:
        """An input, or its gradient, in the shape that programs take: also (), where it is one."""
        if not entry.is_shared:
            return self.flat(tensor, entry.kind)
        return tensor.flatten()[self._entries(entry, tensor.shape)]

    def entries(self, op: RowOp) -> dict[str, Tensor]:
        """For each shared input, given or not, which entry every place holds."""
        found = {}
        for entry in op.spec.inputs:
            if entry.is_shared:
                tensor = self.inputs[entry.name]
                own = own_shape(entry, self.shape) if tensor is None else tensor.shape
                found[entry.name] = self._entries(entry, own)
        return found

    def _entries(self, entry: Input, own: tuple[int, ...]) -> Tensor:
        if entry.kind is Kind.SCALAR:
            return torch.tensor(0)
        columns, wide = self.shape[-1], own[-1]
        column = torch.arange(columns).unsqueeze(0) // (columns // wide)
        if entry.kind is Kind.PER_COLUMN:
            return column
        row, places = torch.arange(self.rows).unsqueeze(1), self.shape[-2]
        return (row // places if entry.kind is Kind.PER_BATCH else row % places) * wide + column

    def flat(self, tensor: Tensor, kind: Kind) -> Tensor:
        """A tensor of some kind in the shape that programs take: (M, N), (M, 1) or (1, N)."""
        columns = self.shape[-1]
        if kind is Kind.PER_COLUMN:
            return tensor.reshape(1, columns)
        return tensor.reshape(self.rows, columns if kind is Kind.MATRIX else 1)

    def values(self, op: RowOp) -> dict[str, Tensor | Number]:
        """What the op's programs are given: inputs and params; absent inputs are left out."""
        given: dict[str, Tensor | Number] = {}
        for entry in op.spec.inputs:
            tensor = self.inputs[entry.name]
            if tensor is not None:
                given[entry.name] = self.flat_input(tensor, entry)
        return {**given, **self.params}

    def above(self, op: RowOp) -> dict[str, Tensor]:
        """The upstream gradients as a backward program takes them, by the names it uses."""
        return {
            f"d{output.name}": self.flat(tensor, op.output_kind(output))
            for output in differentiable_outputs(op.spec)
            if (tensor := self.upstream[output.name]) is not None
        }


def samples(op: RowOp) -> tuple[Sample, ...]:
    """Every shape, selection of optional inputs and edge of a param, some alone, some together."""
    return tuple(_Drawer(op).all())


def small_samples(op: RowOp, seed: int) -> tuple[Sample, ...]:
    """For each choice of optional inputs and bool params a sample of a few entries."""
    drawer = _Drawer(op, seed)
    return tuple(
        drawer.draw((2, 3), given, drawer.defaults | switches)
        for given in drawer.selections()
        for switches in drawer.switches()
    )


def are_compared(op: RowOp, *names: str) -> bool:
    """Whether one comparison of the formulas is between values that all these are part of."""
    programs = [op.forward] if op.backward is None else [op.forward, op.backward]
    return any(
        isinstance(term, Op) and term.op in COMPARISONS and _parts(program, term) >= {*names}
        for program in programs
        for definition in program.definitions
        for term in walk(definition.term)
    )


def _parts(program: Program, compared: Op) -> set[str]:
    """The names that a comparison's two sides are calculated from, entry by entry."""
    found: set[str] = set()
    waiting: list[Term] = [*compared.arguments]
    while waiting:
        term = waiting.pop()
        if isinstance(term, Ref) and term.name not in found:
            found.add(term.name)
            definition = program.definition(term.name)
            waiting += [] if definition is None else [definition.term]
        elif isinstance(term, Op) and term.op not in _APART:
            waiting += term.arguments
    return found


class _Drawer:
    def __init__(self, op: RowOp, seed: int = 0) -> None:
        self.op, self.spec, self.seed = op, op.spec, seed
        self.defaults: dict[str, Number] = {p.name: p.default for p in self.spec.params}
        self.optional = [i.name for i in self.spec.inputs if i.absent is not None]

    def all(self) -> Iterator[Sample]:
        for shape in SHAPES:
            yield self.draw(shape, self.optional, self.defaults)
        for switches in self.switches():
            for given in self.selections():
                yield self.draw((4, 7), given, self.defaults | switches)
            for param in self.spec.params:
                for value in _edges(param):
                    edge = {**self.defaults, **switches, param.name: value}
                    yield self.draw((4, 7), self.optional, edge)
                    yield self.draw((3, 16), self.optional, edge)
        for scale in self._scales():
            yield self.draw((4, 7), self.optional, self.defaults, scale=scale)
        outputs = [o.name for o in differentiable_outputs(self.spec)]
        if len(outputs) > 1:
            for name in outputs:
                yield self.draw((4, 7), self.optional, self.defaults, above=(name,))
        params = [param.name for param in self.spec.params if param.element is Element.INT]
        for entry in self.spec.inputs:
            for name in params if entry.element is Element.INT else ():
                equal = entry.name, name
                yield self.draw((8, 7), self.optional, self.defaults, equal=equal)

    def selections(self) -> Iterator[tuple[str, ...]]:
        """Every selection of the optional inputs, at most a bounded number of them."""
        count = 0
        for size in range(len(self.optional), -1, -1):
            for chosen in combinations(self.optional, size):
                count += 1
                if count <= _SUBSETS:
                    yield chosen

    def switches(self) -> Iterator[dict[str, Number]]:
        """Every setting of the bool params, at most a bounded number of them."""
        names = [p.name for p in self.spec.params if p.element is Element.BOOL]
        for count, values in enumerate(product((False, True), repeat=len(names))):
            if count < _SWITCHES:
                yield dict(zip(names, values, strict=True))

    def _scales(self) -> list[float]:
        """Sizes of entries at which small numbers of the op, such as an eps, matter."""
        small = {float(p.default) for p in self.spec.params if p.element is Element.FLOAT}
        for definition in self.op.forward.definitions:
            small |= {float(t.value) for t in walk(definition.term) if isinstance(t, Literal)}
        matter = {v for v in small if 1e-30 < v < 1e-2}
        return [8.0, *sorted({*matter, *(math.sqrt(value) for value in matter)})]

    def draw(
        self,
        shape: tuple[int, ...],
        given: Iterable[str],
        params: Mapping[str, Number],
        *,
        scale: float = 1.0,
        above: Iterable[str] | None = None,
        equal: tuple[str, str] | None = None,
    ) -> Sample:
        """Random values, of which the seed is the case itself."""
        given = tuple(given)
        if is_batched(self.spec):
            shape = _in_batch(shape)
        words = (self.spec.op, shape, given, sorted(params.items()), scale, self.seed)
        seed = torch.Generator().manual_seed(zlib.crc32(repr(words).encode()))
        inputs: dict[str, Tensor | None] = {}
        told: tuple[str, ...] = ()
        for entry in self.spec.inputs:
            drawn = _values(entry, shape, seed, scale)
            if equal is not None and entry.name == equal[0]:
                # The param may be the one that means 'ignore'.
                value = int(params[equal[1]])
                drawn = torch.where(torch.rand(drawn.shape, generator=seed) < 0.4, value, drawn)
                told = (f"{entry.name} = {value} in some places",)
            inputs[entry.name] = drawn if entry.absent is None or entry.name in given else None
        upstream: dict[str, Tensor | None] = {}
        for output in differentiable_outputs(self.spec):
            wide = self.op.output_kind(output) is Kind.MATRIX
            drawn = _upstream(shape if wide else shape[:-1], seed)
            upstream[output.name] = drawn if above is None or output.name in above else None
        return Sample(shape, inputs, params, upstream, scale, equal, told)


def _edges(param: Param) -> list[Number]:
    """The values of a param that cases have beside its default: its bounds, and some inside."""
    if param.element is Element.BOOL:
        return []
    default = param.default
    inside: tuple[Number, ...] = (0, 1, 2, int(default) + 1)
    if param.element is Element.FLOAT:
        step = 0.3 * max(1.0, abs(default))
        inside = (default + step / 3, default + step, default - step / 7, default + 5 * step)
    widest = 2**63 - 1 if param.element is Element.INT else math.inf
    low = -widest if param.minimum is None else param.minimum
    high = widest if param.maximum is None else param.maximum
    bounds = [b for b in (param.minimum, param.maximum) if b is not None and math.isfinite(b)]
    number = int if param.element is Element.INT else float
    chosen = [number(v) for v in (*bounds, *(v for v in inside if low < v < high))]
    return [value for value in dict.fromkeys(chosen) if value != default]


def own_shape(entry: Input, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of an input beside a matrix of ``shape``."""
    shapes = {
        Kind.PER_ROW: shape[:-1],
        Kind.PER_COLUMN: shape[-1:],
        Kind.PER_BATCH: shape[:-2] + shape[-1:],
        Kind.PER_PLACE: shape[-2:],
        Kind.SCALAR: (),
    }
    own = shapes.get(entry.kind, shape)
    if not entry.shares_columns:
        return own
    width = next(n for n in range(2, own[-1] + 2) if own[-1] % n == 0 or n > own[-1])
    return (*own[:-1], max(1, own[-1] // width))


def _in_batch(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of as many rows a batch of matrices: two where the number is even."""
    if len(shape) > 2:
        return shape
    rows = math.prod(shape[:-1])
    return (2, rows // 2, shape[-1]) if rows % 2 == 0 else (rows, shape[-1])


def _values(entry: Input, shape: tuple[int, ...], seed: torch.Generator, scale: float) -> Tensor:
    own = own_shape(entry, shape)
    if entry.element is Element.BOOL:
        return torch.rand(own, generator=seed) < 0.5
    if entry.element is Element.INT:
        low, high = (0, shape[-1]) if entry.kind is Kind.PER_ROW else (-8, 9)
        return torch.randint(low, high, own, generator=seed)
    drawn = torch.randn(own, generator=seed, dtype=torch.float64)
    if entry.kind is Kind.MATRIX:
        # Away from zero, where a short row would be ill-conditioned or sit on a kink.
        return scale * (drawn + torch.where(drawn < 0, -0.25, 0.25).to(torch.float64))
    return (entry.absent or 0.0) + 0.5 * drawn


def _upstream(shape: tuple[int, ...], seed: torch.Generator) -> Tensor:
    """Numbers that every float dtype holds, so that a reference may convert its outputs."""
    drawn = torch.randn(shape, generator=seed, dtype=torch.float64)
    return (drawn * 64).round() / 64 + 1 / 128
