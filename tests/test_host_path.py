"""Calls like an earlier one skip checks and plans, and give what a first call gives, to the bit."""

from __future__ import annotations

import importlib
import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from types import ModuleType
from typing import Any

import pytest
import torch
import triton
from kgen.testing.interpreter import repair
from small_op import ROOT
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.bias import causal_lower_right

Tensors = list[torch.Tensor | None]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """The ``op`` module of a generated package, with nothing remembered."""
    monkeypatch.syspath_prepend(str(ROOT / "generated"))

    def found(name: str) -> ModuleType:
        op = importlib.import_module(f"{name}.op")
        if not op.INTERPRETED and not torch.cuda.is_available():
            pytest.skip("needs a GPU or TRITON_INTERPRET=1")
        if op.INTERPRETED:
            repair()
        op._remembered.clear()
        return op

    return found


def device_of(op: ModuleType) -> str:
    return "cpu" if op.INTERPRETED else "cuda"


def draw(shape: tuple[int, ...], kind: str, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Random values in memory of some kind; the same for every kind and call."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))
    values = values.to(device, dtype)
    if kind == "wide rows":
        room = torch.zeros((*shape[:-1], shape[-1] + 16), dtype=dtype, device=device)
        return room[..., : shape[-1]].copy_(values)
    if kind == "odd rows":
        room = torch.zeros((*shape[:-1], shape[-1] + 3), dtype=dtype, device=device)
        return room[..., : shape[-1]].copy_(values)
    if kind == "odd address":
        room = torch.zeros(values.numel() + 1, dtype=dtype, device=device)
        return room[1:].view(shape).copy_(values)
    assert kind == "plain"
    return values


KINDS = ("plain", "wide rows", "odd rows", "odd address")
DTYPES = (torch.float32, torch.bfloat16, torch.float64)


def variants(chance: random.Random) -> Iterator[dict[str, Any]]:
    """Calls of rmsnorm that differ in all that a call can differ in."""
    shapes = [(3, 32), (5, 32), (1, 32), (2, 2, 32), (3, 48), (3, 33), (3, 1), (40, 32), (0, 32)]
    for _ in range(60):
        yield {
            "shape": chance.choice(shapes),
            "kinds": [chance.choice(KINDS) for _ in range(2)],
            "weight": chance.choice(["plain", "odd address", None]),
            "dtypes": [chance.choice(DTYPES) for _ in range(2)],
            "needs": [chance.random() < 0.7 for _ in range(2)],
            "grad": chance.random() < 0.8,
            "eps": chance.choice([1e-6, 0.1, 1]),
        }


def run(op: ModuleType, each: dict[str, Any]) -> Tensors:
    """The output and the gradients that are needed."""
    device, shape = device_of(op), each["shape"]
    x = draw(shape, each["kinds"][0], each["dtypes"][0], device).requires_grad_(each["needs"][0])
    weight = None
    if each["weight"] is not None:
        weight = draw(shape[-1:], each["weight"], each["dtypes"][1], device)
        weight.requires_grad_(each["needs"][1])
    with torch.set_grad_enabled(each["grad"]):
        y = op.rmsnorm(x, weight, eps=each["eps"])
    leaves = [t for t in (x, weight) if t is not None and t.requires_grad and each["grad"]]
    dy = draw(shape, each["kinds"][1], each["dtypes"][0], device)
    found = torch.autograd.grad(y, leaves, dy) if leaves else ()
    return [y.detach(), *found]


def test_a_later_call_gives_what_a_first_one_gives(module: Callable[[str], ModuleType]) -> None:
    op = module("rmsnorm")
    chance = random.Random(0)
    calls = list(variants(chance))
    expected = []
    for each in calls:
        op._remembered.clear()
        expected.append(run(op, each))
    op._remembered.clear()
    order = list(range(len(calls))) * 3
    chance.shuffle(order)
    for index in order:
        for found, wanted in zip(run(op, calls[index]), expected[index], strict=True):
            assert found is not None and wanted is not None
            assert found.dtype is wanted.dtype and found.stride() == wanted.stride()
            assert torch.equal(found, wanted), calls[index]


def counted(op: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The calls that were worked out: grows by one each time."""
    made: list[object] = []

    class Counted(op._Call):  # type: ignore[misc, name-defined]
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(op, "_Call", Counted)
    return made


def test_what_is_worked_out_anew(
    module: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    op = module("rmsnorm")
    made = counted(op, monkeypatch)
    device = device_of(op)
    x = draw((4, 32), "plain", torch.float32, device)
    weight = draw((32,), "plain", torch.float32, device)
    changes: list[tuple[torch.Tensor, torch.Tensor | None]] = [
        (x, weight),
        (x.bfloat16(), weight),
        (x, weight.double()),
        (x, None),
        (x[:2], weight),
        (x.view(2, 2, 32), weight),
        (draw((4, 32), "wide rows", torch.float32, device), weight),
        (draw((4, 32), "odd address", torch.float32, device), weight),
        (x, draw((32,), "odd address", torch.float32, device)),
        (x.clone().requires_grad_(), weight),
        (x, weight.clone().requires_grad_()),
        (x.clone().requires_grad_(), torch.nn.Parameter(weight)),
    ]
    for count, arguments in enumerate(changes, 1):
        for eps in (1e-6, 0.5):
            op.rmsnorm(*arguments, eps=eps)
            assert len(made) == count
    with torch.no_grad():
        op.rmsnorm(*changes[-1])
    assert len(made) == len(changes) + 1
    for arguments in changes:
        op.rmsnorm(*(None if t is None else t.detach().clone() for t in arguments))
    again = len(made)
    for arguments in changes[:7]:
        op.rmsnorm(*arguments, on_unsupported="copy")
    assert len(made) == again


def test_launches_of_backward_are_kept(
    module: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    op = module("rmsnorm")
    planned: list[object] = []
    plan = op._plan_backward
    monkeypatch.setattr(op, "_plan_backward", lambda *a: planned.append(a) or plan(*a))
    device = device_of(op)
    x = draw((4, 32), "plain", torch.float32, device).requires_grad_()
    weight = draw((32,), "plain", torch.float32, device).requires_grad_()
    dy = draw((4, 32), "plain", torch.float32, device)
    frozen = [x.detach(), weight.detach()]
    cases: list[tuple[list[torch.Tensor], torch.Tensor]] = [
        ([x, weight], dy),
        ([x, frozen[1]], dy),
        ([frozen[0], weight], dy),
        ([x, weight], draw((4, 32), "odd rows", torch.float32, device)),
        ([x, weight], draw((4, 32), "odd address", torch.float32, device)),
        ([x, weight], dy[:1].expand(4, 32)),
    ]
    found: list[tuple[torch.Tensor, ...]] = []
    for arguments, above in cases * 2:
        leaves = [t for t in arguments if t.requires_grad]
        found.append(torch.autograd.grad(op.rmsnorm(*arguments), leaves, above))
    assert len(planned) == len(cases)
    for first, second in zip(found[: len(cases)], found[len(cases) :], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_copied_gradient_is_copied_each_time(module: Callable[[str], ModuleType]) -> None:
    op = module("rmsnorm")
    x = draw((4, 32), "plain", torch.float32, device_of(op)).requires_grad_()
    spread = torch.randn(4, 1, device=x.device).expand(4, 32)
    (expected,) = torch.autograd.grad(op.rmsnorm(x), x, spread.contiguous())
    for _ in range(3):
        before = op.calls["backward.copied"]
        (found,) = torch.autograd.grad(op.rmsnorm(x), x, spread)
        assert torch.equal(found, expected) and op.calls["backward.copied"] == before + 1


def test_errors_after_a_call_that_was_right(module: Callable[[str], ModuleType]) -> None:
    op = module("rmsnorm")
    x = draw((4, 32), "plain", torch.float32, device_of(op))
    weight = draw((32,), "plain", torch.float32, device_of(op))
    op.rmsnorm(x, weight, eps=1.0)
    wrong: list[tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
        ((x, weight), {"eps": True}, TypeError, "eps is a bool"),
        ((x, weight), {"eps": -1.0}, ValueError, "eps is -1.0"),
        ((x, weight), {"eps": float("nan")}, ValueError, "eps is nan"),
        ((x, weight), {"on_unsupported": []}, ValueError, "on_unsupported"),
        ((x, weight), {"on_unsupported": "never"}, ValueError, "on_unsupported"),
        ((x.int(), weight), {}, TypeError, "x has dtype"),
        ((x.tolist(), weight), {}, TypeError, "x is a list"),
        ((None, weight), {}, TypeError, "x is a NoneType"),
        ((x, weight[:31]), {}, ValueError, "weight has shape"),
        ((x.t(), None), {}, ValueError, "x has shape"),
        ((x.to_sparse(), None), {}, TypeError, "x has layout"),
        ((x.to("meta"), None), {}, ValueError, "x is on meta"),
    ]
    for arguments, params, error, message in wrong * 2:
        with pytest.raises(error, match=f"^rmsnorm: {message.split()[0]}"):
            op.rmsnorm(*arguments, **params)


def test_a_pending_negation_is_seen(module: Callable[[str], ModuleType]) -> None:
    op = module("rmsnorm")
    x = draw((4, 32), "plain", torch.float32, device_of(op))
    expected = op.rmsnorm(-x)
    op.rmsnorm(x)
    with pytest.raises(ValueError, match="x "):
        op.rmsnorm(torch._neg_view(x))
    assert torch.equal(op.rmsnorm(torch._neg_view(x), on_unsupported="copy"), expected)


def test_flags_are_kept_apart_and_ints_by_their_size(
    module: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    op = module("gated_rmsnorm")
    made = counted(op, monkeypatch)
    device = device_of(op)
    x, z = (draw((3, 32), "plain", torch.float32, device) for _ in range(2))
    before, after = (op.gated_rmsnorm(x, z, norm_before_gate=flag) for flag in (True, False))
    assert len(made) == 2 and not torch.equal(before, after)
    for flag, expected in ((True, before), (False, after)):
        assert torch.equal(op.gated_rmsnorm(x, z, norm_before_gate=flag), expected)
    assert len(made) == 2


def test_a_seed_is_no_fact(
    module: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    op = module("add_dropout_layernorm")
    made = counted(op, monkeypatch)
    x, residual = (draw((3, 32), "plain", torch.float32, device_of(op)) for _ in range(2))
    found = [op.add_dropout_layernorm(x, residual, seed=s)[0] for s in (1, 2, 2**40, 1)]
    assert len(made) == 1
    assert torch.equal(found[0], found[3]) and not torch.equal(found[0], found[1])


def test_tensors_that_are_not_plain_are_looked_at_each_time(
    module: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    op = module("rmsnorm")
    made = counted(op, monkeypatch)
    x = draw((4, 32), "plain", torch.float32, device_of(op)).as_subclass(
        type("Own", (torch.Tensor,), {})
    )
    expected = op.rmsnorm(x.as_subclass(torch.Tensor))
    before = len(made)
    for count in (1, 2):
        assert torch.equal(op.rmsnorm(x).as_subclass(torch.Tensor), expected)
        assert len(made) == before + count
    launch = importlib.import_module("rmsnorm.launch")
    assert launch.facts(x) is launch.UNKNOWN and launch.facts(3) is launch.UNKNOWN
    assert launch.facts(None) is None
    assert launch.facts(causal_lower_right(2, 2)) is launch.UNKNOWN


def test_function_transforms_raise_as_ever(module: Callable[[str], ModuleType]) -> None:
    op = module("rmsnorm")
    x = draw((4, 32), "plain", torch.float32, device_of(op))
    leaf = x.clone().requires_grad_()
    op.rmsnorm(x), op.rmsnorm(leaf), op.rmsnorm(x[0])
    with pytest.raises(RuntimeError, match="setup_context"):
        torch.func.grad(lambda v: op.rmsnorm(v).sum())(x)
    with pytest.raises(RuntimeError, match="setup_context"):
        torch.func.grad(lambda v: (op.rmsnorm(leaf) * v).sum())(x)
    with pytest.raises(RuntimeError):
        torch.func.vmap(op.rmsnorm)(x)


def test_saved_tensors_may_come_back_in_other_strides(
    module: Callable[[str], ModuleType],
) -> None:
    op = module("rmsnorm")
    x = draw((4, 32), "plain", torch.float32, device_of(op)).requires_grad_()
    (expected,) = torch.autograd.grad(op.rmsnorm(x).sum(), x)

    def spread(tensor: torch.Tensor) -> torch.Tensor:
        room = tensor.new_zeros(*tensor.shape[:-1], tensor.shape[-1] + 5)
        return room[..., : tensor.shape[-1]].copy_(tensor) if tensor.dim() > 1 else tensor

    for _ in range(2):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, spread):
            y = op.rmsnorm(x)
        (found,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(found, expected)


def test_no_more_is_remembered_than_is_allowed(
    module: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    op = module("rmsnorm")
    monkeypatch.setattr(importlib.import_module("rmsnorm.launch"), "MOST_REMEMBERED", 3)
    for rows in range(1, 9):
        op.rmsnorm(draw((rows, 32), "plain", torch.float32, device_of(op)))
        assert len(op._remembered) <= 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_column_sums_of_few_rows_take_one_launch(
    module: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    op = module("layernorm")
    device = device_of(op)
    launched: list[str] = []
    launch = importlib.import_module("layernorm.launch").Launch
    start = launch.__call__

    def watched(self: Any, *arguments: Any) -> None:
        launched.append(self.kernel.__name__)
        start(self, *arguments)

    monkeypatch.setattr(launch, "__call__", watched)
    for rows, few, names in (
        (70, 16, ["layernorm_backward_resident"]),
        (70, 0, ["layernorm_backward_resident", "layernorm_sum_groups"]),
        (600, 16, ["layernorm_backward_resident", "layernorm_sum_groups"]),
    ):
        monkeypatch.setattr(op, "FEW_TILES", few)
        op._remembered.clear()
        x = draw((rows, 64), "plain", dtype, device).requires_grad_()
        weight, bias = (draw((64,), "plain", dtype, device).requires_grad_() for _ in range(2))
        dy = draw((rows, 64), "plain", dtype, device)
        y = op.layernorm(x, weight, bias)
        launched.clear()
        dx, dweight, dbias = torch.autograd.grad(y, (x, weight, bias), dy, retain_graph=True)
        assert launched == names
        wide = [t.detach().double().requires_grad_() for t in (x, weight, bias)]
        expected = torch.autograd.grad(op.layernorm_reference(*wide), wide, dy.double())
        found = torch.autograd.grad(y, (x, weight, bias), dy, retain_graph=True)
        for first, again, value in zip((dx, dweight, dbias), found, expected, strict=True):
            assert torch.equal(first, again) and first.dtype is dtype
            torch.testing.assert_close(first.double(), value, atol=2e-2, rtol=1.6e-2)
        # Without sums nothing is gained by walking the tiles one after another.
        launched.clear()
        (alone,) = torch.autograd.grad(y, x, dy)
        assert torch.equal(alone, dx)


# --- the direct launch, whose parts are stood in for without a GPU -------------------------------


class Kernel(triton.JITFunction):  # type: ignore[misc, type-arg]
    """Records how it is launched by way of Triton."""

    def __init__(self, log: list[tuple[Any, ...]], result: Any) -> None:
        self.log, self.result = log, result
        self.arg_names = ["x_ptr", "n_columns", "eps", "ROWS", "BLOCK"]
        self.pre_run_hooks: list[object] = []

    def __getitem__(self, grid: object) -> Callable[..., object]:
        def launch(*arguments: object, **constants: object) -> object:
            self.log.append(("triton", grid, arguments, constants))
            return self.result

        return launch


class Compiled(triton.compiler.CompiledKernel):  # type: ignore[misc]
    """Records how it is started."""

    def __init__(self, log: list[tuple[Any, ...]]) -> None:
        self.log = log
        self.function, self.packed_metadata = "function", "metadata"
        self.launcher = Launcher(log)

    @property
    def run(self) -> Launcher:
        return self.launcher


class Launcher:
    """Records how a compiled kernel is started: by way of it, or by the function it calls."""

    launch_cooperative_grid, launch_pdl = False, True

    def __init__(self, log: list[tuple[Any, ...]]) -> None:
        self.log = log
        self.global_scratch_size = self.profile_scratch_size = 0

    def __call__(self, *arguments: object) -> None:
        self.log.append(("direct", *arguments))

    def launch(self, *arguments: object) -> None:
        self.log.append(("plain", *arguments))


class Stage:
    """A ``Launch`` on a machine with two GPUs that are not there."""

    def __init__(self, launch: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.current = 1
        monkeypatch.setattr(launch, "IS_KNOWN", True)
        monkeypatch.setattr(launch, "IS_PLAIN", False)
        monkeypatch.setattr(launch, "current_device", lambda: self.current)
        monkeypatch.setattr(launch, "stream_of", lambda index: f"stream {index}")
        monkeypatch.setattr(torch.cuda, "device", nullcontext)
        self.kernel = Kernel(self.log, Compiled(self.log))
        device = torch.device("cuda", 1)
        options = {"ROWS": 2, "BLOCK": 8, "num_warps": 4}
        self.launch = launch.Launch(self.kernel, (7,), device, 5, **options)

    def start(self) -> str:
        """Launches once: how it was done."""
        self.launch(("x",), 0.5)
        return str(self.log[-1][0])


@pytest.fixture
def stage(module: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> Stage:
    module("rmsnorm")
    return Stage(importlib.import_module("rmsnorm.launch"), monkeypatch)


def test_the_second_launch_is_direct(stage: Stage) -> None:
    assert [stage.start() for _ in range(3)] == ["triton", "direct", "direct"]
    options = {"ROWS": 2, "BLOCK": 8, "num_warps": 4}
    assert stage.log[0] == ("triton", (7, 1, 1), ("x", 5, 0.5), options)
    nobody = (None, None, None)
    assert stage.log[1] == (
        *("direct", 7, 1, 1, "stream 1", "function", "metadata", *nobody),
        *("x", 5, 0.5, 2, 8),
    )


@pytest.mark.parametrize("scratch", [None, "global_scratch_size", "profile_scratch_size"])
def test_a_launcher_that_has_nothing_to_add_is_left_out(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, scratch: str | None
) -> None:
    monkeypatch.setattr(importlib.import_module("rmsnorm.launch"), "IS_PLAIN", True)
    if scratch is not None:
        setattr(stage.kernel.result.launcher, scratch, 64)
    start = "direct" if scratch else "plain"
    assert [stage.start() for _ in range(3)] == ["triton", start, start]
    if scratch is None:
        no_room, nobody = (None, None), (None, None, None)
        assert stage.log[1] == (
            *("plain", 7, 1, 1, "stream 1", "function", False, True, *no_room),
            *("metadata", *nobody, "x", 5, 0.5, 2, 8),
        )


def test_triton_is_asked_when_somebody_listens(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.start()
    runtime = triton.knobs.runtime
    for hook in (runtime.launch_enter_hook, runtime.launch_exit_hook):
        hook.add(print)
        try:
            assert stage.start() == "triton"
        finally:
            hook.remove(print)
        assert stage.start() == "direct"
    stage.kernel.pre_run_hooks.append(print)
    assert stage.start() == "triton"
    stage.kernel.pre_run_hooks.clear()
    monkeypatch.setattr(runtime, "launch_enter_hook", print)
    assert stage.start() == "triton"
    monkeypatch.setattr(runtime, "launch_enter_hook", None)
    assert stage.start() == "triton"


def test_triton_is_asked_when_another_device_is_current(stage: Stage) -> None:
    stage.start()
    stage.current = 0
    assert stage.start() == "triton"
    stage.current = 1
    assert stage.start() == "direct"


def test_triton_is_asked_where_its_version_or_kernel_is_not_known(
    stage: Stage, module: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = importlib.import_module("rmsnorm.launch")
    monkeypatch.setattr(launch, "IS_KNOWN", False)
    assert [stage.start() for _ in range(2)] == ["triton", "triton"]
    monkeypatch.setattr(launch, "IS_KNOWN", True)
    stage.kernel.result = None
    assert [stage.start() for _ in range(2)] == ["triton", "triton"]


def under_a_fake_mode(op: ModuleType, leaf: torch.Tensor) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        op.rmsnorm(leaf)


def under_a_transform(op: ModuleType, leaf: torch.Tensor) -> None:
    torch.func.grad(lambda v: (op.rmsnorm(leaf) * v).sum())(leaf.detach())


def in_inference_mode(op: ModuleType, leaf: torch.Tensor) -> None:
    with torch.inference_mode():
        op.rmsnorm(leaf)
    op.rmsnorm(leaf.detach())


@pytest.mark.parametrize("first", [under_a_fake_mode, under_a_transform, in_inference_mode])
def test_nothing_is_kept_of_a_call_whose_tensors_were_others(
    module: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    first: Callable[[ModuleType, torch.Tensor], None],
) -> None:
    op = module("rmsnorm")
    launch = importlib.import_module("rmsnorm.launch").Launch
    leaf = draw((40, 32), "plain", torch.float32, device_of(op)).requires_grad_()
    weight = draw((32,), "plain", torch.float32, device_of(op)).requires_grad_()
    expected = torch.autograd.grad(op.rmsnorm(leaf, weight).sum(), (leaf, weight))
    (alone,) = torch.autograd.grad(op.rmsnorm(leaf).sum(), leaf)
    op._remembered.clear()
    with monkeypatch.context() as patch, suppress(Exception):
        # A compiled kernel would write where a tensor that is none seems to lie.
        patch.setattr(launch, "__call__", lambda *_: None)
        first(op, leaf)
    for _ in range(2):
        found = torch.autograd.grad(op.rmsnorm(leaf, weight).sum(), (leaf, weight))
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert torch.equal(torch.autograd.grad(op.rmsnorm(leaf).sum(), leaf)[0], alone)


# --- on a GPU -------------------------------------------------------------------------------------

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@needs_gpu
def test_compiled_kernels_are_started_directly(
    module: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    op = module("rmsnorm")
    if op.INTERPRETED:
        pytest.skip("needs compiled kernels")
    asked: list[object] = []
    launch = importlib.import_module("rmsnorm.launch")
    ask = launch.Launch.ask_triton
    monkeypatch.setattr(
        launch.Launch, "ask_triton", lambda self, a: asked.append(self) or ask(self, a)
    )
    x = torch.randn(100, 512, device="cuda", requires_grad=True)
    weight = torch.randn(512, device="cuda", requires_grad=True)
    found = []
    for _ in range(3):
        y = op.rmsnorm(x, weight)
        found.append([y, *torch.autograd.grad(y, (x, weight), x.detach())])
        if len(found) == 1:
            first = len(asked)
    assert first >= 2 and (len(asked) == first) == launch.IS_KNOWN
    for again in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], again, strict=True))
    told: list[object] = []
    triton.knobs.runtime.launch_enter_hook.add(told.append)
    try:
        op.rmsnorm(x, weight)
    finally:
        triton.knobs.runtime.launch_enter_hook.remove(told.append)
    assert len(told) == 1


@needs_gpu
def test_two_devices_in_turn(module: Callable[[str], ModuleType]) -> None:
    op = module("rmsnorm")
    if op.INTERPRETED or torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs and compiled kernels")
    values = torch.randn(100, 512)
    found = []
    for index, current in itertools.product((0, 1, 0, 1), (0, 1)):
        with torch.cuda.device(current):
            x = values.to(f"cuda:{index}").requires_grad_()
            y = op.rmsnorm(x)
            (dx,) = torch.autograd.grad(y, x, x.detach())
            assert y.device == dx.device == x.device
            assert torch.cuda.current_device() == current
            found.append((y.cpu(), dx.cpu()))
    for y, dx in found[1:]:
        assert torch.equal(y, found[0][0]) and torch.equal(dx, found[0][1])


@needs_gpu
def test_the_current_stream_is_launched_in(module: Callable[[str], ModuleType]) -> None:
    op = module("rmsnorm")
    if op.INTERPRETED:
        pytest.skip("needs compiled kernels")
    x = torch.randn(4096, 4096, device="cuda")
    expected = op.rmsnorm(x * 2)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        for _ in range(3):
            torch.cuda._sleep(10**7)
            found = op.rmsnorm(x * 2)
    side.synchronize()
    assert torch.equal(found, expected)
