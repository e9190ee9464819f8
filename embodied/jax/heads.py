"""Heads: from features to an output that fits a space."""

from collections.abc import Callable
from typing import Any

import elements
import jax
import jax.numpy as jnp
import ninjax as nj
import numpy as np

from ..core import spaces
from . import nets, outs
from .blocks import MLP, classes

f32 = jnp.float32

OUTPUTS = (
    "binary",
    "categorical",
    "onehot",
    "mse",
    "huber",
    "symlog_mse",
    "symexp_twohot",
    "bounded_normal",
    "normal_logstd",
)


class Head(nj.Module):
    """Linear layers that give the parameters of one output.

    Args:
      space: the space of the event, or its shape for floats.
      output: one of `OUTPUTS`, each of which is a method below.
      minstd, maxstd: limits of the standard deviation of bounded_normal.
      unimix: share of uniform mixed into categorical and onehot.
      bins: number of bins of symexp_twohot.
    """

    minstd: float = 1.0
    maxstd: float = 1.0
    unimix: float = 0.0
    bins: int = 255
    bias: bool = True
    winit: str | Callable = "trunc_normal_in"
    binit: str | Callable = "zeros"
    outscale: float = 1.0

    def __init__(self, space: elements.Space | tuple[int, ...], output: str):
        if not isinstance(space, elements.Space):
            space = elements.Space(f32, tuple(space))
        self.space, self.output = space, output
        assert output in OUTPUTS, output

    def __call__(self, x: jax.Array) -> outs.Output:
        """Maps features [..., I] to an output with events of the space's shape."""
        output = getattr(self, self.output)(nets.cast(x))
        return outs.Agg(output, len(self.space.shape)) if self.space.shape else output

    def binary(self, x: jax.Array) -> outs.Output:
        """True or false, for every entry."""
        return outs.Binary(self._linear("logit", x, self.space.shape))

    def categorical(self, x: jax.Array) -> outs.Output:
        """One class, for every entry; events are numbered from 0 (see `blocks.to_classes`)."""
        shape = (*self.space.shape, classes(self.space))
        return outs.Categorical(self._linear("logits", x, shape), self.unimix, self._existing())

    def onehot(self, x: jax.Array) -> outs.Output:
        """One class as a one-hot vector, for every entry.

        The last axis of a float space counts the classes already.
        """
        shape = self.space.shape
        shape = (*shape, classes(self.space)) if self.space.discrete else shape
        existing = self._existing() if self.space.discrete else None
        return outs.OneHot(self._linear("pred", x, shape), self.unimix, existing)

    def mse(self, x: jax.Array) -> outs.Output:
        """Squared error."""
        return outs.MSE(self._linear("pred", x, self.space.shape))

    def huber(self, x: jax.Array) -> outs.Output:
        """Smooth absolute error."""
        return outs.Huber(self._linear("pred", x, self.space.shape))

    def symlog_mse(self, x: jax.Array) -> outs.Output:
        """Squared error in symlog space, where predictions stay."""
        return outs.MSE(self._linear("pred", x, self.space.shape), nets.symlog)

    def symexp_twohot(self, x: jax.Array) -> outs.Output:
        """Distribution over exponentially spaced bins (Hafner et al. 2023, eq. 9 and 10)."""
        logits = self._linear("logits", x, (*self.space.shape, self.bins))
        return outs.TwoHot(logits, symexp_bins(self.bins))

    def bounded_normal(self, x: jax.Array) -> outs.Output:
        """Normal with its mean in -1..1 and its standard deviation in minstd..maxstd."""
        mean = self._linear("mean", x, self.space.shape).astype(f32)
        stddev = self._linear("stddev", x, self.space.shape).astype(f32)
        low, high = self.minstd, self.maxstd
        stddev = (high - low) * jax.nn.sigmoid(stddev + 2.0) + low
        return outs.Normal(jnp.tanh(mean), stddev, bounds=(low, high))

    def normal_logstd(self, x: jax.Array) -> outs.Output:
        """Normal with a free mean and the logarithm of its standard deviation."""
        mean = self._linear("mean", x, self.space.shape).astype(f32)
        stddev = jnp.exp(self._linear("stddev", x, self.space.shape).astype(f32))
        return outs.Normal(mean, stddev)

    def _existing(self):
        """Which classes an entry has [*shape, C], if it is not the same number for all."""
        counts = spaces.classes(self.space)
        if (counts == counts.max()).all():
            return None
        return np.arange(counts.max()) < counts[..., None]

    def _linear(self, name, x, shape):
        keys = ("bias", "winit", "binit", "outscale")
        kw = {k: getattr(self, k) for k in keys}
        return self.sub(name, nets.Linear, tuple(shape), **kw)(x)


class DictHead(nj.Module):
    """One `Head` per key of a dict of spaces, all on the same features.

    Args:
      spaces: space per key.
      outputs: output name per key, or one name for all.
      kw: fields of `Head`; those that an output does not use do nothing.
    """

    def __init__(
        self,
        spaces: dict[str, elements.Space],
        outputs: dict[str, str] | str,
        **kw: Any,
    ):
        self.spaces = spaces
        self.outputs = dict.fromkeys(spaces, outputs) if isinstance(outputs, str) else outputs
        self.kw = kw

    def __call__(self, x: jax.Array) -> dict[str, outs.Output]:
        """Maps features [..., I] to one output per key."""
        return {
            key: self.sub(nets.layer_name(key), Head, space, self.outputs[key], **self.kw)(x)
            for key, space in self.spaces.items()
        }


class MLPHead(nj.Module):
    """An MLP followed by a `Head`, or by a `DictHead` where the space is a dict.

    Args:
      space: a space, a shape, or a dict of spaces.
      output: output name, or a dict of them.
      layers, units, act, norm: of the MLP, see `blocks.MLP`.
      kw: fields of `Head`.
    """

    units: int = 1024
    layers: int = 5
    act: str = "silu"
    norm: str = "rms"
    bias: bool = True
    winit: str | Callable = "trunc_normal_in"
    binit: str | Callable = "zeros"

    def __init__(self, space: Any, output: Any, **kw: Any):
        shared = {"bias": self.bias, "winit": self.winit, "binit": self.binit}
        self.mlp = MLP(self.layers, self.units, act=self.act, norm=self.norm, **shared, name="mlp")
        make = DictHead if isinstance(space, dict) else Head
        self.head = make(space, output, **shared, **kw, name="head")

    def __call__(self, x: jax.Array, bdims: int) -> Any:
        """Maps features [..., *F] with `bdims` leading batch axes to an output (or a dict)."""
        x = x.reshape((*x.shape[:bdims], -1))
        return self.head(self.mlp(x))


def symexp_bins(count: int) -> jax.Array:
    """Bins symexp(linspace(-20, 20)) [count], one half mirrored so that they are symmetric.

    An odd count has 0 once, an even one twice.
    """
    half = nets.symexp(jnp.linspace(-20, 0, (count + 1) // 2, dtype=f32))
    other = half[:-1] if count % 2 else half
    return jnp.concatenate([half, -other[::-1]])
