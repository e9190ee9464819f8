"""Sections of `pure.npz` about outputs and heads."""

import elements
import jax.numpy as jnp
import numpy as np

from embodied.jax import heads, outs

from .sections import NUMBER, Section, grad, run

f32 = jnp.float32


def twohot_bins(x, other, count):
    return {"bins": heads.symexp_bins(int(count))}


def twohot(x, other, count):
    bins = heads.symexp_bins(int(count))
    logits, target = x["logits"], x["target"]
    make = lambda logits: outs.TwoHot(logits, bins)  # noqa: E731
    shape = (*x["pred_uniform_logits"].shape, int(count))
    return {
        "pred": make(logits).pred(),
        "loss": make(logits).loss(target),
        "loss_grad": grad(lambda y: make(y).loss(target), logits),
        "pred_grad": grad(lambda y: make(y).pred(), logits),
        "pred_uniform_logits": make(jnp.ones(shape, f32)).pred(),
    }


def categorical(x, other, unimix):
    make = lambda logits: outs.Categorical(logits, float(unimix))  # noqa: E731
    this, second, event = x["logits"], x["other"], x["event"]
    return {
        "mixed_logits": make(this).logits,
        "pred": make(this).pred(),
        "logp": make(this).logp(event),
        "prob": make(this).prob(event),
        "loss": make(this).loss(event),
        "entropy": make(this).entropy(),
        "kl": make(this).kl(make(second)),
        "kl_grad_self": grad(lambda y: make(y).kl(make(second)), this),
        "kl_grad_other": grad(lambda y: make(this).kl(make(y)), second),
        "entropy_grad": grad(lambda y: make(y).entropy(), this),
    }


def onehot(x, other, unimix):
    make = lambda logits: outs.OneHot(logits, float(unimix))  # noqa: E731
    logits, weight, event = x["logits"], x["weight"], x["logp_event"]
    second = other[f"categorical_unimix{unimix}/other"]
    return {
        "pred": make(logits).pred(),
        "straight_through_grad": grad(lambda y: make(y).pred() * weight, logits),
        "logp": make(logits).logp(event),
        "entropy": make(logits).entropy(),
        "kl": make(logits).kl(make(second)),
    }


def agg_onehot(x, other, unimix):
    make = lambda logits: outs.Agg(outs.OneHot(logits, float(unimix)), 1)  # noqa: E731
    inputs = other.under(f"categorical_unimix{unimix}/")
    output = make(inputs["logits"])
    return {"kl": output.kl(make(inputs["other"])), "entropy": output.entropy()}


def normal(x, other):
    output, second = outs.Normal(x["mean"], x["std"]), outs.Normal(x["mean2"], x["std2"])
    event, agg = x["event"], outs.Agg(output, 1)
    return {
        "logp": output.logp(event),
        "entropy": output.entropy(),
        "kl": output.kl(second),
        "loss": output.loss(event),
        "agg1_logp": agg.logp(event),
        "agg1_entropy": agg.entropy(),
        "agg1_prob": agg.prob(event),
    }


def head_normal(x, other, kind, scalar, low, high):
    bias = x["param/h/mean/bias"]
    space = elements.Space(np.float32, () if scalar else bias.shape)
    kw = {"minstd": float(low), "maxstd": float(high)} if kind == "bounded_normal" else {}
    output = run(lambda name: heads.Head(space, kind, **kw, name=name), x, x["x"], name="h")
    inner = output if scalar else output.output
    got = {"mean": inner.mean, "std": inner.stddev, "entropy": output.entropy()}
    got |= {"pred": output.pred()}
    got |= {"logp": output.logp(x["event"])} if "event" in x else {}
    if kw:
        got["minent"], got["maxent"] = outs.entropy_range(inner)
    return got


def head_categorical(x, other, kind):
    if "logits" not in x:
        return {}
    logits = x["logits"]
    space = elements.Space(np.int32, logits.shape[1:-1], 0, logits.shape[-1])
    output = run(lambda name: heads.Head(space, "categorical", name=name), x, x["x"], name="h")
    inner = output.output if space.shape else output
    low, high = (y.flatten()[0] for y in outs.entropy_range(inner))
    got = {"logits": inner.logits, "entropy": output.entropy(), "pred": output.pred()}
    got |= {"loss": output.loss(x["event"])} if "event" in x else {}
    # The reference stores the limits of a plain categorical as a Python int and float.
    return {**got, "minent": low.astype(jnp.int32), "maxent": high, "note_unimix_ignored": True}


def head_point(x, other, kind):
    # The inputs and parameters of head_mse are stored under head_onehot, which has no outputs.
    inputs = x if "x" in x else other.under("head_onehot/")
    bias = inputs[f"param/h/{'logit' if kind == 'binary' else 'pred'}/bias"]
    shape = () if kind == "binary" else bias.shape
    make = lambda name: heads.Head(shape, kind, name=name)  # noqa: E731
    output = run(make, inputs, inputs["x"], name="h")
    got = {"pred": output.pred()}
    got |= {"loss": output.loss(x["event"])} if "event" in x else {}
    if kind == "binary":
        got |= {"logit": output.logit, "logp": output.logp(x["event"])}
        got |= {"prob1": output.prob(jnp.ones_like(x["event"]))}
    return got


SECTIONS: dict[str, Section] = {
    r"twohot_bins(\d+)": twohot_bins,
    r"twohot(\d+)": twohot,
    f"categorical_unimix{NUMBER}": categorical,
    f"onehot_unimix{NUMBER}": onehot,
    f"agg_onehot_unimix{NUMBER}": agg_onehot,
    "normal": normal,
    f"head_(bounded_normal)_(scalar_)?{NUMBER}_{NUMBER}": head_normal,
    "head_(normal_logstd)()()()": head_normal,
    r"head_(categorical)(?:\dd)?": head_categorical,
    "head_(binary|onehot|mse|symlog_mse|huber)": head_point,
}
