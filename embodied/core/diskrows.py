"""Steps that stay on disk: read from chunk files, with what is written back kept beside them."""

from __future__ import annotations

import tempfile
import weakref
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .chunkfile import Member
from .errors import ReplayError


class Scratch:
    """A file without a name, for bytes that need not outlive the process.

    Its space is given back to the system when the process ends, however it ends. Plain reads and
    writes serve better here than memory maps: a file that has become shorter is an error instead
    of a dead process, and the pages that the system caches do not count as the process's memory.

    Args:
      folder: of the file system where the space is.
    """

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self._file: Any = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        self._end = 0
        self._free: defaultdict[int, list[int]] = defaultdict(list)

    def take(self, nbytes: int) -> int:
        """The offset of a region of this size that nobody uses."""
        if self._free[nbytes]:
            return self._free[nbytes].pop()
        self._end += nbytes
        return self._end - nbytes

    def give(self, offset: int, nbytes: int) -> None:
        """Takes a region back."""
        self._free[nbytes].append(offset)

    def read(self, offset: int, out: np.ndarray) -> None:
        """Fills a contiguous array."""
        self._file.seek(offset)
        self._file.readinto(out.reshape(-1).view(np.uint8))

    def write(self, offset: int, values: np.ndarray) -> None:
        """Writes an array.

        Raises:
          ReplayError: there is no room.
        """
        data: Any = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        try:
            self._file.seek(offset)
            while len(data):
                data = data[self._file.write(data) :]
        except OSError as error:
            raise ReplayError(
                f"The replay cannot keep what is written back on disk ({error}): its folder must "
                "have enough room."
            ) from error


class DiskRows:
    """The steps of one complete chunk. All calls come under the replay's lock.

    Args:
      sources: for every key, the file and the place therein.
      length: the number of steps.
      scratch: where values that are written back go until they are read from a file.
    """

    def __init__(self, sources: Mapping[str, tuple[Path, Member]], length: int, scratch: Scratch):
        self._sources = dict(sources)
        self._length = length
        self._scratch = scratch
        self._written: dict[str, tuple[int, np.ndarray]] = {}  # offset; which rows are there
        self.nbytes = sum(member.nbytes for _, member in self._sources.values())

    def read(self, start: int, stop: int, outs: Mapping[str, np.ndarray]) -> None:
        """Fills contiguous arrays [stop - start, ...] by key.

        Raises:
          ReplayError: a file has gone or has become shorter.
        """
        files = defaultdict(list)
        for key in outs:
            files[self._sources[key][0]].append(key)
        for path, keys in files.items():
            try:
                with open(path, "rb", buffering=0) as file:
                    for key in keys:
                        self._sources[key][1].read(file, start, outs[key])
            except (OSError, EOFError) as error:
                raise ReplayError(
                    f"Chunk file {path} of the running replay cannot be read any more "
                    f"({error}): leave the replay's folder alone while it is in use."
                ) from error
        for key in outs.keys() & self._written.keys():
            offset, mask = self._written[key]
            row = self._row(key)
            for first, last in _spans(mask[start:stop]):
                self._scratch.read(offset + (start + first) * row, outs[key][first:last])

    def arrays(self, keys: Iterable[str]) -> dict[str, np.ndarray]:
        """All rows of some keys."""
        members = {key: self._sources[key][1] for key in keys}
        outs = {key: np.empty(member.shape, member.dtype) for key, member in members.items()}
        self.read(0, self._length, outs)
        return outs

    def write(self, key: str, start: int, values: np.ndarray) -> None:
        """Writes values [n, ...] back into the rows from `start` on.

        Raises:
          ReplayError: there is no room on the disk.
        """
        row = self._row(key)
        if key not in self._written:
            offset = self._scratch.take(row * self._length)
            self._written[key] = offset, np.zeros(self._length, bool)
        offset, mask = self._written[key]
        mask[start : start + len(values)] = False  # a write that fails may leave anything
        self._scratch.write(offset + start * row, values)
        mask[start : start + len(values)] = True

    def rebase(self, sources: Mapping[str, tuple[Path, Member]]) -> None:
        """Reads some keys from another file from now on."""
        self._sources.update(sources)

    def release(self) -> None:
        """Gives the space in the scratch file back."""
        for key, (offset, _) in self._written.items():
            self._scratch.give(offset, self._row(key) * self._length)
        self._written.clear()

    def _row(self, key: str) -> int:
        member = self._sources[key][1]
        return member.nbytes // self._length


def _spans(mask: np.ndarray) -> Iterable[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(mask, prepend=False, append=False)).tolist()
    return zip(edges[::2], edges[1::2], strict=True)
