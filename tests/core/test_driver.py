from functools import partial

import elements
import numpy as np
import pytest

from embodied.core.base import BatchedEnv, agent_spaces
from embodied.core.driver import Driver
from embodied.core.errors import EmbodiedError, EnvError, SpaceError
from embodied.core.random import RandomAgent
from embodied.core.wrappers import CheckSpaces, UnifyDtypes, Wrapper
from embodied.envs.dummy import Dummy

ones = {"act_disc": np.ones(1, np.int32)}


def dummy(length=10, task="disc", **kwargs):
    return Dummy(task, size=(8, 8), length=length, **kwargs)


def drive(envs, policy=None, steps=0, episodes=0, **kwargs):
    """Drives environments in process and returns the transitions of each."""
    driver = Driver(envs, parallel=False, **kwargs)
    if policy is None:
        acts = {"act_disc": np.ones(len(envs), np.int32)}
        policy = lambda carry, obs: (carry, acts, {})  # noqa: E731
    seqs = [[] for _ in envs]
    driver.on_step(lambda tran, worker: seqs[worker].append(tran))
    driver(policy, steps, episodes)
    driver.close()
    return [{k: np.array([tran[k] for tran in seq]) for k in seq[0]} for seq in seqs]


def test_two_episodes_of_ten_actions_are_22_transitions():
    (seq,) = drive([dummy], episodes=2)
    assert len(seq["is_first"]) == 22
    assert seq["is_first"].nonzero()[0].tolist() == [0, 11]
    assert seq["is_last"].nonzero()[0].tolist() == [10, 21]
    assert seq["is_terminal"].nonzero()[0].tolist() == [10, 21]
    assert seq["reset"].nonzero()[0].tolist() == [10, 21]
    assert seq["act_disc"].tolist() == ([1] * 10 + [0]) * 2
    assert seq["reward"].tolist() == ([0] + [1] * 10) * 2
    assert seq["count"].tolist() == [*range(11), *range(11)]


def test_steps_count_transitions_of_all_environments():
    assert [len(seq["reward"]) for seq in drive([dummy] * 3, steps=12)] == [4, 4, 4]
    assert [len(seq["reward"]) for seq in drive([dummy] * 3, steps=13)] == [5, 5, 5]


def test_only_finished_episodes_count():
    envs = [partial(dummy, length=2), partial(dummy, length=2, seed=1)]
    seqs = drive(envs, episodes=3)
    assert [int(seq["is_last"].sum()) for seq in seqs] == [2, 2]


def test_spaces_that_depend_on_the_length_of_episodes_are_refused():
    with pytest.raises(
        EnvError, match=r"'count' is .*0.0\.\.10.0 in environment 0 and .*0.0\.\.9.0.* 2"
    ):
        Driver([dummy, dummy, partial(dummy, length=9)], parallel=False)


def test_other_keys_in_one_environment_are_refused():
    with pytest.raises(EnvError, match="'act_cont' is absent in environment 0 and float32"):
        Driver([dummy, partial(dummy, task="cont")], parallel=False)


def test_no_environment_is_refused():
    with pytest.raises(EnvError, match="at least one environment"):
        Driver([], parallel=False)


class Logs(Wrapper):
    @property
    def obs_space(self):
        return {**self.env.obs_space, "log/fuel": elements.Space(np.float32)}

    def step(self, action):
        return {**self.env.step(action), "log/fuel": np.float32(3)}


def test_policy_sees_no_logs_but_the_transition_has_them():
    seen = []

    def policy(carry, obs):
        seen.append(set(obs))
        return carry, ones, {"extra": np.full((1, 2), 5.0)}

    (seq,) = drive([lambda: Logs(dummy())], policy, steps=3)
    assert all("log/fuel" not in keys for keys in seen)
    assert "image" in seen[0]
    assert seq["log/fuel"].tolist() == [3, 3, 3]
    assert seq["extra"].tolist() == [[5, 5]] * 3


