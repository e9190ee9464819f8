"""The command line as a user meets it: through real processes where status and speed count."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from ruamel.yaml import YAML

import dreamerv3
from dreamerv3 import main as mainlib
from dreamerv3.config import compose, load_configs
from embodied.core.errors import ConfigError

ROOT = Path(__file__).parents[2]


def run(*args, code="from dreamerv3.main import console; console()"):
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.fixture
def launched(monkeypatch):
    """The configs of runs that would have been started."""
    configs = []
    monkeypatch.setattr(mainlib, "launch", configs.append)
    return configs


class TestErrors:
    @pytest.mark.parametrize(
        ("argv", "sentence"),
        [
            ("--configs debgu", "There is no preset 'debgu': did you mean 'debug'?"),
            ("--run.trainratio 3", "There is no config key 'run.trainratio': did you mean"),
            ("--task gimnasium_CartPole-v1", "did you mean 'gymnasium_NAME'"),
            ("--configs debug --replay.size 79", "replay.size 79 is less than one batch"),
        ],
    )
    def test_one_sentence_and_status_two(self, argv, sentence, tmp_path):
        result = run(*argv.split(), "--logdir", str(tmp_path / "run"))
        assert result.returncode == 2
        assert result.stdout == ""
        assert result.stderr.startswith("Error: ")
        assert sentence in result.stderr
        assert result.stderr.count("\n") == 1
        assert not (tmp_path / "run").exists()

    def test_python_callers_get_the_exception(self):
        with pytest.raises(ConfigError, match="no preset 'debgu'"):
            mainlib.main(["--configs", "debgu"])

    def test_said_before_jax_is_loaded(self, tmp_path):
        code = (
            "import sys, dreamerv3.main as m\n"
            "try: m.main(['--task', 'nosuch_task', '--logdir', sys.argv[1]])\n"
            "except Exception as e: print(type(e).__name__, 'jax' in sys.modules)"
        )
        result = run(str(tmp_path / "run"), code=code)
        assert result.stdout == "ConfigError False\n", result.stderr

    def test_interrupt_is_status_130(self, monkeypatch):
        def interrupted():
            raise KeyboardInterrupt

        monkeypatch.setattr(mainlib, "main", interrupted)
        with pytest.raises(SystemExit) as error:
            mainlib.console()
        assert error.value.code == 130


class TestMain:
    def test_empty_arguments_do_not_read_the_processs(self, launched, monkeypatch, tmp_path):
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setattr(sys, "argv", ["notebook", "-f", "kernel.json"])
        mainlib.main([])
        assert {**launched[0].flat, "logdir": ""} == {**compose().flat, "logdir": ""}
        assert launched[0].logdir.startswith(str(tmp_path))

    def test_no_arguments_read_the_processs(self, launched, monkeypatch, tmp_path):
        argv = ["dreamerv3", "--configs", "debug", "--logdir", str(tmp_path / "run")]
        monkeypatch.setattr(sys, "argv", argv)
        mainlib.main()
        assert launched[0].flat == compose(["debug"], {"logdir": str(tmp_path / "run")}).flat
        assert load_configs(tmp_path / "run/config.yaml")["batch_size"] == 8

    def test_says_updates_and_replaced_presets(self, launched, capsys, tmp_path):
        flags = f"--configs dmc_proprio --batch_size 1 --run.train_ratio 512 --logdir {tmp_path}"
        mainlib.main(flags.split())
        out = capsys.readouterr().out
        assert "makes 8 updates per environment step" in out
        assert "run.train_ratio is 512.0 by a flag, instead of 1024.0" in out
        assert str(tmp_path) in out

    def test_another_experiment_in_the_logdir_is_not_started(self, launched, tmp_path):
        mainlib.main(["--configs", "size1m", "--logdir", str(tmp_path)])
        (tmp_path / "ckpt").mkdir()
        with pytest.raises(ConfigError, match="holds a run with another config"):
            mainlib.main(["--configs", "size12m", "--logdir", str(tmp_path)])
        assert len(launched) == 1

    def test_help(self, launched, capsys):
        mainlib.main(["--configs", "debug", "--help"])
        assert "Usage: dreamerv3" in capsys.readouterr().out
        assert launched == []

    def test_run_args(self):
        args = mainlib.run_args(compose(["debug"], {"seed": 3, "logdir": "/x"}))
        assert (args.logdir, args.seed, args.batch_size, args.steps) == ("/x", 3, 8, 10**10)
        assert args.usage.psutil is True


class TestFrame:
    def test_version_and_requirements_agree_with_the_package(self):
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        lines = (ROOT / "requirements.txt").read_text().splitlines()
        assert project["version"] == dreamerv3.__version__
        assert [x for x in lines if not x.startswith("#")] == project["dependencies"]

    def test_linter_bounds_agree(self):
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        ruff = next(x for x in project["optional-dependencies"]["dev"] if x.startswith("ruff"))
        hooks = YAML(typ="safe").load((ROOT / ".pre-commit-config.yaml").read_text())
        for hook in hooks["repos"][0]["hooks"]:
            assert hook["additional_dependencies"] == [ruff]

    def test_configs_are_seen_at_the_top(self):
        assert (ROOT / "configs.yaml").resolve() == ROOT / "dreamerv3/configs.yaml"

    def test_unknown_attributes(self):
        with pytest.raises(AttributeError, match="no attribute 'agnet'"):
            dreamerv3.agnet
