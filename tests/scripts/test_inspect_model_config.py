import subprocess
import sys
from pathlib import Path

import pytest

from dreamerv3.config import compose
from dreamerv3.logdir import open_logdir
from embodied.core.errors import ConfigError
from scripts import inspect_model_config

ROOT = Path(__file__).parents[2]


def inspect(capsys, *argv):
    """The printed value of every line by its name."""
    inspect_model_config.main(argv)
    lines = [line.strip().split("  ", 1) for line in capsys.readouterr().out.splitlines()]
    return {line[0]: line[-1].strip() for line in lines}


def test_sections(capsys):
    lines = inspect(capsys, "defaults", "debug", "size1m")
    sections = ["Platform and dtype", "RSSM", "Encoder", "Decoder", "Heads", "Loss scales"]
    assert {*sections, "Rollout and batch", "Warnings"} <= lines.keys()
    assert lines["platform"] == "cpu"
    assert lines["feature size"] == "512 + 8 = 520"
    assert lines["image tokens"] == "4 x 4 x 16 = 256"
    assert lines["rep"] == "0.1"
    assert lines["imagined steps"] == "15"


def test_set(capsys):
    sets = ["jax.platform=cpu", "agent.dyn.rssm.deter=512", r".*\.blocks=2", "jax.xladump=a=b"]
    lines = inspect(capsys, "defaults", *[x for pair in sets for x in ("--set", pair)])
    assert lines["platform"] == "cpu"
    assert lines["compute dtype"] == "auto: float32"
    assert (lines["deter"], lines["blocks"]) == ("512", "2 of 256")


def test_file_of_a_run(capsys, tmp_path):
    file = open_logdir(compose(["size12m"], {"logdir": str(tmp_path)})) / "config.yaml"
    lines = inspect(capsys, "--config-file", str(file))
    assert lines["deter"] == "2048"
    assert lines["-"] == "none"


def test_file_with_unknown_keys(capsys, tmp_path):
    (tmp_path / "old.yaml").write_text("agent: {dyn: {rssm: {deter: 64}}}\nclock_addr: ''\n")
    lines = inspect(capsys, "size1m", "--config-file", str(tmp_path / "old.yaml"))
    assert (lines["deter"], lines["hidden"]) == ("64", "64")
    assert lines["-"] == "Keys of the file that mean nothing here: clock_addr."


def test_file_of_presets(capsys, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("defaults: {run.envs: 3}\nsmall:\n  .*\\.rssm\\.deter: 32\n")
    lines = inspect(capsys, "small", "--config-file", str(path))
    assert (lines["environments"], lines["deter"]) == ("3", "32")
    with pytest.raises(ConfigError, match=r"no preset 'smal' in .*did you mean 'small'"):
        inspect_model_config.main(["smal", "--config-file", str(path)])


@pytest.mark.parametrize(
    "command", [["scripts/inspect_model_config.py"], ["-m", "scripts.inspect_model_config"]]
)
def test_error_is_one_sentence_and_status_two(command):
    result = subprocess.run(
        [sys.executable, *command, "size1"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 2
    assert result.stderr.startswith("Error: There is no preset 'size1': did you mean 'size1m'")
    assert result.stderr.count("\n") == 1


def test_imports_no_jax():
    code = (
        "import sys; from scripts.inspect_model_config import main; main(['size1m'])\n"
        "assert not {'jax', 'gymnasium', 'ninjax'} & set(sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
