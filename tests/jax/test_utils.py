import functools

import jax
import jax.numpy as jnp
import ninjax as nj
import numpy as np
import pytest

from embodied.jax import nets, utils

from . import pure

f32 = jnp.float32


@pytest.fixture(autouse=True)
def _float32(monkeypatch):
    monkeypatch.setattr(nets, "COMPUTE_DTYPE", f32)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


class TestNormalize:
    def run(self, xs, impl, **kwargs):
        """State, and offset and scale after each of the inputs."""

        def fun(xs):
            norm = utils.Normalize(impl, **kwargs, name="norm")
            step = lambda carry, x: (carry, norm(x, update=True))  # noqa: E731
            norm.stats()
            return nj.scan(step, (), xs)[1]

        return pure.run(fun, xs)

    def test_first_update_gives_the_batch(self):
        x = normal(1, 50, 3) * 3 + 7
        _, (mean, std) = self.run(x, "meanstd", rate=0.01)
        assert float(mean[0]) == pytest.approx(x.mean(), rel=1e-4)
        assert float(std[0]) == pytest.approx(x.std(), rel=1e-2)
        _, (low, spread) = self.run(x, "perc", rate=0.01, perclo=10.0, perchi=90.0)
        wanted = np.percentile(x, [10, 90])
        assert float(low[0]) == pytest.approx(wanted[0], rel=1e-4)
        assert float(spread[0]) == pytest.approx(wanted[1] - wanted[0], rel=1e-4)

    def test_moving_average(self):
        xs = np.float32([[0, 0], [8, 8], [4, 4]])
        _, (mean, _) = self.run(xs, "meanstd", rate=0.5, debias=False)
        np.testing.assert_allclose(mean, [0, 4, 4])
        _, (mean, _) = self.run(xs, "meanstd", rate=0.5)
        np.testing.assert_allclose(mean, [0, 4 / 0.75, 4 / 0.875], rtol=1e-6)

    def test_moves_within_a_hundred_updates(self):
        # Case 40, with the settings for returns.
        xs = np.broadcast_to(np.linspace(0, 100, 101, dtype=np.float32), (100, 101))
        kw = {"rate": 0.01, "limit": 1.0, "debias": False}
        _, (low, scale) = self.run(xs, "perc", **kw)
        assert float(scale[0]) == 1
        share = 1 - 0.99**100
        assert float(low[-1]) == pytest.approx(5 * share, rel=1e-3)
        assert float(scale[-1]) == pytest.approx(90 * share, rel=1e-3)

    @pytest.mark.parametrize("impl", ["meanstd", "perc"])
    def test_limit_and_constant_values(self, impl):
        _, (offset, scale) = self.run(np.full((3, 4), 5, np.float32), impl, limit=0.25)
        np.testing.assert_allclose(offset, [5, 5, 5], rtol=1e-5)
        assert scale.tolist() == [0.25] * 3

    def test_none(self):
        state, (offset, scale) = self.run(normal(2, 5), "none")
        assert not state
        assert (offset.tolist(), scale.tolist()) == ([0, 0], [1, 1])
        with pytest.raises(AssertionError):
            utils.Normalize("std", name="norm")

    def test_without_update(self):
        def fun(x):
            norm = utils.Normalize("meanstd", name="norm")
            return norm(x, update=False), norm(x, update=True), norm(x, update=False)

        _, (before, update, after) = pure.run(fun, normal(5) + 3)
        assert before[0] == 0
        assert update == after
        assert update[0] > 1

    @pytest.mark.parametrize("impl", ["meanstd", "perc"])
    def test_no_gradient(self, impl):
        def fun(x):
            return sum(utils.Normalize(impl, name="norm")(x, update=True))

        grad = jax.grad(lambda x: nj.pure(fun)({}, x, create=True)[1])
        assert not grad(normal(5)).any()

    def test_half_precision(self):
        def fun(x):
            return utils.Normalize("meanstd", name="norm")(x, update=True)

        _, stats = pure.run(fun, jnp.full(4, 1000, jnp.bfloat16))
        assert {x.dtype for x in stats} == {jnp.dtype(f32)}
        assert float(stats[0]) == pytest.approx(1000)


