"""What the commands share: their arguments, the specs they read, and how they end."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click
from kgen import output
from kgen.errors import KgenError, Problem, suggest
from kgen.output import Change, State

if TYPE_CHECKING:
    from kgen.spec import Spec

SPECS = Path("specs")
GENERATED = Path("generated")
SCHEMA = Path("specs/schema.json")

FINDING, FAULT, INTERRUPTED = 1, 2, 130
"""Exit codes: something to mend in the output folder; a bad spec, bad usage or a system error."""

specs_argument = click.argument("specs", nargs=-1, type=click.Path(path_type=Path))
out_option = click.option(
    "--out",
    "folder",
    type=click.Path(path_type=Path),
    default=GENERATED,
    show_default=True,
    metavar="DIR",
    help="The folder that holds one folder an op.",
)


def spec_paths(specs: Sequence[Path]) -> list[Path]:
    """The files to load: those given, with a folder standing for its *.yaml, or all of specs/."""
    if not specs:
        return _yaml_files(SPECS)
    found: list[Path] = []
    for path in specs:
        found.extend(_yaml_files(path) if path.is_dir() else [path])
    first = {path.resolve(): path for path in reversed(found)}
    return [relative(path) for path in reversed(first.values())]


def named_specs(ops: Iterable[str]) -> list[Path]:
    """The spec of each op that is named, or the path that is given."""
    named = [(op, SPECS / f"{op}.yaml") for op in ops]
    return [path if path.is_file() else Path(op) for op, path in named]


def _yaml_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise KgenError(
            f"there is no folder '{folder}' here; name the spec files, run kgen where the folder "
            f"is, or start one with `kgen new NAME --from rmsnorm`"
        )
    found = sorted(path for path in folder.glob("*.yaml") if path.is_file())
    if not found:
        raise KgenError(
            f"there is no *.yaml in the folder '{folder}'; "
            f"start one with `kgen new NAME --from rmsnorm`"
        )
    return found


def relative(path: Path) -> Path:
    """The plain path from here if it lies below: it gets into the headers of generated code."""
    here = Path.cwd()
    place = Path(os.path.normpath(here / path))
    return place.relative_to(here) if place.is_relative_to(here) else path


def load_all(spec_paths: Iterable[Path]) -> list[Spec]:
    """Load every spec, so that the problems of all of them are shown at once."""
    loaded, problems = load_good(spec_paths)
    if problems:
        raise KgenError(problems)
    return loaded


def load_good(spec_paths: Iterable[Path]) -> tuple[list[Spec], list[Problem]]:
    """The specs that can be read, and the problems of all others."""
    from kgen.load import load

    problems: list[Problem] = []
    loaded: list[Spec] = []
    for path in spec_paths:
        if not path.exists():
            problems.append(Problem(f"there is no spec '{path}'{_similar_spec(path)}"))
            continue
        try:
            loaded.append(load(path))
        except KgenError as error:
            problems.extend(error.problems)
        except OSError as error:
            problems.append(Problem(describe(error)))
    problems.extend(_duplicates(loaded))
    return loaded, problems


def _duplicates(specs: Iterable[Spec]) -> Iterator[Problem]:
    first: dict[str, Spec] = {}
    for spec in specs:
        other = first.setdefault(spec.op, spec)
        if other is not spec:
            yield Problem(
                f"op '{spec.op}' is made by both '{other.path}' and '{spec.path}'; rename one",
                spec.at,
            )


def _similar_spec(path: Path) -> str:
    """A hint when an op's name was given for its path, or the path is misspelt."""
    known = sorted(str(spec) for spec in SPECS.glob("*.yaml")) if SPECS.is_dir() else []
    by_name = str(SPECS / f"{path.name}.yaml")
    return f"; did you mean '{by_name}'?" if by_name in known else suggest(str(path), known)


def table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Rows with all columns but the last padded to one width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        yield "  ".join([*padded[:-1], row[-1]]).rstrip()


_COLOURS = {State.CREATED: "green", State.UPDATED: "yellow", State.ORPHAN: "red"}
_CHECK_WORDS = {State.CREATED: "missing", State.UPDATED: "stale", State.ORPHAN: "orphan"}


def build_line(change: Change, folder: Path, removed: bool) -> str:
    """What ``build`` says of a file."""
    word = "deleted" if removed else str(change.state)
    return f"{click.style(word, fg=_COLOURS.get(change.state))} {folder / change.path}"


def check_line(change: Change, folder: Path) -> str:
    """What ``check`` says of a file that is not up to date."""
    word = click.style(_CHECK_WORDS[change.state], fg=_COLOURS[change.state])
    line = f"{word} {folder / change.path}"
    if change.state is not State.ORPHAN:
        return line
    mend = "" if change.generated else "; kgen did not write it: move it elsewhere or delete it"
    return f"{line} (no spec makes it{mend})"


def put(text: str, target: Path, checking: bool, command: str) -> None:
    """Write a file that stands alone, or only tell whether it is there as ``command`` makes it."""
    (change,) = output.plan_changes({target.name: text}, target.parent, ())
    if not checking:
        output.write([change], target.parent)
        click.echo(build_line(change, target.parent, removed=False))
        return
    if change.state is not State.UNCHANGED:
        click.echo(check_line(change, target.parent))
        click.echo(f"run `{command}` and commit what it changes")
        exit_with(FINDING)
    click.echo(f"{target}: up to date")


def describe(error: OSError) -> str:
    """``Permission denied: 'generated/rmsnorm'``."""
    reason = error.strerror or str(error) or type(error).__name__
    if error.filename is None:
        return reason
    return f"{reason}: '{relative(Path(str(error.filename)))}'"


def printable(text: str) -> str:
    """Text from a spec or a file name may not steer the terminal."""
    return "".join(
        char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text
    )


def exit_with(code: int) -> NoReturn:
    """End the command with that exit code."""
    raise click.exceptions.Exit(code)
