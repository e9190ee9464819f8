"""Environments that are spread over worker processes, which step at the same time."""

from __future__ import annotations

import collections
import logging
import os
import time
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from .base import BatchedEnv, Data, Spaces
from .batch import SharedArrays, common_spaces, ranges, split
from .errors import EnvError, WorkerError
from .serial import MakeEnv, name
from .worker import CLOSE, STEP, Worker, ready

_log = logging.getLogger(__name__)

_START_SECONDS = 60.0  # for a process to start, at least, since the machine may be busy
_CLOSE_SECONDS = 3.0  # for `Env.close` of all workers together; who needs longer is killed
_PAUSE_SECONDS = 1.0  # before a worker is started anew, so that ports and files come free
_HOUR = 3600.0


class ParallelEnvs(BatchedEnv):
    """Steps environments in worker processes.

    The processes leave SIGINT and SIGTERM to this process and end when it ends. A worker fails
    if it raises, dies or takes too long. As long as restarts are left, it is then started anew
    with the same constructors: its environments begin new episodes while the others wait, so that
    none of their steps is lost. A constructor that takes a keyword `restarts` gets how often the
    worker was started anew, to choose another seed.

    Args:
      make_env_fns: constructors of environments; anything that cloudpickle can send.
      workers: number of processes that share them evenly; None for one per constructor.
      timeout: seconds that a worker may take to build its environments, and to step them.
      start_method: "spawn", or "fork" for a faster start where no other thread is running.
      restarts: how many workers are started anew within an hour.

    Attributes:
      length: the number of environments E.
      restarts: how many workers were started anew.

    Raises:
      WorkerError: here and in `step`, if a worker fails and no restart is left.
      EnvError: if the environments' spaces differ.
    """

    def __init__(
        self,
        make_env_fns: Sequence[MakeEnv],
        workers: int | None = None,
        timeout: float = 300.0,
        start_method: str = "spawn",
        restarts: int = 0,
    ):
        if start_method not in ("spawn", "fork"):
            raise EnvError(
                f"Workers cannot start by {start_method!r}: choose the start method 'spawn' or "
                "'fork'."
            )
        self.restarts = 0
        self._timeout = timeout
        self._budget = restarts
        self._times: collections.deque[float] = collections.deque()  # of restarts
        self._steps = 0
        self._built: dict[int, tuple[Spaces, Spaces, list[int]]] = {}  # by worker
        self._workers: list[Worker] = []
        self._shared: list[SharedArrays] = []
        self._finalizer = weakref.finalize(self, _shut_down, self._workers, self._shared)
        try:
            amount = min(workers or len(make_env_fns), len(make_env_fns))
            for index, part in enumerate(split(len(make_env_fns), amount)):
                fns = make_env_fns[part]
                self._workers.append(Worker(index, fns, part.start, start_method))
                self._workers[-1].expect("start", max(self._timeout, _START_SECONDS))
            self._collect()
            self._share()
        except BaseException:
            self.close()
            raise

    @property
    def obs_space(self) -> Spaces:
        """The space of every observation key of one environment."""
        return self._obs_space

    @property
    def act_space(self) -> Spaces:
        """The space of every action key of one environment."""
        return self._act_space

    def step(self, action: Data) -> Data:
        """Steps every environment once; see `BatchedEnv.step`."""
        if not self._workers:
            raise WorkerError("The environments are closed: make a new driver to step again.")
        arrays = self._shared[0].arrays
        for key in self.act_space:
            arrays[key][...] = action[key]
        arrays["reset"][self._lost] = True
        self._ask("step", [STEP] * len(self._workers))
        self._lost[:] = False
        self._steps += 1
        return {k: arrays[k].copy() for k in self.obs_space}

    def save(self) -> list[Any]:
        """For every constructor the state of its environment; see `SerialEnvs.save`."""
        answers = self._ask("save", [("save",)] * len(self._workers))
        counts = [len(self._built[worker.index][2]) for worker in self._workers]
        missing = ([None] * count for count in counts)
        return [x for a, b in zip(answers, missing, strict=True) for x in (a or b)]

    def load(self, states: Sequence[Any]) -> np.ndarray:
        """Brings environments to saved states; see `SerialEnvs.load`."""
        counts = [len(self._built[worker.index][2]) for worker in self._workers]
        answers = self._ask("load", [("load", list(states[part])) for part in ranges(counts)])
        loaded = np.zeros(self.length, bool)
        for rows, answer in zip(self._rows, answers, strict=True):
            loaded[rows] = False if answer is None else answer
        return loaded

    def close(self) -> None:
        """Closes every environment and ends the processes."""
        self._finalizer()

    def _ask(self, phase: str, messages: Sequence[Any]) -> list[Any]:
        """Sends every worker a message and waits for the answers; None of those started anew."""
        try:
            for worker, message in zip(self._workers, messages, strict=True):
                worker.expect(phase, self._timeout)
                worker.send(message)
            return self._collect()
        except BaseException:  # answers are outstanding, also after Ctrl-C
            self.close()
            raise

    def _collect(self) -> list[Any]:
        """Waits until every worker has done its part; starts those anew that fail."""
        answers: dict[int, Any] = {}
        waiting = set(self._workers)
        while waiting:
            answered = ready(waiting)
            for worker in answered:
                cause, content = worker.receive()
                if cause:
                    self._restart(worker, cause, content)
                elif self._advance(worker, content):
                    waiting.remove(worker)
                    answers[worker.index] = content
            late = [w for w in waiting if not w.left()] if not answered else []
            for worker in late:
                worker.process.kill()
            for worker in late:
                more = f" (nor from {len(late) - 1} more)" if len(late) > 1 else ""
                self._restart(worker, f"it hangs: no answer for {worker.seconds:g} s{more}")
        return [answers[worker.index] for worker in self._workers]

    def _advance(self, worker: Worker, content: Any) -> bool:
        """Takes an answer and says what is next; returns whether the worker has done its part."""
        if worker.phase == "start":
            worker.expect("build", self._timeout)
            return False
        if worker.phase == "build":
            self._check_built(worker, content)
            if not self._shared:  # it is the first time, and not yet known what all have built
                return True
            # What the policy chose was for the episode that is lost.
            self._shared[0].arrays["reset"][self._rows[worker.index]] = True
            self._lost[self._rows[worker.index]] = True
            worker.send((self._shared[0].name, self.length, self._rows[worker.index]))
            worker.send(STEP)
            worker.expect("step", self._timeout)
            return False
        return True

    def _check_built(self, worker: Worker, content: tuple[Spaces, Spaces, list[int]]) -> None:
        """Notes what a worker has built, which must fit to the others and to what it had."""
        *_, lengths = self._built.setdefault(worker.index, content)
        if lengths != content[2]:
            raise EnvError(
                f"Worker {worker.index} was started anew and has {sum(content[2])} environments "
                f"where it had {sum(lengths)}."
            )
        other = next(iter(self._built))
        pairs = {self._workers[other].first: self._built[other][:2], worker.first: content[:2]}
        self._obs_space, self._act_space = common_spaces(pairs)

    def _share(self) -> None:
        """Gives all workers memory for their environments."""
        built = [self._built[worker.index] for worker in self._workers]
        self._rows = ranges(sum(lengths) for *_, lengths in built)
        self.length = self._rows[-1].stop
        self._lost = np.zeros(self.length, bool)  # environments that lost their episode
        self._shared.append(SharedArrays({**self.obs_space, **self.act_space}, self.length))
        for worker, rows in zip(self._workers, self._rows, strict=True):
            worker.send((self._shared[0].name, self.length, rows))

    def _restart(self, worker: Worker, cause: str, details: str = "") -> None:
        message = f"Worker {worker.index} failed in {self._place(worker)}: {cause}."
        details = f"\n{details}".rstrip()
        now = time.monotonic()
        while self._times and now - self._times[0] > _HOUR:
            self._times.popleft()
        if len(self._times) >= self._budget:
            spent = f" All {self._budget} restarts of this hour are used up." * bool(self._budget)
            raise WorkerError(message + spent + details)
        self._times.append(now)
        self.restarts += 1
        count = f"restart {len(self._times)} of {self._budget} within an hour"
        _log.warning("%s Its environments start anew (%s).%s", message, count, details)
        worker.end(_CLOSE_SECONDS)
        time.sleep(_PAUSE_SECONDS)
        worker.start(self.restarts)
        worker.expect("start", max(self._timeout, _START_SECONDS))

    def _place(self, worker: Worker) -> str:
        """Where a worker is, in words."""
        if worker.phase == "start":
            return "the start of its process"
        if worker.phase == "build":
            return f"environment constructor {worker.at}"
        lengths = [n for w in self._workers for n in self._built[w.index][2]]
        where = {"step": f"step {self._steps}", "save": "saving", "load": "loading"}[worker.phase]
        return f"{where} of {name(ranges(lengths)[worker.at])}"


def worker_count(envs: int, per_worker: int) -> int:
    """The number of processes for some environments; `per_worker` 0 means one per CPU core."""
    cores = getattr(os, "process_cpu_count", os.cpu_count)() or 1
    return -(-envs // per_worker) if per_worker else min(envs, cores)


def _shut_down(workers: list[Worker], shared: list[SharedArrays]) -> None:
    for worker in workers:
        worker.send(CLOSE)
        if worker.phase == "start":  # it has nothing to close, and would not listen for long
            worker.process.kill()
    deadline = time.monotonic() + _CLOSE_SECONDS
    for worker in workers:
        if not worker.end(max(0.0, deadline - time.monotonic())):
            _log.warning(
                "Worker %d was killed, since it did not close its environments within %g s.",
                worker.index,
                _CLOSE_SECONDS,
            )
    workers.clear()
    for arrays in shared:
        arrays.close()
