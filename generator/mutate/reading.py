"""What the text of kernels and wrapper says: which names hold what, where memory is touched."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from kgen.mutate.source import Source, called, expressions, keyword, names_in, statements

# What a name holds: a place in memory or a mask (index), or values of one of the four kinds.
Holds = Literal["index", "scalar", "row", "column", "matrix"]

ROW_REDUCTIONS = ("row_sum", "row_mean", "row_max", "row_min")
MASKS = ("mask", "in_rows", "in_columns", "in_spans")
OF_COLUMNS = ({"in_columns"}, {"in_spans"})


@dataclass(frozen=True)
class Function:
    """One function of ``kernels.py``. ``is_kernel``: the wrapper launches it."""

    source: Source
    node: ast.FunctionDef
    is_kernel: bool
    has_single_rows: bool = False
    holds: Mapping[str, Holds] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "holds", self._infer())

    @property
    def name(self) -> str:
        """The function's name."""
        return self.node.name

    @property
    def is_backward(self) -> bool:
        """Whether it takes part in a gradient."""
        return self.is_kernel and "backward" in self.name

    @property
    def adds_up(self) -> bool:
        """Whether values meet each other in it: it reduces, or calls what does."""
        return any(reduction_axis(call) is not None for call in self.calls)

    @cached_property
    def parameters(self) -> list[str]:
        """The names of the arguments, compile-time ones too."""
        return [argument.arg for argument in self.node.args.args]

    @property
    def strides(self) -> list[str]:
        """The arguments that are row strides."""
        return [name for name in self.parameters if name.endswith("_row_stride")]

    @property
    def numbers(self) -> set[str]:
        """The arguments that are params of the op."""
        if not self.is_kernel:
            return set()
        counts = {"n_rows", "n_columns", "n_groups"}
        found = {name for name in self.parameters if name.islower() and name not in counts}
        return {n for n in found if not n.endswith(("_ptr", "_row_stride"))}

    @cached_property
    def statements(self) -> list[ast.stmt]:
        """Every statement, in the order of the text."""
        return list(statements(self.node.body))

    @cached_property
    def expressions(self) -> list[ast.expr]:
        """Every expression and part of one, in the order of the text."""
        return list(expressions(self.node.body))

    @cached_property
    def calls(self) -> list[ast.Call]:
        """Every call."""
        return [node for node in self.expressions if isinstance(node, ast.Call)]

    def calls_of(self, name: str) -> list[ast.Call]:
        """The calls of one function."""
        return [call for call in self.calls if called(call) == name]

    @cached_property
    def arithmetic(self) -> list[ast.BinOp]:
        """The operations on values; those that work out addresses, masks and bounds left out."""
        return [
            node
            for node in self.expressions
            if isinstance(node, ast.BinOp)
            and not isinstance(node.op, ast.BitAnd | ast.BitOr)
            and self.kind_of(node) != "index"
            and id(node) not in self._addresses
        ]

    @cached_property
    def _addresses(self) -> set[int]:
        memory = [*self.calls_of("tl.load"), *self.calls_of("tl.store")]
        return {id(part) for call in memory for part in ast.walk(call.args[0])}

    def kind_of(self, node: ast.AST) -> Holds:
        """What an expression of the function's body holds."""
        return _kind(node, self.holds)

    def _infer(self) -> dict[str, Holds]:
        known: dict[str, Holds] = {}
        if not self.is_kernel:
            counts = {"start", "n_columns", "n_rows", "n_groups", "column", *MASKS}
            for name in self.parameters:
                if name.islower() and name not in counts and not name.endswith("_ptr"):
                    known[name] = "matrix" if name == "values" else "row"
        for statement in self.statements:
            if isinstance(statement, ast.Assign):
                held = _kind(statement.value, known)
                for target in statement.targets:
                    for name in names_in(target):
                        known[name] = _joined(known.get(name, "index"), held)
            elif isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
                name, held = statement.target.id, _kind(statement.value, known)
                known[name] = _joined(known.get(name, "index"), held)
        return known


