"""`kgen verify` calculates the cases of a spec: a wrong number is found where it stands."""

from __future__ import annotations

import json
import re
from pathlib import Path

import kgen.cli
import pytest
import torch
from click.testing import CliRunner
from kgen.errors import format_problem
from kgen.load import load, load_text
from kgen.lower import lower
from kgen.philox import random
from kgen.verify import verify
from kgen.verify.cases import check_cases
from kgen.verify.compare import CASES, SPEC, Table
from small_op import ROOT

SPECS = sorted((ROOT / "specs").glob("*.yaml"))

HEAD = """
op: weighted
summary: Rows over their root mean square.
source: an example
inputs:
  x: matrix
  residual: {kind: matrix, absent: 0}
  weight: {kind: per_column, absent: 1}
  shift: {kind: per_row, absent: 0}
params:
  eps: {type: float, default: 1.0e-6, min: 0}
  doubled: {type: bool, default: false}
outputs: {y: x, size: compute}
forward: |
  h = x + residual
  size = mean(h * h) + eps
  a = h * rsqrt(size) * weight + shift
  y = 2 * a if doubled else a
backward: derive
reference: |
  h = x if residual is None else x + residual
  size = h.pow(2).mean(-1, keepdim=True) + eps
  y = h / size.sqrt()
  y = y if weight is None else y * weight
  y = y if shift is None else y + shift[..., None]
  return (2 * y if doubled else y), size[..., 0]
cases:
"""


def edited(op: str, old: str, new: str) -> str:
    text = (ROOT / "specs" / f"{op}.yaml").read_text(encoding="utf-8")
    assert text.count(old) == 1, f"'{old}' stands {text.count(old)} times in {op}"
    return text.replace(old, new)


def found(text: str, op: str = "op") -> tuple[str, Table]:
    """What is said of the cases of a spec, which are all that is looked at."""
    table = Table()
    problems = check_cases(lower(load_text(text, f"specs/{op}.yaml")), table)
    return "".join(f"{format_problem(problem)}\n" for problem in problems), table


def of_weighted(case: str) -> str:
    """What is said of a case of the op above, without its place."""
    said = found(f"{HEAD}  one: {case}\n")[0]
    return re.sub(r"(?m)^specs/op.yaml:\d+:\d+: error: |^    .*\n", "", said)


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_shipped_cases_are_right(path: Path) -> None:
    spec = load(path)
    said, table = found(path.read_text(encoding="utf-8"))
    assert not said
    expecting = [case for case in spec.cases if case.expect]
    rows = [(row.quantity, row.against, row.cases) for row in table.rows.values()]
    assert rows == ([(CASES, SPEC, len(expecting))] if expecting else [])
    assert table.agrees and all(row.worst < 1 for row in table.rows.values())


def test_a_wrong_number_in_exact_words() -> None:
    said, table = found(edited("polynorm", "-0.175412]", "-0.175]"), "polynorm")
    assert said == (
        "specs/polynorm.yaml:55:29: error: case 'two_and_minus_one' expects y[0][1] = -0.175, and "
        "the formulas give -0.175412\n"
        "        expect: {y: [[1.403293, -0.175]]}\n"
        "                                ^^^^^^\n"
    )
    (row,) = table.rows.values()
    assert (row.verdict, row.failed, row.cases) == ("DISAGREES", [0], 2)


