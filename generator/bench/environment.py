"""The machine and the software that results come from."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Mapping

import torch
from kgen import __version__


def environment(versions: Mapping[str, str]) -> dict[str, str]:
    """The GPU, its driver, and all versions, with those of the libraries that are compared."""
    import triton

    return {
        "gpu": torch.cuda.get_device_properties(torch.cuda.current_device()).name,
        "driver": driver(),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda or torch.version.hip),
        "triton": triton.__version__,
        "python": platform.python_version(),
        "kgen": __version__,
        **versions,
    }


def driver() -> str:
    """The version of the GPU's driver, or ``unknown``."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "unknown"
    asked = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return (done.stdout.split() or ["unknown"])[0]


def gpu_problem() -> str | None:
    """Why nothing can be measured here, or None."""
    if not torch.cuda.is_available():
        return "PyTorch finds no GPU here; times of Triton's interpreter would say nothing"
    from triton import knobs

    if knobs.runtime.interpret:
        return "TRITON_INTERPRET is set, so kernels would not run on the GPU; unset it"
    return None
