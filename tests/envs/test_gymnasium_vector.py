import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from embodied.core.errors import EnvError
from embodied.core.spaces import sample
from embodied.envs.gymnasium_vector import GymnasiumVector
from embodied.testing import check_env

# A fork is what AsyncVectorEnv makes; JAX and Python warn of it where other tests left threads.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*os.fork.*:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning"),
]


class Counter(gymnasium.Env):
    """Observes the actions of its episode, and refuses to go on after the last."""

    observation_space = spaces.Box(0, 100, (1,), np.float32)
    action_space = spaces.Discrete(3, start=5)

    def __init__(self, length=4, terminal=True):
        self.length = length
        self.terminal = terminal
        self.count = length

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        assert self.count < self.length
        assert self.action_space.contains(action)
        self.count += 1
        over = self.count == self.length
        obs = np.full(1, self.count, np.float32)
        return obs, float(action), over and self.terminal, over and not self.terminal, {}


LENGTHS = (1, 3, 4)
FNS = [lambda n=n: Counter(n, terminal=n != 4) for n in LENGTHS]
MODES = list(AutoresetMode)


def act(reset=(False, False, False), value=(1, 1, 1)):
    return {"action": np.array(value, np.int32), "reset": np.array(reset)}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_every_observation_of_every_episode_comes_out(kind, mode):
    env = GymnasiumVector(kind(FNS, autoreset_mode=mode), seed=3)
    rng = np.random.default_rng(0)
    assert env.length == 3
    over, count = np.ones(3, bool), np.zeros(3)
    for step in range(80):
        reset = rng.random(3) < (0.1 if step > 40 else 0)
        action = act(reset=reset, value=rng.integers(0, 3, 3))
        obs = env.step(action)
        first = reset | over
        count = np.where(first, 0, count + 1)
        assert np.array_equal(obs["vector"][:, 0], count)
        assert np.array_equal(obs["is_first"], first)
        assert np.array_equal(obs["reward"], np.where(first, 0, action["action"] + 5))
        over = count == LENGTHS
        assert np.array_equal(obs["is_last"], over)
        assert np.array_equal(obs["is_terminal"], over & [True, True, False])
        assert {k: v.dtype for k, v in obs.items()} == {
            k: v.dtype for k, v in env.obs_space.items()
        }
    env.close()


class Own(VectorEnv):
    """A vector environment of another class, with episodes of three actions."""

    single_observation_space = spaces.Box(0, 9, (1,), np.float32)
    single_action_space = spaces.Discrete(2)
    num_envs = 2

    def __init__(self, mode):
        self.metadata = {"autoreset_mode": mode}
        self.counts = np.zeros(2)

    def reset(self, *, seed=None, options=None):
        self.counts[(options or {}).get("reset_mask", slice(None))] = 0
        return self.counts[:, None].astype(np.float32), {}

    def step(self, action):
        over = self.counts == 3
        self.counts = np.where(over, 0, self.counts + 1)
        obs = self.counts[:, None].astype(np.float32)
        return obs, np.ones(2) * ~over, self.counts == 3, np.zeros(2, bool), {}


class Masked(gymnasium.Env):
    """Refuses all classes but one, which changes at every step; `bits` only looks like a mask."""

    observation_space = spaces.Dict({
        "action_mask": spaces.MultiBinary(3),
        "bits": spaces.MultiBinary(3),
        "other": spaces.Box(0, 1, (3,), np.float32),
    })  # fmt: skip
    action_space = spaces.Discrete(3, start=1)

    def __init__(self, length):
        self.length = length
        self.episodes = self.count = 0

    def observe(self):
        self.legal = (self.episodes + self.count) % 3
        mask = np.eye(3, dtype=np.int8)[self.legal]
        if self.count == self.length:
            mask[:] = 0
        return {"action_mask": mask, "bits": 1 - mask, "other": np.zeros(3, np.float32)}

    def reset(self, seed=None, options=None):
        self.episodes, self.count = self.episodes + 1, 0
        return self.observe(), {}

    def step(self, action):
        assert self.count < self.length
        assert action == self.legal + 1, (action, self.legal)
        self.count += 1
        return self.observe(), 1.0, self.count == self.length, False, {}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_steps_before_resets_take_legal_actions_too(kind, mode):
    env = GymnasiumVector(kind([lambda n=n: Masked(n) for n in LENGTHS], autoreset_mode=mode))
    check_env(env, 100, masks={"action": "action_mask"})
    env.close()


def run(env, resets):
    zeros = np.zeros(2, np.int32)
    return [env.step({"action": zeros, "reset": np.array(x)})["vector"][:, 0] for x in resets]


