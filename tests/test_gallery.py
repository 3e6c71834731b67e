"""`kgen gallery`: the committed page, what stands on a page, and what the command says."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from kgen.cli import main
from kgen.load import load
from small_op import ROOT

ZOO = ROOT / "tests" / "zoo"
SMALL = """\
op: small
summary: {summary}
source: {source}
inputs:
  x: matrix
  place: {{kind: per_row, type: int, absent: -1}}
  keep: {{kind: matrix, type: bool, absent: true}}
  scale: {{kind: per_row, absent: 1, grad: false}}
params:
  low: {{default: 0.5, min: 0, max: 2}}
  cut: {{type: bool, default: false}}
outputs: {{y: x, top: float32}}
dtypes: [float16, float32]
forward: |
  z = x if cut else x * low
  y = where(keep and column == place, z, 0) * scale
  top = (
    max(x)
    + sum(x * x * x) * 0.125 + sum(abs(x) * 0.5)   # a comment
    + mean(where(keep, x, 0)) + mean(where(column == place, x, 0))
  )
backward: {backward}
limits: {{max_columns: 1000}}
reference: |
  return x
"""


def small(
    summary: str = "A small op.", source: str = "a test", backward: str = "derive", more: str = ""
) -> str:
    return SMALL.format(summary=summary, source=source, backward=backward) + more


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with `specs/`."""
    (tmp_path / "specs").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def kgen(*args: str) -> Result:
    """Run a command in this process."""
    result = CliRunner().invoke(main, args)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def yaml_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.yaml"))


def page(*args: str) -> str:
    result = kgen("gallery", *args, "--out", "page.md")
    assert result.exit_code == 0, result.stderr
    return Path("page.md").read_text(encoding="utf-8")


