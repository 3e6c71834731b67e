"""``kgen bench``, but for what only a GPU can tell: plans, bytes, checks, records and pages."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner, Result
from kgen.bench import plots, report, runner
from kgen.bench.cells import LONG, SMALL, Cell, cells_of, shapes_of, small_cells_of
from kgen.bench.inputs import draw
from kgen.bench.kernel_time import NAME, Clock
from kgen.bench.loop import measure
from kgen.bench.moved import directions_of, matrices, moved_bytes
from kgen.bench.providers import Provider, provider_of, require_names
from kgen.bench.results import (
    FILE,
    Measurement,
    Results,
    Run,
    Spread,
    Store,
    as_json,
    read_results,
    require_same,
    spread_of,
    with_share,
)
from kgen.bench.runner import Bench, try_out
from kgen.bench.segments import MeasureError, Ran, cut, total
from kgen.bench.subject import Subject, subject_of
from kgen.bench.summary import geometric_mean, providers_in, ratios, tables, together
from kgen.bench.textbook import textbook_of
from kgen.bench.trial import expected_of, mismatch, trial_of
from kgen.bench.warm_up import warm_up
from kgen.cli import main
from kgen.errors import KgenError
from kgen.load import load
from kgen.spec import Spec
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
GENERATED = ROOT / "generated"
OPS = sorted(path.stem for path in (ROOT / "specs").glob("*.yaml"))
HAS_GPU = torch.cuda.is_available()


def spec_of(op: str) -> Spec:
    return load(ROOT / "specs" / f"{op}.yaml")


def subject(op: str) -> Subject:
    return subject_of(spec_of(op), GENERATED)


def trained(op: str, call: Callable[..., Any] | None = None, dtype: str = "float32") -> Any:
    """What a provider of an op is told after it has run on the CPU."""
    about = subject(op)
    arguments = draw(about.row_op, Cell(op, 8, 96, dtype), "cpu")
    trial = trial_of(about, call or about.reference, arguments)
    return try_out("it", trial, arguments, expected_of(about, arguments))


# What is measured.


def test_shapes_are_listed_stepped_or_preset() -> None:
    assert shapes_of(["long"]) == LONG
    assert shapes_of(["3x4, 5x6", "3x4"]) == ((3, 4), (5, 6))
    swept = shapes_of(["4096x256..12672/128"])
    assert len(swept) == 98 and swept[0] == (4096, 256) and swept[-1] == (4096, 12672)


@pytest.mark.parametrize("text", ["", "3", "3x", "0x4", "4x0", "4x8..2/2", "4x2..8/0", "x4", "lon"])
def test_other_shapes_are_refused(text: str) -> None:
    with pytest.raises(KgenError, match="--shapes is"):
        shapes_of([text])


def test_the_common_ops_come_first_and_limits_hold() -> None:
    specs = [spec_of(op) for op in ("swiglu", "softmax", "groupnorm", "rmsnorm")]
    cells = cells_of(specs, ((4, 262144), (4, 262145)), ("bfloat16", "float32"))
    assert list(dict.fromkeys(cell.op for cell in cells)) == [
        "rmsnorm",
        "softmax",
        "swiglu",
        "groupnorm",
    ]
    longest = {cell.op: 0 for cell in cells}
    for cell in cells:
        longest[cell.op] = max(longest[cell.op], cell.columns)
    assert longest["rmsnorm"] == 262144 and longest["groupnorm"] == 262145
    assert len(small_cells_of(specs)) == len(specs) * len(SMALL)


@pytest.mark.parametrize(
    ("op", "forward", "backward"),
    [
        ("rmsnorm", 4, 6),
        ("layernorm", 4, 6),
        ("softmax", 4, 6),
        ("add_rmsnorm", 8, 8),
        ("add_layernorm", 8, 8),
        ("add_dropout_layernorm", 8, 12),
        ("swiglu", 6, 10),
        ("cross_entropy", 2, 4),
        ("masked_softmax", 5, 6),
        ("modulated_rmsnorm", 4, 6),
        ("kl_div", 4, 4),
    ],
)
def test_bytes_of_an_element(op: str, forward: int, backward: int) -> None:
    row_op = subject(op).row_op
    assert moved_bytes(row_op, "forward", 3, 5, "bfloat16") == 15 * forward
    assert moved_bytes(row_op, "backward", 3, 5, "bfloat16") == 15 * backward


def test_equal_gradients_are_one_tensor() -> None:
    assert matrices(subject("add_rmsnorm").row_op, "backward") == (("h", "dy", "dh"), ("dx",))
    assert matrices(subject("swiglu").row_op, "backward")[1] == ("dgate", "dup")


def test_outputs_of_eight_bits_count_as_such() -> None:
    row_op = subject("add_rmsnorm_fp8").row_op
    assert directions_of(row_op) == ("forward",)
    assert moved_bytes(row_op, "forward", 1, 1, "float32") == 4 + 4 + 1 + 4


# What is run, and whether it is right.


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("op", OPS)
def test_the_formulas_pass_for_every_op(op: str, dtype: str) -> None:
    textbook = textbook_of(subject(op))
    if textbook is None:
        shared = [e for e in spec_of(op).inputs if e.kind.value.startswith("per_")]
        assert any(e.kind.value in ("per_batch", "per_place") for e in shared)
        textbook = subject(op).reference
    tried = trained(op, textbook, dtype)
    assert tried.problems == {}
    tried.trial.inference()
    if tried.trial.subject.row_op.backward is not None:
        tried.trial.step()
        assert all(leaf.grad is not None for leaf in tried.trial.leaves.values())


@pytest.mark.parametrize("op", ["add_rmsnorm", "softmax"])
@pytest.mark.skipif(HAS_GPU, reason="the kernels run on the GPU here")
def test_kernels_pass(op: str) -> None:
    assert trained(op, subject(op).function).problems == {}


def test_the_reference_is_right_in_float32_and_coarse_in_float16() -> None:
    assert trained("rmsnorm").problems == {}
    assert trained("rmsnorm", dtype="float16").problems == {}


def test_a_wrong_result_is_named() -> None:
    def no_weight(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], None, eps) + 0 * weight

    tried = trained("rmsnorm", no_weight)
    assert tried.problems["forward"][0] == "wrong" == tried.problems["backward"][0]
    assert "y is " in tried.problems["forward"][1]


def test_a_wrong_gradient_leaves_forward_as_it_is() -> None:
    class Half(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, dx: Tensor) -> Tensor:
            return dx / 2

    tried = trained("softmax", lambda x: torch.softmax(Half.apply(x), -1))
    assert list(tried.problems) == ["backward"]
    assert tried.problems["backward"][0] == "wrong"


def test_zeros_do_not_pass_for_small_numbers() -> None:
    """The entries of a long softmax all lie within the tolerance of bfloat16 about zero."""
    about = subject("softmax")
    right = torch.softmax(torch.randn(4, 4096, dtype=torch.float64), -1)
    assert mismatch(about, "y", right.bfloat16(), right) is None
    assert mismatch(about, "y", torch.zeros(4, 4096, dtype=torch.bfloat16), right) is not None


@pytest.mark.parametrize("bad", [math.nan, math.inf, 7.0])
def test_one_bad_entry_is_found(bad: float) -> None:
    right = torch.randn(6, 50, dtype=torch.float64)
    got = right.float()
    got[3, 4] = bad
    found = mismatch(subject("softmax"), "y", got, right)
    assert found is not None and f"{bad:g}" in found


def test_a_result_of_another_shape_is_wrong() -> None:
    found = mismatch(subject("softmax"), "y", torch.zeros(2, 3), torch.zeros(3, 2))
    assert found == "y has shape (2, 3) in place of (3, 2)"


def test_a_backward_that_raises_leaves_forward_as_it_is() -> None:
    def raising(x: Tensor) -> Tensor:
        y = torch.softmax(x, -1)
        y.register_hook(lambda dy: 1 / 0)  # type: ignore[no-untyped-call]
        return y

    assert trained("softmax", raising).problems == {
        "backward": ("failed", "ZeroDivisionError: division by zero")
    }


def test_outputs_may_be_missing_at_the_end_only() -> None:
    def loss_alone(x: Tensor, target: Tensor, **params: Any) -> Tensor:
        return F.cross_entropy(x, target, reduction="none")

    assert trained("cross_entropy", loss_alone).problems == {}
    without = trained("cross_entropy", lambda x, target, **params: (None, x.logsumexp(-1)))
    assert without.problems["forward"] == ("wrong", "it gives no loss")


def test_each_provider_has_tensors_of_its_own() -> None:
    def overwriting(x: Tensor) -> Tensor:
        y = torch.softmax(x, -1)
        x.detach().zero_()
        return y

    about = subject("softmax")
    arguments = draw(about.row_op, Cell("softmax", 4, 8, "float32"), "cpu")
    before = arguments.tensors["x"].clone()
    trial_of(about, overwriting, arguments).inference()
    assert torch.equal(arguments.tensors["x"], before)


def test_arguments_are_the_same_each_time_and_suit_the_op() -> None:
    cell = Cell("kl_div", 8, 64, "float32")
    row_op = subject("kl_div").row_op
    first, second = (draw(row_op, cell, "cpu") for _ in range(2))
    assert all(torch.equal(first.tensors[n], second.tensors[n]) for n in first.tensors)
    assert torch.allclose(first.tensors["x"].exp().sum(-1), torch.ones(8))
    assert torch.allclose(first.tensors["target"].sum(-1), torch.ones(8))
    drawn = draw(subject("cross_entropy").row_op, Cell("cross_entropy", 500, 3, "float32"), "cpu")
    assert set(drawn.tensors["target"].tolist()) == {0, 1, 2}
    assert list(drawn.upstream) == ["loss"]
    drawn = draw(subject("modulated_rmsnorm").row_op, Cell("m", 2048, 4, "float32"), "cpu")
    assert drawn.shape == (2, 1024, 4) and drawn.tensors["scale"].shape == (2, 4)
    drawn = draw(subject("groupnorm").row_op, Cell("g", 64, 32, "float32"), "cpu")
    assert drawn.shape == (2, 32, 32) and drawn.tensors["weight"].shape == (32, 8)


# Providers.


def stub(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    """A module that can be imported, with its packages."""
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        path = ".".join(parts[:length])
        if path not in sys.modules:
            module = ModuleType(path)
            module.__path__ = []
            monkeypatch.setitem(sys.modules, path, module)
            if length > 1:
                setattr(sys.modules[".".join(parts[: length - 1])], parts[length - 1], module)
    for member, value in members.items():
        setattr(sys.modules[name], member, value)


def rms(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, eps)


@pytest.fixture
def liger(monkeypatch: pytest.MonkeyPatch) -> Provider:
    """The provider over stand-ins with the arguments of Liger-Kernel's functions."""

    def rms_norm(X: Any, W: Any, eps: float, offset: float = 0.0, casting_mode: str = "llama"):
        return rms(X, offset + W, eps)

    def group_norm(X: Any, W: Any, B: Any, num_channels: int, num_groups: int, eps: float):
        assert X.shape[1] == num_channels
        return F.group_norm(X, num_groups, W, B, eps)

    def cross_entropy(input: Any, target: Any, softcap: float | None = None, **named: Any):
        assert softcap is None
        assert named.pop("lse_square_scale") == 0
        return F.cross_entropy(input, target, **named)

    stub(
        monkeypatch,
        "liger_kernel.transformers.functional",
        liger_rms_norm=rms_norm,
        liger_fused_add_rms_norm=lambda X, R, W, eps: (rms(X + R, W, eps), X + R),
        liger_layer_norm=lambda X, W, B, eps: F.layer_norm(X, X.shape[-1:], W, B, eps),
        liger_modulated_rms_norm=lambda X, W, scale, shift, eps: rms(X, W, eps)
        * (1 + scale.unsqueeze(-2))
        + shift.unsqueeze(-2),
        liger_group_norm=group_norm,
        liger_dyt=lambda x, alpha, gamma, beta: torch.tanh(x * alpha) * gamma + beta,
        liger_poly_norm=lambda X, W, B, eps: sum(
            w * rms(X**k, None, eps) for w, k in zip(W, (3, 2, 1), strict=True)
        )
        + B,
        liger_softmax=lambda x: torch.softmax(x, -1),
        liger_cross_entropy=cross_entropy,
        liger_swiglu=lambda a, b: F.silu(a) * b,
        liger_geglu=lambda a, b: F.gelu(a, approximate="tanh") * b,
        liger_relu_squared=lambda x: torch.relu(x) ** 2,
    )
    return provider_of("liger")