def test_carry_and_policy_arguments_arrive():
    driver = Driver([dummy] * 2, parallel=False, mode="eval")
    calls = []

    def policy(carry, obs, mode):
        calls.append((carry, mode, obs["image"].shape, obs["reward"].dtype))
        return carry + 1, {"act_disc": np.zeros(2, np.int32)}, {}

    driver.reset(lambda envs: 100 * envs)
    driver(policy, steps=4)
    assert calls == [(c, "eval", (2, 8, 8, 3), np.float32) for c in (200, 201)]


def test_reset_starts_new_episodes_and_a_new_carry():
    driver = Driver([dummy] * 2, parallel=False)
    firsts = []
    driver.on_step(lambda tran, worker: firsts.append((worker, bool(tran["is_first"]))))
    policy = lambda carry, obs: (carry, {"act_disc": np.zeros(2, np.int32)}, {})  # noqa: E731
    driver(policy, steps=4)
    driver.reset()
    driver(policy, steps=4)
    assert firsts == [(0, True), (1, True), (0, False), (1, False)] * 2


def test_calls_continue_the_episode():
    driver = Driver([dummy], parallel=False)
    counts = []
    driver.on_step(lambda tran, worker: counts.append(int(tran["count"])))
    for _ in range(12):
        driver(lambda carry, obs: (carry, ones, {}), steps=1)
    assert counts == [*range(11), 0]


class UnexpectedReset(Wrapper):
    """Starts anew in the middle of an episode without ending it."""

    calls = 0

    def step(self, action):
        self.calls += 1
        if self.calls == 4:
            action = {**action, "reset": np.bool_(True)}
        return self.env.step(action)


def test_environment_may_abandon_an_episode():
    (seq,) = drive([lambda: UnexpectedReset(dummy(length=5))], episodes=1)
    assert seq["is_first"].nonzero()[0].tolist() == [0, 3]
    assert seq["is_last"].nonzero()[0].tolist() == [8]


def test_transitions_are_not_changed_by_later_steps():
    driver = Driver([dummy], parallel=False)
    kept = []
    driver.on_step(lambda tran, worker: kept.append((tran, tran["image"].copy())))
    driver(lambda carry, obs: (carry, ones, {}), steps=5)
    assert all(np.array_equal(tran["image"], image) for tran, image in kept)
    assert len({image.max() for _, image in kept}) == 5


def test_policy_may_reuse_its_action_array():
    acts = {"act_disc": np.ones(1, np.int32)}
    drive([dummy], lambda carry, obs: (carry, acts, {}), episodes=1)
    assert acts["act_disc"].tolist() == [1]


def test_actions_get_the_dtype_of_their_space():
    acts = {"act_disc": np.ones(1, np.int64), "act_cont": np.zeros((1, 6), np.float64)}
    (seq,) = drive([partial(dummy, task="cont")], lambda c, o: (c, acts, {}), steps=2)
    assert seq["act_disc"].dtype == np.int32
    assert seq["act_cont"].dtype == np.float32


@pytest.mark.parametrize(
    ("acts", "message"),
    [
        ({}, r"the actions \[\] where the environment takes \['act_disc'\]"),
        ({**ones, "jump": 1}, r"the actions \['act_disc', 'jump'\]"),
        ({"act_disc": [1]}, r"'act_disc' an object of the type list where .* int32 \(1,\)"),
        ({"act_disc": np.ones(2, np.int32)}, r"int32 \(2,\) where .* int32 \(1,\)"),
        ({"act_disc": np.ones(1, np.float32)}, r"float32 \(1,\) where .* int32 \(1,\)"),
    ],
)
def test_wrong_actions_are_refused(acts, message):
    with pytest.raises(SpaceError, match=message):
        drive([dummy], lambda carry, obs: (carry, acts, {}), steps=1)


