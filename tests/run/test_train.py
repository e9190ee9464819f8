import collections
import json
import os
import signal
import time
from functools import partial

import elements
import numpy as np
import pytest

from embodied import envs
from embodied.core.errors import CheckpointError, EnvError, WorkerError
from embodied.core.logger import Logger
from embodied.core.outputs import JSONLOutput
from embodied.core.random import RandomAgent
from embodied.core.replay import Replay
from embodied.core.streams import Consec, Map, Prefetch, Stateless
from embodied.core.wrappers import Wrapper
from embodied.run import parts
from embodied.run.train import train

BATCH, LENGTH, CONTEXT = 4, 8, 1


class Learner(RandomAgent):
    """Acts at random, counts its updates and writes priorities back."""

    def __init__(self, *args):
        super().__init__(*args)
        self.updates = 0
        self.shapes = set()
        self.loads = []
        self.reports = []

    def train(self, carry, data):
        self.updates += 1
        self.shapes.add((data["reward"].shape, data["consec"].shape))
        outs = {
            "replay": {"stepid": data["stepid"], "priority": np.ones((BATCH, CONTEXT + LENGTH))}
        }
        return carry, outs, {"loss": 2.0, "updates": self.updates}

    def report(self, carry, data):
        self.reports.append(data)
        return carry, {"openloop": np.zeros((4, 8, 8, 3), np.uint8), "loss": 3.0}

    def save(self):
        return {**super().save(), "updates": self.updates}

    def load(self, data, regex=None):
        self.loads.append(regex)
        super().load(data)
        self.updates = data["updates"]


class Broken:
    """An environment that raises at its tenth step."""

    def __init__(self, index):
        self.env = envs.make("dummy_disc", index)
        self.obs_space, self.act_space = self.env.obs_space, self.env.act_space
        self.steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps == 10:
            raise RuntimeError("simulator gone")
        return self.env.step(action)

    def close(self):
        self.env.close()


class Run:
    """One process's worth of a run: new objects around a logdir that stays."""

    def __init__(self, logdir, outputs=(), make_env=None, **changes):
        self.args = elements.Config({
            "logdir": str(logdir), "seed": 0, "steps": 606, "train_ratio": 8.0, "envs": 2,
            "batch_size": BATCH, "batch_length": LENGTH, "report_length": LENGTH,
            "replay_context": CONTEXT, "consec_train": 1, "consec_report": 1,
            "log_every": -1.0, "report_every": 0.0, "save_every": 0.0, "report_batches": 1,
            "save_steps": 0, "keep": 1, "keep_best": 0,
            "stop_score": float("inf"),
            "envs_per_worker": 1, "env_timeout": 300.0, "env_restarts": 0, "start_method": "spawn",
            "nonfinite": "stop",
            "episode_timeout": 180.0, "from_checkpoint": "", "from_checkpoint_regex": ".*",
            "usage.psutil": True, "usage.nvsmi": True, "debug": True,
        }).update(changes)  # fmt: skip
        self.logdir = logdir
        self.outputs = outputs
        self.make_env = make_env or partial(envs.make, "dummy_disc", size=(8, 8), length=100)
        self.streams: collections.Counter = collections.Counter()

    def __call__(self):
        train(
            self.make_agent, self.make_replay, self.make_envs, self.make_stream, self.make_logger,
            self.args,
        )  # fmt: skip
        return self

    def make_envs(self):
        return [partial(self.make_env, index) for index in range(self.args.envs)]

    def make_agent(self):
        env = self.make_env(0)
        self.agent = Learner(env.obs_space, {"act_disc": env.act_space["act_disc"]})
        return self.agent

    def make_replay(self):
        self.replay = Replay(LENGTH + CONTEXT, 10_000, self.logdir / "replay", chunksize=64)
        return self.replay

    def make_stream(self, replay, mode):
        self.streams[mode] += 1
        source = Stateless(partial(replay.sample, BATCH, mode))
        return Consec(source, LENGTH, 1, CONTEXT)

    def make_logger(self):
        files = [
            JSONLOutput(self.logdir / "metrics.jsonl"),
            JSONLOutput(self.logdir / "scores.jsonl", "episode/score"),
        ]
        self.logger = Logger(elements.Counter(), [*files, *self.outputs])
        return self.logger

    def read(self, name):
        return [json.loads(x) for x in (self.logdir / name).read_text().splitlines()]


