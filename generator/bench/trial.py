"""One provider on one cell: its calls, and whether what they give is right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from kgen.bench.inputs import Arguments, Tensors
from kgen.bench.subject import Subject
from kgen.interpret import dtype_of
from kgen.spec import DEFAULT_TOLERANCES, Tolerance, differentiable_inputs
from torch import Tensor

# Numbers of few bits may be off by a step, where the value lies between two of them.
_QUANTISED = {
    "float8_e4m3fn": Tolerance(2.0**-9, 2.0**-3),
    "float8_e5m2": Tolerance(2.0**-16, 2.0**-2),
    "int8": Tolerance(1.0, 0.0),
    "int32": Tolerance(0.0, 0.0),
    "int64": Tolerance(0.0, 0.0),
}


@dataclass(frozen=True, slots=True)
class Results:
    """What a call gives: outputs and gradients by name, less what a provider does not have."""

    outputs: Tensors
    gradients: Tensors = field(default_factory=dict)


@dataclass(slots=True)
class Trial:
    """The calls of one provider, on tensors of its own, which it may overwrite.

    ``forward`` is run as in training, so that a backward can follow, if the op has one.
    ``backward`` runs after ``start``, as often as wanted, and gives the gradients alone.
    """

    subject: Subject
    call: Callable[..., Any]
    tensors: Tensors
    params: Mapping[str, Any]
    upstream: Tensors
    _plain: list[Tensor] = field(init=False)
    _tops: list[Tensor] = field(default_factory=list)
    _above: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._plain = [tensor.detach() for tensor in self.tensors.values()]

    @property
    def leaves(self) -> Tensors:
        """The inputs that get a gradient."""
        return {name: t for name, t in self.tensors.items() if t.requires_grad}

    def forward(self) -> Any:
        """The whole call, of which autograd keeps what a backward needs."""
        return self.call(*self.tensors.values(), **self.params)

    def inference(self) -> Any:
        """The whole call on tensors that need no gradient."""
        return self.call(*self._plain, **self.params)

    def start(self) -> Tensors:
        """Run forward once and keep its graph; the outputs by name."""
        outputs = named(self.subject, self.forward())
        pairs = [(out, self.upstream.get(name)) for name, out in outputs.items()]
        joined = [(out, dy) for out, dy in pairs if dy is not None and out.requires_grad]
        self._tops = [out for out, _ in joined]
        # Of the output's own dtype, or autograd would convert it in every call.
        self._above = [dy.to(out.dtype) for out, dy in joined]
        return {name: out.detach() for name, out in outputs.items()}

    def backward(self) -> tuple[Tensor | None, ...]:
        """The gradients of the leaves, from the graph of ``start``."""
        return torch.autograd.grad(
            self._tops,
            list(self.leaves.values()),
            self._above,
            retain_graph=True,
            allow_unused=True,
        )

    def step(self) -> None:
        """Forward and backward as in training, with gradients set to None before."""
        for leaf in self.leaves.values():
            leaf.grad = None
        outputs = named(self.subject, self.forward())
        joined = [
            (out, self.upstream[name]) for name, out in outputs.items() if name in self.upstream
        ]
        torch.autograd.backward([out for out, _ in joined], [dy for _, dy in joined])

    def gradients(self) -> Tensors:
        """The gradients by the names of their inputs; zeros for one that is not reached."""
        found = zip(self.leaves.items(), self.backward(), strict=True)
        return {
            name: torch.zeros_like(leaf) if gradient is None else gradient.detach()
            for (name, leaf), gradient in found
        }


def trial_of(
    subject: Subject,
    call: Callable[..., Any],
    arguments: Arguments,
    dtypes: Mapping[str, str] | None = None,
) -> Trial:
    """The calls on copies of the arguments; ``dtypes`` names inputs that get another dtype."""
    wanted = set()
    if subject.row_op.backward is not None:
        wanted = {entry.name for entry in differentiable_inputs(subject.spec)}
    tensors = {}
    for name, tensor in arguments.tensors.items():
        own = tensor.clone()
        if dtypes and name in dtypes:
            own = own.to(dtype_of(dtypes[name]))
        tensors[name] = own.requires_grad_(name in wanted)
    upstream = {name: dy.clone() for name, dy in arguments.upstream.items()}
    return Trial(subject, call, tensors, arguments.params, upstream)


def named(subject: Subject, returned: Any) -> Tensors:
    """What a call returned, by the names of the op's outputs."""
    values = returned if isinstance(returned, (tuple, list)) else (returned,)
    names = [output.name for output in subject.spec.outputs]
    return {n: v for n, v in zip(names, values, strict=False) if isinstance(v, Tensor)}


