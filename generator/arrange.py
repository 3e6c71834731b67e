"""Sums of products -> formulas to read: factors taken out, and what is shared has a name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from kgen.algebra import Algebra, Factors, Poly, as_matrix, atom, is_wide, joined, operation
from kgen.factoring import Factoring, divisors, has_zero, is_parenthesis, is_total, renamed
from kgen.ir import Literal, Op, Program, Ref, Term, names_in, substitute, walk
from kgen.pricing import price
from kgen.rewrite import describe, replace_terms
from kgen.spec import Element, Kind, gradient_name, name_problem
from kgen.standins import StandIn, stand_ins
from kgen.writing import Writer

Named = tuple[str, Term]

# Products to look at before no more values are shared, and before no more stand-ins are tried:
# the time of a large op grows with the square of its size.
_MOST_LOOKED_AT = 20_000
_MOST_TO_TRY = 4_000
# A formula that is longer or deeper is written in parts.
_MOST_OPERATORS = 80
_MOST_DEPTH = 30
_SIGNS = ("add", "sub", "mul", "div", "where")


@dataclass(frozen=True, slots=True)
class Gradient:
    """A value to write a formula for. ``is_result`` tells those that leave the kernel."""

    name: str
    kind: Kind
    values: Poly
    is_result: bool = True


@dataclass(frozen=True, slots=True)
class Scene:
    """What the formulas may use: the gradients that arrive, the optional inputs, the outputs.

    ``arrived`` tells for products of gradients which value of forward they are the gradient of.
    """

    upstream: tuple[str, ...]
    optional: frozenset[str]
    outputs: frozenset[str]
    arrived: Mapping[Factors, Term]


@dataclass(frozen=True, slots=True)
class Formulas:
    """Definitions in order, and what they cost: matrices read, reductions, operations ..."""

    definitions: tuple[Named, ...]
    cost: tuple[int, ...]
    looked_at: int


def arrange(
    program: Program,
    algebra: Algebra,
    gradients: Sequence[Gradient],
    scene: Scene,
) -> Formulas:
    """Formulas for the gradients, after those of the values that they share.

    Of the values of forward that can stand in for a factor, those are taken that make the whole
    read fewer matrices, reduce less often and compute less in every column, in this order.
    """
    best = _priced(_Arrangement(program, algebra, gradients, scene, ()))
    chosen: tuple[StandIn, ...] = ()
    for candidate in stand_ins(program, algebra) if best.looked_at <= _MOST_TO_TRY else ():
        trial = (*chosen, candidate)
        arrangement = _Arrangement(program, algebra, gradients, scene, trial)
        if arrangement.has_new_divisor:
            continue
        formulas = _priced(arrangement)
        if formulas.cost < best.cost:
            best, chosen = formulas, trial
    return best


def _priced(arrangement: _Arrangement) -> Formulas:
    formulas = arrangement.formulas()
    cost = price(arrangement.program, formulas, arrangement.scene.outputs)
    return Formulas(formulas, cost, arrangement.looked_at)


@dataclass(slots=True)
class _Arrangement:
    """One way to write the gradients, with some values of forward standing in."""

    program: Program
    algebra: Algebra
    gradients: Sequence[Gradient]
    scene: Scene
    chosen: tuple[StandIn, ...]
    values: list[Poly] = field(default_factory=list)
    shared: list[tuple[str, Poly]] = field(default_factory=list)
    taken: set[str] = field(init=False)
    has_new_divisor: bool = field(init=False)
    factoring: Factoring = field(init=False)
    looked_at: int = 0

    def __post_init__(self) -> None:
        """Put the stand-ins in place, then take out common factors."""
        program = self.program
        own = frozenset(t for d in program.definitions for t in walk(d.term))
        self.factoring = Factoring(self.algebra, own, program.definitions[-1].term)
        self.taken = {v.name for v in program.variables} | set(self.scene.upstream)
        self.taken |= {d.name for d in program.definitions} | {g.name for g in self.gradients}
        plain = [g.values for g in self.gradients]
        for stand_in in self.chosen:
            replacement = stand_in.replacement
            if stand_in.made is not None:
                name = self._fresh(stand_in.name)
                replacement = renamed(replacement, stand_in.name, name)
                self.shared.append((name, self.algebra.product(stand_in.made)))
            plain = [self.factoring.replaced(p, stand_in.base, replacement) for p in plain]
        before = set[Term]().union(*(divisors(g.values) for g in self.gradients))
        self.has_new_divisor = not set[Term]().union(*map(divisors, plain)) <= before
        counts = Counter(t for factors in self._products(plain) for t, _ in factors if is_total(t))
        once = frozenset(term for term, count in counts.items() if count == 1)
        chosen = [self.factoring.chosen_once(p) for p in plain]
        merged = [self.factoring.summed_once(p, once) for p in chosen]
        self.factoring.merges = True
        self.values = [self.factoring.factored(p) for p in merged]

    def formulas(self) -> tuple[Named, ...]:
        """The definitions of shared values, then the gradients."""
        self._share()
        writer = self._writer()
        results: list[Named] = []
        first: dict[tuple[Kind, Poly], str] = {}
        for gradient, values in zip(self.gradients, self.values, strict=True):
            term = self._result(writer, gradient, values)
            # Two inputs that are added get the same gradient.
            known = first.setdefault((gradient.kind, values), gradient.name)
            if known != gradient.name and gradient.kind is not Kind.PER_COLUMN:
                term = Ref(known, term.type, term.at)
            results.append((gradient.name, term))
        like = self.factoring.like
        shared = [(name, writer.written(values, like)) for name, values in self.shared]
        return tuple(self._in_parts(_tidied([*shared, *results], {name for name, _ in results})))

    def _in_parts(self, formulas: Sequence[Named]) -> Iterator[Named]:
        """The formulas, with parts of those that are too long or too deep to read before them."""
        for name, term in _ordered(formulas):
            while (part := _part(term)) is not None:
                part_name = self._fresh(_name_of(part))
                yield part_name, part
                term = replace_terms(term, {part: Ref(part_name, part.type, part.at)})
            yield name, term

    def _writer(self) -> Writer:
        gradients = [name for name, _ in self.shared if name.startswith("d")]
        arriving = self.scene.upstream
        return Writer(self.algebra, self.factoring.own, arriving, (*arriving, *gradients))

    def _result(self, writer: Writer, gradient: Gradient, values: Poly) -> Term:
        like = self.factoring.like
        term = writer.written(values, like)
        if gradient.kind is not Kind.PER_COLUMN or not gradient.is_result:
            return term
        if term.type.kind is not Kind.MATRIX:
            term = as_matrix(term, like)
        return operation("sum_rows", term)

    # --- shared values

    def _share(self) -> None:
        """Give names to what several products have in common."""
        while self.looked_at < _MOST_LOOKED_AT and (pair := self._pair()) is not None:
            term = operation("mul", *sorted(pair, key=self._writer().rank))
            self._name(term, ((pair[0], 1), (pair[1], 1)))
        while self.looked_at < _MOST_LOOKED_AT and (repeated := self._repeated()) is not None:
            self._name(repeated, ((repeated, 1),))

    def _name(self, term: Term, base: Factors) -> None:
        name = self._fresh(self._gradient_of(base) or _name_of(term))
        itself = atom(Ref(name, term.type, term.at))
        is_sum = len(base) == 1 and is_parenthesis(term)
        made = self.algebra.poly(term) if is_sum else Poly(((base, Fraction(1)),))
        self.values = [self.factoring.replaced(p, base, itself) for p in self.values]
        self.shared = [
            (other, self.factoring.replaced(p, base, itself)) for other, p in self.shared
        ]
        self.shared.append((name, made))

    def _gradient_of(self, base: Factors) -> str | None:
        """``dxhat`` for a product that arrives for ``xhat``."""
        value = self.scene.arrived.get(joined(base, ()))
        if value is None:
            return None
        name = value.name if isinstance(value, Ref) else None
        for stand_in in self.chosen:
            if stand_in.made is not None and name is None:
                same = self.algebra.product(stand_in.made) == self.algebra.product(value)
                name = stand_in.name if same else None
        wanted = None if name is None else gradient_name(name)
        if wanted is None or wanted in self.taken or name_problem(wanted) is not None:
            return None
        return wanted

    def _products(self, sums: Sequence[Poly] | None = None) -> Iterator[Factors]:
        """Every product to write, also those inside sums, parentheses and choices."""
        found: list[Factors] = []

        def look(values: Poly) -> Poly:
            for factors, _ in values.products:
                found.append(factors)
                for term, _ in factors:
                    self.factoring.inside(term, look)
            return values

        for values in self._all() if sums is None else dict.fromkeys(sums):
            look(values)
        self.looked_at += sum(len(factors) ** 2 for factors in found)
        yield from found

    def _all(self) -> list[Poly]:
        """The sums to write, those of equal gradients once."""
        return [*dict.fromkeys(self.values), *(made for _, made in self.shared)]

    def _pair(self) -> tuple[Term, Term] | None:
        """The two factors of a column to multiply beforehand: the most frequent pair."""
        counts: Counter[tuple[Term, Term]] = Counter()
        forced: list[tuple[Term, Term]] = []
        whole = {v.products[0][0] for v in self._all() if len(v) == 1}
        for factors in self._products():
            wide = [term for term, power in factors if is_wide(term) and power > 0]
            for index, first in enumerate(wide):
                for second in wide[index + 1 :]:
                    pair = (first, second)
                    if Kind.MATRIX in (first.type.kind, second.type.kind):
                        counts[pair] += 1
                    if self._falls_away(pair) and factors not in whole:
                        forced.append(pair)
        several = [pair for pair, count in counts.items() if count > 1]
        candidates = [pair for pair in forced if pair in counts] or several
        if not candidates:
            return None
        return max(candidates, key=lambda pair: (self._is_arriving(pair), counts[pair]))

    def _falls_away(self, pair: tuple[Term, Term]) -> bool:
        """Whether a factor is made of an optional input, so that it needs a line of its own."""
        return any(self.scene.optional & set(names_in(term)) for term in pair) and (
            self._is_arriving(pair)
        )

    def _is_arriving(self, pair: tuple[Term, Term]) -> bool:
        return any(isinstance(term, Ref) and term.name in self.scene.upstream for term in pair)

    def _repeated(self) -> Term | None:
        """A function, sum or choice that is written twice."""
        counts = Counter(
            term
            for factors in self._products()
            for term, _ in factors
            if isinstance(term, Op) and term.type.kind is not Kind.SCALAR
        )
        several = [term for term, count in counts.items() if count > 1]
        # The largest first: what it contains is then perhaps written once.
        return max(several, key=lambda term: sum(1 for _ in walk(term)), default=None)

    def _fresh(self, name: str) -> str:
        if name_problem(name) is not None:
            name = "part"
        candidate, count = name, 1
        while candidate in self.taken:
            count += 1
            candidate = f"{name}_{count}"
        self.taken.add(candidate)
        return candidate


def _tidied(formulas: Sequence[Named], results: Collection[str]) -> list[Named]:
    """Without definitions that only give another a second name, or that nothing uses."""
    values: dict[str, Term] = {}
    kept: list[Named] = []
    for name, term in _ordered(formulas):
        term = substitute(term, values)
        if isinstance(term, Ref) and name not in results:
            values[name] = term
        else:
            kept.append((name, term))
    used = set(results)
    for name, term in reversed(kept):
        used |= set(names_in(term)) if name in used else set()
    return [(name, term) for name, term in kept if name in used]


def _part(term: Term) -> Term | None:
    """A part of a long formula to write before it: the largest that is no longer than half."""
    if _operators(term) <= _MOST_OPERATORS and _depth(term) <= _MOST_DEPTH:
        return None
    inside = [t for t in walk(term) if t is not term and isinstance(t, Op) and _is_number(t)]
    small = [t for t in inside if _operators(t) <= _MOST_OPERATORS // 2 and _depth(t) > 1]
    return max(small, key=_operators, default=None)


def _is_number(term: Op) -> bool:
    return term.type.element is Element.FLOAT and term.type.kind in (Kind.MATRIX, Kind.PER_ROW)


def _operators(term: Term) -> int:
    return sum(isinstance(part, Op) for part in walk(term))


def _depth(term: Term) -> int:
    inside = term.arguments if isinstance(term, Op) else ()
    return 1 + max(map(_depth, inside), default=0)


def _ordered(formulas: Sequence[Named]) -> Iterator[Named]:
    """Each value before those that use it, otherwise as they came."""
    waiting = list(formulas)
    while waiting:
        made = {name for name, _ in waiting}
        ready = next(i for i, (_, term) in enumerate(waiting) if not set(names_in(term)) & made)
        yield waiting.pop(ready)


def _name_of(term: Term) -> str:
    """A name that says what a term is, if a short one does."""
    if isinstance(term, Op) and term.op == "where" and has_zero(term):
        kept = next((b for b in term.arguments[1:] if not isinstance(b, Literal)), term)
        inside = describe(kept)
        return f"masked_{inside}" if inside else "masked"
    name = describe(term)
    if name is None and isinstance(term, Op):
        names = [t.name for t in walk(term) if isinstance(t, Ref) and t.type.kind is Kind.MATRIX]
        name = f"{term.op}_{names[0]}" if names and term.op not in _SIGNS else None
    return name or "part"
