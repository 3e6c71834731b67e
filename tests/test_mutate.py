"""`kgen mutate`: where faults are looked for, and that the generated tests see them."""

from __future__ import annotations

import ast
import functools
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from kgen import build
from kgen.cli import main
from kgen.load import load, load_text
from kgen.mutate.catalogue import OpText, all_kinds
from kgen.mutate.lanes import spoils
from kgen.mutate.mutants import Mutant, mutants_of, spread
from kgen.mutate.order import arranged, first_tests
from kgen.mutate.report import Proof, as_markdown, page_cells, shortened
from kgen.mutate.session import Verdict, session
from kgen.mutate.source import keyword

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = ("layernorm", "rmsnorm", "softmax")
DEAD = ("killed", "crashed", "timed out")

# What the shipped ops have not got: a cast, numbers in products.
LLAMA = """
op: llama
summary: RMSNorm that rounds before the weight, times 2.
source: a test
inputs: {x: matrix, weight: per_column}
params: {eps: {default: 1.0e-6, min: 0}}
outputs: {y: {dtype: x}}
forward: |
  rstd = rsqrt(mean(x * x) + eps)
  y = 2 * cast(x * rstd, x) * weight
backward: none
reference: |
  return 2 * (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)).to(x.dtype) * weight
"""

# Sums beside a maximum that a guard stands behind, and beside one that is taken as it is.
MASKED = """
op: masked
summary: The sums of what a mask shows.
source: a test
inputs: {x: matrix, shown: {kind: matrix, type: bool}}
outputs: {y: float32, z: float32}
forward: |
  top = max(x)
  m = where(top == -inf, 0, top)
  y = sum(where(shown, exp(x - m), 0))
  z = sum(where(shown, exp(x - top), 0))
backward: none
reference: |
  top = x.amax(-1, keepdim=True)
  m = torch.where(top == -torch.inf, 0, top)
  return tuple(torch.where(shown, torch.exp(x - c), 0).sum(-1).float() for c in (m, top))
"""
TEXTS = {"llama": LLAMA, "masked": MASKED}


@functools.cache
def op_text(name: str) -> OpText:
    """The generated text of a spec of the zoo, a shipped one, or one of those above."""
    if name in TEXTS:
        spec = load_text(TEXTS[name], f"specs/{name}.yaml")
    else:
        places = (ROOT / "tests/zoo", ROOT / "specs")
        spec = load(next(p for folder in places if (p := folder / f"{name}.yaml").exists()))
    files = build.render_op(spec)
    return OpText(spec.op, {path.rpartition("/")[2]: text for path, text in files.items()})


@functools.cache
def mutants(name: str) -> list[Mutant]:
    return mutants_of(op_text(name), all_kinds())


def changes(name: str, kind: str, function: str = "") -> list[str]:
    """The changes of one kind in one op, or in one function of it."""
    return [
        m.change
        for m in mutants(name)
        if m.kind.name == kind and m.function.endswith(function or m.function)
    ]


# --- the finders ---


@pytest.mark.parametrize(
    ("name", "absent"),
    [
        (
            "rmsnorm",
            "sum-is-mean factor-changed cast-missing online-not-rescaled first-chunk-guard "
            "guard-dropped random-elsewhere",
        ),
        (
            "layernorm",
            "sum-is-mean factor-changed cast-missing online-not-rescaled first-chunk-guard "
            "random-elsewhere",
        ),
        (
            "softmax",
            "mean-by-block mean-is-sum eps-dropped eps-moved weight-twice rows-mean "
            "cast-missing absence-ignored presence-ignored groups-overlap "
            "last-partial-left-out partials-misplaced wrong-axis groups-short no-group "
            "scratch-unbounded "
            "value-rounded guard-dropped frozen-computed wrong-need "
            "tensor-overlooked empty-uninitialised dtype-of-other random-elsewhere",
        ),
    ],
)
def test_every_kind_is_found_wherever_it_can_be(name, absent):
    assert len(mutants(name)) >= 60
    found = {mutant.kind.name for mutant in mutants(name)}
    assert {kind.name for kind in all_kinds()} - found == set(absent.split())


