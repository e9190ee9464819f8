import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from embodied.core.errors import EnvError, MissingPackageError
from scripts import check_install as script


def works(text):
    print("noise that packages make")
    sys.stderr.write("more of it")
    return text


def misses():
    raise MissingPackageError("the suite 'x'", "x", "'dreamerv3[x]'")


def refuses():
    raise EnvError("The camera is broken.")


def fails():
    raise ValueError("two\nlines")


def dies():
    os.kill(os.getpid(), signal.SIGSEGV)


def leaves():
    os._exit(3)


def hangs():
    # The child keeps the pipes of its parent open.
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    time.sleep(1000)


@pytest.mark.parametrize(
    ("probe", "args", "answer"),
    [
        (works, ("two\nlines",), ("yes", "two lines")),
        (
            misses,
            (),
            (
                "missing",
                "The suite 'x' needs the package 'x', which is not installed: run `pip install "
                "'dreamerv3[x]'`.",
            ),
        ),
        (refuses, (), ("no", "The camera is broken.")),
        (fails, (), ("no", "ValueError: two lines")),
        (dies, (), ("no", "its process was killed by SIGSEGV")),
        (leaves, (), ("no", "its process ended with 3")),
    ],
)
def test_every_outcome_is_one_line(probe, args, answer, capfd):
    assert script.attempt(probe, args, 60) == answer
    assert capfd.readouterr() == ("", "")


def test_what_hangs_is_ended():
    assert script.attempt(hangs, (), 3) == ("no", "no answer within 3 s")


@pytest.fixture
def distribution(tmp_path):
    """A folder with what pip installs of a distribution that brings suites."""
    info = tmp_path / "my_dist-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-dist\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[embodied.envs]\nmysuite = my_dist:make\nbroken = nowhere:make\n"
    )
    (tmp_path / "my_dist.py").write_text("def make(name): ...\n")
    return tmp_path


def test_machine_and_suites(distribution):
    repo = Path(__file__).parents[2]
    path = os.pathsep.join(map(str, (repo, distribution)))
    suites = "pinpad,dmlab,mysuite,broken"
    done = subprocess.run(
        [sys.executable, "scripts/check_install.py", "--json", "--suites", suites],
        env={**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
        cwd=repo,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    found = {f"{x['kind']} {x['name']}": (x["works"], x["details"]) for x in rows}
    assert list(found) == [
        "python python",
        "jax jax",
        "rendering egl",
        "rendering osmesa",
        "logger tensorboard",
        "logger scope",
        "suite dmlab",
        "suite pinpad",
        "suite mysuite",
        "suite broken",
    ]
    assert found["python python"][0] == "yes"
    assert found["jax jax"][0] == "yes"
    assert "with 1 x cpu" in found["jax jax"][1]
    assert found["suite pinpad"] == (
        "yes",
        "--configs pinpad --task pinpad_three observes image",
    )
    assert found["suite dmlab"][0] == "missing"
    assert "pip install" in found["suite dmlab"][1]
    assert found["suite mysuite"] == ("yes", "tasks mysuite_NAME")
    assert found["suite broken"][0] == "no"
    assert "cannot load 'nowhere:make'" in found["suite broken"][1]
    for name, package in (("egl", "libegl1"), ("osmesa", "libosmesa6")):
        works, details = found[f"rendering {name}"]
        assert works == "missing" or (works == "yes") != (package in details)


def test_a_table_for_people(capsys, monkeypatch):
    monkeypatch.setattr(script, "RENDERERS", {})
    monkeypatch.setattr(script, "LOGGERS", {})
    monkeypatch.setenv("JAX_PLATFORMS", "nothing")
    script.main(["--suites", "crafter", "--timeout", "100"])
    lines = [x.split(maxsplit=3) for x in capsys.readouterr().out.splitlines()]
    assert [x[:2] for x in lines] == [["python"] * 2, ["jax"] * 2, ["suite", "crafter"]]
    assert lines[1][2] == "no"
    assert lines[1][3].startswith("RuntimeError: Unable to initialize backend 'nothing'")


def test_a_renderer_that_does_not_exist():
    pytest.importorskip("mujoco")
    works, details = script.attempt(script.try_renderer, ("bogus",), 100)
    assert works == "no"
    assert "bogus" in details


def test_every_suite_with_a_preset_has_one_example_at_least():
    examples = script.examples()
    presets, suites = zip(*examples, strict=True)
    assert {"gymnasium", "dmc_proprio", "dmc_vision", "atari100k"} <= set(presets)
    assert {"atari", "atari100k", "dmc", "gymnasium"} <= set(suites)
    assert "quickstart" not in presets


def test_unknown_suites_are_named(capsys):
    with pytest.raises(SystemExit, match="2"):
        script.main(["--suites", "dmc,atary"])
    assert "there is no suite 'atary': choose from atari, " in capsys.readouterr().err
