"""An op as it is measured: its spec, and its generated folder."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from kgen.errors import KgenError
from kgen.lower import RowOp, lower
from kgen.spec import Spec


@dataclass(frozen=True, slots=True)
class Subject:
    """``function`` and ``reference`` are those of the generated folder."""

    row_op: RowOp
    function: Callable[..., Any]
    reference: Callable[..., Any]

    @property
    def spec(self) -> Spec:
        """What the op is."""
        return self.row_op.spec


def subject_of(spec: Spec, folder: Path) -> Subject:
    """Import ``folder/<op>``, wherever it lies; raises ``KgenError`` if it is not there."""
    module = _imported(spec, folder)
    return Subject(lower(spec), getattr(module, spec.op), getattr(module, f"{spec.op}_reference"))


def require_generated(spec: Spec, folder: Path) -> Path:
    """The file to import; raises ``KgenError`` if the op has not been built."""
    path = folder / spec.op / "__init__.py"
    if not path.is_file():
        raise KgenError(f"there is no '{path}' to measure; run `kgen build {spec.path}`")
    return path


def _imported(spec: Spec, folder: Path) -> ModuleType:
    path = require_generated(spec, folder)
    name = f"kgen_bench_{spec.op}"
    found = sys.modules.get(name)
    if found is not None and found.__file__ == str(path.resolve()):
        return found
    for stale in [each for each in sys.modules if each.startswith(f"{name}.")]:
        del sys.modules[stale]  # of another folder
    origin = importlib.util.spec_from_file_location(
        name, path.resolve(), submodule_search_locations=[str(path.parent.resolve())]
    )
    assert origin is not None and origin.loader is not None
    module = importlib.util.module_from_spec(origin)
    sys.modules[name] = module
    origin.loader.exec_module(module)
    return module
