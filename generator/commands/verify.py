"""``kgen verify``: are the formulas right? On the CPU, in float64."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from kgen.commands.common import (
    FAULT,
    FINDING,
    exit_with,
    load_all,
    printable,
    spec_paths,
    specs_argument,
    table,
)
from kgen.errors import KgenError, Problem, format_problem

if TYPE_CHECKING:
    from kgen.spec import Spec
    from kgen.verify import Report, Row


@click.command()
@specs_argument
@click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also write everything to FILE, for programs.",
)
def verify(specs: tuple[Path, ...], json_path: Path | None) -> None:
    """Compare the formulas of specs with their references.

    Takes SPECS, or all specs/*.yaml. Outputs are compared with the reference, gradients with
    autograd of the reference and of the formulas, with the backward that kgen derives, and with
    finite differences, in float64 for many shapes, params and selections of inputs, and the numbers
    that the spec's own cases expect with what the formulas give. The reference of each spec is run.
    Needs PyTorch, but no GPU and no Triton. Exits with 1 if anything disagrees.

    The column 'error / allowed' has the largest error: above 1 disagrees.

    \b
    Examples:
      kgen verify                          every spec in specs/
      kgen verify specs/mynorm.yaml
      kgen verify --json verified.json
    """
    loaded = load_all(spec_paths(specs))
    _require_torch()
    results = [_verified(spec) for spec in loaded]
    if json_path is not None:
        json_path.write_text(_json(results), encoding="utf-8", newline="\n")
    click.echo(_summary(results))
    if any(isinstance(result, KgenError) for _, result in results):
        exit_with(FAULT)
    if not all(_agrees(result) for _, result in results):
        exit_with(FINDING)


Result = tuple["Spec", "Report | KgenError"]


def _require_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise KgenError(
            "verify runs the references with PyTorch, which is not installed: pip install torch"
        )


def _verified(spec: Spec) -> Result:
    """Verify one spec and print what was found, so that a long list shows that it goes on."""
    from kgen.verify import verify as verified

    click.echo(f"{printable(spec.path)}: {spec.op}")
    try:
        report = verified(spec)
    except KgenError as error:
        click.echo(printable(str(error)), err=True)
        return spec, error
    for line in _table(report):
        click.echo(line)
    for problem in report.problems:
        click.echo(printable(format_problem(problem)))
    for remark in report.remarks:
        click.echo(printable(format_problem(remark).replace(": error: ", ": remark: ", 1)))
    click.echo()
    return spec, report


def _table(report: Report) -> Iterator[str]:
    head = ("quantity", "compared with", "error / allowed", "cases", "verdict")
    rows = [head, *(_cells(row) for row in report.rows)]
    widths = [max(len(row[place]) for row in rows) for place in (2, 3)]
    aligned = [(*r[:2], r[2].rjust(widths[0]), r[3].rjust(widths[1]), r[4]) for r in rows]
    for line, row in zip(table(aligned), [None, *report.rows], strict=True):
        colour = None if row is None or row.agrees else "red"
        yield f"  {click.style(line, fg=colour) if colour else line}"


def _cells(row: Row) -> tuple[str, str, str, str, str]:
    error = f"{row.worst:.0e}" if row.worst else "0"
    return row.quantity, row.against, error if row.has_error else "-", str(row.cases), row.verdict


def _agrees(result: Report | KgenError) -> bool:
    return not isinstance(result, KgenError) and result.agrees


def _summary(results: list[Result]) -> str:
    """``3 specs verified: all agree``."""
    count = f"{len(results)} spec{'s' * (len(results) != 1)} verified"
    bad = [spec.op for spec, result in results if not _agrees(result)]
    if not bad:
        return f"{count}: {'all agree' if len(results) != 1 else 'it agrees'}"
    return f"{count}: {len(bad)} of them wrong ({', '.join(bad)})"


def _json(results: list[Result]) -> str:
    return json.dumps({"specs": [_entry(*result) for result in results]}, indent=2) + "\n"


def _entry(spec: Spec, result: Report | KgenError) -> dict[str, Any]:
    entry: dict[str, Any] = {"spec": spec.path, "op": spec.op, "agrees": _agrees(result)}
    if isinstance(result, KgenError):
        return {**entry, "rows": [], "problems": _problems(result.problems), "remarks": []}
    rows = [
        {
            "quantity": row.quantity,
            "compared_with": row.against,
            "error": row.worst if math.isfinite(row.worst) and row.has_error else None,
            "cases": row.cases,
            "agrees": row.agrees,
            "verdict": row.verdict,
        }
        for row in result.rows
    ]
    problems, remarks = _problems(result.problems), _problems(result.remarks)
    return {**entry, "rows": rows, "problems": problems, "remarks": remarks}


def _problems(problems: list[Problem] | tuple[Problem, ...]) -> list[dict[str, Any]]:
    return [
        {
            "message": problem.message,
            "path": problem.at.source.path if problem.at else None,
            "line": problem.at.line if problem.at else None,
            "column": problem.at.column if problem.at else None,
        }
        for problem in problems
    ]
