"""A tree of arrays that draws leaves in proportion to their weights."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np


class SumTree:
    """Weights in the leaves of a tree of arrays whose inner nodes hold the sums of their children.

    Args:
      branching: children per node.
      dtype: of the weights.
    """

    def __init__(self, branching: int, dtype: Any):
        self._branching = branching
        self._levels = [np.zeros(1, dtype)]  # leaves first, the root last

    @property
    def total(self) -> Any:
        """Sum of all weights."""
        return self._levels[-1][0]

    def resize(self, size: int) -> None:
        """Makes room for more leaves, whose weight is zero."""
        width = -(-size // self._branching) * self._branching
        leaves = np.zeros(width, self._levels[0].dtype)
        leaves[: len(self._levels[0])] = self._levels[0]
        self._levels = [leaves]
        while len(self._levels[-1]) > 1:
            sums = self._levels[-1].reshape(-1, self._branching).sum(1)
            if len(sums) > 1:
                sums = np.append(sums, np.zeros(-len(sums) % self._branching, sums.dtype))
            self._levels.append(sums)

    def set(self, leaves: np.ndarray, weights: np.ndarray) -> None:
        """Sets the weights [N] of the leaves [N]; equal leaves must have equal weights."""
        self._levels[0][leaves] = weights
        nodes = leaves
        # Sums are taken anew, not adjusted: rounding errors do not add up.
        for below, above in itertools.pairwise(self._levels):
            nodes = np.unique(nodes // self._branching)
            above[nodes] = below.reshape(-1, self._branching)[nodes].sum(1)

    def sample(self, uniforms: np.ndarray) -> np.ndarray:
        """Leaves [N] for numbers [N] from [0, 1), by inversion of the cumulative sum."""
        nodes = np.zeros(len(uniforms), np.int64)
        rest = uniforms * self.total
        for level in reversed(self._levels[:-1]):
            sums = level.reshape(-1, self._branching)[nodes].astype(np.float64).cumsum(1)
            # The strict bound keeps rounding from reaching a child without weight.
            rest = np.clip(rest, 0, np.nextafter(sums[:, -1], 0))
            child = (sums <= rest[:, None]).sum(1)
            before = np.take_along_axis(sums, np.maximum(child - 1, 0)[:, None], 1)[:, 0]
            rest = rest - np.where(child > 0, before, 0)
            nodes = nodes * self._branching + child
        return nodes
