"""The checker must fail when a kernel is wrong: right and wrong ops in plain torch, no Triton."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from kgen import testing
from kgen.testing import paths
from kgen.testing.contract import SHAPE
from kgen.testing.layouts import arrange, canonical
from kgen.testing.report import mismatch, same_bits
from kgen.testing.samples import arguments, choices

TOLERANCES = {
    "float16": testing.Tolerance(3e-3, 3e-3),
    "bfloat16": testing.Tolerance(1e-2, 1.6e-2),
    "float32": testing.Tolerance(1e-5, 1e-4),
    "float64": testing.Tolerance(1e-12, 1e-10),
}

# A fake op is an RMSNorm whose steps can be replaced one at a time.
Step = Callable[..., Any]


def padded(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def right_rstd(x, eps):
    return torch.rsqrt((x * x).sum(-1, keepdim=True) / x.shape[-1] + eps)


def right_y(x, rstd, weight):
    return x * rstd * weight


def right_dx(x, rstd, weight, dy):
    xhat, g = x * rstd, dy * weight
    return rstd * (g - xhat * (g * xhat).mean(-1, keepdim=True))


def right_dweight(x, rstd, dy):
    return (dy * x * rstd).reshape(-1, x.shape[-1]).sum(0)


RIGHT: dict[str, Step] = {
    "rstd": right_rstd,
    "y": right_y,
    "dx": right_dx,
    "dweight": right_dweight,
    "compute": lambda *tensors: (
        torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32
    ),
    "schedule": lambda n, words, size: "resident" if padded(n) * size // 4 <= words else None,
    "needed": lambda name, needs: needs,
    "stored": lambda rstd, dtype: rstd,
    "eps": lambda eps: eps,
    "twice": lambda: True,
    "cast": lambda y, dtype: y.to(dtype),
    "save": lambda ctx, *tensors: ctx.save_for_backward(*tensors),
    "too_long": lambda n, most: n > most,
}


def fake(**steps: Step) -> testing.Op:
    """An op that is right except for the given steps."""
    assert steps.keys() <= RIGHT.keys()
    do = {**RIGHT, **steps}
    module = ModuleType("fake")
    module.__dict__.update(
        INTERPRETED=True,
        FORWARD_RESIDENT_WORDS=32768,
        BACKWARD_RESIDENT_WORDS=16384,
        fake_backward_split_columns=None,
        MAX_COLUMNS=262144,
        MAX_ROWS=2**30,
        SCRATCH_BYTES=2**26,
        calls=Counter(),
    )
    module.__dict__["fake"] = lambda *args, **kwargs: _call(module, do, *args, **kwargs)
    module.__dict__["fake_reference"] = lambda x, weight=None, eps=1e-6: (
        torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)
    )
    return testing.Op(
        name="fake",
        module=module,
        inputs=(testing.Input("x", "matrix"), testing.Input("weight", "per_column", absent=1.0)),
        params=(testing.Param("eps", 1e-6, minimum=0.0),),
        outputs=(testing.Output("y", dtype="x"),),
        tolerances=TOLERANCES,
    )


def _call(module, do, x, weight=None, *, eps=1e-6, on_unsupported="raise"):
    _check_types(x, weight, eps, on_unsupported)
    problem = _problem(module, x, weight, do["too_long"])
    if problem and on_unsupported == "copy":
        module.calls["forward.copied"] += 1
        x, weight = canonical(x), None if weight is None else canonical(weight)
        problem = _problem(module, x, weight, do["too_long"])
    if problem and on_unsupported == "reference":
        module.calls["forward.reference"] += 1
        return do["cast"](module.fake_reference(x, weight, eps), x.dtype)
    if problem:
        raise ValueError(f"fake: {problem}")
    return _Function.apply(module, do, x, weight, do["eps"](eps))


def _check_types(x, weight, eps, on_unsupported):
    for name, tensor in {"x": x, "weight": weight}.items():
        if tensor is None and name == "weight":
            continue
        if not isinstance(tensor, torch.Tensor) or not tensor.dtype.is_floating_point:
            raise TypeError(f"fake: {name} is {tensor}; it takes a float tensor")
    if isinstance(eps, bool) or not isinstance(eps, float | int):
        raise TypeError(f"fake: eps is {eps}; it takes a float")
    if not eps >= 0:
        raise ValueError(f"fake: eps is {eps}; it takes at least 0")
    if on_unsupported not in ("raise", "copy", "reference"):
        raise ValueError(f"fake: on_unsupported is {on_unsupported!r}")
    if x.dim() == 0 or x.shape[-1] == 0:
        raise ValueError(f"fake: x has shape {tuple(x.shape)}")
    if weight is not None and weight.shape != x.shape[-1:]:
        raise ValueError(f"fake: weight has shape {tuple(weight.shape)}")


def _problem(module, x, weight, too_long):
    for name, tensor in {"x": x, "weight": weight}.items():
        if tensor is None:
            continue
        if tensor.device.type != "cpu":
            return f"{name} is on {tensor.device}"
        if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
            return f"the columns of {name} have stride {tensor.stride(-1)}"
    if x.dim() > 2 and x.stride(0) != x.stride(1) * x.shape[1] and min(x.shape[:2]) > 1:
        return "the rows of x are not evenly apart"
    if too_long(x.shape[-1], module.MAX_COLUMNS):
        return f"x has {x.shape[-1]} columns; it takes {module.MAX_COLUMNS}"
    if x.numel() // x.shape[-1] > module.MAX_ROWS:
        return f"x has {x.numel() // x.shape[-1]} rows; it takes {module.MAX_ROWS}"
    return None


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, module, do, x, weight, eps):
        compute = do["compute"](*(t for t in (x, weight) if t is not None))
        size = 8 if compute == torch.float64 else 4
        n = x.shape[-1]
        if x.numel():
            found = do["schedule"](n, module.FORWARD_RESIDENT_WORDS, size)
            module.calls[f"forward.{found or 'streaming'}"] += 1
        scale = torch.ones(n) if weight is None else weight
        wide, scale = x.to(compute), scale.to(compute)
        rstd = do["rstd"](wide, eps)
        y = do["y"](wide, rstd, scale).to(x.dtype)
        do["save"](ctx, x, weight, do["stored"](rstd, x.dtype))
        ctx.module, ctx.do, ctx.compute = module, do, compute
        return y

    @staticmethod
    def backward(ctx, dy):
        x, weight, rstd = ctx.saved_tensors or ctx.kept
        module, do, compute = ctx.module, ctx.do, ctx.compute
        if torch.is_grad_enabled() and do["twice"]():
            raise RuntimeError("fake: not differentiable twice")
        if (dy.stride(-1) != 1 and dy.shape[-1] > 1) or not dy.numel():
            module.calls["backward.copied"] += bool(dy.numel())
            dy = canonical(dy)
        size = 8 if compute == torch.float64 else 4
        if x.numel():
            found = do["schedule"](x.shape[-1], module.BACKWARD_RESIDENT_WORDS, size)
            module.calls[f"backward.{found or 'split'}"] += 1
        needs = do["needed"]("weight", ctx.needs_input_grad[3])
        module.calls["backward.column_sums"] += bool(needs and weight is not None)
        scale = torch.ones(x.shape[-1]) if weight is None else weight
        wide = [t.to(compute) for t in (x, rstd, scale, dy)]
        dx = do["dx"](*wide).to(x.dtype) if ctx.needs_input_grad[2] else None
        dweight = None
        if needs and weight is not None:
            dweight = do["dweight"](wide[0], wide[1], wide[3]).to(weight.dtype)
        return None, None, dx, dweight, None


def failure(check: Callable[[], None]) -> str:
    with pytest.raises(AssertionError) as caught:
        check()
    return str(caught.value)


# --- the right op passes every check ---


@pytest.mark.parametrize("path", ["shipped", "lowered"])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_a_right_op_passes(dtype, path):
    op = fake()
    for shape in ((0, 9), (1, 1), (1, 4097), (17, 257), (128, 33), (257,), (2, 3, 65)):
        testing.check_forward(op, shape, dtype, path)
        testing.check_gradients(op, shape, dtype, path)
    for special in testing.SPECIAL_ROWS:
        testing.check_special(op, special, dtype, path)
    testing.check_bits(op, dtype, path)


@pytest.mark.parametrize("path", ["shipped", "lowered"])
def test_a_right_op_passes_what_no_dtype_matters_for(path):
    op = fake()
    for given in testing.subsets(op.optional):
        testing.check_optional(op, given, path)
        testing.check_gradcheck(op, 3, given, "tiny")
    for wanted in testing.subsets(op.gradients, smallest=1):
        testing.check_wanted(op, wanted, path)
        testing.check_memory(op, wanted, path)
    for dtypes in testing.mixtures(op):
        testing.check_mixed(op, dtypes, path)
    for dtype in ("float16", "bfloat16"):
        testing.check_integers(op, dtype, path)
    for layout in testing.INPUT_LAYOUTS:
        testing.check_input_layout(op, layout, path)
    for layout in testing.UPSTREAM_LAYOUTS:
        testing.check_upstream_layout(op, layout, path)
    testing.check_one_output(op, "y", path)
    testing.check_untouched(op, path)
    testing.check_scratch(op, 2, path)


def test_a_right_op_passes_the_contract():
    op = fake()
    for refusal in testing.refusals(op):
        testing.check_refusal(op, refusal)
    for layout in testing.REFUSED_LAYOUTS:
        for way in ("copy", "reference"):
            testing.check_way_out(op, layout, way)
    testing.check_too_long(op)
    testing.check_at_the_limit(op)
    testing.check_changed(op)
    testing.check_grad_mode(op)
    testing.check_twice(op)
    testing.check_sum(op)


# An op of every kind of input and two outputs: a scaled cross-entropy with a margin.
def loss_reference(x, target, scale, mask=None, bias=None, margin=0.5, flip=False):
    scores = x if bias is None else x + bias
    scores = scores * (scale * (-1 if flip else 1))[..., None]
    if mask is not None:
        scores = torch.where(mask, scores, scores - margin)
    lse = torch.logsumexp(scores, -1)
    return lse - scores.gather(-1, target[..., None])[..., 0], torch.softmax(scores, -1)


def loss_op(wrong: Step = lambda loss, y: (loss, y)) -> testing.Op:
    module = ModuleType("loss")

    def counted(gradient):
        module.__dict__["calls"]["backward.column_sums"] += 1

    def loss(x, target, scale, mask=None, bias=None, *, margin=0.5, flip=False):
        narrow = [None if t is None else t.contiguous() for t in (x, target, scale, mask, bias)]
        module.__dict__["calls"]["forward.resident"] += 1
        if narrow[-1] is not None and narrow[-1].requires_grad and torch.is_grad_enabled():
            narrow[-1].register_hook(counted)
        wide = [t.float() if t is not None and t.is_floating_point() else t for t in narrow]
        value, y = wrong(*loss_reference(*wide, margin, flip))
        return value, y.to(x.dtype)

    module.__dict__.update(
        INTERPRETED=True,
        FORWARD_RESIDENT_WORDS=32768,
        calls=Counter(),
        loss=loss,
        loss_reference=loss_reference,
    )
    return testing.Op(
        name="loss",
        module=module,
        inputs=(
            testing.Input("x", "matrix"),
            testing.Input("target", "per_row", element="int", grad=False),
            testing.Input("scale", "per_row"),
            testing.Input("mask", "matrix", element="bool", absent=1.0, grad=False),
            testing.Input("bias", "per_column", absent=0.0),
        ),
        params=(testing.Param("margin", 0.5), testing.Param("flip", False)),
        outputs=(testing.Output("loss", dtype="float32"), testing.Output("y", dtype="x")),
        tolerances=TOLERANCES,
    )


def test_an_op_of_every_kind_of_input_passes():
    op = loss_op()
    assert op.gradients == ("x", "scale", "bias")
    for dtype in ("float16", "bfloat16", "float32"):
        for shape in ((17, 257), (2, 3, 65), (257,), (1, 1)):
            testing.check_forward(op, shape, dtype)
        for special in testing.SPECIAL_ROWS:
            testing.check_special(op, special, dtype, "shipped")
        testing.check_bits(op, dtype, "shipped")
    for layout in testing.INPUT_LAYOUTS:
        testing.check_input_layout(op, layout, "shipped")
    for output in ("loss", "y"):
        testing.check_one_output(op, output, "shipped")
    testing.check_untouched(op, "shipped")
    for wanted in testing.subsets(op.gradients, smallest=1):
        testing.check_wanted(op, wanted, "shipped")


@pytest.mark.parametrize("output", ["loss", "y"])
def test_each_of_several_outputs_is_checked(output):
    def wrong(loss, y):
        return (loss * 1.01, y) if output == "loss" else (loss, y * 1.01)

    op = loss_op(wrong)
    for check in (
        lambda: testing.check_forward(op, (5, 33), "float32"),
        lambda: testing.check_one_output(op, output, "shipped"),
    ):
        assert f"\n{output}: " in failure(check)


def test_refusals_of_every_kind_of_input():
    named = {str(refusal) for refusal in testing.refusals(loss_op())}
    assert {"target-float32", "target-one_longer", "scale-rank_2", "mask-one_row_less"} <= named
    assert {"flip-text", "margin-nan", "bias-one_value", "mask-float32"} <= named
    assert not {"mask-none", "flip-bool", "scale-one_value"} & named


# --- a wrong op fails, and the message says where to look ---


def shifted(tensor, place, amount):
    tensor = tensor.clone()
    tensor.flatten()[place : place + 1] += amount
    return tensor


def forward_of(op, shape=(17, 257), dtype="float32", path="shipped"):
    return failure(lambda: testing.check_forward(op, shape, dtype, path))


def gradients_of(op, shape=(17, 257), dtype="float32", path="shipped"):
    return failure(lambda: testing.check_gradients(op, shape, dtype, path))


def test_one_wrong_element():
    op = fake(y=lambda *a: shifted(right_y(*a), 300, 0.01))
    text = forward_of(op)
    assert text.startswith("fake, forward, (17, 257) float32 shipped:\ny: 1 of 4369 elements off")
    assert "worst at (1, 43): got" in text


def test_division_by_the_block():
    def rstd(x, eps):
        return torch.rsqrt((x * x).sum(-1, keepdim=True) / padded(x.shape[-1]) + eps)

    op = fake(rstd=rstd)
    testing.check_forward(op, (17, 256), "float32")
    assert "N = 257 is no power of two" in forward_of(op)
    ones = testing.Case("ones", {"x": [[1.0] * 257], "eps": 1e-6}, {"y": [[0.9999995] * 257]})
    testing.check_worked(fake(), ones, "shipped")
    text = failure(lambda: testing.check_worked(op, ones, "shipped"))
    assert "it is 1.41146 times as large as expected: a division by the block instead of N" in text


def test_a_sign_in_dx():
    text = gradients_of(fake(dx=lambda *a: -right_dx(*a)))
    assert "times as large as expected: a sign" in text
    assert "right: y, dweight" in text
    assert "the outputs are right: powers of saved values" in text


def test_the_power_of_rstd_in_dx():
    def dx(x, rstd, weight, dy):
        g = dy * weight
        return rstd * g - x * rstd**2 * (g * x).mean(-1, keepdim=True)

    assert "\ndx: " in gradients_of(fake(dx=dx))


def test_a_weight_counted_twice():
    text = gradients_of(fake(dx=lambda x, r, w, dy: right_dx(x, r, w, dy * w)))
    assert "\ndx: " in text
    testing.check_gradients(fake(), (17, 257), "float32")


def test_zeros_for_dx():
    assert "nothing was computed" in gradients_of(fake(dx=lambda *a: 0 * right_dx(*a)))


def test_a_mean_for_the_sum_over_rows():
    text = gradients_of(fake(dweight=lambda x, r, dy: right_dweight(x, r, dy) / x.shape[0]))
    assert "a mean over the rows instead of their sum" in text
    assert "only column sums are wrong" in text


def test_one_row_short_in_the_column_sums():
    text = gradients_of(fake(dweight=lambda x, r, dy: right_dweight(x[:-1], r[:-1], dy[:-1])))
    assert "only column sums are wrong" in text


def test_the_row_stride_of_another_tensor():
    def y(x, rstd, weight):
        return right_y(x[:1].expand(x.shape), rstd, weight)

    assert "only the first row is right: a row stride" in forward_of(fake(y=y))


def test_columns_after_the_first_chunk():
    def y(x, rstd, weight):
        out = right_y(x, rstd, weight)
        out[..., 64:] = 0
        return out

    assert "columns from 64 on are wrong" in forward_of(fake(y=y))


def test_rows_that_the_grid_leaves_out():
    def y(x, rstd, weight):
        out = right_y(x, rstd, weight)
        out[16:] = 0
        return out

    assert "rows from 16 on are wrong: the grid" in forward_of(fake(y=y))


def test_the_wrong_schedule():
    op = fake(schedule=lambda n, words, size: "resident")
    testing.check_gradients(op, (2, 257), "float32", "shipped")
    text = gradients_of(op, (2, 257), path="lowered")
    assert "forward: expected one call of forward.streaming, counted {'forward.resident': 1" in text
    assert "backward: expected one call of backward.split" in text


def test_the_boundary_of_the_other_pass():
    op = fake(schedule=lambda n, words, size: "resident" if padded(n) <= 32 else None)
    assert "expected one call of forward.resident" in forward_of(op, (2, 64), path="lowered")


def test_a_statistic_stored_in_bfloat16():
    op = fake(stored=lambda rstd, dtype: rstd.bfloat16() if dtype == torch.bfloat16 else rstd)
    testing.check_gradients(op, (17, 257), "bfloat16")  # within the tolerance of bfloat16
    text = failure(lambda: testing.check_integers(op, "bfloat16", "shipped"))
    assert "dx: not the same bits" in text


def test_arithmetic_in_the_storage_dtype():
    op = fake(compute=lambda *tensors: tensors[0].dtype)
    assert "y: " in failure(lambda: testing.check_integers(op, "float16", "shipped"))


def test_a_param_rounded_to_float32():
    op = fake(eps=lambda eps: torch.tensor(eps, dtype=torch.float32).item())
    found = [gradcheck_or_forward(op, (3, n)) for n in range(2, 12)]
    assert any(found)


def gradcheck_or_forward(op, shape):
    try:
        testing.check_forward(op, shape, "float64")
    except AssertionError:
        return True
    return False


def test_an_absent_input_that_is_not_neutral():
    def y(x, rstd, weight):
        return right_y(x, rstd, torch.where(weight == 1, 1.001, weight))

    op = fake(y=y)
    testing.check_optional(op, ("weight",), "shipped")
    assert "given none" in failure(lambda: testing.check_optional(op, (), "shipped"))


def test_column_sums_that_nobody_wants():
    op = fake(needed=lambda name, needs: True)
    text = failure(lambda: testing.check_wanted(op, ("x",), "shipped"))
    assert "column sums that nobody wants" in text


def test_a_gradient_that_is_made_for_nothing():
    def dweight(x, rstd, dy):
        torch.empty(dy.shape[-1])  # a row of partial sums
        return right_dweight(x, rstd, dy)

    def dx(x, rstd, weight, dy):
        torch.empty(dy.shape, dtype=torch.float32)
        return right_dx(x, rstd, weight, dy)

    testing.check_memory(fake(dweight=dweight), ("weight",), "shipped")
    op = fake(dx=dx)
    text = failure(lambda: testing.check_memory(op, ("x",), "shipped"))
    assert text == (
        "fake, memory for gradients of ('x',), float16 shipped:\n"
        "backward allocated 2412 bytes; 1206 for gradients, 0 for sums and 96 for values of rows "
        "would do"
    )


def test_a_saved_tensor_that_autograd_does_not_watch():
    op = fake(save=lambda ctx, *tensors: setattr(ctx, "kept", tensors))
    testing.check_gradients(op, (17, 257), "float32")
    text = failure(lambda: testing.check_changed(op))
    assert "dx after a change of weight: not the same bits" in text
    assert "dweight after a change of x: not the same bits" in text


def test_column_sums_that_are_not_counted():
    op = fake()
    op.module.calls = _Without("backward.column_sums")
    text = failure(lambda: testing.check_wanted(op, ("weight",), "shipped"))
    assert "column sums are not counted in {'forward.resident': 1, 'backward.resident': 1}" in text


class _Without(Counter):
    def __init__(self, name=""):
        super().__init__()
        self.name = name

    def __setitem__(self, name, count):
        if name != self.name:
            super().__setitem__(name, count)


def test_a_row_that_depends_on_its_neighbours():
    def y(x, rstd, weight):
        return right_y(x, rstd, weight) * (1 + 1e-6 * (x.shape[0] > 1))

    op = fake(y=y)
    testing.check_forward(op, (17, 257), "float32")
    assert "y of 1 rows" in failure(lambda: testing.check_bits(op, "float32", "shipped"))


def test_a_row_that_spoils_its_neighbours():
    op = fake(rstd=lambda x, eps: right_rstd(x, eps) + 0 * x.sum())
    text = failure(lambda: testing.check_special(op, "nan_first", "float32", "shipped"))
    assert "y of the other rows: not the same bits" in text


def test_a_nan_that_is_dropped():
    op = fake(rstd=lambda x, eps: right_rstd(torch.nan_to_num(x, nan=0.0), eps))
    text = failure(lambda: testing.check_special(op, "nan_first", "float32", "shipped"))
    assert "y: " in text and "expected nan" in text


def test_a_variance_without_its_mean_is_seen_where_it_cancels():
    def layernorm(centred):
        def y(x, rstd, weight):
            n = x.shape[-1]
            mu = x.sum(-1, keepdim=True) / n
            centre = (x - mu).pow(2).mean(-1, keepdim=True)
            raw = (x * x).mean(-1, keepdim=True) - mu * mu
            return (x - mu) * torch.rsqrt((centre if centred else raw) + 1e-6) * weight

        op = fake(y=y)
        reference = torch.nn.functional.layer_norm
        op.module.fake_reference = lambda x, w=None, eps=0: reference(
            x, x.shape[-1:], w, None, 1e-6
        )
        return testing.Op(
            name="fake",
            module=op.module,
            inputs=op.inputs,
            outputs=op.outputs,
            tolerances=TOLERANCES,
            differentiable=False,
        )

    testing.check_special(layernorm(True), "offset", "float32", "shipped")
    text = failure(lambda: testing.check_special(layernorm(False), "offset", "float32", "shipped"))
    assert "a row of offset" in text


def test_a_second_derivative_dropped_in_silence():
    op = fake(twice=lambda: False)
    text = failure(lambda: testing.check_twice(op))
    assert "the second-order term was dropped" in text


def test_an_upstream_gradient_that_is_overwritten():
    def dx(x, rstd, weight, dy):
        out = right_dx(x, rstd, weight, dy)
        dy.mul_(2)
        return out

    text = failure(lambda: testing.check_untouched(fake(dx=dx), "shipped"))
    assert "y afterwards: not the same bits" in text


def test_gradcheck_needs_no_reference():
    op = fake(dx=lambda *a: 1.01 * right_dx(*a))
    with pytest.raises(RuntimeError, match="Jacobian mismatch"):
        testing.check_gradcheck(op, 3, ("weight",), "tiny")


def test_a_worked_case():
    case = testing.Case(
        "three_four",
        given={"x": [[3, 4]], "dy": [[1, 2]]},
        expect={"y": [[0.848528, 1.131371]], "dx": [[-0.090510, 0.067882]]},
    )
    testing.check_worked(fake(), case, "shipped")
    op = fake(dx=lambda *a: 2 * right_dx(*a))
    text = failure(lambda: testing.check_worked(op, case, "shipped"))
    assert text.startswith("fake, case three_four, shipped:\ndx: 2 of 2 elements off")


@pytest.mark.parametrize("expect", [{}, {"y": [[0.848528, 1.131371]]}], ids=["nothing", "outputs"])
@pytest.mark.parametrize("wrong", ["y", "dx", "dweight"])
def test_a_worked_case_is_compared_with_the_reference_whatever_it_expects(wrong, expect):
    def doubled(*values):
        return 2 * RIGHT[wrong](*values)

    given = {"x": [[3, 4]], "weight": [1, 1], "dy": [[1, 2]]}
    case = testing.Case("three_four", given=given, expect=expect)
    testing.check_worked(fake(), case, "shipped")
    op = fake(**{wrong: doubled})
    text = failure(lambda: testing.check_worked(op, case, "shipped"))
    assert f"\n{wrong}: 2 of 2 elements off" in text


def test_a_worked_case_without_an_upstream_gradient_has_its_outputs_compared():
    case = testing.Case("large", given={"x": [[60000, -60000]]}, expect={})
    testing.check_worked(fake(), case, "shipped")
    op = fake(y=lambda *a: -right_y(*a))
    text = failure(lambda: testing.check_worked(op, case, "shipped"))
    assert "\ny: 2 of 2 elements off" in text


# --- the contract ---


def test_the_longest_row_that_is_refused():
    op = fake(too_long=lambda n, most: n >= most)
    testing.check_too_long(op)
    with pytest.raises(ValueError, match="x has 33 columns; it takes 33"):
        testing.check_at_the_limit(op)


def test_a_reference_that_is_not_cast():
    op = fake(cast=lambda y, dtype: y)
    testing.check_way_out(op, "transposed", "copy")
    text = failure(lambda: testing.check_way_out(op, "transposed", "reference"))
    assert "y: torch.float64, not torch.float32" in text


def test_a_call_that_is_not_refused():
    op = fake()
    op.module._problem = None
    wrong = testing.Refusal("x", "fine", ValueError, torch.ones(SHAPE), SHAPE)
    assert "accepted, expected ValueError" in failure(lambda: testing.check_refusal(op, wrong))


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (TypeError("fake: x is odd"), "raised TypeError"),
        (ValueError("x is odd"), "does not begin with the op"),
        (ValueError("fake: it is odd"), "does not name weight"),
    ],
)
def test_a_refusal_that_does_not_help(error, text):
    op = fake()

    def refuse(*args, **kwargs):
        raise error

    object.__setattr__(op, "function", refuse)
    refusal = testing.Refusal("weight", "rank_2", ValueError, torch.ones(1, 33), SHAPE)
    assert text in failure(lambda: testing.check_refusal(op, refusal))


def test_refusals_cover_every_argument():
    named = {str(refusal) for refusal in testing.refusals(fake())}
    assert {"x-none", "x-int64", "x-swapped", "x-too_many_columns", "x-too_many_rows"} <= named
    assert {"weight-one_longer", "weight-one_value", "weight-meta_device"} <= named
    assert {"eps-below_minimum", "eps-nan", "eps-tensor", "on_unsupported-unknown"} <= named
    assert "weight-none" not in named


# --- the rule ---


def rule(got, expected, dtype="float32"):
    got = torch.tensor(got, dtype=getattr(torch, dtype))
    return mismatch("y", got, torch.tensor(expected, dtype=torch.float64), TOLERANCES[dtype])


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        ([1.0], [1.0001]),
        ([float("nan")], [float("nan")]),
        ([float("inf"), float("-inf")], [float("inf"), float("-inf")]),
        ([float("inf")], [1e39]),
        ([], []),
    ],
)
def test_what_the_rule_allows(got, expected):
    assert rule(got, expected) is None


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        ([1.0], [1.00012]),
        ([1.0], [float("nan")]),
        ([float("nan")], [1.0]),
        ([float("nan")], [float("inf")]),
        ([1.0], [float("inf")]),
        ([float("inf")], [1.0]),
        ([float("inf")], [float("-inf")]),
        ([1.0, 1.0], [1.0]),
    ],
)
def test_what_the_rule_forbids(got, expected):
    assert rule(got, expected) is not None


def test_the_worst_element_is_the_one_furthest_over_its_own_bound():
    text = rule([100.0, 0.0], [100.02, 0.005])
    assert text is not None and "2 of 2 elements off; worst at (1,)" in text


def test_a_quantised_result_may_be_a_step_off_but_rarely():
    expected = torch.arange(-100.0, 100.0, dtype=torch.float64)
    tolerance = fake().tolerance(torch.int8)
    got = expected.to(torch.int8)
    assert "200 of 200 elements differ, 11 may" in (
        mismatch("y", got + 1, expected, tolerance) or ""
    )
    got[7] += 1
    assert mismatch("y", got, expected, tolerance) is None
    got[7] += 1
    assert "1 of 200 elements off" in (mismatch("y", got, expected, tolerance) or "")


def test_column_sums_have_a_wider_absolute_term():
    with testing.Report(fake(), (10000, 3), "sums") as report:
        report.close("dweight", torch.full((3,), 5e-4), torch.zeros(3, dtype=torch.float64))
        assert not report.wrong
        report.close("dx", torch.full((3,), 5e-4), torch.zeros(3, dtype=torch.float64))
        assert report.wrong
        report.wrong.clear()


def test_bits_tell_zeros_apart_but_not_nan():
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert same_bits(torch.tensor([float("nan")]), -torch.tensor([float("nan")]))
    assert not same_bits(torch.tensor([1.0]), torch.tensor([1.0]).double())


# --- samples, layouts and paths ---


def test_samples_are_the_same_every_time_and_never_ones_or_zeros():
    op = fake()
    first, second = arguments(op, (5, 7), "float32"), arguments(op, (5, 7), "float32")
    for name, tensor in first.tensors.items():
        assert tensor is not None and torch.equal(tensor, second.tensors[name])
        assert (tensor != 0).all() and (tensor != 1).all()
    assert first.params == second.params


def test_params_stay_inside_their_bounds_and_leave_their_default():
    assert choices(testing.Param("eps", 1e-6, minimum=0.0))[0] == 1e-6
    assert len(choices(testing.Param("eps", 1e-6, minimum=0.0))) == 3
    assert choices(testing.Param("share", 0.9, minimum=0.0, maximum=1.0))[1:]
    assert all(0 < v < 1 for v in choices(testing.Param("p", 0.5, minimum=0.0, maximum=1.0)))
    assert choices(testing.Param("flag", True)) == (False, True)
    assert choices(testing.Param("ignore", -100)) == (-100, 0, 1, 2, -99)


# An op of which one target, given by a param, means that a row is ignored.
Ignored = Callable[[torch.Tensor, int], torch.Tensor]


def is_ignored(target, ignored):
    return target == ignored


def picked_reference(x, target, ignored=-100, seed=0):
    logs = torch.log_softmax(x, -1)
    is_kept = target != ignored
    picked = logs.gather(-1, torch.where(is_kept, target, 0)[..., None])[..., 0]
    return torch.where(is_kept, -picked, 0)


def picked_op(
    forward: Ignored = is_ignored,
    backward: Ignored = is_ignored,
    reference: Step = picked_reference,
    params: tuple[testing.Param, ...] = (testing.Param("ignored", -100),),
) -> testing.Op:
    """The op whose kernels take these rows for ignored ones."""
    module = ModuleType("picked")

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, target, ignored):
            module.__dict__["calls"]["forward.resident"] += 1
            ctx.save_for_backward(x, target)
            ctx.ignored = ignored
            x, column = x.float(), torch.arange(x.shape[-1])
            picked = torch.where(column == target[..., None], x, 0).sum(-1)
            return torch.where(forward(target, ignored), 0, torch.logsumexp(x, -1) - picked)

        @staticmethod
        def backward(ctx, dloss):
            module.__dict__["calls"]["backward.resident"] += 1
            x, target = ctx.saved_tensors
            column = torch.arange(x.shape[-1])
            slope = torch.softmax(x.float(), -1) - 1.0 * (column == target[..., None])
            g = torch.where(backward(target, ctx.ignored), 0, dloss)
            return (g[..., None] * slope).to(x.dtype), None, None

    module.__dict__.update(
        INTERPRETED=True,
        FORWARD_RESIDENT_WORDS=32768,
        BACKWARD_RESIDENT_WORDS=32768,
        calls=Counter(),
        picked=lambda x, target, ignored=-100, seed=0: Function.apply(x, target, ignored),
        picked_reference=reference,
    )
    return testing.Op(
        name="picked",
        module=module,
        inputs=(
            testing.Input("x", "matrix"),
            testing.Input("target", "per_row", element="int", grad=False),
        ),
        params=params,
        outputs=(testing.Output("loss", dtype="compute"),),
        tolerances=TOLERANCES,
    )


SHAPES = ((1, 1), (17, 65), (5, 127), (2, 128), (3, 129), (2, 3, 65), (4, 9, 33), (257,))


def of_every_shape(op, check):
    for shape in SHAPES:
        check(op, shape, "float32")


def never_negative(target, ignored):
    return (target == ignored) & (target >= 0)


def none(target, ignored):
    return torch.zeros_like(target, dtype=torch.bool)


@pytest.mark.parametrize("wrong", [never_negative, none])
def test_a_target_that_means_ignore_is_among_the_targets(wrong):
    of_every_shape(picked_op(), testing.check_forward)
    of_every_shape(picked_op(), testing.check_gradients)
    text = failure(lambda: of_every_shape(picked_op(wrong), testing.check_forward))
    assert "\nloss: " in text
    op = picked_op(backward=wrong)
    of_every_shape(op, testing.check_forward)
    text = failure(lambda: of_every_shape(op, testing.check_gradients))
    assert "\ndx: " in text and "\nright: loss" in text


def test_some_entries_of_int_inputs_equal_an_int_param_and_others_do_not():
    op = picked_op()
    for shape in SHAPES:
        call = arguments(op, shape, "float32")
        plain = arguments(picked_op(params=()), shape, "float32")
        target, before = call.tensors["target"], plain.tensors["target"]
        assert torch.equal(call.tensors["x"], plain.tensors["x"])
        assert torch.equal(target, arguments(op, shape, "float32").tensors["target"])
        changed = target != before
        assert (target[changed] == call.params["ignored"]).all()
        assert changed.sum() <= target.numel() / 2
        if shape == (17, 65):
            assert (target == call.params["ignored"]).any()
    fixed = arguments(op, (17, 65), "float32", vary=False)
    assert torch.equal(fixed.tensors["target"], plain_target(17, 65))


def plain_target(*shape):
    return arguments(picked_op(params=()), shape, "float32").tensors["target"]


def test_a_value_that_the_reference_refuses_is_not_drawn_and_hides_no_other():
    """A seed of 1000 is no column of 65; ``ignored`` is drawn all the same, on either side."""
    seed, ignored = testing.Param("seed", 1000, minimum=999), testing.Param("ignored", -100, -101)
    for params in ((seed, ignored), (ignored, seed)):
        target = arguments(picked_op(params=params), (17, 65), "float32").tensors["target"]
        assert not (target >= 65).any()
        assert (target != plain_target(17, 65)).any()
    op = picked_op(params=(seed,))
    target = arguments(op, (17, 65), "float32").tensors["target"]
    assert torch.equal(target, plain_target(17, 65))


@pytest.mark.parametrize("layout", {**testing.INPUT_LAYOUTS, **testing.REFUSED_LAYOUTS})
def test_a_layout_keeps_the_values(layout):
    shape = {**testing.INPUT_LAYOUTS, **testing.REFUSED_LAYOUTS}[layout]
    plain = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    strided = arrange(plain, layout)
    assert strided.shape == plain.shape
    if layout not in ("same_row", "one_value"):
        assert torch.equal(strided, plain)
    if layout not in ("rank_1", "offset"):
        assert strided.stride() != plain.stride()
    assert canonical(strided).stride() == plain.stride()


def test_lowered_boundaries_are_put_back():
    op = fake()
    with pytest.raises(KeyError), paths.on_path(op, "lowered"):
        assert op.module.FORWARD_RESIDENT_WORDS == 64
        assert op.module.BACKWARD_RESIDENT_WORDS == 32
        assert not hasattr(op.module, "FORWARD_WHOLE_WORDS")
        assert not hasattr(op.module, "BACKWARD_SPLIT_BLOCK")
        raise KeyError
    assert op.module.FORWARD_RESIDENT_WORDS == 32768


@pytest.mark.parametrize("path", ["shipped", "lowered", "reread", "tiny"])
def test_calls_are_expected_by_the_boundaries_of_a_path(path):
    """Of padded columns in words, up to each boundary and no further."""
    op = fake()
    op.module.FORWARD_WHOLE_WORDS = 65536
    op.module.FORWARD_RELOADED = again = dict.fromkeys((2, 4, 8), (16384, 65536))
    with paths.on_path(op, path):
        reloaded, whole = op.module.FORWARD_RELOADED, op.module.FORWARD_WHOLE_WORDS
        longest = op.module.BACKWARD_RESIDENT_WORDS
        for dtype in (torch.float32, torch.float64):
            for words in (2**power for power in range(1, 18)):
                for columns in {words * 4 // dtype.itemsize, words * 2 // dtype.itemsize + 1}:
                    kept = "reload" if words in reloaded[dtype.itemsize] else "resident"
                    expected = f"forward.{kept if words <= whole else 'streaming'}"
                    assert paths.schedules(op, columns, dtype.itemsize)[0] == expected
            columns = longest * 4 // dtype.itemsize
            assert paths.schedules(op, columns, dtype.itemsize)[1] == "backward.resident"
            assert paths.schedules(op, columns + 1, dtype.itemsize)[1] == "backward.split"
    assert (65536, again) == (op.module.FORWARD_WHOLE_WORDS, op.module.FORWARD_RELOADED)


@pytest.mark.parametrize("path", ["lowered", "tiny"])
def test_lowered_rows_have_the_chunks_of_the_path_at_every_width(path):
    op = fake()
    op.module.FORWARD_CHUNKS = own = {2048: (1024, 8)}
    with paths.on_path(op, path):
        expected = {512: (64, 4)} if path == "lowered" else {}
        assert expected == op.module.FORWARD_CHUNKS
    assert op.module.FORWARD_CHUNKS is own


def test_lowered_chunks_are_as_long_as_those_of_the_module():
    """Rows that are not split have no tile of several rows, and stages only if said."""
    op = fake()
    for own, expected in (
        ((128, 1), (32, 4)),
        ((128, 1, 8), (32, 4, 2)),
        ((2048, 4, 8, 3, 1), (32, 2, 4, 2, 2)),
    ):
        op.module.BACKWARD_CHUNKS = {262144: own}
        with paths.on_path(op, "lowered"):
            assert {512: expected} == op.module.BACKWARD_CHUNKS


def test_a_kernel_that_should_have_read_rows_again_is_missed():
    op = fake()
    op.module.FORWARD_WHOLE_WORDS = 65536
    op.module.FORWARD_RELOADED = {}
    message = failure(lambda: testing.check_forward(op, (3, 129), "float32", "reread"))
    assert "expected one call of forward.reload" in message


def test_cases_in_turn():
    assert testing.in_turn("ab", (1, 2, 3, 4), 2) == [("a", 1), ("a", 3), ("b", 2), ("b", 4)]
    assert testing.in_turn("ab", (1, 2, 3), 2) == [("a", 1), ("a", 2), ("b", 2), ("b", 3)]
    assert testing.in_turn("ab", (1,), 2) == [("a", 1), ("b", 1)]


def test_cases_by_pairs():
    found = testing.by_pairs("abc", "xy", (1, 2))
    assert found == [
        *(("a", "x", 1), ("a", "y", 2)),
        *(("b", "x", 2), ("b", "y", 1)),
        *(("c", "x", 1), ("c", "y", 2)),
    ]
    assert testing.by_pairs("a", "xy", (1,)) == [("a", "x", 1), ("a", "y", 1)]


def test_cases_of_special_rows():
    cases = testing.special_cases(("shipped", "lowered"), ("float16", "float32"))
    assert {case[:2] for case in cases} == {
        (name, path) for name in testing.SPECIAL_ROWS for path in ("shipped", "lowered")
    }
    assert ("zeros", "shipped", "float16") in cases and ("zeros", "lowered", "float32") in cases
    assert ("ones", "shipped", "float32") in cases and ("ones", "lowered", "float16") in cases
    large = [case for case in cases if case[0] == "large"]
    assert [dtype for _, _, dtype in large] == ["float32", "float32"]
    assert not [c for c in testing.special_cases(("shipped",), ("float16",)) if c[0] == "large"]


def test_subsets_and_mixtures():
    assert testing.subsets(("a", "b")) == [(), ("a",), ("b",), ("a", "b")]
    assert len(testing.subsets("abc")) == 8
    four = testing.subsets("abcd", smallest=1)
    assert [len(chosen) for chosen in four] == [1, 1, 1, 1, 3, 3, 3, 3, 4]
    assert testing.mixtures(fake()) == [
        {"weight": "float32"},
        {"weight": "float64"},
        {"x": "float64"},
    ]
    both = {"scale": "float32", "bias": "float32"}
    assert testing.mixtures(loss_op()) == [
        both,
        dict.fromkeys(both, "float64"),
        {"scale": "float64"},
        {"bias": "float64"},
        {"x": "float64"},
    ]


def test_rows_of_wide_elements_are_expected_in_chunks_earlier():
    op = fake()
    op.module.FORWARD_WHOLE_WORDS = 65536
    op.module.FORWARD_RELOADED = {2: (65536,), 4: (), 8: ()}
    op.module.FORWARD_WIDEST = {2: 65536, 4: 32768, 8: 8192}
    for itemsize, columns, expected in (
        (2, 65536, "reload"),
        (2, 16384, "resident"),
        (2, 16383, "streaming"),  # no vector fits
        (4, 32768, "resident"),
        (4, 32784, "streaming"),
        (8, 4096, "resident"),
        (8, 4112, "streaming"),
    ):
        assert paths.schedules(op, columns, itemsize)[0] == f"forward.{expected}"


def test_elements_are_as_wide_as_the_widest_matrix():
    weighted = replace(
        fake(), inputs=(testing.Input("x", "matrix"), testing.Input("weight", "per_batch"))
    )
    for op, x, weight, wanted in (
        (fake(), "bfloat16", "float32", 2),
        (weighted, "bfloat16", "float32", 4),
        (weighted, "float32", "bfloat16", 4),
        (fake(), "bfloat16", "float64", 8),
    ):
        call = arguments(op, (2, 16), x, dtypes={"weight": weight})
        assert call.itemsize(op) == wanted
