"""A folder of chunk files: written atomically, read newest first, damaged files named."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .chunk import Chunk, ChunkName, Schema, write_file
from .errors import ReplayError

_log = logging.getLogger("embodied")


class ChunkDir:
    """The chunk files of one replay.

    A chunk has one file, whose name changes while it grows: the file of the previous state and
    those of dropped chunks are discarded, that is removed once all that is new is on the disk.

    Args:
      path: the folder; made when something is first written.
      lock: held while chunks in memory are copied or change their state.
    """

    def __init__(self, path: Path, lock: threading.RLock):
        self.path = path
        self._lock = lock
        self._discarded: set[Path] = set()

    def discard(self, path: Path | None) -> None:
        """Has the file removed at the next `write`, provided that it lies in this folder."""
        if path is not None and path.parent == self.path:
            self._discarded.add(path)

    def write(self, chunks: Sequence[Chunk]) -> None:
        """Makes the chunks durable and removes discarded files.

        Raises:
          ReplayError: something could not be written; those chunks stay dirty, and nothing is
            removed.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(self._write, chunks))
            self._sync()
            with self._lock:
                discarded, self._discarded = self._discarded, set()
            for path in discarded:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise ReplayError(
                f"The replay cannot be written to {self.path} ({error}): the folder must be "
                "writable and have enough room."
            ) from error

    def names(self) -> Iterator[list[tuple[Path, ChunkName]]]:
        """For every chunk, newest first, its files, longest first; foreign files are named."""
        versions: dict[bytes, list[tuple[Path, ChunkName]]] = {}
        for path in sorted(self.path.iterdir(), reverse=True):
            name = ChunkName.parse(path.name)
            if name:
                versions.setdefault(name.uuid, []).append((path, name))
            elif not path.name.endswith(".npz.tmp"):  # what a killed save leaves
                _log.warning("Replay folder: %s is not a chunk file; it is left alone.", path)
        for files in versions.values():
            yield sorted(files, key=lambda file: file[1].length, reverse=True)

    def read(
        self, files: list[tuple[Path, ChunkName]], schema: Schema | None, longest: int
    ) -> tuple[Chunk, Schema] | None:
        """The chunk from the first of its files that is whole and fits; the others are named.

        Args:
          files: versions of one chunk, best first; those after the one taken are discarded.
          schema: what the steps must look like, if that is known already.
          longest: greatest length of a chunk that can be taken.
        """
        for index, (path, name) in enumerate(files):
            try:
                if name.length > longest:
                    raise ReplayError(
                        f"Chunk file {path} has {name.length} steps, but the chunk size of this "
                        f"replay is {longest}: make it at least as large."
                    )
                chunk, found = Chunk.read(path, name)
                if schema and (difference := schema.differences(found)):
                    raise ReplayError(f"Chunk file {path} has {difference}.")
            except ReplayError as error:
                _log.warning("Replay folder: skipped. %s", error)
                continue
            chunk.path = path
            chunk.dirty = False
            for older, _ in files[index + 1 :]:
                self.discard(older)
            return chunk, found
        return None

    def _write(self, chunk: Chunk) -> None:
        with self._lock:
            if chunk.dropped:
                return
            name, data = chunk.snapshot()
            chunk.dirty = False
        path = self.path / name
        try:
            write_file(path, data)
        except BaseException:
            chunk.dirty = True
            raise
        with self._lock:
            if chunk.path != path:
                self.discard(chunk.path)
            chunk.path = path
            if chunk.dropped:
                self.discard(path)

    def _sync(self) -> None:
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