def test_the_kinds_that_no_shipped_op_has_are_found_elsewhere():
    assert changes("llama", "cast-missing", "resident") == [
        "(x * rstd).to(x_ptr.dtype.element_ty).to(COMPUTE) -> (x * rstd).to(COMPUTE)"
    ]
    drawn = changes("dropout_rmsnorm", "random-elsewhere", "forward_resident")
    assert [change.split(" -> ")[1] for change in drawn] == [
        "random_tile(0, row, 0, n_columns, BLOCK)",
        "random_tile(seed, row * 0, 0, n_columns, BLOCK)",
    ]
    drawn = changes("dropout_rmsnorm", "random-elsewhere", "split_columns")
    assert drawn[-1].endswith(" -> random_tile(seed, row, 0, n_columns, BLOCK)")
    assert [
        change.split(" -> ")[1]
        for change in changes("dropout_rmsnorm", "random-elsewhere", "random_tile")
    ] == ["tl.randint4x(seed, place - four, n_rounds=7)"]
    assert any(
        "2 * " in change and " 4 * " in change for change in changes("llama", "factor-changed")
    )


def test_rescaled_sums_have_the_faults_of_merges():
    assert changes("masked", "online-not-rescaled") == [
        "total * exp(before - shift) -> total",
        "total * exp(before - maximum) -> total",
    ]
    assert changes("masked", "first-chunk-guard") == [
        'tl.where(before == float("-inf"), 0.0, total * exp(before - maximum)) -> '
        "(total * exp(before - maximum))"
    ]
    # What z starts from is dropped with the first number.
    starts = changes("masked", "accumulator-start", "streaming")
    assert [change.partition(" = ")[0] for change in starts] == ["top", "y"]
    assert 'float("nan")' in starts[1]


@pytest.mark.parametrize(
    "name", [*SHIPPED, "add_rmsnorm", "cross_entropy", "dropout_rmsnorm", "quant_rmsnorm"]
)
def test_a_mutant_is_one_change_of_text_that_still_parses(name):
    op = op_text(name)
    texts = [mutant.text for mutant in mutants(name)]
    assert len(set(texts)) == len(texts)
    for mutant in spread(mutants(name), 40):
        ast.parse(mutant.text)
        assert mutant.text != op.files[mutant.file] and mutant.before != mutant.after
        line = op.files[mutant.file].splitlines()[mutant.line - 1]
        assert mutant.before.split()[0].split("(")[0] in line
        assert mutant.function


def test_the_classic_faults():
    assert changes("rmsnorm", "mean-by-block", "forward_resident") == [
        "row_mean(x * x, n_columns) -> row_mean(x * x, BLOCK)"
    ]
    assert changes("rmsnorm", "eps-moved", "forward_streaming") == [
        "tl.rsqrt(mean_x_squared + eps) -> (1.0 / (tl.sqrt(mean_x_squared) + eps))"
    ]
    assert "rstd * (g - xhat * mean_g_xhat) -> (g - xhat * mean_g_xhat)" in changes(
        "rmsnorm", "power-changed", "split_columns"
    )
    assert changes("softmax", "online-not-rescaled") == ["total * exp(maximum - shift) -> total"]
    assert changes("softmax", "first-chunk-guard") == [
        'tl.where(merged == float("-inf"), 0.0, merged) -> merged'
    ]
    assert changes("layernorm", "gradient-misplaced") == [
        "return dx, dweight, dbias, None, None -> return dweight, dx, dbias, None, None",
        "return dx, dweight, dbias, None, None -> return dx, dbias, dweight, None, None",
        "return dx, dweight, dbias, None, None -> return dx, dweight, None, dbias, None",
    ]
    assert changes("rmsnorm", "frozen-computed") == [
        "needs[0] -> x is not None",
        "needs[1] -> weight is not None",
    ]


