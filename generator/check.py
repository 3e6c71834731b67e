"""The words of a spec against each other: names in formulas, and the reference's own names."""

from __future__ import annotations

import ast
import builtins
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kgen.errors import Problems, Span, quote, suggest
from kgen.expr import BUILTIN_NAMES, FUNCTIONS, Apply, Assignment, Expr, Name
from kgen.spec import COMPUTE, OUTPUT_DTYPES, gradient_name, name_problem, second_gradient_name

MAX_REFERENCE = 64 * 1024
MAX_REFERENCE_DEPTH = 60


@dataclass(frozen=True, slots=True)
class Block:
    """A block of formulas, and the names that its unreadable lines would have assigned."""

    formulas: tuple[Assignment, ...]
    broken: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Names:
    """What a spec declares, by name and place. ``sure`` is false when part of it is unreadable.

    ``is_double`` tells that there is a double backward, whose names are taken then.
    """

    inputs: Mapping[str, Span]
    params: Mapping[str, Span]
    outputs: Mapping[str, Span]
    wanted: Sequence[str] = ()
    upstream: Sequence[str] = ()
    sure: bool = True
    is_double: bool = False

    def declared(self) -> dict[str, str]:
        """Every declared name and what it is."""
        return {
            **dict.fromkeys(self.inputs, "an input"),
            **dict.fromkeys(self.params, "a param"),
        }

    def gradients(self) -> dict[str, str]:
        """Every name that means a gradient, and the name it is the gradient of."""
        return {gradient_name(name): name for name in (*self.inputs, *self.outputs)}

    def second_order(self) -> dict[str, str]:
        """Every name that a double backward gives a meaning, and which."""
        if not self.is_double:
            return {}
        firsts = [gradient_name(name) for name in (*self.wanted, *self.upstream)]
        return {
            **{gradient_name(name): f"the gradient of '{name}'" for name in firsts},
            **{
                second_gradient_name(name): f"the second-order gradient of '{name}'"
                for name in self.wanted
            },
        }

    def second_order_refusals(self) -> dict[str, str]:
        """Why no formula can assign the names of a double backward."""
        return {
            name: f"it is {meaning}, since 'double_backward' is true"
            for name, meaning in self.second_order().items()
        }


def check_formulas(
    names: Names, forward: Block, backward: Block | None, backward_at: Span, problems: Problems
) -> None:
    """Every name known, assigned once and before its use, and used; every result assigned."""
    before = len(problems)
    first = _Walk(names, problems, names.declared())
    first.refused = names.second_order_refusals() | {
        gradient: f"it is the gradient of '{of}'" for gradient, of in names.gradients().items()
    }
    first.block(forward)
    for name, at in names.outputs.items():
        if name not in first.assigned and not forward.broken and names.sure:
            problems.add(f"output '{name}' is never assigned in forward", at)
    used = first.used
    if backward is not None:
        used = _check_backward(names, first, backward, backward_at, problems)
    sound = names.sure and len(problems) == before and not forward.broken
    if sound and not (backward and backward.broken):
        _check_unused(names, first, used, problems)


def _check_backward(
    names: Names, first: _Walk, backward: Block, at: Span, problems: Problems
) -> set[str]:
    known = {**names.declared(), **first.known}
    known |= dict.fromkeys(first.assigned, "a forward name")
    known |= dict.fromkeys(names.outputs, "an output")
    known |= {gradient_name(name): "given" for name in names.upstream}
    second = _Walk(names, problems, known, in_backward=True)
    results = {gradient_name(name) for name in names.wanted}
    second.refused = names.second_order_refusals() | {
        gradient: _why_not(of, names)
        for gradient, of in names.gradients().items()
        if gradient not in results
    }
    second.results = results
    second.block(backward)
    if names.sure and not backward.broken:
        for name in names.wanted:
            gradient = gradient_name(name)
            if gradient not in second.assigned:
                message = f"backward does not assign '{gradient}', the gradient of input '{name}':"
                problems.add(f"{message} assign it, or mark the input 'grad: false'", at)
    return first.used | second.used


