"""The driver lets a policy act in environments and hands on what happens."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .base import Data
from .batch import allocate
from .errors import EnvError, SpaceError
from .parallel import ParallelEnvs
from .serial import MakeEnv, SerialEnvs

log = logging.getLogger(__name__)

Policy = Callable[..., tuple[Any, Data, Data]]


class Driver:
    """Steps E environments with a policy and calls back with every transition.

    A transition is a dict: the observation of one environment, the action that the policy chose
    on it, `reset`, and the policy's outputs. An episode of ten actions makes eleven transitions,
    since its first observation follows no action. The last one needs no action: there the action
    is zeroed and `reset` is true. The arrays are new at every step, and every environment's
    dict is the same for all callbacks.

    Args:
      make_env_fns: constructors of environments, single (`Env`) or batched (`BatchedEnv`).
      parallel: whether the environments live in processes of their own; see `ParallelEnvs`.
      timeout: seconds that a process may take to build its environments, and to step them.
      start_method: how the processes start, "spawn" or "fork".
      workers: number of processes that share the constructors; None for one each.
      restarts: how many failed processes are started anew within an hour. The episodes that
        were under way there are abandoned: `is_first` follows without `is_last`.
      skip_nonfinite: abandon an episode, too, when an observation or reward is not finite, and
        leave that step out. An episode that begins so is an error all the same.
      **policy_kwargs: handed to every call of the policy, e.g. `mode="eval"`.

    Attributes:
      length: the number of environments E.
      obs_space: spaces of the environments' observations, `log/` keys included.
      act_space: spaces of the environments' actions, `reset` included.
      nonfinite: how many episodes were abandoned since a number was not finite.

    Raises:
      EnvError: if the environments' spaces differ.
      WorkerError: if a process fails and no restart is left; the driver is closed then.
      SpaceError: if an observation or an action has a wrong key, shape or dtype, or if an
        observation is not finite.
    """

    def __init__(
        self,
        make_env_fns: Sequence[MakeEnv],
        parallel: bool = True,
        timeout: float = 300.0,
        start_method: str = "spawn",
        workers: int | None = None,
        restarts: int = 0,
        skip_nonfinite: bool = False,
        **policy_kwargs: Any,
    ):
        if not make_env_fns:
            raise EnvError("A driver needs at least one environment, but none was given.")
        self._kwargs = policy_kwargs
        self._envs = (
            ParallelEnvs(make_env_fns, workers, timeout, start_method, restarts)
            if parallel
            else SerialEnvs(make_env_fns)
        )
        self._steps = 0
        self._skip = skip_nonfinite
        self.nonfinite = 0
        self._constructors = len(make_env_fns)
        self.length = self._envs.length
        self.obs_space = self._envs.obs_space
        self.act_space = self._envs.act_space
        self._callbacks: list[Callable[[Data, int], Any]] = []
        self.reset()

    @property
    def restarts(self) -> int:
        """How many processes were started anew so far."""
        return self._envs.restarts if isinstance(self._envs, ParallelEnvs) else 0

    def reset(self, init_policy: Callable[[int], Any] | None = None) -> None:
        """Starts new episodes at the next step, whatever state the environments are in.

        Args:
          init_policy: makes the policy's carry for a number of environments.
        """
        self._carry = init_policy(self.length) if init_policy else None
        self._acts = allocate(self.act_space, self.length)
        self._acts["reset"][:] = True

    def save(self, save_carry: Callable[[Any], Any]) -> Data:
        """Returns the states of environments and policy, from which `load` goes on.

        Args:
          save_carry: turns the policy's carry into a tree of dicts, lists, tuples and arrays.
        """
        acts = {k: v.copy() for k, v in self._acts.items()}
        return {"envs": self._envs.save(), "acts": acts, "carry": save_carry(self._carry)}

    def load(self, data: Data, load_carry: Callable[[Any], Any]) -> int:
        """Goes on from what `save` returned, in as many environments as possible.

        Environments that cannot save their state, or do not come to it again, start new episodes
        at the next step; so do all of them if their number or their actions have changed.

        Args:
          data: from `save`.
          load_carry: the inverse of `save_carry`.

        Returns:
          In how many environments the episode goes on.
        """
        acts = data["acts"]
        layout = {k: (v.shape, v.dtype) for k, v in self._acts.items()}
        if layout != {k: (v.shape, v.dtype) for k, v in acts.items()} or (
            len(data["envs"]) != self._constructors
        ):
            return 0
        loaded = self._envs.load(data["envs"])
        self._carry = load_carry(data["carry"])
        self._acts = {k: v.copy() for k, v in acts.items()}
        self._acts["reset"] |= ~loaded
        return int(loaded.sum())

    def on_step(self, callback: Callable[[Data, int], Any]) -> None:
        """Registers a function to be called with every transition and its environment's index."""
        self._callbacks.append(callback)

    def __call__(self, policy: Policy, steps: int = 0, episodes: int = 0) -> None:
        """Acts until there are as many transitions and as many finished episodes as asked for.

        All environments are stepped together, so that the counts can be exceeded by E - 1.

        Args:
          policy: called as `policy(carry, obs, **policy_kwargs)` with arrays [E, ...], `log/`
            keys left out; returns the carry, actions and outputs, both numpy arrays [E, ...].
          steps: number of transitions.
          episodes: number of finished episodes.
        """
        step = episode = 0
        while step < steps or episode < episodes:
            episode += self._step(policy)
            step += self.length

    def close(self) -> None:
        """Closes the environments."""
        self._envs.close()

    def _step(self, policy: Policy) -> int:
        obs = self._envs.step(self._acts)
        visible = {k: v for k, v in obs.items() if not k.startswith("log/")}
        skipped = self._find_nonfinite(visible)
        if skipped.any():
            visible = self._blank(visible, skipped)
        self._carry, acts, outs = policy(self._carry, visible, **self._kwargs)
        last = obs["is_last"] | skipped
        self._acts = self._check_acts(acts)
        for value in self._acts.values():
            value[last] = 0
        self._acts["reset"] = last.copy()
        self._check_outs(outs)
        batch = {**obs, **self._acts, **outs}
        for index, values in enumerate(zip(*batch.values(), strict=True)):
            if skipped[index]:
                continue
            tran = dict(zip(batch, values, strict=True))
            for callback in self._callbacks:
                callback(tran, index)
        self._steps += 1
        return int((last & ~skipped).sum())

    def _find_nonfinite(self, obs: Data) -> np.ndarray:
        """Which environments [E] gave numbers that are not finite; raises if they may not."""
        found = np.zeros(self.length, bool)
        for key, value in obs.items():
            if value.dtype.kind != "f" or np.isfinite(value).all():
                continue
            rows = ~np.isfinite(value).reshape(self.length, -1).all(1)
            fatal = rows & obs["is_first"] if self._skip else rows
            index = int(np.argmax(fatal if fatal.any() else rows))
            what = (
                f"The observation {key!r} of environment {index} has at step {self._steps} the "
                f"value {value[index][~np.isfinite(value[index])][0]}"
            )
            if fatal.any():
                where = " at the start of an episode" * self._skip
                raise SpaceError(f"{what}, expected finite numbers{where}.")
            if not self.nonfinite and not found.any():
                log.warning("%s: its episode is abandoned, and later ones are counted.", what)
            found |= rows
        self.nonfinite += int(found.sum())
        return found

    @staticmethod
    def _blank(obs: Data, rows: np.ndarray) -> Data:
        """Zeros, and the start of an episode, in place of some environments' observations."""
        obs = {k: v.copy() for k, v in obs.items()}
        for value in obs.values():
            value[rows] = 0
        obs["is_first"][rows] = True
        return obs

    def _check_acts(self, acts: Data) -> Data:
        """A copy of the policy's actions in the dtypes of their spaces."""
        spaces = {k: v for k, v in self.act_space.items() if k != "reset"}
        if acts.keys() != spaces.keys():
            raise SpaceError(
                f"The policy gave the actions {sorted(acts)} where the environment takes "
                f"{sorted(spaces)}."
            )
        for key, space in spaces.items():
            if not _fits(acts[key], (self.length, *space.shape), space.dtype):
                raise SpaceError(
                    f"The policy gave for the action {key!r} {_found(acts[key])} where a numpy "
                    f"array {space.dtype.name} {(self.length, *space.shape)} is right."
                )
        return {k: acts[k].astype(v.dtype) for k, v in spaces.items()}

    def _check_outs(self, outs: Data) -> None:
        if taken := outs.keys() & (self.obs_space.keys() | self.act_space.keys()):
            raise SpaceError(
                f"The policy gave the output {min(taken)!r}, which is the name of an observation "
                "or action; outputs need names of their own."
            )
        for key, value in outs.items():
            if not isinstance(value, np.ndarray) or value.shape[:1] != (self.length,):
                raise SpaceError(
                    f"The policy gave for the output {key!r} {_found(value)} where a numpy array "
                    f"with the leading dimension {self.length} is right."
                )


def _fits(value: Any, shape: tuple[int, ...], dtype: np.dtype) -> bool:
    return (
        isinstance(value, np.ndarray)
        and value.shape == shape
        and np.can_cast(value.dtype, dtype, "same_kind")
    )


def _found(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype.name} {value.shape}"
    return f"an object of the type {type(value).__name__}"
