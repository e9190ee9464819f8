import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

import embodied.envs
from dreamerv3.config import compose
from dreamerv3.factory import make_env
from embodied.core.errors import EnvError, MissingPackageError, SpaceError
from embodied.core.spaces import bounds, fault, sample
from embodied.core.wrappers import CheckSpaces, UnifyDtypes
from embodied.envs.gymnasium import Gymnasium
from embodied.envs.gymspaces import FlatSpace
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


CLASSIC = [
    "CartPole-v1",
    "Pendulum-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Acrobot-v1",
]
TEXT = ["FrozenLake-v1", "FrozenLake8x8-v1", "Taxi-v4", "Blackjack-v1", "CliffWalking-v1"]
BOX2D = ["LunarLander-v3", "LunarLanderContinuous-v3", "BipedalWalker-v3"]
MUJOCO = [
    f"{x}-v5"
    for x in ("HalfCheetah", "Hopper", "Walker2d", "Ant", "Humanoid", "Reacher", "Pusher")
]
swig = pytest.mark.filterwarnings("ignore:builtin type:DeprecationWarning")


@swig
@pytest.mark.parametrize("name", [*CLASSIC, *TEXT, *BOX2D, *MUJOCO])
def test_real_environments_keep_the_contract(name):
    for package, names in (("Box2D", BOX2D), ("mujoco", MUJOCO)):
        if name in names:
            pytest.importorskip(package)
    config = compose([], {"task": f"gymnasium_{name}"})
    raw, env = embodied.envs.make(config.task), make_env(config, 0)
    for steps, one in ((500, raw), (300, env)):
        check_env(one, steps=steps)
        one.close()


@swig
def test_frames_of_a_race_are_resized():
    pytest.importorskip("Box2D")
    env = make_env(compose(["box2d"], {"task": "gymnasium_CarRacing-v3"}), 0, repeat=4)
    assert env.obs_space["image"].shape == (64, 64, 3)
    check_env(env, steps=12)
    env.close()


@swig
def test_estimated_bounds_are_no_errors():
    pytest.importorskip("Box2D")
    env = make_env(compose(["box2d"]), 0)
    limit = gymnasium.make("LunarLander-v3").observation_space.high
    beyond = False
    for _ in range(600):
        obs = env.step({"action": np.int32(1), "reset": np.bool_(False)})
        beyond |= bool((np.abs(obs["vector"]) > limit).any())
    assert beyond


def test_mujoco_renders_only_when_asked(monkeypatch):
    pytest.importorskip("mujoco")
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.delenv("DISPLAY", raising=False)
    env = embodied.envs.make("gymnasium_InvertedPendulum-v5", render=True)
    image = env.step(act(env))["log/image"]
    assert image.shape == env.obs_space["log/image"].shape
    assert len(np.unique(image)) > 10
    env.close()


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
    (spaces.Box(-1, 1, (2,), np.float64), np.float64, (2,), None, [0.5, -1], [0.5, -1]),
    (spaces.Box(-1, 1, (2, 1, 2)), np.float32, (2, 1, 2), None, [[[0, 1]]] * 2, [[[0, 1]]] * 2),
    (spaces.Box(-1, 1, ()), np.float32, (), None, 0.5, 0.5),
    (spaces.Box(3, 5, (2,), np.int64), np.int32, (2,), [3, 3], [0, 2], [3, 5]),
    (spaces.Box(3, 5, (), np.uint8), np.int32, (), 3, 2, 5),
    (spaces.Box(0, 1, (2,), bool), np.int32, (2,), [2, 2], [0, 1], [False, True]),
    (spaces.Box(0, 255, (8, 8, 3), np.uint8), np.int32, (8, 8, 3), None, None, None),
    (spaces.Box(0, 1000, (2,), np.int16), np.float32, (2,), None, [7.6, 1000.4], [8, 1000]),
    (spaces.Box(-(2**63), 2**63 - 1, (2,), np.int64), np.float32, (2,), None, [-2, 3], [-2, 3]),
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
    if value is not None:
        env.step(act(env, action=np.array(value, dtype)))
        assert np.array_equal(toy.actions[0], arrives)
        assert type(toy.actions[0]) is type(space.sample()) or not space.shape
        assert toy.actions[0].dtype == space.dtype
    check_env(Gymnasium(Toy(act_space=space)))


