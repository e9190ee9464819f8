"""Output arrays that are used again once nobody else holds them."""

from __future__ import annotations

import sys

import numpy as np


class Buffers:
    """Hands out uninitialised arrays, by preference such as were handed out before.

    Fresh memory costs more time than copying a batch into it. An array is used again only when
    this pool holds the last reference to it; views and device buffers that share its memory hold
    one, too. So it lives just as long as any array that its owner keeps.

    Args:
      amount: arrays of one name and shape that are kept.
    """

    def __init__(self, amount: int = 4):
        self._amount = amount
        self._kept: dict[tuple[str, tuple[int, ...]], list[np.ndarray]] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An array with arbitrary content; a name always comes with the same dtype."""
        kept = self._kept.setdefault((name, shape), [])
        for index in range(len(kept)):
            # The list and the argument of getrefcount.
            if sys.getrefcount(kept[index]) == 2:
                return kept[index]
        array = np.empty(shape, dtype)
        if len(kept) < self._amount:
            kept.append(array)
        return array
