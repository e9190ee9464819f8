"""Functions and basic layers of neural networks; activations run in `COMPUTE_DTYPE`.

Composite layers (`MLP, Embed, Attention, Transformer, GRU, DictConcat, DictEmbed`) live in
`blocks.py` and are reached as attributes of this module, too.
"""

import functools
import math
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ninjax as nj

f32 = jnp.float32

# The two pieces of state that tracing reads: the dtype of activations, set once by
# `internal.setup`, and a function (x, path) -> x that `transform` installs while it traces, to
# constrain the sharding of each layer's output.
COMPUTE_DTYPE: Any = jnp.bfloat16
LAYER_CALLBACK: Callable[[jax.Array, str], jax.Array] | None = None

_BLOCKS = ("MLP", "Embed", "Attention", "Transformer", "GRU", "DictConcat", "DictEmbed")


def __getattr__(name: str) -> Any:
    if name in _BLOCKS:
        from . import blocks  # It imports this module, so it cannot be imported at the top.

        return getattr(blocks, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def cast(xs: Any, force: bool = False) -> Any:
    """Casts the floating leaves of a tree to `COMPUTE_DTYPE`; with `force`, every leaf."""

    def one(x):
        x = jnp.asarray(x)
        if force or jnp.issubdtype(x.dtype, jnp.floating):
            return x.astype(COMPUTE_DTYPE)
        return x

    return jax.tree.map(one, xs)


def ensure_dtypes(fn: Callable) -> Callable:
    """Decorator that checks that floating arrays enter and leave in `COMPUTE_DTYPE`.

    A layer that computes in another dtype by accident is slow or wrong without any error, so this
    is checked at tracing time, when it costs nothing.

    Raises:
      TypeError: a floating array has another dtype.
    """

    def check(xs, where):
        for x in jax.tree.leaves(xs):
            floating = isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.floating)
            if floating and x.dtype != COMPUTE_DTYPE:
                right = jnp.dtype(COMPUTE_DTYPE)
                raise TypeError(f"{fn.__qualname__}: the {where} is {x.dtype}, {right} is right.")

    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        check((args[1:], kwargs), "input")
        out = fn(*args, **kwargs)
        check(out, "output")
        return out

    return wrapper


def act(name: str) -> Callable[[jax.Array], jax.Array]:
    """The activation function of that name; `swiglu` halves the last axis.

    Names: none, gelu (by tanh), mish, relu2 (squared ReLU), swiglu, and all of `jax.nn`.
    """
    if name == "none":
        return lambda x: x
    if name == "gelu":
        return lambda x: jax.nn.gelu(x, approximate=True)
    if name == "relu2":
        return lambda x: jnp.square(jax.nn.relu(x))
    if name == "swiglu":

        def swiglu(x):
            gate, value = jnp.split(x, 2, -1)
            return jax.nn.silu(gate) * value

        return swiglu
    return getattr(jax.nn, name)


def layer_name(key: str) -> str:
    """A key of a dict as a name of a layer: what is no letter, digit or `_` by its code."""
    return re.sub(r"[^A-Za-z0-9_]", lambda x: f"_x{ord(x[0]):x}_", key)


def symlog(x: jax.Array) -> jax.Array:
    """sign(x) ln(1 + |x|), the compression of Hafner et al. 2023, eq. 9."""
    return jnp.sign(x) * jnp.log1p(jnp.abs(x))


def symexp(x: jax.Array) -> jax.Array:
    """The inverse of `symlog`: sign(x) (exp |x| - 1)."""
    return jnp.sign(x) * jnp.expm1(jnp.abs(x))


def where(condition: jax.Array, xs: Any, ys: Any) -> Any:
    """Leafwise choice between two trees; `condition` [B...] broadcasts over trailing axes."""

    def one(x, y):
        x, y = jnp.asarray(x), jnp.asarray(y)
        assert x.shape == y.shape, (x.shape, y.shape)
        return jnp.where(_expand(condition, x.ndim), x, y)

    return jax.tree.map(one, xs, ys)


