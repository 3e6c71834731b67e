"""Every kernel of every committed op compiles for NVIDIA and AMD, on a machine without a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from kgen.build import render_op
from kgen.inspection.calls import Call
from kgen.inspection.session import Inspected, Session, session
from kgen.inspection.targets import TARGETS
from kgen.load import load
from kgen.lower import lower
from kgen.output import plan_changes, write
from kgen.spec import Spec
from kgen.testing.cases import in_turn
from kgen.tiles import planned
from kgen.traffic import boundaries, directions, launch

ROOT = Path(__file__).resolve().parent.parent
# The main case, and another dtype of the arithmetic.
FEW = (Call("bfloat16", 4096), Call("float64", 512))
# A width that no vector fits, long rows of wide values, and optional inputs that are not given.
CALLS = (
    *FEW,
    Call("float32", 16384),
    Call("float64", 8192),
    Call("bfloat16", 257),
    Call("bfloat16", 4096, optional=False),
    Call("float32", 4096),
)
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


def longer(spec: Spec) -> set[Call]:
    """Rows that are read again in some direction, and the longest, which are walked in chunks."""
    plan, most = planned(lower(spec)), spec.limits.max_columns
    found = {Call("bfloat16", most)}
    for direction in directions(plan):
        widest = min(boundaries(plan, direction, 2)[-1], most)
        if launch(plan, direction, widest, 2).schedule == "reload":
            found.add(Call("bfloat16", widest))
    return found


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
    calls = {*(CALLS if path in EVERYWHERE else FEW), *longer(spec)}
    taken = tuple(call for call in sorted(calls, key=repr) if call.dtype in spec.dtypes)
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
    forms = ("_forward_resident", "_forward_streaming")
    forward = [each for each in main if each.kernel.endswith(forms)]
    assert forward
    for each in forward:
        lane = 2 * each.rows * each.block // (each.warps * limits.lanes)
        assert resources[each.digest].loads[0] == min(16, lane), "loads narrower than they could be"


@pytest.mark.parametrize(
    ("forward", "walks"),
    [("y = x * rsqrt(mean(x * x))", 2), ("e = exp(x - max(x))\ny = e / sum(e)", 3)],
)
def test_what_is_read_again_is_loaded_again(
    running: Session, forward: str, walks: int, tmp_path: Path
) -> None:
    """Else the values would stay in registers, which rows so long leave too few of."""
    path = tmp_path / "again.yaml"
    lines = forward.replace("\n", "\n  ")
    path.write_text(
        "op: again\nsummary: A small op.\nsource: a test\ninputs: {x: matrix}\noutputs: {y: x}\n"
        f"forward: |\n  {lines}\nbackward: none\nreference: |\n  return x\n"
    )
    write(plan_changes(render_op(load(path)), tmp_path, ["again"]), tmp_path)
    for columns, schedule, times in ((4096, "resident", 1), (16384, "reload", walks)):
        inspected = Inspected("again", path, tmp_path, (Call("bfloat16", columns),))
        (recorded,) = running.recorded([inspected], TARGETS["sm_90"])
        (each,) = recorded.configurations
        assert each.kernel == f"again_forward_{schedule}"
        compiled = running.compiled([(recorded, [each.digest])], "ptx")[each.digest]
        # 16 bytes at a time, by 32 threads a warp.
        once = columns * 2 // (16 * 32 * each.warps)
        assert once and len(re.findall(r"\bld\.global", compiled.code)) == times * once


@pytest.mark.parametrize(
    ("dtype", "columns", "schedule"),
    [
        ("bfloat16", 64, "resident"),  # several rows a program
        ("bfloat16", 512, "resident"),
        ("bfloat16", 4096, "resident"),
        ("bfloat16", 16384, "reload"),
        ("bfloat16", 32768, "streaming"),
        ("float32", 4096, "resident"),
        ("float64", 512, "resident"),
    ],
)
def test_a_shared_value_is_loaded_once_for_a_vector(
    running: Session, dtype: str, columns: int, schedule: str
) -> None:
    """And no thread gets what another has loaded: that would go through shared memory."""
    calls = tuple(Call(dtype, columns, optional) for optional in (True, False))
    inspected = Inspected("groupnorm", ROOT / "specs" / "groupnorm.yaml", ROOT / "generated", calls)
    (recorded,) = running.recorded([inspected], TARGETS["sm_90"])
    kernel = f"groupnorm_forward_{schedule}"
    both = {each.options: each for each in recorded.configurations if each.kernel == kernel}
    compiled = running.compiled([(recorded, [each.digest for each in both.values()])], "ptx")
    vector = 16 // getattr(torch, dtype).itemsize
    codes = {}
    for options, each in both.items():
        codes[f"SPAN={vector}" in options] = compiled[each.digest].code
        vectors = each.rows * each.block // (32 * each.warps * vector)
        # A loop that takes several chunks a step is followed by one for those that are left.
        vectors *= each.stages + 1 if "streaming" in kernel and each.stages > 1 else 1
    assert set(codes) == {True, False}
    found = {
        given: len(re.findall(r"\bld\.global\.(?:L1::\w+\.)?b\d+ ", code))
        for given, code in codes.items()
    }
    assert found == {True: 2 * vectors, False: 0}, "weight and bias"
    exchanged = [re.findall(r"\b(?:ld|st)\.shared|\bshfl", code) for code in codes.values()]
    assert exchanged[0] == exchanged[1]


def kernel_names(path: Path) -> set[str]:
    """The kernels of a file: its jit functions that take no values, only pointers first."""
    lines = path.read_text(encoding="utf-8").splitlines()
    starts = [line for line in lines if line.startswith(f"def {path.parent.name}_")]
    return {line.removeprefix("def ").partition("(")[0] for line in starts}
