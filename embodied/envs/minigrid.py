"""MiniGrid and BabyAI: https://minigrid.farama.org."""

from __future__ import annotations

from typing import Any

import elements
import numpy as np

from ..core.base import Data, Env, Spaces
from ..core.errors import EnvError
from . import unknown
from .adapter import image_size, require
from .gymnasium import Gymnasium

_PREFIXES = ("MiniGrid-", "BabyAI-")


class MiniGrid(Env):
    """Makes an `embodied.Env` of a task of MiniGrid or BabyAI.

    The agent observes the cells in front of it, as a picture or as classes: `object`, `color` and
    `state` [V, V] with V cells a side, as MiniGrid numbers them. It also observes the `direction`
    that it faces. The text of the mission is left out: a task whose mission changes from episode
    to episode, as in most of BabyAI, cannot be told apart from its others.

    Args:
      task: name of a registered task, such as "DoorKey-5x5-v0" or "BabyAI-GoToRedBall-v0";
        "MiniGrid-" may stand before it.
      image: whether to observe `image` instead of classes.
      size: height and width of the image.
      length: steps after which episodes are cut off, in place of the task's own limit; 0 keeps it.
      seed: any number of 32 bits.
      render: whether to add the whole grid as `log/image`. Otherwise only `image` is rendered.

    Raises:
      EnvError: if the task does not exist, or size or length are negative.
      MissingPackageError: if MiniGrid is not installed.
    """

    def __init__(
        self,
        task: str,
        image: bool = True,
        size: tuple[int, int] = (64, 64),
        length: int = 0,
        seed: int = 0,
        render: bool = False,
    ):
        if length < 0:
            raise EnvError(f"The time limit is {length} steps: use 0 for the task's own.")
        size = image_size(size) if image else (0, 0)
        env = _make(task, length, render)
        view = env.observation_space["image"].shape[0]
        if image:
            wrappers = require("minigrid.wrappers", "minigrid", _INSTALL)
            env = wrappers.RGBImgPartialObsWrapper(env, tile_size=-(-max(size) // view))
        self._env = Gymnasium(env, seed, render, size=size, ignore="mission")
        self._classes = {} if image else _class_spaces(view)

    @property
    def obs_space(self) -> Spaces:
        """The image or the classes, the direction, reward, flags and perhaps `log/image`."""
        spaces = {**self._env.obs_space, **self._classes}
        if self._classes:
            del spaces["image"]
        return spaces

    @property
    def act_space(self) -> Spaces:
        """The classes of the action (seven in most tasks) and `reset`."""
        return self._env.act_space

    def step(self, action: Data) -> Data:
        """Steps or resets the task; see `Env.step`."""
        obs = self._env.step(action)
        if self._classes:
            grid = obs.pop("image")
            for channel, key in enumerate(self._classes):
                obs[key] = grid[..., channel].astype(np.int32)
        return obs

    def close(self) -> None:
        """Closes the task."""
        self._env.close()


_INSTALL = "'dreamerv3[minigrid]'"


def _make(task: str, length: int, render: bool) -> Any:
    require("minigrid", "minigrid", _INSTALL)  # registers the tasks
    import gymnasium

    name = task if task.startswith(_PREFIXES) else f"MiniGrid-{task}"
    names = [x for x in gymnasium.registry if x.startswith(_PREFIXES)]
    if name not in names:
        raise unknown("task of MiniGrid", name, names)
    kwargs: dict[str, Any] = {"max_steps": length} if length else {}
    if render:
        kwargs["render_mode"] = "rgb_array"
    return gymnasium.make(name, disable_env_checker=True, **kwargs)


def _class_spaces(view: int) -> Spaces:
    constants = require("minigrid.core.constants", "minigrid", _INSTALL)
    numbers = {
        "object": constants.OBJECT_TO_IDX,
        "color": constants.COLOR_TO_IDX,
        "state": constants.STATE_TO_IDX,
    }
    return {
        k: elements.Space(np.int32, (view, view), 0, max(v.values()) + 1)
        for k, v in numbers.items()
    }