def test_integers_without_bounds_get_the_greatest_that_exist():
    toy = Toy(act_space=spaces.Box(-(2**63), 2**63 - 1, (2,), np.int64))
    env = Gymnasium(toy)
    assert env.act_space["action"].high.tolist() == [np.inf] * 2
    env.step(act(env))
    env.step(act(env, action=np.array([-1e30, 1e30], np.float32)))
    assert toy.actions[0][0] == -(2**63)
    assert toy.actions[0][1] > 2**62


OBSERVATIONS = [
    # space of Gymnasium, key, dtype, shape, bounds (inclusive), value of the environment
    (spaces.Discrete(4, start=2), "vector", np.int64, (), (2, 5), 5),
    (spaces.Discrete(4, start=2), "vector", np.int64, (), (2, 5), np.int32(5)),
    (spaces.MultiDiscrete([2, 3]), "vector", np.int64, (2,), ([0, 0], [1, 2]), [1, 2]),
    (spaces.MultiBinary(2), "vector", np.int8, (2,), (0, 1), [1, 0]),
    (spaces.Box(-2, 2, (3,), np.float64), "vector", np.float64, (3,), (-2, 2), [1, 2, 0]),
    (
        spaces.Box(-2, 2, (3,), np.float64),
        "vector",
        np.float64,
        (3,),
        (-2, 2),
        np.float32([1, 2, 0]),
    ),
    (spaces.Box(0, 1, (), np.float32), "vector", np.float32, (), (0, 1), 0.5),
    (
        spaces.Box(0, 1, (2, 3), np.float32),
        "vector",
        np.float32,
        (2, 3),
        (0, 1),
        [[0, 1, 0.5]] * 2,
    ),
    (spaces.Box(0, 255, (8, 9, 3), np.uint8), "image", np.uint8, (8, 9, 3), (0, 255), None),
    (spaces.Box(0, 1, (8, 9, 3), np.float32), "image", np.float32, (8, 9, 3), (0, 1), None),
    (spaces.Box(0, 255, (8, 9), np.uint8), "image", np.uint8, (8, 9, 1), (0, 255), None),
    (spaces.Box(0, 9, (8, 9), np.uint8), "vector", np.uint8, (8, 9), (0, 9), None),
    (spaces.Box(0, 255, (7, 7, 3), np.uint8), "vector", np.uint8, (7, 7, 3), (0, 255), None),
    (spaces.Box(0, 255, (4,), np.uint8), "vector", np.uint8, (4,), (0, 255), [0, 9, 0, 255]),
    (spaces.Box(0, 1, (2,), bool), "vector", bool, (2,), None, [True, False]),
    (spaces.Box(5, 7, (2,), np.int16), "vector", np.int16, (2,), (5, 7), [5, 7]),
    (spaces.Box(0, 1000, (1,), np.int64), "vector", np.int64, (1,), (0, 1000), [999]),
    (spaces.Box(0, 2**40, (1,), np.int64), "vector", np.float32, (1,), None, [2**39]),
    (spaces.Box(-np.inf, 3, (2,)), "vector", np.float32, (2,), (-np.inf, 3), [-1e30, 1]),
]


@pytest.mark.parametrize(("space", "key", "dtype", "shape", "limits", "value"), OBSERVATIONS)
def test_observations_arrive(space, key, dtype, shape, limits, value):
    toy = Toy(obs_space=space)
    env = Gymnasium(toy)
    ours = env.obs_space[key]
    assert (ours.dtype, ours.shape) == (dtype, shape)
    if limits:
        low, top = bounds(ours)
        assert np.array_equal(low, np.broadcast_to(limits[0], shape))
        assert np.array_equal(top, np.broadcast_to(limits[1], shape))
    if value is not None:
        toy.value = value
        found = env.step(act(env))[key]
        assert found.dtype == dtype
        assert np.array_equal(found, np.asarray(value, dtype))
    check_env(Gymnasium(Toy(obs_space=space)))
    check_env(UnifyDtypes(Gymnasium(Toy(obs_space=space))))


