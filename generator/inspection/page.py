"""The page that sums up the data: one row an op, and every configuration that spills."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from kgen.inspection.data import Line, cells
from kgen.inspection.targets import Target

_INTRODUCTION = """\
# What the kernels take

Registers, spills, shared memory, widths of memory accesses and occupancy of every kernel that the
wrappers in `generated/` can launch, as the compiler left it. No GPU is needed to find out; nothing
here is a measurement of time.

This page and the data beside it are written by

    {command}

which compiles only what has changed since.

A configuration is a kernel with all that it is compiled for: the dtype of its inputs, the tile, the
warps, and whether N is a multiple of 16, which vector loads need. The wrappers are called with the
widest N of each power-of-two bucket, with two odd ones and the widest odd one: in bfloat16, as
which float16 is taken too, from 256 columns on, in float32 from 8192 and in float64 from 4096 on,
where registers are scarce. Each call has all optional inputs and asks for all gradients; every
choice of bool params is called. Configurations that several widths share are listed once.

| column of the data | says |
|---|---|
| columns | the narrowest and the widest N of the calls that take the configuration |
| multiple_of | 16 if all of them are multiples of 16, or else 1 |
| rows, block | the tile: rows, and columns of each |
| warps, stages | warps of a program; stages of its pipeline, or chunks of a step of its walk |
| options | other constants of the kernel, and options of the compiler that are not the default |
| registers | 32-bit registers of a lane |
| stack | bytes of local memory of a lane, for whatever purpose |
| spilled | bytes of registers that a lane stores to local memory for lack of registers |
| shared | bytes of shared memory of a program |
| loads, stores | widths in bytes of the accesses to global memory, widest first: 16 is the most |
| programs | programs that fit on a multiprocessor at a time; 0 if not even one fits |
| resident_warps | their warps; the most is {most_warps} |
| hash | of the kernel's code, signature, constants and options: it shows what is out of date |
"""


def page(
    tables: Sequence[tuple[Target, str, Sequence[Line]]],
    command: str,
) -> str:
    """The page as Markdown.

    Args:
        tables: of each target, the link to its data, and its lines in order.
        command: the command that writes the page again.
    """
    most_warps = ", ".join(f"{target.warps} on {target.name}" for target, _, _ in tables)
    parts = [_INTRODUCTION.format(command=command, most_warps=most_warps)]
    for target, link, lines in tables:
        parts.append("\n".join(_section(target, link, lines)))
    return "\n".join(parts)


def _section(target: Target, link: str, lines: Sequence[Line]) -> Iterator[str]:
    kernels = {line.configuration.kernel for line in lines}
    versions = ", ".join(sorted({line.triton for line in lines}))
    yield f"## {target.name}"
    yield ""
    yield (
        f"{len(lines)} configurations of {len(kernels)} kernels, compiled by Triton {versions}: "
        f"[{link}]({link})."
    )
    yield ""
    yield "| op | kernels | configurations | most registers | fewest resident warps | spilling |"
    yield "|---|---|---|---|---|---|"
    for op, group in groupby(lines, key=lambda line: line.configuration.op):
        yield _row(op, list(group), target)
    yield ""
    yield from _spills(target, lines)


def _row(op: str, lines: Sequence[Line], target: Target) -> str:
    def resident(line: Line) -> int:
        return int(cells(line, target)["resident_warps"])

    most = _first(lines, lambda line: -line.resources.registers)
    fewest = _first(lines, resident)
    columns = (
        f"`{op}`",
        len({line.configuration.kernel for line in lines}),
        len(lines),
        f"{most.resources.registers}: {_place(most)}",
        f"{resident(fewest)}: {_place(fewest)}",
        sum(line.resources.spilled > 0 for line in lines) or "none",
    )
    return f"| {' | '.join(map(str, columns))} |"


def _first(lines: Iterable[Line], key: Callable[[Line], int]) -> Line:
    return min(lines, key=key)


def _place(line: Line) -> str:
    """``backward_resident, float64, N 8192``."""
    found = line.configuration
    return f"{found.kernel.removeprefix(f'{found.op}_')}, {found.dtype}, N {found.widths}"


def _spills(target: Target, lines: Sequence[Line]) -> Iterator[str]:
    spilling = [line for line in lines if line.resources.spilled]
    if not spilling:
        yield "No configuration spills registers."
        yield ""
        return
    names = ("kernel", "dtype", "columns", "rows", "block", "warps", "stages", "options")
    heads = (*names, "registers", "stack", "spilled")
    yield f"These {len(spilling)} spill registers:"
    yield ""
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for line in spilling:
        texts = cells(line, target)
        yield f"| {' | '.join(texts[head] for head in heads)} |"
    yield ""
