"""The gallery: every op of a project on one page of Markdown, for readers who look for one."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from urllib.parse import quote

from kgen.cost import How
from kgen.explain import Direction, Explanation
from kgen.explain_page import SHARED, bounds_of, dtype_words, input_shape, shape_of
from kgen.expr import parse_formulas
from kgen.formulas import lines
from kgen.ir import seeds_in
from kgen.spec import Element, Input, Kind, Output, Spec

PAGE_WIDTH = 120
FORMULA_WIDTH = 96
_INTRO = (
    "{count}. Find one in the table; its section has the call, the formulas of forward and "
    "gradients, and what goes through memory. N is the length of a row, T the rows "
    "of a matrix where x is a batch of them, K a divisor of N; inputs with a question "
    "mark may be left out; `twice` means that gradients can be differentiated once more. The bytes "
    "that a row moves are an average over {usual}, with every optional input given, and stand "
    "beside what they would be if every tensor went through memory once. `kgen explain SPEC` says "
    "more, for any size."
)
_ESCAPED = re.compile(r"[\\`*\[\]<>|$~&]|(?<!\w)_|_(?!\w)")
_STARTS = re.compile(r"^(\d+(?=[.)])|(?=[#+-]))")


@dataclass(frozen=True, slots=True)
class Entry:
    """An op in its setting, and the links beside it: what they say and where they lead."""

    explained: Explanation
    links: tuple[tuple[str, str], ...] = ()

    @property
    def spec(self) -> Spec:
        """The op's spec."""
        return self.explained.spec


def gallery(entries: Sequence[Entry], usual: str, command: str) -> str:
    """The whole page; ``usual`` is the setting of most ops, ``command`` what writes the page."""
    found = sorted(entries, key=lambda entry: entry.spec.op)
    count = "One op" if len(found) == 1 else f"{len(found)} ops"
    intro = textwrap.fill(_INTRO.format(count=count, usual=usual), PAGE_WIDTH)
    parts = ["# Ops", intro, f"This page is written by\n\n    {command}"]
    parts.append("\n".join(_contents(found)))
    for entry in found:
        parts += _section(entry, usual)
    return "\n\n".join(parts) + "\n"


def setting_words(rows: int, columns: int, dtype: str) -> str:
    """How the page calls a setting."""
    return f"{rows} rows of N = {columns} in {dtype}"


def _contents(entries: Sequence[Entry]) -> Iterator[str]:
    yield from ("| op | computes | takes | gives | backward |", "|---|---|---|---|---|")
    for entry in entries:
        spec = entry.spec
        takes = [f"{i.name}?" if i.absent is not None else i.name for i in spec.inputs]
        cells = [
            f"[{spec.op}](#{spec.op})",
            _escaped(spec.summary),
            _names(takes),
            _names([output.name for output in spec.outputs]),
            _backward_words(spec),
        ]
        yield f"| {' | '.join(cells)} |"


def _backward_words(spec: Spec) -> str:
    if spec.backward == "none":
        return "none"
    first = "derived" if spec.backward == "derive" else "by formulas"
    return f"{first}, twice" if spec.double_backward else first


def _section(entry: Entry, usual: str) -> Iterator[str]:
    explained, spec = entry.explained, entry.spec
    yield f"## {spec.op}"
    yield _escaped(spec.summary)
    yield "\n".join(["```text", *_call(explained), "```"])
    yield "\n".join(f"- {line}" for line in _about(entry))
    yield "\n".join(["```python", *_formulas(explained), "```"])
    if spec.backward != "none":
        yield _kept(explained)
    setting = explained.setting
    floats = [setting.dtypes[i.name] for i in spec.inputs if i.element is Element.FLOAT]
    dtype = floats[0] if floats else setting.compute
    own = setting_words(setting.rows, setting.columns, dtype)
    yield "\n".join(_memory(explained, "" if own == usual else own))


def _call(explained: Explanation) -> Iterator[str]:
    """The call as Python would have it, and below it a line for each name."""
    spec = explained.spec
    inputs = [i.name if i.absent is None else f"{i.name}=None" for i in spec.inputs]
    params = [f"{param.name}={param.default!r}" for param in spec.params]
    arguments = [*inputs, "*", *params] if params else inputs
    yield f"{spec.op}({', '.join(arguments)}) -> {', '.join(o.name for o in spec.outputs)}"
    yield ""
    rows = [
        *((i.name, input_shape(i, spec), _input_notes(i, spec)) for i in spec.inputs),
        *((param.name, param.element.value, bounds_of(param)) for param in spec.params),
        *((o.name, _output_shape(explained, o), dtype_words(o, spec)) for o in spec.outputs),
    ]
    first, second = (max(len(row[place]) for row in rows) for place in (0, 1))
    for name, shape, notes in rows:
        yield f"{name:{first}}  {shape:{second}}  {notes}".rstrip()


