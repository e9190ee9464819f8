"""Chunks: blocks of consecutive steps of one worker, in memory and as files."""

from __future__ import annotations

import datetime
import os
import re
import threading
import time
import uuid as uuidlib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .errors import ReplayError

Arrays = dict[str, np.ndarray]
NO_CHUNK = bytes(16)
RESERVED = ("stepid", "priority")

_FILENAME = re.compile(r"(\d{8}T\d{6}F\d{6})-([0-9a-f]{32})-([0-9a-f]{32})-(\d{1,10})\.npz")
_clock_lock = threading.Lock()
_clock_last = 0


class Schema:
    """Key set, shape and dtype of every step; the first step fixes it for good.

    Args:
      specs: one (dtype, shape) per key, `stepid` left out.
    """

    def __init__(self, specs: Mapping[str, tuple[np.dtype, tuple[int, ...]]]):
        self.specs = [(key, dtype, shape) for key, (dtype, shape) in sorted(specs.items())]
        self._keys = frozenset(specs)
        self._accepted = self._keys

    @classmethod
    def of(cls, step: Mapping[str, Any]) -> Schema:
        """The schema that this step fixes.

        Python numbers count as int32 and float32; keys that start with `log/` are left out.

        Raises:
          ReplayError: a key is reserved, or a value is not numeric.
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
        return cls(specs)

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
        dtype, shape = next((d, s) for k, d, s in self.specs if k == key)
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


class Chunk:
    """Up to `size` consecutive steps of one worker.

    The arrays [size, ...] are allocated with the first step, so that an empty chunk costs
    nothing. `dirty` is true while memory holds what no file does, `dropped` once the replay has
    let go of the chunk, and `path` is its newest file.

    Args:
      size: the number of steps at which the chunk is complete.
      uuid: 16 bytes; random by default.
      created: the time of creation as in the file name; now by default.
    """

    __slots__ = ("created", "data", "dirty", "dropped", "length", "path", "size", "succ", "uuid")

    def __init__(self, size: int, uuid: bytes | None = None, created: str | None = None):
        self.size = size
        self.uuid = uuid or uuidlib.uuid4().bytes
        self.created = created or _timestamp()
        self.succ = NO_CHUNK
        self.length = 0
        self.data: Arrays = {}
        self.dirty = True
        self.dropped = False
        self.path: Path | None = None

    @property
    def nbytes(self) -> int:
        """Memory held by the arrays."""
        return sum(array.nbytes for array in self.data.values())

    def append(self, step: Mapping[str, Any], schema: Schema, spare: list[Arrays]) -> None:
        """Stores one step.

        Args:
          step: one value per key of the schema.
          schema: what steps look like.
          spare: arrays of dropped chunks of this size and schema, one of which is used up if this
            chunk needs some: memory that the system has given already is several times faster.

        Raises:
          ReplayError: the step does not fit the schema; it is not stored then.
        """
        schema.check_keys(step)
        if not self.data:
            if spare:
                self.data = spare.pop()
            else:
                self.data = {k: np.empty((self.size, *s), d) for k, d, s in schema.specs}
            self.data["stepid"] = _stepids(self.uuid, self.size)
        data, row = self.data, self.length
        for key, dtype, shape in schema.specs:
            value = step[key]
            if getattr(value, "dtype", None) is not dtype or value.shape != shape:
                value = schema.convert(key, value)
            data[key][row] = value
        self.length = row + 1
        self.dirty = True

    def snapshot(self) -> tuple[str, Arrays]:
        """The file name of the present state and a copy of the steps."""
        name = f"{self.created}-{self.uuid.hex()}-{self.succ.hex()}-{self.length}.npz"
        return name, {key: array[: self.length].copy() for key, array in self.data.items()}

    @classmethod
    def read(cls, path: Path, name: ChunkName) -> tuple[Chunk, Schema]:
        """Reads a file that `write_file` wrote; executes nothing that is in it.

        Raises:
          ReplayError: the content is damaged or does not belong to the name.
        """
        try:
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
                data = {key: archive[key] for key in archive.files}
        except Exception as error:  # damaged bytes raise from every layer below
            raise ReplayError(f"Chunk file {path} is unreadable ({error!r}).") from error
        stepid = data.get("stepid")
        wanted = _stepids(name.uuid, name.length) if name.length <= os.path.getsize(path) else None
        if wanted is None or stepid is None or not np.array_equal(stepid, wanted):
            raise ReplayError(f"Chunk file {path} does not hold the steps that its name says.")
        for key, array in data.items():
            if array.shape[:1] != (name.length,) or array.dtype.kind not in "biufc":
                raise ReplayError(
                    f"Chunk file {path} has {array.dtype}{list(array.shape)} for key {key!r}: "
                    f"{name.length} numeric entries were expected."
                )
        chunk = cls(name.length, name.uuid, name.created)
        chunk.succ, chunk.length, chunk.data = name.succ, name.length, data
        specs = {k: (v.dtype, v.shape[1:]) for k, v in data.items() if k != "stepid"}
        return chunk, Schema(specs)


class ChunkName(NamedTuple):
    """What the name of a chunk file says: `<created>-<uuid>-<uuid of successor>-<length>.npz`."""

    created: str
    uuid: bytes
    succ: bytes
    length: int

    @classmethod
    def parse(cls, name: str) -> ChunkName | None:
        """The parts of the name, or None for the name of something else."""
        match = _FILENAME.fullmatch(name)
        if not match or not int(match[4]):
            return None
        return cls(match[1], bytes.fromhex(match[2]), bytes.fromhex(match[3]), int(match[4]))


def write_file(path: Path, data: Mapping[str, np.ndarray]) -> None:
    """Writes arrays as an npz file that is whole or absent, whenever the process dies.

    The bytes are on the disk before the name appears; the caller syncs the folder.
    """
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        # np.savez would take keys such as `file` for its own arguments.
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for key, array in data.items():
                with archive.open(key + ".npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _stepids(uuid: bytes, count: int) -> np.ndarray:
    ids = np.empty((count, 20), np.uint8)
    ids[:, :16] = np.frombuffer(uuid, np.uint8)
    ids[:, 16:] = np.arange(count, dtype=">u4")[:, None].view(np.uint8)
    return ids


def _asarray(value: Any) -> np.ndarray:
    if isinstance(value, int) and not isinstance(value, bool):
        return np.asarray(value, np.int32 if -(2**31) <= value < 2**31 else None)
    if isinstance(value, float):
        return np.asarray(value, np.float64 if isinstance(value, np.float64) else np.float32)
    return np.asarray(value)


def _timestamp() -> str:
    # Strictly increasing within the process, so that names sort in order of creation.
    global _clock_last
    with _clock_lock:
        _clock_last = max(time.time_ns() // 1000, _clock_last + 1)
        micros = _clock_last
    epoch = datetime.datetime(1970, 1, 1)
    return f"{epoch + datetime.timedelta(microseconds=micros):%Y%m%dT%H%M%SF%f}"
