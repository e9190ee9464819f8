"""Starting JAX: platform, flags, processes, precision and the cache of compiled programs."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import platform as host
import re
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from ..core.errors import DeviceError
from .options import Options

_config: Any = jax.config  # Its settings are unknown to type checkers.
_GPU = ("auto", "cuda", "gpu", "rocm")
_said: set[str] = set()


def setup(**values: Any) -> Options:
    """Starts JAX as the options ask; calling it again in the same process is harmless.

    What must precede the start of JAX's backends and comes too late is an error, or a warning
    where only speed is at stake. Flags are added to the user's, which win where both name one.

    Args:
      **values: the options under `jax` in the config, see `Options`.

    Returns:
      The options, with `compute_dtype` and `platform` resolved.

    Raises:
      ConfigError: an option does not exist or has a wrong value.
      DeviceError: the platform, the processes or the number of devices cannot be had.
    """
    options = Options.make(**values)
    if _backends_started():
        _check_started(options)
    else:
        _prepare(options)
    platform = devices(options)[0].platform
    _check_devices(options)
    dtype = options.compute_dtype
    if dtype == "auto":
        dtype = "float32" if platform == "cpu" else "bfloat16"
    if platform == "cpu" and options.platform == "auto" and not options.mock_devices:
        _say_once("No accelerator was found: running on the CPU.")
    _enable_cache(options.compilation_cache)
    from . import nets  # It loads a good part of JAX, so flags come first.

    nets.COMPUTE_DTYPE = getattr(jax.numpy, dtype)
    return dataclasses.replace(options, platform=platform, compute_dtype=dtype)


def devices(options: Options) -> list[jax.Device]:
    """All devices of the chosen platform, those of other processes included.

    Raises:
      DeviceError: there are none.
    """
    name: str | None = options.platform
    if name == "auto":
        name = "cpu" if options.mock_devices else None
    try:
        return jax.devices(name)
    except RuntimeError as e:
        raise DeviceError(
            f"The platform {name!r} is not available here: install the jax package for it or set "
            f"jax.platform to auto ({str(e).splitlines()[0].rstrip('.')})."
        ) from e


def select(options: Options, numbers: Sequence[int], local: bool = False) -> list[jax.Device]:
    """The devices with these numbers within their process; with `local`, of this process only.

    Raises:
      DeviceError: a process has no device of a number.
    """
    found = []
    for process in [jax.process_index()] if local else range(jax.process_count()):
        here = [x for x in devices(options) if x.process_index == process]
        for number in numbers:
            if not 0 <= number < len(here):
                raise DeviceError(
                    f"There is no device {number}, since there are {len(here)} devices of the "
                    f"platform {here[0].platform!r}, numbered from 0."
                )
        found += [here[x] for x in numbers]
    return found


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        print(text)


def _backends_started() -> bool:
    # JAX refuses to change this setting once its backends run, and says so in no other public way.
    count = _config.jax_num_cpu_devices
    try:
        _config.update("jax_num_cpu_devices", count + 2)
    except RuntimeError:
        return True
    _config.update("jax_num_cpu_devices", count)
    return False


def _prepare(options: Options) -> None:
    """Makes the settings that JAX reads when its backends start."""
    add_flags("XLA_FLAGS", _xla_flags(options))
    if options.platform in ("auto", "tpu"):
        add_flags("LIBTPU_INIT_ARGS", options.tpuflags.split())
    if not options.prealloc:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if options.platform in ("cpu", "cuda", "rocm", "tpu"):
        others = "" if options.platform == "cpu" else ",cpu"
        _config.update("jax_platforms", options.platform + others)
    if options.mock_devices:
        _config.update("jax_num_cpu_devices", options.mock_devices)
    if _distributed(options) and not jax.distributed.is_initialized():
        _join_processes(options)


def _distributed(options: Options) -> bool:
    return options.num_processes != 1 or bool(options.coordinator_address)


def _join_processes(options: Options) -> None:
    try:
        jax.distributed.initialize(
            options.coordinator_address or None,
            options.num_processes if options.num_processes > 1 else None,
            options.process_id if options.process_id >= 0 else None,
        )
    except (RuntimeError, ValueError) as e:
        raise DeviceError(
            f"The {options.num_processes} processes could not join at "
            f"{options.coordinator_address!r}: set jax.coordinator_address, jax.num_processes and "
            f"jax.process_id in each of them ({str(e).splitlines()[0].rstrip('.')})."
        ) from e


def _xla_flags(options: Options) -> list[str]:
    flags = []
    if options.platform in _GPU:
        if options.deterministic:
            flags.append("--xla_gpu_deterministic_ops=true")
        if options.autotune >= 0:
            flags.append(f"--xla_gpu_autotune_level={options.autotune}")
        flags += options.gpuflags.split()
    if options.xladump:
        flags += [f"--xla_dump_to={options.xladump}", "--xla_dump_hlo_as_text=true"]
    return flags


def add_flags(variable: str, flags: Sequence[str]) -> None:
    """Appends flags to an environment variable; those that it sets already stay as they are."""
    present = os.environ.get(variable, "").split()
    names = {x.split("=")[0] for x in present}
    added = [x for x in flags if x.split("=")[0] not in names]
    if added:
        os.environ[variable] = " ".join(present + added)


def _check_started(options: Options) -> None:
    """Compares what can no longer be changed with what is asked for."""
    if _distributed(options) and not jax.distributed.is_initialized():
        raise DeviceError(
            "Several processes must join before JAX is first used, but this process has used it "
            "already: construct the agent first."
        )
    names = {x.split("=")[0] for x in os.environ.get("XLA_FLAGS", "").split()}
    late = [x for x in _xla_flags(options) if x.split("=")[0] not in names]
    if late and (options.xladump or jax.default_backend() == "gpu"):
        warnings.warn(
            f"JAX runs already in this process, so these flags are too late: {' '.join(late)}.",
            stacklevel=3,
        )


def _check_devices(options: Options) -> None:
    found = devices(options)
    here = len([x for x in found if x.process_index == jax.process_index()])
    if options.mock_devices and here != options.mock_devices:
        raise DeviceError(
            f"jax.mock_devices asks for {options.mock_devices} CPU devices, but JAX runs already "
            f"in this process with {here}: ask for them before JAX is first used."
        )
    if options.expect_devices and len(found) != options.expect_devices:
        raise DeviceError(
            f"jax.expect_devices asks for {options.expect_devices} devices, but there are "
            f"{len(found)} of the platform {found[0].platform!r}."
        )
    if options.num_processes > 1 and jax.process_count() != options.num_processes:
        raise DeviceError(
            f"jax.num_processes asks for {options.num_processes} processes, but "
            f"{jax.process_count()} have joined."
        )


def _enable_cache(folder: str) -> None:
    """Keeps compiled programs on disk, so that the next start is faster."""
    if not folder:
        return
    if folder == "auto":
        if _config.jax_compilation_cache_dir:
            return  # Set by the user.
        home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        folder = os.path.join(home, "dreamerv3", "jax", _machine())
    path = Path(folder).expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as e:
        _say_once(
            f"Compiled programs are not kept, since {path} cannot be written ({e.strerror}): set "
            f"jax.compilation_cache to another folder."
        )
        return
    _config.update("jax_compilation_cache_dir", str(path))


def _machine() -> str:
    """Names the kind of processor: programs compiled for one may crash another (shared homes)."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = host.processor()
    features = re.search(r"^(flags|Features)\s*:(.*)$", text, re.MULTILINE)
    digest = hashlib.sha256((features.group(2) if features else text).encode()).hexdigest()
    return f"{host.machine()}-{digest[:8]}"
