"""Formulas as LaTeX: symbols, parentheses, and text that any TeX can read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kgen.errors import Source, Span
from kgen.expr import FUNCTIONS, OPERATORS, Apply, Expr, Name, Number, parse_formulas, walk
from kgen.latex import Block, Latex, document
from kgen.load import load
from kgen.spec import Spec, differentiable_inputs, differentiable_outputs, gradient_name
from small_op import ROOT

ALL_SPECS = sorted([*(ROOT / "specs").glob("*.yaml"), *(ROOT / "tests" / "zoo").glob("*.yaml")])
HERE = Span(Source("formulas", ""), 1, 1)
GRADIENTS = frozenset({"dx", "dy", "ddx", "d2x", "dweight"})


def latex(formula: str) -> str:
    (assignment,) = parse_formulas(f"y = {formula}", HERE)
    return Latex(GRADIENTS).text(assignment.value)


@pytest.mark.parametrize(
    ("formula", "shown"),
    [
        ("a + b - c", "a + b - c"),
        ("a - (b - c)", r"a - \left(b - c\right)"),
        ("a - (b + c)", r"a - \left(b + c\right)"),
        ("a + (-b)", r"a + \left(-b\right)"),
        ("-(a + b)", r"-\left(a + b\right)"),
        ("-a * b", r"\left(-a\right) \, b"),
        ("a * b * c", r"a \, b \, c"),
        ("a * (b * c)", r"a \, b \, c"),
        ("(a + b) * c", r"\left(a + b\right) \, c"),
        ("a * 2", r"a \cdot 2"),
        ("2 * a", r"2 \, a"),
        ("a / b / c", r"\frac{\frac{a}{b}}{c}"),
        ("(a + b) / (c - d)", r"\frac{a + b}{c - d}"),
        ("(a / b) ** 2", r"\left(\frac{a}{b}\right)^{2}"),
        ("a ** b ** c", r"a^{b^{c}}"),
        ("(a ** b) ** c", r"\left(a^{b}\right)^{c}"),
        ("(a - b) ** 2", r"\left(a - b\right)^{2}"),
        ("-a ** 2", r"-a^{2}"),
        ("(-a) ** 2", r"\left(-a\right)^{2}"),
        ("a ** 0.5", r"\sqrt{a}"),
        ("a ** -0.5", r"\frac{1}{\sqrt{a}}"),
        ("a ** -1", r"a^{-1}"),
        ("exp(a - b)", r"\mathrm{e}^{a - b}"),
        ("exp(a) ** 2", r"\left(\mathrm{e}^{a}\right)^{2}"),
        ("rsqrt(mean(a * a) + eps)", r"\frac{1}{\sqrt{\frac{1}{N} \sum_j a \, a + \varepsilon}}"),
        ("sum(a + b)", r"\sum_j \left(a + b\right)"),
        ("sum(a * b)", r"\sum_j a \, b"),
        ("sum(-a)", r"\sum_j \left(-a\right)"),
        ("sum(a) * b", r"\left(\sum_j a\right) \, b"),
        ("a * sum(b) * c", r"\left(a \, \sum_j b\right) \, c"),
        ("a * sum(b)", r"a \, \sum_j b"),
        ("sum(a) + b", r"\sum_j a + b"),
        ("sum(a) ** 2", r"\left(\sum_j a\right)^{2}"),
        ("sum(a * mean(b))", r"\sum_j a \, \frac{1}{N} \sum_j b"),
        ("sum_rows(dy * a)", r"\sum_i \mathrm{d} y \, a"),
        ("max(a)", r"\max_j a"),
        ("max(a * b)", r"\max_j\left(a \, b\right)"),
        ("max(a) * b", r"\left(\max_j a\right) \, b"),
        ("maximum(a, 0)", r"\max\left(a, 0\right)"),
        ("abs(a - b)", r"\left|a - b\right|"),
        ("log(a) + log1p(b - c)", r"\log\left(a\right) + \log\left(1 + \left(b - c\right)\right)"),
        ("floor(a)", r"\left\lfloor a \right\rfloor"),
        ("a // b", r"\left\lfloor \frac{a}{b} \right\rfloor"),
        ("a % b + c", r"\left(a \bmod b\right) + c"),
        ("(a + b) % c", r"\left(a + b\right) \bmod c"),
        ("cast(a, float16)", r"\mathrm{cast}_{\mathrm{float16}}\left(a\right)"),
        ("tanh(a) * sigmoid(b)", r"\tanh\left(a\right) \, \mathrm{sigmoid}\left(b\right)"),
        (
            "where(a > 0 and not b, a, -inf)",
            r"\begin{cases} a & \text{if } a > 0 \wedge \neg b \\ -\infty & \text{otherwise}"
            r" \end{cases}",
        ),
        (
            "where(a, 1, 0) * b",
            r"\left(\begin{cases} 1 & \text{if } a \\ 0 & \text{otherwise} \end{cases}\right)"
            r" \, b",
        ),
        ("(a < b) == (c >= d)", r"\left(a < b\right) = \left(c \geq d\right)"),
        ("(a or b) and c", r"\left(a \vee b\right) \wedge c"),
        ("1e-05 * a", r"10^{-5} \, a"),
        ("a * 2.5e-07", r"a \cdot 2.5 \cdot 10^{-7}"),
        ("2.0 * pi", r"2 \, \pi"),
        ("dy ** 2", r"\left(\mathrm{d} y\right)^{2}"),
    ],
)
def test_formulas(formula: str, shown: str) -> None:
    assert latex(formula) == shown


@pytest.mark.parametrize(
    ("name", "symbol"),
    [
        ("mu", r"\mu"),
        ("eps", r"\varepsilon"),
        ("x", "x"),
        ("x1", "x_{1}"),
        ("x_1", r"\mathrm{x\_1}"),
        ("xhat", r"\hat{x}"),
        ("x_hat", r"\mathrm{x\_hat}"),
        ("rstd", r"\mathrm{rstd}"),
        ("row_scale", r"\mathrm{row\_scale}"),
        ("j", r"\mathrm{j}"),
        ("column", "j"),
        ("row", "i"),
        ("N", "N"),
        ("inf", r"\infty"),
        ("dy", r"\mathrm{d} y"),
        ("dweight", r"\mathrm{d} \mathrm{weight}"),
        ("ddx", r"\mathrm{d} \mathrm{d} x"),
        ("d2x", r"\mathrm{d}^2 x"),
        ("dz", r"\mathrm{dz}"),
        ("distance", r"\mathrm{distance}"),
    ],
)
def test_names(name: str, symbol: str) -> None:
    assert Latex(GRADIENTS).name(name) == symbol


def balanced(text: str) -> bool:
    """Whether braces, \\left and \\right, and environments close in the order they open."""
    opened: list[str] = []
    marks = r"\\begin\{\w+\*?\}|\\end\{\w+\*?\}|\\left\b|\\right\b|\\[{}\\,_]|[{}]"
    for mark in re.findall(marks, text):
        if mark == "{" or mark == r"\left" or mark.startswith(r"\begin"):
            opened.append(mark)
            continue
        closes = {"}": "{", r"\right": r"\left"}.get(mark)
        if mark.startswith(r"\end"):
            closes = mark.replace("end", "begin")
        if closes is not None and (not opened or opened.pop() != closes):
            return False
    return not opened


def gradients_of(spec: Spec) -> list[str]:
    entries = (*differentiable_inputs(spec), *differentiable_outputs(spec))
    return [gradient_name(entry.name) for entry in entries]


def names_of(expr: Expr) -> set[str]:
    return {part.text for part in walk(expr) if isinstance(part, Name)}


@pytest.mark.parametrize("path", ALL_SPECS, ids=lambda path: path.stem)
def test_every_spec(path: Path) -> None:
    spec = load(path)
    backward = spec.backward if isinstance(spec.backward, tuple) else ()
    gradients = gradients_of(spec)
    blocks = [Block("forward", spec.forward), *([Block("backward", backward)] if backward else [])]
    text = document(blocks, gradients)
    assert balanced(text)
    assert text.isascii()
    writer = Latex(frozenset(gradients))
    lines = text.splitlines()
    for formula in (*spec.forward, *backward):
        start = f"  {writer.name(formula.name)} &= "
        (line,) = [found for found in lines if found.startswith(start)]
        for name in names_of(formula.value):
            assert writer.name(name) in line, f"{name} is missing in {line}"
    symbols = [writer.name(f.name) for f in (*spec.forward, *backward)]
    assert len(set(symbols)) == len(symbols), "two names share a symbol"


NAMES = st.sampled_from(["a", "b", "mu", "xhat", "dx", "row_scale", "N", "column", "inf"])
LEAVES = st.one_of(
    st.builds(Name, NAMES, st.just(HERE)),
    st.builds(
        Number,
        st.one_of(st.integers(-5, 2**40), st.floats(-9, 1e300, allow_nan=False)),
        st.just(HERE),
    ),
)
TAKES = {**{name: 1 if name in ("neg", "not") else 2 for name in OPERATORS}, **FUNCTIONS}


def applications(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    def of(function: str) -> st.SearchStrategy[Expr]:
        return st.builds(
            Apply, st.just(function), st.tuples(*[inner] * TAKES[function]), st.just(HERE)
        )

    return st.sampled_from(sorted(TAKES)).flatmap(of)


@settings(max_examples=200, deadline=None)
@given(st.recursive(LEAVES, applications, max_leaves=15))
def test_any_formula_is_balanced(expr: Expr) -> None:
    writer = Latex(GRADIENTS)
    text = writer.text(expr)
    assert balanced(text), text
    assert not re.search(r"\^\{[^{}]*\}\^", text), "a double superscript"
    for name in names_of(expr):
        assert writer.name(name) in text


def test_a_document() -> None:
    mu, y = parse_formulas("mu = mean(x)\ny = (x - mu) * weight", HERE)
    (dweight,) = parse_formulas("dweight = sum_rows(dy * (x - mu))", HERE)
    text = document([Block("forward", (mu, y)), Block("backward", (dweight,))], ["dy", "dweight"])
    assert text == r"""% forward
\begin{align*}
  \mu &= \frac{1}{N} \sum_j x \\
  y &= \left(x - \mu\right) \, \mathrm{weight}
\end{align*}
% backward
\begin{align*}
  \mathrm{d} \mathrm{weight} &= \sum_i \mathrm{d} y \, \left(x - \mu\right)
\end{align*}"""
