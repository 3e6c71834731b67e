"""Faults in the wrapper: the contract, the plan, what autograd is told and given."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

from kgen.mutate.catalogue import OpText, kind
from kgen.mutate.reading import launches
from kgen.mutate.source import (
    Site,
    called,
    expressions,
    method,
    names_in,
    receiver,
    site,
    statements,
    swapped,
)


@kind(
    "wrong-row-stride-given",
    "a kernel is given the row stride of another tensor, or N for it",
    r"test_input_layout\[wider_rows-",
    r"test_upstream_layout\[wider_rows-",
)
def _wrong_row_stride_given(op: OpText) -> Iterator[Site]:
    for function in op.wrapper.functions.values():
        for launch in launches(function):
            given = [node for node in launch.args if called(node) == "_row_stride"]
            texts = list(dict.fromkeys(op.wrapper.piece(node) for node in given))
            for node in given:
                is_matrix = "False" not in op.wrapper.piece(node)
                for text in [*texts, "n_columns" if is_matrix else "1"]:
                    if text != op.wrapper.piece(node):
                        yield site(op.wrapper, node, text)


@kind("gradient-misplaced", "a gradient is returned for the wrong argument")
def _gradient_for_wrong_argument(op: OpText) -> Iterator[Site]:
    for name, function in op.wrapper.functions.items():
        if not name.endswith("Function.backward"):
            continue
        for statement in statements(function.body):
            if isinstance(statement, ast.Return) and isinstance(statement.value, ast.Tuple):
                parts = statement.value.elts
                for first, second in pairwise(parts):
                    if ast.unparse(first) != ast.unparse(second):
                        yield swapped(op.wrapper, first, second, statement)


@kind(
    "frozen-computed",
    "the gradient of an input that needs none is computed all the same",
    r"test_gradients_of_some_inputs",
    r"test_memory_of_backward",
)
def _frozen_computed(op: OpText) -> Iterator[Site]:
    for found in _needs(op):
        for test, like in found if len(found) > 1 else ():  # the only one is needed always
            yield site(op.wrapper, test, f"{like} is not None")


@kind(
    "wrong-need",
    "whether a gradient is computed is asked of another argument",
    r"test_gradients_of_some_inputs",
)
def _wrong_need(op: OpText) -> Iterator[Site]:
    for found in _needs(op):
        texts = [ast.unparse(test) for test, _ in found]
        for test, _ in found:
            for text in texts:
                if text != ast.unparse(test):
                    yield site(op.wrapper, test, text)


def _needs(op: OpText) -> Iterator[list[tuple[ast.expr, str]]]:
    """The conditions ``needs[0]`` of each function, with what is there whether needed or not."""
    for function in op.wrapper.functions.values():
        found = []
        for statement in statements(function.body):
            if not isinstance(statement, ast.If):
                continue
            parts = getattr(statement.test, "values", [statement.test])
            asked = [part for part in parts if ast.unparse(part).startswith("needs[")]
            if not asked:
                continue
            likes = [
                ast.unparse(node.args[0])
                for node in ast.walk(statement)
                if isinstance(node, ast.Call) and called(node).startswith("torch.empty")
            ]
            found += [(asked[0], like) for like in likes[:1]]
        yield found


@kind(
    "saved-unwatched",
    "what backward needs is kept so that autograd cannot see it being changed",
    r"test_arguments_changed",
)
def _saved_unwatched(op: OpText) -> Iterator[Site]:
    for name, function in op.wrapper.functions.items():
        if not name.endswith("Function.forward"):
            continue
        twin = op.wrapper.functions.get(name.replace(".forward", ".backward"))
        saves = [
            node
            for node in expressions(function.body)
            if isinstance(node, ast.Call) and called(node) == "ctx.save_for_backward"
        ]
        for save in saves:
            read = [n for n in ast.walk(twin) if _is_saved_tensors(n)] if twin else []
            if not read or not any(_is_seen(function, part) for part in save.args):
                continue
            kept = ", ".join(op.wrapper.piece(argument) for argument in save.args)
            edits = [op.wrapper.replacing(save, f"ctx.kept = ({kept},)")]
            edits += [op.wrapper.replacing(node, "ctx.kept") for node in read]
            yield Site(op.wrapper, save, tuple(edits))


def _is_saved_tensors(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "saved_tensors"


def _is_seen(function: ast.FunctionDef, node: ast.expr) -> bool:
    """Whether the caller has the tensor too, being an argument or what is returned."""
    returned = {
        name
        for statement in statements(function.body)
        if isinstance(statement, ast.Return) and statement.value is not None
        for name in names_in(statement.value)
    }
    return ast.unparse(node) in returned | {argument.arg for argument in function.args.args}


@kind(
    "second-derivative-silent",
    "a second derivative leaves a term out instead of raising",
    r"test_second_derivative",
)
def _second_derivative_silent(op: OpText) -> Iterator[Site]:
    for function in op.wrapper.functions.values():
        for statement in statements(function.body):
            if isinstance(statement, ast.Assign) and called(statement.value) == "_once":
                yield site(op.wrapper, statement, "pass")


@kind("tensor-overlooked", "one tensor is left out where dtypes or gradients are looked at")
def _tensor_overlooked(op: OpText) -> Iterator[Site]:
    for function in op.wrapper.functions.values():
        for node in expressions(function.body):
            if not isinstance(node, ast.Call) or len(node.args) < 2:
                continue
            if called(node) not in ("_is_differentiated", "_compute_dtype"):
                continue
            for gone in node.args:
                kept = [op.wrapper.piece(a) for a in node.args if a is not gone]
                yield site(op.wrapper, node, f"{called(node)}({', '.join(kept)})")


@kind("path-uncounted", "a path that ran is not counted in `calls`")
def _path_uncounted(op: OpText) -> Iterator[Site]:
    for function in op.wrapper.functions.values():
        for statement in statements(function.body):
            is_sum = isinstance(statement, ast.AugAssign)
            if is_sum and ast.unparse(statement).startswith("calls["):
                yield site(op.wrapper, statement, "pass")


@kind("empty-uninitialised", "the column sum of no rows is memory that nobody has written")
def _empty_uninitialised(op: OpText) -> Iterator[Site]:
    for function in op.wrapper.functions.values():
        for node in expressions(function.body):
            if isinstance(node, ast.Call) and method(node) == "zero_":
                yield site(op.wrapper, node, op.wrapper.piece(receiver(node)))


@kind("copy-missing", "strides that the kernels do not take are not made contiguous")
def _copy_missing(op: OpText) -> Iterator[Site]:
    for function in op.wrapper.functions.values():
        for node in expressions(function.body):
            if isinstance(node, ast.Call) and called(node) == "_copied":
                yield site(op.wrapper, node, op.wrapper.piece(node.args[0]))


@kind("reference-not-cast", "the reference's result is not given in the output's dtype")
def _reference_not_cast(op: OpText) -> Iterator[Site]:
    public = op.wrapper.functions.get(op.op)
    for node in expressions(public.body) if public else ():
        if not isinstance(node, ast.Call) or method(node) != "to":
            continue
        if "reference" in ast.unparse(receiver(node)):
            yield site(op.wrapper, node, op.wrapper.piece(receiver(node)))


@kind("unchecked", "a check of the contract is left out", r"test_refusal")
def _unchecked(op: OpText) -> Iterator[Site]:
    public = op.wrapper.functions.get(op.op)
    for statement in statements(public.body) if public else ():
        if isinstance(statement, ast.Expr) and called(statement.value).startswith("_check_"):
            yield site(op.wrapper, statement, "pass")
        elif isinstance(statement, ast.Assign) and called(statement.value).startswith("_check_"):
            yield site(op.wrapper, statement.value, ast.unparse(statement.targets[0]), statement)
        elif isinstance(statement, ast.If) and isinstance(statement.body[-1], ast.Raise):
            yield site(op.wrapper, statement.test, "False")


@kind(
    "wrong-limit",
    "a limit on columns or rows is not kept, or the largest size is refused",
    r"test_refusal\[.*too_many",
    r"test_rows_over_the_limit",
    r"test_at_the_limit",
)
def _wrong_limit(op: OpText) -> Iterator[Site]:
    for function in op.wrapper.functions.values():
        for node in expressions(function.body):
            if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], ast.Gt):
                continue
            limit = ast.unparse(node.comparators[0])
            if limit in ("MAX_COLUMNS", "MAX_ROWS"):
                yield site(op.wrapper, node, "False")
                yield site(op.wrapper, node, f"{op.wrapper.piece(node.left)} >= {limit}")


@kind("boundary-off-by-one", "rows at the boundary between two schedules take the other one")
def _boundary_off_by_one(op: OpText) -> Iterator[Site]:
    turned = {ast.Gt: ">=", ast.In: "not in"}
    for function in op.wrapper.functions.values():
        for node in expressions(function.body):
            if not isinstance(node, ast.Compare) or type(node.ops[0]) not in turned:
                continue
            boundary = op.wrapper.piece(node.comparators[0])
            if re.search(r"_(RESIDENT|WHOLE)_WORDS|_RELOADED", boundary):
                text = f"{op.wrapper.piece(node.left)} {turned[type(node.ops[0])]} {boundary}"
                yield site(op.wrapper, node, text)


@kind("block-short", "a tile is half as wide as the row needs")
def _block_short(op: OpText) -> Iterator[Site]:
    for function in op.wrapper.functions.values():
        for node in expressions(function.body):
            if called(node) == "triton.next_power_of_2":
                yield site(op.wrapper, node, f"{op.wrapper.piece(node)} // 2")


@kind("dtype-of-other", "a gradient gets the dtype of another input", r"test_mixed_dtypes")
def _dtype_of_other(op: OpText) -> Iterator[Site]:
    public = op.wrapper.functions.get(op.op)
    inputs = {argument.arg for argument in public.args.args} if public else set()
    for name, function in op.wrapper.functions.items():
        if not name.endswith("backward"):
            continue
        made = [
            node
            for node in expressions(function.body)
            if isinstance(node, ast.Call)
            and called(node) == "torch.empty_like"
            and ast.unparse(node.args[0]) in inputs
        ]
        for node, other in zip(made, made[1:] + made[:1], strict=True):
            like, dtype = ast.unparse(node.args[0]), ast.unparse(other.args[0])
            if like != dtype:
                text = op.wrapper.piece(node).removesuffix(")")
                yield site(op.wrapper, node, f"{text}, dtype={dtype}.dtype)")
