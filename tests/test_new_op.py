"""The whole road for ops that kgen has never seen: spec, build, generated tests, and use alone."""

from __future__ import annotations

import ast
import difflib
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from kgen.build import render_all
from kgen.emit import HELPERS
from kgen.load import load
from kgen.lower import lower
from kgen.output import plan_changes, write
from kgen.schedule import schedule
from kgen.spec import Element, Kind, Spec, gradient_name, name_problem

ROOT = Path(__file__).resolve().parent.parent
# An op that is shipped too has its tests in generated/.
ZOO = [
    path
    for path in sorted((ROOT / "tests" / "zoo").glob("*.yaml"))
    if not (ROOT / "specs" / path.name).exists()
]
# Ops whose formulas are also derived, under another name.
DERIVED = (
    "add_rmsnorm",
    "cross_entropy",
    "dropout_rmsnorm",
    "gated_rmsnorm",
    "log_softmax",
    "quant_rmsnorm",
    "standard_softmax",
)
FILES = [path.stem for path in ZOO]
NAMES = [*FILES, *(f"{name}_derived" for name in DERIVED)]
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
    **{"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
}
# Every schedule, an odd and an even N, a special row, and one optional input or output at a time.
SELECTION = """
    (test_forward or test_gradients) and lowered and (257 or 65 and float64)
    or (test_forward or test_gradients) and float64 and 65 and 17 and shipped
    or test_special_row and (nan_last or all_minus_inf) and lowered
    or test_optional_inputs and lowered
    or test_gradient_of_one_output and lowered
    or test_gradcheck and tiny and 3
    or test_memory_of_backward and lowered
    or test_second_order and 257 and lowered
    or test_second_order and float64 and 257 and 17 and shipped
    or test_second_order_of and lowered
    or test_second_order_for and lowered
    or test_second_upstream_layout and every and shipped
    or test_gradgradcheck and tiny and 3
    or test_first_order_alone or test_third_derivative
"""


def zoo() -> list[Spec]:
    """Every spec that is in the zoo alone, and some with a derived backward."""
    chosen = [load(ROOT / "tests" / "zoo" / f"{name}.yaml") for name in DERIVED]
    derived = [replace(s, op=f"{s.op}_derived", backward="derive") for s in chosen]
    return [load(path) for path in ZOO] + derived


def build(loaded: Sequence[Spec], folder: Path) -> dict[str, str]:
    files = render_all(loaded)
    write(plan_changes(files, folder, [spec.op for spec in loaded]), folder)
    return files


