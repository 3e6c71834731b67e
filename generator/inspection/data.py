"""The lines that are kept beside the code: one a kernel and configuration, as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from kgen.inspection.calls import DTYPES
from kgen.inspection.resources import Resources
from kgen.inspection.targets import Target

HEADER = (
    *("op", "kernel", "dtype", "columns", "multiple_of"),
    *("rows", "block", "warps", "stages", "options"),
    *("registers", "stack", "spilled", "shared", "loads", "stores"),
    *("programs", "resident_warps", "triton", "hash"),
)


@dataclass(frozen=True, slots=True)
class Configuration:
    """A kernel as the wrapper launches it for some widths of a row.

    Attributes:
        op: the op's name.
        kernel: the kernel's name.
        dtype: of all inputs that are floating.
        columns: the widths among those called that take this configuration.
        rows: of a tile, or 0 where the kernel has no such constant; so ``block`` and ``stages``.
        block: columns of a tile.
        warps: of a program.
        stages: of the pipelined loop, or chunks of a step of a walk.
        options: all other constants and options of the compiler, as ``GROUPS=32``.
        digest: a hash of all that the compiled code depends on, but for the version of Triton.
    """

    op: str
    kernel: str
    dtype: str
    columns: tuple[int, ...]
    rows: int
    block: int
    warps: int
    stages: int
    options: str
    digest: str

    @property
    def widths(self) -> str:
        """``4096`` or ``16-262144``."""
        first, last = min(self.columns), max(self.columns)
        return str(first) if first == last else f"{first}-{last}"

    @property
    def multiple_of(self) -> int:
        """16 if all the widths are multiples of it, which is what vector loads need; or 1."""
        return 16 if all(n % 16 == 0 for n in self.columns) else 1


@dataclass(frozen=True, slots=True)
class Line:
    """A configuration, what it takes, and the version of Triton that compiled it."""

    configuration: Configuration
    resources: Resources
    triton: str


def in_order(configurations: Iterable[Configuration]) -> list[Configuration]:
    """By op, kernel, dtype and width."""
    return sorted(
        configurations,
        key=lambda c: (
            c.op,
            c.kernel,
            DTYPES.index(c.dtype) if c.dtype in DTYPES else -1,
            c.multiple_of == 1,
            c.columns,
            c.options,
            c.digest,
        ),
    )


def as_csv(lines: Iterable[Line], target: Target) -> str:
    """The file: a header, then the lines as they come."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    for line in lines:
        writer.writerow(cells(line, target).values())
    return text.getvalue()


def cells(line: Line, target: Target) -> dict[str, str]:
    """The texts of a line by the names of ``HEADER``."""
    found, taken = line.configuration, line.resources
    programs = target.programs_with(taken.registers, taken.shared, found.warps)
    values = (
        found.op,
        found.kernel,
        found.dtype,
        found.widths,
        found.multiple_of,
        found.rows or "",
        found.block or "",
        found.warps,
        found.stages or "",
        found.options,
        taken.registers,
        taken.stack,
        taken.spilled,
        taken.shared,
        "/".join(map(str, taken.loads)),
        "/".join(map(str, taken.stores)),
        programs,
        programs * found.warps,
        line.triton,
        found.digest,
    )
    return dict(zip(HEADER, map(str, values), strict=True))


def known(text: str) -> dict[str, tuple[Resources, str]]:
    """What each hash of a file takes, and the version of Triton that compiled it.

    Lines that cannot be read are left out, as if they were not there.
    """
    found: dict[str, tuple[Resources, str]] = {}
    for row in csv.DictReader(io.StringIO(text)):
        try:
            found[row["hash"]] = (_resources(row), row["triton"])
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
    return found


def _resources(row: Mapping[str, str]) -> Resources:
    return Resources(
        registers=int(row["registers"]),
        stack=int(row["stack"]),
        spilled=int(row["spilled"]),
        shared=int(row["shared"]),
        loads=tuple(_widths(row["loads"])),
        stores=tuple(_widths(row["stores"])),
    )


def _widths(text: str) -> Iterator[int]:
    yield from (int(width) for width in text.split("/") if width)
