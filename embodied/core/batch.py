"""Values of E environments as one array [E, ...] per key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from multiprocessing import shared_memory

import numpy as np

from .base import Data, Spaces
from .errors import EnvError, SpaceError
from .spaces import describe, same_space


def common_spaces(spaces: Sequence[tuple[Spaces, Spaces]]) -> tuple[Spaces, Spaces]:
    """The spaces that all environments of a driver share.

    Args:
      spaces: `(obs_space, act_space)` of every environment.

    Raises:
      EnvError: if two environments differ, or if the contract of `Env` is broken.
    """
    if not spaces:
        raise EnvError("A driver needs at least one environment, but none was given.")
    (obs_space, act_space), *others = spaces
    missing = [k for k in ("reward", "is_first", "is_last", "is_terminal") if k not in obs_space]
    missing += [k for k in ("reset",) if k not in act_space]
    if missing:
        raise EnvError(f"The environment's spaces lack {_names(missing)}; see `embodied.Env`.")
    if shared := obs_space.keys() & act_space.keys():
        raise EnvError(f"The key {_names(shared)} is both an observation and an action.")
    for key, space in {**obs_space, **act_space}.items():
        if not space.dtype.itemsize:
            raise EnvError(f"The space {key!r} has the dtype {space.dtype}: texts have no size.")
    for index, pair in enumerate(others, start=1):
        for first, other in zip((obs_space, act_space), pair, strict=True):
            _compare(first, other, index)
    return obs_space, act_space


def _compare(first: Spaces, other: Spaces, index: int) -> None:
    for key in sorted(first.keys() | other.keys()):
        if key in first and key in other and same_space(first[key], other[key]):
            continue
        texts = [describe(s[key]) if key in s else "absent" for s in (first, other)]
        raise EnvError(
            f"All environments of a driver must have the same spaces, but {key!r} is {texts[0]} "
            f"in environment 0 and {texts[1]} in environment {index}."
        )


def allocate(spaces: Spaces, envs: int) -> Data:
    """Zeros [E, ...] for every key."""
    return {k: np.zeros((envs, *v.shape), v.dtype) for k, v in spaces.items()}


def take(batch: Data, index: int) -> Data:
    """A copy of one environment's row of every array."""
    return {k: v[index].copy() for k, v in batch.items()}


def put(batch: Data, index: int, values: Data, step: int) -> None:
    """Writes one environment's values into its row of every array.

    Values of the same kind but another precision are cast to the dtype of the array.

    Args:
      batch: one array [E, ...] per key, changed in place.
      index: the environment.
      values: one value per key.
      step: how many steps came before, for the error.

    Raises:
      SpaceError: if keys, shapes or kinds of numbers differ.
    """
    if values.keys() != batch.keys():
        raise SpaceError(
            f"Environment {index} gave at step {step} the keys {_names(values)} where its space "
            f"has {_names(batch)}."
        )
    for key, array in batch.items():
        value = np.asarray(values[key])
        if value.shape == array.shape[1:] and np.can_cast(value.dtype, array.dtype, "same_kind"):
            array[index] = value
            continue
        raise SpaceError(
            f"Environment {index} gave at step {step} for {key!r} {value.dtype.name} "
            f"{value.shape} where its space is {array.dtype.name} {array.shape[1:]}."
        )


def _names(keys: Iterable[str]) -> str:
    return ", ".join(repr(key) for key in sorted(keys))


class SharedArrays:
    """Arrays [E, ...], one per key, in memory that processes share.

    Args:
      spaces: keys, shapes and dtypes.
      envs: the leading dimension E.
      name: of the memory that another process has made, or None to make it.
    """

    def __init__(self, spaces: Spaces, envs: int, name: str | None = None):
        offsets, size = {}, 0
        for key, space in sorted(spaces.items()):  # processes may know them in other orders
            offsets[key] = size
            size += -(-space.dtype.itemsize * envs * int(np.prod(space.shape)) // 64) * 64
        self._owner = name is None
        self._memory = shared_memory.SharedMemory(name, create=self._owner, size=size)
        self.arrays = {
            k: np.ndarray((envs, *v.shape), v.dtype, self._memory.buf, offsets[k])
            for k, v in spaces.items()
        }

    @property
    def name(self) -> str:
        """What another process needs to find this memory."""
        return self._memory.name

    def close(self) -> None:
        """Lets go of the memory; the maker also frees it. No array may be used afterwards."""
        self.arrays.clear()
        self._memory.close()
        if self._owner:
            self._memory.unlink()
