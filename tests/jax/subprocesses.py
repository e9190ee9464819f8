"""Runs Python code in a process of its own, for settings that JAX reads once when it starts."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def start(code, *args, **env):
    """Starts a process; values of None in `env` remove a variable."""
    merged = {"JAX_PLATFORMS": "cpu", **os.environ, **env}
    merged = {k: v for k, v in merged.items() if v is not None}
    return subprocess.Popen(
        [sys.executable, "-c", code, *args],
        cwd=ROOT,
        env=merged,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(process):
    """Waits for a process and returns what it printed."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out


def run(code, *args, **env):
    """Runs code and returns what it printed."""
    return finish(start(code, *args, **env))


def run_json(code, *args, **env):
    """Runs code and returns the JSON of the last line that it printed."""
    return json.loads(run(code, *args, **env).strip().splitlines()[-1])
