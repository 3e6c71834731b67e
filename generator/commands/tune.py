"""``kgen tune``: finds tiles that a GPU likes better than those of the rule."""

from __future__ import annotations

import importlib.util
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click
from kgen import output
from kgen.commands.common import (
    FINDING,
    exit_with,
    load_all,
    named_specs,
    printable,
    spec_paths,
    table,
)
from kgen.errors import KgenError
from kgen.spec import FLOAT_DTYPES, TUNED_WIDTHS, TUNING_KEYS, Spec

if TYPE_CHECKING:
    from kgen.bench.kernel_time import Clock
    from kgen.tune.choose import Verdict
    from kgen.tune.measuring import Item, Measuring
    from kgen.tune.plans import Candidate

DIRECTIONS = tuple(key.name for key in TUNING_KEYS)
USUAL_WIDTHS = TUNED_WIDTHS[3:]
Found = dict[str, dict[int, dict["Candidate", float]]]


@dataclass(slots=True)
class _Task:
    """One op: its spec, what is to be measured, and the times by direction and width."""

    path: Path
    spec: Spec
    items: list[Item]
    times: Found = field(default_factory=dict)


@click.command()
@click.argument("ops", nargs=-1)
@click.option(
    "--dtype",
    type=click.Choice(FLOAT_DTYPES),
    default="bfloat16",
    show_default=True,
    help="The dtype of all float inputs.",
)
@click.option(
    "--widths",
    metavar="WORDS",
    help="Widths of rows in 4-byte words, with commas between.  [default: 512 and wider]",
)
@click.option(
    "--directions",
    metavar="NAMES",
    help=f"Of {', '.join(DIRECTIONS)}, with commas between.  [default: all that an op has]",
)
@click.option(
    "--margin",
    type=click.FloatRange(0, 50),
    default=3,
    show_default=True,
    metavar="PERCENT",
    help="What a tile has to win to be written.",
)
@click.option("--dry-run", is_flag=True, help="Print what was found and write nothing.")
@click.option(
    "--jobs",
    type=click.IntRange(0, 256),
    default=0,
    metavar="N",
    help="Before measuring, compile everything in N processes.",
)
@click.option(
    "--time-limit",
    "limit",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Stop when it is over; what was not measured stays as it is.",
)
def tune(
    ops: tuple[str, ...],
    dtype: str,
    widths: str | None,
    directions: str | None,
    margin: float,
    dry_run: bool,
    jobs: int,
    limit: float | None,
) -> None:
    """Find faster tiles on a GPU, and write them into specs.

    OPS are names of specs in specs/, or paths of specs; all of specs/*.yaml if there are none. For
    each width of rows and each direction many tiles are measured, through the op's wrapper and with
    cold caches. What beats kgen's rule by the margin goes into the key `tuning` of the spec, an
    entry that no longer does is removed, and the next `kgen build` follows it. Nothing is ever
    tuned at run time. Needs PyTorch, Triton and a GPU.

    \b
    Examples:
      kgen tune rmsnorm
      kgen tune softmax --widths 4096,8192 --directions forward --dry-run
      kgen tune --jobs 16 --time-limit 600
    """
    until = math.inf if limit is None else time.monotonic() + limit
    wanted = _widths(widths)
    names = _directions(directions)
    paths = spec_paths(named_specs(ops))
    specs = load_all(paths)
    _require_dtype(specs, dtype)
    _require_gpu()
    from kgen.tune.building import build
    from kgen.tune.measuring import Measuring

    tasks = [
        _Task(path, spec, _items(spec, dtype, wanted, names))
        for path, spec in zip(paths, specs, strict=True)
    ]
    if not any(task.items for task in tasks):
        raise KgenError("none of the ops has these directions, or takes rows of these widths")
    with tempfile.TemporaryDirectory(prefix="kgen-tune-") as folder:
        build([task.spec for task in tasks if task.items], Path(folder))
        measuring = Measuring({spec.op: spec for spec in specs}, Path(folder), dtype)
        if jobs:
            _compile(measuring, tasks, jobs, until)
        left = _measure(measuring, tasks, until, margin / 100, dry_run)
    _end(measuring, left)


def _widths(text: str | None) -> tuple[int, ...]:
    if text is None:
        return USUAL_WIDTHS
    found = []
    for word in text.split(","):
        if word.strip() not in map(str, TUNED_WIDTHS):
            takes = f"powers of two from {TUNED_WIDTHS[0]} to {TUNED_WIDTHS[-1]}"
            raise KgenError(f"--widths is '{text}'; it takes {takes}, with commas between")
        found.append(int(word))
    return tuple(sorted(set(found)))


def _directions(text: str | None) -> tuple[str, ...]:
    if text is None:
        return DIRECTIONS
    found = [word.strip() for word in text.split(",")]
    if not set(found) <= set(DIRECTIONS):
        takes = f"{', '.join(DIRECTIONS)}, with commas between"
        raise KgenError(f"--directions is '{text}'; it takes {takes}")
    return tuple(name for name in DIRECTIONS if name in found)


