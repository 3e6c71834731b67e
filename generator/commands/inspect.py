"""``kgen inspect``: what the compiler makes of the generated kernels."""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from kgen.commands.common import (
    FINDING,
    GENERATED,
    SPECS,
    exit_with,
    load_all,
    printable,
    put,
    relative,
    spec_paths,
    table,
)
from kgen.errors import KgenError, Problem, suggest
from kgen.inspection.targets import TARGETS, USUAL_TARGET

if TYPE_CHECKING:
    from kgen.inspection.calls import Call
    from kgen.inspection.data import Configuration, Line
    from kgen.inspection.session import Compiled, Inspected, Progress, Recorded, Session
    from kgen.inspection.targets import Target
    from kgen.spec import Spec

PAGE = Path("docs/inspect.md")
USUAL_DTYPE = "bfloat16"
USUAL_COLUMNS = 4096
FORMS: dict[str, tuple[str, ...]] = {
    "cuda": ("ttir", "ttgir", "llir", "ptx", "sass"),
    "hip": ("ttir", "ttgir", "llir", "amdgcn"),
}


@click.command()
@click.argument("ops", nargs=-1, metavar="[OPS...]")
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
    "--target",
    "target_names",
    multiple=True,
    metavar="NAME",
    help=f"A GPU to compile for: {', '.join(TARGETS)}; repeatable.  [default: {USUAL_TARGET}]",
)
@click.option("--kernel", metavar="NAME", help="Only this kernel; its op's name may be left out.")
@click.option("--dtype", metavar="DTYPE", help="Only inputs of this dtype.")
@click.option("--columns", type=int, metavar="N", help="Only rows of this length.")
@click.option(
    "--asm",
    "form",
    metavar="FORM",
    help="Print the code of the kernel: ttir, ttgir, llir, ptx, sass or amdgcn.",
)
@click.option(
    "--markdown",
    "page",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write a page, and all data to FILE without its suffix, one TARGET.csv each.",
)
@click.option(
    "--check",
    "checking",
    is_flag=True,
    help=f"Only tell whether the page and its data are up to date.  [FILE: {PAGE}]",
)
@click.option(
    "--jobs",
    type=click.IntRange(1, 256),
    metavar="N",
    help="How many kernels to compile at a time.  [default: one a processor]",
)
def inspect(
    ops: tuple[str, ...],
    folder: Path,
    target_names: tuple[str, ...],
    kernel: str | None,
    dtype: str | None,
    columns: int | None,
    form: str | None,
    page: Path | None,
    checking: bool,
    jobs: int | None,
) -> None:
    """Show what the compiler makes of the generated kernels.

    Compiles every kernel that the wrappers of OPS can launch, for GPUs that need not be there:
    registers, spills, shared memory, widths of memory accesses, and how many programs fit on a
    multiprocessor. OPS are names of ops or paths of specs; without them, all specs/*.yaml. The
    wrappers in the folder of generated code run; nothing of a spec does. Needs PyTorch and Triton.

    With --markdown only what has changed is compiled. With --check nothing is. Exits with 1 if a
    kernel that is shown spills registers or does not fit, if one does not compile, or if the page
    is not up to date.

    \b
    Examples:
      kgen inspect rmsnorm                 a table of every configuration
      kgen inspect rmsnorm --columns 4096 --target sm_90 --target gfx942
      kgen inspect rmsnorm --kernel forward_resident --asm ptx
      kgen inspect --markdown docs/inspect.md
    """
    targets = _targets(target_names)
    chosen = _Choice(kernel, dtype, columns)
    if form and (page or checking):
        raise click.UsageError("--asm prints code; it does not go with --markdown or --check")
    if (page or checking) and chosen.is_some:
        raise click.UsageError("a page holds everything: leave out --kernel, --dtype, --columns")
    paths, loaded = _specs(ops, folder)
    _require_compiler()
    inspected = _inspected(loaded, paths, folder, chosen)
    workers = 1 if checking else jobs or os.cpu_count() or 1
    from kgen.inspection.session import session

    with session(workers) as running:
        if form:
            _show_code(running, inspected, targets, chosen, form)
        elif page or checking:
            command = _command(ops, folder, target_names, page or PAGE)
            _put_page(running, inspected, targets, relative(page or PAGE), checking, command)
        else:
            _show(running, inspected, targets, chosen)


class _Choice:
    """What --kernel, --dtype and --columns leave."""

    def __init__(self, kernel: str | None, dtype: str | None, columns: int | None) -> None:
        self.kernel, self.dtype, self.columns = kernel, dtype, columns

    @property
    def is_some(self) -> bool:
        """Whether any of them is given."""
        return not (self.kernel is None and self.dtype is None and self.columns is None)

    def calls(self, spec: Spec) -> tuple[Call, ...]:
        """The calls of an op; raises ``KgenError`` for what it does not take."""
        from kgen.inspection.calls import calls_of

        if self.dtype is not None and self.dtype not in spec.dtypes:
            raise KgenError(
                f"--dtype is '{self.dtype}'; the float inputs of {spec.op} take "
                f"{', '.join(spec.dtypes)}{suggest(self.dtype, spec.dtypes)}"
            )
        most = spec.limits.max_columns
        if self.columns is not None and not 1 <= self.columns <= most:
            raise KgenError(
                f"--columns is {self.columns}; it takes 1 to {most} columns (the limits of "
                f"{spec.path})"
            )
        return calls_of(spec, self.dtype, self.columns)

    def takes(self, found: Configuration) -> bool:
        """Whether --kernel leaves a configuration."""
        return self.kernel in (None, found.kernel, found.kernel.removeprefix(f"{found.op}_"))


