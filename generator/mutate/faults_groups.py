"""Faults in what programs and groups of rows share: accumulators, partial sums, grids."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kgen.mutate.catalogue import OpText, kind
from kgen.mutate.reading import launches
from kgen.mutate.source import (
    Site,
    called,
    expressions,
    keyword,
    method,
    names_in,
    site,
    statements,
)

# A chunk replaces what these merges start from: only NaN comes through.
_STARTS_REPLACED = {"merge_exp_sum": 1, "rescale_exp_sum": 0}
# And here not even that: what a sum was before the first number is dropped.
_STARTS_DROPPED = "rescale_open_sum"


@kind("accumulator-start", "an accumulator does not start at its neutral value", "test_special_row")
def _accumulator_start(op: OpText) -> Iterator[Site]:
    for function in op.functions:
        accumulators = _accumulators(function.statements)
        replaced = {
            ast.unparse(call.args[_STARTS_REPLACED[called(call)]])
            for call in function.calls
            if called(call) in _STARTS_REPLACED
        }
        dropped = {ast.unparse(call.args[0]) for call in function.calls_of(_STARTS_DROPPED)}
        for statement in function.statements:
            if not isinstance(statement, ast.Assign):
                continue
            target, start = ast.unparse(statement.targets[0]), statement.value
            if target not in accumulators - dropped or not isinstance(start, ast.Call):
                continue
            value = 'float("nan")' if target in replaced else "1.0"
            if called(start) == "tl.zeros":
                shape, dtype = (op.kernels.piece(argument) for argument in start.args)
                changed = f"tl.full({shape}, {value}, {dtype})"
                yield site(op.kernels, start, changed, statement)
            elif called(start) == "tl.full":
                is_sum = ast.unparse(start.args[1]) == "0.0"
                yield site(op.kernels, start.args[1], value if is_sum else "0.0", statement)


def _accumulators(body: list[ast.stmt]) -> set[str]:
    """The names that a loop adds to: each occurs in what it is assigned there."""
    found: set[str] = set()
    for loop in body:
        if not isinstance(loop, ast.For):
            continue
        for statement in ast.walk(loop):
            if isinstance(statement, ast.AugAssign):
                found |= names_in(statement.target)
            elif isinstance(statement, ast.Assign):
                targets = {n for target in statement.targets for n in names_in(target)}
                is_merge = called(statement.value).startswith(("merge_", "nan_"))
                found |= targets & names_in(statement.value) if is_merge else set()
    return found


@kind("not-written", "a result, a saved value or a partial sum is never written")
def _not_written(op: OpText) -> Iterator[Site]:
    for function in op.functions:
        for statement in function.statements:
            if isinstance(statement, ast.Expr) and called(statement.value) == "tl.store":
                yield site(op.kernels, statement, "pass")


@kind("groups-overlap", "groups of rows walk rows of other groups again")
def _groups_overlap(op: OpText) -> Iterator[Site]:
    for function in op.launched:
        for call in function.calls_of("tl.range"):
            if len(call.args) == 3 and "num_programs" in ast.unparse(call.args[2]):
                yield site(op.kernels, call.args[0], "0", call)
                yield site(op.kernels, call.args[2], "ROWS", call)


@kind("last-partial-left-out", "the last group's partial sum is not added")
def _last_partial_left_out(op: OpText) -> Iterator[Site]:
    for function in op.functions:
        for node in function.expressions:
            if isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]) == "n_groups":
                yield site(op.kernels, node.comparators[0], "n_groups - 1", node)
        for call in function.calls_of("tl.range"):
            if ast.unparse(call.args[1]) == "n_groups":
                yield site(op.kernels, call.args[1], "n_groups - 1", call)
    for wrapper in op.wrapper.functions.values():
        for launch in launches(wrapper):
            for argument in launch.args:
                if ast.unparse(argument) == "n_groups":
                    yield site(op.wrapper, argument, "n_groups - 1")


@kind("partials-misplaced", "every group writes its partial sum to the same place")
def _partials_misplaced(op: OpText) -> Iterator[Site]:
    for function in op.launched:
        for call in function.calls_of("tl.store"):
            for node in ast.walk(call.args[0]):
                if isinstance(node, ast.BinOp) and ast.unparse(node) == "group * n_columns":
                    yield site(op.kernels, node, "0", call.args[0])


@kind("grid-short", "a grid has one program less than there are tiles or groups")
def _grid_short(op: OpText) -> Iterator[Site]:
    for function in op.wrapper.functions.values():
        for launch in launches(function):
            grid = launch.args[1]
            for size in grid.elts if isinstance(grid, ast.Tuple) else ():
                yield site(op.wrapper, size, f"{op.wrapper.piece(size)} - 1", grid)


@kind("wrong-axis", "programs count their rows or columns along the other axis of the grid")
def _wrong_axis(op: OpText) -> Iterator[Site]:
    other = {"0": "1", "1": "0", "2": "1"}
    for function in op.launched:
        for node in function.expressions:
            if isinstance(node, ast.BinOp) and ast.unparse(node.right) == "n_chunks":
                turned = "%" if isinstance(node.op, ast.FloorDiv) else "//"
                program = op.kernels.piece(node.left)
                yield site(op.kernels, node, f"{program} {turned} n_chunks")
        counts = function.calls_of("tl.program_id")
        if len({ast.unparse(call.args[0]) for call in counts}) > 1:
            for call in counts:
                yield site(op.kernels, call.args[0], other[ast.unparse(call.args[0])], call)


@kind("groups-short", "there is a group of rows less than planned, or its scratch is one short")
def _groups_short(op: OpText) -> Iterator[Site]:
    for function in op.wrapper.functions.values():
        for node in expressions(function.body):
            if called(node) == "_n_groups":
                yield site(op.wrapper, node, f"{op.wrapper.piece(node)} - 1")
        for call in (n for n in expressions(function.body) if isinstance(n, ast.Call)):
            if method(call) == "expand" and ast.unparse(call.args[0]) == "n_groups":
                yield site(op.wrapper, call.args[0], "n_groups - 1", call)


def _allocations(function: ast.FunctionDef) -> Iterator[tuple[ast.Assign, ast.Call]]:
    """Every ``torch.empty`` and its like, with the assignment that it stands in."""
    for statement in statements(function.body):
        if not isinstance(statement, ast.Assign):
            continue
        for node in ast.walk(statement):
            if called(node) in ("torch.empty", "torch.empty_like") and isinstance(node, ast.Call):
                yield statement, node


@kind("no-group", "wide rows are left without a single group of rows", r"test_gradients.*lowered")
def _no_group(op: OpText) -> Iterator[Site]:
    for bound, call in _bounds_of_groups(op):
        if called(bound) == "max":
            yield site(op.wrapper, bound, op.wrapper.piece(call))


@kind("scratch-unbounded", "the budget for partial sums is not kept", r"test_scratch")
def _scratch_unbounded(op: OpText) -> Iterator[Site]:
    for bound, call in _bounds_of_groups(op):
        if bound is call:
            kept = [op.wrapper.piece(a) for a in call.args if ast.unparse(a) != "fitting"]
            yield site(op.wrapper, call, f"min({', '.join(kept)})")


def _bounds_of_groups(op: OpText) -> Iterator[tuple[ast.Call, ast.Call]]:
    """``max(1, min(...))`` with the ``min`` inside, and the ``min`` itself."""
    function = op.wrapper.functions.get("_n_groups")
    for node in expressions(function.body) if function else ():
        if isinstance(node, ast.Call) and called(node) == "max":
            inner = node.args[1]
            if isinstance(inner, ast.Call) and called(inner) == "min":
                yield node, inner
                yield inner, inner


@kind(
    "value-rounded",
    "a saved value, a partial sum or a statistic is kept in a storage dtype",
    r"test_whole_numbers_to_the_bit\[bfloat16-",
    r"test_whole_numbers_to_the_bit\[float16-",
    r"test_gradients\[bfloat16-\(17, ",
)
def _value_rounded(op: OpText) -> Iterator[Site]:
    for function in op.wrapper.functions.values():
        storage = _storage_dtype(function)
        for node in expressions(function.body):
            if called(node) != "torch.empty" or not isinstance(node, ast.Call):
                continue
            dtype = keyword(node, "dtype")
            if dtype is not None and storage and ast.unparse(dtype).endswith("compute"):
                yield site(op.wrapper, dtype, storage, node)


def _storage_dtype(function: ast.FunctionDef) -> str:
    """Text that gives a storage dtype inside the function."""
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and node.attr.endswith("_dtype"):
            return ast.unparse(node)
    for argument in function.args.args:
        if argument.annotation is not None and "Tensor" in ast.unparse(argument.annotation):
            return f"{argument.arg}.dtype"
    return ""


@kind("result-in-compute-dtype", "an output or a gradient is given in the dtype of the arithmetic")
def _result_in_compute_dtype(op: OpText) -> Iterator[Site]:
    for function in op.wrapper.functions.values():
        if "call" not in {argument.arg for argument in function.args.args} | names_in(function):
            continue
        for statement, call in _allocations(function):
            dtype = keyword(call, "dtype")
            if f"{ast.unparse(statement.targets[0])}_partial" in names_in(function):
                continue  # of sums that are rounded once, by autograd if not by a kernel
            if isinstance(dtype, ast.Attribute) and dtype.attr.endswith("dtype"):
                yield site(op.wrapper, dtype, "call.compute", statement)
            elif dtype is None and isinstance(like := call.args[0], ast.Name):
                text = f"{op.wrapper.piece(like)}, dtype=call.compute"
                yield site(op.wrapper, like, text, statement)
