"""The folder of a run: made once, resumed by the same experiment, refused to any other."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import elements

from embodied.core.errors import ConfigError

from .config import compose, flatten, load_configs, override

# What a run that has begun leaves behind; before that, a failed start can be mended and repeated.
_TRACES = ("ckpt", "replay", "metrics.jsonl")

# What may change between two starts of one run; all else makes it another experiment.
_FREE = re.compile(
    r"logdir|script|report_length|consec_report|logger\..*|jax\..*|agent\.report.*"
    r"|run\.(?!train_ratio).*"
)


# Workers of a run that was killed may hold its lock for as long as they need to notice.
_LOCK_SECONDS = 2.0


@contextlib.contextmanager
def lock_logdir(path: str | Path) -> Iterator[None]:
    """Keeps other processes from using the run's folder, which is created if it is missing.

    The lock ends with the process, however that ends. Where the file system has no locks, there
    is none.

    Raises:
      ConfigError: if another process uses the folder, or if it cannot be written to.
    """
    logdir = Path(path)
    try:
        logdir.mkdir(parents=True, exist_ok=True)
        file = (logdir / "lock").open("a+")
    except OSError as e:
        raise ConfigError(f"The logdir '{logdir}' cannot be used: {e}.") from e
    with file:
        if not _acquire(file.fileno()):
            file.seek(0)
            owner = re.sub(r"[^ -~]", "?", file.read(200)).strip() or "another process"
            raise ConfigError(
                f"The logdir '{logdir}' is in use by {owner}: end that run first, or choose "
                "another --logdir."
            )
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield


def _acquire(descriptor: int) -> bool:
    """Whether the file could be locked, or need not be."""
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as e:
            if e.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)


def open_logdir(config: elements.Config) -> Path:
    """Creates the run's folder with its `config.yaml`, or joins one of the same experiment.

    The `config.yaml` of a run that has begun is never written to. It may differ in how the run is
    executed and logged (`run.*` but for the train ratio, `logger.*`, `jax.*`, reports) and in
    keys that only one of the two has.

    Raises:
      ConfigError: if the folder holds another experiment, or cannot be read or written.
    """
    logdir = Path(config.logdir)
    file = logdir / "config.yaml"
    try:
        begun = [name for name in _TRACES if (logdir / name).exists()]
        if begun and not file.exists():
            raise ConfigError(
                f"The logdir '{logdir}' holds {begun[0]} of a run but not its config.yaml: put "
                "that file back to resume, or choose another --logdir for a new run."
            )
        if begun:
            _check_same(logdir, _load(file), config)
        else:
            logdir.mkdir(parents=True, exist_ok=True)
            _write(file, config)
    except OSError as e:
        raise ConfigError(f"The logdir '{logdir}' cannot be used: {e}.") from e
    return logdir


def load_run_config(logdir: Path) -> elements.Config:
    """Loads a run's config; keys that it lacks have their defaults, unknown ones are named.

    Raises:
      ConfigError: if the folder holds no run.
    """
    file = logdir / "config.yaml"
    if not file.exists():
        raise ConfigError(f"There is no run in {logdir}: it should hold a config.yaml.")
    config = compose()
    saved = elements.Config.load(file).flat
    if unknown := sorted(saved.keys() - config.flat.keys()):
        print(f"Keys of {file} that mean nothing here: {', '.join(unknown)}.")
    known = {key: value for key, value in saved.items() if key not in unknown}
    return override(config, {**known, "logdir": str(logdir)})


def _check_same(logdir: Path, old: elements.Config, new: elements.Config) -> None:
    changes = [
        f"{key} {old[key]} -> {value}"
        for key, value in new.flat.items()
        if key in old.flat and value != old[key] and not _FREE.fullmatch(key)
    ]
    if changes:
        shown = ", ".join(changes[:4])
        more = f" and {len(changes) - 4} more" if len(changes) > 4 else ""
        raise ConfigError(
            f"The logdir '{logdir}' holds a run with another config ({shown}{more}): choose "
            f"another --logdir for a new run, or give the old values to resume that one."
        )


def _load(file: Path) -> elements.Config:
    try:
        return elements.Config(flatten(load_configs(file)))
    except (AssertionError, TypeError) as e:
        raise ConfigError(f"The config file '{file}' is not one of a run: {e}.") from e


def _write(file: Path, config: elements.Config) -> None:
    # Renamed into place, so that a kill leaves a whole file or none.
    draft = file.with_name("config.draft.yaml")
    config.save(draft)
    os.replace(draft, file)
