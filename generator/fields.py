"""Typed reading of a YAML tree: keys, words, numbers and choices, each with its own message."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite

from kgen.errors import Problems, Span, quote, suggest
from kgen.spec import LINE_LIMIT, Key
from kgen.tree import Broken, Mapping, Node, Scalar, kind_of
from kgen.tree import Sequence as List

Number = int | float
MAX_DIGITS = 60


@dataclass(frozen=True, slots=True)
class Field:
    """A key of a mapping and what stands behind it."""

    key: Scalar
    value: Node


class Fields:
    """Reads nodes; what is wrong goes to ``problems`` and comes back as None."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems

    def known(self, node: Node, what: str, keys: Sequence[Key]) -> dict[str, Field]:
        """The fields of a mapping with a fixed set of keys."""
        found: dict[str, Field] = {}
        names = [key.name for key in keys]
        hints: set[str] = set()
        for field in self.entries(node, what):
            name = field.key.text
            if name in names:
                found[name] = field
            else:
                hint = suggest(name, names) or f": {what} takes {words(names, 'and')}"
                hints.add(hint)
                self._problems.add(f"unknown key {quote(name)}{hint}", field.key.at)
        for key in keys:
            missing = key.required and key.name not in found and isinstance(node, Mapping)
            if missing and not any(f"'{key.name}'?" in hint for hint in hints):
                self._problems.add(f"missing key '{key.name}': {key.about}", node.at)
        return found

    def entries(self, node: Node, what: str) -> Iterator[Field]:
        """The entries of a mapping, each key once."""
        if not isinstance(node, Mapping):
            if not isinstance(node, Broken):
                message = f"{what} is a mapping of 'key: value' entries, got {kind_of(node)}"
                self._problems.add(message, node.at)
            return
        seen: dict[str, Span] = {}
        for key, value in node.entries:
            if key.text in seen:
                message = f"duplicate key {quote(key.text)}: it stands in line"
                self._problems.add(f"{message} {seen[key.text].line} already", key.at)
                continue
            seen[key.text] = key.at
            yield Field(key, value)

    def line(self, field: Field | None) -> str | None:
        """One line of text that is safe in a comment and in a docstring."""
        if field is None:
            return None
        name, node = field.key.text, field.value
        text = self._text(node, f"'{name}' is one line of text")
        if text is None:
            return None
        if not text.isprintable():
            message = "must be one line without control characters"
        elif len(text) > LINE_LIMIT:
            message = f"takes at most {LINE_LIMIT} characters, got {len(text)}"
        elif "\\" in text or '"""' in text or text.endswith('"'):
            message = "cannot hold '\\' or '\"\"\"' or end in '\"': it becomes a docstring"
        else:
            return text
        self._problems.add(f"'{name}' {message}", node.at)
        return None

    def word(self, node: Node, what: str) -> str | None:
        """A single word, as in ``kind: matrix``."""
        return self._text(node, what)

    def short_text(self, node: Node, what: str, limit: int) -> str | None:
        """A text of one line and at most ``limit`` characters, such as the name of a library."""
        text = self._text(node, f"{what} is one line of text")
        if text is None:
            return None
        if not text.isprintable():
            self._problems.add(f"{what} must be one line without control characters", node.at)
        elif len(text) > limit:
            message = f"{what} takes at most {limit} characters, got {len(text)}"
            self._problems.add(message, node.at)
        else:
            return text
        return None

    def choice(self, node: Node, what: str, choices: Iterable[str]) -> str | None:
        """One of several words."""
        listed = list(choices)
        text = self._text(node, f"{what} is {words(listed)}")
        if text is None or text in listed:
            return text
        hint = suggest(text, listed) or f": write {words(listed)}"
        self._problems.add(f"unknown {what} {quote(text)}{hint}", node.at)
        return None

    def boolean(self, node: Node, what: str) -> bool | None:
        """``true`` or ``false``."""
        if isinstance(node, Scalar) and not node.style and node.text in _BOOLEANS:
            return _BOOLEANS[node.text]
        self._refuse(node, f"{what} is true or false")
        return None

    def number(self, node: Node, what: str) -> Number | None:
        """A finite number."""
        if not isinstance(node, Scalar):
            self._refuse(node, f"{what} is a number")
            return None
        if node.style or not (_INT.fullmatch(node.text) or _FLOAT.fullmatch(node.text)):
            self._not_a_number(node, what)
            return None
        if len(node.text) > MAX_DIGITS:
            self._refuse(node, f"{what} takes at most {MAX_DIGITS} digits")
            return None
        if _INT.fullmatch(node.text):
            whole = int(node.text)
            if -(2**63) <= whole < 2**63:
                return whole
            self._refuse(node, f"{what} must fit 64 bits")
            return None
        value = float(node.text)
        if isfinite(value):
            return value
        self._refuse(node, f"{what} must be finite")
        return None

    def integer(self, node: Node, what: str) -> int | None:
        """A whole number of 64 bits."""
        value = self.number(node, what)
        if isinstance(value, float):
            self._refuse(node, f"{what} is a whole number")
            return None
        return value

    def items(self, node: Node, what: str) -> tuple[Node, ...] | None:
        """The items of a list."""
        if isinstance(node, List):
            return node.items
        self._refuse(node, f"{what} is a list")
        return None

    def _text(self, node: Node, what: str) -> str | None:
        if not isinstance(node, Scalar) or (not node.style and node.text in _NULLS):
            self._refuse(node, what)
            return None
        text = node.text.strip()
        if not text:
            self._refuse(node, what)
        return text or None

    def _not_a_number(self, node: Scalar, what: str) -> None:
        bare = node.text.strip().lower()
        if node.style and (_INT.fullmatch(node.text) or _FLOAT.fullmatch(node.text)):
            self._problems.add(f"{what} is a number: remove the quotes", node.at)
        elif bare.lstrip("+-").lstrip(".") in ("inf", "nan", "infinity"):
            self._problems.add(f"{what} must be finite, got {quote(node.text)}", node.at)
        else:
            self._refuse(node, f"{what} is a number")

    def _refuse(self, node: Node, message: str) -> None:
        if not isinstance(node, Broken):
            self._problems.add(f"{message}, got {kind_of(node)}", node.at)


def words(names: Sequence[str], joint: str = "or") -> str:
    """``"a, b or c"``."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} {joint} {names[-1]}"


_BOOLEANS = {"true": True, "True": True, "TRUE": True}
_BOOLEANS |= {"false": False, "False": False, "FALSE": False}
_NULLS = ("", "~", "null", "Null", "NULL")
_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
