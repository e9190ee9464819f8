"""Bringing a replay back: chunks from files, items in their order, workers where they were."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .base import Data
from .chunk import Chunk
from .chunkdir import ChunkDir, Contexts, Files
from .chunkfile import Version
from .errors import ReplayError
from .table import Table

if TYPE_CHECKING:
    from .replay import Replay

_log = logging.getLogger("embodied")


@dataclasses.dataclass(slots=True)
class Chain:
    """Where a worker's chain of chunks ends.

    `slot` holds the chunk being filled, `start` is the address of the next window's first step,
    `pending` the steps from there on, and `items` the windows that were completed.
    """

    slot: int
    start: int
    pending: int = 0
    items: int = 0


def save_chains(workers: Mapping[Hashable, Chain], table: Table) -> dict[str, np.ndarray]:
    """What is needed for workers, as far as numbers name them, to go on where they are."""
    known = {k: v for k, v in workers.items() if isinstance(k, (int, np.integer))}
    chunks = [table.chunk(chain.slot) for chain in known.values()]
    uuids = b"".join(chunk.uuid for chunk in chunks)
    rows = [
        (worker, chain.slot, chunk.length, chain.pending, chain.items)
        for (worker, chain), chunk in zip(known.items(), chunks, strict=True)
    ]
    return {
        "chunks": np.frombuffer(uuids, np.uint8).reshape(-1, 16),
        "rows": np.array(rows, np.int64).reshape(-1, 5),
    }


class Restore:
    """One call of `Replay.load`, under the replay's lock.

    Args:
      replay: what to bring back.
      source: the folder to read, if any.
    """

    def __init__(self, replay: Replay, source: ChunkDir | None):
        self._replay = replay
        self._table = replay._table
        self._source = source
        self._own = source is replay._dir
        self._places: dict[bytes, int] = {}  # slots of the saved chunks
        self._versions: dict[bytes, Version] | None = None  # of their files; None: take all
        self._ends: set[bytes] = set()  # the chunks that were being filled
        self._beyond: set[bytes] = set()  # chunks for which there is no room
        self._loaded: dict[int, tuple[int, int]] = {}  # by slot, oldest first: windows to insert

    def load(self, data: Data | None, amount: int | None) -> None:
        """See `Replay.load`."""
        replay, table = self._replay, self._table
        saved = [bytes(uuid) for uuid in data["chunks"]] if data else []
        chains = data.get("chains") if data else None
        if data:
            self._places = dict(zip(saved, map(int, data["slots"]), strict=True))
            names = ("successors", "lengths", "contexts")
            columns = zip(*(data[name] for name in names), strict=True)
            versions = (Version(bytes(s), int(n), int(c)) for s, n, c in columns)
            self._versions = dict(zip(saved, versions, strict=True))
        if chains:
            self._ends = {bytes(uuid) for uuid in chains["chunks"]}
        if self._source is not None:
            self._read(amount)
        slots = np.array([table.find(uuid) for uuid in saved], np.int64)
        self._name_missing(saved, slots)
        first = table.stop
        kept = self._insert_saved(data, slots) if data else np.zeros(0, bool)
        held = self._go_on(chains) if chains else set()
        for slot, (begun, complete) in self._loaded.items():
            for index in range(begun, complete):
                replay._insert(slot * replay.chunksize + index)
        for slot in self._loaded.keys() - held:
            replay._drop(table.release(slot))
        if data:
            replay._selector.load(data["selector"], slots)
            replay._counts.update({k: int(v) for k, v in data["counts"].items()})
            numbers = first + np.cumsum(kept) - 1
            queue = [int(numbers[i]) for i in data["online"] if kept[i]]
            replay._queue.extend(n for n in queue if n >= table.first)
        replay._reserve(0)

    def _read(self, amount: int | None) -> None:
        # Slots of the chunks read, with the range of their window starts.
        replay, table, source = self._replay, self._table, self._source
        assert source is not None
        found, room = 0, True
        full = replay.capacity is not None and (amount is None or amount >= replay.capacity)
        limit = replay.capacity if full else amount
        loaded: dict[int, tuple[int, int]] = {}
        tails: dict[int, int] = {}  # steps from the chunk on to the end of its chain
        for files, contexts in source.names() if source.path.is_dir() else ():
            uuid = files[0][1].uuid
            if (slot := table.find(uuid)) >= 0:
                found += table.refs[slot]
                continue
            unknown = self._versions is not None and uuid not in self._versions
            enough = unknown or (limit is not None and found >= limit and uuid not in self._places)
            chunk = None if enough or not room else self._read_chunk(files, contexts)
            if chunk is not None and replay.max_bytes is not None:
                room = replay._bytes + chunk.nbytes <= replay.max_bytes
            if not room:
                self._beyond.add(uuid)
            if not room or unknown or (enough and full):
                if self._own:
                    source.discard(*(path for path, _ in files), *contexts.values())
                continue
            if chunk is None:
                continue
            slot = self._open(chunk)
            succ = table.find(chunk.succ)
            if succ in loaded and table.pred[succ] < 0:
                table.link(slot, succ)
            tails[slot] = chunk.length + tails.get(int(table.succ[slot]), 0)
            complete = min(max(tails[slot] - replay.length + 1, 0), chunk.length)
            loaded[slot] = (0, complete)
            found += complete
        self._loaded = dict(reversed(loaded.items()))

    def _read_chunk(self, files: Files, contexts: Contexts) -> Chunk | None:
        replay, uuid = self._replay, files[0][1].uuid
        assert self._source is not None
        ends, wanted = uuid in self._ends, (self._versions or {}).get(uuid)
        result = self._source.read(files, contexts, wanted, replay._schema, replay.chunksize, ends)
        if result is None:
            return None
        chunk, replay._schema = result
        if not self._own:
            chunk.path, chunk.context, chunk.version = None, None, 0
            chunk.dirty, chunk.changed = True, False
        if ends and chunk.length < replay.chunksize:
            self._reopen(chunk)
        elif replay.disk and chunk.rows is None:
            self._leave_on_disk(chunk)
        return chunk

    def _open(self, chunk: Chunk) -> int:
        # In the slot of then, so that draws that depend on the order of slots repeat.
        self._replay._bytes += chunk.nbytes
        return self._replay._open(chunk, self._places.get(chunk.uuid))

    def _reopen(self, chunk: Chunk) -> None:
        assert self._replay._schema is not None
        arrays = self._replay._schema.empty(self._replay.chunksize)
        for key, array in chunk.data.items():
            arrays[key][: chunk.length] = array
        chunk.set_room(arrays)

    def _leave_on_disk(self, chunk: Chunk) -> None:
        own = self._replay._dir
        assert own is not None
        chunk.dirty = True
        try:
            own.path.mkdir(parents=True, exist_ok=True)
            own.store(chunk)
        except OSError as error:
            raise ReplayError(
                f"The replay cannot be written to {own.path} ({error}): the folder must be "
                "writable and have enough room."
            ) from error

    def _name_missing(self, saved: list[bytes], slots: np.ndarray) -> None:
        if self._source is None:
            return
        missing = [
            uuid.hex()
            for uuid, slot in zip(saved, slots, strict=True)
            if slot < 0 and uuid not in self._beyond
        ]
        if missing:
            _log.warning(
                "%s: %d of %d saved chunks are missing: %s.",
                self._replay.name,
                len(missing),
                len(slots),
                ", ".join(missing[:5] + ["..."] * (len(missing) > 5)),
            )

    def _insert_saved(self, data: Data, slots: np.ndarray) -> np.ndarray:
        # Inserts the saved items that were loaded, in their order; says which of them that were,
        # and keeps windows that were evicted before the save from coming back.
        replay, loaded = self._replay, self._loaded
        complete = np.zeros(len(slots), np.int64)
        for number, slot in enumerate(slots.tolist()):
            if slot in loaded:
                complete[number] = loaded[slot][1]
                loaded[slot] = (int(data["begun"][number]), loaded[slot][1])
        owner, index = np.asarray(data["items"], np.int64).reshape(-1, 2).T
        kept = index < complete[owner]
        for address in (slots[owner] * replay.chunksize + index)[kept].tolist():
            replay._insert(address)
        return kept

    def _go_on(self, chains: Mapping[str, Any]) -> set[int]:
        # Puts workers back to the ends of their chains; returns the slots in which a window of
        # theirs can start.
        replay, table = self._replay, self._table
        before = {table.chunk(slot).succ: slot for slot in self._loaded}
        held: set[int] = set()
        for uuid, row in zip(map(bytes, chains["chunks"]), chains["rows"], strict=True):
            worker, place, length, pending, items = map(int, row)
            slot = table.find(uuid)
            if worker in replay._workers or (length == 0) != (slot < 0):
                continue
            if slot < 0:
                slot = replay._open(Chunk(replay.chunksize, uuid), place)
                if uuid in before:
                    table.link(before[uuid], slot)
            chunk = table.chunk(slot)
            if chunk.length != length or chunk.size != replay.chunksize or chunk.rows is not None:
                continue
            begin, index = slot, length - pending
            held.add(begin)
            while index < 0 and table.pred[begin] >= 0:
                begin = int(table.pred[begin])
                index += table.chunk(begin).length
                held.add(begin)
            missing = max(0, -index)  # steps that were lost with a chunk
            start = begin * replay.chunksize + index + missing
            replay._workers[worker] = Chain(slot, start, pending - missing, items)
        return held
