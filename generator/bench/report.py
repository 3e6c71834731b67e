"""Results as tables of the terminal, as CSV and as a page."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence

from kgen.bench.cells import Cell
from kgen.bench.results import OK, Measurement, Results
from kgen.bench.summary import (
    OWN,
    Ratio,
    Table,
    geometric_mean,
    providers_in,
    ratios,
    tables,
    together,
)

Rows = list[tuple[str, ...]]
WORST = 20

_COLUMNS = (
    *("op", "direction", "rows", "columns", "dtype", "provider", "status", "note"),
    *("moved", "calls", "kernels", "median_us", "p20_us", "p80_us", "gbps", "share"),
)


def terminal_tables(
    measurements: Iterable[Measurement], latencies: Iterable[Measurement]
) -> Iterator[tuple[str, Rows]]:
    """Title and rows of each table, for what one run has measured."""
    for table in tables(measurements):
        yield f"{table.op} {table.direction}, {table.dtype}: GB/s (share of a copy)", _rows(table)
    for table in tables(latencies):
        yield f"{table.op} {table.direction}, {table.dtype}: microseconds a call", _rows(table)


def csv_text(results: Results) -> str:
    """A line a measurement, latencies last."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for each in (*results.measurements, *results.latencies):
        time = each.time
        times = (time.median, time.p20, time.p80) if time else ("", "", "")
        gbps = "" if each.gbps is None else round(each.gbps, 1)
        share = "" if each.share is None else each.share
        what = each.op, each.direction, each.rows, each.columns, each.dtype, each.provider
        how = each.status, each.note, each.moved, each.calls, each.kernels
        writer.writerow((*what, *how, *times, gbps, share))
    return text.getvalue()


def page(results: Results, plots: Sequence[str] = ()) -> str:
    """The page in Markdown: machine, means, worst cells, a table an op, and latencies."""
    parts = ["# Measurements", *_machine(results)]
    parts += _means(results.measurements)
    parts += _worst(results.measurements)
    parts += _by_op(results.measurements, plots)
    if results.latencies:
        parts += ["## Latency", _LATENCY_WORDS]
        for table in tables(results.latencies):
            parts += [f"### {table.op}: {table.direction}, {table.dtype}", _markdown(_rows(table))]
    parts += _failures((*results.measurements, *results.latencies))
    return "\n\n".join(parts) + "\n"


_HOW = (
    "Times are those of a call's kernels on the GPU, added up, by PyTorch's profiler: the median "
    "of {calls} calls, each after a copy that leaves nothing of their data in the cache. "
    "Before it was timed, each result was compared with the spec's reference in float64. "
    "GB/s counts the bytes that must move: each matrix that is read or written, once; of gradients "
    "that are equal, one. In brackets is the share of the bandwidth of a copy of 2^27 bytes in the "
    "same run. Forward runs as in training, so that a backward can follow."
)

_LATENCY_WORDS = (
    "Microseconds of a complete call in Python, launches and all: the median of 50 samples of 20 "
    "calls. Forward is without autograd; forward + backward sets gradients to None first."
)


def _machine(results: Results) -> Iterator[str]:
    first = results.runs[0]
    rows: Rows = [("", "")]
    rows += [(name, value) for name, value in first.environment.items()]
    for run in results.runs[1:]:
        rows += [pair for pair in run.environment.items() if pair not in rows]
    copies = ", ".join(f"{run.copy_gbps:g}" for run in results.runs)
    rows.append(("copy, GB/s", copies))
    yield _markdown(rows)
    yield _HOW.format(calls=first.settings.get("calls", "several"))
    missing = [name for run in results.runs for name in run.missing]
    measured = {str(each.cell) for each in (*results.measurements, *results.latencies)}
    missing = [name for name in missing if name not in measured]
    if missing:
        yield f"The time was over before these: {', '.join(missing)}."


