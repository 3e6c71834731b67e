"""Spec -> IR: every name gets a kind and an element type, and formulas become terms."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kgen.constants import evaluate
from kgen.errors import KgenError, Problem, Problems, Span
from kgen.expr import OPERATORS, Apply, Assignment, Expr, Name, Number
from kgen.formulas import text
from kgen.ir import (
    BUILTINS,
    COMPARISONS,
    FLOAT_FUNCTIONS,
    LOGIC,
    REDUCTIONS,
    Define,
    Literal,
    Op,
    Program,
    Ref,
    Result,
    Role,
    Sharing,
    Term,
    Type,
    Variable,
    join_kinds,
    needed,
    verify,
    walk,
)
from kgen.rewrite import hoist
from kgen.saving import Formulas, with_backwards
from kgen.spec import (
    BATCHED_KINDS,
    Element,
    Input,
    Kind,
    Output,
    Spec,
    differentiable_inputs,
    differentiable_outputs,
    gradient_name,
    second_gradient_name,
)

_CONSTANTS = {"inf": float("inf"), "pi": 3.141592653589793}


@dataclass(frozen=True, slots=True)
class RowOp:
    """A spec with its programs. ``saved`` are the row values that forward keeps for backward.

    ``double_backward`` differentiates ``backward``: it is given what backward reads and a gradient
    ``dd<input>`` for each of the gradients it gives, and gives ``dd<output>`` and ``d2<input>``.
    """

    spec: Spec
    forward: Program
    backward: Program | None
    saved: tuple[str, ...]
    double_backward: Program | None = None

    def output_kind(self, output: Output) -> Kind:
        """Whether an output is a matrix or one value a row."""
        return next(r.kind for r in self.forward.results if r.name == output.name)


def lower(spec: Spec) -> RowOp:
    """Check kinds and element types and build all programs; raises ``KgenError``."""
    forward, backwards = formulas_of(spec)
    if not backwards:
        return RowOp(spec, needed(forward), None, ())
    programs = with_backwards(spec, forward, backwards)
    backward, *rest = programs.backwards
    return RowOp(spec, programs.forward, backward, programs.saved, rest[0] if rest else None)


def formulas_of(spec: Spec) -> tuple[Program, tuple[Formulas, ...]]:
    """Forward, and the formulas of each backward, before it is decided what is saved."""
    problems = Problems()
    _check_optional(spec, problems)
    _check_shared(spec, problems)
    variables = input_variables(spec)
    scope = _Scope(spec, problems, {v.name: v.type for v in variables})
    forward_defines = tuple(scope.define(a) for a in spec.forward)
    outputs = tuple(_output_result(spec, output, scope, problems) for output in spec.outputs)
    forward = Program(variables, forward_defines, outputs)
    if spec.backward == "none":
        problems.raise_if_any()
        return verify(forward), ()

    first = _backward(spec, forward, scope, problems)
    problems.raise_if_any()
    verify(forward)
    if not spec.double_backward:
        return forward, (first,)
    second = _double_backward(spec, forward, first, scope)
    problems.raise_if_any()
    return forward, (first, second)


def _backward(spec: Spec, forward: Program, scope: _Scope, problems: Problems) -> Formulas:
    """The formulas of the spec's backward, or those that reverse mode works out."""
    upstream = _upstream_variables(spec, scope)
    formulas = spec.backward
    if isinstance(formulas, str):
        problems.raise_if_any()
        from kgen import grad  # only where something is derived: its import takes a while

        formulas = grad.derive(spec, verify(forward), upstream)
    scope.types.update({v.name: v.type for v in upstream})
    definitions = tuple(scope.define(a) for a in formulas)
    sound = tuple(d for d in definitions if d.name not in scope.broken)
    inputs = differentiable_inputs(spec)
    for input_ in inputs:
        _check_gradient(input_, sound, problems)
    gradients = tuple(Result(gradient_name(i.name), i.gradient_kind, Role.GRADIENT) for i in inputs)
    return Formulas(upstream, tuple(_of_shared(spec, d) for d in definitions), gradients)


def _of_shared(spec: Spec, definition: Define) -> Define:
    """The gradient of an input that several rows or columns share tells whose it is."""
    term = definition.term
    shared = {gradient_name(i.name): i.name for i in spec.inputs if i.is_shared}
    if isinstance(term, Op) and term.op == "sum_rows" and definition.name in shared:
        term = Op(term.op, term.arguments, term.type, term.at, shared[definition.name])
    return Define(definition.name, term, definition.text, definition.at)


