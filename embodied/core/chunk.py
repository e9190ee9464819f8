"""Chunks: blocks of consecutive steps of one worker."""

from __future__ import annotations

import dataclasses
import datetime
import threading
import time
import uuid as uuidlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .chunkfile import ChunkName, context_name
from .diskrows import DiskRows
from .schema import Schema

Arrays = dict[str, np.ndarray]
NO_CHUNK = bytes(16)

_clock_lock = threading.Lock()
_clock_last = 0


@dataclasses.dataclass(slots=True, eq=False)
class Snapshot:
    """What is to be written of a chunk, as it was at one moment.

    Attributes:
      name: of the file with steps.
      steps: its arrays; None if that file is there already.
      context_name: of the file for what was written back.
      context: its arrays; None if there is nothing new.
      late: keys of the context that are still to be read from the disk.
      copied: bytes that it alone holds, since the chunk has changed.
    """

    name: str
    steps: Arrays | None
    context_name: str
    context: Arrays | None
    late: frozenset[str] = frozenset()
    copied: int = 0


class Chunk:
    """Up to `size` consecutive steps of one worker, in the stored form.

    They are in the arrays `data` [size, ...], which are allocated with the first step, so that an
    empty chunk costs nothing; or, once complete and written, in `rows` on disk.

    `dirty` is true while there are steps that neither a file nor a snapshot holds, `changed` while
    there are such values that were written back. `frozen` is what a checkpoint is to have written.
    `busy` is true while a file is being written, `dropped` once the replay has let go of the
    chunk. `path` and `context` are its newest files, `version` counts its context files.

    Args:
      size: the number of steps at which the chunk is complete.
      uuid: 16 bytes; random by default.
      created: the time of creation as in the file name; now by default.
    """

    __slots__ = (
        "busy", "changed", "context", "created", "data", "dirty", "dropped", "frozen", "length",
        "path", "rows", "shared", "size", "succ", "uuid", "version", "written",
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
        self.frozen: Snapshot | None = None
        self.shared: set[str] = set()  # keys whose arrays a snapshot holds, too
        self.version = 0
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

    def cut(self, length: int, succ: bytes) -> None:
        """Keeps only the first steps, as they were when there were no more."""
        self.data = {key: array[:length].copy() for key, array in self.data.items()}
        self.length = self.size = length
        self.succ = succ
        self.dirty = True

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
        """Writes values back into a range of steps; snapshots keep what was."""
        self.settle()
        for key, value in values.items():
            if self.rows is not None:
                self.rows.write(key, start, value)
                continue
            if key in self.shared:  # the snapshot keeps what was
                self.shared.remove(key)
                if self.frozen is not None:
                    self.frozen.copied += self.data[key].nbytes
                self.data[key] = self.data[key].copy()
            self.data[key][start:stop] = value
        self.written.update(values)
        self.changed = True

    def snapshot(self, context: bool = True) -> Snapshot | None:
        """Takes what is not on disk yet; None if that is nothing.

        Args:
          context: whether what was written back counts.
        """
        changed = self.changed and context
        if not self.length or not (self.dirty or changed):
            return None
        self.version += changed
        snapshot = Snapshot(self.step_name, None, self.context_name, None)
        if self.dirty:
            snapshot.steps = {key: array[: self.length] for key, array in self.data.items()}
        if changed and self.rows is not None:
            snapshot.late = frozenset({"stepid", *self.written})
        elif changed:
            keys = ("stepid", *self.written)
            snapshot.context = {key: self.data[key][: self.length] for key in keys}
        self.shared = set(self.data)
        self.dirty, self.changed = False, self.changed and not changed
        return snapshot

    def give_back(self, snapshot: Snapshot) -> None:
        """Notes that a snapshot will not be written."""
        self.dirty |= snapshot.steps is not None
        self.changed |= snapshot.context is not None or bool(snapshot.late)

    def settle(self) -> None:
        """Reads what the frozen snapshot still leaves on the disk, before that changes.

        Raises:
          ReplayError: a file has been removed or damaged.
        """
        frozen = self.frozen
        if frozen is None or not frozen.late:
            return
        assert self.rows is not None
        frozen.context = self.rows.arrays(frozen.late)
        frozen.late = frozenset()
        frozen.copied += sum(array.nbytes for array in frozen.context.values())

    @property
    def step_name(self) -> str:
        """The name of the file for the steps that there are."""
        return str(ChunkName(self.created, self.uuid, self.succ, self.length))

    @property
    def context_name(self) -> str:
        """The name of the newest file for what was written back, if there is one."""
        return context_name(self.created, self.uuid, self.version)


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
