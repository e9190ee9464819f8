"""Wrappers that change the form of the actions."""

from __future__ import annotations

import elements
import numpy as np

from ..base import Data, Env, Spaces
from ..errors import SpaceError
from ..spaces import bounds, describe
from .base import Wrapper


class NormalizeAction(Wrapper):
    """Lets the agent act in -1..1, mapped affinely to the bounds of the environment.

    Entries of the action that lack a finite bound are passed on as they are.

    Args:
      env: the environment to wrap.
      key: the action; its space must hold floats.
    """

    def __init__(self, env: Env, key: str = "action"):
        super().__init__(env)
        self._key = key
        space = _float_action(env, key)
        low, high = bounds(space)
        finite = np.isfinite(low) & np.isfinite(high)
        self._low = np.where(finite, low, -1).astype(np.float64)
        self._high = np.where(finite, high, 1).astype(np.float64)
        low, high = np.where(finite, -1, low), np.where(finite, 1, high)
        self._space = elements.Space(np.float32, space.shape, low, high)

    @property
    def act_space(self) -> Spaces:
        """The spaces of the actions, the normalised one within -1..1."""
        return {**self.env.act_space, self._key: self._space}

    def step(self, action: Data) -> Data:
        """Steps the environment with the action in its own range."""
        value = (action[self._key] + 1) / 2 * (self._high - self._low) + self._low
        value = value.astype(self.env.act_space[self._key].dtype)
        return self.env.step({**action, self._key: value})


class ClipAction(Wrapper):
    """Clips an action to the bounds of its space before the environment sees it.

    Args:
      env: the environment to wrap.
      key: the action; its space must hold floats.
    """

    def __init__(self, env: Env, key: str = "action"):
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

    def __init__(self, env: Env, key: str = "action", bins: int = 5):
        super().__init__(env)
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


def _float_action(env: Env, key: str) -> elements.Space:
    space = env.act_space.get(key)
    if space is None or space.dtype.kind != "f":
        found = "absent" if space is None else describe(space)
        raise SpaceError(f"The action {key!r} is {found}, expected a space of floats.")
    return space
