"""Every kernel of every committed op compiles for NVIDIA and AMD, on a machine without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kgen.build import render_op
from kgen.inspection.calls import Call
from kgen.inspection.session import Inspected, Session, session
from kgen.inspection.targets import TARGETS
from kgen.load import load
from kgen.output import plan_changes, write
from kgen.testing.cases import in_turn

ROOT = Path(__file__).resolve().parent.parent
# A width that no vector fits, the main case, and rows too long for registers.
CALLS = (
    Call("float32", 16384),
    Call("float64", 8192),
    Call("bfloat16", 257),
    Call("bfloat16", 4096),
    Call("bfloat16", 4096, optional=False),
    Call("bfloat16", 65536),
    Call("float32", 4096),
    Call("float64", 512),
)
# One of each schedule, and one in float64.
FEW = (CALLS[3], CALLS[5], CALLS[7])
# These are compiled for every target, one of them with random numbers; all others that are shipped,
# and one with a double backward, for one target in turn, since a compilation takes seconds.
EVERYWHERE = [
    *(ROOT / "specs" / f"{name}.yaml" for name in ("layernorm", "softmax")),
    ROOT / "tests" / "zoo" / "dropout_rmsnorm.yaml",
]
OTHERS = [path for path in sorted((ROOT / "specs").glob("*.yaml")) if path not in EVERYWHERE]
OTHERS.append(ROOT / "tests" / "zoo" / "rmsnorm_twice.yaml")
RUNS = [(spec, target) for spec in EVERYWHERE for target in TARGETS] + in_turn(
    OTHERS, tuple(TARGETS), 1
)


@pytest.fixture(scope="module")
def running() -> Iterator[Session]:
    with session(jobs=1) as running:
        yield running


@pytest.mark.parametrize(
    ("path", "target"), RUNS, ids=lambda value: value.stem if isinstance(value, Path) else value
)
def test_all_kernels_compile(running: Session, path: Path, target: str, tmp_path: Path) -> None:
    spec, limits = load(path), TARGETS[target]
    folder = ROOT / "generated"
    if not (folder / spec.op).is_dir():
        folder = tmp_path / "built"
        write(plan_changes(render_op(spec), folder, [spec.op]), folder)
    calls = CALLS if path in EVERYWHERE else FEW
    taken = tuple(call for call in calls if call.dtype in spec.dtypes)
    (recorded,) = running.recorded([Inspected(spec.op, path, folder, taken)], limits)
    found = recorded.configurations
    compiled = running.compiled([(recorded, list(recorded.first_calls))])
    defined = kernel_names(folder / spec.op / "kernels.py")
    assert {each.kernel for each in found} == defined, "a kernel was never launched"
    problems = [each.problem for each in compiled.values() if each.problem]
    assert not problems, "these do not compile"
    resources = {digest: each.resources for digest, each in compiled.items() if each.resources}
    most = limits.shared_of_program
    too_large = [each for each in found if resources[each.digest].shared > most]
    assert not too_large, "these ask for more shared memory than there is"
    main = [each for each in found if each.dtype == "bfloat16" and 4096 in each.columns]
    forward = [each for each in main if each.kernel.endswith("_forward_resident")]
    assert forward
    for each in forward:
        assert resources[each.digest].loads[0] == 16, "loads narrower than 16 bytes"


def kernel_names(path: Path) -> set[str]:
    """The kernels of a file: its jit functions that take no values, only pointers first."""
    lines = path.read_text(encoding="utf-8").splitlines()
    starts = [line for line in lines if line.startswith(f"def {path.parent.name}_")]
    return {line.removeprefix("def ").partition("(")[0] for line in starts}
