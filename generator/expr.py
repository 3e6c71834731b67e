"""Formula text -> small frozen expression trees. Parsed with ``ast``, never evaluated."""

from __future__ import annotations

import ast
import keyword
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kgen.errors import Problems, Span, quote, suggest


@dataclass(frozen=True, slots=True)
class Number:
    """A literal: ``2`` or ``1.0e-5``."""

    value: int | float
    at: Span


@dataclass(frozen=True, slots=True)
class Name:
    """A name of the spec or a built-in one."""

    text: str
    at: Span


@dataclass(frozen=True, slots=True)
class Apply:
    """A function or operator over its arguments; operators carry the names of ``OPERATORS``."""

    function: str
    arguments: tuple[Expr, ...]
    at: Span


Expr = Number | Name | Apply


@dataclass(frozen=True, slots=True)
class Assignment:
    """One formula line: ``name = value``, with the spec's own words in ``text``."""

    name: str
    value: Expr
    text: str
    at: Span


OPERATORS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "floordiv": "//",
    "mod": "%",
    "pow": "**",
    "neg": "-",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
    "equal": "==",
    "not_equal": "!=",
    "and": "and",
    "or": "or",
    "not": "not",
}

SIGNATURES: dict[str, tuple[str, ...]] = {
    "where": ("condition", "a", "b"),
    "exp": ("value",),
    "log": ("value",),
    "log1p": ("value",),
    "sqrt": ("value",),
    "rsqrt": ("value",),
    "tanh": ("value",),
    "sigmoid": ("value",),
    "silu": ("value",),
    "erf": ("value",),
    "abs": ("value",),
    "sign": ("value",),
    "floor": ("value",),
    "round": ("value",),
    "maximum": ("a", "b"),
    "minimum": ("a", "b"),
    "clamp": ("value", "low", "high"),
    "cast": ("value", "like"),
    "detach": ("value",),
    "random": ("seed",),
    "sum": ("matrix",),
    "mean": ("matrix",),
    "max": ("matrix",),
    "min": ("matrix",),
    "sum_rows": ("matrix",),
}
FUNCTIONS: dict[str, int] = {name: len(takes) for name, takes in SIGNATURES.items()}
REDUCTIONS = frozenset({"sum", "mean", "max", "min", "sum_rows"})
BUILTIN_NAMES = ("N", "column", "row", "inf", "pi")

MAX_BLOCK = 64 * 1024
MAX_FORMULAS = 500
MAX_NESTING = 50
MAX_OPERATORS = 200
MAX_DIGITS = 60


def parse_formulas(text: str, at: Span) -> tuple[Assignment, ...]:
    """The formulas of a block that starts at ``at``; raises every problem at once."""
    problems = Problems()
    formulas, _ = read_formulas(text, at, problems)
    problems.raise_if_any()
    return formulas


def read_formulas(
    text: str, at: Span, problems: Problems
) -> tuple[tuple[Assignment, ...], frozenset[str]]:
    """The formulas that can be read, and the names that those with problems would have assigned."""
    if len(text) > MAX_BLOCK:
        problems.add(f"a block of formulas takes at most {MAX_BLOCK // 1024} KiB", at)
        return (), frozenset()
    block = _Block(text, at, problems)
    formulas: list[Assignment] = []
    broken: set[str] = set()
    for count, tokens in enumerate(block.statements()):
        if count >= MAX_FORMULAS:
            problems.add(f"a block takes at most {MAX_FORMULAS} formulas", block.span(tokens[0]))
            break
        formula = block.formula(tokens)
        if formula is not None:
            formulas.append(formula)
        else:
            broken.add(tokens[0].text)
    return tuple(formulas), frozenset(broken)


def walk(value: Expr) -> Iterator[Expr]:
    """The expression and everything inside it, from left to right."""
    yield value
    if isinstance(value, Apply):
        for argument in value.arguments:
            yield from walk(argument)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    line: int
    column: int