@pytest.mark.parametrize(
    ("outs", "message"),
    [
        ({"reward": np.zeros(1)}, "the output 'reward', which is the name"),
        ({"act_disc": np.zeros(1)}, "the output 'act_disc', which is the name"),
        ({"x": 1.0}, "'x' an object of the type float .* leading dimension 1"),
        ({"x": np.zeros(3)}, r"'x' float64 \(3,\) .* leading dimension 1"),
    ],
)
def test_wrong_outputs_are_refused(outs, message):
    with pytest.raises(SpaceError, match=message):
        drive([dummy], lambda carry, obs: (carry, ones, outs), steps=1)


class Faulty(Wrapper):
    """Gives other observations than declared, from the third step on."""

    def __init__(self, env, change):
        super().__init__(env)
        self._change = change
        self._calls = 0

    def step(self, action):
        self._calls += 1
        obs = self.env.step(action)
        return self._change(obs) if self._calls > 2 else obs


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda o: {**o, "image": o["image"][1:]},
            r"'image' is uint8 \(7, 8, 3\), expected uint8 \(8, 8, 3\)",
        ),
        (lambda o: {**o, "token": np.float32(1)}, r"'token' is float32 \(\), expected int32 \(\)"),
        (lambda o: {**o, "is_last": 0}, r"'is_last' is int64 \(\), expected bool \(\)"),
        (lambda o: {**o, "more": 0}, "the keys .*'more'"),
        (lambda o: {k: v for k, v in o.items() if k != "token"}, "the keys "),
    ],
)
def test_observations_that_do_not_fit_are_named(change, message):
    envs = [dummy, lambda: Faulty(dummy(), change)]
    with pytest.raises(SpaceError, match="Environment 1 failed in step 2: .*" + message):
        drive(envs, steps=8)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_observations_that_are_not_finite_are_named(value):
    change = lambda obs: {**obs, "vector": np.float32([0, 0, value, 0, 0, 0, 0])}  # noqa: E731
    envs = [dummy, lambda: Faulty(dummy(), change)]
    message = f"'vector' of environment 1 has at step 2 the value {value}, expected finite"
    with pytest.raises(SpaceError, match=message):
        drive(envs, steps=8)


def test_failures_name_the_environment_and_keep_their_type():
    def fail(obs):
        raise ZeroDivisionError("too thin")

    with pytest.raises(ZeroDivisionError, match="too thin") as info:
        drive([dummy, lambda: Faulty(dummy(), fail)], steps=8)
    assert info.value.__notes__ == ["Environment 1 failed in step 2."]


def test_a_failure_to_close_is_logged_and_holds_up_no_other(caplog):
    closed = []

    class Closing(Wrapper):
        def close(self):
            closed.append(True)
            raise OSError("the door is stuck")

    driver = Driver([lambda: Closing(dummy())] * 2, parallel=False)
    driver.close()
    assert closed == [True, True]
    assert [x.getMessage() for x in caplog.records] == [
        "Closing environment 0 failed.",
        "Closing environment 1 failed.",
    ]
    assert "the door is stuck" in caplog.text
    with pytest.raises(EnvError, match="are closed"):
        driver(lambda carry, obs: (carry, ones, {}), steps=1)


class Batch(BatchedEnv):
    """Steps dummies together."""

    def __init__(self, envs):
        self.envs = envs
        self.length = len(envs)

    @property
    def obs_space(self):
        return self.envs[0].obs_space

    @property
    def act_space(self):
        return self.envs[0].act_space

    def step(self, action):
        obs = [env.step({k: v[i] for k, v in action.items()}) for i, env in enumerate(self.envs)]
        return {k: np.stack([x[k] for x in obs]) for k in obs[0]}

    def close(self):
        for env in self.envs:
            env.close()


def batch(seeds, **kwargs):
    return Batch([dummy(task="cont", seed=seed, **kwargs) for seed in seeds])


