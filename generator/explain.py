"""What there is to say of an op in some setting: formulas, counts, kernels, bytes and times.

Everything is worked out from the spec: no kernel is built or run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kgen.cost import Cost, Kept, backward_cost, double_backward_cost, forward_cost, kept
from kgen.ir import Define
from kgen.lower import RowOp, formulas_of
from kgen.schedule import OpSchedule
from kgen.spec import Spec
from kgen.traffic import (
    Setting,
    Traffic,
    boundaries,
    directions,
    element_bytes,
    launch,
    least_bytes,
    saved_bytes,
    traffic,
)


@dataclass(frozen=True, slots=True)
class Direction:
    """What forward or a backward costs in a setting.

    Attributes:
        name: ``forward``, ``backward`` or ``double_backward``.
        formulas: name, kind and text of every formula, as the spec or reverse mode writes it.
        is_derived: whether reverse mode wrote them.
        cost: the counts, whatever the sizes.
        traffic: the launch, and the bytes that its walks read and write.
        least_bytes: the bytes of every tensor once, if no walk had to read one again.
        ends: the largest N of each schedule, with the schedule's name and its passes.
    """

    name: str
    formulas: tuple[tuple[str, str, str], ...]
    is_derived: bool
    cost: Cost
    traffic: Traffic
    least_bytes: int
    ends: tuple[tuple[int, str, int], ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """An op in a setting, on a device that moves ``gbps`` times 10**9 bytes a second."""

    row_op: RowOp
    setting: Setting
    gbps: float
    directions: tuple[Direction, ...]
    kept: tuple[Kept, ...]
    saved_bytes: int

    @property
    def spec(self) -> Spec:
        """The op's spec."""
        return self.row_op.spec

    def bytes_an_element(self, count: int) -> float:
        """A number of bytes, for each element of the matrix."""
        return count / self.setting.elements

    def flops(self, direction: Direction) -> float:
        """Operations for each element, a row's shared by its elements, a column's by theirs."""
        cost, setting = direction.cost, self.setting
        return cost.flops + cost.row_ops / setting.columns + cost.column_ops / setting.rows

    def intensity(self, direction: Direction) -> float:
        """Operations for each byte that is read or written."""
        return self.flops(direction) / self.bytes_an_element(direction.traffic.bytes)

    def microseconds(self, count: int) -> float:
        """The time in which the device moves that many bytes."""
        return count / (self.gbps * 1e3)


def explain(plan: OpSchedule, setting: Setting, gbps: float) -> Explanation:
    """Work out everything the page says."""
    row_op = plan.row_op
    costs = {"forward": forward_cost(row_op)}
    if row_op.backward is not None:
        costs["backward"] = backward_cost(row_op)
    if row_op.double_backward is not None:
        costs["double_backward"] = double_backward_cost(row_op)
    formulas = written(row_op.spec)
    found = tuple(
        Direction(
            name,
            tuple((d.name, d.type.kind.value, d.text or "") for d in formulas[name]),
            name == "double_backward" or (name == "backward" and row_op.spec.backward == "derive"),
            costs[name],
            traffic(plan, name, setting),
            least_bytes(plan, name, setting),
            tuple(_ends(plan, name, setting)),
        )
        for name in directions(plan)
    )
    return Explanation(row_op, setting, gbps, found, kept(row_op), saved_bytes(plan, setting))


def written(spec: Spec) -> dict[str, tuple[Define, ...]]:
    """The formulas of each direction as the spec or reverse mode wrote them.

    Programs differ: there, what can be saved has taken the place of what would be worked out again.
    """
    forward, backwards = formulas_of(spec)
    found = {"forward": forward.definitions}
    names: set[str] = set()
    for direction, formulas in zip(("backward", "double_backward"), backwards, strict=False):
        found[direction] = tuple(d for d in formulas.definitions if d.name not in names)
        names |= {d.name for d in formulas.definitions}
    return found


def _ends(plan: OpSchedule, direction: str, setting: Setting) -> Iterator[tuple[int, str, int]]:
    most = plan.row_op.spec.limits.max_columns
    element = element_bytes(plan, setting)
    ends = boundaries(plan, direction, element)
    for end in (*(each for each in ends if each < most), most):
        chosen = launch(plan, direction, end, element)
        yield end, chosen.schedule, chosen.passes
