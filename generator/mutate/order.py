"""In which order a mutant meets the generated tests: those likely to see it first, then all."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain, zip_longest

from kgen.mutate.mutants import Mutant

_DTYPE = "float(32|64)"
_RESIDENT = (
    rf"\[{_DTYPE}-\(17, 257\)-shipped",
    rf"\[{_DTYPE}-\(2, 3\)-shipped",
    rf"\[{_DTYPE}-\(1, 1\)-shipped",
)
_LONGER = (
    rf"\[{_DTYPE}-\(2, 257\)-lowered",
    rf"\[{_DTYPE}-\(3, 129\)-lowered",
    rf"\[{_DTYPE}-\(17, 65\)-lowered",
)

# Rows that are read again: of forward wider than of backward, and half as many columns in float64.
_RELOAD_FORWARD = (
    r"\[float32-\((17, 65|2, 127|2, 128)\)-lowered",
    r"\[float64-\((4, 9, 33|37, 1, 33)\)-lowered",
)
_RELOAD_BACKWARD = (
    r"\[float32-\((4, 9, 33|37, 1, 33)\)-lowered",
    r"\[float64-\(5, 24\)-lowered",
)

# Helpers of rows that are walked in chunks.
_IN_CHUNKS = ("merge_", "rescale_", "moments")

# Tests that take many launches each: they have their turn after the others.
_DEAR = ("test_gradcheck", "test_gradgradcheck", "test_bits")


def first_tests(mutant: Mutant) -> list[str]:
    """Patterns of the tests that are likely to see a mutant, most likely first."""
    name = mutant.function
    is_kernel = mutant.file == "kernels.py"
    is_longer = "streaming" in name or "split" in name or name.startswith(_IN_CHUNKS)
    is_resident, is_reload = name.endswith("_resident"), name.endswith("_reload")
    is_forward = "forward" in name and is_kernel
    if is_reload:
        cases = list(_RELOAD_FORWARD if is_forward else _RELOAD_BACKWARD)
    elif is_resident or is_longer:
        cases = list(_RESIDENT if is_resident else _LONGER)
    else:
        cases = [case for pair in zip(_RESIDENT, _LONGER, strict=True) for case in pair]
    checks = ["test_forward", "test_gradients"]
    screen = [f"{check}{case}" for check in checks for case in cases]
    if not is_forward:
        screen = [*screen[len(cases) :], *screen[: len(cases)]]
    path = "lowered" if is_longer else "shipped" if is_resident else "reread" if is_reload else ""
    others = [f"test_special_row.*{path}.*float32", f"test_optional_inputs.*{path}"]
    likely = [p for pattern in mutant.kind.first for p in (f"{pattern}.*{path}", pattern)]
    return [*likely, *screen, *others]


def arranged(tests: Sequence[str], first: Sequence[str]) -> list[int]:
    """The positions of all tests in the order to run them.

    Of each pattern the first test that matches comes first; of the rest, one test of each function
    after another, so that every check has its turn soon.
    """
    chosen: list[int] = []
    for pattern in first:
        matching = (i for i, test in enumerate(tests) if re.search(pattern, test))
        chosen += [i for i in matching if i not in chosen][:1]
    functions: dict[str, list[int]] = {}
    for position, test in enumerate(tests):
        if position not in chosen:
            functions.setdefault(test.partition("[")[0], []).append(position)
    names = sorted(functions, key=lambda name: name.startswith(_DEAR))
    turns = zip_longest(*(_scattered(functions[name]) for name in names))
    return [*chosen, *(p for p in chain.from_iterable(turns) if p is not None)]


def _scattered(positions: Iterable[int]) -> list[int]:
    """The same in leaps, since neighbours differ in one parameter only."""
    left = list(positions)
    found: list[int] = []
    place = 0
    while left:
        place = (place + round(0.382 * len(left))) % len(left)
        found.append(left.pop(place))
    return found
