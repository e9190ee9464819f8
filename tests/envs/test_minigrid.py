import sys

import gymnasium
import numpy as np
import pytest

import embodied.envs
from dreamerv3.config import compose
from dreamerv3.factory import make_env
from embodied.core.errors import EnvError, MissingPackageError
from embodied.envs.minigrid import MiniGrid
from embodied.testing import check_env

pytest.importorskip("minigrid")

TASKS = [
    "DoorKey-5x5-v0",
    "MiniGrid-Empty-Random-6x6-v0",
    "Dynamic-Obstacles-5x5-v0",
    "FourRooms-v0",
    "BabyAI-GoToRedBall-v0",
    "BabyAI-KeyInBox-v0",
]


def act(action=0, reset=False):
    return {"action": np.int32(action), "reset": np.bool_(reset)}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("image", [True, False])
def test_tasks_keep_the_contract(task, image):
    env = embodied.envs.make(f"minigrid_{task}", image=image)
    check_env(env, steps=300)
    assert env.act_space["action"].classes == (3 if "Dynamic" in task else 7)
    env.close()


def test_classes_are_those_of_the_grid():
    env = MiniGrid("DoorKey-5x5-v0", image=False, seed=3)
    direct = gymnasium.make("MiniGrid-DoorKey-5x5-v0")
    right, _ = direct.reset(seed=3)
    shapes = {k: (v.shape, v.high.max()) for k, v in env.obs_space.items()}
    assert shapes["object"] == ((7, 7), 11)
    assert shapes["color"] == ((7, 7), 6)
    assert shapes["state"] == ((7, 7), 3)
    assert not {"image", "mission"} & shapes.keys()
    obs = env.step(act(reset=True))
    for action in (None, 1, 2, 0, 2, 3):
        if action is not None:
            right = direct.step(action)[0]
            obs = env.step(act(action))
        grid = np.stack([obs["object"], obs["color"], obs["state"]], -1)
        assert np.array_equal(grid, right["image"])
        assert obs["direction"] == right["direction"]


@pytest.mark.parametrize("size", [(64, 64), (56, 56), (20, 48)])
def test_pictures_have_the_size_asked_for(size):
    env = MiniGrid("DoorKey-5x5-v0", size=size)
    image = env.step(act())["image"]
    assert env.obs_space["image"].shape == image.shape == (*size, 3)
    assert len(np.unique(image.reshape(-1, 3), axis=0)) > 3
    assert "log/image" not in env.obs_space


def test_the_grid_is_rendered_when_asked():
    env = MiniGrid("DoorKey-5x5-v0", image=False, render=True)
    assert env.step(act())["log/image"].shape == (160, 160, 3)
    assert env.obs_space["log/image"].shape == (160, 160, 3)


def test_episodes_follow_from_the_seed():
    def run(seed):
        env, rng = MiniGrid("MultiRoom-N4-S5-v1", seed=seed), np.random.default_rng(0)
        return [env.step(act(rng.integers(7), i % 9 == 0)) for i in range(18)]

    one, same, other = run(1), run(1), run(2)
    assert all(np.array_equal(a[k], b[k]) for a, b in zip(one, same, strict=True) for k in a)
    assert not np.array_equal(one[0]["image"], other[0]["image"])
    assert not np.array_equal(one[0]["image"], one[9]["image"])


@pytest.mark.parametrize("length", [3, 300])
def test_the_limit_can_be_set_and_is_not_terminal(length):
    env = MiniGrid("DoorKey-5x5-v0", image=False, length=length)
    lasts = [env.step(act()) for _ in range(length + 1)]
    assert [i for i, o in enumerate(lasts) if o["is_last"]] == [length]
    assert not lasts[-1]["is_terminal"]


def test_reaching_the_goal_is_terminal_and_pays():
    env = MiniGrid("Empty-5x5-v0", image=False)
    env.step(act())
    for action in (2, 2, 1, 2, 2):
        obs = env.step(act(action))
    assert obs["is_last"]
    assert obs["is_terminal"]
    assert obs["reward"] > 0.9
    assert env.step(act())["is_first"]


@pytest.mark.parametrize("name", ["DoorKey-5x5", "MiniGrid-DorKey-5x5-v0"])
def test_unknown_tasks_get_the_nearest(name):
    with pytest.raises(EnvError, match=r"no task of MiniGrid .*try 'MiniGrid-DoorKey-"):
        MiniGrid(name)


def test_time_limits_below_zero():
    with pytest.raises(EnvError, match="time limit is -1 steps"):
        MiniGrid("DoorKey-5x5-v0", length=-1)


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "minigrid", None)
    message = r"'minigrid' needs the package 'minigrid'.*pip install 'dreamerv3\[minigrid\]'"
    with pytest.raises(MissingPackageError, match=message):
        MiniGrid("DoorKey-5x5-v0")


@pytest.mark.parametrize("image", [True, False])
def test_preset(image):
    env = make_env(compose(["minigrid"], {"env.minigrid.image": image}), 0)
    assert ("image" in env.obs_space) == image
    check_env(env)
