"""A run that is saved and continued in a new process equals one that is not, bit for bit."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest

from embodied.core import ckptdir
from embodied.core.replay import Replay

PARTS = ("step", "agent", "replay", "stream", "learn", "episodes", "acting")
CODE = "import dreamerv3.main as m; m.main()"
KILL = (
    """
import os
from embodied.run.saving import Save

class Killed(Save):
    def __call__(self, final=False):
        super().__call__(final)
        if self._step >= 60 and not self._checkpoint.saving:
            self._before = getattr(self, "_before", int(self._step))
            if self._step >= self._before + 8:
                os.kill(os.getpid(), 9)

import embodied.run.train as train
train.Save = Killed
"""
    + CODE
)


def train(logdir, steps, *flags, code=CODE):
    flags = {
        "--configs": "debug",
        "--logdir": logdir,
        "--task": "gymnasium_CartPole-v1",
        "--logger.outputs": "jsonl",
        "--logger.timer": "False",
        "--replay.chunksize": 32,
        "--jax.debug": "False",
        "--run.usage.psutil": "False",
        "--run.envs": 2,
        "--run.steps": steps,
        "--run.train_ratio": 40,
        "--run.log_every": -1,
        "--run.report_every": 0,
        "--run.save_every": 0,
        "--agent.imag_length": 3,
        **dict(zip(flags[::2], flags[1::2], strict=True)),
    }
    argv = [str(x) for pair in flags.items() for x in pair]
    done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True)
    assert done.returncode == (0 if code is CODE else -signal.SIGKILL), done.stderr
    return done.stdout


def metrics(logdir):
    rows = [json.loads(x) for x in (logdir / "metrics.jsonl").read_text().splitlines()]
    # The first part writes its last row twice: at the turn and at the end.
    found: dict[int, dict[str, float]] = {}
    for row in rows:
        found.setdefault(row["step"], {}).update(
            {k: v for k, v in row.items() if k.startswith(("train/", "episode/"))}
        )
    return found


def differences(a, b, path=""):
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return [x for k in a for x in differences(a[k], b[k], f"{path}/{k}")]
    if isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        pairs = enumerate(zip(a, b, strict=True))
        return [x for i, (u, v) in pairs for x in differences(u, v, f"{path}/{i}")]
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        equal = a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    else:
        equal = a == b or (a != a and b != b)
    return [] if equal else [path]


# With consecutive batches, a sequence is cut in two and its carry is needed in the next update.
@pytest.mark.parametrize("flags", [("--consec_train", 2)])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, flags):
    whole, split, killed = (tmp_path / x for x in ("whole", "split", "killed"))
    train(whole, 120, *flags)
    train(split, 70, *flags)
    train(killed, 120, *flags, "--run.save_steps", 50, code=KILL)
    expected = metrics(whole)
    assert sum("train/loss/dyn" in row for row in expected.values()) > 10
    for logdir in (split, killed):
        output = train(logdir, 120, *flags)
        assert "Resumed from" in output
        assert "The episodes of 2 of 2 environments go on." in output
        assert metrics(logdir) == expected
    trees = [ckptdir.read(ckptdir.resolve(x), list(PARTS)) for x in (whole, split, killed)]
    for tree in trees:
        tree["acting"].pop("starts")
        # The ids of chunks are drawn anew in every run, and steps are named by them; files are
        # counted.
        for key in ("chunks", "successors", "contexts"):
            tree["replay"].pop(key)
        tree["replay"]["chains"].pop("chunks")
        tree["stream"]["current"].pop("stepid")
        tree["agent"]["waiting"]["outs"]["replay"].pop("stepid")
    assert differences(trees[0], trees[1]) == []
    assert differences(trees[0], trees[2]) == []


def test_another_seed_differs_from_the_first_step_on(tmp_path):
    steps = []
    for seed in (0, 1, 1):
        logdir = tmp_path / f"run{len(steps)}"
        train(logdir, 24, "--seed", seed, "--run.train_ratio", 0)
        replay = Replay(2, directory=logdir / "replay", chunksize=32)
        replay.load()
        steps.append(replay.sample(200))
    first = [np.unique(x["vector"][:, 0], axis=0) for x in steps]
    assert len(first[0]) == len(first[1]) > 10
    np.testing.assert_array_equal(first[1], first[2])
    assert not set(first[0].ravel().tolist()) & set(first[1].ravel().tolist())
