"""The commands: what they write, say and exit with."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from kgen import output
from kgen.cli import main
from kgen.spec import Spec

ROOT = Path(__file__).resolve().parent.parent
RMSNORM = "specs/rmsnorm.yaml"
COMMANDS = [
    "build",
    "check",
    "diff",
    "list",
    "new",
    "schema",
    "explain",
    "derive",
    "verify",
    "mutate",
    "gallery",
    "bench",
    "tune",
    "inspect",
]


def kgen(*args: str, color: bool = False, **env: str) -> Result:
    """Run a command in this process."""
    result = CliRunner().invoke(main, args, color=color, env=env)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two shipped specs, and a pipeline that makes two small files an op."""

    def render_all(specs: Sequence[Spec], jobs: int = 1) -> dict[str, str]:
        return {
            f"{spec.op}/{name}": f"{output.HEADER} {spec.path}`.\n# {spec.summary}\n"
            for spec in specs
            for name in ("__init__.py", "kernels.py")
        }

    build = types.ModuleType("kgen.build")
    build.render_all = render_all  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kgen.build", build)
    (tmp_path / "specs").mkdir()
    for name in ("rmsnorm", "softmax"):
        shutil.copy(ROOT / f"specs/{name}.yaml", tmp_path / "specs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def edit(path: Path, old: str, new: str) -> None:
    """Replace the first ``old`` in a file."""
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


class TestBuild:
    """kgen build."""

    def test_creates_then_leaves_unchanged(self, project: Path) -> None:
        first = kgen("build", "specs/rmsnorm.yaml")
        assert (first.exit_code, first.stdout.splitlines()) == (
            0,
            [
                "created generated/rmsnorm/__init__.py",
                "created generated/rmsnorm/kernels.py",
                "rmsnorm: 2 files created",
            ],
        )
        second = kgen("build", "specs/rmsnorm.yaml")
        assert second.stdout.splitlines()[-1] == "rmsnorm: 2 files unchanged"
        assert second.stdout.splitlines()[0] == "unchanged generated/rmsnorm/__init__.py"

    def test_all_specs_are_the_default(self, project: Path) -> None:
        assert kgen("build", "--out", "src/ops").exit_code == 0
        found = sorted(path.parent.name for path in Path("src/ops").rglob("kernels.py"))
        assert found == ["rmsnorm", "softmax"]

    def test_updates_one_op(self, project: Path) -> None:
        kgen("build")
        edit(project / "specs/softmax.yaml", "Softmax over", "The softmax over")
        lines = kgen("build").stdout.splitlines()
        assert "updated generated/softmax/kernels.py" in lines
        assert lines[-2:] == ["rmsnorm: 2 files unchanged", "softmax: 2 files updated"]

    def test_the_header_does_not_depend_on_how_the_spec_is_named(self, project: Path) -> None:
        kgen("build")
        for path in ("./specs/rmsnorm.yaml", str(project / "specs/rmsnorm.yaml"), "specs"):
            assert kgen("check", path).exit_code == 0, path
        twice = kgen("build", "specs/rmsnorm.yaml", "specs/../specs/rmsnorm.yaml")
        assert twice.stdout.splitlines()[-1] == "rmsnorm: 2 files unchanged"

    def test_orphans_are_kept_unless_pruned(self, project: Path) -> None:
        kgen("build")
        (project / "specs/softmax.yaml").unlink()
        (project / "generated/rmsnorm/mine.py").write_text("mine\n")
        result = kgen("build")
        assert result.exit_code == 0
        assert "orphan generated/softmax/kernels.py" in result.stdout
        assert "orphan generated/rmsnorm/mine.py" in result.stdout
        assert "`kgen build --prune`" in result.stdout
        result = kgen("build", "--prune")
        assert "deleted generated/softmax/kernels.py" in result.stdout
        assert "softmax: 2 files deleted" in result.stdout
        assert not (project / "generated/softmax").exists()
        assert (project / "generated/rmsnorm/mine.py").exists()
        assert "--prune" not in kgen("build").stdout

    def test_one_op_says_nothing_of_the_others(self, project: Path) -> None:
        kgen("build")
        assert "softmax" not in kgen("build", "specs/rmsnorm.yaml", "--prune").stdout
        assert (project / "generated/softmax/kernels.py").exists()


class TestFaults:
    """Everything that ends with exit code 2: one message, no traceback, nothing written."""

    def fails(self, *args: str) -> str:
        """The message of a command that must fail and must not write."""
        result = kgen(*args)
        assert result.exit_code == 2
        assert result.stdout == ""
        assert "Traceback" not in result.stderr
        assert not list(Path().glob("generated/*"))
        return result.stderr

    def test_problems_of_all_specs_are_shown(self, project: Path) -> None:
        edit(project / "specs/rmsnorm.yaml", "rstd * weight", "rstd * wieght")
        edit(project / "specs/softmax.yaml", "outputs:", "outptus:")
        message = self.fails("build")
        assert "specs/rmsnorm.yaml:" in message
        assert "'wieght'" in message
        assert "specs/softmax.yaml:" in message

    def test_two_specs_of_one_op(self, project: Path) -> None:
        shutil.copy("specs/rmsnorm.yaml", "specs/second.yaml")
        message = self.fails("build")
        assert (
            "op 'rmsnorm' is made by both 'specs/rmsnorm.yaml' and 'specs/second.yaml'" in message
        )

    @pytest.mark.parametrize("name", ["rmsnorm", "rmsnorm.yaml", "specs/rmsnrm.yaml"])
    def test_missing_spec(self, project: Path, name: str) -> None:
        message = self.fails("build", name, "gone.yaml")
        assert f"there is no spec '{name}'; did you mean 'specs/rmsnorm.yaml'?" in message
        assert "there is no spec 'gone.yaml'" in message

    @pytest.mark.parametrize("command", ["build", "check", "diff", "list"])
    def test_no_specs_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert "no folder 'specs' here; name the spec files" in self.fails(command)
        (tmp_path / "specs").mkdir()
        assert "there is no *.yaml in the folder 'specs'" in self.fails(command)

    def test_output_folder_is_a_file(self, project: Path) -> None:
        Path("out").write_text("")
        assert "Not a directory" in self.fails("build", "--out", "out")
        Path("ops").mkdir()
        Path("ops/rmsnorm").write_text("")
        assert "Not a directory: 'ops/rmsnorm" in self.fails("check", "--out", "ops")

    def test_full_disk(self, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def write(changes: object, folder: Path) -> None:
            raise OSError(errno.ENOSPC, "No space left on device", "generated/x")

        monkeypatch.setattr(output, "write", write)
        assert self.fails("build") == "error: No space left on device: 'generated/x'\n"

    def test_unreadable_specs(self, project: Path) -> None:
        Path("specs/binary.yaml").write_bytes(b"\x00\xff\xfe" * 100)
        Path("specs/gone.yaml").symlink_to("nowhere")
        assert "binary.yaml" in self.fails("build", "specs/binary.yaml")
        assert "gone.yaml" in self.fails("build", "specs/gone.yaml")

    def test_messages_cannot_steer_the_terminal(self, project: Path) -> None:
        assert "'\\x1b[2J.yaml'" in self.fails("build", "\x1b[2J.yaml")

    def test_deep_nesting(self, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def plan(*args: object) -> None:
            raise RecursionError

        monkeypatch.setattr("kgen.cli._plan", plan)
        assert self.fails("build") == "error: a spec is nested too deeply\n"

    def test_usage(self) -> None:
        result = kgen("biuld")
        assert result.exit_code == 2
        assert "no such command 'biuld'; did you mean 'build'?" in result.stderr
        assert kgen("build", "--nope").exit_code == 2


class TestCheck:
    """kgen check."""

    def test_up_to_date(self, project: Path) -> None:
        kgen("build")
        result = kgen("check")
        assert (result.exit_code, result.stdout.splitlines()) == (
            0,
            ["rmsnorm: 2 files unchanged", "softmax: 2 files unchanged"],
        )

    def test_names_every_file_and_the_remedy(self, project: Path) -> None:
        kgen("build", "--out", "my ops")
        Path("my ops/rmsnorm/__init__.py").unlink()
        edit(Path("my ops/rmsnorm/kernels.py"), "mean", "maen")
        Path("my ops/rmsnorm/old.py").write_text(output.HEADER)
        result = kgen("check", "specs/rmsnorm.yaml", "--out", "my ops")
        assert (result.exit_code, result.stdout.splitlines()) == (
            1,
            [
                "missing my ops/rmsnorm/__init__.py",
                "stale my ops/rmsnorm/kernels.py",
                "orphan my ops/rmsnorm/old.py (no spec makes it)",
                "run `kgen build specs/rmsnorm.yaml --out 'my ops' --prune` "
                "and commit what it changes",
            ],
        )
        assert not Path("my ops/rmsnorm/__init__.py").exists(), "check writes nothing"

    def test_a_file_of_the_user(self, project: Path) -> None:
        kgen("build")
        Path("generated/rmsnorm/notes.md").write_text("")
        result = kgen("check")
        assert result.exit_code == 1
        assert result.stdout == (
            "orphan generated/rmsnorm/notes.md "
            "(no spec makes it; kgen did not write it: move it elsewhere or delete it)\n"
        )

    def test_a_removed_spec(self, project: Path) -> None:
        kgen("build")
        Path("specs/softmax.yaml").unlink()
        assert "orphan generated/softmax/kernels.py" in kgen("check").stdout
        assert kgen("check", "specs/rmsnorm.yaml").exit_code == 0


class TestDiff:
    """kgen diff."""

    def test_nothing_to_show(self, project: Path) -> None:
        kgen("build")
        result = kgen("diff")
        assert (result.exit_code, result.stdout) == (0, "")

    def test_unified(self, project: Path) -> None:
        kgen("build")
        path = Path("generated/softmax/kernels.py")
        edit(path, "# Softmax over the last dimension.\n", "# hand\f edited")
        path.with_name("__init__.py").unlink()
        path.with_name("extra.txt").write_text("")
        result = kgen("diff", "specs/softmax.yaml")
        assert (result.exit_code, result.stdout.split("\n")) == (
            1,
            [
                "--- /dev/null",
                "+++ generated/softmax/__init__.py",
                "@@ -0,0 +1,2 @@",
                "+# Generated by `kgen build specs/softmax.yaml`.",
                "+# Softmax over the last dimension.",
                "Only in generated/softmax: extra.txt",
                "--- generated/softmax/kernels.py",
                "+++ generated/softmax/kernels.py",
                "@@ -1,2 +1,2 @@",
                " # Generated by `kgen build specs/softmax.yaml`.",
                "-# hand\f edited",
                "\\ No newline at end of file",
                "+# Softmax over the last dimension.",
                "",
            ],
        )

    def test_patch_accepts_it(self, project: Path) -> None:
        if not shutil.which("patch"):
            pytest.skip("needs patch")
        kgen("build")
        edit(Path("generated/rmsnorm/kernels.py"), "Root", "Toor")
        text = kgen("diff").stdout
        subprocess.run(["patch", "-p0"], input=text, text=True, check=True, capture_output=True)
        assert kgen("check").exit_code == 0

    def test_colours(self, project: Path) -> None:
        assert "\x1b[32m+#" in kgen("diff", color=True).stdout
        assert "\x1b" not in kgen("diff").stdout
        assert "\x1b" not in kgen("diff", color=True, NO_COLOR="1").stdout


class TestList:
    """kgen list."""

    def test_a_line_an_op(self, project: Path) -> None:
        result = kgen("list")
        assert result.exit_code == 0
        rmsnorm, softmax = result.stdout.splitlines()
        assert rmsnorm.split("  ")[:3] == ["rmsnorm", "x, weight?", "specs/rmsnorm.yaml"]
        assert softmax.endswith("specs/softmax.yaml  Softmax over the last dimension.")
        assert rmsnorm.index("specs/") == softmax.index("specs/")

    def test_a_bad_spec_hides_no_other(self, project: Path) -> None:
        edit(project / "specs/rmsnorm.yaml", "rstd * weight", "rstd * wieght")
        result = kgen("list", "specs", "specs/gone.yaml")
        assert result.exit_code == 2
        (softmax,) = result.stdout.splitlines()
        assert softmax.startswith("softmax  x  specs/softmax.yaml")
        assert "specs/rmsnorm.yaml:16:18: error: unknown name 'wieght'" in result.stderr
        assert "there is no spec 'specs/gone.yaml'" in result.stderr

    def test_nothing_but_bad_specs(self, project: Path) -> None:
        Path("specs/softmax.yaml").write_text("op: [")
        result = kgen("list", "specs/softmax.yaml")
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith("specs/softmax.yaml:1:")


class TestNew:
    """kgen new."""

    def test_copies_and_renames(self, project: Path) -> None:
        result = kgen("new", "mynorm", "--from", "rmsnorm")
        assert (result.exit_code, result.stdout.splitlines()) == (
            0,
            [
                "created specs/mynorm.yaml",
                "edit it, then run `kgen build specs/mynorm.yaml`",
            ],
        )
        before = Path("specs/rmsnorm.yaml").read_text().splitlines()
        after = Path("specs/mynorm.yaml").read_text().splitlines()
        assert after[:2] == [
            "op: mynorm",
            "summary: Describe mynorm here, it started as a copy of rmsnorm.",
        ]
        assert before[3].startswith("peers: ")
        place = before.index("module: RMSNorm")
        assert not before[place + 1]
        end = next(i for i, line in enumerate(before) if line.startswith("tuning:"))
        assert not before[end - 1]
        assert after[2:] == before[2:3] + before[4:place] + before[place + 2 : end - 1]
        assert kgen("build", "specs/mynorm.yaml").exit_code == 0

    @pytest.mark.parametrize("origin", ["layernorm", str(ROOT / "specs/layernorm.yaml")])
    def test_from_a_shipped_op_or_a_path(self, project: Path, origin: str) -> None:
        assert kgen("new", "other", "--from", origin, "--out", "a/b.yaml").exit_code == 0
        assert Path("a/b.yaml").read_text().startswith("op: other\n")

    @pytest.mark.parametrize(
        "peers", ["[Apex,\n  PyTorch\n]", "\n  - Apex\n  - PyTorch", "\n- Apex\n- PyTorch"]
    )
    def test_peers_stay_behind(self, project: Path, peers: str) -> None:
        edit(Path("specs/softmax.yaml"), "reference:", f"peers: {peers}\nreference:")
        edit(Path("specs/softmax.yaml"), "peers: [Liger-Kernel, Quack, PyTorch]\n", "")
        kgen("new", "other", "--from", "softmax")
        text = Path("specs/other.yaml").read_text()
        assert "peers" not in text and "Apex" not in text
        assert text.endswith("sum(dy * y))\n\nreference: |\n  return torch.softmax(x, dim=-1)\n")

    @pytest.mark.parametrize("place", ["reference: |", ""])
    def test_tuning_stays_behind(self, project: Path, place: str) -> None:
        path = Path("specs/softmax.yaml")
        kgen("new", "other", "--from", "softmax")
        untuned = Path("specs/other.yaml").read_text()
        tuning = "tuning:  # found\n  forward:\n    512: {rows: 2}\n\n"
        text = path.read_text().partition("\ntuning:")[0]
        if place:
            path.write_text(text.replace(place, tuning + place))
        else:
            path.write_text(f"{text}\n{tuning.rstrip()}\n")
        kgen("new", "another", "--from", "softmax")
        assert Path("specs/another.yaml").read_text() == untuned.replace("other", "another")

    def test_quotes_comments_and_long_summaries(self, project: Path) -> None:
        edit(Path("specs/softmax.yaml"), "op: softmax", "# mine\nop:  'softmax'  # the op")
        edit(Path("specs/softmax.yaml"), "summary: ", "summary: Long,\n  ")
        assert kgen("new", "other", "--from", "specs/softmax.yaml").exit_code == 0
        lines = Path("specs/other.yaml").read_text().splitlines()
        assert lines[:2] == ["# mine", "op:  other  # the op"]
        assert lines[2].startswith("summary: Describe other")
        assert lines[3].startswith("source: ")
        assert kgen("list", "specs/other.yaml").exit_code == 0

    def test_never_overwrites(self, project: Path) -> None:
        before = Path("specs/softmax.yaml").read_text()
        result = kgen("new", "softmax", "--from", "rmsnorm")
        assert result.exit_code == 2
        assert "'specs/softmax.yaml' exists already" in result.stderr
        assert Path("specs/softmax.yaml").read_text() == before

    @pytest.mark.parametrize(
        ("name", "better"),
        [
            ("My-Norm", "my_norm"),
            ("RMSNorm2", "rmsnorm2"),
            ("2norm", "norm"),
            ("a/../b", "a_b"),
            ("x" * 49, "x" * 48),
            ("lambda", None),
            ("", None),
            ("ü", None),
        ],
    )
    def test_bad_names(self, project: Path, name: str, better: str | None) -> None:
        result = kgen("new", name, "--from", "rmsnorm")
        assert result.exit_code == 2
        assert f"'{name}' is no name for an op" in result.stderr
        if better is None:
            assert "did you mean" not in result.stderr
        else:
            assert f"did you mean '{better}'?" in result.stderr
        assert len(list(Path("specs").iterdir())) == 2

    def test_unknown_origin(self, project: Path) -> None:
        result = kgen("new", "other", "--from", "layernrom")
        assert result.exit_code == 2
        assert result.stderr == ("error: there is no spec 'layernrom'; did you mean 'layernorm'?\n")
        known = ", ".join(sorted(path.stem for path in (ROOT / "specs").glob("*.yaml")))
        assert f"known ops are {known}\n" in kgen("new", "other", "--from", "../..").stderr

    def test_a_bad_origin_is_not_copied(self, project: Path) -> None:
        edit(Path("specs/rmsnorm.yaml"), "mean(", "maen(")
        result = kgen("new", "other", "--from", "rmsnorm")
        assert result.exit_code == 2
        assert "specs/rmsnorm.yaml:" in result.stderr
        assert not Path("specs/other.yaml").exists()


class TestSchema:
    """kgen schema."""

    def test_prints_writes_and_checks(self, project: Path) -> None:
        printed = kgen("schema")
        assert printed.exit_code == 0
        assert printed.stdout.startswith("{")
        result = kgen("schema", "--check")
        assert result.exit_code == 1
        assert result.stdout.splitlines() == [
            "missing specs/schema.json",
            "run `kgen schema --out specs/schema.json` and commit what it changes",
        ]
        written = kgen("schema", "--out", "specs/schema.json")
        assert written.stdout == "created specs/schema.json\n"
        assert Path("specs/schema.json").read_text() == printed.stdout
        assert kgen("schema", "--check").stdout == "specs/schema.json: up to date\n"
        edit(Path("specs/schema.json"), "{", "{ ")
        assert "stale specs/schema.json" in kgen("schema", "--check").stdout
        assert kgen("schema", "--check", "--out", "elsewhere.json").exit_code == 1

    def test_the_committed_one_is_up_to_date(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(ROOT)
        assert kgen("schema", "--check").exit_code == 0


def test_version() -> None:
    assert kgen("--version").stdout == "kgen 0.1.0\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples(command: str) -> None:
    result = kgen(command, "--help")
    assert result.exit_code == 0
    assert f"Examples:\n    kgen {command}" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_help_lists_whole_sentences() -> None:
    assert list(main.commands) == COMMANDS
    assert "..." not in kgen("--help").stdout.partition("Commands:")[2]


# From here on: the real pipeline, in a copy of the repository.


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what generated code depends on, with rmsnorm built by the copied generator."""
    copy = tmp_path_factory.mktemp("original")
    skip = shutil.ignore_patterns("__pycache__")
    for name in ("generator", "templates", "specs"):
        shutil.copytree(ROOT / name, copy / name, ignore=skip)
    (copy / "lib").mkdir()
    (copy / "lib/kgen").symlink_to("../generator")
    done = run(copy, "build", RMSNORM)
    assert done.returncode == 0, done.stderr
    return copy


@pytest.fixture
def repository(original: Path, tmp_path: Path) -> Path:
    """A copy of that copy, to change things in."""
    return Path(shutil.copytree(original, tmp_path / "repository", symlinks=True))


def run(folder: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a Python of its own, with the generator of that folder."""
    return subprocess.run(
        [sys.executable, "-m", "kgen", *args],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "lib"), **env},
        capture_output=True,
        text=True,
    )


def test_the_committed_code_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    result = kgen("check")
    assert result.exit_code == 0, result.stdout + result.stderr


def test_bytes_depend_on_the_spec_alone(original: Path, tmp_path: Path) -> None:
    settings = [{"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "2", "LC_ALL": "C", "TZ": "Asia/Tokyo"}]
    found = []
    for number, env in enumerate(settings):
        place = tmp_path / f"folder {number}"
        done = run(original, "build", "--out", str(place), **env)
        assert done.returncode == 0, done.stderr
        found.append({p.relative_to(place): p.read_bytes() for p in place.rglob("*.py")})
    assert found[0] == found[1]
    assert len(found[0]) >= 12


def change_code(folder: Path) -> None:
    """One character of a generated file."""
    edit(folder / "generated/rmsnorm/kernels.py", "Generated", "generated")


def change_spec(folder: Path) -> None:
    """One character of a spec."""
    edit(folder / "specs/rmsnorm.yaml", "1.0e-6", "1.0e-5")


def delete_file(folder: Path) -> None:
    """A generated file is gone."""
    (folder / "generated/rmsnorm/op.py").unlink()


def add_file(folder: Path) -> None:
    """A file that no spec makes."""
    (folder / "generated/rmsnorm/kernels2.py").write_text("")


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (change_code, "stale generated/rmsnorm/kernels.py"),
        (change_spec, "stale generated/rmsnorm/op.py"),
        (delete_file, "missing generated/rmsnorm/op.py"),
        (add_file, "orphan generated/rmsnorm/kernels2.py"),
    ],
)
def test_check_finds(
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path], None],
    finding: str,
) -> None:
    monkeypatch.chdir(repository)
    change(repository)
    result = kgen("check", RMSNORM)
    assert result.exit_code == 1
    assert any(line.startswith(finding) for line in result.stdout.splitlines()), result.stdout


