"""Environments of the DeepMind Control suite: https://github.com/google-deepmind/dm_control."""

from __future__ import annotations

import importlib
from typing import Any

import elements
import numpy as np

from ..core.base import Array, Data, Env, Spaces
from ..core.errors import EnvError
from . import mujoco_gl, unknown
from .adapter import flag_spaces, flags

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
      EnvError: if the task does not exist or the machine cannot render.
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
        self._env = _load(task, seed, render=bool(self._image_key))
        self._repeat = repeat
        self._size = tuple(size)
        self._camera = _DEFAULT_CAMERAS.get(task.split("_")[0], 0) if camera < 0 else camera
        specs = self._env.observation_spec() if proprio else {}
        # Names that lead to the part of a robot would read as paths of modules: no slashes.
        self._keys = {k.replace("/", "_"): k for k, v in specs.items() if 0 not in v.shape}
        self._shapes = {k: _squeezed(specs[v].shape) for k, v in self._keys.items()}
        self._over = True
        if self._image_key:
            self._render()  # a machine that cannot render says so now

    @property
    def obs_space(self) -> Spaces:
        """The task's observations, images if wanted, reward and flags."""
        spaces = {k: elements.Space(np.float32, v) for k, v in self._shapes.items()}
        if self._image_key:
            spaces[self._image_key] = elements.Space(np.uint8, (*self._size, 3))
        return {
            **spaces,
            **flag_spaces(),
        }

    @property
    def act_space(self) -> Spaces:
        """The action within the bounds of the task, and `reset`."""
        spec = self._env.action_spec()
        return {
            "action": elements.Space(np.float32, spec.shape, spec.minimum, spec.maximum),
            "reset": elements.Space(bool),
        }

    def step(self, action: Data) -> Data:
        """Steps the task up to `repeat` times, or resets it; see `Env.step`."""
        reward = 0.0
        if action["reset"] or self._over:
            time_step = self._env.reset()
        else:
            for _ in range(self._repeat):
                time_step = self._env.step(action["action"].astype(np.float64))
                reward += time_step.reward or 0.0
                if time_step.last():
                    break
        self._over = time_step.last()
        obs = {
            k: np.asarray(time_step.observation[v], np.float32).reshape(self._shapes[k])
            for k, v in self._keys.items()
        }
        if self._image_key:
            obs[self._image_key] = self._render()
        return {
            **obs,
            **flags(
                reward,
                time_step.first(),
                time_step.last(),
                time_step.last() and time_step.discount == 0,
            ),
        }

    def close(self) -> None:
        """Frees the simulation."""
        self._env.close()

    def _render(self) -> Array:
        try:
            return self._env.physics.render(*self._size, camera_id=self._camera)
        except ValueError as error:
            raise EnvError(f"The camera {self._camera} cannot render: {error}.") from error
        except Exception as error:
            raise mujoco_gl.rendering_error(error) from error


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Without the leading 1 of manipulation tasks, which stands for a history of one."""
    return shape[1:] if len(shape) > 1 and shape[0] == 1 else shape


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
