"""The double backward from spec to wrapper, with second-order formulas worked out by hand.

What ``kgen.grad`` derives is tested elsewhere; here stand textbook derivatives, so that a fault of
the kernels and the wrapper cannot hide behind one of the derivation.
"""

from __future__ import annotations

import gc
import importlib
import re
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from kgen import testing
from kgen.build import render_all
from kgen.errors import KgenError, Source, Span
from kgen.expr import Assignment, parse_formulas
from kgen.ir import Program, Role, verify
from kgen.load import load_text
from kgen.lower import RowOp, lower
from kgen.output import plan_changes, write
from kgen.schedule import Form, schedule
from kgen.spec import Spec
from kgen.tiles import tile_rule
from small_op import ROOT

# With v = ddx and u = ddweight, of the function <v, dx> + <u, dweight>.
NORM = """
    a = mean({v} * {xhat})
    c = mean(g * {xhat})
    slope = rstd * ({v} - {xhat} * a)
    {ddy}
    h2 = ddweight * dy - rstd * ({v} * c + g * a)
    {d2x} = rstd * (h2 - {xhat} * mean(h2 * {xhat})) - rstd ** 2 * {xhat} * (mean({v} * g) - a * c)
    d2weight = sum_rows(dy * slope)
"""
FORMULAS = {
    "rmsnorm": NORM.format(
        v="ddx", xhat="xhat", ddy="ddy = slope * weight + ddweight * xhat", d2x="d2x"
    ),
    "add_rmsnorm": "v = ddx + ddresidual"
    + NORM.format(
        v="v", xhat="hhat", ddy="ddy = slope * weight + ddweight * hhat\nddh = v", d2x="d2x"
    )
    + "d2residual = d2x",
    "softmax": """
        a = sum(ddx * y)
        ddy = y * (ddx - a)
        h2 = ddx * (dy - sum(dy * y)) - dy * a
        d2x = y * (h2 - sum(h2 * y))
    """,
    # Of two inputs that no kernel reads, the graph has edges; one may be absent.
    "biased": """
        v = ddx + ddbias
        a = sum(v * y)
        ddy = y * (v - a)
        h2 = v * (dy - sum(dy * y)) - dy * a
        d2x = y * (h2 - sum(h2 * y))
        d2bias = sum_rows(d2x)
    """,
    # Two first sums, none of the second order: the kernels of both passes differ in form.
    "shifted": """
        ddy = ddx * scale * gain + ddscale * x * gain + ddweight + ddbias
        d2x = ddscale * dy * gain
        d2scale = sum(ddx * dy) * gain
    """,
    # Linear in x, which is read nevertheless: only dy is differentiated by.
    "masked": """
        ddy = where(x > 0, ddx, 0) + ddbias
    """,
    # Two first sums and one of the second order: the kernels that add them differ.
    "scaled": """
        ddy = ddx * weight + ddweight * x + ddbias
        d2x = ddweight * dy
        d2weight = sum_rows(ddx * dy)
    """,
}
BIASED = """\
op: biased
summary: Softmax of rows and a bias.
source: a test
inputs:
  x: matrix
  bias: {kind: per_column, absent: 0}
outputs:
  y: x
forward: |
  e = exp(x + bias - max(x + bias))
  y = e / sum(e)
backward: |
  dx = y * (dy - sum(dy * y))
  dbias = sum_rows(dx)
reference: |
  return torch.softmax(x if bias is None else x + bias, -1)
"""
SHIFTED = """\
op: shifted
summary: Rows with a scale of their own and two biases.
source: a test
inputs:
  x: matrix
  scale: per_row
  weight: {kind: per_column, absent: 0}
  bias: {kind: per_column, absent: 0}
params:
  gain: {type: float, default: 1.5}
outputs:
  y: x
forward: |
  y = x * scale * gain + weight + bias
backward: |
  dx = dy * scale * gain
  dscale = sum(dy * x) * gain
  dweight = sum_rows(dy)
  dbias = sum_rows(dy)
reference: |
  y = x * scale.unsqueeze(-1) * gain
  y = y if weight is None else y + weight
  return y if bias is None else y + bias
"""
MASKED = """\
op: masked
summary: The positive part, and an optional bias.
source: a test
inputs:
  x: matrix
  bias: {kind: per_row, absent: 0}
outputs:
  y: x
forward: |
  y = where(x > 0, x, 0) + bias
backward: |
  dx = where(x > 0, dy, 0)
  dbias = sum(dy)
reference: |
  y = torch.where(x > 0, x, 0)
  return y if bias is None else y + bias.unsqueeze(-1)
"""
SCALED = """\
op: scaled
summary: Rows times a weight, and a bias.
source: a test
inputs:
  x: matrix
  weight: {kind: per_column, absent: 1}
  bias: {kind: per_column, absent: 0}
outputs:
  y: x
forward: |
  y = x * weight + bias
backward: |
  dx = dy * weight
  dweight = sum_rows(dy * x)
  dbias = sum_rows(dy)
reference: |
  y = x if weight is None else x * weight
  return y if bias is None else y + bias
"""
NAMES = tuple(FORMULAS)
# The shapes of inputs, and for how many of them an edge is kept instead of values.
SAVING: list[tuple[str, list[tuple[int, ...]], int]] = [
    ("rmsnorm", [(17, 256), (256,)], 0),
    ("softmax", [(17, 256)], 1),
    ("add_rmsnorm", [(17, 256), (17, 256), (256,)], 2),
    ("biased", [(17, 256), (256,)], 2),
    ("biased", [(17, 256)], 1),
]


