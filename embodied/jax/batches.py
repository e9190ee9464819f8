"""Batches on their way from the replay to the devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import elements
import numpy as np
from jax.sharding import Mesh, NamedSharding

from ..core.base import Data, Spaces, Stream
from ..core.errors import SpaceError
from . import internal


class BatchStream(Stream):
    """Checks the batches of a host stream, sends them to the train devices, and adds seeds.

    A batch is drawn when it is asked for, not before: it is fresh, and neither two runs of a seed
    nor a resumed one depend on timing. Since updates and transfers run in the background, drawing
    and sending a batch overlaps with the update before.

    Args:
      source: yields dicts of arrays [B, T, ...], with the rows of this process. The arrays must
        not change afterwards. Keys outside of `spaces` are left out.
      spaces: of the keys that the agent takes.
      mesh: over which the rows are split.
      seed: gives the seed (uint32 [2]) of a batch by its number.
      number: tells how many batches the agent has trained on, so that a resumed run goes on with
        the right seed.
    """

    def __init__(
        self,
        source: Iterator[Data],
        spaces: Spaces,
        mesh: Mesh,
        seed: Callable[[int], np.ndarray],
        number: Callable[[], int],
    ):
        self._source = source
        self._spaces = spaces
        self._mesh = mesh
        self._seed = seed
        self._number = number
        self._count = -1
        self._checked: set[tuple] = set()

    def __next__(self) -> Data:
        batch = next(self._source)
        self._check(batch)
        batch = {k: batch[k] for k in self._spaces}
        self._count = max(self._count + 1, self._number())
        data = internal.to_global(batch, NamedSharding(self._mesh, internal.BATCH))
        seed = self._seed(self._count)
        data["seed"] = internal.device_put(seed, NamedSharding(self._mesh, internal.REPLICATED))
        return data

    def save(self) -> Any:
        """The position of the source; nothing is drawn ahead of what was handed out."""
        return self._source.save() if isinstance(self._source, Stream) else None

    def load(self, data: Any) -> None:
        """Brings the source back to a saved position."""
        if isinstance(self._source, Stream):
            self._source.load(data)

    def _check(self, batch: Data) -> None:
        # Later batches look like the first, so this costs next to nothing but still finds those
        # that do not.
        layout = tuple((k, v.shape, v.dtype) for k, v in batch.items())
        if layout in self._checked:
            return
        check_batch(batch, self._spaces)
        rows = batch[next(iter(self._spaces))].shape[0]
        internal.check_split("The batch size", rows, self._mesh, "train")
        self._checked.add(layout)


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
