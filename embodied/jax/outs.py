"""Outputs of networks: distributions and point predictions behind one interface, in float32."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

f32 = jnp.float32
i32 = jnp.int32
sg = jax.lax.stop_gradient

# Logit of a class that cannot occur: its probability is exactly 0, and unlike with -inf, products
# of the two and all gradients are finite.
NEVER = -1e30


class Output:
    """What a head returns: batch axes [...] first, then the axes of one event.

    Everything that can be derived is: `loss` from `logp`, `prob` from `logp`. A subclass supplies
    what makes sense for it.
    """

    def __repr__(self):
        return f"{type(self).__name__}({self.pred().shape})"

    def pred(self) -> jax.Array:
        """The best single guess: the mean, or the most likely class."""
        raise NotImplementedError

    def loss(self, target: jax.Array) -> jax.Array:
        """What training minimises, by default -log p(target); no gradient reaches the target."""
        return -self.logp(sg(target))

    def sample(self, seed: jax.Array | None, shape: tuple[int, ...] = ()) -> jax.Array:
        """Draws events [*shape, ...]; without a seed, the mode in place of a draw."""
        raise NotImplementedError

    def logp(self, event: jax.Array) -> jax.Array:
        """Log-probability, or log-density, of an event."""
        raise NotImplementedError

    def prob(self, event: jax.Array) -> jax.Array:
        """Probability, or density, of an event."""
        return jnp.exp(self.logp(event))

    def entropy(self) -> jax.Array:
        """Entropy in nats."""
        raise NotImplementedError

    def kl(self, other: "Output") -> jax.Array:
        """KL divergence from this distribution to `other`, in nats."""
        raise NotImplementedError

    def masked(self, mask: jax.Array) -> "Output":
        """The same output without the classes where the mask is false."""
        raise NotImplementedError


class Agg(Output):
    """Reduces the last `dims` axes of another output's losses and (log-)probabilities.

    Args:
      output: the output of the single entries, taken as independent.
      dims: how many trailing axes make one event.
      agg: the reduction.
    """

    def __init__(self, output: Output, dims: int, agg: Callable = jnp.sum):
        self.output, self.agg = output, agg
        self.axes = tuple(range(-dims, 0))

    def masked(self, mask: jax.Array) -> "Agg":
        """The same with the wrapped output masked; see `Categorical.masked`."""
        other = copy.copy(self)
        other.output = self.output.masked(mask)
        return other

    def pred(self) -> jax.Array:  # noqa: D102
        return self.output.pred()

    def loss(self, target: jax.Array) -> jax.Array:  # noqa: D102
        return self.agg(self.output.loss(target), self.axes)

    def sample(self, seed: jax.Array | None, shape: tuple[int, ...] = ()) -> jax.Array:  # noqa: D102
        return self.output.sample(seed, shape)

    def logp(self, event: jax.Array) -> jax.Array:  # noqa: D102
        return self.agg(self.output.logp(event), self.axes)

    def prob(self, event: jax.Array) -> jax.Array:  # noqa: D102
        return self.agg(self.output.prob(event), self.axes)

    def entropy(self) -> jax.Array:  # noqa: D102
        return self.agg(self.output.entropy(), self.axes)

    def kl(self, other: Output) -> jax.Array:  # noqa: D102
        assert isinstance(other, Agg), other
        return self.agg(self.output.kl(other.output), self.axes)

    def entropy_range(self) -> tuple[jax.Array, jax.Array] | None:
        """Least and greatest entropy that the wrapped output can take, reduced alike."""
        bounds = entropy_range(self.output)
        return bounds and (self.agg(bounds[0], self.axes), self.agg(bounds[1], self.axes))


class Frozen(Output):
    """Passes everything on but lets no gradient reach the parameters behind the output."""

    def __init__(self, output: Output):
        self.output = output

    def pred(self) -> jax.Array:  # noqa: D102
        return sg(self.output.pred())

    def loss(self, target: jax.Array) -> jax.Array:  # noqa: D102
        return sg(self.output.loss(target))

    def sample(self, seed: jax.Array | None, shape: tuple[int, ...] = ()) -> jax.Array:  # noqa: D102
        return sg(self.output.sample(seed, shape))

    def logp(self, event: jax.Array) -> jax.Array:  # noqa: D102
        return sg(self.output.logp(event))

    def prob(self, event: jax.Array) -> jax.Array:  # noqa: D102
        return sg(self.output.prob(event))

    def entropy(self) -> jax.Array:  # noqa: D102
        return sg(self.output.entropy())

    def kl(self, other: Output) -> jax.Array:  # noqa: D102
        return sg(self.output.kl(other))


class Concat(Output):
    """Joins outputs along one axis of their events.

    Args:
      outputs: the parts, in order.
      midpoints: where each part but the first begins along `axis`.
      axis: the axis of the event, counted from the end (-1 is the last).
    """

    def __init__(self, outputs: Sequence[Output], midpoints: Sequence[int], axis: int = -1):
        assert len(midpoints) == len(outputs) - 1, (len(outputs), midpoints)
        self.outputs, self.midpoints, self.axis = outputs, list(midpoints), axis

    def pred(self) -> jax.Array:  # noqa: D102
        return self._join([x.pred() for x in self.outputs])

    def loss(self, target: jax.Array) -> jax.Array:  # noqa: D102
        return self._join([x.loss(t) for x, t in self._split(target)])

    def sample(self, seed: jax.Array | None, shape: tuple[int, ...] = ()) -> jax.Array:  # noqa: D102
        count = len(self.outputs)
        seeds = [None] * count if seed is None else jax.random.split(seed, count)
        return self._join([x.sample(s, shape) for x, s in zip(self.outputs, seeds, strict=True)])

    def logp(self, event: jax.Array) -> jax.Array:  # noqa: D102
        return self._join([x.logp(e) for x, e in self._split(event)])

    def prob(self, event: jax.Array) -> jax.Array:  # noqa: D102
        return self._join([x.prob(e) for x, e in self._split(event)])

    def entropy(self) -> jax.Array:  # noqa: D102
        return self._join([x.entropy() for x in self.outputs])

    def kl(self, other: Output) -> jax.Array:  # noqa: D102
        assert isinstance(other, Concat), other
        assert other.midpoints == self.midpoints, (other.midpoints, self.midpoints)
        return self._join([x.kl(y) for x, y in zip(self.outputs, other.outputs, strict=True)])

    def _split(self, event):
        return zip(self.outputs, jnp.split(event, self.midpoints, self.axis), strict=True)

    def _join(self, parts):
        return jnp.concatenate(parts, self.axis)


class MSE(Output):
    """Point prediction with squared error, entry by entry.

    Args:
      mean: the prediction.
      squash: applied to targets; predictions stay squashed.
    """

    def __init__(self, mean: jax.Array, squash: Callable[[Any], Any] = lambda x: x):
        self.mean, self.squash = mean.astype(f32), squash

    def pred(self) -> jax.Array:  # noqa: D102
        return self.mean

    def loss(self, target: jax.Array) -> jax.Array:
        """(mean - squash(target))² for every entry."""
        assert self.mean.shape == target.shape, (self.mean.shape, target.shape)
        return jnp.square(self.mean - sg(self.squash(target.astype(f32))))


class Huber(Output):
    """Point prediction with the smooth absolute error sqrt(e² + ε²) - ε, entry by entry."""

    def __init__(self, mean: jax.Array, eps: float = 1.0):
        self.mean, self.eps = mean.astype(f32), eps

    def pred(self) -> jax.Array:  # noqa: D102
        return self.mean

    def loss(self, target: jax.Array) -> jax.Array:
        """Quadratic for errors below ε and linear above."""
        assert self.mean.shape == target.shape, (self.mean.shape, target.shape)
        error = self.mean - sg(target.astype(f32))
        return jnp.sqrt(jnp.square(error) + self.eps**2) - self.eps


class Normal(Output):
    """Normal distribution of every entry.

    Args:
      mean: [...].
      stddev: standard deviation, broadcast to the mean's shape.
      bounds: least and greatest standard deviation that the head allows, if it has limits.
    """

    def __init__(
        self,
        mean: jax.Array,
        stddev: jax.Array | float = 1.0,
        bounds: tuple[float, float] | None = None,
    ):
        self.mean = mean.astype(f32)
        self.stddev = jnp.broadcast_to(jnp.asarray(stddev, f32), self.mean.shape)
        self.bounds = bounds

    def pred(self) -> jax.Array:  # noqa: D102
        return self.mean

    def sample(self, seed: jax.Array | None, shape: tuple[int, ...] = ()) -> jax.Array:  # noqa: D102
        shape = (*shape, *self.mean.shape)
        noise = jnp.zeros(shape, f32) if seed is None else jax.random.normal(seed, shape, f32)
        return self.mean + self.stddev * noise

    def logp(self, event: jax.Array) -> jax.Array:  # noqa: D102
        return jax.scipy.stats.norm.logpdf(event.astype(f32), self.mean, self.stddev)

    def entropy(self) -> jax.Array:  # noqa: D102
        return self._entropy(self.stddev)

    def kl(self, other: Output) -> jax.Array:  # noqa: D102
        assert isinstance(other, Normal), other
        ratio = jnp.square(self.stddev / other.stddev)
        shift = jnp.square((self.mean - other.mean) / other.stddev)
        return 0.5 * (ratio + shift - 1 - jnp.log(ratio))

    def entropy_range(self) -> tuple[jax.Array, jax.Array] | None:
        """Entropies at the head's limits of the standard deviation, if it has any."""
        if self.bounds is None:
            return None
        low, high = (jnp.full(self.mean.shape, x, f32) for x in self.bounds)
        return self._entropy(low), self._entropy(high)

    @staticmethod
    def _entropy(stddev):
        return 0.5 * jnp.log(2 * jnp.pi * jnp.square(stddev)) + 0.5


