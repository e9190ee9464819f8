import os
import subprocess
import sys
import textwrap
from pathlib import Path
from unittest import mock

import dm_env
import numpy as np
import pytest

import embodied.envs
from embodied.core.errors import EnvError, MissingPackageError
from embodied.core.spaces import sample
from embodied.envs.dmc import DMC
from embodied.testing import check_env

REPO = Path(__file__).parents[2]


def act(env, reset=False, value=0.0):
    shape = env.act_space["action"].shape
    return {"action": np.full(shape, value, np.float32), "reset": np.bool_(reset)}


def state(task="cartpole_swingup", **kwargs):
    return DMC(task, image=False, **kwargs)


@pytest.mark.parametrize(
    ("task", "kwargs"),
    [
        ("dmc_cartpole_swingup", {"repeat": 2}),
        ("dmc_walker_walk", {}),
        ("dmc_quadruped_walk", {}),
        ("dmc_manip_reach_site", {}),
    ],
)
def test_states_keep_the_contract(task, kwargs):
    check_env(embodied.envs.make(task, image=False, **kwargs), steps=40)


def test_states_are_floats_of_the_declared_shapes():
    spaces = state("walker_walk").obs_space
    shapes = {k: v.shape for k, v in spaces.items() if not k.startswith("is_")}
    assert shapes == {"orientations": (14,), "height": (), "velocity": (9,), "reward": ()}
    assert {spaces[k].dtype for k in shapes} == {np.dtype(np.float32)}


def test_empty_states_are_dropped_and_slashes_replaced():
    assert "jaco_arm_joints_pos" in state("manip_reach_site").obs_space
    empty = dm_env.specs.Array((0,), float)
    specs = {**state()._simulation.observation_spec(), "none": empty}
    with mock.patch(
        "dm_control.rl.control.Environment.observation_spec", autospec=True, return_value=specs
    ):
        assert state().obs_space.keys() & {"none", "position"} == {"position"}


def test_actions_keep_the_bounds_of_the_task():
    space = state("quadruped_walk").act_space["action"]
    assert (space.dtype, space.shape) == (np.float32, (12,))
    assert (space.low.min(), space.high.max()) == (-1, 1.1)


def test_domains_with_an_underscore_and_their_short_name():
    for task in ("ball_in_cup_catch", "cup_catch", "point_mass_easy", "humanoid_CMU_stand"):
        assert state(task).step(act(state(task)))["is_first"]


def test_episode_of_a_thousand_steps_is_cut_inside_a_repeat():
    env = state(repeat=7)
    obs = [env.step(act(env)) for _ in range(145)]
    assert [i for i, o in enumerate(obs) if o["is_last"]] == [143]
    assert [i for i, o in enumerate(obs) if o["is_first"]] == [0, 144]
    assert not any(o["is_terminal"] for o in obs)


def test_rewards_are_summed_over_a_repeat():
    single, double = state("cartpole_balance", seed=1), state("cartpole_balance", seed=1, repeat=2)
    ones = [float(single.step(act(single, value=0.1))["reward"]) for _ in range(11)]
    twos = [float(double.step(act(double, value=0.1))["reward"]) for _ in range(6)]
    assert twos[0] == 0
    np.testing.assert_allclose(twos[1:], np.add(ones[1::2], ones[2::2]), rtol=1e-6)
    assert twos[1] > 1


def test_discount_of_zero_is_terminal():
    env = state()
    env.step(act(env))
    time_step = env._simulation.step(np.zeros(1))
    for discount, terminal in ((0.0, True), (1.0, False)):
        ended = time_step._replace(step_type=type(time_step.step_type)(2), discount=discount)
        with mock.patch.object(env._simulation, "step", lambda _, ended=ended: ended):
            obs = env.step(act(env))
        assert (obs["is_last"], obs["is_terminal"]) == (True, terminal)
        assert env.step(act(env))["is_first"]


