"""One call of the op and one of its reference: outputs, gradients, and what was counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from kgen.testing.description import Op
from kgen.testing.interpreter import watched
from kgen.testing.samples import Arguments, Tensors, upstream
from torch.utils._python_dispatch import TorchDispatchMode


class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the tensors that are made while it is active."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and func.__name__.startswith(_MAKERS):
            self.bytes += made.nbytes
        return made


_MAKERS = ("empty", "new_empty", "zeros", "new_zeros", "full", "new_full", "ones", "clone")


@dataclass(frozen=True, slots=True)
class Result:
    """Outputs and gradients by name, the upstream gradients, and the calls that were counted."""

    outputs: dict[str, torch.Tensor]
    gradients: Tensors = field(default_factory=dict)
    upstream: Tensors = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)

    def quantities(self) -> Tensors:
        """Every tensor of the result under the name that messages use: ``y``, ``dx``."""
        return {**self.outputs, **{f"d{name}": grad for name, grad in self.gradients.items()}}


def forward(op: Op, call: Arguments, **options: object) -> Result:
    """Run the kernels for the outputs alone, as in inference."""
    before = Counter(op.module.calls)
    with torch.no_grad(), watched():
        outputs = named(op, op.function(*call.tensors.values(), **call.params, **options))
    return Result(outputs, calls=counted(op, before))


def backward(
    op: Op,
    call: Arguments,
    *,
    wanted: Collection[str] | None = None,
    given: Mapping[str, torch.Tensor | None] | None = None,
    integers: bool = False,
    **options: object,
) -> Result:
    """Run the kernels for outputs and gradients.

    ``wanted`` names the inputs that require a gradient (all that can unless told), ``given`` the
    upstream gradients (random unless told; ``None`` for an output that takes no part).
    """
    leaves = leaves_of(op, call, wanted)
    before = Counter(op.module.calls)
    with torch.enable_grad(), watched():
        outputs = named(op, op.function(*leaves.values(), **call.params, **options))
        above = upstream(op, outputs, integers) if given is None else dict(given)
        gradients = differentiate(outputs, leaves, above)
    detached = {name: out.detach() for name, out in outputs.items()}
    return Result(detached, gradients, above, counted(op, before))


def reference(op: Op, call: Arguments, like: Result | None = None) -> Result:
    """The reference in float64 on the same, already rounded, values; on the CPU, as the oracle.

    PyTorch's GPU kernels have faults of their own (``F.rms_norm`` of a row with an infinity, say).
    With the result of ``backward`` as ``like``, also the gradients that it has, by autograd.
    """
    wanted = set(like.gradients) if like else set()
    wide = call.wide().tensors
    for name, tensor in wide.items():
        if tensor is not None and name in wanted:
            tensor.requires_grad_()
    with torch.set_grad_enabled(bool(wanted)):
        outputs = named(op, op.reference(*wide.values(), **call.params))
        if like is None:
            return Result(_moved(outputs, op.device))
        above = {
            name: None if dy is None else dy.cpu().double() for name, dy in like.upstream.items()
        }
        gradients = differentiate(outputs, wide, above)
    for name in gradients:
        if gradients[name] is None:  # the output does not depend on it
            gradients[name] = torch.zeros_like(present(wide[name]))
    return Result(_moved(outputs, op.device), _moved(gradients, op.device), like.upstream)


def _moved(tensors: dict[str, Any], device: str) -> dict[str, Any]:
    return {n: None if t is None else t.detach().to(device) for n, t in tensors.items()}


def named(op: Op, returned: Any) -> dict[str, torch.Tensor]:
    """What a function of the op returned, by the names of the outputs."""
    values = returned if isinstance(returned, tuple) else (returned,)
    if len(values) != len(op.outputs) or not all(isinstance(v, torch.Tensor) for v in values):
        expected = ", ".join(output.name for output in op.outputs)
        raise AssertionError(f"{op.name}: returned {len(values)} values, expected {expected}")
    return dict(zip((output.name for output in op.outputs), values, strict=True))


def counted(op: Op, before: Counter[str]) -> Counter[str]:
    """The calls since then."""
    return Counter(op.module.calls) - before


def leaves_of(op: Op, call: Arguments, wanted: Collection[str] | None = None) -> Tensors:
    """The tensors of a call as leaves, of which those wanted require a gradient."""
    names = op.gradients if wanted is None else wanted
    return {
        name: None if tensor is None else tensor.detach().requires_grad_(name in names)
        for name, tensor in call.tensors.items()
    }


def differentiate(outputs: Mapping[str, torch.Tensor], leaves: Tensors, above: Tensors) -> Tensors:
    """The gradients of the leaves that require one, for the upstream gradients that are given."""
    wanted = {
        name: leaf for name, leaf in leaves.items() if leaf is not None and leaf.requires_grad
    }
    used = {
        name: dy for name, dy in above.items() if dy is not None and outputs[name].requires_grad
    }
    if not wanted:
        return {}
    if not used:
        return dict.fromkeys(wanted)
    tops = [outputs[name] for name in used]
    found = torch.autograd.grad(tops, list(wanted.values()), list(used.values()), allow_unused=True)
    return dict(zip(wanted, found, strict=True))


def present(tensor: torch.Tensor | None) -> torch.Tensor:
    """The tensor, which is not missing."""
    assert tensor is not None
    return tensor
