"""Reverse mode: formulas to read, that cost no more than a person's, and that are right."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from kgen.cost import backward_cost
from kgen.errors import KgenError
from kgen.interpret import run
from kgen.ir import Program
from kgen.load import load, load_text
from kgen.lower import RowOp, formulas_of, lower
from kgen.spec import Element, Input, Spec, differentiable_inputs
from random_op import INPUTS, random_forward

ROOT = Path(__file__).parent.parent
SHIPPED = ("rmsnorm", "layernorm", "softmax")
TEXTBOOK = {
    "rmsnorm": """
        xhat = x * rstd
        dxhat = dy * weight
        dx = rstd * (dxhat - xhat * mean(dxhat * xhat))
        dweight = sum_rows(dy * xhat)
    """,
    "layernorm": """
        xhat = (x - mu) * rstd
        dxhat = dy * weight
        dx = rstd * (dxhat - mean(dxhat) - xhat * mean(dxhat * xhat))
        dweight = sum_rows(dy * xhat)
        dbias = sum_rows(dy)
    """,
    "softmax": "dx = y * (dy - sum(dy * y))",
    "log_softmax": "dx = (dy - exp(y) * sum(dy)) / temperature",
    "logsumexp": "dx = dlse * exp(x - lse)",
    "cross_entropy": """
        masked_dloss = where(target == ignored, 0, dloss)
        dx = exp(x - lse) * (dlse + masked_dloss) - where(column == target, masked_dloss, 0)
    """,
    "l2norm": "dx = r * (dy - y * sum(dy * y))",
    "add_rmsnorm": """
        hhat = h * rstd
        dhhat = dy * weight
        dx = dh + rstd * (dhhat - hhat * mean(dhhat * hhat))
        dresidual = dx
        dweight = sum_rows(dy * hhat)
    """,
    "squared_relu": "dx = 2 * (dy * maximum(x, 0))",
}


def spec(name: str) -> Spec:
    """A spec of the zoo, or else one that is shipped."""
    path = ROOT / "tests" / "zoo" / f"{name}.yaml"
    return load(path if path.exists() else ROOT / "specs" / f"{name}.yaml")


def derived(name: str) -> RowOp:
    """The op with a derived backward."""
    return lower(replace(spec(name), backward="derive"))


def formulas(program: Program | None) -> list[str]:
    """The formulas of a program."""
    assert program is not None
    return [d.text for d in program.definitions if d.text is not None]


def small(forward: str, inputs: dict[str, str] | None = None, params: str = "") -> Spec:
    """A spec whose backward is derived."""
    return load_text(derived_text(forward, inputs, params), "specs/small_op.yaml")


def derived_text(forward: str, inputs: dict[str, str] | None = None, params: str = "") -> str:
    """The text of such a spec."""
    given = {"x": "matrix", **(inputs or {})}
    lines = ["op: small_op", "summary: A small op.", "source: a test", "inputs:"]
    lines += [f"  {name}: {kind}" for name, kind in given.items()]
    lines += [f"params: {params}"] if params else []
    lines += ["outputs: {y: x}", "forward: |", *(f"  {line}" for line in forward.split("\n"))]
    lines += ["backward: derive", "reference: |", "  return x"]
    return "\n".join(lines) + "\n"


def gradient(forward: str, inputs: dict[str, str] | None = None, params: str = "") -> str:
    """The last formula of a derived backward."""
    return formulas(lower(small(forward, inputs, params)).backward)[-1]


@pytest.mark.parametrize("name", TEXTBOOK)
def test_reads_like_the_textbook(name: str) -> None:
    expected = [line.strip() for line in TEXTBOOK[name].strip().splitlines()]
    assert formulas(derived(name).backward) == expected


@pytest.mark.parametrize("name", [*SHIPPED, "log_softmax", "cross_entropy", "add_rmsnorm"])
def test_costs_no_more_than_the_formulas_of_a_person(name: str) -> None:
    hand, own = backward_cost(lower(spec(name))), backward_cost(derived(name))
    assert own.passes <= hand.passes
    assert own.reductions <= hand.reductions
    assert own.element_ops <= hand.element_ops
    assert own.row_ops <= hand.row_ops
    assert own.matrices_read <= hand.matrices_read


def test_softmax_saves_its_output_alone_and_walks_twice() -> None:
    op = derived("softmax")
    assert op.saved == ()
    assert op.backward is not None
    assert [v.name for v in op.backward.variables] == ["y", "dy"]
    assert backward_cost(op).passes == 2


@pytest.mark.parametrize("name", TEXTBOOK)
def test_pasted_formulas_give_the_same_programs(name: str) -> None:
    own = derived(name)
    names = {d.name for d in own.forward.definitions}
    assert own.backward is not None
    lines = [d.text for d in own.backward.definitions if d.name not in names]
    pasted = _with_backward(name, [line for line in lines if line is not None])
    again = lower(pasted)
    assert again.forward == own.forward
    assert again.backward == own.backward
    assert again.saved == own.saved


def _with_backward(name: str, lines: list[str]) -> Spec:
    folder = "specs" if name in SHIPPED else "tests/zoo"
    text = (ROOT / folder / f"{name}.yaml").read_text(encoding="utf-8")
    before, _, rest = text.partition("backward: |\n")
    _, _, after = rest.partition("\n\n")
    block = "".join(f"  {line}\n" for line in lines)
    return load_text(f"{before}backward: |\n{block}\n{after}", f"specs/{name}.yaml")


@pytest.mark.parametrize("seed", range(40))
def test_random_forwards_agree_with_autograd(seed: int) -> None:
    try:
        op = lower(random_spec(seed))
    except KgenError as error:
        assert "no gradient reaches" in str(error)
        return
    compare_with_autograd(op, seed)


def random_spec(seed: int) -> Spec:
    lines = ["op: random_op", "summary: Random.", "source: a test", "inputs:"]
    lines += [f"  {name}: {kind}" for name, kind in INPUTS.items()]
    lines += ["outputs: {y: x, t: x}", "forward: |"]
    lines += [f"  {line}" for line in random_forward(seed).split("\n")]
    lines += ["backward: derive", "reference: |", "  return x"]
    return load_text("\n".join(lines) + "\n", "specs/random_op.yaml")


def compare_with_autograd(op: RowOp, seed: int, n_rows: int = 3, n_columns: int = 5) -> None:
    """Every derived gradient against PyTorch's, of the forward program itself."""
    draw = torch.Generator().manual_seed(seed)
    shapes = {"matrix": (n_rows, n_columns), "per_row": (n_rows, 1), "per_column": (1, n_columns)}

    def random(kind: str) -> torch.Tensor:
        return torch.randn(shapes[kind], generator=draw, dtype=torch.float64)

    values = {i.name: random(i.kind.value).requires_grad_() for i in op.spec.inputs}
    found = run(op.forward, values)
    results = [r for r in op.forward.results if r.name in {o.name for o in op.spec.outputs}]
    outputs = [found[r.name].expand(shapes[r.kind.value]) for r in results]
    if not all(output.isfinite().all() for output in outputs):
        return
    upstream = {f"d{r.name}": random(r.kind.value) for r in results}
    leaves = list(values.values())
    expected = torch.autograd.grad(outputs, leaves, list(upstream.values()), allow_unused=True)
    assert op.backward is not None
    known = {**values, **found, **upstream}
    given = {v.name: known[v.name].detach() for v in op.backward.variables}
    got = run(op.backward, {**{n: v.detach() for n, v in values.items()}, **given})
    for (name, value), gradient in zip(values.items(), expected, strict=True):
        wanted = torch.zeros_like(value) if gradient is None else gradient
        if wanted.isfinite().all():
            torch.testing.assert_close(got[f"d{name}"].double().expand_as(wanted), wanted)


