import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.jax import heads, outs

f32 = jnp.float32


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def key(seed=0):
    return jax.random.PRNGKey(seed)


def chi_square(counts, probs):
    """Deviation of counts from probabilities, in standard deviations of the statistic."""
    expected = counts.sum() * probs
    freedom = len(probs) - 1
    return (((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom)


def softmax(logits):
    return np.asarray(jax.nn.softmax(logits))


class TestCategorical:
    def test_sampling_law(self):
        logits = np.float32([[0, 1, -2, 3], [2, 2, 2, -9]])
        sample = outs.Categorical(logits).sample(key(), (40_000,))
        assert sample.shape == (40_000, 2)
        assert sample.dtype == jnp.int32
        for i in range(2):
            counts = np.bincount(sample[:, i], minlength=4)
            assert abs(chi_square(counts, softmax(logits[i]))) < 4

    def test_entries_are_independent(self):
        sample = np.asarray(outs.Categorical(jnp.zeros((2, 2))).sample(key(), (20_000,)))
        counts = np.bincount(2 * sample[:, 0] + sample[:, 1], minlength=4)
        assert abs(chi_square(counts, np.full(4, 0.25))) < 4

    @pytest.mark.parametrize("seed", range(3))
    def test_impossible_classes_are_never_drawn(self, seed):
        logits = np.float32([-np.inf, 0, -np.inf, 0, -np.inf])
        sample = np.asarray(outs.Categorical(logits).sample(key(seed), (10_000,)))
        assert set(sample.tolist()) == {1, 3}

    def test_mode_without_seed(self):
        logits = normal(3, 5)
        sample = outs.Categorical(logits).sample(None, (2,))
        np.testing.assert_array_equal(sample, np.stack([logits.argmax(-1)] * 2))

    def test_unimix_bounds_the_probabilities(self):
        # Case 41: the least probability of three classes at 1 % is a third of that.
        output = outs.Categorical(np.float32([100, 0, 0]), unimix=0.01)
        probs = [float(x) for x in jax.jit(jax.vmap(output.prob))(jnp.arange(3))]
        assert probs == pytest.approx([0.9933, 0.0033, 0.0033], abs=5e-5)
        assert sum(probs) == pytest.approx(1)
        plain = outs.Categorical(np.float32([100, 0, 0]))
        assert float(plain.prob(jnp.array(1))) < 1e-30
        grad = jax.grad(lambda x: outs.Categorical(x, 0.01).logp(jnp.array(1)))
        assert np.isfinite(jax.jit(grad)(jnp.array([100.0, 0, 0]))).all()

    def test_entropy_and_kl(self):
        first, second = normal(3, 5), normal(3, 5, seed=1)
        p, q = softmax(first), softmax(second)
        one, two = outs.Categorical(first), outs.Categorical(second)
        np.testing.assert_allclose(one.entropy(), -(p * np.log(p)).sum(-1), rtol=1e-5)
        np.testing.assert_allclose(one.kl(two), (p * np.log(p / q)).sum(-1), rtol=1e-4)
        np.testing.assert_allclose(one.kl(one), np.zeros(3), atol=1e-6)

    def test_logp(self):
        logits = normal(3, 5)
        event = jnp.array([0, 4, 2])
        wanted = np.log(softmax(logits))[np.arange(3), event]
        np.testing.assert_allclose(outs.Categorical(logits).logp(event), wanted, rtol=1e-5)
        assert outs.Categorical(logits).logp(jnp.array([-1, 5, 9])).tolist() == [0, 0, 0]
        small = outs.Categorical(logits).logp(event.astype(jnp.uint8))
        np.testing.assert_allclose(small, wanted, rtol=1e-5)

    def test_entropy_range_contains_the_entropy(self):
        low, high = outs.entropy_range(outs.Categorical(jnp.zeros((2, 4))))
        assert low.tolist() == [0, 0]
        np.testing.assert_allclose(high, [np.log(4)] * 2, rtol=1e-6)
        np.testing.assert_allclose(outs.Categorical(jnp.zeros((2, 4))).entropy(), high, rtol=1e-6)


class TestOneHot:
    def test_samples_are_onehot_with_the_categorical_law(self):
        logits = np.float32([0, 1, -2, 3])
        sample = outs.OneHot(logits, unimix=0.1).sample(key(), (20_000,))
        assert set(np.unique(sample).tolist()) == {0, 1}
        assert (sample.sum(-1) == 1).all()
        probs = 0.9 * softmax(logits) + 0.1 / 4
        assert abs(chi_square(np.asarray(sample.sum(0)), probs)) < 4

    @pytest.mark.parametrize("seed", [None, key()])
    def test_gradient_is_that_of_the_mixed_probabilities(self, seed):
        logits, weight = normal(3, 5), normal(3, 5, seed=1)
        mixed = lambda x: 0.8 * jax.nn.softmax(x) + 0.2 / 5  # noqa: E731
        wanted = jax.grad(lambda x: (weight * mixed(x)).sum())(logits)
        found = jax.grad(lambda x: (weight * outs.OneHot(x, 0.2).sample(seed)).sum())(logits)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)

    def test_events_as_vectors_and_as_indices(self):
        output = outs.OneHot(normal(3, 5))
        index = jnp.array([0, 4, 2])
        vector = jax.nn.one_hot(index, 5)
        np.testing.assert_allclose(output.logp(vector), output.logp(index), rtol=1e-6)
        assert output.logp(jnp.zeros((3, 5))).tolist() == [0, 0, 0]

    def test_kl_is_that_of_the_categoricals(self):
        first, second = normal(3, 5), normal(3, 5, seed=1)
        wanted = outs.Categorical(first, 0.1).kl(outs.Categorical(second, 0.1))
        found = outs.OneHot(first, 0.1).kl(outs.OneHot(second, 0.1))
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


class TestTwoHot:
    @pytest.mark.parametrize(("count", "level"), [(5, 0.0), (6, 1.0), (255, 0.0), (256, -3.7)])
    def test_uniform_logits_predict_exactly_zero(self, count, level):
        # Compiled, too: a fused multiplication and addition must not spoil it.
        bins = heads.symexp_bins(count)
        pred = lambda x: outs.TwoHot(x, bins).pred()  # noqa: E731
        logits = jnp.full((3, count), level)
        assert jax.jit(pred)(logits).tolist() == [0, 0, 0]
        head = jax.jit(lambda x, kernel: pred(x @ kernel))
        assert head(jnp.ones((3, 4)), jnp.zeros((4, count))).tolist() == [0, 0, 0]

    grad = staticmethod(jax.jit(jax.grad(lambda x, bins, y: outs.TwoHot(x, bins).loss(y))))

    @given(st.floats(-1e7, 1e7, width=32))
    @settings(max_examples=30, deadline=None)
    def test_prediction_inverts_the_target(self, target):
        # The loss's gradient at uniform logits is 1/N minus the two-hot target.
        bins, count = heads.symexp_bins(41), 41
        twohot = 1 / count - np.asarray(self.grad(jnp.zeros(count), bins, np.float32(target)))
        assert (twohot > 1e-6).sum() <= 2
        assert twohot.sum() == pytest.approx(1, abs=1e-5)
        pred = (twohot * np.where(twohot > 1e-6, bins, 0)).sum()
        assert pred == pytest.approx(target, rel=1e-3, abs=1e-3)

    @pytest.mark.parametrize("bins", [jnp.array([-2.0, -1, 0, 3]), jnp.array([1.0, 2, 8])])
    def test_any_ascending_bins(self, bins):
        logits = normal(4, len(bins))
        wanted = (softmax(logits) * np.asarray(bins)).sum(-1)
        np.testing.assert_allclose(outs.TwoHot(logits, bins).pred(), wanted, rtol=1e-5)

    def test_targets_are_clipped_and_get_no_gradient(self):
        bins, logits = jnp.array([-1.0, 0, 1]), normal(3)
        output = outs.TwoHot(logits, bins)
        logprob = np.log(softmax(logits))
        for target, index in [(-9.0, 0), (-1.0, 0), (0.0, 1), (1.0, 2), (1e9, 2)]:
            assert float(output.loss(jnp.float32(target))) == pytest.approx(-logprob[index])
        assert jax.grad(output.loss)(jnp.float32(0.3)) == 0
        half = -(0.5 * logprob[1] + 0.5 * logprob[2])
        assert float(output.loss(jnp.float32(0.5))) == pytest.approx(half, rel=1e-6)

    def test_wrong_sizes_and_types(self):
        with pytest.raises(AssertionError):
            outs.TwoHot(jnp.zeros(4), jnp.zeros(5))
        with pytest.raises(AssertionError):
            outs.TwoHot(jnp.zeros(3), jnp.arange(3.0)).loss(jnp.int32(1))


class TestNormal:
    def test_sampling_law(self):
        output = outs.Normal(jnp.array([1.0, -3]), jnp.array([0.5, 2]))
        sample = np.asarray(output.sample(key(), (40_000,)))
        np.testing.assert_allclose(sample.mean(0), [1, -3], atol=0.05)
        np.testing.assert_allclose(sample.std(0), [0.5, 2], rtol=0.02)
        assert output.sample(None).tolist() == output.pred().tolist() == [1, -3]

    def test_density_entropy_and_kl(self):
        mean, std = normal(3), np.float32([0.5, 1, 2])
        one, two = outs.Normal(mean, std), outs.Normal(normal(3, seed=1), 1.5)
        event = one.sample(key(), (200_000,))
        np.testing.assert_allclose(-one.logp(event).mean(0), one.entropy(), atol=0.01)
        ratio = one.logp(event) - two.logp(event)
        np.testing.assert_allclose(ratio.mean(0), one.kl(two), rtol=0.03, atol=0.01)
        np.testing.assert_allclose(one.kl(one), np.zeros(3), atol=1e-6)

    def test_bounds(self):
        assert outs.entropy_range(outs.Normal(jnp.zeros(2))) is None
        output = outs.Normal(jnp.zeros(2), 0.5, bounds=(0.1, 1.0))
        low, high = outs.entropy_range(outs.Agg(output, 1))
        assert low < output.entropy().sum() < high
        assert outs.entropy_range(outs.Agg(outs.Normal(jnp.zeros(2)), 1)) is None


class TestBinary:
    def test_soft_events(self):
        output = outs.Binary(jnp.array([0.0, 2, -50]))
        true, false = output.logp(jnp.ones(3)), output.logp(jnp.zeros(3))
        np.testing.assert_allclose(output.logp(jnp.full(3, 0.3)), 0.3 * true + 0.7 * false)
        np.testing.assert_allclose(jnp.exp(true) + jnp.exp(false), np.ones(3), rtol=1e-6)
        assert output.pred().tolist() == [False, True, False]
        bools = output.logp(jnp.array([True, True, False]))
        np.testing.assert_allclose(bools, [true[0], true[1], false[2]])

    def test_least_loss_at_the_target(self):
        grad = jax.grad(lambda x: outs.Binary(x).loss(jnp.float32(0.75)))
        assert float(grad(jnp.log(3.0))) == pytest.approx(0, abs=1e-6)

    def test_sampling_law_entropy_and_kl(self):
        one, two = outs.Binary(jnp.float32(1.0)), outs.Binary(jnp.float32(-0.5))
        sample = one.sample(key(), (40_000,))
        p, q = (float(x.prob(jnp.float32(1))) for x in (one, two))
        assert float(sample.mean()) == pytest.approx(p, abs=0.01)
        entropy = -(p * np.log(p) + (1 - p) * np.log(1 - p))
        assert float(one.entropy()) == pytest.approx(entropy, rel=1e-5)
        kl = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
        assert float(one.kl(two)) == pytest.approx(kl, rel=1e-4)
        assert one.sample(None, (2,)).tolist() == [True, True]


class TestPoints:
    def test_losses(self):
        mean, target = normal(3), normal(3, seed=1)
        np.testing.assert_allclose(outs.MSE(mean).loss(target), (mean - target) ** 2, rtol=1e-5)
        squashed = outs.MSE(mean, jnp.tanh)
        np.testing.assert_allclose(squashed.loss(target), (mean - np.tanh(target)) ** 2, rtol=1e-5)
        huber = outs.Huber(jnp.array([0.0, 0]), eps=0.1).loss(jnp.array([0.01, 1000.0]))
        np.testing.assert_allclose(huber, [0.01**2 / 0.2, 999.9], rtol=1e-2)
        with pytest.raises(AssertionError):
            outs.MSE(mean).loss(target[:1])

    @pytest.mark.parametrize("kind", [outs.MSE, outs.Huber])
    def test_no_gradient_to_the_target(self, kind):
        assert not jax.grad(lambda x: kind(jnp.ones(3)).loss(x).sum())(jnp.zeros(3)).any()

    def test_integer_targets(self):
        assert outs.MSE(jnp.zeros(2)).loss(jnp.array([2, 3], jnp.uint8)).tolist() == [4, 9]


class TestWrappers:
    def test_agg(self):
        inner = outs.Normal(normal(4, 2, 3))
        output, event = outs.Agg(inner, 2), normal(4, 2, 3, seed=1)
        np.testing.assert_allclose(output.logp(event), inner.logp(event).sum((1, 2)), rtol=1e-5)
        np.testing.assert_allclose(output.loss(event), -output.logp(event), rtol=1e-6)
        np.testing.assert_allclose(output.entropy(), inner.entropy().sum((1, 2)), rtol=1e-6)
        other = outs.Agg(outs.Normal(normal(4, 2, 3, seed=2)), 2)
        np.testing.assert_allclose(output.kl(other), inner.kl(other.output).sum((1, 2)), rtol=1e-5)
        assert output.sample(key(), (5,)).shape == (5, 4, 2, 3)
        mean = outs.Agg(inner, 2, jnp.mean)
        np.testing.assert_allclose(mean.loss(event), output.loss(event) / 6, rtol=1e-5)

    def test_frozen_gives_no_gradient(self):
        event = normal(3, seed=1)

        def total(mean, kind):
            output = kind(outs.Normal(mean))
            other = outs.Normal(jnp.zeros(3))
            parts = [output.pred(), output.loss(event), output.logp(event), output.prob(event)]
            parts += [output.entropy(), output.kl(other), output.sample(key())]
            return sum(x.sum() for x in parts)

        mean = normal(3)
        value = jax.jit(total, static_argnums=1)
        np.testing.assert_allclose(value(mean, outs.Frozen), value(mean, lambda x: x), rtol=1e-5)
        grad = jax.jit(jax.grad(total), static_argnums=1)
        assert not grad(mean, outs.Frozen).any()
        assert grad(mean, lambda x: x).any()

    def test_concat(self):
        sizes, event = (1, 3, 2), normal(4, 6)
        parts = [outs.Normal(normal(4, n, seed=n)) for n in sizes]
        means = np.concatenate([x.mean for x in parts], -1)

        def use(make):
            output, other = make(means), make(jnp.zeros((4, 6)))
            names = ("loss", "logp", "prob")
            values = {k: getattr(output, k)(event) for k in names}
            values |= {k: getattr(output, k)() for k in ("pred", "entropy")}
            return {**values, "kl": output.kl(other), "mode": output.sample(None)}

        def concat(mean):
            return outs.Concat([outs.Normal(x) for x in jnp.split(mean, [1, 4], -1)], [1, 4])

        found, wanted = jax.jit(lambda: (use(concat), use(outs.Normal)))()
        for key in wanted:
            np.testing.assert_allclose(found[key], wanted[key], rtol=1e-5, err_msg=key)
        with pytest.raises(AssertionError):
            outs.Concat(parts, [1])

    def test_parts_are_drawn_independently(self):
        output = outs.Concat([outs.Normal(jnp.zeros((4, n))) for n in (1, 3, 2)], [1, 4])
        sample = np.asarray(output.sample(key(), (500,)))
        assert sample.shape == (500, 4, 6)
        first, *_, last = sample.reshape((-1, 6)).T
        assert abs(np.corrcoef(first, last)[0, 1]) < 0.1

    def test_half_precision_becomes_float32(self):
        half = jnp.zeros((2, 3), jnp.bfloat16)
        assert outs.Categorical(half).logits.dtype == f32
        assert outs.Normal(half, half + 1).sample(key()).dtype == f32
        assert outs.Binary(half).entropy().dtype == f32
        assert outs.OneHot(half).sample(key()).dtype == f32
        assert outs.TwoHot(half, jnp.arange(3.0)).pred().dtype == f32
        assert outs.MSE(half).loss(half).dtype == f32
