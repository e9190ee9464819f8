"""Pure functions and single layers against `pure.npz`.

Every section of the file has a function below, found by the section's name. It reads the inputs
and returns the outputs by their names.
"""

import functools
import re
from collections.abc import Callable
from typing import Any

import elements
import jax
import jax.numpy as jnp
import ninjax as nj
import numpy as np

from embodied.jax import blocks, heads, nets, outs, utils

from . import pure_dreamer, pure_opt
from .reference import Numbers
from .report import Report, error

f32 = jnp.float32
TOLERANCE = 1e-5

# Sections whose entries do not add up terms of both signs, so that each is exact by itself; of the
# activations, those down to 1, since the tails of some are differences.
EACH = r"symlog|symexp|twohot_bins\d+|act|slow_.*"
FLOOR = {"act": 1.0}

# Stacks of layers that magnify rounding a thousandfold, by norms of two channels that nearly
# cancel. Run operation by operation as the reference was, they are equal to it where processors
# round alike; elsewhere they are held to ten times what other rounding of the inputs changes.
STACKS = r"(encoder|decoder)_.*"
ROUNDING = 6e-8


def compare(numbers: Numbers, report: Report, exact: bool = True) -> None:
    """Compares all sections; float32 must be the compute dtype.

    Args:
      numbers: of `pure.npz`.
      report: gets a line per section.
      exact: whether stacks are run operation by operation, which takes longer.
    """
    for section in numbers.heads():
        if section == "opt":
            pure_opt.compare(numbers.under("opt/"), report, TOLERANCE)
            continue
        view = numbers.under(section + "/")
        function = _find(section)
        if function is None:
            continue
        stack, tolerance = bool(re.fullmatch(STACKS, section)), TOLERANCE
        with jax.disable_jit(stack and exact):
            got = jax.jit(lambda: function(view, numbers))()  # noqa: B023
        names = [k for k in view if k in got]
        each, floor = bool(re.fullmatch(EACH, section)), FLOOR.get(section, 0.0)
        if stack:
            other = Numbers(_rounded(view)).under(view.prefix)
            with jax.disable_jit(exact):
                again = jax.jit(lambda: function(other, numbers))()  # noqa: B023
            tolerance = max(tolerance, *(10 * error(again[k], got[k]) for k in names))
        report.compare(
            f"pure/{section}", got, view, tolerance, names=names, each=each, floor=floor
        )


def _rounded(view):
    """The arrays below a view, with floats changed at random by what float32 cannot hold."""
    rng, found = np.random.default_rng(0), {}
    for key in view:
        value = view.all[view.prefix + key]
        if value.dtype == np.float32:
            value = value * (1 + ROUNDING * rng.choice([-1, 1], value.shape))
        found[view.prefix + key] = value.astype(view.all[view.prefix + key].dtype)
    return found


def _find(section: str) -> Callable[[Numbers, Numbers], dict[str, Any]] | None:
    for pattern, function in {**SECTIONS, **pure_dreamer.SECTIONS}.items():
        match = re.fullmatch(pattern, section)
        if match:
            return functools.partial(_call, function, match.groups())
    return None


def _call(function, groups, x, other):
    return function(x, other, *groups)


def run(make: Callable, x: Numbers, *args: Any, call: Callable | None = None, name: str = "m"):
    """Builds a module and calls it on arrays, with the parameters of a section."""

    def fun(*args):
        module = make(name=name)
        return call(module, *args) if call else module(*args)

    return nj.pure(fun)(x.under("param/").read(), *args)[1]


def grad(fun: Callable, *args: Any) -> Any:
    """Gradient of a sum with respect to the first argument."""
    return jax.grad(lambda *xs: fun(*xs).sum())(*args)


def symlog(x, other):
    y = x["x"]
    out = {"y": nets.symlog(y)}
    return {**out, "grad": grad(nets.symlog, y)} if "grad" in x else out


def symexp(x, other):
    return {"y": nets.symexp(x["x"])}


def act(x, other):
    inputs = {k: _swiglu_input(x["x"], x[k]) if k == "swiglu" else x["x"] for k in x if k != "x"}
    return {k: nets.act(k)(y) for k, y in inputs.items()}


def _swiglu_input(inputs, output):
    """The first numbers, in twice as many columns as the output has."""
    rows, columns = output.shape
    return inputs[: rows * 2 * columns].reshape((rows, 2 * columns))


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


def normalize(x, other, impl, debias, rate, limit):
    def fun(inputs):
        fields = {"rate": float(rate), "limit": float(limit), "debias": debias == "True"}
        module = utils.Normalize(impl, **fields, name="n")
        stats = [module.stats(), *(module(y, True) for y in inputs)]
        return jnp.asarray(stats)

    state, stats = nj.pure(fun)({}, x["inputs"], create=True)
    return {"stats": stats, **{f"state/{k}": v for k, v in state.items()}}


