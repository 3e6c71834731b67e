"""Hostile specs: each is read or refused with a KgenError; nothing else, and never slowly."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from kgen.errors import KgenError, Source, Span
from kgen.expr import parse_formulas
from kgen.load import load, load_text

SPECS = Path(__file__).parent.parent / "specs"
LOADS = 4_000
FORMULAS = 18_000
SLOWEST = 5.0

SMALL = """\
op: scaled
summary: A small op.
source: an example
inputs: {x: matrix, w: {kind: per_column, absent: 1}}
params: {eps: {default: 1.0e-6, min: 0}}
outputs: {y: x}
forward: |
  r = rsqrt(mean(x * x) + eps)
  y = x * r * w
backward: derive
reference: |
  return F.rms_norm(x, x.shape[-1:], w, eps)
cases:
  one: {x: [[3, 4]], w: [1, 2], expect: {y: [[1, 2]]}}
"""
FORMULA_LINES = """\
y = (x - mean(x)) * rsqrt(mean(x * x) + eps)
e = exp(x - max(x)) / sum(exp(x - max(x)))
loss = log(sum(exp(x))) - sum(where(column == target, x, 0))
q = cast(clamp(round(x / scale), -127, 127), int8)
z = where(x > 0 and not y < 1, x, -x ** 2) if flag else x // 2 % 3
"""
TOKENS = """
    + - * / ** // % < <= > >= == != ( ) [ ] { } , . : ; = := -> @ & | ^ ~ ! ? $ \\ ` " ' # and or
    not if else lambda for in is None True yield await import exec eval __import__ __class__ x y dy
    mean sum exp where cast sum_rows 0 1 1.5 1e999 9999999999999999999999 0x1f 1j 1_0 007 .5 5. inf
    nan N row column é \u03bb \ufb01 x\xb2 \u202e \ufeff \u2028 \x00 \x1b \ud800 \U0001f600 """
YAML_TOKENS = """
    : - ? | > |2- >+ & &a * *a ! !! !!str !!python/object/apply:os.system !<tag:x> % @ ` # {} [] { }
    [ ] , ' " "\\x41" "\\U99999999" ~ null true yes .inf .nan -.inf 0o17 0x1f 1e999 1_000 --- ...
    <<: %YAML %TAG matrix scalar per_row derive none ../../x /etc/passwd C:\\x op: inputs: forward:
    \t \r \x00 \x07 \x1b[31m \x85 \xa0 \u2028 \u202e \ufeff \ud800 \U0001f600 é """


def refused_or_read(act: Callable[[], object]) -> bool:
    """Whether the input was refused. Any exception but KgenError passes, and fails the test."""
    start = time.perf_counter()
    refused = False
    try:
        act()
    except KgenError as error:
        refused = True
        text = str(error)
        assert text.startswith("error: ") or ": error: " in text
        text.encode("utf-8")
        assert text.replace("\n", "").isprintable()
    took = time.perf_counter() - start
    assert took < SLOWEST, f"took {took:.1f} s"
    return refused


def mutated(text: str, tokens: list[str], chance: random.Random) -> str:
    """The text after one to four changes to its characters, words or lines."""
    for _ in range(chance.choice((1, 1, 2, 4))):
        text = chance.choice(MUTATIONS)(text, tokens, chance)
    return text


def _insert(text: str, tokens: list[str], chance: random.Random) -> str:
    at = chance.randrange(len(text) + 1)
    return text[:at] + chance.choice(tokens) + text[at:]


def _replace_word(text: str, tokens: list[str], chance: random.Random) -> str:
    words = text.split(" ")
    words[chance.randrange(len(words))] = chance.choice(tokens)
    return " ".join(words)


def _cut(text: str, tokens: list[str], chance: random.Random) -> str:
    at = chance.randrange(len(text) + 1)
    return text[:at] + text[at + chance.choice((1, 1, 3, 20)) :]


def _repeat(text: str, tokens: list[str], chance: random.Random) -> str:
    at = chance.randrange(len(text) + 1)
    return text[:at] + text[at : at + 8] * chance.choice((2, 3, 40)) + text[at:]


def _character(text: str, tokens: list[str], chance: random.Random) -> str:
    at = chance.randrange(len(text) + 1)
    return (
        text[:at]
        + chr(chance.choice((chance.randrange(256), chance.randrange(0x11000))))
        + text[at + 1 :]
    )


def _lines(text: str, tokens: list[str], chance: random.Random) -> str:
    lines = text.split("\n")
    one, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    match chance.randrange(4):
        case 0:
            lines[one], lines[other] = lines[other], lines[one]
        case 1:
            lines.insert(other, lines[one])
        case 2:
            del lines[one]
        case _:
            lines[one] = chance.choice(("", " ", "    ", "  - ")) + lines[one].lstrip()
    return "\n".join(lines)


MUTATIONS = (_insert, _replace_word, _cut, _repeat, _character, _lines)


def test_mutated_specs() -> None:
    chance = random.Random(20240607)
    bases = (
        [SMALL] * 3
        + [SMALL.partition("cases")[0]] * 6
        + [path.read_text("utf-8") for path in sorted(SPECS.glob("*.yaml"))[:3]]
    )
    refused = 0
    for number in range(LOADS):
        text = mutated(bases[number % len(bases)], YAML_TOKENS.split(" "), chance)
        refused += refused_or_read(partial(load_text, text, "specs/fuzz.yaml"))
    assert refused > LOADS // 2


def test_mutated_formulas() -> None:
    chance = random.Random(19680409)
    lines = FORMULA_LINES.splitlines()
    refused = 0
    for number in range(FORMULAS):
        text = mutated(
            FORMULA_LINES if number % 9 == 0 else chance.choice(lines), TOKENS.split(" "), chance
        )
        at = Span(Source("specs/fuzz.yaml", text), 1, 1)
        refused += refused_or_read(partial(parse_formulas, text, at))
    assert refused > FORMULAS // 2


def hostile_formulas() -> Iterator[str]:
    """Shapes that break parsers: depth, length, size."""
    for deep in (10, 51, 199, 1_000, 20_000):
        yield "y = " + "(" * deep + "x" + ")" * deep
        yield "y = " + "(" * deep
        yield "y = x" + ")" * deep
        yield "y = " + "exp(" * deep + "x" + ")" * deep
        yield "y = " + "-" * deep + "x"
        yield "y = " + "not " * deep + "x"
        yield "y = x" + " + x" * deep
        yield "y = x" + " ** x" * deep
        yield "y = x" + " < x" * deep
        yield "y = x" + " and x" * deep
        yield "y = " + "x if x else " * deep + "x"
        yield "y = " + "lambda: " * deep + "x"
        yield "y = " + "[" * deep + "]" * deep
        yield "y = max(" + "x, " * deep + ")"
        yield "y" * deep + " = x"
        yield "y = " + "9" * deep
        yield "y = 1e" + "9" * deep
        yield "y = x\n" * deep
        yield "y = " + "(\n" * deep
        yield "=" * deep
        yield "\n" * deep
        yield "y = " + "'" * deep
        yield "y = " + "\\\n" * deep
        yield "#" * deep


def test_hostile_formulas() -> None:
    for text in hostile_formulas():
        at = Span(Source("specs/fuzz.yaml", text), 1, 1)
        refused_or_read(partial(parse_formulas, text, at))


def hostile_texts() -> Iterator[str]:
    """Shapes that break YAML readers: depth, length, references, other documents."""
    many = 50_000
    yield from (
        "",
        " ",
        "\n",
        "\ufeff",
        "---",
        "...",
        "--- ---",
        "{}",
        "[]",
        "~",
        "a",
        "'",
        "|",
        "&a",
    )
    yield from (
        SMALL * 2,
        SMALL + "---\n" + SMALL,
        SMALL.replace("\n", "\r\n"),
        SMALL[:-1],
        "\ufeff",
    )
    for part in (
        "[",
        "{",
        "[\n",
        "{a: ",
        "{a: \n",
        "- ",
        "? ",
        "a: ",
        "&a ",
        "*a ",
        "!a ",
        "!",
        "%",
        ":",
    ):
        yield part * (many // len(part))
        yield "op: " + part * (9_000 // len(part))
    for part in (
        "a: b\n",
        "#\n",
        "a\n",
        "'",
        '"',
        "''",
        "x",
        "\n",
        " ",
        "  x\n",
        "\\n",
        "- a\n",
        "\t",
    ):
        yield part * (many // len(part))
        yield '"' + part * (many // len(part))
        yield "forward: |\n" + part * (many // len(part))
    yield "a: &a [x]\n" + "".join(f"k{i}: &k{i} [*a, *a]\n" for i in range(9))
    yield "a: &a [*a]"
    for name in (
        "../x",
        "/etc/x",
        "a/b",
        "a\\\\b",
        "a\\0b",
        "CON",
        "a" * 9_000,
        "x.y",
        "-x",
        "\uff52ms",
    ):
        yield SMALL.replace("scaled", name)
        yield SMALL.replace("scaled", f'"{name}"')
        yield SMALL.replace("x:", f"{name}:")
    for value in (
        "1e999",
        "-1e999",
        "9" * 5_000,
        "1e" + "9" * 5_000,
        ".inf",
        ".nan",
        "0x" + "f" * 99,
    ):
        yield SMALL.replace("1.0e-6", value)
        yield SMALL.replace("[[3, 4]]", f"[[{value}, 4]]")
        yield SMALL + f"limits: {{max_columns: {value}, scratch_mib: {value}}}\n"
    for body in (
        "(" * 5_000,
        "-" * 50_000 + "1",
        "1" + "+1" * 50_000,
        "x" + ".x" * 50_000,
        "[" * 90,
    ):
        yield SMALL.replace("return F", f"return {body} F"[:9_000])
    for body in (
        "import os; os.abort()",
        "return\n \x0c x",
        "nonlocal x\n  return x",
        "return *x",
        "def",
    ):
        yield SMALL.replace("return F.rms_norm(x, x.shape[-1:], w, eps)", body)


def test_hostile_texts() -> None:
    for text in hostile_texts():
        refused_or_read(partial(load_text, text, "specs/fuzz.yaml"))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 1000,
        b"\xff\xfe" + SMALL.encode("utf-16-le"),
        bytes(range(256)) * 40,
        b"\x7fELF" + bytes(5000),
        SMALL.encode() + b"\x80",
        SMALL.encode() * 20_000,
        b"a: " + b"x" * 10_000_000,
    ],
    ids=["empty", "nulls", "utf16", "bytes", "elf", "latin", "10MB", "10MB_line"],
)
def test_hostile_files(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(data)
    assert refused_or_read(lambda: load(path))


def test_hostile_paths(tmp_path: Path) -> None:
    (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
    locked = tmp_path / "locked.yaml"
    locked.write_text(SMALL)
    for name in ("", ".", "no.yaml", "loop.yaml", "a\0b", "x" * 5000, "locked.yaml/x.yaml"):
        assert refused_or_read(partial(load, tmp_path / name))
    assert refused_or_read(lambda: load(Path("/dev/zero")))
    for name in ('a"b.yaml', "a\nb.yaml", "a\\b.yaml", "a\x1b[31m.yaml"):
        (tmp_path / name).write_text(SMALL)
        assert refused_or_read(partial(load, tmp_path / name))
    assert not refused_or_read(lambda: load(locked))


def test_nothing_was_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    touch = "__import__('pathlib').Path('touched').touch()"
    for text in (
        SMALL.replace("an example", f'!!python/object/apply:eval ["{touch}"]'),
        SMALL.replace("x * r * w", touch),
        SMALL.replace("return F", f"{touch}\n  return F"),
        SMALL.replace("1.0e-6", f'"{touch}"'),
    ):
        refused_or_read(partial(load_text, text, "specs/fuzz.yaml"))
    assert list(tmp_path.iterdir()) == []
