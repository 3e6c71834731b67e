"""Makes Triton's interpreter faster, and changes nothing of what it computes.

Most of its time goes into types and names: what an operation gives is worked out again for each,
and every launch, and every call of one kernel function by another, replaces all that there is in
``triton.language``. Here what depends on types alone is kept by their names, and names are
replaced once a launch. ``repair`` of ``kgen.testing.interpreter`` calls ``speed_up``, once.
"""

from __future__ import annotations

import functools
from typing import Any


def speed_up(interpreter: Any) -> None:
    """Replace what is slow in ``triton.runtime.interpreter`` and in the types that it uses."""
    _keep_numpy_dtypes(interpreter)
    _keep_types()
    _keep_operands()
    _skip_unread_checks()
    _replace_names_once(interpreter)


def _keep_numpy_dtypes(interpreter: Any) -> None:
    slow = interpreter._get_np_dtype
    known: dict[str, Any] = {}

    def get_np_dtype(dtype: Any) -> Any:
        if dtype.name not in known:
            known[dtype.name] = slow(dtype)
        return known[dtype.name]

    interpreter._get_np_dtype = get_np_dtype


def _keep_types() -> None:
    """The types of blocks, and the shapes of tensors of a type."""
    from triton.language import core

    start_block, start_tensor, equal = (
        core.block_type.__init__,
        core.tensor.__init__,
        core.dtype.__eq__,
    )
    blocks: dict[tuple[str, tuple[object, ...]], dict[str, Any]] = {}
    shapes: dict[str, tuple[Any, Any]] = {}

    def init_block(self: Any, element_ty: Any, shape: Any) -> None:
        key = element_ty.name, tuple(map(core._unwrap_if_constexpr, shape))
        known = blocks.get(key)
        if known is None or known["element_ty"] != element_ty:
            start_block(self, element_ty, shape)
            blocks[key] = dict(self.__dict__)
        else:
            self.__dict__.update(known)

    def init_tensor(self: Any, handle: Any, type: Any) -> None:
        known = shapes.get(type.name)
        if known is None:
            start_tensor(self, handle, type)
            shapes[type.name] = self.shape, self.numel
        else:
            self.handle, self.type, self.dtype = handle, type, type.scalar
            self.shape, self.numel = known

    def equal_dtypes(self: Any, other: Any) -> bool:
        if type(other) is core.dtype:
            return bool(self.name == other.name)
        return bool(equal(self, other))

    core.block_type.__init__, core.tensor.__init__ = init_block, init_tensor
    core.dtype.__eq__ = equal_dtypes


def _keep_operands() -> None:
    """Which pairs of types an operation takes as they are, and to which shapes it brings others."""
    from triton.language import core
    from triton.language.semantic import TritonSemantic

    check, broadcast = (
        TritonSemantic.binary_op_type_checking_impl,
        TritonSemantic.broadcast_impl_value,
    )
    uncast: set[object] = set()
    known: dict[object, tuple[Any, Any]] = {}

    def check_types(self: Any, lhs: Any, rhs: Any, *flags: bool, **named: bool) -> Any:
        if type(lhs) is not core.tensor or type(rhs) is not core.tensor:
            return check(self, lhs, rhs, *flags, **named)
        key = lhs.type.name, rhs.type.name, flags, *named.items()
        if key in uncast:
            return broadcast_both(self, lhs, rhs)
        left, right = check(self, lhs, rhs, *flags, **named)
        if left.dtype == lhs.dtype and right.dtype == rhs.dtype:
            uncast.add(key)
        return left, right

    def spread(self: Any, operand: Any, wanted: Any) -> Any:
        if operand.type is wanted or operand.type.name == wanted.name:
            return operand
        if operand.type.is_block():
            handle = self.builder.create_broadcast(operand.handle, wanted.shape.values)
        else:
            handle = self.builder.create_splat(wanted, operand.handle)
        return self.tensor(handle, wanted)

    def broadcast_both(self: Any, lhs: Any, rhs: Any) -> Any:
        key = lhs.type.name, rhs.type.name
        if key not in known:
            operands = broadcast(self, lhs, rhs)
            known[key] = operands[0].type, operands[1].type
            return operands
        left, right = known[key]
        return spread(self, lhs, left), spread(self, rhs, right)

    TritonSemantic.binary_op_type_checking_impl = check_types
    TritonSemantic.broadcast_impl_value = broadcast_both


def _skip_unread_checks() -> None:
    """Do not look for overflow where the assertion that comes of it is left out anyway."""
    from triton.language.semantic import TritonSemantic

    check = TritonSemantic.binary_op_sanitize_overflow_impl

    def sanitize_overflow(self: Any, lhs: Any, rhs: Any, operation: Any) -> None:
        if self.builder.options.debug:
            check(self, lhs, rhs, operation)

    TritonSemantic.binary_op_sanitize_overflow_impl = sanitize_overflow


class _Launch:
    """The modules whose names are replaced while a kernel runs, and how to put them back."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.scopes: list[Any] = []

    def restore(self) -> None:
        """Put all names back, those replaced last first."""
        while self.scopes:
            self.scopes.pop().restore()
        self.modules.clear()


def _replace_names_once(interpreter: Any) -> None:
    import triton.language as tl

    patch, launch = interpreter._patch_lang, _Launch()

    @functools.cache
    def modules(function: Any) -> frozenset[str]:
        used = [value for value in function.__globals__.values() if value is tl or value is tl.core]
        return frozenset(module.__name__ for module in used)

    def patch_lang(function: Any) -> _Launch:
        if not launch.scopes or not modules(function) <= launch.modules:
            launch.scopes.append(patch(function))
            launch.modules |= modules(function)
        return launch

    @functools.cache
    def builtins(package: Any) -> list[str]:
        return [name for name in dir(package) if tl.core.is_builtin(getattr(package, name, None))]

    @functools.cache
    def interpreted(builtin: Any) -> Any:
        called = getattr(builtin, "__wrapped__", builtin)  # less the check that a kernel calls

        def call(*args: Any, **kwargs: Any) -> Any:
            kwargs["_semantic"] = interpreter.interpreter_semantic
            return called(*args, **kwargs)

        return call

    def patch_builtin(package: Any, builder: Any, *scope: Any) -> None:
        replace = scope[0].set_attr if scope else setattr
        for name in builtins(package):
            member = getattr(package, name)
            if tl.core.is_builtin(member):  # else replaced already, for another module
                replace(package, name, interpreted(member))

    interpreter._patch_lang, interpreter._patch_builtin = patch_lang, patch_builtin