def test_no_fault_is_looked_for_where_it_changes_nothing():
    # Padding lanes of x are 0, and so is their product with any finite weight.
    found = changes("rmsnorm", "wrong-neutral", "backward_resident")
    assert not any("weight_ptr" in change and "other=1.0" in change for change in found)
    # A program of these kernels has one row, which is there.
    assert not changes("rmsnorm", "rows-unmasked", "forward_streaming")
    assert not any("rstd_ptr" in c for c in changes("rmsnorm", "store-unmasked", "streaming"))
    assert any("rstd_ptr" in c for c in changes("rmsnorm", "store-unmasked", "resident"))
    # Beside float32 values a float16 one is widened anyway.
    assert not any("weight_ptr" in change for change in changes("rmsnorm", "no-upcast"))
    # What is left: x whose mean is taken, and dy where tiles of several rows add it up.
    assert len(changes("layernorm", "no-upcast")) == 3
    # A softmax whose only input needs no gradient has no backward.
    assert not changes("softmax", "frozen-computed")


def test_lanes_know_what_a_reduction_takes():
    (row_max_kernel,) = (
        f for f in op_text("softmax").functions if f.name == "softmax_forward_resident"
    )
    (load_of_x,) = row_max_kernel.calls_of("tl.load")
    other = keyword(load_of_x, "other")
    assert not spoils(row_max_kernel)
    assert not spoils(row_max_kernel, {id(other): float("-inf")})
    assert spoils(row_max_kernel, {id(other): 0.0})
    (centred,) = (
        f for f in op_text("layernorm").functions if f.name == "layernorm_forward_resident"
    )
    (where,) = centred.calls_of("tl.where")
    assert spoils(centred, unguarded=frozenset([id(where)]))


def test_tests_are_run_in_a_fixed_order_and_all_of_them():
    tests = [f"test_a[{n}]" for n in range(9)] + ["test_b", "test_c[float32-x]"]
    order = arranged(tests, ["test_c.*float32", "nothing"])
    assert sorted(order) == list(range(11)) and order == arranged(tests, ["test_c.*float32"])
    assert order[0] == 10 and order.index(9) == 2
    for suffix, path in (("streaming", "lowered"), ("reload", "reread"), ("resident", "shipped")):
        mutant = next(m for m in mutants("rmsnorm") if m.function.endswith(f"forward_{suffix}"))
        assert any(pattern.endswith(f".*{path}") for pattern in first_tests(mutant))
    moments, *_ = (m for m in mutants("layernorm") if m.function == "moments")
    assert "lowered" in first_tests(moments)[0]


def test_every_boundary_between_schedules_is_moved():
    assert changes("softmax", "boundary-off-by-one", "backward_plan") == [
        "words > min(BACKWARD_WHOLE_WORDS, BACKWARD_WIDEST[element])"
        " -> words >= min(BACKWARD_WHOLE_WORDS, BACKWARD_WIDEST[element])",
        "words in BACKWARD_RELOADED[element] -> words not in BACKWARD_RELOADED[element]",
    ]
    assert changes("layernorm", "boundary-off-by-one", "backward_plan") == [
        "words > min(BACKWARD_RESIDENT_WORDS, BACKWARD_WIDEST[element])"
        " -> words >= min(BACKWARD_RESIDENT_WORDS, BACKWARD_WIDEST[element])"
    ]


def test_programs_of_sums_by_part_count_along_three_axes():
    assert changes("groupnorm", "wrong-axis", "sum_groups") == [
        f"tl.program_id({own}) -> tl.program_id({other})" for own, other in ("01", "10", "21")
    ]


def test_chunks_of_a_row_are_counted_along_one_axis():
    assert changes("swiglu", "wrong-axis", "forward_streaming") == [
        "tl.program_id(0) // n_chunks -> tl.program_id(0) % n_chunks",
        "tl.program_id(0) % n_chunks -> tl.program_id(0) // n_chunks",
    ]


# --- real runs ---


