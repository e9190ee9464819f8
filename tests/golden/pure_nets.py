"""Sections of `pure.npz` about functions, layers and running statistics."""

import re
from typing import Any

import elements
import jax
import jax.numpy as jnp
import ninjax as nj
import numpy as np

from embodied.jax import blocks, nets, utils

from .sections import NUMBER, Section, grad, run


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


def normalize(x, other, impl, debias, rate, limit):
    def fun(inputs):
        fields = {"rate": float(rate), "limit": float(limit), "debias": debias == "True"}
        module = utils.Normalize(impl, **fields, name="n")
        stats = [module.stats(), *(module(y, True) for y in inputs)]
        return jnp.asarray(stats)

    state, stats = nj.pure(fun)({}, x["inputs"], create=True)
    return {"stats": stats, **{f"state/{k}": v for k, v in state.items()}}


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


SECTIONS: dict[str, Section] = {
    "symlog": symlog,
    "symexp": symexp,
    "act": act,
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
