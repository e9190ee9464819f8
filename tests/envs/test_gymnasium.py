import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import embodied.envs
from embodied.core.errors import EnvError, MissingPackageError, SpaceError
from embodied.core.spaces import sample
from embodied.envs.gymnasium import Gymnasium
from embodied.testing import check_env


class Toy(gymnasium.Env):
    """Gives observations of its space in turn; ends after `length` actions, as told by `end`."""

    def __init__(self, obs_space=None, act_space=None, length=3, end=(False, True)):
        self.observation_space = spaces.Box(-1, 1, (2,)) if obs_space is None else obs_space
        self.action_space = spaces.Discrete(2) if act_space is None else act_space
        self.render_mode = None
        self.seeds = []
        self.actions = []
        self.renders = 0
        self.value = None  # to observe instead of samples
        self._length = length
        self._end = end

    def _observe(self):
        return self.observation_space.sample() if self.value is None else self.value

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._steps = 0
        return self._observe(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.actions.append(action)
        self._steps += 1
        ended = self._steps >= self._length
        return self._observe(), 1.5, *(ended and x for x in self._end), {}

    def render(self):
        self.renders += 1
        return np.full((6, 7, 3), self.renders, np.uint8)


def act(env, reset=False, **values):
    action = {k: np.zeros(v.shape, v.dtype) for k, v in env.act_space.items()}
    return {**action, **values, "reset": np.bool_(reset)}


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "MountainCar-v0"])
def test_real_environments_keep_the_contract(name):
    check_env(embodied.envs.make(f"gymnasium_{name}"), steps=500)


@pytest.mark.parametrize("task", ["gym_CartPole-v1", "gymnasium_Pendulum-v1"])
def test_episodes_follow_from_the_seed(task):
    def run(seed):
        env, rng = embodied.envs.make(task, seed=seed), np.random.default_rng(0)
        steps = [{k: sample(v, rng) for k, v in env.act_space.items()} for _ in range(60)]
        return [env.step({**x, "reset": np.bool_(i % 20 == 0)}) for i, x in enumerate(steps)]

    one, same, other = run(1), run(1), run(2)
    assert all(np.array_equal(a[k], b[k]) for a, b in zip(one, same, strict=True) for k in a)
    assert not np.array_equal(one[0]["vector"], other[0]["vector"])
    assert not np.array_equal(one[0]["vector"], one[20]["vector"])


def test_cartpole_ends_terminally():
    env = embodied.envs.make("gymnasium_CartPole-v1")
    obs = [env.step(act(env))]
    while not obs[-1]["is_last"]:
        obs.append(env.step(act(env, action=np.int32(1))))
    assert obs[-1]["is_terminal"]
    assert 8 <= len(obs) <= 12
    assert env.obs_space["vector"].shape == (4,)
    assert env.act_space["action"].classes == 2


def test_time_limit_of_pendulum_is_not_terminal():
    env = embodied.envs.make("gymnasium_Pendulum-v1")
    obs = [env.step(act(env)) for _ in range(201)]
    assert [i for i, o in enumerate(obs) if o["is_last"]] == [200]
    assert not obs[200]["is_terminal"]
    assert env.step(act(env))["is_first"]


@pytest.mark.parametrize(
    ("end", "terminal"), [((True, False), True), ((False, True), False), ((True, True), True)]
)
def test_termination_and_truncation(end, terminal):
    env = Gymnasium(Toy(end=end))
    obs = [env.step(act(env)) for _ in range(8)]
    assert [bool(o["is_last"]) for o in obs] == [False, False, False, True] * 2
    assert [bool(o["is_terminal"]) for o in obs] == [False, False, False, terminal] * 2
    assert [bool(o["is_first"]) for o in obs] == [True, False, False, False] * 2
    assert [float(o["reward"]) for o in obs] == [0, 1.5, 1.5, 1.5] * 2


@pytest.mark.parametrize("render", [False, True])
def test_only_the_first_reset_gets_the_seed(render):
    toy = Toy()
    env = Gymnasium(toy, seed=7, render=render)
    for _ in range(9):
        env.step(act(env))
    env.step(act(env, reset=True))
    assert toy.seeds == [7, None, None, None]


