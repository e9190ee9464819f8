"""Groups of environments in worker processes, and workers that are started anew."""

import os
import signal
from functools import partial

import elements
import numpy as np
import pytest

from embodied.core import parallel
from embodied.core.driver import Driver
from embodied.core.episodes import Episodes
from embodied.core.errors import EnvError, WorkerError
from embodied.core.parallel import worker_count
from embodied.core.replay import Replay
from embodied.core.wrappers import Wrapper
from embodied.envs.dummy import Dummy

from . import faulty
from .faulty import Faulty, gone, policy, run

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*os.fork.*:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning"),
]
both_methods = pytest.mark.parametrize("method", ["spawn", "fork"])


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(parallel, "_PAUSE_SECONDS", 0.01)


class TestGroups:
    def test_workers_share_the_environments_evenly(self):
        seqs = run([Faulty] * 5, "fork", steps=10, workers=2)
        pids = [int(seq[0]["pid"]) for seq in seqs]
        assert len(set(pids)) == 2
        assert [pids.index(x) for x in pids] == [0, 0, 0, 3, 3]
        assert all([tran["reward"] for tran in seq] == [0, 3] for seq in seqs)

    def test_no_more_workers_than_environments(self):
        seqs = run([Faulty] * 2, "fork", steps=2, workers=5)
        assert len({int(seq[0]["pid"]) for seq in seqs}) == 2

    @pytest.mark.parametrize(
        ("envs", "per_worker", "workers"), [(16, 1, 16), (16, 4, 4), (1, 0, 1), (5, 2, 3)]
    )
    def test_worker_count(self, envs, per_worker, workers):
        assert worker_count(envs, per_worker) == workers

    def test_zero_per_worker_means_one_worker_per_core(self, monkeypatch):
        monkeypatch.setattr(os, "cpu_count", lambda: 3)
        monkeypatch.setattr(os, "process_cpu_count", lambda: 3, raising=False)
        assert worker_count(16, 0) == 3

    @pytest.mark.parametrize("fault", [faulty.raise_value_error, faulty.kill_itself])
    def test_failures_name_the_environment_in_the_group(self, fault):
        envs = [Faulty] * 6
        envs[4] = partial(Faulty, fault)
        with pytest.raises(WorkerError, match=r"^Worker 1 failed in step 2 of environment 4: "):
            run(envs, "fork", steps=24, workers=2)

    @pytest.mark.parametrize("fault", [faulty.raise_value_error, faulty.kill_itself])
    def test_failures_name_the_constructor_in_the_group(self, fault):
        envs = [Faulty] * 6
        envs[4] = partial(Faulty, fault_in_init=fault)
        with pytest.raises(WorkerError, match=r"^Worker 1 failed in environment constructor 4: "):
            Driver(envs, start_method="fork", workers=2)

    def test_different_spaces_in_one_group_are_refused(self):
        with pytest.raises(WorkerError, match=r"'action' is .* environment 2 and .*vironment 3\."):
            Driver([Faulty] * 3 + [Other], start_method="fork", workers=2)


class Other(Faulty):
    @property
    def act_space(self):
        return {**super().act_space, "action": elements.Space(np.int32, (2,), 0, 8)}


def make_faulty(*faults, restarts=0):
    """Has the n-th of the faults until it was restarted n times; then none."""
    return Faulty(faults[restarts] if restarts < len(faults) else None)


class Fragile(Wrapper):
    """A dummy that dies at its step number `death`, if it is the first of its kind."""

    def __init__(self, seed, death=None, restarts=0):
        super().__init__(Dummy("disc", size=(8, 8), length=10, seed=seed))
        self._death = None if restarts else death
        self._calls = 0

    @property
    def obs_space(self):
        return {**self.env.obs_space, "pid": elements.Space(np.int64)}

    def step(self, action):
        if self._calls == self._death:
            os.kill(os.getpid(), signal.SIGKILL)
        self._calls += 1
        return {**self.env.step(action), "pid": np.int64(os.getpid())}


def act(carry, obs):
    return carry, {"act_disc": np.ones(len(obs["reward"]), np.int32)}, {}


