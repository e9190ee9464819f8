import sys

import numpy as np
import pytest

import dreamerv3.config
import embodied.envs
from embodied.core.errors import EnvError, MissingPackageError
from embodied.core.spaces import sample
from embodied.envs.metaworld import MetaWorld
from embodied.testing import check_env

mujoco = pytest.importorskip("mujoco")
pytest.importorskip("metaworld")
FITS = tuple(map(int, mujoco.__version__.split(".")[:2])) < (3, 17)
works = pytest.mark.skipif(not FITS, reason="Meta-World needs an older MuJoCo")
ACTION = {"action": np.zeros(4, np.float32), "reset": np.bool_(False)}


@pytest.mark.skipif(FITS, reason="this MuJoCo fits")
def test_too_new_mujoco_is_named():
    with pytest.raises(EnvError, match=rf"{mujoco.__version__} \(.*: run .*mujoco>=3.10,<3.17"):
        MetaWorld("reach", image=False)


@works
def test_preset_keeps_the_contract():
    config = dreamerv3.config.compose(["metaworld"])
    env = embodied.envs.make(config.task, **config.env.metaworld)
    assert env.obs_space["image"].shape == (64, 64, 3)
    assert "state" not in env.obs_space
    check_env(env, steps=20)
    assert env.step(ACTION)["image"].std() > 10


@works
@pytest.mark.parametrize("task", ["reach", "door-open-v3", "peg-insert-side"])
def test_states_keep_the_contract(task):
    check_env(MetaWorld(task, image=False), steps=100)


@works
def test_goals_are_observed_and_drawn_anew():
    env = MetaWorld("reach", image=False)
    first = [env.step({**ACTION, "reset": np.bool_(i == 1)})["state"][-3:] for i in range(3)]
    assert not np.array_equal(first[0], first[1])
    np.testing.assert_array_equal(first[1], first[2])
    assert (first[2] != 0).all()


@works
def test_episode_is_cut_inside_a_repeat_without_being_terminal():
    env = MetaWorld("reach", repeat=3, image=False)
    obs = [env.step(ACTION) for _ in range(170)]
    assert [i for i, x in enumerate(obs) if x["is_last"]] == [167]
    assert [i for i, x in enumerate(obs) if x["is_first"]] == [0, 168]
    assert not any(x["is_terminal"] for x in obs)


@works
def test_rewards_are_summed_and_success_is_logged_alone():
    single, triple = MetaWorld("reach", image=False), MetaWorld("reach", repeat=3, image=False)
    goal = single.step(ACTION)["state"][-3:]
    triple.step(ACTION)
    reached = False
    hand = np.zeros(3)
    for i in range(150):
        move = np.clip(10 * (goal - hand), -1, 1) if i else np.zeros(3)
        action = {**ACTION, "action": np.float32([*move, 0])}
        obs = [single.step(action) for _ in range(3)]
        repeated = triple.step(action)
        total = sum(float(x["reward"]) for x in obs)
        np.testing.assert_allclose(float(repeated["reward"]), total, rtol=1e-5)
        assert repeated["log/success"] == max(x["log/success"] for x in obs)
        reached = reached or bool(repeated["log/success"])
        hand = obs[-1]["state"][:3]
    assert reached


@works
def test_episodes_follow_from_the_seed():
    def run(seed):
        env = embodied.envs.make("metaworld_push", seed=seed, size=(24, 32))
        rng = np.random.default_rng(0)
        steps = [{k: sample(v, rng) for k, v in env.act_space.items()} for _ in range(12)]
        return [env.step({**x, "reset": np.bool_(i % 6 == 0)}) for i, x in enumerate(steps)]

    one, same, other = run(1), run(1), run(2)
    assert all(np.array_equal(a[k], b[k]) for a, b in zip(one, same, strict=True) for k in a)
    assert one[0]["image"].shape == (24, 32, 3)
    assert not np.array_equal(one[0]["state"], other[0]["state"])
    assert not np.array_equal(one[0]["state"], one[6]["state"])


@works
def test_frames_are_logged_where_they_are_not_observed():
    env = MetaWorld("reach", image=False, render=True, camera="topview")
    assert env.step(ACTION)["log/image"].std() > 10
    assert "image" not in env.obs_space


@works
def test_unknown_cameras_get_the_nearest():
    with pytest.raises(EnvError, match="camera of Meta-World 'corner5': try 'corner"):
        MetaWorld("reach", camera="corner5")


def test_unknown_tasks_get_the_nearest():
    with pytest.raises(EnvError, match=r"of Meta-World 'door-opn': try .*'door-open-v3'"):
        MetaWorld("door-opn", image=False)


def test_something_must_be_observed():
    with pytest.raises(EnvError, match="Set state or image"):
        MetaWorld("reach", state=False, image=False)


def test_missing_package_is_named(monkeypatch):
    for name in [x for x in sys.modules if x.split(".")[0] == "metaworld"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "metaworld", None)
    with pytest.raises(MissingPackageError, match=r"suite 'metaworld' .* --no-deps 'metaworld"):
        MetaWorld("reach")
