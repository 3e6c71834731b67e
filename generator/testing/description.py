"""What a generated test file says about its op: frozen dataclasses, written out as literals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal

import torch

Kind = Literal["matrix", "per_row", "per_column", "per_batch", "per_place", "scalar"]
Element = Literal["float", "int", "bool"]
Number = float | int | bool


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor argument. ``absent`` is the neutral value of an optional one.

    With ``shares_columns`` each entry of its last dimension serves several columns.
    """

    name: str
    kind: Kind
    element: Element = "float"
    absent: float | None = None
    grad: bool = True
    shares_columns: bool = False

    @property
    def optional(self) -> bool:
        """Whether ``None`` may be passed."""
        return self.absent is not None

    @property
    def is_summed(self) -> bool:
        """Whether its gradient is a sum over rows."""
        return self.kind not in ("matrix", "per_row")

    @property
    def differentiable(self) -> bool:
        """Whether the op gives a gradient for it."""
        return self.grad and self.element == "float"


@dataclass(frozen=True, slots=True)
class Param:
    """A number given by keyword; the type of the default is the type of the param."""

    name: str
    default: Number
    minimum: float | None = None
    maximum: float | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """A result. ``dtype`` is the name of the input whose dtype it has, a dtype's own, or "compute".

    The last is the dtype of the arithmetic: float32, or float64 as soon as one input is.
    """

    name: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Tolerance:
    """``|got - expected| <= absolute + relative * |expected|``, element by element.

    ``share`` bounds how many elements may differ at all from the rounded expectation: a dtype so
    coarse that one step is allowed must still be right nearly everywhere.
    """

    absolute: float
    relative: float
    share: float = 1.0

    def scaled(self, factor: float) -> Tolerance:
        """The same with both terms ``factor`` times as large."""
        return Tolerance(self.absolute * factor, self.relative * factor, self.share)

    def summed(self, count: int) -> Tolerance:
        """For a sum of ``count`` terms: the absolute term grows with the root of the count."""
        return Tolerance(self.absolute * max(count, 1) ** 0.5, self.relative, self.share)


# Outputs that are no float: one step of the dtype, and rarely. Integers wider than int8 are counts
# or indices, not rounded numbers.
QUANTISED = {
    "float8_e4m3fn": Tolerance(2.0**-9, 2.0**-3, share=0.05),
    "float8_e5m2": Tolerance(2.0**-16, 2.0**-2, share=0.05),
    "int8": Tolerance(1.0, 0.0, share=0.05),
    "int32": Tolerance(0.0, 0.0),
    "int64": Tolerance(0.0, 0.0),
    "bool": Tolerance(0.0, 0.0),
}


@dataclass(frozen=True, slots=True)
class Case:
    """A worked example of the spec: arguments, upstream gradients and results by name."""

    name: str
    given: Mapping[str, Any]
    expect: Mapping[str, Any]

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Op:
    """An op as its tests see it. ``module`` is the generated ``op.py``, ``spec`` its source.

    ``differentiable`` is false for inference-only ops, and ``reuses_outputs`` tells that backward
    starts from a stored output, which has been rounded to its dtype. The values of an op that is
    ``positional`` depend on where in the matrix a row stands. With ``second_order`` the gradients
    can be differentiated once more.
    """

    name: str
    module: ModuleType
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    tolerances: Mapping[str, Tolerance]
    params: tuple[Param, ...] = ()
    spec: str = ""
    dtypes: tuple[str, ...] = ("float16", "bfloat16", "float32", "float64")
    positional: bool = False
    differentiable: bool = True
    reuses_outputs: bool = False
    second_order: bool = False
    function: Callable[..., Any] = field(init=False)
    reference: Callable[..., Any] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "function", getattr(self.module, self.name))
        object.__setattr__(self, "reference", getattr(self.module, f"{self.name}_reference"))

    def __str__(self) -> str:
        return self.name

    @property
    def interpreted(self) -> bool:
        """Whether the kernels run in Triton's interpreter, on CPU tensors."""
        return bool(self.module.INTERPRETED)

    @property
    def device(self) -> str:
        """Where the tests' tensors live."""
        return "cpu" if self.interpreted else "cuda"

    @property
    def usual(self) -> str:
        """The dtype of checks that are not about dtypes: float32 if the op takes it."""
        return "float32" if "float32" in self.dtypes else self.dtypes[-1]

    @property
    def matrix(self) -> Input:
        """The first matrix of floats: the rows."""
        return next(i for i in self.inputs if i.kind == "matrix" and i.element == "float")

    @property
    def optional(self) -> tuple[str, ...]:
        """The names of the inputs that may be left out."""
        return tuple(entry.name for entry in self.inputs if entry.optional)

    @property
    def gradients(self) -> tuple[str, ...]:
        """The names of the inputs that get a gradient."""
        if not self.differentiable:
            return ()
        return tuple(entry.name for entry in self.inputs if entry.differentiable)

    @property
    def column_gradients(self) -> tuple[str, ...]:
        """The names of the inputs whose gradient is a sum over the rows."""
        return tuple(name for name in self.gradients if self.input(name).is_summed)

    @property
    def batched(self) -> bool:
        """Whether the op takes a batch of matrices, (..., T, N)."""
        return any(entry.kind in ("per_batch", "per_place") for entry in self.inputs)

    def input(self, name: str) -> Input:
        """The input of that name."""
        return next(entry for entry in self.inputs if entry.name == name)

    def tolerance(self, dtype: torch.dtype) -> Tolerance:
        """How far a result of that dtype may be from the reference."""
        name = str(dtype).removeprefix("torch.")
        return self.tolerances[name] if name in self.tolerances else QUANTISED[name]