def test_a_run_ends_when_ten_episodes_have_the_score(tmp_path):
    run = Run(tmp_path, steps=10_000, stop_score=1.0)()
    assert int(run.logger.step) == 2 * 5 * 101
    assert run.read("metrics.jsonl")[-1]["step"] == 1010


def test_a_run_leaves_its_files_and_counts_right(tmp_path):
    run = Run(tmp_path)()
    scores = run.read("scores.jsonl")
    # 606 steps of two environments are three times 101 transitions each.
    assert [x["step"] for x in scores] == [201, 202, 403, 404, 605, 606]
    assert all(set(x) == {"step", "episode/score"} for x in scores)
    metrics = run.read("metrics.jsonl")
    assert {x["episode/length"] for x in metrics if "episode/length" in x} == {100}
    assert metrics[-1]["step"] == 606
    assert len(run.replay) == 606 - 2 * (LENGTH + CONTEXT - 1)
    assert (tmp_path / "ckpt" / "latest").exists()
    names = set().union(*metrics)
    assert {
        "train/loss",
        "epstats/reward_rate",
        "replay/items",
        "fps/policy",
        "fps/train",
    } <= names
    assert {"usage/psutil/proc_ram_gb", "timer/act/frac", "timer/train/mean"} <= names


def test_updates_follow_the_train_ratio(tmp_path):
    run = Run(tmp_path)()
    assert run.agent.shapes == {((BATCH, CONTEXT + LENGTH), (BATCH, CONTEXT + LENGTH))}
    # The first update comes with the step that completes the first batch.
    started = 2 * (LENGTH + CONTEXT + 1)
    assert run.agent.updates == 1 + (606 - started) * 8 // (BATCH * LENGTH)
    assert run.replay.stats()["updates"] == 0  # all were logged
    assert sum(x.get("replay/updates", 0) for x in run.read("metrics.jsonl")) == (
        run.agent.updates * BATCH * (LENGTH + CONTEXT)
    )


def test_no_updates_when_the_ratio_is_zero(tmp_path):
    assert Run(tmp_path, train_ratio=0.0, steps=100)().agent.updates == 0


def test_the_last_write_is_complete(tmp_path):
    run = Run(tmp_path, log_every=0.0)()
    last = run.read("metrics.jsonl")[-1]
    assert last["step"] == 606
    assert last["train/loss"] == 2
    assert last["train/updates"] == (run.agent.updates + 1) / 2  # the mean over the whole run


def test_resume_continues_steps_and_updates_without_a_burst(tmp_path):
    first = Run(tmp_path, steps=300)()
    again = Run(tmp_path, steps=606)()
    whole = Run(tmp_path / "whole", steps=606)()
    assert int(again.logger.step) == 606
    assert again.agent.updates == whole.agent.updates
    steps = [x["step"] for x in again.read("metrics.jsonl")]
    assert steps == sorted(steps)
    assert len(again.replay) > len(first.replay)


def test_resume_makes_no_burst_after_a_long_first_part(tmp_path, monkeypatch):
    Run(tmp_path, steps=600)()
    made = []
    call = parts.Learn.__call__

    def count(self):
        before = self.updates
        call(self)
        made.append(self.updates - before)

    monkeypatch.setattr(parts.Learn, "__call__", count)
    Run(tmp_path, steps=640)()
    assert len(made) == 20
    assert max(made) == 1


