"""A spec -> the view of the ``torch.nn.Module`` around its op."""

from __future__ import annotations

from dataclasses import dataclass

from kgen.spec import Input, Spec
from kgen.view_words import annotated, annotated_param, join, lines


@dataclass(frozen=True, slots=True)
class ModuleView:
    """The ``torch.nn.Module`` around an op."""

    name: str
    holds: str
    parameters: str
    body: str
    inputs: str
    arguments: str
    representation: str


def module_view(spec: Spec) -> ModuleView | None:
    """The module, which holds the per_column inputs; None when the spec names none."""
    if not spec.module:
        return None
    held = [i for i in spec.inputs if i.is_parameter]
    rest = [i for i in spec.inputs if i not in held]
    optional = [i for i in held if i.absent is not None]
    params = [f"{annotated_param(p)}," for p in spec.params]
    body = [f"self.{p.name} = {p.name}" for p in spec.params]
    body += [_parameter(input_) for input_ in held]
    arguments = [i.name if i in rest else f"self.{i.name}" for i in spec.inputs]
    arguments += [f"{p.name}=self.{p.name}" for p in spec.params]
    shown = ["{self.columns}", *(f"{p.name}={{self.{p.name}}}" for p in spec.params)]
    shown += [f"{i.name}={{self.{i.name} is not None}}" for i in optional]
    return ModuleView(
        name=spec.module,
        holds=" and ".join(f"``{i.name}``" for i in held) or "its parameters",
        parameters=lines([*params, *(f"{i.name}: bool = True," for i in optional)]),
        body=lines(body),
        inputs=join(annotated(i, default=True) for i in rest),
        arguments=join(arguments),
        representation=_text_of(shown),
    )


def _text_of(parts: list[str]) -> str:
    """The parts of a text as one f-string, or one a line where they are many."""
    whole = f'f"{", ".join(parts)}"'
    if len(whole) <= 80:
        return whole
    return lines(f'f"{part}{"" if part is parts[-1] else ", "}"' for part in parts)


def _parameter(input_: Input) -> str:
    name = input_.name
    start = input_.absent if input_.start is None else input_.start
    full = f"torch.full((columns,), {start!r}, device=device, dtype=dtype)"
    parameter = f"torch.nn.Parameter({full})"
    if input_.absent is None:
        return f"self.{name} = {parameter}"
    return f"self.{name} = {parameter} if {name} else None"
