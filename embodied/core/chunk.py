"""Chunks: blocks of consecutive steps of one worker."""

from __future__ import annotations

import datetime
import threading
import time
import uuid as uuidlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .chunkfile import ChunkName, context_name
from .diskrows import DiskRows
from .schema import Schema

Arrays = dict[str, np.ndarray]
NO_CHUNK = bytes(16)

_clock_lock = threading.Lock()
_clock_last = 0


class Snapshot(NamedTuple):
    """What is to be written of a chunk: arrays by file, None for a file that is up to date."""

    name: str
    steps: Arrays | None
    context_name: str
    context: Arrays | None


class Chunk:
    """Up to `size` consecutive steps of one worker, in the stored form.

    They are in the arrays `data` [size, ...], which are allocated with the first step, so that an
    empty chunk costs nothing; or, once complete and written, in `rows` on disk.

    `dirty` is true while there are steps that no file holds, `changed` while there are values
    written back that no file holds. `busy` is true while a file is being written, `saved` once a
    saved state refers to the chunk, and `dropped` once the replay has let go of it. `path` and
    `context` are its newest files.

    Args:
      size: the number of steps at which the chunk is complete.
      uuid: 16 bytes; random by default.
      created: the time of creation as in the file name; now by default.
    """

    __slots__ = (
        "busy", "changed", "context", "created", "data", "dirty", "dropped", "length", "path",
        "rows", "saved", "size", "succ", "uuid", "written",
    )  # fmt: skip

    def __init__(self, size: int, uuid: bytes | None = None, created: str | None = None):
        self.size = size
        self.uuid = uuid or uuidlib.uuid4().bytes
        self.created = created or _timestamp()
        self.succ = NO_CHUNK
        self.length = 0
        self.data: Arrays = {}
        self.rows: DiskRows | None = None
        self.written: set[str] = set()  # keys of which values were written back
        self.dirty = True
        self.changed = False
        self.busy = False
        self.saved = False
        self.dropped = False
        self.path: Path | None = None
        self.context: Path | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of its steps, in memory or on disk."""
        if self.rows is not None:
            return self.rows.nbytes
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
            self.set_room(spare.pop() if spare else schema.empty(self.size))
        data, row = self.data, self.length
        for key, dtype, shape, codec, _ in schema.fields:
            value = step[key]
            if getattr(value, "dtype", None) is not dtype or value.shape != shape:
                value = schema.convert(key, value)
            data[key][row] = value if codec is None else codec.encode(value, key)
        self.length = row + 1
        self.dirty = True

    def set_room(self, arrays: Arrays) -> None:
        """Makes room for more steps: the arrays begin with the steps that there are."""
        self.data, self.size = arrays, len(arrays["stepid"])
        arrays["stepid"][:] = step_ids(self.uuid, self.size)

    def read(self, start: int, stop: int, outs: Mapping[str, np.ndarray]) -> None:
        """Copies a range of steps into contiguous arrays [stop - start, ...] by key.

        Raises:
          ReplayError: a file has been removed or damaged.
        """
        if self.rows is not None:
            self.rows.read(start, stop, outs)
            return
        for key, out in outs.items():
            out[...] = self.data[key][start:stop]

    def overwrite(self, start: int, stop: int, values: Mapping[str, np.ndarray]) -> None:
        """Writes values back into a range of steps."""
        for key, value in values.items():
            if self.rows is not None:
                self.rows.write(key, start, value)
                continue
            if self.busy:  # the writer goes on with what was
                self.data[key] = self.data[key].copy()
            self.data[key][start:stop] = value
        self.written.update(values)
        self.changed = True

    def snapshot(self) -> Snapshot:
        """What is not on disk yet, valid while the chunk is `busy`."""
        name = str(ChunkName(self.created, self.uuid, self.succ, self.length))
        steps = self._arrays(self.data) if self.dirty else None
        context = self._arrays({"stepid", *self.written}) if self.changed else None
        return Snapshot(name, steps, context_name(self.created, self.uuid), context)

    def _arrays(self, keys: Any) -> Arrays:
        if self.rows is not None:
            return self.rows.arrays(keys)
        return {key: self.data[key][: self.length] for key in keys}


def step_ids(uuid: bytes, count: int) -> np.ndarray:
    """The ids uint8 [count, 20] of a chunk's steps."""
    ids = np.empty((count, 20), np.uint8)
    ids[:, :16] = np.frombuffer(uuid, np.uint8)
    ids[:, 16:] = np.arange(count, dtype=">u4")[:, None].view(np.uint8)
    return ids


def _timestamp() -> str:
    # Strictly increasing within the process, so that names sort in order of creation.
    global _clock_last
    with _clock_lock:
        _clock_last = max(time.time_ns() // 1000, _clock_last + 1)
        micros = _clock_last
    epoch = datetime.datetime(1970, 1, 1)
    return f"{epoch + datetime.timedelta(microseconds=micros):%Y%m%dT%H%M%SF%f}"
