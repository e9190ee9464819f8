import jax
import jax.numpy as jnp
import ninjax as nj
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from embodied.core.errors import DeviceError
from embodied.jax import internal, nets, transform
from embodied.jax.internal import BATCH, REPLICATED

SEED = np.array([1, 2], np.uint32)
HEAVY = []


@pytest.fixture
def mesh():
    return internal.mesh(jax.devices("cpu")[:1])


class Model(nj.Module):
    """A parameter, a counter, and a step that needs both."""

    def __init__(self):
        self.count = nj.Variable(jnp.zeros, (), jnp.int32, name="count")

    def weight(self):
        return self.value("weight", lambda: jax.random.normal(nj.seed(), (4, 2)))

    def step(self, carry, x):
        HEAVY.append(None)
        self.count.write(self.count.read() + 1)
        y = x @ self.weight() + jax.random.normal(nj.seed(), (len(x), 2))
        if nets.LAYER_CALLBACK:
            y = nets.LAYER_CALLBACK(y, "model/layer")
        return carry + y, {"y": y, "mean": y.mean()}

    def look(self, x, times):
        return times * (x @ self.weight())


@pytest.fixture
def model():
    return Model(name="model")


ARGS = (np.zeros((3, 2), np.float32), np.ones((3, 4), np.float32))
OUTS = (BATCH, {"y": BATCH, "mean": REPLICATED})


def make(model, mesh, **kwargs):
    params, shardings = transform.init(model.step, mesh, SEED, ARGS)
    return params, transform.apply(model.step, mesh, shardings, (BATCH, BATCH), **kwargs)