@pytest.fixture
def quack(monkeypatch: pytest.MonkeyPatch) -> Provider:
    """The provider over stand-ins with the arguments of QuACK's functions."""

    def rmsnorm(x, weight=None, *, residual=None, eps=1e-6, prenorm=False, weight_offset=0.0):
        h = x if residual is None else x + residual
        y = rms(h, None, eps) * (weight + weight_offset)
        return (y, h) if prenorm else y

    def layernorm_fwd(x, weight, bias, eps, return_rstd, return_mean):
        assert weight.dtype == torch.float32 and return_rstd and return_mean
        return torch.native_layer_norm(x, x.shape[-1:], weight, bias, eps)[0], *statistics(x, eps)

    def statistics(x, eps):
        variance, mean = torch.var_mean(x, -1, correction=0)
        return torch.rsqrt(variance + eps), mean

    def layernorm_bwd(x, weight, dout, rstd, mean, has_bias=True):
        return torch.ops.aten.native_layer_norm_backward(
            dout,
            x,
            x.shape[-1:],
            mean.unsqueeze(-1),
            rstd.unsqueeze(-1),
            weight,
            torch.zeros_like(weight),
            [True, True, has_bias],
        )

    stub(
        monkeypatch,
        "quack.rmsnorm",
        rmsnorm=rmsnorm,
        layernorm_fwd=layernorm_fwd,
        layernorm_bwd=layernorm_bwd,
    )
    stub(monkeypatch, "quack.softmax", softmax=lambda x: torch.softmax(x, -1))
    stub(
        monkeypatch,
        "quack.cross_entropy",
        cross_entropy=lambda x, target, *, ignore_index, reduction: F.cross_entropy(
            x, target, ignore_index=ignore_index, reduction=reduction
        ),
    )
    return provider_of("quack")


