"""``kgen bench``: what ops cost on a GPU, beside other implementations of them."""

from __future__ import annotations

import importlib.util
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
from kgen.commands.common import (
    FINDING,
    GENERATED,
    exit_with,
    load_all,
    named_specs,
    printable,
    spec_paths,
    table,
)
from kgen.errors import KgenError

if TYPE_CHECKING:
    from kgen.bench.cells import Cell
    from kgen.bench.results import Results, Store
    from kgen.bench.runner import Bench
    from kgen.spec import Spec

DTYPES = ("float16", "bfloat16", "float32", "float64")
PASSES = ("forward", "backward")


@click.command()
@click.argument("ops", nargs=-1)
@click.option(
    "--shapes",
    multiple=True,
    default=("long",),
    show_default=True,
    metavar="SHAPES",
    help="ROWSxCOLUMNS with commas between, ROWSxFIRST..LAST/STEP, or long; repeatable.",
)
@click.option(
    "--dtype",
    "dtypes",
    multiple=True,
    type=click.Choice(DTYPES),
    default=("bfloat16",),
    show_default=True,
    help="The dtype of all float inputs; repeatable.",
)
@click.option(
    "--provider",
    "providers",
    multiple=True,
    metavar="NAME",
    help="kgen, pytorch, textbook, compile, liger, quack, or module:function; repeatable.  "
    "[default: all that are installed]",
)
@click.option(
    "--pass",
    "passes",
    multiple=True,
    type=click.Choice(PASSES),
    default=PASSES,
    show_default=True,
    help="Which direction; repeatable.",
)
@click.option(
    "--latency",
    is_flag=True,
    help="Measure whole calls at small shapes instead of kernels at --shapes.",
)
@click.option(
    "--calls",
    type=click.IntRange(10, 10000),
    default=12,
    show_default=True,
    help="How many calls to time of each.",
)
@click.option(
    "--generated",
    "folder",
    type=click.Path(path_type=Path),
    default=GENERATED,
    show_default=True,
    metavar="DIR",
    help="The folder that holds one folder an op.",
)
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Write results, plots and a page."
)
@click.option("--append", is_flag=True, help="Keep the results that are in --out already.")
@click.option("--no-plots", is_flag=True, help="Write no plots to --out.")
@click.option(
    "--warm-up-jobs",
    "jobs",
    type=click.IntRange(0, 256),
    default=0,
    metavar="N",
    help="Before measuring, compile everything in N processes.",
)
@click.option("--only-warm-up", is_flag=True, help="Compile only, and measure nothing.")
@click.option(
    "--time-limit",
    "limit",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Stop when it is over; what is missing is named.",
)
@click.option(
    "--page",
    "page_folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Measure nothing; write table, plots and page again from DIR/results.json.",
)
def bench(
    ops: tuple[str, ...],
    shapes: tuple[str, ...],
    dtypes: tuple[str, ...],
    providers: tuple[str, ...],
    passes: tuple[str, ...],
    latency: bool,
    calls: int,
    folder: Path,
    out: Path | None,
    append: bool,
    no_plots: bool,
    jobs: int,
    only_warm_up: bool,
    limit: float | None,
    page_folder: Path | None,
) -> None:
    """Measure ops on a GPU, beside PyTorch and other libraries.

    OPS are names of specs in specs/, or paths of specs; all of specs/*.yaml if there are none. Of
    each op, shape and provider the time of its kernels is measured with cold caches, after its
    results have been compared with the reference of the spec. Needs PyTorch, Triton and a GPU.

    \b
    Examples:
      kgen bench rmsnorm
      kgen bench softmax --shapes 4096x256..12672/128 --dtype float32
      kgen bench rmsnorm layernorm --out results
      kgen bench --latency --provider kgen --provider compile
      kgen bench --page results            write the page again, without a GPU
    """
    started = time.monotonic()
    if page_folder is not None:
        _write_page(_read(page_folder), page_folder, not no_plots)
        return
    from kgen.bench.cells import cells_of, in_order, shapes_of, small_cells_of
    from kgen.bench.providers import available, require_names
    from kgen.bench.warm_up import one_compiler

    one_compiler()  # before a library imports what reads it
    sizes = shapes_of(shapes)
    names = require_names(providers) or _importable(available())
    if only_warm_up and not jobs:
        raise KgenError("--only-warm-up needs --warm-up-jobs N, the number of processes")
    specs = in_order(load_all(spec_paths(named_specs(ops))))
    cells = () if latency else cells_of(specs, sizes, dtypes)
    small = small_cells_of(specs) if latency else ()
    if not cells and not small:
        raise KgenError("no op takes any of these shapes and dtypes; see the limits of its spec")
    ready = _bench(specs, folder, names, calls, passes)
    versions = ready.versions()
    until = math.inf if limit is None else started + limit
    if jobs:
        _warm_up(ready, (*cells, *small), jobs, until)
    if only_warm_up:
        return
    settings: dict[str, object] = {"calls": calls, "cold_cache": True}
    store = _store(out, append, versions, settings)
    _measure(ready, cells, small, store, until)
    _show(store, out, not no_plots)