def _why_not(name: str, names: Names) -> str:
    if name in names.upstream:
        return f"it is the gradient of output '{name}', and given"
    if name in names.outputs:
        return f"output '{name}' is not a float and has no gradient"
    return f"input '{name}' takes no gradient"


def _check_unused(names: Names, first: _Walk, used: set[str], problems: Problems) -> None:
    for name, at in first.assigned.items():
        if name not in used and name not in names.outputs:
            problems.add(f"'{name}' is never used: delete the line", at)
    for what, declared in (("input", names.inputs), ("param", names.params)):
        for name, at in declared.items():
            if name not in used:
                problems.add(f"{what} '{name}' is never used: use it, or delete it", at)


@dataclass(slots=True)
class _Walk:
    """One pass over a block: what is known so far, what was assigned, what was read."""

    names: Names
    problems: Problems
    known: dict[str, str]
    in_backward: bool = False
    assigned: dict[str, Span] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    refused: Mapping[str, str] = field(default_factory=dict)
    results: set[str] = field(default_factory=set)
    later: dict[str, Span] = field(default_factory=dict)

    def block(self, block: Block) -> None:
        """Check every formula in order."""
        self.known |= dict.fromkeys(block.broken, "a name")
        self.later = {formula.name: formula.at for formula in reversed(block.formulas)}
        for formula in block.formulas:
            self._reads(formula.value)
            self._assigns(formula)
        if self.in_backward and self.names.sure and not block.broken:
            self._unused()

    def _assigns(self, formula: Assignment) -> None:
        name, at = formula.name, formula.at
        message = self._refusal(name)
        if message is None:
            self.assigned[name] = at
            return
        self.problems.add(f"cannot assign {quote(name)}: {message}", at)
        self.known.setdefault(name, "a name")

    def _refusal(self, name: str) -> str | None:
        if name in self.assigned:
            return f"it is assigned in line {self.assigned[name].line} already"
        if name in self.refused:
            return self.refused[name]
        if name in self.known and name not in self.results:
            return f"it is {self.known[name]}"
        if name in self.names.outputs or name in self.results:
            return None
        return name_problem(name)

    def _reads(self, value: Expr) -> None:
        if isinstance(value, Name):
            self._read(value)
        elif isinstance(value, Apply):
            if value.function == "sum_rows" and not self.in_backward:
                message = "sum_rows belongs in backward: it makes the gradient of a per_column"
                self.problems.add(f"{message} input", value.at)
            is_cast = value.function == "cast"
            for argument in value.arguments[:1] if is_cast else value.arguments:
                self._reads(argument)
            if is_cast:
                self._read_like(value.arguments[1])

    def _read_like(self, like: Expr) -> None:
        assert isinstance(like, Name), "the parser takes only a name here"
        if like.text in self.names.inputs:
            self.used.add(like.text)
        elif like.text not in OUTPUT_DTYPES and self.names.sure:
            hint = suggest(like.text, (*self.names.inputs, *OUTPUT_DTYPES))
            if like.text == COMPUTE:
                hint = ": arithmetic is in that dtype already, leave the cast out"
            message = f"cast to {quote(like.text)}, which is neither an input nor a dtype{hint}"
            self.problems.add(message, like.at)

    def _read(self, name: Name) -> None:
        text = name.text
        self.used.add(text)
        if text in self.known or text in self.assigned or text in BUILTIN_NAMES:
            return
        if text in self.later:
            message = f"'{text}' is used before it is assigned in line {self.later[text].line}"
            self.problems.add(message, name.at)
        elif text in FUNCTIONS:
            self.problems.add(f"'{text}' is a function: write {text}(...)", name.at)
        elif self.names.sure:
            self.problems.add(self._unknown(text), name.at)

    def _unknown(self, text: str) -> str:
        if text in self.names.outputs:
            return f"output '{text}' is used before it is assigned"
        of = self.names.gradients().get(text)
        if of is not None and not self.in_backward:
            return f"'{text}' is a gradient: it is known in backward only"
        if of is not None:
            return f"unknown name '{text}': {_why_not(of, self.names)}"
        known = (*self.known, *self.assigned, *BUILTIN_NAMES)
        return f"unknown name {quote(text)}{suggest(text, known)}"

    def _unused(self) -> None:
        for name, at in self.assigned.items():
            if name not in self.used and name not in self.results:
                self.problems.add(f"'{name}' is never used: delete the line", at)


