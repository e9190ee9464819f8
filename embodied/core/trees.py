"""Trees of containers, numbers and arrays as strict JSON plus a flat dict of arrays.

Everything comes back as it was: tuples as tuples, bytes as bytes, keys that are not strings as
they were. Nothing in the JSON can name a class or a function.
"""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np

from .errors import CheckpointError

Arrays = dict[str, np.ndarray]

# What JSON cannot say is an object with exactly one of these keys.
_ARRAY, _BYTES, _DICT, _FLOAT, _TUPLE = "$array", "$bytes", "$dict", "$float", "$tuple"
_DTYPES = {
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64"),
}


def encode(tree: Any, path: str = "") -> tuple[Any, Arrays]:
    """Splits a tree into JSON values and arrays.

    Args:
      tree: dicts, lists, tuples, numbers, strings, bytes, None and arrays, nested.
      path: where the tree belongs; named in errors.

    Returns:
      The JSON values, and the contiguous arrays by their path in the tree.

    Raises:
      CheckpointError: if a value is of another kind.
    """
    arrays: Arrays = {}
    return _encode(tree, "", path, arrays), arrays


def _encode(tree: Any, name: str, origin: str, arrays: Arrays) -> Any:
    if tree is None or isinstance(tree, bool | int | str):
        return tree
    if isinstance(tree, float) and not isinstance(tree, np.generic):
        return tree if math.isfinite(tree) else {_FLOAT: repr(tree)}
    if isinstance(tree, bytes):
        return {_BYTES: base64.b64encode(tree).decode("ascii")}
    if isinstance(tree, list | tuple):
        items = [_encode(x, _join(name, i), origin, arrays) for i, x in enumerate(tree)]
        return items if isinstance(tree, list) else {_TUPLE: items}
    if isinstance(tree, dict):
        pairs = [(k, _encode(v, _join(name, k), origin, arrays)) for k, v in tree.items()]
        if all(isinstance(k, str) and not k.startswith("$") for k, _ in pairs):
            return dict(pairs)
        return {_DICT: [[_encode(k, name, origin, arrays), v] for k, v in pairs]}
    if hasattr(tree, "__array__"):
        return {_ARRAY: _add_array(tree, name, origin, arrays)}
    raise CheckpointError(
        f"{origin}: {name or 'the tree'!r} is of type {type(tree).__name__}, which a checkpoint "
        "cannot hold: use dicts, lists, numbers, strings, bytes and arrays."
    )


def _add_array(value: Any, name: str, origin: str, arrays: Arrays) -> str:
    array = np.asarray(value, order="C")
    if array.dtype.name not in _DTYPES:
        raise CheckpointError(
            f"{origin}: {name!r} is an array of type {array.dtype}, which a checkpoint cannot "
            "hold: use booleans, integers or real numbers."
        )
    name = name or "value"
    while name in arrays:  # {"a": {"b": x}, "a/b": y}
        name += "~"
    arrays[name] = array
    return name


def _join(name: str, key: Any) -> str:
    return f"{name}/{key}" if name else str(key)


def decode(skeleton: Any, arrays: Arrays) -> Any:
    """Puts together what `encode` split.

    Raises:
      ValueError, KeyError: if the two do not belong together.
    """
    if isinstance(skeleton, list):
        return [decode(x, arrays) for x in skeleton]
    if not isinstance(skeleton, dict):
        return skeleton
    tag = next(iter(skeleton), "")
    if len(skeleton) != 1 or not tag.startswith("$"):
        return {k: decode(v, arrays) for k, v in skeleton.items()}
    value = skeleton[tag]
    if tag == _ARRAY:
        return arrays[value]
    if tag == _BYTES:
        return base64.b64decode(value, validate=True)
    if tag == _FLOAT:
        return float(value)
    if tag == _TUPLE:
        return tuple(decode(x, arrays) for x in value)
    if tag == _DICT:
        return {decode(k, arrays): decode(v, arrays) for k, v in value}
    raise ValueError(f"unknown tag {tag!r}")