def expected_of(subject: Subject, arguments: Arguments) -> Results:
    """The reference in float64, or in float32 where that takes more memory than there is."""
    try:
        return _expected(subject, arguments, torch.float64)
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
    return _expected(subject, arguments, torch.float32)


def _expected(subject: Subject, arguments: Arguments, wide: torch.dtype) -> Results:
    widened = {
        name: tensor.to(wide) if tensor.is_floating_point() else tensor
        for name, tensor in arguments.tensors.items()
    }
    upstream = {name: dy.to(wide) for name, dy in arguments.upstream.items()}
    spread = Arguments(arguments.shape, widened, arguments.params, upstream)
    trial = trial_of(subject, subject.reference, spread)
    if subject.row_op.backward is None:
        return Results(named(subject, trial.inference()))
    outputs = trial.start()
    return Results(outputs, trial.gradients())


def wrong_output(subject: Subject, outputs: Tensors, expected: Results) -> str | None:
    """What is wrong with outputs, or None; a provider must have at least the first."""
    first = subject.spec.outputs[0].name
    if first not in outputs:
        return f"it gives no {first}"
    for name, out in outputs.items():
        problem = mismatch(subject, name, out, expected.outputs[name])
        if problem:
            return problem
    return None


def wrong_gradient(
    subject: Subject, gradients: Tensors, expected: Results, rows: int
) -> str | None:
    """What is wrong with gradients, or None. That of a sum over rows may be off by more."""
    summed = {entry.name for entry in subject.spec.inputs if entry.is_summed}
    for name, gradient in gradients.items():
        terms = rows if name in summed else 1
        problem = mismatch(subject, f"d{name}", gradient, expected.gradients[name], terms)
        if problem:
            return problem
    return None


def mismatch(
    subject: Subject, name: str, got: Tensor, expected: Tensor, terms: int = 1
) -> str | None:
    """How a result differs from what is expected, or None if it does not.

    Two things are asked for: each entry lies within the op's tolerance for the result's dtype, and
    the errors as a whole within its relative part, which zeros would not in place of small numbers.
    """
    if got.shape != expected.shape:
        return f"{name} has shape {tuple(got.shape)} in place of {tuple(expected.shape)}"
    tolerance = tolerance_for(subject, got.dtype)
    wide = got.to(torch.float64 if expected.dtype is torch.float64 else torch.float32)
    right = expected.to(wide.dtype)
    error = (wide - right).abs_()
    absolute = tolerance.absolute * max(terms, 1) ** 0.5
    size = right.abs()
    over = error - size.mul(tolerance.relative) - absolute
    worst = float(over.max()) if over.numel() else 0.0
    if not worst <= 0:
        at = int(over.nan_to_num(nan=float("inf")).argmax())
        found, wanted = wide.flatten()[at], right.flatten()[at]
        return f"{name} is {float(found):.6g} where the reference has {float(wanted):.6g}"
    error_norm, norm = float(error.norm()), float(size.norm())
    if tolerance.relative and not error_norm <= tolerance.relative * norm:
        return f"{name} is off by {error_norm / norm if norm else error_norm:.2g} of its size"
    return None


def tolerance_for(subject: Subject, dtype: torch.dtype) -> Tolerance:
    """The op's own, for a result of that dtype."""
    name = str(dtype).removeprefix("torch.")
    known = {**_QUANTISED, **DEFAULT_TOLERANCES, **dict(subject.spec.tolerances)}
    return known[name]
