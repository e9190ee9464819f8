"""The Behaviour Suite for Reinforcement Learning: https://github.com/google-deepmind/bsuite."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from ..core.errors import EnvError
from . import unknown
from .adapter import require
from .dm_env import DMEnv

_INSTALL = "'dreamerv3[bsuite]'"


class BSuite(DMEnv):
    """Makes an `embodied.Env` of one setting of an experiment of bsuite.

    Observations are the package's own, called `vector`.

    Args:
      task: experiment and number of its setting, e.g. "catch/0" or "memory_len/22". The
        experiments on MNIST download its images when they are first used.
      results: folder that gets bsuite's own CSV file of this task, which its analysis reads;
        empty for none. The file must not exist yet, so that only one environment can write it.
      seed: any number of 32 bits.

    Raises:
      EnvError: if the task does not exist, its data cannot be had, or the file exists.
      MissingPackageError: if bsuite is not installed.
    """

    def __init__(self, task: str, results: str = "", seed: int = 0):
        settings = require("bsuite.sweep", "bsuite", _INSTALL).SETTINGS
        if task not in settings:
            raise unknown("task of bsuite", task, settings)
        env = _load(task, dict(settings[task]), seed)
        super().__init__(_record(env, task, results) if results else env)


def _load(task: str, settings: dict[str, Any], seed: int) -> Any:
    bsuite = require("bsuite.bsuite", "bsuite", _INSTALL)
    experiment = task.split("/")[0]
    load = bsuite.EXPERIMENT_NAME_TO_ENVIRONMENT[experiment]
    if "seed" in inspect.signature(load).parameters:
        settings["seed"] = seed
    try:
        env = load(**settings)
    except OSError as error:
        raise EnvError(
            f"The task {task!r} needs MNIST, which cannot be downloaded ({error}): put the four "
            ".gz files of https://storage.googleapis.com/cvdf-datasets/mnist into /tmp/mnist."
        ) from error
    if experiment == "deep_sea_stochastic":  # the only random one that takes no seed
        env._rng = np.random.RandomState(seed)
    return env


def _record(env: Any, task: str, results: str) -> Any:
    csv_logging = require("bsuite.logging.csv_logging", "bsuite", _INSTALL)
    try:
        return csv_logging.wrap_environment(env, task, results)
    except ValueError as error:
        raise EnvError(
            f"The folder {results!r} already has results of {task!r}: name a new folder in "
            "env.bsuite.results and use one environment."
        ) from error
