"""Which files of a folder may be removed: those that no checkpoint needs."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Collection, Iterable
from pathlib import Path

_log = logging.getLogger("embodied")


class Obsolete:
    """Removes files that are given up, once the newest complete checkpoint does without them.

    Other files that are given up are removed at once. One that cannot be removed is named, and
    tried again when the next checkpoint is complete.

    Args:
      folder: files elsewhere are left alone.
      lock: held by the caller, except for `done` and `rename`.
    """

    def __init__(self, folder: Path, lock: threading.RLock):
        self._folder = folder
        self._lock = lock
        self._renaming = threading.Lock()
        self._files: set[Path] = set()  # given up, but still needed
        self._complete: set[Path] = set()  # what the newest complete checkpoint needs
        self._pending: set[Path] = set()  # what the one that is being made needs

    def need(self, path: Path) -> None:
        """Counts a file as needed by the newest complete checkpoint."""
        self._complete.add(path)

    def begin(self, paths: Iterable[Path]) -> None:
        """Notes what the next checkpoint needs, when the one before has failed or is complete."""
        self._pending = set(paths)

    def done(self) -> None:
        """Removes what the checkpoint that was begun does not need, since it is complete."""
        with self._lock:
            self._complete, self._pending = self._pending, set()
            # Steps come last, so that no other file is ever without them.
            left = sorted(self._files - self._complete, key=lambda x: "context" not in x.name)
        for path in left:
            with self._renaming:
                with self._lock:  # meanwhile, it may have been written anew
                    paths = self._files & {path}
                    self._files -= paths
                paths = _remove(paths)
            with self._lock:
                self._files |= paths

    def give_up(self, *paths: Path | None) -> None:
        """Has files removed as soon as no checkpoint needs them."""
        own = {path for path in paths if path and path.parent == self._folder}
        needed = own & (self._complete | self._pending)
        self._files |= needed | _remove(own - needed)

    def rename(self, pairs: Collection[tuple[Path, Path]]) -> None:
        """Gives files, which exist, the names that come second; those are not given up any more.

        It needs no lock, since a busy disk can take seconds.

        Raises:
          OSError: that is impossible.
        """
        with self._lock:
            self._files -= {path for _, path in pairs}
        with self._renaming:
            for before, path in pairs:
                os.replace(before, path)


def _remove(paths: Collection[Path]) -> set[Path]:
    # Removes files as far as that is possible; returns the others.
    left = set()
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("Replay folder: %s cannot be removed (%s).", path, error)
            left.add(path)
    return left
