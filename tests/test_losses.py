"""Softmaxes and losses where their own tests do not look: large vocabularies, near certainty.

And what a causal softmax promises when a sequence comes in pieces, as in decoding with a cache.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from kgen import testing
from kgen.build import render_all
from kgen.load import load
from kgen.output import plan_changes, write
from kgen.testing.paths import on_path
from kgen.testing.results import Result, backward, present, reference
from kgen.testing.samples import Arguments, generator

ROOT = Path(__file__).resolve().parent.parent
NAMES = (
    "causal_softmax",
    "cross_entropy",
    "jsd",
    "kl_div",
    "log_softmax",
    "logsumexp",
    "masked_softmax",
)
PATHS = ("shipped", "lowered")
INF = math.inf
VOCABULARY = 128256

Find = Callable[[str], testing.Op]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ops above, built from the shipped specs into a package ``losses``."""
    base = tmp_path_factory.mktemp("built")
    specs = [load(ROOT / "specs" / f"{name}.yaml") for name in NAMES]
    write(plan_changes(render_all(specs), base / "losses", NAMES), base / "losses")
    return base


@pytest.fixture
def find(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Find:
    """Any of the ops by its name, as its generated tests describe it."""
    monkeypatch.syspath_prepend(str(folder))

    def found(name: str) -> testing.Op:
        op = importlib.import_module(f"losses.{name}.test_{name}").OP
        assert isinstance(op, testing.Op)
        if not op.interpreted and not torch.cuda.is_available():
            pytest.skip("needs a GPU or TRITON_INTERPRET=1")
        return op

    return found


def run(
    op: testing.Op,
    tensors: dict[str, torch.Tensor],
    above: dict[str, torch.Tensor],
    path: str = "shipped",
    **params: float,
) -> tuple[Arguments, Result]:
    """The kernels' outputs and gradients; an output without an upstream gradient takes no part."""
    placed = {name: tensor.to(op.device) for name, tensor in tensors.items()}
    given = {o.name: above[o.name].to(op.device) if o.name in above else None for o in op.outputs}
    call = Arguments(dict(placed), dict(params))
    with on_path(op, path):
        return call, backward(op, call, given=given)


def expect_reference(op: testing.Op, call: Arguments, got: Result, case: str) -> None:
    """Outputs and gradients are within the declared tolerances of the reference."""
    shape = tuple(present(call.tensors[op.matrix.name]).shape)
    with testing.Report(op, shape, case) as report:
        report.results(got, reference(op, call, like=got))


def normal(*shape: int, seed: object = 0) -> torch.Tensor:
    return torch.randn(shape, generator=generator(seed, shape), dtype=torch.float64)


def dx(got: Result) -> torch.Tensor:
    return present(got.gradients["x"]).cpu()


def output(got: Result, name: str) -> torch.Tensor:
    return got.outputs[name].cpu()


# --- cross entropy --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "params", [{}, {"label_smoothing": 0.1, "z_loss": 1e-4, "capped": True}], ids=["plain", "all"]
)
def test_a_large_vocabulary(find: Find, params: dict[str, float]) -> None:
    op = find("cross_entropy")
    x = (3 * normal(3, VOCABULARY)).bfloat16()
    x[2, VOCABULARY - 1] = 20
    target = torch.tensor([0, 70001, VOCABULARY - 1])
    above = {"loss": torch.tensor([0.5, -1.5, 2.0]), "lse": torch.tensor([0.0, 0.25, 0.0])}
    call, got = run(op, {"x": x, "target": target}, above, **params)
    assert got.calls["forward.streaming"] == got.calls["backward.streaming"] == 1
    expect_reference(op, call, got, f"a large vocabulary, {params}")
    if not params:  # most of dx is below the absolute tolerance
        expected = reference(op, call, like=got)
        torch.testing.assert_close(dx(got).double(), dx(expected), rtol=2**-8, atol=0)
        torch.testing.assert_close(
            output(got, "loss").double(), output(expected, "loss"), rtol=1e-5, atol=0
        )


@pytest.mark.parametrize("path", PATHS)
def test_rows_that_are_all_ignored(find: Find, path: str) -> None:
    op = find("cross_entropy")
    x = normal(5, 301).float()
    x[1, 7] = -INF
    for ignore_index in (-100, 7):
        target = torch.full((5,), ignore_index)
        call, got = run(
            op,
            {"x": x, "target": target},
            {"loss": normal(5).float()},
            path,
            ignore_index=ignore_index,
            label_smoothing=0.2,
            z_loss=0.1,
        )
        assert not output(got, "loss").any()
        assert not dx(got).any()
        expect_reference(op, call, got, f"all rows ignored by {ignore_index}, {path}")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("logit", [2 * math.log(999), 30.0, 60.0])
