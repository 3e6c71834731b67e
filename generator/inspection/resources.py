"""What a compiled kernel takes, read from the texts that the compiler leaves."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resources:
    """What one kernel takes.

    Attributes:
        registers: 32-bit registers of a lane.
        stack: bytes of local memory of a lane, for spilled registers or for anything else.
        spilled: bytes of registers that a lane puts into local memory for lack of registers.
        shared: bytes of shared memory of a program.
        loads: the widths in bytes of the loads from global memory, widest first.
        stores: the widths in bytes of the stores to global memory, widest first.
    """

    registers: int
    stack: int
    spilled: int
    shared: int
    loads: tuple[int, ...]
    stores: tuple[int, ...]


def from_nvidia(usage: str, log: str, ptx: str, shared: int) -> Resources:
    """The resources of a kernel for an NVIDIA GPU.

    Args:
        usage: what ``cuobjdump -res-usage`` prints.
        log: what ``ptxas -v`` prints; may be empty where ``usage`` shows no stack.
        ptx: the code.
        shared: bytes that its launch asks for.
    """
    loads = _vectors(r"\bld\.global", ptx)
    # Loads that a pipelined loop sends ahead, straight into shared memory.
    loads |= {int(n, 16) for n in re.findall(r"\bcp\.async\.c[ag]\.shared\.global.*?(0x\w+)", ptx)}
    return Resources(
        registers=_number(r"\bREG:(\d+)", usage),
        stack=stack_of(usage),
        spilled=_number(r"(\d+) bytes spill stores", log) if log else 0,
        shared=shared,
        loads=_widest_first(loads),
        stores=_widest_first(_vectors(r"\bst\.global", ptx)),
    )


def stack_of(usage: str) -> int:
    """Bytes of local memory of a lane, as ``cuobjdump -res-usage`` tells."""
    return _number(r"\bSTACK:(\d+)", usage) + _number(r"\bLOCAL:(\d+)", usage)


def from_amd(code: str, shared: int) -> Resources:
    """The resources of a kernel for an AMD GPU, by the metadata and instructions of its code."""
    return Resources(
        registers=_number(r"\.vgpr_count:\s*(\d+)", code),
        stack=_number(r"\.private_segment_fixed_size:\s*(\d+)", code),
        spilled=4 * _number(r"\.vgpr_spill_count:\s*(\d+)", code),
        shared=shared,
        loads=_widest_first(_words("load", code)),
        stores=_widest_first(_words("store", code)),
    )


def _vectors(start: str, ptx: str) -> set[int]:
    """Bytes of each kind of access: its vector's length times the size of an element."""
    found = re.findall(rf"{start}\S*?(?:\.v(\d+))?\.[a-z]+(\d+)\s", ptx)
    return {int(length or 1) * int(bits) // 8 for length, bits in found}


_AMD_BYTES = {"byte": 1, "ubyte": 1, "sbyte": 1, "short": 2, "ushort": 2, "sshort": 2}
_AMD_BYTES |= {"dword": 4, "dwordx2": 8, "dwordx3": 12, "dwordx4": 16}


def _words(access: str, code: str) -> set[int]:
    """Bytes of each kind of access: ``buffer_load_dwordx4``, ``global_store_short_d16_hi``."""
    found = re.findall(
        rf"\b(?:global|buffer|flat)_{access}_(?:lds_)?([a-z]+(?:x\d)?)(?![a-z0-9])", code
    )
    return {_AMD_BYTES[word] for word in found}


def _widest_first(widths: set[int]) -> tuple[int, ...]:
    return tuple(sorted(widths, reverse=True))


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise ValueError(f"the compiler's report has no {pattern!r}: {text[-500:]!r}")
    return int(found[1])
