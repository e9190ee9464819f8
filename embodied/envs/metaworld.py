"""Meta-World's tasks of a robot arm: https://github.com/Farama-Foundation/Metaworld."""

from __future__ import annotations

from typing import Any

import elements
import numpy as np

from ..core.base import Array, Data, Env, Spaces
from ..core.errors import EnvError
from . import mujoco_gl, unknown
from .adapter import flag_spaces, flags, image_size, require

_INSTALL = "'mujoco>=3.10,<3.17' scipy imageio && pip install --no-deps 'metaworld>=3,<4'"


class MetaWorld(Env):
    """Makes an `embodied.Env` of one task of Meta-World's version 3, as in its MT1.

    Object and goal are placed anew in every episode; the goal is part of `state` and is drawn
    into images. Episodes are cut after 500 simulation steps, whether or not the task is solved.

    Args:
      task: name with or without its version, e.g. "reach", "door-open-v3".
      repeat: how many times every action is taken; the rewards, 0 to 10 each, are summed.
      size: height and width of the rendered images.
      state: whether to observe the `state` of gripper, objects and goal, float32 [39].
      image: whether to observe the rendered `image`.
      camera: name of the camera; "corner4" is the near "corner2" of the literature.
      seed: any number of 32 bits.
      render: whether to render `log/image` if there is no `image`.

    Raises:
      EnvError: if the task or camera does not exist, the size is not positive, the machine cannot
        render, or the installed MuJoCo is too new for Meta-World.
      MissingPackageError: if metaworld is not installed.
    """

    def __init__(
        self,
        task: str,
        repeat: int = 1,
        size: tuple[int, int] = (64, 64),
        state: bool = True,
        image: bool = True,
        camera: str = "corner4",
        seed: int = 0,
        render: bool = False,
    ):
        if not (state or image):
            raise EnvError("Set state or image, or there is nothing to observe.")
        if repeat < 1:
            raise EnvError(f"The action repeat is {repeat}, but must be at least 1.")
        self._state = state
        self._image_key = "image" if image else "log/image" if render else None
        self._repeat = repeat
        self._size = image_size(size)
        self._upside_down = camera.startswith("corner")
        rendering = {"camera_name": camera, "height": size[0], "width": size[1]}
        self._env = _make(
            task, seed, {"render_mode": "rgb_array", **rendering} if self._image_key else {}
        )
        self._over = True
        if self._image_key:
            _check_camera(self._env.model, camera)
            self._render()  # a machine that cannot render says so now

    @property
    def obs_space(self) -> Spaces:
        """State and image as wanted, `log/success`, reward and flags."""
        spaces = {"log/success": elements.Space(np.float32, (), 0, 1), **flag_spaces()}
        if self._state:
            spaces["state"] = elements.Space(np.float32, (39,))
        if self._image_key:
            spaces[self._image_key] = elements.Space(np.uint8, (*self._size, 3))
        return spaces

    @property
    def act_space(self) -> Spaces:
        """The movement of the hand, the force of the gripper, and `reset`."""
        return {
            "action": elements.Space(np.float32, (4,), -1, 1),
            "reset": elements.Space(bool),
        }

    def step(self, action: Data) -> Data:
        """Steps the task up to `repeat` times, or resets it; see `Env.step`."""
        first = bool(action["reset"]) or self._over
        reward, success = 0.0, 0.0
        if first:
            state, _ = self._env.reset()
            self._over = False
        else:
            for _ in range(self._repeat):
                state, value, _, self._over, info = self._env.step(action["action"])
                reward += float(value)
                success = max(success, float(info["success"]))
                if self._over:
                    break
        obs = {"log/success": np.float32(success), **flags(reward, first, self._over)}
        if self._state:
            obs["state"] = state.astype(np.float32)
        if self._image_key:
            obs[self._image_key] = self._render()
        return obs

    def close(self) -> None:
        """Frees the simulation."""
        self._env.close()

    def _render(self) -> Array:
        try:
            with mujoco_gl.graphics(True):
                image = self._env.render()
        except Exception as error:
            raise mujoco_gl.rendering_error(error) from error
        return image[::-1, ::-1] if self._upside_down else image


def _make(task: str, seed: int, rendering: dict[str, Any]) -> Any:
    with mujoco_gl.graphics(bool(rendering)):
        constructors = require("metaworld.env_dict", "metaworld", _INSTALL).ALL_V3_ENVIRONMENTS
        name = task if task.endswith("-v3") else f"{task}-v3"
        if name not in constructors:
            raise unknown("task of Meta-World", task, constructors)
        try:
            env = constructors[name](**rendering)
        except ValueError as error:
            mujoco = require("mujoco", "metaworld", _INSTALL)
            raise EnvError(
                f"Meta-World does not work with the installed MuJoCo {mujoco.__version__} "
                f"({error}): run `pip install 'mujoco>=3.10,<3.17'`, in a virtual environment of "
                "its own if dm_control is needed too."
            ) from error
    # What the package's own constructors for visible goals do, which take no camera.
    env._set_task_called = True
    env._partially_observable = False
    del env.sawyer_observation_space
    env._freeze_rand_vec = False
    env.seeded_rand_vec = True
    env.seed(seed)
    return env


def _check_camera(model: Any, camera: str) -> None:
    names = [model.camera(i).name for i in range(model.ncam)]
    if camera not in names:
        raise unknown("camera of Meta-World", camera, names)
