"""IR expression -> Triton text. The only module that knows ``tl.``"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from kgen.functions import PRODUCTS, adds_exp
from kgen.ir import (
    BUILTINS,
    COMPARISONS,
    RANDOM_ROUNDS,
    REDUCTIONS,
    Literal,
    Op,
    Program,
    Ref,
    Term,
    Type,
    walk,
)
from kgen.padding import NEUTRAL, Padding
from kgen.spec import Element, Kind, Spec

_BINARY = {
    "add": ("+", 10),
    "sub": ("-", 10),
    "mul": ("*", 11),
    "div": ("/", 11),
    "less": ("<", 3),
    "less_equal": ("<=", 3),
    "greater": (">", 3),
    "greater_equal": (">=", 3),
    "equal": ("==", 3),
    "not_equal": ("!=", 3),
    "and": ("&", 6),
    "or": ("|", 5),
}
_CALLS = {
    "exp": "exp",
    "log": "tl.log",
    "sqrt": "tl.sqrt",
    "rsqrt": "tl.rsqrt",
    "erf": "tl.erf",
    "abs": "tl.abs",
    "floor": "tl.floor",
    "sigmoid": "sigmoid",
    "log1p": "log1p",
    "tanh": "tanh",
    "silu": "silu",
    "sign": "sign",
    "round": "round_half_even",
}
_TRITON_DTYPES = {
    "float16": "tl.float16",
    "bfloat16": "tl.bfloat16",
    "float32": "tl.float32",
    "float64": "tl.float64",
    "float8_e4m3fn": "tl.float8e4nv",
    "float8_e5m2": "tl.float8e5",
    "int8": "tl.int8",
    "int32": "tl.int32",
    "int64": "tl.int64",
}
_ATOM, _UNARY, _AND, _COMPARED, _TERNARY = 20, 12, 6, 3, 0
_ROW_HELPERS = {"sum": "row_sum", "mean": "row_mean", "max": "row_max", "min": "row_min"}


@dataclass(slots=True)
class Emitter:
    """Writes terms of one kernel, and keeps the names of the helper functions they call."""

    spec: Spec
    padding: Padding
    program: Program
    helpers: set[str] = field(default_factory=set)
    first_column: str = "0"  # that of the tile which is written, a multiple of BLOCK

    def text(self, term: Term) -> str:
        """A term as Triton source."""
        return self._text(term, _TERNARY)

    def start(self, term: Term, type_: Type) -> str:
        """The first of several steps towards a value of some type, which may be the only one."""
        if not self._is_number(term):
            return self.text(term)
        return f"tl.full({shape(type_.kind)}, {self.text(term)}, {_dtype(type_)})"

    def reduction(self, op: str, operand: Term) -> str:
        """A reduction of a whole row (or, for ``sum_rows``, of the tile's rows)."""
        values = self.masked(op, operand)
        if op == "sum_rows":
            return f"{self.use('column_sum')}({values})"
        columns = ", n_columns" if op == "mean" else ""
        return f"{self.use(_ROW_HELPERS[op])}({values}{columns})"

    def masked(self, op: str, operand: Term) -> str:
        """What a reduction takes: neutral in padding lanes, by a mask only where it must be."""
        if self.padding.is_neutral(op, operand) and not self._is_chosen(operand):
            return self.text(operand)
        mask, neutral = "in_rows" if op == "sum_rows" else "in_columns", NEUTRAL[op]
        if isinstance(operand, Op) and operand.op == "where":
            condition, yes, no = operand.arguments
            if _is_literal(yes, neutral):
                condition, yes, no = _negated(condition), no, yes
            if _is_literal(no, neutral) and not self._at_compile_time(condition):
                # What is neutral anyhow needs no mask of its own.
                mask, operand = f"{mask} & {self._text(condition, _AND + 1)}", yes
        value = self._tensor(operand) if isinstance(operand, Literal) else self.text(operand)
        return f"tl.where({mask}, {value}, {number(neutral)})"

    def _is_chosen(self, term: Term) -> bool:
        """Whether a bool param decides what a term is: perhaps a number, with no lanes to add."""
        return any(
            isinstance(part, Op) and part.op == "where" and self._at_compile_time(part.arguments[0])
            for part in walk(term)
        )

    def use(self, helper: str) -> str:
        """The name of a helper function, which the file will then contain."""
        self.helpers.add(helper)
        return helper

    def _text(self, term: Term, outer: int) -> str:
        text, level = self._leveled(term)
        return f"({text})" if level < outer else text

    def _leveled(self, term: Term) -> tuple[str, int]:
        if isinstance(term, Literal):
            return number(term.value), _ATOM if term.value >= 0 else _UNARY
        if isinstance(term, Ref):
            return self._name(term), _ATOM
        if term.op in REDUCTIONS or term.op == "sum_rows":
            return self.reduction(term.op, term.arguments[0]), _ATOM
        if term.op in ("floordiv", "mod"):
            return self._floored(term)
        if term.op in ("and", "or", "not") and self._at_compile_time(term):
            return self._compile_time_logic(term)
        if term.op in _BINARY:
            symbol, level = _BINARY[term.op]
            left, right = term.arguments
            is_matrix = term.type.kind is Kind.MATRIX
            if term.op == "div" and is_matrix and adds_exp(self.program, right):
                # One division a row. The sum is 1 at least, so its reciprocal is as exact.
                return f"{self._text(left, level)} * (1.0 / {self._text(right, level + 1)})", level
            if term.op == "mul" and term.type.element is Element.INT and not _is_small(term):
                return f"{self._wide(left)} * {self._text(right, level + 1)}", level
            if term.op in COMPARISONS and (text := self._place_comparison(term)):
                return text, level
            # Comparisons do not chain, and bind looser than & and | in Python.
            left_level = level + 1 if level == _COMPARED else level
            return f"{self._text(left, left_level)} {symbol} {self._text(right, level + 1)}", level
        if term.op in _CALLS:
            name = _CALLS[term.op]
            function = name if name.startswith("tl.") else self.use(name)
            operand = self._operand if name.startswith("tl.") else self._tensor
            return f"{function}({operand(term.arguments[0])})", _ATOM
        special: Callable[[Op], tuple[str, int]] = getattr(self, f"_{term.op}")
        return special(term)

    def _place_comparison(self, term: Op) -> str | None:
        """A comparison of columns with a row's 64-bit index, in 32 bits: half the instructions."""
        sides = [argument for argument in term.arguments if not _is_column(argument)]
        if len(sides) != 1 or sides[0].type.element is not Element.INT:
            return None
        if sides[0].type.kind is not Kind.PER_ROW:
            return None
        place = f"{self.use('column_place')}({self.text(sides[0])})"
        texts = ["column" if _is_column(argument) else place for argument in term.arguments]
        return f" {_BINARY[term.op][0]} ".join(texts)

    def _wide(self, term: Term) -> str:
        """A whole number in 64 bits: a product of columns has no room in 32."""
        return f"tl.cast({self.text(term)}, tl.int64)"

    def _name(self, ref: Ref) -> str:
        if ref.name == "N":
            return "n_columns"
        if ref.type.element is Element.BOOL and any(p.name == ref.name for p in self.spec.params):
            return ref.name.upper()
        return ref.name

    def _operand(self, term: Term) -> str:
        """An argument of a ``tl`` function, which takes a bare number as float32."""
        is_exact = isinstance(term, Literal) and _is_float32(term.value)
        return self.text(term) if is_exact else self._tensor(term)

    def _tensor(self, term: Term, outer: int = _TERNARY, type_: Type | None = None) -> str:
        """A term as a tensor, of some type, even where it would be a number of Python's."""
        if not self._is_number(term):
            return self._text(term, outer)
        return f"tl.full((1, 1), {self.text(term)}, {_dtype(type_ or term.type)})"

    def _is_number(self, term: Term) -> bool:
        """Whether a term may be a number of Python's when the kernel is compiled."""
        if isinstance(term, Op) and term.op == "where":
            condition, *branches = term.arguments
            return self._at_compile_time(condition) and all(map(self._is_number, branches))
        if isinstance(term, Op):
            of_numbers = term.op in (*_BINARY, "neg", "pow", "detach")
            return of_numbers and all(map(self._is_number, term.arguments))
        return isinstance(term, Literal)

    def _neg(self, term: Op) -> tuple[str, int]:
        return f"-{self._text(term.arguments[0], _UNARY)}", _UNARY

    def _not(self, term: Op) -> tuple[str, int]:
        return f"~{self._text(term.arguments[0], _UNARY)}", _UNARY

    def _pow(self, term: Op) -> tuple[str, int]:
        base, power = term.arguments
        exponent = power.value if isinstance(power, Literal) else None
        if exponent == 0.5:
            return f"tl.sqrt({self.text(base)})", _ATOM
        if exponent == -0.5:
            return f"tl.rsqrt({self.text(base)})", _ATOM
        if exponent in PRODUCTS:
            return " * ".join([self._text(base, 11 + 1)] * int(exponent)), 11
        if exponent in (-1, -2):
            base_text = self._text(base, 11 + 1)
            return f"1.0 / {base_text if exponent == -1 else f'({base_text} * {base_text})'}", 11
        return f"{self.use('power')}({self._tensor(base)}, {self._tensor(power)})", _ATOM

    def _floored(self, term: Op) -> tuple[str, int]:
        left, right = term.arguments
        symbol = "//" if term.op == "floordiv" else "%"
        if term.type.element is Element.INT:
            if self._never_negative(left) and self._never_negative(right):
                return f"{self._text(left, 11)} {symbol} {self._text(right, 12)}", 11
            name = "floor_divide_int" if term.op == "floordiv" else "floor_modulo_int"
        else:
            name = "floor_divide" if term.op == "floordiv" else "floor_modulo"
        return f"{self.use(name)}({self._operand(left)}, {self._operand(right)})", _ATOM

    def _never_negative(self, term: Term) -> bool:
        if isinstance(term, Literal):
            return term.value >= 0
        if isinstance(term, Ref):
            param = next((p for p in self.spec.params if p.name == term.name), None)
            bounded = param is not None and param.minimum is not None and param.minimum >= 0
            return bounded or term.name in ("N", "row", "column")
        return term.op in ("add", "mul", "floordiv", "mod") and all(
            self._never_negative(argument) for argument in term.arguments
        )

    def _maximum(self, term: Op) -> tuple[str, int]:
        return self._extremum("maximum", term), _ATOM

    def _minimum(self, term: Op) -> tuple[str, int]:
        return self._extremum("minimum", term), _ATOM

    def _extremum(self, name: str, term: Op) -> str:
        """NaN if either is NaN, as in PyTorch; whole numbers have none."""
        is_float = term.type.element is Element.FLOAT
        function = self.use(f"nan_{name}") if is_float else f"tl.{name}"
        return f"{function}({', '.join(map(self._operand, term.arguments))})"

    def _clamp(self, term: Op) -> tuple[str, int]:
        is_float = term.type.element is Element.FLOAT
        function = self.use("clamp" if is_float else "clamp_int")
        return f"{function}({', '.join(map(self._operand, term.arguments))})", _ATOM

    def _where(self, term: Op) -> tuple[str, int]:
        condition, yes, no = term.arguments
        if self._at_compile_time(condition):
            if not self._is_number(term):
                chosen = f"{self._tensor(yes, 1, term.type)} if {self._text(condition, 1)}"
                return f"{chosen} else {self._tensor(no, 0, term.type)}", _TERNARY
            return (
                f"{self._text(yes, 1)} if {self._text(condition, 1)} else {self._text(no, 0)}",
                _TERNARY,
            )
        is_constant = isinstance(yes, Literal) and isinstance(no, Literal)
        if is_constant and term.type.element is Element.FLOAT:
            branches = f"tl.full((1, 1), {self.text(yes)}, COMPUTE), {self._operand(no)}"
        else:
            branches = f"{self._operand(yes)}, {self._operand(no)}"
        return f"tl.where({self.text(condition)}, {branches})", _ATOM

    def _compile_time_logic(self, term: Op) -> tuple[str, int]:
        if term.op == "not":
            return f"not {self._text(term.arguments[0], 2)}", 2
        return f" {term.op} ".join(self._text(a, 2) for a in term.arguments), 1

    def _at_compile_time(self, term: Term) -> bool:
        """Whether a condition is made of bool params alone."""
        flags = {p.name for p in self.spec.params if p.element is Element.BOOL}
        for part in walk(term):
            if isinstance(part, Literal) or (isinstance(part, Ref) and part.name not in flags):
                return False
            if isinstance(part, Op) and part.op not in ("and", "or", "not"):
                return False
        return True

    def _float(self, term: Op) -> tuple[str, int]:
        return f"tl.cast({self.text(term.arguments[0])}, COMPUTE)", _ATOM

    def _random(self, term: Op) -> tuple[str, int]:
        """Numbers for the whole tile, which knows its columns by the first."""
        tile = f"{self.text(term.arguments[0])}, row, {self.first_column}, n_columns, BLOCK"
        return f"{self.use('random_tile')}({tile}).to(COMPUTE)", _ATOM

    def _detach(self, term: Op) -> tuple[str, int]:
        return self._leveled(term.arguments[0])

    def _cast(self, term: Op) -> tuple[str, int]:
        like = term.like or ""
        dtype = _TRITON_DTYPES.get(like, f"{like}_ptr.dtype.element_ty")
        value = self._tensor(term.arguments[0], _ATOM) + through_float32(like)
        return f"{value}.to({dtype}).to(COMPUTE)", _ATOM


def through_float32(dtype: str) -> str:
    """The conversion before one to ``dtype``: the hardware has none from float64 to eight bits."""
    return ".to(tl.float32)" if dtype.startswith("float8") else ""


def number(value: float) -> str:
    """A number as Python source."""
    if isinstance(value, float) and math.isinf(value):
        return 'float("inf")' if value > 0 else 'float("-inf")'
    return repr(value)


def _is_small(product: Op) -> bool:
    """Whether a product of a row, a column or N with a small number, which fits in 32 bits."""
    numbers = [t.value for t in product.arguments if isinstance(t, Literal)]
    names = [t for t in product.arguments if isinstance(t, Ref) and t.name in BUILTINS]
    return len(numbers) == len(names) == 1 and abs(numbers[0]) <= 1024


def _is_literal(term: Term, value: float) -> bool:
    return isinstance(term, Literal) and term.value == value


def _negated(condition: Term) -> Term:
    """What holds where a condition does not; comparisons with NaN keep their ``not``."""
    opposite = {"equal": "not_equal", "not_equal": "equal"}
    if isinstance(condition, Op) and condition.op in opposite:
        return replace(condition, op=opposite[condition.op])
    return Op("not", (condition,), condition.type, condition.at)


def _is_column(term: Term) -> bool:
    return isinstance(term, Ref) and term.name == "column"


def _dtype(type_: Type) -> str:
    return "COMPUTE" if type_.element is Element.FLOAT else "tl.int64"


def _is_float32(value: float) -> bool:
    try:
        packed: float = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return False
    return packed == value


def shape(kind: Kind) -> str:
    """The shape of a value of some kind inside a kernel."""
    rows = "ROWS" if kind in (Kind.MATRIX, Kind.PER_ROW) else "1"
    columns = "BLOCK" if kind in (Kind.MATRIX, Kind.PER_COLUMN) else "1"
    return f"({rows}, {columns})"


HELPERS = {
    "nan_maximum": '''@triton.jit
def nan_maximum(left, right):
    """The larger; NaN if either is, which ``tl.maximum`` alone would drop."""
    return tl.maximum(left, right, propagate_nan=tl.PropagateNan.ALL)''',
    "nan_minimum": '''@triton.jit
def nan_minimum(left, right):
    """The smaller; NaN if either is, which ``tl.minimum`` alone would drop."""
    return tl.minimum(left, right, propagate_nan=tl.PropagateNan.ALL)''',
    "clamp": """@triton.jit
def clamp(value, low, high):
    return nan_minimum(nan_maximum(value, low), high)""",
    "clamp_int": """@triton.jit
def clamp_int(value, low, high):
    return tl.minimum(tl.maximum(value, low), high)""",
    "row_sum": """@triton.jit
def row_sum(values):
    return tl.sum(values, axis=1, keep_dims=True)""",
    "row_quotient": '''@triton.jit
def row_quotient(total, count):
    """total / count, rounded to nearest: in float32, ``/`` is off by up to two steps on a GPU."""
    if total.dtype == tl.float64:
        quotient = total / count
    else:
        quotient = tl.div_rn(total, tl.cast(count, tl.float32))
    return quotient''',
    "row_mean": '''@triton.jit
def row_mean(values, n_columns):
    """The mean over the real columns: padding is 0 and is not counted."""
    return row_quotient(tl.sum(values, axis=1, keep_dims=True), n_columns)''',
    "row_max": """@triton.jit
def row_max(values):
    return tl.reduce(values, 1, nan_maximum, keep_dims=True)""",
    "row_min": """@triton.jit
def row_min(values):
    return tl.reduce(values, 1, nan_minimum, keep_dims=True)""",
    "column_sum": """@triton.jit
def column_sum(values):
    return tl.sum(values, axis=0, keep_dims=True)""",
    "exp": '''@triton.jit
def exp(x):
    """e ** x by a power of 2, which takes half the instructions: below 2 ** -126 it is 0."""
    return tl.exp(x) if x.dtype == tl.float64 else tl.exp2(x * 1.4426950408889634)''',
    "reciprocal": '''@triton.jit
def reciprocal(x):
    """1 / x of a positive x, off by a few units in the last place; ``/`` takes far longer."""
    if x.dtype == tl.float64:
        inverse = 1.0 / x
    else:
        root = tl.rsqrt(x)
        inverse = root * root
    return inverse''',
    "sigmoid": """@triton.jit
def sigmoid(x):
    return reciprocal(1.0 + exp(-x))""",
    "merge_exp_sum": '''@triton.jit
def merge_exp_sum(maximum, total, values):
    """Adds a chunk to a row's running maximum and sum(exp(values - maximum))."""
    merged = nan_maximum(maximum, row_max(values))
    # While all is -inf, shift by 0: exp(-inf) adds nothing, where exp(-inf + inf) is NaN.
    shift = tl.where(merged == float("-inf"), 0.0, merged)
    total = total * exp(maximum - shift) + row_sum(exp(values - shift))
    return merged, total''',
    "rescale_exp_sum": '''@triton.jit
def rescale_exp_sum(total, before, maximum, shift):
    """A row's sum of exp(. - before) as one of exp(. - shift), where a guard keeps shift finite."""
    scaled = total * exp(before - shift)
    # Where an infinite maximum stays there is nothing to scale; 0 times an overflow stays 0.
    is_kept = (before == maximum) | ((total == 0.0) & (maximum == float("inf")))
    return tl.where(is_kept, total, scaled)''',
    "rescale_open_sum": '''@triton.jit
def rescale_open_sum(total, before, maximum):
    """A row's sum of exp(. - before) as one of exp(. - maximum)."""
    # exp(-inf - before) was NaN while all was -inf, and is 0 after.
    scaled = tl.where(before == float("-inf"), 0.0, total * exp(before - maximum))
    return tl.where(before == maximum, total, scaled)''',
    "moments": '''@triton.jit
def moments(pivot, away, squares, n_columns):
    """A row's mean and variance from sums of (values - pivot) and (values - pivot) ** 2.

    The pivot is the mean of the row's first chunk, a share s of the row, so that its square is at
    most variance / s: little cancels.
    """
    offset = row_mean(away, n_columns)
    variance = row_mean(squares, n_columns) - offset * offset
    return pivot + offset, nan_maximum(variance, 0.0)''',
    "group_sum": '''@triton.jit
def group_sum(
    partial_ptr,
    column,
    in_columns,
    n_groups,
    n_columns,
    COMPUTE: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The groups' partial column sums, added in a fixed order."""
    total = tl.zeros((GROUPS, BLOCK), COMPUTE)
    for start in tl.range(0, n_groups, GROUPS):
        group = start + tl.arange(0, GROUPS)[:, None].to(tl.int64)
        mask = (group < n_groups) & in_columns
        total += tl.load(partial_ptr + group * n_columns + column, mask=mask, other=0.0)
    return column_sum(total)''',
    "shared_column": '''@triton.jit
def shared_column(column, width):
    """column // width without a division of whole numbers: exact up to 2 ** 20 columns."""
    return ((column + 0.5) * (1.0 / width)).to(tl.int32)''',
    "spread": '''@triton.jit
def spread(values, SPAN: tl.constexpr):
    """Each value for SPAN columns next to each other."""
    each = tl.broadcast_to(values[:, :, None], (values.shape[0], values.shape[1], SPAN))
    return each.reshape(values.shape[0], values.shape[1] * SPAN)''',
    "column_place": '''@triton.jit
def column_place(index):
    """A row's index in 32 bits, for comparisons with columns: no column is -1 or 2 ** 31 - 1."""
    return tl.minimum(tl.maximum(index, -1), 2147483647).to(tl.int32)''',
    "random_tile": f'''@triton.jit
def random_tile(seed, row, first_column, n_columns, BLOCK: tl.constexpr):
    """Uniform numbers in [0, 1): four neighbouring columns share one call of Philox."""
    four = first_column // 4 + tl.arange(0, BLOCK // 4)[None, :]
    place = row * tl.cdiv(n_columns, 4) + four
    first, second, third, fourth = tl.randint4x(seed, place, n_rounds={RANDOM_ROUNDS})
    words = tl.join(tl.join(first, third), tl.join(second, fourth))
    return tl.uint_to_uniform_float(words.reshape(row.shape[0], BLOCK))''',
    "round_half_even": '''@triton.jit
def round_half_even(x):
    """Beside a number so large that its neighbours are 1 apart, an addition rounds."""
    large = 4503599627370496.0 if x.dtype == tl.float64 else 8388608.0
    size = tl.abs(x)
    whole = tl.where(size < large, (size + large) - large, size)
    # Zeros keep their sign.
    return tl.where(whole == 0.0, x * 0.0, tl.where(x < 0, -whole, whole))''',
    "sign": '''@triton.jit
def sign(x):
    """-1, 0 or 1; NaN for NaN."""
    return tl.where(x > 0, 1.0, tl.where(x < 0, -1.0, x * 0.0))''',
    "silu": """@triton.jit
def silu(x):
    return x * sigmoid(x)""",
    "tanh": """@triton.jit
def tanh(x):
    # Near 0 the quotient loses digits, and the series has reached full precision.
    decay = exp(-2.0 * tl.abs(x))
    far = tl.where(x < 0, -1.0, 1.0) * (1.0 - decay) * reciprocal(1.0 + decay)
    square = x * x
    near = x * (1.0 + square * (-1.0 / 3.0 + square * (2.0 / 15.0 + square * (-17.0 / 315.0))))
    return tl.where(tl.abs(x) < 0.01, near, far)""",
    "log1p": """@triton.jit
def log1p(x):
    # What 1 + x rounds away comes back as the factor x / (rounded - 1) (Goldberg 1991).
    rounded = 1.0 + x
    is_exact = (rounded == 1.0) | (rounded == float("inf"))
    factor = x / tl.where(is_exact, 1.0, rounded - 1.0)
    return tl.where(is_exact, x, tl.log(rounded) * factor)""",
    "power": '''@triton.jit
def power(base, exponent):
    """``base ** exponent``; NaN for a negative base unless the exponent is whole."""
    size = tl.where(exponent == 0, 1.0, exp(exponent * tl.log(tl.abs(base))))
    half = exponent * 0.5
    signed = tl.where(half == tl.floor(half), size, -size)
    whole = tl.where(exponent == tl.floor(exponent), signed, float("nan"))
    return tl.where(base < 0, whole, size)''',
    "floor_divide": """@triton.jit
def floor_divide(left, right):
    return tl.floor(left / right)""",
    "floor_modulo": '''@triton.jit
def floor_modulo(left, right):
    """The remainder with the sign of the divisor, as in Python."""
    return left - right * tl.floor(left / right)''',
    "floor_modulo_int": '''@triton.jit
def floor_modulo_int(left, right):
    """The remainder with the sign of the divisor, as in Python."""
    return (left % right + right) % right''',
    "floor_divide_int": """@triton.jit
def floor_divide_int(left, right):
    return (left - floor_modulo_int(left, right)) // right""",
}
_HELPER_NEEDS = {
    "clamp": ("nan_maximum", "nan_minimum"),
    "row_max": ("nan_maximum",),
    "row_min": ("nan_minimum",),
    "merge_exp_sum": ("nan_maximum", "row_max", "row_sum", "exp"),
    "rescale_exp_sum": ("exp",),
    "rescale_open_sum": ("exp",),
    "sigmoid": ("exp", "reciprocal"),
    "silu": ("sigmoid", "exp", "reciprocal"),
    "tanh": ("exp", "reciprocal"),
    "power": ("exp",),
    "moments": ("row_mean", "row_quotient", "nan_maximum"),
    "row_mean": ("row_quotient",),
    "floor_divide_int": ("floor_modulo_int",),
    "group_sum": ("column_sum",),
}


def helper_sources(used: set[str]) -> tuple[str, ...]:
    """The helper functions a file needs, in an order in which each finds those it calls."""
    needed = set(used)
    for name in used:
        needed.update(_HELPER_NEEDS.get(name, ()))
    return tuple(source for name, source in HELPERS.items() if name in needed)
