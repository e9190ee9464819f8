"""Runs functions of ninjax state, compiled as a whole."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import ninjax as nj
import numpy as np


def run(fun: Callable, *args: Any, state: dict | None = None, seed: int = 0) -> tuple[dict, Any]:
    """Calls a function that may create state, and returns the state and its result."""
    pure = jax.jit(functools.partial(nj.pure(fun), seed=seed, create=True))
    return pure(dict(state or {}), *args)


def call(fun: Callable, *args: Any, state: dict | None = None, seed: int = 0) -> tuple[dict, Any]:
    """As `run`, on floats from numpy in place of initial values, which take long to compile."""
    if state is None:
        pure = functools.partial(nj.pure(fun), seed=seed, create=True)
        shapes = jax.eval_shape(pure, {}, *args)[0]
        rng = np.random.default_rng(seed)
        draw = lambda x: rng.normal(0.1, 0.5, x.shape).astype(x.dtype)  # noqa: E731
        state = jax.tree.map(draw, shapes)
    return run(fun, *args, state=state, seed=seed)