def test_episodes_follow_from_the_seed():
    def run(seed):
        env = embodied.envs.make("dmc_cartpole_swingup", seed=seed, image=False)
        rng = np.random.default_rng(0)
        steps = [{k: sample(v, rng) for k, v in env.act_space.items()} for _ in range(20)]
        return [env.step({**x, "reset": np.bool_(i % 10 == 0)}) for i, x in enumerate(steps)]

    one, same, other = run(1), run(1), run(2)
    assert all(np.array_equal(a[k], b[k]) for a, b in zip(one, same, strict=True) for k in a)
    assert not np.array_equal(one[0]["position"], other[0]["position"])
    assert not np.array_equal(one[0]["position"], one[10]["position"])


@pytest.mark.parametrize("task", ["cartpole_swing", "cartpol_swingup", "swingup"])
def test_unknown_tasks_get_the_nearest(task):
    with pytest.raises(EnvError, match=f"of dm_control '{task}': try .*'cartpole_swingup'"):
        DMC(task)
    with pytest.raises(EnvError, match="'manip_reach_sight': try 'manip_reach_site'"):
        DMC("manip_reach_sight")


def test_something_must_be_observed():
    with pytest.raises(EnvError, match="Set proprio or image"):
        DMC("cartpole_swingup", proprio=False, image=False)


def test_missing_package_is_named(monkeypatch):
    for name in [x for x in sys.modules if x.split(".")[0] == "dm_control"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "dm_control", None)
    with pytest.raises(MissingPackageError, match=r"suite 'dmc' .* 'dreamerv3\[dmc\]'"):
        embodied.envs.make("dmc_walker_walk")


# A process loads its graphics library once, so that these tests need their own.


def script(code, **variables):
    env = {k: v for k, v in os.environ.items() if k not in ("MUJOCO_GL", "DISPLAY")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        env={**env, "PYTHONPATH": str(REPO), **variables},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


PRELUDE = """
import os, sys
import numpy as np
from embodied.core.errors import EnvError
from embodied.envs.dmc import DMC
from embodied.testing import check_env
act = {"action": np.zeros(1, np.float32), "reset": np.bool_(False)}
"""


def test_images_and_states_in_one_process():
    script(
        PRELUDE
        + """
env = DMC("cartpole_swingup", image=False)
env.step(act)
assert env.obs_space.keys() & {"image", "log/image"} == set()
assert not [x for x in sys.modules if x.split(".")[0] in ("OpenGL", "glfw")]

env = DMC("cartpole_swingup", proprio=False, size=(32, 48))
assert "MUJOCO_GL" not in os.environ
assert "position" not in env.obs_space
image = env.step(act)["image"]
assert image.shape == env.obs_space["image"].shape == (32, 48, 3)
assert image.dtype == np.uint8 and image.std() > 10
check_env(DMC("cartpole_swingup"), steps=4)

env = DMC("cartpole_swingup", image=False, render=True)
obs = env.step(act)
assert "image" not in obs and obs["log/image"].shape == (64, 64, 3)

one = DMC("cartpole_swingup", camera=0, seed=1).step(act)["image"]
assert np.array_equal(one, DMC("cartpole_swingup", seed=1).step(act)["image"])
assert not np.array_equal(one, DMC("cartpole_swingup", camera=1, seed=1).step(act)["image"])
try:
    DMC("cartpole_swingup", camera=99)
except EnvError as error:
    assert "camera 99 cannot render" in str(error)
else:
    raise AssertionError
"""
    )


@pytest.mark.parametrize("backend", ["glfw", "bogus"])
def test_machine_that_cannot_render_says_what_helps(backend):
    code = """
import warnings
warnings.simplefilter("ignore")  # of glfw, before it fails
try:
    DMC("cartpole_swingup")
except EnvError as error:
    print(error)
DMC("cartpole_swingup", image=False).step(act)
"""
    text = script(PRELUDE + code, MUJOCO_GL=backend)
    assert text.startswith("MuJoCo cannot render here (")
    for word in ("MUJOCO_GL=egl", "MUJOCO_GL=osmesa", "libegl1", "libgl1", "libosmesa6"):
        assert word in text
