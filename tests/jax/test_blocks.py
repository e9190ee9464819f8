import functools

import elements
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from embodied.jax import blocks, nets

from . import pure

f32 = jnp.float32


@pytest.fixture(autouse=True)
def _float32(monkeypatch):
    monkeypatch.setattr(nets, "COMPUTE_DTYPE", f32)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def call(make, *args, state=None, seed=0, **kwargs):
    """State and output of a new module named m."""
    fun = lambda *xs: make(name="m")(*xs, **kwargs)  # noqa: E731
    return pure.call(fun, *args, state=state, seed=seed)


CAUSAL = np.tril(np.ones((2, 5, 5), bool))


class TestAttention:
    @pytest.mark.parametrize("kw", [{}, {"kv_heads": 1}, {"kv_heads": 2, "qknorm": "rms"}])
    def test_mask_hides_the_future(self, kw):
        make = functools.partial(blocks.Attention, heads=4, **kw)
        x = normal(2, 5, 16)
        state, y = call(make, x, CAUSAL)
        later = x + normal(2, 5, 16, seed=1) * (np.arange(5) > 2)[:, None]
        _, other = call(make, later, CAUSAL, state=state)
        np.testing.assert_allclose(y[:, :3], other[:, :3], rtol=1e-5, atol=1e-6)
        assert not np.allclose(y[:, 3:], other[:, 3:], atol=1e-2)
        _, whole = call(make, x, state=state)
        np.testing.assert_allclose(whole[:, -1], y[:, -1], rtol=1e-5, atol=1e-6)

    def test_grouped_queries_share_keys(self):
        # As many key and value heads as query heads, each one twice, give the same.
        x = normal(2, 5, 16)
        few = functools.partial(blocks.Attention, heads=4, kv_heads=2)
        state, y = call(few, x)
        q, k, v = (np.asarray(state[f"m/{n}/kernel"]) for n in "qkv")
        bq, bk, bv = (np.asarray(state[f"m/{n}/bias"]) for n in "qkv")

        def twice(x):
            heads = x.reshape((*x.shape[:-1], 2, 4)).repeat(2, -2)
            return heads.reshape((*x.shape[:-1], 16))

        full = {
            "m/qkv/kernel": np.concatenate([q, twice(k), twice(v)], -1),
            "m/qkv/bias": np.concatenate([bq, twice(bk), twice(bv)], -1),
            **{k: v for k, v in state.items() if "/proj/" in k},
        }
        _, wanted = call(functools.partial(blocks.Attention, heads=4), x, state=full)
        np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-5)

    def test_without_positions_order_does_not_matter(self):
        x = normal(2, 5, 16)
        make = functools.partial(blocks.Attention, heads=4)
        order = np.array([3, 1, 4, 0, 2])
        for rope, same in [(False, True), (True, False)]:
            state, y = call(functools.partial(make, rope=rope), x)
            _, other = call(functools.partial(make, rope=rope), x[:, order], state=state)
            assert np.allclose(y[:, order], other, atol=1e-5) == same

    def test_given_positions(self):
        x, make = normal(2, 5, 16), functools.partial(blocks.Attention, heads=4)
        state, y = call(make, x)
        for ts, same in [(np.arange(5) + 100, True), (np.arange(5) * 3, False)]:
            _, other = call(make, x, ts=np.stack([ts, ts]), state=state)
            assert np.allclose(y, other, atol=1e-3) == same

    def test_sizes_that_do_not_divide(self):
        for kw in [{"heads": 3}, {"heads": 4, "kv_heads": 3}]:
            with pytest.raises(AssertionError):
                call(functools.partial(blocks.Attention, **kw), normal(2, 5, 16))


