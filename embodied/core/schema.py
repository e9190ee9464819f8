"""Schema: what every step of a replay looks like, as it is given and as it is stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from .codecs import Codec, Spec
from .errors import ReplayError

RESERVED = ("stepid", "priority")


class Field(NamedTuple):
    """One key: its declared dtype and shape, and how it is stored."""

    key: str
    dtype: np.dtype
    shape: tuple[int, ...]
    codec: Codec | None
    stored: Spec


class Schema:
    """Key set, shape and dtype of every step; the first step fixes it for good.

    Args:
      specs: one (dtype, shape) per key, `stepid` left out.
      codecs: how to store some of the keys; those that no step has do not matter.

    Raises:
      ReplayError: a codec that does not fit its key.
    """

    def __init__(self, specs: Mapping[str, Spec], codecs: Mapping[str, Codec] | None = None):
        codecs = codecs or {}
        self.fields = [_field(key, specs[key], codecs.get(key)) for key in sorted(specs)]
        self.specs = [(field.key, field.dtype, field.shape) for field in self.fields]
        self.row = {field.key: field.stored for field in self.fields}
        self.row["stepid"] = (np.dtype(np.uint8), (20,))
        self._byname = {field.key: field for field in self.fields}
        self._keys = frozenset(specs)
        self._accepted = self._keys

    @classmethod
    def of(cls, step: Mapping[str, Any], codecs: Mapping[str, Codec] | None = None) -> Schema:
        """The schema that this step fixes.

        Python numbers count as int32 and float32; keys that start with `log/` are left out.

        Raises:
          ReplayError: a key is reserved, a value is not numeric, or a codec does not fit.
        """
        specs = {}
        for key, value in step.items():
            if key.startswith("log/"):
                continue
            if key in RESERVED:
                raise ReplayError(
                    f"The key {key!r} of a step is set by the replay itself: rename it."
                )
            array = _asarray(value)
            if array.dtype.kind not in "biufc":
                raise ReplayError(
                    f"The key {key!r} has dtype {array.dtype}, which a replay cannot store: "
                    "convert it to a numpy boolean, integer or float."
                )
            specs[key] = (array.dtype, array.shape)
        return cls(specs, codecs)

    @property
    def nbytes(self) -> int:
        """Bytes that are stored of one step, its step id included."""
        return sum(dtype.itemsize * int(np.prod(shape)) for dtype, shape in self.row.values())

    def empty(self, size: int) -> dict[str, np.ndarray]:
        """Uninitialised arrays [size, ...] for the stored form of so many steps."""
        return {key: np.empty((size, *shape), dtype) for key, (dtype, shape) in self.row.items()}

    def check_keys(self, step: Mapping[str, Any]) -> None:
        """Raises a ReplayError if the keys, those under `log/` aside, are not the schema's."""
        if step.keys() == self._accepted:
            return
        found = {key for key in step if not key.startswith("log/")}
        if found != self._keys:
            missing, extra = sorted(self._keys - found), sorted(found - self._keys)
            raise ReplayError(
                f"A step has the keys {sorted(found)} (missing {missing}, unexpected {extra}), "
                f"but the replay holds steps with the keys {sorted(self._keys)}."
            )
        self._accepted = frozenset(step)

    def convert(self, key: str, value: Any, lead: tuple[int, ...] = ()) -> np.ndarray:
        """Brings a value to the dtype of its key, if that is safe.

        Args:
          key: a key of the schema.
          value: what shall be stored.
          lead: leading dimensions that come before the key's shape.

        Raises:
          ReplayError: another shape, another kind of dtype, or an integer out of range.
        """
        dtype, shape = self._byname[key][1:3]
        array = _asarray(value)
        if array.shape != (*lead, *shape):
            raise ReplayError(
                f"The key {key!r} has shape {array.shape}, but the replay holds it with shape "
                f"{(*lead, *shape)}."
            )
        if not np.can_cast(array.dtype, dtype, "same_kind"):
            raise ReplayError(
                f"The key {key!r} has dtype {array.dtype}, which does not fit into {dtype}, the "
                "dtype of the first step: give every step the dtype of the declared space."
            )
        cast = array.astype(dtype, copy=False)
        if dtype.kind in "iu" and cast is not array and not np.array_equal(cast, array):
            raise ReplayError(
                f"The key {key!r} holds integers outside the range of {dtype}, the dtype of the "
                "first step: give every step the dtype of the declared space."
            )
        return cast

    def encode(self, key: str, value: Any, lead: tuple[int, ...]) -> np.ndarray:
        """Brings values [*lead, *shape] of a key to what is stored: [*lead, *stored shape].

        Raises:
          ReplayError: see `convert` and `Codec.encode`.
        """
        array, codec = self.convert(key, value, lead), self._byname[key].codec
        return array if codec is None else codec.encode(array, key)

    def differences(self, other: Schema) -> str:
        """The first difference as half a sentence; empty if there is none."""
        ours, theirs = ({k: (d, s) for k, d, s in x.specs} for x in (self, other))
        for key in sorted(ours.keys() | theirs.keys()):
            if ours.get(key) != theirs.get(key):
                expected, found = (
                    f"{x[key][0]}{list(x[key][1])}" if key in x else "nothing"
                    for x in (ours, theirs)
                )
                return f"{found} instead of {expected} for key {key!r}"
        return ""


def _field(key: str, spec: Spec, codec: Codec | None) -> Field:
    stored = spec if codec is None else codec.stored(spec)
    if stored is None:
        assert codec is not None
        raise ReplayError(
            f"The key {key!r} is {spec[0]}{list(spec[1])}, which cannot be stored by the codec "
            f"{codec.tag}: give it another codec or none."
        )
    return Field(key, *spec, codec, stored)


def _asarray(value: Any) -> np.ndarray:
    if isinstance(value, int) and not isinstance(value, bool):
        return np.asarray(value, np.int32 if -(2**31) <= value < 2**31 else None)
    if isinstance(value, float):
        return np.asarray(value, np.float64 if isinstance(value, np.float64) else np.float32)
    return np.asarray(value)
