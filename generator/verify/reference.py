"""A spec's reference as a function that can be called, whose faults have a place in the spec."""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
import torch.nn.functional
from kgen.errors import KgenError, Problem, Span
from kgen.lower import RowOp
from kgen.philox import random
from kgen.spec import Kind
from kgen.verify.samples import Sample
from torch import Tensor

_LONGEST = 160
_NARROW = frozenset({"float", "half", "bfloat16", "float32", "float16"})


@dataclass(slots=True)
class Reference:
    """The reference of an op, compiled; running it runs the user's code."""

    op: RowOp
    _call: Callable[..., Any] = field(init=False)
    _file: str = field(init=False)
    _tree: ast.Module = field(init=False)

    def __post_init__(self) -> None:
        spec = self.op.spec
        names = ", ".join([*(i.name for i in spec.inputs), *(p.name for p in spec.params)])
        body = "".join(f" {line}\n" for line in spec.reference.split("\n"))
        self._file = f"<reference of {spec.path}>"
        text = f"def reference({names}):\n{body}"
        self._tree = ast.parse(text)
        space: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "random": random}
        exec(compile(text, self._file, "exec", dont_inherit=True), space)
        self._call = space["reference"]

    def outputs(self, sample: Sample, inputs: dict[str, Tensor | None]) -> dict[str, Tensor]:
        """The outputs by name, as it returned them; raises ``KgenError`` for what it may not do."""
        with _state_kept():
            try:
                returned = self._call(*inputs.values(), *sample.params.values())
            except (Exception, SystemExit) as error:
                self._failed(error, sample)
        return self._checked(returned, sample)

    @contextmanager
    def differentiated(self, sample: Sample) -> Iterator[None]:
        """Turns what autograd says of the reference's operations into a ``KgenError``."""
        try:
            yield
        except RuntimeError as error:
            reason = _reason(error)
            message = f"autograd of the reference raises {reason} (called with "
            message += f"{described(self.op, sample)})"
            raise KgenError(Problem(message, self.line_of())) from None

    def local_values(self, sample: Sample) -> dict[str, Tensor]:
        """The floating tensors that its variables hold when it returns, in programs' shapes."""
        held: dict[str, Any] = {}
        code = self._call.__code__

        def watch(frame: types.FrameType, event: str, value: object) -> None:
            if event == "return" and frame.f_code is code:
                held.update(frame.f_locals)

        before = sys.getprofile()
        sys.setprofile(watch)
        try:
            with _state_kept():
                self._call(*sample.inputs.values(), *sample.params.values())
        finally:
            sys.setprofile(before)
        found = {n: _flat(v, sample) for n, v in held.items() if isinstance(v, Tensor)}
        return {name: value for name, value in found.items() if value is not None}

    def narrowing(self) -> Span | None:
        """Where it converts to a float of less than 64 bits, if it does."""
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Attribute) and node.attr in _NARROW:
                return self._part(node)
        return None

    def place_of(self, number: float) -> Span | None:
        """Where a number stands in its text."""
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Constant) and node.value == number:
                return self._part(node)
        return None

    def line_of(self, name: str | None = None) -> Span:
        """Where a name gets its last value, or the last ``return`` for None."""
        found: int | None = None
        for node in ast.walk(self._tree):
            is_return = name is None and isinstance(node, ast.Return)
            if is_return or (name is not None and name in _assigned(node)):
                found = max(found or 0, node.lineno)  # type: ignore[attr-defined]
        return self._span(found or 2)

    def assigned(self) -> set[str]:
        """The names that the reference assigns."""
        return {name for node in ast.walk(self._tree) for name in _assigned(node)}

    def numbers(self) -> list[float]:
        """The float constants in its text."""
        constants = (n.value for n in ast.walk(self._tree) if isinstance(n, ast.Constant))
        return list(dict.fromkeys(v for v in constants if type(v) is float))

    def _part(self, node: ast.expr) -> Span:
        """A part of a line, in the spec."""
        at, end = self.op.spec.reference_at, node.end_col_offset or 0
        width = end - node.col_offset if node.end_lineno == node.lineno else 1
        column = at.column + node.col_offset - 1
        return Span(at.source, at.line + node.lineno - 2, column, max(1, width))

    def _span(self, number: int) -> Span:
        """The whole of line ``number`` of the compiled text, in the spec."""
        at = self.op.spec.reference_at
        line = self.op.spec.reference.split("\n")[number - 2]
        indent = len(line) - len(line.lstrip())
        return Span(at.source, at.line + number - 2, at.column + indent, max(1, len(line.strip())))

    def _failed(self, error: BaseException, sample: Sample) -> NoReturn:
        number = 2
        place = error.__traceback__
        while place is not None:
            if place.tb_frame.f_code.co_filename == self._file:
                number = place.tb_lineno
            place = place.tb_next
        message = f"the reference raises {_reason(error)} (called with "
        message += f"{described(self.op, sample)})"
        if len(sample.shape) != 2:
            message += "; it takes any number of dimensions, as the op does: the last is the row"
        raise KgenError(Problem(message, self._span(number))) from None

    def _checked(self, returned: Any, sample: Sample) -> dict[str, Tensor]:
        outputs = self.op.spec.outputs
        values = returned if isinstance(returned, tuple) else (returned,)
        names = ", ".join(output.name for output in outputs)
        if len(values) != len(outputs):
            got = "1 value" if len(values) == 1 else f"{len(values)} values"
            self._refuse(f"the reference returns {got}; the outputs are {names}")
        for output, value in zip(outputs, values, strict=True):
            if not isinstance(value, Tensor):
                kind = type(value).__name__
                self._refuse(f"the reference returns a {kind} for {output.name}; it takes a tensor")
            if value.layout is not torch.strided or value.is_complex():
                words = "complex" if value.is_complex() else str(value.layout)
                self._refuse(
                    f"the reference returns a tensor for {output.name} that is {words}; it takes "
                    "a plain one of real numbers"
                )
            kind_ = self.op.output_kind(output)
            wanted = sample.shape if kind_ is Kind.MATRIX else sample.shape[:-1]
            if tuple(value.shape) != wanted:
                self._refuse(
                    f"the reference returns {output.name} of shape {tuple(value.shape)}, called "
                    f"with {described(self.op, sample)}; {output.name} is {kind_.value}, and takes "
                    f"shape {wanted}"
                )
        return {output.name: value for output, value in zip(outputs, values, strict=True)}

    def _refuse(self, message: str) -> NoReturn:
        raise KgenError(Problem(message, self.line_of()))