def section(text: str, op: str) -> str:
    """What a page says of one op."""
    found = re.search(rf"^## {op}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    assert found is not None, text
    return found[1]


def test_the_committed_page_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    result = kgen("gallery", "--check")
    assert result.exit_code == 0, f"{result.stdout}{result.stderr}"
    assert result.stdout == "docs/ops.md: up to date\n"


def test_the_committed_page_has_every_op_and_no_dead_link() -> None:
    text = (ROOT / "docs" / "ops.md").read_text(encoding="utf-8")
    names = [path.stem for path in yaml_in(ROOT / "specs")]
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == names
    assert re.findall(r"^\| \[(\w+)\]\(#\1\) \| ", text, re.MULTILINE) == names
    assert text.startswith(f"# Ops\n\n{len(names)} ops. ")
    places = re.findall(r"\]\((\.\./[^)]*)\)", text)
    assert len(places) == 2 * len(names)
    for place in places:
        assert (ROOT / "docs" / place).exists(), place


def test_it_is_quick_and_runs_nothing(tmp_path: Path) -> None:
    """All ops there are, in some seconds, without PyTorch and without Jinja."""
    # An op of the zoo may be shipped as well.
    specs = {path.stem: str(path) for folder in (ZOO, ROOT / "specs") for path in yaml_in(folder)}
    argv = ["kgen", "gallery", *specs.values(), "--out", str(tmp_path / "a.md")]
    code = (
        f"import sys, kgen.cli\nsys.argv = {argv!r}\n"
        "try:\n    kgen.cli.main()\nexcept SystemExit as end:\n    print(end.code)\n"
        "print({'torch', 'triton', 'numpy', 'jinja2', 'black'} & set(sys.modules))\n"
    )
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines()[-2:] == ["0", "set()"], done.stderr
    assert time.monotonic() - start < 60  # 3 s on a machine with nothing else to do


def test_writes_checks_and_says_what_to_do(project: Path) -> None:
    Path("specs/small.yaml").write_text(small())
    missing = kgen("gallery", "--check")
    assert (missing.exit_code, missing.stdout.splitlines()) == (
        1,
        ["missing docs/ops.md", "run `kgen gallery` and commit what it changes"],
    )
    assert not Path("docs").exists()
    assert kgen("gallery").stdout == "created docs/ops.md\n"
    assert kgen("gallery").stdout == "unchanged docs/ops.md\n"
    assert kgen("gallery", "--check").stdout == "docs/ops.md: up to date\n"
    Path("specs/small.yaml").write_text(small(summary="Another op."))
    stale = kgen("gallery", "--check")
    assert (stale.exit_code, stale.stdout.splitlines()[0]) == (1, "stale docs/ops.md")
    assert "A small op." in Path("docs/ops.md").read_text()
    assert kgen("gallery").stdout == "updated docs/ops.md\n"
    assert "Another op." in Path("docs/ops.md").read_text()


def test_the_page_names_its_command(project: Path) -> None:
    Path("specs/small.yaml").write_text(small())
    kgen("gallery", f"{project}/specs/small.yaml", "--out", "my ops/page.md")
    command = "kgen gallery specs/small.yaml --out 'my ops/page.md'"
    assert f"\n    {command}\n" in Path("my ops/page.md").read_text()
    Path("my ops/page.md").write_text("")
    result = kgen("gallery", "./specs/small.yaml", "--out", "my ops/page.md", "--check")
    assert f"run `{command}`" in result.stdout


def test_links_lead_to_what_is_in_the_project(project: Path) -> None:
    Path("specs/small.yaml").write_text(small())
    shutil.copy(ROOT / "specs/rmsnorm.yaml", project / "a (b).yaml")
    text = page("specs", "a (b).yaml")
    assert "- Here: [spec](specs/small.yaml)\n" in text
    assert "- Here: [spec](a%20%28b%29.yaml), module `RMSNorm`\n" in text
    Path("generated").mkdir()
    kgen("gallery", "--out", "a/b/page.md")
    assert (
        "- Here: [spec](../../specs/small.yaml), [code](../../generated/small)\n"
        in Path("a/b/page.md").read_text()
    )
    outside = page(str(ROOT / "specs/softmax.yaml"))
    assert "- Here: [code](generated/softmax)\n" in outside
    kgen("gallery", "--out", str(project.parent / "page.md"))
    assert "Here:" not in (project.parent / "page.md").read_text()


def test_the_section_of_an_op(project: Path) -> None:
    Path("specs/small.yaml").write_text(small(more="peers: [A, 'B_ *c*']\nmodule: Small\n"))
    text = page()
    assert "\n| [small](#small) | A small op. | `x`, `place?`, `keep?`, `scale?` | " in text
    assert "| `y`, `top` | derived |\n" in text
    found = section(text, "small")
    assert (
        "```text\n"
        "small(x, place=None, keep=None, scale=None, *, low=0.5, cut=False) -> y, top\n"
        "\n"
        "x      (..., N)\n"
        "place  (...)     integers, -1 when not given\n"
        "keep   (..., N)  bools, 1 when not given\n"
        "scale  (...)     1 when not given, no gradient\n"
        "low    float     at least 0, at most 2\n"
        "cut    bool\n"
        "y      (..., N)  the dtype of x\n"
        "top    (...)     float32\n"
        "```\n"
    ) in found
    assert "- Libraries with an op like it: A, B\\_ \\*c\\*\n" in found
    assert (
        "# forward\n"
        "z = x if cut else x * low\n"
        "y = where(keep and column == place, z, 0) * scale\n"
        "top = (\n"
        "  max(x)\n"
        "  + sum(x * x * x) * 0.125\n"
        "  + sum(abs(x) * 0.5)\n"
        "  + mean(where(keep, x, 0))\n"
        "  + mean(where(column == place, x, 0))\n"
        ")\n"
        "\n"
        "# backward, derived\n"
    ) in found
    assert "\ndx = " in found and "dscale" not in found
    # Neither bfloat16 nor 4096 columns.
    assert "\n| 4096 rows of N = 1000 in float16 | matrices read | " in found


def test_without_a_backward(project: Path) -> None:
    found = section(page(str(ZOO / "fp8_rows.yaml")), "fp8_rows")
    assert "\n\n# backward: none\n```\n" in found
    assert "Kept for backward" not in found and "\n| backward |" not in found
    assert "\nscale  (...)     float32\n" in found
    # 4096 bfloat16 in, as many bytes out, and 4 of the scale.
    assert "\n| forward | 1 | 1 | 12.0 KiB | 12.0 KiB | 1 up to N = 8192, then 2 |\n" in found
    assert "`q`, `scale` | none |\n" in Path("page.md").read_text()


def test_by_formulas_of_the_spec(project: Path) -> None:
    text = page(str(ROOT / "specs/layernorm.yaml"), str(ZOO / "cross_entropy.yaml"))
    assert text.count("| by formulas |\n") == 2
    found = section(text, "layernorm")
    assert "# backward\nxhat = (x - mu) * rstd\ng = dy * weight\n" in found
    assert "`mu`, `rstd` in float32, 8 bytes a row; `x`, `weight` as they are.\n" in found
    # x and dy in, dx out: 24 KiB, and what the 264 partial sums of dweight and dbias take.
    partial = 2 * 264 * 4096 * 4 * 2 / 4096 / 1024
    assert f"| backward | 2 | 1 | {24 + partial:.1f} KiB | 24.0 KiB | 1 up to N = 8192," in found
    cross_entropy = section(text, "cross_entropy")
    assert "\nKept for backward: `x`, `target`, `lse` as they are.\n" in cross_entropy
    assert "\n| backward | 1 | 1 | 16.0 KiB | 16.0 KiB | 1 |\n" in cross_entropy


def test_every_change_of_passes(project: Path) -> None:
    """Read again after each reduction, and then in chunks whose reductions go together."""
    found = section(page(str(ZOO / "standardize.yaml")), "standardize")
    assert "| 16.0 KiB | 1 up to N = 8192, 3 up to N = 32768, then 2 |\n" in found
    assert "| 24.0 KiB | 1 up to N = 8192, then 2 |\n" in found


def test_twice_differentiable(project: Path) -> None:
    text = page(str(ZOO / "rmsnorm_twice.yaml"))
    assert "| derived, twice |\n" in text
    assert "\n# double backward, derived\n" in text and "\nd2x = " in text
    assert "\n| double backward | 3 | 2 | " in text


def test_nothing_kept(project: Path) -> None:
    text = page(str(ZOO / "row_totals.yaml"), str(ZOO / "column_bias.yaml"))
    assert "\nKept for backward: nothing.\n" in section(text, "row_totals")
    worked_out = "Kept for backward: nothing. Worked out again: `distance`, `place`.\n"
    assert worked_out in section(text, "column_bias")


def test_ops_stand_in_the_order_of_their_names(project: Path) -> None:
    for file, op in (("a", "zeta"), ("b", "alpha"), ("c", "mu_norm")):
        Path(f"specs/{file}.yaml").write_text(small().replace("op: small", f"op: {op}"))
    text = page()
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["alpha", "mu_norm", "zeta"]
    assert re.findall(r"\(#(\w+)\)", text) == ["alpha", "mu_norm", "zeta"]
    assert text == page("specs/c.yaml", "specs/a.yaml", "specs/b.yaml").replace(
        " specs/c.yaml specs/a.yaml specs/b.yaml", ""
    )


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("'a | b'", r"a \| b"),
        ("'<img src=x> & `code` $x$ ~a~'", r"\<img src=x\> \& \`code\` \$x\$ \~a\~"),
        ("'[a](b) *c* _d_ e_f'", r"\[a\](b) \*c\* \_d\_ e_f"),
        ("'# no heading'", r"\# no heading"),
        ("'1. no list'", r"1\. no list"),
        ("'12) no list'", r"12\) no list"),
        ("'- no list'", r"\- no list"),
        ("2020-01-01", "2020-01-01"),
    ],
)
def test_texts_are_shown_as_they_are(project: Path, typed: str, shown: str) -> None:
    Path("specs/small.yaml").write_text(small(typed, typed, more=f"peers: [{typed}]\n"))
    text = page()
    assert f"| [small](#small) | {shown} | `x`" in text
    assert f"## small\n\n{shown}\n\n```text\n" in text
    assert f"- Source: {shown}\n- Libraries with an op like it: {shown}\n" in text


