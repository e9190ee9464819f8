"""A process that hosts environments: the parent's end of it, and what runs inside.

The two share memory for observations and actions; small messages over a pipe say when. The
process knows nothing of JAX and does not import the program's main module.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import io
import multiprocessing
import os
import pickle
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing import connection, resource_tracker
from typing import Any

import cloudpickle

from .batch import SharedArrays
from .errors import EmbodiedError, EnvError
from .serial import MakeEnv, SerialEnvs

STEP = b"step"
CLOSE = None

_DONE = b""
_POLL_SECONDS = 3600.0  # what one call of the system waits at most; it takes no infinity
_END_SECONDS = 3.0  # for a process that was told to end
_ENDING = {signal.SIGINT, signal.SIGTERM}
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


class Worker:
    """The parent's end of one worker process.

    Args:
      index: number of the worker.
      make_env_fns: constructors of its environments; anything that cloudpickle can send.
      first: number of the first of these constructors in the driver.
      start_method: "spawn" or "fork".

    Attributes:
      phase: what its next answer ends: "start", "build", "step", "save" or "load". The answer to
        "build" is `(obs_space, act_space, lengths)`, the last two give what `SerialEnvs` returns;
        the others say nothing more.
      seconds: how long that may take.
    """

    def __init__(self, index: int, make_env_fns: Sequence[MakeEnv], first: int, start_method: str):
        self.index = index
        self.first = first
        self.phase = "start"
        self.seconds = 0.0
        self._deadline = 0.0
        self._context: Any = multiprocessing.get_context(start_method)
        self._at = self._context.RawValue("i", first)
        self._payload = _packed(make_env_fns, first)
        self.start(0)

    def start(self, restarts: int) -> None:
        """Starts the process, which builds the environments.

        Args:
          restarts: told to the constructors that want to know; 0 at the first start.
        """
        # Forked children would otherwise start trackers that free the shared memory too early.
        resource_tracker.ensure_running()
        self.phase = "start"
        self._at.value = self.first
        # Two pipes, since they are faster than one that goes both ways.
        commands, self._commands = self._context.Pipe(duplex=False)
        self._answers, answers = self._context.Pipe(duplex=False)
        process = self._context.Process(
            target=_serve,
            args=(commands, answers, self._payload, self.first, restarts, self._at),
            name=f"env-{self.index}",
            daemon=True,
        )
        with _lean_start():
            process.start()
            _running.add(process)
        self.process = process
        commands.close()
        answers.close()
        self._exit = _exit_file(self.process.pid, self.process.sentinel)

    @property
    def at(self) -> int:
        """Number of the constructor whose environment is at work."""
        return self._at.value

    @property
    def files(self) -> tuple[int, int]:
        """Of these, one becomes readable when there is an answer or the process has ended."""
        return self._answers.fileno(), self._exit.fileno()

    def expect(self, phase: str, seconds: float) -> None:
        """Notes what comes next and how many seconds it may take."""
        self.phase = phase
        self.seconds = seconds
        self._deadline = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds until the answer is late."""
        return max(0.0, self._deadline - time.monotonic())

    def send(self, message: Any) -> None:
        """Sends a message; that the process is gone shows when its answer is waited for.

        Args:
          message: STEP; CLOSE; `("save",)` or `("load", states)`, see `SerialEnvs`; or, before
            all these, name and length of the shared memory and this worker's rows in it.
        """
        with contextlib.suppress(OSError):
            if message == STEP:
                self._commands.send_bytes(STEP)
            else:
                self._commands.send(message)

    def receive(self) -> tuple[str, Any]:
        """Takes the answer of a worker that is ready.

        Returns:
          An empty string and the content; after a failure the cause and the traceback.
        """
        try:
            # Children of its own may hold the pipe of a process that has ended.
            if self.process.is_alive() or self._answers.poll():
                answer = self._answers.recv_bytes()
                return pickle.loads(answer) if answer else ("", None)
        except (EOFError, OSError):
            pass
        self.process.join(_END_SECONDS)
        return _exit_cause(self.process.exitcode), ""

    def end(self, seconds: float = 0.0) -> bool:
        """Waits for the process to end and kills it after a time; whether it ended by itself."""
        self.process.join(seconds)
        ended = not self.process.is_alive()
        self.process.kill()
        self.process.join(_END_SECONDS)
        _running.discard(self.process)
        for file in (self._commands, self._answers, self._exit):
            file.close()
        return ended


_running: set[Any] = set()


@atexit.register
def _kill_running() -> None:
    # What nobody ended: at the exit `multiprocessing` would ask by SIGTERM, and wait for ever.
    for process in _running:
        process.kill()