def _require_dtype(specs: Sequence[Spec], dtype: str) -> None:
    for spec in specs:
        if dtype not in spec.dtypes:
            takes = ", ".join(spec.dtypes)
            raise KgenError(f"{spec.op} takes no {dtype}; it takes {takes}: see --dtype")


def _require_gpu() -> None:
    for package in ("torch", "triton"):
        if importlib.util.find_spec(package) is None:
            raise KgenError(f"kgen tune needs {package}, which is not installed: pip install torch")
    from kgen.bench.environment import gpu_problem

    if problem := gpu_problem():
        raise KgenError(f"kgen tune measures on a GPU: {problem}")


def _items(spec: Spec, dtype: str, widths: Sequence[int], names: Sequence[str]) -> list[Item]:
    """What there is to measure of an op: all directions of a width, then the next."""
    from kgen.lower import lower
    from kgen.schedule import schedule
    from kgen.tune.measuring import Item, columns_of
    from kgen.tune.plans import directions_of

    directions = [each.name for each in directions_of(schedule(lower(spec)))]
    return [
        Item(spec.op, words, name)
        for words in widths
        if columns_of(words, dtype) <= spec.limits.max_columns
        for name in directions
        if name in names
    ]


def _compile(measuring: Measuring, tasks: Sequence[_Task], jobs: int, until: float) -> None:
    from kgen.bench.warm_up import warm_up
    from kgen.tune.measuring import slices

    items = slices([item for task in tasks for item in task.items], measuring.count)
    with _progress("compiling", len(items)) as step:
        warm_up(measuring, items, jobs, until, step)


def _measure(
    measuring: Measuring, tasks: Sequence[_Task], until: float, margin: float, dry_run: bool
) -> list[Item]:
    """Measure op by op and write each; what the time was over before."""
    from kgen.bench.kernel_time import Clock
    from kgen.bench.segments import MeasureError

    try:
        clock = Clock()
        left: list[Item] = []
        for task in tasks:
            left += _measure_op(measuring, task, clock, until)
            if task.times:
                _conclude(task, measuring, margin, dry_run)
    except MeasureError as error:
        raise KgenError(f"this GPU cannot be measured: {error}") from None
    return left


def _measure_op(measuring: Measuring, task: _Task, clock: Clock, until: float) -> list[Item]:
    left = list(task.items)
    with _progress(task.spec.op, len(left)) as step:
        while left and time.monotonic() < until:
            item = left.pop(0)
            found = measuring.times(item, clock)
            task.times.setdefault(item.direction, {})[item.words] = found
            step()
    measuring.forget()
    return left


def _conclude(task: _Task, measuring: Measuring, margin: float, dry_run: bool) -> None:
    """Say what was found for an op, and write it into its spec."""
    from kgen.lower import lower
    from kgen.schedule import schedule
    from kgen.tune.outcome import outcome

    text = task.path.read_bytes().decode("utf-8")
    note = f"found by `kgen tune` on {measuring.gpu}, {measuring.dtype}"
    found = outcome(schedule(lower(task.spec)), text, task.times, margin, note)
    click.secho(f"{task.spec.op}, {measuring.dtype}: microseconds", bold=True)
    for line in table(_rows(found.verdicts)):
        click.echo(f"  {printable(line)}")
    if dry_run:
        return
    (change,) = output.plan_changes({task.path.name: found.text}, task.path.parent, ())
    output.write([change], task.path.parent)
    click.echo(f"  {change.state} {task.path}")


def _rows(verdicts: Mapping[str, Sequence[Verdict]]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("direction", "width", "rule", "best", "best plan", "chosen")]
    for name, each in verdicts.items():
        for found in each:
            chosen = "the rule" if found.chosen == found.rule else str(found.chosen)
            rows.append(
                (
                    name,
                    str(found.words),
                    f"{found.rule_time:.1f}",
                    f"{found.best_time:.1f}",
                    str(found.best),
                    "the best" if found.chosen == found.best != found.rule else chosen,
                )
            )
    return rows


def _end(measuring: Measuring, left: Sequence[Item]) -> None:
    if measuring.refused:
        first = measuring.refused[0]
        where = f"{first.item.op} {first.item.direction} at {first.item.words}"
        click.echo(f"{len(measuring.refused)} plans were left out, the first of which is {where}")
        click.echo(printable(f"by {first.plan}: {first.why}"))
    if left:
        first_left = f"{left[0].op} {left[0].direction} at {left[0].words}"
        click.echo(
            f"the time was over before {len(left)} widths, the first of which is {first_left}"
        )
        exit_with(FINDING)


@contextmanager
def _progress(label: str, length: int) -> Iterator[Callable[[], object]]:
    """A bar on a terminal, and nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    with click.progressbar(length=length, label=label, file=sys.stderr) as bar:
        yield lambda: bar.update(1)
