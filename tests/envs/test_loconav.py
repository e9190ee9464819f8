import os
import subprocess
import sys
import textwrap
from unittest import mock

import numpy as np
import pytest

import dreamerv3.config
import embodied.envs
from embodied.core.errors import EnvError, MissingPackageError
from embodied.core.spaces import sample
from embodied.envs import mujoco_gl
from embodied.envs.loconav import LocoNav
from embodied.testing import check_env

pytest.importorskip("dm_control")


@pytest.fixture(scope="module")
def maze():
    return mujoco_gl.load("embodied.envs.loconav_maze", "loconav", "", render=True)


def act(env, reset=False):
    shape = env.act_space["action"].shape
    return {"action": np.zeros(shape, np.float32), "reset": np.bool_(reset)}


def move(env, cell, height=0.6):
    """Puts the robot into a cell of the maze, upright."""
    simulation = env._env.env._env
    arena = simulation.task._maze_arena
    x = (cell[1] - arena._x_offset) * arena.xy_scale
    y = -(cell[0] - arena._y_offset) * arena.xy_scale
    simulation.task._walker.set_pose(simulation.physics, [x, y, height], [1, 0, 0, 0])
    return simulation


def test_preset_keeps_the_contract():
    config = dreamerv3.config.compose(["loconav"])
    env = embodied.envs.make(config.task, **config.env.loconav)
    assert env.obs_space["image"].shape == (64, 64, 3)
    assert env.act_space["action"].shape == (8,)
    check_env(env, steps=30)


def test_quadruped_keeps_the_contract():
    env = LocoNav("quadruped_empty", repeat=2, size=(32, 48))
    assert env.obs_space["walker_joints_pos"].shape == (16,)
    space = env.act_space["action"]
    assert (space.shape, space.high.max(), space.low.min()) == ((12,), np.float32(1.1), -1)
    check_env(env, steps=15)
    assert env.step(act(env))["image"].std() > 5


@pytest.mark.parametrize("walker", ["ant", "quadruped"])
def test_robots_stand_where_they_start(walker):
    env = LocoNav(f"{walker}_maze_s", size=(16, 16))
    with mock.patch.object(LocoNav, "_render", return_value=None):
        obs = [env.step(act(env)) for _ in range(60)]
    assert not any(x["is_last"] for x in obs)
    assert 0.2 < obs[-1]["walker_body_height"] < 0.8
    assert obs[-1]["walker_world_zaxis"][2] > 0.9


@pytest.mark.parametrize("task", ["ant_empty", "quadruped_maze_m"])
def test_touching_the_goal_pays_and_ends_terminally(task):
    env = LocoNav(task, repeat=3, size=(16, 16))
    for _ in range(2):  # the second episode has to begin with an untouched goal
        first = env.step(act(env))
        assert first["is_first"]
        assert first["reward"] == 0
        assert not env.step(act(env))["is_last"]
        move(env, (1, 1))
        obs = env.step(act(env))
        assert (obs["reward"], obs["is_last"], obs["is_terminal"]) == (1, True, True)


def test_lying_on_the_back_ends_terminally_without_reward():
    env = LocoNav("ant_maze_s", size=(16, 16))
    env.step(act(env))
    simulation = move(env, (2, 3))
    simulation.task._walker.set_pose(simulation.physics, quaternion=[0, 1, 0, 0])
    obs = env.step(act(env))
    assert (obs["reward"], obs["is_last"], obs["is_terminal"]) == (0, True, True)


def test_time_limit_is_not_terminal():
    env = LocoNav("ant_empty", repeat=7, size=(16, 16))
    assert env._simulation._time_limit == 20
    env._simulation._time_limit = 0.4  # 20 steps
    obs = [env.step(act(env)) for _ in range(5)]
    assert [bool(x["is_last"]) for x in obs] == [False, False, False, True, False]
    assert [bool(x["is_first"]) for x in obs] == [True, False, False, False, True]
    assert not any(x["is_terminal"] for x in obs)


