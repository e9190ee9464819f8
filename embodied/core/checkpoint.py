"""Checkpoints that are whole or absent, that show damage, and that cannot run code.

    directory/
      latest                        name of the newest checkpoint
      20261130T082429F828055/
        agent.json                  the tree: dicts, lists, numbers, strings
        agent.safetensors           its arrays, if any, named by their path in the tree
        manifest.json               size and checksum of every file
        done                        checksum of the manifest; written last

A checkpoint is written to a folder with another ending, synced and renamed, so that a kill at any
moment leaves the previous ones untouched.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, SupportsInt

from .errors import CheckpointError
from .trees import decode, encode

log = logging.getLogger(__name__)

_FOLDER = re.compile(r"\d{8}T\d{6}F\d{6}(-\d{12,})?")
_PART = re.compile(r"[A-Za-z0-9_]+")
_PARTIAL = ".partial"
_VERSION = 1


class Saveable(Protocol):
    """What a checkpoint can hold."""

    def save(self) -> Any:
        """Returns a tree that `load` takes."""

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
      keep: how many of the newest checkpoints are kept.
      step: a counter whose value becomes part of the folder's name.
    """

    def __init__(self, directory: str | Path, keep: int = 1, step: SupportsInt | None = None):
        self._directory = Path(directory)
        self._keep = max(1, keep)
        self._step = step
        self._parts: dict[str, Saveable] = {}

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
        return bool(_folders(self._directory))

    def latest(self) -> Path:
        """Returns the folder of the newest whole checkpoint; damaged ones are named in the log.

        Raises:
          CheckpointError: if there is none.
        """
        return resolve(self._directory)

    def save(self) -> Path:
        """Writes a checkpoint and removes those beyond `keep`.

        Returns:
          The folder of the new checkpoint.
        """
        trees = {name: part.save() for name, part in self._parts.items()}
        name = datetime.datetime.now().strftime("%Y%m%dT%H%M%SF%f")
        name += "" if self._step is None else f"-{int(self._step):012d}"
        folder = self._directory / name
        _write(folder, trees)
        _write_latest(self._directory, name)
        self._cleanup(folder)
        return folder

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

    def _cleanup(self, newest: Path) -> None:
        others = [x for x in _folders(self._directory) if x != newest]
        for folder in others[self._keep - 1 :]:
            # A removal that is cut short must not leave what looks like a checkpoint.
            folder.rename(folder.with_name(folder.name + _PARTIAL))
        for leftover in self._directory.glob(f"*{_PARTIAL}"):
            if _FOLDER.fullmatch(leftover.name.removesuffix(_PARTIAL)):
                shutil.rmtree(leftover)


def load_part(path: str | Path, loadfns: Mapping[str, Callable[[Any], Any]]) -> Path:
    """Loads some of a checkpoint's objects, e.g. the agent to start another run from.

    Nothing is loaded unless everything asked for was read.

    Args:
      path: a checkpoint folder, a directory of checkpoints, or a run's logdir.
      loadfns: from the object's name to the function that takes its saved tree.

    Returns:
      The folder of the checkpoint that was loaded.

    Raises:
      CheckpointError: if there is no whole checkpoint, or if it lacks one of the objects.
    """
    folder = resolve(path)
    files = json.loads((folder / "manifest.json").read_text("utf-8"))["files"]
    present = sorted(x.removesuffix(".json") for x in files if x.endswith(".json"))
    for name in loadfns:
        if name not in present:
            raise CheckpointError(
                f"The checkpoint {folder} holds no {name!r}; it holds {', '.join(present)}."
            )
    trees = {name: _read_part(folder, name) for name in loadfns}
    for name, loadfn in loadfns.items():
        loadfn(trees[name])
    return folder


