"""Classes that do not exist or are not legal: no probability, no draws, finite gradients."""

import elements
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from embodied.jax import heads, nets, outs

from . import pure

MASK = np.bool_([[1, 0, 1, 0, 1], [0, 0, 0, 1, 0], [1, 1, 1, 1, 1], [0, 1, 1, 0, 0]])
LOGITS = np.random.default_rng(0).normal(scale=10, size=(4, 5)).astype(np.float32)


def classes():
    return jnp.broadcast_to(jnp.arange(5)[:, None], (5, 4))


@pytest.mark.parametrize("unimix", [0.0, 0.1])
@pytest.mark.parametrize("how", ["given", "masked", "again"])
def test_probabilities(unimix, how):
    full = outs.Categorical(LOGITS, unimix)
    dist = {
        "given": lambda: outs.Categorical(LOGITS, unimix, MASK),
        "masked": lambda: full.masked(MASK),
        "again": lambda: full.masked(MASK | (np.arange(5) == 1)).masked(np.arange(5) != 1),
    }[how]()
    mask = MASK & (np.arange(5) != 1) if how == "again" else MASK
    mask = np.where(mask.any(-1, keepdims=True), mask, MASK)
    probs = np.exp(LOGITS - LOGITS.max(-1, keepdims=True)) * mask
    probs = probs / probs.sum(-1, keepdims=True)
    probs = (1 - unimix) * probs + unimix * mask / mask.sum(-1, keepdims=True)
    found = dist.prob(classes()).T
    np.testing.assert_allclose(found, probs, rtol=1e-4, atol=1e-7)
    assert (found[~mask] == 0).all()
    entropy = -np.where(probs > 0, probs * np.log(np.where(probs > 0, probs, 1)), 0).sum(-1)
    np.testing.assert_allclose(dist.entropy(), entropy, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(dist.entropy_range()[1], np.log(mask.sum(-1)), rtol=1e-6)
    np.testing.assert_allclose(dist.kl(dist), np.zeros(4), atol=1e-6)


@pytest.mark.parametrize("kind", [outs.Categorical, outs.OneHot])
def test_never_drawn(kind):
    # The logits favour what is not allowed.
    dist = kind(np.where(MASK, LOGITS, 50).astype(np.float32), 0.01).masked(MASK)
    draw = jax.jit(lambda key: dist.sample(key, (20_000,)))
    sample = np.asarray(draw(jax.random.PRNGKey(0)))
    sample = sample.argmax(-1) if kind is outs.OneHot else sample
    counts = np.stack([np.bincount(sample[:, i], minlength=5) for i in range(4)])
    assert (counts[~MASK] == 0).all()
    assert (counts[MASK] > 0).all()
    mode = dist.pred()
    mode = np.asarray(mode.argmax(-1) if kind is outs.OneHot else mode)
    assert MASK[np.arange(4), mode].all()


def test_draws_follow_the_probabilities():
    dist = outs.Categorical(np.float32([0, 9, 1, 2]), 0.1, np.bool_([1, 0, 1, 1]))
    sample = np.asarray(dist.sample(jax.random.PRNGKey(0), (50_000,)))
    share = np.bincount(sample, minlength=4) / len(sample)
    np.testing.assert_allclose(share, dist.prob(jnp.arange(4)), atol=0.01)


def test_a_mask_without_a_class_has_no_effect():
    dist = outs.Categorical(LOGITS, 0.1)
    none = dist.masked(np.zeros((4, 5), bool))
    np.testing.assert_allclose(none.prob(classes()), dist.prob(classes()), rtol=1e-5)
    uneven = outs.Categorical(LOGITS, 0.1, np.arange(5) < 3).masked(np.arange(5) >= 3)
    assert (uneven.prob(classes())[3:] == 0).all()
    np.testing.assert_allclose(uneven.prob(classes()).sum(0), np.ones(4), rtol=1e-5)


@pytest.mark.parametrize("unimix", [0.0, 0.01])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_gradients_are_finite_and_pass_the_illegal_by(unimix, scale):
    event = MASK.argmax(-1)

    def loss(logits):
        dist = outs.Categorical(logits, unimix).masked(MASK)
        other = outs.Categorical(LOGITS, unimix).masked(MASK)
        return (dist.logp(event) + dist.entropy() + dist.kl(other)).sum()

    grad = np.asarray(jax.jit(jax.grad(loss))(LOGITS * scale))
    assert np.isfinite(grad).all()
    assert (grad[~MASK] == 0).all()
    assert grad[MASK].any() or scale > 1


class TestUnequalSpaces:
    SPACE = elements.Space(np.int32, (2, 3), 0, np.array([2, 5, 3]))
    COUNTS = np.array([[2, 5, 3]] * 2)

    @pytest.mark.parametrize("output", ["categorical", "onehot"])
    def test_sums_over_the_parts(self, output, monkeypatch):
        monkeypatch.setattr(nets, "COMPUTE_DTYPE", jnp.float32)

        def run(x):
            head = heads.Head(self.SPACE, output, unimix=0.1, name="h")(x)
            sample = head.sample(jax.random.PRNGKey(0), (3000,))
            sample = sample.argmax(-1) if output == "onehot" else sample
            logits = (head.output.dist if output == "onehot" else head.output).logits
            return sample, head.logp(sample), head.entropy(), head.entropy_range()[1], logits

        x = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
        state, (sample, logp, entropy, most, logits) = pure.call(run, x)
        name = "logits" if output == "categorical" else "pred"
        assert state[f"h/{name}/kernel"].shape == (6, 2 * 3 * 5)
        assert sample.shape == (3000, 4, 2, 3)
        assert (sample.max((0, 1)) == self.COUNTS - 1).all()
        probs = np.asarray(jax.nn.softmax(logits))
        exists = np.broadcast_to(np.arange(5) < self.COUNTS[..., None], probs.shape)
        assert (probs[~exists] == 0).all()
        assert (probs >= exists * 0.1 / self.COUNTS[..., None] * 0.999).all()
        logs = np.log(np.where(exists, probs, 1))
        np.testing.assert_allclose(entropy, -(probs * logs).sum((1, 2, 3)), rtol=1e-4)
        np.testing.assert_allclose(most, np.full(4, 2 * np.log(30)), rtol=1e-5)
        taken = np.take_along_axis(np.stack([logs] * 3000), sample[..., None], -1)[..., 0]
        np.testing.assert_allclose(logp, taken.sum((-2, -1)), rtol=1e-4)
