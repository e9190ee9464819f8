"""State that follows training: running normalisation, slow copies, and layers that are scanned."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ninjax as nj

from . import internal

f32 = jnp.float32
i32 = jnp.int32
sg = jax.lax.stop_gradient


class Normalize(nj.Module):
    """Running offset and scale of a stream of values.

    Args:
      impl: `none` (0 and 1), `meanstd` (mean and standard deviation) or `perc` (low percentile,
        and the distance from there to the high one: Hafner et al. 2023, eq. 12).
      rate: of the exponential moving averages.
      limit: least scale.
      perclo, perchi: the percentiles, in percent.
      debias: whether to correct for the zeros that the averages start from.
    """

    rate: float = 0.01
    limit: float = 1e-8
    perclo: float = 5.0
    perchi: float = 95.0
    debias: bool = True

    def __init__(self, impl: str):
        assert impl in ("none", "meanstd", "perc"), impl
        self.impl = impl
        if self.debias and impl != "none":
            self.corr = nj.Variable(jnp.zeros, (), f32, name="corr")
        if impl == "meanstd":
            self.mean = nj.Variable(jnp.zeros, (), f32, name="mean")
            self.sqrs = nj.Variable(jnp.zeros, (), f32, name="sqrs")
        elif impl == "perc":
            self.lo = nj.Variable(jnp.zeros, (), f32, name="lo")
            self.hi = nj.Variable(jnp.zeros, (), f32, name="hi")

    def __call__(self, x: jax.Array, update: bool) -> tuple[jax.Array, jax.Array]:
        """Takes values in, if `update`, and returns `stats()`."""
        if update:
            self.update(x)
        return self.stats()

    def update(self, x: jax.Array) -> None:
        """Moves the averages towards the values' statistics, over all devices together."""
        axes = internal.get_data_axes()
        x = sg(x.astype(f32))
        if self.impl == "none":
            return
        if self.impl == "meanstd":
            self._move(self.mean, _pmean(x.mean(), axes))
            self._move(self.sqrs, _pmean(jnp.square(x).mean(), axes))
        else:
            x = jax.lax.all_gather(x, axes) if axes else x
            self._move(self.lo, jnp.percentile(x, self.perclo))
            self._move(self.hi, jnp.percentile(x, self.perchi))
        if self.debias:
            self._move(self.corr, jnp.ones((), f32))

    def stats(self) -> tuple[jax.Array, jax.Array]:
        """Offset and scale, float32 scalars without gradient."""
        if self.impl == "none":
            return jnp.zeros((), f32), jnp.ones((), f32)
        corr = jnp.ones((), f32)
        if self.debias:
            corr /= jnp.maximum(self.rate, self.corr.read())
        if self.impl == "meanstd":
            mean, sqrs = self.mean.read() * corr, self.sqrs.read() * corr
            std = jnp.sqrt(jax.nn.relu(sqrs - jnp.square(mean)))
            return sg(mean), sg(jnp.maximum(self.limit, std))
        lo, hi = self.lo.read() * corr, self.hi.read() * corr
        return sg(lo), sg(jnp.maximum(self.limit, hi - lo))

    def _move(self, variable, target):
        variable.write((1 - self.rate) * variable.read() + self.rate * target)


class SlowModel:
    """A copy of a module whose parameters follow those of the source by moving average.

    Args:
      model: a module of the same structure as `source`; its own initial values are never used.
      source: the module to follow.
      rate: share of the source that each update mixes in.
      every: number of calls of `update` of which one, the first, does something.
    """

    def __init__(self, model: nj.Module, *, source: nj.Module, rate: float = 1.0, every: int = 1):
        assert 0 < rate <= 1, rate
        self.model, self.source = model, source
        self.rate, self.every = rate, every
        self.count = nj.Variable(jnp.zeros, (), i32, name=f"{model.path}_count")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Applies the slow copy, which the first use creates equal to the source."""
        self._create()
        return self.model(*args, **kwargs)

    def update(self) -> None:
        """Mixes the source's current parameters in, if it is time to."""
        self._create()
        count = self.count.read()
        mix = jnp.where(count % self.every == 0, self.rate, 0.0)
        slow = self.model.values
        for key, value in self.source.values.items():
            self.model.write(key, mix * value + (1 - mix) * slow[key])
        self.count.write(count + 1)

    def _create(self):
        if not self.model.values:
            values = self.source.values
            assert values, "The source is used before its slow copy."
            nj.context().update({f"{self.model.path}/{k}": v for k, v in values.items()})


