"""Where a driver's environments live: in this process, or each in a process of its own.

`SerialEnvs` and `ParallelEnvs` step E environments at once: actions [E, ...] go in, observations
[E, ...] come out. Worker processes write into memory that they share with the parent; small
messages over a pipe say when.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection, resource_tracker
from typing import Any, NoReturn

import cloudpickle

from .base import Data, Env
from .batch import SharedArrays, allocate, common_spaces, put, take
from .errors import EmbodiedError, EnvError, WorkerError

MakeEnv = Callable[[], Env]

_CLOSE_SECONDS = 3.0  # for `Env.close` of all workers together; who needs longer is killed
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


class SerialEnvs:
    """Steps environments one after the other in this process.

    Args:
      make_env_fns: one constructor per environment.
    """

    def __init__(self, make_env_fns: Sequence[MakeEnv]):
        self._envs: list[Env] = []
        self._steps = 0
        try:
            for make_env in make_env_fns:
                self._envs.append(make_env())
            self.obs_space, self.act_space = common_spaces(
                [(env.obs_space, env.act_space) for env in self._envs]
            )
        except BaseException:
            self.close()
            raise

    def step(self, acts: Data) -> Data:
        """Steps every environment once.

        Args:
          acts: one array [E, ...] per key of `act_space`.

        Returns:
          One new array [E, ...] per key of `obs_space`, in the dtype of its space.
        """
        obs = allocate(self.obs_space, len(self._envs))
        for index, env in enumerate(self._envs):
            put(obs, index, env.step(take(acts, index)), self._steps)
        self._steps += 1
        return obs

    def close(self) -> None:
        """Closes every environment."""
        for env in self._envs:
            env.close()
        self._envs = []


class ParallelEnvs:
    """Steps every environment in a process of its own, all at the same time.

    The processes know nothing of JAX and do not import the program's main module. They leave
    Ctrl-C to this process and end when it ends.

    Args:
      make_env_fns: one constructor per environment; anything that cloudpickle can send.
      timeout: seconds that a constructor or a step may take.
      start_method: "spawn", or "fork" for a faster start where no other thread is running.

    Raises:
      WorkerError: here and in `step`, if an environment raises, dies or takes too long.
      EnvError: if the environments' spaces differ.
    """

    def __init__(
        self,
        make_env_fns: Sequence[MakeEnv],
        timeout: float = 300.0,
        start_method: str = "spawn",
    ):
        if start_method not in ("spawn", "fork"):
            raise EnvError(
                f"Workers cannot start by {start_method!r}: choose the start method 'spawn' or "
                "'fork'."
            )
        self._timeout = timeout
        self._steps = 0
        self._workers: list[_Worker] = []
        self._shared: list[SharedArrays] = []
        self._finalizer = weakref.finalize(self, _shut_down, self._workers, self._shared)
        try:
            for index, make_env in enumerate(make_env_fns):
                self._workers.append(_Worker(make_env, index, start_method))
            spaces = self._receive("the constructor")
            self.obs_space, self.act_space = common_spaces(spaces)
            envs = len(self._workers)
            self._shared.append(SharedArrays({**self.obs_space, **self.act_space}, envs))
            self._send((self._shared[0].name, envs))
            self._receive("the constructor")
        except BaseException:
            self.close()
            raise

    def step(self, acts: Data) -> Data:
        """Steps every environment once; see `SerialEnvs.step`."""
        if not self._workers:
            raise WorkerError("The environments are closed: make a new driver to step again.")
        arrays = self._shared[0].arrays
        for key in self.act_space:
            arrays[key][...] = acts[key]
        self._send("step")
        self._receive(f"step {self._steps}")
        self._steps += 1
        return {k: arrays[k].copy() for k in self.obs_space}

    def close(self) -> None:
        """Closes every environment and ends the processes."""
        self._finalizer()

    def _send(self, message: Any) -> None:
        for worker in self._workers:
            # A worker that is gone shows when its answer is waited for.
            with contextlib.suppress(OSError):
                worker.conn.send(message)

    def _receive(self, stage: str) -> list[Any]:
        """Waits for one answer per worker and returns them in the order of the workers."""
        answers: dict[int, Any] = {}
        waiting: dict[Any, _Worker] = {worker.conn: worker for worker in self._workers}
        deadline = time.monotonic() + self._timeout
        while waiting:
            ready = connection.wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                self._fail(
                    list(waiting.values()), f"hangs: no answer for {self._timeout:g} s", stage
                )
            for conn in ready:
                worker = waiting.pop(conn)
                cause, answers[worker.index] = worker.receive()
                if cause:
                    self._fail([worker], cause, stage, answers[worker.index])
        return [answers[worker.index] for worker in self._workers]

    def _fail(self, workers: list[_Worker], cause: str, stage: str, details: str = "") -> NoReturn:
        names = ", ".join(str(worker.index) for worker in workers)
        for worker in workers:
            worker.process.kill()
        self.close()
        message = f"Environment worker {names} failed in {stage}: {cause}."
        raise WorkerError(f"{message}\n{details}".rstrip())


class _Worker:
    """The parent's end of one worker process."""

    def __init__(self, make_env: MakeEnv, index: int, start_method: str):
        context: Any = multiprocessing.get_context(start_method)
        # Forked children would otherwise start trackers that free the shared memory too early.
        resource_tracker.ensure_running()
        self.index = index
        self.conn, child = context.Pipe()
        self.process = context.Process(
            target=_serve,
            args=(child, _packed(make_env, index), index),
            name=f"env-{index}",
            daemon=True,
        )
        with _lean_start():
            self.process.start()
        child.close()

    def receive(self) -> tuple[str, Any]:
        """Takes the answer that is there; see `_serve`."""
        try:
            return self.conn.recv()
        except (EOFError, OSError):
            self.process.join(_CLOSE_SECONDS)
            return _exit_cause(self.process.exitcode), ""


