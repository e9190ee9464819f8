import sys

import numpy as np
import pytest

import dreamerv3.config
import embodied.envs
from embodied.core.errors import EnvError, MissingPackageError
from embodied.core.spaces import sample
from embodied.envs.memmaze import MemoryMaze
from embodied.testing import check_env

pytest.importorskip("memory_maze.maze")


def act(value=0, reset=False):
    return {"action": np.int32(value), "reset": np.bool_(reset)}


def test_preset_keeps_the_contract_silently(capfd, caplog):
    config = dreamerv3.config.compose(["memmaze"])
    env = embodied.envs.make(config.task, **config.env.memmaze)
    flags = {"reward", "is_first", "is_last", "is_terminal"}
    assert env.obs_space.keys() == {"image", *flags}
    assert env.obs_space["image"].shape == (64, 64, 3)
    assert (env.act_space["action"].low, env.act_space["action"].high) == (0, 6)
    check_env(env, steps=15, seed=1)
    assert not caplog.records
    assert capfd.readouterr().err == ""


@pytest.fixture(scope="module")
def maze():
    return MemoryMaze("9x9", size=(80, 80), targets=True)


def test_targets_are_observed_if_wanted(maze):
    obs = maze.step(act(reset=True))
    assert obs["image"].shape == (80, 80, 3)
    assert obs["image"].std() > 10
    assert obs["maze_layout"].shape == (9, 9)
    row, column = (int(x) for x in obs["agent_pos"][::-1])
    assert obs["maze_layout"][row, column] == 1  # where the player can stand
    color = np.asarray(obs["target_color"] * 255 * 0.7, np.uint8)
    np.testing.assert_allclose(obs["image"][0, 0], color, atol=1)
    # The border is as far as the target's colour goes: inside, the maze is drawn.
    assert (obs["image"][2:-2, 2:-2] != obs["image"][0, 0]).any(-1).mean() > 0.9


def test_episodes_follow_from_the_seed():
    def run(seed, length):
        env = embodied.envs.make("memmaze_9x9", seed=seed, targets=True)
        rng = np.random.default_rng(0)
        steps = [{k: sample(v, rng) for k, v in env.act_space.items()} for _ in range(length)]
        return [env.step({**x, "reset": np.bool_(i == 4)}) for i, x in enumerate(steps)]

    one, same, other = run(1, 7), run(1, 7), run(2, 1)
    assert all(np.array_equal(a[k], b[k]) for a, b in zip(one, same, strict=True) for k in a)
    assert not np.array_equal(one[0]["maze_layout"], other[0]["maze_layout"])
    assert not np.array_equal(one[0]["maze_layout"], one[4]["maze_layout"])


def test_a_time_limit_is_not_terminal(maze):
    maze.step(act(reset=True))
    composed = maze._env
    while hasattr(composed, "env"):
        composed = composed.env
    composed._time_limit = 0.5  # two steps at four a second
    obs = [maze.step(act(1)) for _ in range(2)]
    assert [bool(x["is_last"]) for x in obs] == [False, True]
    assert not obs[1]["is_terminal"]


def test_wrong_options_are_named():
    with pytest.raises(EnvError, match="of Memory Maze '9x8': try '9x9'"):
        MemoryMaze("9x8")
    for size in ((32, 32), (64, 96)):
        with pytest.raises(EnvError, match=rf"is \({size[0]}, {size[1]}\), but .* at least 64"):
            MemoryMaze("9x9", size=size)


@pytest.mark.parametrize("package", ["memory_maze", "gym"])
def test_missing_package_is_named(monkeypatch, package):
    for name in [x for x in sys.modules if x.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    text = rf"suite 'memmaze' needs the package '{package}'.* 'dreamerv3\[memmaze\]'"
    with pytest.raises(MissingPackageError, match=text):
        MemoryMaze("9x9")
