"""Crafter, a survival game with 22 achievements: https://github.com/danijar/crafter."""

from __future__ import annotations

import collections
from typing import Any

import elements
import numpy as np

from ..core.base import Data, Env, Spaces
from . import unknown
from .adapter import class_actions, flag_spaces, flags, image_size, require

_PREFIX = "log/achievement_"


class Crafter(Env):
    """Makes an `embodied.Env` of Crafter.

    An episode ends terminally when the player dies and not terminally after 10000 steps.

    Args:
      task: "reward" for 1 per new achievement and 0.1 per health point gained or lost;
        "noreward" for no reward at all.
      size: height and width of the image.
      logs: whether to log how often each achievement was unlocked in the episode so far, from
        which `Episodes` computes success rates and the Crafter score, and, with "noreward", the
        reward that is withheld.
      seed: any number of 32 bits.

    Raises:
      EnvError: if the task does not exist or the size is not positive.
      MissingPackageError: if crafter is not installed.
    """

    def __init__(
        self, task: str, size: tuple[int, int] = (64, 64), logs: bool = True, seed: int = 0
    ):
        if task not in ("reward", "noreward"):
            raise unknown("task of Crafter", task, ("reward", "noreward"))
        crafter = require("crafter", "crafter", "'dreamerv3[crafter]'")
        height, width = image_size(size)
        self._env = crafter.Env(size=(width, height), reward=task == "reward", seed=seed)
        _order_chunks(self._env._world)
        self._shape = (height, width, 3)
        self._achievements = crafter.constants.achievements if logs else []
        self._log_reward = logs and task == "noreward"
        self._actions = len(crafter.constants.actions)
        self._over = True

    @property
    def obs_space(self) -> Spaces:
        """The image, reward, flags and perhaps what is logged."""
        spaces = {
            "image": elements.Space(np.uint8, self._shape),
            **flag_spaces(),
            **{_PREFIX + x: elements.Space(np.float32, (), 0) for x in self._achievements},
        }
        if self._log_reward:
            spaces["log/reward"] = elements.Space(np.float32)
        return spaces

    @property
    def act_space(self) -> Spaces:
        """One of 17 actions, and `reset`."""
        return class_actions(self._actions)

    def step(self, action: Data) -> Data:
        """Takes the action or starts an episode; see `Env.step`."""
        if action["reset"] or self._over:
            self._over = False
            return self._observe(self._env.reset(), flags(first=True), {})
        image, reward, self._over, info = self._env.step(int(action["action"]))
        terminal = info["discount"] == 0
        return self._observe(image, flags(reward, False, self._over, terminal), info)

    def _observe(self, image: Any, flag_values: Data, info: dict[str, Any]) -> Data:
        counts = info.get("achievements", {})
        obs = {
            "image": image,
            **flag_values,
            **{_PREFIX + x: np.float32(counts.get(x, 0)) for x in self._achievements},
        }
        if self._log_reward:
            obs["log/reward"] = np.float32(info.get("reward", 0))
        return obs


class _OrderedSet(dict):
    """A set that keeps the order in which its elements came."""

    def add(self, element: Any) -> None:
        self[element] = None

    def remove(self, element: Any) -> None:
        del self[element]


def _order_chunks(world: Any) -> None:
    """Makes worlds follow from their seed.

    Crafter draws the creature to remove from a set, whose order hangs on where in memory its
    objects happen to lie.
    """
    reset = world.reset

    def ordered_reset(seed: int | None = None) -> None:
        reset(seed)
        world._chunks = collections.defaultdict(_OrderedSet)

    world.reset = ordered_reset