class TestInit:
    def test_creates_what_the_function_reads(self, model, mesh):
        params, shardings = transform.init(model.step, mesh, SEED, ARGS)
        assert {k: v.shape for k, v in params.items()} == {
            "model/weight": (4, 2),
            "model/count/value": (),
        }
        assert params["model/count/value"] == 0  # Writes during creation do not count.
        assert {k: v.sharding for k, v in params.items()} == shardings

    def test_takes_shapes_instead_of_arrays(self, model, mesh):
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), ARGS)
        first, _ = transform.init(model.step, mesh, SEED, shapes)
        second, _ = transform.init(model.step, mesh, SEED, ARGS)
        assert jax.tree.all(jax.tree.map(lambda x, y: (x == y).all(), first, second))

    def test_depends_on_the_seed(self, model, mesh):
        first, _ = transform.init(model.step, mesh, SEED, ARGS)
        other, _ = transform.init(model.step, mesh, SEED + 1, ARGS)
        assert (first["model/weight"] != other["model/weight"]).all()

    def test_traces_once(self, model, mesh):
        HEAVY.clear()
        transform.init(model.step, mesh, SEED, ARGS)
        assert len(HEAVY) == 1

    def test_does_not_run_what_is_not_needed(self, mesh):
        def work(x):
            HEAVY.append(None)
            return x

        def train(x):
            nj.context()["w"] = jnp.ones(3)
            return jax.pure_callback(work, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

        HEAVY.clear()
        params, _ = transform.init(train, mesh, SEED, (np.ones(3, np.float32),))
        jax.block_until_ready(params)
        assert list(params) == ["w"]
        assert not HEAVY


class TestApply:
    def test_updates_and_donates(self, model, mesh):
        params, step = make(model, mesh, out_specs=OUTS, update=True)
        carry = jnp.zeros((3, 2))
        new, (_, out) = step(params, SEED, carry, ARGS[1])
        assert new["model/count/value"] == 1
        assert out["y"].shape == (3, 2)
        assert all(x.is_deleted() for x in params.values())

    def test_equal_seeds_give_equal_outputs(self, model, mesh):
        params, step = make(model, mesh, out_specs=OUTS, ignore_writes=True)
        first = step(params, SEED, *ARGS)[0]
        assert (first == step(params, SEED, *ARGS)[0]).all()
        assert (first != step(params, SEED + 1, *ARGS)[0]).all()

    def test_writes_can_be_dropped_or_refused(self, model, mesh):
        params, step = make(model, mesh, out_specs=OUTS, ignore_writes=True)
        step(params, SEED, *ARGS)
        assert params["model/count/value"] == 0
        _, step = make(model, mesh, out_specs=OUTS)
        with pytest.raises(RuntimeError, match="Cannot modify state"):
            step(params, SEED, *ARGS)

    def test_static_arguments(self, model, mesh):
        params, shardings = transform.init(model.step, mesh, SEED, ARGS)
        look = transform.apply(model.look, mesh, shardings, (BATCH,), BATCH, static_argnums=[1])
        once, twice = look(params, SEED, ARGS[1], 1), look(params, SEED, ARGS[1], 2)
        np.testing.assert_allclose(2 * once, twice)

    def test_layers_are_constrained_while_tracing(self, model, mesh):
        rules = ((r"^model/", BATCH),)
        before = nets.LAYER_CALLBACK
        params, step = make(
            model, mesh, out_specs=OUTS, ignore_writes=True, act_partition_rules=rules
        )
        assert "sharding_constraint" in str(jax.make_jaxpr(step)(params, SEED, *ARGS))
        assert nets.LAYER_CALLBACK is before
        params, step = make(model, mesh, out_specs=OUTS, ignore_writes=True)
        assert "sharding_constraint" not in str(jax.make_jaxpr(step)(params, SEED, *ARGS))

    def test_layer_that_no_rule_matches(self, model, mesh):
        rules = ((r"^other/", BATCH),)
        params, step = make(
            model, mesh, out_specs=OUTS, ignore_writes=True, act_partition_rules=rules
        )
        with pytest.raises(DeviceError, match=r"activation 'model/layer'"):
            step(params, SEED, *ARGS)
        assert nets.LAYER_CALLBACK is None

    def test_shard_map_on_one_device_averages_what_is_replicated(self, model, mesh):
        params, step = make(model, mesh, out_specs=OUTS, update=True, use_shardmap=True)
        new, (carry, out) = step(params, SEED, *ARGS)
        assert new["model/count/value"] == 1
        np.testing.assert_allclose(out["mean"], carry.mean(), rtol=1e-6)

    def test_shard_map_has_no_tensor_axis(self, model, mesh):
        wide = jax.sharding.Mesh(
            np.array(jax.devices("cpu")[:1] * 2).reshape(1, 1, 2), internal.AXES
        )
        with pytest.raises(DeviceError, match=r"2 tensor devices"):
            transform.apply(model.step, wide, {}, (BATCH, BATCH), OUTS, use_shardmap=True)


SHAPES = {k: np.zeros((4, 6)) for k in ("enc/kernel", "dec/kernel", "dec/scale")}


class TestRules:
    def test_the_first_match_holds(self, mesh):
        rules = (("^enc", P("f")), ("kernel", P(None, "t")), (".*", P()))
        specs = {k: s.spec for k, s in transform.partition(SHAPES, mesh, rules).items()}
        assert specs == {"enc/kernel": P("f"), "dec/kernel": P(None, "t"), "dec/scale": P()}

    def test_a_key_without_a_rule_is_named(self, mesh):
        rules = (("kernel$", P()),)
        with pytest.raises(DeviceError, match=r"No partition rule matches the parameter 'dec/s"):
            transform.partition(SHAPES, mesh, rules)

    @pytest.mark.parametrize("spec", [P("d"), P(None, ("d", "f")), P(None, None, "t")])
    def test_shapes_that_cannot_be_split(self, spec):
        devices = jax.devices("cpu")[:1] * 20
        mesh = jax.sharding.Mesh(np.array(devices).reshape(5, 2, 2), internal.AXES)
        with pytest.raises(DeviceError, match=r"'enc/kernel' .* its shape \(4, 6\)"):
            transform.partition(SHAPES, mesh, (("enc", spec), (".*", P())))
