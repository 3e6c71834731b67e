"""The loader: what it reads, where it says things are, and the documents that must agree."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from kgen.build import render_op
from kgen.errors import MAX_PROBLEMS, KgenError, Problem, Problems, Source, Span, format_problem
from kgen.expr import BUILTIN_NAMES, FUNCTIONS
from kgen.load import load, load_text, shown_path
from kgen.schema import schema_json
from kgen.spec import (
    DEFAULT_TOLERANCES,
    SPEC_KEYS,
    Element,
    Kind,
    Limits,
    Spec,
    Tolerance,
    has_gradient,
)
from ruamel.yaml import YAML
from small_op import EXAMPLES, PAGE

ROOT = Path(__file__).parent.parent
SPECS = sorted((ROOT / "specs").glob("*.yaml"))
SMALL = """\
op: scaled
summary: A small op.
source: an example
inputs:
  x: matrix
outputs:
  y: x
forward: |
  y = x * 2
backward: none
reference: |
  return x * 2
"""


def read(text: str) -> Spec:
    return load_text(text, "specs/scaled.yaml")


def refusal(text: str) -> str:
    with pytest.raises(KgenError) as caught:
        read(text)
    return str(caught.value)


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_shipped_specs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    spec = load(path)
    assert spec.op == path.stem
    assert spec.path == f"specs/{path.name}"


@pytest.mark.parametrize("text", EXAMPLES, ids=lambda text: text.split()[1])
def test_readme_examples(text: str) -> None:
    spec = load_text(text, "specs/example.yaml")
    assert spec.forward


def test_readme_is_complete() -> None:
    assert len(EXAMPLES) >= 8
    for word in (*FUNCTIONS, *BUILTIN_NAMES):
        assert f"`{word}" in PAGE, word
    used = "".join(EXAMPLES)
    for name in FUNCTIONS:
        assert f"{name}(" in used, f"no example calls {name}"


def test_the_example_of_every_key() -> None:
    for key in SPEC_KEYS:
        assert f"\n| `{key.name}` | " in PAGE, key.name
    text = next(text for text in EXAMPLES if text.startswith("op: gated_norm\n"))
    assert [key.name for key in SPEC_KEYS if f"\n{key.name}:" not in f"\n{text}"] == []
    spec = load_text(text, "specs/example.yaml")
    assert spec.peers == ("A library", "Another one: its gated norm")
    assert [each.direction for each in spec.tuning] == ["forward", "backward", "double_backward"]


def test_layernorm() -> None:
    spec = load(ROOT / "specs" / "layernorm.yaml")
    assert [(i.name, i.kind, i.absent) for i in spec.inputs] == [
        ("x", Kind.MATRIX, None),
        ("weight", Kind.PER_COLUMN, 1.0),
        ("bias", Kind.PER_COLUMN, 0.0),
    ]
    (eps,) = spec.params
    assert (eps.name, eps.element, eps.default, eps.minimum) == ("eps", Element.FLOAT, 1e-5, 0.0)
    assert [formula.name for formula in spec.forward] == ["mu", "rstd", "y"]
    assert spec.forward[1].text == "rstd = rsqrt(mean((x - mu) ** 2) + eps)"
    assert (spec.forward[1].at.line, spec.forward[1].at.column) == (17, 3)
    assert isinstance(spec.backward, tuple) and len(spec.backward) == 5
    assert spec.reference == "return F.layer_norm(x, x.shape[-1:], weight, bias, eps)"
    assert (spec.limits, spec.tolerances) == (Limits(), DEFAULT_TOLERANCES)


@pytest.mark.parametrize(("line", "is_double"), [("", False), ("true", True), ("false", False)])
def test_double_backward(line: str, is_double: bool) -> None:
    key = f"double_backward: {line}\n" if line else ""
    spec = read(SMALL.replace("backward: none\n", f"backward: derive\n{key}"))
    assert (spec.backward, spec.double_backward) == ("derive", is_double)


def test_everything_said() -> None:
    spec = read(
        SMALL.replace("  x: matrix\n", "  x: matrix\n  t: {kind: per_row, type: int, absent: -1}\n")
        .replace("outputs:", "params: {k: {type: int, default: 3, max: 9}}\noutputs:")
        .replace("x * 2\nb", "x * 2 + t * k\nb")
        + "limits: {max_columns: 64}\n"
        + "dtypes: [float64, float16]\n"
        + "tolerances: {float16: [1e-2, 0]}\n"
        + "cases: {one: {x: [[1, 2.5]], t: [3], k: 4, expect: {y: [[14, 17]]}}, two: {x: [[1]]}}\n"
    )
    assert spec.inputs[1].element is Element.INT
    assert (spec.inputs[1].absent, spec.inputs[1].grad) == (-1.0, False)
    assert spec.params[0].default == 3 and isinstance(spec.params[0].default, int)
    assert spec.limits == Limits(64, 64)
    assert spec.dtypes == ("float16", "float64")
    assert spec.tolerances["float16"] == Tolerance(0.01, 0.0)
    assert spec.tolerances["float32"] == DEFAULT_TOLERANCES["float32"]
    one, two = spec.cases
    assert dict(one.given) == {"x": ((1, 2.5),), "t": (3,), "k": 4}
    assert dict(one.expect) == {"y": ((14, 17),)}
    assert two.expect == ()


@pytest.mark.parametrize(
    ("listed", "peers"),
    [
        ("[Liger-Kernel, 'a: b']", ("Liger-Kernel", "a: b")),
        ("\n  - FLA   # a comment\n  - 3", ("FLA", "3")),
        (f"[{'p' * 60}, λ]", ("p" * 60, "λ")),
    ],
)
def test_peers(listed: str, peers: tuple[str, ...]) -> None:
    spec = read(f"{SMALL}peers: {listed}\n")
    assert spec.peers == peers and read(SMALL).peers == ()
    assert render_op(spec) == render_op(read(SMALL)), "peers are for readers alone"


@pytest.mark.parametrize("number", ["1e-5", "1.0e-5", "1E-5", ".00001", "+1e-5", "0.1e-4"])
def test_yaml_numbers(number: str) -> None:
    text = SMALL.replace("outputs:", f"params: {{e: {{default: {number}}}}}\noutputs:")
    assert read(text.replace("x * 2\nb", "x * e\nb")).params[0].default == 1e-5


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("\n", "\r"),
        lambda text: "\ufeff" + text,
        lambda text: "---\n" + text + "...\n",
        lambda text: text.rstrip("\n"),
        lambda text: text.replace(
            "forward: |\n  y", "forward: |2-   # here\n\n\n  # a comment\n  y"
        ),
        lambda text: text.replace("forward: |\n  y = x * 2", "forward: y = x * 2  # here"),
        lambda text: text.replace("forward: |\n  y = x * 2", "forward: 'y = x * 2'"),
        lambda text: text.replace("op: scaled", "'op': \"scaled\""),
        lambda text: text.replace("A small op.", "über λ 🙂"),
    ],
)
def test_same_spec(change: Any) -> None:
    spec = read(change(SMALL))
    assert (spec.op, spec.forward[0].text, spec.reference) == (
        "scaled",
        "y = x * 2",
        "return x * 2",
    )
    line = spec.at.source.line(spec.forward[0].at.line)
    assert line[spec.forward[0].at.column - 1 :].startswith("y = x * 2")


def test_differentiable_outputs() -> None:
    text = SMALL.replace("  y: x", "  y: x\n  q: int8\n  p: float8_e5m2\n  f: float32")
    spec = read(text.replace("* 2\nb", "* 2\n  q = x\n  p = x\n  f = x\nb"))
    assert [has_gradient(output, spec.inputs) for output in spec.outputs] == [
        True,
        False,
        False,
        True,
    ]


def test_all_problems_at_once() -> None:
    text = refusal(SMALL.replace("summary", "sumary").replace("x * 2\nb", "z\nb") + "limits: 3\n")
    assert [line.split(":")[1] for line in text.splitlines() if "error:" in line] == [
        "2",
        "9",
        "13",
    ]


def test_a_flood_is_cut() -> None:
    text = refusal(SMALL + "".join(f"k{number}: 1\n" for number in range(5000)))
    assert text.count("error:") == MAX_PROBLEMS + 1
    assert "mend these first" in text


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for given, shown in (
        (Path("specs/x.yaml"), "specs/x.yaml"),
        (Path("./specs/../specs/x.yaml"), "specs/x.yaml"),
        (tmp_path / "deep" / "specs" / "x.yaml", "deep/specs/x.yaml"),
        (Path("/somewhere/else/specs/x.yaml"), "specs/x.yaml"),
        (Path("../specs/x.yaml"), "specs/x.yaml"),
        (Path("x.yaml"), "x.yaml"),
    ):
        assert shown_path(given) == shown


def test_formatted_problems() -> None:
    source = Source("a.yaml", "one\n  two three\n")
    assert format_problem(Problem("odd")) == "error: odd"
    shown = format_problem(Problem("odd", Span(source, 2, 7, 5)))
    assert shown == "a.yaml:2:7: error: odd\n      two three\n          ^^^^^"
    assert format_problem(Problem("odd", Span(source, 9, 1))) == "a.yaml:9:1: error: odd"
    assert "\x1b" not in format_problem(Problem("a \x1b[31m word", Span(source, 1, 1)))
    long = format_problem(Problem("odd", Span(Source("a", "x" * 500 + "y"), 1, 501)))
    assert long.splitlines()[1][long.splitlines()[2].index("^")] == "y"


def test_collected_problems() -> None:
    problems = Problems()
    problems.raise_if_any()
    with problems.collecting():
        raise KgenError(Problem("second", Span(Source("a", ""), 2, 1)))
    problems.add("first", Span(Source("a", ""), 1, 1))
    problems.add("first", Span(Source("a", ""), 1, 1))
    with pytest.raises(KgenError) as caught:
        problems.raise_if_any()
    assert [problem.message for problem in caught.value.problems] == ["first", "second"]


def test_schema_is_fresh() -> None:
    path = ROOT / "specs" / "schema.json"
    assert path.read_text("utf-8") == schema_json(), "run: kgen schema --out specs/schema.json"
    assert schema_json().endswith("}\n")


@pytest.mark.parametrize(
    "text",
    [*EXAMPLES, *(path.read_text("utf-8") for path in SPECS)],
    ids=lambda text: text.split()[1],
)
def test_schema_takes_good_specs(text: str) -> None:
    assert mismatch(YAML(typ="safe", pure=True).load(text), json.loads(schema_json())) is None


@pytest.mark.parametrize(
    "change",
    [
        ("op: scaled", "op: Scaled"),
        ("summary: A small op.", "sumary: A small op."),
        ("x: matrix", "x: vector"),
        ("x: matrix", "x: {kind: matrix, absnt: 1}"),
        ("x: matrix", "X: matrix"),
        ("backward: none\n", ""),
        ("backward: none", "backward: none\nlimits: {max_columns: 0}"),
        ("backward: none", "backward: none\ndtypes: [float33]"),
        ("backward: none", "backward: none\ntolerances: {float16: [1]}"),
        ("backward: none", "backward: none\npeers: []"),
        ("backward: none", f"backward: none\npeers: [{'p' * 61}]"),
        ("backward: none", "backward: none\ntuning: {}"),
        ("backward: none", "backward: none\ntuning: {forward: {100: {warps: 8}}}"),
        ("backward: none", "backward: none\ntuning: {forward: {512: {warps: 6}}}"),
        ("backward: none", "backward: none\ntuning: {forward: {512: {block: 64}}}"),
        ("backward: none", "backward: none\ntuning: {forward: {4096: {schedule: split}}}"),
        (
            "backward: none",
            "backward: none\ntuning: {forward: {4096: {schedule: reload, block: 64}}}",
        ),
        (
            "backward: none",
            "backward: none\ntuning: {forward: {4096: {schedule: streaming, rows: 1}}}",
        ),
    ],
)
def test_schema_refuses_bad_specs(change: tuple[str, str]) -> None:
    document = YAML(typ="safe", pure=True).load(SMALL.replace(*change))
    assert mismatch(document, json.loads(schema_json())) is not None
    refusal(SMALL.replace(*change))


def mismatch(value: Any, schema: dict[str, Any]) -> str | None:
    """The first rule of a schema that a value breaks, for the keywords that kgen's schema uses."""
    types: dict[str, Any] = {
        "object": dict,
        "array": list,
        "string": str,
        "boolean": bool,
        "integer": int,
    }
    types["number"] = (int, float)
    names = schema.get("type", list(types))
    names = names if isinstance(names, list) else [names]
    if isinstance(value, bool) and "boolean" not in names:
        return f"{value} is a bool"
    if not any(isinstance(value, types[name]) for name in names):
        return f"{value} is not {names}"
    if "anyOf" in schema and all(mismatch(value, one) for one in schema["anyOf"]):
        return f"{value} matches none"
    if value not in schema.get("enum", [value]) or value != schema.get("const", value):
        return f"{value} is not one of {schema}"
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        return f"{value} does not look like {schema['pattern']}"
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        return f"{value} is out of bounds"
    if isinstance(value, str | list) and not _fits(len(value), schema):
        return f"{value} is too long or short"
    return _inside(value, schema)


def _fits(length: int, schema: dict[str, Any]) -> bool:
    low = schema.get("minItems", schema.get("minLength", 0))
    return bool(low <= length <= schema.get("maxItems", schema.get("maxLength", length)))


def _inside(value: Any, schema: dict[str, Any]) -> str | None:
    if isinstance(value, list):
        return next(filter(None, (mismatch(item, schema.get("items", {})) for item in value)), None)
    if not isinstance(value, dict):
        return None
    if len(value) < schema.get("minProperties", 0):
        return f"{value} is empty"
    for key in schema.get("required", ()):
        if key not in value:
            return f"{key} is missing"
    for key, item in value.items():
        if mismatch(key, schema.get("propertyNames", {})):
            return f"{key} is no name"
        inner = schema.get("properties", {}).get(key, schema.get("additionalProperties", {}))
        for pattern, values in schema.get("patternProperties", {}).items():
            inner = values if re.search(pattern, str(key)) else inner
        found = f"{key} is unknown" if inner is False else mismatch(item, inner)
        if found:
            return found
    return None
