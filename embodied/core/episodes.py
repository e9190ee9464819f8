"""Episode statistics: the one place where scores, lengths and `log/` values are counted."""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from .achievements import Achievements
from .base import Data
from .logger import Aggregate

_VIDEO_FRAMES = 1000
_VIDEO_BYTES = 32 * 1024**2


@dataclasses.dataclass
class _Episode:
    updated: float = 0.0  # seconds on the monotonic clock
    score: float = 0.0
    length: int = 0
    reward: float = 0.0
    changes: int = 0  # steps on which the reward was another than on the step before
    logs: dict[str, list[float]] = dataclasses.field(default_factory=dict)  # sum, max, count
    frames: dict[str, list[np.ndarray]] = dataclasses.field(default_factory=dict)


class Episodes:
    """Follows the episodes of all workers.

        episodes = Episodes(partial(logger.add, prefix="episode"))
        driver.on_step(episodes.on_step)
        logger.add(episodes.stats(), prefix="epstats")

    Only episodes that were seen from their first to their last step count. What is known of an
    abandoned one, whose worker starts anew without an `is_last`, is dropped.

    Args:
      emit: takes `{"score": sum of rewards, "length": number of the agent's decisions}` of every
        episode when it ends.
      timeout: seconds after which an episode that no longer advances while others do is dropped,
        so that lost workers hold no memory; 0 means never.
      video: whether to keep the images of worker 0's episodes, up to a limit per key.
    """

    def __init__(
        self, emit: Callable[[dict[str, Any]], Any], timeout: float = 0, video: bool = True
    ):
        self._emit = emit
        self._timeout = timeout
        self._video = video
        self._open: dict[int, _Episode] = {}
        self._stats = Aggregate()
        self._achievements = Achievements()
        self._recent: collections.deque = collections.deque(maxlen=10)

    @property
    def recent_score(self) -> float | None:
        """Mean score of the last ten episodes; None before the first."""
        return sum(self._recent) / len(self._recent) if self._recent else None

    def reached(self, score: float) -> bool:
        """Whether ten episodes have ended and the last ten had at least this mean score."""
        full = len(self._recent) == self._recent.maxlen
        return full and self.recent_score is not None and self.recent_score >= score

    def on_step(self, tran: Data, worker: int) -> None:
        """Takes in one transition of one worker."""
        if tran["is_first"]:
            self._open[worker] = _Episode()
        episode = self._open.get(worker)
        if episode is None:
            return
        episode.updated = time.monotonic()
        _count(episode, float(tran["reward"]), bool(tran["is_first"]))
        for key, value in tran.items():
            if key.startswith("log/") and np.ndim(value) == 0:
                _track(episode.logs, key, float(value))
            elif worker == 0 and self._video and _is_image(value):
                _record(episode.frames, key, value)
        if tran["is_last"]:
            self._finish(self._open.pop(worker))

    def stats(self) -> dict[str, Any]:
        """Returns figures of the episodes that ended since the previous call.

        `reward_rate` is the share of steps on which the reward changed; of every scalar
        `log/` key there are `/avg`, `/max` and `/sum` over the episode; all are means over
        episodes. `policy_<key>` is the latest episode of worker 0, [T, H, W, C].

        If there are `log/achievement_` keys, the success rates and the Crafter score of all
        episodes so far are added; see `Achievements`.
        """
        self._drop_stale()
        return {**self._stats.result(), **self._achievements.stats()}

    def save(self) -> Data:
        """Returns all that is known but for the images of episodes that are under way."""
        fields = ("score", "length", "reward", "changes", "logs")
        return {
            "open": {k: {f: getattr(x, f) for f in fields} for k, x in self._open.items()},
            "stats": self._stats.save(),
            "recent": list(self._recent),
            "achievements": self._achievements.save(),
        }

    def load(self, data: Data) -> None:
        """Continues from what `save` returned."""
        now = time.monotonic()
        self._open = {k: _Episode(updated=now, **fields) for k, fields in data["open"].items()}
        self._stats.load(data["stats"])
        self._recent.extend(data["recent"])
        self._achievements.load(data["achievements"])

    def _finish(self, episode: _Episode) -> None:
        self._recent.append(episode.score)
        self._emit({"score": episode.score, "length": episode.length})
        if episode.length:
            self._stats.add({"reward_rate": episode.changes / episode.length})
        self._achievements.add({k: greatest for k, (_, greatest, _) in episode.logs.items()})
        for key, (total, greatest, count) in episode.logs.items():
            self._stats.add(
                {f"{key}/avg": total / count, f"{key}/max": greatest, f"{key}/sum": total}
            )
        for key, frames in episode.frames.items():
            self._stats.add({f"policy_{key.removeprefix('log/')}": np.stack(frames)})

    def _drop_stale(self) -> None:
        # Measured against the newest step, since a long update holds up all workers alike.
        newest = max((x.updated for x in self._open.values()), default=0.0)
        for worker, episode in list(self._open.items()):
            if 0 < self._timeout < newest - episode.updated:
                del self._open[worker]


def _count(episode: _Episode, reward: float, first: bool) -> None:
    episode.score += reward
    if not first:
        episode.length += 1
        episode.changes += abs(reward - episode.reward) >= 0.01
    episode.reward = reward


def _track(logs: dict[str, list[float]], key: str, value: float) -> None:
    total, greatest, count = logs.get(key, (0.0, -np.inf, 0))
    logs[key] = [total + value, max(greatest, value), count + 1]


def _is_image(value: Any) -> bool:
    return np.ndim(value) == 3 and value.dtype == np.uint8


def _record(frames: dict[str, list[np.ndarray]], key: str, value: np.ndarray) -> None:
    kept = frames.setdefault(key, [])
    if len(kept) < min(_VIDEO_FRAMES, _VIDEO_BYTES // value.nbytes):
        kept.append(value.copy())
