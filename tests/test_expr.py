"""Formulas: the trees they become, the places they point to, and what is refused."""

from __future__ import annotations

import ast
import random

import pytest
from kgen.errors import KgenError, Source, Span
from kgen.expr import (
    FUNCTIONS,
    OPERATORS,
    SIGNATURES,
    Apply,
    Assignment,
    Expr,
    Name,
    Number,
    parse_formulas,
    walk,
)


def parse(text: str, indent: int = 2) -> tuple[Assignment, ...]:
    """Parse a block as it stands in a spec: below one line, indented."""
    lines = "\n".join(" " * indent + line for line in text.split("\n"))
    return parse_formulas(text, Span(Source("specs/x.yaml", f"forward: |\n{lines}"), 2, indent + 1))


def shown(value: Expr) -> str:
    match value:
        case Number(value=number):
            return repr(number)
        case Name(text=text):
            return text
        case Apply(function=function, arguments=arguments):
            return f"{function}({', '.join(map(shown, arguments))})"


def refusal(text: str) -> str:
    with pytest.raises(KgenError) as caught:
        parse(text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a + b - c", "sub(add(a, b), c)"),
        ("a * b / c // d % e", "mod(floordiv(div(mul(a, b), c), d), e)"),
        ("-a ** 2", "neg(pow(a, 2))"),
        ("a ** -b ** c", "pow(a, neg(pow(b, c)))"),
        ("+a", "a"),
        ("a < b", "less(a, b)"),
        ("a <= b", "less_equal(a, b)"),
        ("a > b", "greater(a, b)"),
        ("a >= b", "greater_equal(a, b)"),
        ("a == b", "equal(a, b)"),
        ("a != b", "not_equal(a, b)"),
        ("a and b and c or not d", "or(and(and(a, b), c), not(d))"),
        ("a if c else b", "where(c, a, b)"),
        ("where(c, a, b)", "where(c, a, b)"),
        ("a if c else b if d else e", "where(c, a, where(d, b, e))"),
        ("clamp(x, -1, 1.5)", "clamp(x, neg(1), 1.5)"),
        ("cast(x, float16)", "cast(x, float16)"),
        ("sum_rows(dy * x)", "sum_rows(mul(dy, x))"),
        ("exp(x,)", "exp(x)"),
        ("1e-5 + .5 + 5. + 0 + 1E3", "add(add(add(add(1e-05, 0.5), 5.0), 0), 1000.0)"),
        ("9223372036854775807", "9223372036854775807"),
        ("inf + pi + N", "add(add(inf, pi), N)"),
    ],
)
def test_trees(text: str, tree: str) -> None:
    (formula,) = parse(f"y = {text}")
    assert shown(formula.value) == tree


def test_every_operator_is_reachable() -> None:
    text = "y = (-a + b - c) * d / e // f % g ** h\nz = not (a < b) and a <= b or a > b\n"
    text += "u = (a >= b) and (a == b) and (a != b)"
    found = {
        node.function
        for line in parse(text)
        for node in walk(line.value)
        if isinstance(node, Apply)
    }
    assert found == set(OPERATORS)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function(name: str) -> None:
    names = [f"v{number}" for number in range(FUNCTIONS[name])]
    (formula,) = parse(f"y = {name}({', '.join(names)})")
    assert shown(formula.value) == f"{name}({', '.join(names)})"
    message = refusal(f"y = {name}({', '.join([*names, 'extra'])})")
    assert f"{name}({', '.join(SIGNATURES[name])}) takes {FUNCTIONS[name]} argument" in message
    assert f"got {FUNCTIONS[name] + 1}" in message


def test_words_and_places() -> None:
    first, second = parse(
        "# a comment\n\nmu  =  mean(x)   # the mean\ny = (x\n   - mu  # é\n)\n", 4
    )
    assert first.text == "mu = mean(x)"
    assert second.text == "y = (x - mu)"
    assert (first.at.line, first.at.column, first.at.width) == (4, 5, 2)
    assert isinstance(first.value, Apply) and first.value.at.column == 12
    assert first.value.at.width == len("mean(x)")
    assert isinstance(second.value, Apply)
    mu = second.value.arguments[1]
    assert (mu.at.line, mu.at.column, mu.at.width) == (6, 10, 2)