def _means(measurements: Sequence[Measurement]) -> Iterator[str]:
    """kgen beside the others, an op a row."""
    everything = [*measurements, *together(measurements)]
    others = [name for name in providers_in(measurements) if name != OWN]
    if not others:
        return
    yield "## Beside the others"
    yield (
        "How many times faster kgen is: the geometric mean over all shapes of the other's time "
        "over kgen's. `best` takes in each shape the fastest of the others, and `lowest` is its "
        "worst shape. `both` adds up forward and backward, since some libraries do work of "
        "backward in forward."
    )
    rows: Rows = [("op", "dtype", "pass", "best", "lowest", *others)]
    keys = dict.fromkeys((table.op, table.dtype) for table in tables(measurements))
    for op, dtype in keys:
        for direction in ("forward", "backward", "both"):
            mine = [
                each
                for each in everything
                if (each.op, each.dtype, each.direction) == (op, dtype, direction)
            ]
            best = [ratio.value for ratio in ratios(mine)]
            if best:
                means = [_mean([r.value for r in ratios(mine, [name])]) for name in others]
                rows.append((op, dtype, direction, _mean(best), f"{min(best):.2f}", *means))
    for direction in ("forward", "backward", "both"):
        mine = [each for each in everything if each.direction == direction]
        best = [ratio.value for ratio in ratios(mine)]
        if best:
            means = [_mean([r.value for r in ratios(mine, [name])]) for name in others]
            rows.append(("all", "", direction, _mean(best), f"{min(best):.2f}", *means))
    yield _markdown(rows)


def _worst(measurements: Sequence[Measurement]) -> Iterator[str]:
    found = sorted(ratios(measurements), key=lambda ratio: ratio.value)
    slower = [ratio for ratio in found if ratio.value < 1]
    if not found:
        return
    yield "## Where kgen is slowest beside the best"
    yield f"kgen is slower than the fastest of the others in {len(slower)} of {len(found)} places."
    rows: Rows = [("op", "shape", "dtype", "pass", "other", "its time over kgen's")]
    rows += [_ratio_row(ratio) for ratio in found[:WORST]]
    yield _markdown(rows)


def _ratio_row(ratio: Ratio) -> tuple[str, ...]:
    cell = ratio.cell
    place = (cell.op, _shape(cell), cell.dtype, ratio.direction, ratio.other)
    return (*place, f"{ratio.value:.2f}")


def _by_op(measurements: Sequence[Measurement], plots: Sequence[str]) -> Iterator[str]:
    last = ""
    for table in tables(measurements):
        if table.op != last:
            yield f"## {table.op}"
            last = table.op
        yield f"{table.direction.capitalize()}, {table.dtype}, GB/s:"
        yield _markdown(_rows(table))
        name = plot_name(table)
        if name in plots:
            yield f"![{table.op} {table.direction}, {table.dtype}]({name})"


def plot_name(table: Table) -> str:
    """The file of a table's plot."""
    return f"{table.op}-{table.direction}-{table.dtype}.png"


def _failures(measurements: Iterable[Measurement]) -> Iterator[str]:
    """What was wrong or failed, one row a reason."""
    grouped: dict[tuple[str, str, str, str], list[Cell]] = {}
    for each in measurements:
        if each.status != OK:
            key = each.op, each.provider, f"{each.direction}: {each.status}", each.note
            grouped.setdefault(key, []).append(each.cell)
    if not grouped:
        return
    yield "## What has no time"
    yield "`wrong` results are not timed; `failed` calls raised."
    rows: Rows = [("op", "provider", "how", "why", "shapes")]
    for (op, provider, how, note), cells in grouped.items():
        rows.append((op, provider, how, note, ", ".join(map(_shape, cells))))
    yield _markdown(rows)


def _rows(table: Table) -> Rows:
    rows: Rows = [("rows x columns", *table.providers)]
    for cell, measured in table.rows:
        rows.append((_shape(cell), *(_entry(each) for each in measured)))
    return rows


def _entry(measurement: Measurement | None) -> str:
    if measurement is None:
        return "-"
    if measurement.time is None:
        return measurement.status
    if measurement.gbps is None:
        return f"{measurement.time.median:.1f}"
    share = "" if measurement.share is None else f" ({measurement.share:.0%})"
    return f"{measurement.gbps:.0f}{share}"


def _shape(cell: Cell) -> str:
    return f"{cell.rows}x{cell.columns}"


def _mean(values: Sequence[float]) -> str:
    return f"{geometric_mean(values):.2f}" if values else "-"


def _markdown(rows: Rows) -> str:
    head, *body = ([entry.replace("|", "\\|") for entry in row] for row in rows)
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