def resolve(path: str | Path) -> Path:
    """Finds the newest whole checkpoint at or below a path.

    Args:
      path: a checkpoint folder, a directory of checkpoints, or a run's logdir.

    Raises:
      CheckpointError: if there is none.
    """
    path = Path(path).expanduser()
    if (path / "manifest.json").exists() or (path / "done").exists():
        problem = find_damage(path)
        if problem:
            raise CheckpointError(f"The checkpoint {path} cannot be loaded: {problem}.")
        return path
    problems = []
    for directory in (path, path / "ckpt"):
        for folder in _folders(directory):
            problem = find_damage(folder)
            if not problem:
                return folder
            log.warning("The checkpoint %s is passed over: %s.", folder, problem)
            problems.append(f"{folder.name}: {problem}")
    if problems:
        raise CheckpointError(
            f"Every checkpoint in {path} is damaged ({'; '.join(problems)}): restore a copy, or "
            "move the folder away to start anew."
        )
    raise CheckpointError(f"There is no checkpoint at {path}.")


def find_damage(folder: Path) -> str | None:
    """Says what is wrong with a checkpoint folder, or None if all its checksums are right."""
    try:
        manifest = _read_plain(folder / "manifest.json")
        if _read_plain(folder / "done").decode("ascii") != hashlib.sha256(manifest).hexdigest():
            return "manifest.json does not match the checksum in done"
        content = json.loads(manifest)
        if content["version"] != _VERSION:
            return f"its format is version {content['version']}, this program reads {_VERSION}"
        for name, facts in content["files"].items():
            if Path(name).name != name or (folder / name).is_symlink():
                return f"{name!r} is not a file of the folder"
            if (folder / name).stat().st_size != facts["size"]:
                return f"{name} does not have the size that was saved"
            if _checksum(folder / name) != facts["sha256"]:
                return f"{name} does not match its checksum"
    except FileNotFoundError as e:
        return f"{Path(e.filename).name} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        return f"it cannot be read ({type(e).__name__}: {e})"
    return None


def _folders(directory: Path) -> list[Path]:
    """Checkpoint folders, the one named by `latest` first and then from new to old."""
    if not directory.is_dir():
        return []
    found = [x for x in directory.iterdir() if _FOLDER.fullmatch(x.name) and x.is_dir()]
    found.sort(key=lambda x: x.name, reverse=True)
    try:
        latest = _read_plain(directory / "latest").decode("ascii", "replace").strip()
    except FileNotFoundError:
        latest = ""
    return sorted(found, key=lambda x: x.name != latest)


def _write(folder: Path, trees: Mapping[str, Any]) -> None:
    from safetensors.numpy import save_file

    partial = folder.with_name(folder.name + _PARTIAL)
    partial.mkdir(parents=True)
    for name, tree in trees.items():
        skeleton, arrays = encode(tree, name)
        (partial / f"{name}.json").write_text(json.dumps(skeleton, allow_nan=False), "utf-8")
        if arrays:
            save_file(arrays, partial / f"{name}.safetensors")
    files = {
        x.name: {"size": x.stat().st_size, "sha256": _checksum(x)}
        for x in sorted(partial.iterdir())
    }
    manifest = json.dumps({"version": _VERSION, "files": files}, indent=1).encode()
    (partial / "manifest.json").write_bytes(manifest)
    (partial / "done").write_text(hashlib.sha256(manifest).hexdigest(), "ascii")
    for file in partial.iterdir():
        _sync(file)
    _sync(partial)
    partial.rename(folder)
    _sync(folder.parent)


def _write_latest(directory: Path, name: str) -> None:
    temporary = directory / f"latest{_PARTIAL}"
    temporary.write_text(name, "ascii")
    _sync(temporary)
    temporary.replace(directory / "latest")
    _sync(directory)


def _read_part(folder: Path, name: str) -> Any:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        skeleton = json.loads((folder / f"{name}.json").read_text("utf-8"))
        file = folder / f"{name}.safetensors"
        return decode(skeleton, load_file(file) if file.exists() else {})
    except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as e:
        raise CheckpointError(
            f"The part {name!r} of the checkpoint {folder} cannot be read: "
            f"{type(e).__name__}: {e}."
        ) from e


def _read_plain(path: Path) -> bytes:
    if path.is_symlink():
        raise ValueError(f"{path.name} is a link")
    return path.read_bytes()


def _checksum(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
