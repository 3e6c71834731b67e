"""Makes Triton's interpreter agree with compiled kernels where the two differ, and run faster.

Importing ``kgen.testing`` changes nothing. ``require_device`` calls ``repair``, once, and only if
kernels are interpreted. What it changes in ``triton.runtime.interpreter``:

- a load or store outside of every tensor of the launch raises ``IndexError`` instead of reading
  what lies there or ruining the heap;
- ``tl.reduce`` with the combine functions ``nan_maximum`` and ``nan_minimum`` that kgen generates
  runs in numpy instead of element by element;
- what it works out again for every operation and every launch is kept: ``kgen.testing.speed``;
- float32 and float64 round to bfloat16 and to the 8-bit floats as the hardware does, to the
  nearest even, instead of being cut off (or, from float64, garbled).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from kgen.testing.description import Op
from kgen.testing.speed import speed_up

_NO_DEVICE = (
    "no way to run {name}'s kernels here: set TRITON_INTERPRET=1 before triton is imported, "
    "or use a machine with a GPU"
)


def require_device(op: Op) -> None:
    """Skip the calling test file unless the op's kernels can run."""
    if op.interpreted:
        repair()
    elif not torch.cuda.is_available():
        pytest.skip(_NO_DEVICE.format(name=op.name), allow_module_level=True)


@contextmanager
def watched() -> Iterator[None]:
    """Run kernels so that a mistake shows: memory that nobody has written is full of NaN.

    And numpy does not warn of the NaN and infinities that tests pass on purpose.
    """
    import numpy

    before = torch.get_deterministic_debug_mode()
    memory: Any = torch.utils.deterministic
    fill = memory.fill_uninitialized_memory
    try:
        # Not use_deterministic_algorithms, which takes seconds to import PyTorch's compiler.
        torch.set_deterministic_debug_mode("warn")
        memory.fill_uninitialized_memory = True
        with numpy.errstate(all="ignore"):
            yield
    finally:
        torch.set_deterministic_debug_mode(before)
        memory.fill_uninitialized_memory = fill


@functools.cache
def repair() -> None:
    """Mend the interpreter, as the module's docstring says."""
    from triton.runtime import interpreter

    _watch_bounds(interpreter)
    speed_up(interpreter)
    _repair_reduce(interpreter)
    _repair_rounding(interpreter)


def _watch_bounds(interpreter: Any) -> None:
    executor, builder = interpreter.GridExecutor, interpreter.InterpreterBuilder
    start, load, store = (
        executor._init_args_hst,
        builder.create_masked_load,
        builder.create_masked_store,
    )
    extents: list[tuple[int, int]] = []

    def init_args(self: Any, args: Any, kwargs: Any) -> Any:
        positional, named = start(self, args, kwargs)
        tensors = [a for a in (*positional, *named.values()) if isinstance(a, torch.Tensor)]
        extents[:] = [_extent(tensor) for tensor in tensors if tensor.numel()]
        return positional, named

    def masked_load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        _check_bounds("load", pointers.data[mask.data], extents)
        return load(self, pointers, mask, *rest)

    def masked_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        _check_bounds("store", pointers.data[mask.data], extents)
        return store(self, pointers, value, mask, *rest)

    executor._init_args_hst = init_args
    builder.create_masked_load, builder.create_masked_store = masked_load, masked_store


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses of a tensor's first and last element."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in steps)
    return tensor.data_ptr(), tensor.data_ptr() + last * tensor.element_size()


def _check_bounds(what: str, addresses: Any, extents: list[tuple[int, int]]) -> None:
    if not addresses.size:
        return
    low, high = int(addresses.min()), int(addresses.max())
    if any(first <= low and high <= last for first, last in extents):
        return
    inside = sum((first <= addresses) & (addresses <= last) for first, last in extents)
    outside = int((inside == 0).sum())
    if outside:
        raise IndexError(f"{what} of {outside} elements outside of every tensor")


def _repair_reduce(interpreter: Any) -> None:
    import numpy

    slow = interpreter.ReduceOps.apply_impl
    known = {"nan_maximum": numpy.max, "nan_minimum": numpy.min}
    source = functools.cache(inspect.getsource)

    def apply_impl(self: Any, values: Any) -> Any:
        reduce = known.get(getattr(self.combine_fn, "__name__", ""))
        if reduce and "PropagateNan.ALL" not in source(self.combine_fn.fn):
            reduce = None  # it does not do what its name says
        return self.min_max(values[0], val_reduce_op=reduce) if reduce else slow(self, values)

    interpreter.ReduceOps.apply_impl = apply_impl


def _repair_rounding(interpreter: Any) -> None:
    import triton.language as tl

    builder = interpreter.InterpreterBuilder
    targets = {
        tl.bfloat16: torch.bfloat16,
        tl.float8e4nv: torch.float8_e4m3fn,
        tl.float8e5: torch.float8_e5m2,
    }
    slow_cast, slow_convert = builder.cast_impl, builder.create_fp_to_fp

    def rounds(source: Any, target: Any) -> bool:
        wide = source.dtype.scalar in (tl.float32, tl.float64)
        return wide and target.scalar in targets

    def rounded(source: Any, target: Any) -> Any:
        bits = _round(source.data, targets[target.scalar])
        return interpreter.TensorHandle(bits, target.scalar)

    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        return (
            rounded(source, target) if rounds(source, target) else slow_cast(self, source, target)
        )

    def create_fp_to_fp(self: Any, source: Any, target: Any, mode: Any) -> Any:
        if rounds(source, target):
            return rounded(source, target)
        return slow_convert(self, source, target, mode)

    builder.cast_impl = cast_impl
    builder.create_fp_to_fp = create_fp_to_fp


def _round(data: Any, dtype: torch.dtype) -> Any:
    """The bits of an array rounded to a dtype that numpy has not got."""
    import numpy

    values = torch.from_numpy(numpy.ascontiguousarray(data))
    if dtype.itemsize == 1:  # the hardware's conversion saturates
        largest = torch.finfo(dtype).max
        values = values.clamp(-largest, largest)
        return values.to(dtype).view(torch.uint8).numpy()
    return values.to(dtype).view(torch.int16).numpy().view(numpy.uint16)