@pytest.mark.filterwarnings("ignore:.*os.fork.*:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
@pytest.mark.parametrize("parallel", [False, True])
def test_batches_and_single_environments_mix(parallel):
    def run(envs, **kwargs):
        driver = Driver(envs, **kwargs)
        assert driver.length == 4
        agent = RandomAgent(*agent_spaces((driver.obs_space, driver.act_space)))
        driver.reset(agent.init_policy)
        trans = []
        driver.on_step(lambda tran, worker: trans.append((worker, tran)))
        driver(agent.policy, steps=60)
        driver.close()
        return trans

    single = partial(dummy, task="cont")
    one = run([partial(single, seed=i) for i in range(4)], parallel=False)
    mixed = [partial(single, seed=0), partial(batch, [1, 2]), partial(batch, [3])]
    two = run(mixed, parallel=parallel, start_method="fork", workers=2)
    assert len(one) == len(two) == 60
    for (worker1, tran1), (worker2, tran2) in zip(one, two, strict=True):
        assert worker1 == worker2
        assert all(np.array_equal(value, tran2[key]) for key, value in tran1.items())


def test_failures_name_the_environments_of_a_batch():
    class Shorter(Batch):
        def step(self, action):
            return {k: v[1:] for k, v in super().step(action).items()}

    envs = [dummy, lambda: Shorter([dummy(), dummy()])]
    message = r"Environments 1 to 2 failed in step 0: .*'image' is uint8 \(1, 8, 8, 3\), expected "
    with pytest.raises(SpaceError, match=message + r"uint8 \(2, 8, 8, 3\)"):
        drive(envs, lambda carry, obs: (carry, {}, {}), steps=3)


def test_observations_of_other_precision_are_cast():
    change = lambda obs: {**obs, "reward": 2.5, "token": np.int64(7)}  # noqa: E731
    (seq,) = drive([lambda: Faulty(dummy(), change)], steps=3)
    assert (seq["reward"].dtype, seq["token"].dtype) == (np.float32, np.int32)
    assert (seq["reward"][2], seq["token"][2]) == (2.5, 7)


@pytest.mark.parametrize("key", ["reward", "is_terminal", "reset"])
def test_missing_spaces_are_named(key):
    class Without(Wrapper):
        @property
        def obs_space(self):
            return {k: v for k, v in self.env.obs_space.items() if k != key}

        @property
        def act_space(self):
            return {k: v for k, v in self.env.act_space.items() if k != key}

    with pytest.raises(EnvError, match=f"lack '{key}'"):
        Driver([lambda: Without(dummy())], parallel=False)


def test_processes_give_the_same_transitions():
    def run(parallel):
        driver = Driver([partial(dummy, task="cont", seed=i) for i in range(2)], parallel)
        agent = RandomAgent(*agent_spaces((driver.obs_space, driver.act_space)))
        driver.reset(agent.init_policy)
        trans = []
        driver.on_step(lambda tran, worker: trans.append((worker, tran)))
        driver(agent.policy, steps=40)
        driver.close()
        return trans

    one, two = run(False), run(True)
    assert len(one) == len(two) == 40
    for (worker1, tran1), (worker2, tran2) in zip(one, two, strict=True):
        assert worker1 == worker2
        assert tran1.keys() == tran2.keys()
        for key, value in tran1.items():
            assert value.dtype == tran2[key].dtype
            assert np.array_equal(value, tran2[key]), key


def test_attributes():
    driver = Driver([dummy] * 3, parallel=False)
    assert driver.length == 3
    assert "log/x" not in driver.obs_space
    assert driver.obs_space.keys() == dummy().obs_space.keys()
    assert driver.act_space.keys() == {"reset", "act_disc"}


class Broken(Wrapper):
    """Numbers that are not finite at some steps since the start of the first episode."""

    def __init__(self, env, reward=(), vector=()):
        super().__init__(env)
        self.at = {"reward": reward, "vector": vector}
        self.steps = -1

    def step(self, action):
        self.steps += 1
        obs = self.env.step(action)
        bad = [k for k, steps in self.at.items() if self.steps in steps]
        return obs | {k: np.full_like(obs[k], np.nan) for k in bad}


def test_episodes_that_are_not_finite_are_abandoned(caplog):
    seen = []

    def policy(carry, obs):
        seen.append(obs)
        return carry, {"act_disc": np.ones(2, np.int32)}, {}

    envs = [partial(dummy, length=4), lambda: Broken(dummy(length=4), reward=[2], vector=[2, 7])]
    driver = Driver(envs, parallel=False, skip_nonfinite=True)
    seqs = [[], []]
    driver.on_step(lambda tran, worker: seqs[worker].append(tran))
    driver(policy, steps=20)
    assert driver.nonfinite == 2
    assert [len(x) for x in seqs] == [10, 8]
    # Step 2 breaks an episode off; step 7 would have been the last of the next one.
    assert [int(x["count"]) for x in seqs[1]] == [0, 1, 0, 1, 2, 3, 0, 1]
    assert [bool(x["is_first"]) for x in seqs[1]] == [x in (0, 2, 6) for x in range(8)]
    assert not any(x["is_last"] or x["reset"] for x in seqs[1])
    assert sum(bool(x["is_last"]) for x in seqs[0]) == 2
    assert all(np.isfinite(x["vector"]).all() and np.isfinite(x["reward"]).all() for x in seen)
    assert seen[2]["is_first"].tolist() == [False, True]
    (line,) = [x for x in caplog.messages if "abandoned" in x]
    assert "of environment 1 has at step 2 the value nan" in line


def test_only_abandoned_episodes_do_not_count():
    envs = [lambda: Broken(dummy(length=2), reward=[2])]
    driver = Driver(envs, parallel=False, skip_nonfinite=True)
    seq = []
    driver.on_step(lambda tran, worker: seq.append(bool(tran["is_last"])))
    driver(lambda carry, obs: (carry, ones, {}), episodes=1)
    assert seq == [False, False, False, False, True]


def test_an_episode_that_begins_not_finite_cannot_be_skipped():
    driver = Driver(
        [dummy, lambda: Broken(dummy(), reward=[0])], parallel=False, skip_nonfinite=True
    )
    with pytest.raises(SpaceError, match=r"'reward' of environment 1 .* at the start of an ep"):
        driver(lambda carry, obs: (carry, ones, {}), steps=1)


@pytest.mark.filterwarnings("ignore:.*os.fork.*:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
@pytest.mark.parametrize("parallel", [False, True])
def test_errors_name_environment_and_step_once(parallel):
    def wide():
        return CheckSpaces(
            Faulty(dummy(task="cont"), lambda obs: {**obs, "token": np.zeros(1)}), 1
        )

    def undeclared():
        return CheckSpaces(
            UnifyDtypes(Faulty(dummy(task="cont"), lambda obs: {**obs, "token": 1.5})), 1
        )

    def together():
        return CheckSpaces(batch([1, 2]), 1)

    failed = "Worker 1 failed in step {} of {}: " if parallel else "{1} failed in step {0}: "
    one = failed.format(2, "environment 1" if parallel else "Environment 1")
    two = failed.format(1, "environments 1 to 2" if parallel else "Environments 1 to 2")
    for make, start, found in (
        (wide, one, "The observation 'token' is float64 (1,), expected int32 () within 0..255."),
        (undeclared, one, "The observation 'token' is float64 (), expected int32 ()."),
        (together, two, "The action 'act_disc' in environment 2 is the value 9, expected int32 "),
    ):
        driver = Driver([partial(dummy, task="cont"), make], parallel, start_method="fork")
        acts = {
            k: np.zeros((driver.length, *v.shape), v.dtype) for k, v in driver.act_space.items()
        }
        del acts["reset"]
        acts["act_disc"][2:] = 9
        driver.reset(lambda length: ())
        with pytest.raises(EmbodiedError) as info:
            driver(lambda carry, obs, acts=acts: (carry, acts, {}), steps=20)
        assert str(info.value).startswith(start + found)
        driver.close()
