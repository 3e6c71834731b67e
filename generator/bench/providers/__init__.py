"""Implementations of ops to measure: kgen's own, PyTorch's, and those of other libraries.

A library takes a module of a few lines: a function without arguments that gives a ``Provider``,
whose table says which function is which op. Those in this folder are named in ``LIBRARIES``; any
other is given as ``--provider module:function``.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kgen.errors import KgenError, suggest

BUILT_IN = ("kgen", "pytorch", "textbook", "compile")
"""Made from the spec and its generated folder."""

LIBRARIES = {
    "liger": ("liger_kernel", "kgen.bench.providers.liger:liger"),
    "quack": ("quack", "kgen.bench.providers.quack:quack"),
}
"""By name, the package that must be installed and the function that gives the provider."""


@dataclass(frozen=True, slots=True)
class Provider:
    """One implementation of several ops.

    Attributes:
        name: what its column is called.
        version: that of the library.
        calls: by op, a function of the op's inputs in their order and its params by keyword. It
            returns the op's outputs, as one tensor or as a tuple; those that it does not have are
            None or left out at the end, and are not compared. The tensors are its own: it may
            overwrite them.
        dtypes: by op and input, the dtype in which it wants an input, if not that of the others.
    """

    name: str
    version: str
    calls: Mapping[str, Callable[..., Any]]
    dtypes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def available() -> tuple[str, ...]:
    """The names of the providers that are there: the built-in ones, and libraries installed."""
    libraries = (name for name, (package, _) in LIBRARIES.items() if is_installed(package))
    return (*BUILT_IN, *libraries)


def is_installed(package: str) -> bool:
    """Whether a package can be imported, without importing it."""
    return importlib.util.find_spec(package) is not None


def require_names(names: Iterable[str]) -> tuple[str, ...]:
    """The names, each once; raises ``KgenError`` for one that is not known or not installed."""
    known = (*BUILT_IN, *LIBRARIES)
    for name in names:
        if name in LIBRARIES and not is_installed(LIBRARIES[name][0]):
            raise KgenError(
                f"--provider is '{name}', and the package {LIBRARIES[name][0]} is not installed"
            )
        if name not in known and ":" not in name:
            hint = suggest(name, known) or f"; it takes {', '.join(known)} or module:function"
            raise KgenError(f"--provider is '{name}', which is not known{hint}")
    return tuple(dict.fromkeys(names))


def provider_of(name: str) -> Provider:
    """Import the provider of a library; raises ``KgenError`` if it cannot be had."""
    module, _, function = LIBRARIES.get(name, ("", name))[1].partition(":")
    try:
        provider = getattr(importlib.import_module(module), function)()
    except Exception as error:  # a library may fail in any way
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise KgenError(f"--provider '{name}' cannot be imported: {reason}") from error
    if not isinstance(provider, Provider):
        kind = type(provider).__name__
        raise KgenError(
            f"--provider '{name}' gives a {kind}; it takes a {Provider.__module__}.Provider"
        )
    return provider


def version_of(distribution: str) -> str:
    """The version of an installed distribution, or ``unknown``."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