class Binary(Output):
    """One true-or-false event per entry, given by the logit of true."""

    def __init__(self, logit: jax.Array):
        self.logit = logit.astype(f32)

    def pred(self) -> jax.Array:  # noqa: D102
        return self.logit > 0

    def logp(self, event: jax.Array) -> jax.Array:
        """The event may be soft: a probability of true in 0..1."""
        event = event.astype(f32)
        true, false = jax.nn.log_sigmoid(self.logit), jax.nn.log_sigmoid(-self.logit)
        return event * true + (1 - event) * false

    def sample(self, seed: jax.Array | None, shape: tuple[int, ...] = ()) -> jax.Array:  # noqa: D102
        shape = (*shape, *self.logit.shape)
        if seed is None:
            return jnp.broadcast_to(self.pred(), shape)
        return jax.random.bernoulli(seed, jax.nn.sigmoid(self.logit), shape)

    def entropy(self) -> jax.Array:  # noqa: D102
        return self._cross_entropy(self.logit)

    def kl(self, other: Output) -> jax.Array:  # noqa: D102
        assert isinstance(other, Binary), other
        return self._cross_entropy(other.logit) - self._cross_entropy(self.logit)

    def _cross_entropy(self, logit):
        prob = jax.nn.sigmoid(self.logit)
        return -(prob * jax.nn.log_sigmoid(logit) + (1 - prob) * jax.nn.log_sigmoid(-logit))


