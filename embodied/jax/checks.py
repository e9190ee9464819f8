"""What the agent is given must fit its spaces, and what it gives must be finite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import elements
import jax.numpy as jnp
import numpy as np

from ..core.base import Data, Spaces
from ..core.errors import NonFiniteError, SpaceError


def check_spaces(**groups: Mapping[str, elements.Space]) -> None:
    """Raises a `SpaceError` for a key in two groups of spaces or a type that JAX lacks."""
    owner: dict[str, str] = {}
    for group, spaces in groups.items():
        for key, space in spaces.items():
            if key in owner:
                raise SpaceError(
                    f"The key {key!r} is both in {owner[key]} and in {group}: rename one of them."
                )
            owner[key] = group
            if np.dtype(space.dtype).itemsize > 4:
                raise SpaceError(
                    f"The key {key!r} in {group} has the type {np.dtype(space.dtype)}, which JAX "
                    f"computes in 32 bits: unify the types with the UnifyDtypes wrapper."
                )


def check_obs(obs: Data, spaces: Spaces) -> Data:
    """Copies the observations [E, ...] that the spaces name.

    They are copied since drivers reuse their buffers, which CPU devices read in place.

    Raises:
      SpaceError: a key is missing or has a wrong shape or type.
      NonFiniteError: a number is not finite.
    """
    result = {}
    for key, space in spaces.items():
        if key not in obs:
            raise SpaceError(
                f"The observation lacks the key {key!r}; it has {', '.join(sorted(obs))}."
            )
        value = np.array(obs[key])
        if value.shape[1:] != space.shape or value.dtype != space.dtype:
            raise SpaceError(
                f"The observation {key!r} has shape {value.shape[1:]} and type {value.dtype} "
                f"per environment, but {space.shape} and {space.dtype} are right."
            )
        check_finite(f"observation {key!r}", finite_rows(value))
        result[key] = value
    return result


def check_batch(batch: Mapping[str, np.ndarray], spaces: Spaces) -> None:
    """Raises a `SpaceError` that names the first key that does not fit its space."""
    lead = None
    for key, space in spaces.items():
        if key not in batch:
            raise SpaceError(
                f"The batch lacks the key {key!r} that the agent needs; it has "
                f"{', '.join(sorted(batch))}."
            )
        value = batch[key]
        lead = lead or value.shape[:2]
        _check_value(key, value, (*lead, *space.shape), space)


def _check_value(key: str, value: np.ndarray, shape: tuple[int, ...], space: Any) -> None:
    if value.shape != shape or value.dtype != space.dtype:
        raise SpaceError(
            f"The key {key!r} has shape {value.shape} and type {value.dtype}, but {shape} and "
            f"{space.dtype} are right."
        )


def finite_rows(value: np.ndarray) -> np.ndarray:
    """Whether all numbers [E, ...] of an environment are finite: bool [E]."""
    if not jnp.issubdtype(value.dtype, jnp.floating):
        return np.ones(len(value), bool)
    return np.isfinite(value).reshape(len(value), -1).all(1)


def check_finite(name: str, finite: np.ndarray) -> None:
    """Raises a `NonFiniteError` that names the first environment where `finite` [E] is false."""
    if not finite.all():
        index = int(np.argmin(finite))
        raise NonFiniteError(f"The {name} of environment {index} is not finite.")