@pytest.mark.parametrize(
    ("op", "old", "new", "number", "message"),
    [
        (  # a gradient
            "rmsnorm",
            "[[-0.090510, 0.067882]]",
            "[[-0.090510, -0.067882]]",
            "-0.067882",
            "case 'three_four' expects dx[0][1] = -0.067882, and the formulas give 0.0678823",
        ),
        (  # one for each place of a row: the worst of several
            "head_rmsnorm",
            "[0, -0.848528]]\n\n",
            "[1, -0.849528]]\n\n",
            "1",
            "case 'two_heads' expects dweight[1][0] = 1, and the formulas give 0; 1 more of "
            "dweight is wrong",
        ),
        (  # shared columns
            "groupnorm",
            "[[-3, 1]]",
            "[[-3, 1.001]]",
            "1.001",
            "case 'two_channels' expects dweight[0][1] = 1.001, and the formulas give 1",
        ),
        (  # a scalar
            "scalenorm",
            "dgain: 0.6}",
            "dgain: 0.5}",
            "0.5",
            "case 'three_four' expects dgain = 0.5, and the formulas give 0.6",
        ),
        (  # one number a row, of an op with an int input
            "cross_entropy",
            "loss: [0.693147, 0]",
            "loss: [0.693147, 0.001]",
            "0.001",
            "case 'a_target_and_none' expects loss[1] = 0.001, and the formulas give 0",
        ),
        (  # a bool input
            "masked_softmax",
            "[[0.75, 0, -0.75]",
            "[[0.75, 0, 0.75]",
            "0.75",
            "case 'some_and_none' expects dx[0][2] = 0.75, and the formulas give -0.75",
        ),
        (  # whole numbers: one step off, which the generated test would let pass
            "rmsnorm_int8",
            "[[32, 127]",
            "[[31, 127]",
            "31",
            "case 'one_four' expects q[0][0] = 31, and the formulas give 32",
        ),
        (  # a dtype that holds no number between
            "rmsnorm_fp8",
            "[[112, 448]",
            "[[104, 448]",
            "104",
            "case 'one_four' expects q[0][0] = 104, and the formulas give 112",
        ),
        (  # small beside its neighbour, and wrong in the fourth digit
            "gelu",
            "dx: [[1.083315, -0.083315, 0.5]]",
            "dx: [[1.083315, -0.083325, 0.5]]",
            "-0.083325",
            "case 'exact' expects dx[0][1] = -0.083325, and the formulas give -0.0833155",
        ),
    ],
)
def test_a_wrong_number_is_found_where_it_stands(
    op: str, old: str, new: str, number: str, message: str
) -> None:
    table, text = Table(), edited(op, old, new)
    (problem,) = check_cases(lower(load_text(text, f"specs/{op}.yaml")), table)
    assert problem.message == message
    at = problem.at
    assert at is not None
    line, start = at.source.line(at.line), at.column - 1
    assert line[start : start + at.width] == number
    changed = next(i for i, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1])
    place = text.index(new) + changed
    before = sum(len(each) + 1 for each in text.split("\n")[: at.line - 1])
    assert before + start <= place < before + start + at.width


@pytest.mark.parametrize(
    ("case", "said"),
    [
        # mean(h * h) is 50, and so is eps; the gradient of it is h
        (
            "{x: [[6, 8]], eps: 50, dy: [[0, 0]], dsize: [1], "
            "expect: {y: [[0.6, 0.8]], size: [100], dx: [[6, 8]]}}",
            "",
        ),
        ("{x: [[6, 8]], eps: 50, doubled: true, expect: {y: [[1.2, 1.6]]}}", ""),
        (
            "{x: [[6, 8]], eps: 50, doubled: true, shift: [1], expect: {y: [[3.2, 3.5]]}}",
            "case 'one' expects y[0][1] = 3.5, and the formulas give 3.6\n",
        ),
        (
            "{x: [[4, 8]], residual: [[2, 0]], weight: [1, 2], eps: 50, dy: [[1, 1]], dsize: [0], "
            "expect: {y: [[0.6, 1.6]], dweight: [0.6, 0.9]}}",
            "case 'one' expects dweight[1] = 0.9, and the formulas give 0.8\n",
        ),
        (
            "{x: [[6, 8]], dy: [[1, 1]], dsize: [0], expect: {dweight: [1, 1], size: [51]}}",
            "case 'one' expects dweight and gives no weight: give it, or expect no dweight\n"
            "case 'one' expects size[0] = 51, and the formulas give 50\n",
        ),
        (
            "{x: [[6, 8]], expect: {y: [1]}}",
            "case 'one' expects y of shape (1,), and the formulas give (1, 2)\n",
        ),
        (
            "{x: [[6, 8]], dy: [1], dsize: [0], expect: {y: [[1, 1]], dx: [[0, 0]]}}",
            "case 'one' gives dy of shape (1,); it takes (1, 2)\n",
        ),
        # rounded to fewer digits, as long as the generated test would take it
        ("{x: [[1, 2]], eps: 0, expect: {y: [[0.6325, 1.2649]]}}", ""),
        (
            "{x: [[1, 2]], eps: 0, expect: {y: [[0.632, 1.2649]]}}",
            "case 'one' expects y[0][0] = 0.632, and the formulas give 0.632456\n",
        ),
        ("{x: [[1, 2]]}", ""),
    ],
)
def test_absent_inputs_params_and_shapes(case: str, said: str) -> None:
    assert of_weighted(case) == said


def test_columns_that_cannot_be_shared() -> None:
    text = edited("groupnorm", "weight: [[2, 1]]", "weight: [[2, 1, 3]]")
    said, table = found(text.replace("bias: [[0, 0.5]]", ""), "groupnorm")
    assert "case 'two_channels' gives weight 3 columns, which do not divide the 4 of x\n" in said
    assert not table.agrees
    report = verify(load_text(text.replace("bias: [[0, 0.5]]", ""), "specs/groupnorm.yaml"))
    assert [problem.message for problem in report.problems] == [
        "case 'two_channels' gives weight 3 columns, which do not divide the 4 of x"
    ]


