"""Lets a resumed run continue the episode of an environment, by doing again what was done."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from .base import Data

_MOST_ACTIONS = 100_000  # in an episode that is worth its memory and the time to repeat it


class Recording:
    """Steps an environment and remembers the actions since its episode began.

    Args:
      env: an `embodied.Env` that has `save_episode` and `load_episode`.
    """

    def __init__(self, env: Any):
        self._env = env
        self._actions: list[Data] = []
        self._obs: Data | None = None

    def step(self, action: Data) -> Data:
        """Steps the environment; see `Env.step`."""
        obs = self._env.step(action)
        if obs["is_first"]:
            self._actions = []
        elif len(self._actions) <= _MOST_ACTIONS:  # one more says that it is too long
            self._actions.append({k: np.array(v) for k, v in action.items()})
        self._obs = obs
        return obs

    def save(self) -> Data | None:
        """All that `load` needs to come to the present step, or None if it cannot."""
        if self._obs is None or len(self._actions) > _MOST_ACTIONS:
            return None
        start = self._env.save_episode()
        if start is None:
            return None
        keys = self._actions[0] if self._actions else ()
        return {
            "start": start,
            "actions": {k: np.stack([x[k] for x in self._actions]) for k in keys},
            "length": len(self._actions),
            "checksum": _checksum(self._obs),
        }

    def load(self, data: Data) -> bool:
        """Repeats an episode.

        Returns:
          Whether the observation that the saved environment gave last has come again. If not,
          the environment is to be reset.
        """
        self._env.load_episode(data["start"])
        reset = {k: np.zeros(v.shape, v.dtype) for k, v in self._env.act_space.items()}
        obs = self.step({**reset, "reset": np.bool_(True)})
        for index in range(int(data["length"])):
            if obs["is_last"]:
                return False
            obs = self.step({k: v[index] for k, v in data["actions"].items()})
        return _checksum(obs) == data["checksum"]


def _checksum(obs: Data) -> int:
    checksum = 0
    for key in sorted(obs):
        if not key.startswith("log/"):
            checksum = zlib.crc32(np.ascontiguousarray(obs[key]).tobytes(), checksum)
    return checksum