_TOKEN = re.compile(
    r"""
      (?P<number>(?:[0-9]|\.[0-9])(?:[eE][-+][0-9]|[0-9A-Za-z_.])*)
    | (?P<name>[^\W\d]\w*)
    | (?P<string>"[^"]*"?|'[^']*'?)
    | (?P<operator>\*\*=?|//=?|<<=?|>>=?|[-+*/%@&|^<>=!:]=|[-+*/%@&|^~<>=(),\[\]{}.:;!\\?$`])
    | (?P<other>[^ ])
    """,
    re.VERBOSE,
)
_EXPONENT = r"[eE][-+]?[0-9]+"
_DECIMAL = re.compile(
    rf"0|[1-9][0-9]*|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:{_EXPONENT})?|[0-9]+{_EXPONENT}"
)
_WORD_OPERATORS = frozenset({"and", "or", "not", "if", "else"})
_SIGNS = frozenset("+-*/%<>") | {"**", "//", "<=", ">=", "==", "!="}
_GLUE = frozenset("=(),")
_NOT_TAKEN = {
    "^": "'^' is not power: write '**'",
    "&": "'&' is not part of formulas: write 'and'",
    "|": "'|' is not part of formulas: write 'or'",
    "~": "'~' is not part of formulas: write 'not'",
    "@": "'@' is not part of formulas: a row op has no matrix product",
    "!": "'!' is not part of formulas: write 'not' or '!='",
    ".": "attribute access ('.') is not part of formulas: write functions alone, as in exp(x)",
    "[": "subscripts and lists are not part of formulas: to pick a column of each row write"
    " sum(where(column == index, x, 0))",
    "]": None,
    "{": "braces are not part of formulas",
    "}": None,
    ":=": "':=' is not part of formulas: give the value a line of its own",
    ":": "':' is not part of formulas: write 'name = expression'",
    ";": "';' is not part of formulas: write one formula a line",
    "\\": "a formula goes on in the next line only inside parentheses, not after '\\'",
    "True": "'True' is not part of formulas: a condition is a comparison or a bool param",
    "False": "'False' is not part of formulas: a condition is a comparison or a bool param",
    "is": "'is' is not part of formulas: write '=='",
    "lambda": "'lambda' is not part of formulas: give the value a line of its own",
}
_OTHER_NAMES = {
    "pow": "write a ** b",
    "square": "write a ** 2",
    "relu": "write maximum(a, 0)",
    "dropout": "write where(random(seed) < rate, 0, a / (1 - rate))",
    "rand": "write random(seed)",
    "softplus": "write maximum(a, 0) + log1p(exp(-abs(a)))",
    "len": "the number of columns is N",
    "float": "arithmetic is in float already; to round to a dtype write cast(a, float16)",
    "int": "write floor(a) or round(a)",
    "softmax": "write it out with exp, max and sum",
    "amax": "write max(a)",
    "amin": "write min(a)",
    "prod": "write exp(sum(log(a)))",
    "var": "write mean((a - mean(a)) ** 2)",
    "any": "write max(where(a, 1, 0)) > 0",
    "all": "write min(where(a, 1, 0)) > 0",
    "range": "the number of each column is 'column'",
    "arange": "the number of each column is 'column'",
    "stop_gradient": "write detach(a)",
}