class Categorical(Output):
    """One of C classes; events are int [...].

    Args:
      logits: [..., C], unnormalised.
      unimix: share of a uniform distribution that is mixed in (Hafner et al. 2023).
      mask: bool [..., C], at least one true, or fewer leading axes. False classes have
        probability 0 and no part in the mixture, and are never drawn; none is false by default.
    """

    def __init__(self, logits: jax.Array, unimix: float = 0.0, mask: Any = None):
        logits = logits.astype(f32)
        self._raw, self._unimix, self.mask = logits, unimix, mask
        if mask is not None:
            logits = jnp.where(mask, logits, NEVER)
        if unimix and mask is None:
            probs = jax.nn.softmax(logits, -1)
            logits = jnp.log((1 - unimix) * probs + unimix / probs.shape[-1])
        elif unimix:
            probs = (1 - unimix) * jax.nn.softmax(logits, -1) + unimix / mask.sum(
                -1, keepdims=True
            )
            logits = jnp.where(mask, jnp.log(jnp.where(mask, probs, 1.0)), NEVER)
        self.logits = logits

    def masked(self, mask: jax.Array) -> "Categorical":
        """The distribution over the classes where mask, bool [..., C], is true.

        Where that leaves no class, the mask has no effect.
        """
        every = jnp.ones_like(mask) if self.mask is None else self.mask
        left = mask & every
        left = jnp.where(left.any(-1, keepdims=True), left, every)
        return Categorical(self._raw, self._unimix, left)

    def pred(self) -> jax.Array:  # noqa: D102
        return jnp.argmax(self.logits, -1).astype(i32)

    def sample(self, seed: jax.Array | None, shape: tuple[int, ...] = ()) -> jax.Array:
        """Inverts the cumulative distribution at one uniform number per event."""
        shape = (*shape, *self.logits.shape[:-1])
        if seed is None:
            return jnp.broadcast_to(self.pred(), shape)
        if self.mask is not None:
            # The sums below round, so that an impossible class could get a share by accident.
            return jax.random.categorical(seed, self.logits, shape=shape).astype(i32)
        total = jnp.cumsum(jax.nn.softmax(self.logits, -1), -1)
        # Scaling by the last sum, not by 1, keeps rounding from ever selecting no class.
        u = jax.random.uniform(seed, (*shape, 1), f32)
        return jnp.sum(total[..., :-1] <= u * total[..., -1:], -1).astype(i32)

    def logp(self, event: jax.Array) -> jax.Array:
        """An event outside 0..C-1 counts as log-probability 0."""
        onehot = jax.nn.one_hot(event.astype(i32), self.logits.shape[-1], dtype=f32)
        return (jax.nn.log_softmax(self.logits, -1) * onehot).sum(-1)

    def entropy(self) -> jax.Array:  # noqa: D102
        logprob = jax.nn.log_softmax(self.logits, -1)
        return -(jnp.exp(logprob) * logprob).sum(-1)

    def kl(self, other: Output) -> jax.Array:  # noqa: D102
        assert isinstance(other, Categorical), other
        logprob = jax.nn.log_softmax(self.logits, -1)
        logother = jax.nn.log_softmax(other.logits, -1)
        return (jnp.exp(logprob) * (logprob - logother)).sum(-1)

    def entropy_range(self) -> tuple[jax.Array, jax.Array]:
        """0 and ln C for every event, where C counts the classes that are not masked."""
        low = jnp.zeros(self.logits.shape[:-1], f32)
        count = self.logits.shape[-1] if self.mask is None else self.mask.sum(-1)
        return low, low + jnp.log(count)


