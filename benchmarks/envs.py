"""Steps per second, spaces and a picture of every suite, one process each, random actions.

python -m benchmarks.envs --frames docs/images/envs            # every task preset
python -m benchmarks.envs --presets crafter atari --seconds 10

Prints JSON. A suite whose package is missing is listed with the sentence that says so.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe as describe_machine

PACKAGES = (
    "gymnasium",
    "mujoco",
    "dm-control",
    "ale-py",
    "crafter",
    "numba",
    "minigrid",
    "memory-maze",
    "bsuite",
    "procgen-mirror",
    "nle",
    "metaworld",
    "craftax",
    "numpy",
    "jax",
)


def main() -> None:
    """Measures what the arguments ask for and prints it."""
    args = parse_args()
    if args.child:
        print(json.dumps(measure(args.child, args.task, args.seconds, args.frames)))
        return
    results = [run_child(preset, args) for preset in args.presets or task_presets()]
    command = "python -m benchmarks.envs " + " ".join(sys.argv[1:])
    report = {
        "command": command.strip(),
        "machine": describe_machine(PACKAGES),
        "results": results,
    }
    print(json.dumps(report, indent=1))


def parse_args() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description="Measures the environments.")
    parser.add_argument("--presets", nargs="*", help="task presets of configs.yaml; default: all")
    parser.add_argument("--task", default="", help="another task than the presets' own")
    parser.add_argument("--seconds", type=float, default=3, help="time to step each")
    parser.add_argument("--frames", help="folder for one picture of each")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def task_presets() -> list[str]:
    """The presets that name a task."""
    from dreamerv3.config import load_configs

    presets = load_configs()
    return [k for k, v in presets.items() if k != "defaults" and "task" in v]


def run_child(preset: str, args: argparse.Namespace) -> dict[str, Any]:
    """Measures in a process of its own, so that nothing that a suite imports slows another."""
    command = [sys.executable, "-m", "benchmarks.envs", "--child", preset]
    command += ["--seconds", str(args.seconds)]
    command += ["--task", args.task] if args.task else []
    command += ["--frames", args.frames] if args.frames else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return {"preset": preset, "error": lines[-1] if lines else f"status {done.returncode}"}
    return json.loads(done.stdout.strip().splitlines()[-1])


def measure(preset: str, task: str, seconds: float, frames: str | None) -> dict[str, Any]:
    """Steps the preset's environment with random actions and describes it.

    Args:
      preset: a task preset.
      task: another task than the preset's own, or empty.
      seconds: how long to step, after a warm-up of 20 steps.
      frames: folder for a picture, or None.
    """
    from dreamerv3 import factory
    from dreamerv3.config import compose
    from embodied.core.spaces import describe, sample

    config = compose([preset], {"task": task} if task else {})
    start = time.perf_counter()
    env = factory.make_env(config, 0)
    made = time.perf_counter() - start
    rng = np.random.default_rng(0)

    def step() -> dict[str, Any]:
        action = {k: sample(v, rng) for k, v in env.act_space.items()}
        action["reset"] = np.bool_(False)
        return env.step(action)

    obs = step()
    for _ in range(20):
        obs = step()
    if frames:
        _save_frame(config, obs, Path(frames) / f"{config.task.replace('/', '_')}.png")
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        step()
        steps += 1
    rate = steps / (time.perf_counter() - start)
    flags = ("reward", "is_first", "is_last", "is_terminal", "reset")
    result = {
        "preset": preset,
        "task": config.task,
        "seconds_to_make": round(made, 2),
        "steps_per_second": float(f"{rate:.3g}"),
        "obs_space": {k: describe(v) for k, v in env.obs_space.items() if k not in flags},
        "act_space": {k: describe(v) for k, v in env.act_space.items() if k not in flags},
    }
    env.close()
    return result


def _save_frame(config: Any, obs: dict[str, Any], path: Path) -> None:
    """Writes the observed image or, where none is observed, a rendered frame of a second env."""
    from embodied import envs
    from embodied.core.video import encode_png

    image = _image(obs)
    options = config.env.get(envs.section(config.task), {})
    if image is None and "render" in options:
        image = _rendered(config)
    if image is None:
        return
    scale = max(1, 192 // max(image.shape[:2]))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode_png(image.repeat(scale, 0).repeat(scale, 1)))


def _image(obs: dict[str, Any]) -> np.ndarray | None:
    return next((v for k, v in obs.items() if v.dtype == np.uint8 and v.ndim == 3), None)


def _rendered(config: Any) -> np.ndarray | None:
    from dreamerv3 import factory
    from embodied.core.spaces import sample

    env = factory.make_env(config, 0, render=True)
    rng = np.random.default_rng(0)
    for step in range(20):
        action = {k: sample(v, rng) for k, v in env.act_space.items()}
        obs = env.step({**action, "reset": np.bool_(step == 0)})
    env.close()
    return _image(obs)


if __name__ == "__main__":
    main()