class _Block:
    """One block of formulas: its lines, its place in the source, and the problems found."""

    def __init__(self, text: str, at: Span, problems: Problems) -> None:
        self._lines = [line.partition("#")[0] for line in text.split("\n")]
        self._at = at
        self._problems = problems

    def span(self, token: _Token) -> Span:
        """Where a token stands in the source."""
        return self._span(token.line, token.column, len(token.text))

    def statements(self) -> Iterator[list[_Token]]:
        """The tokens of one formula after another; open parentheses carry on to the next line."""
        current: list[_Token] = []
        open_count = 0
        for number, line in enumerate(self._lines):
            tokens = _tokens(line, number)
            if not tokens:
                continue
            if current and (open_count <= 0 or _starts_formula(tokens)):
                yield current
                current, open_count = [], 0
            current.extend(tokens)
            open_count += sum((t.text == "(") - (t.text == ")") for t in tokens)
        if current:
            yield current

    def formula(self, tokens: list[_Token]) -> Assignment | None:
        """The formula made of these tokens, or None after recording what is wrong with it."""
        before = len(self._problems)
        self._check_tokens(tokens)
        if len(self._problems) > before:
            return None
        statement = self._parsed(tokens)
        if statement is None:
            return None
        value = _Converter(self, tokens[0].line).expr(statement.value)
        if len(self._problems) > before:
            return None
        return Assignment(tokens[0].text, value, self._words(tokens), self.span(tokens[0]))

    def add(self, message: str, node: ast.expr, first_line: int) -> None:
        """Record a problem at a node of a statement that starts at ``first_line``."""
        self._problems.add(message, self.node_span(node, first_line))

    def node_span(self, node: ast.expr, first_line: int) -> Span:
        """Where a node stands; one of several lines is underlined to the end of its first."""
        line = first_line + node.lineno - 1
        end = node.end_col_offset or 0
        if node.end_lineno != node.lineno:
            end = len(self._lines[line].rstrip())
        return self._span(line, node.col_offset, max(1, end - node.col_offset))

    def _span(self, line: int, column: int, width: int) -> Span:
        return Span(self._at.source, self._at.line + line, self._at.column + column, width)

    def _check_tokens(self, tokens: list[_Token]) -> None:
        for token in tokens:
            message = _refused(token)
            if message:
                self._problems.add(message, self.span(token))
        first = tokens[0]
        if first.text in _WORD_OPERATORS:
            message = f"a formula cannot start with '{first.text}': write 'name = expression'"
            self._problems.add(message, self.span(first))
        if first.column:
            message = "this line is indented; a formula goes on in the next line only inside"
            self._problems.add(f"{message} parentheses", self.span(first))
        self._check_brackets(tokens)
        operators = [t for t in tokens if t.text in _SIGNS or t.text in _WORD_OPERATORS]
        if len(operators) > MAX_OPERATORS:
            message = f"a formula takes at most {MAX_OPERATORS} operators: split it over several"
            self._problems.add(f"{message} names", self.span(operators[MAX_OPERATORS]))

    def _check_brackets(self, tokens: list[_Token]) -> None:
        opened: list[_Token] = []
        for token in tokens:
            if token.text == "(":
                opened.append(token)
                if len(opened) == MAX_NESTING + 1:
                    message = f"parentheses nest at most {MAX_NESTING} deep"
                    self._problems.add(message, self.span(token))
                    return
            elif token.text == ")":
                if not opened:
                    self._problems.add("this ')' closes nothing", self.span(token))
                    return
                opened.pop()
        if opened:
            self._problems.add("this '(' is never closed", self.span(opened[-1]))

    def _parsed(self, tokens: list[_Token]) -> ast.Assign | None:
        if len(tokens) < 2 or tokens[0].kind != "name" or tokens[1].text != "=":
            self._problems.add(*self._no_assignment(tokens))
            return None
        first, last = tokens[0].line, tokens[-1].line
        text = "\n".join(self._lines[first : last + 1])
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                statements = ast.parse(text).body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            self._problems.add(*self._explained(tokens))
            return None
        statement = statements[0] if len(statements) == 1 else None
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            return statement
        self._problems.add(*self._explained(tokens))
        return None

    def _no_assignment(self, tokens: list[_Token]) -> tuple[str, Span]:
        equals = [token for token in tokens if token.text == "="]
        if not equals:
            message = "a formula assigns a name: write 'name = expression'"
        elif any(token.text == "," for token in tokens[: tokens.index(equals[0])]):
            message = "a formula assigns one name: write one formula for each"
        else:
            message = "the left side of '=' must be one name"
        return message, self.span(tokens[0])

    def _explained(self, tokens: list[_Token]) -> tuple[str, Span]:
        """The first place where two neighbours cannot stand side by side, in words."""
        for left, right in zip(tokens[1:], [*tokens[2:], None], strict=True):
            message = _clash(left, right)
            if message:
                return message, self.span(left if right is None else right)
        for token in tokens[2:]:
            if token.text == "if":
                return "write a choice as 'a if condition else b'", self.span(token)
        return "this is not a formula: write 'name = expression'", self.span(tokens[2])

    def _words(self, tokens: list[_Token]) -> str:
        words = ""
        for number in range(tokens[0].line, tokens[-1].line + 1):
            piece = " ".join(self._lines[number].split())
            tight = not words or words.endswith("(") or piece.startswith(")")
            words += piece if tight or not piece else f" {piece}"
        return words


