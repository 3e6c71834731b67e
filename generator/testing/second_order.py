"""Checks of the double backward: gradients of the gradients, against the reference's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from kgen.testing import paths
from kgen.testing.accuracy import check_numerically
from kgen.testing.description import Op
from kgen.testing.interpreter import watched
from kgen.testing.layouts import UPSTREAM_LAYOUTS, arrange, canonical
from kgen.testing.report import Report
from kgen.testing.results import counted, leaves_of, named, present
from kgen.testing.samples import LONG, Arguments, Shape, Tensors, arguments, generator, upstream


@dataclass(frozen=True, slots=True)
class Second:
    """The results of a second differentiation by name: ``ddy``, ``d2x`` ...

    ``above`` are the upstream gradients of the first differentiation by output, ``seconds`` those
    of the second by input, and ``calls`` what the second one alone was counted as.
    """

    gradients: Tensors
    above: Tensors
    seconds: Tensors
    calls: Counter[str] = field(default_factory=Counter)


def check_second_order(op: Op, shape: Shape, dtype: str, path: str = "shipped") -> None:
    """Every second-order gradient for random upstream gradients, and the schedule."""
    call = arguments(op, shape, dtype)
    with Report(op, shape, f"second order, {shape} {dtype} {path}") as report:
        with paths.on_path(op, path):
            got = differentiated_twice(op, call)
            _expect_schedule(report, call, got)
        _expect_results(report, call, got)
        _expect_dtypes(report, call, got)


def check_second_order_of(op: Op, differentiated: tuple[str, ...], path: str) -> None:
    """Only these of the first gradients are differentiated: the others count as zero."""
    call = arguments(op, LONG, op.usual)
    with Report(op, LONG, f"derivative of d{', d'.join(differentiated)}, {path}") as report:
        with paths.on_path(op, path):
            got = differentiated_twice(op, call, differentiated=differentiated)
            _expect_schedule(report, call, got)
        _expect_results(report, call, got)


def check_second_order_wanted(op: Op, wanted: tuple[str, ...], path: str) -> None:
    """Only these inputs require gradients: theirs are right, and the others cost nothing."""
    call = arguments(op, LONG, op.usual)
    with Report(op, LONG, f"second order for {wanted} alone, {path}") as report:
        for dy_wanted in (False, True):
            with paths.on_path(op, path):
                got = differentiated_twice(op, call, wanted=wanted, dy_wanted=dy_wanted)
            _expect_results(report, call, got)
            names = {f"d2{name}" for name in wanted}
            names |= {f"dd{name}" for name in got.above} if dy_wanted else set()
            found = {name for name, gradient in got.gradients.items() if gradient is not None}
            report.expect(found <= names, f"gradients {sorted(found - names)} that nobody wants")
            if not any(name in op.column_gradients for name in wanted):
                summed = got.calls["double_backward.column_sums"]
                report.expect(not summed, "column sums that nobody wants")


def check_second_order_optional(op: Op, given: tuple[str, ...], path: str) -> None:
    """Second-order gradients with only these of the optional inputs."""
    call = arguments(op, LONG, op.usual, given=given)
    with Report(op, LONG, f"second order, given {given or 'none'}, {path}") as report:
        with paths.on_path(op, path):
            got = differentiated_twice(op, call)
        _expect_results(report, call, got)


def check_second_order_layout(op: Op, layout: str, path: str) -> None:
    """A gradient of a gradient in any strides, copied only if the kernels cannot take it."""
    shape = (5, 129)
    call = arguments(op, shape, op.usual)
    with Report(op, shape, f"{layout} second upstream, {path}") as report:
        with paths.on_path(op, path):
            drawn = differentiated_twice(op, call)
            strided = {
                name: arrange(value, layout) if value is not None and value.dim() > 1 else value
                for name, value in drawn.seconds.items()
            }
            plain = {n: None if v is None else canonical(v) for n, v in strided.items()}
            expected = differentiated_twice(op, call, seconds=plain)
            got = differentiated_twice(op, call, seconds=strided)
        for name, value in expected.gradients.items():
            if value is not None:
                report.steady(name, present(got.gradients[name]), value)
        copied = bool(got.calls["double_backward.copied"])
        report.expect(copied == UPSTREAM_LAYOUTS[layout], f"counted {dict(got.calls)}")
        was_copied = expected.calls["double_backward.copied"]
        report.expect(not was_copied, "a contiguous gradient was copied")
        if not UPSTREAM_LAYOUTS[layout]:
            with paths.on_path(op, path):
                _expect_strides(report, call, layout)


def _expect_strides(report: Report, call: Arguments, layout: str) -> None:
    """What the first differentiation took in such strides, the second one takes too."""
    op = report.op
    matrix = arrange(present(call.tensors[op.matrix.name]), layout)
    plain = call.with_tensors({op.matrix.name: canonical(matrix)})
    strided = call.with_tensors({op.matrix.name: matrix})
    pairs = {
        op.matrix.name: (differentiated_twice(op, plain), differentiated_twice(op, strided)),
        "the first upstream": (
            differentiated_twice(op, call, arranged=lambda dy: canonical(_as(dy, layout))),
            differentiated_twice(op, call, arranged=lambda dy: _as(dy, layout)),
        ),
    }
    for changed, (expected, got) in pairs.items():
        for name, value in expected.gradients.items():
            if value is not None:
                report.steady(f"{name} for {layout} {changed}", present(got.gradients[name]), value)


def _as(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    return arrange(tensor, layout) if tensor.dim() > 1 else tensor


def check_gradgradcheck(op: Op, n_columns: int, given: tuple[str, ...], path: str) -> None:
    """The double backward is the derivative of the kernels' own gradients: finite differences."""
    check_numerically(op, n_columns, given, path, torch.autograd.gradgradcheck)


