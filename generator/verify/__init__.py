"""Checks a spec's formulas against its reference, autograd and its cases: on the CPU, in float64.

``verify(spec)`` runs the reference, which is the user's code; nothing else in kgen does. What it
compares, and how a disagreement gets its line, is in docs/verify.md.
"""

from kgen.verify.compare import Row
from kgen.verify.proof import Report, verify

__all__ = ["Report", "Row", "verify"]