@pytest.mark.parametrize("library", ["liger", "quack"])
def test_functions_of_libraries_are_called_as_the_op_is_meant(
    library: str, request: pytest.FixtureRequest
) -> None:
    provider: Provider = request.getfixturevalue(library)
    assert provider.name == library and set(provider.calls) <= set(OPS)
    for op, call in provider.calls.items():
        assert trained(op, call).problems == {}, op


def test_providers_that_are_not_there_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert require_names(["kgen", "compile", "kgen"]) == ("kgen", "compile")
    with pytest.raises(KgenError, match="did you mean 'pytorch'"):
        require_names(["pytroch"])
    monkeypatch.setattr("kgen.bench.providers.is_installed", lambda package: False)
    with pytest.raises(KgenError, match="package quack is not installed"):
        require_names(["quack"])
    with pytest.raises(KgenError, match="cannot be imported: ModuleNotFoundError"):
        provider_of("no_such_module:function")
    with pytest.raises(KgenError, match="gives a float; it takes a"):
        provider_of("time:time")


def test_a_compiled_backward_can_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._functorch.config

    monkeypatch.setattr(torch._functorch.config, "donated_buffer", True)
    seen: dict[str, Any] = {}
    monkeypatch.setattr(torch, "compile", lambda function, **how: seen.update(how) or function)
    assert runner.compiled(len) is len and seen == {"dynamic": False}
    assert not torch._functorch.config.donated_buffer


