"""Views -> text: Jinja, a syntax check, and the pinned formatter, which takes most of the time."""

from __future__ import annotations

import ast
import functools
import multiprocessing
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import black
import jinja2
from black.mode import TargetVersion
from kgen.paths import templates

_MODE = black.Mode(line_length=100, target_versions={TargetVersion.PY311})


# A process takes as long to start as these files take to format.
_FILES_A_PROCESS = 12


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
    """The template filled in and checked to be Python."""
    text = _environment().get_template(template).render(**values)
    ast.parse(text)
    return text


def formatted(files: Mapping[str, str], jobs: int = 1) -> dict[str, str]:
    """The files as black lays them out; many of them in so many processes."""
    jobs = min(jobs, len(files) // _FILES_A_PROCESS)
    if jobs < 2:
        return {path: _format(text) for path, text in files.items()}
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        return dict(zip(files, pool.map(_format, files.values(), chunksize=4), strict=True))


def _format(text: str) -> str:
    return black.format_str(text, mode=_MODE)
