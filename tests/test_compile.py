"""Every kernel of every committed op compiles for NVIDIA and AMD, on a machine without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kgen.build import render_op
from kgen.load import load
from kgen.output import plan_changes, write
from kgen.testing.cases import in_turn

ROOT = Path(__file__).resolve().parent.parent
TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")
# These are compiled for every target, one of them with random numbers; all others that are shipped,
# and one with a double backward, for one target in turn, since a compilation takes seconds.
EVERYWHERE = [
    *(ROOT / "specs" / f"{name}.yaml" for name in ("layernorm", "softmax")),
    ROOT / "tests" / "zoo" / "dropout_rmsnorm.yaml",
]
OTHERS = [path for path in sorted((ROOT / "specs").glob("*.yaml")) if path not in EVERYWHERE]
OTHERS.append(ROOT / "tests" / "zoo" / "rmsnorm_twice.yaml")
RUNS = [(spec, target) for spec in EVERYWHERE for target in TARGETS] + in_turn(OTHERS, TARGETS, 1)


@pytest.mark.parametrize(
    ("spec", "target"), RUNS, ids=lambda value: value.stem if isinstance(value, Path) else value
)
def test_all_kernels_compile(spec: Path, target: str, tmp_path: Path) -> None:
    folder = ROOT / "generated"
    if not (folder / spec.stem).is_dir():
        folder = tmp_path / "built"
        write(plan_changes(render_op(load(spec)), folder, [spec.stem]), folder)
    reports = compile_op(spec, folder, target, *([] if spec in EVERYWHERE else ["few"]))
    defined = kernel_names(folder / spec.stem / "kernels.py")
    assert {report["kernel"] for report in reports} == defined, "a kernel was never launched"
    too_large = [r for r in reports if r["shared"] > r["shared_limit"]]
    assert not too_large, "these ask for more shared memory than there is"
    if target.startswith("sm_"):
        main = [r for r in reports if r["n_columns"] == 4096 and r["dtype"] == "torch.bfloat16"]
        forward = [r for r in main if r["kernel"].endswith("_forward_resident")]
        assert forward
        assert all(r["load_bytes"] == 16 for r in forward), "loads narrower than 16 bytes"


def compile_op(spec: Path, folder: Path, target: str, *few: str) -> list[dict[str, Any]]:
    """What ``compile_op.py`` reports of each kernel that the op launches."""
    script = ROOT / "tests" / "compile_op.py"
    command = [sys.executable, script, folder, spec, target, *few]
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    return [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]


def kernel_names(path: Path) -> set[str]:
    """The kernels of a file: its jit functions that take no values, only pointers first."""
    lines = path.read_text(encoding="utf-8").splitlines()
    starts = [line for line in lines if line.startswith(f"def {path.parent.name}_")]
    return {line.removeprefix("def ").partition("(")[0] for line in starts}
