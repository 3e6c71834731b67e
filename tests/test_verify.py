"""`kgen verify`: good specs agree, and for bad ones the error is at the right line, in exact words.

The bad specs are good ones with one text replaced. After a change of messages:
KGEN_UPDATE_GOLDENS=1 pytest tests/test_verify.py, and read the diff of tests/verify/.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import kgen.cli
import pytest
import torch
from click.testing import CliRunner, Result
from kgen.errors import KgenError, Problem, format_problem
from kgen.load import load, load_text
from kgen.lower import lower
from kgen.verify import Report, verify
from kgen.verify.compare import AUTOGRAD, DERIVED, DIFFERENCES, DOUBLE, OWN, REFERENCE, gap
from kgen.verify.samples import samples
from small_op import EXAMPLES, ROOT, shipped

GOOD = sorted([*(ROOT / "specs").glob("*.yaml"), *(ROOT / "tests" / "zoo").glob("*.yaml")])
GOLDENS = ROOT / "tests" / "verify"


def good_text(op: str) -> str:
    path = ROOT / "tests" / "zoo" / f"{op}.yaml"
    path = path if path.exists() else ROOT / "specs" / f"{op}.yaml"
    return path.read_text(encoding="utf-8")


def edited(op: str, *replaced: tuple[str, str]) -> str:
    """The text of a good spec with some of its words replaced."""
    text = good_text(op)
    for old, new in replaced:
        assert text.count(old) == 1, f"'{old}' stands {text.count(old)} times in {op}"
        text = text.replace(old, new)
    return text


def verified(text: str, op: str = "op") -> Report:
    return verify(load_text(text, f"specs/{op}.yaml"))


def shown(problems: list[Problem] | tuple[Problem, ...]) -> str:
    return "".join(f"{format_problem(problem)}\n" for problem in problems)


# --- specs that are right


@pytest.mark.parametrize("text", EXAMPLES, ids=lambda text: text.split()[1])
def test_the_examples_of_the_page_agree(text: str) -> None:
    """Among them one whose backward gives a number where the derived one finds 0."""
    report = verified(text)
    assert report.agrees, report.problems


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_good_specs_agree(path: Path) -> None:
    spec = load(path)
    report = verify(spec)
    assert report.agrees, shown(report.problems)
    assert all(row.agrees and row.worst < 1 for row in report.rows)
    assert not report.remarks, shown(report.remarks)
    sides = {row.against for row in report.rows}
    assert REFERENCE in sides
    if spec.backward != "none":
        assert {AUTOGRAD, OWN, DIFFERENCES} <= sides
        assert spec.backward == "derive" or DERIVED in sides
        assert (DOUBLE in sides) == (lower(spec).double_backward is not None)


def test_it_gives_the_same_numbers_again() -> None:
    first, second = verified(good_text("softmax")), verified(good_text("softmax"))
    assert [(r.quantity, r.worst, r.cases) for r in first.rows] == [
        (r.quantity, r.worst, r.cases) for r in second.rows
    ]


def test_samples_have_every_edge() -> None:
    op = shipped("gated_rmsnorm")
    drawn = samples(op)
    assert {(s.inputs["z"] is None, s.params["before"]) for s in drawn} == {
        (absent, before) for absent in (False, True) for before in (False, True)
    }
    assert {0.5, 2.5, 4.0} <= {s.params["gain"] for s in drawn}
    columns = {s.shape[-1] for s in drawn}
    assert 1 in columns and any(n % 2 for n in columns - {1})
    assert {len(s.shape) for s in drawn} == {1, 2, 3}
    eps = shipped("rmsnorm")
    assert {0.0, 1e-6} <= {s.params["eps"] for s in samples(eps)}
    assert {1e-6, 1e-3} <= {s.scale for s in samples(eps)}  # where such an eps matters


def test_one_output_alone_has_a_gradient_too() -> None:
    drawn = samples(shipped("add_rmsnorm"))
    taking_part = {tuple(n for n, dy in s.upstream.items() if dy is not None) for s in drawn}
    assert taking_part == {("y", "h"), ("y",), ("h",)}


def test_a_missing_max_subtraction_is_no_fault() -> None:
    assert verified(edited("softmax", ("  m = max(x)\n  e = exp(x - m)", "  e = exp(x)"))).agrees


def test_another_way_to_write_it_is_no_fault() -> None:
    dx = "rstd * g - x * rstd ** 3 * mean(g * x)"
    old = "rstd * (g - xhat * mean(g * xhat))"
    assert verified(edited("rmsnorm", (old, dx))).agrees


# --- specs that are wrong


@dataclass(frozen=True)
class Bad:
    """A good spec with words replaced, and the line that must be blamed by a word in it."""

    op: str
    blamed: str
    replaced: tuple[tuple[str, str], ...]


def bad(op: str, blamed: str, *replaced: tuple[str, str]) -> Bad:
    return Bad(op, blamed, replaced)


RMS_DX = "dx = rstd * (g - xhat * mean(g * xhat))"
RMS_DW = "dweight = sum_rows(dy * xhat)"
RMS_REFERENCE = "return F.rms_norm(x, x.shape[-1:], weight, eps)"
MEAN_SQUARE = "rsqrt(mean(x * x) + eps)"

BAD = {
    "sign_in_dx": bad("rmsnorm", "dx = ", ("g - xhat * mean", "g + xhat * mean")),
    "square_for_cube": bad(
        "rmsnorm", "dx = ", (RMS_DX, "dx = rstd * g - x * rstd ** 2 * mean(g * x)")
    ),
    "mean_for_sum": bad("rmsnorm", "dweight = ", (RMS_DW, "dweight = sum_rows(dy * xhat / N)")),
    "weight_counted_twice": bad("rmsnorm", "dweight = ", (RMS_DW, "dweight = sum_rows(g * xhat)")),
    "weight_forgotten": bad("rmsnorm", "g = dy", ("g = dy * weight", "g = dy")),
    "no_mean_of_g": bad("layernorm", "dx = ", ("g - mean(g) - xhat", "g - xhat")),
    "no_second_mean": bad("layernorm", "dx = ", (" - xhat * mean(g * xhat))", ")")),
    "no_row_sum": bad("softmax", "dx = ", ("dx = y * (dy - sum(dy * y))", "dx = y * dy")),
    "mean_for_row_sum": bad("softmax", "dx = ", ("sum(dy * y)", "mean(dy * y)")),
    "no_temperature": bad("log_softmax", "dx = ", (" * sum(dy)) / temperature", " * sum(dy))")),
    "wrong_intermediate": bad("gated_rmsnorm", "s = ", ("s = sigmoid(z)", "s = sigmoid(x)")),
    "sign_in_shared_line": bad("gated_rmsnorm", "du = ", ("du = r * (dn - n", "du = r * (dn + n")),
    "ignored_rows_count": bad(
        "cross_entropy", "g = ", ("g = where(target == ignored, 0, dloss)", "g = dloss")
    ),
    "second_output_forgotten": bad("cross_entropy", "dx = ", ("p * (g + dlse)", "p * g")),
    "two_faults": bad(
        "layernorm",
        "dx = ",
        ("g - mean(g)", "g + mean(g)"),
        ("dbias = sum_rows(dy)", "dbias = sum_rows(g)"),
    ),
    "beyond_repair": bad(
        "rmsnorm", "dx = ", (RMS_DX, "dx = tanh(rstd * (g - xhat * mean(g * exp(xhat))))")
    ),
    "other_eps_in_reference": bad(
        "rmsnorm", "return F", (RMS_REFERENCE, "return F.rms_norm(x, x.shape[-1:], weight, 1e-5)")
    ),
    "no_eps_in_reference": bad("layernorm", "return F", ("weight, bias, eps)", "weight, bias)")),
    "wrong_line_of_reference": bad(
        "gemma_rmsnorm",
        "rstd = torch",
        (
            "y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)",
            "rstd = torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + eps)\n  y = x * rstd",
        ),
    ),
    "reference_in_float32": bad(
        "softmax", "return", ("torch.softmax(x,", "torch.softmax(x.float(),")
    ),
    "constants_in_float32": bad(
        "squared_relu",
        "return",
        ("return torch.relu(x).square()", "return x.square() * torch.where(x > 0, 1.1, 0.1)"),
        ("y = maximum(x, 0) ** 2", "y = x * x * where(x > 0, 1.1, 0.1)"),
        ("2 * maximum(x, 0) * dy", "2 * x * where(x > 0, 1.1, 0.1) * dy"),
    ),
    "formulas_overflow": bad("softmax", "e = ", ("e = exp(x - m)", "e = exp(x - m ** 3)")),
    "reference_detaches": bad(
        "softmax",
        "return",
        ("torch.softmax(x, dim=-1)", "x.exp() / x.exp().sum(-1, True).detach()"),
    ),
    "eps_outside_the_root": bad("rmsnorm", "rstd = ", (MEAN_SQUARE, "rsqrt(mean(x * x)) + eps")),
    "columns_less_one": bad("rmsnorm", "rstd = ", ("mean(x * x)", "sum(x * x) / (N - 1)")),
    "columns_less_one_in_layernorm": bad(
        "layernorm", "rstd = ", ("mean((x - mu) ** 2)", "sum((x - mu) ** 2) / (N - 1)")
    ),
    "no_abs": bad("quant_rmsnorm", "scale = ", ("max(abs(y))", "max(y)")),
    "forward_and_backward": bad(
        "rmsnorm",
        "rstd = ",
        (MEAN_SQUARE, "rsqrt(mean(x * x)) + eps"),
        ("g - xhat *", "g + xhat *"),
    ),
    "detach_stops_a_gradient": bad("rmsnorm", "rstd = ", (MEAN_SQUARE, f"detach({MEAN_SQUARE})")),
}


def test_no_golden_is_left_over() -> None:
    assert {path.stem for path in GOLDENS.glob("*.txt")} == set(BAD)


@pytest.mark.parametrize("name", BAD)
def test_bad_specs_are_blamed_at_the_line(name: str) -> None:
    case = BAD[name]
    report = verified(edited(case.op, *case.replaced), case.op)
    found = shown(report.problems)
    golden = GOLDENS / f"{name}.txt"
    if os.environ.get("KGEN_UPDATE_GOLDENS"):
        golden.write_text(found, encoding="utf-8", newline="\n")
    assert not report.agrees
    at = report.problems[0].at
    assert at is not None
    assert at.source.line(at.line).strip().startswith(case.blamed), found
    assert found == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sign_in_dx", "with g - xhat * mean(g * xhat) in place of g + xhat * mean(g * xhat)"),
        ("square_for_cube", "with rstd ** 3 in place of rstd ** 2 it agrees"),
        ("mean_for_sum", "with dy * xhat in place of dy * xhat / N it agrees"),
        ("no_mean_of_g", "with g - mean(g) in place of g it agrees"),
        ("no_row_sum", "with dy - sum(y * dy) in place of dy it agrees"),
        ("columns_less_one", "with N in place of N - 1 it agrees"),
        (
            "eps_outside_the_root",
            "with rsqrt(mean(x * x) + eps) in place of rsqrt(mean(x * x)) + eps",
        ),
        ("other_eps_in_reference", "it counts with 1e-05 whatever eps is"),
    ],
)
def test_the_goldens_say_what_would_mend_it(name: str, words: str) -> None:
    assert words in (GOLDENS / f"{name}.txt").read_text(encoding="utf-8")


def test_a_true_mean_for_a_sum_is_no_column_gradient() -> None:
    with pytest.raises(KgenError) as caught:
        verified(edited("rmsnorm", (RMS_DW, "dweight = mean(dy * xhat)")), "rmsnorm")
    assert str(caught.value) == (
        "specs/rmsnorm.yaml:22:3: error: 'dweight' is per_row; the gradient of the per_column "
        "input 'weight' is a sum over rows: dweight = sum_rows(...)\n"
        "      dweight = mean(dy * xhat)\n"
        "      ^^^^^^^"
    )


# --- detach


STRAIGHT = """
op: rounded
summary: Whole numbers, through which gradients pass.
source: Bengio, Leonard and Courville 2013, arXiv:1308.3432
inputs: {x: matrix}
outputs: {y: x}
forward: |
  y = x + detach(round(x) - x)
