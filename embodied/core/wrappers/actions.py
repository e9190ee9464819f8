"""Wrappers that change the form of the actions."""

from __future__ import annotations

import functools
import logging
import multiprocessing

import elements
import numpy as np

from ..base import BatchedEnv, Data, Env, Spaces
from ..errors import SpaceError
from ..spaces import bounds, describe
from .base import Wrapper

_log = logging.getLogger(__name__)


class NormalizeAction(Wrapper):
    """Lets the agent act in -1..1, mapped affinely to the bounds of the environment.

    An entry with one finite bound keeps its scale: that bound becomes -1 or 1. An entry with none
    is passed on as it is. Both are said once. The environment gets nothing beyond its bounds.

    Args:
      env: the environment to wrap.
      key: the action; its space must hold floats.
    """

    def __init__(self, env: Env | BatchedEnv, key: str = "action"):
        super().__init__(env)
        self._key = key
        space = _float_action(env, key)
        low, high = bounds(space)
        lower, upper = np.isfinite(low), np.isfinite(high)
        if not (lower & upper).all():
            _say_infinite(key, describe(space))
        least, most = (
            np.where(x, y, 0).astype(np.float64) for x, y in ((lower, low), (upper, high))
        )
        self._scale = np.where(lower & upper, most / 2 - least / 2, 1.0)
        self._middle = np.where(
            lower & upper,
            most / 2 + least / 2,
            np.where(lower, least + 1, np.where(upper, most - 1, 0.0)),
        )
        self._bounds = low, high
        self._space = elements.Space(
            np.float32, space.shape, np.where(lower, -1, -np.inf), np.where(upper, 1, np.inf)
        )

    @property
    def act_space(self) -> Spaces:
        """The spaces of the actions, the normalised one within -1..1."""
        return {**self.env.act_space, self._key: self._space}

    def step(self, action: Data) -> Data:
        """Steps the environment with the action in its own range."""
        low, high = self._bounds
        value = np.clip(action[self._key] * self._scale + self._middle, low, high)
        return self.env.step({**action, self._key: value.astype(low.dtype)})


@functools.cache
def _say_infinite(key: str, space: str) -> None:
    if multiprocessing.parent_process() is None:  # not in every worker too
        _log.warning(
            "The action %r is %s: entries with one finite bound are shifted so that the agent's "
            "-1 or 1 is that bound, entries with none are passed on as they are.",
            key,
            space,
        )


class ClipAction(Wrapper):
    """Clips an action to the bounds of its space before the environment sees it.

    Args:
      env: the environment to wrap.
      key: the action; its space must hold floats.
    """

    def __init__(self, env: Env | BatchedEnv, key: str = "action"):
        super().__init__(env)
        self._key = key
        self._bounds = bounds(_float_action(env, key))

    def step(self, action: Data) -> Data:
        """Steps the environment with the clipped action."""
        return self.env.step({**action, self._key: np.clip(action[self._key], *self._bounds)})


class DiscretizeAction(Wrapper):
    """Offers evenly spaced values of a bounded float action as classes.

    Args:
      env: the environment to wrap.
      key: the action; its space must hold floats and have finite bounds.
      bins: number of values per entry, the bounds included.
    """

    batched = False

    def __init__(self, env: Env, key: str = "action", bins: int = 5):
        super().__init__(env)
        if bins < 2:
            raise SpaceError(f"The action {key!r} is cut into {bins} bins, but 2 are the least.")
        self._key = key
        space = _float_action(env, key)
        low, high = bounds(space)
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise SpaceError(
                f"The action {key!r} is {describe(space)}: only finite bounds can be discretized."
            )
        self._values = np.linspace(low, high, bins, dtype=space.dtype)  # [bins, *shape]
        self._space = elements.Space(np.int32, space.shape, 0, bins)

    @property
    def act_space(self) -> Spaces:
        """The spaces of the actions, the discretized one with classes."""
        return {**self.env.act_space, self._key: self._space}

    def step(self, action: Data) -> Data:
        """Steps the environment with the values that the classes stand for."""
        classes = np.asarray(action[self._key])[None]
        value = np.take_along_axis(self._values, classes, axis=0)[0]
        return self.env.step({**action, self._key: value})


def _float_action(env: Env | BatchedEnv, key: str) -> elements.Space:
    space = env.act_space.get(key)
    if space is None or space.dtype.kind != "f":
        found = "absent" if space is None else describe(space)
        raise SpaceError(f"The action {key!r} is {found}, expected a space of floats.")
    return space