@pytest.mark.parametrize(
    ("space", "value", "found"),
    [
        (spaces.Box(-1, 1, (2,)), np.zeros(2), r"float64 \(2,\), expected float32 \(2,\)"),
        (spaces.Box(-1, 1, (2,)), np.zeros(3, np.float32), r"float32 \(3,\), expected .* \(2,\)"),
        (spaces.Box(-1, 1, (2,)), np.float32([0, np.nan]), "the value nan"),
        (spaces.Box(-1, 1, (2,)), np.float32([0, 1.5]), r"the value 1.5, expected .*-1.0\.\.1.0"),
        (spaces.Box(-1, 1, (2,)), [0, 1.5], "the value 1.5"),
        (spaces.Box(-1, 1, (2,)), None, "object"),
        (spaces.Discrete(3), 3, r"the value 3, expected .* 0\.\.2"),
        (spaces.Discrete(3), 1.0, "float64"),
        (spaces.MultiBinary(2), np.array([0, 256]), "int64"),
        (spaces.Box(0, 9, (2,), np.uint8), np.array([0, 300]), "int64"),
        (
            spaces.Box(0, 255, (64, 64, 3), np.uint8),
            np.zeros((63, 64, 3), np.uint8),
            r"uint8 \(63, 64, 3\), expected uint8 \(64, 64, 3\)",
        ),
        (
            spaces.Dict({"a": spaces.Discrete(2)}),
            {"b": 1},
            r"dict of \['b'\], expected \['a'\]",
        ),
        (spaces.Dict({"a": spaces.Discrete(2)}), 1, "of the type int, expected a dict"),
        (spaces.Tuple([spaces.Discrete(2)]), (1, 0), "a tuple of 2 parts, expected 1"),
        (spaces.Tuple([spaces.Discrete(2)]), np.zeros(1), "type ndarray, expected a tuple"),
    ],
)
def test_wrong_values_are_named_with_environment_and_step(space, value, found):
    toy = Toy(obs_space=space, length=100)
    env = CheckSpaces(UnifyDtypes(Gymnasium(toy)), 5)
    for _ in range(4):
        env.step(act(env))
    toy.value = value
    toy.observation_space = spaces.Discrete(1)  # which is not asked again
    if value is None:
        toy._observe = lambda: None
    with pytest.raises(SpaceError, match=f"(?i)in environment 5 at step 4.*{found}"):
        env.step(act(env))


def test_wrong_shapes_are_found_before_they_are_resized():
    toy = Toy(obs_space=spaces.Box(0, 255, (64, 64, 3), np.uint8))
    env = CheckSpaces(UnifyDtypes(Gymnasium(toy, size=(32, 32))), 2)
    assert env.step(act(env))["image"].shape == (32, 32, 3)
    toy.value = np.zeros((63, 64, 3), np.uint8)
    message = r"environment 2 at step 1.* \(63, 64, 3\), expected uint8 \(64, 64, 3\)"
    with pytest.raises(SpaceError, match=message):
        env.step(act(env))


def test_wrong_rewards_are_named():
    class Paying(Toy):
        pay = 1.0

        def step(self, action):
            value, _, *rest = super().step(action)
            return value, self.pay, *rest

    toy = Paying(length=100)
    env = CheckSpaces(Gymnasium(toy), 0)
    env.step(act(env))
    for reward in (1e8, -1e8, 1e-8, np.float64(3), 2, np.int64(2), True):
        toy.pay = reward
        assert env.step(act(env))["reward"] == np.float32(reward)
    for reward, found in ((np.nan, "nan"), (None, "nan"), (np.ones(1), r"float32 \(1,\)")):
        toy.pay = reward
        with pytest.raises(SpaceError, match=f"'reward' in environment 0 at step 8 is .*{found}"):
            env.step(act(env))


def test_huge_finite_values_and_episodes_of_one_step():
    toy = Toy(obs_space=spaces.Box(-np.inf, np.inf, (2,), np.float64), length=1)
    toy.value = np.array([1e30, -1e30])
    env = CheckSpaces(UnifyDtypes(Gymnasium(toy)))
    obs = [env.step(act(env)) for _ in range(6)]
    assert [bool(o["is_first"]) for o in obs] == [True, False] * 3
    assert [bool(o["is_last"]) for o in obs] == [False, True] * 3
    assert obs[1]["vector"].tolist() == np.float32([1e30, -1e30]).tolist()
    toy.value = np.array([1e300, 0])
    with pytest.raises(SpaceError, match="'vector' at step 6 is the value inf"):
        env.step(act(env))


class Resetting(Toy):
    """Starts its next episode in the step that ends one; observations count all steps."""

    key = "final_obs"
    count = -1

    def _observe(self):
        self.count += 1
        return np.full(2, self.count / 1000, np.float32)

    def step(self, action):
        value, reward, terminated, truncated, info = super().step(action)
        if terminated or truncated:
            info = {self.key: value, "final_info": {}}
            value, _ = self.reset()
        return value, reward, terminated, truncated, info


