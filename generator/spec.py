"""What a spec says: frozen dataclasses that are valid by construction."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from kgen.errors import Span
from kgen.expr import BUILTIN_NAMES, FUNCTIONS, Assignment


class Kind(Enum):
    """How a value spreads over the (M, N) matrix.

    In a batch of matrices, (..., T, N), ``PER_BATCH`` inputs have a row for each matrix and
    ``PER_PLACE`` inputs one for each place in a matrix. In formulas both are matrices.
    """

    MATRIX = "matrix"
    PER_ROW = "per_row"
    PER_COLUMN = "per_column"
    PER_BATCH = "per_batch"
    PER_PLACE = "per_place"
    SCALAR = "scalar"


class Element(Enum):
    """What the entries of a value are."""

    FLOAT = "float"
    INT = "int"
    BOOL = "bool"


BATCHED_KINDS = (Kind.PER_BATCH, Kind.PER_PLACE)
"""Kinds of which a matrix holds one row for several of its own."""

FLOAT_DTYPES = ("float16", "bfloat16", "float32", "float64")
OUTPUT_DTYPES = (*FLOAT_DTYPES, "float8_e4m3fn", "float8_e5m2", "int8", "int32", "int64")
COMPUTE = "compute"
"""The dtype of an output that is stored as it was computed: float32, or float64 as soon as one
float input is float64."""


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor argument. ``absent`` is the neutral value of an optional one.

    A module's parameter starts from ``start``, or from the neutral value where that is None.
    With ``shares_columns`` each entry of its last dimension, K long, serves N / K adjacent columns.
    """

    name: str
    kind: Kind
    at: Span
    element: Element = Element.FLOAT
    absent: float | None = None
    grad: bool = True
    shares_columns: bool = False
    start: float | None = None

    @property
    def is_parameter(self) -> bool:
        """Whether a module around the op holds it."""
        return self.kind is Kind.PER_COLUMN and self.element is Element.FLOAT

    @property
    def spread(self) -> Kind:
        """How its values spread over the matrix in formulas and in kernels."""
        return Kind.MATRIX if self.kind in BATCHED_KINDS else self.kind

    @property
    def is_shared(self) -> bool:
        """Whether its entries serve more than the columns of a per_column value do."""
        return self.kind in (*BATCHED_KINDS, Kind.SCALAR) or self.shares_columns

    @property
    def is_summed(self) -> bool:
        """Whether its gradient is a sum over rows."""
        return self.kind is Kind.PER_COLUMN or self.is_shared

    @property
    def gradient_kind(self) -> Kind:
        """How its gradient leaves the formulas: a sum over rows is one value a column."""
        return Kind.PER_COLUMN if self.is_summed else self.kind

    @property
    def folds_columns(self) -> bool:
        """Whether its gradient is a sum over columns as well."""
        return self.kind is Kind.SCALAR or self.shares_columns


@dataclass(frozen=True, slots=True)
class Param:
    """A number given by keyword. ``bool`` params choose code when a kernel is compiled."""

    name: str
    element: Element
    default: float | int | bool
    at: Span
    minimum: float | None = None
    maximum: float | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """A result. ``dtype`` is an input's name, to take its dtype, a dtype's own, or ``COMPUTE``."""

    name: str
    dtype: str
    at: Span


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest N accepted, and the MiB that partial column sums may take."""

    max_columns: int = 262144
    scratch_mib: int = 64


@dataclass(frozen=True, slots=True)
class Tolerance:
    """``|out - ref| <= absolute + relative * |ref|``."""

    absolute: float
    relative: float


@dataclass(frozen=True, slots=True)
class Case:
    """A worked example for the tests: values by name, as nested tuples of numbers.

    ``places`` says where each number of ``expect`` stands, row by row.
    """

    name: str
    given: tuple[tuple[str, object], ...]
    expect: tuple[tuple[str, object], ...]
    at: Span
    places: tuple[tuple[str, tuple[Span, ...]], ...] = ()

    def place_of(self, name: str, entry: int = 0) -> Span:
        """Where an expected number stands, its value seen as one list."""
        return dict(self.places)[name][entry]


@dataclass(frozen=True, slots=True)
class TunedValue:
    """A number of a tile in place of the rule's."""

    name: str
    value: int
    at: Span


