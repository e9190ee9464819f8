"""Environments that one process steps one after the other."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from .base import BatchedEnv, Data, Env, Spaces
from .batch import allocate, common_spaces, put, ranges, take
from .errors import EmbodiedError, EnvError
from .recording import Recording

MakeEnv = Callable[..., Env | BatchedEnv]

_log = logging.getLogger(__name__)


class SerialEnvs(BatchedEnv):
    """Steps environments one after the other; those that are batched themselves count in full.

    Args:
      make_env_fns: constructors of environments.
      first: number of the first constructor in the driver.
      restarts: how often the process of these environments was started anew.
      at: its attribute `value` is set to the number of the constructor that is at work, for
        those who watch this process.

    Attributes:
      length: the number of environments E.
      lengths: the number of environments that every constructor made.
    """

    def __init__(
        self,
        make_env_fns: Sequence[MakeEnv],
        first: int = 0,
        restarts: int = 0,
        at: Any = None,
    ):
        self._envs: list[Env | BatchedEnv] = []
        self._first = first
        self._at = SimpleNamespace(value=first) if at is None else at
        self._steps = 0
        try:
            for index, make_env in enumerate(make_env_fns, first):
                self._at.value = index
                self._envs.append(_build(make_env, restarts))
            self._obs_space, self._act_space = common_spaces(
                {i: (env.obs_space, env.act_space) for i, env in enumerate(self._envs, first)}
            )
        except BaseException:
            self.close()
            raise
        self.lengths = [env.length if isinstance(env, BatchedEnv) else 1 for env in self._envs]
        self.length = sum(self.lengths)
        self._recordings = [
            Recording(env) if hasattr(env, "save_episode") and isinstance(env, Env) else None
            for env in self._envs
        ]
        self._rows: list[int | slice] = [
            rows if isinstance(env, BatchedEnv) else rows.start
            for env, rows in zip(self._envs, ranges(self.lengths), strict=True)
        ]

    @property
    def obs_space(self) -> Spaces:
        """The space of every observation key of one environment."""
        return self._obs_space

    @property
    def act_space(self) -> Spaces:
        """The space of every action key of one environment."""
        return self._act_space

    def step(self, action: Data) -> Data:
        """Steps every environment once.

        Args:
          action: one array [E, ...] per key of `act_space`.

        Returns:
          One new array [E, ...] per key of `obs_space`, in the dtype of its space.
        """
        if not self._envs:
            raise EnvError("The environments are closed: make a new driver to step again.")
        obs = allocate(self.obs_space, self.length)
        try:
            self.step_into(action, obs)
        except Exception as error:
            failure = f"{self._name().capitalize()} failed in step {self._steps}"
            if isinstance(error, EmbodiedError):
                error.args = (f"{failure}: {getattr(error, 'bare', '') or error}",)
            else:
                error.add_note(f"{failure}.")
            raise
        self._steps += 1
        return obs

    def step_into(self, action: Data, obs: Data) -> None:
        """Steps every environment once and writes what follows into arrays [E, ...]."""
        parts = zip(self._envs, self._recordings, self._rows, strict=True)
        for index, (env, recording, rows) in enumerate(parts):
            self._at.value = self._first + index
            put(obs, rows, (recording or env).step(take(action, rows)))

    def save(self) -> list[Any]:
        """For every constructor the state of its environment, None if it has no way to save it."""
        return [recording and recording.save() for recording in self._recordings]

    def load(self, states: Sequence[Any]) -> np.ndarray:
        """Brings environments to saved states.

        Args:
          states: as from `save`.

        Returns:
          Booleans [E], which environments are in the saved state; the others are to be reset.
        """
        loaded = []
        for index, (recording, state) in enumerate(zip(self._recordings, states, strict=True)):
            self._at.value = self._first + index
            loaded.append(bool(recording and state and recording.load(state)))
        return np.repeat(loaded, self.lengths)

    def close(self) -> None:
        """Closes every environment; a failure in that is logged and holds up no other."""
        for index, env in enumerate(self._envs, self._first):
            try:
                env.close()
            except Exception:
                _log.warning("Closing environment %d failed.", index, exc_info=True)
        self._envs = []

    def _name(self) -> str:
        return name(ranges(self.lengths)[self._at.value - self._first])


def name(rows: slice) -> str:
    """The environments of some rows in words."""
    if rows.stop - rows.start == 1:
        return f"environment {rows.start}"
    return f"environments {rows.start} to {rows.stop - 1}"


def _build(make_env: MakeEnv, restarts: int) -> Env | BatchedEnv:
    # Few constructors care, so that they need not take it.
    if restarts and "restarts" in inspect.signature(make_env).parameters:
        return make_env(restarts=restarts)
    return make_env()
