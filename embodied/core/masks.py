"""Action masks: observations that tell which classes of a discrete action are allowed.

A mask that allows no class, as at the end of an episode, restricts nothing.
"""

from __future__ import annotations

import elements
import numpy as np

from .base import Array, Data, Spaces
from .spaces import bounds, classes, is_classes


def shape(space: elements.Space) -> tuple[int, ...]:
    """The shape of a mask of a discrete action: that of the action, and one entry per class."""
    return (*space.shape, int(classes(space).max()))


def fits(mask: elements.Space, space: elements.Space) -> bool:
    """Whether a space holds masks of an action: booleans, or integers 0 and 1, of their shape."""
    if not is_classes(space) or mask.shape != shape(space) or not mask.discrete:
        return False
    low, top = bounds(mask)
    return mask.dtype == bool or bool(low.min() >= 0 and top.max() <= 1)


def restrict(allowed: Array, mask: Array) -> Array:
    """Classes [..., C] that a mask leaves of those allowed; all of them where it leaves none."""
    left = allowed & np.asarray(mask, bool)
    return np.where(left.any(-1, keepdims=True), left, allowed)


def existing(space: elements.Space) -> Array:
    """The classes [*shape, C] that exist, which are fewer in some entries than in others."""
    return np.arange(shape(space)[-1]) < classes(space)[..., None]


def draw(space: elements.Space, allowed: Array, rng: np.random.Generator) -> Array:
    """Draws uniformly among the allowed classes.

    Args:
      space: of the action.
      allowed: booleans [..., *shape, C], at least one of which is true per entry.
      rng: source of the randomness.

    Returns:
      Actions [..., *shape] in the dtype of their space.
    """
    index = np.where(allowed, rng.random(allowed.shape), -1).argmax(-1)
    return bounds(space)[0] + index.astype(space.dtype)


def redraw(
    acts: Data, obs: Data, masks: dict[str, str], spaces: Spaces, rng: np.random.Generator
) -> Data:
    """Draws masked actions anew, among the classes that their masks allow.

    Args:
      acts: actions [E, ...] by their names.
      obs: the observations [E, ...] before them, masks included.
      masks: the name of the mask of each action that has one.
      spaces: spaces of the actions.
      rng: source of the randomness.

    Returns:
      The actions [E, ...], those without a mask as they were.
    """
    drawn = {
        key: draw(spaces[key], restrict(existing(spaces[key]), obs[mask]), rng)
        for key, mask in masks.items()
    }
    return {**acts, **drawn}
