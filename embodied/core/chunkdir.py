"""A folder of chunk files: written in the background, read newest first, damaged files named."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import chunkfile
from .chunk import Arrays, Chunk, Snapshot
from .chunkfile import ChunkName, Member
from .chunksource import Source
from .codecs import Codec
from .diskrows import DiskRows, Scratch
from .errors import ReplayError
from .schema import Schema

_log = logging.getLogger("embodied")

Files = list[tuple[Path, ChunkName]]

_THREADS = 4
_QUEUE = 8  # chunks that wait to be written, at most


class ChunkDir:
    """The chunk files of one replay.

    The steps of a chunk have one file, whose name changes while it grows; what is written back
    later has another, so that steps are written once. Files of chunks that were `saved`, which a
    checkpoint may need, are removed only by a later `write`, once all that is new is on the disk.

    Args:
      path: the folder; made when something is first written.
      lock: held while chunks in memory are copied or change their state.
      codecs: of the keys that are stored in another form.
      recycle: takes the arrays of chunks that stay on disk from now on; by default, all chunks
        stay in memory.
    """

    def __init__(
        self,
        path: Path,
        lock: threading.RLock,
        codecs: Mapping[str, Codec] | None = None,
        recycle: Callable[[Arrays], None] | None = None,
    ):
        self.path = path
        self._lock = lock
        self._codecs = codecs or {}
        self._recycle = recycle
        self._scratch: Scratch | None = None
        self._pool = ThreadPoolExecutor(_THREADS, "replay-writer")
        self._room = threading.Semaphore(_QUEUE)
        self._idle = threading.Condition(lock)
        self._failed: dict[bytes, Chunk] = {}  # what `put` could not write
        self._failing = False
        self._discarded: set[Path] = set()
        self._replaced: set[Path] = set()

    def put(self, chunk: Chunk) -> None:
        """Has a complete chunk written in the background; waits if too many others wait already.

        What cannot be written is named in the log; the next `write` tries again. Call it without
        the lock.

        Raises:
          ReplayError: where chunks stay on disk, too many of them could not be written.
        """
        with self._lock:
            again = list(self._failed.values()) if self._recycle else []
        if len(again) > _QUEUE:
            raise ReplayError(
                f"The replay cannot be written to {self.path}, where all but its newest steps "
                "are kept: the folder must be writable and have enough room."
            )
        for item in [*again, chunk]:
            self._room.acquire()
            self._pool.submit(self._background, item)

    def discard(self, *paths: Path | None) -> None:
        """Has files removed by the next `write`, provided that they lie in this folder."""
        self._discarded.update(path for path in paths if path and path.parent == self.path)

    def drop(self, chunk: Chunk) -> None:
        """Discards the files of a chunk that the replay has let go of."""
        chunk.dropped = True
        self._failed.pop(chunk.uuid, None)
        if chunk.rows is not None:
            chunk.rows.release()
        self._discard_files(chunk)

    def begin(self) -> set[Path]:
        """Starts a `write`; returns the files that it shall remove."""
        discarded, self._discarded = self._discarded, set()
        return discarded

    def write(self, chunks: Sequence[Chunk], discarded: Collection[Path] = ()) -> None:
        """Makes the chunks durable, then removes files: those given and older versions.

        Raises:
          ReplayError: something could not be written; those chunks stay dirty, and nothing is
            removed.
        """
        left = set(discarded)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._drain()
            list(self._pool.map(self.store, chunks))
            with self._lock:
                left |= self._replaced
                self._replaced = set()
            self._sync()
            left -= _remove(left)
        except OSError as error:
            raise ReplayError(
                f"The replay cannot be written to {self.path} ({error}): the folder must be "
                "writable and have enough room."
            ) from error
        finally:
            with self._lock:
                self._discarded |= left

    def store(self, chunk: Chunk) -> None:
        """Writes what no file holds of a chunk; the name is not synced.

        Raises:
          OSError: that is impossible.
        """
        with self._lock:
            while chunk.busy:
                self._idle.wait()
            dirty, changed = chunk.dirty, chunk.changed
            if chunk.dropped or not (dirty or changed):
                return
            snapshot = chunk.snapshot()
            chunk.dirty = chunk.changed = False
            chunk.busy = True
        try:
            self._write(chunk, snapshot)
        except BaseException:
            with self._lock:
                chunk.dirty |= dirty
                chunk.changed |= changed
                self._failed[chunk.uuid] = chunk
            raise
        finally:
            with self._lock:
                chunk.busy = False
                self._idle.notify_all()

    def names(self) -> Iterator[tuple[Files, Path | None]]:
        """For every chunk, newest first, its files, longest first, and its context file.

        Foreign files are named; what a killed process left half written is discarded.
        """
        versions: dict[bytes, Files] = {}
        contexts: dict[bytes, Path] = {}
        for path in sorted(self.path.iterdir(), reverse=True):
            if path.is_symlink() or not path.is_file():  # reading it may never end
                _log.warning("Replay folder: %s is no plain file; it is left alone.", path)
            elif name := ChunkName.parse(path.name):
                versions.setdefault(name.uuid, []).append((path, name))
            elif uuid := chunkfile.context_uuid(path.name):
                contexts[uuid] = path
            elif chunkfile.is_temporary(path.name):
                self.discard(path)
            else:
                _log.warning("Replay folder: %s is not a chunk file; it is left alone.", path)
        for uuid, path in contexts.items():
            if uuid not in versions:
                _log.warning("Replay folder: the steps that %s belongs to are missing.", path)
                self.discard(path)
        for uuid, files in versions.items():
            files.sort(key=lambda file: file[1].length, reverse=True)
            yield files, contexts.get(uuid)

    def read(
        self, files: Files, context: Path | None, schema: Schema | None, longest: int, keep: bool
    ) -> tuple[Chunk, Schema] | None:
        """The chunk from the first of its files that is whole and fits; the others are named.

        Args:
          files: versions of one chunk, best first; those after the one taken are discarded.
          context: the file of what was written back; without it, or if it is damaged, the steps
            have the values that they were first stored with.
          schema: what the steps must look like, if that is known already.
          longest: greatest length of a chunk that can be taken.
          keep: whether the steps come into memory, even if chunks stay on disk.
        """
        for index, (path, name) in enumerate(files):
            try:
                if name.length > longest:
                    raise ReplayError(
                        f"Chunk file {path} has {name.length} steps, but the chunk size of this "
                        f"replay is {longest}: make it at least as large."
                    )
                source = Source.open(path, name, schema, self._codecs)
                source.add_context(context, name)
                chunk = source.chunk()
                if self._recycle and source.ready and not keep:
                    chunk.rows = DiskRows(source.members, chunk.length, self._get_scratch())
                else:
                    chunk.data = source.read()
            except ReplayError as error:
                _log.warning("Replay folder: skipped. %s", error)
                continue
            self.discard(*(older for older, _ in files[index + 1 :]))
            return chunk, source.schema
        return None

    def close(self) -> None:
        """Waits until what was `put` is written, and ends the threads."""
        self._pool.shutdown()

    def _drain(self) -> None:
        for _ in range(_QUEUE):
            self._room.acquire()
        for _ in range(_QUEUE):
            self._room.release()

    def _discard_files(self, chunk: Chunk) -> None:
        paths = {path for path in (chunk.path, chunk.context) if path is not None}
        self.discard(*(paths if chunk.saved else paths - _remove(paths)))

    def _background(self, chunk: Chunk) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.store(chunk)
        except (OSError, ReplayError) as error:
            if not self._failing:  # said once, until it works again
                _log.warning("Replay folder: complete chunks cannot be written. %s", error)
            self._failing = True
        finally:
            self._room.release()

    def _write(self, chunk: Chunk, snapshot: Snapshot) -> None:
        tags = {key: codec.tag for key, codec in self._codecs.items()}
        written = []
        for name, arrays in [
            (snapshot.name, snapshot.steps),
            (snapshot.context_name, snapshot.context),
        ]:
            path = self.path / name
            if arrays is not None:
                temporary = chunkfile.write_temporary(path, arrays, tags)
                members = chunkfile.read_members(temporary, False) if self._recycle else {}
                written.append((path, temporary, members))
        with self._lock:
            sources: dict[str, tuple[Path, Member]] = {}
            for path, temporary, members in written:
                os.replace(temporary, path)
                sources |= {key: (path, member) for key, member in members.items()}
            if snapshot.steps is not None:
                path = self.path / snapshot.name
                if chunk.path not in (None, path):
                    self._replaced.add(chunk.path)
                chunk.path = path
            if snapshot.context is not None:
                chunk.context = self.path / snapshot.context_name
            self._failed.pop(chunk.uuid, None)
            self._failing = False
            if chunk.dropped:
                self._discard_files(chunk)
            elif self._recycle:
                self._leave_on_disk(chunk, sources)

    def _leave_on_disk(self, chunk: Chunk, sources: dict[str, tuple[Path, Member]]) -> None:
        if chunk.rows is not None:
            chunk.rows.rebase(sources)
        elif chunk.length == chunk.size and not chunk.dirty:
            rows = DiskRows(sources, chunk.length, self._get_scratch())
            try:
                if chunk.changed:  # meanwhile
                    for key in chunk.written:
                        rows.write(key, 0, chunk.data[key])
            except ReplayError:
                chunk.dirty = True
                raise
            chunk.rows, data, chunk.data = rows, chunk.data, {}
            assert self._recycle is not None
            self._recycle(data)

    def _get_scratch(self) -> Scratch:
        if self._scratch is None:
            self._scratch = Scratch(self.path)
        return self._scratch

    def _sync(self) -> None:
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _remove(paths: Collection[Path]) -> set[Path]:
    """Removes files as far as that is possible; returns those that are gone."""
    gone = set()
    for path in paths:
        try:
            path.unlink(missing_ok=True)
            gone.add(path)
        except OSError as error:
            _log.warning("Replay folder: %s cannot be removed (%s).", path, error)
    return gone
