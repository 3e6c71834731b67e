"""``kgen explain``: an op on one page."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

import click
from kgen.commands.common import load_all, printable, relative, table
from kgen.errors import KgenError, quote, suggest

if TYPE_CHECKING:
    from kgen.spec import Spec
    from kgen.traffic import Setting

MAX_ROWS = 2**30
MAX_PROCESSORS = 2**16
USUAL_SIZE = 4096
USUAL_DTYPE = "bfloat16"
USUAL_PROCESSORS = 132
USUAL_GBPS = 3350


@click.command()
@click.argument("spec", type=click.Path(path_type=Path))
@click.option("--m", "rows", type=int, default=USUAL_SIZE, show_default=True, help="Rows.")
@click.option(
    "--n",
    "columns",
    type=int,
    help=f"Columns.  [default: {USUAL_SIZE}, or the most the op takes]",
)
@click.option(
    "--dtype",
    "dtypes",
    multiple=True,
    metavar="[INPUT=]DTYPE",
    help=f"The dtype of the float inputs, or of one input; repeatable.  [default: {USUAL_DTYPE}]",
)
@click.option(
    "--gbps",
    type=float,
    default=USUAL_GBPS,
    show_default=True,
    help="The memory's bandwidth in GB/s of 10**9 bytes; 3350 is an H100's, 4800 an H200's.",
)
@click.option(
    "--processors",
    type=int,
    default=USUAL_PROCESSORS,
    show_default=True,
    help="The device's multiprocessors; an H100 and an H200 have 132.",
)
@click.option("--json", "as_values", is_flag=True, help="Print plain values for programs.")
def explain(
    spec: Path,
    rows: int,
    columns: int | None,
    dtypes: tuple[str, ...],
    gbps: float,
    processors: int,
    as_values: bool,
) -> None:
    """Show an op on one page.

    Formulas, what is saved for backward and why, the kernels and tiles that run, bytes and
    operations for each element, scratch, and the time at the given bandwidth. All of it is
    worked out from SPEC; nothing is run, and no GPU is needed.

    \b
    Examples:
      kgen explain specs/layernorm.yaml
      kgen explain specs/layernorm.yaml --n 65536 --dtype weight=float32
      kgen explain specs/layernorm.yaml --json
    """
    (loaded,) = load_all([relative(spec)])
    from kgen.explain import explain as explained_by
    from kgen.explain_page import as_json, page
    from kgen.lower import lower
    from kgen.tiles import planned

    if not 0 < gbps < math.inf:
        raise KgenError(f"--gbps is {gbps:g}; it takes GB/s above 0, such as 3350")
    setting = setting_of(loaded, rows, columns, dtypes, processors)
    explained = explained_by(planned(lower(loaded)), setting, gbps)
    if as_values:
        click.echo(json.dumps(as_json(explained), indent=2))
        return
    click.echo(printable(f"{loaded.op}: {loaded.summary}\n{loaded.path}, from {loaded.source}"))
    for section in page(explained):
        click.echo(f"\n{click.style(printable(section.title), bold=True)}")
        for line in table(section.rows):
            click.echo(f"  {printable(line)}")


def setting_of(
    spec: Spec, rows: int, columns: int | None, dtypes: tuple[str, ...], processors: int
) -> Setting:
    """A setting that the op takes; raises ``KgenError`` that names the option for any other.

    ``columns`` is 4096 when None, or the most the op takes. Of ``dtypes``, ``float16`` is for all
    float inputs, and ``weight=float32`` for one input alone.
    """
    from kgen.traffic import Setting, default_dtypes

    most = spec.limits.max_columns
    columns = min(USUAL_SIZE, most) if columns is None else columns
    _require_whole("--m", rows, MAX_ROWS, "rows")
    _require_whole("--n", columns, most, "columns", f" (the limits of {spec.path})")
    _require_whole("--processors", processors, MAX_PROCESSORS, "multiprocessors")
    floats = USUAL_DTYPE if USUAL_DTYPE in spec.dtypes else spec.dtypes[0]
    alone: dict[str, str] = {}
    for given in dtypes:
        name, equals, dtype = given.partition("=")
        if equals:
            alone[name] = _dtype_for(spec, name, dtype)
        else:
            floats = _require_dtype(given, spec.dtypes, f"the float inputs of {spec.op} take")
    return Setting(rows, columns, {**default_dtypes(spec, floats), **alone}, processors)


def _require_whole(option: str, value: int, most: int, of: str, why: str = "") -> None:
    if not 1 <= value <= most:
        raise KgenError(f"{option} is {value}; it takes 1 to {most} {of}{why}")


def _dtype_for(spec: Spec, name: str, dtype: str) -> str:
    entry = next((i for i in spec.inputs if i.name == name), None)
    if entry is None:
        names = [i.name for i in spec.inputs]
        hint = suggest(name, names) or f"; the inputs of {spec.op} are {', '.join(names)}"
        raise KgenError(f"--dtype names no input {quote(name)}{hint}")
    from kgen.spec import Element

    takes = {Element.FLOAT: spec.dtypes, Element.INT: ("int32", "int64"), Element.BOOL: ("bool",)}
    return _require_dtype(dtype, takes[entry.element], f"the input '{name}' takes")


def _require_dtype(dtype: str, takes: tuple[str, ...], of: str) -> str:
    if dtype in takes:
        return dtype
    from kgen.traffic import DTYPE_BYTES

    short = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32"}
    meant = short.get(dtype)
    hint = f"; did you mean '{meant}'?" if meant in takes else ""
    if not hint and dtype not in DTYPE_BYTES:
        hint = suggest(dtype, takes)
    raise KgenError(f"--dtype is {quote(dtype)}; {of} {', '.join(takes)}{hint}")
