"""Losses of the actor and the critic, in imagination and on replayed sequences.

Hafner et al. 2023, "Mastering Diverse Domains through World Models". Shapes: N sequences of T
steps; in imagination N = B·K starts and T = H + 1, the start included.
"""

import jax
import jax.numpy as jnp

from embodied.jax import outs, utils

f32 = jnp.float32
sg = jax.lax.stop_gradient

Arrays = dict[str, jax.Array]


def imag_loss(
    act: Arrays,
    rew: jax.Array,
    con: jax.Array,
    policy: dict[str, outs.Output],
    value: outs.Output,
    slowvalue: outs.Output,
    retnorm: utils.Normalize,
    valnorm: utils.Normalize,
    advnorm: utils.Normalize,
    update: bool,
    contdisc: bool = True,
    slowtar: bool = True,
    horizon: int = 333,
    lam: float = 0.95,
    actent: float = 3e-4,
    slowreg: float = 1.0,
) -> tuple[Arrays, Arrays, Arrays]:
    """Policy and value losses on imagined trajectories (eq. 5 to 7 and 11 to 12).

    Args:
      act: actions [N, T, ...] per key, discrete ones numbered from 0; the last is not used.
      rew: predicted rewards [N, T] on arrival at each state.
      con: predicted probabilities [N, T] that the episode goes on after each state.
      policy: action distributions per key, at every state.
      value: critic at every state.
      slowvalue: slow copy of the critic at every state.
      retnorm: normaliser of the returns.
      valnorm: normaliser of the critic's targets.
      advnorm: normaliser of the advantages.
      update: whether the normalisers take in the values.
      contdisc: whether `con` carries the discount already.
      slowtar: whether returns bootstrap from the slow critic.
      horizon: 1 / (1 - discount).
      lam: λ of the returns.
      actent: scale of the entropy bonus.
      slowreg: scale of the regulariser towards the slow critic.

    Returns:
      Losses `policy` and `value` [N, T-1], outputs (`ret` [N, T-1]), and metrics.
    """
    val, slowval = _denormalize(value, valnorm), _denormalize(slowvalue, valnorm)
    tarval = slowval if slowtar else val
    disc = 1 if contdisc else 1 - 1 / horizon
    weight = jnp.cumprod(disc * con, 1) / disc
    ret = lambda_return(jnp.zeros_like(con), 1 - con, rew, tarval, disc, lam)

    roffset, rscale = retnorm(ret, update)
    adv = (ret - tarval[:, :-1]) / rscale
    aoffset, ascale = advnorm(adv, update)
    adv_normed = (adv - aoffset) / ascale
    logpi = sum(v.logp(sg(act[k]))[:, :-1] for k, v in policy.items())
    ents = {k: v.entropy()[:, :-1] for k, v in policy.items()}
    policy_loss = -(logpi * sg(adv_normed) + actent * sum(ents.values()))
    value_loss, target = _value_loss(ret, value, slowvalue, valnorm, update, slowreg)
    losses = {
        "policy": sg(weight[:, :-1]) * policy_loss,
        "value": sg(weight[:, :-1]) * value_loss,
    }

    ret_normed = (ret - roffset) / rscale
    metrics = {
        "adv": adv.mean(),
        "adv_std": adv.std(),
        "adv_mag": jnp.abs(adv).mean(),
        "rew": rew.mean(),
        "con": con.mean(),
        "ret": ret_normed.mean(),
        "val": val.mean(),
        "tar": target.mean(),
        "weight": weight.mean(),
        "slowval": slowval.mean(),
        "ret_min": ret_normed.min(),
        "ret_max": ret_normed.max(),
        "ret_rate": (jnp.abs(ret_normed) >= 1.0).mean(),
    }
    for key, ent in ents.items():
        metrics[f"ent/{key}"] = ent.mean()
        bounds = outs.entropy_range(policy[key])
        if bounds:
            low, high = (x[:, :-1].mean() for x in bounds)
            # The range is empty where nothing can be chosen: one class, one standard deviation.
            metrics[f"rand/{key}"] = (ent.mean() - low) / jnp.maximum(high - low, 1e-8)
    return losses, {"ret": ret}, metrics


def repl_loss(
    last: jax.Array,
    term: jax.Array,
    rew: jax.Array,
    boot: jax.Array,
    value: outs.Output,
    slowvalue: outs.Output,
    valnorm: utils.Normalize,
    update: bool,
    slowreg: float = 1.0,
    horizon: int = 333,
    lam: float = 0.95,
) -> tuple[Arrays, Arrays]:
    """Value loss on replayed sequences.

    Args:
      last: bool [N, T], ends of episodes.
      term: bool [N, T], terminal states.
      rew: rewards [N, T] on arrival at each state.
      boot: values [N, T] to bootstrap from, such as the imagined return of every state.
      value: critic at every state.
      slowvalue: slow copy of the critic at every state.
      valnorm: normaliser of the critic's targets.
      update: whether the normaliser takes in the returns.
      slowreg: scale of the regulariser towards the slow critic.
      horizon: 1 / (1 - discount).
      lam: λ of the returns.

    Returns:
      Loss `repval` [N, T-1], zero at the ends of episodes, and outputs (`ret` [N, T-1]).
    """
    ret = lambda_return(last, term, rew, boot, 1 - 1 / horizon, lam)
    loss, _ = _value_loss(ret, value, slowvalue, valnorm, update, slowreg)
    return {"repval": (~last).astype(f32)[:, :-1] * loss}, {"ret": ret}


def lambda_return(
    last: jax.Array,
    term: jax.Array,
    rew: jax.Array,
    boot: jax.Array,
    disc: float,
    lam: float,
) -> jax.Array:
    """λ-returns R_t = r_{t+1} + γ c_{t+1} ((1 - λ_{t+1}) v_{t+1} + λ_{t+1} R_{t+1}) (eq. 5).

    Args:
      last: ends of episodes [N, T], where λ is 0: the return there is cut and bootstrapped.
      term: terminal states [N, T], where the continuation c is 0; may be probabilities.
      rew: rewards [N, T] on arrival at each state.
      boot: values v [N, T]; that of the last step starts the recursion.
      disc: discount γ.
      lam: λ.

    Returns:
      float32 [N, T-1]: the return after each state but the last.
    """
    assert last.shape == term.shape == rew.shape == boot.shape, (
        last.shape,
        term.shape,
        rew.shape,
        boot.shape,
    )
    live = (1 - term.astype(f32))[:, 1:] * disc
    cont = (1 - last.astype(f32))[:, 1:] * lam
    interm = rew[:, 1:] + (1 - cont) * live * boot[:, 1:]

    def step(ret, xs):
        interm, factor = xs
        ret = interm + factor * ret
        return ret, ret

    xs = (interm.swapaxes(0, 1), (live * cont).swapaxes(0, 1))
    _, rets = jax.lax.scan(step, boot[:, -1], xs, reverse=True)
    return rets.swapaxes(0, 1)


def _value_loss(ret, value, slowvalue, valnorm, update, slowreg):
    """Cross-entropy [N, T-1] to the returns and to the slow critic; and the normalised returns."""
    offset, scale = valnorm(ret, update)
    target = (ret - offset) / scale
    padded = jnp.concatenate([target, jnp.zeros_like(target[:, -1:])], 1)
    loss = value.loss(sg(padded)) + slowreg * value.loss(sg(slowvalue.pred()))
    return loss[:, :-1], target


def _denormalize(value, valnorm):
    offset, scale = valnorm.stats()
    return value.pred() * scale + offset
