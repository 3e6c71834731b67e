"""The phrases that the views of a wrapper share: lists, annotations, questions about a tensor."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from kgen.spec import Input, Kind, Param


def lines(parts: Iterable[str]) -> str:
    """One part a line."""
    return "\n".join(parts)


def wrapped(text: str, width: int, indent: str = "") -> str:
    """The text in lines of so many characters at most; ``indent`` stands before all but the first.

    Links and other long words stay whole.
    """
    return "\n".join(
        textwrap.wrap(
            text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
    )


def join(names: Iterable[str]) -> str:
    """``a, b, c``."""
    return ", ".join(names)


def tuple_of(names: Sequence[str]) -> str:
    """A tuple as a value: ``a, b``, and ``(a,)`` for one."""
    return f"({names[0]},)" if len(names) == 1 else join(names)


def unpacked(names: Sequence[str]) -> str:
    """A tuple as a target: ``a, b``, and ``a,`` for one."""
    return f"{names[0]}," if len(names) == 1 else join(names)


def tensor_type(may_lack: bool) -> str:
    """How a tensor parameter is annotated."""
    return "torch.Tensor | None" if may_lack else "torch.Tensor"


def annotated(input_: Input, default: bool = False) -> str:
    """An input as a parameter."""
    may_lack = input_.absent is not None
    return f"{input_.name}: {tensor_type(may_lack)}{' = None' if may_lack and default else ''}"


def annotated_param(param: Param) -> str:
    """A param as a parameter with its default."""
    return f"{param.name}: {param.element.value} = {param.default!r}"


def dtype_of(name: str, may_lack: bool) -> str:
    """The dtype of a tensor that may not be there."""
    return f"None if {name} is None else {name}.dtype" if may_lack else f"{name}.dtype"


def given(name: str, absent: float | None) -> str:
    """What stands before a question about a tensor that may not be there."""
    return "" if absent is None else f"{name} is not None and "


def row_stride(name: str, kind: Kind) -> str:
    """The call that gives the row stride of a tensor."""
    columns = ", has_columns=False" if kind in (Kind.PER_ROW, Kind.SCALAR) else ""
    return f"_row_stride({name}{columns})"


def empty_like(name: str, dtype: str = "") -> str:
    """Room for a tensor of another's shape, its rows adjacent: cheaper than ``torch.empty``."""
    words = [name, *([f"dtype={dtype}"] if dtype else [])]
    return f"torch.empty_like({join(words)}, memory_format=torch.contiguous_format)"