@pytest.mark.parametrize("key", ["final_obs", "final_observation"])
@pytest.mark.parametrize("render", [False, True])
def test_last_observation_is_kept_where_the_environment_resets_itself(key, render):
    toy = Resetting(length=2)
    toy.key = key
    env = Gymnasium(toy, render=render)
    obs = [env.step(act(env)) for _ in range(7)]
    assert [round(float(o["vector"][0]) * 1000) for o in obs] == [0, 1, 2, 3, 4, 5, 6]
    assert [bool(o["is_first"]) for o in obs] == [True, False, False] * 2 + [True]
    assert [bool(o["is_last"]) for o in obs] == [False, False, True] * 2 + [False]
    assert len(toy.seeds) == 3  # every episode is started once
    assert round(float(env.step(act(env, reset=True))["vector"][0]) * 1000) == 7
    check_env(Gymnasium(Resetting(length=2)))


def test_environments_that_reset_themselves_a_step_later():
    toy = Toy(length=2)
    env = Gymnasium(gymnasium.wrappers.Autoreset(toy))
    obs = [env.step(act(env)) for _ in range(6)]
    assert [bool(o["is_first"]) for o in obs] == [True, False, False] * 2
    assert len(toy.seeds) == 2


@pytest.mark.parametrize(
    ("method", "result", "message"),
    [
        ("step", (0, 1.0, False, {}), "step must return .*truncated and info, but .* tuple of 4"),
        ("step", None, "but returned an object of the type NoneType"),
        ("reset", np.zeros(2), "reset must return a pair .* of the type ndarray"),
    ],
)
def test_old_interfaces_are_told(method, result, message):
    toy = Toy()
    env = Gymnasium(toy)
    if method == "step":
        env.step(act(env))
    setattr(toy, method, lambda *args, **kwargs: result)
    with pytest.raises(EnvError, match=message):
        env.step(act(env))


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


def _nested():
    part = spaces.Tuple([spaces.Discrete(3, start=2), spaces.Box(-1, 1, (2,), np.float64)])
    return spaces.Dict(
        {
            "arms": spaces.Tuple([part, spaces.Dict({"grip": spaces.MultiBinary(2), "x": part})]),
            "mode": spaces.MultiDiscrete([2, 5, 3], start=[0, 1, 2]),
        }
    )


KEYS = ["arms_0_0", "arms_0_1", "arms_1_grip", "arms_1_x_0", "arms_1_x_1", "mode"]


def _same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    if isinstance(a, tuple):
        return isinstance(b, tuple) and all(map(_same, a, b))
    return type(a) is type(b) and a.dtype == b.dtype and np.array_equal(a, b)


def test_dicts_and_tuples_nest_in_each_other():
    toy = Toy(obs_space=_nested(), act_space=spaces.Dict({"do": _nested()}))
    env = Gymnasium(toy)
    assert [k for k in env.obs_space if k in KEYS] == KEYS
    assert env.act_space.keys() == {*(f"do_{k}" for k in KEYS), "reset"}
    obs = env.step(act(env))
    assert obs["arms_0_0"].shape == ()
    toy.value = _nested().sample()
    right = toy.value["arms"][1]["x"]
    obs = env.step(act(env))
    assert obs["arms_1_x_0"] == right[0]
    assert np.array_equal(obs["arms_1_x_1"], right[1])
    check_env(Gymnasium(toy))


@given(st.integers(0, 1000))
def test_actions_keep_their_types_and_values(seed):
    space = _nested()
    space.seed(seed)
    flat, wanted = FlatSpace(space, "action", "action", ()), space.sample()
    starts = {"arms_0_0": 2, "arms_1_x_0": 2, "mode": [0, 1, 2]}
    seen = FlatSpace(space, "x", "observation", ()).encode(wanted)  # the same keys
    ours = {
        k: np.asarray(seen[k] - np.asarray(starts.get(k, 0)), v.dtype)
        for k, v in flat.spaces.items()
    }
    assert all(fault(v, ours[k]) is None for k, v in flat.spaces.items())
    assert _same(flat.decode(ours), wanted)
    assert space.contains(flat.decode(ours))


