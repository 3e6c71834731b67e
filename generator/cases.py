"""The worked examples of a spec: values by name, with shapes that fit together."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping as Map
from dataclasses import dataclass, field

from kgen.errors import Problems, Span, quote, suggest
from kgen.fields import Field, Fields, Number, words
from kgen.spec import (
    Case,
    Element,
    Input,
    Kind,
    Output,
    Param,
    case_problem,
    gradient_name,
    has_gradient,
)
from kgen.tree import Broken, Mapping, Node, Sequence, kind_of

_Places = dict[str, tuple[Span, ...]]
_DEPTHS = {
    Kind.MATRIX: (2,),
    Kind.PER_ROW: (1,),
    Kind.PER_COLUMN: (1,),
    Kind.PER_BATCH: (1,),
    Kind.PER_PLACE: (2,),
    Kind.SCALAR: (0,),
}
_FORMS = {
    (0,): "a number",
    (2,): "a list of rows, as in [[1, 2], [3, 4]]",
    (1,): "a list of numbers, as in [1, 2]",
    (1, 2): "a list of numbers or of rows",
}


@dataclass(frozen=True, slots=True)
class _Slot:
    """What a name of a case can hold."""

    depths: tuple[int, ...]
    element: Element
    kind: Kind | None = None
    shares_columns: bool = False


@dataclass(slots=True)
class _Sizes:
    """M and N as the values seen so far have them, and which value said so."""

    found: dict[str, tuple[int, str]] = field(default_factory=dict)


class CaseReader:
    """Reads the cases of one op."""

    def __init__(
        self,
        problems: Problems,
        inputs: tuple[Input, ...],
        params: tuple[Param, ...],
        outputs: tuple[Output, ...],
        with_gradients: bool,
    ) -> None:
        self._problems = problems
        self._fields = Fields(problems)
        self._inputs = inputs
        self._params = {entry.name: entry for entry in params}
        upstream = [entry for entry in outputs if has_gradient(entry, inputs)]
        self._upstream = [gradient_name(entry.name) for entry in upstream] * with_gradients
        self._given = {entry.name: _slot(entry) for entry in inputs}
        self._given |= {name: _Slot((1, 2), Element.FLOAT) for name in self._upstream}
        self._expected = {entry.name: _Slot((1, 2), Element.FLOAT) for entry in outputs}
        self._results = [gradient_name(entry.name) for entry in inputs if entry.grad]
        if with_gradients:
            graded = (entry for entry in inputs if entry.grad)
            self._expected |= {gradient_name(entry.name): _slot(entry) for entry in graded}

    def cases(self, section: Field | None) -> tuple[Case, ...]:
        """Every case of the section that can be read."""
        if section is None:
            return ()
        found = []
        for entry in self._fields.entries(section.value, "'cases'"):
            message = case_problem(entry.key.text)
            if message:
                self._problems.add(
                    f"bad case name {quote(entry.key.text)}: {message}", entry.key.at
                )
            found.append(self._case(entry))
        return tuple(found)

    def _case(self, entry: Field) -> Case:
        name, at = entry.key.text, entry.key.at
        sizes = _Sizes()
        given: dict[str, object] = {}
        expect: dict[str, object] = {}
        places: _Places = {}
        for item in self._fields.entries(entry.value, f"case {quote(name)}"):
            if item.key.text == "expect":
                expect, places = self._expect(item, sizes)
            else:
                given |= self._one(item, sizes)
        if isinstance(entry.value, Mapping):
            self._check_given(given, expect, {key.text for key, _ in entry.value.entries}, at)
        return Case(name, tuple(given.items()), tuple(expect.items()), at, tuple(places.items()))

    def _one(self, item: Field, sizes: _Sizes) -> dict[str, object]:
        name = item.key.text
        if name in self._params:
            value: object = self._param(item)
        elif name in self._given:
            value = self._values(item, self._given[name], sizes)
        else:
            known = (*self._given, *self._params, "expect")
            self._unknown(item, "a case takes", known)
            return {}
        return {} if value is None else {name: value}

    def _expect(self, item: Field, sizes: _Sizes) -> tuple[dict[str, object], _Places]:
        found: dict[str, object] = {}
        places: _Places = {}
        for entry in self._fields.entries(item.value, "'expect'"):
            slot = self._expected.get(entry.key.text)
            if slot is None:
                self._unknown(entry, "'expect' takes", tuple(self._expected))
                continue
            value = self._values(entry, slot, sizes)
            if value is not None:
                found[entry.key.text] = value
                places[entry.key.text] = tuple(_leaves(entry.value))
        return found, places

    def _unknown(self, item: Field, takes: str, known: tuple[str, ...]) -> None:
        name = item.key.text
        hint = suggest(name, known) or f": {takes} {words(known, 'and')}"
        if name in self._results and not self._upstream:
            hint = ": the op has no backward"
        self._problems.add(f"unknown name {quote(name)}{hint}", item.key.at)

    def _check_given(
        self, given: Map[str, object], expect: Map[str, object], keys: set[str], at: Span
    ) -> None:
        for entry in self._inputs:
            if entry.absent is None and entry.name not in keys:
                self._problems.add(f"the case gives no '{entry.name}': add it", at)
        wants = [name for name in expect if name in self._results]
        missing = [name for name in self._upstream if name not in keys]
        if wants and missing:
            self._problems.add(f"to expect '{wants[0]}' the case must give '{missing[0]}'", at)

    def _param(self, item: Field) -> Number | None:
        param = self._params[item.key.text]
        what = f"'{param.name}'"
        if param.element is Element.BOOL:
            return self._fields.boolean(item.value, what)
        if param.element is Element.INT:
            value: Number | None = self._fields.integer(item.value, what)
        else:
            value = self._fields.number(item.value, what)
        if value is not None and param.minimum is not None and value < param.minimum:
            self._problems.add(f"{what} is at least {param.minimum}, got {value}", item.value.at)
        if value is not None and param.maximum is not None and value > param.maximum:
            self._problems.add(f"{what} is at most {param.maximum}, got {value}", item.value.at)
        return value

    def _values(self, item: Field, slot: _Slot, sizes: _Sizes) -> object | None:
        before = len(self._problems)
        what = f"'{item.key.text}'"
        node = item.value
        if slot.depths == (0,):
            return self._number(node, slot.element, what)
        depth = _depth(node)
        if depth not in slot.depths or not isinstance(node, Sequence):
            self._refuse_form(node, what, slot.depths)
            return None
        value = self._nested(node, slot.element, what, depth)
        if len(self._problems) > before or value is None:
            return None
        rows = [len(row) for row in value if isinstance(row, tuple)]
        if 0 in (len(value), *rows):
            self._problems.add(f"{what} is empty", node.at)
        elif len(set(rows)) > 1:
            self._problems.add(f"the rows of {what} are not equally long", node.at)
        else:
            self._check_sizes(item, slot, len(value), rows, sizes)
        return value

    def _refuse_form(self, node: Node, what: str, depths: tuple[int, ...]) -> None:
        if not isinstance(node, Broken):
            got = "a list of rows" if _depth(node) > 1 else kind_of(node)
            got += " of numbers" * (got == "a list")
            self._problems.add(f"{what} must be {_FORMS[depths]}, got {got}", node.at)

    def _check_sizes(
        self, item: Field, slot: _Slot, length: int, rows: list[int], sizes: _Sizes
    ) -> None:
        is_row = slot.kind in (Kind.PER_COLUMN, Kind.PER_BATCH)
        axes = {"N": length} if is_row else {"M": length}
        if rows:
            axes["N"] = rows[0]
        if slot.shares_columns:
            axes.pop("N")
        for axis, size in axes.items():
            known, by = sizes.found.setdefault(axis, (size, item.key.text))
            if known != size:
                noun = ("row" if axis == "M" else "column") + "s" * (size != 1)
                what = f"'{item.key.text}'"
                has = f"is {slot.kind.value}, with" if slot.kind else "has"
                message = f"{what} {has} {size} {noun}, where '{by}' has {known}"
                self._problems.add(message, item.value.at)

    def _nested(
        self, node: Sequence, element: Element, what: str, depth: int
    ) -> tuple[object, ...] | None:
        values: list[object] = []
        for item in node.items:
            if depth == 2:
                if not isinstance(item, Sequence):
                    self._refuse_form(item, f"an entry of {what}", (1,))
                    return None
                values.append(self._nested(item, element, what, 1))
            else:
                values.append(self._entry(item, element, what))
        return tuple(values)

    def _entry(self, node: Node, element: Element, what: str) -> Number | None:
        return self._number(node, element, f"an entry of {what}")

    def _number(self, node: Node, element: Element, what: str) -> Number | None:
        if element is Element.BOOL:
            return self._fields.boolean(node, what)
        if element is Element.INT:
            return self._fields.integer(node, what)
        return self._fields.number(node, what)


def _slot(entry: Input) -> _Slot:
    return _Slot(_DEPTHS[entry.kind], entry.element, entry.kind, entry.shares_columns)


def _depth(node: Node) -> int:
    if not isinstance(node, Sequence):
        return 0
    return 1 + max((_depth(item) for item in node.items[:1]), default=0)


def _leaves(node: Node) -> Iterator[Span]:
    """Where the numbers of a value stand, in the order of the text."""
    if isinstance(node, Sequence):
        for item in node.items:
            yield from _leaves(item)
    else:
        yield node.at