def _input_notes(entry: Input, spec: Spec) -> str:
    notes = {Element.FLOAT: [], Element.INT: ["integers"], Element.BOOL: ["bools"]}[entry.element]
    if entry.absent is not None:
        notes = [*notes, f"{entry.absent:g} when not given"]
    if entry.element is Element.FLOAT and not entry.grad and spec.backward != "none":
        notes = [*notes, "no gradient"]
    if entry.shares_columns:
        notes = [*notes, SHARED]
    if entry.kind is Kind.PER_BATCH:
        notes = [*notes, "a row for all T rows of a matrix"]
    return ", ".join(notes)


def _output_shape(explained: Explanation, output: Output) -> str:
    return shape_of(explained.row_op.output_kind(output), explained.spec)


def _about(entry: Entry) -> Iterator[str]:
    spec = entry.spec
    yield f"Source: {_escaped(spec.source)}"
    if spec.peers:
        yield f"Libraries with an op like it: {', '.join(map(_escaped, spec.peers))}"
    seeds = sorted(seeds_in(entry.explained.row_op.forward))
    if seeds:
        yield (
            f"Random: the numbers follow from {_names(seeds)}, the row's number in the call, the "
            "column and N; backward draws them again. Every call takes a seed of its own"
        )
    here = [f"[{words}]({quote(place)})" for words, place in entry.links]
    here += [f"module `{spec.module}`"] if spec.module else []
    if here:
        yield f"Here: {', '.join(here)}"


def _formulas(explained: Explanation) -> Iterator[str]:
    for direction in explained.directions:
        if direction.name != "forward":
            yield ""
        yield f"# {direction.name.replace('_', ' ')}{', derived' * direction.is_derived}"
        for _, _, text in direction.formulas:
            yield from _wrapped(text, explained.spec)
    if explained.spec.backward == "none":
        yield from ("", "# backward: none")


def _wrapped(text: str, spec: Spec) -> list[str]:
    """The formula in the spec's own words, or a line for each term where it is long."""
    if len(text) <= FORMULA_WIDTH:
        return [text]
    (formula,) = parse_formulas(text, spec.at)
    return lines(formula.name, formula.value, FORMULA_WIDTH)


def _kept(explained: Explanation) -> str:
    """What forward leaves for backward; a value whose dtype alone is read takes no memory."""
    names: dict[How, list[str]] = {how: [] for how in How}
    for value in explained.kept:
        if value.used_in:
            names[value.how].append(value.name)
    parts = []
    if saved := names[How.SAVED]:
        size = explained.setting.compute_bytes * len(saved)
        parts.append(f"{_names(saved)} in {explained.setting.compute}, {size} bytes a row")
    if whole := [*names[How.INPUT], *names[How.REUSED]]:
        parts.append(f"{_names(whole)} as they are" if whole[1:] else f"{_names(whole)} as it is")
    again = names[How.RECOMPUTED]
    rest = f" Worked out again: {_names(again)}." if again else ""
    return f"Kept for backward: {'; '.join(parts) or 'nothing'}.{rest}"


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _memory(explained: Explanation, setting: str) -> Iterator[str]:
    yield f"| {setting} | matrices read | written | a row moves | at least | passes over a row |"
    yield "|---|---|---|---|---|---|"
    rows = explained.setting.rows
    for direction in explained.directions:
        cells = [
            direction.name.replace("_", " "),
            str(direction.cost.matrices_read),
            str(direction.cost.matrices_written),
            _size(direction.traffic.bytes / rows),
            _size(direction.least_bytes / rows),
            _passes(direction),
        ]
        yield f"| {' | '.join(cells)} |"


def _size(count: float) -> str:
    return f"{count / 1024:.1f} KiB" if count >= 1024 else f"{count:.0f} bytes"


def _passes(direction: Direction) -> str:
    changes = [
        f"{passes} up to N = {end}"
        for (end, _, passes), (_, _, after) in pairwise(direction.ends)
        if after != passes
    ]
    return ", ".join([*changes, f"{'then ' if changes else ''}{direction.ends[-1][2]}"])


def _escaped(text: str) -> str:
    """A user's line as Markdown that shows it as it is, also at the start of a paragraph."""
    return _STARTS.sub(r"\1\\", _ESCAPED.sub(r"\\\g<0>", text))