class TestSlowModel:
    def build(self, **kwargs):
        def fun(x, kernel):
            source, copy = (nets.Linear(2, name=k) for k in ("source", "copy"))
            slow = utils.SlowModel(copy, source=source, **kwargs)
            before = source(x), slow(x)
            source.write("kernel", kernel)
            slow.update()
            return before, (source(x), slow(x))

        return fun

    def test_starts_equal_and_follows(self):
        x, kernel = normal(4, 3), normal(3, 2, seed=1)
        fun = self.build(rate=0.25)
        state, ((first, copy), _) = pure.run(fun, x, kernel)
        np.testing.assert_array_equal(first, copy)
        start = state["copy/kernel"]
        state, _ = pure.run(fun, x, kernel, state={**state, "copy/kernel": 0 * start})
        np.testing.assert_allclose(state["copy/kernel"], 0.25 * kernel, rtol=1e-6)
        state, _ = pure.run(fun, x, kernel, state=state)
        np.testing.assert_allclose(state["copy/kernel"], (1 - 0.75**2) * kernel, rtol=1e-6)
        np.testing.assert_array_equal(state["source/kernel"], kernel)
        assert int(state["copy_count/value"]) == 3

    def test_every_third_update(self):
        x, fun, found = normal(4, 3), self.build(rate=1.0, every=3), []
        state, _ = pure.run(fun, x, np.full((3, 2), 9, np.float32))
        for i in range(6):
            state, _ = pure.run(fun, x, np.full((3, 2), i, np.float32), state=state)
            found.append(float(state["copy/kernel"][0, 0]))
        assert found == [9, 9, 2, 2, 2, 5]

    def test_source_must_come_first(self):
        def fun(x):
            source, copy = (nets.Linear(2, name=k) for k in ("source", "copy"))
            return utils.SlowModel(copy, source=source)(x)

        with pytest.raises(AssertionError, match="before its slow copy"):
            pure.run(fun, normal(4, 3))
        with pytest.raises(AssertionError):
            utils.SlowModel(nets.Linear(2, name="m"), source=nets.Linear(2, name="n"), rate=0.0)


class Layer(nj.Module):
    """A residual layer with a count of its calls inside, and one outside of it."""

    def __init__(self, outside=None):
        self.outside = outside

    def __call__(self, x, bias=0.0, scale=1.0):
        if self.outside:
            self.outside.write(2 * self.outside.read() + 1)
        self.write("calls", self.value("calls", jnp.zeros, (), jnp.int32) + 1)
        return x + scale * jnp.tanh(self.sub("linear", nets.Linear, 3)(x) + bias)

    def noisy(self, x):
        return x + jax.random.normal(nj.seed(), x.shape)

    def plain(self):
        return "plain"


class TestLayerScan:
    count = 4

    def scanned(self, *args, **kwargs):
        outside = nj.Variable(jnp.zeros, (), name="outside")
        layer = Layer(outside, name="layer")
        return utils.LayerScan(layer, self.count)(*args, **kwargs)

    def looped(self, state, x, bias=None, **kwargs):
        """The same with a loop over layers, each with its own entry of the state."""
        for i in range(self.count):
            inner = {k: v[i] for k, v in state.items() if k.startswith("layer/")}
            args = (x,) if bias is None else (x, bias[i])
            x = nj.pure(lambda *xs, **kw: Layer(name="layer")(*xs, **kw))(inner, *args, **kwargs)[
                1
            ]
        return x

    def test_equals_a_loop(self):
        x, bias = normal(2, 3), normal(self.count, 2, 3, seed=1)
        state, _ = pure.run(self.scanned, x)
        assert state["layer/linear/kernel"].shape == (self.count, 3, 3)
        kernels = np.asarray(state["layer/linear/kernel"]).reshape((self.count, -1))
        assert len(np.unique(kernels.round(5), axis=0)) == self.count
        for args, kwargs in [((x,), {}), ((x, bias), {}), ((x,), {"scale": 0.5})]:
            fun = functools.partial(self.scanned, **kwargs)
            _, found = pure.run(fun, *args, state=state)
            wanted = self.looped(state, *args, **kwargs)
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)

    def test_state(self):
        state, _ = pure.run(self.scanned, normal(2, 3))
        assert state["layer/calls"].tolist() == [1] * self.count
        assert float(state["outside/value"]) == 2**self.count - 1
        state, _ = pure.run(self.scanned, normal(2, 3), state=state)
        assert state["layer/calls"].tolist() == [2] * self.count
        assert float(state["outside/value"]) == 2 ** (2 * self.count) - 1

    def test_gradient(self):
        x = normal(2, 3)
        state, _ = pure.run(self.scanned, x)
        floats = {k: v for k, v in state.items() if k.startswith("layer/linear/")}
        rest = {k: v for k, v in state.items() if k not in floats}

        def loss(fun, floats):
            return jnp.square(fun({**rest, **floats})).sum()

        scanned = lambda state: nj.pure(self.scanned)(state, x)[1]  # noqa: E731
        found = jax.jit(jax.grad(functools.partial(loss, scanned)))(floats)
        looped = lambda state: self.looped(state, x)  # noqa: E731
        wanted = jax.jit(jax.grad(functools.partial(loss, looped)))(floats)
        for key, value in wanted.items():
            np.testing.assert_allclose(found[key], value, rtol=1e-4, atol=1e-6)
            assert value.any(axis=tuple(range(1, value.ndim))).all()

    def test_each_layer_has_its_own_seed(self):
        def fun(x, count):
            return utils.LayerScan(Layer(name="layer"), count, ("noisy",)).noisy(x)

        x = jnp.zeros((1000,))
        _, one = pure.run(lambda x: fun(x, 1), x)
        _, four = pure.run(lambda x: fun(x, 4), x)
        assert float(one.std()) == pytest.approx(1, abs=0.1)
        assert float(four.std()) == pytest.approx(2, abs=0.2)

    def test_other_attributes_are_those_of_the_layer(self):
        layer = Layer(name="layer")
        scanned = utils.LayerScan(layer, 4)
        assert scanned.plain() == "plain"
        assert scanned.path == "layer"
        with pytest.raises(AttributeError):
            scanned.nothing

    def test_wrong_leading_axis(self):
        with pytest.raises(AssertionError):
            pure.run(self.scanned, normal(2, 3), normal(3, 2, 3))