def test_episodes_follow_from_the_seed_and_leave_the_global_generator_alone():
    def run(seed):
        env = embodied.envs.make("loconav_ant_maze_l", seed=seed, size=(24, 24))
        rng = np.random.default_rng(0)
        steps = [{k: sample(v, rng) for k, v in env.act_space.items()} for _ in range(8)]
        return [env.step({**x, "reset": np.bool_(i == 4)}) for i, x in enumerate(steps)]

    np.random.seed(0)
    one = run(1)
    np.random.seed(5)
    same, other = run(1), run(2)
    assert all(np.array_equal(a[k], b[k]) for a, b in zip(one, same, strict=True) for k in a)
    assert not np.array_equal(one[0]["image"], other[0]["image"])
    assert not np.array_equal(one[0]["image"], one[4]["image"])


def test_mazes_have_ways_of_growing_length(maze):
    lengths = []
    for name, layout in maze.LAYOUTS.items():
        rows = layout.strip().split("\n")
        assert {len(x) for x in rows} == {len(rows)}
        assert set(rows[0] + rows[-1] + "".join(x[0] + x[-1] for x in rows)) == {"*"}
        cells = {(i, j): x for i, row in enumerate(rows) for j, x in enumerate(row) if x != "*"}
        way = distances(cells, next(k for k, v in cells.items() if v == "P"))
        assert way.keys() == cells.keys(), name
        lengths.append(way[next(k for k, v in cells.items() if v == "G")])
    assert lengths == [8, 5, 14, 28, 40]


def distances(cells, start):
    found, frontier = {start: 0}, [start]
    for i, j in frontier:
        for cell in ((i - 1, j), (i + 1, j), (i, j - 1), (i, j + 1)):
            if cell in cells and cell not in found:
                found[cell] = found[i, j] + 1
                frontier.append(cell)
    return found


def test_walls_have_colors_by_quarter(maze):
    assert maze.color_walls("\n***\n*G*\n***\n") == "112\n1G2\n334\n"


def test_cameras():
    inside, above = LocoNav("ant_maze_s"), LocoNav("ant_maze_s", camera=0)
    assert not np.array_equal(inside.step(act(inside))["image"], above.step(act(above))["image"])
    with pytest.raises(EnvError, match="camera 99 cannot render"):
        LocoNav("ant_maze_s", camera=99)


@pytest.mark.parametrize(("render", "keys"), [(False, set()), (True, {"log/image"})])
def test_nothing_is_rendered_that_nobody_asked_for(render, keys):
    env = LocoNav("ant_empty", image=False, render=render, size=(16, 24))
    assert {"image", "log/image"} & env.obs_space.keys() == keys
    with mock.patch.object(LocoNav, "_render", side_effect=env._render) as frames:
        check_env(env, steps=5)
    assert bool(frames.call_count) == render


def test_without_frames_no_graphics_are_needed():
    code = """
    from embodied.envs.loconav import LocoNav
    import numpy as np
    env = LocoNav("ant_empty", image=False)
    env.step({"reset": np.bool_(True)})
    from dm_control import _render
    print(_render.BACKEND)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={k: v for k, v in os.environ.items() if k != "MUJOCO_GL"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.stdout == "off\n", done.stderr


def test_unknown_tasks_get_the_nearest():
    with pytest.raises(EnvError, match=r"of LocoNav 'ant_maze_xxl': try .*'ant_maze_xl'"):
        LocoNav("ant_maze_xxl")


def test_missing_package_is_named(monkeypatch):
    for name in [x for x in sys.modules if x.split(".")[0] == "dm_control"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "embodied.envs.loconav_maze", raising=False)
    monkeypatch.setitem(sys.modules, "dm_control", None)
    with pytest.raises(MissingPackageError, match=r"suite 'loconav' .* 'dreamerv3\[dmc\]'"):
        LocoNav("ant_empty")