# Measuring.


def ran(*names: str) -> list[Ran]:
    return [Ran(name, float(place), 0.5) for place, name in enumerate(names)]


def test_a_profile_is_cut_at_the_copies() -> None:
    calls = cut(reversed(ran("r", "a", "b", "r", "c", "r")), "r", 2)
    assert [[event.name for event in call] for call in calls] == [["a", "b"], ["c"]]
    assert total(calls[0]) == 1.0


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["r", "a", "r", "r", "r"], "4 copies stand between 2 calls, in place of 3"),  # its own
        (["r", "a", "r"], "2 copies stand between 2 calls, in place of 3"),  # an event is lost
        (["r", "a", "r", "r"], "a call ran nothing"),
        (["a", "r", "a", "r", "b", "r"], "'a' ran before the first call"),
        (["r", "a", "r", "b", "r", "c"], "something ran after the last call"),
        ([], "0 copies"),
    ],
)
def test_a_profile_that_does_not_fit_is_refused(names: list[str], problem: str) -> None:
    with pytest.raises(MeasureError, match=problem):
        cut(ran(*names), "r", 2)


def test_of_a_profile_only_work_on_the_gpu_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def event(name: str, device: str = "CUDA", annotation: bool = False) -> Any:
        place = SimpleNamespace(start=float(len(name)), elapsed_us=lambda: 2.0)
        kind = SimpleNamespace(name=device)
        return SimpleNamespace(
            name=name, time_range=place, device_type=kind, is_user_annotation=annotation
        )

    class Profile:
        def __init__(self, **settings: Any) -> None:
            assert settings["activities"] == [torch.profiler.ProfilerActivity.CUDA]

        def __enter__(self) -> Profile:
            return self

        def __exit__(self, *error: object) -> None:
            assert order[-1] == "synchronize"

        def events(self) -> list[Any]:
            on_cpu = event("cudaLaunchKernel", "CPU")
            return [on_cpu, event("Stream Sync"), event("a step", annotation=True), event("gemm")]

    monkeypatch.setattr(torch.profiler, "profile", Profile)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: order.append("synchronize"))
    clock = Clock.__new__(Clock)
    clock._cold = SimpleNamespace(copy=lambda: order.append("copy"))  # type: ignore[assignment]
    assert clock._profile([lambda: order.append("call")] * 2) == [Ran("gemm", 4.0, 2.0)]
    assert order == ["synchronize", "copy", "call", "copy", "call", "copy", "synchronize"]