RANDOM = """
op: dropout
summary: Zeroes entries at random.
source: an example
inputs: {x: matrix}
params: {seed: {type: int, default: 0}}
outputs: {y: x}
forward: y = where(random(seed) < 0.5, x, 0)
backward: derive
reference: return torch.where(random(seed, x) < 0.5, x, 0.0)
cases:
  eight: {x: [[1, 1, 1, 1, 1, 1, 1, 1]], seed: 3, expect: {y: [[%s]]}}
"""


def test_random_numbers_are_those_of_the_seed() -> None:
    drawn = random(3, torch.ones(1, 8)) < 0.5
    assert drawn.any() and not drawn.all()
    numbers = [int(each) for each in drawn.flatten()]
    assert found(RANDOM % ", ".join(map(str, numbers)))[0] == ""
    numbers[5] = 1 - numbers[5]
    said = found(RANDOM % ", ".join(map(str, numbers)))[0]
    assert f"expects y[0][5] = {numbers[5]}, and the formulas give {1 - numbers[5]}\n" in said


def test_a_wrong_formula_and_a_wrong_case_are_both_said() -> None:
    text = edited("rmsnorm", "g - xhat * mean", "g + xhat * mean")
    text = text.replace("y: [[1.697056, 0.565685]]", "y: [[1.697056, 0.665685]]")
    report = verify(load_text(text, "specs/rmsnorm.yaml"))
    first, *cases = [problem.message for problem in report.problems]
    assert first.startswith("'dx' is wrong: ")
    assert cases == [
        "case 'three_four' expects dx[0][1] = 0.067882, and the formulas give 1.06349; 1 more of "
        "dx is wrong",
        "case 'three_four_weighted' expects y[0][1] = 0.665685, and the formulas give 0.565685",
    ]


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = edited("l2norm", "y: [[0.6, 0.8]]", "y: [[0.6, 0.7]]")
    Path("l2norm.yaml").write_text(text, encoding="utf-8")
    result = CliRunner().invoke(kgen.cli.main, ["verify", "l2norm.yaml", "--json", "found.json"])
    assert result.exit_code == 1
    assert re.search(r"(?m)^  cases +the spec +\de\+\d\d +2  DISAGREES$", result.output)
    assert (
        "l2norm.yaml:30:24: error: case 'three_four' expects y[0][1] = 0.7, and the formulas "
        in (result.output)
    )
    (entry,) = json.loads(Path("found.json").read_text(encoding="utf-8"))["specs"]
    row = entry["rows"][-1]
    assert row.pop("error") > 1
    assert row == {
        "quantity": "cases",
        "compared_with": "the spec",
        "cases": 2,
        "agrees": False,
        "verdict": "DISAGREES",
    }
    assert [(each["line"], each["column"]) for each in entry["problems"]] == [(30, 24)]


CASES_OF_ROWS = """
op: picked
summary: The entry of each row that is its place.
source: an example
inputs:
  x: matrix
  place: {kind: per_row, type: int}
outputs: {y: compute}
forward: |
  y = sum(where(column == place, x, 0))
backward: |
  dx = where(column == place, dy, 0)
reference: |
  rows = x.reshape(-1, x.shape[-1])
  y = rows[torch.arange(place.numel()), place.flatten()]
  return y.reshape(place.shape)
cases:
  inside:
    x: [[1, 2, 3], [4, 5, 6]]
    place: [0, 2]
    dy: [1, 1]
  outside:
    x: [[1, 2, 3], [4, 5, 6]]
    place: [1, 7]EXPECT
"""


@pytest.mark.parametrize("expect", ["", "\n    expect: {y: [2, 0]}"])
def test_a_case_that_the_reference_refuses(expect: str) -> None:
    report = verify(load_text(CASES_OF_ROWS.replace("EXPECT", expect), "specs/picked.yaml"))
    assert [format_problem(problem) for problem in report.problems] == [
        "specs/picked.yaml:15:3: error: case 'outside': the reference raises IndexError: index 7 "
        "is out of bounds for dimension 1 with size 3 (called with x of shape (2, 3), place = "
        "[1, 7])\n"
        "      y = rows[torch.arange(place.numel()), place.flatten()]\n"
        "      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^"
    ]


def test_a_case_for_which_only_the_reference_gives_another_number() -> None:
    """The reference counts from the end here: random places are not negative."""
    text = CASES_OF_ROWS.replace("[1, 7]EXPECT", "[1, -1]\n    dy: [1, 2]")
    report = verify(load_text(text, "specs/picked.yaml"))
    assert all(row.agrees for row in report.rows)
    assert [problem.message for problem in report.problems] == [
        "case 'outside' disagrees: y[1] is 0 where the reference gives 6 (x of shape (2, 3), "
        "place = [1, -1])",
        "case 'outside' disagrees: dx[1, 2] is 0 where autograd of the reference gives 2 (x of "
        "shape (2, 3), place = [1, -1])",
    ]
