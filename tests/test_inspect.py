"""`kgen inspect`: what it reads, when it calls data stale, what it says, and the committed data."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import triton
from click.testing import CliRunner, Result
from kgen.cli import main
from kgen.inspection.calls import Call, calls_of, columns_of
from kgen.inspection.data import Configuration, Line, as_csv, known
from kgen.inspection.page import page
from kgen.inspection.resources import Resources, from_amd, from_nvidia
from kgen.inspection.session import Compiled, Inspected, Recorded, Session, session
from kgen.inspection.targets import TARGETS
from kgen.load import load
from small_op import ROOT

DATA = ROOT / "docs" / "inspect" / "sm_90.csv"
# Of these the committed numbers are compared with a new compilation: op, kernel, dtype, columns.
SAMPLE = (
    ("rmsnorm", "rmsnorm_forward_resident", "bfloat16", "4096"),
    ("rmsnorm", "rmsnorm_sum_groups", "float32", "16384-131072"),
    ("softmax", "softmax_forward_streaming", "float64", "8192-262144"),
    ("layernorm", "layernorm_backward_resident", "float32", "8192"),
    ("cross_entropy", "cross_entropy_backward_streaming", "bfloat16", "4095-262143"),
)
SM_90, GFX942 = TARGETS["sm_90"], TARGETS["gfx942"]


@pytest.fixture(scope="module")
def running() -> Iterator[Session]:
    with session(jobs=1) as running:
        yield running


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the spec and the generated code of rmsnorm, to be changed."""
    (tmp_path / "specs").mkdir()
    shutil.copy(ROOT / "specs" / "rmsnorm.yaml", tmp_path / "specs")
    shutil.copytree(ROOT / "generated" / "rmsnorm", tmp_path / "generated" / "rmsnorm")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*argv: str) -> Result:
    return CliRunner().invoke(main, ["inspect", "--jobs", "1", *argv])


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


# What fits, by NVIDIA's occupancy calculator and by what LLVM says of its own code.


@pytest.mark.parametrize(
    ("target", "registers", "shared", "warps", "programs"),
    [
        ("sm_90", 32, 0, 8, 8),
        ("sm_90", 33, 0, 8, 6),
        ("sm_90", 168, 0, 4, 3),
        ("sm_90", 255, 0, 8, 1),
        ("sm_90", 128, 0, 16, 1),
        ("sm_90", 129, 0, 16, 0),
        ("sm_90", 16, 0, 1, 32),
        ("sm_90", 32, 115712, 4, 2),
        ("sm_90", 32, 115713, 4, 1),
        ("sm_90", 32, 232448, 4, 1),
        ("sm_90", 32, 232449, 4, 0),
        ("sm_80", 32, 115712, 4, 1),
        ("gfx942", 60, 0, 4, 8),
        ("gfx942", 163, 0, 8, 1),
        ("gfx942", 163, 0, 4, 3),
        ("gfx942", 27, 32769, 4, 1),
        ("gfx942", 27, 65537, 4, 0),
    ],
)
def test_programs_on_a_multiprocessor(
    target: str, registers: int, shared: int, warps: int, programs: int
) -> None:
    assert TARGETS[target].programs_with(registers, shared, warps) == programs


# What the compiler's texts say.

PTX = """
    @%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
    @%p1 ld.global.L1::evict_last.v2.b32 { %r1, %r2 }, [ %rd1 + 0 ];
    @%p1 ld.global.b16 { %rs1 }, [ %rd1 + 0 ];
    cp.async.ca.shared.global [ %r159 + 0 ], [ %rd80 + 0 ], 0x4, %r160;
    ld.shared.v2.b64 { %rd1, %rd2 }, [ %r1 ];
    @%p1 st.global.b32 [ %rd1 + 0 ], { %r1 };
    @%p1 st.global.v2.b64 [ %rd1 + 0 ], { %rd1, %rd2 };
"""
LOG = "    960 bytes stack frame, 2036 bytes spill stores, 2456 bytes spill loads"
AMD = """
    buffer_load_dwordx4 v[2:5], v1, s[4:7], 0 offen
    global_load_short_d16_hi v1, v[2:3], off
    buffer_load_ubyte v1, v2, s[4:7], 0 offen
    scratch_load_dwordx2 v[1:2], off, off
    buffer_store_dword v1, v2, s[4:7], 0 offen
    .private_segment_fixed_size: 24
    .sgpr_spill_count: 71
    .vgpr_count:     163
    .vgpr_spill_count: 5
"""


def test_nvidia_texts_are_read() -> None:
    usage = "  REG:32 STACK:960 SHARED:1024 LOCAL:0 CONSTANT[0]:624"
    found = from_nvidia(usage, LOG, PTX, shared=64)
    assert found == Resources(32, 960, 2036, 64, loads=(16, 8, 4, 2), stores=(16, 4))


