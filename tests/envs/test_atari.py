import inspect
import sys

import numpy as np
import pytest

import embodied.envs
from dreamerv3 import factory
from dreamerv3.config import compose
from embodied.core.errors import EnvError, MissingPackageError
from embodied.core.spaces import sample
from embodied.envs.atari import Atari
from embodied.testing import check_env

roms = pytest.importorskip("ale_py.roms")
pytest.importorskip("PIL")

ATARI57 = """
alien amidar assault asterix asteroids atlantis bank_heist battle_zone beam_rider berzerk bowling
boxing breakout centipede chopper_command crazy_climber defender demon_attack double_dunk enduro
fishing_derby freeway frostbite gopher gravitar hero ice_hockey jamesbond kangaroo krull
kung_fu_master montezuma_revenge ms_pacman name_this_game phoenix pitfall pong private_eye qbert
riverraid road_runner robotank seaquest skiing solaris space_invaders star_gunner surround tennis
time_pilot tutankham up_n_down venture video_pinball wizard_of_wor yars_revenge zaxxon
"""
RAW = {"size": (210, 160), "noops": 0, "sticky": False}


def play(env, steps, seed=0):
    """Random actions; the first one starts the episode, later ones never reset it."""
    rng = np.random.default_rng(seed)
    actions = [{k: sample(v, rng) for k, v in env.act_space.items()} for _ in range(steps)]
    return [env.step({**x, "reset": np.bool_(i == 0)}) for i, x in enumerate(actions)]


def still(env, reset=False):
    return env.step({"action": np.int32(0), "reset": np.bool_(reset)})


def indices(observations, flag):
    return [i for i, obs in enumerate(observations) if obs[flag]]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gray": False, "actions": "needed", "lives": "discount", "autostart": True},
        {"lives": "reset", "length": 100, "aggregate": "mean", "resize": "opencv"},
    ],
)
def test_keeps_the_contract(options):
    check_env(Atari("breakout", **options), steps=300)


def test_games_are_all_there():
    assert len(ATARI57.split()) == 57
    assert set(ATARI57.split()) <= set(roms.get_all_rom_ids())


@pytest.mark.parametrize(
    ("task", "actions"),
    [("atari_ms_pacman", 9), ("atari100k_montezuma_revenge", 18), ("atari_james_bond", 18)],
)
def test_names_as_in_the_benchmarks(task, actions):
    env = embodied.envs.make(task, actions="needed")
    assert env.act_space["action"].classes == actions


def test_unknown_games_get_the_nearest():
    with pytest.raises(EnvError, match="no game of Atari 'pongg': try 'pong'"):
        embodied.envs.make("atari_pongg")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"lives": "ignore"}, "lives is 'ignore', but must be one of 'unused', 'discount', 'res"),
        ({"actions": "some"}, "actions is 'some', but must be one of 'all', 'needed'"),
        ({"aggregate": "min"}, "aggregate is 'min', but must be one of 'max', 'mean'"),
        ({"resize": "cubic"}, "resize method 'cubic': use 'pillow' or 'opencv'"),
        ({"repeat": 0}, "repeat is 0, but must be at least 1"),
        ({"noops": -1}, "noops is -1, but must be at least 0"),
        ({"size": (0, 64)}, r"size \(0, 64\) is not a height and a width"),
    ],
)
def test_wrong_options_are_named(option, message):
    with pytest.raises(EnvError, match=message):
        Atari("pong", **option)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("ale_py", r"'atari' needs the package 'ale_py', .*`pip install 'dreamerv3\[atari\]'`"),
        ("PIL.Image", "'atari' needs the package 'PIL', .*`pip install pillow`"),
    ],
)
def test_missing_packages_are_named(monkeypatch, module, message):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingPackageError, match=message):
        Atari("pong")