class FakeClock(Clock):
    """A clock whose profile holds, for each call, the kernels that the call names."""

    def __init__(self) -> None:
        self.sessions = 0

    def _profile(self, calls: Sequence[Callable[[], object]]) -> list[Ran]:
        self.sessions += 1
        names: list[str] = []
        for call in calls:
            names += [NAME, *map(str, call())]  # type: ignore[call-overload]
        return ran(*names, NAME)


def test_calls_take_turns_and_the_first_round_is_left_out() -> None:
    seen: list[str] = []

    def call(name: str) -> Callable[[], object]:
        return lambda: seen.append(name) or [name] * seen.count(name)

    first, second = FakeClock().rounds([call("a"), call("b")], 2)
    assert "".join(seen) == "ababab"
    assert [[event.name for event in run] for run in first] == [["a"] * 2, ["a"] * 3]
    assert [len(run) for run in second] == [2, 3]


def bench_of(*ops: str, names: Sequence[str] = ("kgen", "pytorch"), clock: bool = True) -> Bench:
    bench = Bench({op: spec_of(op) for op in ops}, GENERATED, names, 10, device="cpu")
    if clock:
        bench._clock, bench.copy_gbps = FakeClock(), 1000.0
    return bench


@pytest.fixture
def one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every timed call is one kernel of half a microsecond."""
    monkeypatch.setattr(runner, "_call", lambda *given: lambda: ["kernel"])


@pytest.mark.usefixtures("one_kernel")
def test_a_cell_gives_a_record_for_each_provider_and_direction() -> None:
    bench = bench_of("softmax", names=("pytorch", "textbook"))
    found = bench.kernel_times(Cell("softmax", 8, 32, "float32"))
    assert [(each.provider, each.direction) for each in found] == [
        ("pytorch", "forward"),
        ("pytorch", "backward"),
        ("textbook", "forward"),
        ("textbook", "backward"),
    ]
    assert {(e.status, e.calls, e.kernels) for e in found} == {("ok", 10, 1)}
    assert found[0].time == Spread(0.5, 0.5, 0.5) and found[0].moved == 8 * 32 * 8
    assert found[1].gbps == 8 * 32 * 12 / 0.5e-6 / 1e9
    assert found[1].share == round(found[1].gbps / 1000, 4)
    assert isinstance(bench._clock, FakeClock) and bench._clock.sessions == 1


@pytest.mark.usefixtures("one_kernel")
def test_the_run_goes_on_after_a_failure_and_a_wrong_result() -> None:
    bench = bench_of("softmax", names=("bad", "pytorch", "off", "without"))

    def bad(x: Tensor) -> Tensor:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.\nTried to allocate ...")

    for name, calls in (
        ("bad", {"softmax": bad}),
        ("off", {"softmax": F.sigmoid}),
        ("without", {}),
    ):
        bench._libraries[name] = Provider(name, "1", calls)
    found = bench.kernel_times(Cell("softmax", 8, 32, "float32"))
    assert [(e.provider, e.status, e.time is None) for e in found[::2]] == [
        ("bad", "failed", True),
        ("pytorch", "ok", False),
        ("off", "wrong", True),
    ]
    assert found[0].note == "out of memory"
    assert bench.versions() == {"bad": "1", "off": "1", "without": "1"}


def test_a_profile_that_does_not_fit_is_taken_again_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One provider runs a kernel of the name of the copy; only its own times are lost."""

    def call(subject: Subject, trial: Any, direction: str) -> Callable[[], object]:
        name = NAME if trial.call is subject.reference else "kernel"
        return lambda: [name]

    monkeypatch.setattr(runner, "_call", call)
    found = bench_of("softmax", names=("pytorch", "textbook")).kernel_times(
        Cell("softmax", 4, 8, "float32")
    )
    assert [each.status for each in found] == ["failed", "failed", "ok", "ok"]
    assert "copies stand between" in found[0].note


def test_a_reference_that_fails_fails_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    def expected_of(*given: object) -> None:
        raise torch.cuda.OutOfMemoryError("out")

    monkeypatch.setattr(runner, "expected_of", expected_of)
    found = bench_of("softmax").kernel_times(Cell("softmax", 4, 8, "float32"))
    assert {(e.status, e.note) for e in found} == {
        ("failed", "the reference failed: out of memory")
    }


