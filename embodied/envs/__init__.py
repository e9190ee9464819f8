"""Environments by name: `make("gymnasium_CartPole-v1")`. One suite per file, loaded when used.

Other distributions add suites by entry points of the group `embodied.envs`:

    [project.entry-points."embodied.envs"]
    mysuite = "my_package.envs:make"

Then `make("mysuite_level1", seed=3)` calls `make("level1", seed=...)` of that module; see
`custom.Factory` for what it may take and return. Of several suites whose names a task begins with
the longest counts, and a suite of ours goes before one of the same name.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.base import BatchedEnv, Env
from ..core.errors import EnvError

if TYPE_CHECKING:
    from .custom import Factory

_SUITES = {
    "atari": "atari:Atari",
    "atari100k": "atari:Atari",
    "bsuite": "bsuite:BSuite",
    "crafter": "crafter:Crafter",
    "craftax": "craftax:Craftax",
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
    """The names of all suites, ours and other distributions', whether or not they can be used."""
    return sorted({*_SUITES, "custom", *_plugins()})


def parse_task(task: str) -> tuple[str, str]:
    """Splits a task into suite and name; the suite is the longest that it begins with.

    Where there is no such suite, it is what comes before the first underscore.
    """
    found = [x for x in suites() if f"{task}_".startswith(f"{x}_")]
    suite = max(found, key=len, default=task.partition("_")[0])
    return suite, task[len(suite) + 1 :]


def section(task: str) -> str:
    """The section of the config's `env` for a task: other distributions' suites use `custom`."""
    suite, _ = parse_task(task)
    return {"gym": "gymnasium"}.get(suite, suite) if suite in _SUITES else "custom"


def make(task: str, index: int = 0, seed: int = 0, **kwargs: Any) -> Env:
    """Builds an environment; of a batched task, a batch of one environment.

    Args:
      task: suite and name within the suite, joined by an underscore, e.g. `"dmc_walker_walk"`,
        or `"custom_package.module:factory"`.
      index: number of the environment in its driver.
      seed: seed of the run; the environment's own seed derives from it and the index.
      **kwargs: options of the suite.

    Raises:
      EnvError: if suite or task are unknown; names the nearest ones.
      MissingPackageError: if the suite's package is not installed.
    """
    env = _find(task)(env_seed(seed, index), index, 1, **kwargs)
    if isinstance(env, BatchedEnv):
        from .custom import Single

        return Single(env)
    return env


def make_batched(task: str, envs: int, index: int = 0, seed: int = 0, **kwargs: Any) -> BatchedEnv:
    """Builds one object that steps many environments; see `make`.

    Args:
      task: one for which `is_batched` is true.
      envs: the number of environments E.
      index: number of the first of them in its driver.
      seed: seed of the run; the batch's own seed derives from it and the index.
      **kwargs: options of the suite.

    Raises:
      EnvError: as `make`, and if the task makes single environments.
    """
    env = _find(task)(env_seed(seed, index), index, envs, **kwargs)
    if not isinstance(env, BatchedEnv):
        raise EnvError(f"The task {task!r} makes single environments, not batches of {envs}.")
    return env


def is_batched(task: str) -> bool:
    """Whether a task makes batches: its constructor has a parameter `envs` or `num_envs`.

    Nothing is built, but the module that holds the constructor is imported.

    Raises:
      EnvError: if there is no such constructor.
    """
    return _find(task).batched


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


def _plugins() -> dict[str, EntryPoint]:
    """The suites of other distributions, not loaded."""
    return {x.name: x for x in entry_points(group="embodied.envs")}


def _find(task: str) -> Factory:
    """What makes a task's environments."""
    from .custom import Factory, load, load_plugin

    suite, name = parse_task(task)
    if suite not in suites():
        raise unknown("suite", suite, suites())
    if not name:
        raise EnvError(f"The task {task!r} names no environment: write {suite}_NAME.")
    if suite == "custom":
        return load(name)
    if suite not in _SUITES:
        return load_plugin(_plugins()[suite], name)
    module, constructor = _SUITES[suite].split(":")
    adapter = getattr(importlib.import_module(f"{__name__}.{module}"), constructor)
    return Factory(adapter, suite, (name,), guard=False)
