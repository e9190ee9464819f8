"""Wrappers that hold an environment to its spaces."""

from __future__ import annotations

from typing import Any

import elements
import numpy as np

from ..base import Array, BatchedEnv, Data, Env, Spaces
from ..errors import SpaceError
from ..spaces import bounds, describe, fault, to_array
from .base import Wrapper, batch_length


class UnifyDtypes(Wrapper):
    """Makes floats float32 and integers int32, in observations and actions.

    Booleans, and bytes as in images, stay. The environment gets its actions in its own dtypes.
    """

    def __init__(self, env: Env | BatchedEnv):
        super().__init__(env)
        self._given = {k: v.dtype for k, v in env.obs_space.items()}
        self._takes = {k: v.dtype for k, v in env.act_space.items()}
        self._obs_space = {k: _unified(v) for k, v in env.obs_space.items()}
        self._act_space = {k: _unified(v, inwards=True) for k, v in env.act_space.items()}

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
          SpaceError: if an observation has not the dtype that the environment declares, or an
            integer does not survive the cast. Keys that nobody has declared pass unchanged.
        """
        takes = self._takes
        obs = self.env.step(
            {k: np.asarray(v, takes[k]) if k in takes else v for k, v in action.items()}
        )
        return {k: self._cast(k, v) if k in self._given else v for k, v in obs.items()}

    def _cast(self, key: str, value: Any) -> Array:
        given, space = self._given[key], self._obs_space[key]
        value = to_array(value, given)
        if value.dtype != given:
            raise SpaceError(
                f"The observation {key!r} is {value.dtype.name} {value.shape}, expected "
                f"{given.name} {space.shape}."
            )
        if value.dtype == space.dtype:
            return value
        with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite
            cast = value.astype(space.dtype)
        if given.kind in "iu" and (cast != value).any():
            raise SpaceError(
                f"The observation {key!r} has the value {value[cast != value].flat[0]}, which "
                f"does not fit into {space.dtype.name}."
            )
        return cast


class CheckSpaces(Wrapper):
    """Raises as soon as a value does not lie in its space, is NaN or infinite, or is missing.

    Args:
      env: the environment to wrap.
      index: its number in the driver, or of the first in a batch, for errors; or None.
      finite: whether observations must be; else NaN and infinity are left to who comes next.
    """

    def __init__(self, env: Env | BatchedEnv, index: int | None = None, finite: bool = True):
        super().__init__(env)
        if both := env.obs_space.keys() & env.act_space.keys():
            raise SpaceError(f"The key {min(both)!r} is both an observation and an action.")
        self._length = batch_length(env)
        shape = () if self._length is None else (self._length,)
        self._obs = {k: _Check(v, shape) for k, v in env.obs_space.items()}
        self._act = {k: _Check(v, shape) for k, v in env.act_space.items()}
        self._index = index
        self._finite = finite
        self._steps = 0
        self._over = np.ones(shape, bool)

    def step(self, action: Data) -> Data:
        """Steps the environment.

        Raises:
          SpaceError: naming key, environment, number of steps before, what was found and what is
            expected.
        """
        starts = self._over | action.get("reset", False)
        if not starts.all():
            self._check(self._act, action, "action", np.flatnonzero(~starts))
        try:
            obs = self.env.step(action)
        except SpaceError as error:
            if not error.bare:
                error.bare, place = str(error), self._place().capitalize()
                error.args = (f"{place}: {error.bare}",)
            raise
        self._check(self._obs, obs, "observation", np.arange(starts.size))
        self._steps += 1
        self._over = np.array(obs["is_last"])
        return obs

    def _check(self, checks: dict[str, _Check], values: Data, kind: str, rows: Array) -> None:
        if values.keys() != checks.keys():
            raise self._error(
                f"The {kind}", f"has the keys {sorted(values)}, expected {sorted(checks)}."
            )
        for key, check in checks.items():
            if not check.passes(values[key]):
                self._find(key, check.space, values[key], kind, rows)

    def _find(self, key: str, space: elements.Space, value: Any, kind: str, rows: Array) -> None:
        """Raises for the first row that is wrong; a single environment has one row."""
        value = np.asarray(value)
        if self._length is None:
            value = value[None]
        elif value.shape[:1] != (self._length,):
            raise self._error(
                f"The {kind} {key!r}",
                f"is {value.dtype.name} {value.shape}, expected {self._length} of "
                f"{describe(space)}.",
            )
        if not self._finite and kind == "observation" and value.dtype.kind == "f":
            low, _ = bounds(space)
            inside = np.maximum(low, np.finfo(low.dtype).min).astype(value.dtype)
            value = np.where(np.isfinite(value), value, inside)
        for row in rows:
            if found := fault(space, value[row]):
                rest = f"is {found}, expected {describe(space)}."
                raise self._error(f"The {kind} {key!r}", rest, row)

    def _error(self, what: str, rest: str, row: int | None = None) -> SpaceError:
        error = SpaceError(f"{what} {self._place(row)} {rest}")
        where = ""
        if self._length is not None and row is not None:
            where = f" in environment {(self._index or 0) + row}"
        error.bare = f"{what}{where} {rest}"
        return error

    def _place(self, row: int | None = None) -> str:
        at = f"at step {self._steps}"
        if self._index is None and self._length is None:
            return at
        if self._length is None or row is not None:
            return f"in environment {(self._index or 0) + (row or 0)} {at}"
        first = self._index or 0
        return f"in environments {first}..{first + self._length - 1} {at}"


class _Check:
    """Whether values [*batch, ...] lie in a space, quickly."""

    def __init__(self, space: elements.Space, batch: tuple[int, ...]):
        self.space = space
        self._shape = (*batch, *space.shape)
        self._bounds: tuple[Array, Array] | None = None
        if space.dtype.kind == "f":
            limit = np.finfo(space.dtype)
            low, top = bounds(space)
            # Numbers and nothing else are between these: neither NaN nor infinity.
            self._bounds = np.maximum(low, limit.min), np.minimum(top, limit.max)
        elif space.dtype.kind in "iu":
            limits = np.iinfo(space.dtype)
            low, top = bounds(space)
            if (low > limits.min).any() or (top < limits.max).any():
                self._bounds = low, top

    def passes(self, value: Any) -> bool:
        value = np.asarray(value)
        if value.dtype != self.space.dtype or value.shape != self._shape:
            return False
        if self._bounds is None:
            return True
        low, top = self._bounds
        return bool((low <= value).all() and (value <= top).all())


def _unified(space: elements.Space, inwards: bool = False) -> elements.Space:
    """The space in unified dtypes; `inwards` keeps rounded bounds within those of the space."""
    if space.dtype.kind == "f":
        dtype: Any = np.float32
    elif space.dtype.kind in "iu" and space.dtype != np.uint8:
        dtype = np.int32
    else:
        return space
    low, high = bounds(space)
    if inwards and dtype == np.float32:
        with np.errstate(over="ignore"):
            least, most = low.astype(dtype), high.astype(dtype)
        low = np.where(least < low, np.nextafter(least, np.float32(np.inf)), least)
        high = np.where(most > high, np.nextafter(most, np.float32(-np.inf)), most)
    if dtype == np.int32:
        # One above the greatest value, as a 64 bit number so that this cannot overflow.
        limits = np.iinfo(np.int32)
        low = np.maximum(low.astype(np.float64), limits.min).astype(np.int64)
        high = np.minimum(high.astype(np.float64) + 1, limits.max).astype(np.int64)
    return elements.Space(dtype, space.shape, low, high)
