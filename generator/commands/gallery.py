"""``kgen gallery``: a page that shows every op."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from kgen.commands.common import (
    GENERATED,
    load_all,
    put,
    relative,
    spec_paths,
    specs_argument,
)
from kgen.commands.explain import (
    USUAL_DTYPE,
    USUAL_GBPS,
    USUAL_PROCESSORS,
    USUAL_SIZE,
    setting_of,
)

if TYPE_CHECKING:
    from kgen.explain import Explanation
    from kgen.spec import Spec

PAGE = Path("docs/ops.md")


@click.command()
@specs_argument
@click.option(
    "--out",
    "page",
    type=click.Path(path_type=Path),
    default=PAGE,
    show_default=True,
    metavar="FILE",
    help="The page to write.",
)
@click.option("--check", "checking", is_flag=True, help="Only tell whether FILE is up to date.")
def gallery(specs: tuple[Path, ...], page: Path, checking: bool) -> None:
    """Write a page that shows every op of SPECS, or of all specs/*.yaml.

    A table of all ops, then for each its call, its source, its formulas and gradients, what it
    keeps for backward and what it moves through memory. All of it is worked out from the specs;
    nothing is run. With --check nothing is written; exits with 1 if the page is not up to date.

    \b
    Examples:
      kgen gallery                         docs/ops.md
      kgen gallery --check                 in CI or before a commit
      kgen gallery specs/rmsnorm.yaml --out rmsnorm.md
    """
    paths = spec_paths(specs)
    loaded = load_all(paths)
    from kgen.gallery import Entry, setting_words
    from kgen.gallery import gallery as page_of

    page = relative(page)
    entries = [
        Entry(explained, tuple(_links(explained.spec.op, path, page)))
        for explained, path in zip(_explained(loaded), paths, strict=True)
    ]
    usual = setting_words(USUAL_SIZE, USUAL_SIZE, USUAL_DTYPE)
    command = _command(specs, page)
    put(page_of(entries, usual, command), page, checking, command)


def _explained(specs: Sequence[Spec]) -> list[Explanation]:
    """Every op in its usual setting; raises ``KgenError`` with the problems of all specs."""
    from kgen.errors import Problems
    from kgen.explain import explain
    from kgen.lower import lower
    from kgen.tiles import planned

    found: list[Explanation] = []
    problems = Problems()
    for spec in specs:
        with problems.collecting():
            setting = setting_of(spec, USUAL_SIZE, None, (), USUAL_PROCESSORS)
            found.append(explain(planned(lower(spec)), setting, USUAL_GBPS))
    problems.raise_if_any()
    return found


def _links(op: str, spec: Path, page: Path) -> Iterator[tuple[str, str]]:
    """To the spec and the folder of its code; what lies outside this project gets no link."""
    if not _is_inside(page):
        return
    if _is_inside(spec):
        yield "spec", _from(page, spec)
    if GENERATED.is_dir():
        yield "code", _from(page, GENERATED / op)


def _is_inside(path: Path) -> bool:
    return not path.is_absolute() and ".." not in path.parts


def _from(page: Path, target: Path) -> str:
    return Path(os.path.relpath(target, page.parent)).as_posix()


def _command(specs: Sequence[Path], page: Path) -> str:
    """The command that writes this page again."""
    words = ["kgen", "gallery", *(str(relative(path)) for path in specs)]
    return shlex.join([*words, "--out", str(page)] if page != PAGE else words)
