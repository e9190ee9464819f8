"""The world model: resets, alignment of actions, shapes, and what stays equal."""

import jax
import jax.numpy as jnp
import ninjax as nj
import numpy as np
import pytest
from elements import Space

from dreamerv3 import rssm
from embodied.core.errors import ConfigError, SpaceError
from embodied.jax import nets

SIZES = {"deter": 8, "hidden": 6, "stoch": 3, "classes": 4, "blocks": 2}
ACTIONS = {"action": Space(np.float32, (2,), -1, 1)}


@pytest.fixture(autouse=True)
def _float32(monkeypatch):
    monkeypatch.setattr(nets, "COMPUTE_DTYPE", jnp.float32)


def make_rssm(**kw):
    return rssm.RSSM(ACTIONS, **{**SIZES, **kw}, name="dyn")


def inputs(batch=2, time=6, seed=0):
    rng = np.random.default_rng(seed)
    tokens = jnp.asarray(rng.normal(size=(batch, time, 5)), jnp.float32)
    action = {"action": jnp.asarray(rng.normal(size=(batch, time, 2)), jnp.float32)}
    return tokens, action, jnp.zeros((batch, time), bool)


def create(model, *args):
    carry = nj.pure(model.initial)({}, args[0].shape[0])[1]
    params = nj.init(model.loss, static_argnums=5)({}, carry, *args, True, seed=1)
    return params, carry


def observe(model, params, carry, *args, **kw):
    return nj.pure(model.observe)(params, carry, *args, training=True, **kw)[1]


def test_an_episode_does_not_know_the_one_before():
    model = make_rssm()
    tokens, action, reset = inputs()
    reset = reset.at[:, 3].set(True)
    params, carry = create(model, tokens, action, reset)
    together = observe(model, params, carry, tokens, action, reset)[2]
    rest = jax.tree.map(lambda x: x[:, 3:], (tokens, action, reset))
    noise = jax.tree.map(lambda x: x + 1.0, carry)
    apart = observe(model, params, noise, *rest)[2]
    for key in together:
        np.testing.assert_allclose(together[key][:, 3:], apart[key], atol=1e-6)


def test_no_gradient_crosses_a_reset():
    model = make_rssm()
    tokens, action, reset = inputs()
    reset = reset.at[:, 3].set(True)
    params, carry = create(model, tokens, action, reset)

    def second_episode(tokens, action, carry):
        feat = observe(model, params, carry, tokens, action, reset)[2]
        return sum((x[:, 3:] ** 2).sum() for x in feat.values())

    grads = jax.grad(second_episode, (0, 1, 2))(tokens, action, carry)
    np.testing.assert_array_equal(grads[0][:, :3], 0)
    np.testing.assert_array_equal(grads[1]["action"][:, :4], 0)
    assert jnp.abs(grads[0][:, 3:]).max() > 0
    assert jnp.abs(grads[1]["action"][:, 4:]).max() > 0
    assert all(jnp.abs(x).max() == 0 for x in jax.tree.leaves(grads[2]))


def test_steps_one_by_one_equal_the_sequence():
    model = make_rssm(obslayers=2, dynlayers=2)
    tokens, action, reset = inputs()
    reset = reset.at[0, 2].set(True)
    params, carry = create(model, tokens, action, reset)
    last, entries, feat = observe(model, params, carry, tokens, action, reset)
    for t in range(tokens.shape[1]):
        step = jax.tree.map(lambda x, t=t: x[:, t], (tokens, action, reset))
        carry, entry, single = observe(model, params, carry, *step, single=True)
        for key in feat:
            np.testing.assert_allclose(feat[key][:, t], single[key], atol=1e-6)
        for key in entries:
            np.testing.assert_allclose(entries[key][:, t], entry[key], atol=1e-6)
    for key in last:
        np.testing.assert_allclose(last[key], carry[key], atol=1e-6)


def test_an_action_changes_the_state_after_it_and_none_before():
    model = make_rssm()
    tokens, action, reset = inputs()
    params, carry = create(model, tokens, action, reset)
    before = observe(model, params, carry, tokens, action, reset)[2]["deter"]
    action = {"action": action["action"].at[:, 2].add(1.0)}
    after = observe(model, params, carry, tokens, action, reset)[2]["deter"]
    np.testing.assert_array_equal(before[:, :2], after[:, :2])
    assert (np.abs(before[:, 2:] - after[:, 2:]).max((0, 2)) > 0).all()


def test_large_actions_are_scaled_to_one():
    model = make_rssm()
    tokens, action, reset = inputs()
    params, carry = create(model, tokens, action, reset)
    large = {"action": 1e6 * jnp.sign(action["action"])}
    small = {"action": jnp.sign(action["action"])}
    feat1 = observe(model, params, carry, tokens, large, reset)[2]
    feat2 = observe(model, params, carry, tokens, small, reset)[2]
    np.testing.assert_allclose(feat1["deter"], feat2["deter"], atol=1e-6)


