"""Where the data files of kgen lie: in an installed package, or in a checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def templates() -> Path:
    """The folder of the Jinja templates."""
    return _data_folder("templates")


def shipped_specs() -> Path:
    """The folder of the specs that come with kgen."""
    return _data_folder("specs")


def _data_folder(name: str) -> Path:
    """A wheel puts data inside the package; in a checkout it is the package's neighbour."""
    installed = _PACKAGE / name
    return installed if installed.is_dir() else _PACKAGE.parent / name