def test_mutants_die():
    """A few of some shipped ops; `docs/mutants.md` holds the verdicts on all of them."""
    for name in SHIPPED:
        with session(op_text(name), jobs=2) as runs:
            verdicts = runs.verdicts(spread(mutants(name), 5), lambda: None)
        assert {v.outcome for v in verdicts} <= set(DEAD), [v for v in verdicts if v.survived]
        assert all(v.test.startswith("test_") for v in verdicts if v.outcome == "killed")


BECOMES = {
    "pass": ("survived", "", ""),
    "assert False, 'seen'": ("killed", "test_it", "AssertionError: seen assert False"),
    "import os; os.kill(os.getpid(), 11)": ("crashed", "", "the process ended by signal 11"),
    "while True: pass": ("timed out", "", "no test ended within 2 s"),
    "return": ("survived", "", ""),
}


def test_what_can_become_of_a_mutant():
    """Here the tests are what changes from mutant to mutant."""
    op, first = op_text("row_totals"), mutants("row_totals")[0]
    file = "test_row_totals.py"
    wanted = [
        replace(first, file=file, text=f"from . import op\n\n\ndef test_it():\n    {body}\n")
        for body in BECOMES
    ]
    with session(op, jobs=2, limit_s=2.0) as runs:
        found = runs.verdicts(wanted, lambda: None)
    assert [(v.outcome, v.test, v.why) for v in found] == [*BECOMES.values()]


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(main, ["mutate", *map(str, args)])


@pytest.fixture
def tampered(monkeypatch):
    """Has the command see other generated text than the spec makes."""

    def tamper(name: str, old: str, new: str) -> None:
        render_all = build.render_all

        def tampered(specs):
            files = render_all(specs)
            text = files[name]
            assert old in text
            return {**files, name: text.replace(old, new) if old else new}

        monkeypatch.setattr(build, "render_all", tampered)

    return tamper


SPEC = ROOT / "tests/zoo/row_totals.yaml"
NO_TEST = "from . import op\n\n\ndef test_nothing():\n    assert op\n"


def test_tests_that_prove_nothing_let_mutants_through(tampered, tmp_path):
    tampered("row_totals/test_row_totals.py", "", NO_TEST)
    page, facts = tmp_path / "page.md", tmp_path / "facts.json"
    found = run(SPEC, "--limit", 3, "--jobs", 2, "--markdown", page, "--json", facts)
    assert found.exit_code == 1, found.output
    lines = found.output.splitlines()
    assert lines[0] == "row_totals: 1 test passes; 3 mutants to kill"
    assert lines[1].split() == ["kind", "place", "change", "verdict", "test"]
    assert "row_totals: 0 of 3 mutants killed" in lines
    assert sum(line.startswith("survived: ") for line in lines) == 3
    assert page.read_text().count("| survived |") == 3
    (op,) = json.loads(facts.read_text())["ops"]
    assert (op["op"], op["tests"]) == ("row_totals", 1)
    assert [mutant["verdict"] for mutant in op["mutants"]] == ["survived"] * 3
    assert set(op["mutants"][0]) == {
        "kind", "file", "line", "function", "before", "after", "verdict", "test", "why"
    }  # fmt: skip


def test_the_generated_tests_are_run():
    spec = ROOT / "tests/zoo/fp8_rows.yaml"
    found = run(spec, "--kind", "not-written", "--limit", 2, "--jobs", 2)
    assert found.exit_code == 0, found.output
    assert "fp8_rows: 2 of 2 mutants killed" in found.output
    assert "(nothing)" in found.output and "test_forward[" in found.output


def test_nothing_is_proved_while_the_tests_fail(tampered):
    tampered("row_totals/test_row_totals.py", "", "def test_it():\n    assert 1 == 2\n")
    found = run(SPEC, "--limit", 2)
    assert found.exit_code == 1
    assert found.output.startswith(
        "row_totals: test_it fails on the code as it is, so there is nothing to prove: mend that "
        "first\n"
    )


