"""A folder of chunk files: written in the background, read newest first, damaged files named."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import chunkfile
from .chunk import Arrays, Chunk, Snapshot
from .chunkfile import ChunkName, Member, Version
from .chunksource import Source
from .codecs import Codec
from .diskrows import DiskRows, Scratch
from .errors import ReplayError
from .obsolete import Obsolete
from .schema import Schema

_log = logging.getLogger("embodied")

Files = list[tuple[Path, ChunkName]]
Contexts = dict[int, Path]

_THREADS = 4
_QUEUE = 8  # chunks that wait to be written, at most
_ROUND = 16  # chunks that are written in a row before the next are chosen
_COPIES = 2**30  # bytes that snapshots hold besides the chunks, at most


class ChunkDir:
    """The chunk files of one replay.

    The steps of a chunk have one file, another one when it has grown; what is written back later
    has files of its own, so that steps are written once. A checkpoint is made in three steps:
    `begin` notes what it consists of, `write` makes that durable while the replay goes on, and
    `done`, once the checkpoint is complete, removes what only older ones needed. So there are
    always all files of the newest complete one.

    Args:
      path: the folder; made when something is first written.
      lock: held while chunks in memory are copied or change their state.
      codecs: of the keys that are stored in another form.
      recycle: takes the arrays of chunks that stay on disk from now on; by default, all chunks
        stay in memory.
      context: whether to write what was written back.
    """

    def __init__(
        self,
        path: Path,
        lock: threading.RLock,
        codecs: Mapping[str, Codec] | None = None,
        recycle: Callable[[Arrays], None] | None = None,
        context: bool = True,
    ):
        self.path = path
        self._lock = lock
        self._codecs = codecs or {}
        self._recycle = recycle
        self._context = context
        self._scratch: Scratch | None = None
        self._pool = ThreadPoolExecutor(_THREADS, "replay-writer")
        self._room = threading.Semaphore(_QUEUE)
        self._idle = threading.Condition(lock)
        self._failed: dict[bytes, Chunk] = {}  # what `put` could not write
        self._failing = False
        self._obsolete = Obsolete(path, lock)
        self._frozen: list[Chunk] = []  # chunks of the checkpoint that is being made
        self._begun = 0
        self._writing = False

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
        """Has files of this folder removed once no checkpoint needs them."""
        self._obsolete.give_up(*paths)

    def drop(self, chunk: Chunk) -> None:
        """Discards the files of a chunk that the replay has let go of."""
        chunk.settle()
        chunk.dropped = True
        self._failed.pop(chunk.uuid, None)
        if chunk.rows is not None:
            chunk.rows.release()
        self.discard(chunk.path, chunk.context)

    def begin(self, chunks: Iterable[Chunk]) -> int:
        """Begins a checkpoint of these chunks as they are now; call it under the lock.

        Nothing is copied: a chunk that changes before it is written keeps what was.

        Returns:
          What `write` and `done` take.
        """
        self._thaw()  # what is left of one that failed
        needed = []
        for chunk in chunks:
            chunk.frozen = chunk.snapshot(self._context)
            if chunk.frozen is not None or chunk.busy:
                self._frozen.append(chunk)
            needed.append(self.path / chunk.step_name)
            if chunk.version:
                needed.append(self.path / chunk.context_name)
        self._obsolete.begin(needed)
        self._begun += 1
        return self._begun

    def write(self, begun: int) -> None:
        """Makes what was begun durable, chunks that have changed since then first.

        Raises:
          ReplayError: something could not be written, or another checkpoint was begun.
        """
        if begun != self._begun:
            raise ReplayError(f"A save of {self.path} was not written before the next one began.")
        try:
            self._writing = True
            self.path.mkdir(parents=True, exist_ok=True)
            left = list(self._frozen)
            while left:
                left.sort(key=lambda chunk: chunk.frozen is not None and chunk.frozen.copied > 0)
                left, batch = left[:-_ROUND], left[-_ROUND:]
                list(self._pool.map(self._write_frozen, batch))
            with self._lock:
                if any(chunk.uuid in self._failed for chunk in self._frozen):
                    raise OSError("a complete chunk could not be written")
            self._sync()
        except OSError as error:
            raise ReplayError(
                f"The replay cannot be written to {self.path} ({error}): the folder must be "
                "writable and have enough room."
            ) from error
        finally:
            with self._lock:
                self._writing = False
                self._thaw()

    def done(self, begun: int) -> None:
        """Removes what is not needed any more, since the checkpoint that was begun is complete."""
        with self._lock:
            if begun != self._begun:
                return
        self._obsolete.done()

    def wait_for_room(self) -> None:
        """Waits while a checkpoint is being written more slowly than its chunks change."""
        with self._lock:
            while self._writing and self._copies() > _COPIES:
                self._idle.wait()

    def store(self, chunk: Chunk) -> None:
        """Writes the steps that no file holds; the name is not synced.

        Raises:
          OSError: that is impossible.
        """
        self._write_frozen(chunk)
        self._write_next(chunk, lambda: chunk.snapshot(self._context) if chunk.dirty else None)

    def names(self) -> Iterator[tuple[Files, Contexts]]:
        """For every chunk, newest first, its files and its context files by version.

        Foreign files are named; what a killed process left half written is discarded.
        """
        versions: dict[bytes, Files] = {}
        contexts: dict[bytes, Contexts] = {}
        for path in sorted(self.path.iterdir(), reverse=True):
            self._obsolete.need(path)  # for all we know
            if path.is_symlink() or not path.is_file():  # reading it may never end
                _log.warning("Replay folder: %s is no plain file; it is left alone.", path)
            elif name := ChunkName.parse(path.name):
                versions.setdefault(name.uuid, []).append((path, name))
            elif context := chunkfile.parse_context(path.name):
                contexts.setdefault(context[0], {}).setdefault(context[1], path)
            elif chunkfile.is_temporary(path.name):
                self.discard(path)
            else:
                _log.warning("Replay folder: %s is not a chunk file; it is left alone.", path)
        for uuid in contexts.keys() - versions.keys():
            for path in contexts[uuid].values():
                _log.warning("Replay folder: the steps that %s belongs to are missing.", path)
            self.discard(*contexts[uuid].values())
        for uuid, files in versions.items():
            yield files, contexts.get(uuid, {})

    def read(
        self,
        files: Files,
        contexts: Contexts,
        wanted: Version | None,
        schema: Schema | None,
        longest: int,
        keep: bool,
    ) -> tuple[Chunk, Schema] | None:
        """The chunk from files that are whole and fit; what is passed over is named.

        Args:
          files: versions of one chunk; those that are not taken are discarded.
          contexts: files of what was written back; without a whole one, the steps have the
            values that they were first stored with.
          wanted: which versions to take; others only if those are not there. By default, the
            longest and newest.
          schema: what the steps must look like, if that is known already.
          longest: greatest length of a chunk that can be taken.
          keep: whether the steps come into memory, even if chunks stay on disk.
        """
        for path, name in sorted(files, key=lambda file: _rank(file[1], wanted)):
            try:
                length = min(name.length, wanted.length) if wanted else name.length
                if length > longest:
                    raise ReplayError(
                        f"Chunk file {path} has {length} steps, but the chunk size of this "
                        f"replay is {longest}: make it at least as large."
                    )
                source = Source.open(path, name, schema, self._codecs)
                source.add_context(contexts, wanted.context if wanted else None)
                chunk = source.chunk()
                if self._recycle and source.ready and not keep and length == name.length:
                    chunk.rows = DiskRows(source.members, length, self._get_scratch())
                else:
                    chunk.data = source.read()
            except ReplayError as error:
                _log.warning("Replay folder: skipped. %s", error)
                continue
            if wanted and wanted[:2] != (name.succ, name.length):
                _log.warning(
                    "Replay folder: %s is taken, since the file with the %d steps that were "
                    "saved is missing.", path, wanted.length,
                )  # fmt: skip
                if length < name.length:
                    chunk.cut(length, wanted.succ)
            taken = {chunk.path, chunk.context}
            self.discard(*({*(x for x, _ in files), *contexts.values()} - taken))
            return chunk, source.schema
        return None

    def close(self) -> None:
        """Waits until what was `put` is written, and ends the threads."""
        self._pool.shutdown()

    def _copies(self) -> int:
        return sum(chunk.frozen.copied for chunk in self._frozen if chunk.frozen is not None)

    def _thaw(self) -> None:
        # What was not written counts as changed again.
        for chunk in self._frozen:
            if chunk.frozen is not None:
                chunk.give_back(chunk.frozen)
                chunk.frozen = None
        self._frozen = []
        self._idle.notify_all()

    def _write_frozen(self, chunk: Chunk) -> None:
        self._write_next(chunk, lambda: None)

    def _write_next(self, chunk: Chunk, take: Callable[[], Snapshot | None]) -> None:
        # Writes what is frozen, or else what `take` gives, after what is being written.
        with self._lock:
            while chunk.busy:
                self._idle.wait()
            chunk.settle()
            snapshot = chunk.frozen or (None if chunk.dropped else take())
            if snapshot is None:
                return
            chunk.busy = True
        try:
            self._write(chunk, snapshot)
        except BaseException:
            with self._lock:
                if snapshot is not chunk.frozen:  # which is tried again
                    chunk.give_back(snapshot)
                if snapshot.steps is not None and not chunk.dropped:
                    self._failed[chunk.uuid] = chunk
            raise
        finally:
            with self._lock:
                chunk.busy = False
                self._idle.notify_all()

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
        self._obsolete.rename([(temporary, path) for path, temporary, _ in written])
        with self._lock:
            sources: dict[str, tuple[Path, Member]] = {}
            for path, _, members in written:
                sources |= {key: (path, member) for key, member in members.items()}
            before = {chunk.path, chunk.context}
            if snapshot.steps is not None:
                chunk.path = self.path / snapshot.name
            if snapshot.context is not None:
                chunk.context = self.path / snapshot.context_name
            self.discard(*(before - {chunk.path, chunk.context}))
            if snapshot is chunk.frozen:
                chunk.frozen = None
            if not chunk.dirty:
                self._failed.pop(chunk.uuid, None)
            self._failing = False
            if chunk.dropped:
                self.discard(chunk.path, chunk.context)
            elif self._recycle:
                self._leave_on_disk(chunk, sources)
            if chunk.frozen is None:
                chunk.shared.clear()

    def _leave_on_disk(self, chunk: Chunk, sources: dict[str, tuple[Path, Member]]) -> None:
        if chunk.rows is not None:
            chunk.rows.rebase(sources)
        elif chunk.length == chunk.size and not chunk.dirty:
            rows = DiskRows(sources, chunk.length, self._get_scratch())
            try:
                if chunk.changed or chunk.frozen is not None:  # meanwhile
                    for key in chunk.written:
                        rows.write(key, 0, chunk.data[key])
            except ReplayError:
                chunk.dirty = True
                raise
            chunk.rows, data, chunk.data = rows, chunk.data, {}
            if chunk.frozen is not None:  # of a checkpoint that has been begun meanwhile
                chunk.frozen.copied += sum(array.nbytes for array in data.values())
                return
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


def _rank(name: ChunkName, wanted: Version | None) -> tuple[bool, int, int]:
    # The version that is wanted, then those with as many of its steps as possible.
    if wanted is None:
        return False, -name.length, 0
    return (name.succ, name.length) != wanted[:2], -min(name.length, wanted.length), name.length