@dataclass(frozen=True, slots=True)
class TunedTile:
    """A tile as a spec has it; what it does not say stays as the rule has it."""

    at: Span
    schedule: str | None = None
    values: tuple[TunedValue, ...] = ()
    schedule_at: Span | None = None

    @property
    def reason_at(self) -> Span:
        """The schedule's place, or that of the whole where it says none."""
        return self.schedule_at or self.at

    def value(self, name: str, otherwise: int) -> int:
        """What it says of ``rows``, ``warps`` and the like."""
        return next((each.value for each in self.values if each.name == name), otherwise)


@dataclass(frozen=True, slots=True)
class Tuning:
    """What a spec says of the tiles of one direction: by width, narrow rows first, and of chunks.

    Widths are in 4-byte words. A schedule never comes before a lesser one in ``SCHEDULES``.
    """

    direction: str
    at: Span
    widths: tuple[tuple[int, TunedTile], ...] = ()
    streaming: TunedTile | None = None
    split: TunedTile | None = None


DEFAULT_TOLERANCES = {
    "float16": Tolerance(3e-3, 3e-3),
    "bfloat16": Tolerance(1e-2, 1.6e-2),
    "float32": Tolerance(1e-5, 1e-4),
    "float64": Tolerance(1e-12, 1e-10),
}


@dataclass(frozen=True, slots=True)
class Spec:
    """One op. ``path`` is the spec's path as headers and messages show it."""

    op: str
    summary: str
    source: str
    path: str
    at: Span
    inputs: tuple[Input, ...]
    params: tuple[Param, ...]
    outputs: tuple[Output, ...]
    forward: tuple[Assignment, ...]
    backward: tuple[Assignment, ...] | Literal["none", "derive"]
    backward_at: Span
    reference: str
    reference_at: Span
    limits: Limits = Limits()
    dtypes: tuple[str, ...] = FLOAT_DTYPES
    tolerances: dict[str, Tolerance] = field(default_factory=lambda: dict(DEFAULT_TOLERANCES))
    cases: tuple[Case, ...] = ()
    module: str | None = None
    double_backward: bool = False
    peers: tuple[str, ...] = ()
    tuning: tuple[Tuning, ...] = ()


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a spec: the loader, the JSON schema and the messages all read this table."""

    name: str
    about: str
    required: bool = False


SPEC_KEYS = (
    Key("op", "the op's name: of the function, of the folder and of the class made from it", True),
    Key("summary", "what the op computes, in one line", True),
    Key("source", "where the formula comes from, in one line: a paper, a model, a ticket", True),
    Key("inputs", "the tensors, in the order of the function's arguments", True),
    Key("params", "numbers given by keyword; run-time values, never a recompile"),
    Key("outputs", "the results, in order, each with its dtype", True),
    Key("forward", "formulas that assign every output", True),
    Key("backward", "formulas that assign every gradient, or 'derive', or 'none'", True),
    Key("double_backward", "true for gradients that can be differentiated once more"),
    Key("reference", "the body of a PyTorch function over the inputs and params: the oracle", True),
    Key("limits", "the largest row and the largest scratch"),
    Key("dtypes", "the floating dtypes that the op takes; all four when left out"),
    Key("tolerances", "how far results may be from the reference, for each dtype"),
    Key("cases", "worked examples for the tests, by name"),
    Key("module", "the class name of a torch.nn.Module around the op, such as RMSNorm"),
    Key("peers", "libraries that have an op like it, for the gallery of ops alone"),
    Key("tuning", "tiles by width in place of the rule's, for each direction; see kgen tune"),
)
INPUT_KEYS = (
    Key("kind", "how the values spread over the (M, N) matrix", True),
    Key("type", "what the entries are; int and bool inputs take no gradient"),
    Key("absent", "makes the input optional: the neutral value used when it is not given"),
    Key("grad", "false when the input takes no gradient"),
    Key("columns", "'shared' when each entry of the last dimension serves several columns"),
    Key("start", "what the module's parameter starts from; the neutral value when left out"),
)
PARAM_KEYS = (
    Key("type", "float or int; a bool param chooses code when a kernel is compiled"),
    Key("default", "the value when the caller gives none", True),
    Key("min", "the smallest value taken"),
    Key("max", "the largest value taken"),
)
OUTPUT_KEYS = (
    Key(
        "dtype",
        "an input's name, to take its dtype, the name of a dtype, or compute: float32, and float64 "
        "as soon as one float input is float64",
        True,
    ),
)
LIMITS_KEYS = (
    Key("max_columns", "the largest N: longer rows raise ValueError"),
    Key("scratch_mib", "MiB that the partial column sums of a backward may take"),
)
TUNING_KEYS = (
    Key("forward", "tiles of the forward kernels"),
    Key("backward", "tiles of the backward kernels"),
    Key("double_backward", "tiles of the double backward kernels"),
)
TILE_KEYS = (
    Key("schedule", "how these rows are taken; wider ones never by an earlier schedule"),
    Key("rows", "rows in a tile: a power of two"),
    Key("warps", "warps of a program: a power of two"),
    Key("stages", "pipeline stages; only where gradients are summed over rows"),
    Key("programs", "programs a processor; only where gradients are summed over rows"),
)
CHUNK_KEYS = (
    Key("block", "words of a chunk: a power of two"),
    Key("warps", "warps of a program: a power of two"),
    Key("stages", "chunks that each step of a walk loads"),
)
SPLIT_KEYS = (
    Key("block", "words of a tile's columns: a power of two"),
    *TILE_KEYS[1:],
)
LONG_KEYS = {"streaming": CHUNK_KEYS, "split": SPLIT_KEYS}
"""What a width says beside ``schedule`` where its rows are walked in chunks."""
WIDTH_KEYS = (TILE_KEYS[0], *SPLIT_KEYS)
"""What widths say, of whatever schedule."""
SCHEDULES = ("resident", "reload", "streaming", "split")
"""How rows are taken, narrow ones first; ``split`` is ``streaming`` where gradients are summed."""
LONG_SCHEDULES = SCHEDULES[2:]
TUNED_WIDTHS = tuple(2**power for power in range(6, 19))
LEAST_LONG_WORDS = 2048
"""The least width, in words, of rows that are walked in chunks."""
TUNED_RANGES = {
    "rows": (1, 1024),
    "warps": (1, 32),
    "block": (64, 65536),
    "stages": (1, 8),
    "programs": (1, 32),
}
POWERS_OF_TWO = ("rows", "warps", "block")
LARGEST_TILE = 65536
LARGEST_COLUMNS = 2**20
LARGEST_SCRATCH_MIB = 4096

OP_PATTERN = r"[a-z][a-z0-9_]{0,47}"
MODULE_PATTERN = r"[A-Z][A-Za-z0-9]{0,47}"
NAME_PATTERN = r"[a-z][a-z0-9_]{0,31}"
LINE_LIMIT = 200
PEER_LIMIT = 60
MOST_PEERS = 20

_BUILTINS = """
    abs aiter all anext any ascii bin bool breakpoint bytearray bytes callable chr classmethod
    compile complex copyright credits delattr dict dir divmod enumerate eval exec exit filter float
    format frozenset getattr globals hasattr hash help hex id input int isinstance issubclass iter
    len license list locals map max memoryview min next object oct open ord pow print property quit
    range repr reversed round set setattr slice sorted staticmethod str sum super tuple type vars
    zip
