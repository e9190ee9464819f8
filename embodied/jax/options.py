"""The options under `jax` in the config: how and where an agent computes."""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any

from ..core.errors import ConfigError

PLATFORMS = ("auto", "cpu", "cuda", "gpu", "rocm", "tpu")
NONFINITE = ("stop", "skip")
DTYPES = ("auto", "bfloat16", "float16", "float32")


@dataclasses.dataclass(frozen=True)
class Options:
    """How and where an agent computes; see `make` for building one from a config.

    Attributes:
      platform: auto, cpu, cuda, gpu, rocm or tpu; auto takes an accelerator where there is one.
      compute_dtype: of activations; auto is float32 on CPUs and bfloat16 elsewhere.
      policy_devices: numbers of the devices of each process that act.
      train_devices: numbers of the devices of each process that train.
      policy_mesh: sizes of the axes d,f,t (data, sharded data, tensor); one may be -1.
      train_mesh: the same for training.
      profiler: record a profile of a few updates into the logdir.
      expect_devices: fail unless there are this many devices; 0 for any number.
      use_shardmap: train with `jax.shard_map` over the data axes instead of automatic sharding.
      enable_policy: whether this process acts.
      ckpt_chunksize: bytes of parameters fetched at once for a checkpoint; -1 for all.
      precompile: compile train and report at construction.
      debug: print the parameters, log compilations, check parameters after each update.
      jit: compile; False runs operation by operation.
      prealloc: let JAX reserve most of the GPU memory.
      mock_devices: number of CPU devices to pretend; 0 leaves it to JAX.
      transfer_guard: fail on transfers that nobody asked for, once compiled.
      nonfinite: what follows an update whose loss or gradients are not finite, which is undone:
        stop, or skip it and go on.
      deterministic: deterministic GPU operations, which are slower.
      autotune: XLA's GPU autotuning level 0 to 4; -1 leaves it to XLA.
      gpuflags: more XLA flags for GPUs, separated by spaces.
      tpuflags: more flags for TPUs, separated by spaces.
      xladump: folder for XLA's dumps of compiled programs; empty for none.
      debug_nans: fail at the operation that makes the first NaN.
      process_id: number of this process; -1 to find it from the cluster.
      num_processes: number of processes that train together.
      coordinator_address: host:port of process 0; empty to find it from the cluster.
      compilation_cache: folder of compiled programs; auto for the user's cache folder, empty to
        leave it to JAX.
    """

    platform: str = "auto"
    compute_dtype: str = "auto"
    policy_devices: tuple[int, ...] = (0,)
    train_devices: tuple[int, ...] = (0,)
    policy_mesh: str = "-1,1,1"
    train_mesh: str = "-1,1,1"
    profiler: bool = False
    expect_devices: int = 0
    use_shardmap: bool = False
    enable_policy: bool = True
    ckpt_chunksize: int = -1
    precompile: bool = False
    debug: bool = False
    jit: bool = True
    prealloc: bool = True
    mock_devices: int = 0
    transfer_guard: bool = True
    nonfinite: str = "stop"
    deterministic: bool = False
    autotune: int = -1
    gpuflags: str = ""
    tpuflags: str = ""
    xladump: str = ""
    debug_nans: bool = False
    process_id: int = -1
    num_processes: int = 1
    coordinator_address: str = ""
    compilation_cache: str = "auto"

    @classmethod
    def make(cls, **values: Any) -> Options:
        """Builds options from config values; missing ones take their defaults.

        Raises:
          ConfigError: an option does not exist, or a value is none of its choices.
        """
        names = [x.name for x in dataclasses.fields(cls)]
        for name in values:
            if name not in names:
                close = (difflib.get_close_matches(name, names, 1, 0) or names)[0]
                raise ConfigError(f"There is no option jax.{name}: did you mean jax.{close}?")
        options = cls(**values)
        options._check_choice("platform", PLATFORMS)
        options._check_choice("compute_dtype", DTYPES)
        options._check_choice("nonfinite", NONFINITE)
        options._check_flags("gpuflags")
        options._check_flags("tpuflags")
        return options

    def _check_choice(self, name: str, choices: tuple[str, ...]) -> None:
        value = getattr(self, name)
        if value not in choices:
            close = difflib.get_close_matches(str(value), choices, 1, 0)[0]
            raise ConfigError(
                f"jax.{name} cannot be {value!r}: did you mean {close!r} "
                f"(of {', '.join(choices)})?"
            )

    def _check_flags(self, name: str) -> None:
        for flag in getattr(self, name).split():
            if not flag.startswith("--"):
                raise ConfigError(
                    f"jax.{name} must hold flags such as --xla_name=value, but has {flag!r}."
                )
