import elements
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from embodied.jax import heads, nets, outs

from . import pure

f32 = jnp.float32


@pytest.fixture(autouse=True)
def _float32(monkeypatch):
    monkeypatch.setattr(nets, "COMPUTE_DTYPE", f32)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def call(make, use, *args, fill=True):
    """What `use` reads from the output of a new module h on features."""
    run = pure.call if fill else pure.run
    return run(lambda *xs: use(make(name="h")(*xs)), *args)


FLOATS = elements.Space(np.float32, (2,), -1, 1)
INTEGERS = elements.Space(np.int32, (2,), 0, 5)
PAIRS = {
    "binary": elements.Space(bool, (2,)),
    "categorical": INTEGERS,
    "onehot": INTEGERS,
    "mse": FLOATS,
    "huber": FLOATS,
    "symlog_mse": FLOATS,
    "symexp_twohot": FLOATS,
    "bounded_normal": FLOATS,
    "normal_logstd": FLOATS,
}


class TestHead:
    def test_all_outputs_are_tested(self):
        assert set(PAIRS) == set(heads.OUTPUTS)
        with pytest.raises(AssertionError, match="softmax"):
            heads.Head((), "softmax", name="h")

    @pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
    @pytest.mark.parametrize("output", heads.OUTPUTS)
    def test_shapes_and_dtypes(self, output, dtype, monkeypatch):
        monkeypatch.setattr(nets, "COMPUTE_DTYPE", dtype)
        space = PAIRS[output]
        event = np.zeros((3, 4, 2), np.float32 if space is FLOATS else np.int32)
        if output == "onehot":
            event = np.eye(5, dtype=np.float32)[event]

        def use(output):
            return {"loss": output.loss(event), "pred": output.pred()}

        state, found = call(
            lambda name: heads.Head(space, output, name=name), use, normal(3, 4, 6)
        )
        assert found["loss"].shape == (3, 4)
        assert found["loss"].dtype == f32
        assert found["pred"].shape == event.shape
        assert {x.dtype for x in state.values()} == {jnp.dtype(f32)}
        assert np.isfinite(found["loss"]).all()

    @pytest.mark.parametrize("output", ["binary", "mse", "symexp_twohot", "normal_logstd"])
    def test_scalars(self, output):
        make = lambda name: heads.Head((), output, name=name)  # noqa: E731
        _, (pred, loss) = call(make, lambda x: (x.pred(), x.loss(jnp.zeros(3))), normal(3, 6))
        assert pred.shape == loss.shape == (3,)

    def test_zero_scale_predicts_zero(self):
        x = normal(3, 6) * 100
        use = lambda x: x.pred()  # noqa: E731
        for output, wanted in [("symexp_twohot", 0), ("mse", 0), ("binary", False)]:
            make = lambda name, o=output: heads.Head((), o, outscale=0.0, name=name)  # noqa: E731
            _, pred = call(make, use, x, fill=False)
            assert pred.tolist() == [wanted] * 3

    def test_bounded_normal_keeps_its_bounds(self):
        make = lambda name: heads.Head(  # noqa: E731
            FLOATS, "bounded_normal", minstd=0.2, maxstd=0.7, name=name
        )
        use = lambda x: (x.output.mean, x.output.stddev, x.output.bounds)  # noqa: E731
        _, (mean, std, bounds) = call(make, use, normal(100, 6) * 20)
        assert (jnp.abs(mean) <= 1).all()
        assert 0.2 <= float(std.min()) < 0.25
        assert 0.65 < float(std.max()) <= 0.7 + 1e-6
        assert bounds == pytest.approx((0.2, 0.7))

    @pytest.mark.parametrize("output", ["categorical", "onehot"])
    def test_unimix(self, output):
        make = lambda name: heads.Head(INTEGERS, output, unimix=0.1, name=name)  # noqa: E731
        dist = lambda x: x.output if output == "categorical" else x.output.dist  # noqa: E731
        use = lambda x: jax.nn.softmax(dist(x).logits)  # noqa: E731
        _, probs = call(make, use, normal(50, 6) * 50)
        assert float(probs.min()) == pytest.approx(0.1 / 5, rel=1e-3)

    def test_onehot_of_a_float_space(self):
        space = elements.Space(np.float32, (2, 7))
        make = lambda name: heads.Head(space, "onehot", name=name)  # noqa: E731
        _, sample = call(make, lambda x: x.sample(jax.random.PRNGKey(0)), normal(3, 6))
        assert sample.shape == (3, 2, 7)
        assert (sample.sum(-1) == 1).all()

    def test_fields_reach_the_linear_layer(self):
        kw = {"bias": False, "winit": "zeros"}
        make = lambda name: heads.Head((), "mse", **kw, name=name)  # noqa: E731
        state, _ = call(make, lambda x: x.pred(), normal(3, 6), fill=False)
        assert list(state) == ["h/pred/kernel"]
        assert not state["h/pred/kernel"].any()


class TestBins:
    @pytest.mark.parametrize("count", [3, 6, 41, 255, 256])
    def test_symmetric_and_ascending(self, count):
        bins = np.asarray(heads.symexp_bins(count))
        assert bins.shape == (count,)
        np.testing.assert_array_equal(bins, -bins[::-1])
        assert (np.diff(bins) >= 0).all()
        assert (bins == 0).sum() == (1 if count % 2 else 2)
        assert bins[-1] == pytest.approx(np.expm1(20), rel=1e-5)


class TestMLPHead:
    def test_feature_axes_are_flattened(self):
        make = lambda name: heads.MLPHead((), "mse", layers=1, units=4, name=name)  # noqa: E731

        def fun(x, flat):
            head = make("h")
            return head(x, 2).pred(), head(flat, 2).pred()

        x = normal(3, 2, 5, 4)
        state, (one, two) = pure.call(fun, x, x.reshape((3, 2, 20)))
        assert state["h/mlp/linear0/kernel"].shape == (20, 4)
        assert one.shape == (3, 2)
        np.testing.assert_array_equal(one, two)

    def test_dict_of_spaces(self):
        spaces = {"turn": FLOATS, "jump": INTEGERS}
        outputs = {"turn": "bounded_normal", "jump": "categorical"}
        kw = {"layers": 1, "units": 4, "minstd": 0.1, "unimix": 0.01, "outscale": 0.5}
        make = lambda name: heads.MLPHead(spaces, outputs, **kw, name=name)  # noqa: E731

        def fun(x):
            output = make("h")(x, 1)
            assert isinstance(output["jump"].output, outs.Categorical)
            return {k: v.logp(v.pred()) for k, v in output.items()}

        state, found = pure.call(fun, normal(3, 6))
        assert {k: v.shape for k, v in found.items()} == {"turn": (3,), "jump": (3,)}
        assert {k for k in state if "/head/" in k} == {
            f"h/head/{x}/{y}"
            for x in ("turn/mean", "turn/stddev", "jump/logits")
            for y in ("kernel", "bias")
        }

    def test_one_output_for_all(self):
        spaces = {"a": FLOATS, "b": elements.Space(np.float32)}
        make = lambda name: heads.DictHead(spaces, "mse", name=name)  # noqa: E731
        _, found = call(make, lambda x: {k: v.pred() for k, v in x.items()}, normal(3, 6))
        assert found["a"].shape == (3, 2)
        assert found["b"].shape == (3,)
