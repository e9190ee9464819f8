"""The optimizer's transformations and whole chains against the `opt` section of `pure.npz`."""

import re

import jax
import optax

from embodied.jax import opt

from .reference import Numbers
from .report import Report

# What each stored chain was built with, besides the defaults.
CHAINS = {
    "default_warmup4": {"warmup": 4},
    "const_nowarm": {"warmup": 0},
    "wd": {"wd": 0.1, "warmup": 0},
    "linear": {"schedule": "linear", "warmup": 2, "anneal": 8},
    "cosine": {"schedule": "cosine", "warmup": 2, "anneal": 8},
    "nesterov": {"nesterov": True, "warmup": 0},
}


def transformation(name: str) -> optax.GradientTransformation | None:
    """The transformation of a stored name, or None for an unknown one."""
    clip = re.fullmatch(r"agc([\d.]+)(?:_pmin([\d.]+))?", name)
    if clip:
        return opt.clip_by_agc(float(clip[1]), float(clip[2] or 1e-3))
    rms = re.fullmatch(r"rms(?:_eps([\de.-]+))?", name)
    if rms:
        return opt.scale_by_rms(0.9 if rms[1] else 0.999, float(rms[1] or 1e-20))
    momentum = re.fullmatch(r"momentum(_nesterov)?", name)
    if momentum:
        return opt.scale_by_momentum(0.9, bool(momentum[1]))
    chain = re.fullmatch(r"chain_(\w+)", name)
    if chain and chain[1] in CHAINS:
        return opt.chain(lr=1e-2, **CHAINS[chain[1]])
    return None


def compare(numbers: Numbers, report: Report, tolerance: float) -> None:
    """Feeds the stored gradients to every transformation."""
    inputs = [x for x in numbers.heads() if x == "param" or re.fullmatch(r"grad\d+", x)]
    for name in [x for x in numbers.heads() if x not in inputs]:
        rule = transformation(name)
        if rule is None:
            continue
        got = _run(rule, numbers, name.startswith("chain_"))
        report.compare(f"pure/opt/{name}", got, numbers.under(name + "/"), tolerance)


def _run(rule, numbers, whole):
    params = numbers.under("param/").read()
    state, got = rule.init(params), {}
    count = len([x for x in numbers.heads() if x.startswith("grad")])
    for i in range(count):
        grads = numbers.under(f"grad{i}/").read()
        updates, state = rule.update(grads, state, params)
        got |= {f"update{i}/{k}": v for k, v in updates.items()}
        if whole:
            params = jax.tree.map(lambda x, y: x + y, params, dict(updates))
    return got | {f"final/{k}": v for k, v in params.items()}