def test_other_classes_reset_alone_if_they_leave_resets_to_us():
    env = GymnasiumVector(Own(AutoresetMode.DISABLED))
    steps = [(False, False)] * 2 + [(True, False)] + [(False, False)] * 4
    assert np.array_equal(
        run(env, steps), [(0, 0), (1, 1), (0, 2), (1, 3), (2, 0), (3, 1), (0, 2)]
    )


def test_other_classes_that_cannot_reset_alone_say_so():
    env = GymnasiumVector(Own(AutoresetMode.NEXT_STEP))
    together = [(False, False)] * 5 + [(True, True), (False, False)]
    assert np.array_equal(run(env, together)[3:], [(3, 3), (0, 0), (0, 0), (1, 1)])
    with pytest.raises(
        EnvError, match="Own cannot start a new episode in its environment 1 while"
    ):
        run(env, [(False, True)])
    with pytest.raises(EnvError, match=r"Own resets in the step .* mode NEXT_STEP or DISABLED"):
        GymnasiumVector(Own(AutoresetMode.SAME_STEP))


class Nested(gymnasium.Env):
    """Observes its newest action, and samples all kinds of spaces."""

    action_space = spaces.Dict({
        "one": spaces.Discrete(3, start=2),
        "many": spaces.Tuple([spaces.MultiDiscrete([2, 5]), spaces.Box(-2, 2, (2, 2))]),
        "bits": spaces.MultiBinary(3),
    })  # fmt: skip
    observation_space = spaces.Dict({
        "act": action_space,
        "pixels": spaces.Box(0, 255, (8, 8, 3), np.uint8),
        "big": spaces.Box(-1e9, 1e9, (2,), np.float64),
    })  # fmt: skip

    def __init__(self, seed):
        self.rest = {k: v for k, v in self.observation_space.items() if k != "act"}
        for space in (self.action_space, *self.rest.values()):
            space.seed(seed)

    def observe(self, action):
        return {"act": action, **{k: v.sample() for k, v in self.rest.items()}}, 0.0

    def reset(self, seed=None, options=None):
        return self.observe(self.action_space.sample())[0], {}

    def step(self, action):
        assert self.action_space.contains(action)
        return *self.observe(action), False, False, {}


def test_nested_spaces_are_those_of_single_environments():
    env = GymnasiumVector(SyncVectorEnv([lambda: Nested(1), lambda: Nested(2)]))
    rng = np.random.default_rng(0)
    for step in range(5):
        action = {k: sample(v, rng, (2,)) for k, v in env.act_space.items()}
        obs = env.step({**action, "reset": np.full(2, step == 0)})
        for key, space in env.obs_space.items():
            assert (obs[key].dtype, obs[key].shape) == (space.dtype, (2, *space.shape)), key
        for key, value in action.items():
            if step and key != "reset":
                name = f"act_{key}"
                start = env.obs_space[name].low if value.dtype.kind == "i" else 0
                assert np.array_equal(obs[name] - start, value), key


@pytest.mark.parametrize("mode", MODES)
def test_buffers_that_are_used_again_do_not_matter(mode):
    env = GymnasiumVector(SyncVectorEnv(FNS, copy=False, autoreset_mode=mode))
    kept = [env.step(act()) for _ in range(8)]
    assert [x["vector"][2, 0] for x in kept] == [0, 1, 2, 3, 4, 0, 1, 2]


def test_seeds_decide():
    def start(seed):
        make = lambda: gymnasium.make("CartPole-v1")  # noqa: E731
        env = GymnasiumVector(SyncVectorEnv([make, make]), seed)
        action = {"action": np.zeros(2, np.int32), "reset": np.ones(2, bool)}
        return np.stack([env.step(action)["vector"] for _ in range(2)])

    one = start(1)
    assert np.array_equal(one, start(1))
    assert not np.isclose(one, start(2)).any()
    assert not np.isclose(one[:, 0], one[:, 1]).any()
    assert not np.isclose(one[0], one[1]).any()


def test_bounds_of_gymnasiums_own_environments_are_estimates():
    fns = [lambda: gymnasium.make("CartPole-v1")]
    for env in (SyncVectorEnv(fns), AsyncVectorEnv(fns), gymnasium.make_vec("CartPole-v1")):
        adapted = GymnasiumVector(env)
        assert np.isinf(adapted.obs_space["vector"].high).all()
        adapted.close()
    assert GymnasiumVector(SyncVectorEnv(FNS)).obs_space["vector"].high == [100]