def ready(workers: Iterable[Worker]) -> list[Worker]:
    """Waits until some workers have answered or ended; none if it takes long."""
    workers = list(workers)
    poller = select.poll()
    for worker in workers:
        for file in worker.files:
            poller.register(file, select.POLLIN)
    seconds = min(_POLL_SECONDS, *(worker.left() for worker in workers))
    files = {file for file, _ in poller.poll(1000 * seconds)}
    return [worker for worker in workers if not files.isdisjoint(worker.files)]


def _packed(make_env_fns: Sequence[MakeEnv], first: int) -> bytes:
    for index, make_env in enumerate(make_env_fns, first):
        try:
            cloudpickle.dumps(make_env)
        except Exception as error:
            raise EnvError(
                f"The constructor of environment {index} cannot be sent to a worker process: "
                f"{error}."
            ) from error
    return cloudpickle.dumps(list(make_env_fns))


def _exit_file(pid: int, sentinel: int) -> io.FileIO:
    """A file that becomes readable when a process has ended."""
    try:
        return io.FileIO(os.pidfd_open(pid))
    except (AttributeError, OSError):
        # Not on this system. The sentinel waits for children of the process, too.
        return io.FileIO(os.dup(sentinel))


_start_lock = threading.Lock()


@contextlib.contextmanager
def _lean_start() -> Iterator[None]:
    """Children started inside use one BLAS thread and do not import our main module.

    The main module may be heavy, or start a training when it is imported. Whatever an
    environment's constructor needs of it, cloudpickle sends along. Signals wait, since children
    are not yet ready to leave them to us.
    """
    with _start_lock:
        main = vars(sys.modules["__main__"])
        hidden: dict[str, Any] = {k: main.pop(k) for k in ("__file__", "__spec__") if k in main}
        main["__spec__"] = None
        added = [k for k in _THREAD_VARIABLES if k not in os.environ]
        os.environ.update(dict.fromkeys(added, "1"))
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            main.update(hidden)
            for key in added:
                del os.environ[key]


def _exit_cause(code: int | None) -> str:
    if code is not None and code < 0:
        return f"its process was killed by {signal.Signals(-code).name}"
    return f"its process ended with status {code}"


# Below: what runs in the worker process.


def _serve(
    commands: connection.Connection,
    answers: connection.Connection,
    payload: bytes,
    first: int,
    restarts: int,
    at: Any,
) -> None:
    """Builds the environments and steps them whenever the parent says so."""
    # What is sent to all processes at once is for the parent, which may want to save first.
    # SIGTERM is not ignored but caught, since programs that environments start inherit the former.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    faulthandler.enable(2)  # the stack of a crash is all that is known of its cause
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Environments may start processes of their own, which daemons may not.
    vars(multiprocessing.current_process())["_config"]["daemon"] = False
    with contextlib.ExitStack() as cleanup:
        try:
            make_env_fns = cloudpickle.loads(payload)
            answers.send_bytes(_DONE)
            envs = SerialEnvs(make_env_fns, first, restarts, at)
            cleanup.callback(envs.close)
            # Plain dicts, of whatever type an environment has them.
            answers.send(("", (dict(envs.obs_space), dict(envs.act_space), envs.lengths)))
            message = commands.recv()
            if message is CLOSE:
                return
            memory, length, rows = message
            shared = SharedArrays({**envs.obs_space, **envs.act_space}, length, memory)
            cleanup.callback(shared.close)
            _step_on_demand(commands, answers, envs, shared, rows)
        except BaseException as error:
            # Texts, since not every exception can be sent; the parent may be gone.
            with contextlib.suppress(OSError):
                answers.send(_failure(error))


def _step_on_demand(
    commands: connection.Connection,
    answers: connection.Connection,
    envs: SerialEnvs,
    shared: SharedArrays,
    rows: slice,
) -> None:
    obs = {k: shared.arrays[k][rows] for k in envs.obs_space}
    acts = {k: shared.arrays[k][rows] for k in envs.act_space}
    while True:
        message = commands.recv_bytes()
        if message == STEP:
            envs.step_into(acts, obs)
            answers.send_bytes(_DONE)
            continue
        request = pickle.loads(message)
        if request is CLOSE:
            return
        method, *args = request
        answers.send(("", getattr(envs, method)(*args)))


def _end_with_parent() -> None:
    """Ends this process when its parent has died, even if a step hangs."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    assert parent.pid is not None
    file = _exit_file(parent.pid, parent.sentinel)
    connection.wait([file.fileno()])
    os._exit(1)


def _failure(error: BaseException) -> tuple[str, str]:
    if isinstance(error, EmbodiedError):  # its message says all that the user needs
        return (getattr(error, "bare", "") or str(error)).removesuffix("."), ""
    cause = traceback.format_exception_only(error)[-1].strip()
    return cause, "".join(traceback.format_exception(error))
