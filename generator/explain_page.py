"""An explanation as one page of tables, or as plain values for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kgen.cost import How, Kept, dtype_used_in
from kgen.explain import Direction, Explanation
from kgen.spec import (
    COMPUTE,
    Element,
    Input,
    Kind,
    Output,
    Param,
    Spec,
    differentiable_inputs,
    gradient_name,
    is_batched,
)

SHARED = "each entry for N / K columns"
SHAPES = {
    Kind.MATRIX: "(..., N)",
    Kind.PER_ROW: "(...)",
    Kind.PER_COLUMN: "(N,)",
    Kind.PER_BATCH: "(..., N)",
    Kind.PER_PLACE: "(T, N)",
    Kind.SCALAR: "()",
}


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, and rows of cells to be aligned below it."""

    title: str
    rows: tuple[tuple[str, ...], ...]


def page(explained: Explanation) -> tuple[Section, ...]:
    """The sections of the page, in order."""
    spec = explained.spec
    sections = [Section("Inputs", tuple(_input_row(i, spec) for i in spec.inputs))]
    if spec.params:
        sections.append(Section("Params", tuple(map(_param_row, spec.params))))
    outputs = [(explained.row_op.output_kind(output), output) for output in spec.outputs]
    sections.append(
        Section(
            "Outputs",
            tuple(
                (o.name, kind.value, shape_of(kind, spec), dtype_words(o, spec))
                for kind, o in outputs
            ),
        )
    )
    for direction in explained.directions:
        origin = ", derived" if direction.is_derived else ""
        rows = tuple((kind, text) for _, kind, text in direction.formulas)
        sections.append(Section(f"{_title(direction.name)}{origin}", rows))
    if explained.row_op.backward is None:
        sections.append(Section("Backward", (("none: the op gives no gradients",),)))
    elif explained.kept:
        title = "What backward needs of forward"
        sections.append(Section(title, tuple(_kept_row(explained, k) for k in explained.kept)))
    sections.append(Section("Cost, whatever the size", tuple(_cost_rows(explained))))
    sections.append(Section("Schedules by N", tuple(_end_rows(explained))))
    sections.append(Section(_setting_title(explained), tuple(_setting_rows(explained))))
    return tuple(sections)


def _title(direction: str) -> str:
    return direction.replace("_", " ").capitalize()


def shape_of(kind: Kind, spec: Spec) -> str:
    """The shape of a value of some kind, in an op that may take a batch of matrices."""
    return "(..., T, N)" if kind is Kind.MATRIX and is_batched(spec) else SHAPES[kind]


def input_shape(entry: Input, spec: Spec) -> str:
    """The shape of an input; K stands for N where columns share an entry."""
    shape = shape_of(entry.kind, spec)
    return shape.replace("N", "K") if entry.shares_columns else shape


def _input_row(entry: Input, spec: Spec) -> tuple[str, ...]:
    is_float = entry in differentiable_inputs(spec)
    has_gradient = is_float and spec.backward != "none"
    notes = [f"gradient {gradient_name(entry.name)}" if has_gradient else "no gradient"]
    if entry.absent is not None:
        notes.append(f"optional, {entry.absent:g} when not given")
    if entry.shares_columns:
        notes.append(SHARED)
    shape = input_shape(entry, spec)
    return entry.name, entry.kind.value, shape, entry.element.value, ", ".join(notes)


def bounds_of(param: Param) -> str:
    """The bounds of a param in words, as far as it has any."""
    bounds = [("at least", param.minimum), ("at most", param.maximum)]
    return ", ".join(f"{words} {bound:g}" for words, bound in bounds if bound is not None)


def _param_row(param: Param) -> tuple[str, ...]:
    if param.element is Element.BOOL:
        notes = "chooses code when a kernel is compiled"
    else:
        notes = bounds_of(param)
    return param.name, param.element.value, f"default {param.default!r}", notes


def dtype_words(output: Output, spec: Spec) -> str:
    """The dtype of an output in words."""
    if output.dtype == COMPUTE:
        return "float32, or float64 when an input is"
    is_input = output.dtype in {entry.name for entry in spec.inputs}
    return f"the dtype of {output.dtype}" if is_input else output.dtype


def _kept_row(explained: Explanation, value: Kept) -> tuple[str, ...]:
    size = explained.setting.compute_bytes
    hows = {
        How.INPUT: "the input itself",
        How.REUSED: "the output itself",
        How.SAVED: f"saved in {explained.setting.compute}, {size} bytes a row",
        How.RECOMPUTED: "worked out again",
    }
    use = f"for {', '.join(value.used_in)}"
    if not value.used_in:
        use = f"its dtype alone, for {', '.join(dtype_used_in(explained.row_op, value.name))}"
    return value.name, value.kind.value, hows[value.how], use


def _cost_rows(explained: Explanation) -> Iterator[tuple[str, ...]]:
    costs = [direction.cost for direction in explained.directions]
    yield "", *(_title(d.name).lower() for d in explained.directions)
    for words, field in COUNTS:
        yield words, *(str(getattr(cost, field)) for cost in costs)


COUNTS = (
    ("row reductions", "row_reductions"),
    ("column sums", "column_sums"),
    ("arithmetic an element", "arithmetic"),
    ("functions and divisions an element", "special"),
    ("operations a row", "row_ops"),
    ("operations a column", "column_ops"),
    ("matrices read", "matrices_read"),
    ("matrices written", "matrices_written"),
)
"""The counts of a ``Cost`` in words, and its fields."""


