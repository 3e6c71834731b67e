"""Random arguments: the same on every machine for the same case, and never ones or zeros."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

import torch
from kgen.testing.description import Input, Number, Op, Param

Shape = tuple[int, ...]
Tensors = dict[str, torch.Tensor | None]

PER_ROW_KINDS = ("matrix", "per_row", "per_place")
"""Kinds with something for every row of a matrix of rank 2."""

MATRIX_KINDS = ("matrix", "per_batch", "per_place")
"""Kinds with a value of their own for each place of a row."""

LONG: Shape = (3, 201)  # no power of two, and several chunks on the lowered path


@dataclass(frozen=True, slots=True)
class Arguments:
    """One call: tensors in the order of the op's inputs, params by name."""

    tensors: Tensors
    params: dict[str, Number]

    def with_tensors(self, changed: Mapping[str, torch.Tensor | None]) -> Arguments:
        """The same call with some tensors replaced."""
        return replace(self, tensors={**self.tensors, **changed})

    def wide(self) -> Arguments:
        """The same call with floats in float64, on the CPU and in fresh memory."""
        copies: Tensors = {}
        for name, tensor in self.tensors.items():
            copy = None if tensor is None else tensor.detach().cpu().clone()
            copies[name] = copy.double() if copy is not None and copy.is_floating_point() else copy
        return self.with_tensors(copies)

    def rows(self, op: Op, index: torch.Tensor) -> Arguments:
        """The same call for some of the rows of a matrix of rank 2, in fresh memory."""
        chosen = {
            entry.name: tensor[index.to(tensor.device)].clone()
            for entry in op.inputs
            if entry.kind in PER_ROW_KINDS and (tensor := self.tensors[entry.name]) is not None
        }
        return self.with_tensors(chosen)

    @property
    def compute(self) -> torch.dtype:
        """The dtype the kernels calculate in."""
        wide = any(t is not None and t.dtype == torch.float64 for t in self.tensors.values())
        return torch.float64 if wide else torch.float32

    def itemsize(self, op: Op) -> int:
        """Bytes of the widest elements of the matrices; 8 where the arithmetic is in float64."""
        matrices = [i for i in op.inputs if i.kind in MATRIX_KINDS and i.element != "bool"]
        given = [t for i in matrices if (t := self.tensors[i.name]) is not None]
        return 8 if self.compute == torch.float64 else max([2, *(t.itemsize for t in given)])


