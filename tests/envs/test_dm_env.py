import dm_env
import numpy as np
import pytest
from dm_env import specs

from embodied.core.errors import SpaceError
from embodied.envs.dm_env import DMEnv
from embodied.testing import check_env


class Fake(dm_env.Environment):
    """Any specs; draws observations from them and checks what it is given."""

    def __init__(self, obs=None, act=None, length=3, discount=0.0, seed=0):
        self.obs = specs.Array((2,), np.float64) if obs is None else obs
        self.act = specs.DiscreteArray(4) if act is None else act
        self.length = length
        self.discount = discount
        self.rng = np.random.default_rng(seed)
        self.actions = []

    def observation_spec(self):
        return self.obs

    def action_spec(self):
        return self.act

    def reset(self):
        self.count = 0
        return dm_env.restart(draw(self.obs, self.rng))

    def step(self, action):
        assert self.count < self.length, "no step after the last"
        check(self.act, action)
        self.actions.append(action)
        self.count += 1
        obs = draw(self.obs, self.rng)
        if self.count < self.length:
            return dm_env.transition(1.5, obs)
        return dm_env.TimeStep(dm_env.StepType.LAST, 1.5, self.discount, obs)


def draw(spec, rng):
    if isinstance(spec, dict):
        return {k: draw(v, rng) for k, v in spec.items()}
    if isinstance(spec, list | tuple):
        return type(spec)(draw(x, rng) for x in spec)
    if spec.dtype.kind == "f":
        low, high = getattr(spec, "minimum", -2), getattr(spec, "maximum", 2)
        return spec.validate(np.asarray(rng.uniform(low, high, spec.shape), spec.dtype))
    low, high = getattr(spec, "minimum", 0), getattr(spec, "maximum", 1)
    value = rng.integers(low, high, spec.shape, endpoint=True)
    return spec.validate(np.asarray(value, spec.dtype))


def check(spec, action):
    if isinstance(spec, dict):
        assert action.keys() == spec.keys()
        for key in spec:
            check(spec[key], action[key])
    elif isinstance(spec, list | tuple):
        assert type(action) is type(spec)
        for part, value in zip(spec, action, strict=True):
            check(part, value)
    else:
        spec.validate(action)


NESTED = {
    "camera/front": specs.BoundedArray((4, 6, 3), np.uint8, 0, 255),
    "parts": [specs.Array((3,), np.float64), {"on": specs.Array((2,), bool)}],
    "height": specs.Array((), np.float32),
    "level": specs.DiscreteArray(7),
    "nothing": specs.Array((0,), np.float32),
    "gray": specs.BoundedArray((8, 9), np.uint8, 0, 255),
    "maze": specs.BoundedArray((8, 9), np.uint8, 0, 1),
    "grid": specs.BoundedArray((2, 2), np.int16, [[-3, 0], [1, 2]], 9),
    "steps": specs.BoundedArray((), np.int64, 0, 10_000),
}
ACTIONS = (
    specs.BoundedArray((2,), np.float64, [-0.1, -np.inf], [0.1, np.inf]),
    {"jump": specs.Array((), bool), "none": specs.BoundedArray((0,), np.float32, 0, 1)},
    specs.BoundedArray((3,), np.int8, -1, 1),
)


def shapes(spaces):
    skip = ("reward", "is_first", "is_last", "is_terminal", "reset")
    return {k: (v.dtype.name, v.shape) for k, v in spaces.items() if k not in skip}


@pytest.mark.parametrize("discount", [0.0, 1.0, 0.9])
@pytest.mark.parametrize("length", [1, 5])
def test_contract(discount, length):
    check_env(DMEnv(Fake(NESTED, ACTIONS, length, discount)))
    check_env(DMEnv(Fake(length=length, discount=discount)))


def test_nested_specs_become_flat():
    env = DMEnv(Fake(NESTED, ACTIONS))
    assert shapes(env.obs_space) == {
        "camera_front": ("uint8", (4, 6, 3)),
        "parts_0": ("float32", (3,)),
        "parts_1_on": ("int32", (2,)),
        "height": ("float32", ()),
        "level": ("int32", ()),
        "gray": ("uint8", (8, 9, 1)),
        "maze": ("int32", (8, 9)),
        "grid": ("int32", (2, 2)),
        "steps": ("float32", ()),
    }
    assert shapes(env.act_space) == {
        "0": ("float32", (2,)),
        "1_jump": ("int32", ()),
        "2": ("int32", (3,)),
    }
    assert env.obs_space["grid"].high.tolist() == [[13, 10], [9, 8]]
    assert env.obs_space["steps"].high == 10_000
    assert env.act_space["2"].classes.tolist() == [3, 3, 3]


