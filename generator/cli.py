"""The commands. The only module that prints or exits."""

from __future__ import annotations

import difflib
import errno
import io
import keyword
import os
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from kgen import __version__, output, paths
from kgen.commands.bench import bench
from kgen.commands.common import (
    FAULT,
    FINDING,
    GENERATED,
    INTERRUPTED,
    SCHEMA,
    SPECS,
    build_line,
    check_line,
    describe,
    exit_with,
    load_all,
    load_good,
    out_option,
    printable,
    put,
    spec_paths,
    specs_argument,
    table,
)
from kgen.commands.derive import derive
from kgen.commands.explain import explain
from kgen.commands.gallery import gallery
from kgen.commands.inspect import inspect
from kgen.commands.mutate import mutate
from kgen.commands.tune import tune
from kgen.commands.verify import verify
from kgen.errors import KgenError, suggest
from kgen.output import Change, State
from kgen.spec import OP_PATTERN, op_problem

if TYPE_CHECKING:
    from kgen.spec import Spec


class _Commands(click.Group):
    """A group that turns the errors a user can mend into a message and exit code 2."""

    def invoke(self, ctx: click.Context) -> Any:
        _prepare_streams(ctx)
        try:
            return super().invoke(ctx)
        except KgenError as error:
            _fail(str(error))
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # click ends quietly when nobody reads on
            _fail(f"error: {describe(error)}")
        except RecursionError:
            _fail("error: a spec is nested too deeply")
        except (KeyboardInterrupt, click.Abort):
            click.echo("stopped: files are written whole or not at all", err=True)
            exit_with(INTERRUPTED)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            hint = suggest(args[0], self.list_commands(ctx))
            ctx.fail(f"no such command '{args[0]}'{hint}")
        return super().resolve_command(ctx, args)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kgen", message="%(prog)s %(version)s")
def main() -> None:
    """Turn short YAML specs of row reduction ops into readable, tested Triton kernels.

    \b
    Start here:
      kgen new mynorm --from rmsnorm       write specs/mynorm.yaml, then edit it
      kgen verify specs/mynorm.yaml        compare its formulas with its reference
      kgen build specs/mynorm.yaml         write generated/mynorm/
      pytest generated/mynorm              test it, on a GPU or without one
      kgen check                           in CI: is everything committed up to date?

    Exit codes: 0 all is well, 1 something was found, 2 a bad spec or bad usage.
    """


@main.command()
@specs_argument
@out_option
@click.option("--prune", is_flag=True, help="Delete files kgen once wrote that no spec makes now.")
def build(specs: tuple[Path, ...], folder: Path, prune: bool) -> None:
    """Write the code of SPECS, or of all specs/*.yaml.

    Only files whose text changes are written, and none if any spec is bad. Files that no spec
    makes are named but kept, unless --prune is given and their first line says kgen made them.

    \b
    Examples:
      kgen build                           everything in specs/
      kgen build specs/rmsnorm.yaml        one op
      kgen build --out src/ops --prune     elsewhere, and tidy up
    """
    changes = _plan(specs, folder)
    output.write(changes, folder)
    removed = set(output.prune(changes, folder)) if prune else set()
    for change in changes:
        click.echo(build_line(change, folder, change in removed))
    for line in _summaries(changes, removed):
        click.echo(line)
    if any(_is_prunable(change) and change not in removed for change in changes):
        click.echo(f"delete the orphans with `{_command('build', specs, folder, prune=True)}`")


@main.command()
@specs_argument
@out_option
def check(specs: tuple[Path, ...], folder: Path) -> None:
    """Tell whether the generated code is up to date.

    Compares the folder with what SPECS, or all specs/*.yaml, make. Names each file that is stale,
    missing or orphaned (made by no spec), and the command that mends it. Writes nothing. Exits
    with 1 if there is such a file.

    \b
    Examples:
      kgen check                           in CI or before a commit
      kgen check specs/rmsnorm.yaml        one op
    """
    changes = _plan(specs, folder)
    for change in changes:
        if change.state is not State.UNCHANGED:
            click.echo(check_line(change, folder))
    findings = _findings(changes)
    if not findings:
        for line in _summaries(changes, set()):
            click.echo(line)
        return
    if any(change.state is not State.ORPHAN or change.generated for change in findings):
        needs_prune = any(_is_prunable(change) for change in findings)
        command = _command("build", specs, folder, prune=needs_prune)
        click.echo(f"run `{command}` and commit what it changes")
    exit_with(FINDING)


