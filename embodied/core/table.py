"""Where every stored step and every item is: chunk slots, chains and the item queue as arrays."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from .buffers import Buffers
from .chunk import Chunk
from .schema import Schema


class Table:
    """Addresses of steps and items.

    A chunk lies in a slot; the address of a step is `slot * chunksize + index`. The chunks of one
    worker are linked into a chain. An item is known by the address of the first step of its
    window. Live items form a queue in order of insertion, numbered from 0 for ever, of which
    `first <= number < stop` are live.

    A chunk is dropped once no item starts in it, nobody holds it and no chunk precedes it.

    Args:
      length: steps of the window that belongs to an item.
      chunksize: greatest number of steps of a chunk.
    """

    def __init__(self, length: int, chunksize: int):
        self.length = length
        self.chunksize = chunksize
        self.first = 0
        self.stop = 0
        self.chunks: list[Chunk | None] = []
        self.span = np.zeros(0, np.int64)  # steps of each slot when it is complete
        self.succ = np.zeros(0, np.int64)  # slot of the next chunk in the chain, or -1
        self.pred = np.zeros(0, np.int64)
        self.live = np.zeros(0, bool)  # by address: does a live item start here?
        self.refs: list[int] = []  # by slot: items that start here, and holds
        self._slots: dict[bytes, int] = {}
        self._free: list[int] = []  # a heap: which slot comes next depends on the present alone
        self._queue = np.zeros(64, np.int64)
        self._buffers = Buffers()
        self._decoded = Buffers()

    def __len__(self) -> int:
        return self.stop - self.first

    def find(self, uuid: bytes) -> int:
        """The slot of a chunk, or -1."""
        return self._slots.get(uuid, -1)

    def chunk(self, slot: int) -> Chunk:
        """The chunk in a slot that holds one."""
        chunk = self.chunks[slot]
        assert chunk is not None
        return chunk

    def occupied(self) -> list[int]:
        """The slots that hold a chunk."""
        return [slot for slot, chunk in enumerate(self.chunks) if chunk is not None]

    def open(self, chunk: Chunk, slot: int | None = None) -> int:
        """Gives the chunk a slot, as a chain of its own with one hold on it.

        Args:
          chunk: what is put there.
          slot: the one to take if it is free; otherwise, and by default, the first free one.
        """
        while not self._free or (slot is not None and slot >= len(self.chunks)):
            self._grow()
        if slot is None or self.chunks[slot] is not None:
            slot = heapq.heappop(self._free)
        else:
            self._free.remove(slot)
            heapq.heapify(self._free)
        self.chunks[slot] = chunk
        self.span[slot] = chunk.size
        self.succ[slot] = self.pred[slot] = -1
        self.refs[slot] = 1
        self._slots[chunk.uuid] = slot
        return slot

    def link(self, slot: int, succ: int) -> None:
        """Makes the chunk in slot `succ` continue the one in `slot`."""
        self.succ[slot] = succ
        self.pred[succ] = slot

    def release(self, slot: int) -> list[Chunk]:
        """Takes back a hold or an item's reference; returns the chunks dropped by it."""
        self.refs[slot] -= 1
        dropped: list[Chunk] = []
        while slot >= 0 and not self.refs[slot] and self.pred[slot] < 0:
            chunk, succ = self.chunk(slot), int(self.succ[slot])
            dropped.append(chunk)
            del self._slots[chunk.uuid]
            self.chunks[slot] = None
            heapq.heappush(self._free, slot)
            if succ >= 0:
                self.pred[succ] = -1
            slot = succ
        return dropped

    def insert(self, address: int) -> int:
        """Appends the item that starts at the address to the queue; returns its number."""
        number, capacity = self.stop, len(self._queue)
        if number - self.first == capacity:
            self._queue = np.resize(self.items(np.arange(self.first, number)), 2 * capacity)
            self._queue = np.roll(self._queue, self.first % (2 * capacity))
        self._queue[number % len(self._queue)] = address
        self.live[address] = True
        self.refs[address // self.chunksize] += 1
        self.stop = number + 1
        return number

    def pop(self) -> int:
        """Takes the oldest item off the queue; its reference stays until `release`."""
        address = int(self._queue[self.first % len(self._queue)])
        self.live[address] = False
        self.first += 1
        return address

    def items(self, numbers: np.ndarray) -> np.ndarray:
        """Addresses int64 of the live items with these numbers."""
        return self._queue[numbers % len(self._queue)]

    def after(self, address: int) -> int:
        """The address that follows in the chain."""
        slot, index = divmod(address + 1, self.chunksize)
        return int(self.succ[slot - 1]) * self.chunksize if index == 0 else address + 1

    def walk(self, addresses: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Addresses so many steps further along their chains (negative: back).

        Args:
          addresses: int64 [...].
          offsets: int64, broadcast against the addresses.

        Returns:
          int64 addresses; -1 where the chain does not reach so far.
        """
        slot, index = np.divmod(addresses, self.chunksize)
        index = index + offsets
        slot = np.broadcast_to(slot, index.shape).copy()
        while (over := (slot >= 0) & (index >= self.span[slot])).any():
            index[over] -= self.span[slot[over]]
            slot[over] = self.succ[slot[over]]
        while (under := (slot >= 0) & (index < 0)).any():
            slot[under] = self.pred[slot[under]]
            index[under] += self.span[slot[under]]
        return np.where(slot >= 0, slot * self.chunksize + index, -1)

    def gather(self, addresses: np.ndarray, schema: Schema) -> dict[str, np.ndarray]:
        """Copies the windows of B items: one array [B, length, ...] per key and `stepid`."""
        outs, data = {}, {}
        for key, (dtype, shape) in schema.row.items():
            outs[key] = self._buffers.take(key, (len(addresses), self.length, *shape), dtype)
        for row, address in enumerate(addresses.tolist()):
            done = 0
            for chunk, start, stop in self._pieces(address):
                end = done + stop - start
                chunk.read(start, stop, {key: out[row, done:end] for key, out in outs.items()})
                done = end
        for key, dtype, shape, codec, _ in schema.fields:
            data[key] = outs[key]
            if codec is not None:
                full = (len(addresses), self.length, *shape)
                data[key] = self._decoded.take(key, full, dtype)
                codec.decode(outs[key], data[key])
        return {**data, "stepid": outs["stepid"]}

    def locate(self, stepids: np.ndarray) -> np.ndarray:
        """Addresses int64 [N] of the steps with these ids uint8 [N, 20]; -1 if not here."""
        addresses = np.full(len(stepids), -1)
        if not len(stepids):
            return addresses
        uuids = stepids[:, :16]
        index = np.ascontiguousarray(stepids[:, 16:]).view(">u4")[:, 0].astype(np.int64)
        # Steps of one chunk mostly come in runs: one look-up a run.
        for start, stop in _runs((uuids[1:] != uuids[:-1]).any(1)):
            slot = self.find(uuids[start].tobytes())
            if slot >= 0:
                part = index[start:stop]
                valid = part < self.chunk(slot).length
                addresses[start:stop] = np.where(valid, slot * self.chunksize + part, -1)
        return addresses

    def overwrite(self, addresses: np.ndarray, values: Mapping[str, np.ndarray]) -> None:
        """Writes values [N, ...] by key into the steps at the addresses [N]; later ones win."""
        if not len(addresses):
            return
        slots, index = np.divmod(addresses, self.chunksize)
        # One write for every run of consecutive steps of a chunk.
        for start, stop in _runs((np.diff(addresses) != 1) | (index[1:] == 0)):
            chunk, first = self.chunk(int(slots[start])), int(index[start])
            part = {key: value[start:stop] for key, value in values.items()}
            chunk.overwrite(first, first + stop - start, part)

    def describe(self, starts: Iterable[int]) -> dict[str, np.ndarray]:
        """What is needed to order the same chunks in the same way again.

        Args:
          starts: for every chain that goes on, the address of the first step that starts no item
            yet.

        Returns:
          For C stored chunks and N live items: `chunks` uint8 [C, 16], their ids; `slots` [C];
          `begun` [C], how many items have started in each, evicted ones included; and `items`
          uint32 [N, 2], oldest first: which of the chunks, and the index therein.
        """
        stored = [slot for slot in self.occupied() if self.chunk(slot).length]
        position = np.full(len(self.chunks), -1)
        position[stored] = np.arange(len(stored))
        slots, index = np.divmod(self.items(np.arange(self.first, self.stop)), self.chunksize)
        begun = np.zeros(len(stored), np.int64)
        np.maximum.at(begun, position[slots], index + 1)
        for slot, start in (divmod(address, self.chunksize) for address in starts):
            if position[slot] >= 0:
                begun[position[slot]] = start
        uuids = b"".join(self.chunk(slot).uuid for slot in stored)
        return {
            "chunks": np.frombuffer(uuids, np.uint8).reshape(-1, 16),
            "slots": np.array(stored, np.int64),
            "begun": begun,
            "items": np.stack([position[slots], index], 1).astype(np.uint32),
        }

    def _pieces(self, address: int) -> list[tuple[Chunk, int, int]]:
        """The window of an item as (chunk, start, stop) parts."""
        slot, start = divmod(address, self.chunksize)
        parts, missing = [], self.length
        while True:
            chunk = self.chunk(slot)
            stop = min(start + missing, chunk.length)
            parts.append((chunk, start, stop))
            missing -= stop - start
            if not missing:
                return parts
            slot, start = int(self.succ[slot]), 0

    def _grow(self) -> None:
        old = len(self.chunks)
        new = max(8, 2 * old)
        grow = new - old
        self.chunks += [None] * grow
        self.refs += [0] * grow
        self.span = np.append(self.span, np.zeros(grow, np.int64))
        self.succ = np.append(self.succ, np.full(grow, -1))
        self.pred = np.append(self.pred, np.full(grow, -1))
        self.live = np.append(self.live, np.zeros(grow * self.chunksize, bool))
        self._free += range(old, new)  # still a heap: these are greater than all others


def _runs(breaks: np.ndarray) -> Iterator[tuple[int, int]]:
    # Half-open ranges between the breaks; breaks[i] lies between the entries i and i + 1.
    return itertools.pairwise([0, *(np.flatnonzero(breaks) + 1).tolist(), len(breaks) + 1])