def test_episodes_follow_from_the_seed():
    def run(seed):
        return play(embodied.envs.make("atari_breakout", seed=seed), 300)

    def same(one, two):
        return all(np.array_equal(a[k], b[k]) for a, b in zip(one, two, strict=True) for k in a)

    assert same(run(1), run(1))
    assert not same(run(1), run(2))


@pytest.mark.parametrize("options", [{"noops": 0, "sticky": True}, {"noops": 30, "sticky": False}])
def test_seed_reaches_sticky_actions_and_noops(options):
    def run(seed):
        return np.stack([x["image"] for x in play(Atari("pong", seed=seed, **options), 60)])

    assert np.array_equal(run(1), run(1))
    assert not np.array_equal(run(1), run(2))


def test_without_chance_seeds_are_equal():
    one, two = (play(Atari("pong", seed=x, noops=0, sticky=False), 30) for x in (1, 2))
    assert all(np.array_equal(a["image"], b["image"]) for a, b in zip(one, two, strict=True))


def test_numbers_of_noops_differ_between_episodes():
    env = Atari("freeway", size=(210, 160), sticky=False)
    firsts = [still(env, reset=True)["image"].tobytes() for _ in range(8)]
    assert len(set(firsts)) > 1


@pytest.mark.parametrize("gray", [True, False])
@pytest.mark.parametrize("size", [(210, 160), (96, 96), (64, 128), (8, 8)])
def test_images_in_any_size(size, gray):
    env = Atari("pong", size=size, gray=gray)
    image = still(env)["image"]
    assert image.shape == env.obs_space["image"].shape == (*size, 1 if gray else 3)
    assert image.std() > 0


def test_gray_is_the_luminance():
    gray, colour = (still(Atari("pong", gray=x, **RAW))["image"] for x in (True, False))
    luminance = colour @ [0.299, 0.587, 0.114]
    assert np.abs(gray[..., 0] - luminance).max() <= 1


def test_resizing_keeps_the_mean():
    raw = still(Atari("pong", **RAW))["image"].mean()
    for method in ("pillow", "opencv"):
        image = still(Atari("pong", resize=method, noops=0))["image"]
        assert image.mean() == pytest.approx(raw, abs=1)


@pytest.mark.parametrize(("aggregate", "pool"), [("max", np.max), ("mean", np.mean)])
def test_images_pool_the_two_newest_frames(aggregate, pool):
    frames = play(Atari("space_invaders", repeat=1, pooling=1, actions="needed", **RAW), 9)
    frames = [x["image"] for x in frames]
    env = Atari("space_invaders", repeat=1, aggregate=aggregate, actions="needed", **RAW)
    for i, obs in enumerate(play(env, 9)):
        expected = pool(frames[max(0, i - 1) : i + 1], axis=0)
        assert np.array_equal(obs["image"], np.rint(expected))


def test_pooling_does_not_reach_back_over_a_reset():
    env = Atari("breakout", autostart=False, gray=False, pooling=100, **RAW)
    first = still(env)["image"]
    later = play(env, 40)
    assert np.array_equal(later[0]["image"], first)
    assert not np.array_equal(later[-1]["image"], first)
    assert np.array_equal(still(env, reset=True)["image"], first)


def test_repeat_sums_the_rewards():
    def run(repeat, steps):
        env = Atari("pong", repeat=repeat, **RAW)
        env.step({"action": np.int32(0), "reset": np.True_})
        return [env.step({"action": np.int32(0), "reset": np.False_}) for _ in range(steps)]

    single, fourfold = run(1, 1200), run(4, 300)
    rewards = np.reshape([x["reward"] for x in single], (300, 4)).sum(1)
    assert rewards.any()
    assert np.array_equal(rewards, [x["reward"] for x in fourfold])


def test_rewards_can_be_clipped():
    raw, clipped = (
        [x["reward"] for x in play(Atari("ms_pacman", clip_reward=x, **RAW), 100)]
        for x in (False, True)
    )
    assert max(raw) == 10
    assert np.array_equal(np.sign(raw), clipped)


