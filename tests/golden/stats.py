"""Initial values against `init_stats.json`: fans exactly, statistics within sampling error."""

import ast
import re
from pathlib import Path

import jax
import ninjax as nj
import numpy as np

from embodied.jax import nets

from .reference import read_json
from .report import Report

DRAWS = 12
TOLERANCE = 6.0


def compare(path: Path, report: Report) -> None:
    """Compares each distribution's statistics with those of a number of our own draws.

    The error is the deviation from the draws' mean, in units of their standard deviation.
    """
    errors, problems, unknown = {}, [], []
    for key, stored in read_json(path).items():
        match = re.fullmatch(r"([a-z_]+)_([a-z]+)_(\(.*\))", key)
        if not match:
            unknown.append(key)
            continue
        dist, fan, shape = match[1], match[2], ast.literal_eval(match[3])
        if list(nets.Initializer.fans(shape)) != stored.pop("fans"):
            problems.append(f"{key} has fans {nets.Initializer.fans(shape)}")
        draws = _draws(nets.Initializer(dist, fan), shape)
        for name, value in stored.items():
            found = np.array([STATS[name](x) for x in draws])
            off, spread = abs(value - found.mean()), found.std(ddof=1)
            errors[f"{key}/{name}"] = off / spread if off else 0.0
    unit = "deviation in standard errors"
    report.add("init_stats", len(errors), errors, TOLERANCE, problems, unit)
    report.uncompared(path.name, unknown)


STATS = {
    "std": lambda x: x.std(dtype=np.float64),
    "mean": lambda x: x.mean(dtype=np.float64),
    "min": np.min,
    "max": np.max,
}


def _draws(initializer, shape):
    seeds = np.arange(2 * DRAWS, dtype=np.uint32).reshape((DRAWS, 2))
    draw = nj.pure(lambda: initializer(shape))
    return np.asarray(jax.vmap(lambda seed: draw({}, seed=seed)[1])(seeds))
