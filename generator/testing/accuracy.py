"""Checks of results against the op's reference."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import torch
from kgen.testing import paths
from kgen.testing.description import Case, Op
from kgen.testing.expectations import (
    both,
    expect_column_sums,
    expect_dtypes,
    expect_neighbours,
    expect_schedules,
)
from kgen.testing.interpreter import watched
from kgen.testing.report import Report
from kgen.testing.results import (
    Result,
    backward,
    forward,
    named,
    present,
    reference,
)
from kgen.testing.samples import (
    LONG,
    Arguments,
    Shape,
    Tensors,
    arguments,
    dtype_of,
    upstream,
)
from kgen.testing.special import SPECIAL_ROWS


def check_forward(op: Op, shape: Shape, dtype: str, path: str = "shipped") -> None:
    """Outputs without autograd, and the schedule that gave them."""
    call = arguments(op, shape, dtype)
    with Report(op, shape, f"forward, {shape} {dtype} {path}") as report:
        with paths.on_path(op, path):
            got = forward(op, call)
            expect_schedules(report, call, got, ("forward",))
        report.results(got, reference(op, call))
        expect_dtypes(report, call, got)


def check_gradients(
    op: Op,
    shape: Shape,
    dtype: str,
    path: str = "shipped",
    *,
    given: Collection[str] | None = None,
    dtypes: Mapping[str, str] | None = None,
) -> None:
    """Outputs and every gradient for a random upstream gradient, and the schedules."""
    call = arguments(op, shape, dtype, given=given, dtypes=dtypes)
    with Report(op, shape, f"gradients, {shape} {dtype} {path}") as report:
        with paths.on_path(op, path):
            got = backward(op, call)
            expect_schedules(report, call, got, ("forward", "backward"))
        expect_dtypes(report, call, got)
        if op.reuses_outputs and dtypes:
            got = _as_coarse(op, call, got)
        report.results(got, reference(op, call, like=got))


def check_optional(op: Op, given: tuple[str, ...], path: str, dtype: str | None = None) -> None:
    """Outputs and gradients with only these of the optional inputs; ``op.usual`` unless told."""
    call = arguments(op, LONG, dtype or op.usual, given=given)
    case = f"given {given or 'none'}, {dtype or op.usual} {path}"
    with Report(op, LONG, case) as report, paths.on_path(op, path):
        report.results(forward(op, call), reference(op, call))
        if op.gradients:
            got = backward(op, call)
            report.results(got, reference(op, call, like=got))
            expect_column_sums(report, got)


def check_mixed(op: Op, dtypes: Mapping[str, str], path: str, dtype: str | None = None) -> None:
    """Inputs of different dtypes: arithmetic in the widest, each result in its own.

    ``dtype`` is that of the other inputs: the first that the op takes unless told.
    """
    dtype = dtype or op.dtypes[0]
    if op.gradients:
        check_gradients(op, LONG, dtype, path, dtypes=dtypes)
    else:
        call = arguments(op, LONG, dtype, dtypes=dtypes)
        with Report(op, LONG, f"{dtype} with {dtypes}") as report, paths.on_path(op, path):
            report.results(forward(op, call), reference(op, call))
    floats = [entry.name for entry in op.inputs if entry.element == "float"]
    others = [name for name in floats if name != op.matrix.name]
    if len(dtypes) < len(others) and "float64" in dtypes.values():
        _expect_wide(op, dtypes, others, path)


def _expect_wide(op: Op, dtypes: Mapping[str, str], others: Collection[str], path: str) -> None:
    """One float64 input makes all arithmetic float64: as if all but the matrix were, to the bit.

    Less would be within every tolerance, since the outputs are not float64 themselves.
    """
    call = arguments(op, LONG, op.usual, dtypes=dtypes)
    wide = call.with_tensors({name: present(call.tensors[name]).double() for name in others})
    with Report(op, LONG, f"float64 {tuple(dtypes)} alone, {path}") as report:
        with paths.on_path(op, path):
            got, expected = forward(op, call), forward(op, wide)
            if op.gradients and not op.reuses_outputs:
                above = upstream(op, got.outputs)
                wider: Tensors = {
                    name: None if dy is None else dy.to(expected.outputs[name].dtype)
                    for name, dy in above.items()
                }
                got, expected = backward(op, call, given=above), backward(op, wide, given=wider)
        found = got.quantities()
        for name, value in expected.quantities().items():
            if value is not None:
                narrow = present(found[name])
                report.steady(name, narrow, value.to(narrow.dtype))


def check_worked(op: Op, case: Case, path: str) -> None:
    """A worked example of the spec: what the reference gives, and the numbers of the spec."""
    tensors: Tensors = {}
    for entry in op.inputs:
        dtype = {"float": torch.float32, "int": torch.int64, "bool": torch.bool}[entry.element]
        value = case.given.get(entry.name)
        tensors[entry.name] = (
            None if value is None else torch.tensor(value, dtype=dtype, device=op.device)
        )
    params = {p.name: case.given[p.name] for p in op.params if p.name in case.given}
    call = Arguments(tensors, params)
    matrix = tensors[op.matrix.name]
    assert matrix is not None
    above = {o.name: case.given[f"d{o.name}"] for o in op.outputs if f"d{o.name}" in case.given}
    with Report(op, tuple(matrix.shape), f"case {case.name}, {path}") as report:
        with paths.on_path(op, path):
            got = forward(op, call)
            if above:
                dys: Tensors = {
                    name: torch.tensor(value, dtype=got.outputs[name].dtype, device=op.device)
                    for name, value in above.items()
                }
                got = backward(op, call, given=dys)
        report.results(got, reference(op, call, like=got if above else None))
        found = got.quantities()
        for name, value in case.expect.items():
            expected = torch.tensor(value, dtype=torch.float64)
            report.close(name, found.get(name), expected)


def check_special(op: Op, special: str, dtype: str, path: str) -> None:
    """A row with strange values: right in itself, and of no effect on its neighbours."""
    row = SPECIAL_ROWS[special]
    if not row.fits(dtype_of(dtype)):
        return
    shape = (3, 150)
    plain = arguments(op, shape, dtype, vary=False)
    matrix = present(plain.tensors[op.matrix.name])
    changed = matrix.clone()
    changed[1] = row.change(matrix[1].double()).to(matrix.dtype)
    call = plain.with_tensors({op.matrix.name: changed})
    with Report(op, shape, f"a row of {special}, {dtype} {path}") as report:
        with paths.on_path(op, path):
            before = both(op, plain)
            got = both(op, call, before.upstream)
        expect_neighbours(report, before, got)
        finite = op.gradients and changed.isfinite().all()
        report.results(got, reference(op, call, like=got if finite else None), row.factor)


def check_one_output(op: Op, output: str, path: str) -> None:
    """The gradient of one output alone, the others taking no part."""
    call = arguments(op, LONG, op.usual)
    with Report(op, LONG, f"gradient of {output} alone, {path}") as report:
        with paths.on_path(op, path):
            above = upstream(op, forward(op, call).outputs)
            alone = {name: dy if name == output else None for name, dy in above.items()}
            got = backward(op, call, given=alone)
        report.results(got, reference(op, call, like=got))


def check_gradcheck(op: Op, n_columns: int, given: tuple[str, ...], path: str) -> None:
    """The kernels' gradients are those of the kernels' own outputs: finite differences."""
    check_numerically(op, n_columns, given, path, torch.autograd.gradcheck)


def check_numerically(
    op: Op, n_columns: int, given: tuple[str, ...], path: str, check: Callable[..., object]
) -> None:
    """Hand the kernels to ``gradcheck`` or ``gradgradcheck`` in float64."""
    shape = (2, 2, n_columns) if op.batched else (2, n_columns)
    call = arguments(op, shape, "float64", given=given)
    names = [name for name in op.gradients if call.tensors[name] is not None]
    leaves = [present(call.tensors[name]).detach().requires_grad_() for name in names]

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        changed = call.with_tensors(dict(zip(names, tensors, strict=True)))
        outputs = named(op, op.function(*changed.tensors.values(), **call.params))
        return tuple(out for out in outputs.values() if out.dtype == torch.float64)

    with paths.on_path(op, path), watched():
        check(run, leaves)


def _as_coarse(op: Op, call: Arguments, got: Result) -> Result:
    """Gradients in the matrix's dtype: a stored output has been rounded to it."""
    coarse = present(call.tensors[op.matrix.name]).dtype
    gradients = {n: None if g is None else g.to(coarse) for n, g in got.gradients.items()}
    return Result(got.outputs, gradients, got.upstream, got.calls)