class _Converter:
    """``ast`` nodes -> ``Expr``; whatever is not on the list is refused."""

    def __init__(self, block: _Block, first_line: int) -> None:
        self._block = block
        self._line = first_line

    def expr(self, node: ast.expr) -> Expr:
        """The expression of a node; a refused one is recorded and stands as a zero."""
        at = self._block.node_span(node, self._line)
        match node:
            case ast.Constant(value=bool()):
                return self._refuse("this is not part of formulas", node)
            case ast.Constant(value=int(value) | float(value)):
                return Number(value, at)
            case ast.Name(id=name):
                return Name(name, at)
            case ast.UnaryOp():
                return self._unary(node, at)
            case ast.BinOp() if type(node.op) in _BINARY:
                pair = (self.expr(node.left), self.expr(node.right))
                return Apply(_BINARY[type(node.op)], pair, at)
            case ast.BoolOp(op=op, values=values):
                return self._chain("and" if isinstance(op, ast.And) else "or", values, at)
            case ast.Compare():
                return self._compare(node, at)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return Apply("where", (self.expr(test), self.expr(body), self.expr(orelse)), at)
            case ast.Call():
                return self._call(node, at)
            case ast.Starred():
                return self._refuse("something is missing before '*'", node)
            case ast.Tuple(elts=[]):
                return self._refuse("something is missing inside '()'", node)
            case ast.Tuple():
                return self._refuse("a formula makes one value: remove the ','", node)
        return self._refuse("this is not part of formulas", node)

    def _refuse(self, message: str, node: ast.expr) -> Number:
        self._block.add(message, node, self._line)
        return Number(0, self._block.node_span(node, self._line))

    def _unary(self, node: ast.UnaryOp, at: Span) -> Expr:
        operand = self.expr(node.operand)
        match node.op:
            case ast.UAdd():
                return operand
            case ast.USub():
                return Apply("neg", (operand,), at)
            case ast.Not():
                return Apply("not", (operand,), at)
        return self._refuse("this operator is not part of formulas", node)

    def _chain(self, function: str, values: Sequence[ast.expr], at: Span) -> Expr:
        result = self.expr(values[0])
        for value in values[1:]:
            result = Apply(function, (result, self.expr(value)), at)
        return result

    def _compare(self, node: ast.Compare, at: Span) -> Expr:
        if len(node.ops) > 1:
            return self._refuse("comparisons do not chain: write (a < b) and (b < c)", node)
        if type(node.ops[0]) not in _COMPARE:
            return self._refuse("this comparison is not part of formulas", node)
        pair = (self.expr(node.left), self.expr(node.comparators[0]))
        return Apply(_COMPARE[type(node.ops[0])], pair, at)

    def _call(self, node: ast.Call, at: Span) -> Expr:
        if not isinstance(node.func, ast.Name):
            return self._refuse("only functions can be called; is a '*' missing?", node.func)
        name = node.func.id
        arguments = self._arguments(node)
        if name not in FUNCTIONS:
            return self._refuse(f"unknown function {quote(name)}{_function_hint(name)}", node.func)
        if arguments is None:
            return Number(0, at)
        if len(arguments) != FUNCTIONS[name]:
            return self._refuse(_arity_message(name, len(arguments)), node)
        if name == "cast" and not isinstance(arguments[1], Name):
            message = "cast(value, like): 'like' is the name of an input or a dtype, as in"
            return self._refuse(f"{message} cast(y, x) or cast(y, float16)", node.args[1])
        return Apply(name, arguments, at)

    def _arguments(self, node: ast.Call) -> tuple[Expr, ...] | None:
        sound = True
        for word in node.keywords:
            message = "arguments go by position: remove the name and the '='"
            self._refuse(message if word.arg else "'**' arguments are not taken", word.value)
            sound = False
        arguments: list[Expr] = []
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                self._refuse("'*' arguments are not taken", argument)
                sound = False
            else:
                arguments.append(self.expr(argument))
        return tuple(arguments) if sound else None