def _targets(names: Sequence[str]) -> list[Target]:
    known = ", ".join(TARGETS)
    problems = [
        Problem(
            f"there is no target '{name}'" f"{suggest(name, TARGETS) or f'; known are {known}'}"
        )
        for name in names
        if name not in TARGETS
    ]
    if problems:
        raise KgenError(problems)
    return [TARGETS[name] for name in dict.fromkeys(names or (USUAL_TARGET,))]


def _specs(ops: Sequence[str], folder: Path) -> tuple[list[Path], list[Spec]]:
    """The specs of the ops, which must have generated code."""
    given = [Path(op) if op.endswith(".yaml") else SPECS / f"{op}.yaml" for op in ops]
    known = sorted(path.stem for path in SPECS.glob("*.yaml"))
    problems = [
        Problem(f"there is no op '{op}': no {path}{suggest(op, known)}")
        for op, path in zip(ops, given, strict=True)
        if not path.exists()
    ]
    if problems:
        raise KgenError(problems)
    paths = spec_paths(given)
    loaded = load_all(paths)
    problems = [
        Problem(
            f"there is no generated code '{folder / spec.op / 'op.py'}'; "
            f"`kgen build {path}{_out(folder)}` writes it"
        )
        for spec, path in zip(loaded, paths, strict=True)
        if not (folder / spec.op / "op.py").is_file()
    ]
    if problems:
        raise KgenError(problems)
    return paths, loaded


def _out(folder: Path) -> str:
    return "" if folder == GENERATED else f" --out {shlex.quote(str(folder))}"


def _require_compiler() -> None:
    missing = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
    if missing:
        raise KgenError(
            "inspect runs wrappers with PyTorch and compiles with Triton; not installed: "
            f"pip install {' '.join(missing)}"
        )


def _inspected(
    specs: Sequence[Spec], paths: Sequence[Path], folder: Path, chosen: _Choice
) -> list[Inspected]:
    from kgen.inspection.session import Inspected

    return [
        Inspected(spec.op, path, folder, chosen.calls(spec))
        for spec, path in zip(specs, paths, strict=True)
    ]


def _show(
    running: Session, ops: Sequence[Inspected], targets: Sequence[Target], chosen: _Choice
) -> None:
    """A table an op and target, and what is wrong."""
    is_fine = True
    for target in targets:
        for op in ops:
            (recorded,) = running.recorded([op], target)
            configurations = _left(recorded, chosen)
            with _progress(op.op, len(configurations)) as step:
                digests = list(dict.fromkeys(found.digest for found in configurations))
                compiled = running.compiled([(recorded, digests)], progress=step)
            click.secho(f"{op.op} on {target.name}", bold=True)
            is_fine &= _show_table(configurations, compiled, target)
    if not is_fine:
        exit_with(FINDING)


def _left(recorded: Recorded, chosen: _Choice) -> list[Configuration]:
    """The configurations of the chosen kernel; raises ``KgenError`` if it is never launched."""
    found = [each for each in recorded.configurations if chosen.takes(each)]
    if not found:
        op = recorded.inspected.op
        launched = sorted({c.kernel.removeprefix(f"{op}_") for c in recorded.configurations})
        kernel = str(chosen.kernel)
        raise KgenError(
            f"'{kernel}' is no kernel that {op} launches here; it launches "
            f"{', '.join(launched)}{suggest(kernel, launched)}"
        )
    return found


_HIDDEN = ("op", "multiple_of", "triton", "hash")


def _show_table(
    configurations: Sequence[Configuration], compiled: Mapping[str, Compiled], target: Target
) -> bool:
    """Print what was found; tells whether all is well."""
    from kgen.inspection.data import HEADER, Line, cells

    shown = [name for name in HEADER if name not in _HIDDEN]
    rows = [tuple(name.replace("_", " ") for name in shown)]
    problems: list[str] = []
    for found in configurations:
        came = compiled[found.digest]
        where = f"{found.kernel} ({found.dtype}, {found.widths} columns)"
        if came.resources is None:
            problems.append(f"{where} does not compile: {came.problem}")
            continue
        texts = cells(Line(found, came.resources, came.triton), target)
        texts["kernel"] = found.kernel.removeprefix(f"{found.op}_")
        rows.append(tuple(texts[name] or "-" for name in shown))
        if came.resources.spilled:
            problems.append(f"{where} spills {came.resources.spilled} bytes a lane")
        if texts["programs"] == "0":
            problems.append(f"{where} asks for more than a multiprocessor of {target.name} has")
    for line in table(rows):
        click.echo(f"  {line}")
    for problem in problems:
        click.secho(printable(f"  {problem}"), fg="red")
    return not problems