def test_nothing_is_rendered_unless_asked():
    toy = Toy()
    env = Gymnasium(toy)
    env.step(act(env))
    assert toy.renders == 0
    assert "log/image" not in env.obs_space


def test_frames_are_for_the_log():
    env = Gymnasium(Toy(), render=True)
    assert env.obs_space["log/image"].shape == (6, 7, 3)
    images = [env.step(act(env))["log/image"] for _ in range(2)]
    assert [int(x.max()) for x in images] == [2, 3]
    check_env(Gymnasium(Toy(), render=True))


def test_real_frames():
    env = embodied.envs.make("gymnasium_CartPole-v1", render=True)
    image = env.step(act(env))["log/image"]
    assert image.shape == env.obs_space["log/image"].shape == (400, 600, 3)
    assert len(np.unique(image)) > 2
    env.close()


class Blind(Toy):
    def render(self):
        return None


def test_environment_that_cannot_render_arrays_is_told_how():
    with pytest.raises(EnvError, match=r"renders NoneType .* render_mode='rgb_array'"):
        Gymnasium(Blind(), render=True)


ACTIONS = [
    # space of Gymnasium, dtype, shape, classes, action of the agent, action in the environment
    (spaces.Discrete(5), np.int32, (), 5, 4, 4),
    (spaces.Discrete(5, start=1), np.int32, (), 5, 4, 5),
    (spaces.Discrete(3, start=-1), np.int32, (), 3, 0, -1),
    (spaces.MultiDiscrete([2, 5, 3]), np.int32, (3,), [2, 5, 3], [1, 4, 0], [1, 4, 0]),
    (spaces.MultiDiscrete([2, 5], start=[3, -1]), np.int32, (2,), [2, 5], [1, 4], [4, 3]),
    (spaces.MultiDiscrete([[2], [5]]), np.int32, (2, 1), [[2], [5]], [[1], [4]], [[1], [4]]),
    (spaces.MultiBinary(3), np.int32, (3,), [2, 2, 2], [1, 0, 1], [1, 0, 1]),
    (spaces.Box(0, 800, (2,)), np.float32, (2,), None, [0.5, 800], [0.5, 800]),
    (spaces.Box(-1, 1, (2,), np.float64), np.float32, (2,), None, [0.5, -1], [0.5, -1]),
    (spaces.Box(3, 5, (2,), np.int64), np.int32, (2,), [3, 3], [0, 2], [3, 5]),
]


@pytest.mark.parametrize(("space", "dtype", "shape", "classes", "value", "arrives"), ACTIONS)
def test_actions_arrive(space, dtype, shape, classes, value, arrives):
    toy = Toy(act_space=space)
    env = Gymnasium(toy)
    ours = env.act_space["action"]
    assert (ours.dtype, ours.shape) == (dtype, shape)
    if classes is not None:
        assert np.array_equal(ours.classes, classes)
    env.step(act(env))
    env.step(act(env, action=np.array(value, dtype)))
    assert np.array_equal(toy.actions[0], arrives)
    check_env(Gymnasium(Toy(act_space=space)))


OBSERVATIONS = [
    # space of Gymnasium, key, dtype, shape, value of the environment, value of the agent
    (spaces.Discrete(4, start=2), "vector", np.int32, (), 5, 3),
    (spaces.MultiDiscrete([2, 3]), "vector", np.int32, (2,), [1, 2], [1, 2]),
    (spaces.MultiBinary(2), "vector", np.int32, (2,), [1, 0], [1, 0]),
    (spaces.Box(-2, 2, (3,), np.float64), "vector", np.float32, (3,), [1, 2, 0], [1, 2, 0]),
    (spaces.Box(0, 1, (), np.float32), "vector", np.float32, (), 0.5, 0.5),
    (spaces.Box(0, 255, (2, 1, 3), np.uint8), "image", np.uint8, (2, 1, 3), None, None),
    (spaces.Box(0, 255, (4,), np.uint8), "vector", np.int32, (4,), [0, 9, 0, 255], [0, 9, 0, 255]),
    (spaces.Box(5, 7, (2,), np.int16), "vector", np.int32, (2,), [5, 7], [0, 2]),
    (spaces.Box(0, 1000, (1,), np.int64), "vector", np.float32, (1,), [999], [999]),
]


