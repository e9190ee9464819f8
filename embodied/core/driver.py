"""The driver lets a policy act in environments and hands on what happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .base import Data
from .batch import allocate
from .errors import SpaceError
from .worker import MakeEnv, ParallelEnvs, SerialEnvs

Policy = Callable[..., tuple[Any, Data, Data]]


class Driver:
    """Steps E environments with a policy and calls back with every transition.

    A transition is a dict: the observation of one environment, the action that the policy chose
    on it, `reset`, and the policy's outputs. An episode of ten actions makes eleven transitions,
    since its first observation follows no action. The last one needs no action: there the action
    is zeroed and `reset` is true. The arrays are new at every step and belong to the callee.

    Args:
      make_env_fns: one constructor per environment.
      parallel: whether every environment has a process of its own.
      timeout: seconds that a constructor or a step may take in a process.
      start_method: how the processes start, "spawn" or "fork".
      **policy_kwargs: handed to every call of the policy, e.g. `mode="eval"`.

    Attributes:
      length: the number of environments E.
      obs_space: spaces of the environments' observations, `log/` keys included.
      act_space: spaces of the environments' actions, `reset` included.

    Raises:
      EnvError: if the environments' spaces differ.
      WorkerError: if an environment fails in its process; the driver is closed then.
      SpaceError: if an observation or an action has a wrong key, shape or dtype.
    """

    def __init__(
        self,
        make_env_fns: Sequence[MakeEnv],
        parallel: bool = True,
        timeout: float = 300.0,
        start_method: str = "spawn",
        **policy_kwargs: Any,
    ):
        self.length = len(make_env_fns)
        self._kwargs = policy_kwargs
        self._envs = (
            ParallelEnvs(make_env_fns, timeout, start_method)
            if parallel
            else SerialEnvs(make_env_fns)
        )
        self.obs_space = self._envs.obs_space
        self.act_space = self._envs.act_space
        self._callbacks: list[Callable[[Data, int], Any]] = []
        self.reset()

    def reset(self, init_policy: Callable[[int], Any] | None = None) -> None:
        """Starts new episodes at the next step, whatever state the environments are in.

        Args:
          init_policy: makes the policy's carry for a number of environments.
        """
        self._carry = init_policy(self.length) if init_policy else None
        self._acts = allocate(self.act_space, self.length)
        self._acts["reset"][:] = True

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
        self._carry, acts, outs = policy(self._carry, visible, **self._kwargs)
        last = obs["is_last"]
        self._acts = self._check_acts(acts)
        for value in self._acts.values():
            value[last] = 0
        self._acts["reset"] = last.copy()
        self._check_outs(outs)
        batch = {**obs, **self._acts, **outs}
        for index in range(self.length):
            for callback in self._callbacks:
                callback({k: v[index] for k, v in batch.items()}, index)
        return int(last.sum())

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
