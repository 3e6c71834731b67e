"""`kgen explain`: the page, its values for programs, and options that are refused.

After a change of the page: KGEN_UPDATE_GOLDENS=1 pytest tests/test_explain.py, and read the diff.
"""

from __future__ import annotations

import ast
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from kgen.cli import main
from kgen.load import load
from small_op import ROOT

ALL_SPECS = sorted([*(ROOT / "specs").glob("*.yaml"), *(ROOT / "tests" / "zoo").glob("*.yaml")])
GOLDEN = Path(__file__).parent / "goldens" / "explain_layernorm.txt"
SMALL = """\
op: small
summary: A small op.
source: a test
inputs: {x: matrix, keep: {kind: matrix, type: bool}, place: {kind: per_row, type: int}}
outputs: {y: x}
dtypes: [float16, float32]
forward: |
  y = where(keep and column == place, x, 0)
backward: derive
limits: {max_columns: 1000}
reference: |
  return x
"""


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture
def small(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL, encoding="utf-8")
    return str(path)


def kgen(*args: str, color: bool = False, **env: str) -> Result:
    """Run a command in this process."""
    result = CliRunner().invoke(main, args, color=color, env=env)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def explained(*args: str) -> dict[str, Any]:
    result = kgen("explain", *args, "--json")
    assert result.exit_code == 0, result.stderr
    values: dict[str, Any] = json.loads(result.stdout)
    return values