def _packed(make_env: MakeEnv, index: int) -> bytes:
    try:
        return cloudpickle.dumps(make_env)
    except Exception as error:
        raise EnvError(
            f"The constructor of environment {index} cannot be sent to a worker process: {error}."
        ) from error


def _shut_down(workers: list[_Worker], shared: list[SharedArrays]) -> None:
    for worker in workers:
        with contextlib.suppress(OSError):  # it is gone already
            worker.conn.send("close")
    deadline = time.monotonic() + _CLOSE_SECONDS
    for worker in workers:
        worker.process.join(max(0.0, deadline - time.monotonic()))
        worker.process.kill()
        worker.process.join()
        worker.conn.close()
    workers.clear()
    for arrays in shared:
        arrays.close()


_start_lock = threading.Lock()


@contextlib.contextmanager
def _lean_start() -> Iterator[None]:
    """Children started inside use one BLAS thread and do not import our main module.

    The main module may be heavy, or start a training when it is imported. Whatever an
    environment's constructor needs of it, cloudpickle sends along.
    """
    with _start_lock:
        main = vars(sys.modules["__main__"])
        hidden: dict[str, Any] = {k: main.pop(k) for k in ("__file__", "__spec__") if k in main}
        main["__spec__"] = None
        added = [k for k in _THREAD_VARIABLES if k not in os.environ]
        os.environ.update(dict.fromkeys(added, "1"))
        try:
            yield
        finally:
            main.update(hidden)
            for key in added:
                del os.environ[key]


def _exit_cause(code: int | None) -> str:
    if code is not None and code < 0:
        return f"its process was killed by {signal.Signals(-code).name}"
    return f"its process ended with status {code}"


# Below: what runs in the worker process.


def _serve(conn: connection.Connection, payload: bytes, index: int) -> None:
    """Builds the environment and steps it whenever the parent says so.

    Every answer is a pair. Usually that is an empty string and the content; after a failure it
    is the cause and the traceback, both texts, since not every exception can be sent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.ExitStack() as cleanup:
        try:
            env = cloudpickle.loads(payload)()
            cleanup.callback(env.close)
            obs_space, act_space = dict(env.obs_space), dict(env.act_space)
            conn.send(("", (obs_space, act_space)))
            message = conn.recv()
            if message == "close":
                return
            name, envs = message
            shared = SharedArrays({**obs_space, **act_space}, envs, name)
            cleanup.callback(shared.close)
            conn.send(("", None))
            _step_on_demand(conn, env, shared, index)
        except BaseException as error:
            with contextlib.suppress(OSError):  # the parent is gone
                conn.send(_failure(error))


def _step_on_demand(
    conn: connection.Connection, env: Env, shared: SharedArrays, index: int
) -> None:
    obs = {k: shared.arrays[k] for k in env.obs_space}
    acts = {k: shared.arrays[k] for k in env.act_space}
    step = 0
    while conn.recv() == "step":
        put(obs, index, env.step(take(acts, index)), step)
        conn.send(("", None))
        step += 1


def _end_with_parent() -> None:
    """Ends this process when its parent has died, even if a step hangs."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _failure(error: BaseException) -> tuple[str, str]:
    if isinstance(error, EmbodiedError):  # its message says all that the user needs
        return str(error).removesuffix("."), ""
    cause = traceback.format_exception_only(error)[-1].strip()
    return cause, "".join(traceback.format_exception(error))