def test_a_target_that_is_nearly_certain(find: Find, logit: float, path: str) -> None:
    """Relative to what is left of 1 the error is a few roundings, from p = 0.999 on."""
    op = find("cross_entropy")
    x = torch.zeros(2, 1000)
    x[0, 123] = x[1, 999] = logit
    target = torch.tensor([123, 999])
    _, got = run(op, {"x": x, "target": target}, {"loss": torch.tensor([1.0, 3.0])}, path)
    others = 999 * math.exp(-float(x[0, 123]))
    left, loss = -others / (1 + others), math.log1p(others)
    found = dx(got).gather(1, target[:, None]).flatten().tolist()
    assert found == pytest.approx([left, 3 * left], rel=1e-5, abs=0)
    assert output(got, "loss").tolist() == pytest.approx([loss, loss], rel=1e-5, abs=0)
    assert dx(got)[0, 0].item() == pytest.approx(-left / 999, rel=1e-5, abs=0)


@pytest.mark.parametrize("columns", [5, VOCABULARY])
def test_logits_of_which_all_but_one_are_minus_infinity(find: Find, columns: int) -> None:
    op = find("cross_entropy")
    x = torch.full((3, columns), -INF, dtype=torch.bfloat16)
    x[:, columns - 2] = 1.5
    target = torch.tensor([columns - 2, 0, -100])
    call, got = run(op, {"x": x, "target": target}, {"loss": torch.ones(3)}, z_loss=2.0)
    assert output(got, "loss").tolist() == [4.5, INF, 0]
    assert output(got, "lse").tolist() == [1.5] * 3
    assert dx(got)[0, columns - 2] == 6  # of the z-loss alone: 2 * 2 * 1.5
    assert dx(got)[1, 0] == -1
    assert not dx(got)[2].any()
    expect_reference(op, call, got, f"one finite logit of {columns}")


def test_a_target_out_of_range_is_not_taken_for_a_padding_lane(find: Find) -> None:
    op = find("cross_entropy")
    x = normal(2, 5).float()
    for target in (5, 6, -1):
        _, got = run(
            op, {"x": x, "target": torch.tensor([target, 1])}, {"lse": torch.ones(2)}, capped=True
        )
        assert output(got, "loss")[0] == INF
        torch.testing.assert_close(dx(got).sum(1), torch.ones(2), rtol=1e-2, atol=0)


# --- divergences ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
def test_probabilities_of_zero_count_nothing(find: Find, path: str) -> None:
    p = torch.softmax(normal(3, 300), -1)
    q = torch.softmax(normal(3, 300, seed=1), -1)
    p[:, 5] = p[:, 299] = q[:, 5] = 0
    upstream = {"loss": torch.tensor([1.0, -2.0, 0.5])}
    for log_target in (False, True):
        op = find("kl_div")
        target = p.log() if log_target else p
        tensors = {"x": q.log().float(), "target": target.float()}
        call, got = run(op, tensors, upstream, path, log_target=log_target)
        assert output(got, "loss").isfinite().all()
        expect_reference(op, call, got, f"zeros, log_target={log_target}, {path}")
    for beta in (0.0, 0.25, 1.0):
        op = find("jsd")
        # Each end needs q, or p, to be there where the other is.
        log_p, log_q = (q.log(), p.log()) if beta == 1 else (p.log(), q.log())
        tensors = {"x": log_q.float(), "target": log_p.float()}
        call, got = run(op, tensors, upstream, path, beta=beta)
        assert output(got, "loss").isfinite().all()
        exact = divergence(log_p.exp(), log_q.exp(), beta)
        torch.testing.assert_close(output(got, "loss").double(), exact, rtol=1e-5, atol=0)