@pytest.mark.parametrize("name", [*SHIPPED, "log_softmax", "cross_entropy", "gated_rmsnorm", "dyt"])
@pytest.mark.parametrize("backward", ["derive", "as it stands"])
def test_second_order_agrees_with_autograd(name: str, backward: str) -> None:
    twice = replace(spec(name), double_backward=True)
    if backward == "derive":
        twice = replace(twice, backward="derive")
    compare_second_order(lower(twice), 1)


@pytest.mark.parametrize("seed", range(8))
def test_second_order_of_random_forwards(seed: int) -> None:
    once = random_spec(seed)
    try:
        op = lower(replace(once, double_backward=True))
    except KgenError as error:
        assert "no gradient reaches" in str(error)
        return
    compare_second_order(op, seed)


def compare_second_order(op: RowOp, seed: int, n_rows: int = 2, n_columns: int = 4) -> None:
    """The derivative of the backward against PyTorch's of its own derivative of forward."""
    draw = torch.Generator().manual_seed(seed)
    shapes = {"matrix": (n_rows, n_columns), "per_row": (n_rows, 1), "per_column": (1, n_columns)}

    def random(kind: str) -> torch.Tensor:
        return torch.randn(shapes[kind], generator=draw, dtype=torch.float64)

    values = {i.name: _argument(i, random(i.kind.value)) for i in op.spec.inputs}
    values |= {p.name: torch.tensor(p.default) for p in op.spec.params}
    found = run(op.forward, values)
    results = [r for r in op.forward.results if r.name in {o.name for o in op.spec.outputs}]
    outputs = [found[r.name].expand(shapes[r.kind.value]) for r in results]
    if not all(output.isfinite().all() for output in outputs):
        return
    upstream = {f"d{r.name}": random(r.kind.value).requires_grad_() for r in results}
    leaves = {i.name: values[i.name] for i in differentiable_inputs(op.spec)}
    first = torch.autograd.grad(
        outputs, list(leaves.values()), list(upstream.values()), create_graph=True
    )
    assert op.backward is not None and op.double_backward is not None
    second = {f"dd{name}": random_like(g, draw) for name, g in zip(leaves, first, strict=True)}
    named = {f"d{name}": dy for name, dy in upstream.items()}
    named |= {f"d2{name}": leaf for name, leaf in leaves.items()}
    wanted = torch.autograd.grad(
        first, list(named.values()), list(second.values()), allow_unused=True
    )
    known = {**values, **found, **upstream, **second}
    given = {v.name: known[v.name].detach() for v in op.double_backward.variables}
    got = run(op.double_backward, {**{n: v.detach() for n, v in values.items()}, **given})
    for (name, like), gradient in zip(named.items(), wanted, strict=True):
        expected = torch.zeros_like(like) if gradient is None else gradient
        if expected.isfinite().all():
            given_back = got.get(name, torch.zeros_like(expected)).expand_as(expected)
            assert torch.allclose(given_back, expected), name


