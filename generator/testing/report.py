"""The rule by which results are right, and messages that help to find out why one is not."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import torch
from kgen.testing.description import Op, Tolerance
from kgen.testing.results import Result
from kgen.testing.samples import Shape


@dataclass
class Report:
    """Collects what is wrong with one case; leaving the ``with`` block raises it all at once."""

    op: Op
    shape: Shape
    case: str
    wrong: list[str] = field(default_factory=list)
    right: list[str] = field(default_factory=list)
    failed: set[str] = field(default_factory=set)
    hints: list[str] = field(default_factory=list)

    @property
    def n_rows(self) -> int:
        """The rows of the matrix."""
        return torch.Size(self.shape[:-1]).numel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        __tracebackhide__ = True
        if error is None and self.wrong:
            raise AssertionError(self.text())

    def text(self) -> str:
        """Everything that was found, and where to look."""
        lines = [f"{self.op.name}, {self.case}:", *self.wrong]
        if self.right:
            lines.append(f"right: {', '.join(self.right)}")
        hints = list(dict.fromkeys([*self.hints, *self._advice(), *self._origin()]))
        return "\n".join([*lines, *(f"look at: {hint}" for hint in hints)])

    def _origin(self) -> list[str]:
        """The lines of the spec that a user can be wrong about."""
        if not self.failed or not self.op.spec:
            return []
        names = " and ".join(f"'{name} = ...'" for name in sorted(self.failed))
        return [
            f"{self.op.spec}: {names}, and the reference; likely if every shape and dtype fails"
        ]

    def expect(self, condition: object, message: str) -> None:
        """Record the message unless the condition holds."""
        if not condition:
            self.wrong.append(message)

    def results(self, got: Result, expected: Result, factor: float = 1.0) -> None:
        """Compare every output and gradient that the expected result has."""
        present = got.quantities()
        for name, value in expected.quantities().items():
            if value is not None:
                self.close(name, present.get(name), value, factor)

    def close(
        self, name: str, got: torch.Tensor | None, expected: torch.Tensor, factor: float = 1.0
    ) -> None:
        """Compare one quantity by the tolerance of the dtype it has."""
        if got is None and not expected.any():  # None is autograd's word for zeros
            return
        if got is None:
            self._wrong(name, f"{name}: missing, expected shape {tuple(expected.shape)}")
            return
        tolerance = self.op.tolerance(got.dtype).scaled(factor)
        if name.removeprefix("d2").removeprefix("d") in self.op.column_gradients:
            tolerance = tolerance.summed(self.n_rows)
        found = mismatch(name, got, expected, tolerance)
        if found is None:
            self.right.append(name)
            return
        self._wrong(name, found)
        if got.shape == expected.shape:
            self.hints += observations(self, got, expected)
        else:
            self.hints.append(f"the kernels give {tuple(got.shape)}: does the reference?")

    def same(self, name: str, got: torch.Tensor | None, expected: torch.Tensor | None) -> None:
        """Demand the same bits."""
        if got is None or expected is None:
            self.expect(got is expected, f"{name}: present in one of two calls only")
        elif not same_bits(got, expected):
            self.wrong.append(f"{name}: not the same bits; {_difference(got, expected)}")

    def steady(self, name: str, got: torch.Tensor, expected: torch.Tensor) -> None:
        """Demand the same bits of the interpreter, and the tolerance of compiled kernels.

        For calls that need not compile to the same order of additions.
        """
        if self.op.interpreted:
            self.same(name, got, expected)
        else:
            self.close(name, got, expected.double())

    def _wrong(self, name: str, message: str) -> None:
        self.wrong.append(message)
        self.failed.add(name)

    def _advice(self) -> list[str]:
        """What the pattern of right and wrong quantities points to."""
        outputs = {output.name for output in self.op.outputs}
        columns = {f"d{name}" for name in self.op.column_gradients}
        failed, right = self.failed, set(self.right)
        advice = []
        if failed and self.shape[-1] & (self.shape[-1] - 1):
            advice.append(
                f"N = {self.shape[-1]} is no power of two: only if powers of two pass, a division "
                "by the block, a mask or an address"
            )
        if failed and failed <= columns and outputs <= right:
            advice.append(
                "only column sums are wrong: the partial sums, the kernel that adds them, "
                "the number of groups, a mean where a sum belongs"
            )
        elif failed and not failed & outputs and outputs <= right:
            advice.append(
                "the outputs are right: powers of saved values, the means over the row, "
                "what was saved and in which dtype"
            )
        return advice


def mismatch(
    name: str, got: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance
) -> str | None:
    """Where two tensors differ by more than the rule allows, or ``None``.

    NaN equals NaN, and an infinity only the same infinity, also one that the expected value
    becomes when it is rounded to the dtype.
    """
    if got.shape != expected.shape:
        return f"{name}: shape {tuple(got.shape)}, expected {tuple(expected.shape)}"
    rounded = expected.to(got.dtype).double().cpu()
    got, expected = got.detach().double().cpu(), expected.detach().double().cpu()
    expected = torch.where(rounded.isinf(), rounded, expected)
    bound = tolerance.absolute + tolerance.relative * expected.abs()
    error = (got - expected).abs()
    near = (error <= bound) & got.isfinite() & expected.isfinite()
    fine = near | (got == expected) | (got.isnan() & expected.isnan())
    if fine.all():
        differing = int(((got != rounded) & ~got.isnan()).sum())
        allowed = int(tolerance.share * got.numel()) + 1
        if tolerance.share == 1.0 or differing <= allowed:
            return None
        return f"{name}: {differing} of {got.numel()} elements differ, {allowed} may"
    excess = torch.where(fine, -1.0, torch.nan_to_num(error / bound, nan=torch.inf))
    worst = torch.unravel_index(excess.argmax(), excess.shape)
    index = tuple(int(i) for i in worst)
    return (
        f"{name}: {int((~fine).sum())} of {fine.numel()} elements off; worst at {index}: "
        f"got {got[index].item():.9g}, expected {expected[index].item():.9g}, "
        f"off by {error[index].item():.3g}, allowed {bound[index].item():.3g}"
    )


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether shape, dtype and every bit agree; all NaN are one."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if first.dtype.is_floating_point:
        if first.dtype.itemsize == 1:
            first, second = first.float(), second.float()
        nan = first.isnan()
        if not torch.equal(nan, second.isnan()):
            return False
        zero = torch.zeros((), dtype=first.dtype, device=first.device)
        first, second = torch.where(nan, zero, first), torch.where(nan, zero, second)
    return torch.equal(_bits(first), _bits(second))


def observations(report: Report, got: torch.Tensor, expected: torch.Tensor) -> list[str]:
    """What the numbers themselves give away: a constant factor, or where the wrong ones lie."""
    got, expected = got.detach().double().cpu(), expected.detach().double().cpu()
    if not got.numel() or not (got.isfinite().all() and expected.isfinite().all()):
        return []
    if not (expected.abs() > 1e-6).any():
        return []
    factor = float((got * expected).sum() / (expected * expected).sum().clamp(min=1e-300))
    off = (got - expected).abs() > 1e-4 + 2e-2 * expected.abs()
    if not ((got - factor * expected).abs() > 1e-4 + 1e-2 * got.abs()).any():
        return [f"it is {factor:.6g} times as large as expected{_known(factor, report)}"]
    if not off.any() or off.all():
        return []
    if got.shape == report.shape and got.dim() > 1:
        return _where(off.reshape(-1, got.shape[-1]))
    return [f"elements from {_first(off.flatten())} on are wrong"]


def _known(factor: float, report: Report) -> str:
    n_columns = report.shape[-1]
    padded = 1 << max(n_columns - 1, 0).bit_length()
    known = [
        (-1.0, "a sign"),
        (0.0, "nothing was computed"),
        (1 / max(report.n_rows, 1), "a mean over the rows instead of their sum"),
        (n_columns / padded, "a division by the block instead of N"),
        ((padded / n_columns) ** 0.5, "a division by the block instead of N"),
        (1 / n_columns, "a mean instead of a sum"),
        (float(n_columns), "a sum instead of a mean"),
        (2.0, "a term counted twice"),
    ]
    for value, meaning in known:
        if value != 1.0 and abs(factor - value) <= 2e-2 * max(abs(value), 1e-3):
            return f": {meaning}"
    return ""


def _where(off: torch.Tensor) -> list[str]:
    rows, columns = off.any(1), off.any(0)
    if not rows[0] and rows[1:].all():
        return ["only the first row is right: a row stride, of this tensor or of another"]
    if not columns[0] and not rows.logical_not().any():
        return [f"columns from {_first(columns)} on are wrong: a mask, or a later chunk"]
    if rows.logical_not().any() and not rows[0]:
        return [f"rows from {_first(rows)} on are wrong: the grid, or a mask of rows"]
    return []


def _first(wrong: torch.Tensor) -> int:
    return int(wrong.nonzero()[0])


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().flatten().view(torch.uint8)


def _difference(got: torch.Tensor, expected: torch.Tensor) -> str:
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return f"{got.dtype} {tuple(got.shape)} and {expected.dtype} {tuple(expected.shape)}"
    unequal = (got != expected) & ~(got.isnan() & expected.isnan())
    if not unequal.any():
        return "only the sign of a zero differs"
    place = tuple(int(i) for i in unequal.nonzero()[0])
    return (
        f"{int(unequal.sum())} of {got.numel()} elements differ, first at {place}: "
        f"{got[place].item():.9g} and {expected[place].item():.9g}"
    )