def test_nothing_is_proved_without_tests(tampered):
    tampered("row_totals/test_row_totals.py", "", "")
    found = run(SPEC, "--limit", 2)
    assert found.exit_code == 1
    assert found.output == "row_totals: none of its tests ran, so there is nothing to prove\n"


def test_a_machine_without_torch(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = run(SPEC, "--limit", 2)
    assert found.exit_code == 2
    assert found.output == (
        "error: the tests of 'row_totals' could not be run: "
        "ModuleNotFoundError: No module named 'torch'\n"
    )


# --- usage ---


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (
            ["--kind", "mean-by-blok"],
            "there is no kind of fault 'mean-by-blok'; did you mean 'mean-by-block'?",
        ),
        (
            ["--kind", "zzz", "--kind", "\x1b[31m"],
            "there is no kind of fault 'zzz'; `kgen mutate --list` shows them all",
        ),
        (["--limit", "0"], "0 is not in the range x>=1"),
        (["--jobs", "0"], "0 is not in the range 1<=x<=256"),
        (["--list", "--json", "x.json"], "--list runs nothing: there is no result to write"),
        (["--json", "nowhere/x.json"], "there is no folder 'nowhere' for 'nowhere/x.json'"),
        (["--markdown", "."], "File '.' is a directory"),
        (["specs/rmsnrm.yaml"], "there is no spec 'specs/rmsnrm.yaml'"),
    ],
)
def test_bad_usage(monkeypatch, args, text):
    monkeypatch.chdir(ROOT)
    found = run(*args)
    assert found.exit_code == 2
    assert text in found.output and "\x1b" not in found.output


def test_the_list_runs_nothing_and_imports_little():
    code = (
        "import sys, kgen.cli\n"
        "sys.argv = ['kgen', 'mutate', '--list', 'specs/rmsnorm.yaml']\n"
        "try:\n    kgen.cli.main()\nexcept SystemExit as end:\n    print(end.code)\n"
        "print({'torch', 'triton', 'pytest'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert lines[-2:] == ["0", "set()"], done.stderr
    assert lines[0].split() == ["kind", "rmsnorm", "meaning"]
    assert lines[1].split()[:2] == ["mean-by-block", "7"]
    assert lines[-3].split() == ["all", str(len(mutants("rmsnorm")))]


# --- the pages ---


def test_the_committed_page_lists_the_mutants_of_today():
    """Write it again with the command that stands on it."""
    lines = (ROOT / "docs/mutants.md").read_text().splitlines()
    names = [line.removeprefix("## ") for line in lines if line.startswith("## ")]
    assert set(SHIPPED) <= set(names)
    written = [line for line in lines if line.startswith("| ") and "| kind |" not in line]
    wanted = [
        "| " + " | ".join(page_cells(mutant)) + " | " for name in names for mutant in mutants(name)
    ]
    assert len(written) == len(wanted)
    for line, start in zip(written, wanted, strict=True):
        assert line.startswith(start)
        assert line.removeprefix(start).split(" | ")[0] in DEAD


def test_the_page_of_a_run():
    verdicts = [
        Verdict(mutant, "killed", "test_forward[a|b]", "") for mutant in mutants("rmsnorm")[:2]
    ]
    text = as_markdown([Proof("rmsnorm", "specs/rmsnorm.yaml", 429, tuple(verdicts))], "kgen ...")
    assert "rmsnorm: 2 of 2 mutants killed. The op has 429 tests." in text
    assert r"| killed | `test_forward[a\|b]` |" in text


def test_a_long_change_is_shortened_to_what_differs():
    found = next(m for m in mutants("rmsnorm") if m.kind.name == "wrong-neutral")
    assert len(found.change) > 120
    assert shortened(found) == (
        "tl.load(partial_ptr ... other=0.0) -> tl.load(partial_ptr ... other=1.0)"
    )


def test_the_kinds_are_explained():
    text = (ROOT / "docs/mutation.md").read_text()
    for kind in all_kinds():
        assert f"| `{kind.name}` | {kind.meaning} |" in text