@pytest.mark.parametrize(("space", "key", "dtype", "shape", "value", "arrives"), OBSERVATIONS)
def test_observations_arrive(space, key, dtype, shape, value, arrives):
    toy = Toy(obs_space=space)
    env = Gymnasium(toy)
    ours = env.obs_space[key]
    assert (ours.dtype, ours.shape) == (dtype, shape)
    if value is not None:
        toy.value = np.array(value, space.dtype)
        assert np.array_equal(env.step(act(env))[key], arrives)
    check_env(Gymnasium(Toy(obs_space=space)))


def test_bounds_of_observations_are_kept():
    space = spaces.Box(np.array([-np.inf, 0]), np.array([1e300, 0.1]), dtype=np.float64)
    ours = Gymnasium(Toy(obs_space=space)).obs_space["vector"]
    assert ours.low.tolist() == [-np.inf, 0]
    assert ours.high.tolist() == [np.inf, np.float32(0.1)]


def test_nested_dicts_are_flattened():
    part = spaces.Dict({"pos": spaces.Box(-1, 1, (2,)), "grip": spaces.Discrete(3)})
    space = spaces.Dict({"left": part, "right": part, "speed": spaces.Box(0, 1, ())})
    toy = Toy(obs_space=space, act_space=spaces.Dict({"arm": part, "jump": spaces.Discrete(2)}))
    env = Gymnasium(toy)
    assert {"left_pos", "left_grip", "right_pos", "right_grip", "speed"} < env.obs_space.keys()
    assert env.act_space.keys() == {"arm_pos", "arm_grip", "jump", "reset"}
    env.step(act(env))
    move = {"arm_pos": np.float32([0.5, -1]), "arm_grip": np.int32(2), "jump": np.int32(1)}
    env.step(act(env, **move))
    assert toy.actions[0]["arm"]["grip"] == 2
    assert toy.actions[0]["arm"]["pos"].tolist() == [0.5, -1]
    assert toy.actions[0]["jump"] == 1
    toy.value = space.sample()
    obs = env.step(act(env))
    assert np.array_equal(obs["right_pos"], toy.value["right"]["pos"])
    check_env(Gymnasium(Toy(toy.observation_space, toy.action_space)))


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"a": {"b": 2}, "a_b": 3}, "observation would be called 'a_b'"),
        ({"reward": 2}, "observation would be called 'reward'"),
        ({"action": 2}, "'action' is both an observation and an action"),
    ],
)
def test_collisions_are_refused(space, message):
    def build(tree):
        if isinstance(tree, int):
            return spaces.Discrete(tree)
        return spaces.Dict({k: build(v) for k, v in tree.items()})

    with pytest.raises(SpaceError, match=message):
        Gymnasium(Toy(obs_space=build(space)))


def test_unsupported_spaces_are_named():
    text = spaces.Text(10)
    with pytest.raises(SpaceError, match=r"The observation has the space Text\(.*not supported"):
        Gymnasium(Toy(obs_space=text))
    with pytest.raises(SpaceError, match=r"entry 'say_it' of the action has the space Text\("):
        Gymnasium(Toy(act_space=spaces.Dict({"say": spaces.Dict({"it": text})})))


@pytest.mark.parametrize("name", ["cartpole-v1", "CartPole-v9", "CartPol-v1"])
def test_unknown_ids_get_the_nearest(name):
    with pytest.raises(EnvError, match=f"of Gymnasium '{name}': try .*'CartPole-v1'"):
        embodied.envs.make(f"gymnasium_{name}")


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(MissingPackageError, match=r"'pygame'.*pip install 'dreamerv3\[classic\]'"):
        embodied.envs.make("gymnasium_CartPole-v1", render=True)
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(MissingPackageError, match=r"suite 'gymnasium' needs .*'gymnasium'"):
        embodied.envs.make("gymnasium_CartPole-v1")


def test_options_reach_the_environment():
    env = embodied.envs.make("gymnasium_CartPole-v1", max_episode_steps=2)
    assert [bool(env.step(act(env))["is_last"]) for _ in range(3)] == [False, False, True]
