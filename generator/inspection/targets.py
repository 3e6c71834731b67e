"""The GPUs that kernels are compiled for, and how many programs fit on one multiprocessor."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """A GPU as the compiler knows it, and the limits of one of its multiprocessors.

    ``registers`` are of 32 bits each, counted over all lanes of all warps; a warp gets them in
    units of ``register_unit``. Shared memory is in bytes: each program takes what it asks for and
    ``shared_reserved``, in units of ``shared_unit``.
    """

    name: str
    backend: str
    arch: int | str
    lanes: int
    multiprocessors: int
    registers: int
    register_unit: int
    warps: int
    programs: int
    shared: int
    shared_of_program: int
    shared_reserved: int
    shared_unit: int

    def programs_with(self, registers: int, shared: int, warps: int) -> int:
        """How many programs a multiprocessor holds at a time; 0 if not even one fits.

        Args:
            registers: of one lane.
            shared: bytes that a program asks for.
            warps: of one program.
        """
        if shared > self.shared_of_program or warps * self.lanes > 1024:
            return 0
        of_warp = _ceil(max(registers, 1) * self.lanes, self.register_unit)
        # Warps are dealt out to four schedulers, each with a quarter of the registers.
        resident = min(self.warps, self.registers // of_warp // 4 * 4)
        of_program = _ceil(shared + self.shared_reserved, self.shared_unit)
        fitting = self.shared // of_program if of_program else self.programs
        return min(self.programs, resident // warps, fitting)


def _ceil(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _nvidia(arch: int, multiprocessors: int, shared_kib: int) -> Target:
    return Target(
        name=f"sm_{arch}",
        backend="cuda",
        arch=arch,
        lanes=32,
        multiprocessors=multiprocessors,
        registers=65536,
        register_unit=256,
        warps=64,
        programs=32,
        shared=shared_kib * 1024,
        shared_of_program=(shared_kib - 1) * 1024,
        shared_reserved=1024,
        shared_unit=128,
    )


_ALL = (
    _nvidia(80, multiprocessors=108, shared_kib=164),
    _nvidia(90, multiprocessors=132, shared_kib=228),
    _nvidia(100, multiprocessors=148, shared_kib=228),
    Target(
        name="gfx942",
        backend="hip",
        arch="gfx942",
        lanes=64,
        multiprocessors=304,
        registers=4 * 512 * 64,
        register_unit=8 * 64,
        warps=32,
        programs=32,
        shared=65536,
        shared_of_program=65536,
        shared_reserved=0,
        shared_unit=512,
    ),
)
TARGETS = {target.name: target for target in _ALL}
USUAL_TARGET = "sm_90"
