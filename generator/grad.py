"""Reverse mode: the formulas of a backward, worked out from those of its forward."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from kgen.algebra import (
    Algebra,
    Factors,
    Poly,
    atom,
    literal,
    n_columns,
    number,
    operation,
    plain,
)
from kgen.arrange import Formulas, Gradient, Scene, arrange
from kgen.errors import KgenError, Problem
from kgen.expr import Assignment
from kgen.formulas import expr_of, text
from kgen.ir import (
    BUILTINS,
    COMPARISONS,
    LOGIC,
    Define,
    Literal,
    Op,
    Program,
    Ref,
    Role,
    Term,
    Variable,
)
from kgen.spec import (
    Input,
    Kind,
    Spec,
    differentiable_inputs,
    gradient_name,
    name_problem,
    second_gradient_name,
)

# A gradient of more products than this becomes a definition of its own.
_MOST_PRODUCTS = 6


def derive(spec: Spec, forward: Program, upstream: tuple[Variable, ...]) -> tuple[Assignment, ...]:
    """The formulas of ``d<input>`` for every differentiable input, as a spec would write them.

    Raises ``KgenError`` when an input has no gradient.
    """
    wanted = differentiable_inputs(spec)
    names = {i.name: gradient_name(i.name) for i in wanted}
    arriving = {v.name[1:]: v for v in upstream}
    kinds = {i.name: i.gradient_kind for i in wanted}
    return _derived(spec, forward, arriving, kinds, names, wanted)


def derive_double(
    spec: Spec, forward: Program, backward: Program, upstream: tuple[Variable, ...]
) -> tuple[Assignment, ...]:
    """The formulas of the second order: ``dd<output>`` and ``d2<input>``.

    ``upstream`` holds a ``dd<input>`` for every gradient that ``backward`` gives. What no second
    derivative reaches gets no formula.
    """
    first = [v for v in backward.variables if v.role is Role.UPSTREAM]
    wanted = differentiable_inputs(spec)
    whole = Program(
        (*forward.variables, *first),
        (*forward.definitions, *backward.definitions),
        backward.results,
    )
    kinds = {v.name: v.type.kind for v in first} | {i.name: i.kind for i in wanted}
    names = {v.name: gradient_name(v.name) for v in first}
    names |= {i.name: second_gradient_name(i.name) for i in wanted}
    results = [r.name for r in backward.results]
    return _derived(spec, whole, dict(zip(results, upstream, strict=True)), kinds, names, ())


def _derived(
    spec: Spec,
    program: Program,
    arriving: Mapping[str, Variable],
    kinds: Mapping[str, Kind],
    names: Mapping[str, str],
    demanded: Sequence[Input],
) -> tuple[Assignment, ...]:
    """The cheaper of two ways: gradients of forward's names written out, or named themselves."""
    best: Formulas | None = None
    for most_products in (_MOST_PRODUCTS, 1):
        reverse = _Reverse(program, set(kinds), arriving, most_products, is_second=not demanded)
        reverse.run()
        _demand(demanded, reverse.reached)
        if best is not None and not reverse.named:
            break
        # A first gradient that cancels to 0 is given as 0, a second one is not given at all.
        always = {entry.name for entry in demanded}
        gradients = [
            Gradient(names[name], kind, reverse.adjoints.get(name, Poly()))
            for name, kind in kinds.items()
            if name in always or reverse.adjoints.get(name)
        ]
        scene = Scene(
            upstream=tuple(v.name for v in arriving.values()),
            optional=frozenset(i.name for i in spec.inputs if i.absent is not None),
            outputs=frozenset(output.name for output in spec.outputs),
            arrived=reverse.arrived,
        )
        found = arrange(program, reverse.algebra, [*reverse.named, *gradients], scene)
        if best is None or found.cost < best.cost:
            best = found
    assert best is not None
    return tuple(
        Assignment(name, expr_of(term), f"{name} = {text(term)}", spec.backward_at)
        for name, term in best.definitions
    )