class TestTransformer:
    make = functools.partial(blocks.Transformer, units=16, layers=2, heads=4)

    def test_layers_have_their_own_parameters(self):
        state, _ = call(self.make, normal(2, 5, 16))
        names = ["norm1/scale", "norm2/scale"]
        names += [f"{x}/{y}" for x in ("mha/qkv", "mha/proj") for y in ("kernel", "bias")]
        names += [f"{x}/{y}" for x in ("ff1", "ff2") for y in ("kernel", "bias")]
        wanted = [f"m/layer{i}/{x}" for i in range(2) for x in names]
        assert sorted(state) == sorted([*wanted, "m/outnorm/scale"])

    def test_every_layer_matters(self):
        state, _ = call(self.make, normal(2, 5, 16))

        def loss(state):
            return call(self.make, normal(2, 5, 16), state=state)[1].mean(0)[0, 0]

        assert all(v.any() for v in jax.jit(jax.grad(loss))(state).values())

    @pytest.mark.parametrize("glu", [False, True])
    def test_mask_hides_the_future(self, glu):
        make = functools.partial(self.make, glu=glu)
        x = normal(2, 5, 16)
        state, y = call(make, x, CAUSAL)
        later = x + (np.arange(5) > 2)[:, None] * normal(2, 5, 16, seed=1)
        _, other = call(make, later, CAUSAL, state=state)
        np.testing.assert_allclose(y[:, :3], other[:, :3], rtol=1e-4, atol=1e-5)
        assert ("m/layer1/ff3/kernel" in state) == glu

    def test_dropout_in_training_alone(self):
        make = functools.partial(blocks.Transformer, units=8, layers=1, heads=2, dropout=0.5)
        x = normal(2, 3, 8)
        state, y = call(make, x, training=False)
        np.testing.assert_array_equal(call(make, x, state=state, training=False, seed=1)[1], y)
        first, second = (call(make, x, state=state, seed=i)[1] for i in (0, 1))
        assert not np.allclose(first, y)
        assert not np.allclose(first, second)

    def test_other_width_of_the_input(self):
        with pytest.raises(AssertionError):
            call(self.make, normal(2, 5, 8))

    def test_compute_dtype(self, monkeypatch):
        monkeypatch.setattr(nets, "COMPUTE_DTYPE", jnp.bfloat16)
        state, y = call(self.make, normal(2, 5, 16))
        assert y.dtype == jnp.bfloat16
        assert {x.dtype for x in state.values()} == {jnp.dtype(f32)}


