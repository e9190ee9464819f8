"""Composite layers: MLP, embedding, attention, Transformer, GRU, and dicts of mixed inputs."""

from collections.abc import Callable
from typing import Any

import elements
import jax
import jax.numpy as jnp
import ninjax as nj
import numpy as np

from ..core import spaces
from . import nets

f32 = jnp.float32
i32 = jnp.int32


class Embed(nj.Module):
    """Learned vectors for integers: int [..., *shape] -> [..., units].

    Every position of `shape` has a table of its own, and their vectors are summed; the parameter
    `table` has shape (*shape, classes, units). Integers outside 0..classes-1 give zeros.
    """

    einit: str | Callable = "trunc_normal_out"

    def __init__(self, classes: int, units: int, shape: tuple[int, ...] = ()):
        self.classes, self.units, self.shape = classes, units, tuple(shape)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Sums the vectors of all positions."""
        bdims = x.ndim - len(self.shape)
        assert x.shape[bdims:] == self.shape, (x.shape, self.shape)
        table = self.value("table", nets.init(self.einit), (*self.shape, self.classes, self.units))
        table = nets.cast(table).reshape((-1, self.units))
        onehot = jax.nn.one_hot(x.astype(i32), self.classes, dtype=nets.COMPUTE_DTYPE)
        return onehot.reshape((*x.shape[:bdims], -1)) @ table


class MLP(nj.Module):
    """`layers` times linear, norm, activation: [..., I] -> [..., units]."""

    act: str = "silu"
    norm: str = "rms"
    bias: bool = True
    winit: str | Callable = "trunc_normal_in"
    binit: str | Callable = "zeros"

    def __init__(self, layers: int = 5, units: int = 1024):
        self.layers, self.units = layers, units

    def __call__(self, x: jax.Array) -> jax.Array:
        """Casts the input to the compute dtype and applies all layers."""
        x = nets.cast(x)
        kw = {"bias": self.bias, "winit": self.winit, "binit": self.binit}
        for i in range(self.layers):
            x = self.sub(f"linear{i}", nets.Linear, self.units, **kw)(x)
            x = nets.act(self.act)(self.sub(f"norm{i}", nets.Norm, self.norm)(x))
        return x


class Attention(nj.Module):
    """Multi-head self-attention [B, T, D] -> [B, T, D], with optional grouped queries.

    Args:
      heads: number of query heads; D is divisible by it.
      kv_heads: number of key and value heads, a divisor of `heads`; 0 means as many as `heads`.
      rope: whether positions enter by rotary embedding.
      qknorm: normalisation of queries and keys, see `nets.Norm`.
    """

    heads: int = 8
    kv_heads: int = 0
    dropout: float = 0.0
    rope: bool = True
    qknorm: str = "none"
    bias: bool = True
    winit: str | Callable = "trunc_normal_in"
    outscale: float = 1.0

    def __call__(
        self,
        x: jax.Array,
        mask: jax.Array | None = None,
        ts: jax.Array | None = None,
        training: bool = True,
    ) -> jax.Array:
        """Attends over time.

        Args:
          x: [B, T, D] in the compute dtype.
          mask: bool [B, T, T], true where the query (first T) may see the key (second T).
          ts: int [B, T], positions for rotary embedding.
          training: whether dropout applies.
        """
        kw = {"bias": self.bias, "winit": self.winit}
        size, kv_heads = x.shape[-1], self.kv_heads or self.heads
        assert size % self.heads == 0, (size, self.heads)
        assert self.heads % kv_heads == 0, (self.heads, kv_heads)
        head = size // self.heads
        if kv_heads == self.heads:
            qkv = self.sub("qkv", nets.Linear, 3 * size, **kw)(x)
            q, k, v = jnp.split(qkv, 3, -1)
        else:
            q = self.sub("q", nets.Linear, size, **kw)(x)
            k = self.sub("k", nets.Linear, kv_heads * head, **kw)(x)
            v = self.sub("v", nets.Linear, kv_heads * head, **kw)(x)
        q, k, v = (y.reshape((*y.shape[:-1], -1, head)) for y in (q, k, v))
        if self.qknorm != "none":
            q = self.sub("normq", nets.Norm, self.qknorm)(q)
            k = self.sub("normk", nets.Norm, self.qknorm)(k)
        if self.rope:
            q, k = nets.rope(q, ts), nets.rope(k, ts)
        q = q.reshape((*q.shape[:2], kv_heads, self.heads // kv_heads, head))
        logits = jnp.einsum("btkgd,bskd->bkgts", q, k).astype(f32) / np.sqrt(head)
        if mask is not None:
            logits = jnp.where(mask[:, None, None], logits, -1e30)
        weights = nets.dropout(jax.nn.softmax(logits), self.dropout, training)
        x = jnp.einsum("bkgts,bskd->btkgd", weights.astype(x.dtype), v)
        x = x.reshape((*x.shape[:2], size))
        return self.sub("proj", nets.Linear, size, outscale=self.outscale, **kw)(x)


class Transformer(nj.Module):
    """Stack of pre-norm attention and feed-forward layers [B, T, units] -> [B, T, units].

    Args:
      ffup: factor between `units` and the width of the feed-forward layers.
      glu: gated feed-forward (Shazeer 2020) at two thirds of that width, in multiples of 32.
    """

    units: int = 1024
    layers: int = 12
    heads: int = 8
    kv_heads: int = 0
    ffup: int = 4
    act: str = "silu"
    norm: str = "rms"
    qknorm: str = "none"
    glu: bool = False
    rope: bool = True
    dropout: float = 0.0
    bias: bool = True
    winit: str | Callable = "trunc_normal_in"
    outscale: float = 1.0

    def __call__(
        self,
        x: jax.Array,
        mask: jax.Array | None = None,
        ts: jax.Array | None = None,
        training: bool = True,
    ) -> jax.Array:
        """Applies all layers and a final norm; see `Attention` for the arguments."""
        assert x.shape[-1] == self.units, (x.shape, self.units)
        x = nets.cast(x)
        for i in range(self.layers):
            x = self._layer(i, x, mask, ts, training)
        return self.sub("outnorm", nets.Norm, self.norm)(x)

    def _layer(self, i, x, mask, ts, training):
        keys = ("heads", "kv_heads", "rope", "qknorm", "bias", "winit", "outscale", "dropout")
        kw = {k: getattr(self, k) for k in keys}
        # Entered here and not around the call, since every call of a method enters the module's
        # own scope.
        with nj.scope(f"layer{i}"):
            skip, x = x, self.sub("norm1", nets.Norm, self.norm)(x)
            x = skip + self.sub("mha", Attention, **kw)(x, mask, ts, training)
            skip, x = x, self.sub("norm2", nets.Norm, self.norm)(x)
        return skip + nets.dropout(self._feedforward(i, x), self.dropout, training)

    def _feedforward(self, i, x):
        kw = {"bias": self.bias, "winit": self.winit}
        act, width = nets.act(self.act), self.units * self.ffup
        with nj.scope(f"layer{i}"):
            if self.glu:
                width = max(self.units, width * 2 // 3 // 32 * 32)
                gate = act(self.sub("ff1", nets.Linear, width, **kw)(x))
                x = gate * self.sub("ff2", nets.Linear, width, **kw)(x)
                return self.sub("ff3", nets.Linear, self.units, outscale=self.outscale, **kw)(x)
            x = act(self.sub("ff1", nets.Linear, width, **kw)(x))
            return self.sub("ff2", nets.Linear, self.units, outscale=self.outscale, **kw)(x)


class GRU(nj.Module):
    """Gated recurrent unit with normalised inputs and an update gate that starts closed."""

    units: int = 1024
    norm: str = "rms"
    bias: bool = True
    winit: str | Callable = "trunc_normal_in"

    def initial(self, batch_size: int) -> jax.Array:
        """Zeros [B, units]."""
        return jnp.zeros((batch_size, self.units), nets.COMPUTE_DTYPE)

    def __call__(
        self, carry: jax.Array, inputs: jax.Array, resets: jax.Array, single: bool = False
    ) -> tuple[jax.Array, jax.Array]:
        """Runs over time.

        Args:
          carry: [B, units].
          inputs: [B, T, I], or [B, I] if `single`.
          resets: bool [B, T], or [B] if `single`; true zeroes the carry before the step.
          single: whether to make one step only.

        Returns:
          The last carry and all outputs [B, T, units], or [B, units] if `single`.
        """
        carry, inputs = nets.cast((carry, inputs))
        if single:
            return self.step(carry, inputs, resets)
        return nj.scan(lambda c, xs: self.step(c, *xs), carry, (inputs, resets), axis=1)

    def step(
        self, carry: jax.Array, inp: jax.Array, reset: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """One step: returns the new carry twice, as carry and as output."""
        carry = nets.mask(carry, ~reset)
        x = jnp.concatenate([carry, inp], -1)
        x = self.sub("norm", nets.Norm, self.norm)(x)
        kw = {"bias": self.bias, "winit": self.winit}
        x = self.sub("linear", nets.Linear, 3 * self.units, **kw)(x)
        reset, cand, update = jnp.split(x, 3, -1)
        cand = jnp.tanh(jax.nn.sigmoid(reset) * cand)
        update = jax.nn.sigmoid(update - 1)
        carry = update * cand + (1 - update) * carry
        return carry, carry


class DictConcat:
    """Turns a dict of mixed values into one array: keys sorted, one-hot classes, squished numbers.

    Missing values (see `nets.available`) become zeros.

    Args:
      spaces: `elements.Space` per key.
      fdims: how many trailing axes the output has; inner axes are flattened into the last.
      squish: function applied to numbers, e.g. `nets.symlog`.
    """

    def __init__(
        self,
        spaces: dict[str, elements.Space],
        fdims: int = 1,
        squish: Callable[[jax.Array], jax.Array] = lambda x: x,
    ):
        assert fdims >= 1, fdims
        self.keys = sorted(spaces)
        self.spaces, self.fdims, self.squish = spaces, fdims, squish

    def __call__(self, xs: dict[str, Any]) -> jax.Array:
        """Concatenates along the last axis; the result has the compute dtype."""
        return jnp.concatenate([self._convert(xs[k], self.spaces[k]) for k in self.keys], -1)

    def _convert(self, x, space):
        bdims = x.ndim - len(space.shape)
        present = _present(x, space)
        x = nets.mask(x, present)
        if spaces.is_classes(space):
            x = jax.nn.one_hot(to_classes(x, space), classes(space), dtype=nets.COMPUTE_DTYPE)
        else:
            x = nets.cast(self.squish(x.astype(f32)))
        x = nets.mask(x, present)
        return x.reshape((*x.shape[: bdims + self.fdims - 1], -1))


class DictEmbed(nj.Module):
    """Maps a dict of mixed values to one vector [..., units]: the sum of each key's own layer.

    Numbers go through a linear layer after `squish`, classes through `nets.Embed`; missing values
    (see `nets.available`) add nothing.
    """

    bias: bool = True
    winit: str | Callable = "trunc_normal_in"
    einit: str | Callable = "trunc_normal_out"

    def __init__(
        self,
        spaces: dict[str, elements.Space],
        units: int,
        squish: Callable[[jax.Array], jax.Array] = lambda x: x,
    ):
        self.keys = sorted(spaces)
        self.spaces, self.units, self.squish = spaces, units, squish

    def __call__(self, xs: dict[str, Any]) -> jax.Array:
        """Sums the keys' vectors; the result has the compute dtype."""
        return sum(self._convert(k, xs[k], self.spaces[k]) for k in self.keys)

    def _convert(self, key, x, space):
        bdims = x.ndim - len(space.shape)
        present = _present(x, space)
        x = nets.mask(x, present)
        if spaces.is_classes(space):
            kw = {"shape": space.shape, "einit": self.einit}
            x = self.sub(nets.layer_name(key), Embed, classes(space), self.units, **kw)(
                to_classes(x, space)
            )
        else:
            x = nets.cast(self.squish(x.astype(f32)))
            x = x.reshape((*x.shape[:bdims], -1))
            x = self.sub(
                nets.layer_name(key), nets.Linear, self.units, bias=self.bias, winit=self.winit
            )(x)
        return nets.mask(x, present)


def classes(space: elements.Space) -> int:
    """Number of classes of a discrete space; of the largest one, if they differ by entry."""
    return int(spaces.classes(space).max())


def to_classes(x: jax.Array, space: elements.Space) -> jax.Array:
    """Numbers the values of a discrete space from 0, entry by entry: int32 of the same shape."""
    return _shift(x.astype(i32), space, -1)


def from_classes(x: jax.Array, space: elements.Space) -> jax.Array:
    """The inverse of `to_classes`, in the dtype of the space."""
    return _shift(x, space, 1).astype(space.dtype)


def _shift(x, space, sign):
    if space.dtype == bool or not space.low.any():
        return x
    return x + sign * space.low.astype(np.int32)


def _present(x, space):
    """Where a value is not missing; -1 means that only where the space does not contain it."""
    bdims = x.ndim - len(space.shape)
    if space.dtype.kind == "i" and (space.low < 0).any():
        return jnp.ones(x.shape[:bdims], bool)
    return nets.available(x, bdims=bdims)