def mask(xs: Any, keep: jax.Array) -> Any:
    """Leaves of a tree with zeros where `keep` [B...] is false."""
    return jax.tree.map(lambda x: jnp.where(_expand(keep, x.ndim), x, jnp.zeros_like(x)), xs)


def available(*trees: Any, bdims: int | None = None) -> jax.Array:
    """Where values are present: no entry is -inf (floats) or -1 (signed integers).

    Args:
      trees: arrays with equal leading axes; unsigned and boolean ones are always present.
      bdims: number of leading axes of the result, by default those of the smallest leaf.

    Returns:
      bool [B...], true where every leaf is present.
    """
    leaves = jax.tree.leaves(trees)
    bdims = min(x.ndim for x in leaves) if bdims is None else bdims
    present = jnp.ones(leaves[0].shape[:bdims], bool)
    for x in leaves:
        if jnp.issubdtype(x.dtype, jnp.floating):
            valid = x != -jnp.inf
        elif jnp.issubdtype(x.dtype, jnp.signedinteger):
            valid = x != -1
        else:
            continue
        present &= valid.all(tuple(range(bdims, x.ndim)))
    return present


def dropout(x: jax.Array, rate: float, training: bool) -> jax.Array:
    """Zeroes a share `rate` of the entries and scales up the rest, when training."""
    if not rate or not training:
        return x
    keep = jax.random.bernoulli(nj.seed(), 1.0 - rate, x.shape)
    return x * keep / (1.0 - rate)


def rms(xs: Any) -> jax.Array:
    """Root mean square over all entries of all leaves, float32 scalar."""
    leaves = jax.tree.leaves(xs)
    count = sum(x.size for x in leaves)
    return jnp.sqrt(sum(jnp.square(x.astype(f32)).sum() for x in leaves) / count)


def rope(
    x: jax.Array, ts: jax.Array | None = None, inverse: bool = False, maxlen: int = 4096
) -> jax.Array:
    """Rotary position embedding (Su et al. 2021), on halves of the channels.

    Args:
      x: [B, T, heads, D] with even D.
      ts: positions, int [B, T]; by default 0, 1, ….
      inverse: rotates backwards.
      maxlen: the longest wavelength, in steps.
    """
    ts = jnp.arange(x.shape[1])[None] if ts is None else ts
    half = x.shape[-1] // 2
    wavelength = maxlen ** (jnp.arange(half) / half)
    angle = (-ts if inverse else ts)[..., None, None] / wavelength
    cos, sin = jnp.cos(angle).astype(x.dtype), jnp.sin(angle).astype(x.dtype)
    x1, x2 = jnp.split(x, 2, -1)
    return jnp.concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin], -1)


class Initializer:
    """Random initial values of a kernel.

    Args:
      dist: zeros, uniform (in ±1), normal, trunc_normal (cut at ±2σ, rescaled to unit variance)
        or normed (uniform, then every output's weights scaled to unit length).
      fan: in, out, avg or none: the values are multiplied by sqrt(1 / fan); `normed` ignores it.
      scale: a further factor.
    """

    DISTS = ("zeros", "uniform", "normal", "trunc_normal", "normed")
    FANS = ("none", "in", "out", "avg")

    def __init__(self, dist: str = "trunc_normal", fan: str = "in", scale: float = 1.0):
        assert dist in self.DISTS, dist
        assert fan in self.FANS, fan
        self.dist, self.fan, self.scale = dist, fan, scale

    def __call__(self, shape: Any, dtype: Any = f32, fshape: Any = None) -> jax.Array:
        """Draws values of a shape; `fshape` is the shape that the fans are computed from."""
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        fanin, fanout = self.fans(shape if fshape is None else fshape)
        fan = {"none": 1, "in": fanin, "out": fanout, "avg": (fanin + fanout) / 2}[self.fan]
        return (self.scale * self._draw(shape, fan)).astype(dtype)

    @staticmethod
    def fans(shape: tuple[int, ...]) -> tuple[int, int]:
        """Inputs and outputs of a kernel; leading axes (space, blocks) multiply both."""
        if len(shape) < 2:
            return 1, math.prod(shape)
        space = math.prod(shape[:-2])
        return shape[-2] * space, shape[-1] * space

    def _draw(self, shape, fan):
        if self.dist == "zeros":
            return jnp.zeros(shape, f32)
        if self.dist == "normed":
            value = jax.random.uniform(nj.seed(), shape, f32, -1.0, 1.0)
            flat = value.reshape((-1, shape[-1]))
            return value / jnp.linalg.norm(flat, axis=0)
        if self.dist == "uniform":
            value = jax.random.uniform(nj.seed(), shape, f32, -1.0, 1.0)
        elif self.dist == "normal":
            value = jax.random.normal(nj.seed(), shape, f32)
        else:
            value = 1.1368 * jax.random.truncated_normal(nj.seed(), -2.0, 2.0, shape, f32)
        return math.sqrt(1 / fan) * value


