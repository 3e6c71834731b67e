"""Settings that must be in place before anything imports torch or triton."""

from __future__ import annotations

import os

from kgen.pytest_plugin import interpret_without_gpu

if "PYTEST_XDIST_WORKER" in os.environ:
    # One process a core: threads of their own would only make them wait for each other.
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")

interpret_without_gpu()
