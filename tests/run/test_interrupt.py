import os
import signal
import subprocess
import sys
import threading

import pytest

from embodied.core.checkpoint import Checkpoint, resolve
from embodied.run.interrupt import Interrupt

LOOP = """
import sys, time
from embodied.run.interrupt import Interrupt
with Interrupt() as interrupt:
    print("ready", flush=True)
    while not interrupt.requested:
        time.sleep(0.01)
    print("requested", flush=True)
    sys.stdin.read()
"""

TRAIN = [
    *("-m", "dreamerv3.main", "--configs", "debug", "--random_agent", "True"),
    *("--task", "gymnasium_CartPole-v1", "--run.debug", "False", "--run.envs", "2"),
    *("--run.log_every", "1", "--logger.outputs", "jsonl", "--run.train_ratio", "0"),
]


def start(*args):
    return subprocess.Popen(
        [sys.executable, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_is_a_request_and_the_second_one_kills(number):
    with start("-c", LOOP) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.readline() == "requested\n"
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == -number
    assert f"{number.name}: saving and ending the run" in errors
    assert "Traceback" not in errors


def test_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with Interrupt() as interrupt:
        assert signal.getsignal(signal.SIGTERM) != before[0]
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    assert not interrupt.requested


def test_another_thread_takes_no_signals():
    before = signal.getsignal(signal.SIGTERM)
    found = []

    def run():
        with Interrupt():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [before]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_ends_well_when_all_its_processes_get_the_signal(tmp_path, number):
    with start(*TRAIN, "--logdir", str(tmp_path)) as process:
        for line in process.stdout:
            if line.startswith("Step "):
                break
        os.killpg(process.pid, number)
        out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    last = [x for x in out.splitlines() if x.startswith("Step ")][-1]
    folder = resolve(tmp_path)
    step = int(folder.name.split("-")[1])
    assert f"Step {step:,} of" in last
    assert step > 0


def test_a_checkpoint_in_the_making_is_finished_before_the_process_ends(tmp_path):
    code = """
import sys, time
from embodied.core import ckptdir
from embodied.core.checkpoint import Checkpoint

class Part:
    def save(self):
        return 7
    def load(self, data):
        pass

write = ckptdir.write
ckptdir.write = lambda *args: (time.sleep(0.3), write(*args))
cp = Checkpoint(sys.argv[1])
cp.part = Part()
cp.save(wait=False)
raise SystemExit(5)
"""
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)]).returncode == 5
    assert Checkpoint(tmp_path).latest().name == (tmp_path / "latest").read_text()