def text_of(name: str, key: str = "double_backward: true") -> str:
    """The spec of that name with a key more; what the shipped one has beyond is left out."""
    own = {"biased": BIASED, "shifted": SHIFTED, "scaled": SCALED, "masked": MASKED}
    path = ROOT / "specs" / f"{name}.yaml"
    path = path if path.exists() else ROOT / "tests" / "zoo" / f"{name}.yaml"
    text = own.get(name) or path.read_text(encoding="utf-8")
    text = re.split(r"\n(?=module:|cases:)", text)[0]
    return f"{text.rstrip()}\n{key}\n"


def by_hand(
    spec: Spec, forward: Program, backward: Program, upstream: object
) -> tuple[Assignment, ...]:
    """Stands in for ``grad.derive_double``."""
    lines = [line.strip() for line in FORMULAS[spec.op].strip().splitlines()]
    text = "\n".join(lines) + "\n"
    return parse_formulas(text, Span(Source("by hand", text), 1, 1))


@pytest.fixture(autouse=True, scope="module")
def formulas() -> Iterator[None]:
    """The formulas above in place of derived ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kgen.grad.derive_double", by_hand)
        yield


def lowered(name: str, key: str = "double_backward: true") -> RowOp:
    return lower(load_text(text_of(name, key), f"specs/{name}.yaml"))


def double(name: str) -> Program:
    program = lowered(name).double_backward
    assert program is not None
    return program


# --- the IR -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_program_verifies_and_the_first_backward_is_as_it_was(name: str) -> None:
    row_op, once = lowered(name), lowered(name, "double_backward: false")
    assert row_op.double_backward is not None
    verify(row_op.double_backward)
    assert row_op.backward == once.backward
    assert once.double_backward is None


def test_what_is_given_and_what_comes_out() -> None:
    program = double("rmsnorm")
    assert [(v.name, v.role, v.absent) for v in program.variables] == [
        ("x", Role.INPUT, None),
        ("weight", Role.INPUT, 1.0),
        ("rstd", Role.SAVED, None),
        ("dy", Role.UPSTREAM, None),
        ("ddx", Role.UPSTREAM, 0.0),
        ("ddweight", Role.UPSTREAM, 0.0),
    ]
    assert [(r.name, r.kind.value) for r in program.results] == [
        ("ddy", "matrix"),
        ("d2x", "matrix"),
        ("d2weight", "per_column"),
    ]
    assert {r.role for r in program.results} == {Role.GRADIENT}


def test_an_only_gradient_is_always_given() -> None:
    assert [(v.name, v.absent) for v in double("softmax").variables] == [
        ("y", None),
        ("dy", None),
        ("ddx", None),
    ]


def test_formulas_of_the_first_backward_are_worked_out_again() -> None:
    names = [d.name for d in double("rmsnorm").definitions]
    assert names == ["xhat", "g", "a", "c", "slope", "ddy", "h2", "d2x", "d2weight"]


SAVES_MORE = """\
op: more
summary: A small op.
source: a test
inputs: {x: matrix}
outputs: {y: x}
forward: |
  s = sum(x)
  t = exp(s)
  y = x * t
