"""The optimizer: gradients of a loss over ninjax modules, and the chain of update rules."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ninjax as nj
import optax

from . import internal, nets

f32 = jnp.float32
i32 = jnp.int32

LEAST_SCALE = 1e-4  # of the loss in float16


class Optimizer(nj.Module):
    """Minimises a loss over the parameters of some modules.

    Args:
      modules: whose parameters are trained.
      opt: an optax gradient transformation, e.g. from `chain`.
      summary_depth: how many parts of a parameter's path name a group in the summary of
        parameter counts that is printed when the optimizer is created.
    """

    summary_depth: int = 1

    def __init__(
        self, modules: Sequence[nj.Module] | nj.Module, opt: optax.GradientTransformation
    ):
        self.modules = modules if isinstance(modules, (list, tuple)) else (modules,)
        self.opt = opt
        self.step = nj.Variable(jnp.zeros, (), i32, name="step")
        self.scaling = jnp.float16 == nets.COMPUTE_DTYPE
        if self.scaling:
            self.grad_scale = nj.Variable(jnp.array, 1e4, f32, name="grad_scale")
            self.good_steps = nj.Variable(jnp.zeros, (), i32, name="good_steps")

    def __call__(self, lossfn: Callable, *args: Any, has_aux: bool = False, **kwargs: Any) -> Any:
        """Makes one update.

        Args:
          lossfn: returns a scalar float32 loss, or `(loss, aux)` with `has_aux`.
          *args: passed to `lossfn`.
          **kwargs: passed to `lossfn`.
          has_aux: whether `lossfn` returns something besides the loss.

        Returns:
          Metrics, `opt/loss`, `opt/updates` (both as of this update), `opt/grad_norm`,
          `opt/grad_rms`, `opt/update_rms`, `opt/param_rms`, `opt/param_count`; for float16 also
          `opt/grad_scale` and `opt/grad_overflow`, after which the norm of the gradients is 0.
          With `has_aux`, a tuple of these and aux.
        """
        loss, params, grads, aux = self._gradients(lossfn, has_aux, args, kwargs)
        axes = internal.get_data_axes()
        if axes:
            loss, grads = jax.lax.pmean((loss, grads), axes)
        metrics = {}
        finite = jnp.array(True)
        if self.scaling:
            scale = self.grad_scale.read()
            loss, grads = loss / scale, jax.tree.map(lambda x: x / scale, grads)
            # At the least scale, what is not finite is none of the scale's making.
            finite = jnp.isfinite(optax.tree.norm(grads)) | (scale <= LEAST_SCALE)
            grads = nets.where(finite, grads, jax.tree.map(jnp.zeros_like, grads))
            self._adapt_scale(finite)
            metrics["grad_scale"] = scale
            metrics["grad_overflow"] = (~finite).astype(f32)
        # Not a submodule that lasts, since a tree can create its entries only once.
        state = nj.Tree(self.opt.init, params, name="state")
        before = state.read()
        updates, after = self.opt.update(grads, before, params)
        if self.scaling:
            updates = nets.where(finite, updates, jax.tree.map(jnp.zeros_like, updates))
            after = nets.where(finite, after, before)
        state.write(after)
        params = optax.apply_updates(params, updates)
        nj.context().update(params)
        self.step.write(self.step.read() + finite.astype(i32))
        metrics.update(
            loss=loss,
            updates=self.step.read(),
            grad_norm=optax.tree.norm(grads),
            grad_rms=nets.rms(grads),
            update_rms=nets.rms(updates),
            param_rms=nets.rms(params),
            param_count=jnp.array(sum(x.size for x in params.values()), f32),
        )
        metrics = {f"opt/{k}": v for k, v in metrics.items()}
        return (metrics, aux) if has_aux else metrics

    def _gradients(self, lossfn, has_aux, args, kwargs):
        """Loss, trained parameters, their gradients and aux; state written by the loss is kept.

        Unlike `nj.grad` it traces the loss only once, except while parameters are created.
        """
        context = nj.context()
        pure = nj.pure(lossfn, nested=True)
        if context.create:
            state, _ = pure(dict(context), *args, ignore=True, seed=nj.seed(), **kwargs)
            context.update({k: v for k, v in state.items() if k not in context})
            self._summarize()
        prefixes = tuple(f"{x.path}/" for x in self.modules)
        params = {k: context[k] for k in sorted(context) if k.startswith(prefixes)}
        rest = {k: v for k, v in context.items() if k not in params}

        def forward(params, rest, seed):
            state, out, _, modified, _ = pure(
                {**rest, **params}, *args, seed=seed, create=False, track=True, **kwargs
            )
            loss, aux = out if has_aux else (out, {})
            assert (loss.shape, loss.dtype) == ((), f32), (loss.shape, loss.dtype)
            return loss * scale, ({k: state[k] for k in modified}, aux)

        scale = self.grad_scale.read() if self.scaling else 1.0
        (loss, (changes, aux)), grads = jax.value_and_grad(forward, has_aux=True)(
            params, rest, nj.seed(optional=True)
        )
        context.update(changes)
        return loss, params, grads, aux

    def _adapt_scale(self, finite):
        """Halves the loss scale on overflow and doubles it after 1000 good updates."""
        keep = finite & (self.good_steps.read() < 1000)
        grow = finite & ~keep
        self.good_steps.write(jnp.where(keep, self.good_steps.read() + 1, 0))
        factor = jnp.where(grow, 2.0, jnp.where(finite, 1.0, 0.5))
        self.grad_scale.write(jnp.clip(self.grad_scale.read() * factor, LEAST_SCALE, 1e5))

    def _summarize(self):
        """Prints the number of trained parameters by group."""
        counts: dict[str, int] = {}
        for module in self.modules:
            for key, value in module.values.items():
                parts = f"{module.path}/{key}".split("/")
                group = "/".join(parts[: self.summary_depth])
                counts[group] = counts.get(group, 0) + value.size
        total = sum(counts.values())
        groups = ", ".join(f"{k} {v:,}" for k, v in sorted(counts.items()))
        print(f"Optimizer has {total:,} parameters ({groups}).")


def chain(
    lr: float = 4e-5,
    agc: float = 0.3,
    eps: float = 1e-20,
    beta1: float = 0.9,
    beta2: float = 0.999,
    momentum: bool = True,
    nesterov: bool = False,
    wd: float = 0.0,
    wdregex: str = r"/kernel$",
    schedule: str = "const",
    warmup: int = 1000,
    anneal: int = 0,
) -> optax.GradientTransformation:
    """The update rule of Dreamer: clipping, RMS scaling, momentum, weight decay, learning rate.

    Args:
      lr: learning rate after the warm-up.
      agc: greatest ratio of a tensor's gradient norm to its own norm; 0 does not clip.
      eps: added to the root of the second moment.
      beta1: decay of the first moment.
      beta2: decay of the second moment.
      momentum: whether the first moment is used.
      nesterov: whether momentum looks one step ahead.
      wd: decoupled weight decay (multiplied by the learning rate) of matching parameters.
      wdregex: which parameters decay.
      schedule: const, linear (from lr to 0.1 lr) or cosine (from lr to 0.1 lr², so nearly 0).
      warmup: updates of linear warm-up from 0.
      anneal: update at which linear and cosine end.
    """
    steps = [clip_by_agc(agc), scale_by_rms(beta2, eps)]
    if momentum:
        steps.append(scale_by_momentum(beta1, nesterov))
    if wd:
        assert not wdregex[0].isnumeric(), wdregex
        pattern = re.compile(wdregex)
        mask = lambda params: {k: bool(pattern.search(k)) for k in params}  # noqa: E731
        steps.append(optax.add_decayed_weights(wd, mask))
    steps.append(optax.scale_by_learning_rate(learning_rate(lr, schedule, warmup, anneal)))
    return optax.chain(*steps)


def learning_rate(lr: float, schedule: str, warmup: int, anneal: int) -> optax.Schedule:
    """The learning rate as a function of the update; see `chain`."""
    if schedule == "const":
        rate = optax.constant_schedule(lr)
    elif schedule == "linear":
        rate = optax.linear_schedule(lr, 0.1 * lr, anneal - warmup)
    else:
        assert schedule == "cosine", schedule
        rate = optax.cosine_decay_schedule(lr, anneal - warmup, 0.1 * lr)
    if warmup:
        ramp = optax.linear_schedule(0.0, lr, warmup)
        rate = optax.join_schedules([ramp, rate], [warmup])
    return rate


def clip_by_agc(clip: float = 0.3, pmin: float = 1e-3) -> optax.GradientTransformation:
    """Adaptive gradient clipping (Brock et al. 2021) with one norm per tensor.

    `optax.adaptive_grad_clip` takes a norm per output unit instead.

    Args:
      clip: greatest ratio of a gradient's norm to its parameter's; 0 does not clip.
      pmin: least norm that a parameter counts with.
    """

    def update(updates, state, params=None):
        def one(param, grad):
            norm = jnp.linalg.norm(grad.flatten())
            upper = clip * jnp.maximum(pmin, jnp.linalg.norm(param.flatten()))
            return grad / jnp.maximum(1.0, norm / upper)

        return (jax.tree.map(one, params, updates) if clip else updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def scale_by_rms(beta: float = 0.999, eps: float = 1e-8) -> optax.GradientTransformation:
    """Divides by the root of the bias-corrected second moment."""
    rms = optax.scale_by_rms(beta, eps, eps_in_sqrt=False, bias_correction=True)
    return _positional(rms)


def scale_by_momentum(beta: float = 0.9, nesterov: bool = False) -> optax.GradientTransformation:
    """Bias-corrected moving average of updates, or with `nesterov` the one a step ahead."""
    ema = _positional(optax.ema(beta))
    if not nesterov:
        return ema

    def update(updates, state, params=None):
        _, (count, average) = ema.update(updates, state)
        ahead = optax.ema(beta, debias=False)
        ahead, _ = ahead.update(updates, optax.EmaState(count, average))
        correct = 1 - beta ** count.astype(f32)
        return jax.tree.map(lambda x: x / correct, ahead), (count, average)

    return optax.GradientTransformation(ema.init, update)


def _positional(opt):
    """Holds a transformation's state as a plain tuple, whose entries checkpoints name 0, 1, …."""
    kind: list[type] = []

    def init(params):
        state = opt.init(params)
        kind[:] = [type(state)]
        return tuple(state)

    def update(updates, state, params=None):
        updates, state = opt.update(updates, kind[0](*state), params)
        return updates, tuple(state)

    return optax.GradientTransformation(init, update)
