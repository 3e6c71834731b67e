"""Runs generated ops forward and backward where neither kgen nor what it needs can be imported.

    TRITON_INTERPRET=1 python run_alone.py FOLDER DESCRIPTION...

A description is ``op backward|none input:kind:element:shared|own ...``, where an element is
``float``, ``fixed`` for a float without a gradient, ``int`` or ``bool``; see ``test_new_op.py``.
"""

from __future__ import annotations

import importlib
import sys

import torch

for name in ("kgen", "jinja2", "black", "click", "ruamel", "ruamel.yaml", "pytest"):
    sys.modules[name] = None  # type: ignore[assignment]


SHAPES = {
    "matrix": (3, 37),
    "per_row": (3,),
    "per_column": (37,),
    "per_batch": (37,),
    "per_place": (3, 37),
    "scalar": (),
}


def tensor(kind: str, element: str, columns: str) -> torch.Tensor:
    """A random argument beside a matrix of 3 rows of 37 columns, which may share its entry."""
    shape = (*SHAPES[kind][:-1], 1) if columns == "shared" else SHAPES[kind]
    if element in ("float", "fixed"):
        return torch.randn(shape).requires_grad_(element == "float")
    return torch.randint(0, 2, shape).to(torch.bool if element == "bool" else torch.int64)


def run(op: str, inputs: list[str], has_backward: bool) -> None:
    """One forward, and one backward if there is one."""
    function = getattr(importlib.import_module(op), op)
    tensors = [tensor(*entry.split(":")[1:]) for entry in inputs]
    if not has_backward:
        with torch.no_grad():
            function(*tensors)
        return
    outputs = function(*tensors)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    wanted = [out for out in outputs if out.requires_grad]
    leaves = [leaf for leaf in tensors if leaf.requires_grad]
    gradients = torch.autograd.grad(wanted, leaves, [torch.randn_like(out) for out in wanted])
    assert all(gradient.isfinite().all() for gradient in gradients), op


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    for description in sys.argv[2:]:
        name, backward, *rest = description.split()
        run(name, rest, backward == "backward")
        print(name, "ran")