backward: |
  dx = dy * t + sum(dy * x) * t
double_backward: true
reference: |
  return x * torch.exp(x.sum(-1, keepdim=True))
"""


def test_forward_saves_what_either_backward_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FORMULAS, "more", "ddy = ddx * t\nd2x = ddx * dy * s")
    row_op = lower(load_text(SAVES_MORE, "specs/more.yaml"))
    assert row_op.saved == ("s", "t")
    assert [r.name for r in row_op.forward.results] == ["y", "s", "t"]
    assert row_op.backward is not None
    assert [v.name for v in row_op.backward.variables] == ["x", "t", "dy"]


def test_gradients_that_depend_on_nothing_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgen.grad.derive_double", lambda *_: ())
    with pytest.raises(KgenError) as caught:
        lowered("softmax")
    assert str(caught.value).startswith(
        "specs/softmax.yaml:16:1: error: double_backward: the gradients depend on nothing that "
        "takes a gradient: remove the key"
    )


# --- schedules ----------------------------------------------------------------------------------


def kernels(name: str) -> list[tuple[str, Form]]:
    plan = schedule(lowered(name))
    return [(k.name.removeprefix(f"{name}_"), k.form) for k in plan.passes[1].kernels]


def test_kernels_follow_the_rules_of_the_first_backward() -> None:
    assert kernels("rmsnorm") == [
        ("double_backward_resident", Form.GROUPS),
        ("double_backward_reload", Form.RELOAD_GROUPS),
        ("double_backward_split_rows", Form.STREAMING),
        ("double_backward_split_columns", Form.SPLIT_COLUMNS),
    ]
    assert kernels("softmax") == [
        ("double_backward_resident", Form.TILE),
        ("double_backward_reload", Form.RELOAD),
        ("double_backward_streaming", Form.STREAMING),
    ]
    assert kernels("shifted") == [
        ("double_backward_resident", Form.TILE),
        ("double_backward_streaming", Form.STREAMING),
    ]
    assert kernels("scaled") == [
        ("double_backward_resident", Form.GROUPS),
        ("double_backward_split_columns", Form.SPLIT_COLUMNS),
    ]


@pytest.mark.parametrize(
    ("name", "added_by"),
    [
        ("rmsnorm", ["rmsnorm_sum_groups", "rmsnorm_sum_groups"]),
        ("scaled", ["scaled_sum_groups", "scaled_double_sum_groups"]),
        ("shifted", ["shifted_sum_groups", None]),
        ("softmax", [None, None]),
    ],
)
def test_as_many_column_sums_share_a_kernel(name: str, added_by: list[str | None]) -> None:
    plan = schedule(lowered(name))
    assert [plan.sum_groups(each) for each in plan.passes] == added_by


def test_tiles_of_the_second_order_follow_its_own_matrices_and_sums() -> None:
    """Softmax reads y, dy and ddx, and makes ddy and d2x: five at once, not three."""
    rule = tile_rule(schedule(lowered("softmax")))
    assert list(rule) == ["forward", "backward", "double_backward"]
    ends = {name: (t.reloaded, t.whole_words) for name, t in rule.items()}
    assert ends["backward"] == ((16384, 32768, 65536), 65536)
    assert ends["double_backward"] == ((), 16384)
    assert list(tile_rule(schedule(lowered("softmax", "")))) == ["forward", "backward"]
    # As many sums in both: the same tiles. Three sums at first, one of the second order: larger.
    rule = tile_rule(schedule(lowered("rmsnorm")))
    assert rule["double_backward"] == rule["backward"]
    rule = tile_rule(schedule(lowered("scaled")))
    assert rule["double_backward"].whole_words == 8192


# --- the generated ops ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, formulas: None) -> Path:
    """Every op above with a double backward, in a package ``twice``; some without, in ``once``."""
    base = tmp_path_factory.mktemp("built")
    for package, names in (("twice", list(NAMES)), ("once", sorted({c[0] for c in SAVING}))):
        key = f"double_backward: {str(package == 'twice').lower()}"
        specs = [load_text(text_of(name, key), f"specs/{name}.yaml") for name in names]
        write(plan_changes(render_all(specs), base / package, names), base / package)
    return base


@pytest.fixture
def ops(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, testing.Op]:
    """The ops as their generated tests describe them."""
    monkeypatch.syspath_prepend(str(folder))
    found = {n: importlib.import_module(f"twice.{n}.test_{n}").OP for n in NAMES}
    if not found["rmsnorm"].interpreted and not torch.cuda.is_available():
        pytest.skip("needs a GPU or TRITON_INTERPRET=1")
    return found


@pytest.mark.parametrize("name", NAMES)
def test_rows_in_registers(ops: dict[str, testing.Op], name: str) -> None:
    op = ops[name]
    assert op.second_order
    for shape, dtype in (((17, 257), "float32"), ((3, 65), "float64"), ((0, 33), "float32")):
        testing.check_second_order(op, shape, dtype)
    testing.check_second_order_layout(op, "every_second_column", "shipped")
    testing.check_second_order_of(op, op.gradients[-1:], "shipped")
    testing.check_second_order_wanted(op, op.gradients[-1:], "shipped")
    for given in testing.subsets(op.optional):
        testing.check_second_order_optional(op, given, "shipped")


@pytest.mark.parametrize("name", NAMES)
def test_rows_in_chunks(ops: dict[str, testing.Op], name: str) -> None:
    op = ops[name]
    testing.check_second_order(op, (5, 129), "float32", "lowered")
    testing.check_second_order_of(op, op.gradients[:1], "lowered")
    testing.check_second_order_wanted(op, op.gradients[:1], "lowered")


@pytest.mark.parametrize("name", NAMES)
def test_rows_read_again(ops: dict[str, testing.Op], name: str) -> None:
    op = ops[name]
    has_sums = hasattr(op.module, "DOUBLE_BACKWARD_SPLIT_BLOCK")
    reloads = hasattr(op.module, "DOUBLE_BACKWARD_RELOADED")
    assert reloads == (has_sums and name != "scaled")
    op.module.calls.clear()
    testing.check_second_order(op, (5, 129), "float32", "reread")
    testing.check_second_order_of(op, op.gradients[:1], "reread")
    testing.check_second_order_wanted(op, op.gradients[:1], "reread")
    assert (op.module.calls["double_backward.reload"] > 0) == reloads


@pytest.mark.parametrize("name", NAMES)
def test_what_every_op_promises(ops: dict[str, testing.Op], name: str) -> None:
    testing.check_gradients(ops[name], (17, 65), "float32")
    testing.check_first_order_alone(ops[name])
    testing.check_gradgradcheck(ops[name], 2, ops[name].optional, "shipped")


@pytest.mark.parametrize("name", ["rmsnorm", "add_rmsnorm", "softmax"])
def test_a_third_derivative_raises(ops: dict[str, testing.Op], name: str) -> None:
    testing.check_thrice(ops[name])


@pytest.mark.parametrize("used", [("y",), ("h",), ("y", "h")], ids=str)
def test_outputs_that_take_no_part(ops: dict[str, testing.Op], used: tuple[str, ...]) -> None:
    op = ops["add_rmsnorm"]

    def second(function: object, dtype: torch.dtype) -> list[torch.Tensor]:
        torch.manual_seed(0)
        draw = torch.randn(6, 4, 33, dtype=torch.float64).to(dtype).to(op.device)
        x, residual, weight = (t.clone().requires_grad_() for t in (*draw[:2], draw[2][0]))
        assert callable(function)
        outputs = dict(zip(("y", "h"), function(x, residual, weight), strict=True))
        above = [draw[3].clone().requires_grad_(), draw[4].clone().requires_grad_()]
        dys = dict(zip(("y", "h"), above, strict=True))
        first = torch.autograd.grad(
            [outputs[n] for n in used], [x, residual], [dys[n] for n in used], create_graph=True
        )
        total = (first[0] * draw[5]).sum() + (first[1] * draw[0]).sum()
        leaves = [x, residual, weight, *(dys[n] for n in used)]
        found = torch.autograd.grad(total, leaves, allow_unused=True)
        zeros = [torch.zeros_like(leaf) for leaf in leaves]
        return [z if f is None else f for f, z in zip(found, zeros, strict=True)]

    got = second(op.function, torch.float32)
    expected = second(op.reference, torch.float64)
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs.float(), atol=1e-4, rtol=1e-4)


def test_a_wrong_formula_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ops: dict[str, testing.Op]
) -> None:
    wrong = FORMULAS["softmax"].replace("- dy * a", "+ dy * a")
    monkeypatch.setitem(FORMULAS, "softmax", wrong)
    files = render_all([load_text(text_of("softmax"), "specs/softmax.yaml")])
    write(plan_changes(files, tmp_path / "wrong", ["softmax"]), tmp_path / "wrong")
    monkeypatch.syspath_prepend(str(tmp_path))
    op = importlib.import_module("wrong.softmax.test_softmax").OP
    with pytest.raises(AssertionError, match=r"d2x: \d+ of \d+ elements off"):
        testing.check_second_order(op, (17, 65), "float32")
    with pytest.raises(RuntimeError, match="Jacobian mismatch"):
        testing.check_gradgradcheck(op, 3, (), "shipped")


# --- what the first order keeps -------------------------------------------------------------------


def bytes_saved(op: testing.Op, *tensors: torch.Tensor) -> tuple[int, Counter[str]]:
    """The memory of what forward saves, and all that both directions of the first order launch."""
    kept: dict[int, int] = {}
    before = Counter(op.module.calls)

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = op.function(*tensors)
    first = outputs if isinstance(outputs, torch.Tensor) else outputs[0]
    torch.autograd.grad(first, [t for t in tensors if t.requires_grad], torch.ones_like(first))
    return sum(kept.values()), Counter(op.module.calls) - before


def drawn(op: testing.Op, *shapes: tuple[int, ...], dtype: str = "float64") -> list[torch.Tensor]:
    torch.manual_seed(0)
    draws = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    return [d.to(getattr(torch, dtype)).to(op.device).requires_grad_() for d in draws]


@pytest.mark.parametrize(("name", "shapes", "edges"), SAVING)
def test_the_first_order_saves_and_launches_what_it_did(
    ops: dict[str, testing.Op], name: str, shapes: list[tuple[int, ...]], edges: int
) -> None:
    """The second order of these needs the values of no more tensors than the first."""
    once = importlib.import_module(f"once.{name}.test_{name}").OP
    tensors = drawn(ops[name], *shapes, dtype="float32")
    expected, launched = bytes_saved(once, *tensors)
    assert bytes_saved(ops[name], *tensors) == (expected + 4 * edges, launched)


def test_an_edge_is_handed_no_gradient_of_the_first_order(
    ops: dict[str, testing.Op], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else zeros would be made and added to the gradient."""
    edge = ops["add_rmsnorm"].module._GradientEdge
    passed, backward = [], edge.backward

    def watched(ctx: object, gradient: torch.Tensor | None) -> object:
        passed.append(gradient)
        return backward(ctx, gradient)

    monkeypatch.setattr(edge, "backward", staticmethod(watched))
    tensors = drawn(ops["add_rmsnorm"], (3, 8), (3, 8), (8,))
    y, h = ops["add_rmsnorm"].function(*tensors)
    (y * h).sum().backward()
    assert passed == [None, None]