def check_first_order_alone(op: Op) -> None:
    """Who differentiates once launches nothing of the double backward, with or without a graph."""
    call = arguments(op, LONG, op.usual)
    with Report(op, LONG, "first order alone") as report, watched():
        counts = []
        for create_graph in (False, True):
            before = Counter(op.module.calls)
            leaves = leaves_of(op, call)
            _first(op, call, leaves, create_graph=create_graph)
            counts.append(counted(op, before))
        report.expect(counts[0] == counts[1], f"counted {counts[0]}, and {counts[1]} with a graph")
        ran = [name for name in counts[1] if name.startswith("double_backward")]
        report.expect(not ran, f"ran {ran}")


def check_thrice(op: Op) -> None:
    """A third differentiation raises, and says so; it never leaves a term out in silence."""
    call = arguments(op, (3, 33), op.dtypes[-1])
    with Report(op, (3, 33), "third derivative") as report, watched():
        leaves = leaves_of(op, call)
        first, above = _first(op, call, leaves, create_graph=True)
        sources = [v for v in (*leaves.values(), *above.values()) if v is not None]
        sources = [source for source in sources if source.requires_grad]
        second = torch.autograd.grad(
            _squared(first.values()), sources, create_graph=True, allow_unused=True
        )
        try:
            torch.autograd.grad(_squared(second), sources, allow_unused=True)
        except RuntimeError as error:
            expected = (
                f"{op.name}: there is no third derivative; for Hessian-vector products use "
                "torch.autograd.functional.vhp"
            )
            report.expect(str(error) == expected, f"raised: {error}")
        else:
            report.expect(False, "no RuntimeError: the third-order term was dropped")


def differentiated_twice(
    op: Op,
    call: Arguments,
    *,
    wanted: Collection[str] | None = None,
    differentiated: Collection[str] | None = None,
    dy_wanted: bool = True,
    seconds: Mapping[str, torch.Tensor | None] | None = None,
    arranged: Callable[[torch.Tensor], torch.Tensor] = lambda dy: dy,
) -> Second:
    """Run the kernels for outputs, first and second-order gradients.

    ``wanted`` names the inputs that require a gradient, ``differentiated`` those whose first
    gradient is differentiated again (all unless told), ``seconds`` the upstream gradients of the
    latter (random unless told), and ``dy_wanted`` tells whether the first upstream gradients
    require one too. These are drawn, then ``arranged``.
    """
    leaves = leaves_of(op, call, wanted)
    with torch.enable_grad(), watched():
        first, above = _first(
            op, call, leaves, create_graph=True, dy_wanted=dy_wanted, arranged=arranged
        )
        if seconds is None:
            seconds = _seconds(op, first, differentiated)
        before = Counter(op.module.calls)
        gradients = _second(first, leaves, above, dict(seconds))
    return Second(gradients, above, dict(seconds), counted(op, before))


def _reference(op: Op, call: Arguments, got: Second) -> Tensors:
    """The second-order gradients of the reference in float64, on the CPU, for the same upstream."""
    wide: Tensors = {}
    for name, tensor in call.tensors.items():
        tensor = None if tensor is None else tensor.detach().cpu()
        if tensor is not None and tensor.dtype.is_floating_point:
            tensor = tensor.double().clone().requires_grad_(name in got.seconds)
        wide[name] = tensor
    above = {name: _wide(dy) for name, dy in got.above.items()}
    with torch.enable_grad():
        outputs = named(op, op.reference(*wide.values(), **call.params))
        first = _differentiate(outputs, wide, above, create_graph=True)
        seconds = {name: _wide(value) for name, value in got.seconds.items()}
        return _second(first, wide, above, seconds)


