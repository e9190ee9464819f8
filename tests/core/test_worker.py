import multiprocessing
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import elements
import numpy as np
import pytest

from embodied.core import parallel
from embodied.core.driver import Driver
from embodied.core.errors import EnvError, WorkerError

from . import faulty
from .faulty import Faulty, gone, policy, run, script

# A fork is what the test asks for; JAX and Python warn of it where other tests left threads.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*os.fork.*:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning"),
]
both_methods = pytest.mark.parametrize("method", ["spawn", "fork"])


@both_methods
def test_each_environment_has_a_process_and_gets_its_actions(method):
    seqs = run([Faulty] * 2, method, steps=8)
    pids = [{int(tran["pid"]) for tran in seq} for seq in seqs]
    assert all(len(x) == 1 for x in pids)
    assert len(set.union(*pids)) == 2
    assert os.getpid() not in set.union(*pids)
    assert [tran["reward"] for tran in seqs[1]] == [0, 3, 3, 3]
    assert gone(set.union(*pids))


@pytest.mark.parametrize(
    ("method", "fault", "cause"),
    [
        ("spawn", faulty.raise_unpicklable, "UnpicklableError: odd"),
        ("spawn", faulty.kill_itself, "its process was killed by SIGKILL"),
        ("fork", faulty.raise_value_error, "ValueError: the ice is thin"),
        ("fork", faulty.raise_unpicklable, "UnpicklableError: odd"),
        ("fork", faulty.leave, "SystemExit: 7"),
        ("fork", faulty.vanish, "its process ended with status 3"),
        ("fork", faulty.kill_itself, "its process was killed by SIGKILL"),
    ],
)
def test_failing_step(method, fault, cause):
    envs = [Faulty, partial(Faulty, fault)]
    with pytest.raises(
        WorkerError, match=f"^Worker 1 failed in step 2 of environment 1: .*{cause}"
    ) as info:
        run(envs, method)
    text = str(info.value)
    assert ("Traceback" in text) == (
        fault in (faulty.raise_value_error, faulty.raise_unpicklable, faulty.leave)
    )
    assert (f"in {fault.__name__}" in text) == ("Traceback" in text)


def test_a_crash_leaves_its_stack_on_the_terminal(capfd):
    envs = [Faulty, partial(Faulty, faulty.crash)]
    with pytest.raises(WorkerError, match=r"step 2 of .* was killed by SIGSEGV"):
        run(envs, "fork")
    err = capfd.readouterr().err
    assert "Segmentation fault" in err
    assert "in crash" in err


@pytest.mark.parametrize(
    "fault", [faulty.raise_value_error, faulty.raise_unpicklable, faulty.kill_itself]
)
def test_failing_constructor_of_one_of_eight(fault):
    envs = [Faulty] * 8
    envs[3] = partial(Faulty, fault_in_init=fault)
    with pytest.raises(WorkerError, match=r"^Worker 3 failed in environment constructor 3: "):
        Driver(envs, start_method="fork")


def test_failing_constructor_does_not_wait_for_slow_ones(monkeypatch, caplog):
    monkeypatch.setattr(parallel, "_CLOSE_SECONDS", 0.1)
    envs = [partial(Faulty, fault_in_init=faulty.hang)] * 2
    envs.append(partial(Faulty, fault_in_init=faulty.raise_value_error))
    with pytest.raises(WorkerError, match="Worker 2 failed in environment constructor 2: Value"):
        Driver(envs, start_method="fork")
    assert "Worker 0 was killed, since it did not close" in caplog.text


def test_failing_constructor_with_spawn():
    envs = [Faulty, partial(Faulty, fault_in_init=faulty.raise_value_error)]
    with pytest.raises(
        WorkerError, match=r"^Worker 1 failed in environment constructor 1: ValueErr"
    ):
        Driver(envs)


@both_methods
def test_hanging_step(method):
    envs = [Faulty, partial(Faulty, faulty.hang)]
    message = r"Worker 1 failed in step 2 of environment 1: it hangs: no answer for 1 s\.$"
    with pytest.raises(WorkerError, match=message):
        run(envs, method, timeout=1)


def test_how_many_hang():
    envs = [partial(Faulty, faulty.hang)] * 3
    with pytest.raises(WorkerError, match=r"no answer for 0\.5 s \(nor from 2 more\)"):
        run(envs, "fork", timeout=0.5)


def test_hanging_constructor():
    with pytest.raises(
        WorkerError, match="Worker 0 failed in environment constructor 0: it hangs"
    ):
        Driver([partial(Faulty, fault_in_init=faulty.hang)], start_method="fork", timeout=0.5)


