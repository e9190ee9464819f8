import os
import signal
from functools import partial

import numpy as np
import pytest

from embodied import envs
from embodied.core.driver import Driver
from embodied.core.recording import Recording
from embodied.core.wrappers import TimeLimit

# A fork is what the test asks for; JAX and Python warn of it where other tests left threads.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*os.fork.*:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning"),
]

TASKS = ["dummy_disc", "gymnasium_CartPole-v1", "gymnasium_FrozenLake-v1"]


def make(task, seed=0):
    options = {"size": (8, 8), "length": 30} if task == "dummy_disc" else {}
    return envs.make(task, seed=seed, **options)


def act(env, rng):
    key = next(k for k in env.act_space if k != "reset")
    return {key: np.int32(rng.integers(2)), "reset": np.bool_(False)}


def equal(a, b):
    assert a.keys() == b.keys()
    for key, value in a.items():
        np.testing.assert_array_equal(value, b[key], err_msg=key)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("before", [1, 2, 40])
def test_goes_on_as_if_nothing_had_happened(task, before):
    rng = np.random.default_rng(0)
    first, second = make(task), make(task, seed=1)
    old = Recording(first)
    for _ in range(before):
        old.step(act(first, rng))
    state = old.save()
    new = Recording(second)
    assert new.load(state)
    for _ in range(150):
        action = act(first, rng)
        equal(old.step(action), new.step(action))


def test_goes_on_after_the_last_step_of_an_episode():
    env = make("gymnasium_CartPole-v1")
    old = Recording(env)
    action = {"action": np.int32(0), "reset": np.bool_(False)}
    while not old.step(action)["is_last"]:
        pass
    new = Recording(make("gymnasium_CartPole-v1", seed=1))
    assert new.load(old.save())
    for _ in range(30):
        equal(old.step(action), new.step(action))


def test_wrappers_go_on_too():
    old, new = (Recording(TimeLimit(make("dummy_disc", seed=i), 10)) for i in range(2))
    action = {"act_disc": np.int32(1), "reset": np.bool_(False)}
    for _ in range(5):
        old.step(action)
    assert new.load(old.save())
    for _ in range(20):
        equal(old.step(action), new.step(action))


def test_nothing_is_saved_before_the_first_step():
    assert Recording(make("dummy_disc")).save() is None


def test_long_episodes_are_not_recorded(monkeypatch):
    monkeypatch.setattr("embodied.core.recording._MOST_ACTIONS", 10)
    recording = Recording(make("dummy_disc"))
    action = {"act_disc": np.int32(1), "reset": np.bool_(False)}
    saved = [bool((recording.step(action), recording.save())[1]) for _ in range(40)]
    assert saved == [*[True] * 11, *[False] * 20, *[True] * 9]


def test_what_comes_out_differently_is_noticed():
    old = Recording(make("gymnasium_CartPole-v1"))
    action = {"action": np.int32(1), "reset": np.bool_(False)}
    for _ in range(4):
        old.step(action)
    state = old.save()
    assert not Recording(make("gymnasium_CartPole-v1")).load({**state, "start": 5})
    state["actions"]["action"][:] = 0
    assert not Recording(make("gymnasium_CartPole-v1")).load(state)
    ends = {**state, "length": 1000, "actions": {k: np.zeros(1000, v.dtype)
            for k, v in state["actions"].items()}}  # fmt: skip
    assert not Recording(make("gymnasium_CartPole-v1")).load(ends)


class Forgetful:
    """An environment that cannot save where it is."""

    def __init__(self, seed):
        env = make("dummy_disc", seed)
        self.obs_space, self.act_space = env.obs_space, env.act_space
        self.step, self.close = env.step, env.close


def policy(carry, obs):
    action = (obs["count"] + carry).astype(np.int32) % 5
    return carry + 1, {"act_disc": action}, {}


def drive(make_env_fns, parallel):
    driver = Driver(make_env_fns, parallel, start_method="fork")
    trans = []
    driver.on_step(lambda tran, worker: trans.append((worker, tran)))
    driver.reset(lambda length: np.arange(length))
    return driver, trans


@pytest.mark.parametrize("parallel", [False, True])
def test_a_driver_goes_on_where_environments_can(parallel):
    seeds = range(3)
    old, expected = drive(
        [partial(Forgetful if i == 1 else partial(make, "dummy_disc"), i) for i in seeds], parallel
    )
    new, found = drive(
        [partial(Forgetful if i == 1 else partial(make, "dummy_disc"), i + 7) for i in seeds],
        parallel,
    )
    old(policy, steps=75)
    state = old.save(lambda carry: {"count": carry})
    expected.clear()
    old(policy, steps=120)
    assert new.load(state, lambda data: data["count"]) == 2
    new(policy, steps=120)
    assert len(found) == len(expected) == 120
    assert found[1][1]["is_first"]
    for (worker, tran), (other, again) in zip(expected, found, strict=True):
        assert worker == other
        if worker != 1:
            equal(tran, again)
    old.close()
    new.close()


def test_a_driver_of_another_size_starts_anew():
    old, _ = drive([partial(make, "dummy_disc")] * 2, parallel=False)
    old(policy, steps=20)
    new, found = drive([partial(make, "dummy_disc")] * 3, parallel=False)
    assert new.load(old.save(lambda carry: carry), lambda data: data) == 0
    new(policy, steps=3)
    assert all(tran["is_first"] for _, tran in found)


def test_a_worker_that_dies_while_its_state_is_asked_for_starts_anew():
    fns = [partial(make, "dummy_disc", i) for i in range(2)]
    driver = Driver(fns, start_method="fork", restarts=1)
    trans = []
    driver.on_step(lambda tran, worker: trans.append((worker, tran)))
    driver.reset(np.arange)
    driver(policy, steps=10)
    os.kill(driver._envs._workers[0].process.pid, signal.SIGKILL)
    state = driver.save(lambda carry: carry)
    assert [x is None for x in state["envs"]] == [True, False]
    trans.clear()
    driver(policy, steps=4)
    assert [(w, bool(t["is_first"])) for w, t in trans] == [
        (0, True), (1, False), (0, False), (1, False),
    ]  # fmt: skip
    driver.close()
