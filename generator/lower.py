"""Spec -> IR: every name gets a kind and an element type, and backward learns what is saved."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from kgen.constants import evaluate
from kgen.errors import KgenError, Problem, Problems, Span
from kgen.expr import OPERATORS, Apply, Assignment, Expr, Name, Number
from kgen.ir import (
    BUILTINS,
    REDUCTIONS,
    Define,
    Literal,
    Op,
    Program,
    Ref,
    Result,
    Role,
    Term,
    Type,
    Variable,
    is_reduction,
    join_kinds,
    names_in,
    needed,
    verify,
    walk,
)
from kgen.rewrite import hoist
from kgen.spec import Element, Input, Kind, Output, Spec, has_gradient

_FLOAT_FUNCTIONS = (
    "exp",
    "log",
    "log1p",
    "sqrt",
    "rsqrt",
    "tanh",
    "sigmoid",
    "silu",
    "erf",
    "sign",
    "pow",
)
_COMPARISONS = ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")
_LOGIC = ("and", "or", "not")
_CONSTANTS = {"inf": float("inf"), "pi": 3.141592653589793}


@dataclass(frozen=True, slots=True)
class RowOp:
    """A spec with its programs. ``saved`` are the row values that forward keeps for backward."""

    spec: Spec
    forward: Program
    backward: Program | None
    saved: tuple[str, ...]

    def output_kind(self, output: Output) -> Kind:
        """Whether an output is a matrix or one value a row."""
        return next(r.kind for r in self.forward.results if r.name == output.name)


def lower(spec: Spec) -> RowOp:
    """Check kinds and element types and build both programs; raises ``KgenError``."""
    problems = Problems()
    _check_optional(spec, problems)
    variables = _input_variables(spec)
    scope = _Scope(spec, problems, {v.name: v.type for v in variables})
    forward_defines = tuple(scope.define(a) for a in spec.forward)
    outputs = tuple(_output_result(spec, output, scope, problems) for output in spec.outputs)
    backward_defines: tuple[Define, ...] = ()
    upstream = _upstream_variables(spec, scope)
    if isinstance(spec.backward, tuple):
        scope.types.update({v.name: v.type for v in upstream})
        backward_defines = tuple(scope.define(a) for a in spec.backward)
        sound = tuple(d for d in backward_defines if d.name not in scope.broken)
        for input_ in differentiable_inputs(spec):
            _check_gradient(input_, sound, problems)
    elif spec.backward == "derive":
        problems.add(
            "backward: derive is not there yet; write the formulas, or none for an op "
            "without gradients",
            spec.backward_at,
        )
    problems.raise_if_any()

    forward = verify(Program(variables, forward_defines, outputs))
    if not isinstance(spec.backward, tuple):
        return RowOp(spec, needed(forward), None, ())
    return _with_backward(spec, forward, upstream, backward_defines)


def differentiable_inputs(spec: Spec) -> tuple[Input, ...]:
    """The inputs that get a gradient."""
    return tuple(i for i in spec.inputs if i.grad and i.element is Element.FLOAT)


def differentiable_outputs(spec: Spec) -> tuple[Output, ...]:
    """The outputs that a gradient comes back for."""
    return tuple(o for o in spec.outputs if has_gradient(o, spec.inputs))


def _input_variables(spec: Spec) -> tuple[Variable, ...]:
    inputs = [Variable(i.name, Type(i.kind, i.element), Role.INPUT, i.absent) for i in spec.inputs]
    params = [Variable(p.name, Type(Kind.SCALAR, p.element), Role.PARAM) for p in spec.params]
    return (*inputs, *params)


def _upstream_variables(spec: Spec, scope: _Scope) -> tuple[Variable, ...]:
    outputs = differentiable_outputs(spec)
    absent = 0.0 if len(outputs) > 1 else None
    types = [scope.types.get(o.name) for o in outputs]
    return tuple(
        Variable(
            f"d{o.name}", Type(t.kind if t else Kind.MATRIX, Element.FLOAT), Role.UPSTREAM, absent
        )
        for o, t in zip(outputs, types, strict=True)
    )


def _check_optional(spec: Spec, problems: Problems) -> None:
    """Optional inputs come last, as in Python, and nothing may hang on their dtype."""
    optional: list[str] = []
    for input_ in spec.inputs:
        if input_.absent is not None:
            optional.append(input_.name)
        elif optional:
            problems.add(
                f"the input '{input_.name}' must be given, and comes after the optional "
                f"'{optional[-1]}'; move it up: optional arguments come last",
                input_.at,
            )
    for output in spec.outputs:
        if output.dtype in optional:
            problems.add(
                f"the output '{output.name}' takes the dtype of the optional input "
                f"'{output.dtype}', which may be absent; name another input or a dtype",
                output.at,
            )


def _output_result(spec: Spec, output: Output, scope: _Scope, problems: Problems) -> Result:
    type_ = scope.types.get(output.name)
    at = next((a.at for a in spec.forward if a.name == output.name), output.at)
    if type_ is None:
        return Result(output.name, Kind.MATRIX, Role.OUTPUT)
    if type_.kind in (Kind.PER_COLUMN, Kind.SCALAR):
        problems.add(
            f"the output '{output.name}' is {type_.kind.value}; an output is matrix or per_row: "
            "its formula must use a matrix or a per_row value",
            at,
        )
    if type_.element is Element.BOOL:
        problems.add(
            f"the output '{output.name}' is bool; outputs are numbers: "
            f"{output.name} = where(condition, 1, 0)",
            at,
        )
    return Result(output.name, type_.kind, Role.OUTPUT)


def _check_gradient(input_: Input, defines: tuple[Define, ...], problems: Problems) -> None:
    name = f"d{input_.name}"
    define = next((d for d in defines if d.name == name), None)
    if define is None:
        return
    is_column_sum = isinstance(define.term, Op) and define.term.op == "sum_rows"
    kind = define.type.kind
    if define.type.element is Element.BOOL:
        problems.add(
            f"'{name}' is bool; gradients are numbers: {name} = where(condition, 1, 0)",
            define.at,
        )
    if input_.kind is Kind.PER_COLUMN and not is_column_sum:
        problems.add(
            f"'{name}' is {kind.value}; the gradient of the per_column input '{input_.name}' "
            f"is a sum over rows: {name} = sum_rows(...)",
            define.at,
        )
    elif input_.kind is Kind.PER_ROW and (kind not in (Kind.PER_ROW, Kind.SCALAR)):
        problems.add(
            f"'{name}' is {kind.value}; the gradient of the per_row input '{input_.name}' "
            "is per_row: sum(...) takes a matrix to one value a row",
            define.at,
        )
    elif input_.kind is Kind.MATRIX and is_column_sum:
        problems.add(
            f"'{name}' is per_column; '{input_.name}' is a matrix, and so is its gradient",
            define.at,
        )


def _with_backward(
    spec: Spec, forward: Program, upstream: tuple[Variable, ...], defines: tuple[Define, ...]
) -> RowOp:
    """Decide what backward recomputes, reuses and has saved."""
    reused = _reused_outputs(spec, forward)
    recomputed = _recomputed(forward, defines, reused)
    forward = hoist(forward, only=recomputed, avoid=[d.name for d in defines])
    reduced = _reduced_names(forward)
    used = {name for d in defines for name in names_in(d.term)}
    again: list[Define] = []
    for definition in reversed(forward.definitions):
        if definition.name in used and definition.name in recomputed:
            again.append(definition)
            used.update(names_in(definition.term))
    saved = tuple(
        d.name for d in forward.definitions if d.name in (used & reduced) and d.name not in reused
    )
    variables = (
        *(v for v in forward.variables),
        *(Variable(name, _type_of(forward, name), Role.SAVED) for name in saved),
        *(
            Variable(o.name, Type(_type_of(forward, o.name).kind, Element.FLOAT), Role.OUTPUT)
            for o in spec.outputs
            if o.name in used & reused
        ),
        *upstream,
    )
    gradients = tuple(
        Result(f"d{i.name}", i.kind, Role.GRADIENT) for i in differentiable_inputs(spec)
    )
    backward = needed(verify(Program(variables, (*reversed(again), *defines), gradients)))
    kept = tuple(name for name in saved if backward.variable(name))
    outputs = {o.name for o in spec.outputs}
    extra = tuple(
        Result(name, Kind.PER_ROW, Role.SAVED, f"saved_{name}" if name in outputs else name)
        for name in kept
    )
    forward = needed(Program(forward.variables, forward.definitions, (*forward.results, *extra)))
    return RowOp(spec, verify(forward), verify(backward), kept)


def _reused_outputs(spec: Spec, forward: Program) -> set[str]:
    """The outputs that backward may read: matrices, and row values that no dtype has rounded."""
    rounds = "float64" in spec.dtypes
    floats = differentiable_outputs(spec)
    return {
        output.name
        for output, result in zip(spec.outputs, forward.results, strict=True)
        if (result.kind is Kind.MATRIX or (output.dtype == "float32" and not rounds))
        and output in floats
        and _type_of(forward, output.name).element is Element.FLOAT
    }


def _type_of(program: Program, name: str) -> Type:
    definition = program.definition(name)
    assert definition is not None
    return definition.type


def _reduced_names(program: Program) -> set[str]:
    """The per_row numbers that take a walk over the row to compute."""
    deep: dict[str, Element] = {}
    for definition in program.definitions:
        reduces = any(is_reduction(t) for t in walk(definition.term))
        if definition.type.kind is Kind.PER_ROW and (
            reduces or any(n in deep for n in names_in(definition.term))
        ):
            deep[definition.name] = definition.type.element
    return {name for name, element in deep.items() if element is Element.FLOAT}


def _recomputed(forward: Program, defines: Iterable[Define], reused: set[str]) -> set[str]:
    """The forward names that backward works out again: all but statistics and outputs."""
    reduced = _reduced_names(forward)
    wanted = {name for d in defines for name in names_in(d.term)}
    again: set[str] = set()
    for definition in reversed(forward.definitions):
        name = definition.name
        if name in wanted and name not in reused and name not in reduced:
            again.add(name)
            wanted.update(names_in(definition.term))
    return again


class _Scope:
    """Types of the names known so far, and the rules of every function."""

    def __init__(self, spec: Spec, problems: Problems, types: dict[str, Type]) -> None:
        self.spec = spec
        self.problems = problems
        self.types = {**BUILTINS, **types}
        self.column_sums: set[str] = set()
        self.broken: set[str] = set()

    def define(self, assignment: Assignment) -> Define:
        """Lower one formula; after a problem the name counts as a matrix, to find further ones."""
        try:
            term = self._term(assignment.value)
        except KgenError as error:
            for problem in error.problems:
                self.problems.add(problem.message, problem.at)
            term = Literal(0.0, Type(Kind.MATRIX, Element.FLOAT), assignment.at)
            self.types.setdefault(assignment.name, term.type)
            self.broken.add(assignment.name)
            return Define(assignment.name, term, assignment.text, assignment.at)
        if inner := _inner_column_sum(term):
            self.problems.add(
                "sum_rows must be the whole right side of an assignment: move the factor inside, "
                "sum_rows(2 * a) for 2 * sum_rows(a)",
                inner.at,
            )
            self.broken.add(assignment.name)
        if isinstance(term, Op) and term.op == "sum_rows":
            self.column_sums.add(assignment.name)
        self.types[assignment.name] = term.type
        return Define(assignment.name, term, assignment.text, assignment.at)

    def _term(self, expr: Expr) -> Term:
        if isinstance(expr, Number):
            element = Element.INT if isinstance(expr.value, int) else Element.FLOAT
            return Literal(expr.value, Type(Kind.SCALAR, element), expr.at)
        if isinstance(expr, Name):
            return self._name(expr)
        if expr.function == "cast":
            return self._cast(expr)
        arguments = tuple(self._term(argument) for argument in expr.arguments)
        return self._apply(expr.function, arguments, expr.at)

    def _name(self, name: Name) -> Term:
        if name.text in _CONSTANTS:
            return Literal(_CONSTANTS[name.text], Type(Kind.SCALAR, Element.FLOAT), name.at)
        if name.text not in self.types:
            raise _error(f"unknown name '{name.text}'", name.at)
        if name.text in self.column_sums:
            raise _error(
                f"'{name.text}' is a sum over all rows, complete only after the last of them: "
                "no other formula can use it",
                name.at,
            )
        return Ref(name.text, self.types[name.text], name.at)

    def _cast(self, expr: Apply) -> Term:
        value = _to_float(self._number(self._term(expr.arguments[0]), "cast"))
        like = expr.arguments[1]
        assert isinstance(like, Name)
        if any(i.name == like.text and i.absent is not None for i in self.spec.inputs):
            raise _error(
                f"cast takes the dtype of '{like.text}', which is optional and may be absent; "
                "name another input or a dtype",
                like.at,
            )
        return Op("cast", (value,), Type(value.type.kind, Element.FLOAT), expr.at, like.text)

    def _apply(self, function: str, arguments: tuple[Term, ...], at: Span) -> Term:
        if function in REDUCTIONS or function == "sum_rows":
            return self._reduce(function, arguments[0], at)
        if folded := _folded(function, arguments, at):
            return folded
        kind = join_kinds([argument.type.kind for argument in arguments])
        if function in _LOGIC:
            for argument in arguments:
                self._bool(argument, f"'{function}'")
            return Op(function, arguments, Type(kind, Element.BOOL), at)
        if function == "where":
            return self._where(arguments, kind, at)
        numbers = tuple(self._number(argument, function) for argument in arguments)
        if function in _COMPARISONS:
            return Op(function, numbers, Type(kind, Element.BOOL), at)
        if function in _FLOAT_FUNCTIONS:
            return Op(function, tuple(map(_to_float, numbers)), Type(kind, Element.FLOAT), at)
        all_int = all(number.type.element is Element.INT for number in numbers)
        if function == "div" and all_int:
            numbers = (_to_float(numbers[0]), numbers[1])
            all_int = False
        elif not all_int:
            numbers = _joined(numbers)
        if function in ("floor", "round") and all_int:
            return numbers[0]
        element = Element.INT if all_int else Element.FLOAT
        return Op(function, numbers, Type(kind, element), at)

    def _reduce(self, function: str, argument: Term, at: Span) -> Term:
        value = _to_float(self._number(argument, function))
        if value.type.kind is not Kind.MATRIX:
            raise _error(
                f"'{function}' takes a matrix, and {_called(argument)} is {value.type.kind.value}, "
                f"{_SPREAD[value.type.kind]}: reduce what is made from a matrix",
                argument.at,
            )
        kind = Kind.PER_COLUMN if function == "sum_rows" else Kind.PER_ROW
        return Op(function, (value,), Type(kind, Element.FLOAT), at)

    def _where(self, arguments: tuple[Term, ...], kind: Kind, at: Span) -> Term:
        condition, yes, no = arguments
        self._bool(condition, "the condition of 'where'")
        elements = {yes.type.element, no.type.element}
        if Element.BOOL in elements and len(elements) == 2:
            wrong = yes if yes.type.element is Element.BOOL else no
            raise _error(
                f"'where' chooses between numbers or between bools, and {_called(wrong)} is bool "
                "beside a number: where(condition, 1, 0) makes a number of it",
                wrong.at,
            )
        element = elements.pop() if len(elements) == 1 else Element.FLOAT
        if element is Element.FLOAT:
            yes, no = (t if isinstance(t, Literal) else _to_float(t) for t in (yes, no))
        return Op("where", (condition, yes, no), Type(kind, element), at)

    def _bool(self, term: Term, what: str) -> None:
        if term.type.element is not Element.BOOL:
            raise _error(
                f"{what} takes a bool, and {_called(term)} is {term.type.element.value}: "
                "compare it, as in a > 0",
                term.at,
            )

    def _number(self, term: Term, function: str) -> Term:
        if term.type.element is Element.BOOL:
            raise _error(
                f"'{OPERATORS.get(function, function)}' takes numbers, and {_called(term)} is "
                "bool: where(condition, 1, 0) makes a number of it",
                term.at,
            )
        return term


_SPREAD = {
    Kind.PER_ROW: "one value a row",
    Kind.PER_COLUMN: "one value a column",
    Kind.SCALAR: "one value",
}


def _to_float(term: Term) -> Term:
    if term.type.element is Element.FLOAT:
        return term
    if isinstance(term, Literal):
        return Literal(float(term.value), Type(Kind.SCALAR, Element.FLOAT), term.at)
    return Op("float", (term,), Type(term.type.kind, Element.FLOAT), term.at)


def _joined(numbers: tuple[Term, ...]) -> tuple[Term, ...]:
    """Whole numbers as floats where the only floats beside them are constants.

    A constant joins the type of what it meets, and no other operand brings that of the arithmetic.
    """
    if any(n.type.element is Element.FLOAT and not _is_constant(n) for n in numbers):
        return numbers
    return tuple(n if isinstance(n, Literal) else _to_float(n) for n in numbers)


def _is_constant(term: Term) -> bool:
    """Whether a term is made of numbers and conditions alone."""
    refs = (t for t in walk(term) if isinstance(t, Ref))
    return all(ref.type.element is Element.BOOL for ref in refs)


def _folded(function: str, arguments: tuple[Term, ...], at: Span) -> Literal | None:
    """The number that an operation on numbers alone comes to."""
    values = [argument.value for argument in arguments if isinstance(argument, Literal)]
    if len(values) < len(arguments) or function in (*_COMPARISONS, *_LOGIC, "where"):
        return None
    value = evaluate(function, values)
    if value is None:
        return None
    if math.isnan(value) or (math.isinf(value) and not any(map(math.isinf, values))):
        raise _error("this constant has no finite value; infinity is written inf", at)
    if isinstance(value, int) and abs(value) >= 2**63:
        raise _error(
            "this whole number does not fit in 64 bits: make one operand a float, as in 2.0", at
        )
    element = Element.INT if isinstance(value, int) else Element.FLOAT
    return Literal(value, Type(Kind.SCALAR, element), at)


def _inner_column_sum(term: Term) -> Term | None:
    inside = (t for t in walk(term) if t is not term)
    return next((t for t in inside if isinstance(t, Op) and t.op == "sum_rows"), None)


def _called(term: Term) -> str:
    return f"'{term.name}'" if isinstance(term, Ref) else "this"


def _error(message: str, at: Span) -> KgenError:
    return KgenError(Problem(message, at))