def random_like(gradient: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    return torch.randn(gradient.shape, generator=draw, dtype=torch.float64)


def _argument(entry: Input, value: torch.Tensor) -> torch.Tensor:
    if entry.element is Element.BOOL:
        return value > 0
    if entry.element is Element.INT:
        return torch.zeros_like(value, dtype=torch.int64)
    return value.requires_grad_()


@pytest.mark.parametrize("forward", ["y = x - max(x)", "y = x * min(x)", "y = x + max(x) ** 2"])
def test_columns_that_tie_share_the_gradient(forward: str) -> None:
    op = lower(small(forward))
    x = torch.tensor([[2.0, 1.0, 2.0, 1.0]], dtype=torch.float64, requires_grad=True)
    dy = torch.tensor([[0.5, -1.0, 2.0, 3.0]], dtype=torch.float64)
    found = run(op.forward, {"x": x})
    (expected,) = torch.autograd.grad(found["y"], x, dy)
    known = {**found, "x": x, "dy": dy}
    assert op.backward is not None
    given = {v.name: known[v.name].detach() for v in op.backward.variables}
    torch.testing.assert_close(run(op.backward, given)["dx"], expected)


def test_equal_values_share_the_gradient_of_maximum() -> None:
    op = lower(small("y = maximum(x, z)", {"z": "matrix"}))
    x = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64)
    given = {"x": x, "z": torch.tensor([[1.0, 1.0, 4.0]]).double(), "dy": torch.ones_like(x)}
    assert op.backward is not None
    got = run(op.backward, given)
    assert got["dx"].tolist() == [[0.5, 1, 0]]
    assert got["dz"].tolist() == [[0.5, 0, 1]]


@pytest.mark.parametrize(
    ("forward", "expected"),
    [
        ("y = x * detach(sum(x))", "dx = dy * detach(sum(x))"),
        ("y = cast(x, float16) * 3", "dx = 3 * dy"),
        ("y = maximum(x, 0)", "dx = where(x > 0, dy, 0)"),
        ("y = clamp(x, -1, 2)", "dx = where(x >= -1 and x <= 2, dy, 0)"),
        ("y = where(x > 1, x, 2 * x)", "dx = where(x > 1, dy, 2 * dy)"),
        ("y = x - mean(x)", "dx = dy - mean(dy)"),
        ("y = x / sum(x)", "dx = (dy - sum(dy * y)) / sum(x)"),
        ("y = exp(x)", "dx = dy * y"),
        ("y = tanh(x)", "dx = dy * (1 - y ** 2)"),
        ("y = sqrt(x)", "dx = 0.5 * dy / y"),
        ("y = x ** 3", "dx = 3 * (dy * x ** 2)"),
        ("y = x * floor(x)", "dx = dy * floor(x)"),
        ("y = x / 3", "dx = dy / 3"),
        ("y = x % 2", "dx = dy"),
        ("y = log1p(exp(x))", "dx = dy * sigmoid(x)"),
    ],
)
def test_small_gradients(forward: str, expected: str) -> None:
    assert gradient(forward) == expected


def test_row_values_stay_out_of_the_columns() -> None:
    text = gradient("y = x * a / b", {"a": "{kind: per_row, grad: false}", "b": "per_row"})
    assert text == "db = -(sum(dy * y) / b)"


def test_an_input_without_a_gradient_is_refused() -> None:
    with pytest.raises(KgenError) as caught:
        lower(small("y = x + floor(z)", {"z": "matrix"}))
    assert str(caught.value).splitlines()[0] == (
        "specs/small_op.yaml:6:3: error: no gradient reaches 'z': every path from it to the "
        "outputs goes through detach, a comparison or rounding; mark it grad: false"
    )


