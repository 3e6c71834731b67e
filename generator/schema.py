"""The JSON schema of specs, for editors: the loader's own tables in another notation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from kgen.load import ELEMENTS, INPUT_KINDS
from kgen.spec import (
    CHUNK_KEYS,
    COMPUTE,
    DEFAULT_TOLERANCES,
    FLOAT_DTYPES,
    INPUT_KEYS,
    LARGEST_COLUMNS,
    LARGEST_SCRATCH_MIB,
    LIMITS_KEYS,
    LINE_LIMIT,
    LONG_KEYS,
    MODULE_PATTERN,
    MOST_PEERS,
    NAME_PATTERN,
    OP_PATTERN,
    OUTPUT_DTYPES,
    OUTPUT_KEYS,
    PARAM_KEYS,
    PEER_LIMIT,
    POWERS_OF_TWO,
    SCHEDULES,
    SPEC_KEYS,
    SPLIT_KEYS,
    TILE_KEYS,
    TUNED_RANGES,
    TUNED_WIDTHS,
    TUNING_KEYS,
    Key,
    Limits,
)

Schema = dict[str, Any]


def schema_json() -> str:
    """The text of specs/schema.json: JSON Schema, draft 2020-12."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kgen spec",
        "description": "A row reduction op: what it takes, what it computes, and its gradient.",
        **_object(SPEC_KEYS, _SPEC),
    }
    return json.dumps(schema, indent=2, ensure_ascii=True) + "\n"


def _object(keys: Sequence[Key], values: dict[str, Schema]) -> Schema:
    assert [key.name for key in keys] == list(values), "the tables name the same keys"
    schema: Schema = {
        "type": "object",
        "properties": {key.name: {"description": key.about, **values[key.name]} for key in keys},
        "additionalProperties": False,
    }
    required = [key.name for key in keys if key.required]
    return {**schema, "required": required} if required else schema


def _named(value: Schema, pattern: str = NAME_PATTERN, at_least: int = 1) -> Schema:
    """A mapping whose keys are names that the user chooses."""
    return {
        "type": "object",
        "propertyNames": {"pattern": f"^{pattern}$"},
        "additionalProperties": value,
        "minProperties": at_least,
    }


def _enum(words: Sequence[str], **more: object) -> Schema:
    return {"enum": list(words), **more}


def _choices(*choices: Schema) -> Schema:
    return {"anyOf": list(choices)}


_LINE: Schema = {
    "type": "string",
    "minLength": 1,
    "maxLength": LINE_LIMIT,
    "pattern": r"^[^\n\\]*$",
}
_BLOCK: Schema = {"type": "string", "minLength": 1}
_NUMBER: Schema = {"type": "number"}
_NUMBER_OR_BOOL: Schema = {"type": ["number", "boolean"]}
_ROW: Schema = {"type": "array", "items": _NUMBER_OR_BOOL, "minItems": 1}
_VALUE = _choices(_NUMBER_OR_BOOL, _ROW, {"type": "array", "items": _ROW, "minItems": 1})
_KIND = _enum(
    INPUT_KINDS,
    description="matrix: (M, N), the rows. per_row: (M,), one value a row. "
    "per_column: (N,), shared by all rows. per_batch: (..., N) beside (..., T, N), shared by the "
    "rows of a matrix. per_place: (T, N), shared by all matrices. scalar: (), one number.",
)
_DTYPE = _choices(
    _enum((*OUTPUT_DTYPES, COMPUTE)),
    {"type": "string", "pattern": f"^{NAME_PATTERN}$", "description": "the name of an input"},
)
_INPUT = _object(
    INPUT_KEYS,
    {
        "kind": _KIND,
        "type": _enum(ELEMENTS, default="float"),
        "absent": _NUMBER_OR_BOOL,
        "grad": {"type": "boolean", "default": True},
        "columns": _enum(["shared"]),
        "start": _NUMBER,
    },
)
_PARAM = _object(
    PARAM_KEYS,
    {
        "type": _enum(ELEMENTS, default="float"),
        "default": _NUMBER_OR_BOOL,
        "min": _NUMBER,
        "max": _NUMBER,
    },
)
_LIMITS = _object(
    LIMITS_KEYS,
    {
        "max_columns": {
            "type": "integer",
            "minimum": 1,
            "maximum": LARGEST_COLUMNS,
            "default": Limits().max_columns,
        },
        "scratch_mib": {
            "type": "integer",
            "minimum": 1,
            "maximum": LARGEST_SCRATCH_MIB,
            "default": Limits().scratch_mib,
        },
    },
)
_TOLERANCES: Schema = {
    "type": "object",
    "properties": {
        name: {
            "description": "[absolute, relative]: |out - ref| <= absolute + relative * |ref|",
            "type": "array",
            "items": {"type": "number", "minimum": 0},
            "minItems": 2,
            "maxItems": 2,
            "default": [tolerance.absolute, tolerance.relative],
        }
        for name, tolerance in DEFAULT_TOLERANCES.items()
    },
    "additionalProperties": False,
}
_CASE: Schema = {
    "description": "Values by name: inputs, params, and the gradients d<output> of outputs.",
    "type": "object",
    "properties": {
        "expect": {
            "description": "What outputs and gradients d<input> must be, by name.",
            "type": "object",
            "additionalProperties": _VALUE,
        }
    },
    "additionalProperties": _VALUE,
}


