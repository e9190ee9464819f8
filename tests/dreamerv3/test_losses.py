"""Returns by hand, and the direction of the actor's and the critic's gradients."""

import jax
import jax.numpy as jnp
import ninjax as nj
import numpy as np
import pytest

from dreamerv3 import losses
from embodied.jax import heads, outs, utils

CASE = {"rew": [0, 1, 2, 3], "val": [10, 20, 30, 40], "con": [1, 1, 0, 1]}


def lambda_return(rew, val, con, last=None, disc=0.9, lam=0.95):
    last = jnp.zeros(len(rew)) if last is None else last
    last, con, rew, val = (jnp.asarray(x, jnp.float32)[None] for x in (last, con, rew, val))
    return np.asarray(losses.lambda_return(last, 1 - con, rew, val, disc, lam))[0]


def by_definition(rew, val, con, disc, lam):
    ret, result = val[-1], []
    for t in reversed(range(1, len(rew))):
        ret = rew[t] + disc * con[t] * ((1 - lam) * val[t] + lam * ret)
        result.append(ret)
    return result[::-1]


def test_lambda_return_by_hand():
    # R_2 = 3 + 0.9 · 40, R_1 = 2 (terminal), R_0 = 1 + 0.9 · (0.05 · 20 + 0.95 · 2).
    np.testing.assert_allclose(lambda_return(**CASE), [3.61, 2.0, 39.0], rtol=1e-6)


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.95, 1.0])
def test_lambda_return_follows_its_definition(lam):
    rng = np.random.default_rng(0)
    rew, val, con = rng.normal(size=(3, 12))
    con = con > -0.5
    expected = by_definition(rew, val, con, 0.9, lam)
    np.testing.assert_allclose(
        lambda_return(rew, val, con, lam=lam), expected, rtol=1e-5, atol=1e-6
    )


def test_lambda_zero_is_one_step_and_lambda_one_is_monte_carlo():
    np.testing.assert_allclose(
        lambda_return(**{**CASE, "con": [1] * 4}, lam=0.0), [19.0, 29.0, 39.0], rtol=1e-6
    )
    np.testing.assert_allclose(
        lambda_return(**{**CASE, "con": [1] * 4}, lam=1.0),
        [1 + 0.9 * (2 + 0.9 * 39), 2 + 0.9 * 39, 39.0],
        rtol=1e-6,
    )


def test_returns_of_terminal_states_are_their_rewards():
    np.testing.assert_array_equal(lambda_return(**{**CASE, "con": [0] * 4}), [1, 2, 3])


def test_one_step_has_no_return():
    assert lambda_return([1.0], [5.0], [1.0]).shape == (0,)


def test_a_truncated_episode_bootstraps_at_its_end():
    # The second state ends an episode by a time limit: its value counts, what follows does not.
    ret = lambda_return(**{**CASE, "con": [1] * 4}, last=[0, 1, 0, 0])
    np.testing.assert_allclose(ret[0], 1 + 0.9 * 20, rtol=1e-6)


def test_shapes_must_agree():
    x = jnp.zeros((1, 4))
    with pytest.raises(AssertionError):
        losses.lambda_return(x, x, x, x[:, 1:], 0.9, 0.95)


def imagine(logits, act, rew, actent=0.0, **kw):
    """The losses of trajectories [N, 2] of one choice, with a critic that knows nothing."""
    count, time = act.shape
    bins = heads.symexp_bins(41)
    value = outs.TwoHot(jnp.zeros((count, time, 41)), bins)
    policy = {"action": outs.Categorical(jnp.broadcast_to(logits, (count, time, len(logits))))}
    norms = [utils.Normalize(x, name=f"norm{i}") for i, x in enumerate(["perc", "none", "none"])]
    ones = jnp.ones((count, time))
    return losses.imag_loss(
        {"action": act}, rew, ones, policy, value, value, *norms, update=True, actent=actent, **kw
    )


def policy_gradient(logits, act, rew, actent=0.0):
    def loss(logits):
        return imagine(logits, act, rew, actent)[0]["policy"].mean()

    return np.asarray(nj.pure(lambda x: jax.grad(loss)(x))({}, logits, seed=0, create=True)[1])


def test_the_actor_prefers_the_action_that_pays():
    act = jnp.array([[0, 0], [1, 0], [2, 0]])
    rew = (act == 1).astype(jnp.float32)[:, ::-1]
    grad = policy_gradient(jnp.zeros(3), act, rew)
    assert grad[1] < 0
    assert grad[0] > 0
    assert grad[2] > 0


def test_the_gradient_of_discrete_actions_needs_no_entropy():
    act = jnp.array([[0, 0], [1, 0]])
    rew = jnp.array([[0.0, 1.0], [0.0, 0.5]])
    assert np.abs(policy_gradient(jnp.array([0.3, -0.2]), act, rew)).max() > 1e-3


def test_entropy_pulls_towards_the_uniform_policy():
    act, rew = jnp.zeros((1, 2), jnp.int32), jnp.zeros((1, 2))
    grad = policy_gradient(jnp.array([2.0, 0.0]), act, rew, actent=1.0)
    assert grad[0] > 0 > grad[1]


def test_weights_end_with_the_episode():
    bins = heads.symexp_bins(41)
    value = outs.TwoHot(jnp.zeros((1, 4, 41)), bins)
    norms = [utils.Normalize("none", name=f"norm{i}") for i in range(3)]
    policy = {"action": outs.Categorical(jnp.zeros((1, 4, 2)))}
    con = jnp.array([[1.0, 1.0, 0.0, 1.0]])

    def run():
        return losses.imag_loss(
            {"action": jnp.zeros((1, 4), jnp.int32)},
            jnp.ones((1, 4)),
            con,
            policy,
            value,
            value,
            *norms,
            update=False,
        )

    _, (terms, outputs, metrics) = nj.pure(run)({}, create=True)
    assert terms["policy"].shape == (1, 3)
    assert terms["value"][0, 0] > 0
    assert terms["value"][0, 2] == 0
    np.testing.assert_allclose(metrics["weight"], 0.5)
    assert outputs["ret"].shape == (1, 3)


def test_replay_loss_is_zero_at_the_end_of_an_episode():
    value = outs.TwoHot(jnp.zeros((1, 4, 41)), heads.symexp_bins(41))
    last = jnp.array([[False, True, False, False]])
    norm = utils.Normalize("none", name="norm")

    def run():
        ones = jnp.ones((1, 4))
        return losses.repl_loss(last, last & False, ones, ones, value, value, norm, update=False)

    _, (terms, _) = nj.pure(run)({}, create=True)
    assert terms["repval"].shape == (1, 3)
    np.testing.assert_array_equal(terms["repval"][0] > 0, [True, False, True])
