"""Generated text with its syntax tree, and edits of single nodes that leave the rest as it is."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

_ATOMS = (ast.Name, ast.Call, ast.Constant, ast.Attribute, ast.Subscript, ast.Tuple)


@dataclass(frozen=True)
class Source:
    """One generated file, by its name in the op's folder: ``kernels.py``."""

    name: str
    text: str
    tree: ast.Module = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tree", ast.parse(self.text))

    @cached_property
    def _bytes(self) -> bytes:
        return self.text.encode()

    @cached_property
    def _line_starts(self) -> list[int]:
        lines = self._bytes.split(b"\n")
        return [0, *accumulate(len(line) + 1 for line in lines)]

    @cached_property
    def functions(self) -> dict[str, ast.FunctionDef]:
        """Every function and method by its name, with the class before it: ``_Once.backward``."""
        found: dict[str, ast.FunctionDef] = {}
        for node in self.tree.body:
            if isinstance(node, ast.FunctionDef):
                found[node.name] = node
            elif isinstance(node, ast.ClassDef):
                methods = (n for n in node.body if isinstance(n, ast.FunctionDef))
                found.update({f"{node.name}.{method.name}": method for method in methods})
        return found

    def span(self, node: ast.AST) -> tuple[int, int]:
        """The first byte of a node and the one after its last."""
        place: tuple[int, int, int, int] = (
            node.lineno,  # type: ignore[attr-defined]
            node.col_offset,  # type: ignore[attr-defined]
            node.end_lineno,  # type: ignore[attr-defined]
            node.end_col_offset,  # type: ignore[attr-defined]
        )
        line, column, end_line, end_column = place
        return self._line_starts[line - 1] + column, self._line_starts[end_line - 1] + end_column

    def piece(self, node: ast.AST) -> str:
        """The text of a node."""
        start, end = self.span(node)
        return self._bytes[start:end].decode()

    def atom(self, node: ast.AST) -> str:
        """The text of an expression, in parentheses where it could not stand as an operand."""
        text = self.piece(node)
        return text if isinstance(node, _ATOMS) else f"({text})"

    def edited(self, edits: Iterable[Edit], within: ast.AST | None = None) -> str:
        """The text of a node, or of the file, with the edits made."""
        first, last = self.span(within) if within is not None else (0, len(self._bytes))
        parts: list[bytes] = []
        for edit in sorted(edits, key=lambda edit: edit.start):
            if not first <= edit.start <= edit.end <= last:
                continue
            parts += [self._bytes[first : edit.start], edit.text.encode()]
            first = edit.end
        return b"".join([*parts, self._bytes[first:last]]).decode()

    def replacing(self, node: ast.AST, text: str) -> Edit:
        """The edit that puts a text in the place of a node."""
        return Edit(*self.span(node), text)

    def function_at(self, line: int) -> str:
        """The name of the function that a line belongs to, or an empty one."""
        for name, node in self.functions.items():
            if node.lineno <= line <= (node.end_lineno or node.lineno):
                return name
        return ""


@dataclass(frozen=True, slots=True)
class Edit:
    """A text for the bytes from ``start`` to ``end``."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Site:
    """One place where a kind of fault applies. ``shown`` is the node that a report quotes."""

    source: Source
    shown: ast.AST
    edits: tuple[Edit, ...]


def site(source: Source, node: ast.AST, text: str, shown: ast.AST | None = None) -> Site:
    """The site at which ``text`` takes the place of ``node``."""
    return Site(source, shown or node, (source.replacing(node, text),))


def swapped(source: Source, first: ast.AST, second: ast.AST, shown: ast.AST) -> Site:
    """The site at which two nodes change places."""
    edits = (
        source.replacing(first, source.piece(second)),
        source.replacing(second, source.piece(first)),
    )
    return Site(source, shown, edits)


def statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Every statement of a body in the order of the text, those inside blocks too."""
    for node in body:
        yield node
        for block in ("body", "orelse", "finalbody"):
            yield from statements(getattr(node, block, ()))


def own_expressions(node: ast.stmt) -> Iterator[ast.expr]:
    """The expressions of a statement, without those of the statements inside it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield child
        elif isinstance(child, ast.withitem):
            yield child.context_expr


def expressions(body: Iterable[ast.stmt]) -> Iterator[ast.expr]:
    """Every expression and part of one in a body, in the order of the text."""
    for statement in statements(body):
        for expression in own_expressions(statement):
            yield from _parts(expression)


def _parts(node: ast.expr) -> Iterator[ast.expr]:
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.keyword):
            yield from _parts(child.value)
        elif isinstance(child, ast.comprehension):
            yield from _parts(child.iter)
        elif isinstance(child, ast.expr):
            yield from _parts(child)


def names_in(node: ast.AST) -> set[str]:
    """The names that occur in a node."""
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def called(node: ast.AST) -> str:
    """``tl.load`` for a call of that function; an empty text for anything else."""
    if not isinstance(node, ast.Call):
        return ""
    return ast.unparse(node.func) if isinstance(node.func, ast.Name | ast.Attribute) else ""


def method(node: ast.AST) -> str:
    """``to`` for the call of a method of that name; an empty text for anything else."""
    is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    return node.func.attr if is_method else ""  # type: ignore[attr-defined]


def receiver(node: ast.Call) -> ast.expr:
    """The value whose method is called."""
    assert isinstance(node.func, ast.Attribute)
    return node.func.value


def keyword(node: ast.Call, name: str) -> ast.expr | None:
    """The value of a keyword argument of a call."""
    return next((entry.value for entry in node.keywords if entry.arg == name), None)
