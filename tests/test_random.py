"""``random(seed)``: the same numbers in kernels, in PyTorch and in the formulas, to the bit."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
import triton
import triton.language as tl
from kgen.build import render_op
from kgen.formulas import text
from kgen.interpret import run
from kgen.ir import RANDOM_ROUNDS, seeds_in
from kgen.load import load_text
from kgen.lower import lower
from kgen.philox import random, random_at
from kgen.schedule import schedule
from kgen.view import kernels_view
from small_op import built_op, shipped, small_op

SEEDS = (0, 1, -1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, -(2**63), 123456789012345)
STARTS = (0, 2**31 - 100, 2**32 - 100, 2**40, 2**50 + 1)
SEED = {"seed": "{type: int, default: 0}"}


@triton.jit(do_not_specialize=["seed"])
def draw(out_ptr, seed: tl.int64, start, N_ROUNDS: tl.constexpr, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    place = start + lane.to(tl.int64)
    first, second, third, fourth = tl.rand4x(seed, place, n_rounds=N_ROUNDS)
    tl.store(out_ptr + 4 * lane, first)
    tl.store(out_ptr + 4 * lane + 1, second)
    tl.store(out_ptr + 4 * lane + 2, third)
    tl.store(out_ptr + 4 * lane + 3, fourth)


@pytest.fixture(scope="module")
def device() -> str:
    if isinstance(draw, triton.JITFunction) and not torch.cuda.is_available():
        pytest.skip("needs a GPU or TRITON_INTERPRET=1")
    return "cuda" if isinstance(draw, triton.JITFunction) else "cpu"


DRAWN = """
op: drawn
summary: The numbers themselves, through every kernel that draws some.
source: a test
inputs:
  x: matrix
  weight: {kind: per_column, absent: 1}
params:
  seed: {type: int, default: 0}
outputs:
  y: {dtype: x}
forward: |
  drawn = random(seed)
  center = mean(drawn + x)
  y = where(center >= 0, drawn + x, 0) * weight
backward: |
  again = random(seed)
  dx = where(mean(dy * again) >= 0, dy * again, 0)
  dweight = sum_rows(dy * again)
reference: |
  y = random(seed, x) + 0 * x
  return y if weight is None else y * weight
tuning:
  forward:
    2048: {schedule: reload, rows: 1, warps: 4}
    4096: {schedule: streaming}
    streaming: {block: 1024, warps: 4}
  backward:
    2048: {schedule: reload, rows: 1, warps: 4}
    4096: {schedule: split}
    streaming: {block: 1024, warps: 4}
    split: {block: 512, rows: 2, warps: 4}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("random")


@pytest.fixture(scope="module")
def op(folder: Path) -> ModuleType:
    """The wrapper of an op that draws random numbers."""
    return built_op(shipped("dropout_rmsnorm").spec, folder, "kgen_random")


@pytest.fixture(scope="module")
def drawn_op(folder: Path) -> ModuleType:
    """The wrapper of an op that gives the numbers it draws."""
    return built_op(load_text(DRAWN, "specs/drawn.yaml"), folder, "kgen_random")


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("seed", SEEDS)
def test_triton_and_pytorch_draw_the_same(
    seed: int, start: int, device: str, op: ModuleType
) -> None:
    drawn = torch.empty(256, 4, device=device)
    draw[(1,)](drawn, seed, start, N_ROUNDS=RANDOM_ROUNDS, BLOCK=256)
    place = torch.arange(start, start + 256, device=device)
    for function in (random_at, op.random_at):
        assert torch.equal(function(seed, place), drawn)
    assert drawn.min() >= 0 and drawn.max() < 1
    assert len(drawn.unique()) > 1000


def test_the_published_numbers() -> None:
    """Philox4x32-7 for zeros, in the test vectors of Random123."""
    words = torch.tensor([0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48], dtype=torch.float32)
    assert torch.equal(random_at(0, torch.tensor(0)), words * 4.6566127342e-10)