def _kind(node: ast.AST, known: Mapping[str, Holds]) -> Holds:
    if isinstance(node, ast.Name):
        return known.get(node.id, "index")
    if isinstance(node, ast.Compare | ast.Constant | ast.Tuple):
        return "index"
    if isinstance(node, ast.IfExp):
        return _joined(_kind(node.body, known), _kind(node.orelse, known))
    if isinstance(node, ast.Call):
        return _kind_of_call(node, known)
    found: Holds = "index"
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            found = _joined(found, _kind(child, known))
    return found


def _kind_of_call(node: ast.Call, known: Mapping[str, Holds]) -> Holds:
    name = called(node)
    if name == "tl.load":
        mask = keyword(node, "mask")
        used = names_in(mask) if mask is not None else set()
        return "row" if used == {"in_rows"} else "column" if used in OF_COLUMNS else "matrix"
    if name == "random_tile":
        return "matrix"
    axis = reduction_axis(node)
    if axis is not None:
        return "row" if axis else "column"
    if name in ("tl.zeros", "tl.full") and isinstance(node.args[0], ast.Tuple):
        rows, columns = (ast.unparse(size) for size in node.args[0].elts)
        if rows != "1":
            return "row" if columns == "1" else "matrix"
        return "scalar" if columns == "1" else "column"
    if isinstance(node.func, ast.Attribute) and node.func.attr == "to":
        return _kind(node.func.value, known)
    arguments = node.args[1:] if name == "tl.where" else node.args
    found: Holds = "index"
    for argument in arguments:
        found = _joined(found, _kind(argument, known))
    return found


def _joined(first: Holds, second: Holds) -> Holds:
    """What arithmetic between two kinds gives."""
    if first == second or second == "index":
        return first
    if first == "index":
        return second
    if "scalar" in (first, second):
        return second if first == "scalar" else first
    return "matrix"


def reduction_axis(node: ast.AST) -> int | None:
    """1 for a call that reduces along the row, 0 for one that adds rows up, else ``None``."""
    name = called(node)
    if not isinstance(node, ast.Call) or not name:
        return None
    if name in ("tl.sum", "tl.reduce", "tl.max", "tl.min"):
        axis = keyword(node, "axis") or (node.args[1] if len(node.args) > 1 else None)
        return int(axis.value) if isinstance(axis, ast.Constant) else None  # type: ignore[arg-type]
    if name in ROW_REDUCTIONS or name.startswith("merge_"):
        return 1
    return 0 if name in ("column_sum", "group_sum") else None


def kernels_of(kernels: Source, wrapper: Source) -> list[Function]:
    """The functions of ``kernels.py``, read together with ``op.py``, which launches some."""
    launched = {
        alias.name
        for node in wrapper.tree.body
        if isinstance(node, ast.ImportFrom) and node.module == "kernels"
        for alias in node.names
    }
    single = _single_row_kernels(wrapper) & launched
    return [
        Function(kernels, node, name in launched, name in single)
        for name, node in kernels.functions.items()
    ]


def _single_row_kernels(wrapper: Source) -> set[str]:
    """The kernels whose tiles always hold one row, whatever N and the dtype.

    Either the launch says so, or the plan of every schedule but the resident one does.
    """
    found: set[str] = set()
    plans = [node for node in ast.walk(wrapper.tree) if called(node) == "Plan"]
    longer = {
        ast.literal_eval(plan.args[0])
        for plan in plans
        if isinstance(plan, ast.Call) and ast.unparse(plan.args[1]) == "1"
    }
    for function in wrapper.functions.values():
        for launch in launches(function):
            if ast.unparse(keyword(launch, "ROWS") or ast.Constant(None)) == "1":
                found |= names_in(launch.args[0])
    imported = {n for node in ast.walk(wrapper.tree) for n in _imported(node)}
    for schedule in longer:
        found |= {name for name in imported if f"_{schedule}" in name}
    return found


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom) and node.module == "kernels":
        yield from (alias.name for alias in node.names)


def launches(function: ast.FunctionDef) -> list[ast.Call]:
    """The kernel launches in a function of the wrapper: ``Launch(kernel, grid, device, ...)``."""
    return [
        node
        for node in expressions(function.body)
        if isinstance(node, ast.Call) and called(node) == "Launch"
    ]
