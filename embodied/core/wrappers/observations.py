"""Wrappers that change the form of the observations, or add to them."""

from __future__ import annotations

import functools
from typing import Any

import elements
import numpy as np

from ..base import Array, Data, Env, Spaces
from ..errors import EnvError, SpaceError
from ..spaces import bounds, describe, fault, is_gray, is_image
from .base import Wrapper


class ResizeImage(Wrapper):
    """Brings images to one height and width, with any number of channels.

    Images are what `is_image` says, and bytes [H, W] within 0..255, which get an axis for their
    channel: the result is always [height, width, C]. `log/` keys stay as they are. Every new
    pixel is a mean of the pixels that it covers, weighted by a triangle.

    Args:
      env: the environment to wrap.
      size: height and width.

    Raises:
      SpaceError: in `step`, if an image does not have the shape of its space.
    """

    batched = False

    def __init__(self, env: Env, size: tuple[int, int]):
        super().__init__(env)
        if len(size) != 2 or min(size) < 1:
            raise EnvError(f"The image size {list(size)} is not two numbers of at least 1.")
        self._size = size
        self._images = {
            k: v
            for k, v in env.obs_space.items()
            if (is_image(v) or is_gray(v)) and not k.startswith("log/")
        }
        resized = {k: resized_space(v, size) for k, v in self._images.items()}
        self._obs_space = {**env.obs_space, **resized}

    @property
    def obs_space(self) -> Spaces:
        """The spaces of the observations, images in their new size."""
        return self._obs_space

    def step(self, action: Data) -> Data:
        """Steps the environment and resizes the images."""
        obs = dict(self.env.step(action))
        for key, space in self._images.items():
            obs[key] = resize_image(obs[key], space, self._size, key)
        return obs


def resized_space(space: elements.Space, size: tuple[int, int]) -> elements.Space:
    """The space of the images [height, width, C] that `resize_image` makes."""
    channels = space.shape[2] if len(space.shape) == 3 else 1
    shape = (*size, channels)
    if space.dtype == np.uint8:
        return elements.Space(np.uint8, shape)
    low, high = bounds(space)
    return elements.Space(space.dtype, shape, low.min((0, 1)), high.max((0, 1)))


def resize_image(image: Array, space: elements.Space, size: tuple[int, int], key: str) -> Array:
    """Resizes an image [H, W, C], or [H, W] to one channel.

    Args:
      image: a value of the space, bytes or floats.
      space: of the image.
      size: height and width of the result.
      key: name of the observation, for the error.

    Returns:
      The image [height, width, C] in the dtype of the space.

    Raises:
      SpaceError: if the image has another shape or dtype than its space.
    """
    if image.shape != space.shape or image.dtype != space.dtype:
        raise SpaceError(
            f"The observation {key!r} is {image.dtype.name} {image.shape}, expected "
            f"{describe(space)}."
        )
    if image.ndim == 2:
        image = image[..., None]
    if image.shape[:2] == tuple(size):
        return image
    result = image.astype(np.float32)
    for axis in (0, 1):
        # Sums of few terms, since the threads of a matrix product get in the way of others.
        index, weights = _resize_weights(image.shape[axis], size[axis])
        shape = (-1, 1, 1) if axis == 0 else (-1, 1)
        result = sum(
            np.take(result, i, axis) * w.reshape(shape)
            for i, w in zip(index, weights, strict=True)
        )
    if space.dtype == np.uint8:
        return np.rint(result).astype(np.uint8)
    low, high = bounds(space)
    return np.clip(result, low.min((0, 1)), high.max((0, 1))).astype(space.dtype)


class FlattenObs(Wrapper):
    """Makes vectors of observations that are matrices or higher; images and `log/` keys stay."""

    batched = False

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

    batched = False

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

    batched = False

    def __init__(self, env: Env, horizon: float):
        super().__init__(env)
        if horizon < 1:
            raise EnvError(f"The horizon is {horizon} steps, but must be at least 1.")
        if "bwreturn" in env.obs_space or "bwreturn" in env.act_space:
            raise SpaceError("The key 'bwreturn' of the return so far is taken.")
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
def _resize_weights(old: int, new: int) -> tuple[Array, Array]:
    """Which old pixels are parts of every new one, and their shares, both [most parts, new]."""
    scale = old / new
    centers = (np.arange(new) + 0.5) * scale
    distance = np.abs(np.arange(old) + 0.5 - centers[:, None])
    shares = np.maximum(0, 1 - distance / max(scale, 1))  # [new, old]
    shares /= shares.sum(1, keepdims=True)
    parts = (shares > 0).sum(1).max()
    # The first part of each, but not so late that the last ones would lie outside.
    first = np.minimum((shares > 0).argmax(1), old - parts)
    index = first + np.arange(parts)[:, None]
    return index, shares[np.arange(new), index].astype(np.float32)
