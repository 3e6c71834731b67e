"""What an op's wrapper launches: it runs on CPU tensors, with a recorder in each kernel's place."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import triton
from kgen.inspection.calls import Call
from kgen.inspection.targets import Target
from kgen.spec import Element, Kind, Spec
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

DIGEST_LENGTH = 12
# Shapes and rows of the tensors: the wrapper decides by N and dtype alone.
BATCHES, PLACES = 8, 4

_packages = count()


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel specialised as its launch would have it, and what it depends on.

    ``constants`` are those of the kernel's constant parameters that are numbers or bools, and
    ``options`` the compiler's options that are not as they are by default, but for the warps.
    """

    kernel: str
    constants: Mapping[str, int | bool]
    options: Mapping[str, Any]
    warps: int
    digest: str
    source: ASTSource
    all_options: Mapping[str, Any]


class _Recorder:
    """Stands in for a kernel and notes what it is launched with."""

    def __init__(self, kernel: JITFunction[Any], target: Target, launches: list[Launch]) -> None:
        self.kernel = kernel
        self.launches = launches
        self.backend = make_backend(gpu_target(target))
        self.bind = create_function_from_signature(kernel.signature, kernel.params, self.backend)
        self.depends_on = (target.name, _code(kernel))

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return self.record

    def record(self, *values: Any, **keywords: Any) -> None:
        """Note the launch ``kernel[grid](*values, **keywords)``, specialised as Triton would."""
        given = {**keywords, "debug": False}
        bound, specialization, extra = self.bind(*values, **given)
        options, signature, constants, attributes = self.kernel._pack_args(
            self.backend, given, bound, specialization, extra
        )
        source = ASTSource(self.kernel, signature, constants, attributes)
        usual = {field.name: field.default for field in fields(options)}
        chosen = {
            name: value
            for name, value in keywords.items()
            if name not in bound and name != "num_warps" and value != usual[name]
        }
        launch = Launch(
            kernel=self.kernel.__name__,
            constants=_numbers(self.kernel, bound),
            options=chosen,
            warps=options.num_warps,
            digest=_digest(self.depends_on, source, {**chosen, "num_warps": options.num_warps}),
            source=source,
            all_options=dict(options.__dict__),
        )
        self.launches.append(launch)


def gpu_target(target: Target) -> GPUTarget:
    """The target as Triton describes it."""
    return GPUTarget(target.backend, target.arch, target.lanes)


def launches_of(
    folder: Path, spec: Spec, target: Target, calls: Iterable[Call]
) -> Iterator[tuple[Call, list[Launch]]]:
    """The launches of forward and of all backwards of each call, in their order.

    Args:
        folder: where the generated package of the op lies. Its wrapper runs, its kernels do not.
        spec: the spec that the package was generated from: it says which tensors to pass.
        target: the GPU to compile for.
        calls: the calls to make.
    """
    wrapper = _load_wrapper(folder, spec.op)
    launches: list[Launch] = []
    for name, value in list(vars(wrapper).items()):
        if isinstance(value, JITFunction):
            setattr(wrapper, name, _Recorder(value, target, launches))
    # As on the target, where on the CPU there would be less to fill.
    vars(wrapper).update(
        INTERPRETED=True,
        FEW_TILES=0,
        _multiprocessors=lambda device: target.multiprocessors,
        _shared_memory=lambda device: target.shared_of_program - 32768,
    )
    for call in calls:
        launches.clear()
        _run(vars(wrapper)[spec.op], spec, call)
        yield call, list(launches)


def _load_wrapper(folder: Path, op: str) -> ModuleType:
    """Import ``folder/op/op.py`` in a package with a name of its own, anew each time."""
    name = f"_inspected_{next(_packages)}_{op}"
    place = folder / op
    found = importlib.util.spec_from_file_location(
        name, place / "__init__.py", submodule_search_locations=[str(place)]
    )
    assert found is not None and found.loader is not None
    package = importlib.util.module_from_spec(found)
    sys.modules[name] = package
    found.loader.exec_module(package)
    return sys.modules[f"{name}.op"]


def _run(function: Callable[..., Any], spec: Spec, call: Call) -> None:
    """Forward and all backwards. The tensors hold nothing: no kernel reads them."""
    is_trained = spec.backward != "none"
    arguments = list(_arguments(spec, call, is_trained))
    results = function(*arguments, **dict(call.flags))
    results = results if isinstance(results, tuple) else (results,)
    wanted = [result for result in results if result.requires_grad]
    leaves = [leaf for leaf in arguments if leaf is not None and leaf.requires_grad]
    if not wanted or not leaves:
        return
    above = [torch.empty_like(result).requires_grad_() for result in wanted]
    first = torch.autograd.grad(wanted, leaves, above, create_graph=spec.double_backward)
    if spec.double_backward:
        seconds = [torch.empty_like(gradient) for gradient in first]
        torch.autograd.grad(first, [*leaves, *above], seconds, allow_unused=True)


def _arguments(spec: Spec, call: Call, is_trained: bool) -> Iterator[torch.Tensor | None]:
    shapes: dict[Kind, tuple[int, ...]] = {
        Kind.MATRIX: (BATCHES, PLACES, call.columns),
        Kind.PER_ROW: (BATCHES, PLACES),
        Kind.PER_COLUMN: (call.columns,),
        Kind.PER_BATCH: (BATCHES, call.columns),
        Kind.PER_PLACE: (PLACES, call.columns),
        Kind.SCALAR: (),
    }
    dtypes = {
        Element.FLOAT: getattr(torch, call.dtype),
        Element.INT: torch.int64,
        Element.BOOL: torch.bool,
    }
    for entry in spec.inputs:
        if entry.absent is not None and not call.optional:
            yield None
            continue
        shape = shapes[entry.kind]
        if entry.shares_columns:
            shape = (*shape[:-1], call.columns // 8 if call.columns % 8 == 0 else 1)
        tensor = torch.empty(shape, dtype=dtypes[entry.element])
        yield tensor.requires_grad_(is_trained and entry.grad)


def _numbers(kernel: JITFunction[Any], bound: Mapping[str, Any]) -> dict[str, int | bool]:
    constants = {p.name: bound[p.name] for p in kernel.params if p.is_constexpr}
    return {name: value for name, value in constants.items() if isinstance(value, int)}


def _digest(depends_on: Sequence[str], source: ASTSource, options: Mapping[str, Any]) -> str:
    """A short hash of all that the compiled code depends on, but for the version of Triton."""
    parts = [
        *depends_on,
        source.signature,
        {str(place): str(value) for place, value in source.constants.items()},
        # Some versions of Triton list the arguments without an attribute, too.
        {str(place): str(value) for place, value in source.attrs.items() if value},
        {name: str(value) for name, value in options.items()},
    ]
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]


def _code(kernel: JITFunction[Any]) -> str:
    """The code of a kernel and of all it calls or reads, without comments and docstrings."""
    texts: dict[str, str] = {}
    waiting = [kernel]
    while waiting:
        function = waiting.pop()
        (tree,) = function.parse().body
        if ast.get_docstring(tree) is not None:
            del tree.body[0]
        texts[function.__name__] = ast.unparse(tree)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Name):
                continue
            value = function.__globals__.get(node.id)
            if isinstance(value, JITFunction):
                if value.__name__ not in texts and value.__module__ == kernel.__module__:
                    waiting.append(value)
            elif isinstance(value, (int, float, triton.language.constexpr)):
                texts[node.id] = str(value)
    return json.dumps(texts, sort_keys=True)