class Point(nj.Module):
    """One parameter without a function."""

    def __call__(self, value: Any = None) -> jax.Array:
        return self.value("p", jnp.asarray, value)


def slow(x, other, rate, every):
    trace, sources = x["trace"], x["source"].astype(np.float32)

    def fun():
        source, copy = Point(name="source"), Point(name="copy")
        source(trace[0])
        module = utils.SlowModel(copy, source=source, rate=float(rate), every=int(every))
        found = [module()]
        for value in sources:
            source.write("p", value)
            module.update()
            found.append(module())
        return jnp.stack(found)

    return {"trace": nj.pure(fun)({}, seed=0, create=True)[1]}


def norm(x, other, impl):
    return {"y": run(lambda name: nets.Norm(impl, name=name), x, x["x"])}


def linear(x, other):
    shape = x["y"].shape[1:]
    return {"y": run(lambda name: nets.Linear(shape, name=name), x, x["x"])}


def blocklinear(x, other):
    blocks = x["param/m/kernel"].shape[0]
    units = x["y"].shape[-1]
    return {"y": run(lambda name: nets.BlockLinear(units, blocks, name=name), x, x["x"])}


def conv(x, other, text):
    kernel, groups = x["param/m/kernel"].shape, x["x"].shape[-1]
    stride = re.search(r"_s(\d+)", text)
    kw = {"transp": "transp" in text, "pad": "valid" if "valid" in text else "same"}
    kw |= {"groups": groups // kernel[2]}
    size = (kernel[-1], kernel[0], int(stride[1]) if stride else 1)
    return {"y": run(lambda name: nets.Conv2D(*size, **kw, name=name), x, x["x"])}


def gru(x, other):
    make = lambda name: blocks.GRU(units=x["carry"].shape[-1], name=name)  # noqa: E731
    args = (x["carry"], x["inp"], x["reset"])
    return {"out": run(make, x, *args, call=lambda m, *xs: m(*xs, single=True)[1])}


def rope(x, other):
    y, ts = x["x"], x["ts"]
    return {
        "y": nets.rope(y),
        "y_ts": nets.rope(y, ts),
        "y_inv": nets.rope(y, inverse=True),
    }


def attention(x, other, gqa):
    kw = {"heads": 4}
    kw |= {"kv_heads": 2, "qknorm": "rms"} if gqa else {}
    make = lambda name: blocks.Attention(**kw, name=name)  # noqa: E731
    return {"y": run(make, x, x["x"], x["mask"])}


def transformer(x, other, glu):
    layers = len({k.split("/")[2] for k in x if k.startswith("param/m/layer")})
    kw = {"units": x["x"].shape[-1], "layers": layers, "heads": 4, "glu": bool(glu)}
    make = lambda name: blocks.Transformer(**kw, name=name)  # noqa: E731
    return {"y": run(make, x, x["x"], x["mask"])}


def mlp(x, other):
    units = x["y"].shape[-1]
    return {"y": run(lambda name: nets.MLP(2, units, name=name), x, x["x"])}


def embed(x, other):
    *shape, classes, units = x["param/m/table"].shape
    return {"y": run(lambda name: nets.Embed(classes, units, shape, name=name), x, x["x"])}


def dictconcat(x, other):
    # The number of classes is not stored: here it is the least that fits, and it must fill y.
    names = ("mat", "scal", "tok", "vec")
    inputs = {k: x[k] for k in names}
    spaces = {k: elements.Space(np.float32, v.shape[1:]) for k, v in inputs.items()}
    for key in ("mat", "tok"):
        shape, high = inputs[key].shape[1:], int(inputs[key].max()) + 1
        spaces[key] = elements.Space(np.int32, shape, 0, high)
    return {"y": blocks.DictConcat(spaces, 1, nets.symlog)(inputs)}


NUMBER = r"([\d.e-]+)"
SECTIONS: dict[str, Callable] = {
    "symlog": symlog,
    "symexp": symexp,
    "act": act,
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
    f"normalize_([a-z]+)_debias(True|False)_rate{NUMBER}_limit{NUMBER}": normalize,
    rf"slow_rate{NUMBER}_every(\d+)": slow,
    r"norm_(\w+)": norm,
    "linear": linear,
    "blocklinear": blocklinear,
    r"conv_(\w+)": conv,
    "gru": gru,
    "rope": rope,
    "attention(_gqa)?": attention,
    "transformer(_glu)?": transformer,
    "mlp": mlp,
    "embed": embed,
    "dictconcat": dictconcat,
}