def test_every_node_points_at_its_text() -> None:
    text = "y = where(abs(x) > eps, -x ** 2, cast(mean(x * x), x)) if flag else 1.5e-3"
    (formula,) = parse(text)
    for node in walk(formula.value):
        line = node.at.source.line(node.at.line)
        words = line[node.at.column - 1 : node.at.column - 1 + node.at.width]
        if isinstance(node, Name):
            assert words == node.text
        elif isinstance(node, Number):
            assert float(words) == node.value
        else:
            ast.parse(words, mode="eval")


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("y = expp(x)", "2:7", "unknown function 'expp'; did you mean 'exp'?"),
        ("y = x.T", "2:8", "attribute access"),
        ("y = x[0]", "2:8", "subscripts"),
        ("y = {x}", "2:7", "braces"),
        ("y = lambda: x", "2:7", "'lambda' is not part of formulas"),
        ("y = 'x'", "2:7", "strings are not part"),
        ("y = a < b < c", "2:7", "write (a < b) and (b < c)"),
        ("y = clamp(x, low=1, high=2)", "2:20", "arguments go by position"),
        ("y = exp(*x)", "2:11", "'*' arguments"),
        ("y = exp(**x)", "2:13", "'**' arguments"),
        ("y += x", "2:5", "'+=' is not part"),
        ("y, z = x", "2:3", "one formula for each"),
        ("y = z = x", "2:9", "to compare write '=='"),
        ("y: z = x", "2:4", "':' is not part"),
        ("y = exp(x)(x)", "2:7", "only functions can be called"),
        ("y = (z := x)", "2:10", "':=' is not part"),
        ("y = 1j", "2:7", "'1j' is not a number"),
        ("y = 0b1", "2:7", "'0b1' is not a number"),
        ("y = 1_000", "2:7", "'1_000' is not a number"),
        ("y = 007", "2:7", "'007' is not a number"),
        ("y = 1e999", "2:7", "too large for a float"),
        ("y = 9223372036854775808", "2:7", "does not fit 64 bits"),
        ("y = é", "2:7", "is not ASCII"),
        ("y = x \xd7 2", "2:9", "character U+00D7"),
        ("y = \x00", "2:7", "character U+0000"),
        ("y = x is None", "2:9", "'is' is not part"),
        ("if = x", "2:3", "cannot start with 'if'"),
        ("class = x", "2:3", "'class' is not part"),
        ("y = x ^ 2", "2:9", "write '**'"),
        ("x * 2", "2:3", "write 'name = expression'"),
        ("y = x y", "2:9", "an operator is missing between 'x' and 'y'"),
        ("y = x (y)", "2:7", "unknown function 'x'"),
        ("y = 2 (y)", "2:7", "is a '*' missing?"),
        ("y = x *", "2:9", "something is missing after '*'"),
        ("y =", "2:5", "something is missing after '='"),
        ("y = ()", "2:7", "something is missing inside '()'"),
        ("y = exp(x", "2:10", "never closed"),
        ("y = x)", "2:8", "closes nothing"),
        ("y = x if a", "2:9", "a if condition else b"),
        ("y = x;", "2:8", "one formula a line"),
        ("y = x\n  + 1", "3:5", "this line is indented"),
        ("y = cast(x, 16)", "2:15", "the name of an input or a dtype"),
        ("y = max(a, b)", "2:7", "write maximum(a, b)"),
        ("y = True", "2:7", "'True' is not part"),
    ],
)
def test_refusals(text: str, place: str, message: str) -> None:
    found = refusal(text)
    assert found.startswith(f"specs/x.yaml:{place}: error: ")
    assert message in found.splitlines()[0]


def test_all_problems_at_once() -> None:
    found = refusal("a = expp(x)\nb = (x\nc = x y\nd = 1e999 + sqr(x)\ne = clamp(x) + x[1]")
    assert [line.split(":")[1] for line in found.splitlines() if "error:" in line] == list("23456")


@pytest.mark.parametrize(
    "text",
    [
        "y = " + "(" * 100_000 + "x" + ")" * 100_000,
        "y = " + "(" * 60 + "x" + ")" * 60,
        "y = " + "-" * 10_000 + "x",
        "y = x" + " + x" * 10_000,
        "y = " + "x if x else " * 5_000 + "x",
        "y = x" + " ** x" * 5_000,
        "y = " + "9" * 10_000,
        "y = x\n" * 10_000,
    ],
)
def test_limits(text: str) -> None:
    assert "at most" in refusal(text) or "more than" in refusal(text)


def test_the_longest_formulas_are_read() -> None:
    parse("y = " + "exp(" * 50 + "x" + ")" * 50)
    parse("y = x" + " + x" * 200)
    parse("y = " + "-" * 200 + "x")
    parse("y = " + "not " * 200 + "x")
    parse("y = " + "x if x else " * 100 + "x")


def test_parsed_like_python() -> None:
    """Random expressions group exactly as Python groups them."""
    chance = random.Random(7)
    signs = {
        "+": "add",
        "-": "sub",
        "*": "mul",
        "/": "div",
        "//": "floordiv",
        "%": "mod",
        "**": "pow",
    }
    for _ in range(300):
        text = "a"
        for _ in range(chance.randrange(1, 7)):
            text = chance.choice((f"({text})", f"-{text}", text))
            text += f" {chance.choice(list(signs))} {chance.choice('bcd')}"
        (formula,) = parse(f"y = {text}")
        assert shown(formula.value) == _python(ast.parse(text, mode="eval").body)


def _python(node: ast.expr) -> str:
    names = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div"}
    names |= {ast.FloorDiv: "floordiv", ast.Mod: "mod", ast.Pow: "pow"}
    match node:
        case ast.BinOp(left=left, op=op, right=right):
            return f"{names[type(op)]}({_python(left)}, {_python(right)})"
        case ast.UnaryOp(operand=operand):
            return f"neg({_python(operand)})"
        case ast.Name(id=name):
            return name
    raise AssertionError(node)
