"""Checkpoint folders on the disk: written whole or not at all, found, verified and read.

Nothing that is read can run code, lead out of its folder, or take more memory than its file has
bytes, a few limits for headers and texts aside.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from .errors import CheckpointError
from .trees import Arrays, decode

log = logging.getLogger(__name__)

PARTIAL = ".partial"

_FOLDER = re.compile(r"\d{8}T\d{6}F\d{6}(-\d{12,})?")
_FILE = re.compile(r"[A-Za-z0-9_]+\.(json|safetensors)")
_VERSION = 1
_NOTE_BYTES = 2**20  # most of a manifest, of `done` and of `latest`
_TEXT_BYTES = 2**26  # most of a part's JSON
_HEADER_BYTES = 2**24  # most of the JSON in front of the arrays


def write(
    folder: Path,
    parts: Mapping[str, tuple[Any, Arrays]],
    metric: float | None = None,
    first: Iterable[Callable[[], None]] = (),
) -> None:
    """Writes a checkpoint and names it in `latest`; what is there already stays as it is.

    Args:
      folder: where; its name is the checkpoint's.
      parts: by name, what `trees.encode` gave.
      metric: how good it is, if that is known.
      first: what is done before, while the folder is there as an unfinished one.

    Raises:
      CheckpointError: if it cannot be written; nothing of it is left then.
    """
    from safetensors import SafetensorError

    partial = folder.with_name(folder.name + PARTIAL)
    try:
        partial.mkdir(parents=True)
        for work in first:
            work()
        _write_files(partial, parts, metric)
        # In this order, since whoever finds an older one named would go on from that.
        _write_latest(folder.parent, folder.name)
        partial.rename(folder)
        _sync(folder.parent)
    except Exception as e:
        shutil.rmtree(partial, ignore_errors=True)  # on a full disk, its room is needed
        if not isinstance(e, (OSError, SafetensorError)):
            raise
        raise CheckpointError(
            f"The checkpoint {folder} cannot be written ({e}): the folder must be writable and "
            "have room for one more checkpoint; those before are untouched."
        ) from e


def clean(directory: Path, newest: Path, keep: int, keep_best: int) -> None:
    """Removes all but the newest checkpoints, those with the greatest metrics, and leftovers.

    Raises:
      CheckpointError: if something cannot be removed.
    """
    others = [x for x in folders(directory) if x != newest]
    order = [newest, *others]
    best = sorted(order, key=_metric, reverse=True)[:keep_best]
    kept = {*order[: max(1, keep)], *(x for x in best if _metric(x) > -math.inf)}
    try:
        for folder in others:
            if folder not in kept:
                # A removal that is cut short must not leave what looks like a checkpoint.
                folder.rename(folder.with_name(folder.name + PARTIAL))
        for leftover in _leftovers(directory):
            shutil.rmtree(leftover)
    except OSError as e:
        raise CheckpointError(f"Old checkpoints in {directory} cannot be removed: {e}.") from e


def folders(directory: Path) -> list[Path]:
    """Checkpoint folders, the one named by `latest` first and then from new to old."""
    if not directory.is_dir():
        return []
    found = [x for x in directory.iterdir() if _FOLDER.fullmatch(x.name) and _is_folder(x)]
    found.sort(key=lambda x: x.name, reverse=True)
    latest, _ = _latest(directory)
    return sorted(found, key=lambda x: x.name != latest)


def resolve(path: str | Path) -> Path:
    """Finds the newest whole checkpoint at or below a path; others are named in the log.

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
    problems: list[str] = []
    for directory in (path, path / "ckpt"):
        for leftover in _leftovers(directory):
            log.warning("The checkpoint %s is passed over: it was never finished.", leftover)
        found = folders(directory)
        latest, problem = _latest(directory)
        if found and found[0].name != latest:
            problem = problem or "it names no checkpoint that is here"
            log.warning("The file %s is passed over: %s.", directory / "latest", problem)
        for folder in found:
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
        manifest = _read(folder / "manifest.json")
        if _read(folder / "done") != hashlib.sha256(manifest).hexdigest().encode():
            return "manifest.json does not match the checksum in done"
        content = json.loads(manifest)
        if content["version"] != _VERSION:
            return f"its format is version {content['version']}, this program reads {_VERSION}"
        for name, facts in content["files"].items():
            if not _FILE.fullmatch(name) or not _is_file(folder / name):
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


