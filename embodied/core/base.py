"""The four interfaces that meet in every run: environment, agent, stream and replay.

    agent = make_agent(env.obs_space, env.act_space)
    driver.on_step(replay.add)                # environment -> replay
    driver(agent.policy, steps=1000)          # agent acts
    stream = agent.stream(replay_stream)      # replay -> agent
    carry, outs, metrics = agent.train(carry, next(stream))
    replay.update(outs["replay"])             # agent -> replay

Nothing here knows a framework: numpy, JAX and PyTorch agents are all hosted alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import elements
import numpy as np

Array = np.ndarray
Spaces = dict[str, elements.Space]
Data = dict[str, Any]


class Env:
    """An environment whose observations and actions are flat dicts of arrays.

    The contract, awkward cases included:

    - `obs_space` and `act_space` map keys to `elements.Space`; no key is in both.
    - Every observation has `reward` (float32 scalar) and `is_first`, `is_last`, `is_terminal`
      (bool scalars). `act_space` contains `reset` (bool scalar).
    - `step` starts an episode if `reset` in the action is true, if none was started yet, or if
      the previous observation had `is_last`. It then ignores the rest of the action and returns
      the first observation: `is_first` true and `reward` 0.
    - `is_last` marks the final observation of an episode, whatever ended it. `is_terminal` marks
      that no reward can follow (its value is 0), and implies `is_last`. A time limit sets only
      `is_last`.
    - Keys that start with `log/` are for the logger: they reach neither agent nor replay.
    - An environment may have two more methods, by which resumed runs continue its episodes where
      they were: `save_episode()` returns what the present episode began from, such as the random
      state of then, as a tree of dicts, numbers and arrays, or None if that is not known;
      `load_episode(data)` lets the next reset begin that episode. With equal actions it must
      give equal observations.
    """

    @property
    def obs_space(self) -> Spaces:
        """The space of every observation key, flags and `log/` keys included."""
        raise NotImplementedError

    @property
    def act_space(self) -> Spaces:
        """The space of every action key, `reset` included."""
        raise NotImplementedError

    def step(self, action: Data) -> Data:
        """Takes one action and returns the observation that follows it.

        Args:
          action: one value per key of `act_space`, with the space's shape and dtype.

        Returns:
          One value per key of `obs_space`.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Frees what the environment holds; it is not stepped afterwards."""


class BatchedEnv:
    """E environments of one kind that are stepped together by one call.

    The contract of `Env` holds for every environment alone. Spaces are those of one environment;
    values have a leading axis: every action is an array [E, ...], and so is every observation.
    Each environment resets when its own entry of `reset` is true, or after its own `is_last`.

    One that can begin an episode in the middle of another only in all environments at once has an
    attribute `resets_alone` that is False, so that checks leave out what no driver does.

    Attributes:
      length: the number of environments E.
    """

    length: int

    @property
    def obs_space(self) -> Spaces:
        """The space of every observation key of one environment; see `Env.obs_space`."""
        raise NotImplementedError

    @property
    def act_space(self) -> Spaces:
        """The space of every action key of one environment, `reset` included."""
        raise NotImplementedError

    def step(self, action: Data) -> Data:
        """Takes one action per environment and returns the observations that follow.

        Args:
          action: one array [E, ...] per key of `act_space`.

        Returns:
          One array [E, ...] per key of `obs_space`, which the caller may keep.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Frees what the environments hold; they are not stepped afterwards."""


class Agent:
    """Something that acts, learns and can be saved.

    Every method takes and returns a `carry`, the state that belongs to one batch of parallel
    sequences: the agent object itself holds parameters and counters only.

    Args:
      obs_space: spaces of the observation keys that the agent sees (no `log/` keys).
      act_space: spaces of the action keys that the agent produces (no `reset`).
      config: whatever the agent wants.
    """

    def __init__(self, obs_space: Spaces, act_space: Spaces, config: Any):
        self.obs_space = obs_space
        self.act_space = act_space
        self.config = config

    def init_policy(self, batch_size: int) -> Any:
        """The policy's carry at the start of `batch_size` environments."""
        raise NotImplementedError

    def init_train(self, batch_size: int) -> Any:
        """The training carry at the start of `batch_size` sequences."""
        raise NotImplementedError

    def init_report(self, batch_size: int) -> Any:
        """The report's carry at the start of `batch_size` sequences."""
        raise NotImplementedError

    def policy(self, carry: Any, obs: Data, mode: str = "train") -> tuple[Any, Data, Data]:
        """Chooses actions for one step of every environment.

        Args:
          carry: from `init_policy` or the previous call.
          obs: one array [E, ...] per observation key.
          mode: "train", or "eval" for episodes that nothing is learned from.

        Returns:
          The new carry; one array [E, ...] per action key; and extra outputs [E, ...] that are
          stored in the replay next to the step.
        """
        raise NotImplementedError

    def train(self, carry: Any, data: Data) -> tuple[Any, Data, Data]:
        """Makes one update on a batch.

        Args:
          carry: from `init_train` or the previous call.
          data: one array [B, T, ...] per key, as drawn from `stream`.

        Returns:
          The new carry; outputs, of which `outs["replay"]`, if present, goes to `Replay.update`;
          and metrics (scalars, or arrays for histograms, images and videos), which an
          asynchronous agent may deliver late: an empty dict means that none are ready.
        """
        raise NotImplementedError

    def report(self, carry: Any, data: Data) -> tuple[Any, Data]:
        """Computes metrics and videos on a batch without learning from it."""
        raise NotImplementedError

    def stream(self, st: Iterator[Data]) -> Iterator[Data]:
        """Wraps a stream of host batches into one of batches that `train` and `report` take."""
        raise NotImplementedError

    def save_carry(self, carry: Any) -> Any:
        """A carry as a tree of dicts, lists, tuples and numpy arrays that nobody changes."""
        return carry

    def load_carry(self, data: Any, mode: str) -> Any:
        """The carry that `save_carry` returned, for `policy` or `train` as `mode` says."""
        return data

    def save(self) -> Data:
        """Everything that `load` needs to continue, as a tree of dicts, numbers and arrays."""
        raise NotImplementedError

    def load(self, data: Data, regex: str | None = None) -> None:
        """Restores what `save` returned; with `regex`, only the parameters that it matches."""
        raise NotImplementedError


