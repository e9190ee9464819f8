"""Which observations the model encodes and decodes, and as what: vectors or images; no JAX."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import elements
import numpy as np

from embodied.core.errors import ConfigError, SpaceError
from embodied.core.spaces import bounds, is_channels_first, is_image

Spaces = dict[str, elements.Space]

# Present in every observation, but neither encoded nor decoded.
FLAGS = ("is_first", "is_last", "is_terminal", "reward")
LOSSES = ("rec", "dyn", "rep", "rew", "con", "policy", "value", "repval")

LEAST_SIDE, MOST_SIDE = 3, 16  # of the smallest grid, where the config's stages lead to it
USUAL_SIDE = 8  # most of the smallest grid otherwise


class Layout(NamedTuple):
    """How an image network shrinks images of one size; the decoder goes the same way back.

    Attributes:
      size: height and width of the images.
      pads: pixels added before and after, per axis, so that halving leaves no remainder.
      mults: channel multiplier per stage.
      factors: what each stage divides height and width by, 1 or 2.
      grid: height and width after the last stage.
    """

    size: tuple[int, int]
    pads: tuple[tuple[int, int], ...]
    mults: tuple[int, ...]
    factors: tuple[tuple[int, int], ...]
    grid: tuple[int, int]


class Group(NamedTuple):
    """Images of one size, which share a network.

    Attributes:
      keys: sorted; their channels are concatenated in this order.
      prefix: of the network's layers; empty if all images have one size, else such as `64x96_`.
      layout: how the network shrinks them.
    """

    keys: list[str]
    prefix: str
    layout: Layout


def inputs(spaces: Spaces) -> Spaces:
    """The spaces that may be encoded and decoded: all but reward and flags."""
    return {k: v for k, v in spaces.items() if k not in FLAGS}


def check_names(decoded: Iterable[str]) -> None:
    """Raises a `ConfigError` for a decoded observation whose loss would have a taken name."""
    for key in sorted({*LOSSES} & {*decoded}):
        raise ConfigError(
            f"The observation {key!r} has the name of a loss: rename it in the environment."
        )


def select(spaces: Spaces, pattern: str, name: str) -> Spaces:
    """The spaces whose whole key a regular expression matches.

    Args:
      spaces: of all observations.
      pattern: the regular expression.
      name: of the config key that it comes from.

    Raises:
      SpaceError: there is no observation.
      ConfigError: the pattern is not a regular expression or matches nothing.
    """
    if not spaces:
        raise SpaceError("The environment has no observation for the agent to encode.")
    try:
        chosen = {k: v for k, v in spaces.items() if re.fullmatch(pattern, k)}
    except re.error as error:
        raise ConfigError(f"{name} {pattern!r} is no regular expression: {error}.") from error
    if not chosen:
        keys = ", ".join(sorted(spaces))
        raise ConfigError(f"{name} {pattern!r} matches none of the observations: {keys}.")
    return chosen


def split(spaces: Spaces) -> tuple[list[str], list[str]]:
    """Sorted keys of vectors and of images; whatever is no image is a vector, once flattened.

    Raises:
      SpaceError: the rank of a space is above 3, or an image has its channels first.
    """
    for key, space in spaces.items():
        if len(space.shape) > 3:
            raise SpaceError(
                f"The observation {key!r} has shape {space.shape}, but only ranks up to 3 can be "
                "encoded: reshape it in the environment."
            )
        if is_channels_first(space):
            raise SpaceError(
                f"The observation {key!r} has shape {space.shape}, which looks like an image with "
                "its channels first: move them to the end, to [height, width, channels]."
            )
    imgkeys = sorted(k for k, v in spaces.items() if is_image(v))
    return sorted(set(spaces) - set(imgkeys)), imgkeys


def group_images(
    spaces: Spaces, imgkeys: list[str], mults: tuple[int, ...], outer: bool
) -> list[Group]:
    """Groups images by their size; the groups follow their first keys in the alphabet."""
    sizes: dict[tuple[int, int], list[str]] = {}
    for key in imgkeys:
        height, width, _ = spaces[key].shape
        sizes.setdefault((height, width), []).append(key)
    return [
        Group(keys, f"{height}x{width}_" * (len(sizes) > 1), layout((height, width), mults, outer))
        for (height, width), keys in sizes.items()
    ]


def layout(size: tuple[int, int], mults: tuple[int, ...], outer: bool) -> Layout:
    """Finds out how to shrink images of a size.

    Where halving in every stage leaves whole numbers from 3 to 16, that is done. Otherwise each
    axis is halved, in more stages if need be, until at most 8 are left, but not where less than 3
    would be; images are padded to fit. Stages that do not halve an axis keep it, stages beyond
    the configured ones repeat the last multiplier.

    Args:
      size: height and width.
      mults: channel multiplier per stage.
      outer: whether the first stage keeps the full resolution.
    """
    start = int(outer)
    stages = len(mults) - start
    left = [side / 2**stages for side in size]
    fits = all(x.is_integer() and LEAST_SIDE <= x <= MOST_SIDE for x in left)
    halvings = [stages if fits else _halvings(side, stages) for side in size]
    grid = [math.ceil(side / 2**n) for side, n in zip(size, halvings, strict=True)]
    missing = [g * 2**n - side for g, n, side in zip(grid, halvings, size, strict=True)]
    stages = max(len(mults), start + max(halvings))
    shrinks = [[start <= i < start + n for n in halvings] for i in range(stages)]
    return Layout(
        size=size,
        pads=tuple((x // 2, x - x // 2) for x in missing),
        mults=(*mults, *mults[-1:] * (stages - len(mults))),
        factors=tuple((1 + height, 1 + width) for height, width in shrinks),
        grid=(grid[0], grid[1]),
    )


def scale_image(space: elements.Space, image: Any) -> Any:
    """Brings an image in float32 from the bounds of its space, of bytes 0..255, to 0..1."""
    if space.dtype == np.uint8:
        return image / 255
    low, top = bounds(space)
    span = np.where(top > low, top - low, 1)
    if (low == low.flat[0]).all() and (span == span.flat[0]).all():
        low, span = low.flat[0], span.flat[0]  # one number each, not as many as pixels
    return (image - low) / span


def _halvings(side: int, stages: int) -> int:
    while math.ceil(side / 2**stages) > USUAL_SIDE:
        stages += 1
    while stages and math.ceil(side / 2**stages) < LEAST_SIDE:
        stages -= 1
    return stages