def test_a_finished_run_starts_and_ends_cleanly(tmp_path):
    Run(tmp_path, steps=100)()
    again = Run(tmp_path, steps=100)()
    assert int(again.logger.step) == 100
    assert len(list((tmp_path / "ckpt").glob("*/done"))) == 1


def test_a_failing_output_never_stops_training(tmp_path):
    calls = []

    def flaky(metrics):
        calls.append(len(metrics))
        if len(calls) % 3 == 0:
            raise OSError("disk full")

    run = Run(tmp_path, [flaky], steps=100)()
    assert int(run.logger.step) == 100
    assert len(calls) > 30
    assert run.read("metrics.jsonl")[-1]["step"] == 100


def test_from_checkpoint_loads_only_the_agent(tmp_path):
    first = Run(tmp_path / "a", steps=300)()
    second = Run(tmp_path / "b", steps=10, from_checkpoint=str(tmp_path / "a"))()
    assert second.agent.loads == [None]
    assert second.agent.updates == first.agent.updates
    assert int(second.logger.step) == 10
    third = Run(tmp_path / "b", steps=20, from_checkpoint=str(tmp_path / "gone"))()
    assert int(third.logger.step) == 20  # a resume does not look at it


def test_from_checkpoint_hands_on_the_regex(tmp_path):
    Run(tmp_path / "a", steps=20)()
    regex = "^(enc|dyn)/"
    run = Run(
        tmp_path / "b", steps=10, from_checkpoint=str(tmp_path / "a" / "ckpt"),
        from_checkpoint_regex=regex,
    )()  # fmt: skip
    assert run.agent.loads == [regex]


def test_a_missing_start_is_an_error(tmp_path):
    with pytest.raises(CheckpointError, match="There is no checkpoint at"):
        Run(tmp_path, from_checkpoint=str(tmp_path / "gone"))()


def test_a_damaged_checkpoint_is_not_overwritten(tmp_path):
    Run(tmp_path, steps=50)()
    file = next((tmp_path / "ckpt").glob("*/agent.json"))
    file.write_text(file.read_text().replace("0", "1"))
    with pytest.raises(CheckpointError, match=r"agent\.json does not match its checksum"):
        Run(tmp_path, steps=100)()
    assert file.exists()


def test_an_error_closes_everything_and_keeps_the_last_save(tmp_path):
    closed = []

    class Output:
        def __call__(self, metrics):
            pass

        def close(self):
            closed.append(True)

    with pytest.raises(WorkerError, match="simulator gone"):
        Run(tmp_path, [Output()], make_env=Broken, debug=False, save_every=-1.0)()
    assert closed == [True]
    saved = next((tmp_path / "ckpt").glob("*/step.json")).read_text()
    assert saved == "18"  # two environments took nine steps each


class Mortal(Wrapper):
    """An environment whose process dies or hangs at its tenth step, until it is started anew."""

    def __init__(self, index, fault=None, restarts=0):
        super().__init__(envs.make("dummy_disc", index, size=(8, 8), length=20))
        self._fault = fault if not restarts else None
        self._steps = 0

    @property
    def obs_space(self):
        return {**self.env.obs_space, "log/pid": elements.Space(np.int64)}

    def step(self, action):
        self._steps += 1
        if self._fault and self._steps == 10:
            self._fault()
        return {**self.env.step(action), "log/pid": np.int64(os.getpid())}


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def hang():
    time.sleep(1000)


