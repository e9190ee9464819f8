import jax
import jax.numpy as jnp
import ninjax as nj
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.jax import nets

from . import pure
from .pure import run

f32 = jnp.float32


@pytest.fixture(autouse=True)
def _float32(monkeypatch):
    monkeypatch.setattr(nets, "COMPUTE_DTYPE", f32)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def call(make, *args, state=None, fill=True):
    """State and output of a new module named m, with initial values if not filled."""
    fun = pure.call if fill else pure.run
    return fun(lambda *xs: make(name="m")(*xs), *args, state=state)


LAYERS = {
    "linear": (lambda name: nets.Linear(4, name=name), (2, 3)),
    "blocklinear": (lambda name: nets.BlockLinear(4, 2, name=name), (2, 6)),
    "conv2d": (lambda name: nets.Conv2D(4, 3, name=name), (2, 5, 5, 3)),
    "conv3d": (lambda name: nets.Conv3D(4, 3, name=name), (2, 3, 3, 3, 2)),
    "mlp": (lambda name: nets.MLP(2, 4, name=name), (2, 3)),
    "norm": (lambda name: nets.Norm("layer", name=name), (2, 4)),
}


class TestDtypes:
    @pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
    @pytest.mark.parametrize("name", LAYERS)
    def test_parameters_are_float32_and_outputs_are_not(self, name, dtype, monkeypatch):
        make, shape = LAYERS[name]
        _, y32 = call(make, normal(*shape))
        monkeypatch.setattr(nets, "COMPUTE_DTYPE", dtype)
        state, y = call(make, nets.cast(normal(*shape)))
        assert {x.dtype for x in state.values()} == {jnp.dtype(f32)}
        assert y.dtype == dtype
        np.testing.assert_allclose(y.astype(f32), y32, atol=0.03 * float(jnp.abs(y32).max()))

    def test_embed(self, monkeypatch):
        monkeypatch.setattr(nets, "COMPUTE_DTYPE", jnp.bfloat16)
        _, y = call(lambda name: nets.Embed(5, 3, name=name), jnp.arange(5))
        assert y.dtype == jnp.bfloat16

    @pytest.mark.parametrize("impl", ["rms", "layer"])
    def test_norm_does_not_overflow(self, impl, monkeypatch):
        monkeypatch.setattr(nets, "COMPUTE_DTYPE", jnp.float16)
        x = jnp.array([[-3e4, 3e4]], jnp.float16)
        _, y = call(lambda name: nets.Norm(impl, name=name), x, fill=False)
        np.testing.assert_allclose(y, [[-1, 1]], rtol=1e-3)

    def test_wrong_input_is_named(self, monkeypatch):
        monkeypatch.setattr(nets, "COMPUTE_DTYPE", jnp.bfloat16)
        with pytest.raises(TypeError, match=r"Linear.* the input is float32, bfloat16 is right"):
            call(lambda name: nets.Linear(4, name=name), jnp.ones((2, 3)))

    def test_wrong_output_is_named(self):
        class Layer:
            @nets.ensure_dtypes
            def run(self, x):
                return x, x.astype(jnp.float16)

        with pytest.raises(TypeError, match=r"Layer\.run: the output is float16, float32 is"):
            Layer().run(jnp.ones(3))
        with pytest.raises(TypeError, match="the input is float16"):
            Layer().run(x=jnp.ones(3, jnp.float16))

    def test_cast_leaves_integers_unless_forced(self, monkeypatch):
        monkeypatch.setattr(nets, "COMPUTE_DTYPE", jnp.bfloat16)
        tree = {"x": np.float32([1]), "i": np.uint8([1]), "b": np.bool_([True])}
        assert [x.dtype for x in jax.tree.leaves(nets.cast(tree))] == [bool, np.uint8, "bfloat16"]
        assert {x.dtype for x in jax.tree.leaves(nets.cast(tree, force=True))} == {
            jnp.dtype("bfloat16")
        }


