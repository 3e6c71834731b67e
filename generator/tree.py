"""YAML text -> a small tree of nodes with positions. Nothing is ever constructed from a tag."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kgen.errors import KgenError, Problems, Source, Span, quote
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

MAX_TEXT = 256 * 1024
MAX_LINE = 10_000
MAX_DEPTH = 16
MAX_NODES = 20_000


@dataclass(frozen=True, slots=True)
class Scalar:
    """A word, a number or a block of text; ``style`` is '' for a plain one, else ``'"|>``."""

    text: str
    style: str
    at: Span


@dataclass(frozen=True, slots=True)
class Sequence:
    """A list."""

    items: tuple[Node, ...]
    at: Span


@dataclass(frozen=True, slots=True)
class Mapping:
    """Keys and values, in the order of the text; a key may still stand twice.

    ``whole`` is false when an entry had to be left out.
    """

    entries: tuple[tuple[Scalar, Node], ...]
    at: Span
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Broken:
    """A node whose problem has been recorded: nothing more is said about it."""

    at: Span


Node = Scalar | Sequence | Mapping | Broken


def parse_tree(source: Source, problems: Problems) -> Node:
    """The tree of a text that went through ``clean``; raises when it is not YAML at all."""
    _check_text(source, problems)
    builder = _Builder(source, problems)
    try:
        return builder.document()
    except (KgenError, KeyboardInterrupt):
        raise
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        if "end of stream" in (error.problem or ""):
            mark = error.context_mark or mark
        at = Span(source, mark.line + 1, mark.column + 1) if mark else builder.last
        problems.fail(_in_words(error), at)
    except Exception:  # ruamel.yaml lets ValueError, AssertionError and others out on odd input
        problems.fail("this is not valid YAML", builder.last)


def clean(text: str) -> str:
    """The text without a byte order mark and with line feeds only: what positions count in."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def kind_of(node: Node) -> str:
    """What a node is, in a user's words."""
    match node:
        case Mapping():
            return "a mapping"
        case Sequence():
            return "a list"
        case Scalar(text="", style=""):
            return "nothing"
        case Scalar(text=text):
            return quote(text)
    return "something else"


_HIDDEN = re.compile(r"[^\n\x20-\x7e]")


def _check_text(source: Source, problems: Problems) -> None:
    """Refuses what would make positions, headers or diffs lie: hidden characters, endless lines."""
    if len(source.text) > MAX_TEXT:
        problems.fail(f"a spec takes at most {MAX_TEXT // 1024} KiB")
    for number, line in enumerate(source.text.split("\n"), 1):
        if len(line) > MAX_LINE:
            message = f"a line takes at most {MAX_LINE} characters"
            problems.add(message, Span(source, number, MAX_LINE + 1))
        for match in () if line.isprintable() else _HIDDEN.finditer(line):
            if not match.group().isprintable():
                at = Span(source, number, match.start() + 1)
                problems.add(_hidden(match.group()), at)
                break
    problems.raise_if_any()


def _hidden(char: str) -> str:
    if char == "\t":
        return "tabs are not taken: use spaces"
    return f"hidden character U+{ord(char):04X}: remove it"