def test_the_page_of_layernorm() -> None:
    result = kgen("explain", "specs/layernorm.yaml")
    assert result.exit_code == 0
    if os.environ.get("KGEN_UPDATE_GOLDENS"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(result.stdout, encoding="utf-8")
    assert result.stdout == GOLDEN.read_text(encoding="utf-8")


def test_the_documentation_shows_the_page() -> None:
    text = (ROOT / "docs" / "explain.md").read_text(encoding="utf-8")
    block = re.search(r"```text\n(.*?)```", text, re.DOTALL)
    assert block is not None
    assert block[1] == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", ALL_SPECS, ids=lambda path: path.stem)
def test_every_spec_has_a_page(path: Path) -> None:
    for columns in ("64", "200000"):
        result = kgen("explain", str(path), "--n", columns, "--m", "1")
        assert result.exit_code == 0, result.stderr
        lines = result.stdout.splitlines()
        assert all(line == line.rstrip() for line in lines)
        assert f"With M 1, N {columns}" in result.stdout
        assert "\x1b" not in result.stdout


def test_the_page_says_what_the_dtype_of_the_arithmetic_is() -> None:
    page = kgen("explain", "tests/zoo/logsumexp.yaml").stdout
    assert "lse  per_row  (...)  float32, or float64 when an input is\n" in page


def test_values_add_up() -> None:
    found = explained("specs/layernorm.yaml", "--m", "1024", "--n", "8192", "--gbps", "1000")
    assert (found["m"], found["n"], found["gbps"]) == (1024, 8192, 1000)
    for name in ("forward", "backward"):
        way = found[name]
        total = way["bytes_read"] + way["bytes_written"]
        moves = [(move["bytes"] * move["times"], move["write"]) for move in way["moves"]]
        assert sum(size for size, is_write in moves if not is_write) == way["bytes_read"]
        assert sum(size for size, is_write in moves if is_write) == way["bytes_written"]
        assert way["microseconds"] == pytest.approx(total / 1e6)
        assert way["flops_per_byte"] == pytest.approx(
            way["flops_per_element"] * 1024 * 8192 / total
        )
        assert way["least_bytes"] <= total
    # 5 operations and 2 reductions an element, 4 a row.
    assert found["forward"]["flops_per_element"] == pytest.approx(7 + 4 / 8192)
    assert found["saved_bytes"] == 2 * 1024 * 4
    assert found["kept"][2] == {
        "name": "mu",
        "kind": "per_row",
        "how": "saved",
        "used_in": ["xhat"],
    }


def test_a_slower_memory_takes_longer() -> None:
    fast, slow = (explained("specs/softmax.yaml", "--gbps", rate) for rate in ("3350", "335"))
    ratio = slow["forward"]["microseconds"] / fast["forward"]["microseconds"]
    assert ratio == pytest.approx(10)


@pytest.mark.parametrize(
    ("columns", "dtype", "forward", "backward"),
    [
        ("8192", "float32", "resident", "resident"),
        ("8208", "bfloat16", "reload", "split"),
        ("8208", "float32", "resident", "split"),
        ("32768", "bfloat16", "reload", "split"),
        ("32768", "float32", "resident", "split"),
        ("32784", "float32", "streaming", "split"),
        ("2048", "float64", "resident", "resident"),
        ("4096", "float64", "resident", "split"),
        ("4112", "float64", "streaming", "split"),
    ],
)
def test_schedules_at_their_boundaries(
    columns: str, dtype: str, forward: str, backward: str
) -> None:
    found = explained("tests/zoo/layernorm_twice.yaml", "--n", columns, "--dtype", dtype)
    assert (found["forward"]["schedule"], found["backward"]["schedule"]) == (forward, backward)
    for name, schedule in (("forward", forward), ("backward", backward)):
        ends = found[name]["schedules"]
        at = next(end for end in ends if int(columns) <= end["up_to_n"])
        assert at["schedule"] == schedule


def test_rows_read_again_count_each_time() -> None:
    found = explained("tests/zoo/layernorm_twice.yaml", "--n", "16384", "--m", "64")["forward"]
    assert [end["passes"] for end in found["schedules"]] == [1, 3, 2]
    assert (found["schedule"], found["passes"]) == ("reload", 3)
    assert found["kernels"] == ["layernorm_twice_forward_reload"]
    assert next(move for move in found["moves"] if move["name"] == "x")["times"] == 3


@pytest.mark.parametrize(
    "path", sorted((ROOT / "specs").glob("*.yaml")), ids=lambda path: path.stem
)
def test_the_page_and_the_wrapper_agree(path: Path) -> None:
    """Of every direction the widest rows of each schedule, and the chunks of longer ones."""
    wrapper = (ROOT / "generated" / path.stem / "op.py").read_text(encoding="utf-8")
    constants = dict(re.findall(r"^(\w+_(?:WORDS|BLOCK)) = (\d+)$", wrapper, re.MULTILINE))
    tables = re.findall(r"^(\w+_(?:CHUNKS|RELOADED)) = (\{[^}]*\})$", wrapper, re.MULTILINE)
    by_width = {name: ast.literal_eval(text) for name, text in tables}
    most = str(load(path).limits.max_columns)
    found = explained(str(path), "--n", most, "--dtype", "bfloat16")
    for name in ("forward", "backward"):
        if name not in found:
            continue
        way, prefix = found[name], name.upper()
        *ends, last = way["schedules"]
        again = by_width.get(f"{prefix}_RELOADED", {2: ()})[2]
        assert (
            str(ends[-1]["up_to_n"])
            == constants[f"{prefix}_{'WHOLE' if again else 'RESIDENT'}_WORDS"]
        )
        for end in ends:
            assert (end["schedule"] == "reload") == (end["up_to_n"] in again)
        reread = [words for words in again if words not in {end["up_to_n"] for end in ends}]
        for words in reread:
            assert next(e for e in ends if words < e["up_to_n"])["schedule"] == "reload"
        assert last["schedule"] == way["schedule"] in ("streaming", "split")
        block = constants[f"{prefix}_{way['schedule'].upper()}_BLOCK"]
        own = by_width.get(f"{prefix}_CHUNKS", {}).get(int(most))
        assert str(way["tile_columns"]) == (str(own[0]) if own else block)


def test_scratch_grows_with_the_processors() -> None:
    few, many = (
        explained("specs/rmsnorm.yaml", "--processors", count)["backward"] for count in ("16", "64")
    )
    assert many["scratch_bytes"] == 4 * few["scratch_bytes"] == 64 * 4096 * 4


def test_dtypes_of_single_inputs() -> None:
    found = explained("specs/layernorm.yaml", "--dtype", "float16", "--dtype", "weight=float32")
    assert found["dtypes"] == {"x": "float16", "weight": "float32", "bias": "float16"}
    page = kgen("explain", "specs/layernorm.yaml", "--dtype", "weight=float32").stdout
    assert "With M 4096, N 4096, x bfloat16, weight float32, bias bfloat16, on 132" in page


def test_a_small_op(small: str) -> None:
    found = explained(small)
    # The op takes neither bfloat16 nor 4096 columns.
    assert (found["n"], found["dtypes"]["x"]) == (1000, "float16")
    assert found["backward"]["derived"] is True
    page = kgen("explain", small).stdout
    assert "\nBackward, derived\n" in page
    assert "\n  forward   N 1 to 1000  resident  read once\n" in page


def test_an_op_without_gradients() -> None:
    page = kgen("explain", "tests/zoo/fp8_rows.yaml").stdout
    assert "Backward\n  none: the op gives no gradients\n" in page
    assert "saved for backward" not in page
    assert "backward" not in explained("tests/zoo/fp8_rows.yaml")


def test_colours_are_for_terminals() -> None:
    coloured = kgen("explain", "specs/softmax.yaml", color=True).stdout
    assert "\x1b[1mInputs\x1b[0m" in coloured
    plain = kgen("explain", "specs/softmax.yaml", color=True, NO_COLOR="1").stdout
    assert plain == kgen("explain", "specs/softmax.yaml").stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--m", "0"], "--m is 0; it takes 1 to 1073741824 rows"),
        (["--n", "0"], "--n is 0; it takes 1 to 1000 columns (the limits of {})"),
        (["--n", "1001"], "--n is 1001; it takes 1 to 1000 columns (the limits of {})"),
        (["--processors", "0"], "--processors is 0; it takes 1 to 65536 multiprocessors"),
        (["--gbps", "0"], "--gbps is 0; it takes GB/s above 0, such as 3350"),
        (["--gbps", "nan"], "--gbps is nan; it takes GB/s above 0, such as 3350"),
        (["--gbps", "inf"], "--gbps is inf; it takes GB/s above 0, such as 3350"),
        (
            ["--dtype", "bfloat16"],
            "--dtype is 'bfloat16'; the float inputs of small take float16, float32",
        ),
        (
            ["--dtype", "fp32"],
            "--dtype is 'fp32'; the float inputs of small take float16, float32"
            "; did you mean 'float32'?",
        ),
        (
            ["--dtype", "place=float32"],
            "--dtype is 'float32'; the input 'place' takes int32, int64",
        ),
        (
            ["--dtype", "plaec=int32"],
            "--dtype names no input 'plaec'; did you mean 'place'?",
        ),
        (
            ["--dtype", "q=int32"],
            "--dtype names no input 'q'; the inputs of small are x, keep, place",
        ),
    ],
)
def test_bad_options(small: str, options: list[str], message: str) -> None:
    result = kgen("explain", small, *options)
    assert (result.exit_code, result.stdout) == (2, "")
    shown = "/".join(Path(small).parts[-2:])
    assert result.stderr == f"error: {message.format(shown)}\n"


def test_a_spec_that_is_not_there() -> None:
    result = kgen("explain", "layernorm")
    assert result.exit_code == 2
    assert "did you mean 'specs/layernorm.yaml'?" in result.stderr
    assert kgen("explain").exit_code == 2


def test_a_bad_spec(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(SMALL.replace("x, 0)", "z, 0)"), encoding="utf-8")
    result = kgen("explain", str(path))
    assert result.exit_code == 2
    assert "unknown name 'z'" in result.stderr
