"""The recurrent state-space model: what happens next, and what is probably the case now.

    deter_t = core(deter_{t-1}, stoch_{t-1}, action_{t-1})      deterministic path, a block GRU
    stoch_t ~ posterior(deter_t, tokens_t)                      when there is an observation
    stoch_t ~ prior(deter_t)                                    when imagining

Hafner et al. 2023, "Mastering Diverse Domains through World Models". Shapes: B batch, T time,
D deterministic size, S stochastic variables, C classes.
"""

import math
from collections.abc import Callable
from typing import Any

import elements
import jax
import jax.numpy as jnp
import ninjax as nj
import numpy as np

from embodied.core.errors import ConfigError
from embodied.jax import nets, outs, utils
from embodied.jax.blocks import DictConcat

from .decoder import Decoder
from .encoder import Encoder

__all__ = ["RSSM", "Decoder", "Encoder"]

f32 = jnp.float32
sg = jax.lax.stop_gradient

Carry = dict[str, jax.Array]
Tree = Any


class RSSM(nj.Module):
    """Recurrent state-space model with categorical states and a block-diagonal GRU.

    Its carry and entries are `{deter [B, D], stoch [B, S, C]}`, its features also have
    `logit [B, S, C]`; time comes second where there is time.

    Args:
      deter, hidden, stoch, classes, blocks: sizes D, H, S, C and the number of GRU blocks.
      unimix: share of uniform mixed into every categorical.
      imglayers, obslayers, dynlayers: hidden layers of prior, posterior and core.
      absolute: whether the posterior sees only the tokens.
      free_nats: KL below this is not minimised.
    """

    deter: int = 4096
    hidden: int = 2048
    stoch: int = 32
    classes: int = 32
    norm: str = "rms"
    act: str = "silu"
    unimix: float = 0.01
    outscale: float = 1.0
    winit: str = "trunc_normal_in"
    imglayers: int = 2
    obslayers: int = 1
    dynlayers: int = 1
    absolute: bool = False
    blocks: int = 8
    free_nats: float = 1.0

    def __init__(self, act_space: dict[str, elements.Space]):
        if self.deter % self.blocks:
            raise ConfigError(
                f"rssm.deter is {self.deter}, which rssm.blocks {self.blocks} does not divide: "
                "choose a multiple."
            )
        self.act_space = act_space
        self.actions = DictConcat(act_space, 1)

    @property
    def entry_space(self) -> dict[str, elements.Space]:
        """What the replay stores of every step, so that a sequence can start in the middle."""
        return {
            "deter": elements.Space(np.float32, self.deter),
            "stoch": elements.Space(np.float32, (self.stoch, self.classes)),
        }

    def initial(self, batch_size: int) -> Carry:
        """Zeros: the state before the first step of an episode."""
        return nets.cast(
            {
                "deter": jnp.zeros((batch_size, self.deter), f32),
                "stoch": jnp.zeros((batch_size, self.stoch, self.classes), f32),
            }
        )

    def truncate(self, entries: Carry) -> Carry:
        """The carry after the last of the entries [B, T, ...]."""
        return nets.cast({k: entries[k][:, -1] for k in self.entry_space})

    def starts(self, entries: Carry, count: int) -> Carry:
        """Carries [B·count, ...] at the last `count` entries of every sequence, B before count."""
        return {k: v[:, -count:].reshape((-1, *v.shape[2:])) for k, v in entries.items()}

    def observe(
        self,
        carry: Carry,
        tokens: jax.Array,
        action: dict[str, jax.Array],
        reset: jax.Array,
        training: bool,
        single: bool = False,
    ) -> tuple[Carry, Carry, Carry]:
        """Filters observations into states.

        Args:
          carry: state before the first step.
          tokens: encoded observations [B, T, ...].
          action: the action before each observation, [B, T, ...] per key.
          reset: bool [B, T], true where an episode starts: state and action are zeroed there.
          training: unused; the RSSM does the same in training and evaluation.
          single: whether there is no time axis.

        Returns:
          Last carry, entries and features.
        """
        del training
        carry, tokens = nets.cast((carry, tokens))
        # Actions do not depend on the state, so all steps' projections are one product.
        action = self._embed_action(nets.mask(self.actions(action), ~reset))
        if single:
            return self._observe(carry, (tokens, action, reset))

        def step(carry, xs):
            carry, entry, feat = self._observe(carry, xs)
            return carry, (entry, feat)

        carry, (entries, feat) = utils.scan(step, carry, (tokens, action, reset), axis=1)
        return carry, entries, feat

    def imagine(
        self, carry: Carry, policy: Callable | dict[str, jax.Array], length: int, training: bool
    ) -> tuple[Carry, Carry, dict[str, jax.Array]]:
        """Rolls the prior out.

        Args:
          carry: state to start from.
          policy: the action of each step [B, length, ...] per key, or a function from features
            (without logits) to actions.
          length: number of steps.
          training: unused.

        Returns:
          Last carry, features after each step and the actions that led there, [B, length, ...].
        """
        del training
        carry = nets.cast(carry)
        given = None if callable(policy) else policy

        def step(carry, given):
            action = policy(sg(carry)) if callable(policy) else given
            carry, feat = self._imagine(carry, action)
            return carry, (feat, action)

        carry, (feat, action) = utils.scan(step, carry, given, length, axis=1)
        return carry, feat, action

    def loss(
        self,
        carry: Carry,
        tokens: jax.Array,
        action: dict[str, jax.Array],
        reset: jax.Array,
        training: bool,
    ) -> tuple[Carry, Carry, dict[str, jax.Array], Carry, dict[str, jax.Array]]:
        """Observes a sequence and compares posterior and prior; arguments as in `observe`.

        Returns:
          Last carry, entries, losses `dyn` and `rep` [B, T], features, and metrics.
        """
        carry, entries, feat = self.observe(carry, tokens, action, reset, training)
        prior, post = self.prior(feat["deter"]), feat["logit"]
        dyn = self.dist(sg(post)).kl(self.dist(prior))
        rep = self.dist(post).kl(self.dist(sg(prior)))
        losses = {
            "dyn": jnp.maximum(dyn, self.free_nats),
            "rep": jnp.maximum(rep, self.free_nats),
        }
        metrics = {
            "dyn_ent": self.dist(prior).entropy().mean(),
            "rep_ent": self.dist(post).entropy().mean(),
        }
        return carry, entries, losses, feat, metrics

    def core(self, deter: jax.Array, stoch: jax.Array, action: jax.Array) -> jax.Array:
        """The next deterministic state [B, D] from state and flat action [B, A]."""
        return self._core(deter, stoch, self._embed_action(action))

    def prior(self, deter: jax.Array) -> jax.Array:
        """Logits [..., S, C] of the stochastic state before the observation."""
        return self._logits("prior", deter, self.imglayers)

    def posterior(self, deter: jax.Array, tokens: jax.Array) -> jax.Array:
        """Logits [..., S, C] of the stochastic state after the observation."""
        x = tokens if self.absolute else jnp.concatenate([deter, tokens], -1)
        return self._logits("obs", x, self.obslayers)

    def dist(self, logit: jax.Array) -> outs.Output:
        """The distribution of the S variables together."""
        return outs.Agg(outs.OneHot(logit, self.unimix), 1)

    def _observe(self, carry, xs):
        tokens, action, reset = xs
        deter, stoch = nets.mask((carry["deter"], carry["stoch"]), ~reset)
        deter = self._core(deter, stoch, action)
        logit = self.posterior(deter, tokens.reshape((*deter.shape[:-1], -1)))
        carry = {"deter": deter, "stoch": self._sample(logit)}
        return carry, dict(carry), {**carry, "logit": logit}

    def _imagine(self, carry, action):
        embedding = self._embed_action(self.actions(action))
        deter = self._core(carry["deter"], carry["stoch"], embedding)
        logit = self.prior(deter)
        carry = {"deter": deter, "stoch": self._sample(logit)}
        return carry, {**carry, "logit": logit}

    def _sample(self, logit):
        return nets.cast(self.dist(logit).sample(nj.seed(optional=True)))

    def _embed_action(self, action):
        action = action / sg(jnp.maximum(1, jnp.abs(action)))
        return self._hidden("dynin2", action)

    def _core(self, deter, stoch, x2):
        x0 = self._hidden("dynin0", deter)
        x1 = self._hidden("dynin1", stoch.reshape((*stoch.shape[:-2], -1)))
        x, shared = deter, jnp.concatenate([x0, x1, x2], -1)
        kw = {"winit": self.winit}
        for i in range(self.dynlayers):
            inputs = (x, shared) if i == 0 else (x,)
            x = self.sub(f"dynhid{i}", nets.BlockLinear, self.deter, self.blocks, **kw)(*inputs)
            x = nets.act(self.act)(self.sub(f"dynhid{i}norm", nets.Norm, self.norm)(x))
        x = self.sub("dyngru", nets.BlockLinear, 3 * self.deter, self.blocks, **kw)(x)
        gates = x.reshape((*x.shape[:-1], self.blocks, 3, -1))
        reset, cand, update = (
            gates[..., i, :].reshape((*x.shape[:-1], self.deter)) for i in range(3)
        )
        cand = jnp.tanh(jax.nn.sigmoid(reset) * cand)
        update = jax.nn.sigmoid(update - 1)
        return update * cand + (1 - update) * deter

    def _hidden(self, name, x):
        x = self.sub(name, nets.Linear, self.hidden, winit=self.winit)(x)
        return nets.act(self.act)(self.sub(f"{name}norm", nets.Norm, self.norm)(x))

    def _logits(self, name, x, layers):
        for i in range(layers):
            x = self._hidden(f"{name}{i}", x)
        kw = {"winit": self.winit, "outscale": self.outscale}
        shape = (self.stoch, self.classes)
        return self.sub(f"{name}logit", nets.Linear, shape, **kw)(x)


def feat2tensor(feat: Carry) -> jax.Array:
    """The features that heads see, [..., D + S·C]: deter, then flat stoch."""
    stoch = feat["stoch"]
    flat = stoch.reshape((*stoch.shape[:-2], math.prod(stoch.shape[-2:])))
    return jnp.concatenate([nets.cast(feat["deter"]), nets.cast(flat)], -1)
