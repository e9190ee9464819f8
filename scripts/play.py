"""Watches a trained agent: plays episodes and writes them as a video.

python scripts/play.py ~/logdir/cartpole --out agent.mp4 --episodes 3
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import elements
import numpy as np

from dreamerv3 import factory
from dreamerv3.logdir import load_run_config
from embodied import Agent, Env
from embodied.core.driver import Driver
from embodied.core.episodes import Episodes
from embodied.core.errors import ConfigError, EmbodiedError
from embodied.core.video import FORMATS, write_video
from embodied.run.saving import load_agent

IMAGES = ("log/image", "image")


def main(argv: Sequence[str] | None = None) -> None:
    """Plays what the arguments ask for."""
    args = parse_args(argv)
    if args.out.rpartition(".")[2] not in FORMATS:
        raise ConfigError(f"The video {args.out!r} must end in .{' or .'.join(FORMATS)}.")
    config = load_run_config(Path(args.logdir).expanduser())
    agent = factory.make_agent(config)
    load_agent(config.logdir, agent)
    play(agent, make_env(config), args.out, args.episodes, args.fps)


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description="Plays episodes and writes them as a video.")
    parser.add_argument("logdir", help="the run's folder")
    parser.add_argument("--out", required=True, help="the video to write, .mp4 or .gif")
    parser.add_argument("--episodes", type=int, default=1, help="episodes to play")
    parser.add_argument("--fps", type=float, default=30, help="frames per second")
    return parser.parse_args(argv)


def make_env(config: elements.Config) -> Env:
    """Makes the task's environment with something to see.

    Environments that observe no image are made to render, which others need not be able to.
    """
    env = factory.make_env(config, 0)
    if not set(IMAGES) & env.obs_space.keys():
        env.close()
        env = factory.make_env(config, 0, render=True)
    return env


def play(agent: Agent, env: Env, out: str, episodes: int, fps: float) -> None:
    """Plays episodes in evaluation mode, prints their returns and writes the video."""
    key = next(x for x in IMAGES if x in env.obs_space)
    scores: list[float] = []
    stats = Episodes(partial(_announce, scores), video=False)
    frame: list[np.ndarray] = []
    driver = Driver([lambda: env], parallel=False, mode="eval")
    driver.on_step(stats.on_step)
    driver.on_step(lambda tran, worker: frame.append(tran[key]))
    driver.reset(agent.init_policy)

    def frames() -> Iterator[np.ndarray]:
        while len(scores) < episodes:
            driver(agent.policy, steps=1)
            yield frame.pop()

    try:
        Path(out).expanduser().parent.mkdir(parents=True, exist_ok=True)
        write_video(Path(out).expanduser(), frames(), fps)
    finally:
        driver.close()
    print(f"Mean return {np.mean(scores):.1f} over {len(scores)} episodes; video: {out}")


def _announce(scores: list[float], episode: dict[str, Any]) -> None:
    scores.append(episode["score"])
    print(f"Episode {len(scores)}: return {episode['score']:.1f}, {episode['length']} actions")


if __name__ == "__main__":
    try:
        main()
    except EmbodiedError as e:
        print(f"Error: {e}", file=sys.stderr)
        sys.exit(2)
