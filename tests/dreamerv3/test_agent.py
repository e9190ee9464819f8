"""The whole model: losses, context, options, and that it stays a pure function."""

import functools

import jax
import jax.numpy as jnp
import ninjax as nj
import numpy as np
import pytest
from elements import Space

from dreamerv3 import report
from embodied.core.errors import ConfigError, SpaceError

from .common import CONTINUOUS, DISCRETE, VECTOR, create, make_batch, make_model

IMAGE = {"image": Space(np.uint8, (64, 64, 3))}
MIXED = {
    "flag": Space(bool),
    "token": Space(np.int32, (2,), 0, 5),
    "scalar": Space(np.float32),
    **VECTOR,
}


@functools.cache
def jitted(method):
    return jax.jit(nj.pure(method))


def train(model, params, batch, seed=0):
    carry = nj.pure(model.init_train)({}, model.config.batch_size)[1]
    seed = jnp.array([seed, 7], jnp.uint32)
    return jitted(model.train)(params, carry, batch, seed=seed)


@pytest.fixture(scope="module")
def model():
    return make_model(MIXED, {**DISCRETE, "move": Space(np.float32, (2,), -1, 1)})


@pytest.fixture(scope="module")
def params(model):
    return create(model, make_batch(model))


def test_train_and_report_give_the_same_losses(model, params):
    batch = make_batch(model)
    before = {k: v.copy() for k, v in batch.items()}
    _, (_, _, train_metrics) = train(model, params, batch)
    carry = nj.pure(model.init_report)({}, 2)[1]
    seed = jnp.array([0, 7], jnp.uint32)
    _, (_, report_metrics) = jitted(model.report)(params, carry, batch, seed=seed)
    keys = {k for k in train_metrics if k.startswith("loss/")}
    assert keys == {k for k in report_metrics if k.startswith("loss/")}
    assert keys == {f"loss/{k}" for k in model.scales}
    assert all(np.isfinite(x).all() for x in train_metrics.values())
    assert {"rand/action", "rand/move", "ent/action", "ent/move"} <= set(train_metrics)
    for key, value in before.items():
        np.testing.assert_array_equal(value, batch[key])


def test_metric_names(model, params):
    _, (_, _, metrics) = train(model, params, make_batch(model))
    named = {"dyn_ent", "rep_ent", "adv", "adv_std", "adv_mag", "rew", "con", "ret", "val", "tar"}
    named |= {"weight", "slowval", "ret_min", "ret_max", "ret_rate"}
    opt = {"loss", "updates", "grad_norm", "grad_rms", "update_rms", "param_rms", "param_count"}
    assert named | {f"opt/{k}" for k in opt} <= set(metrics)


def test_updates_follow_their_seed(model, params):
    batch = make_batch(model)
    state1, (_, _, metrics1) = train(model, params, batch, seed=1)
    state2, (_, _, metrics2) = train(model, params, batch, seed=1)
    _, (_, _, other) = train(model, params, batch, seed=2)
    assert all((state1[k] == state2[k]).all() for k in state1)
    assert metrics1["opt/loss"] == metrics2["opt/loss"] != other["opt/loss"]


def test_two_parameter_sets_train_in_one_vmapped_update():
    model = make_model()
    batch = make_batch(model)
    sets = [create(model, batch, seed) for seed in (0, 1)]
    carry = nj.pure(model.init_train)({}, 2)[1]
    stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *sets)
    seeds = jnp.array([[0, 7], [1, 7]], jnp.uint32)
    update = lambda params, seed: nj.pure(model.train)(params, carry, batch, seed=seed)  # noqa: E731
    state, (_, _, metrics) = jax.jit(jax.vmap(update))(stacked, seeds)
    for i, single in enumerate(sets):
        _, (_, _, alone) = train(model, single, batch, seed=i)
        np.testing.assert_allclose(metrics["opt/loss"][i], alone["opt/loss"], rtol=1e-4)
    assert (state["opt/step/value"] == 1).all()
    assert (state["dyn/dynin0/kernel"][0] != state["dyn/dynin0/kernel"][1]).any()


def test_a_sequence_starts_from_its_stored_entry_and_its_cuts_from_the_carry(model):
    batch = make_batch(model)
    batch["consec"][1] = 1
    carry = nj.pure(model.init_train)({}, 2)[1]
    carry[1]["deter"] += 0.5
    (_, dyn_carry, _), obs, prevact, stepid = nj.pure(model._split_context)({}, carry, batch)[1]
    np.testing.assert_array_equal(dyn_carry["deter"][0], batch["dyn/deter"][0, 0])
    np.testing.assert_array_equal(dyn_carry["deter"][1], carry[1]["deter"][1])
    for key in ("action", "move"):
        np.testing.assert_array_equal(prevact[key], batch[key][:, :-1])
    np.testing.assert_array_equal(obs["vector"], batch["vector"][:, 1:])
    np.testing.assert_array_equal(stepid, batch["stepid"][:, 1:])


