"""The 16 games of ProcGen, whose levels are generated: https://github.com/openai/procgen.

The package `procgen` has no builds for current versions of Python; `procgen-mirror` is the same
code, built for them. It asks for old versions of packages that it works well without.
"""

from __future__ import annotations

import collections

import elements
import numpy as np

from ..core.base import Array, Data, Env, Spaces
from ..core.errors import EnvError
from . import unknown
from .adapter import class_actions, flag_spaces, flags, require
from .images import make_resize

_INSTALL = "'dreamerv3[procgen]' && pip install --no-deps procgen-mirror gym3==0.3.3"
_FORCE_RESET = -1  # an action that ends the episode
# Actions after which a game ends an episode; it does not say so itself.
_TIME_LIMITS = collections.defaultdict(
    lambda: 1000, bigfish=6000, bossfight=4000, plunder=4000, leaper=500, maze=500
)


class ProcGen(Env):
    """Makes an `embodied.Env` of a game of ProcGen.

    Episodes end not terminally at the game's time limit, else terminally. The games never show
    what their last action led to, but the next level at once. The last observation of an episode
    therefore shows the frame that the action was chosen on once more, with the action's reward.

    Args:
      game: name of the game, e.g. "coinrun".
      size: height and width of the image; the games' own is [64, 64].
      resize: "pillow" or "opencv"; see `make_resize`.
      start_level: seed of the first level.
      num_levels: number of different levels; 0 for all there are.
      distribution_mode: "hard", or "easy" for levels that are learned with less data.
      seed: any number of 32 bits; the order of levels and what is random within them follow
        from it.

    Raises:
      EnvError: if the game does not exist or an option is wrong.
      MissingPackageError: if procgen or the library that resizes is not installed.
    """

    def __init__(
        self,
        game: str,
        size: tuple[int, int] = (96, 96),
        resize: str = "pillow",
        start_level: int = 0,
        num_levels: int = 0,
        distribution_mode: str = "hard",
        seed: int = 0,
    ):
        if distribution_mode not in ("hard", "easy"):
            raise EnvError(
                f"The option distribution_mode is {distribution_mode!r}, but must be 'hard' or "
                "'easy'."
            )
        for option, value in {"start_level": start_level, "num_levels": num_levels}.items():
            if value < 0:  # the package would end the process
                raise EnvError(f"The option {option} is {value}, but must be at least 0.")
        names = require("procgen.env", "procgen", _INSTALL).ENV_NAMES
        if game not in names:
            raise unknown("game of ProcGen", game, names)
        self._env = require("procgen", "procgen", _INSTALL).ProcgenGym3Env(
            num=1,
            num_threads=0,
            env_name=game,
            start_level=start_level,
            num_levels=num_levels,
            distribution_mode=distribution_mode,
            rand_seed=seed % 2**31,
        )
        self._resize = make_resize(resize, size, "procgen")
        self._size = tuple(size)
        self._limit = _TIME_LIMITS[game]
        self._duration = 0
        self._over = True
        self._image = self._observe()[1]

    @property
    def obs_space(self) -> Spaces:
        """The image, reward and flags."""
        return {"image": elements.Space(np.uint8, (*self._size, 3)), **flag_spaces()}

    @property
    def act_space(self) -> Spaces:
        """One of 15 actions, and `reset`."""
        return class_actions(15)

    def step(self, action: Data) -> Data:
        """Takes the action or starts an episode; see `Env.step`."""
        if action["reset"] or self._over:
            if not self._over:
                self._act(_FORCE_RESET)
            self._over = False
            self._duration = 0
            return {"image": self._image, **flags(first=True)}
        image = self._image
        reward, self._over = self._act(int(action["action"]))
        self._duration += 1
        if not self._over:
            image = self._image
        terminal = self._over and (self._duration < self._limit or self._completed())
        return {"image": image, **flags(reward, False, self._over, terminal)}

    def _act(self, action: int) -> tuple[float, bool]:
        """Takes the action; returns its reward and whether a new level has begun."""
        self._env.act(np.array([action]))
        reward, self._image, over = self._observe()
        return reward, over

    def _observe(self) -> tuple[float, Array, bool]:
        reward, observation, first = self._env.observe()
        return float(reward[0]), self._resize(observation["rgb"][0]).copy(), bool(first[0])

    def _completed(self) -> bool:
        return bool(self._env.get_info()[0]["prev_level_complete"])