def test_latency_is_of_inference_and_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(call: Callable[[], object]) -> list[float]:
        call()
        return [1.0, 2.0, 3.0]

    monkeypatch.setattr(runner, "latencies", timed)
    bench = bench_of("softmax", "rmsnorm_int8", names=("textbook",))
    found = bench.latencies(Cell("softmax", 4, 8, "float32"))
    assert [each.direction for each in found] == ["forward", "forward + backward"]
    assert found[1].time == Spread(2.0, 1.4, 2.6) and found[1].gbps is None
    (alone,) = bench.latencies(Cell("rmsnorm_int8", 4, 8, "float32"))
    assert alone.direction == "forward" and alone.status == "ok"


def test_warming_up_runs_every_cell_in_other_processes() -> None:
    bench = bench_of("softmax", names=("textbook",))
    cells = [Cell("softmax", 4, columns, "float32") for columns in (4, 8, 16)]
    steps: list[int] = []
    until = time.monotonic() + 200
    assert warm_up(bench, cells, 1, until, lambda: steps.append(1)) == 3 == len(steps)
    assert warm_up(bench, cells[:1], 1, math.inf, lambda: steps.append(1)) == 1  # no limit
    assert warm_up(bench, cells, 1, time.monotonic(), lambda: steps.append(1)) == 0


# Records.


def measurement(provider: str, median: float, columns: int = 8, **changed: Any) -> Measurement:
    spread = Spread(median, median * 0.9, median * 1.1)
    given = {"op": "rmsnorm", "rows": 4, "columns": columns, "dtype": "bfloat16"}
    given |= {"direction": "forward", "provider": provider, "status": "ok"}
    given |= {"moved": 4 * 4 * columns, "calls": 12, "kernels": 1, "time": spread, **changed}
    return with_share(Measurement(**given), 0.128)


ENVIRONMENT = {"gpu": "a GPU", "torch": "2", "kgen": "0.1", "liger": "1"}
RESULTS = Results(
    (Run(ENVIRONMENT, {"calls": 12}, 0.128, ("softmax 4x8 float32",)),),
    (
        measurement("liger", 2.0),
        measurement("kgen", 1.0),
        measurement("kgen", 4.0, 16),
        measurement("liger", 2.0, 16),
        measurement("compile", 8.0, 16),
        measurement("kgen", 2.0, direction="backward"),
        measurement("liger", 1.0, direction="backward"),
        measurement("quack", 1.0, status="failed", note="a | b", time=None),
        measurement("kgen", 3.0, op="add_rmsnorm"),
        measurement("kgen", 3.0, op="dyt"),
    ),
    (measurement("kgen", 30.0, moved=0, direction="forward + backward"),),
)


def test_spread_is_between_the_nearest_numbers() -> None:
    assert spread_of([5.0, 1.0, 3.0, 2.0, 4.0, 6.0]) == Spread(3.5, 2.0, 5.0)
    assert spread_of([7.0]) == Spread(7.0, 7.0, 7.0)


def test_results_come_back_from_their_file(tmp_path: Path) -> None:
    Store(tmp_path / "new", run=RESULTS.runs[0], measurements=list(RESULTS.measurements)).write()
    held = read_results(tmp_path / "new" / FILE)
    assert held.measurements == RESULTS.measurements and held.runs == RESULTS.runs
    (tmp_path / FILE).write_text(as_json(RESULTS))
    assert read_results(tmp_path / FILE) == RESULTS
    values = json.loads(as_json(RESULTS))
    assert values["measurements"][0]["gbps"] == pytest.approx(0.1, abs=0.05)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '{"format": 1, "runs": [{}]}'])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(KgenError, match=r"is no file of `kgen bench`"):
        read_results(tmp_path / FILE)
    (tmp_path / FILE).write_text('{"format": 9}')
    with pytest.raises(KgenError, match="has format 9"):
        read_results(tmp_path / FILE)


def test_what_is_measured_again_replaces_what_was_there() -> None:
    again = Results((), (measurement("kgen", 0.5), measurement("kgen", 0.5, 32)), ())
    joined = RESULTS.joined(again)
    assert len(joined.measurements) == len(RESULTS.measurements) + 1
    (first,) = (e for e in joined.measurements if e.key == RESULTS.measurements[1].key)
    assert first.time == again.measurements[0].time


def test_runs_of_another_machine_are_not_joined() -> None:
    require_same(Path("it"), RESULTS, {**ENVIRONMENT, "quack": "3"})
    with pytest.raises(KgenError, match="measured with torch 2, and here it is 3"):
        require_same(Path("it"), RESULTS, {**ENVIRONMENT, "torch": "3"})


