"""From times to tiles: for one direction, what beats the rule by enough to be said in the spec."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kgen.spec import LARGEST_TILE, LEAST_LONG_WORDS, TUNED_WIDTHS
from kgen.tiles import Tile, Tiles
from kgen.tune.plans import Candidate, Direction, chunk_plan, plan_by

Times = Mapping[int, Mapping[Candidate, float]]
"""Microseconds by width in words and plan."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found for one width: the rule, the fastest of all, and what was chosen."""

    words: int
    rule: Candidate
    rule_time: float
    best: Candidate
    best_time: float
    chosen: Candidate
    chosen_time: float


@dataclass(frozen=True, slots=True)
class Choice:
    """The tiles to have, and what they rest on; ``verdicts`` are those of widths with a time."""

    tiles: Tiles
    verdicts: tuple[Verdict, ...]


@dataclass(frozen=True, slots=True)
class _Shape:
    """The widest rows that a tile spans, and the plan of those in chunks.

    With ``has_own``, widths may have another chunk.
    """

    whole: int
    chunk: Candidate
    has_own: bool


def choose(direction: Direction, times: Times, margin: float) -> Choice:
    """The tiles that are fastest, where each width that departs from the rule has to earn it.

    Widths decide together, since rows wider than those in chunks are in chunks too, and most share
    one: the sum of the logarithms of all times is the least that there is,
    with ``margin`` as the price of every width that does not follow the rule. Beside the chunk
    found so, widths have their own where that wins by ``margin`` over it, and the boundary is
    found again. What was not measured, or not for the rule, stays as it is.
    """
    choosing = _Choosing(direction, times, margin)
    return choosing.choice()


class _Choosing:
    """Goes through the boundaries of the chunks of one direction, and through the chunks."""

    def __init__(self, direction: Direction, times: Times, margin: float) -> None:
        self.direction = direction
        self.price = -math.log(1 - margin)
        self.rule = {w: plan_by(direction.rule, w, direction.is_split) for w in TUNED_WIDTHS}
        self.now = {w: plan_by(direction.tiles, w, direction.is_split) for w in TUNED_WIDTHS}
        self.times = {w: found for w, found in times.items() if self.rule[w] in found}
        self.own = {w: self.now[w] for w, _ in direction.tiles.chunks}
        self.is_said = {w for w in TUNED_WIDTHS if self.now[w] != self.rule[w]} | self.own.keys()
        self.whole = {
            words: self._least(words, [plan for plan in found if not plan.is_long])
            for words, found in self.times.items()
        }

    def choice(self) -> Choice:
        shared = min(self._shapes(self._shared_chunks(), has_own=False), key=self._order)
        best = min(self._shapes({shared.chunk}, has_own=True), key=self._order)
        plans = {w: self._plan(w, best) for w in TUNED_WIDTHS}
        return Choice(self._tiles(best, plans), tuple(self._verdicts(plans)))

    def _shared_chunks(self) -> set[Candidate]:
        """The chunks that may be the direction's; widths that were not measured keep theirs."""
        now = chunk_plan(self.direction.tiles, self.direction.is_split)
        chunks = {plan for found in self.times.values() for plan in found if plan.is_long}
        if not chunks or any(self.now[w] == now for w in TUNED_WIDTHS if w not in self.times):
            return {now}
        return chunks | {chunk_plan(self.direction.rule, self.direction.is_split)}

    def _shapes(self, chunks: set[Candidate], has_own: bool) -> Iterator[_Shape]:
        """Every boundary with every chunk."""
        for chunk in sorted(chunks):
            for whole in TUNED_WIDTHS:
                if LEAST_LONG_WORDS // 2 <= whole <= LARGEST_TILE:
                    yield _Shape(whole, chunk, has_own)

    def _order(self, shape: _Shape) -> tuple[float, int, float, Candidate]:
        """The cost, then how many widths depart from the rule, then how far the boundary does."""
        plans = {w: self._plan(w, shape) for w in TUNED_WIDTHS}
        cost = sum(self._cost(w, plan) for w, plan in plans.items())
        departures = sum(plan != self.rule[w] for w, plan in plans.items())
        moved = abs(math.log2(shape.whole / self.direction.rule.whole_words))
        return round(cost, 9), departures, moved, shape.chunk

    def _plan(self, words: int, shape: _Shape) -> Candidate | None:
        """The plan of a width with this boundary, or None if nothing is known of one."""
        is_long = words > shape.whole
        if words not in self.times:
            return self._unmeasured(words, is_long, shape)
        return self._chunk(words, shape) if is_long else self.whole[words]

    def _chunk(self, words: int, shape: _Shape) -> Candidate | None:
        """The shared chunk, or the best of those that win by the margin over it."""
        found = self.times[words]
        shared = shape.chunk if shape.chunk in found else None
        if not shape.has_own:
            return shared
        most = math.log(found[shared]) - self.price if shared is not None else math.inf
        plans = [plan for plan in found if plan.is_long and math.log(found[plan]) < most]
        return self._least(words, plans) or shared

    def _least(self, words: int, plans: list[Candidate]) -> Candidate | None:
        return min(plans, key=lambda plan: (self._cost(words, plan), plan), default=None)

    def _unmeasured(self, words: int, is_long: bool, shape: _Shape) -> Candidate | None:
        now = self.now[words]
        if not is_long:
            return None if now.is_long else now
        is_said = words in self.is_said and not now.is_long
        return None if is_said else self.own.get(words, shape.chunk)

    def _cost(self, words: int, plan: Candidate | None) -> float:
        if plan is None:
            return math.inf
        found = self.times.get(words)
        price = self.price if plan != self.rule[words] else 0.0
        if found is None:
            # That the chunk is another is judged where it was measured.
            return price if plan.rank != self.now[words].rank else 0.0
        return math.log(found[plan] / found[self.rule[words]]) + price

    def _tiles(self, shape: _Shape, plans: Mapping[int, Candidate | None]) -> Tiles:
        whole: list[Tile] = []
        chunks: list[tuple[int, Tile]] = []
        for words in TUNED_WIDTHS:
            plan = plans[words]
            assert plan is not None, "the rule is among the shapes, and it costs nothing"
            if words <= shape.whole:
                whole.append(plan.tile)
            elif plan != shape.chunk:
                chunks.append((words, plan.tile))
        streaming, split = self.direction.tiles.streaming, shape.chunk.tile
        if not self.direction.is_split:
            streaming, split = split, self.direction.tiles.split
        reloaded = tuple(w for w, plan in plans.items() if plan and plan.schedule == "reload")
        return Tiles(tuple(whole), reloaded, streaming, split, tuple(chunks))

    def _verdicts(self, plans: Mapping[int, Candidate | None]) -> Iterator[Verdict]:
        for words, found in sorted(self.times.items()):
            chosen, rule = plans[words], self.rule[words]
            assert chosen is not None
            best = min(found, key=lambda plan: (found[plan], plan))
            yield Verdict(words, rule, found[rule], best, found[best], chosen, found[chosen])
