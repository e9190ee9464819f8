"""An agent that acts at random: a baseline, and a stand-in that needs no framework."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from . import masks as masking
from .base import Agent, Data, Spaces
from .errors import CheckpointError
from .spaces import sample


class RandomAgent(Agent):
    """Draws every action uniformly from its space and learns nothing.

    The actions depend on the seed, on how many times `policy` was called, and on the masks.

    Args:
      obs_space: spaces of the observations.
      act_space: spaces of the actions to draw.
      seed: any non-negative number.
      masks: for discrete actions, the observation that tells which classes are allowed, as
        booleans [*shape, C] or integers 0 and 1; one that allows none restricts nothing.
    """

    def __init__(
        self,
        obs_space: Spaces,
        act_space: Spaces,
        seed: int = 0,
        masks: dict[str, str] | None = None,
    ):
        super().__init__(obs_space, act_space, None)
        self._seed = seed
        self._masks = masks or {}
        self._calls = 0

    def init_policy(self, batch_size: int) -> Any:
        """An empty carry."""
        return ()

    def init_train(self, batch_size: int) -> Any:
        """An empty carry."""
        return ()

    def init_report(self, batch_size: int) -> Any:
        """An empty carry."""
        return ()

    def policy(self, carry: Any, obs: Data, mode: str = "train") -> tuple[Any, Data, Data]:
        """Returns the carry, one action [E, ...] per key, and no outputs; see `Agent.policy`."""
        rng = np.random.default_rng([self._seed, self._calls])
        self._calls += 1
        envs = len(obs["is_first"])
        acts = {k: sample(space, rng, (envs,)) for k, space in self.act_space.items()}
        acts = masking.redraw(acts, obs, self._masks, self.act_space, rng)
        return carry, acts, {}

    def train(self, carry: Any, data: Data) -> tuple[Any, Data, Data]:
        """Returns the carry, no outputs and no metrics."""
        return carry, {}, {}

    def report(self, carry: Any, data: Data) -> tuple[Any, Data]:
        """Returns the carry and no metrics."""
        return carry, {}

    def stream(self, st: Iterator[Data]) -> Iterator[Data]:
        """Returns the stream as it is."""
        return st

    def save(self) -> Data:
        """Seed and number of calls, from which the actions follow."""
        return {"seed": self._seed, "calls": self._calls}

    def load(self, data: Data, regex: str | None = None) -> None:
        """Continues where the saved agent stood.

        Raises:
          CheckpointError: if `regex` is given, as there are no parameters to match.
        """
        if regex is not None:
            raise CheckpointError(
                f"A random agent has no parameters that {regex!r} could match; load it whole."
            )
        self._seed = int(data["seed"])
        self._calls = int(data["calls"])
