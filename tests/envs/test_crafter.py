import sys

import numpy as np
import pytest

import embodied.envs
from dreamerv3 import factory
from dreamerv3.config import compose
from embodied.core.episodes import Episodes
from embodied.core.errors import EnvError, MissingPackageError
from embodied.envs.crafter import Crafter
from embodied.testing import check_env

crafter = pytest.importorskip("crafter")

ACTIONS = crafter.constants.actions


def act(env, name="noop", reset=False):
    return env.step({"action": np.int32(ACTIONS.index(name)), "reset": np.bool_(reset)})


def logs(obs):
    return {k.removeprefix("log/achievement_"): float(v) for k, v in obs.items() if "log/" in k}


@pytest.mark.parametrize("task", ["reward", "noreward"])
def test_keeps_the_contract(task):
    check_env(embodied.envs.make(f"crafter_{task}"), steps=150)


def test_sizes():
    env = Crafter("reward", size=(48, 96))
    assert act(env)["image"].shape == env.obs_space["image"].shape == (48, 96, 3)
    assert env.act_space["action"].classes == 17


def test_unknown_tasks_get_the_nearest():
    with pytest.raises(EnvError, match="no task of Crafter 'rewards': try 'reward'"):
        embodied.envs.make("crafter_rewards")


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "crafter", None)
    message = r"'crafter' needs the package 'crafter', .*`pip install 'dreamerv3\[crafter\]'`"
    with pytest.raises(MissingPackageError, match=message):
        Crafter("reward")


def test_episodes_follow_from_the_seed():
    def run(seed, littered):
        litter = [[] for _ in range(littered)]  # objects come to lie elsewhere in memory
        env, rng = embodied.envs.make("crafter_reward", seed=seed), np.random.default_rng(0)
        obs = [act(env, rng.choice(ACTIONS)) for _ in range(700)]
        assert len(litter) == littered
        return np.stack([x["image"] for x in obs])

    one, two = run(1, 0), run(1, 12_345)
    assert np.array_equal(one, two)
    assert not np.array_equal(one[0], act(embodied.envs.make("crafter_reward", seed=2))["image"])


def test_worlds_differ_between_episodes():
    env = Crafter("reward")
    assert not np.array_equal(act(env)["image"], act(env, reset=True)["image"])


def test_time_limit_is_not_terminal():
    env = Crafter("reward")
    act(env)
    env._env._step = 9998
    assert not act(env)["is_last"]
    obs = act(env)
    assert (obs["is_last"], obs["is_terminal"]) == (True, False)
    assert act(env)["is_first"]


def test_death_is_terminal():
    env = Crafter("reward")
    act(env)
    env._env._player.health = 0
    obs = act(env)
    assert (obs["is_last"], obs["is_terminal"]) == (True, True)
    assert obs["reward"] == pytest.approx(-0.9)


class TestAchievements:
    def craft(self, env, wood):
        """An episode's start, with some wood to begin with."""
        obs = [act(env, reset=True)]
        env._env._player.inventory["wood"] = wood
        return [*obs, act(env, "place_table"), act(env, "make_wood_sword")]

    def test_count_within_the_episode(self):
        env = Crafter("reward")
        start, table, sword = map(logs, self.craft(env, wood=5))
        assert len(start) == 22
        assert not any(start.values())
        assert {k for k, v in table.items() if v} == {"place_table"}
        assert {k for k, v in sword.items() if v} == {"place_table", "make_wood_sword"}
        env._env._player.inventory["wood"] = 5
        assert logs(act(env, "make_wood_sword"))["make_wood_sword"] == 2
        assert not any(logs(act(env, reset=True)).values())
        assert not any(logs(act(env)).values())

    def test_pay_unless_rewards_are_withheld(self):
        paid = self.craft(Crafter("reward"), wood=5)
        withheld = self.craft(Crafter("noreward"), wood=5)
        assert [x["reward"] for x in paid] == [0, 1, 1]
        assert [x["reward"] for x in withheld] == [0, 0, 0]
        assert [x["log/reward"] for x in withheld] == [0, 1, 1]

    def test_can_be_left_out(self):
        env = Crafter("noreward", logs=False)
        assert env.obs_space.keys() == {"image", "reward", "is_first", "is_last", "is_terminal"}
        assert act(env).keys() == env.obs_space.keys()

    def test_rates_and_score_of_a_run(self):
        env = Crafter("reward")
        episodes = Episodes(lambda episode: None, video=False)
        for wood in (5, 0):
            obs = self.craft(env, wood)
            env._env._player.health = 0
            for x in [*obs, act(env)]:
                episodes.on_step(x, 0)
        stats = episodes.stats()
        assert stats["success_rate/place_table"] == 0.5
        assert stats["success_rate/collect_diamond"] == 0
        assert stats["crafter_score"] == pytest.approx(51 ** (2 / 22) - 1)


def test_preset():
    config = compose(["crafter"])
    env = factory.make_env(config, 0)
    assert env.obs_space["image"].shape == (64, 64, 3)
    assert "log/achievement_wake_up" in env.obs_space
    assert config.run.train_ratio == 512
    assert act(env, reset=True)["is_first"]
