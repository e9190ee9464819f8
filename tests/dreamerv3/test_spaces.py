"""One agent with every kind of space: images of several sizes, classes, numbers and masks."""

from unittest import mock

import jax
import jax.numpy as jnp
import ninjax as nj
import numpy as np
import pytest
from elements import Space

from dreamerv3 import losses, rssm
from embodied.core.errors import ConfigError, SpaceError
from embodied.core.spaces import fault, sample

from .common import DISCRETE, VECTOR, create, make_batch, make_model

COUNTS = np.array([2, 5, 3])
OBS = {
    "camera": Space(np.uint8, (20, 12, 3)),
    "wrist": Space(np.uint8, (20, 12, 1)),
    "depth": Space(np.float32, (8, 8, 6), -1, 3),
    "table": Space(np.float32, (9, 9, 2)),
    "cells": Space(bool, (2, 2, 2)),
    "bytes": Space(np.uint8, (3,)),
    "far": Space(np.int32, (2,), -1000, 1000),
    "uneven": Space(np.int32, (3,), 0, COUNTS),
    "two-words": Space(np.float32),
    "choice_mask": Space(bool, (5,)),
}
ACT = {
    "choice": Space(np.int32, (), 2, 7),
    "parts": Space(np.int32, (3,), 0, COUNTS),
    "buttons": Space(bool, (2, 2)),
    "level": Space(np.uint8, (), 0, 3),
    "stick": Space(np.float32, (2, 2), -1, 1),
}
ENVS = 2000


@pytest.fixture(scope="module")
def model():
    return make_model(OBS, ACT, **{"agent.action_mask": "{action}_mask"})


@pytest.fixture(scope="module")
def batch(model):
    return {**make_batch(model), **draw({**OBS, **ACT}, (2, 7))}


@pytest.fixture(scope="module")
def params(model, batch):
    return create(model, batch)


@pytest.fixture(scope="module")
def reported(model, batch, params):
    """The metrics of a report, with the actions and policies of its imagination."""
    found = {}

    def imagine(act, rew, con, policy, *args, **kwargs):
        found["act"] = act
        found["logp"] = {k: v.logp(act[k]) for k, v in policy.items()}
        found["ent"] = {k: v.entropy() for k, v in policy.items()}
        found["mask"] = policy["choice"].mask
        return imag_loss(act, rew, con, policy, *args, **kwargs)

    def run(carry, batch):
        with mock.patch.object(losses, "imag_loss", imagine):
            return model.report(carry, batch)[1], found

    imag_loss = losses.imag_loss
    carry = nj.pure(model.init_report)({}, 2)[1]
    return jax.device_get(jax.jit(nj.pure(run))(params, carry, batch, seed=seed())[1])


def draw(spaces, lead):
    rng = np.random.default_rng(0)
    return {k: sample(v, rng, lead) for k, v in spaces.items()}


def seed():
    return jnp.array([0, 7], jnp.uint32)


def test_update(model, batch, params):
    carry = nj.pure(model.init_train)({}, 2)[1]
    state, (_, _, metrics) = jax.jit(nj.pure(model.train))(params, carry, batch, seed=seed())
    assert all(np.isfinite(x).all() for x in metrics.values())
    assert all(np.isfinite(x).all() for x in state.values())
    assert {f"loss/{k}" for k in OBS} < set(metrics)
    assert {f"{x}/{k}" for k in ACT for x in ("ent", "rand")} < set(metrics)
    assert all(-1e-3 <= metrics[f"rand/{k}"] <= 1.001 for k in ACT)


def test_report(reported):
    metrics, _ = reported
    assert all(np.isfinite(x).all() for x in metrics.values())
    videos = {k: v.shape for k, v in metrics.items() if k.startswith("openloop/")}
    assert videos == {
        "openloop/camera": (12, 64, 32, 3),
        "openloop/wrist": (12, 64, 32, 1),
        "openloop/depth": (12, 28, 24, 6),
    }
    assert {metrics[k].dtype for k in videos} == {np.dtype(np.uint8)}


def test_images_of_floats_are_shown_by_their_bounds(reported, batch):
    shown = reported[0]["openloop/depth"][0, 2:10, 2:10]
    np.testing.assert_allclose(shown, (batch["depth"][0, 1] + 1) / 4 * 255, atol=0.51)


def test_imagination_takes_legal_actions(reported):
    _, found = reported
    mask, act = found["mask"], found["act"]
    assert mask.shape == (12, 16, 5)
    assert 0.2 < mask.mean() < 0.8
    assert mask.any(-1).all()
    assert np.take_along_axis(mask, act["choice"][..., None], -1).all()
    assert (found["logp"]["choice"] > -20).all()
    assert (found["ent"]["choice"] <= np.log(mask.sum(-1)) + 1e-5).all()
    assert (act["parts"] < COUNTS).all()
    assert (found["ent"]["parts"] <= np.log(COUNTS).sum() + 1e-5).all()
    assert (found["logp"]["parts"] > -60).all()


