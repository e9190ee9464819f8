import os
import subprocess
import sys

import pytest

from dreamerv3.config import compose, load_configs
from dreamerv3.logdir import lock_logdir, open_logdir
from embodied.core.errors import ConfigError


def make(tmp_path, *presets, **flags):
    return compose(presets, {"logdir": str(tmp_path / "run"), **flags})


def begin(tmp_path, *presets, **flags):
    """The config file of a run that has begun."""
    folder = open_logdir(make(tmp_path, *presets, **flags))
    (folder / "ckpt").mkdir()
    return folder / "config.yaml"


def test_saves_a_config_that_composes_to_itself(tmp_path):
    config = make(tmp_path, "size1m")
    folder = open_logdir(config)
    assert [x.name for x in folder.iterdir()] == ["config.yaml"]
    assert compose([], load_configs(folder / "config.yaml")).flat == config.flat


def test_resumes_with_another_way_of_running(tmp_path):
    file = begin(tmp_path, "size1m")
    before = file.read_bytes()
    changed = {"run.steps": 5, "run.log_every": 1, "logger.fps": 3, "jax.platform": "cpu"}
    open_logdir(make(tmp_path, "size1m", **changed))
    assert file.read_bytes() == before


def test_refuses_another_experiment_with_the_difference(tmp_path):
    file = begin(tmp_path, "size1m")
    before = file.read_bytes()
    with pytest.raises(ConfigError) as error:
        open_logdir(make(tmp_path, "size12m"))
    assert "agent.dyn.rssm.deter 512 -> 2048" in str(error.value)
    assert "another --logdir" in str(error.value)
    assert file.read_bytes() == before


@pytest.mark.parametrize("key", ["seed", "batch_size", "run.train_ratio"])
def test_refuses_each_key_that_makes_another_experiment(tmp_path, key):
    begin(tmp_path)
    with pytest.raises(ConfigError, match=rf"{key} [\d.]+ -> 77"):
        open_logdir(make(tmp_path, **{key: 77}))


def test_older_configs_may_lack_keys(tmp_path):
    file = begin(tmp_path)
    file.write_text("seed: 0\nold_key: 3\n")
    open_logdir(make(tmp_path))
    assert file.read_text() == "seed: 0\nold_key: 3\n"


@pytest.mark.parametrize("trace", ["ckpt", "replay", "metrics.jsonl"])
def test_a_start_that_failed_can_be_repeated_with_other_flags(tmp_path, trace):
    folder = open_logdir(make(tmp_path, task="gymnasium_CartPole-v9"))
    (folder / "scope").mkdir()
    open_logdir(make(tmp_path, task="gymnasium_CartPole-v1"))
    assert load_configs(folder / "config.yaml")["task"] == "gymnasium_CartPole-v1"
    (folder / trace).touch()
    with pytest.raises(ConfigError, match="holds a run with another config"):
        open_logdir(make(tmp_path))


def test_unusable_folders(tmp_path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(ConfigError, match=r"logdir '.*run' cannot be used"):
        open_logdir(make(tmp_path))


def test_damaged_config(tmp_path):
    file = begin(tmp_path)
    for text in ("agent: {opt", "agent: [[1]]"):
        file.write_text(text)
        with pytest.raises(ConfigError, match=r"config\.yaml' is not"):
            open_logdir(make(tmp_path))


def test_traces_without_a_config_are_left_alone(tmp_path):
    file = begin(tmp_path)
    file.unlink()
    with pytest.raises(ConfigError, match=r"holds ckpt of a run but not its config\.yaml"):
        open_logdir(make(tmp_path))
    assert not file.exists()


LOCK = """
import sys
from dreamerv3.logdir import lock_logdir
with lock_logdir(sys.argv[1]):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_folder_in_use_is_refused_until_its_process_ends(tmp_path):
    args = [sys.executable, "-c", LOCK, str(tmp_path)]
    with subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "locked\n"
        with (
            pytest.raises(ConfigError, match=rf"in use by process {other.pid} on \S+: end that"),
            lock_logdir(tmp_path),
        ):
            pass
        other.kill()
    with lock_logdir(tmp_path):
        assert str(os.getpid()) in (tmp_path / "lock").read_text()
    with lock_logdir(tmp_path):  # the lock has ended with the block
        pass


def test_a_lock_needs_a_folder_that_can_be_written(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(ConfigError, match=r"logdir '.*file/run' cannot be used"),
        lock_logdir(tmp_path / "file" / "run"),
    ):
        pass