def test_tuples_at_the_root():
    pair = spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (2,))])
    toy = Toy(obs_space=pair, act_space=pair)
    env = Gymnasium(toy)
    assert {"observation_0", "observation_1"} < env.obs_space.keys()
    assert env.act_space.keys() == {"action_0", "action_1", "reset"}
    check_env(env)
    assert isinstance(toy.actions[0], tuple)


def test_keys_become_names():
    env = Gymnasium(
        Toy(
            obs_space=spaces.Dict(
                {"my key/x.y": spaces.Discrete(2), "log/my id": spaces.Discrete(3)}
            )
        )
    )
    assert {"my_key_x_y", "log/my_id"} < env.obs_space.keys()


def _build(tree):
    if isinstance(tree, int):
        return spaces.Discrete(tree)
    return spaces.Dict({k: _build(v) for k, v in tree.items()})


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": {"b": 2}, "a_b": 3}, "Two entries of the observation would be called 'a_b'"),
        ({"reward": 2}, "observation would be called 'reward'.*rename it.*'my_reward'"),
        ({"action": 2}, "'action' is both an observation and an action"),
        ({}, "of which nothing is left"),
    ],
)
def test_collisions_are_refused(tree, message):
    with pytest.raises(SpaceError, match=message):
        Gymnasium(Toy(obs_space=_build(tree)))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(10),
        spaces.Graph(spaces.Discrete(2), None),
        spaces.Sequence(spaces.Discrete(2)),
        spaces.OneOf([spaces.Discrete(2)]),
        spaces.Box(0, 1, (0,)),
        spaces.Box(0, 1, (2, 0, 3)),
        spaces.Box(0, 255, (4, 8, 8, 3), np.uint8),
    ],
)
def test_unsupported_spaces_are_named(space):
    name = type(space).__name__
    found = rf"has the space {name}\(.*not supported: use Box with up to three axes"
    with pytest.raises(SpaceError, match=rf"The observation {found}"):
        Gymnasium(Toy(obs_space=space))
    nested = spaces.Dict({"say": spaces.Tuple([spaces.Discrete(2), space])})
    with pytest.raises(SpaceError, match=rf"'say_1' of the observation {found}.*ignore say_1"):
        Gymnasium(Toy(obs_space=nested))
    with pytest.raises(SpaceError, match=rf"entry 'say_1' of the action {found}"):
        Gymnasium(Toy(act_space=nested))


def test_keys_can_be_ignored():
    space = spaces.Dict(
        {"x": spaces.Discrete(2), "say": spaces.Dict({"it": spaces.Text(3)}), "y": spaces.Text(9)}
    )
    env = Gymnasium(Toy(obs_space=space), ignore="say|y")
    assert "x" in env.obs_space
    assert not {"say_it", "y"} & env.obs_space.keys()
    check_env(env)
    with pytest.raises(
        SpaceError, match=r"--env.custom.ignore 'z' matches no key of the observation"
    ):
        Gymnasium(Toy(obs_space=_build({"x": 2})), ignore="z")
    with pytest.raises(SpaceError, match=r"--env.custom.ignore '\(' is no regular expression"):
        Gymnasium(Toy(obs_space=_build({"x": 2})), ignore="(")
    with pytest.raises(SpaceError, match="of which nothing is left"):
        Gymnasium(Toy(obs_space=_build({"x": 2})), ignore=".*")


@pytest.mark.parametrize(
    ("space", "moved"),
    [
        (spaces.Box(0, 255, (4, 84, 84), np.uint8), ("uint8", (84, 84, 4))),
        (spaces.Box(0, 255, (9, 84, 84), np.uint8), ("uint8", (84, 84, 9))),
        (spaces.Box(-1, 1, (1, 8, 30)), ("float32", (8, 30, 1))),
        (spaces.Box(-np.inf, np.inf, (4, 84, 84)), None),
        (spaces.Box(0, 255, (20, 30, 3), np.uint8), None),
        (spaces.Box(0, 255, (9, 84, 90), np.uint8), None),
        (spaces.Box(0, 1, (7, 9, 21)), None),
    ],
)
def test_channels_move_to_the_end(space, moved):
    env = Gymnasium(Toy(obs_space=space))
    key = "image" if "image" in env.obs_space else "vector"
    found = env.obs_space[key]
    assert (found.dtype.name, found.shape) == (moved or (space.dtype.name, space.shape))
    value = space.sample()
    flat = FlatSpace(space, key, "observation", ())
    assert np.array_equal(flat.encode(value)[key], value.transpose(1, 2, 0) if moved else value)
    batch = np.stack([value, space.sample()])
    assert flat.encode(batch)[key].shape == (2, *found.shape)
    check_env(env)


