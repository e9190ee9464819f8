"""Memory Maze, a ball that finds objects in the order of their colours.

See https://github.com/jurgisp/memory-maze.
"""

from __future__ import annotations

import contextlib
import io
import logging
from typing import Any

from ..core.errors import EnvError
from . import mujoco_gl, unknown
from .adapter import image_size, require
from .dm_env import DMEnv

_INSTALL = "'dreamerv3[memmaze]'"
_TASKS = ("9x9", "11x11", "13x13", "15x15")


class MemoryMaze(DMEnv):
    """Makes an `embodied.Env` of a maze that is drawn anew in every episode.

    The frame of `image` has the colour of the object to find. The six actions are nothing,
    forward, left, right, forward and left, forward and right. Episodes are cut after 1000, 2000,
    3000 or 4000 steps, depending on the size of the maze.

    Args:
      task: "9x9", "11x11", "13x13" or "15x15".
      size: height and width of the image, which are equal and at least 64.
      targets: whether to observe more than the image: the `target_color`, where player and
        objects are, and the `maze_layout`.
      seed: any number of 32 bits.

    Raises:
      EnvError: if the task does not exist, the size does not fit or the machine cannot render.
      MissingPackageError: if memory-maze or gym is not installed.
    """

    def __init__(
        self,
        task: str,
        size: tuple[int, int] = (64, 64),
        targets: bool = False,
        seed: int = 0,
    ):
        if task not in _TASKS:
            raise unknown("task of Memory Maze", task, _TASKS)
        height, width = image_size(size)
        if height != width or height < 64:
            raise EnvError(
                f"The size of Memory Maze's images is {tuple(size)}, but height and width must "
                "be equal and at least 64."
            )
        super().__init__(_load(task, height, targets, seed))


def _load(task: str, resolution: int, targets: bool, seed: int) -> Any:
    with contextlib.redirect_stderr(io.StringIO()):  # gym prints that it is not maintained
        require("gym", "memmaze", _INSTALL)
    tasks = mujoco_gl.load("memory_maze.tasks", "memmaze", _INSTALL, render=True)
    logging.getLogger("absl").addFilter(_is_news)
    make = getattr(tasks, f"memory_maze_{task}")
    try:
        with mujoco_gl.graphics(True):
            env = make(
                seed=seed,
                camera_resolution=resolution,
                image_only_obs=not targets,
                global_observables=targets,
            )
            env.physics.render(resolution, resolution)
    except Exception as error:
        raise mujoco_gl.rendering_error(error) from error
    return env


def _is_news(record: logging.LogRecord) -> bool:
    """False of what dm_control logs at every start of an episode, as the ball cannot fly."""
    return not record.getMessage().startswith("Cannot set velocity on Entity")