def check_reference(text: str, at: Span, known: Sequence[str] | None, problems: Problems) -> None:
    """The reference is a function body that Python can compile; it is never run here."""
    if len(text) > MAX_REFERENCE:
        problems.add(f"a reference takes at most {MAX_REFERENCE // 1024} KiB", at)
        return
    if not text.strip():
        problems.add("the reference is empty: write at least 'return ...'", at)
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = _parsed(text)
            _check_shape(module, at, problems)
            compile(module, "<reference>", "exec", dont_inherit=True)
    except SyntaxError as error:
        place = _reference_span(at, (error.lineno or 2) - 2, (error.offset or 1) - 1)
        problems.add("the reference is not valid Python from here on", place)
    except (ValueError, RecursionError, MemoryError):
        problems.add("the reference is not the body of a Python function", at)
    else:
        if known is not None:
            _check_reference_names(module, at, known, problems)


def reference_names(text: str) -> set[str]:
    """Every name in a reference that ``check_reference`` finds nothing wrong with."""
    return {node.id for node in ast.walk(_parsed(text)) if isinstance(node, ast.Name)}


def _parsed(text: str) -> ast.Module:
    body = "".join(f"  {line}\n" for line in text.split("\n"))
    return ast.parse(f"def f():\n{body}")


def _check_shape(module: ast.Module, at: Span, problems: Problems) -> None:
    message = None
    if len(module.body) != 1 or not isinstance(module.body[0], ast.FunctionDef):
        message = "the reference is one function body: indent nothing less than its first line"
    elif _depth(module) > MAX_REFERENCE_DEPTH:
        message = "the reference nests too deeply: split it over several lines"
    elif any(isinstance(node, _GENERATORS) for node in ast.walk(module)):
        message = "the reference is a plain function: yield and await are not taken"
    elif any(isinstance(node, (ast.Global, ast.Nonlocal)) for node in ast.walk(module)):
        message = "the reference is a plain function: global and nonlocal are not taken"
    elif not any(isinstance(node, ast.Return) for node in ast.walk(module)):
        message = "the reference returns nothing: end it with 'return ...'"
    if message:
        problems.add(message, at)


_GENERATORS = (ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith)
_REFERENCE_MODULES = ("torch", "F")


def _depth(module: ast.AST) -> int:
    depth, level = 0, [module]
    while level:
        depth += 1
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    return depth


def _check_reference_names(
    module: ast.Module, at: Span, known: Sequence[str], problems: Problems
) -> None:
    bound = {*known, *_REFERENCE_MODULES, *dir(builtins), *_bound(module)}
    for node in ast.walk(module):
        if isinstance(node, ast.Name) and node.id not in bound:
            place = _reference_span(at, node.lineno - 2, node.col_offset, len(node.id))
            hint = suggest(node.id, [*known, *_REFERENCE_MODULES])
            if node.id == "random":
                hint = ": it is there for ops whose forward uses random(seed)"
            problems.add(f"unknown name {quote(node.id)} in the reference{hint}", place)


def _bound(module: ast.Module) -> Iterator[str]:
    """Every name that any part of the body binds; scopes do not matter for a typo."""
    for node in ast.walk(module):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.alias(name=name, asname=asname):
                yield asname or name.partition(".")[0]
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                yield name
            case ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                yield name


def _reference_span(at: Span, line: int, column: int, width: int = 1) -> Span:
    """A place of the indented body in the source; never left of or above its start."""
    number = max(0, line)
    return Span(at.source, at.line + number, at.column + max(0, column - 2), width)
