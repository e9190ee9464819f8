"""What `elements.Space` leaves open: spaces are compared, described, checked and sampled here."""

from __future__ import annotations

import math
from typing import Any

import elements
import numpy as np

from .base import Array

LEAST_IMAGE_SIDE = 8
MOST_CLASSES = 1024  # integers with more values than this are numbers, not classes
MOST_ONEHOT = 65536  # so are those whose classes would make a longer vector


def same_space(a: elements.Space, b: elements.Space) -> bool:
    """Whether dtype, shape and bounds of two spaces agree (`==` of the class is always true)."""
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and np.array_equal(a.low, b.low)
        and np.array_equal(a.high, b.high)
    )


def describe(space: elements.Space) -> str:
    """A space in words, e.g. `float32 (3,) within -1.0..1.0`; both bounds are inclusive."""
    name = f"{space.dtype.name} {space.shape}"
    if space.dtype.kind not in "iuf":
        return name
    low, top = bounds(space)
    return f"{name} within {low.min()}..{top.max()}"


def is_image(space: elements.Space) -> bool:
    """Whether a space holds images: bytes, or floats with finite bounds, [H, W, C].

    Height and width are at least 8; what is smaller is a small table of numbers or classes.
    """
    if len(space.shape) != 3 or min(space.shape[:2]) < LEAST_IMAGE_SIDE:
        return False
    if space.dtype.kind != "f":
        return space.dtype == np.uint8
    low, top = bounds(space)
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(top - low).all())


def is_gray(space: elements.Space) -> bool:
    """Whether a space holds images of bytes without an axis for their channel: [H, W]."""
    if space.dtype != np.uint8 or len(space.shape) != 2 or min(space.shape) < LEAST_IMAGE_SIDE:
        return False
    low, top = bounds(space)
    return bool((low == 0).all() and (top == 255).all())


def is_channels_first(space: elements.Space) -> bool:
    """Whether a space must hold images [C, H, W], whose channels `channels_last` moves to the end.

    No side is less than twice the number of channels, and from 8 channels on both sides are equal.
    What fulfils that and is [H, W, C] has no height for an image, or channels like no image.
    """
    if len(space.shape) != 3:
        return False
    channels, height, width = space.shape
    clear = channels < LEAST_IMAGE_SIDE or height == width
    return clear and 2 * channels <= min(height, width) and is_image(channels_last(space))


def channels_last(space: elements.Space) -> elements.Space:
    """The space of images [H, W, C] of one that holds images [C, H, W]."""
    channels, height, width = space.shape
    low, high = np.moveaxis(space.low, 0, -1), np.moveaxis(space.high, 0, -1)
    return elements.Space(space.dtype, (height, width, channels), low, high)


def move_channels(image: Array) -> Array:
    """Images [..., C, H, W] as [..., H, W, C]; what cannot be one is left for checks to find."""
    return np.moveaxis(image, -3, -1) if image.ndim >= 3 else image


def is_classes(space: elements.Space) -> bool:
    """Whether a space holds booleans, or integers few enough to be classes rather than numbers.

    Every entry has at most 1024 values, and all entries together at most 65536.
    """
    if not space.discrete:
        return False
    most = int(classes(space).max())
    return most <= MOST_CLASSES and most * math.prod(space.shape) <= MOST_ONEHOT


def classes(space: elements.Space) -> Array:
    """The number of values that every entry of a discrete space can take, int64 [*shape]."""
    if space.dtype == bool:
        return np.full(space.shape, 2, np.int64)
    low, top = bounds(space)
    count = top.astype(np.float64) - low.astype(np.float64) + 1  # beyond int64 for int64 spaces
    return np.minimum(count, 2**62).astype(np.int64)


def to_array(value: Any, dtype: np.dtype) -> Array:
    """An array of a value; Python's numbers, and lists of them, take the dtype if it holds them.

    The values of numpy keep their dtype, since a wrong one is a mistake that shall be found.
    """
    array = np.asarray(value)
    holds = {"f": "fiub", "i": "iub", "u": "iub"}.get(dtype.kind, "")
    if isinstance(value, np.ndarray | np.generic) or array.dtype.kind not in holds:
        return array
    with np.errstate(over="ignore"):  # what is too large for a float becomes infinite
        cast = array.astype(dtype)
    return array if dtype.kind in "iu" and (cast != array).any() else cast


def fault(space: elements.Space, value: Array) -> str | None:
    """What is wrong with a value of a space, or None if the value lies in it.

    Stricter than `value in space`: numbers must be finite and the exclusive upper bound of
    integers is excluded.

    Args:
      space: a space of fixed size.
      value: anything that numpy makes an array of.

    Returns:
      What was found, e.g. `"float64 (4,)"` or `"the value nan"`.
    """
    value = np.asarray(value)
    if value.dtype != space.dtype or value.shape != space.shape:
        return f"{value.dtype.name} {value.shape}"
    if space.dtype.kind not in "iuf":
        return None
    low, top = bounds(space)
    wrong = (value < low) | (value > top)
    if space.dtype.kind == "f":
        wrong |= ~np.isfinite(value)
    return f"the value {value[wrong].flat[0]}" if wrong.any() else None


def sample(space: elements.Space, rng: np.random.Generator, shape: tuple[int, ...] = ()) -> Array:
    """Draws uniformly from a space.

    Numbers without two finite bounds are drawn from -1..1, or from the nearest part of their
    range.

    Args:
      space: a space of fixed size.
      rng: source of the randomness.
      shape: leading dimensions.

    Returns:
      An array [*shape, *space.shape] of the space's dtype.
    """
    shape = (*shape, *space.shape)
    if space.dtype == bool:
        return rng.random(shape) < 0.5
    low, top = bounds(space)
    if space.discrete:
        return rng.integers(low, top, shape, space.dtype, endpoint=True)
    bounded, one = np.isfinite(low) & np.isfinite(top), space.dtype.type(1)
    low, top = (
        np.where(bounded, low, np.clip(-one, low, top)),
        np.where(bounded, top, np.clip(one, low, top)),
    )
    share = rng.random(shape)
    values = (1 - share) * low + share * top
    return np.clip(values.astype(space.dtype), low, top)


def bounds(space: elements.Space) -> tuple[Array, Array]:
    """The least and the greatest values allowed, in the dtype and shape of the space.

    The upper bound of an integer space is exclusive in `space.high` and inclusive here; one that
    equals the greatest number of its dtype stands for no bound.
    """
    low, top = space.low, space.high
    if space.dtype.kind in "iu":
        limit = np.iinfo(space.dtype).max
        top = np.where(top >= limit, limit, top - 1)
    with np.errstate(over="ignore"):  # float64 bounds beyond float32 are infinite there
        return low.astype(space.dtype), top.astype(space.dtype)
