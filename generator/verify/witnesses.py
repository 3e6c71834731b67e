"""What speaks for or against an intermediate value of the backward formulas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from kgen.interpret import scope_of
from kgen.ir import Op, Ref, walk
from kgen.spec import gradient_name
from kgen.verify.compare import gap, same
from kgen.verify.facts import Facts
from kgen.verify.measure import Measured
from torch import Tensor


@dataclass(slots=True)
class Witnesses:
    """Values known to be right in some samples: forward's, the derived backward's, autograd's."""

    facts: Facts
    samples: Sequence[Measured]
    _known: list[list[Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        self._known = [self._values(one) for one in self.samples]

    def confirm(self, name: str) -> bool:
        """Whether the value equals one that is known to be right, in every sample.

        A line that only renames another value computes nothing that could be confirmed.
        """
        program = self.facts.op.backward
        definition = program.definition(name) if program else None
        if definition is not None and isinstance(definition.term, Ref):
            return False
        return all(
            any(same(one.backward[name], value) for value in known)
            for one, known in zip(self.samples, self._known, strict=True)
        )

    def against(self, name: str) -> bool:
        """Whether it has the name of a gradient, or of a derived value, and differs from it."""
        gradients = {gradient_name(entry.name) for entry in self.facts.op.spec.inputs}
        if name in gradients:
            return False
        for one in self.samples:
            for side in (one.own, one.derived):
                value = side.get(name)
                if value is not None and value.shape == one.backward[name].shape:
                    error = gap(one.backward[name], value, limits=False)
                    if error is not None and error > 1:
                        return True
        return False

    def _values(self, one: Measured) -> list[Tensor]:
        given = {gradient_name(output.name) for output in self.facts.op.spec.outputs}
        values = [*one.forward.values(), *one.expected.values()]
        values += [value for name, value in one.own.items() if name not in given]
        values += one.derived.values()
        with torch.no_grad():
            scope = scope_of(self.facts.op.forward, one.sample.values(self.facts.op))
            scope.values.update(one.forward)
            for definition in self.facts.op.forward.definitions:
                for term in walk(definition.term):
                    if isinstance(term, Op):
                        values.append(scope.evaluate(term))
        return [value for value in values if value.is_floating_point()]
