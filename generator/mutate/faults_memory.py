"""Faults in what is read and written: masks, padding, strides, offsets, chunks."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kgen.mutate.catalogue import OpText, kind
from kgen.mutate.lanes import spoils
from kgen.mutate.reading import MASKS, Function
from kgen.mutate.source import Site, called, keyword, names_in, site

_VALUES = {0.0: "0.0", 1.0: "1.0", float("-inf"): 'float("-inf")'}


@kind(
    "wrong-neutral",
    "padding lanes hold a value that is not neutral in the reduction they enter",
)
def _wrong_neutral(op: OpText) -> Iterator[Site]:
    for function in op.adding:
        for call in function.calls:
            if called(call) == "tl.load":
                node = keyword(call, "other")
            elif called(call) == "tl.where" and names_in(call.args[0]) <= set(MASKS):
                node = call.args[2]
            else:
                continue
            if node is None:
                continue
            for value, text in _VALUES.items():
                if op.kernels.piece(node) not in (text, "0" * (value == 0)) and spoils(
                    function, {id(node): value}
                ):
                    yield site(op.kernels, node, text, call)


@kind("load-unmasked", "a load without its mask reads beyond the row, the rows or the tensor")
def _load_unmasked(op: OpText) -> Iterator[Site]:
    for function in op.functions:
        for call in function.calls_of("tl.load"):
            if _mask_matters(function, call):
                yield _without_mask(op, call)


@kind("store-unmasked", "a store without its mask writes beyond the row, the rows or the tensor")
def _store_unmasked(op: OpText) -> Iterator[Site]:
    for function in op.functions:
        for call in function.calls_of("tl.store"):
            if _mask_matters(function, call):
                yield _without_mask(op, call)


def _mask_matters(function: Function, call: ast.Call) -> bool:
    """A mask of the rows alone is always true where each program has one row."""
    mask = keyword(call, "mask")
    if mask is None:
        return False
    return not (function.has_single_rows and names_in(mask) == {"in_rows"})


def _without_mask(op: OpText, call: ast.Call) -> Site:
    kept = [op.kernels.piece(argument) for argument in call.args]
    return site(op.kernels, call, f"{called(call)}({', '.join(kept)})")


@kind("columns-unmasked", "a mask forgets that the tile is wider than the row")
def _columns_unmasked(op: OpText) -> Iterator[Site]:
    yield from _half_masks(op, "in_columns")


@kind("rows-unmasked", "a mask forgets that the tile is taller than the rows that are left")
def _rows_unmasked(op: OpText) -> Iterator[Site]:
    yield from _half_masks(op, "in_rows")


def _half_masks(op: OpText, dropped: str) -> Iterator[Site]:
    for function in op.functions:
        if dropped == "in_rows" and function.has_single_rows:
            continue
        for node in function.expressions:
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd):
                for gone, kept in ((node.left, node.right), (node.right, node.left)):
                    if ast.unparse(gone) == dropped:
                        yield site(op.kernels, node, op.kernels.atom(kept))


@kind("mask-off-by-one", "a mask lets one lane too many through")
def _mask_off_by_one(op: OpText) -> Iterator[Site]:
    limits = {"n_columns", "n_rows", "n_groups"}
    for function in op.functions:
        for node in function.expressions:
            if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], ast.Lt):
                continue
            limit = ast.unparse(node.comparators[0])
            if limit in limits and not (limit == "n_rows" and function.has_single_rows):
                left = op.kernels.piece(node.left)
                yield site(op.kernels, node, f"{left} <= {limit}")


@kind("guard-dropped", "values of padding lanes enter a reduction: the `where` around them is gone")
def _guard_dropped(op: OpText) -> Iterator[Site]:
    for function in op.adding:
        for call in function.calls_of("tl.where"):
            is_guard = names_in(call.args[0]) <= set(MASKS)
            if is_guard and spoils(function, unguarded=frozenset([id(call)])):
                yield site(op.kernels, call, op.kernels.atom(call.args[1]))


@kind(
    "wrong-row-stride",
    "rows are found by the row stride of another tensor",
    r"test_input_layout\[wider_rows-",
    r"test_upstream_layout\[wider_rows-",
)
def _wrong_row_stride(op: OpText) -> Iterator[Site]:
    for function in op.launched:
        for node, stride in _row_offsets(function):
            for other in function.strides:
                if other != stride.id:
                    yield site(op.kernels, stride, other, node)


@kind(
    "stride-is-n",
    "rows are taken to lie N elements apart, values of rows one",
    r"test_input_layout\[wider_rows-",
    r"test_upstream_layout\[wider_rows-",
    r"test_input_layout",
)
def _stride_is_n(op: OpText) -> Iterator[Site]:
    for function in op.launched:
        for call in (*function.calls_of("tl.load"), *function.calls_of("tl.store")):
            for node in ast.walk(call.args[0]):
                if isinstance(node, ast.BinOp) and _is_row_offset(node):
                    is_matrix = "column" in names_in(call.args[0])
                    if ast.unparse(node.right) != "n_columns":
                        yield site(op.kernels, node.right, "n_columns" if is_matrix else "1", node)


def _row_offsets(function: Function) -> Iterator[tuple[ast.BinOp, ast.Name]]:
    """Every ``row * stride`` in an address of a matrix or of values of rows."""
    for node in function.expressions:
        if isinstance(node, ast.BinOp) and _is_row_offset(node):
            assert isinstance(node.right, ast.Name)
            yield node, node.right


def _is_row_offset(node: ast.BinOp) -> bool:
    return (
        isinstance(node.op, ast.Mult)
        and ast.unparse(node.left) == "row"
        and isinstance(node.right, ast.Name)
        and (node.right.id == "n_columns" or node.right.id.endswith("_row_stride"))
    )


@kind(
    "offset-32-bit",
    "offsets of rows are worked out in 32 bits",
    r"test_rows_far_apart",
)
def _offset_32_bit(op: OpText) -> Iterator[Site]:
    for function in op.launched:
        if not function.strides:
            continue
        for statement in function.statements:
            if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "row":
                for node in ast.walk(statement.value):
                    if isinstance(node, ast.Call) and ast.unparse(node).endswith(".to(tl.int64)"):
                        assert isinstance(node.func, ast.Attribute)
                        kept = op.kernels.piece(node.func.value)
                        yield site(op.kernels, node, kept, statement)


@kind("chunk-not-advanced", "every step of a loop, or every program, takes the same chunk")
def _chunk_not_advanced(op: OpText) -> Iterator[Site]:
    for function in op.functions:
        for statement in function.statements:
            if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.BinOp):
                continue
            value = statement.value
            is_place = ast.unparse(statement.targets[0]) in ("row", "column", "span", "group")
            if is_place and isinstance(value.op, ast.Add):
                yield site(op.kernels, value, op.kernels.piece(value.right), statement)


@kind("tiles-overlap", "programs start one row or column apart instead of a tile apart")
def _tiles_overlap(op: OpText) -> Iterator[Site]:
    for function in op.launched:
        for node in function.expressions:
            if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
                continue
            size = ast.unparse(node.right)
            is_program = any(called(part) == "tl.program_id" for part in ast.walk(node.left))
            sizes = ("BLOCK",) if function.has_single_rows else ("ROWS", "BLOCK")
            if is_program and size in sizes:
                yield site(op.kernels, node, op.kernels.piece(node.left))


@kind("last-chunk-left-out", "a loop stops one short: a last chunk of one column or row is missed")
def _last_chunk_left_out(op: OpText) -> Iterator[Site]:
    for function in op.launched:
        for call in function.calls_of("tl.range"):
            limit = call.args[1]
            if ast.unparse(limit) in ("n_columns", "n_rows"):
                yield site(op.kernels, limit, f"{ast.unparse(limit)} - 1", call)