def test_check_finds_a_changed_template(repository: Path) -> None:
    for template in (repository / "templates").iterdir():
        if template.is_file():
            with template.open("a", encoding="utf-8") as file:
                file.write("# another line\n")
    done = run(repository, "check", RMSNORM)
    assert done.returncode == 1, done.stderr
    assert "stale generated/rmsnorm/" in done.stdout


def test_a_build_is_quick(original: Path, tmp_path: Path) -> None:
    """1.5 s is the aim, a slow machine gets twice that; measured as time of the processor."""
    before = os.times()
    done = run(original, "build", RMSNORM, "--out", str(tmp_path))
    after = os.times()
    assert done.returncode == 0, done.stderr
    user = after.children_user - before.children_user
    assert user + after.children_system - before.children_system <= 3.0


def test_a_closed_pipe_is_silent(original: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "kgen", "list"],
        cwd=original,
        env={**os.environ, "PYTHONPATH": str(original / "lib")},
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writer)
    assert done.stderr == ""


def test_names_the_terminal_cannot_show(project: Path) -> None:
    done = run(project, "build", "specs/λ.yaml", PYTHONIOENCODING="latin-1")
    assert done.returncode == 2
    assert "there is no spec 'specs/\\u03bb.yaml'" in done.stderr


class TestMessages:
    def test_names_a_spec_as_it_was_typed(self, project: Path) -> None:
        outside = project.parent / "elsewhere"
        outside.mkdir()
        bad = Path("specs/rmsnorm.yaml").read_text().replace("* weight", "* wieght")
        (outside / "bad.yaml").write_text(bad)
        result = kgen("build", "../elsewhere/bad.yaml")
        assert result.exit_code == 2
        assert result.stderr.startswith("../elsewhere/bad.yaml:")

    def test_a_reserved_name_is_refused_before_a_file_is_written(self, project: Path) -> None:
        result = kgen("new", "torch", "--from", "softmax")
        assert result.exit_code == 2
        assert not Path("specs/torch.yaml").exists()

    def test_an_interrupt_is_no_finding(
        self, project: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupted(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("kgen.cli._plan", interrupted)
        assert kgen("build").exit_code == 130
