"""Source positions, the error type, and the one formatter of error texts."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NoReturn

MAX_PROBLEMS = 100


@dataclass(frozen=True, slots=True)
class Source:
    """A text and the path it is called by in messages."""

    path: str
    text: str = field(repr=False)

    def line(self, number: int) -> str:
        """The text of line ``number`` (1-based), or an empty string past the end."""
        lines = self.text.split("\n")
        return lines[number - 1] if 1 <= number <= len(lines) else ""


@dataclass(frozen=True, slots=True)
class Span:
    """A place in a source: 1-based line and column, and the width to underline."""

    source: Source
    line: int
    column: int
    width: int = 1

    def __str__(self) -> str:
        return f"{self.source.path}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, where it is, and what to do about it."""

    message: str
    at: Span | None = None


class KgenError(Exception):
    """One or more problems a user can mend. The only exception kgen raises on purpose."""

    def __init__(self, problems: Iterable[Problem] | Problem | str) -> None:
        if isinstance(problems, str):
            problems = Problem(problems)
        if isinstance(problems, Problem):
            problems = (problems,)
        self.problems = tuple(problems)
        super().__init__("\n".join(format_problem(problem) for problem in self.problems))


class Problems:
    """Collects the problems of one source so that a user sees all of them at once."""

    def __init__(self) -> None:
        self._found: dict[Problem, None] = {}

    def add(self, message: str, at: Span | None = None) -> None:
        """Record one problem; past ``MAX_PROBLEMS`` raise what there is: a flood helps nobody."""
        self._found[Problem(message, at)] = None
        if len(self._found) > MAX_PROBLEMS:
            raise KgenError((*self._sorted()[:MAX_PROBLEMS], Problem(_FLOOD)))

    def fail(self, message: str, at: Span | None = None) -> NoReturn:
        """Record a problem that nothing can be read past, and raise everything found so far."""
        self.add(message, at)
        raise KgenError(self._sorted())

    def __iter__(self) -> Iterator[Problem]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Record the problems of a ``KgenError`` raised inside instead of letting it pass."""
        try:
            yield
        except KgenError as error:
            for problem in error.problems:
                self.add(problem.message, problem.at)

    def raise_if_any(self) -> None:
        """Raise everything found so far, ordered by place."""
        if self._found:
            raise KgenError(self._sorted())

    def _sorted(self) -> list[Problem]:
        return sorted(self._found, key=_place)


def quote(word: str) -> str:
    """The user's own word for a message: in quotes, printable, and not too long."""
    shown = word if len(word) <= _QUOTED else word[: _QUOTED - 3] + "..."
    return f"'{_printable(shown)}'"


def suggest(word: str, known: Iterable[str]) -> str:
    """``"; did you mean 'weight'?"`` when a known word is close, else an empty string."""
    if len(word) > _QUOTED:
        return ""
    close = difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""


def format_problem(problem: Problem) -> str:
    """``path:line:column: error: message``, the source line, and a caret under the place."""
    message = _printable(problem.message)
    if problem.at is None:
        return f"error: {message}"
    at = problem.at
    text = f"{_printable(str(at))}: error: {message}"
    line = at.source.line(at.line)
    if not line.strip():
        return text
    start, shown = at.column - 1, line
    if len(line) > _SHOWN:
        cut = max(0, start - _SHOWN // 2)
        shown, start = line[cut : cut + _SHOWN], start - cut
    shown = "".join(" " if not char.isprintable() else char for char in shown)
    width = max(1, min(at.width, len(shown) - start))
    return f"{text}\n    {shown}\n    {' ' * start}{'^' * width}"


_SHOWN = 120
_QUOTED = 60
_FLOOD = f"more than {MAX_PROBLEMS} problems; mend these first"


def _printable(text: str) -> str:
    """Escapes what could move a terminal's cursor or cannot be encoded."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def _place(problem: Problem) -> tuple[str, int, int]:
    at = problem.at
    return (at.source.path, at.line, at.column) if at else ("", 0, 0)