"""
_GENERATED = """
    block blocks calls column ctx device dtype generated grid group groups in_columns in_rows jit
    kernel kernels kgen launch mask n_columns n_groups n_rows nn on_unsupported op ops pid plan
    plans program pytest reference row rows self shape start stride strides tensor tensors test
    tests tl torch total triton
    column_sum compute floor_divide floor_divide_int floor_modulo floor_modulo_int gradients
    group_sum has_columns math merge_exp_sum moments n_sums name nan_maximum nan_minimum
    partials power problem round_half_even row_max row_mean row_min row_quotient row_sum save stages
    backward_plan clamp_int double_backward_plan forward_ctx forward_plan mark_dirty
    mark_non_differentiable must needs_input_grad save_for_backward saved_tensors
    set_materialize_grads takes random_at random_tile reciprocal rescale_exp_sum rescale_open_sum
    back batch_index last_start n_batches n_places n_splits part_index place_index split_index
    apply are_hooked call facts is_known is_same is_transformed key layout launches main needs
    all_sums column_place forward_ad itemsize part_sums planned remember shared_column sum_block
    in_spans n_chunks span spread sum_groups sum_index
"""
RESERVED = frozenset([*_BUILTINS.split(), *_GENERATED.split(), *OUTPUT_DTYPES, *FUNCTIONS])
"""Names that generated code or the language of formulas uses itself."""
_SUFFIXES = (
    "_lanes",
    "_pivot",
    "_partial",
    "_ptr",
    "_stride",
    "_scratch",
    "_reference",
    "_kernel",
    "_block",
    "_dtype",
    "_shape",
    "_width",
)
_MODULES = """
    abc argparse ast asyncio base64 builtins cmath code codecs collections contextlib copy csv
    ctypes dataclasses datetime decimal difflib dis distutils enum errno fractions functools gc
    generator glob hashlib heapq importlib inspect io itertools json keyword logging math
    multiprocessing numbers numpy operator os pathlib pickle pip platform pprint queue random re
    select setuptools shutil signal site socket specs sqlite3 ssl stat statistics string struct
    subprocess symtable sys tempfile templates textwrap threading time timeit token tokenize
    traceback types typing unittest uuid warnings weakref xml yaml zipfile
