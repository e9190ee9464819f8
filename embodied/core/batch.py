"""Values of E environments as one array [E, ...] per key."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from multiprocessing import shared_memory

import numpy as np

from .base import Data, Spaces
from .errors import EnvError, SpaceError
from .spaces import describe, same_space


def common_spaces(spaces: Mapping[int, tuple[Spaces, Spaces]]) -> tuple[Spaces, Spaces]:
    """The spaces that all environments of a driver share.

    Args:
      spaces: `(obs_space, act_space)` of environments by their number; at least one.

    Raises:
      EnvError: if two environments differ, or if the contract of `Env` is broken.
    """
    first = min(spaces)
    obs_space, act_space = spaces[first]
    missing = [k for k in ("reward", "is_first", "is_last", "is_terminal") if k not in obs_space]
    missing += [k for k in ("reset",) if k not in act_space]
    if missing:
        raise EnvError(f"The environment's spaces lack {_names(missing)}; see `embodied.Env`.")
    if shared := obs_space.keys() & act_space.keys():
        raise EnvError(f"The key {_names(shared)} is both an observation and an action.")
    for key, space in {**obs_space, **act_space}.items():
        if not space.dtype.itemsize:
            raise EnvError(f"The space {key!r} has the dtype {space.dtype}: texts have no size.")
    for index, pair in spaces.items():
        for mine, other in zip((obs_space, act_space), pair, strict=True):
            _compare(mine, other, first, index)
    return obs_space, act_space


def _compare(one: Spaces, two: Spaces, first: int, second: int) -> None:
    for key in sorted(one.keys() | two.keys()):
        if key in one and key in two and same_space(one[key], two[key]):
            continue
        texts = [describe(s[key]) if key in s else "absent" for s in (one, two)]
        raise EnvError(
            f"All environments of a driver must have the same spaces, but {key!r} is {texts[0]} "
            f"in environment {first} and {texts[1]} in environment {second}."
        )


def allocate(spaces: Spaces, envs: int) -> Data:
    """Zeros [E, ...] for every key."""
    return {k: np.zeros((envs, *v.shape), v.dtype) for k, v in spaces.items()}


def split(total: int, parts: int) -> list[slice]:
    """Divides numbers 0..total-1 into consecutive parts whose sizes differ by 1 at most."""
    return ranges([total // parts + (i < total % parts) for i in range(parts)])


def ranges(lengths: Iterable[int]) -> list[slice]:
    """Consecutive slices of these lengths, the first from 0."""
    ends = list(itertools.accumulate(lengths, initial=0))
    return [slice(*pair) for pair in itertools.pairwise(ends)]


def take(batch: Data, rows: int | slice) -> Data:
    """A copy of the rows of some environments, or the row of one, of every array."""
    return {k: v[rows].copy() for k, v in batch.items()}


def put(batch: Data, rows: int | slice, values: Data) -> None:
    """Writes the values of some environments, or of one, into their rows of every array.

    Values of the same kind but another precision are cast to the dtype of the array.

    Args:
      batch: one array [E, ...] per key, changed in place.
      rows: the environment of values [...], or those of values [len(rows), ...].
      values: one value per key.

    Raises:
      SpaceError: if keys, shapes or kinds of numbers differ.
    """
    if values.keys() != batch.keys():
        raise SpaceError(
            f"The observation has the keys {_names(values)}, expected {_names(batch)}."
        )
    for key, array in batch.items():
        value = np.asarray(values[key])
        dtype, shape = array.dtype, array[rows].shape
        if value.shape != shape or not (
            value.dtype == dtype or np.can_cast(value.dtype, dtype, "same_kind")
        ):
            raise SpaceError(
                f"The observation {key!r} is {value.dtype.name} {value.shape}, "
                f"expected {dtype.name} {shape}."
            )
        array[rows] = value


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
