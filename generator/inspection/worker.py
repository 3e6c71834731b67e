"""The process that runs wrappers and compiles: Triton's compiler instead of its interpreter.

Run as ``python -m kgen.inspection.worker DESCRIPTOR``. Each line of the standard input is a request
as JSON, and the answer goes out as a line to the file descriptor. Nothing here runs in the command
itself, which imports neither PyTorch nor Triton.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kgen.inspection.calls import Call
from kgen.inspection.targets import TARGETS


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Make the calls of a request and compile the launches that it names.

    The request holds a spec's path, the folder of generated code, a target, calls, the digests of
    the launches to compile, and a form of code to return or ''. The answer holds all launches, each
    with the place of its call, and what each digest takes, or why it does not compile.
    """
    import triton
    from kgen.inspection.compiled import code_of, resources_of
    from kgen.inspection.launches import launches_of
    from kgen.load import load

    target = TARGETS[request["target"]]
    calls = [
        Call(**{**call, "flags": tuple(map(tuple, call["flags"]))}) for call in request["calls"]
    ]
    made = launches_of(Path(request["folder"]), load(Path(request["spec"])), target, calls)
    launches = [(place, launch) for place, (_, found) in enumerate(made) for launch in found]
    wanted = {launch.digest: launch for _, launch in launches}
    resources: dict[str, Any] = {}
    codes: dict[str, str] = {}
    for digest in request["compile"]:
        try:
            resources[digest] = asdict(resources_of(wanted[digest], target))
            if request["form"]:
                codes[digest] = code_of(wanted[digest], target, request["form"])
        except Exception as error:  # whatever the compiler raises
            resources[digest] = {"error": _words(error)}
    return {
        "launches": [
            {
                "call": place,
                "kernel": launch.kernel,
                "constants": launch.constants,
                "options": launch.options,
                "warps": launch.warps,
                "digest": launch.digest,
            }
            for place, launch in launches
        ],
        "resources": resources,
        "codes": codes,
        "triton": triton.__version__,
    }


def _words(error: Exception) -> str:
    """The last line of what the error says: the compiler puts the code above it."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1].strip() if lines else ''}"


def main() -> None:
    """Read requests and answer them; the standard output is not used."""
    for line in sys.stdin:
        try:
            told = answer(json.loads(line))
        except Exception as error:  # of the generated code, which need not fit its spec
            told = {"error": _words(error)}
        with os.fdopen(os.dup(int(sys.argv[1])), "w", encoding="utf-8") as out:
            out.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
