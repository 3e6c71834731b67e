"""Who may import whom inside the generator, and which packages."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import kgen
import pytest

ROOT = Path(__file__).resolve().parent.parent
GENERATOR = Path(kgen.__file__).parent

# The flow reads downwards: a module imports modules above it, and only the ones named.
MAY_IMPORT = {
    "__init__": "",
    "errors": "",
    "paths": "",
    "expr": "errors",
    "spec": "errors expr",
    "latex": "expr",
    "tree": "errors",
    "check": "errors expr spec",
    "fields": "errors spec tree",
    "cases": "errors spec tree fields",
    "tuning": "errors spec tree fields",
    "load": "errors expr spec tree check fields cases tuning",
    "schema": "spec load",
    "ir": "errors expr spec",
    "formulas": "expr spec ir",
    "constants": "ir spec",
    "rewrite": "errors spec ir",
    "saving": "spec ir rewrite",
    "algebra": "errors spec ir formulas",
    "factoring": "ir algebra",
    "standins": "spec ir rewrite algebra",
    "writing": "ir algebra factoring",
    "pricing": "spec ir rewrite",
    "arrange": "spec ir rewrite algebra factoring standins writing pricing",
    "grad": "errors expr spec ir formulas algebra arrange",
    "lower": "errors expr spec ir formulas constants rewrite grad saving",
    "philox": "",
    "interpret": "errors spec ir philox",
    "verify": "errors expr spec ir formulas philox interpret lower",
    "padding": "spec ir constants",
    "merging": "spec ir rewrite",
    "schedule": "spec ir rewrite lower merging",
    "functions": "spec ir",
    "tiles": "errors spec ir lower functions schedule",
    "cost": "spec ir lower schedule",
    "traffic": "spec ir schedule tiles cost",
    "explain": "spec ir lower schedule cost traffic",
    "explain_page": "spec cost explain",
    "gallery": "expr spec ir formulas cost explain explain_page",
    "emit": "errors spec ir padding functions schedule",
    "peel": "ir",
    "body": "spec ir merging padding peel schedule emit",
    "view": "spec ir lower merging schedule emit body",
    "view_words": "spec",
    "view_module": "spec view_words",
    "view_pass": "spec ir schedule tiles view view_words",
    "view_autograd": "spec ir lower schedule view_pass view_words",
    "view_op": "spec check ir schedule tiles view view_words view_module view_pass view_autograd",
    "view_test": "spec ir lower schedule view",
    "render": "errors paths view view_op view_test",
    "build": "errors spec lower tiles view view_op view_test render",
    "output": "errors",
    # What generated tests import, and what pytest loads everywhere: they stand alone.
    "testing": "errors",
    "pytest_plugin": "",
    "mutate": "errors testing",
    "bench": "__init__ errors spec ir interpret lower traffic",
    "tune": "errors spec tree load lower schedule tiles build bench",
    "inspection": "errors spec load",
    "commands": "__init__ errors spec load build output expr ir formulas lower mutate verify "
    "schedule tiles cost traffic explain explain_page gallery latex bench tune inspection",
    "cli": "__init__ errors paths spec schema load build output commands",
    "__main__": "cli",
}

MAY_IMPORT_PACKAGES = {
    "tree": "ruamel",
    "philox": "torch",
    "interpret": "torch",
    "verify": "torch",
    "render": "jinja2 black",
    "commands": "click",
    "cli": "click",
    "testing": "torch triton numpy pytest",
    "mutate": "torch pytest",
    "bench": "torch triton matplotlib liger_kernel quack",
    "tune": "torch",
    "inspection": "torch triton",
    "pytest_plugin": "torch",
}

FILES = {
    path.relative_to(GENERATOR).with_suffix("").as_posix(): path
    for path in sorted(GENERATOR.rglob("*.py"))
}
STAGES = {module.partition("/")[0] for module in FILES}


def imports(module: str) -> Iterator[str]:
    """The dotted names that a module imports anywhere, also inside functions."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}.py:{node.lineno}: write 'from kgen.x import y'"
            if node.module == "kgen":
                yield from (f"kgen.{alias.name}" for alias in node.names)
            else:
                yield node.module or ""


def tree(module: str) -> ast.Module:
    """The syntax tree of a module of the generator."""
    return ast.parse(FILES[module].read_text(encoding="utf-8"))


@pytest.mark.parametrize("module", FILES)
def test_imports_go_one_way(module: str) -> None:
    stage, _, inner = module.partition("/")
    assert stage in MAY_IMPORT, f"add {stage} to the table in {Path(__file__).name}"
    allowed = set(MAY_IMPORT[stage].split())
    if inner:
        allowed.add(stage)  # the modules of one package may import each other
    for name in imports(module):
        package, *rest = name.split(".")
        if package == "kgen":
            other = rest[0] if rest and rest[0] in STAGES else "__init__"
            assert other in allowed, f"{module} may not import {name}"


def test_the_table_has_no_loop() -> None:
    seen: set[str] = set()
    for module, allowed in MAY_IMPORT.items():
        assert set(allowed.split()) <= seen, f"{module} stands above what it imports"
        seen.add(module)


@pytest.mark.parametrize("module", FILES)
def test_packages_are_used_where_they_belong(module: str) -> None:
    allowed = set(MAY_IMPORT_PACKAGES.get(module.partition("/")[0], "").split())
    used = {name.partition(".")[0] for name in imports(module)}
    assert used - {"kgen"} - set(sys.stdlib_module_names) <= allowed


@pytest.mark.parametrize("module", [name for name in FILES if name != "cli"])
def test_only_the_command_line_prints_or_exits(module: str) -> None:
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in ("print", "exit", "quit", "sys.exit", "os._exit"), called


def modules_after(code: str, *argv: str, cwd: Path = ROOT) -> set[str]:
    """The top-level packages that a fresh Python has imported after running ``code``."""
    script = f"import sys\nsys.argv[1:] = {list(argv)!r}\n{code}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in done.stdout.splitlines()[-1].split()}


def test_the_command_line_starts_light() -> None:
    found = modules_after("import kgen.cli")
    assert "click" in found
    assert found.isdisjoint({"torch", "triton", "numpy", "jinja2", "black", "ruamel"})


def test_a_build_needs_neither_torch_nor_triton(tmp_path: Path) -> None:
    code = "import kgen.cli\nkgen.cli.main(standalone_mode=False)"
    found = modules_after(code, "build", "specs/rmsnorm.yaml", "--out", str(tmp_path))
    assert (tmp_path / "rmsnorm/kernels.py").is_file()
    assert found.isdisjoint({"torch", "triton", "numpy", "pytest"})


PYTEST_RUN = """
import os, sys, pytest
os.environ.pop("TRITON_INTERPRET", None)
code = pytest.main(["-q", "-p", "no:cacheprovider", "test_it.py"])
print(int(code), "torch" in sys.modules, os.environ.get("TRITON_INTERPRET"))
"""

NO_GPU = "class cuda:\n    is_available = staticmethod(lambda: False)\n"


@pytest.mark.parametrize(
    ("header", "outcome"),
    [("", "False None"), ("# Generated by `kgen build specs/x.yaml`.\n", "True 1")],
)
def test_the_pytest_plugin_acts_on_generated_tests_only(
    tmp_path: Path, header: str, outcome: str
) -> None:
    (tmp_path / "test_it.py").write_text(f"{header}def test_it():\n    pass\n")
    (tmp_path / "torch.py").write_text(NO_GPU)
    done = subprocess.run(
        [sys.executable, "-c", PYTEST_RUN],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines()[-1:] == [f"0 {outcome}"], done.stdout + done.stderr
