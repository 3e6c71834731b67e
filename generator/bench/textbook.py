"""The formulas of a spec in eager PyTorch, an operation at a time: an op as it is written down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from kgen.bench.inputs import output_dtype
from kgen.bench.subject import Subject
from kgen.interpret import Number, scope_of
from kgen.spec import BATCHED_KINDS, Kind
from torch import Tensor


def textbook_of(subject: Subject) -> Callable[..., Any] | None:
    """A function of the inputs and params, or None for inputs that rows or columns share."""
    spec = subject.spec
    if any(entry.kind in BATCHED_KINDS or entry.shares_columns for entry in spec.inputs):
        return None

    def textbook(*tensors: Tensor, **params: Number) -> tuple[Tensor, ...]:
        return evaluated(subject, tensors, params)

    return textbook


def evaluated(
    subject: Subject, tensors: tuple[Tensor, ...], params: dict[str, Number]
) -> tuple[Tensor, ...]:
    """The outputs: arithmetic in float32 (float64 if an input is), then rounded to their dtypes."""
    program, spec = subject.row_op.forward, subject.spec
    given = dict(zip((entry.name for entry in spec.inputs), tensors, strict=True))
    wide = any(tensor.dtype is torch.float64 for tensor in tensors)
    shape = given[spec.inputs[0].name].shape
    rows = shape[:-1].numel()
    flat = {Kind.MATRIX: (rows, shape[-1]), Kind.PER_ROW: (rows, 1), Kind.PER_COLUMN: (1, -1)}
    values: dict[str, Tensor | Number] = {
        entry.name: given[entry.name].reshape(flat.get(entry.kind, ())) for entry in spec.inputs
    }
    floats = torch.float64 if wide else torch.float32
    scope = scope_of(program, {**values, **params}, floats=floats)
    scope.dtypes |= {name: tensor.dtype for name, tensor in given.items()}
    for definition in program.definitions:
        scope.values[definition.name] = scope.evaluate(definition.term)
    outputs = []
    for output in spec.outputs:
        kind = subject.row_op.output_kind(output)
        value = scope.values[output.name].expand(flat[kind])
        value = value.to(output_dtype(spec, output, given[spec.inputs[0].name].dtype))
        outputs.append(value.reshape(shape if kind is Kind.MATRIX else shape[:-1]))
    return tuple(outputs)