class TestFunctions:
    @given(st.floats(-1e6, 1e6, width=32))
    @settings(max_examples=50, deadline=None)
    def test_symexp_inverts_symlog(self, x):
        assert nets.symexp(nets.symlog(np.float32(x))) == pytest.approx(x, rel=1e-4, abs=1e-30)

    def test_symlog_has_slope_one_at_zero(self):
        assert jax.grad(nets.symlog)(1e-6) == pytest.approx(1, abs=1e-5)
        assert jax.grad(nets.symexp)(1e-6) == pytest.approx(1, abs=1e-5)

    def test_activations(self):
        x = normal(2, 6)
        np.testing.assert_array_equal(nets.act("none")(x), x)
        np.testing.assert_allclose(nets.act("relu2")(x), np.maximum(x, 0) ** 2, rtol=1e-6)
        np.testing.assert_array_equal(nets.act("silu")(x), jax.nn.silu(x))
        gate, value = x[:, :3], x[:, 3:]
        np.testing.assert_allclose(nets.act("swiglu")(x), jax.nn.silu(gate) * value, rtol=1e-6)
        with pytest.raises(AttributeError, match="silou"):
            nets.act("silou")

    def test_where_and_mask_broadcast_over_trailing_axes(self):
        keep = jnp.array([True, False])
        tree = {"a": np.ones((2, 3)), "b": np.full((2, 2, 2), 5)}
        masked = nets.mask(tree, keep)
        assert masked["a"].tolist() == [[1, 1, 1], [0, 0, 0]]
        assert masked["b"].sum((1, 2)).tolist() == [20, 0]
        chosen = nets.where(keep, tree, {"a": np.zeros((2, 3)), "b": np.ones((2, 2, 2), int)})
        assert chosen["b"].sum((1, 2)).tolist() == [20, 4]
        with pytest.raises(AssertionError):
            nets.mask(tree, jnp.array([1, 0]))

    def test_mask_stops_nan(self):
        # Not a product: a masked entry must not spoil the rest, in the gradient either.
        x = jnp.array([1.0, jnp.nan])
        keep = jnp.array([True, False])
        assert nets.mask(x, keep).tolist() == [1, 0]
        assert jax.grad(lambda x: nets.mask(x, keep).sum())(x).tolist() == [1, 0]

    def test_available(self):
        x = jnp.array([[1.0, -jnp.inf], [0, 0]])
        i = jnp.array([3, -1])
        assert nets.available(x, bdims=1).tolist() == [False, True]
        assert nets.available(x, bdims=2).tolist() == [[True, False], [True, True]]
        assert nets.available({"x": x, "i": i}).tolist() == [False, False]
        assert nets.available(jnp.array([255, 0], jnp.uint8)).tolist() == [True, True]
        assert nets.available(jnp.array([True, False])).tolist() == [True, True]

    def test_dropout(self):
        x = jnp.ones(10_000)
        _, y = run(lambda x: nets.dropout(x, 0.25, True), x)
        assert float((y == 0).mean()) == pytest.approx(0.25, abs=0.02)
        assert float(y.mean()) == pytest.approx(1, abs=0.02)
        for rate, training in [(0.25, False), (0.0, True)]:
            assert nets.dropout(x, rate, training) is x

    def test_rms_over_a_tree(self):
        tree = {"a": jnp.full((3,), 2.0), "b": jnp.zeros((1, 1))}
        assert nets.rms(tree) == pytest.approx(3**0.5)

    def test_composite_layers_are_attributes(self):
        assert nets.GRU.__module__ == "embodied.jax.blocks"
        with pytest.raises(AttributeError, match="GRUU"):
            nets.GRUU


