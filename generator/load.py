"""YAML text -> ``Spec``, or every problem of the file at once. Nothing in a spec is executed."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Literal

from kgen import tree
from kgen.cases import CaseReader
from kgen.check import Block, Names, check_formulas, check_reference
from kgen.errors import KgenError, Problems, Source, Span, quote, suggest
from kgen.expr import Apply, Assignment, read_formulas, walk
from kgen.fields import Field, Fields, Number, words
from kgen.spec import (
    COMPUTE,
    DEFAULT_TOLERANCES,
    FLOAT_DTYPES,
    INPUT_KEYS,
    LARGEST_COLUMNS,
    LARGEST_SCRATCH_MIB,
    LIMITS_KEYS,
    MODULE_ATTRIBUTES,
    MOST_PEERS,
    OUTPUT_DTYPES,
    OUTPUT_KEYS,
    PARAM_KEYS,
    PEER_LIMIT,
    SPEC_KEYS,
    Element,
    Input,
    Kind,
    Limits,
    Output,
    Param,
    Spec,
    Tolerance,
    has_gradient,
    module_problem,
    name_problem,
    op_problem,
)
from kgen.tree import Broken, Mapping, Node, Scalar
from kgen.tuning import read_tuning

MAX_FILE = 1024 * 1024
INPUT_KINDS = ("matrix", "per_row", "per_column", "per_batch", "per_place", "scalar")
SHARING_KINDS = (Kind.PER_COLUMN, Kind.PER_BATCH, Kind.PER_PLACE)
ELEMENTS = ("float", "int", "bool")
Backward = tuple[Assignment, ...] | Literal["none", "derive"]


def load(path: Path) -> Spec:
    """The spec in a file; raises ``KgenError`` with all that is wrong with it."""
    return load_text(_read(path), shown_path(path), path.as_posix())


def load_text(text: str, path: str, typed: str | None = None) -> Spec:
    """The spec in a text that headers call ``path``; messages call it as the user has typed it."""
    if any(char in '"\\' or not char.isprintable() for char in path):
        raise KgenError(f"the path {quote(path)} has characters that no header can hold: rename it")
    source = Source(typed or path, tree.clean(text))
    problems = Problems()
    root = tree.parse_tree(source, problems)
    spec = _Loader(source, path, problems).spec(root)
    problems.raise_if_any()
    assert spec is not None, "a spec without problems is complete"
    return spec


def shown_path(path: Path) -> str:
    """The path as headers show it, the same on every machine: relative, with forward slashes."""
    absolute = Path(os.path.abspath(path))
    try:
        return absolute.relative_to(os.getcwd()).as_posix()
    except (OSError, ValueError):  # outside the folder, or the folder is gone
        pass
    return Path(*absolute.parts[-2:]).as_posix()


def _read(path: Path) -> str:
    """The text of a file; never a device, never more than ``MAX_FILE`` bytes."""
    name = quote(str(path))
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise KgenError(f"{name} is a directory: name a spec file in it")
        if not stat.S_ISREG(mode):
            raise KgenError(f"{name} is not a regular file")
        with path.open("rb") as file:
            data = file.read(MAX_FILE + 1)
    except FileNotFoundError:
        raise KgenError(f"{name} does not exist") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a path"
        raise KgenError(f"cannot read {name}: {reason}") from None
    if len(data) > MAX_FILE:
        raise KgenError(f"{name} is larger than {MAX_FILE // 1024**2} MiB: this is not a spec")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise KgenError(
            f"{name} is not UTF-8 text: byte 0x{data[error.start]:02x} in line {line}"
        ) from None


class _Loader:
    """Reads the sections of one spec and keeps going after a problem."""

    def __init__(self, source: Source, path: str, problems: Problems) -> None:
        self._source = source
        self._path = path
        self._problems = problems
        self._fields = Fields(problems)
        self._sure = True
        self._draws = True
        self._start = Span(source, 1, 1)

    def spec(self, root: Node) -> Spec | None:
        """The whole spec, or None when there is a problem."""
        found = self._fields.known(root, "a spec", SPEC_KEYS)
        op = self._op(found.get("op"))
        summary = self._fields.line(found.get("summary"))
        source = self._fields.line(found.get("source"))
        inputs = self._inputs(found.get("inputs"))
        params = self._params(found.get("params"))
        outputs = self._outputs(found.get("outputs"), inputs)
        is_double = self._double_backward(found)
        names = self._names(inputs, params, outputs, is_double)
        self._check_clashes(names, op)
        forward, backward = self._formulas(found, names)
        reference = self._reference(found.get("reference"), names)
        limits = self._limits(found.get("limits"))
        dtypes = self._dtypes(found.get("dtypes"))
        tolerances = self._tolerances(found.get("tolerances"))
        with_gradients = backward != "none"
        reader = CaseReader(self._problems, inputs, params, outputs, with_gradients)
        cases = reader.cases(found.get("cases"))
        module = self._module(found.get("module"), (*inputs, *params))
        if module and self._draws and names.sure and not self._problems:
            self._problems.add(
                "a module would keep one seed, and draw the same numbers in every call: remove "
                "'module', since 'forward' uses random",
                found["module"].key.at,
            )
        peers = self._peers(found.get("peers"))
        tuning = read_tuning(found.get("tuning"), with_gradients, is_double, self._problems)
        if self._problems or op is None or summary is None or source is None or reference is None:
            return None
        return Spec(
            op=op,
            summary=summary,
            source=source,
            path=self._path,
            at=found["op"].value.at,
            inputs=inputs,
            params=params,
            outputs=outputs,
            forward=forward,
            backward=backward,
            backward_at=found["backward"].key.at,
            reference=reference[0],
            reference_at=reference[1],
            limits=limits,
            dtypes=dtypes,
            tolerances=tolerances,
            cases=cases,
            module=module,
            double_backward=is_double,
            peers=peers,
            tuning=tuning,
        )

    def _op(self, field: Field | None) -> str | None:
        if field is None:
            return None
        name = self._fields.word(field.value, "'op' is the op's name")
        message = op_problem(name) if name is not None else None
        if name is None or message is None:
            return name
        self._problems.add(f"bad op name {quote(name)}: {message}", field.value.at)
        return None

    def _module(self, field: Field | None, held: tuple[Input | Param, ...]) -> str | None:
        """The class name; what the module holds must not hide what every module has."""
        if field is None:
            return None
        for entry in held:
            if entry.name in MODULE_ATTRIBUTES:
                message = f"'{entry.name}' is an attribute of every module: rename it, or leave out"
                self._problems.add(f"{message} 'module'", entry.at)
            if isinstance(entry, Input) and entry.is_parameter:
                self._check_start(entry)
        name = self._fields.word(field.value, "'module' is a class name")
        problem = module_problem(name) if name is not None else None
        if name is not None and problem:
            self._problems.add(f"bad module name {quote(name)}: {problem}", field.value.at)
        return name

    def _check_start(self, entry: Input) -> None:
        if entry.start is None and entry.absent is None:
            message = f"nothing says what the module's parameter '{entry.name}' starts from"
            self._problems.add(f"{message}: write {{kind: per_column, start: 1}}", entry.at)

    def _named(self, field: Field | None, what: str) -> list[Field]:
        """The entries of a section whose keys are names that the user chose."""
        if field is None:
            return []
        entries = list(self._fields.entries(field.value, f"'{field.key.text}'"))
        broken = any(isinstance(entry.value, Broken) for entry in entries)
        if broken or not isinstance(field.value, Mapping) or not field.value.whole:
            self._sure = False
        for entry in entries:
            message = name_problem(entry.key.text)
            if message:
                name = quote(entry.key.text)
                self._problems.add(f"bad {what} name {name}: {message}", entry.key.at)
        return entries

    def _inputs(self, field: Field | None) -> tuple[Input, ...]:
        entries = self._named(field, "input")
        if field and not entries and isinstance(field.value, Mapping):
            self._problems.add("an op takes at least one input: a matrix", field.key.at)
        first = entries[0] if entries and self._sure else None
        return tuple(self._input(entry, entry is first) for entry in entries)

    def _input(self, entry: Field, first: bool) -> Input:
        """An input; what cannot be read stands as the default, since its problem is recorded."""
        name, at = entry.key.text, entry.key.at
        if isinstance(entry.value, Scalar):
            return Input(name, self._kind(entry.value, first), at)
        found = self._fields.known(entry.value, f"input {quote(name)}", INPUT_KEYS)
        kind = self._kind(found["kind"].value, first) if "kind" in found else Kind.MATRIX
        element = self._element(found.get("type"))
        absent = self._absent(found.get("absent"), element, first)
        grad = self._grad(found.get("grad"), element)
        shares = self._shares_columns(found.get("columns"), kind)
        start = self._start_of(found.get("start"))
        read = Input(name, kind, at, element, absent, grad, shares, start)
        if "start" in found and not read.is_parameter:
            message = "a module holds per_column inputs of floats alone: remove 'start'"
            self._problems.add(message, found["start"].key.at)
        return read

    def _kind(self, node: Node, first: bool) -> Kind:
        word = self._fields.choice(node, "kind", INPUT_KINDS)
        if first and word not in (None, "matrix"):
            message = f"the first input is the matrix that the op works on, got '{word}'"
            self._problems.add(message, node.at)
        return Kind(word) if word else Kind.MATRIX

    def _shares_columns(self, field: Field | None, kind: Kind) -> bool:
        if field is None or self._fields.choice(field.value, "columns", ("shared",)) is None:
            return False
        if kind not in SHARING_KINDS:
            kinds = words([kind.value for kind in SHARING_KINDS])
            self._problems.add(
                f"columns can be shared in an input that is {kinds}, got {kind.value}",
                field.key.at,
            )
        return True

    def _element(self, field: Field | None) -> Element:
        word = self._fields.choice(field.value, "type", ELEMENTS) if field else None
        return Element(word) if word else Element.FLOAT

    def _absent(self, field: Field | None, element: Element, first: bool) -> float | None:
        if field is None:
            return None
        if first:
            self._problems.add("the first input cannot be absent", field.key.at)
            return None
        value = self._value(field.value, element, "'absent'")
        return None if value is None else float(value)

    def _start_of(self, field: Field | None) -> float | None:
        value = self._fields.number(field.value, "'start'") if field else None
        return None if value is None else float(value)

    def _value(self, node: Node, element: Element, what: str) -> Number | None:
        """A value that entries of this type can have."""
        if element is Element.BOOL:
            return self._fields.boolean(node, what)
        if element is Element.INT:
            return self._fields.integer(node, what)
        value = self._fields.number(node, what)
        return None if value is None else float(value)

    def _grad(self, field: Field | None, element: Element) -> bool:
        value = self._fields.boolean(field.value, "'grad'") if field else None
        if field and value and element is not Element.FLOAT:
            message = f"an input of type {element.value} takes no gradient: remove 'grad: true'"
            self._problems.add(message, field.key.at)
        return element is Element.FLOAT and value is not False

    def _params(self, field: Field | None) -> tuple[Param, ...]:
        return tuple(self._param(entry) for entry in self._named(field, "param"))

    def _param(self, entry: Field) -> Param:
        name = entry.key.text
        found = self._fields.known(entry.value, f"param {quote(name)}", PARAM_KEYS)
        element = self._element(found.get("type"))
        low, high = (self._bound(found.get(key), element) for key in ("min", "max"))
        field = found.get("default")
        default = self._value(field.value, element, "'default'") if field else None
        if low is not None and high is not None and low > high:
            self._problems.add(f"'min' {low} is above 'max' {high}", found["min"].key.at)
        elif field and default is not None:
            self._check_default(default, low, high, field.value.at)
        return Param(name, element, 0 if default is None else default, entry.key.at, low, high)

    def _bound(self, field: Field | None, element: Element) -> Number | None:
        if field is None:
            return None
        if element is Element.BOOL:
            self._problems.add("a bool param has no bounds: remove the key", field.key.at)
            return None
        return self._value(field.value, element, f"'{field.key.text}'")

    def _check_default(
        self, default: Number, low: Number | None, high: Number | None, at: Span
    ) -> None:
        if low is not None and default < low:
            self._problems.add(f"the default {default} is below 'min' {low}", at)
        if high is not None and default > high:
            self._problems.add(f"the default {default} is above 'max' {high}", at)

    def _outputs(self, field: Field | None, inputs: tuple[Input, ...]) -> tuple[Output, ...]:
        entries = self._named(field, "output")
        if field and not entries and isinstance(field.value, Mapping):
            self._problems.add("an op has at least one output", field.key.at)
        return tuple(self._output(entry, inputs) for entry in entries)

    def _output(self, entry: Field, inputs: tuple[Input, ...]) -> Output:
        name, node = entry.key.text, entry.value
        if not isinstance(node, Scalar):
            found = self._fields.known(node, f"output {quote(name)}", OUTPUT_KEYS)
            node = found["dtype"].value if "dtype" in found else Broken(node.at)
        dtype = self._fields.word(node, "a dtype is an input's name or a dtype's")
        named = [entry.name for entry in inputs]
        dtypes = (*OUTPUT_DTYPES, COMPUTE)
        if dtype is not None and dtype not in (*dtypes, *named) and self._sure:
            hint = suggest(dtype, (*named, *dtypes))
            hint = hint or f": write an input's name, or {words(dtypes)}"
            self._problems.add(f"unknown dtype {quote(dtype)}{hint}", node.at)
            dtype = None
        return Output(name, dtype or "float32", entry.key.at)

    def _names(
        self,
        inputs: tuple[Input, ...],
        params: tuple[Param, ...],
        outputs: tuple[Output, ...],
        is_double: bool,
    ) -> Names:
        return Names(
            inputs={entry.name: entry.at for entry in inputs},
            params={entry.name: entry.at for entry in params},
            outputs={entry.name: entry.at for entry in outputs},
            wanted=[entry.name for entry in inputs if entry.grad],
            upstream=[entry.name for entry in outputs if has_gradient(entry, inputs)],
            sure=self._sure and bool(inputs) and bool(outputs),
            is_double=is_double,
        )

    def _check_clashes(self, names: Names, op: str | None) -> None:
        """Every name once, none of them a gradient's or the op's."""
        gradients, second_order = names.gradients(), names.second_order()
        seen: dict[str, str] = {}
        groups = (("input", names.inputs), ("param", names.params), ("output", names.outputs))
        for what, declared in groups:
            for name, at in declared.items():
                if name in seen:
                    message = f"{what} '{name}' has the name of an {seen[name]}: rename one"
                    self._problems.add(message.replace("an param", "a param"), at)
                elif name in gradients:
                    of = gradients[name]
                    message = f"'{name}' would be the gradient of '{of}': rename one of them"
                    self._problems.add(message, at)
                elif name in second_order:
                    message = f"'{name}' would be {second_order[name]}, since 'double_backward' is"
                    self._problems.add(f"{message} true: rename it", at)
                elif name == op:
                    self._problems.add(f"{what} '{name}' has the name of the op: rename it", at)
                seen.setdefault(name, what)

    def _formulas(
        self, found: dict[str, Field], names: Names
    ) -> tuple[tuple[Assignment, ...], Backward]:
        forward = self._block(found.get("forward"))
        self._draws = forward is None or bool(forward.broken) or _draws(forward.formulas)
        backward = self._backward(found.get("backward"))
        key = found["backward"].key.at if "backward" in found else self._start
        if backward != "none" and "backward" in found and names.sure:
            if not names.upstream:
                message = "no output is a float, so nothing has a gradient: write backward: none"
                self._problems.add(message, key)
            if not names.wanted:
                message = "no input takes a gradient: write backward: none"
                self._problems.add(message, key)
        if forward is not None:
            block = backward if isinstance(backward, Block) else None
            check_formulas(names, forward, block, key, self._problems)
        formulas = forward.formulas if forward else ()
        return formulas, backward.formulas if isinstance(backward, Block) else backward

    def _backward(self, field: Field | None) -> Block | Literal["none", "derive"]:
        if field is None:
            return "none"
        node = field.value
        if isinstance(node, Scalar) and node.text.strip() == "none":
            return "none"
        if isinstance(node, Scalar) and node.text.strip() == "derive":
            return "derive"
        if isinstance(node, Scalar) and "=" not in node.text and node.style != "|":
            hint = suggest(node.text, ("none", "derive"))
            message = "'backward' is a block of formulas, 'derive' or 'none'"
            self._problems.add(f"{message}, got {tree.kind_of(node)}{hint}", node.at)
            return "derive"
        return self._block(field) or "derive"

    def _double_backward(self, found: dict[str, Field]) -> bool:
        field = found.get("double_backward")
        is_double = field and self._fields.boolean(field.value, "'double_backward'")
        if not field or not is_double:
            return False
        backward = found["backward"].value if "backward" in found else None
        if isinstance(backward, Scalar) and backward.text.strip() == "none":
            message = "'double_backward' differentiates a backward, and there is none: give one"
            self._problems.add(f"{message}, or remove the key", field.key.at)
        return True

    def _block(self, field: Field | None) -> Block | None:
        """The formulas of a key, or None when there is no block to read."""
        text = self._block_text(field)
        if text is None:
            return None
        before = len(self._problems)
        formulas, broken = read_formulas(*text, self._problems)
        if not formulas and len(self._problems) == before:
            assert field is not None
            self._problems.add(f"'{field.key.text}' has no formulas", field.key.at)
            return None
        return Block(formulas, broken)

    def _block_text(self, field: Field | None) -> tuple[str, Span] | None:
        """The text of a block and the place of its first character."""
        if field is None or isinstance(field.value, Broken):
            return None
        name, node = field.key.text, field.value
        if not isinstance(node, Scalar) or (node.style == "" and not node.text):
            message = f"'{name}' is a block of text: write '{name}: |' and the lines below it"
            self._problems.add(f"{message}, got {tree.kind_of(node)}", node.at)
        elif node.style == "|":
            return self._literal(node)
        elif node.at.width == len(node.text) + 2 * len(node.style):
            column = node.at.column + len(node.style)
            return node.text, Span(self._source, node.at.line, column)
        else:
            message = f"write the lines of '{name}' as a block: '{name}: |' and the lines below it"
            self._problems.add(message, node.at)
        return None

    def _literal(self, node: Scalar) -> tuple[str, Span]:
        lines = node.text.rstrip().split("\n")
        first = next((number for number, line in enumerate(lines) if line.strip()), 0)
        start = node.at.line + 1 + first
        indent = len(self._source.line(start)) - len(lines[first])
        return "\n".join(lines[first:]), Span(self._source, start, max(0, indent) + 1)

    def _reference(self, field: Field | None, names: Names) -> tuple[str, Span] | None:
        text = self._block_text(field)
        if text is not None:
            known = [*names.inputs, *names.params, *(["random"] if self._draws else [])]
            check_reference(*text, known if names.sure else None, self._problems)
        return text

    def _limits(self, field: Field | None) -> Limits:
        if field is None:
            return Limits()
        found = self._fields.known(field.value, "'limits'", LIMITS_KEYS)
        columns = self._limit(found.get("max_columns"), LARGEST_COLUMNS)
        scratch = self._limit(found.get("scratch_mib"), LARGEST_SCRATCH_MIB)
        return Limits(columns or Limits().max_columns, scratch or Limits().scratch_mib)

    def _limit(self, field: Field | None, largest: int) -> int | None:
        if field is None:
            return None
        value = self._fields.integer(field.value, f"'{field.key.text}'")
        if value is not None and not 1 <= value <= largest:
            message = f"'{field.key.text}' is from 1 to {largest}, got {value}"
            self._problems.add(message, field.value.at)
        return value

    def _dtypes(self, field: Field | None) -> tuple[str, ...]:
        if field is None:
            return FLOAT_DTYPES
        found: list[str] = []
        items = self._fields.items(field.value, "'dtypes'")
        for item in items or ():
            word = self._fields.choice(item, "dtype", FLOAT_DTYPES)
            if word in found:
                self._problems.add(f"'{word}' stands twice in 'dtypes'", item.at)
            found.extend([word] if word else [])
        if items == ():
            self._problems.add("'dtypes' is empty: leave it out to take all four", field.value.at)
        return tuple(name for name in FLOAT_DTYPES if name in found)

    def _peers(self, field: Field | None) -> tuple[str, ...]:
        if field is None:
            return ()
        found: list[str] = []
        items = self._fields.items(field.value, "'peers'")
        for item in items or ():
            name = self._fields.short_text(item, "a peer", PEER_LIMIT)
            if name and name.casefold() in map(str.casefold, found):
                self._problems.add(f"{quote(name)} stands twice in 'peers'", item.at)
            found.extend([name] if name else [])
        if items == ():
            self._problems.add("'peers' is empty: name a library, or leave it out", field.value.at)
        if items and len(items) > MOST_PEERS:
            message = f"'peers' takes at most {MOST_PEERS} libraries, got {len(items)}"
            self._problems.add(message, field.value.at)
        return tuple(found)

    def _tolerances(self, field: Field | None) -> dict[str, Tolerance]:
        found = dict(DEFAULT_TOLERANCES)
        for entry in self._fields.entries(field.value, "'tolerances'") if field else ():
            name = self._fields.choice(entry.key, "dtype", FLOAT_DTYPES)
            tolerance = self._tolerance(entry)
            if name and tolerance:
                found[name] = tolerance
        return found

    def _tolerance(self, entry: Field) -> Tolerance | None:
        what = f"the tolerance of {quote(entry.key.text)}"
        items = self._fields.items(entry.value, what)
        if items is None:
            return None
        if len(items) != 2:
            message = f"{what} is [absolute, relative], got {len(items)} values"
            self._problems.add(message, entry.value.at)
            return None
        values = [self._fields.number(item, what) for item in items]
        for item, value in zip(items, values, strict=True):
            if value is not None and value < 0:
                self._problems.add(f"{what} cannot be negative", item.at)
        absolute, relative = values
        if absolute is None or relative is None:
            return None
        return Tolerance(float(absolute), float(relative))


def _draws(formulas: tuple[Assignment, ...]) -> bool:
    """Whether a formula takes random numbers."""
    parts = (part for formula in formulas for part in walk(formula.value))
    return any(isinstance(part, Apply) and part.function == "random" for part in parts)
