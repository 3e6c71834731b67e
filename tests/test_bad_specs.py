"""Every file in bad_specs/ is refused with exactly the text beside it.

After a change of messages: KGEN_UPDATE_GOLDENS=1 pytest tests/test_bad_specs.py, and read the diff.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kgen.errors import KgenError
from kgen.load import load
from kgen.lower import lower
from kgen.tiles import planned

ROOT = Path(__file__).parent.parent
FOLDER = Path("tests/bad_specs")
NAMES = sorted(path.stem for path in (ROOT / FOLDER).glob("*.yaml"))


def problems_of(path: Path) -> str:
    """What a user is told about a spec, or nothing when it is good."""
    try:
        planned(lower(load(path)))
    except KgenError as error:
        return f"{error}\n"
    return ""


def test_there_are_many() -> None:
    assert len(NAMES) >= 50


def test_nothing_is_left_over() -> None:
    goldens = {path.stem for path in (ROOT / FOLDER).glob("*.txt")}
    if os.environ.get("KGEN_UPDATE_GOLDENS"):
        pytest.skip("the goldens are being written")
    assert goldens == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_bad_spec(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found = problems_of(FOLDER / f"{name}.yaml")
    golden = FOLDER / f"{name}.txt"
    if os.environ.get("KGEN_UPDATE_GOLDENS"):
        golden.write_text(found, encoding="utf-8", newline="\n")
    assert found, "this spec is good"
    assert found == golden.read_text(encoding="utf-8")
