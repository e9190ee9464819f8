"""Batches on their way from the replay to the devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from jax.sharding import Mesh, NamedSharding

from ..core.base import Data, Spaces, Stream
from . import internal
from .checks import check_batch


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

    def close(self) -> None:
        """Closes the source if it can be closed."""
        getattr(self._source, "close", lambda: None)()

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
