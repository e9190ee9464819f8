"""Limiters: how far collecting data and learning from it may run ahead of each other."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from .errors import ConfigError


class SamplesPerInsert:
    """Holds the number of samples near `samples_per_insert` times the number of inserts.

    It answers and counts; whoever asks must wait. Safe to use from several threads.

    Args:
      samples_per_insert: the ratio, positive.
      tolerance: how many samples learning may run ahead, and how many inserts collecting may.
      minsize: inserts before the first sample, at least one; they allow no samples themselves.

    Raises:
      ConfigError: a number is out of its range.
    """

    def __init__(self, samples_per_insert: float, tolerance: float, minsize: int):
        if samples_per_insert <= 0 or tolerance < 0 or minsize < 1:
            raise ConfigError(
                f"SamplesPerInsert got the ratio {samples_per_insert}, tolerance {tolerance} and "
                f"minsize {minsize}: they must be positive, non-negative and at least one."
            )
        self.samples_per_insert = samples_per_insert
        self.minsize = minsize
        self.avail: float = -minsize
        self.size = 0
        self._least = -tolerance
        self._most = tolerance * samples_per_insert
        self._lock = threading.Lock()

    def want_insert(self) -> bool:
        """Whether an insert is welcome now."""
        with self._lock:
            return self.size < self.minsize or self.avail < self._most

    def want_sample(self) -> bool:
        """Whether a sample is welcome now."""
        with self._lock:
            return self.size >= self.minsize and self.avail > self._least

    def insert(self) -> None:
        """Counts an insert."""
        with self._lock:
            self.size += 1
            if self.size >= self.minsize:
                self.avail += self.samples_per_insert

    def sample(self) -> None:
        """Counts a sample."""
        with self._lock:
            self.avail -= 1

    def save(self) -> dict[str, float]:
        """The counts, for `load`."""
        with self._lock:
            return {"size": self.size, "avail": self.avail}

    def load(self, data: Mapping[str, float]) -> None:
        """Continues from saved counts."""
        with self._lock:
            self.size = int(data["size"])
            self.avail = float(data["avail"])
