"""Checkpoints that are whole or absent, that show damage, and that cannot run code.

    directory/
      latest                        name of the newest checkpoint
      20261130T082429F828055/
        agent.json                  the tree: dicts, lists, numbers, strings
        agent.safetensors           its arrays, if any, named by their path in the tree
        manifest.json               size and checksum of every file, and the metric
        done                        checksum of the manifest; written last

A checkpoint is written to a folder with another ending, synced and renamed, so that a kill at any
moment leaves the previous ones untouched.
"""

from __future__ import annotations

import datetime
import math
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, SupportsInt

from . import ckptdir
from .base import Deferred
from .ckptdir import find_damage, resolve
from .errors import CheckpointError
from .trees import Arrays, encode

__all__ = ["Checkpoint", "Saveable", "find_damage", "load_part", "resolve"]

_PART = re.compile(r"[A-Za-z0-9_]+")


class Saveable(Protocol):
    """What a checkpoint can hold.

    One that has much to write may also have `save_later()`, which returns a `Deferred`.
    """

    def save(self) -> Any:
        """Returns a tree that `load` takes, whose arrays nobody changes afterwards."""

    def load(self, data: Any) -> None:
        """Takes what `save` returned."""


class Checkpoint:
    """Saves and restores the objects that are assigned to it as attributes.

        cp = Checkpoint(logdir / "ckpt")
        cp.step = step
        cp.agent = agent
        cp.load_or_save()

    Every object has `save()`, which returns a tree of dicts, lists, tuples, numbers, strings,
    bytes, None and numpy arrays, and `load(tree)`.

    Args:
      directory: where checkpoints are kept; created by the first save.
      keep: how many of the newest checkpoints are kept, at least one.
      step: a counter whose value becomes part of the folder's name.
      keep_best: how many of those with the greatest metrics are kept besides.
      metric: asked at every save how good what is saved is; None if that is not known.
    """

    def __init__(
        self,
        directory: str | Path,
        keep: int = 1,
        step: SupportsInt | None = None,
        keep_best: int = 0,
        metric: Callable[[], float | None] | None = None,
    ):
        self._directory = Path(directory)
        self._keep, self._keep_best = keep, keep_best
        self._step, self._metric = step, metric
        self._parts: dict[str, Saveable] = {}
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
            return
        if not _PART.fullmatch(name) or not (hasattr(value, "save") and hasattr(value, "load")):
            raise CheckpointError(
                f"A checkpoint cannot hold {name!r} of type {type(value).__name__}: it takes "
                "objects that have save() and load()."
            )
        self._parts[name] = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._parts:
            raise AttributeError(name)
        return self._parts[name]

    def exists(self) -> bool:
        """Whether there is a checkpoint, be it whole or damaged."""
        return bool(ckptdir.folders(self._directory))

    def latest(self) -> Path:
        """Returns the folder of the newest whole checkpoint; damaged ones are named in the log.

        Raises:
          CheckpointError: if there is none.
        """
        return resolve(self._directory)

    def save(self, wait: bool = True) -> Path:
        """Writes a checkpoint and removes those that are not to be kept.

        Args:
          wait: whether it is on the disk when this returns. Otherwise a thread writes what was
            gathered here; the next save or `wait` waits for it and raises what went wrong.
            What parts leave for later (see `Saveable`) is written before the rest.

        Returns:
          The folder of the new checkpoint.

        Raises:
          CheckpointError: if this one, or the one that was still being written, failed; or
            whatever a part raises that cannot be saved.
        """
        self.wait()
        saved = {name: _save_later(part) for name, part in self._parts.items()}
        parts = {name: encode(deferred.tree, name) for name, deferred in saved.items()}
        metric = self._metric() if self._metric else None
        metric = float(metric) if metric is not None and math.isfinite(metric) else None
        name = datetime.datetime.now().strftime("%Y%m%dT%H%M%SF%f")
        name += "" if self._step is None else f"-{int(self._step):012d}"
        folder = self._directory / name
        args = (folder, parts, metric, list(saved.values()))
        if wait:
            self._write(*args)
        else:
            # No daemon: a program that ends waits for it.
            self._thread = threading.Thread(
                target=self._write_guarded, args=args, name="checkpoint"
            )
            self._thread.start()
        return folder

    @property
    def saving(self) -> bool:
        """Whether a thread is writing a checkpoint."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> None:
        """Waits for the checkpoint that is being written; without one, it does nothing.

        Raises:
          CheckpointError: once, if it could not be written.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def load(self, path: str | Path | None = None, keys: Iterable[str] | None = None) -> Path:
        """Restores the assigned objects.

        Args:
          path: a checkpoint folder; the newest whole one of the directory by default.
          keys: names of the objects to restore; all by default.

        Returns:
          The folder of the checkpoint that was loaded.

        Raises:
          CheckpointError: if there is no whole checkpoint, or if it lacks one of the objects.
        """
        self.wait()
        names = list(self._parts if keys is None else keys)
        return load_part(path or self._directory, {k: self._parts[k].load for k in names})

    def load_or_save(self) -> bool:
        """Loads the newest whole checkpoint, or saves the first one if there is none.

        Returns:
          Whether a checkpoint was loaded.

        Raises:
          CheckpointError: if there are checkpoints and all are damaged, since a new run would
            then replace what may still be of use.
        """
        if self.exists():
            self.load()
            return True
        self.save()
        return False

    def _write(
        self,
        folder: Path,
        parts: Mapping[str, tuple[Any, Arrays]],
        metric: float | None,
        saved: Sequence[Deferred],
    ) -> None:
        ckptdir.write(folder, parts, metric, [deferred.write for deferred in saved])
        for deferred in saved:
            deferred.done()
        ckptdir.clean(self._directory, folder, self._keep, self._keep_best)

    def _write_guarded(self, *args: Any) -> None:
        try:
            self._write(*args)
        except Exception as e:  # comes out of `wait`
            self._error = e


def _save_later(part: Any) -> Deferred:
    return part.save_later() if hasattr(part, "save_later") else Deferred(part.save())


def load_part(path: str | Path, loadfns: Mapping[str, Callable[[Any], Any]]) -> Path:
    """Loads some of a checkpoint's objects, e.g. the agent to start another run from.

    Nothing is loaded unless everything asked for was read.

    Args:
      path: a checkpoint folder, a directory of checkpoints, or a run's logdir.
      loadfns: from the object's name to the function that takes its saved tree.

    Returns:
      The folder of the checkpoint that was loaded.

    Raises:
      CheckpointError: if there is no whole checkpoint, if it lacks one of the objects, or if
        what it holds is not what the object saves.
    """
    folder = resolve(path)
    trees = ckptdir.read(folder, list(loadfns))
    for name, loadfn in loadfns.items():
        try:
            loadfn(trees[name])
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as e:
            raise CheckpointError(
                f"The part {name!r} of the checkpoint {folder} is not what this program saves "
                f"({type(e).__name__}: {e}): resume with the version and config that wrote it."
            ) from e
    return folder
