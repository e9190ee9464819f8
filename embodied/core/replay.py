"""Replay: keeps the steps of many workers and draws sequences from them."""

from __future__ import annotations

import collections
import dataclasses
import logging
import os
import threading
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .base import BaseReplay, Data
from .chunk import Arrays, Chunk, Schema
from .chunkdir import ChunkDir
from .errors import ConfigError, ReplayError
from .selectors import Selector, Uniform
from .table import Table

_log = logging.getLogger("embodied")


class Replay(BaseReplay):
    """Sequences of `length` consecutive steps of one worker, oldest evicted first.

    Every start of a window that is complete is an item. Windows cross the ends of episodes and
    chunks, never workers. The first step fixes keys, shapes and dtypes. Every step has a
    `stepid` uint8 [20]: the 16 bytes of its chunk's id and its big-endian index therein.
    All methods may be called from several threads.

    Args:
      length: T, the steps of a drawn sequence.
      capacity: greatest number of items; unlimited by default.
      directory: where `save` writes chunk files; nowhere by default.
      chunksize: steps of a chunk.
      online: whether `sample` in train mode first hands out, once and in order, the windows that
        cut each worker's steps into pieces of T without overlap, as far as they are still there.
      selector: draws the items; uniform by default. A selector serves one replay.
      seed: of the default selector.
      name: for messages.

    Raises:
      ConfigError: a size is below one.
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
    ):
        sizes = {"length": length, "capacity": capacity, "chunksize": chunksize}
        for key, value in sizes.items():
            if value is not None and value < 1:
                raise ConfigError(f"The {key} of {name} is {value}: it must be at least 1.")
        self.length = length
        self.capacity = capacity
        self.chunksize = chunksize
        self.online = online
        self.name = name
        self._lock = threading.RLock()
        self._saving = threading.Lock()
        self._dir = None if directory is None else ChunkDir(Path(str(directory)), self._lock)
        self._table = Table(length, chunksize)
        self._rng = np.random.default_rng([seed, 1])  # of what is drawn besides training
        self._selector = Uniform(seed) if selector is None else selector
        self._selector.bind(self._table)
        self._schema: Schema | None = None
        self._workers: dict[Hashable, _Worker] = {}
        self._queue: collections.deque[int] = collections.deque()  # item numbers, ascending
        self._spare: list[Arrays] = []  # arrays of dropped chunks
        self._counts = dict.fromkeys(("inserts", "samples", "updates"), 0)

    def __len__(self) -> int:
        return len(self._table)

    def add(self, step: Data, worker: Hashable = 0) -> None:
        """Appends one transition of one worker; keys that start with `log/` are dropped.

        Raises:
          ReplayError: keys, shape or dtype differ from the first step's; nothing is stored.
        """
        with self._lock:
            if self._schema is None:
                self._schema = Schema.of(step)
            state = self._workers.get(worker)
            if state is None:
                slot = self._open()
                state = self._workers[worker] = _Worker(slot, slot * self.chunksize)
            chunk = self._table.chunk(state.slot)
            chunk.append(step, self._schema, self._spare)
            if chunk.length == self.chunksize:
                slot = self._open()
                chunk.succ = self._table.chunk(slot).uuid
                self._table.link(state.slot, slot)
                state.slot = slot
            state.pending += 1
            if state.pending == self.length:
                self._complete(state)

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

        Args:
          data: `stepid` uint8 [..., 20]; any other stored key [..., *shape]; and, optionally,
            `priority` [...], non-negative numbers for the selector.

        Raises:
          ReplayError: an unknown key, a wrong shape or dtype, or a priority that is no priority.
        """
        values = dict(data)
        stepid = np.asarray(values.pop("stepid", None))
        if stepid.dtype != np.uint8 or stepid.shape[-1:] != (20,):
            raise ReplayError(
                f"An update has {stepid.dtype}{list(stepid.shape)} for key 'stepid': it must be "
                "uint8[..., 20] as it was drawn."
            )
        lead = stepid.shape[:-1]
        priority = values.pop("priority", None)
        priority = None if priority is None else _priorities(priority, lead)
        with self._lock:
            arrays = {key: self._writable(key, value, lead) for key, value in values.items()}
            addresses = self._table.locate(stepid.reshape(-1, 20))
            known = np.flatnonzero(addresses >= 0)
            if arrays:
                self._table.overwrite(addresses[known], {k: v[known] for k, v in arrays.items()})
            if priority is not None:
                self._selector.prioritize(addresses[known], priority[known])
            self._counts["updates"] += len(known)

    def stats(self) -> dict[str, float]:
        """Figures for the log.

        `items`, `chunks`, `streams` (workers) and `ram_gb` (GiB of step arrays) are counts of now.
        Since the previous call: `inserts` (items), `samples` (sequences), `updates` (steps written
        back), and `replay_ratio`, the steps drawn per item inserted.
        """
        with self._lock:
            counts = self._counts
            self._counts = dict.fromkeys(counts, 0)
            ratio = self.length * counts["samples"] / max(1, counts["inserts"])
            slots = self._table.occupied()
            return {
                "items": float(len(self)),
                "chunks": float(len(slots)),
                "streams": float(len(self._workers)),
                "ram_gb": sum(self._table.chunk(slot).nbytes for slot in slots) / 2**30,
                **{key: float(value) for key, value in counts.items()},
                "replay_ratio": ratio,
            }

    def save(self) -> Data:
        """Makes all steps durable in the directory, if there is one.

        Returns:
          The order of the items, the state of the selector and of the online queue, and the
          counts, as a tree of dicts, numbers and arrays.

        Raises:
          ReplayError: the directory cannot be written.
        """
        with self._saving:
            with self._lock:
                state = self._state()
                chunks = [self._table.chunk(slot) for slot in self._table.occupied()]
                chunks = [chunk for chunk in chunks if chunk.dirty and chunk.length]
            if self._dir is not None:
                self._dir.write(chunks)
            return state

    def load(
        self,
        data: Data | None = None,
        directory: str | os.PathLike | None = None,
        amount: int | None = None,
    ) -> None:
        """Brings back the steps in a directory, and the order and random state in `data`.

        Files that are damaged, foreign or do not fit are named in the log and left alone; no
        window reaches over a gap. Chunks that are here already are not loaded again. Workers
        start new chains. Steps in files of the own directory that lie beyond the capacity count
        as evicted.

        Args:
          data: what `save` returned; without it, items come in order of their chunks' creation.
          directory: where to read; by default the replay's own. From another one the chunks are
            copied at the next `save`.
          amount: stop with the newest chunks that hold so many items.

        Raises:
          ReplayError: the given directory does not exist.
        """
        source = self._dir
        if directory is not None:
            path = Path(str(directory))
            if not path.is_dir():
                raise ReplayError(f"There is no replay directory {directory} to load from.")
            if source is None or path.resolve() != source.path.resolve():
                source = ChunkDir(path, self._lock)
        with self._saving, self._lock:
            saved = [bytes(uuid) for uuid in data["chunks"]] if data else []
            places = dict(zip(saved, data["slots"], strict=True)) if data else {}
            loaded = self._read(source, places, amount) if source else {}
            slots = np.array([self._table.find(uuid) for uuid in saved], np.int64)
            if source and (missing := int((slots < 0).sum())):
                _log.warning(
                    "%s: %d of %d saved chunks are missing.", self.name, missing, len(slots)
                )
            first = self._table.stop
            kept = self._restore(data, slots, loaded) if data else np.zeros(0, bool)
            for slot, (begun, complete) in loaded.items():
                for index in range(begun, complete):
                    self._insert(slot * self.chunksize + index)
            for slot in loaded:
                self._drop(self._table.release(slot))
            if data:
                self._selector.load(data["selector"], slots)
                self._counts.update({k: int(v) for k, v in data["counts"].items()})
                numbers = first + np.cumsum(kept) - 1
                queue = [int(numbers[i]) for i in data["online"] if kept[i]]
                self._queue.extend(n for n in queue if n >= self._table.first)

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

    def _complete(self, state: _Worker) -> None:
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
            address = self._table.pop()
            self._selector.evict(address)
            while self._queue and self._queue[0] < self._table.first:
                self._queue.popleft()
            self._drop(self._table.release(address // self.chunksize))

    def _drop(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            chunk.dropped = True
            if self._dir is not None:
                self._dir.discard(chunk.path)
            if chunk.length == self.chunksize and len(self._spare) < len(self._workers):
                self._spare.append(chunk.data)

    def _writable(self, key: str, value: Any, lead: tuple[int, ...]) -> np.ndarray:
        keys = [k for k, _, _ in self._schema.specs] if self._schema else []
        if key not in keys:
            raise ReplayError(
                f"An update has the key {key!r}, which no stored step has: the keys are {keys}."
            )
        assert self._schema is not None
        array = self._schema.convert(key, value, lead)
        return array.reshape(-1, *array.shape[len(lead) :])

    def _state(self) -> Data:
        order = self._table.describe([state.start for state in self._workers.values()])
        return {
            **order,
            "online": np.array(self._queue, np.int64) - self._table.first,
            "selector": self._selector.save(order["slots"]),
            "counts": dict(self._counts),
        }

    def _read(
        self, source: ChunkDir, places: Mapping[bytes, int], amount: int | None
    ) -> dict[int, tuple[int, int]]:
        # Slots of the chunks read, oldest first, with the range of their window starts.
        table, found = self._table, 0
        full = self.capacity is not None and (amount is None or amount >= self.capacity)
        limit = self.capacity if full else amount
        loaded: dict[int, tuple[int, int]] = {}
        tails: dict[int, int] = {}  # steps from the chunk on to the end of its chain
        for files in source.names() if source.path.is_dir() else ():
            uuid = files[0][1].uuid
            if limit is not None and found >= limit and uuid not in places:
                if full and source is self._dir and table.find(uuid) < 0:
                    for path, _ in files:
                        source.discard(path)
                continue
            if (slot := table.find(uuid)) >= 0:
                found += table.refs[slot]
                continue
            result = source.read(files, self._schema, self.chunksize)
            if result is None:
                continue
            chunk, self._schema = result
            if source is not self._dir:
                chunk.path, chunk.dirty = None, True
            # In the slot of then, so that draws that depend on the order of slots repeat.
            slot = self._open(chunk, None if uuid not in places else int(places[uuid]))
            succ = table.find(chunk.succ)
            if succ in loaded and table.pred[succ] < 0:
                table.link(slot, succ)
            tails[slot] = chunk.length + tails.get(int(table.succ[slot]), 0)
            complete = min(max(tails[slot] - self.length + 1, 0), chunk.length)
            loaded[slot] = (0, complete)
            found += complete
        return dict(reversed(loaded.items()))

    def _restore(
        self, data: Data, slots: np.ndarray, loaded: dict[int, tuple[int, int]]
    ) -> np.ndarray:
        # Inserts the saved items that were loaded, in their order; says which of them that were,
        # and keeps windows that were evicted before the save from coming back.
        complete = np.zeros(len(slots), np.int64)
        for number, slot in enumerate(slots.tolist()):
            if slot in loaded:
                complete[number] = loaded[slot][1]
                loaded[slot] = (int(data["begun"][number]), loaded[slot][1])
        owner, index = np.asarray(data["items"], np.int64).reshape(-1, 2).T
        kept = index < complete[owner]
        for address in (slots[owner] * self.chunksize + index)[kept].tolist():
            self._insert(address)
        return kept


@dataclasses.dataclass(slots=True)
class _Worker:
    """Where a worker's chain ends.

    `slot` holds the chunk being filled, `start` is the address of the next window's first step,
    `pending` the steps from there on, and `items` the windows that were completed.
    """

    slot: int
    start: int
    pending: int = 0
    items: int = 0


def _priorities(value: Any, lead: tuple[int, ...]) -> np.ndarray:
    array = np.asarray(value, np.float64)
    if array.shape != lead:
        raise ReplayError(
            f"An update has shape {array.shape} for key 'priority': it must be {lead}, one "
            "number a step id."
        )
    if not (array >= 0).all():
        raise ReplayError(
            f"An update has the priority {array[~(array >= 0)][0]}: priorities must be "
            "non-negative numbers."
        )
    return array.reshape(-1)
