"""The base class of models: pure functions of ninjax state, hosted by a wrapper.

class MyAgent(embodied.jax.Agent): ...           # the model
agent = MyAgent(obs_space, act_space, config)    # the wrapper: an embodied.Agent
agent.model                                      # the instance of MyAgent
"""

from __future__ import annotations

from typing import Any

from ..core.base import Data, Spaces
from . import internal, transform
from .wrapper import Wrapper


class Agent:
    """Base class of models; calling a subclass gives the `Wrapper` around the model.

    A model computes and holds ninjax modules, but no arrays. Its methods run inside of compiled
    functions: they read and write parameters through the modules and draw seeds by `nj.seed()`.
    The modules must be created in `__init__`, and every parameter must be used by `train` or
    `policy`. Carries, and the outputs of `train`, are trees of arrays whose first axis is B.

    Args:
      obs_space: spaces of the observation keys (no `log/` keys).
      act_space: spaces of the action keys (no `reset`).
      config: with `jax`, `seed`, `batch_size`, `batch_length`, `report_length`,
        `replay_context` and `logdir`.
    """

    def __new__(cls, obs_space: Spaces, act_space: Spaces, config: Any) -> Any:
        """Constructs the model and the wrapper around it, and returns the wrapper."""
        # Python calls `__init__` only on what is an instance of the class, so that it has to be
        # called here. JAX starts first, since models may compute when they are constructed.
        options = internal.setup(**config.jax)
        model = super().__new__(cls)
        cls.__init__(model, obs_space, act_space, config)
        return Wrapper(model, obs_space, act_space, config, options)

    def __init__(self, obs_space: Spaces, act_space: Spaces, config: Any):
        self.obs_space = obs_space
        self.act_space = act_space
        self.config = config

    @property
    def policy_keys(self) -> str:
        """Regex of the parameters that the policy needs; by default all."""
        return ".*"

    @property
    def param_rules(self) -> transform.Rules:
        """How parameters are split over the mesh; by default they are not."""
        return transform.REPLICATE

    @property
    def act_rules(self) -> transform.Rules:
        """How layers' outputs are split, by the layers' paths; empty leaves it to the compiler."""
        return ()

    @property
    def ext_space(self) -> Spaces:
        """Spaces of what `train` and `report` take besides observations and actions."""
        return {}

    def init_policy(self, batch_size: int) -> Any:
        """The carry of `policy` for `batch_size` environments that start."""
        raise NotImplementedError

    def init_train(self, batch_size: int) -> Any:
        """The carry of `train` for `batch_size` sequences that start."""
        raise NotImplementedError

    def init_report(self, batch_size: int) -> Any:
        """The carry of `report` for `batch_size` sequences that start."""
        raise NotImplementedError

    def policy(self, carry: Any, obs: Data, mode: str) -> tuple[Any, Data, Data]:
        """Chooses actions; must not write parameters.

        Returns:
          The carry; actions [E, ...]; outputs [E, ...] for the replay, of which `finite`, a dict
          of bool [E], is taken off and checked.
        """
        raise NotImplementedError

    def train(self, carry: Any, data: Data) -> tuple[Any, Data, Data]:
        """Makes one update on a batch [B, T, ...].

        Returns:
          The carry; outputs [B, ...], of which `replay` goes to the replay; metrics. If one
          called `loss` or `grad_norm`, below any prefix, is not finite, then nothing changes: not
          the parameters, nor the carry, nor the replay.
        """
        raise NotImplementedError

    def report(self, carry: Any, data: Data) -> tuple[Any, Data]:
        """Computes the carry and metrics on a batch [B, T, ...]; what it writes is dropped."""
        raise NotImplementedError
