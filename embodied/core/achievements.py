"""How often episodes unlock each of an environment's achievements."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

_PREFIX = "log/achievement_"


class Achievements:
    """Counts in how many episodes each achievement was unlocked.

    An achievement is a key `log/achievement_<name>`; an episode unlocks it if its value was ever
    above zero. All episodes count from the creation of this object on.
    """

    def __init__(self) -> None:
        self._episodes = 0
        self._unlocked: collections.Counter[str] = collections.Counter()

    def add(self, greatest: Mapping[str, float]) -> None:
        """Takes in one episode.

        Args:
          greatest: the greatest value of every `log/` key; others than achievements are ignored.
        """
        unlocked = {
            k.removeprefix(_PREFIX): v > 0 for k, v in greatest.items() if k.startswith(_PREFIX)
        }
        self._episodes += bool(unlocked)
        self._unlocked.update(unlocked)

    def save(self) -> dict[str, Any]:
        """Returns the numbers of episodes, with achievements and in all."""
        return {"episodes": self._episodes, "unlocked": dict(self._unlocked)}

    def load(self, data: Mapping[str, Any]) -> None:
        """Continues from what `save` returned."""
        self._episodes = int(data["episodes"])
        self._unlocked = collections.Counter(data["unlocked"])

    def stats(self) -> dict[str, float]:
        """Returns `success_rate/<name>`, as shares, and `crafter_score`, if there are any."""
        if not self._episodes:
            return {}
        rates = {k: v / self._episodes for k, v in self._unlocked.items()}
        return {
            **{f"success_rate/{k}": v for k, v in rates.items()},
            "crafter_score": crafter_score(rates.values()),
        }


def crafter_score(success_rates: Iterable[float]) -> float:
    """The geometric mean of success rates, in percent: exp(mean(ln(1 + 100 rate))) - 1.

    Args:
      success_rates: the share of episodes, 0 to 1, that unlock each achievement.

    Returns:
      The score, 0 to 100. It rewards rare achievements more than the mean would.
    """
    percent = 100 * np.fromiter(success_rates, np.float64)
    return float(np.expm1(np.log1p(percent).mean()))