def _tile_number(name: str) -> Schema:
    least, most = TUNED_RANGES[name]
    if name not in POWERS_OF_TWO:
        return {"type": "integer", "minimum": least, "maximum": most}
    powers = (2**power for power in range(most.bit_length()))
    return {"enum": [power for power in powers if power >= least]}


def _tile(keys: Sequence[Key], schedules: Sequence[str] = ()) -> Schema:
    values = {
        key.name: _enum(schedules) if key.name == "schedule" else _tile_number(key.name)
        for key in keys
    }
    return {**_object(keys, values), "minProperties": 1}


def _direction(schedules: Sequence[str], **more: Schema) -> Schema:
    """The tiles by width, and those of chunks."""
    widths = "|".join(map(str, TUNED_WIDTHS))
    whole = [name for name in schedules if name not in LONG_KEYS]
    tiles = [_tile(TILE_KEYS, whole)]
    for name in schedules[len(whole) :]:
        tiles.append({**_tile((TILE_KEYS[0], *LONG_KEYS[name]), [name]), "required": ["schedule"]})
    return {
        "type": "object",
        "patternProperties": {f"^({widths})$": _choices(*tiles)},
        "properties": {"streaming": _tile(CHUNK_KEYS), **more},
        "additionalProperties": False,
        "minProperties": 1,
    }


_BACKWARD_TILES = _direction(SCHEDULES, split=_tile(SPLIT_KEYS))
_TUNING = _object(
    TUNING_KEYS,
    {
        "forward": _direction(SCHEDULES[:3]),
        "backward": _BACKWARD_TILES,
        "double_backward": _BACKWARD_TILES,
    },
)
_SPEC: dict[str, Schema] = {
    "op": {"type": "string", "pattern": f"^{OP_PATTERN}$"},
    "summary": _LINE,
    "source": _LINE,
    "inputs": _named(_choices(_KIND, _INPUT)),
    "params": _named(_PARAM, at_least=0),
    "outputs": _named(_choices(_DTYPE, _object(OUTPUT_KEYS, {"dtype": _DTYPE}))),
    "forward": _BLOCK,
    "backward": _choices(
        {"const": "derive", "description": "the generator works the gradient out"},
        {"const": "none", "description": "the op has no gradient"},
        {**_BLOCK, "description": "formulas that assign d<input> for every input with a gradient"},
    ),
    "double_backward": {"type": "boolean", "default": False},
    "reference": _BLOCK,
    "limits": _LIMITS,
    "dtypes": {
        "type": "array",
        "items": _enum(FLOAT_DTYPES),
        "minItems": 1,
        "uniqueItems": True,
        "default": list(FLOAT_DTYPES),
    },
    "tolerances": _TOLERANCES,
    "cases": _named(_CASE, OP_PATTERN, at_least=0),
    "module": {"type": "string", "pattern": f"^{MODULE_PATTERN}$"},
    "peers": {
        "type": "array",
        "items": {"type": "string", "minLength": 1, "maxLength": PEER_LIMIT},
        "minItems": 1,
        "maxItems": MOST_PEERS,
        "uniqueItems": True,
    },
    "tuning": {**_TUNING, "minProperties": 1},
}