def _importable(names: Sequence[str]) -> tuple[str, ...]:
    """The names less libraries that are installed and cannot be imported, which are named."""
    from kgen.bench.providers import LIBRARIES, provider_of

    found = []
    for name in names:
        try:
            if name in LIBRARIES:
                provider_of(name)
            found.append(name)
        except KgenError as error:
            click.echo(f"{name} is left out: {error}", err=True)
    return tuple(found)


def _bench(
    specs: Sequence[Spec], folder: Path, names: Sequence[str], calls: int, passes: Sequence[str]
) -> Bench:
    from kgen.bench.subject import require_generated

    for spec in specs:
        require_generated(spec, folder)
    for package in ("torch", "triton"):
        if importlib.util.find_spec(package) is None:
            raise KgenError(
                f"kgen bench needs {package}, which is not installed: pip install torch"
            )
    from kgen.bench.environment import gpu_problem

    if problem := gpu_problem():
        raise KgenError(f"kgen bench measures on a GPU: {problem}")
    from kgen.bench.runner import Bench

    return Bench({spec.op: spec for spec in specs}, folder, names, calls, passes)


def _store(
    out: Path | None, append: bool, versions: dict[str, str], settings: dict[str, object]
) -> Store:
    from kgen.bench.environment import environment
    from kgen.bench.results import FILE, Results, Run, Store, read_results, require_same

    here = environment(versions)
    before = Results()
    if out is not None and (out / FILE).exists():
        if not append:
            raise KgenError(f"'{out / FILE}' exists already; choose another --out, or --append")
        before = read_results(out / FILE)
        require_same(out / FILE, before, here)
    return Store(out, before, Run(here, settings))


def _warm_up(bench: Bench, cells: Sequence[Cell], jobs: int, until: float) -> None:
    from kgen.bench.warm_up import warm_up

    with _progress("compiling", len(cells)) as step:
        finished = warm_up(bench, cells, jobs, until, step)
    click.echo(f"compiled for {finished} of {len(cells)} cells")


def _measure(
    bench: Bench, cells: Sequence[Cell], small: Sequence[Cell], store: Store, until: float
) -> None:
    from dataclasses import replace

    from kgen.bench.loop import measure
    from kgen.bench.segments import MeasureError

    try:
        gbps = bench.start()
    except MeasureError as error:
        raise KgenError(f"this GPU cannot be measured: {error}") from None
    store.run = replace(store.run, copy_gbps=gbps)
    environment = store.run.environment
    click.echo(f"{environment['gpu']}, PyTorch {environment['torch']}: a copy runs at {gbps} GB/s")
    with _progress("measuring", len(cells) + len(small)) as step:
        measure(bench.kernel_times, bench.latencies, cells, small, store, until, step)


@contextmanager
def _progress(label: str, length: int) -> Iterator[Callable[[], object]]:
    """A bar on a terminal, and nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    with click.progressbar(length=length, label=label, file=sys.stderr) as bar:
        yield lambda: bar.update(1)


def _show(store: Store, out: Path | None, plots: bool) -> None:
    from kgen.bench.report import terminal_tables

    mine = store.run
    for title, rows in terminal_tables(store.measurements, store.latencies):
        click.echo(f"\n{click.style(printable(title), bold=True)}")
        for line in table(rows):
            click.echo(f"  {printable(line)}")
    if out is not None:
        _write_page(store.results, out, plots)
    if mine.missing:
        click.echo(f"\nthe time was over before {len(mine.missing)} cells, the first of which is ")
        click.echo(f"{mine.missing[0]}")
        exit_with(FINDING)


def _read(folder: Path) -> Results:
    from kgen.bench.results import FILE, read_results

    if not (folder / FILE).is_file():
        raise KgenError(f"there is no '{folder / FILE}'; `kgen bench --out {folder}` writes one")
    return read_results(folder / FILE)


def _write_page(results: Results, folder: Path, plots: bool) -> None:
    from kgen.bench.report import csv_text, page
    from kgen.bench.results import write_text

    drawn: tuple[str, ...] = ()
    if plots:
        from kgen.bench.plots import draw_all

        drawn = draw_all(results, folder)
        if not drawn:
            click.echo("no plots: matplotlib is not installed, or nothing has two shapes")
    write_text(folder / "results.csv", csv_text(results))
    write_text(folder / "page.md", page(results, drawn))
    click.echo(f"wrote {folder / 'page.md'}")
