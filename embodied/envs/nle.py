"""The NetHack Learning Environment: https://github.com/NetHack-LE/nle."""

from __future__ import annotations

from typing import Any

import elements
import numpy as np

from ..core.base import Array, Data, Env, Spaces
from ..core.errors import EnvError
from . import unknown
from .adapter import class_actions, flag_spaces, flags, image_size, require
from .images import make_resize

_INSTALL = "'dreamerv3[nle]' && pip install --no-deps 'nle>=1.3,<2'"
_TASKS = {
    "score": "NetHackScore",
    "staircase": "NetHackStaircase",
    "staircase_pet": "NetHackStaircasePet",
    "oracle": "NetHackOracle",
    "gold": "NetHackGold",
    "eat": "NetHackEat",
    "scout": "NetHackScout",
    "challenge": "NetHackChallenge",
}


class NLE(Env):
    """Makes an `embodied.Env` of a task of the NetHack Learning Environment.

    The dungeon as glyphs of 5977 classes is too large for a vector. Therefore the agent sees the
    surroundings of the player as a picture made of NetHack's own tiles, and the numbers of the
    status line. Games are cut after the package's own limit: 5000 steps, and a million steps or
    10000 without progress in the challenge. `log/depth` is the level of the dungeon.

    Args:
      task: "score", "staircase", "staircase_pet", "oracle", "gold", "eat", "scout" or
        "challenge", which has 121 actions in place of 23 and leaves menus open, though they are
        not visible.
      size: height and width of the image.
      view: height and width of what is visible, in tiles, the player in the middle.
      image: whether to observe the `image` of the surroundings.
      message: whether to observe the line above the map, 256 characters of 256 classes.
      seed: any number of 32 bits.
      render: whether to add the picture as `log/image` if there is no `image`.

    Raises:
      EnvError: if the task does not exist or the view is not positive and odd.
      MissingPackageError: if nle is not installed.
    """

    def __init__(
        self,
        task: str,
        size: tuple[int, int] = (64, 64),
        view: int = 9,
        image: bool = True,
        message: bool = False,
        seed: int = 0,
        render: bool = False,
    ):
        if task not in _TASKS:
            raise unknown("task of NetHack", task, _TASKS)
        if view < 1 or view % 2 == 0:
            raise EnvError(f"The view is {view} tiles, but must be odd to have a middle.")
        tasks = require("nle.env.tasks", "nle", _INSTALL)
        self._nethack = require("nle.nethack", "nle", _INSTALL)
        self._image_key = "image" if image else "log/image" if render else None
        self._view = view
        self._size = image_size(size)
        self._resize = make_resize("pillow", self._size, "nle") if self._image_key else None
        self._message = message
        self._rng = np.random.default_rng(seed)
        self._env = getattr(tasks, _TASKS[task])(
            observation_keys=("glyphs", "blstats", "message"),
            render_mode="pixel" if self._image_key else "ansi",
            fix_moon_phase=True,  # a game shall not depend on the day that it is played on
        )
        self._over = True

    @property
    def obs_space(self) -> Spaces:
        """Picture and message as wanted, the status line, reward and flags."""
        spaces = {
            "blstats": elements.Space(np.float32, self._nethack.BLSTATS_SHAPE),
            "log/depth": elements.Space(np.float32),
            **flag_spaces(),
        }
        if self._message:
            spaces["message"] = elements.Space(np.int32, self._nethack.MESSAGE_SHAPE, 0, 256)
        if self._image_key:
            spaces[self._image_key] = elements.Space(np.uint8, (*self._size, 3))
        return spaces

    @property
    def act_space(self) -> Spaces:
        """The task's keys of the keyboard, and `reset`."""
        return class_actions(len(self._env.actions))

    def step(self, action: Data) -> Data:
        """Presses a key or starts a game; see `Env.step`."""
        first = bool(action["reset"]) or self._over
        reward, terminal = 0.0, False
        if first:
            obs = self._reset()
            self._over = False
        else:
            obs, reward, self._over, _, info = self._env.step(int(action["action"]))
            terminal = self._over and info["end_status"] != self._env.StepStatus.ABORTED
        status = obs["blstats"].astype(np.float32)
        result = {
            "blstats": status,
            "log/depth": status[self._nethack.NLE_BL_DEPTH],
            **flags(reward, first, self._over, terminal),
        }
        if self._message:
            result["message"] = obs["message"].astype(np.int32)
        if self._image_key:
            result[self._image_key] = self._render(*obs["blstats"][:2])
        return result

    def close(self) -> None:
        """Ends the game."""
        self._env.close()

    def _reset(self) -> Any:
        core, display = (int(x) for x in self._rng.integers(2**62, size=2))
        # Gymnasium's seed reaches NetHack in no task, and the challenge's object hides the method.
        self._nethack.Nethack.set_initial_seeds(self._env.nethack, core, display, False)
        return self._env.reset()[0]

    def _render(self, x: int, y: int) -> Array:
        """The tiles around a position; black beyond the map."""
        assert self._resize is not None
        tile, _, channels = self._nethack.TILE_SHAPE
        frame = self._env.render()
        edge = self._view * tile
        image = np.zeros((edge, edge, channels), np.uint8)
        top, left = (int(i - self._view // 2) * tile for i in (y, x))
        part = frame[max(top, 0) : top + edge, max(left, 0) : left + edge]
        top, left = max(-top, 0), max(-left, 0)
        image[top : top + part.shape[0], left : left + part.shape[1]] = part
        return self._resize(image)
