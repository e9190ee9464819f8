"""Codecs: how the replay stores what the policy remembers, in a fraction of its bytes."""

from __future__ import annotations

import re
import sys
from typing import Any

import numpy as np

from .errors import ReplayError

Spec = tuple[np.dtype, tuple[int, ...]]

_FLOAT32 = np.dtype(np.float32)
_BLOCK = 1 << 13  # numbers that are worked on at a time, so that they stay in the cache
_HALF = np.uint32(0x8000)
_UPPER = slice(1 if sys.byteorder == "little" else 0, None, 2)  # halves of 32-bit numbers


class Codec:
    """Turns the float32 values of one key into what is stored, and back.

    `tag` names the codec in files; `Codec.parse(tag)` makes it again.
    """

    tag: str

    @staticmethod
    def parse(tag: str) -> Codec | None:
        """The codec of a tag; None for the empty one.

        Raises:
          ReplayError: there is no such codec.
        """
        if not tag:
            return None
        if tag == BFloat16.tag:
            return BFloat16()
        if match := re.fullmatch(r"onehot([1-9]\d{0,4})", tag):
            return OneHot(int(match[1]))
        raise ReplayError(f"There is no codec {tag!r}: valid ones are bfloat16 and onehotCLASSES.")

    def stored(self, declared: Spec) -> Spec | None:
        """Dtype and shape of what is stored for such values; None if it cannot store them."""
        raise NotImplementedError

    def declared(self, stored: Spec) -> Spec | None:
        """Dtype and shape of the values that are stored so; None if it does not store so."""
        raise NotImplementedError

    def encode(self, values: np.ndarray, key: str) -> np.ndarray:
        """Encodes float32 values with any leading dimensions.

        Args:
          values: float32 [..., *shape].
          key: for the message.

        Raises:
          ReplayError: a value that cannot be represented.
        """
        raise NotImplementedError

    def decode(self, stored: np.ndarray, out: np.ndarray) -> None:
        """Writes the decoded values into the contiguous float32 array `out`."""
        raise NotImplementedError


class BFloat16(Codec):
    """The upper 16 bits of a float32, rounded to the nearest: 8 significant bits.

    What is a bfloat16 number already comes back exactly; of others, at most 1/256 of the
    value is lost (half a unit of the last of 8 bits). Infinities and NaNs stay what they are.
    """

    tag = "bfloat16"

    def stored(self, declared: Spec) -> Spec | None:
        """See the base class."""
        return (np.dtype(np.uint16), declared[1]) if declared[0] == _FLOAT32 else None

    def declared(self, stored: Spec) -> Spec | None:
        """See the base class."""
        return (_FLOAT32, stored[1]) if stored[0] == np.uint16 else None

    def encode(self, values: np.ndarray, key: str) -> np.ndarray:
        """See the base class."""
        if values.ndim == 1 and len(values) <= _BLOCK:  # one step's: every call counts
            return self._round(values, key)
        flat = np.ascontiguousarray(values).reshape(-1)
        out = np.empty(flat.shape, np.uint16)
        for start in range(0, len(flat), _BLOCK):
            out[start : start + _BLOCK] = self._round(flat[start : start + _BLOCK], key)
        return out.reshape(values.shape)

    def decode(self, stored: np.ndarray, out: np.ndarray) -> None:
        """See the base class."""
        np.left_shift(stored, np.uint32(16), out=out.view(np.uint32))

    def _round(self, values: np.ndarray, key: str) -> np.ndarray:
        bits, half = values.view(np.uint32), _HALF
        with np.errstate(over="ignore", invalid="ignore"):
            ordinary = values.dot(values) < np.inf  # the cheapest test of all numbers at once
        if ordinary:
            return (bits + half).view(np.uint16)[_UPPER]
        magnitude = bits & np.uint32(0x7FFFFFFF)
        finite, nan = magnitude < 0x7F800000, magnitude > 0x7F800000
        wrong = finite & (magnitude >= 0x7F7F8000)
        if wrong.any():
            raise ReplayError(
                f"The key {key!r} holds {values[wrong][0]}, which is beyond the range of "
                "bfloat16: store it as float32."
            )
        # Rounding must not make a number of a NaN, nor cutting off all that marks it as one.
        return ((bits | nan * np.uint32(0x400000)) + finite * half).view(np.uint16)[_UPPER]


class OneHot(Codec):
    """The class index of exact one-hot vectors; a vector of zeros has an index of its own.

    Args:
      classes: C, the size of the last dimension.
    """

    def __init__(self, classes: int):
        self.tag = f"onehot{classes}"
        self._classes = classes
        self._dtype = np.dtype(np.uint8 if classes < 256 else np.uint16)
        self._table = np.eye(classes + 1, classes, dtype=np.float32)  # the last one is zero

    def stored(self, declared: Spec) -> Spec | None:
        """See the base class."""
        dtype, shape = declared
        fits = dtype == _FLOAT32 and shape[-1:] == (self._classes,)
        return (self._dtype, shape[:-1]) if fits else None

    def declared(self, stored: Spec) -> Spec | None:
        """See the base class."""
        return (_FLOAT32, (*stored[1], self._classes)) if stored[0] == self._dtype else None

    def encode(self, values: np.ndarray, key: str) -> np.ndarray:
        """See the base class."""
        index = values.argmax(-1)
        if self._table.take(index, 0).tobytes() != values.tobytes():
            index = np.where(values.any(-1), index, self._classes)
            wrong = (self._table.take(index, 0) != values).any(-1)
            if wrong.any():
                raise ReplayError(
                    f"The key {key!r} holds {_brief(values[wrong][0])}, which is no one-hot "
                    "vector: store it without this codec."
                )
        return index.astype(self._dtype)

    def decode(self, stored: np.ndarray, out: np.ndarray) -> None:
        """See the base class."""
        self._table.take(stored, 0, out, "clip")


def _brief(vector: np.ndarray) -> Any:
    return np.array2string(vector, threshold=6, edgeitems=2)
