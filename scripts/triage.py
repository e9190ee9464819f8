"""Repeats an update that was not finite, and names where the first such number appears.

python scripts/triage.py ~/logdir/run/nonfinite-000012345.safetensors

It runs on the CPU, with the parameters, batch, carry and seed of the file and the config of the
folder that it lies in; no environment is needed.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ninjax as nj
import numpy as np
import optax

from dreamerv3.config import compose
from dreamerv3.factory import make_learner
from dreamerv3.logdir import load_run_config
from embodied.core.errors import EmbodiedError
from embodied.jax import nets, nonfinite


@dataclasses.dataclass
class Findings:
    """What an update computed.

    Attributes:
      layers: whether all that a layer gave is finite, by path, in the order of the computation.
      losses: the mean of every loss, by name.
      grads: gradients by parameter.
    """

    layers: dict[str, bool]
    losses: dict[str, float]
    grads: dict[str, jax.Array]


def main(argv: Sequence[str] | None = None) -> None:
    """Repeats the update of the file that the arguments name and prints what it finds."""
    args = parse_args(argv)
    file = Path(args.file).expanduser()
    content = nonfinite.read(file)
    config = load_run_config(file.parent)
    options = {**compose().jax, "platform": "cpu", "compute_dtype": args.dtype}
    config = config.update({"jax": {**options, "enable_policy": False}})
    agent = make_learner(config, content["spaces"]["obs"], content["spaces"]["act"])
    agent.load({"params": content["params"]}, regex=".*")
    params = {k: jnp.asarray(v) for k, v in agent.params.items()}
    for line in report(agent.model, params, content, args.dtype):
        print(line)


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description="Finds where an update is not finite.")
    parser.add_argument("file", help="nonfinite-NUMBER.safetensors in a run's folder")
    dtypes = ("float32", "bfloat16", "float16")
    parser.add_argument("--dtype", choices=dtypes, default="float32", help="of the activations")
    return parser.parse_args(argv)


def report(model: Any, params: dict, content: dict, dtype: str) -> Iterator[str]:
    """Repeats an update and yields lines that say where it is not finite.

    Args:
      model: the agent's model.
      params: all parameters.
      content: of the file, as `nonfinite.read` gives it.
      dtype: name of the activations' type.
    """
    yield f"The update on batch {content['number']}, run in {content['compute_dtype']}, gave:"
    yield f"  {nonfinite.describe(content['metrics'])}"
    found = make_repeat(model)(params, content)
    sources = {
        "Batch": _bad_arrays(content["batch"]),
        "Carry": _bad_arrays(_flatten(content["carry"])),
        "Parameters": _bad_arrays(content["params"]),
        "Layers": [k for k, finite in found.layers.items() if not finite],
        "Losses": [f"{k} {v}" for k, v in found.losses.items() if not np.isfinite(v)],
        "Gradients": _bad_grads(found),
    }
    if not sources["Losses"] and sources["Gradients"]:
        sources["Gradients of the loss"] = _bad_losses(model, params, content, found)
    yield f"Repeated in {dtype}, in the order of the computation, not finite are:"
    for name, items in sources.items():
        yield f"  {name}: {_join(items)}"
    yield _verdict(sources, dtype)


@functools.cache
def make_repeat(model: Any, only: str = "") -> Callable[[dict, dict], Findings]:
    """Compiles a model's update so that it tells about its layers, losses and gradients.

    Args:
      model: the agent's model.
      only: the name of the one loss that is trained on; by default all are.

    Returns:
      A function of all parameters, which stay as they are, and of the content of a file.
    """
    # Both in the order of tracing, which is that of the computation.
    layers: dict[str, bool] = {}
    names: list[str] = []
    rule, whole = model.opt.opt, model.loss

    def note(path, finite):
        layers[path] = layers[path] and bool(finite)

    def observe(x, path):
        layers[path] = True
        jax.debug.callback(functools.partial(note, path), jnp.isfinite(x).all())
        return x

    def loss(*args, **kwargs):
        total, aux = whole(*args, **kwargs)
        terms = aux[2]["losses"]
        names[:] = terms
        return (terms[only].mean() * model.scales[only] if only else total), aux

    @jax.jit
    def compute(params, seed, carry, data):
        found = {}

        def update(grads, state, params):
            found.update(grads)
            return rule.update(grads, state, params)

        nets.LAYER_CALLBACK = observe
        model.opt.opt = optax.GradientTransformation(rule.init, update)
        model.loss = loss
        try:
            _, (_, _, metrics) = nj.pure(model.train)(params, carry, data, seed=seed)
        finally:
            nets.LAYER_CALLBACK, model.opt.opt, model.loss = None, rule, whole
        prefix = "loss/"
        losses = {k.removeprefix(prefix): v for k, v in metrics.items() if k.startswith(prefix)}
        return losses, found

    def call(params, content):
        layers.update(dict.fromkeys(layers, True))
        losses, grads = compute(params, content["seed"], content["carry"], content["batch"])
        jax.effects_barrier()
        return Findings(dict(layers), {k: float(losses[k]) for k in names}, grads)

    return call


def _bad_losses(model: Any, params: dict, content: dict, found: Findings) -> list[str]:
    """The losses of which each alone has a gradient that is not finite."""
    return [x for x in found.losses if _bad_grads(make_repeat(model, x)(params, content))]


def _bad_grads(found: Findings) -> list[str]:
    """Modules with gradients that are not finite, from the end of the computation backwards."""
    bad = {k.rpartition("/")[0] for k, v in found.grads.items() if not jnp.isfinite(v).all()}
    order = [*found.layers, *sorted(bad - found.layers.keys())]
    return [k for k in reversed(order) if k in bad]


def _bad_arrays(arrays: dict) -> list[str]:
    found = []
    for key, value in arrays.items():
        if jnp.issubdtype(value.dtype, jnp.floating) and not np.isfinite(value).all():
            places = np.argwhere(~np.isfinite(value))
            at = f" at {places[0].tolist()}" if value.ndim else ""
            found.append(f"{key} ({len(places):,} of {value.size:,}, the first{at})")
    return found


def _flatten(tree: Any) -> dict:
    leaves, _ = jax.tree.flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): x for path, x in leaves}


def _join(items: list[str]) -> str:
    more = f" and {len(items) - 6} more" if len(items) > 6 else ""
    return ", ".join(items[:6]) + more if items else "none"


def _verdict(sources: dict[str, list[str]], dtype: str) -> str:
    first = [f"{name.lower()}: {items[0]}" for name, items in sources.items() if items]
    if not first:
        return (
            f"Everything is finite in {dtype}: the range of the type that the run computed in may "
            "be the cause, try it as --dtype."
        )
    return f"The first of each: {'; '.join(first)}."


if __name__ == "__main__":
    try:
        main()
    except EmbodiedError as e:
        print(f"Error: {e}", file=sys.stderr)
        sys.exit(2)