def _demand(inputs: Sequence[Input], reached: Collection[str]) -> None:
    for entry in inputs:
        if entry.name not in reached:
            raise KgenError(
                Problem(
                    f"no gradient reaches '{entry.name}': every path from it to the outputs goes "
                    "through detach, a comparison or rounding; mark it grad: false",
                    entry.at,
                )
            )


@dataclass(slots=True)
class _Reverse:
    """Walks a program backwards and collects what arrives for every name.

    What arrives for a per_column value stays a matrix: its sum over the rows is taken where it
    leaves the kernel, since factors of the column go through that sum.
    """

    program: Program
    wanted: set[str]
    arriving: Mapping[str, Variable]
    most_products: int
    is_second: bool
    adjoints: dict[str, Poly] = field(default_factory=dict)
    named: list[Gradient] = field(default_factory=list)
    arrived: dict[Factors, Term] = field(default_factory=dict)
    reached: set[str] = field(default_factory=set)
    active: set[str] = field(init=False)
    taken: set[str] = field(init=False)
    algebra: Algebra = field(init=False)

    def __post_init__(self) -> None:
        self.algebra = Algebra(self.program)
        self.active = set(self.wanted)
        program = self.program
        self.taken = {v.name for v in (*program.variables, *self.arriving.values())}
        self.taken |= {d.name for d in program.definitions}
        like = program.definitions[-1].at
        for name, variable in self.arriving.items():
            self.adjoints[name] = self._arrived_for(name, Ref(variable.name, variable.type, like))
        for definition in self.program.definitions:
            if self._is_active(definition.term):
                self.active.add(definition.name)

    def _is_active(self, term: Term) -> bool:
        if isinstance(term, Ref):
            return term.name in self.active
        if isinstance(term, Literal) or term.op in _CONSTANT:
            return False
        arguments = term.arguments[1:] if term.op == "where" else term.arguments
        return any(map(self._is_active, arguments))

    def _arrived_for(self, name: str, upstream: Ref) -> Poly:
        """The gradient of a result, of which a row value may be stored in every column."""
        definition = self.program.definition(name)
        is_narrow = definition is not None and definition.type.kind is Kind.PER_ROW
        if is_narrow and upstream.type.kind is Kind.MATRIX:
            return self.algebra.total(atom(upstream), upstream)
        return atom(upstream)

    def run(self) -> None:
        """From the last definition to the first."""
        for definition in reversed(self.program.definitions):
            arriving = self.adjoints.get(definition.name)
            if arriving is not None and definition.name in self.active:
                arriving = self._short(definition, arriving)
                value = Ref(definition.name, definition.type, definition.at)
                self._remember(value, arriving)
                self._push(definition.term, arriving, value)

    def _short(self, definition: Define, arriving: Poly) -> Poly:
        if len(arriving) <= self.most_products:
            return arriving
        name = gradient_name(definition.name)
        if self.is_second and not self._is_gradient(definition.name):
            name = second_gradient_name(definition.name)
        if name in self.taken:  # of an output it is what arrives from outside alone
            name = f"{name}_total"
        if name in self.taken or name_problem(name) is not None:
            return arriving
        kind = definition.type.kind
        self.named.insert(0, Gradient(name, kind, arriving, is_result=False))
        return atom(Ref(name, definition.type, definition.at))

    def _is_gradient(self, name: str) -> bool:
        """Whether a name is that of the gradient of another."""
        return name.startswith("d") and name[1:] in self.taken

    def _push(self, term: Term, arriving: Poly, value: Term) -> None:
        """Hand what arrives for ``term`` on to its operands; ``value`` is what it comes to."""
        if not self._is_active(term):
            return
        if isinstance(term, Ref):
            self.reached.add(term.name)
            self.adjoints[term.name] = self.adjoints.get(term.name, Poly()) + arriving
            return
        assert isinstance(term, Op)
        if term is value:  # else it is remembered by its name
            self._remember(term, arriving)
        for operand, part in self._parts(term, arriving, value):
            if self._is_active(operand):
                self._push(operand, self._gathered(operand, part, term), operand)

    def _gathered(self, operand: Term, part: Poly, term: Op) -> Poly:
        """What an operand gets of what arrives in every place that it is spread to."""
        if operand.type.kind is Kind.PER_ROW and term.type.kind is Kind.MATRIX:
            return self.algebra.total(part, term)
        if operand.type.kind is Kind.SCALAR and term.type.kind is Kind.PER_ROW:
            # A sum over all places counts what is there once a row in one of its columns.
            first = operation("equal", Ref("column", BUILTINS["column"], term.at), literal(0, term))
            return self._chosen(first, part, True)
        return part

    def _remember(self, value: Term, arriving: Poly) -> None:
        """Of a product that is all that arrives for a value, what it is the gradient of."""
        if len(arriving) == 1 and value.type.kind is Kind.MATRIX:
            self.arrived.setdefault(arriving.products[0][0], value)

    def _parts(self, term: Op, arriving: Poly, value: Term) -> Iterable[tuple[Term, Poly]]:
        """What each operand gets, before any sum over what it is spread along."""
        one = self.algebra.product
        if term.op in ("sum", "mean", "float", "cast", "sum_rows"):
            over = atom(n_columns(term), -1) if term.op == "mean" else number(1)
            return [(term.arguments[0], arriving * over)]
        exponent = _of_softplus(term)
        if exponent is not None:
            return [(exponent, arriving * one(operation("sigmoid", exponent)))]
        if term.op in ("max", "min"):
            return [(term.arguments[0], self._of_extreme(term, arriving, value))]
        if term.op in _CHOICES:
            return self._of_choice(term, arriving)
        if term.op == "mod":
            left, right = term.arguments
            steps = operation("floor", operation("div", left, right))
            return [(left, arriving), (right, arriving * one(steps) * number(-1))]
        return [
            (operand, arriving * local)
            for operand, local in zip(term.arguments, self._slopes(term, value), strict=True)
        ]

    def _slopes(self, term: Op, value: Term) -> list[Poly]:
        """The derivative by each operand, as single products."""
        one, u = self.algebra.product, term.arguments[0]
        v = self.algebra.product(value)
        if term.op == "add":
            return [number(1), number(1)]
        if term.op == "sub":
            return [number(1), number(-1)]
        if term.op == "mul":
            return [one(term.arguments[1]), one(u)]
        if term.op == "div":
            over = self._over(term.arguments[1])
            return [over, one(u) * over * over * number(-1)]
        if term.op == "pow":
            return self._slopes_of_power(term, v)
        return [self._slope(term.op, u, v, value)]

    def _over(self, term: Term) -> Poly:
        return self.algebra.product(operation("div", literal(1, term), term))

    def _slopes_of_power(self, term: Op, v: Poly) -> list[Poly]:
        base, exponent = term.arguments
        one = self.algebra.product
        if isinstance(exponent, Literal):
            power = literal(exponent.value - 1, term)
            rest = operation("pow", base, power)
            slope = number(1) if power.value == 0 else one(base if power.value == 1 else rest)
            return [slope * number(exponent.value), Poly()]
        less = operation("pow", base, operation("sub", exponent, literal(1, term)))
        return [one(exponent) * one(less), v * one(operation("log", base))]

    def _slope(self, op: str, u: Term, v: Poly, value: Term) -> Poly:
        one = self.algebra.product
        if op == "neg":
            return number(-1)
        if op == "exp":
            return v
        if op == "log":
            return self._over(u)
        if op == "log1p":
            return self._over(operation("add", literal(1, u), u))
        if op == "sqrt":
            return self._over(value) * number(Fraction(1, 2))
        if op == "rsqrt":
            return v * v * v * number(Fraction(-1, 2))
        if op == "tanh":
            square = operation("pow", value, literal(2, u))
            return one(operation("sub", literal(1, u), square))
        if op == "sigmoid":
            return v * one(operation("sub", literal(1, u), value))
        if op == "silu":
            gate = operation("sigmoid", u)
            rest = operation("mul", u, operation("sub", literal(1, u), gate))
            return one(gate) * one(operation("add", literal(1, u), rest))
        if op == "erf":
            square = operation("neg", operation("pow", u, literal(2, u)))
            return one(operation("exp", square)) * number(2 / math.sqrt(math.pi))
        assert op == "abs", f"{op} has no rule"
        return one(operation("sign", u))

    def _of_extreme(self, term: Op, arriving: Poly, value: Term) -> Poly:
        """The gradient of ``max`` and ``min``, shared equally among the columns that hold it."""
        operand = term.arguments[0]
        holds = operation("equal", operand, value)
        count = operation("sum", operation("where", holds, literal(1, term), literal(0, term)))
        return self._chosen(holds, arriving * atom(count, -1), True)

    def _of_choice(self, term: Op, arriving: Poly) -> list[tuple[Term, Poly]]:
        if term.op == "where":
            condition, yes, no = term.arguments
            return [
                (yes, self._chosen(condition, arriving, True)),
                (no, self._chosen(condition, arriving, False)),
            ]
        if term.op == "clamp":
            return self._of_clamp(term, arriving)
        left, right = term.arguments
        over, under = ("greater", "less") if term.op == "maximum" else ("less", "greater")
        takes = [operation(over, left, right), operation(under, left, right)]
        shares = [self._chosen(condition, arriving, True) for condition in takes]
        if not any(isinstance(operand, Literal) for operand in term.arguments):
            # Of two values that are equal each gets a half, as in PyTorch.
            tie = operation("equal", left, right)
            halves = self._chosen(tie, arriving * number(Fraction(1, 2)), True)
            shares = [share + halves for share in shares]
        return list(zip(term.arguments, shares, strict=True))

    def _of_clamp(self, term: Op, arriving: Poly) -> list[tuple[Term, Poly]]:
        operand, low, high = term.arguments
        inside = operation(
            "and", operation("greater_equal", operand, low), operation("less_equal", operand, high)
        )
        # Where the bounds are the wrong way round, high wins.
        below = operation("and", operation("less", operand, low), operation("less", low, high))
        above = operation("or", operation("greater", operand, high), operation("less", high, low))
        conditions = (inside, below, above)
        parts = [self._chosen(condition, arriving, True) for condition in conditions]
        return list(zip(term.arguments, parts, strict=True))

    def _chosen(self, condition: Term, values: Poly, holds: bool) -> Poly:
        """The values where the condition holds (or does not), and 0 elsewhere."""
        if not values or (holds and _is_zero_outside(condition, values)):
            return values
        size = values.products[0][1] if len(values) == 1 else Fraction(1)
        inside = plain(values * number(1 / size), condition)
        zero: Term = literal(0, condition)
        branches = (inside, zero) if holds else (zero, inside)
        return atom(operation("where", condition, *branches)) * number(size)