def _show_code(
    running: Session,
    ops: Sequence[Inspected],
    targets: Sequence[Target],
    chosen: _Choice,
    form: str,
) -> None:
    """Print the code of one kernel, in bfloat16 for 4096 columns unless another is chosen."""
    if len(ops) != 1 or len(targets) != 1 or chosen.kernel is None:
        raise click.UsageError("--asm prints one kernel: name one op, one target and --kernel")
    (op,), (target,) = ops, targets
    if form not in FORMS[target.backend]:
        raise KgenError(
            f"there is no --asm {form} for {target.name}; it has "
            f"{', '.join(FORMS[target.backend])}{suggest(form, FORMS[target.backend])}"
        )
    (recorded,) = running.recorded([op], target)
    everywhere = _left(recorded, chosen)
    wanted = [found for found in everywhere if _is_usual(found, chosen, recorded)]
    if not wanted:
        places = ", ".join(f"{found.widths} ({found.dtype})" for found in everywhere)
        raise KgenError(
            f"{everywhere[0].kernel} does not run at {USUAL_COLUMNS} columns in {USUAL_DTYPE}; "
            f"choose with --columns and --dtype: it runs at {places}"
        )
    first = wanted[0]
    came = running.compiled([(recorded, [first.digest])], form=form)[first.digest]
    if came.resources is None:
        raise KgenError(f"{first.kernel} does not compile: {came.problem}")
    click.echo(came.code, nl=not came.code.endswith("\n"))


def _is_usual(found: Configuration, chosen: _Choice, recorded: Recorded) -> bool:
    dtype, columns = chosen.dtype, chosen.columns
    if dtype is None:
        dtypes = [each.dtype for each in recorded.configurations]
        dtype = USUAL_DTYPE if USUAL_DTYPE in dtypes else dtypes[0]
    return found.dtype == dtype and (columns or USUAL_COLUMNS) in found.columns


def _put_page(
    running: Session,
    ops: Sequence[Inspected],
    targets: Sequence[Target],
    page: Path,
    checking: bool,
    command: str,
) -> None:
    """Write the page and its data, or only tell whether they are as they should be."""
    from kgen.inspection.data import as_csv
    from kgen.inspection.page import page as page_of

    tables: list[tuple[Target, str, Sequence[Line]]] = []
    for target in targets:
        data = page.with_suffix("") / f"{target.name}.csv"
        lines = _lines(running, ops, target, data, checking, command)
        tables.append((target, f"{data.parent.name}/{data.name}", lines))
        put(as_csv(lines, target), data, checking, command)
    put(page_of(tables, command), page, checking, command)


def _lines(
    running: Session,
    ops: Sequence[Inspected],
    target: Target,
    data: Path,
    checking: bool,
    command: str,
) -> list[Line]:
    """All lines of a target: those whose hash is there already are kept, the others compiled."""
    from kgen.inspection.data import Line, known

    kept = known(data.read_text(encoding="utf-8")) if data.is_file() else {}
    recorded = running.recorded(ops, target)
    if not checking:
        version = recorded[0].triton
        kept = {digest: taken for digest, taken in kept.items() if taken[1] == version}
    missing = {
        each.inspected.op: list(
            dict.fromkeys(c.digest for c in each.configurations if c.digest not in kept)
        )
        for each in recorded
    }
    count = sum(map(len, missing.values()))
    if checking and count:
        for op, digests in missing.items():
            if digests:
                click.echo(f"{data}: {len(digests)} configurations of {op} are not there")
        click.echo(f"run `{command}` and commit what it changes")
        exit_with(FINDING)
    with _progress(target.name, count) as step:
        wanted = [(each, missing[each.inspected.op]) for each in recorded]
        compiled = running.compiled(wanted, progress=step)
    problems = [
        f"{found.kernel} ({found.dtype}, {found.widths} columns) does not compile: {came.problem}"
        for each in recorded
        for found in each.configurations
        if (came := compiled.get(found.digest)) is not None and came.resources is None
    ]
    if problems:
        for problem in problems:
            click.secho(printable(problem), fg="red")
        click.echo(f"{data}: left as it is")
        exit_with(FINDING)
    taken = {d: (c.resources, c.triton) for d, c in compiled.items() if c.resources is not None}
    everything = {**kept, **taken}
    return [
        Line(found, *everything[found.digest]) for each in recorded for found in each.configurations
    ]


@contextmanager
def _progress(label: str, count: int) -> Iterator[Progress]:
    """A bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty() or not count:
        yield lambda done: None
        return
    bar: Any
    with click.progressbar(length=count, label=label, file=sys.stderr, show_pos=True) as bar:
        yield bar.update


def _command(ops: Sequence[str], folder: Path, target_names: Sequence[str], page: Path) -> str:
    """The command that writes the page again."""
    words = ["kgen", "inspect", *ops]
    words += [] if folder == GENERATED else ["--generated", str(relative(folder))]
    for name in target_names:
        words += ["--target", name]
    return shlex.join([*words, "--markdown", str(relative(page))])