class TestRope:
    def test_products_depend_on_distance_alone(self):
        q, k = normal(1, 1, 1, 8), normal(1, 1, 1, 8, seed=1)

        def product(t, s):
            ts = [jnp.array([[x]]) for x in (t, s)]
            return float((nets.rope(q, ts[0]) * nets.rope(k, ts[1])).sum())

        assert product(7, 3) == pytest.approx(product(104, 100), rel=1e-4)
        assert product(7, 3) != pytest.approx(product(7, 4), rel=1e-3)

    def test_inverse_and_length(self):
        x, ts = normal(2, 4, 3, 8), jnp.array([[3, 1, 4, 1], [5, 9, 2, 6]])
        y = nets.rope(x, ts)
        norm = lambda x: np.linalg.norm(x, axis=-1)  # noqa: E731
        np.testing.assert_allclose(norm(y), norm(x), rtol=1e-5)
        np.testing.assert_allclose(nets.rope(y, ts, inverse=True), x, atol=1e-5)
        np.testing.assert_array_equal(nets.rope(x), nets.rope(x, jnp.arange(4)[None]))


class TestInitializer:
    @pytest.mark.parametrize(
        ("shape", "fans"),
        [
            ((), (1, 1)),
            ((7,), (1, 7)),
            ((3, 4), (3, 4)),
            ((5, 5, 3, 4), (75, 100)),
            ((8, 3, 4), (24, 32)),
            ((2, 2, 2, 3, 4), (24, 32)),
        ],
    )
    def test_fans(self, shape, fans):
        assert nets.Initializer.fans(shape) == fans

    @pytest.mark.parametrize("fan", nets.Initializer.FANS)
    def test_fan_sets_the_scale(self, fan):
        size = {"none": 1, "in": 100, "out": 400, "avg": 250}[fan]
        make = nets.init(f"normal_{fan}")
        _, value = run(lambda: make((100, 400)))
        assert float(value.std()) == pytest.approx(size**-0.5, rel=0.02)

    def test_other_shape_for_the_fans(self):
        make = nets.Initializer("normal", "in", scale=3.0)
        _, value = run(lambda: make((40_000,), fshape=(100, 400)))
        assert float(value.std()) == pytest.approx(0.3, rel=0.02)

    def test_truncated_normal_ends_at_two_sigma(self):
        _, value = run(lambda: nets.init("trunc_normal")((100, 400)))
        assert float(jnp.abs(value).max()) == pytest.approx(2 * 1.1368 / 10, rel=1e-3)
        assert float(value.std()) == pytest.approx(0.1, rel=0.02)

    def test_normed_outputs_have_unit_length(self):
        _, value = run(lambda: nets.init("normed")((3, 3, 2, 5)))
        np.testing.assert_allclose((value**2).sum((0, 1, 2)), np.ones(5), rtol=1e-5)

    def test_names(self):
        assert run(lambda: nets.init("zeros")(3))[1].tolist() == [0, 0, 0]
        assert run(lambda: nets.init("uniform_none")(3, jnp.bfloat16))[1].dtype == jnp.bfloat16
        assert nets.init(jnp.ones) is jnp.ones
        for name in ("trunc_normal_fan", "xavier", "normal_in_out"):
            with pytest.raises(AssertionError):
                nets.init(name)


class TestLinear:
    def test_units_of_several_axes(self):
        x = normal(2, 5, 3)
        state, y = call(lambda name: nets.Linear((4, 2), name=name), x)
        assert y.shape == (2, 5, 4, 2)
        wanted = x @ state["m/kernel"] + state["m/bias"]
        np.testing.assert_allclose(y.reshape((2, 5, 8)), wanted, rtol=1e-5)

    def test_fields(self):
        kw = {"bias": False, "outscale": 0.0}
        state, y = call(lambda name: nets.Linear(4, **kw, name=name), normal(2, 3), fill=False)
        assert list(state) == ["m/kernel"]
        assert not y.any()
        kw = {"winit": "normal_none", "binit": jnp.ones, "outscale": 2.0}
        make = lambda name: nets.Linear(400, **kw, name=name)  # noqa: E731
        state, _ = call(make, normal(2, 100), fill=False)
        assert float(state["m/kernel"].std()) == pytest.approx(2, rel=0.02)
        assert (state["m/bias"] == 1).all()

    def test_output_passes_through_the_callback(self, monkeypatch):
        seen = []

        def callback(x, path):
            seen.append((path, x.shape))
            return x + 1

        x = normal(2, 3)
        make = lambda name: nets.MLP(1, 4, norm="none", act="none", name=name)  # noqa: E731
        state, before = call(make, x)
        monkeypatch.setattr(nets, "LAYER_CALLBACK", callback)
        _, after = call(make, x, state=state)
        assert seen == [("m/linear0", (2, 4))]
        np.testing.assert_allclose(after, before + 1, rtol=1e-6)