def _first(
    op: Op,
    call: Arguments,
    leaves: Tensors,
    *,
    create_graph: bool,
    dy_wanted: bool = True,
    arranged: Callable[[torch.Tensor], torch.Tensor] = lambda dy: dy,
) -> tuple[Tensors, Tensors]:
    """The first gradients by input, and the upstream gradients by output that they are for."""
    outputs = named(op, op.function(*leaves.values(), **call.params))
    drawn = upstream(op, outputs)
    above = {
        name: None if dy is None else arranged(dy).requires_grad_(dy_wanted)
        for name, dy in drawn.items()
    }
    return _differentiate(outputs, leaves, above, create_graph), above


def _differentiate(
    outputs: Mapping[str, torch.Tensor], leaves: Tensors, above: Tensors, create_graph: bool
) -> Tensors:
    wanted = {n: leaf for n, leaf in leaves.items() if leaf is not None and leaf.requires_grad}
    used = {n: dy for n, dy in above.items() if dy is not None and outputs[n].requires_grad}
    found = torch.autograd.grad(
        [outputs[name] for name in used],
        list(wanted.values()),
        list(used.values()),
        create_graph=create_graph,
        allow_unused=True,
    )
    return dict(zip(wanted, found, strict=True))


def _seconds(op: Op, first: Tensors, differentiated: Collection[str] | None) -> Tensors:
    """A random gradient for every first gradient that is differentiated; None for the others."""
    seed = generator(op.name, "second", *(tuple(present(g).shape) for g in first.values()))
    drawn: Tensors = {}
    for name, gradient in first.items():
        gradient = present(gradient)
        values = torch.randn(tuple(gradient.shape), generator=seed, dtype=torch.float64)
        is_used = differentiated is None or name in differentiated
        drawn[name] = values.to(gradient.dtype).to(gradient.device) if is_used else None
    return drawn


def _second(first: Tensors, leaves: Tensors, above: Tensors, seconds: Tensors) -> Tensors:
    """The gradients, by way of the first gradients, for all that requires one."""
    sources = {f"d2{n}": v for n, v in leaves.items() if v is not None and v.requires_grad}
    sources |= {f"dd{n}": v for n, v in above.items() if v is not None and v.requires_grad}
    used = [
        name
        for name, value in seconds.items()
        if value is not None and first[name] is not None and present(first[name]).requires_grad
    ]
    if not used:
        return dict.fromkeys(sources)
    found = torch.autograd.grad(
        [present(first[name]) for name in used],
        list(sources.values()),
        [present(seconds[name]) for name in used],
        allow_unused=True,
    )
    return dict(zip(sources, found, strict=True))


def _squared(tensors: Iterable[torch.Tensor | None]) -> torch.Tensor:
    """One number whose derivative reaches every tensor."""
    return torch.stack([(t.double() ** 2).sum() for t in tensors if t is not None]).sum()


def _wide(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """The values in float64 on the CPU, requiring a gradient as before."""
    if tensor is None:
        return None
    return tensor.detach().cpu().double().clone().requires_grad_(tensor.requires_grad)


def _expect_results(report: Report, call: Arguments, got: Second) -> None:
    for name, value in _reference(report.op, call, got).items():
        found = got.gradients.get(name)
        if value is None:  # the gradients do not depend on it
            value = torch.zeros_like(found, dtype=torch.float64) if found is not None else None
        if value is not None:
            report.close(name, found, value)


def _expect_schedule(report: Report, call: Arguments, got: Second) -> None:
    """The double backward ran once, by the schedule that rows this long take, without a copy."""
    if not report.n_rows:
        return
    expected = paths.double_schedule(report.op, report.shape[-1], call.itemsize(report.op))
    wrong = paths.wrong_path(expected, got.calls)
    report.expect(wrong is None, f"double backward: {wrong}")
    report.expect(not got.calls["double_backward.copied"], "a gradient was copied")


def _expect_dtypes(report: Report, call: Arguments, got: Second) -> None:
    """Each gradient is like the tensor that it is for."""
    for name, gradient in got.gradients.items():
        if gradient is None:
            continue
        like = present(call.tensors[name[2:]] if name.startswith("d2") else got.above[name[2:]])
        right = gradient.dtype == like.dtype and gradient.shape == like.shape
        report.expect(right, f"{name}: {gradient.dtype} {tuple(gradient.shape)}")
        report.expect(gradient.is_contiguous(), f"{name}: not contiguous")
        report.expect(gradient.device == like.device, f"{name}: on {gradient.device}")
