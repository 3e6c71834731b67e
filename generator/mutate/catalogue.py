"""The kinds of fault: a name, a meaning, and a finder that gives every place where it applies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from kgen.mutate.reading import Function, kernels_of
from kgen.mutate.source import Site, Source

KERNELS, WRAPPER = "kernels.py", "op.py"


@dataclass(frozen=True)
class OpText:
    """The generated files of one op, by name, and what they say."""

    op: str
    files: Mapping[str, str]

    @cached_property
    def kernels(self) -> Source:
        """``kernels.py``."""
        return Source(KERNELS, self.files[KERNELS])

    @cached_property
    def wrapper(self) -> Source:
        """``op.py``."""
        return Source(WRAPPER, self.files[WRAPPER])

    @cached_property
    def functions(self) -> list[Function]:
        """Every function of ``kernels.py``."""
        return kernels_of(self.kernels, self.wrapper)

    @property
    def launched(self) -> list[Function]:
        """The functions that the wrapper launches."""
        return [function for function in self.functions if function.is_kernel]

    @property
    def adding(self) -> list[Function]:
        """The kernels, and the helpers in which values of a row or of several rows meet."""
        return [function for function in self.functions if function.is_kernel or function.adds_up]


Finder = Callable[[OpText], Iterator[Site]]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault. ``first`` are patterns of the tests that are likely to see it."""

    name: str
    meaning: str
    finder: Finder
    first: tuple[str, ...] = ()


_KINDS: dict[str, Kind] = {}


def kind(name: str, meaning: str, *first: str) -> Callable[[Finder], Finder]:
    """Enters the decorated finder in the catalogue."""

    def enter(finder: Finder) -> Finder:
        _KINDS[name] = Kind(name, meaning, finder, first)
        return finder

    return enter


def all_kinds() -> list[Kind]:
    """Every kind there is, in the order of the catalogue."""
    from kgen.mutate import faults_arithmetic, faults_groups, faults_memory, faults_wrapper

    assert faults_memory and faults_arithmetic and faults_groups and faults_wrapper
    return list(_KINDS.values())