def test_a_stack_without_spills_is_no_spill() -> None:
    log = "    8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"
    found = from_nvidia("  REG:32 STACK:8 SHARED:0 LOCAL:0", log, "", shared=0)
    assert (found.stack, found.spilled, found.loads) == (8, 0, ())


def test_amd_texts_are_read() -> None:
    found = from_amd(AMD, shared=16)
    assert found == Resources(163, 24, 20, 16, loads=(16, 2, 1), stores=(4,))


def test_a_report_that_lacks_a_number_is_an_error() -> None:
    with pytest.raises(ValueError, match="REG"):
        from_nvidia("nothing", "", "", shared=0)


# Which calls are made, and what they launch.


def test_the_calls_reach_every_bucket() -> None:
    spec = load(ROOT / "specs" / "rmsnorm.yaml")
    columns = columns_of(spec)
    assert columns == (
        *(2**n for n in range(8, 12)),
        4095,
        4096,
        8191,
        *(2**n for n in range(13, 18)),
        262143,
        2**18,
    )
    wide = (8191, *(2**n for n in range(13, 18)), 262143, 2**18)
    assert columns_of(spec, "float64") == (4096, *wide)
    assert {call.dtype for call in calls_of(spec)} == {"bfloat16", "float32", "float64"}


def test_the_calls_choose_every_bool_param() -> None:
    calls = calls_of(load(ROOT / "specs" / "gelu.yaml"), "float32", 100)
    flags = [(("approximate", False),), (("approximate", True),)]
    assert calls == tuple(Call("float32", 100, flags=each) for each in flags)


def recorded(running: Session, folder: Path, *calls: Call, op: str = "rmsnorm") -> Recorded:
    inspected = Inspected(op, ROOT / "specs" / f"{op}.yaml", folder, calls)
    (found,) = running.recorded([inspected], SM_90)
    return found


def test_the_wrapper_sees_the_shared_memory_of_the_target(running: Session) -> None:
    call = Call("bfloat16", 4096)
    found = recorded(running, ROOT / "generated", call, op="layernorm").configurations
    stages = {each.kernel: each.stages for each in found}
    assert stages["layernorm_backward_resident"] > 1


def test_widths_of_one_configuration_are_one_line(running: Session) -> None:
    calls = [Call("bfloat16", columns) for columns in (262144, 131072, 131071, 1)]
    found = recorded(running, ROOT / "generated", *calls).configurations
    streaming = [each for each in found if each.kernel == "rmsnorm_forward_streaming"]
    assert [each.widths for each in streaming] == ["131072-262144", "131071"]
    assert [each.multiple_of for each in streaming] == [16, 1]


def digests(running: Session, folder: Path) -> dict[str, str]:
    found = recorded(running, folder, Call("bfloat16", 4096)).configurations
    return {each.kernel.removeprefix("rmsnorm_"): each.digest for each in found}


def test_the_hash_tells_what_was_compiled(running: Session, project: Path) -> None:
    folder = project / "generated"
    kernels, op = (folder / "rmsnorm" / name for name in ("kernels.py", "op.py"))
    before = digests(running, folder)
    assert before == digests(running, ROOT / "generated")
    replace(kernels, "# rstd = rsqrt", "# for each row\n    # rstd = rsqrt")
    replace(kernels, '"""Whole rows in registers: one', '"""Rows in registers: one')
    assert digests(running, folder) == before, "comments are not compiled"
    replace(kernels, "return row_quotient(tl.sum(", "return row_quotient(2 * tl.sum(")
    after = digests(running, folder)
    changed = {kernel for kernel in before if after[kernel] != before[kernel]}
    assert changed == {"forward_resident", "backward_resident"}, "those that call row_mean"
    replace(op, "num_warps=plan.warps", "num_warps=2 * plan.warps")
    more = digests(running, folder)
    assert {kernel for kernel in after if more[kernel] != after[kernel]} == changed
    replace(op, "GROUPS=sum_groups", "GROUPS=2 * sum_groups")
    assert digests(running, folder)["sum_groups"] != before["sum_groups"]


def test_the_reference_does_not_run(running: Session, project: Path) -> None:
    op = project / "generated" / "rmsnorm" / "op.py"
    replace(op, "return F.rms_norm(x, x.shape[-1:], weight, eps)", "raise AssertionError")
    assert digests(running, project / "generated")


# The file and the page.


def line(spilled: int, kernel: str = "small_forward_resident") -> Line:
    found = Configuration("small", kernel, "float32", (16, 32), 2, 32, 4, 0, "CUT=True", "abc")
    return Line(found, Resources(40, spilled, spilled, 1024, (16, 4), ()), "3.7.1")


