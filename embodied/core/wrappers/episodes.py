"""Wrappers that change how episodes run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import numpy as np

from ..base import Data, Env
from ..errors import EnvError
from .base import Wrapper

_log = logging.getLogger(__name__)


class TimeLimit(Wrapper):
    """Ends episodes after a number of actions, without calling that terminal.

    Args:
      env: the environment to wrap.
      duration: greatest number of actions per episode.
    """

    batched = False

    def __init__(self, env: Env, duration: int):
        super().__init__(env)
        if duration < 1:
            raise EnvError(f"The time limit is {duration} actions, but must be at least 1.")
        self._duration = duration
        self._step = 0
        self._over = False

    def step(self, action: Data) -> Data:
        """Steps the environment; sets `is_last` when the time is up."""
        if self._over:
            action = {**action, "reset": np.bool_(True)}
        obs = self.env.step(action)
        self._step = 0 if obs["is_first"] else self._step + 1
        if self._step >= self._duration:
            obs = {**obs, "is_last": np.bool_(True)}
        self._over = bool(obs["is_last"])
        return obs


class ActionRepeat(Wrapper):
    """Takes every action several times and sums the rewards.

    The repetition stops where the episode ends; starting an episode takes one step.

    Args:
      env: the environment to wrap.
      repeat: how many times.
    """

    batched = False

    def __init__(self, env: Env, repeat: int):
        super().__init__(env)
        if repeat < 1:
            raise EnvError(f"The action repeat is {repeat}, but must be at least 1.")
        self._repeat = repeat

    def step(self, action: Data) -> Data:
        """Steps the environment up to `repeat` times and returns the newest observation."""
        reward = 0.0
        for _ in range(self._repeat):
            obs = self.env.step(action)
            if obs["is_first"]:
                return obs
            reward += float(obs["reward"])
            if obs["is_last"]:
                break
        return {**obs, "reward": np.float32(reward)}


class RestartOnException(Wrapper):
    """Builds the environment anew when it raises, and goes on with a new episode.

    Args:
      make_env: builds the environment.
      exceptions: which exceptions to catch.
      window: seconds over which failures are counted.
      max_fails: failures within the window after which the exception is raised.
      wait: seconds to wait before building the environment anew.
    """

    batched = False

    def __init__(
        self,
        make_env: Callable[[], Env],
        exceptions: tuple[type[Exception], ...] = (Exception,),
        window: float = 300.0,
        max_fails: int = 2,
        wait: float = 20.0,
    ):
        super().__init__(make_env())
        self._make_env = make_env
        self._exceptions = exceptions
        self._window = window
        self._max_fails = max_fails
        self._wait = wait
        self._fails: list[float] = []
        self._broken = False

    def step(self, action: Data) -> Data:
        """Steps the environment; after a restart the observation is the first of an episode."""
        while True:
            try:
                if self._broken:
                    self.env = self._make_env()
                    self._broken = False
                    action = {**action, "reset": np.bool_(True)}
                return self.env.step(action)
            except self._exceptions as error:
                if self._too_many():
                    raise
                _log.warning("Restarting an environment after %s: %s", type(error).__name__, error)
                self._close_broken()
                time.sleep(self._wait)

    def _too_many(self) -> bool:
        now = time.monotonic()
        self._fails = [x for x in self._fails if now - x < self._window] + [now]
        return len(self._fails) > self._max_fails

    def _close_broken(self) -> None:
        if self._broken:
            return
        self._broken = True
        try:
            self.env.close()
        except self._exceptions as error:
            _log.warning("Closing it raised %s: %s", type(error).__name__, error)