def run_tests(folder: Path, selection: str, *paths: str) -> subprocess.CompletedProcess[str]:
    options = ["-v", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", " ".join(selection.split())]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(paths or (".",))],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=400,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All zoo ops, built in one go outside the repository."""
    target = tmp_path_factory.mktemp("somewhere") / "ops"
    build(zoo(), target)
    return target


@pytest.fixture(scope="module")
def outcome(folder: Path) -> str:
    """What the selected generated tests of all ops said."""
    run = run_tests(folder, SELECTION)
    return run.stdout + run.stderr


@pytest.mark.parametrize("path", ZOO, ids=FILES)
def test_file_and_op_have_one_name(path: Path) -> None:
    assert load(path).op == path.stem


@pytest.mark.parametrize("name", NAMES)
def test_generated_tests_pass(name: str, outcome: str) -> None:
    results = Counter(
        re.findall(rf"^{name}/test_{name}\.py\S.* (PASSED|FAILED|ERROR)", outcome, re.M)
    )
    assert set(results) == {"PASSED"}, outcome[-4000:]
    assert results["PASSED"] >= 4


def test_the_ops_need_torch_and_triton_alone(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "run_alone.py", folder, *map(describe, zoo())],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.split("\n")[:-1] == [f"{name} ran" for name in NAMES]


def describe(spec: Spec) -> str:
    inputs = []
    for entry in spec.inputs:
        is_fixed = entry.element is Element.FLOAT and not entry.grad
        element = "fixed" if is_fixed else entry.element.value
        columns = "shared" if entry.shares_columns else "own"
        inputs.append(f"{entry.name}:{entry.kind.value}:{element}:{columns}")
    return " ".join([spec.op, "none" if spec.backward == "none" else "backward", *inputs])


def test_the_ops_have_every_sort_of_input() -> None:
    inputs = [entry for spec in zoo() for entry in spec.inputs]
    assert {entry.element for entry in inputs} == set(Element)
    assert {entry.kind for entry in inputs} == set(Kind)
    optional = {entry.kind.value for entry in inputs if entry.absent is not None}
    assert optional >= {"matrix", "per_row", "per_column"}


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", zoo(), ids=NAMES)
def test_no_spec_can_take_a_name_that_its_functions_use(spec: Spec, folder: Path) -> None:
    """What a generated function reads besides the spec's own names is refused as a name."""
    own = names_of(spec)
    for file in (f"{spec.op}/kernels.py", f"{spec.op}/op.py"):
        for function in ast.walk(ast.parse((folder / file).read_text(encoding="utf-8"))):
            others = (f"{spec.op}_reference", "random", "random_at", *HELPERS)
            if isinstance(function, ast.FunctionDef) and function.name not in others:
                used = dict(names_in_function(function))
                if own & {name for name, is_bound in used.items() if is_bound}:
                    free = {name for name in used if not name.startswith(spec.op)} - own
                    assert not [name for name in free if name_problem(name) is None], function.name


def names_of(spec: Spec) -> set[str]:
    """Every name that comes from a spec: its own, those of gradients, and those made of them."""
    plan = schedule(lower(spec))
    names = {entry.name for entry in (*spec.inputs, *spec.params, *spec.outputs)}
    for kernel in plan.kernels:
        program = kernel.program
        names |= {entry.name for entry in (*program.variables, *program.definitions)}
        names |= {result.tensor for result in program.results}
    return names | {gradient_name(name) for name in names}


def names_in_function(function: ast.FunctionDef) -> Iterator[tuple[str, bool]]:
    """Names that a function uses, and whether it binds them; attributes of ``ctx`` count too."""
    for node in ast.walk(function):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                yield name, False
            case ast.Attribute(value=ast.Name(id="ctx"), attr=name):
                yield name, False
    loops = [node.target for node in ast.walk(function) if isinstance(node, ast.comprehension)]
    passing = {id(node) for target in loops for node in ast.walk(target)}
    for node in ast.walk(function):
        match node:
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                yield name, id(node) not in passing


@pytest.mark.parametrize("name", [*HELPERS, "random", "random_at"])
def test_helpers_have_names_that_no_spec_can_take(name: str) -> None:
    assert name_problem(name) is not None


# --- small changes ------------------------------------------------------------------------------


def changed(name: str, old: str, new: str, folder: Path) -> dict[str, tuple[int, int]]:
    """Builds a shipped spec with one line changed: how many lines each file lost and gained."""
    source = ROOT / "specs" / f"{name}.yaml"
    text = source.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path = folder / "specs" / source.name
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    before = build([load(path)], folder)
    path.write_text(text.replace(old, new), encoding="utf-8")
    after = build([load(path)], folder)
    return {file: lost_and_gained(before[file], after[file]) for file in after}


def lost_and_gained(before: str, after: str) -> tuple[int, int]:
    marks = Counter(line[0] for line in difflib.ndiff(before.splitlines(), after.splitlines()))
    return marks["-"], marks["+"]


def test_eps_outside_the_root_is_a_small_diff_that_the_tests_catch(tmp_path: Path) -> None:
    old, new = "rstd = rsqrt(mean(x * x) + eps)", "rstd = rsqrt(mean(x * x)) + eps"
    sizes = changed("rmsnorm", old, new, tmp_path)
    assert 0 < max(sizes.pop("rmsnorm/kernels.py")) <= 12
    assert set(sizes.values()) == {(0, 0)}
    selection = "test_forward and float32 and lowered and (257 or 33 or 65)"
    run = run_tests(tmp_path, selection, "rmsnorm")
    assert run.returncode == 1, run.stdout
    assert (
        "AssertionError: rmsnorm, outputs" in run.stdout or "AssertionError: rmsnorm" in run.stdout
    )
    assert "ERROR" not in run.stdout


def test_a_wrong_gradient_is_a_small_diff(tmp_path: Path) -> None:
    old, new = "g - mean(g) - xhat * mean(g * xhat)", "g + mean(g) - xhat * mean(g * xhat)"
    sizes = changed("layernorm", old, new, tmp_path)
    assert 0 < max(sizes.pop("layernorm/kernels.py")) <= 6
    assert set(sizes.values()) == {(0, 0)}