def divergence(p: torch.Tensor, q: torch.Tensor, beta: float) -> torch.Tensor:
    """The definition: KL(p || q) = sum(p log(p / q)), with both ends as limits."""

    def kl(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.special.xlogy(a, a / b).masked_fill(a == 0, 0).sum(-1)

    m = beta * p + (1 - beta) * q
    if beta == 0:
        return kl(p, q)
    if beta == 1:
        return kl(q, p)
    return beta * kl(p, m) + (1 - beta) * kl(q, m)


# --- softmaxes ------------------------------------------------------------------------------------


def test_gradient_of_log_softmax_does_not_start_from_a_rounded_output(find: Find) -> None:
    """The output, -8.0064, is -8 in bfloat16: exp of that is 0.6% too large."""
    op, n = find("log_softmax"), 3000
    dy = torch.zeros(1, n, dtype=torch.bfloat16)
    dy[0, 0] = 1
    _, got = run(op, {"x": torch.zeros(1, n, dtype=torch.bfloat16)}, {"y": dy})
    assert dx(got)[0, 1].item() == pytest.approx(-1 / n, rel=2**-8)


@pytest.mark.parametrize("path", PATHS)
def test_gradient_of_logsumexp_is_nan_only_where_it_is_in_pytorch(find: Find, path: str) -> None:
    op = find("logsumexp")
    x = normal(4, 300).float()
    x[0, 250], x[1, 3], x[2] = INF, -INF, -INF
    call, got = run(op, {"x": x}, {"lse": torch.ones(4)}, path)
    assert output(got, "lse")[[0, 2]].tolist() == [INF, -INF]
    expect_reference(op, call, got, f"infinities, {path}")


@pytest.mark.parametrize("path", PATHS)
def test_a_mask_hides_what_it_drops(find: Find, path: str) -> None:
    op = find("masked_softmax")
    x, dy = normal(4, 300).float(), normal(4, 300, seed=1).float()
    keep = torch.rand(4, 300, generator=generator("keep")) < 0.5
    keep[1] = False
    keep[2, 7] = keep[3, 7] = True
    hidden = x.masked_fill(~keep, math.nan)
    hidden[2, 7] = math.nan
    _, expected = run(op, {"x": x, "keep": keep}, {"y": dy}, path, scale=0.5)
    _, got = run(op, {"x": hidden, "keep": keep}, {"y": dy}, path, scale=0.5)
    y = output(got, "y")
    assert y[2].isnan().all()
    assert not y[1].any()
    assert not dx(got)[1].any()
    for row in (0, 1, 3):
        assert torch.equal(y[row], output(expected, "y")[row])
        assert torch.equal(dx(got)[row], dx(expected)[row])


# --- pieces of a sequence -------------------------------------------------------------------------

# The queries at 376 to 399 of a sequence, cut after 384: queries and keys of each piece.
LENGTH, FIRST = 400, 376
PIECES = ((8, 384), (16, 400))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_pieces_have_the_bits_of_the_whole(find: Find, dtype: torch.dtype, path: str) -> None:
    """In a cache of fixed N, and in rows just long enough that share the whole's power of two.

    All lengths are multiples of 16, so that compiled kernels load them alike.
    """
    op = find("causal_softmax")
    x = (2 * normal(LENGTH - FIRST, LENGTH)).to(dtype)
    dy = normal(LENGTH - FIRST, LENGTH, seed=1).to(dtype)
    _, whole = run(op, {"x": x}, {"y": dy}, path, queries=LENGTH - FIRST, scale=0.3)
    for n_columns in (LENGTH, None):
        start = 0
        for queries, keys in PIECES:
            rows, columns = slice(start, start + queries), n_columns or keys
            piece = x[rows, :columns].clone()
            piece[:, keys:] = math.nan  # nothing has been written there
            above = {"y": dy[rows, :columns].contiguous()}
            filled = keys if n_columns else 0
            _, got = run(op, {"x": piece}, above, path, queries=queries, keys=filled, scale=0.3)
            for found, expected in ((output(got, "y"), output(whole, "y")), (dx(got), dx(whole))):
                assert torch.equal(found[:, :keys], expected[rows, :keys])
                assert not found[:, keys:].any()
                assert not expected[rows, keys:].any()
            start += queries
        assert start == LENGTH - FIRST


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("queries", "keys"), [(1, 200), (3, 200), (7, 7), (5, 2), (4, 300)])
def test_the_queries_are_the_last_ones(find: Find, queries: int, keys: int, path: str) -> None:
    op = find("causal_softmax")
    x, dy = normal(2, queries, 300).float(), normal(2, queries, 300, seed=1).float()
    _, got = run(op, {"x": x}, {"y": dy}, path, queries=queries, keys=keys, scale=0.25)
    seen = torch.ones(queries, 300, dtype=torch.bool).tril(keys - queries)
    leaf = x.double().requires_grad_()
    y = torch.softmax((0.25 * leaf).masked_fill(~seen, -INF), -1)
    y = torch.where(seen.any(-1, keepdim=True), y, 0)
    (slope,) = torch.autograd.grad(y, leaf, dy.double())
    sees = seen.any(-1)
    torch.testing.assert_close(output(got, "y").double(), y.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(dx(got)[:, sees].double(), slope[:, sees], rtol=1e-4, atol=1e-5)
    assert int((~sees).sum()) == max(queries - keys, 0)
    assert not output(got, "y")[:, ~sees].any()
    assert not dx(got)[:, ~sees].any()
