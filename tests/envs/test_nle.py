import sys
from unittest import mock

import numpy as np
import pytest

import dreamerv3.config
import embodied.envs
from embodied.core.errors import EnvError, MissingPackageError
from embodied.core.spaces import sample
from embodied.envs.nle import NLE
from embodied.testing import check_env

tasks = pytest.importorskip("nle.env.tasks")


def act(key=0, reset=False):
    return {"action": np.int32(key), "reset": np.bool_(reset)}


def test_preset_keeps_the_contract():
    config = dreamerv3.config.compose(["nle"])
    env = embodied.envs.make(config.task, **config.env.nle)
    shapes = {k: env.obs_space[k].shape for k in ("image", "blstats")}
    assert shapes == {"image": (64, 64, 3), "blstats": (27,)}
    assert (env.act_space["action"].low, env.act_space["action"].high) == (0, 23)
    check_env(env, steps=300)


@pytest.mark.parametrize("task", sorted(embodied.envs.nle._TASKS))
def test_tasks_keep_the_contract(task):
    check_env(NLE(task, message=True, size=(32, 48)), steps=60)


@pytest.mark.parametrize("task", ["score", "challenge"])
def test_games_follow_from_the_seed(task):
    def run(seed):
        env = embodied.envs.make(f"nle_{task}", seed=seed, message=True)
        rng = np.random.default_rng(0)
        steps = [{k: sample(v, rng) for k, v in env.act_space.items()} for _ in range(80)]
        return [env.step({**x, "reset": np.bool_(i % 40 == 0)}) for i, x in enumerate(steps)]

    one, same, other = run(1), run(1), run(2)
    assert all(np.array_equal(a[k], b[k]) for a, b in zip(one, same, strict=True) for k in a)
    assert not np.array_equal(one[0]["image"], other[0]["image"])
    assert not np.array_equal(one[0]["image"], one[40]["image"])


def test_image_shows_the_tiles_around_the_player():
    near, far = NLE("score", view=3, size=(48, 48)), NLE("score", view=41, size=(656, 656))
    for key in (0, 1, 2, 3, 4, 1, 1, 1):
        small, large = (env.step(act(key))["image"] for env in (near, far))
        np.testing.assert_array_equal(small, large[304:352, 304:352])
    assert (large[:16] == 0).all()  # 20 tiles above the player, there is no map
    assert small.std() > 10


def test_message_is_text():
    obs = NLE("score", message=True, image=False).step(act())
    text = bytes(obs["message"].astype(np.uint8)).rstrip(b"\0").decode("ascii")
    assert text.isprintable()
    assert len(text.split()) > 2
    assert obs["log/depth"] == obs["blstats"][12] == 1


def test_a_game_cut_off_is_not_terminal_and_one_lost_is():
    env = NLE("score")
    env._env._max_episode_steps = 3
    obs = [env.step(act(19)) for _ in range(5)]
    assert [bool(x["is_last"]) for x in obs] == [False, False, False, True, False]
    assert not any(x["is_terminal"] for x in obs)
    assert obs[4]["is_first"]
    died = {"end_status": env._env.StepStatus.DEATH}
    with mock.patch.object(env._env, "step", return_value=(blank(), 0.0, True, False, died)):
        obs = env.step(act())
    assert (obs["is_last"], obs["is_terminal"]) == (True, True)


def blank():
    return {"blstats": np.zeros(27, np.int64), "message": np.zeros(256, np.uint8)}


def test_frames_are_logged_where_they_are_not_observed():
    env = NLE("score", image=False, render=True)
    assert env.step(act())["log/image"].shape == (64, 64, 3)
    assert not {"image", "log/image"} & NLE("score", image=False).obs_space.keys()


def test_wrong_options_are_named():
    with pytest.raises(EnvError, match="of NetHack 'scor': try 'score'"):
        NLE("scor")
    with pytest.raises(EnvError, match="view is 8 tiles, but must be odd"):
        NLE("score", view=8)


def test_missing_package_is_named(monkeypatch):
    for name in [x for x in sys.modules if x.split(".")[0] == "nle"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "nle", None)
    with pytest.raises(MissingPackageError, match=r"suite 'nle' .* --no-deps 'nle"):
        NLE("score")