def dtype_of(name: str) -> torch.dtype:
    """``torch.float16`` for ``"float16"``."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def generator(*seed: object) -> torch.Generator:
    """Random numbers that depend on the words of the seed alone."""
    return torch.Generator().manual_seed(zlib.crc32(repr(seed).encode()))


def arguments(
    op: Op,
    shape: Shape,
    dtype: str,
    *,
    given: Collection[str] | None = None,
    dtypes: Mapping[str, str] | None = None,
    integers: bool = False,
    vary: bool = True,
) -> Arguments:
    """Random arguments for a matrix of that shape.

    ``given`` names the optional inputs that are passed (all unless told), ``dtypes`` the inputs
    whose dtype is another one, ``integers`` asks for whole numbers in [-8, 8], and ``vary`` draws
    the params too instead of taking their defaults, and puts the values of int params among the
    entries of int inputs.
    """
    seed = generator(op.name, shape)
    if op.batched and len(shape) < 2:
        shape = (1, *shape)
    tensors: Tensors = {}
    for entry in op.inputs:
        values = _values(entry, shape, seed, integers)
        stored = dtype_of((dtypes or {}).get(entry.name, dtype))
        wanted = not entry.optional or given is None or entry.name in given
        tensors[entry.name] = _stored(entry, values, stored, op.device) if wanted else None
    params = {param.name: _param(param, seed) if vary else param.default for param in op.params}
    call = Arguments(tensors, params)
    return _equal_to_params(op, call) if vary else call


def upstream(op: Op, outputs: Mapping[str, torch.Tensor], integers: bool = False) -> Tensors:
    """A random gradient for every float output, of its shape and dtype."""
    seed = generator(op.name, "upstream", *(tuple(out.shape) for out in outputs.values()))
    drawn: Tensors = {}
    for name, out in outputs.items():
        values = _normal(out.shape, seed) if not integers else _whole(out.shape, seed)
        drawn[name] = values.to(out.dtype).to(out.device) if out.dtype.is_floating_point else None
    return drawn


def subsets(names: Collection[str], smallest: int = 0) -> list[tuple[str, ...]]:
    """Selections of the names: none, one, all but one and all, at least the smallest number.

    That is every selection of up to three names, and of more every pair of them with both, either
    and none chosen.
    """
    most = len(names)
    sizes = [size for size in range(smallest, most + 1) if size <= 1 or size >= most - 1]
    return [chosen for size in sizes for chosen in combinations(names, size)]


def mixtures(op: Op) -> list[dict[str, str]]:
    """Inputs whose dtype differs from the first matrix's, one way to mix a dict.

    All others together, and each input alone in the widest: one is enough to make arithmetic wide.
    """
    others = [i.name for i in op.inputs if i.element == "float" and i.name != op.matrix.name]
    wider = [dtype for dtype in op.dtypes if dtype in ("float32", "float64")]
    together = [dict.fromkeys(others, dtype) for dtype in wider] if others else []
    alone = [{name: wider[-1]} for name in others] if len(others) > 1 and wider else []
    exact = others and wider and not op.reuses_outputs  # a stored output has been rounded
    first = [{op.matrix.name: wider[-1]}] if exact else []
    return [*together, *alone, *first]


def shape_of(entry: Input, shape: Shape) -> Shape:
    """The shape of an input beside a matrix of the given shape."""
    own: Shape = {
        "matrix": shape,
        "per_row": shape[:-1],
        "per_column": shape[-1:],
        "per_batch": shape[:-2] + shape[-1:],
        "per_place": shape[-2:],
        "scalar": (),
    }[entry.kind]
    if not entry.shares_columns:
        return own
    n_columns = own[-1]
    # Where there is room, as many columns share an entry as kernels read at once.
    width = next((n for n in (8, *range(2, n_columns)) if n_columns % n == 0), n_columns)
    return (*own[:-1], n_columns // max(width, 1))


def choices(param: Param) -> tuple[Number, ...]:
    """Values a param takes in the tests: its default and others within its bounds."""
    if isinstance(param.default, bool):
        return (False, True)
    others: Iterable[Number]
    if isinstance(param.default, int):
        others = (0, 1, 2, param.default + 1)
    else:
        step = 0.3 * max(1.0, abs(param.default))
        others = (param.default + step / 3, param.default + step, param.default - step / 7)
    low = float("-inf") if param.minimum is None else param.minimum
    high = float("inf") if param.maximum is None else param.maximum
    return (param.default, *(value for value in others if low < value < high))


def _param(param: Param, seed: torch.Generator) -> Number:
    known = choices(param)
    return known[int(torch.randint(len(known), (1,), generator=seed))]


def _equal_to_params(op: Op, call: Arguments) -> Arguments:
    """The same call with entries of int inputs equal to int params: one may mean 'ignore'.

    Some entries of an input are, never all. A value that the reference refuses stays out: a seed
    may be no column.
    """
    names = [param.name for param in op.params if type(param.default) is int]
    for entry in op.inputs:
        values = call.tensors[entry.name]
        if entry.element != "int" or values is None:
            continue
        seed = generator(op.name, "equal to params", entry.name, tuple(values.shape))
        some = torch.randperm(values.numel(), generator=seed)[: (values.numel() + 1) // 3]
        for place, name in enumerate(names):
            changed = values.flatten().clone()
            changed[some[place :: len(names)].to(values.device)] = call.params[name]
            changed = changed.reshape(values.shape)
            if _is_taken(op, call.with_tensors({entry.name: changed})):
                values = changed
        call = call.with_tensors({entry.name: values})
    return call


def _is_taken(op: Op, call: Arguments) -> bool:
    """Whether the reference gives results for these values."""
    try:
        with torch.no_grad():
            op.reference(*call.wide().tensors.values(), **call.params)
    except Exception:  # the user's code may raise whatever it likes
        return False
    return True


def _values(entry: Input, shape: Shape, seed: torch.Generator, integers: bool) -> torch.Tensor:
    own, n_columns = shape_of(entry, shape), shape[-1]
    if entry.element == "bool":
        return torch.rand(own, generator=seed) < 0.5
    if entry.element == "int" and entry.kind == "per_row":
        return torch.randint(0, max(n_columns, 1), own, generator=seed)
    if integers or entry.element == "int":
        return _whole(own, seed)
    if entry.kind == "matrix":
        # Away from zero, where a short row would be ill-conditioned or sit on a kink.
        values = _normal(own, seed)
        return values + torch.where(values < 0, -0.25, 0.25)
    return (entry.absent or 0.0) + 0.5 * _normal(own, seed)


def _stored(entry: Input, values: torch.Tensor, dtype: torch.dtype, device: str) -> torch.Tensor:
    return values.to(device=device, dtype=dtype if entry.element == "float" else values.dtype)


def _normal(shape: Iterable[int], seed: torch.Generator) -> torch.Tensor:
    return torch.randn(tuple(shape), generator=seed, dtype=torch.float64)


def _whole(shape: Iterable[int], seed: torch.Generator) -> torch.Tensor:
    return torch.randint(-8, 9, tuple(shape), generator=seed)