CELLS = [Cell("softmax", 4, columns, "float32") for columns in (1, 2, 3)]


def test_the_time_limit_stops_between_cells(tmp_path: Path) -> None:
    store = Store(tmp_path, run=Run(ENVIRONMENT, {}))
    until = time.monotonic() + 0.2

    def slow(cell: Cell) -> list[Measurement]:
        time.sleep(0.15)
        return [measurement("kgen", 1.0, cell.columns)]

    measure(slow, lambda cell: [], CELLS, [], store, until, lambda: None)
    held = read_results(tmp_path / FILE)
    assert len(held.measurements) == 2
    assert held.runs[0].missing == ("softmax 4x3 float32",)


def test_what_there_is_is_written_if_a_cell_stops_the_run(tmp_path: Path) -> None:
    store = Store(tmp_path, run=Run(ENVIRONMENT, {}))

    def failing(cell: Cell) -> list[Measurement]:
        if cell.columns == 2:
            raise KgenError("the GPU gave up")
        return [measurement("kgen", 1.0, cell.columns)]

    with pytest.raises(KgenError):
        measure(failing, lambda cell: [], CELLS, [], store, math.inf, lambda: None)
    held = read_results(tmp_path / FILE)
    assert len(held.measurements) == 1 and len(held.runs[0].missing) == 2


# Pages.


def test_tables_have_a_row_a_shape_and_kgens_ops_first() -> None:
    found = tables(RESULTS.measurements)
    assert [(t.op, t.direction) for t in found] == [
        ("rmsnorm", "forward"),
        ("rmsnorm", "backward"),
        ("add_rmsnorm", "forward"),
        ("dyt", "forward"),
    ]
    assert found[0].providers == ("liger", "kgen", "compile", "quack")
    assert [cell.columns for cell, _ in found[0].rows] == [8, 16]
    assert found[0].rows[0][1][2] is None
    assert providers_in(RESULTS.measurements)[0] == "kgen"


def test_ratios_are_to_the_fastest_of_the_others() -> None:
    found = {(r.cell.columns, r.direction): r for r in ratios(RESULTS.measurements)}
    assert found[8, "forward"].value == 2.0 and found[16, "forward"].value == 0.5
    assert found[16, "forward"].other == "liger" and found[8, "backward"].value == 0.5
    (compiled,) = ratios(RESULTS.measurements, ["compile"])
    assert compiled.value == 2.0
    assert geometric_mean([2.0, 0.5]) == pytest.approx(1.0) and math.isnan(geometric_mean([]))
    (whole,) = ratios(together(RESULTS.measurements))
    assert (whole.direction, whole.value) == ("both", 1.0)


def test_the_page_says_it_all() -> None:
    text = report.page(RESULTS, ("rmsnorm-forward-bfloat16.png",))
    lines = text.splitlines()
    assert "| rmsnorm | bfloat16 | forward | 1.00 | 0.50 | 1.00 | 2.00 | - |" in lines
    assert "| rmsnorm | bfloat16 | both | 1.00 | 1.00 | 1.00 | - | - |" in lines
    assert "kgen is slower than the fastest of the others in 2 of 3 places." in lines
    assert "| rmsnorm | 4x16 | bfloat16 | forward | liger | 0.50 |" in lines
    assert "| 4x8 | 0 (50%) | 0 (100%) | - | failed |" in lines
    assert "| rmsnorm | quack | forward: failed | a \\| b | 4x8 |" in lines
    assert "| 4x8 | 30.0 |" in lines
    assert "The time was over before these: softmax 4x8 float32." in lines
    assert "![rmsnorm forward, bfloat16](rmsnorm-forward-bfloat16.png)" in lines
    assert text.count("](") == 1


def test_a_page_of_one_provider_compares_nothing() -> None:
    alone = replace(RESULTS, measurements=(measurement("kgen", 1.0),))
    assert "Beside the others" not in report.page(alone)


def test_csv_has_a_line_a_measurement() -> None:
    lines = report.csv_text(RESULTS).splitlines()
    assert lines[2] == "rmsnorm,forward,4,8,bfloat16,kgen,ok,,128,12,1,1.0,0.9,1.1,0.1,1.0"
    assert len(lines) == 1 + len(RESULTS.measurements) + len(RESULTS.latencies)


