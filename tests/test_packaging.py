"""What an installed kgen brings along."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built from a copy so that the checkout stays clean."""
    copy = tmp_path_factory.mktemp("source")
    skip = shutil.ignore_patterns("__pycache__")
    for name in ("generator", "templates", "specs"):
        shutil.copytree(ROOT / name, copy / name, ignore=skip)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    target = tmp_path_factory.mktemp("wheel")
    build = (
        "import setuptools.build_meta as backend, sys; print(backend.build_wheel(sys.argv[1]))",
        str(target),
    )
    subprocess.run([sys.executable, "-c", *build], cwd=copy, check=True, capture_output=True)
    (path,) = target.glob("*.whl")
    return path


def test_the_wheel_holds_modules_templates_and_specs(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    generator = ROOT / "generator"
    wanted = {f"kgen/{path.relative_to(generator)}" for path in generator.rglob("*.py")}
    for folder in ("templates", "specs"):
        files = [path for path in (ROOT / folder).iterdir() if path.suffix != ".md"]
        wanted |= {f"kgen/{folder}/{path.name}" for path in files if path.is_file()}
    wanted.add("kgen/py.typed")
    assert wanted <= names
    unwanted = names - wanted
    assert all(name.startswith("kgen-") or name.endswith(".md") for name in unwanted), unwanted


def test_an_installed_kgen_works_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    site, work = tmp_path / "site", tmp_path / "work"
    zipfile.ZipFile(wheel).extractall(site)
    work.mkdir()

    def kgen(*args: str) -> str:
        code = "import kgen.cli, sys; sys.stderr.write(kgen.__file__); kgen.cli.main()"
        done = subprocess.run(
            [sys.executable, "-c", code, *args],
            cwd=work,
            env={"PYTHONPATH": str(site)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == str(site / "kgen/__init__.py")
        return done.stdout

    kgen("new", "mynorm", "--from", "rmsnorm")
    kgen("build", "specs/mynorm.yaml")
    assert "def mynorm(" in (work / "generated/mynorm/op.py").read_text(encoding="utf-8")
