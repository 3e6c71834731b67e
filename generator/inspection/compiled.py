"""Compiles what was recorded, for a GPU that need not be there."""

from __future__ import annotations

import io
import subprocess
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import triton
from kgen.inspection.launches import Launch, gpu_target
from kgen.inspection.resources import Resources, from_amd, from_nvidia, stack_of
from kgen.inspection.targets import Target
from triton import knobs


def resources_of(launch: Launch, target: Target) -> Resources:
    """Compile a kernel, or take it from Triton's cache, and read what it takes.

    Raises whatever the compiler raises.
    """
    compiled = _compiled(launch, target)
    if target.backend == "hip":
        return from_amd(compiled.asm["amdgcn"], compiled.metadata.shared)
    usage = _usage(compiled.asm["cubin"])
    # Only the assembler tells how much of the stack is spilled registers.
    log = _assembler_log(launch, target) if stack_of(usage) else ""
    return from_nvidia(usage, log, compiled.asm["ptx"], compiled.metadata.shared)


def code_of(launch: Launch, target: Target, form: str) -> str:
    """The kernel's code as ``ttir``, ``ttgir``, ``llir``, ``ptx``, ``sass`` or ``amdgcn``."""
    return str(_compiled(launch, target).asm[form])


def _compiled(launch: Launch, target: Target) -> Any:
    return triton.compile(
        launch.source, target=gpu_target(target), options=dict(launch.all_options)
    )


def _usage(cubin: bytes) -> str:
    with TemporaryDirectory(prefix="kgen-inspect-") as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", str(path)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _assembler_log(launch: Launch, target: Target) -> str:
    """What ``ptxas -v`` says, which Triton prints if asked to when it compiles anew."""
    output = io.StringIO()
    with knobs.nvidia.scope(), knobs.compilation.scope(), redirect_stdout(output):
        knobs.nvidia.dump_ptxas_log = True
        knobs.compilation.always_compile = True
        _compiled(launch, target)
    return output.getvalue()