def init(name: str | Callable) -> Callable:
    """The initializer of a name such as `zeros`, `trunc_normal_in` or `uniform_avg`.

    A callable passes through. Without a suffix the fan is `in`.
    """
    if callable(name):
        return name
    match = re.fullmatch(
        f"({'|'.join(Initializer.DISTS)})(?:_({'|'.join(Initializer.FANS)}))?", name
    )
    assert match, name
    return Initializer(match[1], match[2] or "in")


class Layer(nj.Module):
    """Base of the layers that multiply by a kernel and add a bias."""

    bias: bool = True
    winit: str | Callable = "trunc_normal_in"
    binit: str | Callable = "zeros"
    outscale: float = 1.0

    def __init_subclass__(cls) -> None:
        # Ninjax reads only a class's own fields, and replaces them by properties; so each subclass
        # gets those of its bases again, with their default values.
        base: Any = cls.__mro__[1]
        fields = {k: v for k, v in base.__annotations__.items() if k not in cls.__annotations__}
        cls.__annotations__ = {**fields, **cls.__annotations__}
        for key in fields:
            setattr(cls, key, base._defaults[key])

    def _kernel(self, shape):
        make = init(self.winit)
        return cast(self.value("kernel", lambda: self.outscale * make(shape)))

    def _finish(self, x, shape):
        if self.bias:
            x += cast(self.value("bias", init(self.binit), shape)).astype(x.dtype)
        return x if LAYER_CALLBACK is None else LAYER_CALLBACK(x, self.path)