"""
_WRAPPER = """
    AbstractContextManager Any BOOLS Counter F FLOATS INTERPRETED INTS Literal NamedTuple Plan
"""
_CLASSES = frozenset(_WRAPPER.split())
_MODULE_METHODS = """
    apply bfloat16 buffers children columns compile cpu cuda double eval extra_repr forward half
    modules parameters register_buffer register_parameter share_memory state_dict to train training
    xpu zero_grad
"""
MODULE_ATTRIBUTES = frozenset(_MODULE_METHODS.split())
"""Names that a module cannot give to a parameter of its own."""
_RESERVED_OPS = RESERVED.union(_MODULES.split(), ("forward", "backward", "conftest"))


def op_problem(name: str) -> str | None:
    """Why an op cannot be called so, or None."""
    if not re.fullmatch(OP_PATTERN, name):
        return "an op's name is 1 to 48 of a-z, 0-9 and '_', starting with a letter"
    if keyword.iskeyword(name) or name in _RESERVED_OPS:
        return "this name belongs to Python, to PyTorch or to the generated code: take another"
    if name.endswith("_reference") or name.startswith("test_"):
        return "names like this belong to the generated reference and tests: take another"
    return None


def module_problem(name: str) -> str | None:
    """Why a module's class cannot be called so, or None."""
    if not re.fullmatch(MODULE_PATTERN, name):
        return "a class name is 1 to 48 letters and digits, starting with a capital, as in RMSNorm"
    if keyword.iskeyword(name) or name in _CLASSES:
        return "this name belongs to Python or to the generated code: take another"
    return None


def name_problem(name: str) -> str | None:
    """Why an input, param, output or intermediate cannot be called so, or None."""
    if name in BUILTIN_NAMES:
        return "this name is built into formulas: take another"
    if name.startswith("_"):
        return "names start with a letter: those with '_' belong to the generated code"
    if name.lower() != name and re.fullmatch(NAME_PATTERN, name.lower()):
        return "names are written in lower case"
    if not re.fullmatch(NAME_PATTERN, name):
        return "a name is 1 to 32 of a-z, 0-9 and '_', starting with a letter"
    if keyword.iskeyword(name):
        return "this is a Python keyword: take another name"
    if name in RESERVED:
        return "this name belongs to Python, to the formulas or to the generated code: take another"
    if name.endswith(_SUFFIXES):
        return f"names that end in '_{name.rpartition('_')[2]}' belong to the generated code"
    return None


def case_problem(name: str) -> str | None:
    """Why a case cannot be called so, or None."""
    if re.fullmatch(OP_PATTERN, name):
        return None
    return "a case's name is 1 to 48 of a-z, 0-9 and '_', starting with a letter"


def gradient_name(name: str) -> str:
    """What the gradient of an input or an output is called in formulas."""
    return f"d{name}"


def second_gradient_name(name: str) -> str:
    """What the gradient is called that an input gets by way of the first gradients."""
    return f"d2{name}"


def differentiable_inputs(spec: Spec) -> tuple[Input, ...]:
    """The inputs that get a gradient."""
    return tuple(i for i in spec.inputs if i.grad and i.element is Element.FLOAT)


def differentiable_outputs(spec: Spec) -> tuple[Output, ...]:
    """The outputs that a gradient comes back for."""
    return tuple(o for o in spec.outputs if has_gradient(o, spec.inputs))


def is_batched(spec: Spec) -> bool:
    """Whether the op takes (..., T, N): a batch of matrices, rather than rows in any order."""
    return any(i.kind in BATCHED_KINDS for i in spec.inputs)


def has_gradient(output: Output, inputs: tuple[Input, ...]) -> bool:
    """Whether a gradient flows back into an output: whether its dtype is a floating one."""
    for entry in inputs:
        if entry.name == output.dtype:
            return entry.element is Element.FLOAT
    return output.dtype in (*FLOAT_DTYPES, COMPUTE)
