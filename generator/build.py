"""The whole pipeline on one page: specs in, the generated files out."""

from __future__ import annotations

from collections.abc import Sequence

from kgen.errors import Problems
from kgen.lower import lower
from kgen.render import formatted, render
from kgen.spec import Spec
from kgen.tiles import planned
from kgen.view import kernels_view
from kgen.view_op import init_view, op_view
from kgen.view_test import test_view


def render_all(specs: Sequence[Spec], jobs: int = 1) -> dict[str, str]:
    """Relative path -> text of every file that the specs make; raises ``KgenError``.

    ``jobs`` is how many processes may format them.
    """
    files: dict[str, str] = {}
    problems = Problems()
    for spec in specs:
        with problems.collecting():
            files.update(_drafts(spec))
    problems.raise_if_any()
    return formatted(files, jobs)


def render_op(spec: Spec) -> dict[str, str]:
    """The files of one op."""
    return formatted(_drafts(spec))


def _drafts(spec: Spec) -> dict[str, str]:
    """The files of one op before they are formatted."""
    row_op = lower(spec)
    plan = planned(row_op)
    folder = spec.op
    return {
        f"{folder}/__init__.py": render("init.py.jinja", view=init_view(plan)),
        f"{folder}/kernels.py": render("kernels.py.jinja", view=kernels_view(plan)),
        f"{folder}/launch.py": render("launch.py.jinja", view=init_view(plan)),
        f"{folder}/op.py": render("op.py.jinja", view=op_view(plan)),
        f"{folder}/test_{spec.op}.py": render("test_op.py.jinja", view=test_view(plan)),
    }
