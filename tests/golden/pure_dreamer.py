"""Sections of `pure.npz` that belong to the `dreamerv3` package."""

from typing import Any

import elements
import jax.numpy as jnp
import ninjax as nj
import numpy as np

from dreamerv3 import losses, rssm

from .sections import Section

f32 = jnp.float32


def _call(fun, x, *args):
    """Runs a function that builds the module `m`, with the section's parameters."""
    return nj.pure(fun)(x.under("param/").read(), *args)[1]


def rssm_kl(x, other):
    def fun(post, prior):
        module = rssm.RSSM({}, stoch=post.shape[-2], classes=post.shape[-1], name="m")
        return module.dist(post).kl(module.dist(prior))

    kl = nj.pure(fun)({}, x["post"], x["prior"])[1]
    return {"kl": kl, "clipped": jnp.maximum(kl, 1)}


def lambda_return(x, other, kind):
    last, term, rew, boot = (x[k] for k in ("last", "term", "rew", "boot"))
    # The values are an argument that the reference does not use.
    x["val"]
    return {"ret": losses.lambda_return(last, term, rew, boot, float(x["disc"]), float(x["lam"]))}


def rssm_core(x, other, layers):
    deter, stoch = x["deter"], x["stoch"]
    fields = {
        "deter": deter.shape[-1],
        "hidden": x["param/m/dynin0/bias"].shape[0],
        "stoch": stoch.shape[-2],
        "classes": stoch.shape[-1],
        "blocks": x["param/m/dyngru/kernel"].shape[0],
        "dynlayers": int(layers),
    }
    act_space = {"action": elements.Space(np.float32, x["action"].shape[1:])}

    def fun(*args):
        return rssm.RSSM(act_space, **fields, name="m").core(*args)

    return {"y": _call(fun, x, deter, stoch, x["action"])}


FIELDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "strided": {"strided": True},
    "outer": {"outer": True},
    "layernorm": {"norm": "layer"},
}
SIZES: dict[str, Any] = {"depth": 2, "mults": (1, 2, 2, 4), "layers": 2, "units": 8}


def _spaces(x):
    shapes = {k: x[k].shape[2:] for k in ("image", "vec")}
    return {
        "image": elements.Space(np.uint8, shapes["image"]),
        "vec": elements.Space(np.float32, shapes["vec"]),
    }


def encoder(x, other, kind):
    spaces = _spaces(x)
    obs = {k: x[k] for k in spaces}

    def fun(obs, reset):
        module = rssm.Encoder(spaces, **SIZES, **FIELDS[kind], name="m")
        return module({}, obs, reset, training=False)[2]

    return {"y": _call(fun, x, obs, np.zeros(obs["vec"].shape[:2], bool))}


def decoder(x, other, kind, bspace):
    spaces = _spaces(x)
    fields = {**SIZES, **FIELDS[kind], "bspace": int(bspace)}

    def fun(feat, reset):
        module = rssm.Decoder(spaces, **fields, name="m")
        return {k: v.pred() for k, v in module({}, feat, reset, training=False)[2].items()}

    feat = {k: x[k] for k in ("deter", "stoch")}
    return _call(fun, x, feat, np.zeros(feat["deter"].shape[:2], bool))


SECTIONS: dict[str, Section] = {
    "rssm_kl": rssm_kl,
    r"lambda_return(\w+)": lambda_return,
    r"rssm_core_dynlayers(\d+)": rssm_core,
    rf"encoder_({'|'.join(FIELDS)})": encoder,
    rf"decoder_({'|'.join(FIELDS)})_bspace(\d+)": decoder,
}
