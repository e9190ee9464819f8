import os
import signal

import numpy as np
import pytest

from embodied import envs
from embodied.core.checkpoint import resolve
from embodied.core.errors import CheckpointError, ReplayError
from embodied.core.wrappers import Wrapper

from .test_train import Run


def break_folder(folder):
    folder.rename(folder.with_name("moved"))
    folder.touch()


def mend_folder(folder):
    folder.unlink()
    folder.with_name("moved").rename(folder)


@pytest.mark.parametrize("name", ["ckpt", "replay"])
def test_saves_that_fail_are_said_once_and_the_run_goes_on(tmp_path, caplog, name):
    turns = []

    def output(metrics):
        turns.append(metrics[-1][0])
        if len(turns) == 20:
            break_folder(tmp_path / name)
        if len(turns) == 100:
            mend_folder(tmp_path / name)

    run = Run(tmp_path, [output], save_steps=10)()
    assert int(run.logger.step) == 606
    said = [x for x in caplog.messages if "Training goes on" in x]
    assert len(said) == 1
    assert "cannot be written" in said[0]
    assert resolve(tmp_path).name.endswith("-000000000606")


@pytest.mark.parametrize("name", ["ckpt", "replay"])
def test_a_last_save_that_fails_is_an_error(tmp_path, name):
    def output(metrics):
        if metrics[-1][0] == 300:
            break_folder(tmp_path / name)

    with pytest.raises((CheckpointError, ReplayError), match="cannot be written"):
        Run(tmp_path, [output], save_steps=50)()
    mend_folder(tmp_path / name)
    whole = int(resolve(tmp_path).name.split("-")[1])
    assert 200 <= whole <= 300
    assert int(Run(tmp_path, steps=350)().logger.step) == 350


def test_checkpoints_by_steps(tmp_path):
    Run(tmp_path, save_steps=100, keep=50)()
    steps = [int(x.name.split("-")[1]) for x in sorted((tmp_path / "ckpt").glob("2*"))]
    assert steps == [0, 100, 200, 300, 400, 500, 600, 606]


def test_the_best_checkpoint_is_kept(tmp_path):
    def make_env(index):
        return Paying(envs.make("dummy_disc", index, size=(8, 8), length=10), until=200)

    run = Run(tmp_path, make_env=make_env, save_steps=50, keep_best=1, steps=1000)()
    kept = sorted((tmp_path / "ckpt").glob("2*"))
    steps = [int(x.name.split("-")[1]) for x in kept]
    assert len(steps) == 2
    assert steps[1] == 1000
    assert 200 <= steps[0] <= 500
    assert run.logger.step == 1000


class Paying(Wrapper):
    """Pays 1 a step, up to a step."""

    def __init__(self, env, until):
        super().__init__(env)
        self._until, self._steps = until, 0

    def step(self, action):
        self._steps += 1
        return {**self.env.step(action), "reward": np.float32(self._steps < self._until)}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_ends_the_run(tmp_path, number):
    sent = []

    def output(metrics):
        if metrics[-1][0] == 100 and not sent:
            sent.append(number)
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    run = Run(tmp_path, [output])()
    assert int(run.logger.step) == 100
    assert resolve(tmp_path).name.endswith("-000000000100")
    assert signal.getsignal(number) == before


def test_episodes_go_on_after_a_resume(tmp_path):
    Run(tmp_path / "b", steps=250)()
    again = Run(tmp_path / "b")()
    whole = Run(tmp_path / "a")()
    assert again.read("scores.jsonl") == whole.read("scores.jsonl")
    assert len(again.read("scores.jsonl")) == 6


def test_environments_that_cannot_go_on_get_other_seeds(tmp_path):
    seeds = []

    def make_env(index, restarts=0):
        if index == 0:
            seeds.append(restarts)
        env = Wrapper(envs.make("dummy_disc", index, seed=restarts, size=(8, 8)))
        env.save_episode = lambda: None
        return env

    for steps in (100, 200, 300):
        Run(tmp_path, make_env=make_env, steps=steps)()
    # The agent's spaces are asked from an environment of its own.
    assert seeds[1::2] == [0, 1, 2]
