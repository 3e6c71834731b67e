"""The tiles that a spec gives in place of the rule's, as far as they can be judged alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kgen.errors import Problems, quote
from kgen.fields import Field, Fields, words
from kgen.spec import (
    CHUNK_KEYS,
    LEAST_LONG_WORDS,
    LONG_KEYS,
    LONG_SCHEDULES,
    POWERS_OF_TWO,
    SCHEDULES,
    SPLIT_KEYS,
    TUNED_RANGES,
    TUNED_WIDTHS,
    TUNING_KEYS,
    WIDTH_KEYS,
    Key,
    TunedTile,
    TunedValue,
    Tuning,
)
from kgen.tree import Mapping, Node

Width = tuple[int, TunedTile]


def read_tuning(
    field: Field | None, has_backward: bool, is_double: bool, problems: Problems
) -> tuple[Tuning, ...]:
    """The value of ``tuning``, a direction each; what is wrong with it goes to ``problems``.

    Whether an op has the kernels and the sums that its tuning names is known to its schedule only.
    """
    if field is None:
        return ()
    absent = {} if has_backward else {"backward": "'backward' is none"}
    if not is_double:
        absent["double_backward"] = "'double_backward' is not true"
    return _Reader(problems).directions(field, absent)


class _Reader:
    """Reads the tuning of one spec and keeps going after a problem."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._fields = Fields(problems)

    def directions(self, field: Field, absent: dict[str, str]) -> tuple[Tuning, ...]:
        """Every direction; ``absent`` says why an op lacks some of them."""
        found = self._fields.known(field.value, "'tuning'", TUNING_KEYS)
        self._refuse_empty(field)
        for name, why in absent.items():
            if name in found:
                message = f"the op has no {name} to tune, since {why}: remove '{name}'"
                self._problems.add(message, found[name].key.at)
        return tuple(self._direction(entry) for entry in found.values())

    def _direction(self, field: Field) -> Tuning:
        name = field.key.text
        self._refuse_empty(field)
        widths: list[Width] = []
        streaming = split = None
        for entry in self._fields.entries(field.value, quote(name)):
            key = entry.key.text
            if key == "streaming":
                streaming = self._tile(entry, CHUNK_KEYS)
            elif key == "split" and name != "forward":
                split = self._tile(entry, SPLIT_KEYS)
            elif key in map(str, TUNED_WIDTHS):
                widths.append((int(key), self._width(entry, name)))
            else:
                keys = "and 'streaming'" if name == "forward" else "'streaming' and 'split'"
                least, most = TUNED_WIDTHS[0], TUNED_WIDTHS[-1]
                takes = f"widths in 4-byte words, powers of two from {least} to {most}, {keys}"
                message = f"unknown key {quote(key)}: {quote(name)} takes {takes}"
                self._problems.add(message, entry.key.at)
        widths.sort(key=lambda width: width[0])
        self._check_order(widths)
        return Tuning(name, field.key.at, tuple(widths), streaming, split)

    def _width(self, entry: Field, direction: str) -> TunedTile:
        tile = self._tile(entry, WIDTH_KEYS, SCHEDULES[:3] if direction == "forward" else SCHEDULES)
        width = int(entry.key.text)
        self._check_values(tile, LONG_SCHEDULES[: 1 if direction == "forward" else 2])
        if tile.schedule in LONG_SCHEDULES:
            if width < LEAST_LONG_WORDS:
                message = f"rows of {width} words are never walked in chunks"
                takes = f"write 'schedule: {tile.schedule}' from {LEAST_LONG_WORDS} on"
                self._problems.add(f"{message}: {takes}", tile.reason_at)
            for value in tile.values:
                if value.name == "block" and value.value > width:
                    message = f"a chunk of {value.value} words is wider than rows of {width}"
                    self._problems.add(f"{message}: take a narrower one", value.at)
            block, steps = tile.value("block", 0), tile.value("stages", 1)
            if tile.schedule == "streaming" and block <= width < block * steps:
                message = f"{steps} chunks of {block} words are more than rows of {width} have"
                self._problems.add(f"{message}: take fewer stages", tile.at)
        elif tile.schedule == "reload" and width == TUNED_WIDTHS[0]:
            message = "the narrowest rows always stay in registers: remove 'schedule'"
            self._problems.add(message, tile.reason_at)
        return tile

    def _check_values(self, tile: TunedTile, long: Sequence[str]) -> None:
        """Rows take what their schedule has; ``long`` are the schedules that walk in chunks."""
        for value in tile.values:
            if tile.schedule in LONG_KEYS:
                names = [key.name for key in LONG_KEYS[tile.schedule]]
                if value.name not in names:
                    message = f"'schedule: {tile.schedule}' takes {words(names, 'and')} beside it"
                    self._problems.add(f"{message}: remove '{value.name}'", value.at)
            elif value.name == "block":
                message = "'block' is the chunk of rows that are walked in chunks"
                said = f"write 'schedule: {long[0]}' beside it"
                said += ", or 'split' if gradients are summed over rows" * (len(long) > 1)
                self._problems.add(f"{message}: {said}, or remove it", value.at)

    def _check_order(self, widths: list[Width]) -> None:
        """Rows are walked in chunks once narrower ones are."""
        before: Width | None = None
        for width, tile in widths:
            if tile.schedule is None:
                continue
            if tile.schedule in LONG_SCHEDULES:
                before = width, tile
            elif before is not None:
                message = f"rows of {before[0]} words are {before[1].schedule}, so wider ones are"
                rest = words(LONG_SCHEDULES)
                self._problems.add(f"{message} {rest}, got '{tile.schedule}'", tile.reason_at)

    def _tile(self, entry: Field, keys: Sequence[Key], schedules: Sequence[str] = ()) -> TunedTile:
        self._refuse_empty(entry)
        found = self._fields.known(entry.value, quote(entry.key.text), keys)
        schedule = schedule_at = None
        if "schedule" in found:
            schedule_at = found["schedule"].value.at
            schedule = self._fields.choice(found["schedule"].value, "schedule", schedules)
        fields = (field for name, field in found.items() if name != "schedule")
        return TunedTile(entry.key.at, schedule, tuple(self._values(fields)), schedule_at)

    def _values(self, fields: Iterator[Field]) -> Iterator[TunedValue]:
        for field in fields:
            name = field.key.text
            value = self._value(name, field.value)
            if value is not None:
                yield TunedValue(name, value, field.key.at)

    def _value(self, name: str, node: Node) -> int | None:
        least, most = TUNED_RANGES[name]
        value = self._fields.integer(node, f"'{name}'")
        if value is None:
            return None
        is_power = name in POWERS_OF_TWO
        if least <= value <= most and not (is_power and value & (value - 1)):
            return value
        what = "is a power of two from" if is_power else "is from"
        self._problems.add(f"'{name}' {what} {least} to {most}, got {value}", node.at)
        return None

    def _refuse_empty(self, field: Field) -> None:
        node = field.value
        if isinstance(node, Mapping) and node.whole and not node.entries:
            self._problems.add(f"{quote(field.key.text)} is empty: leave it out", field.key.at)
