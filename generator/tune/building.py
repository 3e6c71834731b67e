"""Generated code for measuring: with every kernel that there is, in a folder of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from kgen.build import render_all
from kgen.lower import lower
from kgen.schedule import schedule
from kgen.spec import TUNED_WIDTHS, Spec, TunedTile, TunedValue, Tuning
from kgen.tune.plans import directions_of


def with_every_kernel(spec: Spec) -> Spec:
    """The spec with a tuning under which all rows but the narrowest are read again.

    What no width takes is not built; a plan that is tried may need it. The chunk of the split's
    first kernel, which is not tuned, is that of the spec; other walks take any stages.
    """
    said = {each.direction: each for each in spec.tuning}
    tuned = []
    for direction in directions_of(schedule(lower(spec))):
        before = said.get(direction.name, Tuning(direction.name, spec.at))
        again = ((TUNED_WIDTHS[1], TunedTile(spec.at, "reload")),) if direction.can_reload else ()
        streaming = before.streaming
        if not direction.is_split and not direction.has_chunks:
            streaming = TunedTile(spec.at, values=(TunedValue("stages", 2, spec.at),))
        tuned.append(Tuning(direction.name, before.at, again, streaming))
    return replace(spec, tuning=tuple(tuned))


def build(specs: Iterable[Spec], folder: Path) -> None:
    """Write the code of each op below ``folder``."""
    for path, text in render_all([with_every_kernel(spec) for spec in specs]).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