def test_the_policy_takes_legal_actions(model, params):
    obs = draw(model.obs_space, (ENVS,))
    obs["choice_mask"][: ENVS // 4] = False
    carry = nj.pure(model.init_policy)({}, ENVS)[1]
    policy = jax.jit(nj.pure(model.policy))
    _, (carry, acts, _) = policy(params, carry, obs, seed=seed())
    for key, space in ACT.items():
        value = np.asarray(acts[key])
        np.testing.assert_array_equal(value, carry[3][key])
        assert value.shape == (ENVS, *space.shape)
        if space.discrete:
            assert not [x for x in value if fault(space, np.asarray(x))]
            assert (
                len(np.unique(value)) == {"choice": 5, "parts": 5, "buttons": 2, "level": 3}[key]
            )
    mask, choice = obs["choice_mask"], np.asarray(acts["choice"]) - 2
    legal = mask[np.arange(ENVS), choice] | ~mask.any(-1)
    assert legal.all()
    assert len(np.unique(choice[: ENVS // 4])) == 5


SIZES = [
    (64, 64, 3),
    (84, 84, 3),
    (96, 96, 1),
    (210, 160, 3),
    (32, 32, 3),
    (64, 128, 3),
    (8, 8, 3),
]
SIZES += [(8, 500, 4), (33, 9, 6)]


@pytest.mark.parametrize("kw", [{}, {"outer": True, "strided": True, "bspace": 0}])
@pytest.mark.parametrize("size", SIZES)
def test_reconstructions_have_the_size_of_the_images(size, kw):
    spaces = {"image": Space(np.uint8, size)}
    dec = rssm.Decoder(spaces, **kw, name="dec")
    enc = rssm.Encoder(spaces, **{k: v for k, v in kw.items() if k != "bspace"}, name="enc")
    feat = {"deter": jnp.zeros((2, 3, 64)), "stoch": jnp.zeros((2, 3, 4, 4))}
    reset = jnp.zeros((2, 3), bool)

    def run(image):
        tokens = enc({}, {"image": image}, reset, training=True)[2]
        recon = dec({}, feat, reset, training=True)[2]["image"]
        return tokens, recon.pred(), recon.loss(dec.target("image", image))

    image = jax.ShapeDtypeStruct((2, 3, *size), np.uint8)
    make = lambda x: nj.pure(run)({}, x, seed=0, create=True)  # noqa: E731
    params, (tokens, pred, loss) = jax.eval_shape(make, image)
    assert pred.shape == image.shape
    assert loss.shape == (2, 3)
    most = 16 if kw else 8  # 3 stages leave a grid of 12 of 96, as the config asks for
    assert tokens.shape[-1] <= most * most * 256
    assert {k for k in params if "cnn0/" in k} == {"enc/cnn0/kernel", "enc/cnn0/bias"}


@pytest.mark.parametrize("strided", [False, True])
def test_gradients_reach_every_pixel(strided):
    spaces = {"image": Space(np.float32, (9, 21, 2), 0, 1)}
    kw = {"depth": 2, "mults": (1, 2), "strided": strided, "kernel": 3}
    enc = rssm.Encoder(spaces, **kw, norm="none", name="enc")
    image = np.random.default_rng(0).random((1, 9, 21, 2), np.float32)
    reset = np.zeros(1, bool)

    def run(image):
        return enc({}, {"image": image}, reset, training=True, single=True)[2]

    state = nj.init(run)({}, image, seed=0)
    grad = jax.jit(jax.jacobian(lambda x: nj.pure(run)(state, x)[1]))(image)
    assert np.abs(grad).sum((0, 1, 2)).all()


class TestKeys:
    def test_choose_what_is_encoded_and_decoded(self):
        obs = {**VECTOR, "image": Space(np.uint8, (16, 16, 3)), "other": Space(np.float32)}
        model = make_model(obs, **{"agent.enc.keys": "vector|image", "agent.dec.keys": "o.*"})
        assert (model.enc.veckeys, model.enc.imgkeys) == (["vector"], ["image"])
        assert (model.dec.veckeys, model.dec.imgkeys) == (["other"], [])
        assert "other" in model.scales
        assert not {"vector", "image"} & set(model.scales)

    @pytest.mark.parametrize("name", ["agent.enc.keys", "agent.dec.keys"])
    def test_must_match_something(self, name):
        with pytest.raises(ConfigError, match=f"{name} 'vec' matches none of .*: other, vector"):
            make_model({**VECTOR, "other": Space(np.float32)}, **{name: "vec"})

    def test_an_observation_that_is_not_decoded_may_have_the_name_of_a_loss(self):
        make_model({"rep": Space(np.float32), **VECTOR}, **{"agent.dec.keys": "vector"})


class TestMaskErrors:
    def make(self, pattern, mask=None, act=DISCRETE, **flags):
        obs = {**VECTOR, "mask": Space(bool, (4,)) if mask is None else mask}
        return make_model(obs, act, **{"agent.action_mask": pattern, **flags})

    def test_one_discrete_action_needs_no_name(self):
        assert self.make("mask").masks == {"action": "mask"}
        assert self.make("mask", Space(np.int32, (4,), 0, 2)).masks == {"action": "mask"}

    @pytest.mark.parametrize(
        ("pattern", "act", "flags", "sentence"),
        [
            ("maks", DISCRETE, {}, "decoded observations are mask, vector: name one"),
            ("mask", DISCRETE, {"agent.dec.keys": "vec.*"}, "decoded observations are vector:"),
            ("mask", {"a": Space(np.float32)}, {}, "no action is discrete"),
            ("mask", {"a": Space(bool), "b": Space(bool)}, {}, "a, b are discrete: let {action}"),
        ],
    )
    def test_names(self, pattern, act, flags, sentence):
        with pytest.raises(ConfigError, match=sentence):
            self.make(pattern, act=act, **flags)

    @pytest.mark.parametrize(
        "space",
        [Space(bool, (3,)), Space(np.float32, (4,), 0, 1), Space(np.int32, (4,), 0, 3)],
    )
    def test_spaces(self, space):
        with pytest.raises(SpaceError, match=r"'mask' is .*, but bool \(4,\), or .* 'action'"):
            self.make("mask", space)


@pytest.mark.parametrize("space", [Space(np.int32), Space(np.int32, (100,), 0, 1000)])
def test_actions_of_too_many_classes(space):
    with pytest.raises(SpaceError, match=r"action 'action' is .*too many values to be classes"):
        make_model(act={"action": space})