class TestBlockLinear:
    def test_equals_a_block_diagonal_matrix(self):
        x = normal(2, 6)
        state, y = call(lambda name: nets.BlockLinear(9, 3, name=name), x)
        dense = jax.scipy.linalg.block_diag(*state["m/kernel"])
        np.testing.assert_allclose(y, x @ dense + state["m/bias"], rtol=1e-5)

    def test_shared_inputs_are_copied_into_every_block(self):
        x, shared = normal(2, 6), normal(2, 4, seed=1)
        make = lambda name: nets.BlockLinear(9, 3, name=name)  # noqa: E731
        state, y = call(make, x, shared)
        assert state["m/kernel"].shape == (3, 2 + 4, 3)
        blocks = [np.concatenate([x[:, 2 * i : 2 * i + 2], shared], 1) for i in range(3)]
        _, wanted = call(make, np.concatenate(blocks, 1), state=state)
        np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6)

    def test_sizes_that_do_not_divide(self):
        for units, inputs in [(8, 6), (9, 7)]:
            with pytest.raises(AssertionError):
                call(lambda name, u=units: nets.BlockLinear(u, 3, name=name), normal(2, inputs))


class TestConv:
    @pytest.mark.parametrize("kernel", [2, 3, 4, 5])
    @pytest.mark.parametrize("stride", [1, 2, 3])
    def test_shapes(self, kernel, stride):
        def shape(**kw):
            make = lambda name: nets.Conv2D(4, kernel, stride, **kw, name=name)  # noqa: E731
            return jax.eval_shape(lambda x: call(make, x)[1], jnp.ones((2, 9, 6, 3))).shape

        assert shape() == (2, -(-9 // stride), -(-6 // stride), 4)
        assert shape(transp=True) == (2, 9 * stride, 6 * stride, 4)
        valid = [(x - kernel) // stride + 1 for x in (9, 6)]
        assert shape(pad="valid") == (2, *valid, 4)

    def test_transposed_spreads_every_pixel(self):
        # One pixel of an image of zeros becomes the kernel, around its place in the larger grid.
        x = np.zeros((1, 5, 5, 1), np.float32)
        x[0, 2, 2] = 1
        make = lambda name: nets.Conv2D(1, 3, 2, transp=True, bias=False, name=name)  # noqa: E731
        state, y = call(make, x)
        places = np.argwhere(np.abs(y[0, :, :, 0]) > 1e-8)
        assert places.min(0).tolist() == [4, 4]
        assert places.max(0).tolist() == [6, 6]
        np.testing.assert_allclose(
            y[0, 4:7, 4:7, 0], state["m/kernel"][::-1, ::-1, 0, 0], rtol=1e-6
        )

    @pytest.mark.parametrize("transp", [False, True])
    def test_one_stride_per_axis(self, transp):
        # Along an axis of stride 1 it is the convolution of stride 1: a shift moves the result.
        x = normal(1, 8, 8, 2)
        make = lambda name: nets.Conv2D(3, 5, (2, 1), transp=transp, name=name)  # noqa: E731
        state, y = call(make, x)
        assert y.shape == (1, 16 if transp else 4, 8, 3)
        both = lambda name: nets.Conv2D(3, 5, 2, transp=transp, name=name)  # noqa: E731
        assert call(both, x, state=state)[1].shape[1] == y.shape[1]
        middle = {"m/kernel": state["m/kernel"] * np.eye(5)[2][None, :, None, None]}
        _, y = call(make, x, state={**state, **middle})
        _, other = call(make, np.roll(x, 1, 2), state={**state, **middle})
        np.testing.assert_allclose(np.roll(y, 1, 2), other, rtol=1e-5, atol=1e-6)

    def test_groups_do_not_mix(self):
        x = normal(1, 4, 4, 6)
        make = lambda name: nets.Conv2D(4, 3, groups=2, name=name)  # noqa: E731
        state, y = call(make, x)
        assert state["m/kernel"].shape == (3, 3, 3, 4)
        changed = x * np.float32([1, 1, 1, 0, 0, 0])
        _, other = call(make, changed, state=state)
        np.testing.assert_array_equal(y[..., :2], other[..., :2])
        assert not np.allclose(y[..., 2:], other[..., 2:])

    def test_three_axes(self):
        state, y = call(lambda name: nets.Conv3D(4, 3, 2, name=name), normal(1, 4, 6, 8, 2))
        assert state["m/kernel"].shape == (3, 3, 3, 2, 4)
        assert y.shape == (1, 2, 3, 4, 4)


class TestNorm:
    def test_names(self):
        x = normal(3, 8) * 1e-3
        for impl, eps in [("rms", 1e-4), ("rms1em6", 1e-6), ("rms25em3", 25e-3)]:
            _, y = call(lambda name, impl=impl: nets.Norm(impl, name=name), x, fill=False)
            wanted = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)
            np.testing.assert_allclose(y, wanted, rtol=1e-5)
        for impl in ("batch", "rms1e6", "layer-6"):
            with pytest.raises(AssertionError):
                nets.Norm(impl, name="m")
        state, y = call(lambda name: nets.Norm("none", name=name), x)
        assert not state
        np.testing.assert_array_equal(y, x)

    def test_layer_is_blind_to_offset_and_scale(self):
        x = normal(3, 8)
        make = lambda name: nets.Norm("layer", name=name)  # noqa: E731
        state, y = call(make, x, fill=False)
        assert sorted(state) == ["m/scale", "m/shift"]
        np.testing.assert_allclose(call(make, 3 * x + 5, state=state)[1], y, atol=1e-3)
        np.testing.assert_allclose(y.mean(-1), np.zeros(3), atol=1e-5)


class TestEmbed:
    def test_positions_have_their_own_tables(self):
        make = lambda name: nets.Embed(5, 4, (2,), name=name)  # noqa: E731
        state, y = call(make, jnp.array([[1, 3], [0, 4]]))
        table = state["m/table"]
        assert table.shape == (2, 5, 4)
        np.testing.assert_allclose(y[0], table[0, 1] + table[1, 3], rtol=1e-5)
        with pytest.raises(AssertionError):
            call(make, jnp.array([[1, 3, 0]]), state=state)

    @pytest.mark.parametrize("dtype", [jnp.int32, jnp.uint8, bool])
    def test_types(self, dtype):
        state, y = call(lambda name: nets.Embed(2, 4, name=name), jnp.array([0, 1], dtype))
        np.testing.assert_allclose(y, state["m/table"], rtol=1e-6)

    def test_outside_gives_zeros(self):
        _, y = call(lambda name: nets.Embed(5, 4, name=name), jnp.array([-1, 5]))
        assert not y.any()


class TestMLP:
    def test_layers(self):
        state, y = call(
            lambda name: nets.MLP(2, 4, norm="layer", bias=False, name=name), normal(3)
        )
        assert sorted(state) == [
            f"m/{x}"
            for x in (
                *("linear0/kernel", "linear1/kernel"),
                *("norm0/scale", "norm0/shift", "norm1/scale", "norm1/shift"),
            )
        ]
        assert y.shape == (4,)

    def test_no_layers(self):
        x = normal(2, 3)
        state, y = call(lambda name: nets.MLP(0, name=name), x)
        assert not state
        np.testing.assert_array_equal(y, x)

    def test_gradient_reaches_everything(self):
        x = normal(2, 3)
        make = lambda name: nets.MLP(2, 4, name=name)  # noqa: E731
        state, _ = call(make, x)
        loss = lambda state: nj.pure(lambda x: make("m")(x))(state, x)[1].sum()  # noqa: E731
        assert all(v.any() for v in jax.jit(jax.grad(loss))(state).values())