def test_images_with_channels_first_keep_their_bounds_and_are_resized():
    low = np.broadcast_to(np.float32([0, -1]).reshape(2, 1, 1), (2, 20, 30))
    env = Gymnasium(Toy(obs_space=spaces.Box(low, low + 3)), size=(8, 10))
    assert env.obs_space["image"].shape == (8, 10, 2)
    assert env.obs_space["image"].low[0, 0].tolist() == [0, -1]
    check_env(env)


def test_wrong_shapes_of_images_with_channels_first_are_found():
    toy = Toy(obs_space=spaces.Box(0, 255, (3, 20, 20), np.uint8))
    env = CheckSpaces(UnifyDtypes(Gymnasium(toy)))
    toy.observation_space = spaces.Box(0, 255, (20,), np.uint8)
    with pytest.raises(SpaceError, match=r"'image'.*\(20,\)"):
        env.step(act(env))


class TestOptions:
    def test_repeat_sums_rewards_and_stops_at_the_end(self):
        toy = Toy(length=5)
        env = Gymnasium(toy, repeat=2, render=True)
        obs = [env.step(act(env)) for _ in range(8)]
        assert [float(o["reward"]) for o in obs] == [0, 3, 3, 1.5] * 2
        assert [bool(o["is_last"]) for o in obs] == [False, False, False, True] * 2
        assert len(toy.actions) == 10
        assert toy.renders == 9  # no frame between

    def test_length_replaces_the_limit_of_a_registered_one(self):
        env = embodied.envs.make("gymnasium_Pendulum-v1", length=3)
        obs = [env.step(act(env)) for _ in range(4)]
        assert [bool(o["is_last"]) for o in obs] == [False] * 3 + [True]
        assert not obs[3]["is_terminal"]
        env = embodied.envs.make("gymnasium_Pendulum-v1", length=205)
        assert [i for i in range(210) if env.step(act(env))["is_last"]] == [205]

    def test_length_of_an_environment(self):
        env = Gymnasium(Toy(length=9), length=2)
        assert [bool(env.step(act(env))["is_last"]) for _ in range(3)] == [False, False, True]

    def test_size_concerns_images(self):
        space = spaces.Dict(
            {
                "a": spaces.Box(0, 255, (20, 30, 3), np.uint8),
                "b": spaces.Box(0, 1, (8, 8, 1)),
                "c": spaces.Box(0, 255, (16, 16), np.uint8),
                "d": spaces.Box(0, 1, (4, 4)),
            }
        )
        env = Gymnasium(Toy(obs_space=space), size=(12, 10))
        shapes = {k: v.shape for k, v in env.obs_space.items() if v.shape}
        assert shapes == {"a": (12, 10, 3), "b": (12, 10, 1), "c": (12, 10, 1), "d": (4, 4)}
        check_env(env)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"repeat": 0}, "repeat is 0"),
            ({"length": -1}, "time limit is -1"),
            ({"size": (0, 64)}, r"size \[0, 64\] is no height and width"),
            ({"size": (64,)}, r"size \[64\] is no height and width"),
            ({"size": (64, 7)}, r"use two numbers of at least 8, or \[0, 0\]"),
        ],
    )
    def test_wrong_options_are_told(self, options, message):
        with pytest.raises(EnvError, match=message):
            Gymnasium(Toy(), **options)

    def test_bounds_of_vectors_can_be_dropped(self):
        space = spaces.Dict({"v": spaces.Box(0, 1, (2,)), "i": spaces.Box(0, 1, (8, 8, 3))})
        for keep in (True, False):
            env = Gymnasium(Toy(obs_space=space), bounds=keep)
            assert np.isfinite(env.obs_space["v"].high).all() == keep
            assert np.isfinite(env.obs_space["i"].high).all()

    @pytest.mark.parametrize("suite", ["gymnasium", "gym"])
    def test_options_of_the_config_construct_it(self, suite):
        flags = {"env.gymnasium.repeat": 2, "task": f"{suite}_CartPole-v1"}
        config = compose(["gymnasium"], flags)
        env = make_env(config, 0, length=4)
        zero = {"action": np.int32(0), "reset": np.bool_(False)}
        assert [bool(env.step(zero)["is_last"]) for _ in range(3)] == [False, False, True]


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