@pytest.mark.parametrize(
    ("spec", "key"),
    [
        (specs.BoundedArray((8, 8, 1), np.uint8, 0, 255), "image"),
        (specs.BoundedArray((3, 8, 9), np.uint8, 0, 255), "image"),
        (specs.Array((8,), np.float32), "vector"),
        (specs.DiscreteArray(3), "vector"),
    ],
)
def test_single_entries_get_a_name(spec, key):
    env = DMEnv(Fake(spec))
    assert shapes(env.obs_space).keys() == {key}
    assert shapes(env.act_space) == {"action": ("int32", ())}


def test_channels_move_to_the_end():
    spec = {
        "bytes": specs.BoundedArray((3, 8, 9), np.uint8, 0, 255),
        "floats": specs.BoundedArray((2, 8, 8), np.float64, 0, 1),
        "numbers": specs.Array((2, 8, 8), np.float32),
    }
    inner = Fake(spec)
    env = DMEnv(inner)
    assert shapes(env.obs_space) == {
        "bytes": ("uint8", (8, 9, 3)),
        "floats": ("float32", (8, 8, 2)),
        "numbers": ("float32", (2, 8, 8)),
    }
    check_env(env)
    values = {k: np.random.default_rng(0).integers(0, 2, v.shape) for k, v in spec.items()}
    inner.reset = lambda: dm_env.restart(values)
    obs = env.step({"reset": np.bool_(True)})
    assert np.array_equal(obs["bytes"], values["bytes"].transpose(1, 2, 0))
    assert np.array_equal(obs["floats"], values["floats"].transpose(1, 2, 0))
    assert np.array_equal(obs["numbers"], values["numbers"])


def test_values_arrive_in_the_environment():
    inner = Fake(NESTED, ACTIONS)
    env = DMEnv(inner)
    env.step({"reset": np.bool_(True)})
    env.step({
        "0": np.float32([0.1, 3]),  # 0.1 is more in float32 than in float64
        "1_jump": np.int32(1),
        "2": np.int32([0, 1, 2]),
        "reset": np.bool_(False),
    })  # fmt: skip
    first, (jump, none), last = (
        inner.actions[0][0],
        inner.actions[0][1].values(),
        inner.actions[0][2],
    )
    assert first.tolist() == [0.1, 3]
    assert (jump, jump.dtype, none.shape) == (True, bool, (0,))
    assert (last.tolist(), last.dtype) == ([-1, 0, 1], np.int8)


def test_rewards_and_ends():
    for discount, terminal in ((0.0, True), (1.0, False)):
        env = DMEnv(Fake(discount=discount))
        obs = [env.step({"action": np.int32(0), "reset": np.bool_(False)}) for _ in range(8)]
        assert [float(x["reward"]) for x in obs] == [0, 1.5, 1.5, 1.5] * 2
        assert [bool(x["is_first"]) for x in obs] == [True, False, False, False] * 2
        assert [bool(x["is_last"]) for x in obs] == [False, False, False, True] * 2
        assert [bool(x["is_terminal"]) for x in obs] == [False, False, False, terminal] * 2


def test_observations_belong_to_the_caller():
    inner = Fake(specs.Array((2,), np.float32))
    buffer = np.zeros(2, np.float32)
    inner.reset = lambda: dm_env.restart(buffer)
    obs = DMEnv(inner).step({"reset": np.bool_(True)})
    buffer += 1
    assert obs["vector"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("obs", "text"),
    [
        ({"text": specs.StringArray(())}, "entry 'text' of the observation is StringArray"),
        (specs.StringArray(()), "The observation is StringArray.* not supported"),
        ({"a": specs.Array((), np.complex64)}, "'a' of the observation is Array.*numbers"),
        ({"reward": specs.Array((), float)}, "would be called 'reward'"),
        ({"a": [specs.Array((), float)], "a_0": specs.Array((), float)}, "would be called 'a_0'"),
        ({"action": specs.Array((), float)}, "'action' is both an observation and an action"),
    ],
)
def test_what_is_not_supported_is_named(obs, text):
    with pytest.raises(SpaceError, match=text):
        DMEnv(Fake(obs))


def test_control_suite():
    suite = pytest.importorskip("dm_control.suite")

    def run(seed):
        env = DMEnv(suite.load("ball_in_cup", "catch", task_kwargs={"random": seed}))
        action = {"action": np.zeros(2, np.float32), "reset": np.bool_(False)}
        return np.stack([env.step(action)["position"] for _ in range(3)])

    check_env(DMEnv(suite.load("walker", "walk")), steps=40)
    assert np.array_equal(run(1), run(1))
    assert not np.array_equal(run(1), run(2))