@pytest.mark.parametrize("shape", [(3, 1), (3, 2), (3, 3), (3, 4), (2, 3, 5), (0, 7), (7,)])
def test_four_neighbours_share_a_place_and_each_row_begins_at_one(shape: tuple[int, ...]) -> None:
    n_columns = shape[-1]
    found = random(11, torch.empty(shape)).reshape(-1, n_columns)
    n_fours = -(-n_columns // 4)
    for row, numbers in enumerate(found):
        for column, number in enumerate(numbers):
            place = torch.tensor(row * n_fours + column // 4)
            assert number == random_at(11, place)[column % 4]


def test_numbers_are_uniform_and_know_nothing_of_their_neighbours() -> None:
    """Six standard deviations of what 2 ** 20 independent numbers give; the seed is fixed."""
    numbers = random(5, torch.empty(1024, 1024, dtype=torch.float64))
    bound = 6 / 1024
    assert abs(numbers.mean() - 0.5) < bound * 12**-0.5
    assert abs((numbers**2).mean() - 1 / 3) < bound * (4 / 45) ** 0.5
    counts = torch.histc(numbers, 16, 0.0, 1.0)
    assert (counts - 2**16).abs().max() < 6 * 2**8
    centered = (numbers - 0.5) * 12**0.5
    other = (random(6, numbers) - 0.5) * 12**0.5
    for apart in (1, 2, 3, 4, 5):
        assert abs((centered[:, apart:] * centered[:, :-apart]).mean()) < bound * 1.01
    assert abs((centered[1:] * centered[:-1]).mean()) < bound * 1.01
    assert abs((centered * other).mean()) < bound


def test_the_wrapper_carries_the_text_of_the_functions(op: ModuleType) -> None:
    carried = f"{inspect.getsource(random)}\n\n{inspect.getsource(random_at)}"
    assert f"\n\n\n{carried}\n\n" in Path(inspect.getfile(op)).read_text(encoding="utf-8")
    assert f"n_rounds={RANDOM_ROUNDS})``" in (random_at.__doc__ or "")
    assert f"range({RANDOM_ROUNDS})" in inspect.getsource(random_at)


def test_the_formulas_draw_what_the_reference_draws() -> None:
    program = small_op("y = x + random(seed + 1)", params=SEED).forward
    x = torch.zeros(3, 5, dtype=torch.float64)
    for seed in (0, 2**40, -7):
        found = run(program, {"x": x, "seed": seed})["y"]
        assert torch.equal(found, random(seed + 1, x))
        assert torch.equal(found, random(seed + 1, x.view(3, 1, 5)).view(3, 5))
        assert found.float().equal(random(seed + 1, x.float()))
        assert random(seed + 1, x.bfloat16()).dtype is torch.float32


@pytest.mark.parametrize("seed", SEEDS)
def test_a_kernel_draws_what_the_reference_draws(seed: int, op: ModuleType, device: str) -> None:
    x = torch.randn(5, 130, device=device, dtype=torch.float64)
    found = op.dropout_rmsnorm(x, seed=seed, rate=0.5)
    expected = op.dropout_rmsnorm_reference(x, seed=seed, rate=0.5)
    assert torch.equal(found == 0, expected == 0)
    torch.testing.assert_close(found, expected)
    share = (found == 0).double().mean().item()
    assert 0.4 < share < 0.6


@pytest.mark.parametrize("seed", [2**31 + 5, -(2**40)])
@pytest.mark.parametrize(
    ("n_rows", "n_columns", "forward", "backward"),
    [
        (5, 1, "resident", "resident"),
        (5, 2, "resident", "resident"),
        (5, 3, "resident", "resident"),
        (5, 4, "resident", "resident"),
        (5, 5, "resident", "resident"),
        (40, 7, "resident", "resident"),
        (5, 257, "resident", "resident"),
        (3, 1501, "reload", "reload"),
        (3, 2051, "streaming", "split"),
    ],
)
def test_every_kernel_draws_the_same_numbers_to_the_bit(
    n_rows: int,
    n_columns: int,
    forward: str,
    backward: str,
    seed: int,
    drawn_op: ModuleType,
    device: str,
) -> None:
    x = torch.zeros(n_rows, n_columns, device=device, requires_grad=True)
    weight = torch.ones(n_columns, device=device, requires_grad=True)
    expected = random(seed, x)
    drawn_op.calls.clear()
    y = drawn_op.drawn(x, weight, seed=seed)
    y.backward(torch.ones_like(y))
    assert drawn_op.calls[f"forward.{forward}"] == drawn_op.calls[f"backward.{backward}"] == 1
    assert x.grad is not None and weight.grad is not None
    assert torch.equal(y, expected)
    assert torch.equal(x.grad, expected)
    torch.testing.assert_close(weight.grad, expected.sum(0))


IN_CHUNKS = """
op: in_chunks
summary: The numbers themselves, where every chunk of a row has a program.
source: a test
inputs:
  x: matrix
params:
  seed: {type: int, default: 0}
outputs:
  y: {dtype: x}
forward: |
  y = random(seed) + 0 * x
backward: |
  dx = dy * random(seed)
reference: |
  return random(seed, x) + 0 * x
tuning:
  forward:
    2048: {schedule: streaming, block: 256, warps: 1}
  backward:
    2048: {schedule: streaming, block: 128, warps: 1}
"""


def test_programs_of_single_chunks_draw_the_numbers_of_their_columns(
    folder: Path, device: str
) -> None:
    op = built_op(load_text(IN_CHUNKS, "specs/in_chunks.yaml"), folder, "kgen_random")
    x = torch.zeros(3, 1501, device=device, requires_grad=True)
    y = op.in_chunks(x, seed=7)
    y.backward(torch.ones_like(y))
    assert op.calls["forward.streaming"] == op.calls["backward.streaming"] == 1
    assert torch.equal(y, random(7, x)) and x.grad is not None
    assert torch.equal(x.grad, random(7, x))


def test_a_seed_is_64_bits_wide_and_run_time() -> None:
    row_op = small_op(
        "other = seed + step\ny = x * random(other) + count",
        params=SEED | {"step": "{type: int, default: 1}", "count": "{type: int, default: 1}"},
    )
    assert seeds_in(row_op.forward) == {"other", "seed", "step"}
    for kernel in kernels_view(schedule(row_op)).kernels:
        lines = kernel.parameters.split("\n")
        assert {"seed: tl.int64,", "step: tl.int64,", "count,"} <= set(lines)
        assert all(f'"{name}"' in kernel.unspecialized for name in ("seed", "step", "count"))


def derived(forward: str) -> dict[str, str]:
    op = small_op(forward, "dx = dy", params=SEED)
    spec = replace(op.spec, backward="derive")
    backward = lower(spec).backward
    assert backward is not None
    return {d.name: text(d.term) for d in backward.definitions}


@pytest.mark.parametrize(
    ("forward", "gradient"),
    [
        ("y = x * random(seed)", "dy * random(seed)"),
        ("y = x * (random(seed) - random(seed)) + x", "dy"),
        ("y = where(random(seed) < 0.5, x, 0)", "where(random(seed) < 0.5, dy, 0)"),
        ("y = x + random(seed)", "dy"),
    ],
)
def test_a_random_number_equals_itself_and_has_no_gradient(forward: str, gradient: str) -> None:
    assert derived(forward)["dx"] == gradient


def test_other_seeds_give_other_numbers() -> None:
    found = derived("y = x * (random(seed) - random(seed + 1))")
    assert "random(seed)" in found["dx"] and "random(seed + 1)" in found["dx"]


def test_padding_lanes_do_not_count() -> None:
    row_op = small_op("y = x - mean(random(seed))", params=SEED)
    first, _ = kernels_view(schedule(row_op)).kernels
    drawn = "random_tile(seed, row, 0, n_columns, BLOCK).to(COMPUTE)"
    assert f"row_mean(tl.where(in_columns, {drawn}, 0.0), n_columns)" in first.body.top


def test_an_op_without_random_numbers_carries_none() -> None:
    files = render_op(shipped("rmsnorm").spec)
    assert not any("random" in source for source in files.values())
