"""Random forwards for the tests of reverse mode: smooth enough to differentiate where they are."""

from __future__ import annotations

import random
from collections.abc import Callable

INPUTS = {
    "x": "matrix",
    "z": "matrix",
    "shift": "per_row",
    "weight": "{kind: per_column, absent: 1}",
}


def random_forward(seed: int) -> str:
    """Formulas for ``y``, and often for a row value ``t``, over the inputs of ``INPUTS``."""
    chance = random.Random(seed)
    names = {"matrix": ["x", "z"], "row": ["shift"], "column": ["weight"]}
    lines: list[str] = []
    for index in range(chance.randint(1, 4)):
        kind = chance.choice(["matrix", "matrix", "row"])
        name = f"v{index}"
        lines.append(f"{name} = {_value(chance, kind, names, 2)}")
        names[kind].append(name)
    lines.append(f"y = {_ending(chance, names)}")
    lines.append(f"t = sum(x * z) * {chance.choice(names['row'])}")
    return "\n".join(_used(lines))


def _used(lines: list[str]) -> list[str]:
    """Every name has to be used: what is not goes into ``y``."""
    last = next(line for line in lines if line.startswith("y = "))
    for line in lines:
        name = line.split(" = ")[0]
        others = " ".join(other.split(" = ")[1] for other in lines if other != line)
        is_used = name in others.replace("(", " ").replace(")", " ").replace(",", " ").split()
        if name.startswith("v") and not is_used:
            lines = [f"{other} + {name}" if other is last else other for other in lines]
            last = next(line for line in lines if line.startswith("y = "))
    for name in INPUTS:
        text = " ".join(lines).replace("(", " ").replace(")", " ").replace(",", " ").split()
        if name not in text:
            lines = [f"{line} + {name} * x" if line is last else line for line in lines]
            last = next(line for line in lines if line.startswith("y = "))
    return lines


def _ending(chance: random.Random, names: dict[str, list[str]]) -> str:
    return " + ".join(_value(chance, "matrix", names, 2) for _ in range(chance.randint(1, 2)))


def _value(chance: random.Random, kind: str, names: dict[str, list[str]], depth: int) -> str:
    if depth == 0:
        return chance.choice(names[kind])

    def of(inner: str) -> str:
        return _value(chance, inner, names, depth - 1)

    if kind == "row":
        rows: list[Callable[[], str]] = [
            lambda: f"sum({of('matrix')} * {chance.choice(names['matrix'])})",
            lambda: f"mean({of('matrix')} + x)",
            lambda: f"rsqrt(mean({of('matrix')} ** 2 + x * x) + 0.1)",
            lambda: f"max({of('matrix')} + x)",
            lambda: f"log(1 + sum(exp(tanh({of('matrix')} + x))))",
            lambda: f"min({of('matrix')} * z) * {of('row')}",
            lambda: f"{of('row')} / (1 + abs({of('row')}))",
        ]
        return chance.choice(rows)()
    other = chance.choice(["matrix", "row", "column"])
    matrices: list[Callable[[], str]] = [
        lambda: f"({of('matrix')} + {of('matrix')})",
        lambda: f"({of('matrix')} - {of(other) if other != 'column' else 'weight'})",
        lambda: f"{of('matrix')} * {of(other) if other != 'column' else 'weight'}",
        lambda: f"{of('matrix')} * {of('matrix')}",
        lambda: f"{of('matrix')} / (2 + {of('matrix')} ** 2)",
        lambda: f"tanh({of('matrix')})",
        lambda: f"sigmoid({of('matrix')})",
        lambda: f"silu({of('matrix')})",
        lambda: f"erf({of('matrix')})",
        lambda: f"exp(-abs({of('matrix')}))",
        lambda: f"log1p({of('matrix')} ** 2)",
        lambda: f"sqrt(1 + {of('matrix')} ** 2)",
        lambda: f"where({of('matrix')} > {of('row')}, {of('matrix')}, {of('matrix')})",
        lambda: f"maximum({of('matrix')}, {of('matrix')} + 0.3)",
        lambda: f"minimum({of('matrix')}, 0.2)",
        lambda: f"clamp({of('matrix')}, -1, {of('row')})",
        lambda: f"(1 + {of('matrix')} ** 2) ** 1.5",
        lambda: f"abs({of('matrix')})",
        lambda: f"cast({of('matrix')}, x)",
        lambda: f"detach({of('matrix')}) * {of('matrix')}",
        lambda: f"exp({of('matrix')} - max({of('matrix')} + x))",
        lambda: f"{of('row')} * weight",
        lambda: f"{of('matrix')} ** 3",
    ]
    if depth == 1 and chance.random() < 0.4:
        return chance.choice(names["matrix"])
    return chance.choice(matrices)()
