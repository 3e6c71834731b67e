"""Calls of an op by another plan: the one module that knows how wrappers keep theirs."""

from __future__ import annotations

import math
from dataclasses import astuple, replace
from typing import Any

import torch
from kgen.bench.inputs import Arguments, Tensors
from kgen.bench.subject import Subject
from kgen.bench.trial import Trial, named, trial_of
from kgen.spec import gradient_name
from kgen.tune.plans import Candidate
from torch import Tensor


class Launching:
    """One op on one set of arguments, through its wrapper.

    The wrapper asks ``<direction>_plan`` for a plan and remembers what it has worked out: the
    functions are replaced, and what is remembered is forgotten before each call.
    """

    def __init__(self, subject: Subject, arguments: Arguments) -> None:
        self._subject = subject
        self._wrapper: dict[str, Any] = subject.function.__globals__
        self._own = {name: f for name, f in self._wrapper.items() if name.endswith("_plan")}
        self._trial: Trial = trial_of(subject, subject.function, arguments)
        self.rows = math.prod(arguments.shape[:-1])
        self._names: list[str] = []
        self._tops: list[Tensor] = []
        self._above: list[Tensor] = []
        self._sources: list[Tensor] = []
        self._kept: list[Any] = []

    def start(self, direction: str) -> None:
        """Run what comes before a direction, by the plans of the wrapper."""
        self._wrapper.update(self._own)
        self._remembered.clear()
        if direction == "forward":
            return
        outputs = named(self._subject, self._trial.forward())
        above = {name: dy for name, dy in self._trial.upstream.items() if name in outputs}
        self._tops = [outputs[name] for name in above]
        self._above = [dy.to(outputs[name].dtype) for name, dy in above.items()]
        self._sources = list(self._trial.leaves.values())
        self._names = [gradient_name(name) for name in self._trial.leaves]
        if direction == "double_backward":
            self._differentiate(list(above))
        self._kept = list(self._remembered.values())

    def run(self, direction: str, plan: Candidate, compute_bytes: int) -> Any:
        """One call by ``plan``; what it gives, as the op or autograd returns it."""
        made = replace(plan, block=plan.block * 4 // compute_bytes)
        given = self._wrapper["Plan"](*astuple(made))
        self._wrapper[f"{direction}_plan"] = lambda *facts: given
        self._remembered.clear()
        if direction == "forward":
            trains = self._subject.row_op.backward is not None
            # As in training: a backward needs values of rows that inference does not store.
            return self._trial.forward() if trains else self._trial.inference()
        for call in self._kept:
            getattr(call, direction).clear()
        return torch.autograd.grad(
            self._tops, self._sources, self._above, retain_graph=True, allow_unused=True
        )

    def results(self, direction: str, returned: Any) -> Tensors:
        """What a call gave, by name."""
        if direction == "forward":
            return {n: out.detach() for n, out in named(self._subject, returned).items()}
        pairs = zip(self._names, returned, strict=True)
        return {name: gradient for name, gradient in pairs if gradient is not None}

    @property
    def _remembered(self) -> dict[Any, Any]:
        remembered: dict[Any, Any] = self._wrapper["_remembered"]
        return remembered

    def _differentiate(self, outputs: list[str]) -> None:
        """Make the first gradients the tops, and gradients for them what arrives."""
        above = [dy.detach().requires_grad_() for dy in self._above]
        first = torch.autograd.grad(
            self._tops, self._sources, above, create_graph=True, allow_unused=True
        )
        self._tops = [gradient for gradient in first if gradient is not None]
        seed = torch.Generator(self._tops[0].device).manual_seed(0)
        self._above = [
            torch.randn(g.shape, generator=seed, device=g.device).to(g.dtype) for g in self._tops
        ]
        self._sources += above
        self._names += [f"d{gradient_name(name)}" for name in outputs]