class Linear(Layer):
    """Dense layer [..., I] -> [..., *units]; kernel (I, prod(units)), bias (prod(units),)."""

    def __init__(self, units: int | tuple[int, ...]):
        self.units = (units,) if isinstance(units, int) else tuple(units)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., I] to [..., *units]."""
        return self._call(x)

    @ensure_dtypes
    def _call(self, x):
        size = math.prod(self.units)
        x = self._finish(x @ self._kernel((x.shape[-1], size)), (size,))
        return x.reshape((*x.shape[:-1], *self.units))


class BlockLinear(Layer):
    """Block-diagonal dense layer [..., I] -> [..., O], where block i feeds block i.

    Inputs that all blocks share can follow each block's own: kernel (g, I/g + S, O/g), bias (O,).
    They enter as one dense product, which is the same as a copy in every block, but faster.
    """

    def __init__(self, units: int, blocks: int):
        assert units % blocks == 0, (units, blocks)
        self.units, self.blocks = units, blocks

    def __call__(self, x: jax.Array, shared: jax.Array | None = None) -> jax.Array:
        """Maps x [..., I], and shared [..., S], to [..., units]; the blocks divide I and units."""
        return self._call(x, shared)

    @ensure_dtypes
    def _call(self, x, shared):
        assert x.shape[-1] % self.blocks == 0, (x.shape, self.blocks)
        own = x.shape[-1] // self.blocks
        size = own if shared is None else own + shared.shape[-1]
        kernel = self._kernel((self.blocks, size, self.units // self.blocks))
        x = x.reshape((*x.shape[:-1], self.blocks, own))
        x = jnp.einsum("...gi,gio->...go", x, kernel[:, :own])
        x = x.reshape((*x.shape[:-2], self.units))
        if shared is not None:
            x += shared @ kernel[:, own:].transpose((1, 0, 2)).reshape((-1, self.units))
        return self._finish(x, (self.units,))


class Conv(Layer):
    """Convolution over `dims` spatial axes, channels last; kernel (k, ..., I/groups, depth).

    Args:
      depth: number of output channels.
      kernel: size of the window along every axis.
      stride: step of the window, or with `transp` the factor by which the grid grows; one number
        or one per axis.
    """

    transp: bool = False
    groups: int = 1
    pad: str = "same"
    dims: int = 2

    def __init__(self, depth: int, kernel: int, stride: int | tuple[int, ...] = 1):
        self.depth, self.kernel = depth, kernel
        self.stride = (stride,) * self.dims if isinstance(stride, int) else stride

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [B, *space, I] to [B, *space', depth]."""
        return self._call(x)

    @ensure_dtypes
    def _call(self, x):
        kernel = (self.kernel,) * self.dims
        kernel = self._kernel((*kernel, x.shape[-1] // self.groups, self.depth))
        padding: Any = self.pad.upper()
        grow, stride = (1,) * self.dims, self.stride
        if self.transp and max(stride) > 1:
            # Inputs sit at offset 1 in each group of outputs, with zeros between them.
            assert self.pad == "same", self.pad
            grow, stride = stride, grow
            low = (self.kernel - 1) // 2
            shifts = [int(x > 1) for x in grow]
            high = self.kernel - 1 - low
            padding = [(low + s, high - s + x - 1) for s, x in zip(shifts, grow, strict=True)]
        space = "HWD"[: self.dims]
        x = jax.lax.conv_general_dilated(
            x,
            kernel,
            stride,
            padding,
            lhs_dilation=grow,
            feature_group_count=self.groups,
            dimension_numbers=(f"N{space}C", f"{space}IO", f"N{space}C"),
        )
        return self._finish(x, (self.depth,))


class Conv2D(Conv):
    """`Conv` over height and width: [B, H, W, I] -> [B, H', W', depth]."""

    dims: int = 2


class Conv3D(Conv):
    """`Conv` over three spatial axes: [B, H, W, D, I] -> [B, H', W', D', depth]."""

    dims: int = 3


class Norm(nj.Module):
    """Normalises the last axis in float32.

    Args:
      impl: none, rms (x · rsqrt(mean(x²) + ε) · scale) or layer (with mean and shift); a suffix
        such as `rms1em6` sets ε, which is 1e-4 otherwise.
    """

    def __init__(self, impl: str):
        match = re.fullmatch(r"(none|rms|layer)(?:(\d+)em(\d+))?", impl)
        assert match, impl
        self.impl = match[1]
        self.eps = float(f"{match[2]}e-{match[3]}") if match[2] else 1e-4

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns an array of the same shape and dtype as x."""
        if self.impl == "none":
            return x
        dtype, x = x.dtype, x.astype(f32)
        scale = self.value("scale", jnp.ones, x.shape[-1], f32)
        square = jnp.square(x).mean(-1, keepdims=True)
        # The order of operations is that of the reference: a product in another order differs by
        # rounding, which a narrow layer near zero magnifies a hundredfold.
        if self.impl == "rms":
            return (x * (jax.lax.rsqrt(square + self.eps) * scale)).astype(dtype)
        shift = self.value("shift", jnp.zeros, x.shape[-1], f32)
        mean = x.mean(-1, keepdims=True)
        variance = jnp.maximum(0, square - jnp.square(mean))
        x = (x - mean) * (jax.lax.rsqrt(variance + self.eps) * scale) + shift
        return x.astype(dtype)


def _expand(condition, ndim):
    assert condition.dtype == bool, condition.dtype
    return condition.reshape((*condition.shape, *(1,) * (ndim - condition.ndim)))