backward: |
  dx = dy
reference: |
  return x + (x.round() - x).detach()
"""


def test_straight_through_rounding_is_worth_a_remark_only() -> None:
    report = verified(STRAIGHT)
    assert report.agrees, shown(report.problems)
    assert shown(report.remarks) == (
        "specs/op.yaml:8:11: error: a gradient flows here and is stopped, in the reference as "
        "well; finite differences see it\n"
        "      y = x + detach(round(x) - x)\n"
        "              ^^^^^^^^^^^^^^^^^^^^\n"
    )
    verdicts = {(r.quantity, r.against): r.verdict for r in report.rows}
    assert verdicts["dx", DIFFERENCES] == "as the reference"
    assert verdicts["dx", AUTOGRAD] == "agrees"


def test_a_detach_that_changes_nothing_is_shown_to() -> None:
    report = verified(edited("softmax", ("m = max(x)", "m = detach(max(x))")))
    assert report.agrees and not report.remarks
    (row,) = [row for row in report.rows if row.quantity == "detach(max(x))"]
    assert row.cases > 5 and row.worst < 1


# --- references that cannot be run


@pytest.mark.parametrize(
    ("op", "replaced", "expected"),
    [
        (
            "rmsnorm",
            (RMS_REFERENCE, "scale = x.nosuch()\n  return x * scale"),
            "specs/rmsnorm.yaml:25:3: error: the reference raises AttributeError: 'Tensor' object "
            "has no attribute 'nosuch' (called with x of shape (4, 7), eps = 1e-06)\n"
            "      scale = x.nosuch()\n"
            "      ^^^^^^^^^^^^^^^^^^",
        ),
        (
            "rmsnorm",
            (RMS_REFERENCE, "return (x if weight is None else weight * x).sum(-1)"),
            "specs/rmsnorm.yaml:25:3: error: the reference returns y of shape (4,), called with x "
            "of shape (4, 7), eps = 1e-06; y is matrix, and takes shape (4, 7)\n"
            "      return (x if weight is None else weight * x).sum(-1)\n"
            "      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
        ),
        (
            "add_rmsnorm",
            (", weight, eps), h", ", weight, eps)"),
            "specs/add_rmsnorm.yaml:30:3: error: the reference returns 1 value; the outputs are "
            "y, h\n"
            "      return F.rms_norm(h, h.shape[-1:], weight, eps)\n"
            "      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
        ),
        (
            "softmax",
            ("return torch.softmax(x, dim=-1)", "return x.tolist()"),
            "specs/softmax.yaml:20:3: error: the reference returns a list for y; "
            "it takes a tensor\n"
            "      return x.tolist()\n"
            "      ^^^^^^^^^^^^^^^^^",
        ),
        (
            "softmax",
            ("return torch.softmax(x, dim=-1)", "raise SystemExit\n  return x"),
            "specs/softmax.yaml:20:3: error: the reference raises SystemExit (called with x of "
            "shape (4, 7))\n"
            "      raise SystemExit\n"
            "      ^^^^^^^^^^^^^^^^",
        ),
    ],
)
def test_references_that_fail(op: str, replaced: tuple[str, str], expected: str) -> None:
    with pytest.raises(KgenError) as caught:
        verified(edited(op, replaced), op)
    assert str(caught.value) == expected


def test_a_reference_that_autograd_refuses() -> None:
    body = "y = torch.exp(x)\n  y.div_(y.sum(-1, True))\n  return y"
    with pytest.raises(KgenError) as caught:
        verified(edited("softmax", ("return torch.softmax(x, dim=-1)", body)), "softmax")
    message, line, _ = str(caught.value).split("\n")
    start = "specs/softmax.yaml:22:3: error: autograd of the reference raises RuntimeError: "
    assert message.startswith(start)
    assert message.endswith("... (called with x of shape (4, 7))")
    assert line == "      return y"


def test_a_reference_takes_any_number_of_dimensions() -> None:
    wrong = edited("rmsnorm", (RMS_REFERENCE, f"m, n = x.shape\n  {RMS_REFERENCE}"))
    with pytest.raises(KgenError) as caught:
        verified(wrong, "rmsnorm")
    assert str(caught.value).startswith(
        "specs/rmsnorm.yaml:25:3: error: the reference raises ValueError: too many values to "
        "unpack (expected 2) (called with x of shape (2, 2, 6), eps = 1e-06); it takes any number "
        "of dimensions, as the op does: the last is the row\n"
    )


def test_a_reference_that_gives_nothing_finite_proves_nothing() -> None:
    report = verified(edited("softmax", ("torch.softmax(x, dim=-1)", "x * torch.nan")), "softmax")
    assert shown(report.problems).startswith(
        "specs/softmax.yaml:20:3: error: the reference never gives a finite y, so there is nothing"
    )


IGNORING = """
op: nll
summary: Cross entropy with rows that are ignored.
source: an example
inputs:
  x: matrix
  target: {kind: per_row, type: int}
