"""Replay: keeps the steps of many workers and draws sequences from them."""

from __future__ import annotations

import collections
import os
import threading
from collections.abc import Hashable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .base import BaseReplay, Data, Deferred
from .chunk import Arrays, Chunk
from .chunkdir import ChunkDir
from .codecs import Codec
from .errors import ConfigError, ReplayError
from .restore import Chain, Restore, save_chains
from .schema import Schema
from .selectors import Selector, Uniform
from .table import Table
from .writeback import read_update


class Replay(BaseReplay):
    """Sequences of `length` consecutive steps of one worker, oldest evicted first.

    Every start of a window that is complete is an item. Windows cross the ends of episodes and
    chunks, never workers. The first step fixes keys, shapes and dtypes. Every step has a
    `stepid` uint8 [20]: the 16 bytes of its chunk's id and its big-endian index therein.
    All methods may be called from several threads.

    Args:
      length: T, the steps of a drawn sequence.
      capacity: greatest number of items; unlimited by default.
      directory: where chunk files go: complete ones in the background, the rest at `save`;
        nowhere by default.
      chunksize: steps of a chunk.
      online: whether `sample` in train mode first hands out, once and in order, the windows that
        cut each worker's steps into pieces of T without overlap, as far as they are still there.
      selector: draws the items; uniform by default. A selector serves one replay.
      seed: of the default selector.
      name: for messages.
      max_bytes: greatest size of all chunks, as they are stored; unlimited by default.
      disk: whether complete chunks stay in their files instead of in memory.
      codecs: by key, how float32 values are stored compactly; keys that no step has are allowed.
      save_context: whether `save` writes what was written back into steps that have a file;
        otherwise they may come back with the values that they were first stored with.

    Raises:
      ConfigError: a size is below one, or there is no directory for what stays on disk.
    """

    def __init__(
        self,
        length: int,
        capacity: int | None = None,
        directory: str | os.PathLike | None = None,
        chunksize: int = 1024,
        online: bool = False,
        selector: Selector | None = None,
        seed: int = 0,
        name: str = "replay",
        max_bytes: int | None = None,
        disk: bool = False,
        codecs: Mapping[str, Codec] | None = None,
        save_context: bool = True,
    ):
        sizes = {
            "length": length, "capacity": capacity, "chunksize": chunksize, "max_bytes": max_bytes,
        }  # fmt: skip
        for key, value in sizes.items():
            if value is not None and value < 1:
                raise ConfigError(f"The {key} of {name} is {value}: it must be at least 1.")
        if disk and directory is None:
            raise ConfigError(f"The steps of {name} shall stay on disk: give it a directory.")
        self.length = length
        self.capacity = capacity
        self.chunksize = chunksize
        self.online = online
        self.name = name
        self.max_bytes = max_bytes
        self.disk = disk
        self._codecs = dict(codecs or {})
        self._lock = threading.RLock()
        self._saving = threading.RLock()
        self._dir: ChunkDir | None = None
        if directory is not None:
            recycle = self._recycle if disk else None
            self._dir = ChunkDir(
                Path(str(directory)), self._lock, self._codecs, recycle, save_context
            )
        self._table = Table(length, chunksize)
        self._rng = np.random.default_rng([seed, 1])  # of what is drawn besides training
        self._selector = Uniform(seed) if selector is None else selector
        self._selector.bind(self._table)
        self._schema: Schema | None = None
        self._workers: dict[Hashable, Chain] = {}
        self._queue: collections.deque[int] = collections.deque()  # item numbers, ascending
        self._spare: list[Arrays] = []  # arrays of dropped chunks
        self._bytes = 0  # of the chunks in the table
        self._counts = dict.fromkeys(("inserts", "samples", "updates"), 0)

    def __len__(self) -> int:
        return len(self._table)

    def add(self, step: Data, worker: Hashable = 0) -> None:
        """Appends one transition of one worker; keys that start with `log/` are dropped.

        It waits while chunks become complete faster than they can be written.

        Raises:
          ReplayError: keys, shape or dtype differ from the first step's, or a codec cannot
            represent a value, and nothing is stored; or there is no room for it.
        """
        with self._lock:
            if self._schema is None:
                self._schema = Schema.of(step, self._codecs)
            state = self._workers.get(worker)
            if state is None:
                slot = self._open()
                state = self._workers[worker] = Chain(slot, slot * self.chunksize)
            chunk = self._table.chunk(state.slot)
            if not chunk.length:
                self._reserve(self._schema.nbytes * self.chunksize)
            chunk.append(step, self._schema, self._spare)
            if chunk.length == 1:
                self._bytes += chunk.nbytes
            complete = chunk.length == self.chunksize
            if complete:
                slot = self._open()
                chunk.succ = self._table.chunk(slot).uuid
                self._table.link(state.slot, slot)
                state.slot = slot
            state.pending += 1
            if state.pending == self.length:
                self._complete(state)
        if complete and self._dir is not None:
            self._dir.put(chunk)

    def sample(self, batch: int, mode: str = "train") -> dict[str, np.ndarray]:
        """Draws sequences.

        `is_first` is set at the first step of each, and `is_last` where the step that follows in
        the sequence has `is_first`, so that abandoned episodes end, too.

        Args:
          batch: B, the number of sequences.
          mode: "train" to use up the online queue and then ask the selector; anything else
            draws uniformly and leaves no trace in what training will draw.

        Returns:
          One array [B, T, ...] per key that was added, and `stepid` uint8 [B, T, 20].

        Raises:
          ReplayError: there is no item yet.
        """
        with self._lock:
            if not len(self) or self._schema is None:
                raise ReplayError(
                    f"Nothing can be drawn from {self.name}, since no worker has added "
                    f"{self.length} steps yet: sample only while len(replay) is positive."
                )
            addresses = self._draw(batch) if mode == "train" else self._peek(batch)
            data = self._table.gather(addresses, self._schema)
        if "is_first" in data:
            if "is_last" in data:
                data["is_last"][:, :-1] |= data["is_first"][:, 1:]
            data["is_first"][:, 0] = True
        return data

    def update(self, data: Mapping[str, Any]) -> None:
        """Writes values and priorities back into stored steps; steps no longer here are ignored.

        It waits while a save is being written so slowly that memory for its copies runs out.

        Args:
          data: `stepid` uint8 [..., 20]; any other stored key [..., *shape]; and, optionally,
            `priority` [...], non-negative numbers for the selector.

        Raises:
          ReplayError: an unknown key, a wrong shape or dtype, a value that a codec cannot
            represent, or a priority that is no priority.
        """
        if self._dir is not None:
            self._dir.wait_for_room()
        with self._lock:
            stepid, values, priority = read_update(data, self._schema)
            addresses = self._table.locate(stepid)
            known = np.flatnonzero(addresses >= 0)
            if len(known) < len(addresses):
                addresses = addresses[known]
                values = {key: array[known] for key, array in values.items()}
            if values:
                self._table.overwrite(addresses, values)
            if priority is not None:
                self._selector.prioritize(addresses, priority[known])
            self._counts["updates"] += len(known)

    def stats(self) -> dict[str, float]:
        """Figures for the log.

        `items`, `chunks`, `streams` (workers) and `ram_gb` (GiB of step arrays), and `disk_gb` if
        steps stay on disk, are counts of now. Since the previous call: `inserts` (items),
        `samples` (sequences), `updates` (steps written back), and `replay_ratio`, the steps drawn
        per item inserted.
        """
        with self._lock:
            counts = self._counts
            self._counts = dict.fromkeys(counts, 0)
            ratio = self.length * counts["samples"] / max(1, counts["inserts"])
            chunks = [self._table.chunk(slot) for slot in self._table.occupied()]
            ram = sum(chunk.nbytes for chunk in chunks if chunk.rows is None)
            disk = {"disk_gb": (self._bytes - ram) / 2**30} if self.disk else {}
            return {
                "items": float(len(self)),
                "chunks": float(len(chunks)),
                "streams": float(len(self._workers)),
                "ram_gb": ram / 2**30,
                **disk,
                **{key: float(value) for key, value in counts.items()},
                "replay_ratio": ratio,
            }

    def save(self) -> Data:
        """Makes all steps, and what was written back into them, durable in the directory, if any.

        Returns:
          The order of the items, the state of the selector and of the online queue, where every
          worker is, and the counts, as a tree of dicts, numbers and arrays.

        Raises:
          ReplayError: the directory cannot be written.
        """
        with self._saving:
            deferred = self.save_later()
            deferred.write()
            deferred.done()
            return deferred.tree

    def save_later(self) -> Deferred:
        """As `save`, but leaves the writing to the caller, while adding and training go on.

        Returns:
          What `save` returns, of now; and what makes the steps durable as they are now. Until
          that is `done`, all files stay that the state saved before needs.
        """
        with self._saving, self._lock:
            if self._dir is None:
                return Deferred(self._state())
            chunks = [self._table.chunk(slot) for slot in self._table.occupied()]
            begun = self._dir.begin(chunk for chunk in chunks if chunk.length)
            return Deferred(self._state(), partial(self._write, begun), partial(self._done, begun))

    def load(
        self,
        data: Data | None = None,
        directory: str | os.PathLike | None = None,
        amount: int | None = None,
    ) -> None:
        """Brings back the steps in a directory, and the order and random state in `data`.

        Files that are damaged, foreign or do not fit are named in the log and left alone; no
        window reaches over a gap. Chunks that are here already are not loaded again. With `data`,
        everything is as it was then: steps that were added and values that were written back
        since do not count, and workers with a number for a name go on where they were; others
        start new chains. Steps in files of the own directory that do not count or that lie beyond
        the limits are gone with the next `save`.

        Args:
          data: what `save` returned; without it, items come in order of their chunks' creation.
          directory: where to read; by default the replay's own. From another one the chunks are
            copied at the next `save`, or at once if steps stay on disk.
          amount: stop with the newest chunks that hold so many items.

        Raises:
          ReplayError: the given directory does not exist, or the own one cannot be written.
        """
        source = self._dir
        if directory is not None:
            path = Path(str(directory))
            if not path.is_dir():
                raise ReplayError(f"There is no replay directory {directory} to load from.")
            if source is None or path.resolve() != source.path.resolve():
                source = ChunkDir(path, self._lock, self._codecs)
        with self._saving, self._lock:
            Restore(self, source).load(data, amount)

    def close(self) -> None:
        """Waits until all complete chunks are written; nothing can be added afterwards."""
        if self._dir is not None:
            self._dir.close()

    def _draw(self, batch: int) -> np.ndarray:
        numbers = [self._queue.popleft() for _ in range(min(batch, len(self._queue)))]
        addresses = self._table.items(np.array(numbers, np.int64))
        if len(addresses) < batch:
            drawn = self._selector.sample(batch - len(addresses))
            addresses = np.concatenate([addresses, drawn])
        self._counts["samples"] += batch
        return addresses

    def _peek(self, batch: int) -> np.ndarray:
        numbers = self._table.first + self._rng.integers(0, len(self), batch)
        return self._table.items(numbers)

    def _open(self, chunk: Chunk | None = None, slot: int | None = None) -> int:
        slot = self._table.open(chunk or Chunk(self.chunksize), slot)
        self._selector.open(slot)
        return slot

    def _complete(self, state: Chain) -> None:
        # The window that starts at `start` is complete: it becomes an item.
        before, state.start = state.start, self._table.after(state.start)
        if self.online and state.items % self.length == 0:
            self._queue.append(self._table.stop)
        state.items += 1
        state.pending -= 1
        self._counts["inserts"] += 1
        self._insert(before)
        # The hold of a chunk ends when no further window can start in it.
        if before // self.chunksize != state.start // self.chunksize:
            self._drop(self._table.release(before // self.chunksize))

    def _insert(self, address: int) -> None:
        self._table.insert(address)
        self._selector.insert(address)
        while self.capacity is not None and len(self._table) > self.capacity:
            self._evict()

    def _evict(self) -> None:
        address = self._table.pop()
        self._selector.evict(address)
        while self._queue and self._queue[0] < self._table.first:
            self._queue.popleft()
        self._drop(self._table.release(address // self.chunksize))

    def _drop(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            self._bytes -= chunk.nbytes
            if self._dir is not None:
                self._dir.drop(chunk)
            # Arrays that are being written must not change.
            free = not chunk.busy and chunk.frozen is None
            if chunk.size == self.chunksize and chunk.data and free:
                self._recycle(chunk.data)

    def _write(self, begun: int) -> None:
        assert self._dir is not None
        with self._saving:
            self._dir.write(begun)

    def _done(self, begun: int) -> None:
        assert self._dir is not None
        with self._saving:
            self._dir.done(begun)

    def _recycle(self, arrays: Arrays) -> None:
        if len(self._spare) < len(self._workers):
            self._spare.append(arrays)

    def _reserve(self, nbytes: int) -> None:
        # Makes room for another chunk.
        if self.max_bytes is None:
            return
        while (needed := self._bytes + nbytes) > self.max_bytes:
            if not len(self._table):
                raise ReplayError(
                    f"{self.name} is limited to {self.max_bytes} bytes, but the chunks that "
                    f"{len(self._workers)} workers are filling need {needed}: raise the limit or "
                    "lower the chunk size."
                )
            self._evict()
        if not self.disk:  # the chunk takes one of the spare arrays
            room = max(1, (self.max_bytes - self._bytes) // max(1, nbytes))
            del self._spare[room:]

    def _state(self) -> Data:
        order = self._table.describe([chain.start for chain in self._workers.values()])
        chunks = [self._table.chunk(slot) for slot in order["slots"].tolist()]
        succs = b"".join(chunk.succ for chunk in chunks)
        return {
            **order,
            "successors": np.frombuffer(succs, np.uint8).reshape(-1, 16),
            "lengths": np.array([chunk.length for chunk in chunks], np.int64),
            "contexts": np.array([chunk.version for chunk in chunks], np.int64),
            "chains": save_chains(self._workers, self._table),
            "online": np.array(self._queue, np.int64) - self._table.first,
            "selector": self._selector.save(order["slots"]),
            "counts": dict(self._counts),
        }