def test_without_context_the_carry_brings_the_previous_action():
    model = make_model(replay_context=0)
    batch = make_batch(model)
    assert set(model.ext_space) == {"consec", "stepid"}
    params = create(model, batch)
    _, (carry, outputs, _) = train(model, params, batch)
    np.testing.assert_array_equal(carry[3]["action"], batch["action"][:, -1])
    _, _, prevact, _ = nj.pure(model._split_context)({}, carry, batch)[1]
    np.testing.assert_array_equal(prevact["action"][:, 0], batch["action"][:, -1])
    np.testing.assert_array_equal(prevact["action"][:, 1:], batch["action"][:, :-1])
    assert outputs == {}


def test_train_returns_fresh_entries_for_the_replay(model, params):
    batch = make_batch(model)
    _, (_, outputs, _) = train(model, params, batch)
    replay = outputs["replay"]
    np.testing.assert_array_equal(replay["stepid"], batch["stepid"][:, 1:])
    assert replay["dyn/deter"].shape == (2, 6, 8)
    assert replay["dyn/stoch"].dtype == jnp.float32
    assert set(replay) == {"stepid", "dyn/deter", "dyn/stoch"}


def test_the_policy_continues_from_its_own_action(model, params):
    carry = nj.pure(model.init_policy)({}, 3)[1]
    batch = make_batch(model)
    obs = {k: np.zeros((3, *v.shape), v.dtype) for k, v in model.obs_space.items()}
    seed = jnp.array([0, 1], jnp.uint32)
    _, (carry, action, outputs) = jitted(model.policy)(params, carry, obs, seed=seed)
    for key, space in model.act_space.items():
        np.testing.assert_array_equal(carry[3][key], action[key])
        assert action[key].dtype == space.dtype
        assert action[key].shape == (3, *space.shape)
    assert outputs["dyn/deter"].shape == (3, 8)
    assert set(outputs) <= set(batch)


def test_the_return_normaliser_moves_within_100_updates(model, params):
    batch = make_batch(model)
    batch["reward"][:] = 10.0
    batch["is_first"][:] = False
    carry = nj.pure(model.init_train)({}, 2)[1]
    step = jitted(model.train)
    state = params
    for i in range(100):
        seed = jnp.array([0, i], jnp.uint32)
        state, (carry, _, metrics) = step(state, carry, batch, seed=seed)
    assert np.isfinite(metrics["opt/loss"])
    assert abs(float(state["retnorm/hi/value"])) > 1e-3


def test_extreme_inputs_stay_finite(model, params):
    batch = make_batch(model)
    batch["vector"][:] = 1e30
    batch["scalar"][:, ::2] = -1e30
    batch["reward"][0, ::3], batch["reward"][1, ::3] = 1e8, -1e8
    batch["reward"][:, 1::3] = 1e-8
    carry = nj.pure(model.init_train)({}, 2)[1]
    step, state = jitted(model.train), params
    for i in range(50):
        seed = jnp.array([0, i], jnp.uint32)
        state, (carry, _, metrics) = step(state, carry, batch, seed=seed)
    assert all(np.isfinite(x).all() for x in metrics.values())
    assert all(np.isfinite(x).all() for x in state.values())


@pytest.mark.parametrize(
    ("obs", "act", "flags"),
    [
        (VECTOR, DISCRETE, {"agent.repval_loss": False, "agent.policy_dist_disc": "onehot"}),
        (
            VECTOR,
            CONTINUOUS,
            {
                "agent.policy_dist_cont": "normal_logstd",
                "agent.ac_grads": True,
                "agent.contdisc": False,
                "agent.imag_last": 2,
                "agent.reward_grad": False,
            },
        ),
        (IMAGE, {"a": Space(np.int32, (3,), 0, 5)}, {"agent.dec.simple.bspace": 0}),
    ],
    ids=["discrete", "continuous", "image"],
)
def test_options_make_an_update(obs, act, flags):
    model = make_model(obs, act, **flags)
    batch = make_batch(model)
    _, (_, _, metrics) = train(model, create(model, batch), batch)
    assert np.isfinite(metrics["opt/loss"])
    assert ("loss/repval" in metrics) == model.config.repval_loss


