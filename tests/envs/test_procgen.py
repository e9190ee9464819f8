import sys
import warnings

import numpy as np
import pytest

import embodied.envs
from dreamerv3 import factory
from dreamerv3.config import compose
from embodied.core.errors import EnvError, MissingPackageError
from embodied.envs.procgen import ProcGen
from embodied.testing import check_env

with warnings.catch_warnings():  # importing it leaves a file open
    warnings.simplefilter("ignore")
    procgen = pytest.importorskip("procgen")
pytest.importorskip("PIL")

STILL, RIGHT, RIGHT_UP = 4, 7, 8


def act(env, action=STILL, reset=False):
    return env.step({"action": np.int32(action), "reset": np.bool_(reset)})


def play(env, steps):
    rng = np.random.default_rng(0)
    return [act(env, rng.integers(15), reset=i == 0) for i in range(steps)]


def images(observations):
    return np.stack([x["image"] for x in observations])


@pytest.mark.parametrize("game", procgen.env.ENV_NAMES)
def test_all_sixteen_keep_the_contract(game):
    check_env(embodied.envs.make(f"procgen_{game}"), steps=100)


@pytest.mark.parametrize("size", [(64, 64), (96, 96), (32, 48)])
@pytest.mark.parametrize("resize", ["pillow", "opencv"])
def test_sizes(size, resize):
    env = ProcGen("coinrun", size=size, resize=resize)
    image = act(env)["image"]
    assert image.shape == env.obs_space["image"].shape == (*size, 3)
    assert image.mean() == pytest.approx(act(ProcGen("coinrun"))["image"].mean(), abs=1)


@pytest.mark.parametrize(
    ("game", "options", "message"),
    [
        ("coinrunn", {}, "no game of ProcGen 'coinrunn': try 'coinrun'"),
        ("coinrun", {"distribution_mode": "medium"}, "is 'medium', but must be 'hard' or 'easy'"),
        ("coinrun", {"resize": "cubic"}, "resize method 'cubic'"),
        ("coinrun", {"size": (0, 64)}, "is not a height and a width"),
        ("coinrun", {"num_levels": -1}, "num_levels is -1, but must be at least 0"),
        ("coinrun", {"start_level": -1}, "start_level is -1, but must be at least 0"),
    ],
)
def test_wrong_options_are_named(game, options, message):
    with pytest.raises(EnvError, match=message):
        ProcGen(game, **options)


@pytest.mark.parametrize("package", ["procgen", "gym3"])
def test_missing_package_is_named(monkeypatch, package):
    for module in [x for x in sys.modules if x.split(".")[0] == "procgen"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    message = rf"'procgen' needs the package '{package}', .* --no-deps procgen-mirror gym3"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(MissingPackageError, match=message):
            ProcGen("coinrun")


def test_episodes_follow_from_the_seed():
    one, same, other = (images(play(ProcGen("bigfish", seed=x), 300)) for x in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_levels_can_be_chosen():
    def firsts(**options):
        env = ProcGen("maze", **options)
        return [act(env, reset=True)["image"].tobytes() for _ in range(12)]

    three = firsts(num_levels=3, seed=1)
    assert len(set(three)) == 3
    assert set(three) == set(firsts(num_levels=3, seed=2))
    assert len(set(firsts(num_levels=3, start_level=3)) | set(three)) == 6
    assert len(set(firsts())) == 12
    assert len(set(firsts(num_levels=3, distribution_mode="easy")) | set(three)) == 6


@pytest.mark.parametrize(("game", "limit"), [("maze", 500), ("leaper", 500), ("heist", 1000)])
def test_time_limit_is_not_terminal(game, limit):
    env = ProcGen(game)
    obs = [act(env) for _ in range(limit + 2)]
    assert [i for i, x in enumerate(obs) if x["is_last"]] == [limit]
    assert [i for i, x in enumerate(obs) if x["is_first"]] == [0, limit + 1]
    assert not obs[limit]["is_terminal"]


def test_time_limit_counts_from_each_start():
    env = ProcGen("maze")
    for _ in range(400):
        act(env)
    act(env, reset=True)
    assert [act(env)["is_last"] for _ in range(500)].index(True) == 499


def test_levels_end_terminally_and_pay_on_their_last_step():
    env, rng = ProcGen("coinrun", distribution_mode="easy"), np.random.default_rng(0)
    obs = [act(env, rng.choice([RIGHT, RIGHT_UP])) for _ in range(1000)]
    ends = [x for x in obs if x["is_terminal"]]
    assert {float(x["reward"]) for x in ends} == {0, 10}  # fell, or got the coin
    assert not any(x["reward"] for x in obs if not x["is_last"])


def test_the_last_observation_does_not_show_the_next_level():
    obs = play(ProcGen("bigfish"), 600)
    ends = [i for i, x in enumerate(obs) if x["is_last"]]
    assert len(ends) >= 2
    for end in ends:
        assert np.array_equal(obs[end]["image"], obs[end - 1]["image"])
        assert not np.array_equal(obs[end + 1]["image"], obs[end]["image"])


def test_observations_are_not_overwritten():
    env = ProcGen("bigfish", size=(64, 64))
    first = act(env)["image"]
    kept = first.copy()
    play(env, 10)
    assert np.array_equal(first, kept)


def test_preset():
    config = compose(["procgen"])
    env = factory.make_env(config, 0)
    assert env.obs_space["image"].shape == (96, 96, 3)
    assert env.act_space["action"].classes == 15
    assert act(env, reset=True)["is_first"]
