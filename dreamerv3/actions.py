"""Which actions the policy can take, and their masks: observations that tell what is legal.

In the environment the observed mask holds, in imagination the one that the decoder predicts. A
mask that allows no class, as at the end of an episode, restricts nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import elements

from embodied.core import masks
from embodied.core.errors import ConfigError, SpaceError
from embodied.core.spaces import MOST_CLASSES, MOST_ONEHOT, describe, is_classes

if TYPE_CHECKING:  # which loads JAX
    from embodied.jax import outs

Spaces = dict[str, elements.Space]


def check(spaces: Spaces) -> None:
    """Raises a `SpaceError` for integer actions with too many values to be classes."""
    for key, space in spaces.items():
        if space.discrete and not is_classes(space):
            raise SpaceError(
                f"The action {key!r} is {describe(space)}, too many values to be classes of a "
                f"policy, which has room for {MOST_CLASSES} per entry and {MOST_ONEHOT} in all: "
                "offer fewer values, or floats."
            )


def find_masks(pattern: str, obs_space: Spaces, act_space: Spaces) -> dict[str, str]:
    """The name of the mask of each action that has one.

    Args:
      pattern: name of the mask, where `{action}` stands for the action; empty for no masks.
      obs_space: spaces of the observations that are decoded.
      act_space: spaces of the actions.

    Raises:
      ConfigError: it is not clear which action is masked, or no mask of that name is decoded.
      SpaceError: a mask does not fit its action.
    """
    if not pattern:
        return {}
    actions = sorted(k for k, v in act_space.items() if v.discrete)
    if not actions:
        raise ConfigError(f"agent.action_mask is {pattern!r}, but no action is discrete.")
    if len(actions) > 1 and "{action}" not in pattern:
        raise ConfigError(
            f"agent.action_mask is {pattern!r}, but the actions {', '.join(actions)} are "
            "discrete: let {action} stand for their names in it."
        )
    names = {k: pattern.replace("{action}", k) for k in actions}
    found = {k: v for k, v in names.items() if v in obs_space}
    if not found:
        raise ConfigError(
            f"agent.action_mask is {pattern!r}, but the decoded observations are "
            f"{', '.join(sorted(obs_space))}: name one of them, or let agent.dec.keys match it."
        )
    for action, mask in found.items():
        _check_mask(action, act_space[action], mask, obs_space[mask])
    return found


def apply_masks(policy: dict[str, outs.Output], values: Any, names: dict[str, str]) -> Any:
    """Takes the probability of illegal classes.

    Args:
      policy: distributions [...] per action.
      values: masks [..., *shape, C] by their names.
      names: from `find_masks`.
    """
    masked = {k: policy[k].masked(values[v].astype(bool)) for k, v in names.items()}
    return {**policy, **masked}


def _check_mask(action: str, space: elements.Space, mask: str, found: elements.Space) -> None:
    if not masks.fits(found, space):
        raise SpaceError(
            f"The action mask {mask!r} is {describe(found)}, but bool {masks.shape(space)}, or "
            f"integers 0 and 1 of this shape, would fit the action {action!r}."
        )
