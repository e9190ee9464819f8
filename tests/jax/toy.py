"""A tiny agent for the tests of the wrapper: recurrent features, linear heads, Adam."""

import elements
import jax
import jax.numpy as jnp
import ninjax as nj
import numpy as np
import optax
from jax.sharding import PartitionSpec as P

import embodied.jax
from embodied.core.base import Stream
from embodied.jax import internal

UNITS = 8

OBS_SPACE = {
    "vector": elements.Space(np.float32, (4,)),
    "image": elements.Space(np.uint8, (2, 2, 3)),
    "reward": elements.Space(np.float32),
    "is_first": elements.Space(bool),
    "is_last": elements.Space(bool),
    "is_terminal": elements.Space(bool),
}
ACT_SPACE = {
    "move": elements.Space(np.float32, (2,), -1, 1),
    "button": elements.Space(np.int32, (), 0, 3),
}
EXT_SPACE = {
    "consec": elements.Space(np.int32),
    "stepid": elements.Space(np.uint8, (20,)),
}


class Linear(nj.Module):
    units: int

    def __call__(self, x):
        shape = (x.shape[-1], self.units)
        kernel = self.value("kernel", lambda: 0.3 * jax.random.normal(nj.seed(), shape))
        return x @ kernel + self.value("bias", jnp.zeros, (self.units,))


class Net(nj.Module):
    """Features of the observations so far, and linear predictions from them."""

    def features(self, carry, obs):
        image = obs["image"].reshape((*obs["image"].shape[:-3], -1)) / 255 - 0.5
        x = jnp.concatenate([obs["vector"], image], -1)
        carry = jnp.where(obs["is_first"][..., None], 0.0, carry)
        both = jnp.concatenate([carry, x], -1)
        return jnp.tanh(self.sub("core", Linear, units=UNITS)(both))

    def scan(self, carry, data):
        def step(carry, x):
            carry = self.features(carry, x)
            return carry, carry

        keys = ("vector", "image", "is_first")
        carry, feats = nj.scan(step, carry, {k: data[k] for k in keys}, axis=1)
        return carry, feats, self.sub("head", Linear, units=4)(feats)


class Optimizer(nj.Module):
    """Adam on the modules whose paths start with one of the targets."""

    def __call__(self, loss, targets, *args):
        loss, params, grads, aux = nj.grad(loss, targets, has_aux=True)(*args)
        if axes := internal.get_data_axes():
            loss, grads = jax.lax.pmean((loss, grads), axes)
        opt = optax.adam(1e-2)
        state = self.sub("state", nj.Tree, opt.init, params)
        updates, new = opt.update(grads, state.read())
        state.write(new)
        nj.context().update(optax.apply_updates(params, updates))
        return loss, aux


class Toy(embodied.jax.Agent):
    policy_keys = "^(net|pol)/"
    param_rules = ((r"core/kernel$", P(None, "f")), (".*", P()))
    # The least random draw that makes a repeated seed visible in metrics and parameters.
    noise = 0.0

    def __init__(self, obs_space, act_space, config):
        super().__init__(obs_space, act_space, config)
        self.net = Net(name="net")
        self.pol = Linear(units=5, name="pol")
        self.opt = Optimizer(name="opt")
        self.noise = config.noise

    @property
    def ext_space(self):
        return EXT_SPACE

    def init_policy(self, batch_size):
        return {"hidden": jnp.zeros((batch_size, UNITS))}

    def init_train(self, batch_size):
        return self.init_policy(batch_size)

    def init_report(self, batch_size):
        return self.init_policy(batch_size)

    def policy(self, carry, obs, mode):
        hidden = self.net.features(carry["hidden"], obs)
        out = self.pol(hidden)
        move, logits = out[..., :2], out[..., 2:]
        if mode == "train":
            move = move + jax.random.normal(nj.seed(), move.shape)
            button = jax.random.categorical(nj.seed(), logits)
        else:
            button = jnp.argmax(logits, -1)
        finite = {"hidden": jnp.isfinite(hidden).all(-1)}
        acts = {"move": jnp.tanh(move), "button": button}
        return {"hidden": hidden}, acts, {"hidden": hidden, "finite": finite}

    def train(self, carry, data):
        def loss(carry, data):
            carry, feats, pred = self.net.scan(carry, data)
            pred = pred + self.noise * jax.random.normal(nj.seed(), pred.shape)
            acts = self.pol(feats)[..., :2]
            value = jnp.square(pred - data["vector"]).mean()
            value += jnp.square(acts - data["move"]).mean()
            return value, (carry, feats)

        value, (carry, feats) = self.opt(loss, ("net", "pol"), carry["hidden"], data)
        replay = {"stepid": data["stepid"], "hidden": feats}
        metrics = {"loss": value, "rows": jnp.arange(3)}
        return {"hidden": carry}, {"replay": replay}, metrics

    def report(self, carry, data):
        carry, _, pred = self.net.scan(carry["hidden"], data)
        value = jnp.square(pred - data["vector"]).mean()
        return {"hidden": carry}, {"loss": value, "video": data["image"][:2]}


class Source(Stream):
    """Batches that depend on their number alone."""

    def __init__(self, batch=8, length=6):
        self.shape = (batch, length)
        self.number = 0

    def __next__(self):
        rng = np.random.default_rng(self.number)
        self.number += 1
        spaces = {**OBS_SPACE, **ACT_SPACE, **EXT_SPACE}
        return {k: draw(rng, space, self.shape) for k, space in spaces.items()}

    def save(self):
        return {"number": self.number}

    def load(self, data):
        self.number = data["number"]


def draw(rng, space, lead):
    shape = (*lead, *space.shape)
    if space.dtype == np.float32:
        return rng.normal(size=shape).astype(np.float32)
    high = 2 if space.dtype == bool else 3
    return rng.integers(0, high, shape).astype(space.dtype)


def make_obs(number=0, envs=4):
    rng = np.random.default_rng(number)
    return {k: draw(rng, space, (envs,)) for k, space in OBS_SPACE.items()}


def make_config(noise=0.0, seed=0, batch_size=8, **options):
    return elements.Config(
        jax={"platform": "cpu", "compilation_cache": "", **options},
        seed=seed,
        batch_size=batch_size,
        batch_length=5,
        report_length=3,
        replay_context=1,
        logdir="unused",
        noise=noise,
    )


def make_agent(**kwargs):
    return Toy(OBS_SPACE, ACT_SPACE, make_config(**kwargs))


def run_updates(agent, updates, stream=None, carry=None):
    """Returns the losses that arrived, the carry and the stream."""
    stream = stream or agent.stream(Source(agent.config.batch_size))
    carry = carry or agent.init_train(agent.config.batch_size)
    losses = []
    for _ in range(updates):
        carry, _, metrics = agent.train(carry, next(stream))
        losses += [float(metrics["loss"])] if metrics else []
    return losses, carry, stream
