"""What a run found, as rows of a table, as JSON and as a page of Markdown."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kgen.mutate.mutants import Mutant
from kgen.mutate.session import Verdict

HEADER = ("kind", "place", "change", "verdict", "test")
WIDTH = 40


@dataclass(frozen=True, slots=True)
class Proof:
    """The verdicts on the mutants of one op. ``tests`` are the tests that the op has."""

    op: str
    spec: str
    tests: int
    verdicts: tuple[Verdict, ...]

    @property
    def survivors(self) -> list[Verdict]:
        """The mutants that every test let through."""
        return [verdict for verdict in self.verdicts if verdict.survived]

    @property
    def summary(self) -> str:
        """``rmsnorm: 271 of 271 mutants killed, 1 of them by the time limit``."""
        total, outcomes = len(self.verdicts), Counter(v.outcome for v in self.verdicts)
        mutants = "mutant" if total == 1 else "mutants"
        text = f"{self.op}: {total - outcomes['survived']} of {total} {mutants} killed"
        ways = {"timed out": "by the time limit", "crashed": "by a crash"}
        told = [f"{outcomes[word]} of them {way}" for word, way in ways.items() if outcomes[word]]
        return ", ".join([text, *told])


def rows(proof: Proof) -> Iterator[tuple[str, ...]]:
    """A row for each mutant, as ``HEADER`` says."""
    for verdict in proof.verdicts:
        mutant = verdict.mutant
        test = verdict.test or verdict.why
        yield mutant.kind.name, mutant.place, shortened(mutant), verdict.outcome, test


def shortened(mutant: Mutant, width: int = WIDTH) -> str:
    """The change in few words: what both sides share is left out where it is long."""
    before, after = mutant.before, mutant.after
    if max(len(before), len(after)) <= width:
        return mutant.change
    start = _shared(before, after)
    end = _shared(before[start:][::-1], after[start:][::-1])
    # Cut between words, and keep the first, which say what is called or assigned.
    start = before.rfind(" ", 0, start) + 1
    first = before.find(" ", before.find(" = ") + 3 if " = " in before else 0) + 1
    lead = before[:start] if start <= first + 4 else f"{before[:first]}... "
    stop = before.find(" ", len(before) - end)
    end, tail = (len(before) - stop, " ...") if 0 <= stop < len(before) - 4 else (0, "")
    sides = (f"{lead}{text[start : len(text) - end]}{tail}" for text in (before, after))
    return " -> ".join(side if len(side) <= 2 * width else side[:77] + "..." for side in sides)


def _shared(first: str, second: str) -> int:
    """How many characters two texts begin with in common."""
    pairs = enumerate(zip(first, second, strict=False))
    shortest = min(len(first), len(second))
    return next((i for i, (one, other) in pairs if one != other), shortest)


def as_json(proofs: Sequence[Proof]) -> str:
    """Everything, in full."""
    ops = [
        {
            "op": proof.op,
            "spec": proof.spec,
            "tests": proof.tests,
            "mutants": [
                {
                    "kind": verdict.mutant.kind.name,
                    "file": verdict.mutant.file,
                    "line": verdict.mutant.line,
                    "function": verdict.mutant.function,
                    "before": verdict.mutant.before,
                    "after": verdict.mutant.after,
                    "verdict": verdict.outcome,
                    "test": verdict.test,
                    "why": verdict.why,
                }
                for verdict in proof.verdicts
            ],
        }
        for proof in proofs
    ]
    return json.dumps({"ops": ops}, indent=2) + "\n"


def as_markdown(proofs: Sequence[Proof], command: str) -> str:
    """A page with a table for each op; the same for the same code, on any machine and day."""
    lines = [
        "# Mutants",
        "",
        "Faulty variants of the generated code, and the generated test that sees each.",
        "[mutation.md](mutation.md) says what the kinds mean. This page is written by",
        "",
        f"    {command}",
    ]
    for proof in proofs:
        lines += ["", f"## {proof.op}", "", f"{proof.summary}. The op has {proof.tests} tests.", ""]
        lines += ["| kind | place | change | verdict | test |", "|---|---|---|---|---|"]
        lines += [_line(verdict) for verdict in proof.verdicts]
    return "\n".join(lines) + "\n"


def _line(verdict: Verdict) -> str:
    kind, place, change = page_cells(verdict.mutant)
    test = verdict.test or verdict.why
    return f"| {kind} | {place} | {change} | {verdict.outcome} | {_code(test) if test else ''} |"


def page_cells(mutant: Mutant) -> tuple[str, str, str]:
    """What the page says of a mutant itself: kind, place and change.

    Without the line, which any change further up would move.
    """
    return mutant.kind.name, f"{mutant.file} {mutant.function}", _code(shortened(mutant))


def _code(text: str) -> str:
    return "`" + text.replace("|", "\\|").replace("`", "'") + "`"