class _Builder:
    """Builds nodes from parser events; the parser runs lazily, so limits stop it early."""

    def __init__(self, source: Source, problems: Problems) -> None:
        self._source = source
        self._problems = problems
        self._count = 0
        self._events: Iterator[Event] = iter(YAML(typ="safe", pure=True).parse(source.text))
        self.last = Span(source, 1, 1)

    def document(self) -> Node:
        """The only document of the stream."""
        root: Node | None = None
        while (event := self._next()) is not None:
            if isinstance(event, DocumentStartEvent):
                if root is not None:
                    message = "a file holds one spec: remove the second document"
                    self._problems.fail(message, self.last)
                self._refuse_directives(event)
                root = self._node(self._take(), 1)
        if root is None:
            self._problems.fail("the spec is empty", Span(self._source, 1, 1))
        return root

    def _next(self) -> Event | None:
        event = next(self._events, None)
        if event is not None:
            self.last = self._span(event)
        self._count += 1
        if self._count > MAX_NODES:
            self._problems.fail(f"a spec takes at most {MAX_NODES} values", self.last)
        return event

    def _take(self) -> Event:
        event = self._next()
        assert event is not None, "the parser ends every document it starts"
        return event

    def _span(self, event: Event) -> Span:
        start, end = event.start_mark, event.end_mark
        same_line = isinstance(event, ScalarEvent | AliasEvent) and start.line == end.line
        width = max(1, end.column - start.column) if same_line else 1
        return Span(self._source, start.line + 1, start.column + 1, width)

    def _refuse_directives(self, event: DocumentStartEvent) -> None:
        if event.version or event.tags:
            self._problems.add("'%' directives are not taken: remove them", self.last)

    def _node(self, event: Event, depth: int) -> Node:
        at = self._span(event)
        if depth > MAX_DEPTH:
            self._problems.fail(f"values nest at most {MAX_DEPTH} deep", at)
        if isinstance(event, AliasEvent):
            message = (
                f"aliases (*{getattr(event, 'anchor', '')}) are not taken: write the value out"
            )
            self._problems.add(message, at)
            return Broken(at)
        sound = self._check_properties(event, at)
        node: Node
        if isinstance(event, ScalarEvent):
            node = Scalar(event.value, event.style or "", at)
        elif isinstance(event, SequenceStartEvent):
            node = Sequence(tuple(self._items(depth)), at)
        else:
            assert isinstance(event, MappingStartEvent), event
            node = self._mapping(depth, at)
        return node if sound else Broken(at)

    def _check_properties(self, event: Event, at: Span) -> bool:
        anchor, tag = getattr(event, "anchor", None), getattr(event, "tag", None)
        if anchor is not None:
            self._problems.add("anchors (&name) are not taken: write the value out", at)
        if tag is not None:
            shown = quote(str(tag).replace("tag:yaml.org,2002:", "!!"))
            self._problems.add(f"tags ({shown[1:-1]}) are not taken: remove it", at)
        return tag is None

    def _items(self, depth: int) -> Iterator[Node]:
        while not isinstance(event := self._take(), SequenceEndEvent):
            yield self._node(event, depth + 1)

    def _mapping(self, depth: int, at: Span) -> Mapping:
        entries: list[tuple[Scalar, Node]] = []
        whole = True
        while not isinstance(event := self._take(), MappingEndEvent):
            key = self._node(event, depth + 1)
            value = self._node(self._take(), depth + 1)
            if isinstance(key, Scalar):
                # the parser places an absent value at the next key
                absent = isinstance(value, Scalar) and not value.text and not value.style
                entries.append((key, Scalar("", "", key.at) if absent else value))
                continue
            whole = False
            if not isinstance(key, Broken):
                self._problems.add(f"a key is one word, not {kind_of(key)}", key.at)
        return Mapping(tuple(entries), at, whole)


_WORDS = (
    ("mapping values are not allowed", "a second ':' is not allowed here: put the text in quotes"),
    ("could not find expected ':'", "expected 'key: value'"),
    ("cannot start any token", "a value cannot start with this character: put it in quotes"),
    ("expected <block end>", "this does not belong here: check the indentation and the brackets"),
    ("expected ',' or '}'", "expected ',' or '}': check the braces and the quotes"),
    ("expected ',' or ']'", "expected ',' or ']': check the brackets and the quotes"),
    ("unexpected end of stream", "these quotes are never closed"),
    ("expected the node content", "expected a value"),
    ("unknown escape character", "unknown escape: in double quotes '\\' starts an escape"),
    ("undefined tag handle", "tags (!...) are not taken: remove it"),
)


def _in_words(error: MarkedYAMLError) -> str:
    said = f"{error.problem or ''} {error.context or ''}"
    for words, ours in _WORDS:
        if words in said:
            return ours
    return f"this is not valid YAML: {error.problem or error.context}"