_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.Pow: "pow",
}
_COMPARE: dict[type[ast.cmpop], str] = {
    ast.Lt: "less",
    ast.LtE: "less_equal",
    ast.Gt: "greater",
    ast.GtE: "greater_equal",
    ast.Eq: "equal",
    ast.NotEq: "not_equal",
}


def _tokens(line: str, number: int) -> list[_Token]:
    return [
        _Token(match.lastgroup or "other", match.group(), number, match.start())
        for match in _TOKEN.finditer(line)
    ]


def _starts_formula(tokens: list[_Token]) -> bool:
    return len(tokens) > 1 and tokens[0].kind == "name" and tokens[1].text == "="


def _refused(token: _Token) -> str | None:
    """Why a token cannot stand in any formula, or None."""
    text = token.text
    if token.kind == "number":
        return _refused_number(text)
    if token.kind == "string":
        return "strings are not part of formulas: to name a dtype write it without quotes"
    if text in _NOT_TAKEN:
        return _NOT_TAKEN[text]
    if token.kind == "name":
        if not text.isascii():
            return f"{quote(text)} is not ASCII: names are written with a-z, 0-9 and '_'"
        if keyword.iskeyword(text) and text not in _WORD_OPERATORS:
            return f"'{text}' is not part of formulas"
        return None
    if text in _SIGNS or text in _GLUE:
        return None
    if len(text) > 1 and text.endswith("="):
        return f"'{text}' is not part of formulas: every name is assigned once, with '='"
    if not text.isprintable() or not text.isascii():
        return f"character U+{ord(text):04X} is not part of formulas"
    return f"{quote(text)} is not part of formulas"


def _refused_number(text: str) -> str | None:
    if not _DECIMAL.fullmatch(text):
        return f"{quote(text)} is not a number: write 2, 0.5 or 1e-5"
    if len(text) > MAX_DIGITS:
        return f"this number has more than {MAX_DIGITS} digits"
    if text.isdigit() and int(text) >= 2**63:
        return "this whole number does not fit 64 bits: write it as a float, as in 1e20"
    if not math.isfinite(float(text)):
        return "this number is too large for a float: write inf for infinity"
    return None


def _clash(left: _Token, right: _Token | None) -> str | None:
    """Why ``right`` cannot follow ``left`` in an expression, or None."""
    ends = left.text == ")" or (left.kind != "operator" and left.text not in _WORD_OPERATORS)
    if right is None:
        return None if ends else f"something is missing after '{left.text}'"
    if right.text == "=" and ends:
        return "'=' assigns: to compare write '=='"
    starts = right.text in "(+-" or right.text == "not"
    starts = starts or (right.kind != "operator" and right.text not in _WORD_OPERATORS)
    if not ends:
        empty_call = left.text == "(" and right.text == ")"
        return None if starts or empty_call else f"something is missing before '{right.text}'"
    begins = right.kind != "operator" and right.text not in _WORD_OPERATORS
    if begins or (right.text == "(" and left.kind == "number"):
        return f"an operator is missing between {quote(left.text)} and {quote(right.text)}"
    return None


def _function_hint(name: str) -> str:
    if name in _OTHER_NAMES:
        return f": {_OTHER_NAMES[name]}"
    return suggest(name, FUNCTIONS)


def _arity_message(name: str, count: int) -> str:
    takes = SIGNATURES[name]
    plural = "" if len(takes) == 1 else "s"
    message = f"{name}({', '.join(takes)}) takes {len(takes)} argument{plural}, got {count}"
    if name in ("max", "min") and count == 2:
        message += f"; for the {'larger' if name == 'max' else 'smaller'} of two values write"
        message += f" {name}imum(a, b)"
    return message
