"""Craftax and Craftax-Classic, which run in JAX: https://github.com/MichaelTMatthews/Craftax."""

from __future__ import annotations

import contextlib
import functools
import importlib
import multiprocessing
from collections.abc import Iterator
from typing import Any

import elements
import numpy as np

from ..core.base import Array, BatchedEnv, Data, Spaces
from ..core.errors import EnvError
from . import unknown
from .adapter import class_actions, flag_spaces, require

_INSTALL = "'dreamerv3[craftax]'"
_TASKS = {
    "symbolic": "Craftax-Symbolic-v1",
    "pixels": "Craftax-Pixels-v1",
    "classic_symbolic": "Craftax-Classic-Symbolic-v1",
    "classic_pixels": "Craftax-Classic-Pixels-v1",
}


class Craftax(BatchedEnv):
    """Makes an `embodied.BatchedEnv` of Craftax, so that one program steps E worlds.

    It runs on the CPU, whatever the agent runs on, and takes 10 to 60 seconds to compile. The
    first import of the tasks of pixels prepares textures for 25 seconds (classic) to 3 minutes,
    and stores them in the package's folder. Episodes are cut after 100,000 steps, in classic
    after 10,000; death and, except in classic, victory are terminal.

    Args:
      task: "symbolic" (`vector` [8268], 43 actions), "pixels" (`image` [130, 110, 3]),
        "classic_symbolic" (`vector` [1345], 17 actions) or "classic_pixels" (`image`
        [63, 63, 3]).
      envs: the number of environments E.
      logs: whether to log which achievements were unlocked in the episode so far.
      seed: any number of 32 bits.

    Raises:
      EnvError: if the task does not exist or JAX is told not to use the CPU.
      MissingPackageError: if craftax is not installed.
    """

    def __init__(self, task: str, envs: int = 1, logs: bool = True, seed: int = 0):
        if task not in _TASKS:
            raise unknown("task of Craftax", task, _TASKS)
        self._jax = jax = require("jax", "craftax", _INSTALL)
        if multiprocessing.parent_process():  # leave the accelerators to the agent
            jax.config.update("jax_platforms", "cpu")
        with _on_cpu(jax):
            game = require("craftax.craftax_env", "craftax", _INSTALL).make_craftax_env_from_name(
                _TASKS[task], auto_reset=False
            )
            self._shape = game.observation_space(game.default_params).shape
            self._actions = game.num_actions
            self._keys = jax.random.split(jax.random.PRNGKey(np.uint32(seed)), envs)
            image = task.endswith("pixels")
            self._start = jax.jit(functools.partial(_start, game, image))
            self._advance = jax.jit(
                jax.vmap(functools.partial(_advance, game, image), (0, None, 0, 0))
            )
            self._insert = jax.jit(_insert)
        self._obs_key = "image" if image else "vector"
        self._achievements = _achievements(task) if logs else {}
        self.length = envs
        self._count = 0
        self._over = np.ones(envs, bool)
        self._world: Any = None  # observations and states [E, ...]

    @property
    def obs_space(self) -> Spaces:
        """Image or vector, `log/achievement_NAME` if wanted, reward and flags."""
        dtype = np.uint8 if self._obs_key == "image" else np.float32
        return {
            self._obs_key: elements.Space(dtype, self._shape),
            **{f"log/achievement_{x}": elements.Space(np.float32) for x in self._achievements},
            **flag_spaces(),
        }

    @property
    def act_space(self) -> Spaces:
        """One of the game's actions, and `reset`."""
        return class_actions(self._actions)

    def step(self, action: Data) -> Data:
        """Steps or resets every world; see `BatchedEnv.step`."""
        first = np.asarray(action["reset"], bool) | self._over
        reward = np.zeros(self.length, np.float32)
        last = terminal = np.zeros(self.length, bool)
        with _on_cpu(self._jax):
            if not first.all():
                moves = np.asarray(action["action"], np.int32)
                self._world, *results = self._advance(
                    self._keys, self._count, self._world[1], moves
                )
                reward, last, terminal = self._jax.device_get(results)
            self._reset(np.flatnonzero(first))
            obs, unlocked = self._jax.device_get((self._world[0], self._world[1].achievements))
        self._count += 1
        self._over = last & ~first
        return {
            self._obs_key: obs,
            **{
                f"log/achievement_{name}": unlocked[:, index].astype(np.float32)
                for name, index in self._achievements.items()
            },
            "reward": np.where(first, 0, reward).astype(np.float32),
            "is_first": first,
            "is_last": self._over.copy(),
            "is_terminal": terminal & ~first,
        }

    def _reset(self, indices: Array) -> None:
        """Starts new worlds, one by one, since that costs a hundred times as much as a step."""
        starts = [self._start(self._keys[i], self._count) for i in indices]
        if self._world is None:
            self._world = self._jax.tree.map(lambda *x: self._jax.numpy.stack(x), *starts)
            return
        for index, start in zip(indices, starts, strict=True):
            self._world = self._insert(self._world, start, index)


def _start(game: Any, image: bool, key: Any, count: Any) -> Any:
    """Makes a world: its first observation and its state."""
    import jax

    obs, state = game.reset_env(jax.random.fold_in(key, count), game.default_params)
    return _world(obs, state, image)


def _advance(game: Any, image: bool, key: Any, count: Any, state: Any, action: Any) -> Any:
    """Steps one world.

    Returns:
      Observation and state; reward; whether the episode ends; and whether it ends terminally.
    """
    import jax

    params = game.default_params
    key = jax.random.fold_in(key, count)
    obs, state, reward, done, _ = game.step_env(key, state, action, params)
    cut = state.timestep >= params.max_timesteps
    return _world(obs, state, image), reward, done, done & ~cut


def _insert(worlds: Any, world: Any, index: Any) -> Any:
    """Replaces one of E worlds."""
    import jax

    return jax.tree.map(lambda many, one: many.at[index].set(one), worlds, world)


def _world(obs: Any, state: Any, image: bool) -> Any:
    """Observation and state, always of the same types, so that they compile once."""
    import jax

    if image:
        obs = (obs * 255).round().astype(np.uint8)
    # A new world holds Python numbers, which have weak types that a step makes strong.
    return obs, jax.tree.map(lambda x: jax.numpy.asarray(x, jax.numpy.result_type(x)), state)


def _achievements(task: str) -> dict[str, int]:
    """Names in small letters and their indices."""
    package = "craftax_classic" if task.startswith("classic") else "craftax"
    constants = importlib.import_module(f"craftax.{package}.constants")
    return {x.name.lower(): x.value for x in constants.Achievement}


@contextlib.contextmanager
def _on_cpu(jax: Any) -> Iterator[None]:
    """Lets JAX work on the CPU; the agent may forbid transfers that are allowed here."""
    try:
        device = jax.local_devices(backend="cpu")[0]
    except RuntimeError as error:
        raise EnvError(
            f"Craftax runs on the CPU, which JAX may not use here ({error}): add it to the "
            "environment variable JAX_PLATFORMS, as in JAX_PLATFORMS=cuda,cpu."
        ) from error
    with jax.default_device(device), jax.transfer_guard("allow"):
        yield
