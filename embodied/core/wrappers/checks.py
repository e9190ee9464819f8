"""Wrappers that hold an environment to its spaces."""

from __future__ import annotations

from typing import Any

import elements
import numpy as np

from ..base import Array, Data, Env, Spaces
from ..errors import SpaceError
from ..spaces import bounds, describe, fault
from .base import Wrapper


class UnifyDtypes(Wrapper):
    """Makes floats float32 and integers int32, in observations and actions.

    Booleans, and bytes as in images, stay. The environment gets its actions in its own dtypes.
    """

    def __init__(self, env: Env):
        super().__init__(env)
        self._obs_space = {k: _unified(v) for k, v in env.obs_space.items()}
        self._act_space = {k: _unified(v) for k, v in env.act_space.items()}

    @property
    def obs_space(self) -> Spaces:
        """The spaces of the observations in unified dtypes."""
        return self._obs_space

    @property
    def act_space(self) -> Spaces:
        """The spaces of the actions in unified dtypes."""
        return self._act_space

    def step(self, action: Data) -> Data:
        """Steps the environment, casting on the way in and out.

        Raises:
          SpaceError: if an integer does not survive that.
        """
        act_space = self.env.act_space
        obs = self.env.step({k: _cast(k, v, act_space[k].dtype) for k, v in action.items()})
        return {k: _cast(k, v, self._obs_space[k].dtype) for k, v in obs.items()}


class CheckSpaces(Wrapper):
    """Raises as soon as a value does not lie in its space, is NaN or infinite, or is missing."""

    def __init__(self, env: Env):
        super().__init__(env)
        if both := env.obs_space.keys() & env.act_space.keys():
            raise SpaceError(f"The key {min(both)!r} is both an observation and an action.")
        self._obs_space = env.obs_space
        self._act_space = env.act_space
        self._steps = 0
        self._over = True

    def step(self, action: Data) -> Data:
        """Steps the environment.

        Raises:
          SpaceError: naming key, number of steps before, what was found and what is expected.
        """
        if not self._over and not action.get("reset", False):  # else the action is ignored
            self._check(self._act_space, action, "action")
        obs = self.env.step(action)
        self._check(self._obs_space, obs, "observation")
        self._steps += 1
        self._over = bool(obs["is_last"])
        return obs

    def _check(self, spaces: Spaces, values: Data, kind: str) -> None:
        where = f"at step {self._steps}"
        if values.keys() != spaces.keys():
            raise SpaceError(
                f"The {kind} {where} has the keys {sorted(values)}, expected {sorted(spaces)}."
            )
        for key, space in spaces.items():
            if found := fault(space, values[key]):
                raise SpaceError(
                    f"The {kind} {key!r} {where} is {found}, expected {describe(space)}."
                )


def _cast(key: str, value: Any, dtype: np.dtype) -> Array:
    value = np.asarray(value)
    if value.dtype == dtype:
        return value
    cast = value.astype(dtype)
    if dtype.kind in "iu" and (cast != value).any():
        raise SpaceError(f"The values of {key!r} do not fit into {dtype.name}: {value}.")
    return cast


def _unified(space: elements.Space) -> elements.Space:
    if space.dtype.kind == "f":
        dtype: Any = np.float32
    elif space.dtype.kind in "iu" and space.dtype != np.uint8:
        dtype = np.int32
    else:
        return space
    low, high = bounds(space)
    if dtype == np.int32:
        # One above the greatest value, as a 64 bit number so that this cannot overflow.
        limits = np.iinfo(np.int32)
        low = np.maximum(low.astype(np.float64), limits.min).astype(np.int64)
        high = np.minimum(high.astype(np.float64) + 1, limits.max).astype(np.int64)
    return elements.Space(dtype, space.shape, low, high)
