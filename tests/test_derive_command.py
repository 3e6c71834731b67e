"""`kgen derive`: a block that can be pasted into the spec, counts beside it, and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from kgen.cli import main
from kgen.cost import backward_cost
from kgen.ir import Program, Term
from kgen.load import load, load_text
from kgen.lower import lower
from small_op import ROOT

ALL_SPECS = sorted([*(ROOT / "specs").glob("*.yaml"), *(ROOT / "tests" / "zoo").glob("*.yaml")])
WITH_GRADIENTS = [path for path in ALL_SPECS if load(path).backward != "none"]
SMALL = """\
op: small
summary: A small op.
source: a test
inputs:
  {inputs}
outputs: {{y: {dtype}}}
forward: |
  y = {formula}
backward: {backward}
reference: |
  return x
"""


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def kgen(*args: str) -> Result:
    """Run a command in this process."""
    result = CliRunner().invoke(main, args)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def derived(path: Path | str, *options: str) -> str:
    result = kgen("derive", str(path), *options)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def block(text: str) -> str:
    """The lines of ``backward``, as they would be copied."""
    lines = text.splitlines()
    start = lines.index("backward: |")
    end = next((i for i, line in enumerate(lines) if i > start and line[:1] == "#"), len(lines))
    return "\n".join(lines[start:end]) + "\n"


def meaning(program: Program | None) -> list[tuple[str, Term]]:
    """The definitions without their texts; terms compare without positions."""
    assert program is not None
    return [(d.name, d.term) for d in program.definitions]


@pytest.mark.parametrize("path", WITH_GRADIENTS, ids=lambda path: path.stem)
def test_the_block_can_be_pasted(path: Path) -> None:
    printed = block(derived(path))
    text = path.read_text(encoding="utf-8")
    pasted, count = re.subn(
        r"^backward:.*\n(?:[ \t]+.*\n|\n(?=[ \t]))*",
        lambda _: printed,
        text,
        count=1,
        flags=re.MULTILINE,
    )
    assert count == 1 and printed in pasted
    by_hand = lower(replace(load_text(pasted, str(path)), double_backward=False))
    by_kgen = lower(replace(load(path), backward="derive", double_backward=False))
    assert meaning(by_hand.backward) == meaning(by_kgen.backward)
    assert by_hand.saved == by_kgen.saved
    assert backward_cost(by_hand) == backward_cost(by_kgen)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What the command says of a small op: its output, or its error where ``code`` is not 0."""

    def run(
        inputs: str = "x: matrix",
        dtype: str = "x",
        formula: str = "x * mean(x)",
        backward: str = "derive",
        code: int = 0,
    ) -> str:
        text = SMALL.format(inputs=inputs, dtype=dtype, formula=formula, backward=backward)
        monkeypatch.chdir(tmp_path)
        Path("small.yaml").write_text(text, encoding="utf-8")
        result = kgen("derive", "small.yaml")
        assert result.exit_code == code, result.stderr
        return result.stderr if code else result.stdout

    return run


def test_a_long_sum_is_broken_at_its_terms(small: Callable[..., str]) -> None:
    formula = "x * sum(x * x) * sum(x) * sum(x ** 3) * sum(exp(x)) * sum(tanh(x))"
    lines = block(small(formula=formula)).splitlines()
    assert "  dx = (" in lines and "  )" in lines
    broken = lines[lines.index("  dx = (") + 1 : lines.index("  )")]
    assert len(broken) > 1
    assert all(line.startswith(("    + ", "    - ")) for line in broken[1:])


def test_softmax() -> None:
    assert derived("specs/softmax.yaml") == (
        "# What kgen derives from the forward of specs/softmax.yaml.\n"
        "#                         by hand  derived\n"
        "# passes over a long row  2        2\n"
        "# reductions              1        1\n"
        "# operations an element   3        3\n"
        "# operations a row        0        0\n"
        "# matrices read           2        2\n"
        "# row values saved        0        0\n"
        "backward: |\n"
        "  dx = y * (dy - sum(dy * y))\n"
    )


def test_nothing_to_compare_with(small: Callable[..., str]) -> None:
    assert small(formula="x * 2") == (
        "# What kgen derives from the forward of small.yaml.\n" "backward: |\n" "  dx = 2 * dy\n"
    )


def test_the_double_backward_comes_as_comments() -> None:
    text = derived("specs/softmax.yaml", "--double")
    assert text.startswith(derived("specs/softmax.yaml"))
    rest = text.removeprefix(derived("specs/softmax.yaml")).splitlines()
    assert rest[0] == "# The double backward, which `double_backward: true` asks for:"
    assert all(line.startswith("#   ") for line in rest[1:])
    assert {"ddy", "d2x"} <= {line[4:].partition(" = ")[0] for line in rest[1:]}


def test_latex() -> None:
    assert derived("specs/softmax.yaml", "--latex") == r"""% forward
\begin{align*}
  m &= \max_j x \\
  e &= \mathrm{e}^{x - m} \\
  y &= \frac{e}{\sum_j e}
\end{align*}
% backward
\begin{align*}
  \mathrm{d} x &= y \, \left(\mathrm{d} y - \sum_j \mathrm{d} y \, y\right)
\end{align*}
"""


def test_latex_of_the_double_backward() -> None:
    text = derived("specs/softmax.yaml", "--latex", "--double")
    assert text.startswith(derived("specs/softmax.yaml", "--latex"))
    assert "% double backward\n" in text
    assert r"  \mathrm{d} \mathrm{d} y &= " in text
    assert r"  \mathrm{d}^2 x &= " in text


@pytest.mark.parametrize("path", WITH_GRADIENTS, ids=lambda path: path.stem)
def test_latex_of_every_spec(path: Path) -> None:
    text = derived(path, "--latex")
    assert text.count(r"\begin{align*}") == text.count(r"\end{align*}") == 2
    assert text.count(r"\left") == text.count(r"\right")
    assert text.count("{") == text.count("}")
    assert "_{j}" not in text and max(map(len, text.splitlines())) < 1000


def test_an_op_without_gradients(small: Callable[..., str]) -> None:
    assert small(backward="none", code=2) == (
        "small.yaml:9:1: error: small has no gradients, since it says 'backward: none'; "
        "write 'backward: derive' to have them derived\n"
        "    backward: none\n"
        "    ^^^^^^^^\n"
    )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"inputs": "x: {kind: matrix, grad: false}"},
            "small.yaml:9:1: error: no input takes a gradient: write backward: none",
        ),
        (
            {"dtype": "int8", "formula": "round(x)"},
            "small.yaml:9:1: error: no output is a float, so nothing has a gradient: "
            "write backward: none",
        ),
        (
            {"inputs": "x: matrix\n  w: per_column", "formula": "x + 0 * floor(w)"},
            "small.yaml:6:3: error: no gradient reaches 'w'",
        ),
        ({"formula": "x + z"}, "small.yaml:8:11: error: unknown name 'z'"),
    ],
)
def test_what_has_no_gradient_is_an_error_with_a_place(
    small: Callable[..., str], spec: dict[str, str], message: str
) -> None:
    assert small(**spec, code=2).startswith(message)


def test_a_spec_that_is_not_there() -> None:
    result = kgen("derive", "softmax")
    assert result.exit_code == 2
    assert "did you mean 'specs/softmax.yaml'?" in result.stderr