def read(folder: Path, names: list[str]) -> dict[str, Any]:
    """Reads parts of a checkpoint that has been verified.

    Returns:
      What was saved, by the parts' names.

    Raises:
      CheckpointError: if it lacks one of the parts, or if one cannot be read.
    """
    files = json.loads(_read(folder / "manifest.json"))["files"]
    present = sorted(x.removesuffix(".json") for x in files if x.endswith(".json"))
    for name in names:
        if name not in present:
            raise CheckpointError(
                f"The checkpoint {folder} holds no {name!r}; it holds {', '.join(present)}."
            )
    return {name: _read_part(folder, name, f"{name}.safetensors" in files) for name in names}


def _read_part(folder: Path, name: str, has_arrays: bool) -> Any:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        skeleton = json.loads(_read(folder / f"{name}.json", _TEXT_BYTES))
        arrays = {}
        if has_arrays:
            file = folder / f"{name}.safetensors"
            _check_header(file)
            arrays = load_file(file)
        return decode(skeleton, arrays)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as e:
        raise CheckpointError(
            f"The part {name!r} of the checkpoint {folder} cannot be read: "
            f"{type(e).__name__}: {e}."
        ) from e


def _write_files(
    partial: Path, parts: Mapping[str, tuple[Any, Arrays]], metric: float | None
) -> None:
    from safetensors.numpy import save_file

    for name, (skeleton, arrays) in parts.items():
        (partial / f"{name}.json").write_text(json.dumps(skeleton, allow_nan=False), "utf-8")
        if arrays:
            save_file(arrays, partial / f"{name}.safetensors")
    files = {
        x.name: {"size": x.stat().st_size, "sha256": _checksum(x)}
        for x in sorted(partial.iterdir())
    }
    content = {"version": _VERSION, "metric": metric, "files": files}
    manifest = json.dumps(content, indent=1, allow_nan=False).encode()
    (partial / "manifest.json").write_bytes(manifest)
    (partial / "done").write_text(hashlib.sha256(manifest).hexdigest(), "ascii")
    for file in partial.iterdir():
        _sync(file)
    _sync(partial)


def _write_latest(directory: Path, name: str) -> None:
    temporary = directory / f"latest{PARTIAL}"
    temporary.write_text(name, "ascii")
    _sync(temporary)
    temporary.replace(directory / "latest")
    _sync(directory)


def _latest(directory: Path) -> tuple[str, str]:
    """The name in `latest`, and what is wrong with that file."""
    try:
        return _read(directory / "latest").decode("ascii").strip(), ""
    except FileNotFoundError:
        return "", "it is missing"
    except (OSError, ValueError) as e:
        return "", f"it cannot be read ({e})"


def _metric(folder: Path) -> float:
    """The metric of a checkpoint; minus infinity if it has none."""
    try:
        metric = json.loads(_read(folder / "manifest.json"))["metric"]
        return -math.inf if metric is None else float(metric)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return -math.inf


def _leftovers(directory: Path) -> list[Path]:
    """Folders whose writing or removal was cut short."""
    return [
        x
        for x in directory.glob(f"*{PARTIAL}")
        if _FOLDER.fullmatch(x.name.removesuffix(PARTIAL)) and _is_folder(x)
    ]


def _read(path: Path, limit: int = _NOTE_BYTES) -> bytes:
    """The bytes of a plain file that is no larger than a limit."""
    size = path.lstat().st_size
    if not _is_file(path) or size > limit:
        raise ValueError(f"{path.name} is no plain file of at most {limit} bytes")
    return path.read_bytes()


def _check_header(file: Path) -> None:
    # The library checks that shapes agree with the file's size, but takes headers of 100 MB.
    with file.open("rb") as f:
        size = int.from_bytes(f.read(8), "little")
    if size > _HEADER_BYTES:
        raise ValueError(f"{file.name} has a header of {size} bytes, more than {_HEADER_BYTES}")


def _is_file(path: Path) -> bool:
    """Whether it is a file, and neither a link nor something that blocks or never ends."""
    return not path.is_symlink() and (path.is_file() or not path.exists())


def _is_folder(path: Path) -> bool:
    return not path.is_symlink() and path.is_dir()


def _checksum(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
