"""Environments of the DeepMind Control suite: https://github.com/google-deepmind/dm_control."""

from __future__ import annotations

import importlib
from typing import Any

import elements
import numpy as np

from ..core.base import Array, Data, Env, Spaces
from ..core.errors import EnvError
from ..core.wrappers import ActionRepeat
from . import mujoco_gl, unknown
from .adapter import flag_spaces, image_size
from .dm_env import DMEnv

_DEFAULT_CAMERAS = {"quadruped": 2}


class DMC(Env):
    """Makes an `embodied.Env` of a task of dm_control.

    Args:
      task: domain and task, e.g. "walker_walk" or "ball_in_cup_catch" (also "cup_catch"), or
        "manip_" and a manipulation task, e.g. "manip_reach_site".
      repeat: how many times every action is taken; the rewards are summed.
      size: height and width of the rendered images.
      proprio: whether to observe the joints and so on, as float32.
      image: whether to observe the rendered `image`.
      camera: which camera renders, or -1 for the usual one of the domain.
      seed: any number of 32 bits.
      render: whether to render `log/image` if there is no `image`. Nothing is rendered and no
        graphics library loaded if neither is wanted.

    Raises:
      EnvError: if the task or camera does not exist, the size is not positive, or the machine
        cannot render.
      MissingPackageError: if dm_control is not installed.
    """

    def __init__(
        self,
        task: str,
        repeat: int = 1,
        size: tuple[int, int] = (64, 64),
        proprio: bool = True,
        image: bool = True,
        camera: int = -1,
        seed: int = 0,
        render: bool = False,
    ):
        if not (proprio or image):
            raise EnvError("Set proprio or image, or there is nothing to observe.")
        self._image_key = "image" if image else "log/image" if render else None
        self._simulation = _load(task, seed, render=bool(self._image_key))
        self._env = ActionRepeat(DMEnv(self._simulation), repeat)
        self._size = image_size(size)
        self._camera = _DEFAULT_CAMERAS.get(task.split("_")[0], 0) if camera < 0 else camera
        states = self._env.obs_space if proprio else {}
        self._states = {k: _squeezed(v) for k, v in states.items() if k not in flag_spaces()}
        if self._image_key:
            self._render()  # a machine that cannot render says so now

    @property
    def obs_space(self) -> Spaces:
        """The task's observations, images if wanted, reward and flags."""
        spaces = {**self._states, **flag_spaces()}
        if self._image_key:
            spaces[self._image_key] = elements.Space(np.uint8, (*self._size, 3))
        return spaces

    @property
    def act_space(self) -> Spaces:
        """The action within the bounds of the task, and `reset`."""
        return self._env.act_space

    def step(self, action: Data) -> Data:
        """Steps the task up to `repeat` times, or resets it; see `Env.step`."""
        values = self._env.step(action)
        obs = {k: values[k] for k in flag_spaces()}
        for key, space in self._states.items():
            obs[key] = values[key].reshape(space.shape)
        if self._image_key:
            obs[self._image_key] = self._render()
        return obs

    def close(self) -> None:
        """Frees the simulation."""
        self._env.close()

    def _render(self) -> Array:
        try:
            return self._simulation.physics.render(*self._size, camera_id=self._camera)
        except ValueError as error:
            text = str(error).removesuffix(".")
            raise EnvError(f"The camera {self._camera} cannot render: {text}.") from error
        except Exception as error:
            raise mujoco_gl.rendering_error(error) from error


def _squeezed(space: elements.Space) -> elements.Space:
    """Without the leading 1 of manipulation tasks, which stands for a history of one."""
    shape = space.shape
    return elements.Space(space.dtype, shape[1:] if len(shape) > 1 and shape[0] == 1 else shape)


def _load(task: str, seed: int, render: bool) -> Any:
    suite = mujoco_gl.load("dm_control.suite", "dmc", "'dreamerv3[dmc]'", render)
    if task.startswith("manip_"):
        return _load_manipulation(task, seed)
    names = {f"{domain}_{name}": (domain, name) for domain, name in suite.ALL_TASKS}
    full = task.replace("cup_", "ball_in_cup_", 1) if task.startswith("cup_") else task
    if full not in names:
        raise unknown("task of dm_control", task, names)
    return suite.load(*names[full], task_kwargs={"random": seed})


def _load_manipulation(task: str, seed: int) -> Any:
    manipulation = importlib.import_module("dm_control.manipulation")
    suffix = "_features"
    names = {f"manip_{x.removesuffix(suffix)}" for x in manipulation.ALL if x.endswith(suffix)}
    if task not in names:
        raise unknown("task of dm_control", task, names)
    return manipulation.load(task.removeprefix("manip_") + suffix, seed=seed)