def test_a_gradient_that_cancels_is_zero() -> None:
    forward = "z = x - shift\nm = max(z)\ny = z - m - log(sum(exp(z - m)))"
    op = lower(small(forward, {"shift": "per_row"}))
    assert formulas(op.backward)[-2:] == ["dx = dy - exp(y) * sum(dy)", "dshift = 0"]
    compare_with_autograd(op, 0)


def test_names_of_the_spec_are_not_taken_again() -> None:
    op = lower(small("xhat = mean(x)\ndxhat = rsqrt(mean(x * x))\ny = x * dxhat - xhat"))
    names = [d.name for d in op.backward.definitions] if op.backward else []
    assert len(set(names)) == len(names)
    compare_with_autograd(op, 0)


@pytest.mark.parametrize(
    ("forward", "expected"),
    [
        ("m = max(x)\ns = sum(exp(x - m))\ny = x - m - log(2 * s)", "dy - exp(y) * (2 * sum(dy))"),
        ("m = max(x)\ny = x - m - log(sum(exp(x - m)) / 3)", "dy - exp(y) * (sum(dy) / 3)"),
    ],
)
def test_factors_inside_a_logarithm_count(forward: str, expected: str) -> None:
    assert gradient(forward) == f"dx = {expected}"
    compare_with_autograd(lower(small(forward)), 0)


@pytest.mark.parametrize(
    "forward",
    [
        "n = sqrt(mean(x * x))\ny = x * a / n",
        "e = exp(x - max(x))\ny = e * a / sum(e)",
        "y = x * a / (abs(x) + 1)",
    ],
)
def test_nothing_is_divided_by_what_forward_multiplies_by(forward: str) -> None:
    op = lower(small(forward, {"a": "per_row"}))
    assert not any(re.search(r"/ a\b", text) for text in formulas(op.backward))
    x = torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64, requires_grad=True)
    a = torch.zeros((1, 1), dtype=torch.float64, requires_grad=True)
    dy = torch.tensor([[0.3, 1.0, -2.0]], dtype=torch.float64)
    found = run(op.forward, {"x": x, "a": a})
    expected = torch.autograd.grad(found["y"], [x, a], dy)
    known = {**found, "x": x, "a": a, "dy": dy}
    assert op.backward is not None
    got = run(op.backward, {v.name: known[v.name].detach() for v in op.backward.variables})
    for name, wanted in zip(("dx", "da"), expected, strict=True):
        torch.testing.assert_close(got[name].expand_as(wanted), wanted)


@pytest.mark.parametrize(
    "forward",
    [
        # A row value with a name that is written out elsewhere too, before and after it.
        "v = max(x)\ny = x * v + sum(exp(x - max(x)))",
        "s = sum(exp(x - max(x)))\nv = max(x)\ny = x * v + s",
        "v = tanh(x - max(x) - log(sum(exp(x - max(x)))))\ny = x / (1 + x ** 2) * cast(x, x) + v",
        # Long names, long formulas and deep ones.
        "abcdefghijklmnopqrstuvwxyzabcdef = tanh(x)\ny = abcdefghijklmnopqrstuvwxyzabcdef ** 3",
        f"y = {'1 / (1 + ' * 30}x * x{')' * 30}",
        "y = " + " + ".join(f"tanh(x * {i}) * sum(x * {i})" for i in range(2, 14)),
    ],
)
def test_what_is_derived_can_be_pasted(forward: str) -> None:
    derived_spec = small(forward)
    op = lower(derived_spec)
    compare_with_autograd(op, 3)
    _, (first,) = formulas_of(derived_spec)
    block = "\n".join(f"  {d.text}" for d in first.definitions)
    text = derived_text(forward).replace("backward: derive", f"backward: |\n{block}")
    assert lower(load_text(text, "specs/small_op.yaml")).backward == op.backward


@pytest.mark.parametrize("forward", ["y = x * 1e300 * 1e300", "y = x / 1e-300 / 1e-300"])
def test_constants_that_no_float_holds_are_refused(forward: str) -> None:
    with pytest.raises(KgenError, match="multiply to a number that no float can hold"):
        lower(small(forward))


@pytest.mark.parametrize(
    "forward",
    [
        "y = " + " * ".join(f"(x + {i})" for i in range(1, 16)),
        "v0 = tanh(x)\n"
        + "\n".join(f"v{i} = tanh(v{i - 1})" for i in range(1, 30))
        + "\ny = 2 * v29",
        "y = " + " + ".join(f"where(x > {i}, x * {i}, x)" for i in range(2, 22)),
    ],
    ids=["product", "chain", "choices"],
)
def test_large_forwards_take_seconds(forward: str) -> None:
    start = time.process_time()
    compare_with_autograd(lower(small(forward)), 0)
    assert time.process_time() - start < 10