params:
  ignored: {type: int, default: -100}
outputs: {loss: compute}
forward: |
  lse = log(sum(exp(x)))
  picked = sum(where(column == target, x, 0))
  loss = where(target == ignored, 0, lse - picked)
backward: derive
reference: |
  rows = torch.arange(target.numel())
  logs = torch.log_softmax(x, -1).reshape(-1, x.shape[-1])
  picked = logs[rows, target.flatten()]
  return torch.where(target == ignored, 0, -picked.reshape(target.shape))
"""


def refused(text: str) -> Report:
    """The report on a spec whose reference is only called with what it refuses once."""
    report = verified(text)
    assert all(row.agrees and row.cases for row in report.rows)
    return report


def test_a_reference_that_raises_for_a_value_that_formulas_compare_is_wrong() -> None:
    report = refused(IGNORING)
    assert not report.remarks
    assert shown(report.problems) == (
        "specs/op.yaml:19:3: error: the reference raises IndexError: index -100 is out of bounds "
        "for dimension 1 with size 7 (called with x of shape (8, 7), ignored = -100, target = -100 "
        "in some places)\n"
        "      picked = logs[rows, target.flatten()]\n"
        "      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
    )
    masked = "torch.where(target == ignored, 0, target).flatten()"
    assert verified(IGNORING.replace("target.flatten()", masked)).agrees


@pytest.mark.parametrize(
    "loss",
    [
        "where(far == 0, 0, lse - picked)",
        "where(not far == 0, lse - picked, 0)",
        "where(ignored < target, lse - picked, where(target < ignored, lse - picked, 0))",
    ],
)
def test_a_comparison_by_way_of_other_values_is_one(loss: str) -> None:
    far = "  far = target - ignored\n" if "far" in loss else ""
    lines = f"{far}  loss = {loss}"
    text = IGNORING.replace("  loss = where(target == ignored, 0, lse - picked)", lines)
    assert len(refused(text).problems) == 1


def test_an_int_param_that_is_never_compared_may_be_refused_and_hides_no_other() -> None:
    """A seed that is no column: what the other param finds is found on either side of it."""
    seed, ignored = "seed: {type: int, default: 1000}", "ignored: {type: int, default: -100}"
    text = IGNORING.replace("exp(x)", "exp(where(random(seed) < 2, x, 0))")
    for params in (f"{seed}\n  {ignored}", f"{ignored}\n  {seed}"):
        report = refused(text.replace(ignored, params))
        (problem,), (remark,) = report.problems, report.remarks
        assert "raises IndexError: index -100 is" in problem.message
        assert "raises IndexError: index 1000 is" in remark.message
        assert "target = 1000 in some places" in remark.message


def test_the_command_says_what_the_reference_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nll.yaml").write_text(IGNORING, encoding="utf-8")
    result = kgen_verify("nll.yaml")
    assert result.exit_code == 1
    assert "nll.yaml:19:3: error: the reference raises IndexError: index -100" in result.output
    assert result.output.endswith("1 spec verified: 1 of them wrong (nll)\n")


# --- the measure itself


@pytest.mark.parametrize(
    ("got", "expected", "allowed"),
    [
        ([1.0, 2.0], [1.0, 2.0 + 1e-10], True),
        ([1.0, 2.0], [1.0, 2.0 + 1e-9], False),
        ([1.0, torch.nan], [1.0, 2.0], False),
        ([1.0, 2.0], [1.0, torch.nan], True),
        ([1.0, 2.0], [1.0, torch.inf], False),
        ([1.0, torch.inf], [1.0, torch.inf], True),
        ([1.0, -torch.inf], [1.0, torch.inf], False),
    ],
)
def test_gap(got: list[float], expected: list[float], allowed: bool) -> None:
    error = gap(torch.tensor(got, dtype=torch.float64), torch.tensor(expected, dtype=torch.float64))
    assert error is not None and (error <= 1) == allowed


def test_nothing_to_compare_is_no_agreement() -> None:
    assert gap(torch.zeros(2), torch.full((2,), torch.nan)) is None


def test_what_a_reference_sets_in_torch_ends_with_it() -> None:
    text = edited("softmax", ("return torch", "torch.set_grad_enabled(False)\n  return torch"))
    with suppress(KgenError):
        verified(text)
    assert torch.is_grad_enabled()
    assert verify(load(ROOT / "specs" / "softmax.yaml")).agrees


@pytest.mark.parametrize("ending", [".to_sparse()", " + 0j"])
def test_a_reference_gives_plain_tensors(ending: str) -> None:
    text = edited("softmax", ("dim=-1)", f"dim=-1){ending}"))
    with pytest.raises(KgenError, match="it takes a plain one of real numbers"):
        verified(text)


# --- the command


def kgen_verify(*arguments: str | Path) -> Result:
    return CliRunner().invoke(kgen.cli.main, ["verify", *map(str, arguments)])


def masked(text: str) -> str:
    """Errors of float64 differ between processors: their column is masked."""
    return re.sub(r"(?m) (?:0|\de-\d\d)(?=  +\d+  agrees)", " E", text)


def test_command_on_a_good_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    result = kgen_verify("specs/softmax.yaml", "--json", tmp_path / "found.json")
    assert result.exit_code == 0
    lines = [re.sub(r" +", " ", line).strip() for line in masked(result.output).splitlines()]
    assert lines == [
        "specs/softmax.yaml: softmax",
        "quantity compared with error / allowed cases verdict",
        "y reference E 10 agrees",
        "dx autograd of the reference E 10 agrees",
        "dx autograd of the formulas E 10 agrees",
        "dx derived backward E 10 agrees",
        "dx finite differences E 2 agrees",
        "reference gradcheck - 1 agrees",
        "",
        "1 spec verified: it agrees",
    ]
    (entry,) = json.loads((tmp_path / "found.json").read_text())["specs"]
    assert entry["agrees"] and entry["op"] == "softmax" and not entry["problems"]
    first = entry["rows"][0]
    assert first.pop("error") < 1
    assert first == {
        "quantity": "y",
        "compared_with": "reference",
        "cases": 10,
        "agrees": True,
        "verdict": "agrees",
    }


def test_command_on_bad_specs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = edited("softmax", ("dy - sum", "dy + sum"))
    Path("softmax.yaml").write_text(wrong, encoding="utf-8")
    result = kgen_verify("softmax.yaml", "--json", "found.json")
    assert result.exit_code == 1
    assert "softmax.yaml:17:13: error: 'dx' is wrong: dx[" in result.output
    assert result.output.endswith("1 spec verified: 1 of them wrong (softmax)\n")
    assert re.search(r"(?m)^  dx +autograd of the reference .* DISAGREES$", result.output)
    (entry,) = json.loads(Path("found.json").read_text())["specs"]
    assert [(p["path"], p["line"], p["column"]) for p in entry["problems"]] == [
        ("softmax.yaml", 17, 13)
    ]
    Path("raises.yaml").write_text(
        edited("rmsnorm", (RMS_REFERENCE, "raise ValueError\n  return x")), encoding="utf-8"
    )
    both = kgen_verify("raises.yaml", "softmax.yaml")
    assert both.exit_code == 2
    assert "raises.yaml:25:3: error: the reference raises ValueError" in both.output
    assert both.output.endswith("2 specs verified: 2 of them wrong (rmsnorm, softmax)\n")


def test_command_needs_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = kgen_verify("specs/softmax.yaml")
    assert result.exit_code == 2
    assert "pip install torch" in result.output
