"""Clocks that say when something is due: by wall-clock time, or by a ratio to the step count."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, SupportsInt


class LocalClock:
    """True once per period of wall-clock time.

    A period that passes without a call is not made up for: after a long pause the clock strikes
    once and starts a new period.

    Args:
      every: period in seconds; 0 means never, a negative number at every call.
      first: whether the first call is true (unless the clock never strikes).
    """

    def __init__(self, every: float, first: bool = False):
        self._every = every
        self._first = first
        self._start = time.monotonic()

    def __call__(self) -> bool:
        """Returns whether a period has passed since the last true answer."""
        if self._every == 0:
            return False
        now = time.monotonic()
        due = self._every < 0 or self._first or now - self._start >= self._every
        if due:
            self._first = False
            self._start = now
        return due


class GlobalClock:
    """A `LocalClock` on which all replicas of a run agree.

    Args:
      every: period in seconds; 0 means never, a negative number at every call.
      first: whether the first call is true (unless the clock never strikes).
      agree: takes this replica's answer and returns the leader's; every replica calls it at the
        same point of the program. Without it this process is the only replica.
    """

    def __init__(
        self, every: float, first: bool = False, agree: Callable[[bool], bool] | None = None
    ):
        self._clock = LocalClock(every, first)
        self._agree = agree

    def __call__(self) -> bool:
        """Returns what the leader's clock says."""
        due = self._clock()
        return self._agree(due) if self._agree else due


class Ratio:
    """How many updates are due, so that updates per step keep to a ratio.

    The first call starts the count and returns 1; later calls return the whole updates that the
    steps since then bring and carry the fraction over. The count is saved with the run, so that
    a resume owes nothing for the steps before it.

    Args:
      ratio: updates per step; 0 means never, a negative number one update per call.
    """

    def __init__(self, ratio: float):
        self._ratio = ratio
        self._paid: float | None = None  # step up to which updates were returned

    def __call__(self, step: SupportsInt) -> int:
        """Returns the number of updates that are due at `step`."""
        if self._ratio == 0:
            return 0
        if self._ratio < 0:
            return 1
        if self._paid is None:
            self._paid = float(int(step))
            return 1
        updates = int((int(step) - self._paid) * self._ratio)
        self._paid += updates / self._ratio
        return updates

    def save(self) -> dict[str, Any]:
        """Returns the step up to which updates were paid, None before the first call."""
        return {"paid": self._paid}

    def load(self, data: dict[str, Any]) -> None:
        """Continues the count that `save` returned."""
        self._paid = data["paid"]