def test_plots_are_drawn_where_matplotlib_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("importlib.util.find_spec", lambda name: None)
        assert plots.draw_all(RESULTS, tmp_path) == ()
        (tmp_path / "rmsnorm-forward-bfloat16.png").touch()
        assert plots.draw_all(RESULTS, tmp_path) == ("rmsnorm-forward-bfloat16.png",)
    pytest.importorskip("matplotlib")
    assert plots.draw_all(RESULTS, tmp_path) == ("rmsnorm-forward-bfloat16.png",)
    assert (tmp_path / "rmsnorm-forward-bfloat16.png").read_bytes().startswith(b"\x89PNG")


# The command.


@pytest.fixture
def kgen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Result]]:
    monkeypatch.chdir(ROOT)
    yield lambda *words: CliRunner().invoke(main, ["bench", *map(str, words)])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nosuch"], "there is no spec 'nosuch'"),
        (["rmsnorm", "--shapes", "9"], "--shapes is '9'"),
        (["rmsnorm", "--provider", "nvidia"], "--provider is 'nvidia', which is not known"),
        (["rmsnorm", "--dtype", "int8"], "Invalid value for '--dtype'"),
        (["rmsnorm", "--only-warm-up"], "--only-warm-up needs --warm-up-jobs"),
        (["rmsnorm", "--shapes", "1x999999"], "no op takes any of these shapes"),
        (["rmsnorm", "--generated", "nowhere"], "run `kgen build specs/rmsnorm.yaml`"),
        (["--page", "nowhere"], "there is no 'nowhere/results.json'"),
    ],
)
def test_bad_usage_ends_with_2(kgen: Callable[..., Result], words: list[str], message: str) -> None:
    result = kgen(*words)
    assert result.exit_code == 2 and message in result.output, result.output


@pytest.mark.skipif(HAS_GPU, reason="there is a GPU")
def test_without_a_gpu_nothing_is_measured(kgen: Callable[..., Result]) -> None:
    result = kgen("rmsnorm")
    assert result.exit_code == 2
    assert result.output.startswith("error: kgen bench measures on a GPU: PyTorch finds no GPU")


def test_without_pytorch_it_says_so(
    kgen: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = kgen("rmsnorm", "--provider", "kgen")
    assert result.exit_code == 2
    assert result.output.startswith("error: kgen bench needs torch, which is not installed")


def test_a_page_is_made_again_without_a_gpu(kgen: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(as_json(RESULTS))
    result = kgen("--page", tmp_path, "--no-plots")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "page.md").read_text() == report.page(RESULTS)
    assert (tmp_path / "results.csv").read_text() == report.csv_text(RESULTS)


@pytest.mark.usefixtures("one_kernel")
def test_a_run_writes_its_results_and_can_be_continued(
    kgen: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a fake clock, on the CPU: everything but the measuring itself."""

    def start(bench: Bench) -> float:
        bench.device, bench._clock, bench.copy_gbps = "cpu", FakeClock(), 1000.0
        return 1000.0

    monkeypatch.setattr(Bench, "start", start)
    monkeypatch.setattr("kgen.bench.environment.gpu_problem", lambda: None)
    monkeypatch.setattr("kgen.bench.environment.environment", lambda versions: dict(ENVIRONMENT))
    words = ["softmax", "--provider", "textbook", "--out", str(tmp_path / "it"), "--no-plots"]
    result = kgen(*words, "--shapes", "4x8")
    assert result.exit_code == 0, result.output
    assert "softmax forward, bfloat16: GB/s (share of a copy)" in result.output
    assert kgen(*words).exit_code == 2  # it exists
    assert kgen(*words, "--shapes", "4x16", "--append").exit_code == 0
    held = read_results(tmp_path / "it" / FILE)
    assert [each.columns for each in held.measurements] == [8, 8, 16, 16] and len(held.runs) == 2
    assert (tmp_path / "it" / "page.md").is_file()
    over = kgen("softmax", "--provider", "textbook", "--shapes", "4x8", "--time-limit", "0")
    assert over.exit_code == 1 and "the time was over before 1 cells" in over.output


@pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")
def test_two_cells_on_a_gpu(kgen: Callable[..., Result], tmp_path: Path) -> None:
    words = [
        "rmsnorm",
        "--provider",
        "kgen",
        "--provider",
        "pytorch",
        "--out",
        str(tmp_path / "it"),
    ]
    result = kgen(*words, "--shapes", "4096x1024,1024x4096")
    assert result.exit_code == 0, result.output
    held = read_results(tmp_path / "it" / FILE)
    assert len(held.measurements) == 8 and held.runs[0].copy_gbps > 10
    for each in held.measurements:
        assert each.status == "ok" and each.time is not None and each.share is not None
        assert 0.01 < each.share < 1.5 and each.time.p20 <= each.time.median <= each.time.p80
