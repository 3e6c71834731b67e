"""The double backward of an op against autograd of autograd of the reference."""

from __future__ import annotations

import zlib

import torch
from kgen.interpret import run
from kgen.ir import Program
from kgen.lower import RowOp
from kgen.spec import Kind, differentiable_inputs, gradient_name, second_gradient_name
from kgen.verify.measure import Tensors, ahead, backward_values, pulled
from kgen.verify.reference import Reference
from kgen.verify.samples import Sample
from torch import Tensor


def double_backward(op: RowOp, reference: Reference, sample: Sample) -> tuple[Tensors, Tensors]:
    """The results of ``op.double_backward`` and what they have to be, by name.

    A result ``dd<output>`` is the gradient of an upstream gradient, ``d2<input>`` that of an input.
    """
    program = op.double_backward
    assert program is not None
    weights = _weights(op, sample)
    got = _formulas(op, sample, weights, program)
    expected = _expected(op, reference, sample, weights)
    return got, {name: value for name, value in expected.items() if name in got}


def _weights(op: RowOp, sample: Sample) -> Tensors:
    """A random gradient for the gradient of every input that is given, as the user passes it."""
    drawn: Tensors = {}
    for entry in differentiable_inputs(op.spec):
        tensor = sample.inputs[entry.name]
        if tensor is not None:
            words = (op.spec.op, entry.name, sample.shape, "double")
            seed = torch.Generator().manual_seed(zlib.crc32(repr(words).encode()))
            drawn[entry.name] = torch.randn(tensor.shape, generator=seed, dtype=torch.float64)
    return drawn


def _formulas(op: RowOp, sample: Sample, weights: Tensors, program: Program) -> Tensors:
    values = backward_values(op, sample, ahead(op, sample), program)
    for entry in differentiable_inputs(op.spec):
        above = weights.get(entry.name)
        name = gradient_name(gradient_name(entry.name))
        values[name] = 0.0 if above is None else sample.flat_input(above, entry)
    with torch.no_grad():
        found = run(program, values)
    return {result.name: found[result.name] for result in program.results}


def _expected(op: RowOp, reference: Reference, sample: Sample, weights: Tensors) -> Tensors:
    inputs = {name: None if t is None else t.clone() for name, t in sample.inputs.items()}
    leaves = {name: _present(inputs[name]).requires_grad_() for name in weights}
    above = {n: t.clone().requires_grad_() for n, t in sample.upstream.items() if t is not None}
    with torch.enable_grad():
        returned = reference.outputs(sample, inputs)
        with reference.differentiated(sample):
            first = pulled(op, sample, returned, leaves, above, create_graph=True)
        total = sum(((first[name] * weights[name]).sum() for name in weights), torch.zeros(()))
    towards = {**leaves, **above}
    found: tuple[Tensor | None, ...] = (None,) * len(towards)
    if total.requires_grad:
        with reference.differentiated(sample):
            found = torch.autograd.grad(total, list(towards.values()), allow_unused=True)
    inputs_by_name = {entry.name: entry for entry in op.spec.inputs}
    expected: Tensors = {}
    for (name, leaf), value in zip(towards.items(), found, strict=True):
        tensor = torch.zeros_like(leaf) if value is None else value.detach()
        if name in leaves:
            expected[second_gradient_name(name)] = sample.flat_input(tensor, inputs_by_name[name])
        else:
            kind = _output_kind(op, name)
            expected[gradient_name(gradient_name(name))] = sample.flat(tensor, kind)
    return expected


def _output_kind(op: RowOp, name: str) -> Kind:
    return op.output_kind(next(output for output in op.spec.outputs if output.name == name))


def _present(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor
