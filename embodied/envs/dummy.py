"""A cheap environment with every kind of observation and action, for tests and timing."""

from __future__ import annotations

import elements
import numpy as np

from ..core.base import Data, Env, Spaces
from . import unknown
from .adapter import image_size


class Dummy(Env):
    """Pays 1 for every action with `act_disc` equal to 1, so that the best return is `length`.

    Episodes have `length` actions and end terminally. `count` is the number of actions taken;
    `token`, `int2d` and the brightness of `image` count it too. `vector` and `float2d` are noise
    that follows from the seed.

    Args:
      task: "disc" for discrete actions only, "cont" for continuous ones in addition, which
        change nothing.
      size: height and width of the image.
      length: actions per episode.
      seed: any non-negative number.
    """

    def __init__(
        self,
        task: str,
        size: tuple[int, int] = (64, 64),
        length: int = 100,
        seed: int = 0,
    ):
        if task not in ("disc", "cont"):
            raise unknown("task of the suite 'dummy'", task, ("disc", "cont"))
        self._task = task
        self._size = image_size(size, least=1)
        self._length = length
        self._rng = np.random.default_rng(seed)
        self._start = self._rng.bit_generator.state  # when the episode began
        self._count = 0
        self._over = True

    @property
    def obs_space(self) -> Spaces:
        """Observations of six kinds, reward and flags."""
        return {
            "image": elements.Space(np.uint8, (*self._size, 3)),
            "vector": elements.Space(np.float32, (7,)),
            "token": elements.Space(np.int32, (), 0, 256),
            "count": elements.Space(np.float32, (), 0, self._length),
            "float2d": elements.Space(np.float32, (4, 5)),
            "int2d": elements.Space(np.int32, (2, 3), 0, 4),
            "reward": elements.Space(np.float32),
            "is_first": elements.Space(bool),
            "is_last": elements.Space(bool),
            "is_terminal": elements.Space(bool),
        }

    @property
    def act_space(self) -> Spaces:
        """`act_disc` with five classes, and `act_cont` with six numbers if wanted."""
        spaces = {
            "reset": elements.Space(bool),
            "act_disc": elements.Space(np.int32, (), 0, 5),
        }
        if self._task == "cont":
            spaces["act_cont"] = elements.Space(np.float32, (6,), -1, 1)
        return spaces

    def step(self, action: Data) -> Data:
        """Counts the action; see `Env.step`."""
        first = bool(action["reset"]) or self._over
        if first:
            self._start = self._rng.bit_generator.state
        self._count = 0 if first else self._count + 1
        self._over = self._count >= self._length
        count = self._count
        return {
            "image": np.full((*self._size, 3), count % 256, np.uint8),
            "vector": self._rng.standard_normal(7, np.float32),
            "token": np.int32(count % 256),
            "count": np.float32(count),
            "float2d": self._rng.standard_normal((4, 5), np.float32),
            "int2d": np.full((2, 3), count % 4, np.int32),
            "reward": np.float32(not first and action["act_disc"] == 1),
            "is_first": np.bool_(first),
            "is_last": np.bool_(self._over),
            "is_terminal": np.bool_(self._over),
        }

    def save_episode(self) -> Data:
        """The random state from which the episode began."""
        return dict(self._start)

    def load_episode(self, data: Data) -> None:
        """Lets the next episode begin from there."""
        self._rng.bit_generator.state = data