def test_imagination_takes_given_actions_or_a_policy():
    model = make_rssm()
    tokens, action, reset = inputs()
    params, carry = create(model, tokens, action, reset)

    def policy(feat):
        return {"action": feat["deter"][:, :2]}

    def imagine(policy):
        return nj.pure(model.imagine)(params, carry, policy, 6, False, seed=3)[1]

    last, feat, taken = imagine(policy)
    again = imagine(taken)
    assert feat["deter"].shape == (2, 6, 8)
    assert feat["logit"].shape == (2, 6, 3, 4)
    np.testing.assert_array_equal(taken["action"][:, 1:], feat["deter"][:, :-1, :2])
    for key in feat:
        np.testing.assert_array_equal(feat[key], again[1][key])
    np.testing.assert_array_equal(last["stoch"], feat["stoch"][:, -1])


def test_samples_differ_between_steps_and_repeat_with_the_seed():
    model = make_rssm(stoch=16, classes=16)
    tokens, action, reset = inputs(time=8)
    params, carry = create(model, tokens, action, reset)
    run = lambda seed: observe(model, params, carry, tokens, action, reset, seed=seed)[2]["stoch"]  # noqa: E731
    first, again, other = run(1), run(1), run(2)
    np.testing.assert_array_equal(first, again)
    assert (np.asarray(first) != np.asarray(other)).any()
    np.testing.assert_allclose(first.sum(-1), 1.0, rtol=1e-6)


def test_free_nats_bound_the_losses():
    model = make_rssm(free_nats=2.5)
    tokens, action, reset = inputs()
    params, carry = create(model, tokens, action, reset)
    out = nj.pure(model.loss)(params, carry, tokens, action, reset, True)[1]
    assert out[2]["dyn"].shape == (2, 6)
    assert (out[2]["dyn"] >= 2.5).all()
    assert (out[2]["rep"] >= 2.5).all()


def test_the_absolute_posterior_sees_the_observation_alone():
    model = make_rssm(absolute=True)
    tokens, action, reset = inputs()
    params, carry = create(model, tokens, action, reset)
    assert params["dyn/obs0/kernel"].shape == (5, 6)
    first = observe(model, params, carry, tokens, action, reset)[2]["logit"]
    moved = jax.tree.map(lambda x: x + 1.0, carry)
    np.testing.assert_array_equal(
        first, observe(model, params, moved, tokens, action, reset)[2]["logit"]
    )


def test_starts_and_truncate():
    model = make_rssm()
    entries = {
        "deter": jnp.arange(2 * 5 * 8.0).reshape((2, 5, 8)),
        "stoch": jnp.zeros((2, 5, 3, 4)),
    }
    starts = model.starts(entries, 2)
    np.testing.assert_array_equal(starts["deter"], entries["deter"][:, -2:].reshape((4, 8)))
    np.testing.assert_array_equal(model.truncate(entries)["deter"], entries["deter"][:, -1])


def test_blocks_must_divide_deter():
    with pytest.raises(ConfigError, match=r"deter is 9, which rssm\.blocks 2 does not divide"):
        make_rssm(deter=9)


FLOATS = Space(np.float32, (3,))


def test_observations_of_too_high_rank_are_named():
    with pytest.raises(SpaceError, match=r"'camera' has shape .*ranks up to 3"):
        rssm.Encoder({"camera": Space(np.float32, (2, 2, 2, 2)), "vector": FLOATS}, name="enc")


def test_bspace_must_divide_the_last_stage():
    with pytest.raises(ConfigError, match="has 6 channels, which bspace 4 does not divide"):
        rssm.Decoder(
            {"image": Space(np.uint8, (16, 16, 3))}, depth=3, mults=(1, 2), bspace=4, name="dec"
        )


@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("bspace", [0, 4])
def test_decoded_images_have_the_size_of_the_observed(outer, strided, bspace):
    spaces = {"b": Space(np.uint8, (16, 24, 3)), "a": Space(np.uint8, (16, 24, 1))}
    kw = {"depth": 2, "mults": (1, 2), "units": 8, "outer": outer, "strided": strided}
    enc = rssm.Encoder(spaces, **kw, name="enc")
    dec = rssm.Decoder(spaces, **kw, bspace=bspace, name="dec")
    feat = {"deter": jnp.zeros((2, 3, 8)), "stoch": jnp.zeros((2, 3, 3, 4))}
    reset = jnp.zeros((2, 3), bool)

    def run():
        obs = {k: jnp.zeros((2, 3, *v.shape), jnp.uint8) for k, v in spaces.items()}
        _, _, tokens = enc({}, obs, reset, training=True)
        return tokens, dec({}, feat, reset, training=True)[2]

    _, (tokens, recons) = nj.pure(run)({}, seed=0, create=True)
    assert tokens.shape[:2] == (2, 3)
    for key, space in spaces.items():
        pred = recons[key].pred()
        assert pred.shape == (2, 3, *space.shape)
        assert ((pred > 0) & (pred < 1)).all()
        assert recons[key].loss(jnp.zeros((2, 3, *space.shape))).shape == (2, 3)