@main.command()
@specs_argument
@out_option
def diff(specs: tuple[Path, ...], folder: Path) -> None:
    """Show what build would change, as a unified diff.

    Writes nothing. Exits with 1 if there is a difference.

    \b
    Examples:
      kgen diff                            after an edit of a spec
      kgen diff specs/rmsnorm.yaml | less
    """
    findings = _findings(_plan(specs, folder))
    for change in findings:
        for line in _diff_lines(change, folder):
            click.echo(_coloured(line))
    if findings:
        exit_with(FINDING)


@main.command("list")
@specs_argument
def list_ops(specs: tuple[Path, ...]) -> None:
    """List ops: name, inputs, spec and summary.

    The ops are those of SPECS, or of all specs/*.yaml. Optional inputs carry a question mark.
    A bad spec hides no other: what is wrong with it comes after the list, and the exit code is 2.

    \b
    Examples:
      kgen list
      kgen list specs/rmsnorm.yaml
    """
    loaded, problems = load_good(spec_paths(specs))
    rows = [
        (spec.op, ", ".join(_input_names(spec)), spec.path, " ".join(spec.summary.split()))
        for spec in loaded
    ]
    for line in table(rows):
        click.echo(printable(line))
    if problems:
        raise KgenError(problems)


@main.command()
@click.argument("name")
@click.option(
    "--from",
    "origin",
    required=True,
    metavar="SPEC",
    help="The spec to copy: a path, or the name of an op in specs/ or shipped with kgen.",
)
@click.option(
    "--out",
    "path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where to write the new spec.  [default: specs/NAME.yaml]",
)
def new(name: str, origin: str, path: Path | None) -> None:
    """Start a new spec as a copy of another.

    Everything but the op's name, summary, class, peers and tuning is copied as it stands,
    comments included. A file that exists is never overwritten.

    \b
    Examples:
      kgen new mynorm --from rmsnorm
      kgen new mynorm --from specs/layernorm.yaml --out ops/mynorm.yaml
    """
    _require_name(name)
    source = _origin(origin)
    (spec,) = load_all([source])
    if message := op_problem(name):
        raise KgenError(f"'{name}' is no name for an op: {message}")
    text = _renamed(source.read_bytes().decode("utf-8"), spec.op, name)
    target = path or SPECS / f"{name}.yaml"
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with target.open("x", encoding="utf-8", newline="") as file:
            file.write(text)
    except FileExistsError:
        raise KgenError(f"'{target}' exists already; choose another name or --out") from None
    click.echo(f"created {target}")
    click.echo(f"edit it, then run `{_command('build', [target], GENERATED)}`")


@main.command()
@click.option(
    "--out",
    "path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the schema to FILE instead of printing it.",
)
@click.option("--check", "checking", is_flag=True, help="Only tell whether FILE is up to date.")
def schema(path: Path | None, checking: bool) -> None:
    """Print the JSON schema of specs.

    An editor completes and checks specs with it. With --check, FILE is specs/schema.json unless
    --out names another; exits with 1 if it is not up to date.

    \b
    Examples:
      kgen schema --out specs/schema.json
      kgen schema --check
    """
    from kgen.schema import schema_json

    text = schema_json()
    if path is None and not checking:
        click.echo(text, nl=not text.endswith("\n"))
        return
    target = path or SCHEMA
    put(text, target, checking, f"kgen schema --out {shlex.quote(str(target))}")


main.add_command(explain)
main.add_command(derive)
main.add_command(verify)
main.add_command(mutate)
main.add_command(gallery)
main.add_command(bench)
main.add_command(tune)
main.add_command(inspect)


def _plan(specs: Sequence[Path], folder: Path) -> tuple[Change, ...]:
    """Load and render everything, and compare it with the folder."""
    loaded = load_all(spec_paths(specs))
    from kgen.build import render_all

    files = render_all(loaded, jobs=os.cpu_count() or 1)
    return output.plan_changes(files, folder, (spec.op for spec in loaded), complete=not specs)


def _findings(changes: Iterable[Change]) -> list[Change]:
    return [change for change in changes if change.state is not State.UNCHANGED]


def _is_prunable(change: Change) -> bool:
    return change.state is State.ORPHAN and change.generated


