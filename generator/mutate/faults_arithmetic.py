"""Faults in what is computed: divisors, eps, signs, powers, terms, factors, precision."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from kgen.mutate.catalogue import OpText, kind
from kgen.mutate.reading import Function, reduction_axis
from kgen.mutate.source import Site, called, method, names_in, receiver, site

# What gives one of the values it takes, or widens them before it calculates.
_EXACT = ("tl.abs", "tl.where", "spread", "row_max", "row_min", "nan_maximum", "merge_exp_sum")
_ROOTS = ("tl.sqrt", "tl.rsqrt")


@kind("mean-by-block", "a mean divides by the columns of the tile, padding counted, instead of N")
def _mean_by_block(op: OpText) -> Iterator[Site]:
    for function in op.adding:
        block = "BLOCK" if "BLOCK" in function.parameters else "values.shape[1]"
        if block not in function.parameters and "values" not in function.parameters:
            continue
        for node in function.expressions:
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
                if ast.unparse(node.right) == "n_columns":
                    yield site(op.kernels, node.right, block, node)
            elif _divides_by_columns(node):
                assert isinstance(node, ast.Call)
                yield site(op.kernels, node.args[1], block, node)


def _divides_by_columns(node: ast.AST) -> bool:
    """Whether the second argument of a call is the N that its first is divided by."""
    if not isinstance(node, ast.Call) or called(node) not in ("row_mean", "row_quotient"):
        return False
    return ast.unparse(node.args[1]) == "n_columns"


@kind("mean-is-sum", "a mean is not divided by anything")
def _mean_is_sum(op: OpText) -> Iterator[Site]:
    for function in op.adding:
        for node in function.expressions:
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
                if ast.unparse(node.right) == "n_columns":
                    yield site(op.kernels, node, op.kernels.atom(node.left))
            elif _divides_by_columns(node):
                assert isinstance(node, ast.Call)
                yield site(op.kernels, node.args[1], "1", node)


@kind("sum-is-mean", "a sum over the row is divided by N")
def _sum_is_mean(op: OpText) -> Iterator[Site]:
    for function in op.launched:
        for call in function.calls_of("row_sum"):
            yield site(op.kernels, call, f"({op.kernels.piece(call)} / n_columns)")


@kind("eps-dropped", "a param that is added or that bounds a value is left out")
def _eps_dropped(op: OpText) -> Iterator[Site]:
    for function in op.launched:
        for node in function.expressions:
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
                pair = (node.left, node.right)
            elif called(node) in ("nan_maximum", "nan_minimum"):
                assert isinstance(node, ast.Call)
                pair = (node.args[0], node.args[1])
            else:
                continue
            for gone, kept in (pair, pair[::-1]):
                if isinstance(gone, ast.Name) and gone.id in function.numbers:
                    yield site(op.kernels, node, op.kernels.atom(kept))


@kind("eps-moved", "a param is added outside of the root instead of inside")
def _eps_moved(op: OpText) -> Iterator[Site]:
    for function in op.launched:
        for call in function.calls:
            if called(call) not in _ROOTS or not isinstance(call.args[0], ast.BinOp):
                continue
            inside = call.args[0]
            for gone, kept in ((inside.left, inside.right), (inside.right, inside.left)):
                is_param = isinstance(gone, ast.Name) and gone.id in function.numbers
                if is_param and isinstance(inside.op, ast.Add):
                    root = f"tl.sqrt({op.kernels.piece(kept)}) + {op.kernels.piece(gone)}"
                    moved = f"({root})" if called(call) == "tl.sqrt" else f"(1.0 / ({root}))"
                    yield site(op.kernels, call, moved)


@kind("sign-flipped", "a sum is a difference, a difference a sum, or a minus is missing")
def _sign_flipped(op: OpText) -> Iterator[Site]:
    for function in op.adding:
        for node in function.expressions:
            if (
                isinstance(node, ast.UnaryOp)
                and isinstance(node.op, ast.USub)
                and (function.kind_of(node.operand) != "index" or _is_factor(function, node))
            ):
                yield site(op.kernels, node, op.kernels.atom(node.operand))
        for operation in function.arithmetic:
            if isinstance(operation.op, ast.Add | ast.Sub):
                sign = "-" if isinstance(operation.op, ast.Add) else "+"
                left, right = op.kernels.piece(operation.left), op.kernels.atom(operation.right)
                if not isinstance(operation.left, ast.BinOp):
                    left = op.kernels.atom(operation.left)
                yield site(op.kernels, operation, f"{left} {sign} {right}")
        for statement in function.statements:
            if (
                isinstance(statement, ast.AugAssign)
                and isinstance(statement.op, ast.Add)
                and function.kind_of(statement.value) != "index"
            ):
                target = op.kernels.piece(statement.target)
                value = op.kernels.piece(statement.value)
                yield site(op.kernels, statement, f"{target} -= {value}")


def _is_factor(function: Function, node: ast.expr) -> bool:
    """Whether a number multiplies a value: ``-0.5 * r``."""
    return any(node in (product.left, product.right) for product in function.arithmetic)


@kind("power-changed", "a power or a statistic in a product counts once less or once more")
def _power_changed(op: OpText) -> Iterator[Site]:
    for function in op.adding:
        for node in function.arithmetic:
            if not isinstance(node.op, ast.Mult | ast.Div):
                continue
            left, right = op.kernels.piece(node.left), op.kernels.piece(node.right)
            if isinstance(node.op, ast.Mult) and left == right:
                yield site(op.kernels, node, op.kernels.atom(node.left))
                yield site(op.kernels, node, f"{left} * {left} * {left}")
                continue
            if _is_statistic(function, node.right):
                factor = op.kernels.atom(node.right)
                yield site(op.kernels, node, op.kernels.atom(node.left))
                yield site(op.kernels, node.right, f"({factor} * {factor})", node)
            if isinstance(node.op, ast.Mult) and _is_statistic(function, node.left):
                factor = op.kernels.atom(node.left)
                yield site(op.kernels, node, op.kernels.atom(node.right))
                yield site(op.kernels, node.left, f"({factor} * {factor})", node)


def _is_statistic(function: Function, node: ast.expr) -> bool:
    """Whether it is one value a row: a name, or a reduction on the spot."""
    is_plain = isinstance(node, ast.Name) or reduction_axis(node) == 1
    return is_plain and function.kind_of(node) == "row"


@kind("factor-changed", "a number in a product is twice what it should be")
def _factor_changed(op: OpText) -> Iterator[Site]:
    for function in op.launched:
        for node in function.arithmetic:
            if isinstance(node.op, ast.Mult | ast.Div):
                for factor in (node.left, node.right):
                    if isinstance(factor, ast.Constant):
                        yield site(op.kernels, factor, repr(2 * factor.value), node)  # type: ignore[operator]


@kind("term-dropped", "a term of a sum is left out")
def _term_dropped(op: OpText) -> Iterator[Site]:
    for function in op.adding:
        for node in function.arithmetic:
            if isinstance(node.op, ast.Add | ast.Sub):
                yield site(op.kernels, node, op.kernels.atom(node.left))
                right = op.kernels.atom(node.right)
                yield site(op.kernels, node, right if isinstance(node.op, ast.Add) else f"-{right}")


@kind("weight-twice", "the value of a column is multiplied in twice")
def _weight_twice(op: OpText) -> Iterator[Site]:
    for function in op.launched:
        for node in function.arithmetic:
            if not isinstance(node.op, ast.Mult):
                continue
            for factor in (node.left, node.right):
                if isinstance(factor, ast.Name) and function.kind_of(factor) == "column":
                    yield site(op.kernels, factor, f"({factor.id} * {factor.id})", node)


@kind("rows-mean", "the sum over the rows is a mean, or a partial sum is divided")
def _rows_mean(op: OpText) -> Iterator[Site]:
    for function in op.functions:
        for count in ("n_rows", "n_groups"):
            if count in function.parameters:
                for call in function.calls_of("column_sum"):
                    yield site(op.kernels, call, f"({op.kernels.piece(call)} / {count})")


@kind(
    "no-upcast",
    "a value enters arithmetic or a reduction in its storage dtype",
    r"test_whole_numbers_to_the_bit\[bfloat16-",
    r"test_whole_numbers_to_the_bit\[float16-",
)
def _no_upcast(op: OpText) -> Iterator[Site]:
    for function in op.launched:
        for call in function.calls:
            loaded = _upcast_load(call)
            if loaded is not None and _is_used_raw(function, call):
                yield site(op.kernels, call, op.kernels.piece(loaded))


def _upcast_load(node: ast.Call) -> ast.Call | None:
    """The load in ``tl.load(...).to(COMPUTE)``."""
    if method(node) != "to" or ast.unparse(node.args[0]) != "COMPUTE":
        return None
    value = receiver(node)
    return value if isinstance(value, ast.Call) and called(value) == "tl.load" else None


def _is_used_raw(function: Function, load: ast.Call) -> bool:
    """Whether arithmetic with nothing wider would happen in the dtype of the load.

    Beside a value that is wider, Triton widens it anyway, and nothing is lost.
    """
    raw: set[str] = set()
    # Where a tile has one row, the sum over its rows adds nothing.
    exact = (*_EXACT, "column_sum") if function.has_single_rows else _EXACT
    for statement in function.statements:
        if not isinstance(statement, ast.Assign | ast.AugAssign):
            continue
        found, is_lossy = _raw(statement.value, raw, load, exact)
        if is_lossy:
            return True
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                name = ast.unparse(target)
                raw = raw | {name} if found else raw - {name}
    return False


def _raw(node: ast.AST, raw: set[str], load: ast.Call, exact: Sequence[str]) -> tuple[bool, bool]:
    """Whether an expression has the storage dtype, and whether something was lost in it."""
    if node is load:
        return True, False
    if isinstance(node, ast.Name):
        return node.id in raw, False
    if isinstance(node, ast.BinOp):
        left, right = _raw(node.left, raw, load, exact), _raw(node.right, raw, load, exact)
        constants = [isinstance(side, ast.Constant) for side in (node.left, node.right)]
        both = (left[0] or constants[0]) and (right[0] or constants[1])
        is_raw = both and (left[0] or right[0])
        return is_raw, left[1] or right[1] or is_raw
    if isinstance(node, ast.Call):
        is_exact = called(node) in exact
        results = [_raw(argument, raw, load, exact) for argument in node.args]
        if isinstance(node.func, ast.Attribute):
            results.append((False, _raw(node.func.value, raw, load, exact)[1]))
        is_raw, is_lossy = any(r for r, _ in results), any(lost for _, lost in results)
        if called(node) in ("tl.load", "tl.store") or (is_raw and is_exact):
            return is_raw and is_exact, is_lossy
        return False, is_lossy or is_raw
    results = [_raw(child, raw, load, exact) for child in ast.iter_child_nodes(node)]
    return any(r for r, _ in results), any(lost for _, lost in results)


@kind("cast-missing", "a rounding to a storage dtype that the op asks for does not happen")
def _cast_missing(op: OpText) -> Iterator[Site]:
    for function in op.launched:
        for call in function.calls:
            if method(call) != "to" or ast.unparse(call.args[0]) != "COMPUTE":
                continue
            inner = receiver(call)
            if isinstance(inner, ast.Call) and method(inner) == "to":
                yield site(op.kernels, inner, op.kernels.atom(receiver(inner)), call)


@kind("random-elsewhere", "rows or columns share their random numbers, or the seed takes no part")
def _random_elsewhere(op: OpText) -> Iterator[Site]:
    for function in op.functions:
        for call in function.calls_of("random_tile"):
            seed, row, first_column, *_ = call.args
            yield site(op.kernels, seed, "0", call)
            yield site(op.kernels, row, "row * 0", call)
            if not isinstance(first_column, ast.Constant):
                yield site(op.kernels, first_column, "0", call)
        for call in function.calls_of("tl.randint4x"):
            yield site(op.kernels, call.args[1], "place - four", call)


@kind("absence-ignored", "an optional tensor is read although it was not given")
def _absence_ignored(op: OpText) -> Iterator[Site]:
    for test in _guards_of_loads(op):
        yield site(op.kernels, test, "True")


@kind("presence-ignored", "an optional tensor that was given takes no part")
def _presence_ignored(op: OpText) -> Iterator[Site]:
    for test in _guards_of_loads(op):
        yield site(op.kernels, test, "False")


def _guards_of_loads(op: OpText) -> Iterator[ast.expr]:
    """The conditions ``weight_ptr is not None`` of tensors that the function reads."""
    for function in op.launched:
        read = {name for call in function.calls_of("tl.load") for name in names_in(call.args[0])}
        for statement in function.statements:
            if isinstance(statement, ast.If) and names_in(statement.test) & read:
                yield statement.test


@kind(
    "online-not-rescaled",
    "an online merge adds to what it has without scaling it to the new maximum",
)
def _online_not_rescaled(op: OpText) -> Iterator[Site]:
    for function in _merges(op):
        for node in function.arithmetic:
            if isinstance(node.op, ast.Mult) and called(node.right) == "exp":
                yield site(op.kernels, node, op.kernels.atom(node.left))


@kind(
    "first-chunk-guard",
    "a first chunk of nothing but -inf gives NaN: its guard is gone",
    r"test_special_row\[first_chunk_minus_inf-",
)
def _first_chunk_guard(op: OpText) -> Iterator[Site]:
    for function in _merges(op):
        for call in function.calls_of("tl.where"):
            if 'float("-inf")' in op.kernels.piece(call.args[0]):
                yield site(op.kernels, call, op.kernels.atom(call.args[2]))


def _merges(op: OpText) -> list[Function]:
    return [f for f in op.functions if f.name.startswith(("merge_", "rescale_"))]
