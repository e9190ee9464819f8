"""Runs of a model on stored inputs, with the inner quantities that the numbers hold.

Everything is a pure function of state and data and is compiled once per model.
"""

from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import ninjax as nj

from dreamerv3 import losses
from embodied.jax import outs

Tree = Any
Arrays = dict[str, Any]


class Draws(NamedTuple):
    """How draws are made without a seed.

    Discrete ones are the mode, except that of two classes whose logits differ by less than `tie`,
    the second one is taken. Continuous ones lie `shift` standard deviations above the mean.
    """

    shift: float = 0.0
    tie: float = 0.0


class Probe:
    """Compiled functions of one model: (draws, state, *args, seed=None) -> results.

    Args:
      model: of class `models.Shifted`.
      optimised: names of the parameters that gradients are taken for.
    """

    def __init__(self, model: Any, optimised: list[str]):
        self.model, self.optimised = model, optimised
        self.loss = jax.jit(self._loss)
        self.train = jax.jit(self._train)
        self.policy = jax.jit(lambda *args, **kw: self._run(model.policy, *args, **kw)[1])
        self.report = jax.jit(lambda *args, **kw: self._run(model.report, *args, **kw)[1])

    def _run(self, fun, draws, state, *args, seed=None):
        def pred(self):
            values, indices = jax.lax.top_k(self.logits, 2)
            tie = values[..., 0] - values[..., 1] < draws.tie
            return jnp.where(tie, indices[..., 1], indices[..., 0]).astype(jnp.int32)

        self.model.shift = draws.shift
        with mock.patch.object(outs.Categorical, "pred", pred):
            return nj.pure(fun)(state, *args, seed=seed)

    def _train(self, *args, **kwargs):
        """One update: the new state, and carry, outputs and metrics."""
        state, (carry, outputs, metrics) = self._run(self.model.train, *args, **kwargs)
        return state, {"carry": carry, "outs": outputs, "metrics": metrics}

    def _loss(self, draws, state, carry, data, seed=None):
        """The loss with its parts, and its gradients by parameter."""
        params = {k: state[k] for k in self.optimised}

        def forward(params):
            found = self._run(self._parts, draws, {**state, **params}, carry, data, seed=seed)[1]
            return found["loss"], found

        (_, found), grads = jax.value_and_grad(forward, has_aux=True)(params)
        return found, grads

    def _parts(self, carry, data):
        """One evaluation of the loss as in training, and what it passes on inside."""
        model, inner = self.model, {}
        carry, obs, prevact, _ = model._split_context(carry, data)

        def imagine(act, rew, con, policy, value, slowvalue, *args, **kwargs):
            result = imag_loss(act, rew, con, policy, value, slowvalue, *args, **kwargs)
            inner["imag"] = {
                "act": act,
                "rew": rew,
                "con": con,
                "val": value.pred(),
                "slowval": slowvalue.pred(),
                "ent": {k: v.entropy() for k, v in policy.items()},
                "logpi": {k: v.logp(act[k]) for k, v in policy.items()},
                "losses": result[0],
                "ret": result[1]["ret"],
            }
            return result

        def replay(*args, **kwargs):
            result = repl_loss(*args, **kwargs)
            boot, value = kwargs["boot"], kwargs["value"]
            inner["repl"] = {"boot": boot, "val": value.pred(), "ret": result[1]["ret"]}
            return result

        imag_loss, repl_loss = losses.imag_loss, losses.repl_loss
        with (
            mock.patch.object(losses, "imag_loss", imagine),
            mock.patch.object(losses, "repl_loss", replay),
        ):
            loss, (carry, entries, found, metrics) = model.loss(carry, obs, prevact, training=True)
        return {
            "loss": loss,
            "losses": found["losses"],
            "metrics": metrics,
            "tokens": found["tokens"],
            "repfeat": found["feat"],
            "prior_logit": model.dyn.prior(found["feat"]["deter"]),
            "prevact": prevact,
            "entries": entries,
            "carry_out": carry,
            **inner,
        }


def flatten(tree: Tree) -> Arrays:
    """Leaves by path, with parts joined by slashes: `1/deter` for a tuple of dicts."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {
        "/".join(str(getattr(x, "key", getattr(x, "idx", x))) for x in k): v for k, v in leaves
    }


def replace(tree: Tree, values: Arrays) -> Tree:
    """A tree of the same structure with all leaves replaced, by their paths as in `flatten`."""
    names, structure = list(flatten(tree)), jax.tree.structure(tree)
    assert sorted(names) == sorted(values), (names, list(values))
    return jax.tree.unflatten(structure, [values[k] for k in names])