def test_data_is_read_back() -> None:
    text = as_csv([line(8)], SM_90)
    assert text.splitlines()[1] == (
        "small,small_forward_resident,float32,16-32,16,2,32,4,,CUT=True,40,8,8,1024,16/4,,12,48,"
        "3.7.1,abc"
    )
    assert known(text) == {"abc": (line(8).resources, "3.7.1")}


@pytest.mark.parametrize("text", ["", "hash\nabc\n", "<<<<<<<\nop,hash\n=======\n", "\x00"])
def test_data_that_cannot_be_read_counts_as_absent(text: str) -> None:
    assert known(text) == {}


def test_the_page_lists_what_spills() -> None:
    right, wrong = line(0), line(8, "small_backward_resident")
    text = page([(SM_90, "inspect/sm_90.csv", [right, wrong])], "kgen inspect")
    assert "| `small` | 2 | 2 | 40: forward_resident, float32, N 16-32 |" in text
    assert "These 1 spill" in text and "| small_backward_resident | float32 | 16-32 |" in text
    assert "No configuration spills" in page([(SM_90, "sm_90.csv", [right])], "kgen inspect")


# The command.


def test_a_table_for_each_target(project: Path) -> None:
    done = run("rmsnorm", "--columns", "300", "--dtype", "float16", "--kernel", "forward_resident")
    assert done.exit_code == 0, done.output
    head, names, row = done.output.splitlines()
    assert head == "rmsnorm on sm_90"
    assert names.split()[:4] == ["kernel", "dtype", "columns", "rows"]
    assert row.split()[:4] == ["forward_resident", "float16", "300", "2"]


def test_a_spill_is_a_finding(project: Path) -> None:
    op = project / "generated" / "rmsnorm" / "op.py"
    replace(op, "num_warps=plan.warps,", "num_warps=plan.warps, maxnreg=32,")
    done = run("rmsnorm", "--columns", "2048", "--dtype", "float64", "--kernel", "forward_resident")
    assert done.exit_code == 1
    assert "(float64, 2048 columns) spills" in done.output


@pytest.mark.parametrize(
    ("target", "form", "start"),
    [
        ("sm_90", "ptx", ".visible .entry rmsnorm_forward_resident"),
        ("sm_90", "ttgir", "tt.func public @rmsnorm_forward_resident"),
        ("sm_90", "sass", "LDG.E"),
        ("gfx942", "amdgcn", ".vgpr_spill_count"),
    ],
)
def test_code_is_printed(project: Path, target: str, form: str, start: str) -> None:
    done = run("rmsnorm", "--kernel", "forward_resident", "--target", target, "--asm", form)
    assert done.exit_code == 0, done.output
    assert start in done.output


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["rmsnrm"], "there is no op 'rmsnrm': no specs/rmsnrm.yaml; did you mean 'rmsnorm'?"),
        (["--target", "sm_91"], "there is no target 'sm_91'; did you mean 'sm_90'?"),
        (["--target", "x"], "there is no target 'x'; known are sm_80, sm_90, sm_100, gfx942"),
        (["--dtype", "float8"], "--dtype is 'float8'; the float inputs of rmsnorm take"),
        (["--columns", "0"], "--columns is 0; it takes 1 to 262144 columns"),
        (["--kernel", "forward"], "it launches backward_reload, backward_resident, "),
        (["--generated", "out"], "`kgen build specs/rmsnorm.yaml --out out` writes it"),
        (["--asm", "ptx"], "--asm prints one kernel: name one op, one target and --kernel"),
        (["--asm", "ptx", "--markdown", "page.md"], "--asm prints code"),
        (["--check", "--columns", "16"], "a page holds everything"),
        (["--kernel", "forward_resident", "--asm", "amdgcn"], "there is no --asm amdgcn for sm_90"),
        (
            ["--kernel", "forward_streaming", "--asm", "ptx"],
            "rmsnorm_forward_streaming does not run at 4096 columns in bfloat16; choose with "
            "--columns and --dtype: it runs at 131072-262144 (bfloat16)",
        ),
    ],
)
def test_what_cannot_be_done_is_said(project: Path, argv: list[str], message: str) -> None:
    done = run(*argv)
    assert done.exit_code == 2, done.output
    assert message in done.output


def test_generated_code_that_does_not_fit_its_spec(project: Path) -> None:
    replace(project / "generated" / "rmsnorm" / "op.py", "x.dim() == 0", "x.dim() == 3")
    done = run("rmsnorm")
    assert done.exit_code == 2
    assert "'generated/rmsnorm' cannot be called as specs/rmsnorm.yaml says: " in done.output
    assert "`kgen check specs/rmsnorm.yaml` tells" in done.output