class OneHot(Output):
    """One of C classes as one-hot vectors [..., C], with straight-through gradients.

    Gradients reach a sample, or a prediction, as if it were the vector of mixed probabilities.
    `logp` takes class indices, too. The arguments are those of `Categorical`.
    """

    def __init__(self, logits: jax.Array, unimix: float = 0.0, mask: Any = None):
        self.dist = Categorical(logits, unimix, mask)

    def masked(self, mask: jax.Array) -> "OneHot":
        """See `Categorical.masked`."""
        other = copy.copy(self)
        other.dist = self.dist.masked(mask)
        return other

    def pred(self) -> jax.Array:  # noqa: D102
        return self._onehot(self.dist.pred())

    def sample(self, seed: jax.Array | None, shape: tuple[int, ...] = ()) -> jax.Array:  # noqa: D102
        return self._onehot(self.dist.sample(seed, shape))

    def logp(self, event: jax.Array) -> jax.Array:  # noqa: D102
        if jnp.issubdtype(event.dtype, jnp.integer):
            return self.dist.logp(event)
        return (jax.nn.log_softmax(self.dist.logits, -1) * event.astype(f32)).sum(-1)

    def entropy(self) -> jax.Array:  # noqa: D102
        return self.dist.entropy()

    def kl(self, other: Output) -> jax.Array:  # noqa: D102
        assert isinstance(other, OneHot), other
        return self.dist.kl(other.dist)

    def entropy_range(self) -> tuple[jax.Array, jax.Array]:
        """See `Categorical.entropy_range`."""
        return self.dist.entropy_range()

    def _onehot(self, index):
        value = jax.nn.one_hot(index, self.dist.logits.shape[-1], dtype=f32)
        probs = jax.nn.softmax(self.dist.logits, -1)
        return sg(value) + (probs - sg(probs))


class TwoHot(Output):
    """A real number as a distribution over bins; a target lies between its two nearest bins.

    Bellemare et al. 2017 and Hafner et al. 2023, eq. 10. For symmetric bins, opposite ones are
    summed first, so that uniform logits predict exactly 0.

    Args:
      logits: [..., N].
      bins: ascending [N].
    """

    def __init__(self, logits: jax.Array, bins: jax.Array):
        assert logits.shape[-1] == len(bins), (logits.shape, len(bins))
        self.logits = logits.astype(f32)
        self.probs = jax.nn.softmax(self.logits)
        self.bins = jnp.asarray(bins, f32)

    def pred(self) -> jax.Array:  # noqa: D102
        half = len(self.bins) // 2
        low, high = self.probs[..., :half][..., ::-1], self.probs[..., -half:]
        left, right = self.bins[:half][::-1], self.bins[-half:]
        # Differences and sums of opposite bins, and not the sum of two products: compilers fuse
        # the sum into one of these, which rounds once, so that opposite terms do not cancel.
        pairs = (high - low) * ((right - left) / 2) + (high + low) * ((right + left) / 2)
        middle = self.probs[..., half] * self.bins[half] if len(self.bins) % 2 else 0.0
        return middle + pairs.sum(-1)

    def loss(self, target: jax.Array) -> jax.Array:
        """Cross-entropy to the two bins around the target, which is clipped to their range."""
        assert target.dtype == f32, target.dtype
        target = sg(target)
        last = len(self.bins) - 1
        above = jnp.clip(jnp.searchsorted(self.bins, target, side="right"), 1, last)
        low, high = self.bins[above - 1], self.bins[above]
        share = jnp.clip((target - low) / (high - low), 0.0, 1.0)[..., None]
        lower = jax.nn.one_hot(above - 1, last + 1, dtype=f32)
        upper = jax.nn.one_hot(above, last + 1, dtype=f32)
        twohot = (1 - share) * lower + share * upper
        return -(twohot * jax.nn.log_softmax(self.logits, -1)).sum(-1)


def entropy_range(output: Output) -> tuple[jax.Array, jax.Array] | None:
    """Least and greatest entropy that an output's head can express, or None if unlimited."""
    return output.entropy_range() if hasattr(output, "entropy_range") else None
