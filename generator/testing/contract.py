"""Calls that an op must refuse, each with the argument that the message must name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from kgen.testing.description import Input, Op, Param
from kgen.testing.layouts import REFUSED_LAYOUTS, arrange
from kgen.testing.samples import Shape, arguments

SHAPE: Shape = (4, 33)


@dataclass(frozen=True, slots=True)
class Refusal:
    """One wrong argument. ``constants`` are those of ``op.py`` to change for the call."""

    argument: str
    what: str
    error: type[Exception]
    value: Any
    shape: Shape = SHAPE
    constants: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.argument}-{self.what}"

    def call(self, op: Op) -> Any:
        """Call the op with the wrong argument among right ones."""
        right = arguments(op, self.shape, op.usual, vary=False)
        keywords: dict[str, Any] = dict(right.params)
        tensors: dict[str, Any] = dict(right.tensors)
        (tensors if self.argument in tensors else keywords)[self.argument] = self.value
        return op.function(*tensors.values(), **keywords)


def refusals(op: Op) -> list[Refusal]:
    """Everything that the contract of the op rules out."""
    found = [Refusal("on_unsupported", "unknown", ValueError, "perhaps")]
    for entry in op.inputs:
        found += _of_input(op, entry)
    for param in op.params:
        found += _of_param(param)
    return found


def _of_input(op: Op, entry: Input) -> Iterator[Refusal]:
    name, right = entry.name, _right(op, entry)
    if not entry.optional:
        yield Refusal(name, "none", TypeError, None)
    yield Refusal(name, "list", TypeError, right.tolist())
    yield Refusal(name, "number", TypeError, 1.0)
    yield Refusal(name, "complex64", TypeError, right.to(torch.complex64))
    if entry.element == "float":
        yield Refusal(name, "int64", TypeError, torch.ones_like(right, dtype=torch.int64))
    else:
        yield Refusal(name, "float32", TypeError, torch.ones_like(right, dtype=torch.float32))
    yield Refusal(name, "meta_device", ValueError, right.to("meta"))
    if not op.interpreted:
        yield Refusal(name, "cpu_device", ValueError, right.cpu())
    if entry.kind == "matrix":
        yield from _of_matrix(op, entry, right)
    elif entry.kind == "scalar":
        yield Refusal(name, "rank_1", ValueError, right[None])
    else:
        yield Refusal(name, "one_longer", ValueError, torch.cat([right, right[:1]]))
        yield Refusal(name, "rank_2", ValueError, right[None])
        yield Refusal(name, "rank_0", ValueError, right[0])
    if entry.kind == "per_column" and right.numel() > 1:
        yield Refusal(name, "one_value", ValueError, right[:1].expand(right.shape))


def _of_matrix(op: Op, entry: Input, right: torch.Tensor) -> Iterator[Refusal]:
    name = entry.name
    yield Refusal(name, "rank_0", ValueError, right[0, 0])
    for layout, shape in REFUSED_LAYOUTS.items():
        strided = arrange(_right(op, entry, shape), layout)
        yield Refusal(name, layout, ValueError, strided, shape)
    if entry == op.matrix:
        few, fewer = {"MAX_COLUMNS": SHAPE[-1] - 1}, {"MAX_ROWS": SHAPE[0] - 1}
        yield Refusal(name, "no_columns", ValueError, _right(op, entry, (4, 0)), (4, 0))
        yield Refusal(name, "too_many_columns", ValueError, right, constants=few)
        yield Refusal(name, "too_many_rows", ValueError, right, constants=fewer)
    else:
        yield Refusal(name, "one_row_less", ValueError, right[1:])
        yield Refusal(name, "one_column_less", ValueError, right[:, 1:].contiguous())


def _of_param(param: Param) -> Iterator[Refusal]:
    name = param.name
    yield Refusal(name, "text", TypeError, "1")
    yield Refusal(name, "none", TypeError, None)
    yield Refusal(name, "tensor", TypeError, torch.ones(()))
    if isinstance(param.default, bool):
        return
    yield Refusal(name, "bool", TypeError, True)
    if isinstance(param.default, int):
        yield Refusal(name, "fraction", TypeError, 1.5)
    else:
        yield Refusal(name, "nan", ValueError, float("nan"))
    kind = type(param.default)
    if param.minimum is not None:
        yield Refusal(name, "below_minimum", ValueError, kind(param.minimum - 1))
    if param.maximum is not None:
        yield Refusal(name, "above_maximum", ValueError, kind(param.maximum + 1))


def _right(op: Op, entry: Input, shape: Shape = SHAPE) -> torch.Tensor:
    tensor = arguments(op, shape, op.usual, vary=False).tensors[entry.name]
    assert tensor is not None
    return tensor