def test_a_kernel_that_does_not_compile(project: Path) -> None:
    kernels = project / "generated" / "rmsnorm" / "kernels.py"
    replace(kernels, "rstd = tl.rsqrt(row_mean(x * x, n_columns) + eps)", "rstd = tl.nothing(x)")
    chosen = ["rmsnorm", "--columns", "64", "--dtype", "float32"]
    done = run(*chosen, "--kernel", "forward_resident")
    assert done.exit_code == 1
    assert "rmsnorm_forward_resident (float32, 64 columns) does not compile: " in done.output


def test_no_page_without_all_kernels(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "docs").mkdir()

    def failing(self: Session, wanted: list[tuple[Recorded, list[str]]], **rest: object) -> object:
        return {d: Compiled(None, "too bad", "", "3.7.1") for _, all_ in wanted for d in all_}

    monkeypatch.setattr(Session, "compiled", failing)
    done = run("--markdown", "docs/inspect.md")
    assert done.exit_code == 1
    assert (
        "rmsnorm_forward_resident (bfloat16, 256 columns) does not compile: too bad" in done.output
    )
    assert list((project / "docs").iterdir()) == []


def test_a_page_is_compared_and_only_what_changed_is_compiled(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("docs", "docs/inspect"):
        (project / name).mkdir()
    lines = DATA.read_text().splitlines(keepends=True)
    own = [each for each in lines if each.startswith(("op,", "rmsnorm,"))]
    data = project / "docs" / "inspect" / "sm_90.csv"
    data.write_text("".join(own))
    assert run("--check").exit_code == 1, "there is no page"
    compiled: list[str] = []
    original = Session.compiled

    def counting(self: Session, wanted: list[tuple[Recorded, list[str]]], **rest: object) -> object:
        compiled.extend(digest for _, digests in wanted for digest in digests)
        return original(self, wanted, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Session, "compiled", counting)
    done = run("--markdown", "docs/inspect.md")
    assert done.exit_code == 0, done.output
    assert compiled == [] and data.read_text() == "".join(own)
    assert run("--check").exit_code == 0
    kernels = project / "generated" / "rmsnorm" / "kernels.py"
    replace(kernels, "def group_sum(", "def group_total(")
    replace(kernels, "= group_sum(", "= group_total(")
    done = run("--check")
    assert done.exit_code == 1
    assert "configurations of rmsnorm are not there" in done.output
    assert "run `kgen inspect --markdown docs/inspect.md`" in done.output
    assert compiled == []
    assert run("--markdown", "docs/inspect.md").exit_code == 0
    sums = [each for each in own if ",rmsnorm_sum_groups," in each]
    assert 0 < len(compiled) <= len(sums)
    assert run("--check").exit_code == 0


# The committed data.


@pytest.fixture
def rows() -> list[dict[str, str]]:
    with DATA.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_committed_data_is_of_the_committed_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    done = run("--check")
    assert done.exit_code == 0, done.output


def place(row: dict[str, str]) -> str:
    return " ".join(row[key] for key in ("kernel", "dtype", "columns", "options")).strip()


def test_no_configuration_spills(rows: list[dict[str, str]]) -> None:
    spilling = [place(row) for row in rows if row["spilled"] != "0"]
    assert spilling == [], "these spill registers: give them smaller tiles"


def test_every_configuration_fits(rows: list[dict[str, str]]) -> None:
    assert [place(row) for row in rows if row["programs"] == "0"] == []


def test_loads_of_whole_vectors(rows: list[dict[str, str]]) -> None:
    """Where N is a multiple of 16 and rows are long, matrices are read 16 bytes at a time."""
    narrow = [
        place(row)
        for row in rows
        if row["kernel"].endswith(("_resident", "_streaming", "_split_rows", "_split_columns"))
        and row["multiple_of"] == "16"
        and int(row["block"]) >= 1024
        and not row["loads"].startswith("16")
    ]
    assert narrow == []


@pytest.mark.parametrize("sample", SAMPLE, ids=lambda sample: sample[1])
def test_the_committed_numbers_are_the_compilers(
    sample: tuple[str, str, str, str],
    rows: list[dict[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    op, kernel, dtype, columns = sample
    row, *_ = (
        each
        for each in rows
        if (each["kernel"], each["dtype"]) == (kernel, dtype) and each["columns"] == columns
    )
    if row["triton"] != triton.__version__:
        pytest.skip(f"the data is of Triton {row['triton']}")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    call = Call(dtype, int(columns.rpartition("-")[2]))
    inspected = Inspected(op, ROOT / "specs" / f"{op}.yaml", ROOT / "generated", (call,))
    with session(jobs=1) as running:
        (found,) = running.recorded([inspected], SM_90)
        taken = running.compiled([(found, [row["hash"]])])[row["hash"]].resources
    committed = known(DATA.read_text(encoding="utf-8"))[row["hash"]][0]
    assert taken == committed
