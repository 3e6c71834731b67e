"""From the times of one op to the text of its spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kgen.errors import KgenError
from kgen.load import load_text
from kgen.lower import lower
from kgen.schedule import OpSchedule, schedule
from kgen.tiles import Tiles, tile_rule
from kgen.tune.choose import Times, Verdict, choose
from kgen.tune.entries import entries_of, facts_of
from kgen.tune.plans import directions_of
from kgen.tune.text import Wanted, retuned


@dataclass(frozen=True, slots=True)
class Outcome:
    """The text of the spec as it should be, and what was found for each direction."""

    text: str
    verdicts: Mapping[str, tuple[Verdict, ...]]


def outcome(
    plan: OpSchedule, text: str, times: Mapping[str, Times], margin: float, note: str
) -> Outcome:
    """What beats the rule, in the spec's text; ``times`` are by direction.

    Raises:
        KgenError: where the text is laid out so that no entry can be put into it.
    """
    wanted: dict[str, Wanted] = {}
    chosen: dict[str, Tiles] = {}
    verdicts: dict[str, tuple[Verdict, ...]] = {}
    for direction in directions_of(plan):
        found = times.get(direction.name)
        if not found:
            continue
        choice = choose(direction, found, margin)
        chosen[direction.name] = choice.tiles
        verdicts[direction.name] = choice.verdicts
        measured = {str(verdict.words) for verdict in choice.verdicts}
        if any(plan.is_long for each in found.values() for plan in each):
            measured.add("split" if direction.is_split else "streaming")
        wanted[direction.name] = Wanted(
            entries_of(direction, choice.tiles),
            facts_of(direction, choice.tiles),
            frozenset(measured),
        )
    new = retuned(text, wanted, note)
    _require(new, plan, chosen)
    return Outcome(new, verdicts)


def _require(text: str, plan: OpSchedule, chosen: Mapping[str, Tiles]) -> None:
    """Raise unless a build of the text has the chosen tiles."""
    path = plan.row_op.spec.path
    try:
        tiles = tile_rule(schedule(lower(load_text(text, path))))
        fits = all(tiles[name] == each for name, each in chosen.items())
    except KgenError:
        fits = False
    if not fits:
        message = "its tuning cannot be written, as it is laid out: write it as a block of its own"
        raise KgenError(f"{path}: {message}, or remove it")
