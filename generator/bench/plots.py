"""Plots of bandwidth against the length of rows, one an op, direction and dtype."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from kgen.bench.report import plot_name
from kgen.bench.results import OK, Results
from kgen.bench.summary import OWN, Table, tables


def draw_all(results: Results, folder: Path) -> tuple[str, ...]:
    """Write a PNG for each table of two shapes or more; their names.

    Without matplotlib, the names of those that an earlier run has drawn.
    """
    if importlib.util.find_spec("matplotlib") is None:
        names = [plot_name(table) for table in tables(results.measurements)]
        return tuple(name for name in names if (folder / name).is_file())
    copy = next((run.copy_gbps for run in results.runs if run.copy_gbps), 0.0)
    drawn = []
    for table in tables(results.measurements):
        if len(table.rows) > 1:
            folder.mkdir(parents=True, exist_ok=True)
            _draw(table, copy, folder / plot_name(table))
            drawn.append(plot_name(table))
    return tuple(drawn)


def _draw(table: Table, copy_gbps: float, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for place, provider in enumerate(table.providers):
        points = [
            (cell.columns, each.gbps)
            for cell, measured in table.rows
            if (each := measured[place]) is not None and each.status == OK and each.gbps
        ]
        if points:
            across, up = zip(*sorted(points), strict=True)
            width = 2.5 if provider == OWN else 1.2
            axes.plot(across, up, marker="o", markersize=3, linewidth=width, label=provider)
    if copy_gbps:
        axes.axhline(copy_gbps, color="grey", linestyle="--", linewidth=1, label="copy")
    columns = [cell.columns for cell, _ in table.rows]
    if max(columns) > 16 * min(columns) and len(columns) < 32:
        axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("columns")
    axes.set_ylabel("GB/s that must move")
    axes.set_title(f"{table.op} {table.direction}, {table.dtype}")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=110, metadata={"Software": None})
