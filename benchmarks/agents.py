"""Agents and batches for benchmarks, on spaces that need no environment."""

from __future__ import annotations

from typing import Any

import elements
import numpy as np

from embodied.envs.adapter import flag_spaces

Space = elements.Space

# The spaces of dm_control's walker.
INPUTS = {
    "vector": {
        "orientations": Space(np.float32, (14,)),
        "height": Space(np.float32),
        "velocity": Space(np.float32, (9,)),
    },
    "image": {"image": Space(np.uint8, (64, 64, 3))},
}
ACTIONS = {"action": Space(np.float32, (6,), -1, 1)}


def make_agent(presets: list[str], inputs: str, flags: dict[str, Any]) -> Any:
    """An agent on the walker's spaces.

    Args:
      presets: names of presets, such as the size.
      inputs: "vector" or "image".
      flags: config keys and values.
    """
    from dreamerv3 import config as configs
    from dreamerv3.agent import Agent as Model

    config = configs.compose(presets, {"logdir": "/tmp/benchmark", **flags})
    keys = ("logdir", "seed", "jax", "batch_size", "batch_length", "report_length")
    shared = {key: config[key] for key in (*keys, "replay_context")}
    make: Any = Model  # calling a model gives the agent that hosts it
    return make(
        {**INPUTS[inputs], **flag_spaces()},
        ACTIONS,
        elements.Config(**config.agent, **shared, priosignal=""),
    )


def make_batch(agent: Any, seed: int = 0) -> dict[str, np.ndarray]:
    """A random batch [B, context + T, ...] for training, without its seed."""
    rng = np.random.default_rng(seed)
    config = agent.config
    lead = (config.batch_size, config.batch_length + config.replay_context)
    spaces = {**agent.obs_space, **agent.act_space, **agent.model.ext_space}
    batch = {k: draw(v, lead, rng) for k, v in spaces.items()}
    for key in ("is_first", "is_last", "is_terminal"):
        batch[key] = np.zeros(lead, bool)
    batch["is_first"][:, 0] = True
    batch["consec"] = np.zeros(lead, np.int32)
    return batch


def make_obs(agent: Any, envs: int) -> dict[str, np.ndarray]:
    """Random observations [E, ...] within episodes."""
    rng = np.random.default_rng(0)
    obs = {k: draw(v, (envs,), rng) for k, v in agent.obs_space.items()}
    return {**obs, **{k: np.zeros(envs, bool) for k in ("is_first", "is_last", "is_terminal")}}


def draw(space: Space, lead: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Random values [*lead, *shape] of a space."""
    shape = (*lead, *space.shape)
    if space.dtype == bool:
        return rng.random(shape) < 0.5
    if space.dtype.kind in "iu":
        return rng.integers(0, 256 if space.dtype == np.uint8 else 2, shape).astype(space.dtype)
    return rng.normal(size=shape).astype(space.dtype)
