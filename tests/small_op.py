"""Specs in a few words, for the tests of single stages."""

from __future__ import annotations

import importlib
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

import pytest
from kgen.build import render_op
from kgen.ir import Term
from kgen.load import load, load_text
from kgen.lower import RowOp, lower
from kgen.schedule import Kernel, OpSchedule, schedule
from kgen.spec import Spec
from kgen.view import KernelView, kernels_view

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "specs" / "README.md").read_text(encoding="utf-8")
EXAMPLES = [
    textwrap.dedent(block)
    for block in re.findall(r"^ *```yaml\n(.*?)^ *```", PAGE, re.MULTILINE | re.DOTALL)
    if "op:" in block
]
"""The specs that specs/README.md shows."""


def small_op(
    forward: str,
    backward: str = "none",
    *,
    inputs: Mapping[str, str] | None = None,
    params: Mapping[str, str] | None = None,
    outputs: Mapping[str, str] | None = None,
    dtypes: Sequence[str] = (),
) -> RowOp:
    """The lowered op of some formulas; ``x`` is a matrix, and ``y`` the output unless told."""
    lines = ["op: small_op", "summary: A small op.", "source: a test"]
    lines += _section("inputs", {"x": "matrix", **(inputs or {})})
    lines += _section("params", params or {})
    lines += _section("outputs", outputs or {"y": "x"})
    if dtypes:
        lines.append(f"dtypes: [{', '.join(dtypes)}]")
    lines += _block("forward", forward)
    lines += ["backward: none"] if backward == "none" else _block("backward", backward)
    lines += _block("reference", "return x")
    return lower(load_text("\n".join(lines) + "\n", "specs/small_op.yaml"))


def shipped(name: str) -> RowOp:
    """A lowered spec of the repository: one of the zoo, or else one that is shipped."""
    path = ROOT / "tests" / "zoo" / f"{name}.yaml"
    return lower(load(path if path.exists() else ROOT / "specs" / f"{name}.yaml"))


def built_op(spec: Spec, folder: Path, package: str) -> ModuleType:
    """The module ``op`` of an op, built in a package below ``folder``."""
    for path, text in render_op(spec).items():
        target = folder / package / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        return importlib.import_module(f"{package}.{spec.op}.op")


def kernels_text(row_op: RowOp) -> str:
    """The bodies of all kernels of an op, as they enter the templates."""
    return "\n".join(_body_text(each) for each in kernels_view(schedule(row_op)).kernels)


def kernel_text(row_op: RowOp, suffix: str) -> str:
    """The body of one kernel of an op."""
    kernels = kernels_view(schedule(row_op)).kernels
    return _body_text(next(each for each in kernels if each.name.endswith(f"_{suffix}")))


def _body_text(view: KernelView) -> str:
    walks = [text for walk in view.body.walks for text in (walk.before, walk.inside, walk.after)]
    return "\n".join([view.body.top, *walks])


def kernel(plan: OpSchedule, suffix: str) -> Kernel:
    """One kernel of an op."""
    found = plan.kernel(suffix)
    assert found is not None
    return found


def term_of(row_op: RowOp, name: str) -> Term:
    """The right side of a forward definition."""
    definition = row_op.forward.definition(name)
    assert definition is not None
    return definition.term


def _section(key: str, entries: Mapping[str, str]) -> list[str]:
    return [f"{key}:", *(f"  {name}: {value}" for name, value in entries.items())] * bool(entries)


def _block(key: str, text: str) -> list[str]:
    return [f"{key}: |", *(f"  {line.strip()}" for line in text.strip().split("\n"))]