class Stream:
    """An endless iterator whose position can be saved."""

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        raise NotImplementedError

    def save(self) -> Any:
        """The position, as a tree of dicts, lists, numbers, strings and arrays."""
        raise NotImplementedError

    def load(self, data: Any) -> None:
        """Continues from a saved position."""
        raise NotImplementedError


def _nothing() -> None:
    pass


class Deferred(NamedTuple):
    """What a part of a checkpoint saves, and work that is left to the thread that writes it.

    Attributes:
      tree: what `load` takes.
      write: makes durable what the tree refers to; called before the checkpoint is complete, which
        fails if this raises an error.
      done: called once the checkpoint is complete, to let go of what only older ones need.
    """

    tree: Any
    write: Callable[[], None] = _nothing
    done: Callable[[], None] = _nothing


class BaseReplay:
    """Where transitions are kept and sequences are drawn from; see `embodied.Replay`."""

    def __len__(self) -> int:
        raise NotImplementedError

    def add(self, step: Data, worker: int = 0) -> None:
        """Appends one transition of one worker; keys that start with `log/` are dropped."""
        raise NotImplementedError

    def sample(self, batch: int, mode: str = "train") -> Data:
        """Draws sequences: one array [batch, length, ...] per key."""
        raise NotImplementedError

    def update(self, data: Data) -> None:
        """Writes values and priorities back into the stored steps named by `stepid`."""
        raise NotImplementedError

    def stats(self) -> dict[str, float]:
        """Figures for the log, counted since the previous call where they are rates."""
        raise NotImplementedError

    def save(self) -> Any:
        """Makes the stored steps durable and returns what else `load` needs."""
        raise NotImplementedError

    def load(self, data: Any | None = None) -> None:
        """Brings back what `save` kept."""
        raise NotImplementedError


def agent_spaces(env_spaces: tuple[Mapping, Mapping]) -> tuple[Spaces, Spaces]:
    """What an agent sees of an environment's spaces: no `log/` observations, no `reset` action.

    Args:
      env_spaces: `(env.obs_space, env.act_space)`.
    """
    obs_space, act_space = env_spaces
    return (
        {k: v for k, v in obs_space.items() if not k.startswith("log/")},
        {k: v for k, v in act_space.items() if k != "reset"},
    )
