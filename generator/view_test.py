"""Spec -> the finished strings that ``templates/test_op.py.jinja`` places in a test file."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from kgen.ir import Role, dtypes_in, names_in
from kgen.lower import RowOp
from kgen.schedule import Form, OpSchedule
from kgen.spec import COMPUTE, FLOAT_DTYPES, Case, Element, Input, Kind, Output, Param, Spec

SHORTEST_TUNED = 2048
"""Shorter rows of every width are among the shapes of all ops."""


@dataclass(frozen=True, slots=True)
class TestView:
    """One generated test file. Every string is Python source; black lays it out afterwards."""

    __test__ = False  # not a class of tests, whatever pytest thinks of the name

    op: str
    path: str
    inputs: tuple[str, ...]
    params: tuple[str, ...]
    outputs: tuple[str, ...]
    tolerances: tuple[str, ...]
    facts: tuple[str, ...]
    dtypes: str
    special_dtypes: str
    narrow_dtypes: str
    bits_dtypes: str
    whole_numbers: bool
    paths: str
    cases: tuple[str, ...]
    given: str
    several: str
    gradients: bool
    gradcheck: bool
    optional: bool
    mixed: bool
    column_sums: bool
    second_order: bool
    tuned: str
    tuned_dtype: str
    unrolls: bool
    kept_columns: int


def test_view(plan: OpSchedule) -> TestView:
    """What the test file of an op says."""
    row_op = plan.row_op
    spec = row_op.spec
    gradients = _gradients(spec)
    optional = [entry.name for entry in spec.inputs if entry.absent is not None]
    floats = [entry for entry in spec.inputs if entry.element is Element.FLOAT]
    may_be_double = {COMPUTE, *(entry.name for entry in spec.inputs)}
    several = gradients and len(spec.outputs) > 1
    return TestView(
        op=spec.op,
        path=shlex.quote(spec.path),
        inputs=tuple(_input(entry) for entry in spec.inputs),
        params=tuple(_param(param) for param in spec.params),
        outputs=tuple(_output(output) for output in spec.outputs),
        tolerances=tuple(_tolerances(spec)),
        facts=tuple(_facts(row_op)),
        paths=_tuple(_quote(path) for path in _paths(plan)),
        dtypes=_tuple(_quote(dtype) for dtype in spec.dtypes),
        special_dtypes=_some_dtypes(spec, "float16", "float32"),
        narrow_dtypes=_some_dtypes(spec, "float16", "bfloat16"),
        whole_numbers="float32" in spec.dtypes and not _rounds_to_an_input(row_op),
        bits_dtypes=_some_dtypes(spec, "bfloat16", "float32"),
        cases=tuple(_case(case) for case in spec.cases),
        given=f"((), {_tuple(map(_quote, optional))})" if optional else "((),)",
        several=_tuple(_quote(output.name) for output in spec.outputs) if several else "",
        gradients=bool(gradients),
        gradcheck="float64" in spec.dtypes and any(o.dtype in may_be_double for o in spec.outputs),
        optional=bool(optional),
        mixed=len(floats) > 1,
        column_sums=any(entry.is_summed for entry in gradients),
        second_order=spec.double_backward,
        tuned=_tuned(spec),
        tuned_dtype=_tuned_dtype(spec),
        unrolls=plan.unrolls,
        kept_columns=_kept_columns(plan) if "bfloat16" in spec.dtypes else 0,
    )


test_view.__test__ = False  # type: ignore[attr-defined]


def _tuned(spec: Spec) -> str:
    """The widths that a spec tunes, in columns, as far as its rows reach; nothing if none."""
    longest = spec.limits.max_columns if _tuned_dtype(spec) else 0
    widths = {words for tuning in spec.tuning for words, _ in tuning.widths}
    taken = sorted(words for words in widths if SHORTEST_TUNED <= words <= longest)
    return _tuple(map(str, taken)) if taken else ""


def _tuned_dtype(spec: Spec) -> str:
    """The narrowest dtype that an op takes, in whose arithmetic a column is a word."""
    return next((d for d in ("bfloat16", "float16", "float32") if d in spec.dtypes), "")


def _kept_columns(plan: OpSchedule) -> int:
    """Columns of rows that are read again but for one matrix; 0 where there are none."""
    longest = plan.row_op.spec.limits.max_columns
    is_kept = any(kernel.kept for kernel in plan.kernels)
    return min(20000, longest // 16 * 16) if is_kept else 0


def _gradients(spec: Spec) -> list[Input]:
    if spec.backward == "none":
        return []
    return [entry for entry in spec.inputs if entry.grad and entry.element is Element.FLOAT]


def _some_dtypes(spec: Spec, *wanted: str) -> str:
    """Those dtypes, as far as the op takes them; else the first that it takes."""
    taken = [dtype for dtype in wanted if dtype in spec.dtypes] or spec.dtypes[:1]
    return _tuple(_quote(dtype) for dtype in taken)


def _input(entry: Input) -> str:
    words = [_quote(entry.name), _quote(entry.kind.value)]
    if entry.element is not Element.FLOAT:
        words.append(f"element={_quote(entry.element.value)}")
    if entry.absent is not None:
        words.append(f"absent={_float(entry.absent)}")
    if not entry.grad:
        words.append("grad=False")
    if entry.shares_columns:
        words.append("shares_columns=True")
    return f"testing.Input({', '.join(words)})"


def _param(param: Param) -> str:
    default = _float(param.default) if param.element is Element.FLOAT else repr(param.default)
    words = [_quote(param.name), default]
    if param.minimum is not None:
        words.append(f"minimum={_float(param.minimum)}")
    if param.maximum is not None:
        words.append(f"maximum={_float(param.maximum)}")
    return f"testing.Param({', '.join(words)})"


def _output(output: Output) -> str:
    return f"testing.Output({_quote(output.name)}, dtype={_quote(output.dtype)})"


def _tolerances(spec: Spec) -> Iterator[str]:
    for dtype in sorted(spec.tolerances, key=_dtype_order):
        tolerance = spec.tolerances[dtype]
        numbers = f"{_float(tolerance.absolute)}, {_float(tolerance.relative)}"
        yield f"{_quote(dtype)}: testing.Tolerance({numbers})"


def _paths(plan: OpSchedule) -> list[str]:
    """As rows are, and with the schedules of longer rows."""
    forms = (Form.RELOAD, Form.RELOAD_GROUPS)
    reloads = any(kernel.form in forms for kernel in plan.kernels)
    return ["shipped", "lowered", *(["reread"] if reloads else [])]


def _facts(row_op: RowOp) -> Iterator[str]:
    """The keyword arguments of ``testing.Op`` that differ from their defaults."""
    spec = row_op.spec
    if spec.dtypes != FLOAT_DTYPES:
        yield f"dtypes={_tuple(_quote(dtype) for dtype in spec.dtypes)}"
    programs = [p for p in (row_op.forward, row_op.backward, row_op.double_backward) if p]
    if any("row" in names_in(d.term) for program in programs for d in program.definitions):
        yield "positional=True"
    if not _gradients(spec):
        yield "differentiable=False"
    elif _reuses_outputs(row_op):
        yield "reuses_outputs=True"
    if spec.double_backward:
        yield "second_order=True"


def _reuses_outputs(row_op: RowOp) -> bool:
    """Whether a backward starts from a stored output, which has been rounded to its dtype."""
    programs = [p for p in (row_op.backward, row_op.double_backward) if p is not None]
    variables = [v for program in programs for v in program.variables]
    rounded = {o.name for o in row_op.spec.outputs if o.dtype != COMPUTE}
    matrices = [v for v in variables if v.type.kind is Kind.MATRIX]
    return any(v.role is Role.OUTPUT and v.name in rounded for v in matrices)


def _rounds_to_an_input(row_op: RowOp) -> bool:
    """Whether values are rounded to an input's dtype on the way: a float32 result is another."""
    names = {entry.name for entry in row_op.spec.inputs}
    programs = [p for p in (row_op.forward, row_op.backward) if p is not None]
    return any(names & dtypes_in(d.term) for p in programs for d in p.definitions)


def _case(case: Case) -> str:
    return (
        f"testing.Case({_quote(case.name)}, "
        f"given={_dict(case.given)}, expect={_dict(case.expect)})"
    )


def _dict(pairs: tuple[tuple[str, object], ...]) -> str:
    return "{" + ", ".join(f"{_quote(name)}: {_value(value)}" for name, value in pairs) + "}"


def _value(value: object) -> str:
    """Nested tuples of numbers as nested lists, the way the spec writes them."""
    if isinstance(value, tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    return _float(value) if isinstance(value, float) else repr(value)


def _float(value: float) -> str:
    text = repr(float(value))
    return text if text.lstrip("-")[0].isdigit() else f'float("{text}")'


def _tuple(items: Iterator[str]) -> str:
    words = list(items)
    return f"({', '.join(words)}{',' if len(words) == 1 else ''})"


def _quote(text: str) -> str:
    return '"' + text.encode("unicode_escape").decode("ascii").replace('"', '\\"') + '"'


def _dtype_order(name: str) -> tuple[int, str]:
    known = name in FLOAT_DTYPES
    return (FLOAT_DTYPES.index(name) if known else len(FLOAT_DTYPES), name)
