"""Small models and random batches for the tests of Dreamer."""

from typing import Any

import elements
import jax
import jax.numpy as jnp
import ninjax as nj
import numpy as np

from dreamerv3 import config as configs
from dreamerv3.agent import Agent
from embodied.jax import nets

Space = elements.Space

FLAGS = {
    "reward": Space(np.float32),
    "is_first": Space(bool),
    "is_last": Space(bool),
    "is_terminal": Space(bool),
}
VECTOR = {"vector": Space(np.float32, (3,))}
DISCRETE = {"action": Space(np.int32, (), 0, 4)}
CONTINUOUS = {"action": Space(np.float32, (2,), -1, 1)}


def make_model(
    obs: dict[str, Space] = VECTOR,
    act: dict[str, Space] = DISCRETE,
    priosignal: str = "",
    **flags: Any,
) -> Agent:
    """The pure model, without the wrapper that compiles it, in float32 and the debug sizes."""
    nets.COMPUTE_DTYPE = jnp.float32
    config = configs.compose(["debug"], {"batch_size": 2, "batch_length": 6, **flags})
    keys = ("batch_size", "batch_length", "report_length", "replay_context")
    model = object.__new__(Agent)
    config = elements.Config(**config.agent, **{k: config[k] for k in keys}, priosignal=priosignal)
    Agent.__init__(model, {**obs, **FLAGS}, act, config)
    return model


def make_batch(model: Agent, length: int = 6, seed: int = 0) -> dict[str, np.ndarray]:
    """A random batch for train and report, context included, cut from the start of a sequence."""
    rng = np.random.default_rng(seed)
    lead = (model.config.batch_size, length + model.config.replay_context)
    spaces = {**model.obs_space, **model.act_space, **model.ext_space}
    batch = {k: draw(v, lead, rng) for k, v in spaces.items()}
    for key in ("is_first", "is_last", "is_terminal"):
        batch[key] = np.zeros(lead, bool)
    batch["is_first"][:, 0] = True
    batch["consec"] = np.zeros(lead, np.int32)
    return batch


def draw(space: Space, lead: tuple, rng: np.random.Generator) -> np.ndarray:
    """Random values of a space."""
    shape = (*lead, *space.shape)
    if space.dtype == bool:
        return rng.random(shape) < 0.5
    if space.discrete:
        return rng.integers(0, np.broadcast_to(space.high, shape)).astype(space.dtype)
    return rng.normal(size=shape).astype(space.dtype)


def create(model: Agent, batch: dict, seed: int = 0) -> dict[str, jax.Array]:
    """Parameters of the right names and shapes, drawn here, since compiling their making is slow.

    No head is zero, so that gradients are not.
    """

    def make(data):
        carry = model.init_train(model.config.batch_size)
        return nj.init(model.train)({}, carry, data, seed=0)

    shapes = jax.eval_shape(make, batch)
    rng = np.random.default_rng(seed)
    return {k: jnp.asarray(initial(k, x, rng), x.dtype) for k, x in shapes.items()}


def initial(key: str, x: jax.ShapeDtypeStruct, rng: np.random.Generator) -> np.ndarray:
    """A first value of a parameter: random kernels, scales of one, zeros for the rest."""
    if key.startswith("opt/") or not key.endswith(("/kernel", "/scale")):
        return np.zeros(x.shape)
    if key.endswith("/scale"):
        return np.ones(x.shape)
    return rng.normal(size=x.shape) / np.sqrt(np.prod(x.shape[:-1]))
