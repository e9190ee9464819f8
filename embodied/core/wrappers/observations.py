"""Wrappers that change the form of the observations, or add to them."""

from __future__ import annotations

import functools
from typing import Any

import elements
import numpy as np

from ..base import Array, Data, Env, Spaces
from ..errors import SpaceError
from ..spaces import describe, fault, is_image
from .base import Wrapper


class ResizeImage(Wrapper):
    """Brings images to one height and width, with any number of channels.

    Images are observations of bytes [H, W, C]; `log/` keys stay as they are. Every new pixel is
    a mean of the pixels that it covers, weighted by a triangle.

    Args:
      env: the environment to wrap.
      size: height and width.
    """

    def __init__(self, env: Env, size: tuple[int, int]):
        super().__init__(env)
        height, width = size
        self._obs_space = dict(env.obs_space)
        self._weights = {}
        for key, space in env.obs_space.items():
            if (
                is_image(space)
                and not key.startswith("log/")
                and space.shape[:2] != (height, width)
            ):
                self._weights[key] = (
                    _resize_weights(space.shape[0], height),
                    _resize_weights(space.shape[1], width),
                )
                shape = (height, width, space.shape[2])
                self._obs_space[key] = elements.Space(np.uint8, shape)

    @property
    def obs_space(self) -> Spaces:
        """The spaces of the observations, images in their new size."""
        return self._obs_space

    def step(self, action: Data) -> Data:
        """Steps the environment and resizes the images."""
        obs = dict(self.env.step(action))
        for key, (rows, columns) in self._weights.items():
            image = np.tensordot(rows, obs[key].astype(np.float32), axes=1)  # [H', W, C]
            obs[key] = np.rint(np.matmul(columns, image)).astype(np.uint8)
        return obs


class FlattenObs(Wrapper):
    """Makes vectors of observations that are matrices or higher; images and `log/` keys stay."""

    def __init__(self, env: Env):
        super().__init__(env)
        self._obs_space = dict(env.obs_space)
        self._keys = [
            k
            for k, v in env.obs_space.items()
            if len(v.shape) > 1 and not is_image(v) and not k.startswith("log/")
        ]
        for key in self._keys:
            space = env.obs_space[key]
            low, high = space.low.reshape(-1), space.high.reshape(-1)
            self._obs_space[key] = elements.Space(space.dtype, low.shape, low, high)

    @property
    def obs_space(self) -> Spaces:
        """The spaces of the observations, flat."""
        return self._obs_space

    def step(self, action: Data) -> Data:
        """Steps the environment and flattens the observation."""
        obs = self.env.step(action)
        return {**obs, **{k: np.reshape(obs[k], -1) for k in self._keys}}


class AddObs(Wrapper):
    """Adds a constant to every observation.

    Args:
      env: the environment to wrap.
      key: name of the new observation.
      value: the constant.
      space: the space that it lies in.
    """

    def __init__(self, env: Env, key: str, value: Any, space: elements.Space):
        super().__init__(env)
        if key in env.obs_space or key in env.act_space:
            raise SpaceError(f"The key {key!r} of the constant to add is taken.")
        value = np.asarray(value, space.dtype)
        if found := fault(space, value):
            raise SpaceError(f"The constant {key!r} is {found}, expected {describe(space)}.")
        self._key = key
        self._value = value
        self._space = space

    @property
    def obs_space(self) -> Spaces:
        """The spaces of the observations and of the constant."""
        return {**self.env.obs_space, self._key: self._space}

    def step(self, action: Data) -> Data:
        """Steps the environment and adds the constant."""
        return {**self.env.step(action), self._key: self._value}


class BackwardReturn(Wrapper):
    """Adds `bwreturn`, the discounted sum of the rewards so far in the episode.

    Args:
      env: the environment to wrap.
      horizon: number of steps over which the past fades; the discount is 1 - 1 / horizon.
    """

    def __init__(self, env: Env, horizon: float):
        super().__init__(env)
        self._discount = 1 - 1 / horizon
        self._sum = 0.0

    @property
    def obs_space(self) -> Spaces:
        """The spaces of the observations and `bwreturn`."""
        return {**self.env.obs_space, "bwreturn": elements.Space(np.float32)}

    def step(self, action: Data) -> Data:
        """Steps the environment and adds the sum."""
        obs = self.env.step(action)
        past = 0.0 if obs["is_first"] else self._discount * self._sum
        self._sum = past + float(obs["reward"])
        return {**obs, "bwreturn": np.float32(self._sum)}


@functools.cache
def _resize_weights(old: int, new: int) -> Array:
    """The share [new, old] that every old pixel has in every new one."""
    scale = old / new
    centers = (np.arange(new) + 0.5) * scale
    distance = np.abs(np.arange(old) + 0.5 - centers[:, None])
    weights = np.maximum(0, 1 - distance / max(scale, 1))
    return (weights / weights.sum(1, keepdims=True)).astype(np.float32)