def test_errors_for_people_come_without_a_traceback():
    with pytest.raises(WorkerError) as info:
        run([partial(Faulty, faulty.raise_space_error)], "fork")
    assert str(info.value) == (
        "Worker 0 failed in step 2 of environment 0: The observation 'x' is broken."
    )


def test_failure_ends_all_processes_and_the_driver():
    pids = set()
    driver = Driver([Faulty, partial(Faulty, faulty.kill_itself)], start_method="fork")
    driver.on_step(lambda tran, worker: pids.add(int(tran["pid"])))
    with pytest.raises(WorkerError):
        driver(policy, steps=16)
    assert len(pids) == 2
    assert gone(pids)
    with pytest.raises(WorkerError, match="are closed"):
        driver(policy, steps=16)
    driver.close()


def test_killed_between_steps():
    driver = Driver([Faulty] * 2, start_method="fork")
    pids = {}
    driver.on_step(lambda tran, worker: pids.update({worker: int(tran["pid"])}))
    driver(policy, steps=2)
    os.kill(pids[1], signal.SIGKILL)
    assert gone([pids[1]])
    with pytest.raises(WorkerError, match=r"Worker 1 failed in step 1 .* killed by SIGKILL"):
        driver(policy, steps=2)


def test_death_shows_although_a_child_holds_the_pipes():
    def die():
        if not os.fork():
            time.sleep(20)
            os._exit(0)
        faulty.kill_itself()

    with pytest.raises(WorkerError, match=r"Worker 1 .* killed by SIGKILL"):
        run([Faulty, partial(Faulty, die)], "fork", timeout=15)


def test_environments_may_start_processes():
    def start_child():
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(0,))
        child.start()
        child.join()
        assert child.exitcode == 0

    seqs = run([partial(Faulty, start_child)], "fork", steps=5)
    assert len(seqs[0]) == 5


@both_methods
def test_interrupt_is_left_to_the_parent(method):
    driver = Driver([Faulty], start_method=method)
    driver.on_step(lambda tran, worker: os.kill(int(tran["pid"]), signal.SIGINT))
    driver(policy, steps=5)
    driver.close()


def test_wrong_observation_names_key_step_and_shapes():
    class WrongShape(Faulty):
        def step(self, action):
            obs = super().step(action)
            return {**obs, "pid": np.zeros(3, np.int64)} if self._count == 4 else obs

    with pytest.raises(
        WorkerError, match=r"step 3 of environment 1: .*'pid' is int64 \(3,\), exp"
    ):
        run([Faulty, WrongShape], "fork")


def test_different_spaces_are_refused():
    class Other(Faulty):
        @property
        def act_space(self):
            return {**super().act_space, "action": elements.Space(np.int32, (2,), 0, 8)}

    with pytest.raises(EnvError, match=r"'action' is int32 \(2,\) within 0..8 in environment 0"):
        Driver([Faulty, Other], start_method="fork")


def test_order_of_keys_does_not_matter():
    class Reordered(Faulty):
        @property
        def obs_space(self):
            return dict(reversed(super().obs_space.items()))

    seqs = run([Faulty, Reordered], "fork", steps=8)
    assert [tran["reward"] for tran in seqs[1]] == [0, 3, 3, 3]


def test_constructor_that_cannot_be_sent_is_named():
    stream = sys.stdout.buffer
    with pytest.raises(EnvError, match="constructor of environment 1 cannot be sent"):
        Driver([Faulty, lambda: stream])


def test_unknown_start_method_is_refused():
    with pytest.raises(EnvError, match="'teleport': choose the start method 'spawn' or 'fork'"):
        Driver([Faulty], start_method="teleport")


def test_spawned_processes_are_limited_to_one_thread(monkeypatch):
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    seqs = run([Faulty], "spawn", steps=1)
    assert seqs[0][0]["threads"] == 1
    assert "OPENBLAS_NUM_THREADS" not in os.environ


class CloseCounter(Faulty):
    def __init__(self, path):
        super().__init__()
        self._path = path

    def close(self):
        Path(self._path).write_text("closed")


@both_methods
def test_environments_are_closed(method, tmp_path):
    run([partial(CloseCounter, tmp_path / "mark")], method, steps=1)
    assert (tmp_path / "mark").read_text() == "closed"