def _summaries(changes: Iterable[Change], removed: set[Change]) -> Iterator[str]:
    """One line an op: ``rmsnorm: 4 files unchanged``."""
    counts: dict[str, Counter[str]] = {}
    for change in changes:
        word = "deleted" if change in removed else str(change.state)
        counts.setdefault(change.op, Counter())[word] += 1
    for op, count in counts.items():
        (first, number), *rest = count.items()
        parts = [f"{number} file{'s' * (number != 1)} {first}"]
        parts += [f"{number} {word}" for word, number in rest]
        yield f"{op}: {', '.join(parts)}"


def _command(name: str, specs: Sequence[Path], folder: Path, prune: bool = False) -> str:
    """The command line to type."""
    words = ["kgen", name, *map(str, specs)]
    if folder != GENERATED:
        words += ["--out", str(folder)]
    if prune:
        words.append("--prune")
    return shlex.join(words)


def _diff_lines(change: Change, folder: Path) -> Iterator[str]:
    path = (folder / change.path).as_posix()
    if change.state is State.ORPHAN:
        yield f"Only in {(folder / change.path).parent.as_posix()}: {Path(change.path).name}"
        return
    before = "/dev/null" if change.found is None else path
    for line in difflib.unified_diff(
        _lines(change.found or ""), _lines(change.text or ""), before, path
    ):
        if line.endswith("\n"):
            yield line[:-1]
        else:
            yield line
            yield "\\ No newline at end of file"


def _lines(text: str) -> list[str]:
    """Lines with their newlines; unlike ``splitlines``, only a newline ends a line."""
    lines = text.split("\n")
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _coloured(line: str) -> str:
    if line.startswith(("---", "+++")):
        return click.style(line, bold=True)
    colour = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
    return click.style(line, fg=colour) if colour else line


def _input_names(spec: Spec) -> Iterator[str]:
    for given in spec.inputs:
        yield f"{given.name}?" if given.absent is not None else given.name


_NAME = re.compile(OP_PATTERN)


def _require_name(name: str) -> None:
    if _NAME.fullmatch(name) and not keyword.iskeyword(name):
        return
    better = re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower())
    better = better.lstrip("_0123456789").rstrip("_")[:48]
    usable = _NAME.fullmatch(better) and not keyword.iskeyword(better)
    raise KgenError(
        f"'{name}' is no name for an op: it names a folder and a function, so it takes a lower "
        f"case letter, then up to 47 lower case letters, digits and underscores, and is no keyword "
        f"of Python" + (f"; did you mean '{better}'?" if usable else "")
    )


def _origin(origin: str) -> Path:
    """The spec to copy, by its path or by the name of an op."""
    places = [Path(origin), SPECS / f"{origin}.yaml"]
    if _NAME.fullmatch(origin):
        places.append(paths.shipped_specs() / f"{origin}.yaml")
    for place in places:
        if place.is_file():
            return place
    shipped = {path.stem for path in paths.shipped_specs().glob("*.yaml")}
    local = {path.stem for path in SPECS.glob("*.yaml")}
    known = sorted(shipped | local)
    hint = suggest(origin, known) or f"; known ops are {', '.join(known)}"
    raise KgenError(f"there is no spec '{origin}'{hint}")


def _renamed(text: str, old: str, name: str) -> str:
    """The text with another op's name, a summary to be written, and no key that is the old's."""
    for key in ("module", "peers", "tuning"):
        block = rf"{key}:.*\n(?:[ \t\-\]].*\n)*"
        # With the empty line before it where it is the last, else with the one after it only if
        # there is one before it, too.
        text = re.sub(rf"\n\n{block}\Z", "\n", text)
        text = re.sub(rf"(?<=\n\n){block}\n?|^{block}", "", text, count=1, flags=re.MULTILINE)
    text, renamed = re.subn(
        rf"^(op:[ \t]*)(['\"]?){re.escape(old)}\2(?=\s|$)",
        lambda match: f"{match[1]}{name}",
        text,
        count=1,
        flags=re.MULTILINE,
    )
    if not renamed:
        raise KgenError(f"cannot find the line 'op: {old}' to rename; copy the file by hand")
    return re.sub(
        r"^summary:.*(\n[ \t]+\S.*)*",
        f"summary: Describe {name} here, it started as a copy of {old}.",
        text,
        count=1,
        flags=re.MULTILINE,
    )


def _prepare_streams(ctx: click.Context) -> None:
    """No colours if the user wants none, and no crash where the terminal lacks a character."""
    if os.environ.get("NO_COLOR"):
        ctx.color = False
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _fail(message: str) -> NoReturn:
    click.echo(printable(message), err=True)
    exit_with(FAULT)