def _end_rows(explained: Explanation) -> Iterator[tuple[str, ...]]:
    for direction in explained.directions:
        start = 1
        for end, schedule, passes in direction.ends:
            again = "read once" if schedule == "resident" else f"{_times(passes)} over each row"
            yield _title(direction.name).lower(), f"N {start} to {end}", schedule, again
            start = end + 1


def _times(count: int) -> str:
    return {1: "one pass", 2: "two passes", 3: "three passes"}.get(count, f"{count} passes")


def _setting_title(explained: Explanation) -> str:
    setting = explained.setting
    dtypes = list(dict.fromkeys(setting.dtypes.values()))
    shown = dtypes[0]
    if len(dtypes) > 1:
        shown = ", ".join(f"{name} {dtype}" for name, dtype in setting.dtypes.items())
    return (
        f"With M {setting.rows}, N {setting.columns}, {shown}, on {setting.processors} "
        f"multiprocessors at {explained.gbps:g} GB/s"
    )


def _setting_rows(explained: Explanation) -> Iterator[tuple[str, ...]]:
    found = explained.directions
    moved = [d.traffic for d in found]
    launches = [t.launch for t in moved]
    names = [[k.name.removeprefix(f"{explained.spec.op}_") for k in n.kernels] for n in launches]
    each = explained.bytes_an_element
    yield "", *(_title(d.name).lower() for d in found)
    yield "schedule", *(chosen.schedule for chosen in launches)
    for place in range(max(map(len, names))):
        first = "kernels" if place == 0 else ""
        yield first, *(n[place] if place < len(n) else "" for n in names)
    yield "tile, rows x columns", *(f"{n.tile.rows} x {n.block}" for n in launches)
    yield "warps", *(str(n.tile.warps) for n in launches)
    yield "stages, at most", *(str(n.tile.stages) for n in launches)
    yield "passes over a row", *(str(n.passes) for n in launches)
    yield "bytes read an element", *(f"{each(t.bytes_read):.2f}" for t in moved)
    yield "bytes written an element", *(f"{each(t.bytes_written):.2f}" for t in moved)
    yield "bytes an element", *(f"{each(t.bytes):.2f}" for t in moved)
    yield "every tensor once", *(f"{each(d.least_bytes):.2f}" for d in found)
    if any(t.groups for t in moved):
        yield "groups of partial sums", *(str(t.groups) if t.groups else "none" for t in moved)
    yield "scratch", *(_size(t.scratch_bytes) for t in moved)
    if explained.row_op.backward is not None:
        yield "saved for backward", _size(explained.saved_bytes), *("" for _ in found[1:])
    yield "FLOP an element", *(f"{explained.flops(d):.2f}" for d in found)
    yield "FLOP a byte", *(f"{explained.intensity(d):.2f}" for d in found)
    yield "time", *(_duration(explained.microseconds(t.bytes)) for t in moved)
    yield "time, every tensor once", *(
        _duration(explained.microseconds(d.least_bytes)) for d in found
    )


def _size(count: int) -> str:
    if count == 0:
        return "none"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def _duration(microseconds: float) -> str:
    if microseconds >= 1e4:
        return f"{microseconds / 1e3:.1f} ms"
    return f"{microseconds:.1f} us" if microseconds >= 0.1 else "less than 0.1 us"


def as_json(explained: Explanation) -> dict[str, object]:
    """Everything on the page as plain values: sizes in bytes, times in microseconds."""
    spec, setting = explained.spec, explained.setting
    return {
        "op": spec.op,
        "spec": spec.path,
        "m": setting.rows,
        "n": setting.columns,
        "dtypes": dict(setting.dtypes),
        "compute": setting.compute,
        "processors": setting.processors,
        "gbps": explained.gbps,
        "saved_bytes": explained.saved_bytes,
        "kept": [
            {
                "name": value.name,
                "kind": value.kind.value,
                "how": value.how.value,
                "used_in": list(value.used_in),
            }
            for value in explained.kept
        ],
        **{d.name: _direction_json(explained, d) for d in explained.directions},
    }


def _direction_json(explained: Explanation, direction: Direction) -> Mapping[str, object]:
    moved, cost = direction.traffic, direction.cost
    chosen = moved.launch
    return {
        "formulas": [text for _, _, text in direction.formulas],
        "derived": direction.is_derived,
        **{field: getattr(cost, field) for _, field in COUNTS},
        "schedules": [
            {"up_to_n": end, "schedule": schedule, "passes": passes}
            for end, schedule, passes in direction.ends
        ],
        "schedule": chosen.schedule,
        "kernels": [kernel.name for kernel in chosen.kernels],
        "tile_rows": chosen.tile.rows,
        "tile_columns": chosen.block,
        "warps": chosen.tile.warps,
        "stages": chosen.tile.stages,
        "passes": chosen.passes,
        "bytes_read": moved.bytes_read,
        "bytes_written": moved.bytes_written,
        "least_bytes": direction.least_bytes,
        "groups": moved.groups,
        "scratch_bytes": moved.scratch_bytes,
        "flops_per_element": explained.flops(direction),
        "flops_per_byte": explained.intensity(direction),
        "microseconds": explained.microseconds(moved.bytes),
        "moves": [
            {
                "name": move.name,
                "kind": move.kind.value,
                "dtype": move.dtype,
                "bytes": move.bytes,
                "times": move.times,
                "write": move.is_write,
            }
            for move in moved.moves
        ],
    }