def _double_backward(spec: Spec, forward: Program, first: Formulas, scope: _Scope) -> Formulas:
    """The derivative of the first backward, whose own formulas it may use."""
    given = tuple(Variable(d.name, d.type, Role.SAVED) for d in forward.definitions)
    variables = (*forward.variables, *given, *first.upstream)
    backward = _worded(hoist(Program(variables, first.definitions, first.results)))
    absent = 0.0 if len(first.results) > 1 else None
    upstream = tuple(
        Variable(gradient_name(r.name), Type(r.kind, Element.FLOAT), Role.UPSTREAM, absent)
        for r in first.results
    )
    from kgen import grad

    formulas = grad.derive_double(spec, forward, backward, upstream)
    if not formulas:
        raise _error(
            "double_backward: the gradients depend on nothing that takes a gradient: remove the "
            "key",
            spec.backward_at,
        )
    scope.types.update({d.name: d.type for d in backward.definitions})
    scope.types.update({v.name: v.type for v in upstream})
    definitions = tuple(scope.define(a) for a in formulas)
    assigned = {d.name for d in definitions}
    kinds = {gradient_name(v.name): v.type.kind for v in first.upstream}
    kinds |= {second_gradient_name(i.name): i.kind for i in differentiable_inputs(spec)}
    results = tuple(
        Result(name, kind, Role.GRADIENT) for name, kind in kinds.items() if name in assigned
    )
    every = (*backward.definitions, *definitions)
    return Formulas((*first.upstream, *upstream), _leading_to(results, every), results)


def _worded(program: Program) -> Program:
    """The program with a formula for every definition, as a spec would have it."""
    definitions = tuple(
        Define(d.name, d.term, d.text or f"{d.name} = {text(d.term)}", d.at)
        for d in program.definitions
    )
    return Program(program.variables, definitions, program.results)


def _leading_to(results: tuple[Result, ...], definitions: tuple[Define, ...]) -> tuple[Define, ...]:
    """The definitions that some result depends on."""
    return needed(Program((), definitions, results)).definitions


def input_variables(spec: Spec) -> tuple[Variable, ...]:
    """The inputs and params as programs take them."""
    inputs = [
        Variable(i.name, Type(i.spread, i.element), Role.INPUT, i.absent, _sharing(i))
        for i in spec.inputs
    ]
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


def _sharing(input_: Input) -> Sharing | None:
    return Sharing(input_.kind, input_.shares_columns) if input_.is_shared else None


def _check_shared(spec: Spec, problems: Problems) -> None:
    """Sums over rows go by matrix or by place, and are differentiated once."""
    if spec.backward == "none":
        return
    graded = [i for i in differentiable_inputs(spec) if i.is_shared]
    batched = {i.kind: i for i in graded if i.kind in BATCHED_KINDS}
    if len(batched) == len(BATCHED_KINDS):
        first, second = sorted(batched.values(), key=spec.inputs.index)
        problems.add(
            f"the gradient of '{second.name}' is a sum {_SUMS[second.kind]}, that of "
            f"'{first.name}' {_SUMS[first.kind]}; an op makes one kind of them: mark one of the "
            "inputs grad: false",
            second.at,
        )
    if graded and spec.double_backward:
        problems.add(
            f"double_backward does not reach the {_described(graded[0])} input "
            f"'{graded[0].name}': remove the key, or mark the input grad: false",
            graded[0].at,
        )


_SUMS = {
    Kind.PER_BATCH: "over the rows of each matrix",
    Kind.PER_PLACE: "over the matrices of the batch",
}


def _described(input_: Input) -> str:
    return f"{input_.kind.value}{' (columns: shared)' if input_.shares_columns else ''}"


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
    if input_.is_summed and not is_column_sum:
        problems.add(
            f"'{name}' is {kind.value}; the gradient of the {input_.kind.value} input "
            f"'{input_.name}' is a sum over rows: {name} = sum_rows(...)",
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
        if function == "random":
            return self._random(arguments[0], at)
        if folded := _folded(function, arguments, at):
            return folded
        kind = join_kinds([argument.type.kind for argument in arguments])
        if function in LOGIC:
            for argument in arguments:
                self._bool(argument, f"'{function}'")
            return Op(function, arguments, Type(kind, Element.BOOL), at)
        if function == "where":
            return self._where(arguments, kind, at)
        numbers = tuple(self._number(argument, function) for argument in arguments)
        if function in COMPARISONS:
            return Op(function, numbers, Type(kind, Element.BOOL), at)
        if function in FLOAT_FUNCTIONS:
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

    def _random(self, seed: Term, at: Span) -> Term:
        """The place of each number is an argument too, and makes a matrix of them."""
        if seed.type != Type(Kind.SCALAR, Element.INT):
            raise _error(
                f"the seed of 'random' is one whole number, and {_called(seed)} is {seed.type}: "
                "make it an int param",
                seed.at,
            )
        place = (Ref(name, BUILTINS[name], at) for name in ("row", "column"))
        return Op("random", (seed, *place), Type(Kind.MATRIX, Element.FLOAT), at)

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
    if len(values) < len(arguments) or function in (*COMPARISONS, *LOGIC, "where"):
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