class TestGRU:
    make = functools.partial(blocks.GRU, units=6)

    def test_scan_equals_single_steps(self):
        carry, xs = normal(3, 6), normal(3, 4, 5)
        resets = np.random.default_rng(0).random((3, 4)) < 0.5
        state, (last, ys) = call(self.make, carry, xs, resets)
        for t in range(4):
            args = (carry, xs[:, t], resets[:, t])
            _, (carry, y) = call(self.make, *args, state=state, single=True)
            np.testing.assert_allclose(y, ys[:, t], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(carry, last, rtol=1e-5, atol=1e-6)

    def test_reset_forgets(self):
        xs, resets = normal(1, 4, 5), np.bool_([[False, False, True, False]])
        state, (_, ys) = call(self.make, normal(1, 6), xs, resets)
        _, (_, other) = call(self.make, normal(1, 6, seed=1), xs, resets, state=state)
        assert not np.allclose(ys[:, :2], other[:, :2])
        np.testing.assert_array_equal(ys[:, 2:], other[:, 2:])

    def test_initial(self):
        _, carry = pure.run(lambda: self.make(name="m").initial(3))
        assert carry.shape == (3, 6)
        assert not carry.any()


SPACES = {
    "speed": elements.Space(np.float32, (2,)),
    "kind": elements.Space(np.int32, (), 0, 3),
    "slots": elements.Space(np.int32, (2,), 0, 2),
    "flag": elements.Space(bool),
}


def values(**changes):
    return {
        "speed": np.float32([[1, -2], [3, 0]]),
        "kind": np.int32([2, 0]),
        "slots": np.int32([[0, 1], [1, 1]]),
        "flag": np.bool_([True, False]),
        **changes,
    }


class TestDictConcat:
    def test_sorted_keys_and_onehot(self):
        y = blocks.DictConcat(SPACES)(values())
        flag, kind, slots = [0, 1], [0, 0, 1], [1, 0, 0, 1]
        assert y[0].tolist() == [*flag, *kind, *slots, 1, -2]
        shuffled = {k: SPACES[k] for k in reversed(SPACES)}
        np.testing.assert_array_equal(y, blocks.DictConcat(shuffled)(values()))

    def test_squish_floats_alone(self):
        y = blocks.DictConcat(SPACES, squish=nets.symlog)(values())
        np.testing.assert_allclose(y[0, -2:], [np.log(2), -np.log(3)], rtol=1e-6)
        np.testing.assert_array_equal(y[:, :-2], blocks.DictConcat(SPACES)(values())[:, :-2])

    def test_missing_values_are_zeros(self):
        some = values(speed=np.float32([[-np.inf, 1], [3, 0]]), kind=np.int32([2, -1]))
        y = blocks.DictConcat(SPACES)(some)
        assert not y[0, -2:].any()
        assert not y[1, 2:5].any()
        full = blocks.DictConcat(SPACES)(values())
        np.testing.assert_array_equal(y[1, 5:], full[1, 5:])

    def test_classes_count_from_the_lower_bound(self):
        spaces = {
            "a": elements.Space(np.int32, (2,), np.array([-1, 2]), np.array([2, 4])),
            "b": elements.Space(np.uint8),
        }
        y = blocks.DictConcat(spaces)({"a": np.int32([[-1, 3]]), "b": np.uint8([255])})
        assert y[0, :6].tolist() == [1, 0, 0, 0, 1, 0]
        assert y[0, 6:].tolist() == [*[0] * 255, 1]

    def test_many_integers_are_numbers(self):
        spaces = {"a": elements.Space(np.int32, (2,), -5000, 5000), "b": elements.Space(np.uint32)}
        y = blocks.DictConcat(spaces, squish=lambda x: 2 * x)(
            {"a": np.int32([[-1, 3]]), "b": np.uint32([7])}
        )
        assert y[0].tolist() == [-2, 6, 14]

    def test_more_axes(self):
        spaces = {"a": elements.Space(np.float32, (3, 2)), "b": elements.Space(np.float32, (3, 1))}
        xs = {"a": normal(4, 3, 2), "b": normal(4, 3, 1)}
        y = blocks.DictConcat(spaces, fdims=2)(xs)
        np.testing.assert_array_equal(y, np.concatenate([xs["a"], xs["b"]], -1))

    def test_inputs_stay_as_they_are(self):
        xs = values(speed=np.float32([[-np.inf, 1], [3, 0]]))
        before = {k: v.copy() for k, v in xs.items()}
        blocks.DictConcat(SPACES, squish=nets.symlog)(xs)
        np.testing.assert_equal(xs, before)


class TestDictEmbed:
    make = functools.partial(blocks.DictEmbed, SPACES, 4)

    def test_sum_of_the_parts(self):
        state, y = call(self.make, values())
        linear = values()["speed"] @ state["m/speed/kernel"] + state["m/speed/bias"]
        kind = state["m/kind/table"][values()["kind"]]
        slots = sum(state["m/slots/table"][i][values()["slots"][:, i]] for i in range(2))
        flag = state["m/flag/table"][values()["flag"].astype(int)]
        np.testing.assert_allclose(y, linear + kind + slots + flag, rtol=1e-5, atol=1e-6)

    def test_any_character_in_a_key(self):
        spaces = {"a-b/c": elements.Space(np.float32), "a_b_c": elements.Space(np.int32, (), 0, 2)}
        make = functools.partial(blocks.DictEmbed, spaces, 4)
        state, _ = call(make, {"a-b/c": np.float32([1]), "a_b_c": np.int32([1])})
        assert {"m/a_x2d_b_x2f_c/kernel", "m/a_b_c/table"} < set(state)

    def test_missing_values_add_nothing(self):
        missing = {
            "speed": np.full((2, 2), -np.inf, np.float32),
            "kind": np.int32([-1, -1]),
            "slots": np.full((2, 2), -1),
        }
        state, y = call(self.make, values(**missing))
        flag = state["m/flag/table"][values()["flag"].astype(int)]
        np.testing.assert_allclose(y, flag, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (elements.Space(np.int32, (2,), np.array([-1, 2]), np.array([2, 4])), np.int32([1, 3])),
        (elements.Space(np.uint8, (), 3, 9), np.uint8(8)),
        (elements.Space(bool), np.bool_(True)),
    ],
)
def test_classes_and_back(space, value):
    index = blocks.to_classes(jnp.asarray(value), space)
    assert index.dtype == jnp.int32
    low = 0 if space.dtype == bool else space.low
    np.testing.assert_array_equal(index, value.astype(int) - low)
    back = blocks.from_classes(index, space)
    assert back.dtype == space.dtype
    np.testing.assert_array_equal(back, value)


def test_classes_of_the_largest_entry():
    assert blocks.classes(elements.Space(np.int32, (2,), 0, np.array([3, 5]))) == 5
    assert blocks.classes(elements.Space(bool)) == 2
    assert blocks.classes(elements.Space(np.uint8)) == 256
    assert blocks.classes(elements.Space(np.int32, (), 2, 6)) == 4