@pytest.mark.parametrize(("length", "steps"), [(40, 10), (42, 11), (1, 1)])
def test_time_limit_is_not_terminal(length, steps):
    obs = play(Atari("pong", length=length), 2 * steps + 2)
    assert indices(obs, "is_last") == [steps, 2 * steps + 1]
    assert indices(obs, "is_first") == [0, steps + 1]
    assert indices(obs, "is_terminal") == []


class TestLives:
    """Breakout: five lives a game; random actions lose one about every 26 steps."""

    def play(self, lives, steps=600, **options):
        env = Atari("breakout", lives=lives, pooling=1, **{**RAW, **options})
        obs = play(env, steps)
        ends = indices(obs, "is_last")
        assert [x + 1 for x in ends if x + 1 < steps] == indices(obs, "is_first")[1:]
        return env, obs, ends

    def starts_game(self, obs, index):
        return np.array_equal(obs[index]["image"], obs[0]["image"])

    def test_unused_ends_with_the_game(self):
        _, obs, ends = self.play("unused")
        assert 2 <= len(ends) <= 4
        assert indices(obs, "is_terminal") == ends
        assert all(self.starts_game(obs, x + 1) for x in ends)

    def test_discount_ends_the_episode_and_not_the_game(self):
        _, obs, ends = self.play("discount")
        assert len(ends) >= 10
        assert indices(obs, "is_terminal") == ends
        games = [self.starts_game(obs, x + 1) for x in ends]
        assert games == ([False] * 4 + [True]) * (len(ends) // 5) + [False] * (len(ends) % 5)
        for end, game in zip(ends, games, strict=True):  # no frame between two lives
            assert np.array_equal(obs[end]["image"], obs[end + 1]["image"]) != game

    def test_reset_ends_the_game_too(self):
        _, obs, ends = self.play("reset")
        assert len(ends) >= 8
        assert indices(obs, "is_terminal") == ends
        assert all(self.starts_game(obs, x + 1) for x in ends)

    def test_a_wanted_reset_within_a_life_starts_a_game(self):
        env, obs, ends = self.play("discount", steps=40)
        assert len(ends) == 1
        assert np.array_equal(still(env, reset=True)["image"], obs[0]["image"])

    def test_a_reset_after_a_lost_life_does_not(self):
        env, obs, ends = self.play("discount", steps=100)
        env, obs, _ = self.play("discount", steps=ends[0] + 1)
        assert obs[-1]["is_last"]
        assert np.array_equal(still(env, reset=True)["image"], obs[-1]["image"])

    def test_time_limit_is_that_of_the_game(self):
        _, obs, ends = self.play("discount", length=4 * 60)
        terminal = indices(obs, "is_terminal")
        cut = sorted(set(ends) - set(terminal))
        assert len(terminal) > len(cut) > 1
        assert all(self.starts_game(obs, x + 1) == (x in cut) for x in ends)

    def test_autostart_presses_fire(self):
        def image(autostart):
            env = Atari("breakout", autostart=autostart, **RAW)
            return [still(env) for _ in range(30)][-1]["image"]

        assert not np.array_equal(image(True), image(False))  # with and without a ball


@pytest.mark.parametrize(
    ("preset", "shape", "actions", "envs"),
    [("atari", (96, 96, 1), 18, 16), ("atari100k", (64, 64, 3), 6, 1)],
)
def test_presets(preset, shape, actions, envs):
    config = compose([preset])
    env = factory.make_env(config, 0)
    assert env.obs_space["image"].shape == shape
    assert env.act_space["action"].classes == actions
    assert config.run.envs == envs


def test_the_constructors_defaults_are_the_protocol():
    parameters = inspect.signature(Atari).parameters
    assert dict(compose([]).env.atari) == {
        k: v.default for k, v in parameters.items() if k not in ("game", "seed")
    }
