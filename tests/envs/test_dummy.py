import numpy as np
import pytest

import embodied.envs
from embodied.core.errors import EnvError
from embodied.envs.dummy import Dummy
from embodied.testing import check_env


def episode(env, disc=1, reset=True):
    action = {k: np.zeros(v.shape, v.dtype) for k, v in env.act_space.items()}
    obs = [env.step({**action, "reset": np.bool_(reset)})]
    while not obs[-1]["is_last"]:
        obs.append(env.step({**action, "act_disc": np.int32(disc)}))
    return obs


@pytest.mark.parametrize("task", ["disc", "cont"])
def test_contract(task):
    check_env(Dummy(task, length=7))
    check_env(Dummy(task, length=1))


def test_spaces():
    assert Dummy("disc").act_space.keys() == {"reset", "act_disc"}
    assert Dummy("cont").act_space.keys() == {"reset", "act_disc", "act_cont"}
    assert Dummy("disc").act_space["act_disc"].classes == 5
    assert Dummy("disc", size=(32, 48)).obs_space["image"].shape == (32, 48, 3)


@pytest.mark.parametrize(("disc", "total"), [(1, 12), (0, 0), (4, 0)])
def test_return_counts_the_right_actions(disc, total):
    env = Dummy("cont", length=12)
    for _ in range(2):
        obs = episode(env, disc, reset=False)
        assert len(obs) == 13
        assert sum(float(o["reward"]) for o in obs) == total
        assert [int(o["count"]) for o in obs] == [*range(13)]
        assert obs[-1]["is_terminal"]


def test_seed_decides():
    one, same, other = (episode(Dummy("disc", length=5, seed=s)) for s in (3, 3, 4))
    assert all(np.array_equal(a[k], b[k]) for a, b in zip(one, same, strict=True) for k in a)
    assert not np.array_equal(one[0]["vector"], other[0]["vector"])
    assert not np.array_equal(one[0]["vector"], one[1]["vector"])


def test_made_by_name_with_own_seeds():
    def first(**kwargs):
        return episode(embodied.envs.make("dummy_disc", length=4, **kwargs))[0]["vector"]

    assert np.array_equal(first(index=1, seed=5), first(index=1, seed=5))
    values = [first(index=i, seed=s).tobytes() for i in range(3) for s in range(3)]
    assert len(set(values)) == 9


def test_unknown_names_get_the_nearest():
    with pytest.raises(EnvError, match="no suite 'dumy': try 'dummy'"):
        embodied.envs.make("dumy_disc")
    with pytest.raises(EnvError, match=r"no suite 'xqz': try 'atari', .*'crafter', 'custom', .*…"):
        embodied.envs.make("xqz_1")
    with pytest.raises(EnvError, match="no task of the suite 'dummy' 'disk': try 'disc'"):
        embodied.envs.make("dummy_disk")
    with pytest.raises(EnvError, match="'dummy' names no environment: write dummy_NAME"):
        embodied.envs.make("dummy")


def test_suites_are_listed():
    assert {"dmc", "dummy", "gym", "gymnasium"} <= set(embodied.envs.suites())
