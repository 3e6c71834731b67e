"""Compiles every kernel that an op's wrapper launches, for GPUs that need not be there.

``python compile_op.py GENERATED_FOLDER SPEC TARGET [few]``, in a process without the interpreter.
The wrapper runs on CPU tensors; in place of each kernel stands a recorder that compiles what it was
called with. Prints one JSON object a kernel.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import triton
from kgen.load import load
from kgen.spec import Element, Kind, Spec
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
# Bytes of shared memory that one program may have.
SHARED = {"sm_80": 166912, "sm_90": 232448, "sm_100": 232448, "gfx942": 65536}
TYPES = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.int8: "i8",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bool: "i1",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.float8_e5m2: "fp8e5",
}
# A width that no vector fits, the main case, and rows too long for registers.
Case = tuple[torch.dtype, int, bool]
CASES: tuple[Case, ...] = (
    (torch.float32, 16384, True),
    (torch.float64, 8192, True),
    (torch.bfloat16, 257, True),
    (torch.bfloat16, 4096, True),
    (torch.bfloat16, 4096, False),
    (torch.bfloat16, 65536, True),
    (torch.float32, 4096, True),
    (torch.float64, 512, True),
)
# One of each schedule, and one in float64.
FEW = (CASES[3], CASES[5], CASES[7])


class Recorder:
    """Stands in for a kernel: compiles it for the target and reports how it turned out."""

    def __init__(self, kernel: triton.JITFunction[Any], target: str, context: dict[str, Any]):
        self.kernel = kernel
        self.target = target
        self.context = context
        self.done: set[str] = set()

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return self.compile

    def compile(self, *values: Any, num_warps: int = 4, **constants: Any) -> None:
        source, key = _source(self.kernel, values, constants)
        if f"{key} {num_warps}" in self.done:
            return
        self.done.add(f"{key} {num_warps}")
        options = {"num_warps": num_warps}
        compiled = triton.compile(source, target=TARGETS[self.target], options=options)
        loads = re.findall(r"ld\.global\S*\.v(\d)\.b(\d+)", compiled.asm.get("ptx", ""))
        report = {
            "kernel": self.kernel.__name__,
            "load_bytes": max((int(count) * int(bits) // 8 for count, bits in loads), default=0),
            "shared": compiled.metadata.shared,
            "shared_limit": SHARED[self.target],
        }
        print(json.dumps({**self.context, **report}), flush=True)


def _source(
    kernel: triton.JITFunction[Any], values: tuple[Any, ...], constants: dict[str, Any]
) -> tuple[ASTSource, str]:
    """The kernel specialised as a launch with these values would be."""
    signature: dict[str, str] = {}
    constexprs: dict[str, Any] = {}
    attributes: dict[tuple[int], list[list[Any]]] = {}
    given = dict(zip(kernel.arg_names, values, strict=False)) | constants
    for index, param in enumerate(kernel.params):
        value = given[param.name]
        if param.is_constexpr or value is None:
            signature[param.name], constexprs[param.name] = "constexpr", value
            continue
        if isinstance(value, torch.Tensor):
            signature[param.name] = f"*{TYPES[value.dtype]}"
        else:
            signature[param.name] = param.annotation_type or ("i64" if value >= 2**31 else "i32")
        aligned = isinstance(value, torch.Tensor) or (isinstance(value, int) and value % 16 == 0)
        if aligned and not param.do_not_specialize:
            attributes[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constexprs, attributes)
    return source, f"{signature} {constexprs} {attributes}"


def record(op: ModuleType, spec: Spec, target: str, cases: Sequence[Case]) -> None:
    """Run forward and all backwards of each case: dtype, N, whether optional inputs are given."""
    context: dict[str, Any] = {}
    for attribute, value in list(vars(op).items()):
        if isinstance(value, triton.JITFunction):
            setattr(op, attribute, Recorder(value, target, context))
    vars(op)["INTERPRETED"] = True
    vars(op)["FEW_TILES"] = 0
    vars(op)["_multiprocessors"] = lambda device: 132
    vars(op)["_shared_memory"] = lambda device: SHARED[target] - 32768
    for dtype, n_columns, with_optional in cases:
        if str(dtype).removeprefix("torch.") not in spec.dtypes:
            continue
        context.update(dtype=str(dtype), n_columns=n_columns, optional=with_optional)
        _run(op, spec, dtype, n_columns, with_optional)


def _run(op: ModuleType, spec: Spec, dtype: torch.dtype, n_columns: int, optional: bool) -> None:
    shapes: dict[Kind, tuple[int, ...]] = {
        Kind.MATRIX: (8, 4, n_columns),
        Kind.PER_ROW: (8, 4),
        Kind.PER_COLUMN: (n_columns,),
        Kind.PER_BATCH: (8, n_columns),
        Kind.PER_PLACE: (4, n_columns),
        Kind.SCALAR: (),
    }
    dtypes = {Element.FLOAT: dtype, Element.INT: torch.int64, Element.BOOL: torch.bool}
    is_trained = spec.backward != "none"
    arguments: list[torch.Tensor | None] = []
    for entry in spec.inputs:
        if entry.absent is not None and not optional:
            arguments.append(None)
            continue
        shape = shapes[entry.kind]
        if entry.shares_columns:
            shape = (*shape[:-1], n_columns // 8 if n_columns % 8 == 0 else 1)
        tensor = torch.zeros(shape, dtype=dtypes[entry.element])
        arguments.append(tensor.requires_grad_(is_trained and entry.grad))
    results = vars(op)[spec.op](*arguments)
    results = results if isinstance(results, tuple) else (results,)
    if is_trained:
        wanted = [result for result in results if result.requires_grad]
        leaves = [leaf for leaf in arguments if leaf is not None and leaf.requires_grad]
        above = [torch.zeros_like(result).requires_grad_() for result in wanted]
        first = torch.autograd.grad(wanted, leaves, above, create_graph=spec.double_backward)
        if spec.double_backward:
            seconds = [torch.zeros_like(gradient) for gradient in first]
            torch.autograd.grad(first, [*leaves, *above], seconds, allow_unused=True)


def main() -> None:
    folder, path, target, *few = sys.argv[1:]
    sys.path.insert(0, folder)
    spec = load(Path(path))
    record(importlib.import_module(f"{spec.op}.op"), spec, target, FEW if few else CASES)


if __name__ == "__main__":
    main()
