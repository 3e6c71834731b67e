"""Puts entries into the ``tuning`` of a spec's text, and leaves every other byte as it is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from kgen.errors import Problems, Source
from kgen.spec import TUNED_WIDTHS, TUNING_KEYS
from kgen.tree import Mapping as Node
from kgen.tree import Scalar, clean, parse_tree
from kgen.tune.entries import Entries, Values

_DIRECTIONS = tuple(key.name for key in TUNING_KEYS)
_NOTE_COLUMN = 43


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to stand under a direction.

    Attributes:
        entries: the entries that are needed.
        facts: what is true of every width and chunk.
        measured: the keys that were measured; another entry stays as long as it is true.
    """

    entries: Entries
    facts: Entries
    measured: frozenset[str]


@dataclass(slots=True)
class _Part:
    """The lines of a direction or of an entry; ``before`` are comments that stand above it."""

    lines: list[str]
    before: list[str] = field(default_factory=list)
    values: Values = field(default_factory=dict)
    entries: dict[str, _Part] = field(default_factory=dict)

    def text(self) -> Iterator[str]:
        """All its lines."""
        yield from self.before
        yield from self.lines
        for entry in self.entries.values():
            yield from entry.text()


@dataclass(slots=True)
class _Block:
    """The lines of ``tuning`` in a text, from ``first`` up to ``last``, and its directions."""

    first: int
    last: int
    directions: dict[str, _Part] = field(default_factory=dict)
    rest: list[str] = field(default_factory=list)


def retuned(text: str, wanted: Mapping[str, Wanted], note: str) -> str:
    """The text of a spec with the entries that are wanted; directions not named stay.

    ``note`` is the comment behind ``tuning:``, which says where the figures come from. Lines that
    say what is wanted stay as they are, and so does the whole text if all of them do.
    """
    lines = re.findall(r"[^\n]*\n|[^\n]+", clean(text))
    block = _block(lines)
    if not [name for name, each in wanted.items() if _update(block, name, each)]:
        return text
    head, tail = lines[: block.first], lines[block.last :]
    parts = [block.directions[name] for name in _DIRECTIONS if name in block.directions]
    made = [line for part in parts for line in part.text()]
    if made:
        made = [f"{'tuning:':<{_NOTE_COLUMN}}# {note}\n", *made, *block.rest]
        if block.first == block.last:
            head = [*head[:-1], head[-1].rstrip("\n") + "\n", "\n"]
    elif not tail:
        while not head[-1].strip():
            head.pop()
    new = "".join([*head, *made, *tail])
    new = new.replace("\n", "\r\n") if "\r\n" in text else new
    return "\ufeff" + new if text.startswith("\ufeff") else new


def _block(lines: list[str]) -> _Block:
    """Where ``tuning`` stands and what each of its lines belongs to; the end if it does not."""
    problems = Problems()
    root = parse_tree(Source("spec", "".join(lines)), problems)
    assert isinstance(root, Node), "the spec has been loaded"
    places = [key.text for key, _ in root.entries]
    if "tuning" not in places:
        end = _end(lines, len(lines))
        return _Block(end, end)
    place = places.index("tuning")
    key, value = root.entries[place]
    following = root.entries[place + 1 :]
    last = _end(lines, following[0][0].at.line - 1 if following else len(lines))
    block = _Block(key.at.line - 1, last)
    starts: list[tuple[int, _Part]] = []
    for name, entries in _entries(value):
        part = block.directions[name.text] = _Part([f"  {name.text}:\n"])
        starts.append((name.at.line - 1, part))
        for width, values in _entries(entries):
            said = {k.text: _word(v.text) for k, v in _entries(values) if isinstance(v, Scalar)}
            entry = part.entries[width.text] = _Part([_line(width.text, said)], values=said)
            starts.append((width.at.line - 1, entry))
    if len({block.first, *(number for number, _ in starts)}) == 1 + len(starts):
        block.rest = _take(lines, range(block.first + 1, last), dict(starts))
    return block


def _end(lines: list[str], end: int) -> int:
    """The end without what stands before the next key: comments, and the end of the document."""
    while not lines[end - 1].strip() or lines[end - 1].startswith(("#", "...")):
        end -= 1
    return end


def _take(lines: list[str], numbers: Iterable[int], starts: Mapping[int, _Part]) -> list[str]:
    """Give each part its own lines of the text; the comments after the last are what is left."""
    comments: list[str] = []
    part = None
    for number in numbers:
        line = lines[number]
        if number in starts:
            part = starts[number]
            part.before, part.lines, comments = comments, [line], []
        elif part is None or not line.strip() or line.lstrip().startswith("#"):
            comments.append(line)
        else:
            part.lines += [*comments, line]
            comments = []
    return comments


def _update(block: _Block, name: str, wanted: Wanted) -> bool:
    """Bring a direction up to date; whether that changed anything."""
    part = block.directions.get(name) or _Part([f"{_indent(block.directions, 2)}{name}:\n"])
    indent = _indent(part.entries, len(part.lines[0]) - len(part.lines[0].lstrip()) + 2)
    kept = {key for key, entry in part.entries.items() if _stays(key, entry.values, wanted)}
    if kept == part.entries.keys() and kept >= wanted.entries.keys():
        return False
    entries = {}
    for key in (*map(str, TUNED_WIDTHS), "streaming", "split"):
        entry = part.entries.get(key)
        if key in kept:
            entries[key] = part.entries[key]
        elif key in wanted.entries:
            line = f"{indent}{_line(key, wanted.entries[key]).lstrip()}"
            entries[key] = _Part([line], entry.before if entry else [])
    part.entries = entries
    block.directions[name] = part
    if not entries:
        del block.directions[name]
    return True


def _stays(key: str, said: Values, wanted: Wanted) -> bool:
    """Whether an entry says what is needed, and nothing that is not so."""
    if key in wanted.measured and key not in wanted.entries:
        return False
    is_enough = wanted.entries.get(key, {}).keys() <= said.keys()
    return is_enough and said.items() <= wanted.facts[key].items()


def _indent(parts: Mapping[str, _Part], usual: int) -> str:
    for part in parts.values():
        line = part.lines[0]
        return line[: len(line) - len(line.lstrip())]
    return " " * usual


def _entries(node: object) -> tuple[tuple[Scalar, object], ...]:
    return node.entries if isinstance(node, Node) else ()


def _line(key: str, values: Values) -> str:
    return f"    {key}: {{{', '.join(f'{name}: {value}' for name, value in values.items())}}}\n"


def _word(text: str) -> int | str:
    return int(text) if text.isdigit() else text