class TestRestarts:
    def test_the_stream_of_transitions_stays_right(self, tmp_path, caplog):
        envs = [partial(Fragile, seed) for seed in range(4)]
        envs[2] = partial(Fragile, 2, death=15)  # in the second episode, with count 4
        driver = Driver(envs, start_method="fork", workers=2, restarts=1)
        replay = Replay(length=30, capacity=1000, directory=tmp_path)
        scores = []
        episodes = Episodes(scores.append)
        counts = [[] for _ in envs]
        firsts = [[] for _ in envs]
        rewards = [[] for _ in envs]
        for tracked, key in ((counts, "count"), (firsts, "is_first"), (rewards, "reward")):
            driver.on_step(lambda tran, worker, x=tracked, k=key: x[worker].append(int(tran[k])))
        driver.on_step(replay.add)
        driver.on_step(episodes.on_step)
        driver(act, steps=4 * 30)
        driver.close()
        assert driver.restarts == 1

        whole = [*range(11), *range(11), *range(8)]
        cut = [*range(11), *range(4), *range(11), *range(4)]
        assert counts == [whole, whole, cut, cut]
        assert all(
            [x == 0 for x in count] == [bool(x) for x in first]
            for count, first in zip(counts, firsts, strict=True)
        )
        assert all(
            [x > 0 for x in count] == [x > 0 for x in reward]
            for count, reward in zip(counts, rewards, strict=True)
        )
        # What was cut short counts as no episode.
        assert [x["score"] for x in scores] == [10] * 8
        # An abandoned episode ends in the replay where the next one begins.
        ends = {tuple(x.nonzero()[0].tolist()) for x in replay.sample(32)["is_last"]}
        assert ends == {(10, 21), (10, 14, 25)}

        (record,) = caplog.records
        assert record.levelname == "WARNING"
        assert record.getMessage() == (
            "Worker 1 failed in step 15 of environment 2: its process was killed by SIGKILL. "
            "Its environments start anew (restart 1 of 1 within an hour)."
        )

    def test_other_environments_stay_where_they_are(self):
        envs = [partial(Fragile, 0), partial(Fragile, 1, death=3)]
        seqs = [[], []]
        driver = Driver(envs, start_method="fork", restarts=1)
        driver.on_step(lambda tran, worker: seqs[worker].append(int(tran["pid"])))
        driver(act, steps=12)
        driver.close()
        assert len(set(seqs[0])) == 1
        assert seqs[1] == [seqs[1][0]] * 3 + [seqs[1][-1]] * 3
        assert seqs[1][0] != seqs[1][-1]
        assert gone({*seqs[0], *seqs[1]})

    def test_other_seeds_follow_if_the_constructor_takes_the_number(self):
        def noise(envs, restarts):
            driver = Driver(envs, start_method="fork", restarts=restarts)
            seq = []
            driver.on_step(lambda tran, worker: seq.append(tran["vector"].tolist()))
            driver(act, steps=6)
            driver.close()
            return seq

        def same(death=None, restarts=0):
            return Fragile(0, death, restarts)

        def other(death=None, restarts=0):
            return Fragile(restarts, death, restarts)

        one, two = noise([partial(same, 3)], 1), noise([partial(other, 3)], 1)
        assert one[:3] == two[:3] == one[3:]
        assert two[3:] != one[3:]

    @pytest.mark.parametrize(
        ("method", "fault", "cause"),
        [
            ("spawn", faulty.kill_itself, "its process was killed by SIGKILL"),
            ("fork", faulty.raise_value_error, "ValueError: the ice is thin"),
            ("fork", faulty.raise_unpicklable, "UnpicklableError: odd"),
            ("fork", faulty.vanish, "its process ended with status 3"),
            ("fork", faulty.hang, "it hangs: no answer for 1 s"),
        ],
    )
    def test_causes(self, method, fault, cause, caplog):
        envs = [Faulty, partial(make_faulty, fault)]
        seqs = run(envs, method, steps=10, restarts=3, timeout=1)
        assert [len(seq) for seq in seqs] == [5, 5]
        assert [bool(tran["is_first"]) for tran in seqs[1]] == [True, False] * 2 + [False]
        (record,) = caplog.records
        text = record.getMessage()
        assert f"Worker 1 failed in step 2 of environment 1: {cause}." in text.replace(
            f"{faulty.__name__}.", ""
        )
        assert "(restart 1 of 3 within an hour)" in text
        assert ("Traceback" in text) == ("Error" in cause)

    @both_methods
    def test_the_budget_is_kept(self, method):
        envs = [partial(make_faulty, *[faulty.raise_value_error] * 3)]
        message = r"ValueError: the ice is thin\. All 2 restarts of this hour are used up\.\nTrace"
        with pytest.raises(WorkerError, match=message):
            run(envs, method, steps=20, restarts=2)

    def test_the_budget_comes_back_after_an_hour(self, monkeypatch):
        monkeypatch.setattr(parallel, "_HOUR", 0.0)
        envs = [partial(make_faulty, *[faulty.raise_value_error] * 3)]
        (seq,) = run(envs, "fork", steps=10, restarts=1)
        assert [bool(tran["is_first"]) for tran in seq] == [True, False] * 4 + [False] * 2

    def test_several_at_once(self):
        envs = [partial(make_faulty, faulty.kill_itself) for _ in range(3)]
        seqs = run(envs, "fork", steps=15, restarts=3)
        assert all(sum(tran["is_first"] for tran in seq) >= 2 for seq in seqs)

    def test_failing_constructors(self, caplog):
        def make(restarts=0):
            if restarts < 2:
                raise ConnectionError("port in use")
            return Faulty()

        seqs = run([Faulty, make], "fork", steps=4, restarts=2)
        assert [len(seq) for seq in seqs] == [2, 2]
        texts = [x.getMessage() for x in caplog.records]
        assert len(texts) == 2
        cause = "Worker 1 failed in environment constructor 1: ConnectionError: port in use."
        assert all(text.startswith(cause) for text in texts)

    def test_a_constructor_that_fails_later(self):
        def make(restarts=0):
            if restarts == 1:
                raise ConnectionError("port in use")
            return make_faulty(faulty.kill_itself, restarts=restarts)

        (seq,) = run([make], "fork", steps=4, restarts=2)
        assert [bool(tran["is_first"]) for tran in seq] == [True, False, True, False]

    def test_another_environment_in_its_place_is_refused(self):
        def make(restarts=0):
            return Other() if restarts else Faulty(faulty.kill_itself)

        with pytest.raises(EnvError, match=r"'action' is .* in environment 0 and .*ironment 1"):
            run([Faulty, make], "fork", restarts=1)

    def test_none_by_default_nor_after_the_end(self):
        driver = Driver([partial(make_faulty, faulty.kill_itself)], start_method="fork")
        with pytest.raises(WorkerError, match=r"SIGKILL\.$"):
            driver(policy, steps=9)
        with pytest.raises(WorkerError, match="are closed"):
            driver(policy, steps=9)
