"""Tiles as entries of a spec's ``tuning``: what has to be said for them to come about."""

from __future__ import annotations

from collections.abc import Mapping

from kgen.spec import TUNED_WIDTHS
from kgen.tiles import Tile, Tiles, reached
from kgen.tune.plans import Direction

Values = dict[str, int | str]
Entries = dict[str, Values]
"""What stands behind each key of a direction: widths, narrow rows first, and chunks."""


def entries_of(direction: Direction, tiles: Tiles) -> Entries:
    """The entries that make the rule's tiles these, each as short as it can be."""
    rule = direction.rule
    schedules = _schedules(direction, tiles)
    chunks = dict(tiles.chunks)
    found: Entries = {}
    for words in TUNED_WIDTHS:
        values = _values(tiles.tile(words), rule.tile(words), words in schedules, direction)
        if words in chunks:
            usual = _long(direction, tiles.split if direction.is_split else tiles.streaming)
            long = _long(direction, chunks[words])
            values = {"schedule": long["schedule"], **_others(long, usual)}
        elif words in schedules:
            values = {"schedule": schedules[words], **values}
        if values:
            found[str(words)] = values
    if tiles.streaming != rule.streaming:
        found["streaming"] = _others(_chunk(tiles.streaming), _chunk(rule.streaming))
    if tiles.split != rule.split:
        found["split"] = _others(_split(tiles.split), _split(rule.split))
    return found


def facts_of(direction: Direction, tiles: Tiles) -> Entries:
    """All that can be said of these tiles; an entry that says part of it says nothing wrong."""
    found: Entries = {}
    for words in TUNED_WIDTHS:
        tile = tiles.tile(words)
        found[str(words)] = {"schedule": _schedule(direction, tiles, words)}
        if tile is not None:
            found[str(words)] |= _tile(tile)
        else:
            found[str(words)] = _long(direction, tiles.chunk(words, direction.is_split))
    return {**found, "streaming": _chunk(tiles.streaming), "split": _split(tiles.split)}


def _schedules(direction: Direction, tiles: Tiles) -> dict[int, str]:
    """The widths whose schedule has to be said, each for as many others as it reaches."""
    said: dict[int, int] = {}
    while True:
        now = {words: reached(direction.rule, said, words) for words in TUNED_WIDTHS}
        later = [words for words in TUNED_WIDTHS if tiles.rank(words) > now[words]]
        earlier = [words for words in TUNED_WIDTHS if tiles.rank(words) < now[words]]
        if not later and not earlier:
            return {words: _schedule(direction, tiles, words) for words in sorted(said)}
        # A later schedule reaches all wider rows, an earlier one all narrower ones.
        words = later[0] if later else earlier[-1]
        said[words] = tiles.rank(words)


def _schedule(direction: Direction, tiles: Tiles, words: int) -> str:
    return ("resident", "reload", _long_schedule(direction))[tiles.rank(words)]


def _long_schedule(direction: Direction) -> str:
    return "split" if direction.is_split else "streaming"


def _long(direction: Direction, chunk: Tile) -> Values:
    """Rows in chunks of their own."""
    values = _split(chunk) if direction.is_split else _chunk(chunk)
    return {"schedule": _long_schedule(direction), **values}


def _values(tile: Tile | None, rule: Tile | None, is_whole: bool, direction: Direction) -> Values:
    """What differs from the rule; all of it where there is nothing to differ from."""
    if tile is None:
        return {}
    values = _tile(tile)
    if not direction.is_split:
        del values["stages"], values["programs"]
    if is_whole or rule is None:
        return values
    return _others(values, _tile(rule))


def _others(values: Values, usual: Mapping[str, int | str]) -> Values:
    """Those that are not the usual ones."""
    return {name: value for name, value in values.items() if value != usual[name]}


def _tile(tile: Tile) -> Values:
    return {
        "rows": tile.rows,
        "warps": tile.warps,
        "stages": tile.stages,
        "programs": tile.programs,
    }


def _chunk(tile: Tile) -> Values:
    return {"block": tile.words, "warps": tile.warps, "stages": tile.stages}


def _split(tile: Tile) -> Values:
    return {"block": tile.words, **_tile(tile)}
