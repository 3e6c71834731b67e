"""What was measured, where and how: frozen records, and the file that keeps them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from kgen.bench.cells import Cell
from kgen.errors import KgenError

FORMAT = 1
FILE = "results.json"
OK, WRONG, FAILED = "ok", "wrong", "failed"


@dataclass(frozen=True, slots=True)
class Spread:
    """Microseconds: the median, and what a fifth of the calls stays below and above."""

    median: float
    p20: float
    p80: float


@dataclass(frozen=True, slots=True)
class Measurement:
    """One provider in one direction of one cell.

    Attributes:
        direction: ``forward`` or ``backward``; of latencies ``forward`` or ``forward + backward``.
        status: ``ok``, ``wrong``, or ``failed``, with ``note`` saying how.
        moved: the bytes that a call must move; 0 of latencies.
        calls: how many were timed.
        kernels: how many kernels, copies and fills a call runs.
        share: the bandwidth as a share of that of a copy in the same run.
    """

    op: str
    rows: int
    columns: int
    dtype: str
    direction: str
    provider: str
    status: str
    note: str = ""
    moved: int = 0
    calls: int = 0
    kernels: int = 0
    time: Spread | None = None
    share: float | None = None

    @property
    def cell(self) -> Cell:
        """The op on its matrix."""
        return Cell(self.op, self.rows, self.columns, self.dtype)

    @property
    def gbps(self) -> float | None:
        """Gigabytes of 10**9 bytes that must move, a second of kernel time."""
        return self.moved / self.time.median / 1e3 if self.time and self.moved else None

    @property
    def key(self) -> tuple[Cell, str, str]:
        """What it is a measurement of."""
        return self.cell, self.direction, self.provider


@dataclass(frozen=True, slots=True)
class Run:
    """One use of the command: the machine and the software, the settings, and the copy."""

    environment: Mapping[str, str]
    settings: Mapping[str, Any]
    copy_gbps: float = 0.0
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Results:
    """Everything in one results.json."""

    runs: tuple[Run, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    latencies: tuple[Measurement, ...] = ()

    def joined(self, other: Results) -> Results:
        """Both; what the other one has measured again takes the place of what was there."""
        return Results(
            (*self.runs, *other.runs),
            _latest(self.measurements, other.measurements),
            _latest(self.latencies, other.latencies),
        )


@dataclass(slots=True)
class Store:
    """Collects the records of a run, and writes them as often as it is told."""

    folder: Path | None
    before: Results = field(default_factory=Results)
    run: Run = field(default_factory=lambda: Run({}, {}))
    measurements: list[Measurement] = field(default_factory=list)
    latencies: list[Measurement] = field(default_factory=list)

    @property
    def results(self) -> Results:
        """What there is so far, with what the folder held before."""
        mine = Results((self.run,), tuple(self.measurements), tuple(self.latencies))
        return self.before.joined(mine)

    def write(self) -> None:
        """Write ``results.json``, whole or not at all."""
        if self.folder is not None:
            write_text(self.folder / FILE, as_json(self.results))


def spread_of(times: Iterable[float]) -> Spread:
    """Median and fifths, between the two nearest numbers."""
    ordered = sorted(times)
    return Spread(*(round(quantile(ordered, share), 4) for share in (0.5, 0.2, 0.8)))


def quantile(ordered: Sequence[float], share: float) -> float:
    """The number below which that share of ascending numbers lies."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def with_share(measurement: Measurement, copy_gbps: float) -> Measurement:
    """The same with its share of the copy's bandwidth."""
    gbps = measurement.gbps
    share = round(gbps / copy_gbps, 4) if gbps and copy_gbps else None
    return replace(measurement, share=share)


def as_json(results: Results) -> str:
    """The text of results.json; one line a record."""
    runs = [json.dumps(asdict(run)) for run in results.runs]
    measured = [json.dumps(_plain(each)) for each in results.measurements]
    latencies = [json.dumps(_plain(each)) for each in results.latencies]
    lists = {"runs": runs, "measurements": measured, "latencies": latencies}
    parts = [f'"{name}": [\n{_NEXT.join(lines)}\n]' for name, lines in lists.items()]
    return f'{{"format": {FORMAT},\n{_NEXT.join(parts)}}}\n'


_NEXT = ",\n"


def read_results(path: Path) -> Results:
    """The results in a file; raises ``KgenError`` for any other."""
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        if held["format"] != FORMAT:
            raise KgenError(f"'{path}' has format {held['format']}; this version reads {FORMAT}")
        runs = tuple(Run(**{**run, "missing": tuple(run["missing"])}) for run in held["runs"])
        measured, latencies = (
            tuple(_measurement(each) for each in held[name])
            for name in ("measurements", "latencies")
        )
    except (ValueError, KeyError, TypeError) as error:
        kind = type(error).__name__
        raise KgenError(f"'{path}' is no file of `kgen bench`: {kind}: {error}") from error
    return Results(runs, measured, latencies)


def require_same(path: Path, before: Results, environment: Mapping[str, str]) -> None:
    """Raise ``KgenError`` if earlier runs had another machine or other software."""
    for run in before.runs:
        for name in run.environment.keys() & environment.keys():
            if run.environment[name] != environment[name]:
                raise KgenError(
                    f"'{path}' was measured with {name} {run.environment[name]}, and here it is "
                    f"{environment[name]}; choose another --out, or leave out --append"
                )


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def _latest(before: Iterable[Measurement], after: Iterable[Measurement]) -> tuple[Measurement, ...]:
    found = {each.key: each for each in before}
    for each in after:
        found[each.key] = each
    return tuple(found.values())


def _plain(measurement: Measurement) -> dict[str, Any]:
    values = {name: value for name, value in asdict(measurement).items() if value not in (None, "")}
    gbps = measurement.gbps
    return {**values, "gbps": round(gbps, 1)} if gbps else values


def _measurement(values: dict[str, Any]) -> Measurement:
    held = {name: value for name, value in values.items() if name != "gbps"}
    if "time" in held:
        held["time"] = Spread(**held["time"])
    return Measurement(**held)