def test_all_bad_specs_are_named_and_nothing_is_written(project: Path) -> None:
    Path("specs/good.yaml").write_text(small())
    Path("specs/bad.yaml").write_text(
        small().replace("op: small", "op: bad").replace("z, 0)", "q, 0)")
    )
    Path("specs/odd.yaml").write_text(small().replace("op: small", "op: [odd]"))
    result = kgen("gallery", "specs", "specs/gone.yaml")
    assert (result.exit_code, result.stdout) == (2, "")
    for name in ("bad.yaml:", "odd.yaml:", "'specs/gone.yaml'"):
        assert name in result.stderr
    assert not Path("docs").exists()


def test_what_lowering_refuses_is_named_for_all_specs(project: Path) -> None:
    for name in ("first", "second"):
        text = small().replace("op: small", f"op: {name}").replace("max(x)\n", "max(low)\n")
        Path(f"specs/{name}.yaml").write_text(text)
        load(Path(f"specs/{name}.yaml"))
    result = kgen("gallery")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "specs/first.yaml:" in result.stderr and "specs/second.yaml:" in result.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--out", "specs"], "error: Is a directory: 'specs'"),
        (["--out", "specs/small.yaml/ops.md"], "error: Not a directory: 'specs/small.yaml/ops.md'"),
        (["specs/smal.yaml"], "did you mean 'specs/small.yaml'?"),
        (["--out"], "Option '--out' requires an argument"),
        (["--out", "link.md"], "refusing to write 'link.md'"),
    ],
)
def test_bad_usage(project: Path, args: list[str], message: str) -> None:
    Path("specs/small.yaml").write_text(small())
    Path("link.md").symlink_to("/dev/null")
    result = kgen("gallery", *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


BAD = sorted((ROOT / "tests" / "bad_specs").glob("*.yaml"))


@pytest.mark.parametrize("path", BAD[::7], ids=lambda path: path.stem)
def test_a_hostile_spec_gives_no_traceback(project: Path, path: Path) -> None:
    shutil.copy(path, project / "specs")
    result = kgen("gallery")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "error: " in result.stderr


def test_an_empty_folder(project: Path) -> None:
    result = kgen("gallery")
    assert result.exit_code == 2
    assert "there is no *.yaml in the folder 'specs'" in result.stderr