@pytest.mark.filterwarnings("ignore:.*os.fork.*:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
class TestWorkers:
    def run(self, tmp_path, fault=None, **changes):
        make_env = partial(Mortal, fault=fault)
        changes = {"debug": False, "start_method": "fork", "steps": 200, **changes}
        return Run(tmp_path, make_env=make_env, **changes)

    def test_a_run_goes_on_after_restarts(self, tmp_path, caplog):
        run = self.run(tmp_path, die, env_restarts=2)()
        assert run.read("metrics.jsonl")[-1]["env_restarts"] == 2
        assert len([x for x in caplog.records if "killed by SIGKILL" in x.getMessage()]) == 2
        lengths = {x.get("episode/length", 20) for x in run.read("metrics.jsonl")}
        assert lengths == {20}

    def test_a_single_environment_can_be_started_anew(self, tmp_path, caplog):
        run = self.run(tmp_path, die, env_restarts=1, envs=1, steps=30)()
        assert int(run.logger.step) == 30
        assert "killed by SIGKILL" in caplog.text

    def test_no_restarts_by_default(self, tmp_path):
        with pytest.raises(WorkerError, match=r"step 9 of environment \d: .* by SIGKILL\.$"):
            self.run(tmp_path, die)()

    def test_timeout(self, tmp_path):
        with pytest.raises(WorkerError, match=r"it hangs: no answer for 0\.5 s"):
            self.run(tmp_path, hang, env_timeout=0.5)()

    @pytest.mark.parametrize(
        ("changes", "workers"),
        [
            ({"envs_per_worker": 1}, 4),
            ({"envs_per_worker": 2}, 2),
            ({"envs_per_worker": 4}, 1),
            ({"debug": True}, 0),
        ],
    )
    def test_environments_share_workers(self, tmp_path, monkeypatch, changes, workers):
        pids = set()
        add = Replay.add

        def spy(self, tran, worker):
            pids.add(int(tran["log/pid"]))
            add(self, tran, worker)

        monkeypatch.setattr(Replay, "add", spy)
        self.run(tmp_path, envs=4, steps=8, **changes)()
        assert len(pids - {os.getpid()}) == workers

    def test_start_method(self, tmp_path):
        with pytest.raises(EnvError, match="'teleport': choose the start method"):
            self.run(tmp_path, start_method="teleport")()


class Prefetching(Learner):
    def stream(self, st):
        return Prefetch(st, amount=2)

    def report(self, carry, data):
        assert data["size"] == self.replay_size()
        return super().report(carry, data)


def test_reports_see_the_replay_of_their_time(tmp_path):
    run = Run(tmp_path, report_every=-1.0, steps=100, report_batches=2)
    make_stream = run.make_stream

    def make_sized_stream(replay, mode):
        return Map(make_stream(replay, mode), lambda x: {**x, "size": len(replay)})

    def make_agent():
        env = run.make_env(0)
        run.agent = Prefetching(env.obs_space, {"act_disc": env.act_space["act_disc"]})
        run.agent.replay_size = lambda: len(run.replay)
        return run.agent

    run.make_stream, run.make_agent = make_sized_stream, make_agent
    run()
    reports = len(run.agent.reports) // 2
    assert reports > 30
    assert run.streams["report"] == reports
    assert any("report/loss" in x for x in run.read("metrics.jsonl"))


def test_progress_says_what_is_left():
    text = parts.progress(2500, 10_000, 12.5, 123.45, 0.5)
    assert text == (
        "Step 2,500 of 10,000 (25%) | 12.5 steps/s | ETA 10m 0s | score 123.5 | 0.5 updates/step"
    )
    assert "ETA unknown" in parts.progress(0, 10, 0, None, 0)
    assert "no episode yet" in parts.progress(0, 10, 0, None, 0)
    assert "ETA 2h 46m" in parts.progress(0, 10_000, 1, None, 0)
    assert "ETA 115,740d 17h" in parts.progress(0, 10_000_000_000, 1, None, 0)


def test_timer_stats_leave_out_idle_sections(monkeypatch):
    timer = elements.timer.Timer()
    monkeypatch.setattr(elements.timer, "global_timer", timer)
    monkeypatch.setattr(timer, "stats", timer.stats)
    assert parts.timer_stats() == {}
    with timer.section("a"):
        pass
    assert set(parts.timer_stats()) == {"a/frac", "a/mean"}
    assert parts.timer_stats() == {}
    timer.enabled = False
    assert parts.timer_stats() == {}
