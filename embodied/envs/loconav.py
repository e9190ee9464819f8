"""LocoNav: a legged robot has to walk through a maze that it sees from its own camera."""

from __future__ import annotations

from types import ModuleType

import elements
import numpy as np

from ..core.base import Array, Data, Env, Spaces
from ..core.errors import EnvError
from ..core.wrappers import ActionRepeat
from . import mujoco_gl, unknown
from .adapter import image_size
from .dm_env import DMEnv

_INSTALL = "'dreamerv3[dmc]'"


class LocoNav(Env):
    """Makes an `embodied.Env` of a robot that walks from a start to a goal.

    The reward is 1 where the robot touches the goal, and 0 before; the episode ends there. It
    also ends when the robot lies on its back, and is cut after 20 seconds in the empty room and
    30, 60, 90 and 120 in the mazes; an action takes 0.02 seconds. The maze, start and goal of a
    task are always the same; in which direction the robot starts follows from the seed.

    Args:
      task: "ant" or "quadruped" and "empty", "maze_s", "maze_m", "maze_l" or "maze_xl", joined
        by an underscore.
      repeat: how many times every action is taken; the rewards are summed.
      size: height and width of `image`.
      image: whether to observe the rendered `image`.
      camera: which camera renders, -1 for the one on the robot or 0 for the one above.
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
        image: bool = True,
        camera: int = -1,
        seed: int = 0,
        render: bool = False,
    ):
        self._image_key = "image" if image else "log/image" if render else None
        module = f"{__package__}.loconav_maze"
        maze = mujoco_gl.load(module, "loconav", _INSTALL, render=bool(self._image_key))
        walker, layout = _parse(task, maze)
        self._simulation = maze.make(walker, layout, seed)
        self._camera = self._simulation.task.camera if camera < 0 else camera
        self._size = image_size(size)
        self._env = ActionRepeat(DMEnv(self._simulation), repeat)
        if self._image_key:
            self._render()  # a machine that cannot render says so now

    @property
    def obs_space(self) -> Spaces:
        """The robot's joints and sensors, images if wanted, reward and flags."""
        spaces = dict(self._env.obs_space)
        if self._image_key:
            spaces[self._image_key] = elements.Space(np.uint8, (*self._size, 3))
        return spaces

    @property
    def act_space(self) -> Spaces:
        """The robot's motors, and `reset`."""
        return self._env.act_space

    def step(self, action: Data) -> Data:
        """Steps the simulation up to `repeat` times, or resets it; see `Env.step`."""
        obs = self._env.step(action)
        return {**obs, self._image_key: self._render()} if self._image_key else obs

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


def _parse(task: str, maze: ModuleType) -> tuple[str, str]:
    names = {f"{w}_{layout}": (w, layout) for w in maze.WALKERS for layout in maze.LAYOUTS}
    if task not in names:
        raise unknown("task of LocoNav", task, names)
    return names[task]