def gradients_after_a_change(function: object, op: testing.Op) -> list[torch.Tensor]:
    (leaf,) = drawn(op, (3, 8))
    assert callable(function)
    x = leaf * 1
    y = function(x)
    if function is op.function:
        x.mul_(2)
    (first,) = torch.autograd.grad((y**3).sum(), leaf, create_graph=True)
    (second,) = torch.autograd.grad((first**2).sum(), leaf)
    return [first, second]


def test_an_input_that_nothing_reads_may_be_changed(ops: dict[str, testing.Op]) -> None:
    op = ops["softmax"]
    found = gradients_after_a_change(op.function, op)
    torch.testing.assert_close(found, gradients_after_a_change(op.reference, op))


def test_an_input_that_is_read_may_not_be_changed(ops: dict[str, testing.Op]) -> None:
    (leaf,) = drawn(ops["rmsnorm"], (3, 8))
    x = leaf * 1
    y = ops["rmsnorm"].function(x)
    x.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(y.sum(), leaf)


@pytest.mark.parametrize("frozen", [(), (0,), (1,), (2,), (0, 1), (0, 2)], ids=str)
def test_edges_of_frozen_inputs(ops: dict[str, testing.Op], frozen: tuple[int, ...]) -> None:
    op = ops["add_rmsnorm"]
    tensors = drawn(op, (2, 3), (2, 3), (3,))
    for index in frozen:
        tensors[index].requires_grad_(False)
    torch.autograd.gradcheck(op.function, tensors)
    torch.autograd.gradgradcheck(op.function, tensors)


