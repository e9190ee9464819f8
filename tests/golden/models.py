"""The agent's model for a set of spaces, built without the wrapper around it."""

from pathlib import Path
from typing import Any

import elements
import jax
import numpy as np

from dreamerv3 import config as configs
from dreamerv3.agent import Agent
from embodied.jax import outs

from .reference import read_json

Spaces = dict[str, elements.Space]

# The whole-agent config on top of `defaults` and `debug`.
WHOLE = {
    "batch_size": 2,
    "batch_length": 6,
    "report_length": 6,
    "jax.compute_dtype": "float32",
    r"agent\..*\.bins": 255,
    r"agent\..*\.layers": 2,
    r"agent\..*\.units": 16,
    r"agent\..*\.stoch": 4,
    r"agent\..*\.classes": 4,
    r"agent\..*\.deter": 32,
    r"agent\..*\.hidden": 16,
    r"agent\..*\.blocks": 4,
    r"agent\..*\.depth": 4,
    "agent.opt.lr": 1e-3,
    "agent.opt.warmup": 4,
    # The reference's categorical head ignores it.
    "agent.policy.unimix": 0.0,
}


class Shifted(Agent):
    """The model, whose continuous actions lie `shift` standard deviations above their mean.

    Discrete actions are drawn as usual, which without a seed is the mode.
    """

    shift: Any = 0.0

    def sample(self, policy: dict[str, outs.Output]) -> dict[str, Any]:
        actions = super().sample(policy)
        for key, output in policy.items():
            inner = output.output if isinstance(output, outs.Agg) else output
            if isinstance(inner, outs.Normal):
                actions[key] += jax.lax.stop_gradient(self.shift * inner.stddev)
        return actions


def read_spaces(path: Path) -> tuple[Spaces, Spaces]:
    """Observation and action spaces from a `<set>_spaces.json`."""
    stored = read_json(path)
    obs, act = ({k: _space(**v) for k, v in stored[kind].items()} for kind in ("obs", "act"))
    return obs, act


def _space(dtype, shape, low=None, high=None):
    # Limits have the space's dtype, as those of environments have.
    low, high = (x if x is None else np.asarray(x, dtype) for x in (low, high))
    return elements.Space(np.dtype(dtype), tuple(shape), low, high)


def make_config(*presets: str, **flags: Any) -> elements.Config:
    """The model's part of the config that presets and flags compose."""
    config = configs.compose(presets, flags)
    keys = ("batch_size", "batch_length", "report_length", "replay_context")
    return elements.Config(**config.agent, **{k: config[k] for k in keys}, priosignal="")


def make_model(
    obs_space: Spaces, act_space: Spaces, config: elements.Config, kind: type = Agent
) -> Any:
    """The pure model alone: no parameters, no devices, nothing compiled."""
    model = object.__new__(kind)
    model.__init__(obs_space, act_space, config)
    return model