def _of_softplus(term: Op) -> Term | None:
    """The ``u`` of ``log1p(exp(u))``, whose slope is ``sigmoid(u)`` and never inf / inf."""
    inside = term.arguments[0]
    is_exp = term.op == "log1p" and isinstance(inside, Op) and inside.op == "exp"
    return inside.arguments[0] if is_exp and isinstance(inside, Op) else None


def _is_zero_outside(condition: Term, values: Poly) -> bool:
    """Whether ``where(x > 0, values, 0)`` is the values: they have the factor ``maximum(x, 0)``."""
    if not isinstance(condition, Op) or condition.op not in ("greater", "less"):
        return False
    extreme = "maximum" if condition.op == "greater" else "minimum"
    operand, bound = condition.arguments
    if not isinstance(bound, Literal) or bound.value != 0:
        return False

    def vanishes(term: Term) -> bool:
        return isinstance(term, Op) and term.op == extreme and operand in term.arguments

    return all(
        any(power > 0 and vanishes(term) and _is_against_zero(term) for term, power in factors)
        for factors, _ in values.products
    )


def _is_against_zero(term: Term) -> bool:
    assert isinstance(term, Op)
    return any(isinstance(a, Literal) and a.value == 0 for a in term.arguments)


_CHOICES = ("where", "maximum", "minimum", "clamp")
_CONSTANT = frozenset(
    ["detach", "sign", "floor", "round", "floordiv", "random", *COMPARISONS, *LOGIC]
)