def test_one_tensor_as_two_inputs(ops: dict[str, testing.Op]) -> None:
    op = ops["add_rmsnorm"]
    x, weight = drawn(op, (2, 3), (3,))

    def doubled(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, h = op.function(x, x, weight)
        return y, h

    torch.autograd.gradcheck(doubled, (x, weight))
    torch.autograd.gradgradcheck(doubled, (x, weight))


def test_hessian_vector_products(ops: dict[str, testing.Op]) -> None:
    """By the ways that the message of the third derivative, and specs/README.md, name."""
    op, functional = ops["softmax"], importlib.import_module("torch.autograd.functional")
    x, v = (t.detach() for t in drawn(op, (2, 3), (2, 3)))

    def ours(x: torch.Tensor) -> torch.Tensor:
        return torch.sum(op.function(x) ** 3)

    def theirs(x: torch.Tensor) -> torch.Tensor:
        return torch.sum(op.reference(x) ** 3)

    torch.testing.assert_close(functional.vhp(ours, x, v), functional.vhp(theirs, x, v))
    torch.testing.assert_close(functional.hessian(ours, x), functional.hessian(theirs, x))
    with pytest.raises(RuntimeError, match="no third derivative; for Hessian-vector products use"):
        functional.hvp(ours, x, v)


def test_edges_take_no_name_of_the_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    def renamed(text: str) -> str:
        return re.sub(r"\b(d|dd|d2)?bias\b", r"\1x_edge", text)

    monkeypatch.setitem(FORMULAS, "biased", renamed(FORMULAS["biased"]))
    files = render_all([load_text(renamed(text_of("biased")), "specs/biased.yaml")])
    wrapper = files["biased/op.py"]
    compile(wrapper, "op.py", "exec")
    assert "x_edge_, x_edge_edge, y = ctx.saved_tensors" in wrapper


def test_a_graph_of_the_first_gradients_is_let_go(ops: dict[str, testing.Op]) -> None:
    """Nothing in it refers to itself: it goes with its last user, without the collector."""
    op = ops["add_rmsnorm"]
    x = torch.randn(3, 8, device=op.device, requires_grad=True)
    gc.collect()
    gc.disable()
    try:
        y, h = op.function(x, x.detach())
        (dx,) = torch.autograd.grad(y.sum() + h.sum(), x, create_graph=True)
        gone = weakref.ref(h)
        del y, h, dx
        assert gone() is None
    finally:
        gc.enable()


def test_the_message_of_an_op_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "generated"))
    op = importlib.import_module("rmsnorm.op")
    device = "cpu" if op.INTERPRETED else "cuda"
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU or TRITON_INTERPRET=1")
    x = torch.randn(2, 4, device=device, requires_grad=True)
    (dx,) = torch.autograd.grad(op.rmsnorm(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError) as caught:
        torch.autograd.grad(dx.sum(), x)
    assert str(caught.value) == (
        "rmsnorm: there is no second derivative; build it with `double_backward: true` in its spec"
    )