@contextmanager
def _state_kept() -> Iterator[None]:
    """What a reference sets in PyTorch for everybody does not outlive the call."""
    enabled, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    try:
        yield
    finally:
        torch.set_grad_enabled(enabled)
        torch.set_default_dtype(dtype)


def _reason(error: BaseException) -> str:
    words = " ".join(str(error).split())
    words = words if len(words) <= _LONGEST else words[: _LONGEST - 3] + "..."
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def described(op: RowOp, sample: Sample) -> str:
    """The call in words: the matrix's shape, what is not given, and the params."""
    words = [f"{op.spec.inputs[0].name} of shape {sample.shape}"]
    if sample.scale != 1:
        words[0] += f" and size {sample.scale:.1g}"
    words += [f"no {name}" for name, tensor in sample.inputs.items() if tensor is None]
    words += [f"{name} = {_number(value)}" for name, value in sample.params.items()]
    words += sample.told
    return ", ".join(words)


def _number(value: float | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"


def _assigned(node: ast.AST) -> Iterator[str]:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = list(node.targets)
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        targets = [node.target]
    for target in targets:
        for part in ast.walk(target):
            if isinstance(part, ast.Name):
                yield part.id


def _flat(value: Tensor, sample: Sample) -> Tensor | None:
    """A tensor in the shape of a kind, or None if it is none's."""
    shape, columns = sample.shape, sample.shape[-1]
    if not value.is_floating_point():
        return None
    value = value.detach().to(torch.float64)
    forms = {
        tuple(shape): (sample.rows, columns),
        (*shape[:-1], 1): (sample.rows, 1),
        shape[:-1]: (sample.rows, 1),
        (columns,): (1, columns),
        (): (),
    }
    form = forms.get(tuple(value.shape))
    return None if form is None else value.reshape(form)
