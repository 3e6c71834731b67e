"""Launches and bytes: as the generated wrapper decides, and as the generated kernels load."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from kgen.body import Body
from kgen.load import load
from kgen.lower import lower
from kgen.schedule import Form, Kernel, OpSchedule
from kgen.spec import Kind
from kgen.tiles import planned
from kgen.traffic import (
    DTYPE_BYTES,
    Setting,
    boundaries,
    default_dtypes,
    directions,
    launch,
    least_bytes,
    saved_bytes,
    traffic,
)
from kgen.view import kernels_view
from small_op import ROOT, built_op, shipped, small_op

ALL_SPECS = sorted([*(ROOT / "specs").glob("*.yaml"), *(ROOT / "tests" / "zoo").glob("*.yaml")])
SIZES = sorted({max(1, 2**power + step) for power in range(19) for step in (-1, 0, 1)})
# Column sums with and without a first kernel, no column sums, many matrices, one walk or several;
# rows that are read again forward, backward, in both, and by groups; tiles of at
# least four columns.
WRAPPERS = [
    *("layernorm", "dyt", "softmax", "gated_rmsnorm", "rmsnorm", "rmsnorm_twice", "logsumexp"),
    "dropout_rmsnorm",
]


def plan_of(name: str) -> OpSchedule:
    return planned(shipped(name))


def setting(plan: OpSchedule, rows: int, columns: int, dtype: str = "bfloat16") -> Setting:
    return Setting(rows, columns, default_dtypes(plan.row_op.spec, dtype))


@pytest.fixture(scope="module")
def wrappers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModuleType]:
    """The generated ``op`` modules, by op."""
    folder = tmp_path_factory.mktemp("traffic")
    return {n: built_op(plan_of(n).row_op.spec, folder, "kgen_traffic") for n in WRAPPERS}


def decision(op: ModuleType, direction: str, element: int) -> Callable[[int], Any]:
    """The plan of a width for matrices of ``element`` bytes an element, which not every op asks."""
    decide = getattr(op, f"{direction}_plan")
    compute = torch.float64 if element == 8 else torch.float32
    rest = (compute, element)[: len(inspect.signature(decide).parameters) - 1]
    return lambda columns: decide(columns, *rest)


@pytest.mark.parametrize(
    ("name", "direction"),
    [(name, direction) for name in WRAPPERS for direction in directions(plan_of(name))],
)
def test_launches_are_those_of_the_wrapper(
    name: str, direction: str, wrappers: dict[str, ModuleType]
) -> None:
    plan = plan_of(name)
    for element in (2, 4, 8):
        decide = decision(wrappers[name], direction, element)
        for columns in SIZES:
            wanted = decide(columns)
            found = launch(plan, direction, columns, element)
            assert found.schedule == wanted.schedule, (columns, element)
            tile = found.tile
            shape = (tile.rows, found.block, tile.warps, tile.stages, tile.programs)
            assert shape == tuple(wanted[1:]), (columns, element)
        ends = boundaries(plan, direction, element)
        for last in ends:
            assert decide(last).schedule != decide(last + 16).schedule
        assert decide(ends[0]).schedule == "resident"
        assert decide(ends[-1] + 16).schedule in ("streaming", "split")


@pytest.mark.parametrize("name", ["layernorm", "dyt"])
def test_groups_are_those_of_the_wrapper(
    name: str, wrappers: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, op = plan_of(name), wrappers[name]
    monkeypatch.setattr(op, "_multiprocessors", lambda device: 132)
    for columns in SIZES:
        chosen = decision(op, "backward", 2)(columns)
        for rows in (1, 5, 64, 4096, 100_000):
            wanted = op._n_groups(chosen, rows, columns, 2 * 4, torch.device("cpu"))
            found = traffic(plan, "backward", setting(plan, rows, columns))
            assert found.groups == wanted, (rows, columns)
            assert found.partial_bytes == (2 * wanted * columns * 4 if wanted > 1 else 0)
            assert found.partial_bytes <= max(64 * 2**20, 2 * columns * 4)


@pytest.mark.parametrize(("dtype", "stored"), [("bfloat16", "float32"), ("float64", "float64")])
def test_an_output_in_the_dtype_of_the_arithmetic(dtype: str, stored: str) -> None:
    plan = plan_of("logsumexp")
    found = traffic(plan, "forward", setting(plan, 32, 64, dtype))
    assert [(m.name, m.dtype, m.bytes) for m in found.moves if m.is_write] == [
        ("lse", stored, 32 * DTYPE_BYTES[stored])
    ]


def loads_of(kernel: Kernel, body: Body) -> dict[str, int]:
    """How often a kernel loads each matrix; a loop does so once, with what stands before it."""
    pieces = [body.top, *(f"{w.before}\n{w.inside}" for w in body.walks)]
    found: dict[str, int] = {}
    for variable in kernel.program.variables:
        load_of = re.compile(rf"tl\.load\({variable.name}_ptr\b")
        loads = [len(load_of.findall(piece)) for piece in pieces]
        if kernel.form not in (Form.RELOAD, Form.RELOAD_GROUPS):
            loads = [min(1, number) for number in loads]
        if any(loads) and variable.fills_matrix:
            found[variable.name] = sum(loads)
    return found


@pytest.mark.parametrize("path", ALL_SPECS, ids=lambda path: path.stem)
def test_every_walk_reads_what_its_loop_loads(path: Path) -> None:
    plan = planned(lower(load(path)))
    bodies = {kernel.name: kernel.body for kernel in kernels_view(plan).kernels}
    for direction in directions(plan):
        for columns in (64, *boundaries(plan, direction, 4), 262144):
            found = traffic(plan, direction, setting(plan, 32, columns))
            wanted: dict[str, int] = {}
            for kernel in found.launch.kernels:
                for name, loads in loads_of(kernel, bodies[kernel.name]).items():
                    wanted[name] = wanted.get(name, 0) + loads
            read = [m for m in found.moves if not m.is_write and m.kind is Kind.MATRIX]
            times: dict[str, int] = {}
            for move in read:
                times[move.name] = times.get(move.name, 0) + move.times
            assert times == wanted, (direction, columns)
            stores = {m.name for m in found.moves if m.is_write and m.kind is not Kind.PER_COLUMN}
            text = "\n".join(
                "\n".join([bodies[k.name].top, *(w.inside + w.after for w in bodies[k.name].walks)])
                for k in found.launch.kernels
            )
            assert stores == {
                name
                for name in re.findall(r"tl\.store\((\w+)_ptr", text)
                if not name.endswith("_partial")
            } - {name for k in found.launch.kernels for name in k.program.repeated}


def test_gradients_of_the_same_values_are_stored_once_in_one_dtype() -> None:
    plan = planned(shipped("add_rmsnorm"))
    least = []
    for residual, names in (("bfloat16", ["dx"]), ("float32", ["dx", "dresidual"])):
        dtypes = {"x": "bfloat16", "residual": residual, "weight": "bfloat16"}
        each = Setting(8, 64, dtypes)
        moves = traffic(plan, "backward", each).moves
        assert [m.name for m in moves if m.is_write and m.kind is Kind.MATRIX] == names
        least.append(least_bytes(plan, "backward", each))
    # h and dh are wider too.
    assert least[1] - least[0] == 8 * 64 * (4 + 2 + 2)


def test_bytes_of_layernorm_by_hand() -> None:
    plan = plan_of("layernorm")
    m, n = 4096, 4096
    forward = traffic(plan, "forward", setting(plan, m, n))
    assert forward.bytes_read == 2 * m * n + 2 * 2 * n
    assert forward.bytes_written == 2 * m * n + 2 * 4 * m
    assert (forward.groups, forward.scratch_bytes) == (0, 0)
    backward = traffic(plan, "backward", setting(plan, m, n))
    partial = 2 * (2 * 132) * n * 4  # two programs a multiprocessor
    assert backward.partial_bytes == backward.scratch_bytes == partial
    assert backward.bytes_read == 2 * 2 * m * n + 2 * n + 2 * 4 * m + partial
    assert backward.bytes_written == 2 * m * n + partial + 2 * 2 * n
    assert least_bytes(plan, "backward", setting(plan, m, n)) == (
        3 * 2 * m * n + 3 * 2 * n + 2 * 4 * m
    )
    assert saved_bytes(plan, setting(plan, m, n)) == 2 * 4 * m


@pytest.mark.parametrize(
    ("name", "direction", "n", "read"),
    [
        ("softmax", "forward", 16384, {"x": 3}),
        ("softmax", "backward", 16384, {"y": 2, "dy": 2}),
        ("softmax", "backward", 32768, {"y": 2, "dy": 1}),
        ("softmax", "backward", 65536, {"y": 2, "dy": 2}),
        ("rmsnorm", "backward", 16384, {"x": 2, "dy": 2}),
    ],
)
def test_rows_read_again_after_each_reduction(
    name: str, direction: str, n: int, read: dict[str, int]
) -> None:
    plan = plan_of(name)
    m = 512
    found = traffic(plan, direction, setting(plan, m, n))
    assert found.launch.schedule == "reload"
    assert found.launch.passes == max(read.values())
    matrices = [move for move in found.moves if move.kind is Kind.MATRIX and not move.is_write]
    assert {move.name: move.times for move in matrices} == read
    assert sum(move.bytes * move.times for move in matrices) == sum(read.values()) * 2 * m * n
    shorter = traffic(plan, direction, setting(plan, m, 4096))
    assert shorter.launch.schedule == "resident" and shorter.launch.passes == 1


def test_a_long_row_is_read_again_and_passes_statistics_on() -> None:
    plan = plan_of("layernorm")
    m, n = 512, 65536
    found = traffic(plan, "backward", setting(plan, m, n))
    assert found.launch.schedule == "split"
    assert [k.form for k in found.launch.kernels] == [Form.STREAMING, Form.SPLIT_COLUMNS]
    assert found.launch.passes == 2
    assert found.statistic_bytes == 2 * 4 * m
    matrices = [(m_.name, m_.times) for m_ in found.moves if m_.kind is Kind.MATRIX]
    assert matrices == [("x", 1), ("dy", 1), ("x", 1), ("dy", 1), ("dx", 1)]


@pytest.mark.parametrize(
    ("dtype", "compute", "size"), [("float16", "float32", 2), ("float64", "float64", 8)]
)
def test_dtypes_of_everything(dtype: str, compute: str, size: int) -> None:
    plan = planned(
        small_op("lse = log(sum(exp(x)))", "dx = dlse * exp(x - lse)", outputs={"lse": "float32"})
    )
    found = traffic(plan, "forward", setting(plan, 8, 100, dtype))
    saved = (compute, 8 * DTYPE_BYTES[compute], True)
    assert {m.name: (m.dtype, m.bytes, m.is_write) for m in found.moves} == {
        "x": (dtype, 800 * size, False),
        "lse": ("float32", 32, True),
        "saved_lse": saved,
    }
    backward = traffic(plan, "backward", setting(plan, 8, 100, dtype))
    assert {m.name: m.dtype for m in backward.moves} == {
        "x": dtype,
        "lse": compute,
        "dlse": "float32",
        "dx": dtype,
    }


def test_a_double_backward() -> None:
    plan = plan_of("rmsnorm_twice")
    dtypes = {"x": "bfloat16", "weight": "float32"}
    moves = traffic(plan, "double_backward", Setting(64, 128, dtypes)).moves
    assert {m.name: m.dtype for m in moves if m.kind is Kind.MATRIX} == dict.fromkeys(
        ("x", "dy", "ddx", "ddy", "d2x"), "bfloat16"
    )
    assert [m.dtype for m in moves if m.name == "ddweight"] == ["float32"]
    assert [m.dtype for m in moves if m.name == "d2weight" and m.is_write][-1] == "float32"


def test_whole_numbers_and_conditions() -> None:
    plan = plan_of("cross_entropy")
    found = traffic(plan, "forward", setting(plan, 8, 100))
    assert {m.name: m.bytes for m in found.moves if not m.is_write}["target"] == 8 * 8
    gated = plan_of("gated_rmsnorm")
    moves = traffic(gated, "forward", setting(gated, 8, 100)).moves
    assert {m.name: m.bytes for m in moves}["keep"] == 800


def test_one_input_of_another_dtype() -> None:
    plan = plan_of("layernorm")
    dtypes = {"x": "bfloat16", "weight": "float32", "bias": "bfloat16"}
    found = traffic(plan, "backward", Setting(64, 128, dtypes))
    written = {m.name: m.dtype for m in found.moves if m.is_write}
    assert written["dx"] == "bfloat16" and written["dweight"] == "float32"
    assert Setting(64, 128, {"x": "float16", "weight": "float64"}).compute == "float64"


def test_a_setting_makes_a_matrix() -> None:
    with pytest.raises(AssertionError):
        Setting(0, 4, {"x": "float32"})
