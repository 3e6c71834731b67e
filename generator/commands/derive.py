"""``kgen derive``: the backward that reverse mode works out, as formulas of a spec or as LaTeX."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from kgen.commands.common import load_all, printable, relative, table
from kgen.errors import KgenError, Problem

if TYPE_CHECKING:
    from kgen.expr import Assignment
    from kgen.ir import Define
    from kgen.lower import RowOp
    from kgen.spec import Spec

WIDTH = 96


@click.command()
@click.argument("spec", type=click.Path(path_type=Path))
@click.option("--latex", is_flag=True, help="Print forward and backward as LaTeX.")
@click.option("--double", is_flag=True, help="Add the formulas of the double backward.")
def derive(spec: Path, latex: bool, double: bool) -> None:
    """Print the backward that kgen derives from SPEC's forward.

    The block can be pasted into the spec in place of `backward: derive`, or beside formulas
    written by hand; those are counted against the derived ones. Writes nothing.

    \b
    Examples:
      kgen derive specs/layernorm.yaml
      kgen derive specs/layernorm.yaml --latex
      kgen derive specs/layernorm.yaml --double
    """
    (loaded,) = load_all([relative(spec)])
    from kgen.explain import written
    from kgen.lower import lower

    if loaded.backward == "none":
        message = (
            f"{loaded.op} has no gradients, since it says 'backward: none'; "
            "write 'backward: derive' to have them derived"
        )
        raise KgenError(Problem(message, loaded.backward_at))
    wanted = replace(loaded, backward="derive", double_backward=double)
    derived = {name: _formulas(definitions) for name, definitions in written(wanted).items()}
    if latex:
        click.echo(printable(_latex(loaded, derived)))
        return
    lines = [f"# What kgen derives from the forward of {loaded.path}."]
    if isinstance(loaded.backward, tuple):
        by_hand, by_kgen = loaded, replace(loaded, backward="derive")
        pair = [lower(replace(each, double_backward=False)) for each in (by_hand, by_kgen)]
        lines += _comparison(*pair)
    lines += ["backward: |", *_block(derived["backward"])]
    if double:
        lines += ["# The double backward, which `double_backward: true` asks for:"]
        lines += [f"# {line}" for line in _block(derived["double_backward"])]
    for line in lines:
        click.echo(printable(line))


def _formulas(definitions: Iterable[Define]) -> tuple[Assignment, ...]:
    """What reverse mode wrote."""
    from kgen.expr import parse_formulas

    return tuple(f for d in definitions for f in parse_formulas(d.text or "", d.at))


def _block(formulas: Iterable[Assignment]) -> Iterator[str]:
    from kgen.formulas import lines

    for formula in formulas:
        yield from (f"  {line}" for line in lines(formula.name, formula.value, WIDTH))


def _comparison(hand: RowOp, derived: RowOp) -> Iterator[str]:
    """The counts of both backwards, as comment lines."""
    from kgen.cost import backward_cost

    costs = [backward_cost(hand), backward_cost(derived)]
    rows = [("", "by hand", "derived")]
    for words, field in (
        ("passes over a long row", "passes"),
        ("reductions", "reductions"),
        ("operations an element", "element_ops"),
        ("operations a row", "row_ops"),
        ("matrices read", "matrices_read"),
        ("row values saved", ""),
    ):
        saved = [str(len(row_op.saved)) for row_op in (hand, derived)]
        first, second = [str(getattr(cost, field)) for cost in costs] if field else saved
        rows.append((words, first, second))
    yield from (f"# {line}" for line in table(rows))


def _latex(spec: Spec, formulas: Mapping[str, tuple[Assignment, ...]]) -> str:
    from kgen.latex import Block, document
    from kgen.spec import gradient_name, second_gradient_name

    blocks = [Block(name.replace("_", " "), found) for name, found in formulas.items()]
    names = [*(entry.name for entry in spec.inputs), *(output.name for output in spec.outputs)]
    names += [formula.name for block in blocks for formula in block.formulas]
    names += [gradient_name(name) for name in names]
    second = [second_gradient_name(entry.name) for entry in spec.inputs]
    return document(blocks, [*map(gradient_name, names), *second])
