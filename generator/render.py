"""Views -> text: Jinja, a syntax check, and the pinned formatter."""

from __future__ import annotations

import ast
import functools
from typing import Any

import black
import jinja2
from black.mode import TargetVersion
from kgen.paths import templates

_MODE = black.Mode(line_length=100, target_versions={TargetVersion.PY311})


@functools.cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates(), encoding="utf-8"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def render(template: str, **values: Any) -> str:
    """The template filled in, checked to be Python, and formatted."""
    text = _environment().get_template(template).render(**values)
    ast.parse(text)
    return black.format_str(text, mode=_MODE)