class Cell(nj.Module):
    def __call__(self, carry, x):
        carry = 0.5 * carry + self.sub("linear", nets.Linear, 2)(x)
        return carry, {"y": carry + 1}


class TestScan:
    @pytest.mark.parametrize("axis", [0, 1])
    def test_equals_a_loop(self, axis):
        xs = normal(5, 3, 4) if axis == 0 else normal(3, 5, 4)
        carry = normal(3, 2)
        cell = lambda *args: Cell(name="cell")(*args)  # noqa: E731
        fun = lambda carry, xs: utils.scan(cell, carry, xs, axis=axis)  # noqa: E731
        state, created = pure.run(fun, carry, xs)
        found = nj.pure(fun)(state, carry, xs)[1]
        ys = []
        for i in range(5):
            carry, out = nj.pure(cell)(state, carry, xs.take(i, axis))[1]
            ys.append(out["y"])
        for last, outputs in (created, found):
            np.testing.assert_allclose(last, carry, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(outputs["y"], np.stack(ys, axis), rtol=1e-5, atol=1e-6)

    def test_length_and_seeds(self):
        step = lambda carry, _: (carry, jax.random.uniform(nj.seed()))  # noqa: E731
        draws = nj.pure(lambda: utils.scan(step, (), None, 6)[1])({}, seed=0)[1]
        assert len(set(draws.tolist())) == 6
        seeds = nj.pure(lambda: utils.scan(lambda c, _: (c, nj.seed(optional=True)), 0, None, 6))
        assert seeds({})[1] == (0, None)

    def test_writing_is_an_error(self):
        def fun():
            count = nj.Variable(jnp.zeros, (), name="count")
            count.read()
            return utils.scan(lambda c, _: (c, count.write(count.read() + 1)), 0, None, 3)

        with pytest.raises(RuntimeError, match="Cannot modify"):
            nj.pure(fun)({"count/value": jnp.zeros(())})


class TestFrozen:
    def test_value_without_gradient(self):
        x = normal(2, 3)
        layer = lambda x: nets.Linear(2, name="m")(x)  # noqa: E731
        fun = lambda x: utils.frozen(layer, x)  # noqa: E731
        state, created = pure.run(fun, x)
        found = nj.pure(fun)(state, x)[1]
        np.testing.assert_allclose(found, nj.pure(layer)(state, x)[1], rtol=1e-6)
        np.testing.assert_allclose(found, created, rtol=1e-6)
        total = lambda state, x: nj.pure(fun)(state, x)[1].sum()  # noqa: E731
        grads = jax.grad(total, argnums=(0, 1))(state, x)
        assert not any(v.any() for v in jax.tree.leaves(grads))

    def test_seeds(self):
        draw = lambda: jax.random.uniform(nj.seed())  # noqa: E731
        fun = lambda: (utils.frozen(draw), utils.frozen(draw), draw())  # noqa: E731
        assert len({float(x) for x in nj.pure(fun)({}, seed=0)[1]}) == 3
