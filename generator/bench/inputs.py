"""Random arguments of a cell, on the device, the same on every run."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from kgen.bench.cells import Cell
from kgen.interpret import Number, dtype_of
from kgen.lower import RowOp
from kgen.spec import (
    COMPUTE,
    Element,
    Input,
    Kind,
    Output,
    Spec,
    differentiable_outputs,
)
from torch import Tensor

Shape = tuple[int, ...]
Tensors = dict[str, Tensor]

ROWS_OF_A_BATCH, PLACES, CHANNELS = 1024, 32, 8
"""Of (..., T, N): T beside per_batch and beside per_place inputs, and channels of a group."""

LOGARITHMS = {("jsd", "x"), ("jsd", "target"), ("kl_div", "x")}
"""Inputs that are log-probabilities."""

PROBABILITIES = {("kl_div", "target")}

UPSTREAM = {"cross_entropy": ("loss",)}
"""The outputs that a gradient comes back for, where it is not all of them: ``lse`` is for logs."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """One call: tensors in the order of the op's inputs, params and upstream gradients by name."""

    shape: Shape
    tensors: Tensors
    params: Mapping[str, Number]
    upstream: Tensors


def draw(row_op: RowOp, cell: Cell, device: str) -> Arguments:
    """Every input, also an optional one, from a normal distribution; params at their defaults.

    Targets lie in the row, half of a condition holds, and rows of probabilities add up to 1.
    """
    spec = row_op.spec
    seed = torch.Generator(device).manual_seed(zlib.crc32(str(cell).encode()))
    shape = matrix_shape(spec, cell.rows, cell.columns)
    dtype = dtype_of(cell.dtype)
    tensors = {entry.name: _values(spec, entry, shape, dtype, seed) for entry in spec.inputs}
    wanted = UPSTREAM.get(spec.op, tuple(o.name for o in differentiable_outputs(spec)))
    upstream = {}
    for output in differentiable_outputs(spec):
        if row_op.backward is not None and output.name in wanted:
            own = shape if row_op.output_kind(output) is Kind.MATRIX else shape[:-1]
            drawn = torch.randn(own, generator=seed, device=device)
            # Numbers that a result of the narrower dtype takes too.
            upstream[output.name] = drawn.to(dtype).to(output_dtype(spec, output, dtype))
    return Arguments(shape, tensors, params_of(spec, cell), upstream)


def params_of(spec: Spec, cell: Cell) -> dict[str, Number]:
    """Defaults, but for what is mostly given: a square causal mask, and the GELU with tanh."""
    params: dict[str, Number] = {param.name: param.default for param in spec.params}
    if spec.op == "causal_softmax":
        params["queries"] = math.gcd(cell.rows, cell.columns)
    if spec.op == "geglu":
        params["approximate"] = True
    return params


def matrix_shape(spec: Spec, rows: int, columns: int) -> Shape:
    """(M, N), or (M / T, T, N) for an op that takes a batch of matrices."""
    kinds = {entry.kind for entry in spec.inputs}
    if Kind.PER_PLACE in kinds:
        places = math.gcd(rows, PLACES)
    elif Kind.PER_BATCH in kinds:
        places = math.gcd(rows, ROWS_OF_A_BATCH)
    else:
        return rows, columns
    return rows // places, places, columns


def input_shape(entry: Input, shape: Shape) -> Shape:
    """The shape of an input beside a matrix of ``shape``."""
    shapes = {
        Kind.PER_ROW: shape[:-1],
        Kind.PER_COLUMN: shape[-1:],
        Kind.PER_BATCH: shape[:-2] + shape[-1:],
        Kind.PER_PLACE: shape[-2:],
        Kind.SCALAR: (),
    }
    own = shapes.get(entry.kind, shape)
    return (*own[:-1], math.gcd(own[-1], CHANNELS)) if entry.shares_columns else own


def output_dtype(spec: Spec, output: Output, floats: torch.dtype) -> torch.dtype:
    """The dtype that the spec gives an output beside float inputs of one dtype."""
    if output.dtype == COMPUTE:
        return torch.float64 if floats is torch.float64 else torch.float32
    if any(entry.name == output.dtype for entry in spec.inputs):
        return floats
    return dtype_of(output.dtype)


def _values(
    spec: Spec, entry: Input, shape: Shape, dtype: torch.dtype, seed: torch.Generator
) -> Tensor:
    own, device = input_shape(entry, shape), seed.device
    if entry.element is Element.BOOL:
        return torch.rand(own, generator=seed, device=device) < 0.5
    if entry.element is Element.INT:
        return torch.randint(0, shape[-1], own, generator=seed, device=device)
    drawn = torch.randn(own, generator=seed, device=device)
    if (spec.op, entry.name) in LOGARITHMS:
        drawn = torch.log_softmax(drawn, dim=-1)
    elif (spec.op, entry.name) in PROBABILITIES:
        drawn = torch.softmax(drawn, dim=-1)
    elif entry.kind is not Kind.MATRIX:
        drawn = (0.5 if entry.absent is None else entry.absent) + 0.25 * drawn
    return drawn.to(dtype)
