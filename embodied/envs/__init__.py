"""Environments by name: `make("gymnasium_CartPole-v1")`. One suite per file, loaded when used."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..core.base import Env
from ..core.errors import EnvError

_SUITES = {
    "atari": "atari:Atari",
    "atari100k": "atari:Atari",
    "bsuite": "bsuite:BSuite",
    "crafter": "crafter:Crafter",
    "craftax": "craftax:Craftax",
    "custom": "custom:make",
    "dmc": "dmc:DMC",
    "dmlab": "dmlab:DMLab",
    "dummy": "dummy:Dummy",
    "gym": "gymnasium:Gymnasium",
    "gymnasium": "gymnasium:Gymnasium",
    "loconav": "loconav:LocoNav",
    "memmaze": "memmaze:MemoryMaze",
    "metaworld": "metaworld:MetaWorld",
    "minecraft": "minecraft:Minecraft",
    "minigrid": "minigrid:MiniGrid",
    "nle": "nle:NLE",
    "pinpad": "pinpad:PinPad",
    "procgen": "procgen:ProcGen",
}


def suites() -> list[str]:
    """The names of all suites, whether or not their packages are installed."""
    return sorted(_SUITES)


def make(task: str, index: int = 0, seed: int = 0, **kwargs: Any) -> Env:
    """Builds an environment.

    Args:
      task: suite and name within the suite, joined by an underscore, e.g. `"dmc_walker_walk"`.
      index: number of the environment in its driver.
      seed: seed of the run; the environment's own seed derives from it and the index.
      **kwargs: options of the suite.

    Raises:
      EnvError: if suite or task are unknown; names the nearest ones.
      MissingPackageError: if the suite's package is not installed.
    """
    suite, _, name = task.partition("_")
    if suite not in _SUITES:
        raise unknown("suite", suite, _SUITES)
    if not name:
        raise EnvError(f"The task {task!r} names no environment: write {suite}_NAME.")
    module, constructor = _SUITES[suite].split(":")
    adapter = getattr(importlib.import_module(f"{__name__}.{module}"), constructor)
    return adapter(name, seed=env_seed(seed, index), **kwargs)


def env_seed(seed: int, index: int) -> int:
    """A seed of 32 bits for one of the environments of a run; no two of a run are related."""
    return int(np.random.SeedSequence([seed, index]).generate_state(1)[0])


def unknown(kind: str, name: str, valid: Iterable[str]) -> EnvError:
    """The error for a name that does not exist, with the nearest names that do.

    Args:
      kind: what is named, e.g. `"suite"`.
      name: what was asked for.
      valid: the names that exist.
    """
    valid = sorted(valid)
    by_lower = {x.lower(): x for x in valid}
    near = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.5)
    choice = [by_lower[x] for x in near] or valid
    more = ", …" if len(choice) > 10 else ""
    return EnvError(
        f"There is no {kind} {name!r}: try {', '.join(repr(x) for x in choice[:10])}{more}."
    )