def test_actions_of_a_one_hot_policy_are_classes():
    model = make_model(act=DISCRETE, **{"agent.policy_dist_disc": "onehot"})
    batch = make_batch(model)
    params = create(model, batch)
    carry = nj.pure(model.init_policy)({}, 64)[1]
    obs = {k: np.zeros((64, *v.shape), v.dtype) for k, v in model.obs_space.items()}
    _, (_, action, _) = jitted(model.policy)(params, carry, obs, seed=0)
    assert action["action"].shape == (64,)
    assert set(np.unique(action["action"])) == {0, 1, 2, 3}


def test_least_probability_of_the_policy():
    model = make_model(act={"action": Space(np.int32, (), 0, 3)})
    params = create(model, make_batch(model))
    params["pol/head/action/logits/bias"] = jnp.array([100.0, 0.0, 0.0])
    head = nj.pure(lambda x: model.pol(x, 1)["action"].prob(jnp.array([1])))
    feat = jnp.zeros((1, params["pol/mlp/linear0/kernel"].shape[0]))
    np.testing.assert_allclose(head(params, feat)[1], 0.01 / 3, rtol=1e-4)


def test_priorities_are_the_world_models_losses():
    model = make_model(priosignal="model")
    batch = make_batch(model)
    _, (_, outputs, metrics) = train(model, create(model, batch), batch)
    priority = outputs["replay"]["priority"]
    assert priority.shape == (2, 6)
    keys = ("vector", "rew", "con", "dyn", "rep")
    expected = sum(model.scales[k] * metrics[f"loss/{k}"] for k in keys)
    np.testing.assert_allclose(priority.mean(), expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["rep", "value", "rec"])
def test_an_observation_must_not_have_the_name_of_a_loss(name):
    with pytest.raises(ConfigError, match=f"{name!r} has the name of a loss"):
        make_model({name: Space(np.float32, (3,))})


def test_nothing_to_observe_is_an_error():
    with pytest.raises(SpaceError, match="no observation"):
        make_model({})


def test_an_unknown_kind_of_module_is_named():
    with pytest.raises(ConfigError, match=r"agent\.dyn\.typ is 'gru'.*'rssm'"):
        make_model(**{"agent.dyn.typ": "gru"})


@pytest.mark.parametrize("length", [1, 3, 8])
def test_open_loop_reports_of_any_length(length):
    spaces = {"b": Space(np.uint8, (48, 48, 3)), "a": Space(np.uint8, (48, 48, 1))}
    model = make_model(spaces, DISCRETE)
    batch = make_batch(model, length)
    params = create(model, make_batch(model))
    carry = nj.pure(model.init_report)({}, 2)[1]
    _, (carry, metrics) = jitted(model.report)(params, carry, batch, seed=0)
    for key, channels in (("a", 1), ("b", 3)):
        video = metrics[f"openloop/{key}"]
        assert video.dtype == jnp.uint8
        assert video.shape == (length + min(10, length), 3 * 48 + 4, 2 * 52, channels)
    assert carry[3]["action"].shape == (2,)


def test_video_grid_places_truth_prediction_and_error():
    true = np.full((2, 4, 5, 6, 3), 200 / 255, np.float32)
    pred = np.full((2, 4, 5, 6, 3), 100 / 255, np.float32)
    grid = np.asarray(report.video_grid(jnp.asarray(true), jnp.asarray(pred), 2))
    assert grid.shape == (8, 19, 20, 3)
    assert (grid[:4, 2:7, 2:8] == 200).all()
    assert (np.abs(grid[:4, 7:12, 2:8].astype(int) - 100) <= 1).all()
    assert (np.abs(grid[:4, 12:17, 12:18].astype(int) - 77) <= 1).all()
    assert (grid[1, 0, 0] == (0, 255, 0)).all()
    assert (grid[2, 0, 0] == (255, 0, 0)).all()
    assert (grid[4:] == 0).all()


def test_gradient_norms_of_single_losses():
    model = make_model(**{"agent.report_gradnorms": True, "agent.dyn.rssm.free_nats": 0.0})
    batch = make_batch(model)
    params = create(model, batch)
    carry = nj.pure(model.init_report)({}, 2)[1]
    _, (_, metrics) = jitted(model.report)(params, carry, batch, seed=0)
    assert metrics["gradnorm/vector/dec"] > 0
    assert metrics["gradnorm/dyn/dyn"] > 0
    assert metrics["gradnorm/policy/dyn"] == 0
    assert metrics["gradnorm/con/val"] == 0
    assert metrics["gradnorm/repval/enc"] > 0 or float(params["val/head/logits/kernel"].std()) == 0
