"""``kgen mutate``: faulty variants of generated ops, which the generated tests must see."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from kgen.commands.common import (
    FINDING,
    exit_with,
    load_all,
    printable,
    relative,
    spec_paths,
    specs_argument,
    table,
)
from kgen.errors import KgenError, Problem, suggest

if TYPE_CHECKING:
    from kgen.mutate.catalogue import Kind, OpText
    from kgen.mutate.mutants import Mutant
    from kgen.mutate.report import Proof
    from kgen.spec import Spec

_file = click.Path(path_type=Path, dir_okay=False)


@click.command()
@specs_argument
@click.option(
    "--jobs",
    type=click.IntRange(1, 256),
    metavar="N",
    help="How many mutants to test at a time.  [default: one a processor]",
)
@click.option(
    "--kind",
    "names",
    multiple=True,
    metavar="NAME",
    help="Only faults of this kind; may be given several times.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="Only N mutants an op, evenly spread and always the same.",
)
@click.option("--list", "listing", is_flag=True, help="Show the kinds of fault and run nothing.")
@click.option("--json", "json_file", type=_file, metavar="FILE", help="Write all results as JSON.")
@click.option("--markdown", "page", type=_file, metavar="FILE", help="Write the results as a page.")
def mutate(
    specs: tuple[Path, ...],
    jobs: int | None,
    names: tuple[str, ...],
    limit: int | None,
    listing: bool,
    json_file: Path | None,
    page: Path | None,
) -> None:
    """Prove that the generated tests can fail.

    Builds the code of SPECS, or of all specs/*.yaml, in a temporary folder, makes one variant for
    every place where a classic fault can be, and runs the generated tests on each, in Triton's
    interpreter. Names the test that sees the fault. Exits with 1 if a mutant survives all tests,
    or if the tests fail on the code as it is.

    \b
    Examples:
      kgen mutate --list                   the kinds of fault and their places
      kgen mutate specs/rmsnorm.yaml       every mutant of one op: some minutes
      kgen mutate --limit 20               a quick look at every op
      kgen mutate --kind mean-by-block --kind eps-dropped
    """
    if listing and (json_file or page):
        raise click.UsageError("--list runs nothing: there is no result to write")
    for file in (json_file, page):
        _require_folder(file)
    kinds = _chosen_kinds(names)
    loaded = load_all(spec_paths(specs))
    ops = _rendered(loaded)
    if listing:
        _show_kinds(ops, kinds)
        return
    is_fine, proofs = True, []
    for spec, op in zip(loaded, ops, strict=True):
        proof = _prove(spec, op, _mutants(op, kinds, limit), jobs or os.cpu_count() or 1)
        is_fine = is_fine and proof is not None and not proof.survivors
        proofs += [proof] if proof else []
    _write(proofs, json_file, page, _command(specs, names, limit, page))
    if not is_fine:
        exit_with(FINDING)


def _rendered(specs: Sequence[Spec]) -> list[OpText]:
    """The generated files of each op; raises ``KgenError`` with the problems of all specs."""
    from kgen.build import render_all
    from kgen.mutate.catalogue import OpText

    files = render_all(specs)
    return [
        OpText(
            spec.op,
            {
                path.removeprefix(f"{spec.op}/"): text
                for path, text in files.items()
                if path.startswith(f"{spec.op}/")
            },
        )
        for spec in specs
    ]


def _chosen_kinds(names: Sequence[str]) -> list[Kind]:
    from kgen.mutate.catalogue import all_kinds

    known = {kind.name: kind for kind in all_kinds()}
    problems = [
        Problem(
            f"there is no kind of fault '{name}'"
            f"{suggest(name, known) or '; `kgen mutate --list` shows them all'}"
        )
        for name in names
        if name not in known
    ]
    if problems:
        raise KgenError(problems)
    return [kind for kind in known.values() if not names or kind.name in names]


def _require_folder(file: Path | None) -> None:
    """Before anything takes minutes, the place for its result must be there."""
    if file is not None and not file.parent.is_dir():
        raise KgenError(f"there is no folder '{file.parent}' for '{file}'")


def _mutants(op: OpText, kinds: Sequence[Kind], limit: int | None) -> list[Mutant]:
    from kgen.mutate.mutants import mutants_of, spread

    found = mutants_of(op, kinds)
    return found if limit is None else spread(found, limit)


def _show_kinds(ops: Sequence[OpText], kinds: Sequence[Kind]) -> None:
    from kgen.mutate.mutants import mutants_of

    counts = [[mutant.kind for mutant in mutants_of(op, kinds)] for op in ops]
    one_by_one = len(ops) <= 4
    heads = [op.op for op in ops] if one_by_one else [f"{len(ops)} ops"]
    lines: list[tuple[str, ...]] = [("kind", *heads, "meaning")]
    for kind in kinds:
        found = [sum(other is kind for other in count) for count in counts]
        sites = found if one_by_one else [sum(found)]
        lines.append((kind.name, *_aligned(sites, heads), kind.meaning))
    totals = [len(count) for count in counts]
    lines.append(("all", *_aligned(totals if one_by_one else [sum(totals)], heads), ""))
    for line in table(lines):
        click.echo(line)


def _aligned(numbers: Sequence[int], heads: Sequence[str]) -> list[str]:
    return [str(n).rjust(len(head)) for n, head in zip(numbers, heads, strict=True)]


def _prove(spec: Spec, op: OpText, mutants: Sequence[Mutant], jobs: int) -> Proof | None:
    """Run the tests on the op and its mutants, and show what came of it; ``None`` if they fail."""
    from kgen.mutate.report import HEADER, Proof, rows
    from kgen.mutate.session import session

    if not mutants:
        click.echo(f"{op.op}: no fault of these kinds can be made in it")
        return Proof(op.op, spec.path, 0, ())
    with session(op, jobs) as runs:
        before = runs.baseline()
        if before.failed or not before.tests:
            click.echo(printable(_unproved(op.op, before.failed, before.why)))
            return None
        passing = "1 test passes" if before.tests == 1 else f"{before.tests} tests pass"
        click.echo(f"{op.op}: {passing}; {len(mutants)} mutants to kill")
        with _progress(op.op, len(mutants)) as step:
            verdicts = runs.verdicts(mutants, step)
    proof = Proof(op.op, spec.path, before.tests, tuple(verdicts))
    for line in table([HEADER, *rows(proof)]):
        click.echo(printable(line))
    click.secho(proof.summary, fg="red" if proof.survivors else "green")
    for verdict in proof.survivors:
        click.echo(printable(f"survived: {verdict.mutant.place}: {verdict.mutant.change}"))
    if proof.survivors:
        click.echo("a survivor computes the same as the right code, or no test looks there")
    return proof


def _unproved(op: str, failed: str, why: str) -> str:
    if not failed:
        return f"{op}: none of its tests ran, so there is nothing to prove"
    return (
        f"{op}: {failed} fails on the code as it is, so there is nothing to prove: "
        f"mend that first\n  {why}"
    )


@contextmanager
def _progress(op: str, count: int) -> Iterator[Callable[[], None]]:
    """A bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    bar: Any
    with click.progressbar(length=count, label=op, file=sys.stderr, show_pos=True) as bar:
        yield lambda: bar.update(1)


def _write(
    proofs: Sequence[Proof], json_file: Path | None, page: Path | None, command: str
) -> None:
    from kgen.mutate.report import as_json, as_markdown

    if json_file is not None:
        json_file.write_text(as_json(proofs), encoding="utf-8")
    if page is not None:
        page.write_text(as_markdown(proofs, command), encoding="utf-8")


def _command(
    specs: Sequence[Path], names: Sequence[str], limit: int | None, page: Path | None
) -> str:
    """The command that makes this page again."""
    words = ["kgen", "mutate", *(str(relative(path)) for path in specs)]
    for name in names:
        words += ["--kind", name]
    words += ["--limit", str(limit)] if limit else []
    words += ["--markdown", str(relative(page))] if page else []
    return shlex.join(words)