class LayerScan:
    """Repeats a module over `count` layers that share code but not parameters, as one scan.

    State inside the module gets a leading axis of length `count`; state outside is threaded
    through the layers one after the other. A method's first argument is the carry: it goes from
    layer to layer, and the method returns the next one. Further positional arguments have a
    leading axis of length `count`, of which each layer gets its entry; keyword arguments reach
    every layer as they are.

    Args:
      module: the layer.
      count: how often it is applied.
      names: the methods that scan; other attributes are those of the module.
    """

    def __init__(self, module: nj.Module, count: int, names: tuple[str, ...] = ("__call__",)):
        self.module, self.count, self.names = module, count, names

    def __call__(self, carry: Any, *args: Any, **kwargs: Any) -> Any:
        """Applies all layers and returns the last carry."""
        return self.__getattr__("__call__")(carry, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.module, name)
        if name not in self.names:
            return value
        return functools.partial(_scan_layers, value, self.module.path, self.count)


def _scan_layers(method: Callable, path: str, count: int, carry: Any, *xs: Any, **kwargs: Any):
    for x in jax.tree.leaves(xs):
        assert x.shape[:1] == (count,), (x.shape, count)
    pure = nj.pure(method, nested=True)
    context = nj.context()
    modified = _create_layers(pure, path, count, carry, xs, kwargs)
    inner = {k: v for k, v in context.items() if k.startswith(path + "/")}
    outer = {k: v for k, v in context.items() if k not in inner}
    threaded = {k: v for k, v in outer.items() if k in modified}
    fixed = {k: v for k, v in outer.items() if k not in modified}

    def body(carries, inputs):
        carry, threaded = carries
        xs, inner, seed = inputs
        state, carry = pure({**fixed, **threaded, **inner}, carry, *xs, seed=seed, **kwargs)
        changed = {k: state[k] for k in inner if k in modified}
        return (carry, {k: state[k] for k in threaded}), changed

    (carry, threaded), changed = jax.lax.scan(
        body, (carry, threaded), (xs, inner, _seeds(count)), length=count
    )
    if context.modify:
        context.update({**threaded, **changed})
    return carry


def _create_layers(pure, path, count, carry, xs, kwargs):
    """Creates missing state, stacked over layers, and returns the keys that a layer modifies."""
    context = nj.context()

    def first(seed):
        state = {k: v[0] if k.startswith(path + "/") else v for k, v in context.items()}
        args = jax.tree.map(lambda x: x[0], xs)
        return pure(state, carry, *args, seed=seed, ignore=True, track=True, **kwargs)

    state, _, _, modified, created = first(nj.seed(optional=True))
    inner = {k for k in created if k.startswith(path + "/")}
    context.update({k: v for k, v in state.items() if k in created - inner})
    if inner:
        # A seed per layer, so that no two layers start with equal parameters.
        layers = [first(seed)[0] for seed in nj.seed(count)]
        context.update({k: jnp.stack([layer[k] for layer in layers]) for k in sorted(inner)})
    return modified | created


def scan(
    fun: Callable, carry: Any, xs: Any, length: int | None = None, axis: int = 0
) -> tuple[Any, Any]:
    """`jax.lax.scan` over a function that reads ninjax state but does not write it.

    It traces the function once, where `nj.scan` traces it twice to learn what it writes. Each step
    gets a seed of its own.

    Args:
      fun: (carry, x) -> (carry, y).
      carry: the first carry.
      xs: tree of arrays that are scanned over `axis`; None for none.
      length: number of steps, if `xs` does not tell.
      axis: of the arrays in `xs` and in the result.

    Returns:
      The last carry, and the y of all steps, stacked along `axis`.
    """
    if nj.creating():
        return nj.scan(fun, carry, xs, length, axis=axis)
    swap = functools.partial(jax.tree.map, lambda x: x.swapaxes(0, axis))
    state, pure = dict(nj.context()), nj.pure(fun, nested=True)
    length = jax.tree.leaves(xs)[0].shape[axis] if length is None else length

    def body(carry, inputs):
        x, seed = inputs
        return pure(state, carry, x, seed=seed, modify=False)[1]

    carry, ys = jax.lax.scan(body, carry, (swap(xs), _seeds(length)), length)
    return carry, swap(ys)


def frozen(fun: Callable, *args: Any) -> Any:
    """Calls a function that reads ninjax state, with no gradient to that state or through it."""
    if nj.creating():
        return fun(*args)
    state = {k: sg(v) for k, v in nj.context().items()}
    seed = nj.seed(optional=True)
    return sg(nj.pure(fun, nested=True)(state, *args, seed=seed, modify=False)[1])


def _seeds(count):
    return None if nj.context().seed is None else nj.seed(count)


def _pmean(x, axes):
    return jax.lax.pmean(x, axes) if axes else x
