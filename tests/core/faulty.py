"""Environments that do bad things in worker processes, and means to watch those."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import elements
import numpy as np

from embodied.core.base import Env
from embodied.core.driver import Driver
from embodied.core.errors import SpaceError

REPO = Path(__file__).parents[2]


class UnpicklableError(Exception):
    def __reduce__(self):
        raise TypeError("no, thanks")


class Faulty(Env):
    """Does something bad in its third step or its constructor; tells about its process."""

    def __init__(self, fault=None, fault_in_init=None):
        self._fault = fault
        self._count = 0
        if fault_in_init:
            fault_in_init()

    @property
    def obs_space(self):
        return {
            "pid": elements.Space(np.int64),
            "threads": elements.Space(np.int32),
            "reward": elements.Space(np.float32),
            "is_first": elements.Space(bool),
            "is_last": elements.Space(bool),
            "is_terminal": elements.Space(bool),
        }

    @property
    def act_space(self):
        return {"reset": elements.Space(bool), "action": elements.Space(np.int32, (2,), 0, 9)}

    def step(self, action):
        self._count += 1
        if self._fault and self._count == 3:
            self._fault()
        return {
            "pid": os.getpid(),
            "threads": int(os.environ.get("OPENBLAS_NUM_THREADS", 0)),
            "reward": np.float32(action["action"].sum()),
            "is_first": self._count == 1,
            "is_last": False,
            "is_terminal": False,
        }


def raise_value_error():
    raise ValueError("the ice is thin")


def raise_unpicklable():
    raise UnpicklableError("odd")


def raise_space_error():
    raise SpaceError("The observation 'x' is broken.")


def leave():
    sys.exit(7)


def vanish():
    os._exit(3)


def kill_itself():
    os.kill(os.getpid(), signal.SIGKILL)


def crash():
    os.kill(os.getpid(), signal.SIGSEGV)


def hang():
    time.sleep(1000)


def policy(carry, obs):
    envs = len(obs["reward"])
    return carry, {"action": np.tile(np.int32([1, 2]), (envs, 1))}, {}


def run(envs, method, steps=16, **kwargs):
    """Drives environments in processes and returns the transitions of each."""
    driver = Driver(envs, start_method=method, **kwargs)
    seqs = [[] for _ in range(driver.length)]
    driver.on_step(lambda tran, worker: seqs[worker].append(tran))
    driver(policy, steps=steps)
    driver.close()
    return seqs


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def gone(pids, patience=10):
    deadline = time.monotonic() + patience
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(map(alive, pids))


def script(tmp_path, code):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(code))
    return subprocess.run(
        [sys.executable, "-W", "error", path],
        env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
        timeout=60,
    )