def test_a_failure_to_close_is_told_and_holds_up_no_other(tmp_path, capfd):
    class Stuck(Faulty):
        def close(self):
            raise OSError("the door is stuck")

    envs = [Stuck, partial(CloseCounter, tmp_path / "mark")]
    run(envs, "spawn", steps=2, workers=1)
    assert (tmp_path / "mark").read_text() == "closed"
    err = capfd.readouterr().err
    assert "Closing environment 0 failed." in err
    assert "OSError: the door is stuck" in err


def test_a_hanging_close_is_told(monkeypatch, caplog):
    class Hanging(Faulty):
        def close(self):
            time.sleep(1000)

    monkeypatch.setattr(parallel, "_CLOSE_SECONDS", 0.5)
    pids = {int(seq[0]["pid"]) for seq in run([Faulty, Hanging], "fork", steps=2)}
    message = "Worker 1 was killed, since it did not close its environments within 0.5 s."
    assert [x.getMessage() for x in caplog.records] == [message]
    assert gone(pids)


def test_workers_may_print_much(tmp_path):
    done = script(
        tmp_path,
        """
        from functools import partial
        from embodied.core.driver import Driver
        from tests.core.faulty import Faulty, policy

        def talk():
            for _ in range(1000):
                print("x" * 1000)

        driver = Driver([partial(Faulty, talk)] * 2, start_method="fork")
        driver(policy, steps=8)
        driver.close()
        """,
    )
    assert done.stderr == ""
    assert done.stdout.count("x") == 2_000_000


@both_methods
def test_interrupt_from_the_terminal(method, tmp_path):
    """Ctrl-C reaches all processes of the group, while they start and while they step."""
    done = script(
        tmp_path,
        f"""
        import os, signal, threading
        from functools import partial
        from embodied.core.driver import Driver
        from tests.core.faulty import Faulty, policy

        os.setpgrp()
        pids = set()
        for delay in (0.1, 0):
            driver = None
            try:
                if delay:
                    signal.signal(signal.SIGALRM, lambda *_: os.killpg(0, signal.SIGINT))
                    signal.setitimer(signal.ITIMER_REAL, delay)
                    while True:
                        driver = Driver([Faulty] * 4, start_method="{method}")
                        driver.close()
                driver = Driver([Faulty] * 4, start_method="{method}")
                driver.on_step(lambda tran, worker: pids.add(int(tran["pid"])))
                driver.on_step(lambda tran, worker: len(pids) < 4 or os.killpg(0, signal.SIGINT))
                driver(policy, steps=1_000_000)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            finally:
                if driver:
                    driver.close()
        print(*pids)
        """,
    )
    assert done.stderr == ""
    *lines, pids = done.stdout.splitlines()
    assert lines == ["interrupted"] * 2
    assert len(pids.split()) == 4
    assert gone([int(x) for x in pids.split()])


PROGRAM = """
    import os, signal, sys
    import wave  # stands for something heavy
    import numpy as np
    from embodied.core.driver import Driver
    from embodied.core.wrappers import Wrapper
    from embodied.envs.dummy import Dummy

    print("main runs")

    class Spy(Wrapper):
        def step(self, action):
            lean = "wave" not in sys.modules and "jax" not in sys.modules
            return {**self.env.step(action), "count": np.float32(lean)}

    def policy(carry, obs):
        print("lean" if obs["count"] == 1 else "heavy")
        return carry, {"act_disc": np.zeros(1, np.int32)}, {}

    driver = Driver([lambda: Spy(Dummy("disc"))])
    driver(policy, steps=1)
"""


def test_main_module_needs_no_guard_and_is_not_imported(tmp_path):
    done = script(tmp_path, PROGRAM)
    assert done.stdout.split("\n") == ["main runs", "lean", ""]
    assert done.stderr == ""  # nor do leaked processes or memory show although nobody closed
    assert done.returncode == 0


@both_methods
def test_processes_end_when_the_parent_is_killed(method, tmp_path):
    done = script(
        tmp_path,
        f"""
        import os, signal, time
        import numpy as np
        from functools import partial
        from embodied.core.driver import Driver
        from tests.core.faulty import Faulty, policy

        def hang_now():
            print(os.getpid(), flush=True)
            time.sleep(1000)

        def idle():
            print(os.getpid(), flush=True)

        def kill_parent():
            print(os.getpid(), flush=True)
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(1000)

        faults = [idle, hang_now, kill_parent]
        driver = Driver([partial(Faulty, x) for x in faults], start_method="{method}")
        driver(policy, steps=100)
        """,
    )
    assert done.returncode == -signal.SIGKILL
    pids = [int(line) for line in done.stdout.split()]
    assert pids
    assert gone(pids)
