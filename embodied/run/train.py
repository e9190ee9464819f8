"""The training loop: act, learn, report, log, save."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import elements

from ..core.base import Agent, BaseReplay, Stream
from ..core.episodes import Episodes
from ..core.logger import Logger
from ..core.serial import MakeEnv
from . import parts
from .interrupt import Interrupt
from .saving import Save


def train(
    make_agent: Callable[[], Agent],
    make_replay: Callable[[], BaseReplay],
    make_envs: Callable[[], Sequence[MakeEnv]],
    make_stream: Callable[[BaseReplay, str], Stream],
    make_logger: Callable[[], Logger],
    args: Any,
) -> None:
    """Trains an agent until `args.steps` environment steps were taken, all environments together.

    It ends before that if the last ten episodes reach a mean score of `args.stop_score`, or by
    SIGTERM or SIGINT, of which a second one kills the process.
    A run whose `args.logdir` holds a checkpoint continues it. At the end, everything is logged
    and saved; on an error, everything is closed and what was saved before stays.

    Args:
      make_agent: makes the agent.
      make_replay: makes the replay buffer.
      make_envs: makes the constructors of `args.envs` environments, which are sent to worker
        processes.
      make_stream: makes a stream of host batches from the replay, for "train" or "report".
      make_logger: makes the logger, whose step counter is the run's.
      args: the options under `run` in the config, and the sizes of batches.
    """
    with contextlib.ExitStack() as stack:
        interrupt = stack.enter_context(Interrupt())
        logger = stack.enter_context(contextlib.closing(make_logger()))
        step = logger.step
        replay = make_replay()
        stack.callback(parts.close, replay)
        agent = make_agent()
        stream = agent.stream(make_stream(replay, "train"))
        stack.callback(parts.close, stream)
        episodes = Episodes(partial(logger.add, prefix="episode"), args.episode_timeout)

        learn = parts.Learn(agent, replay, stream, step, args)
        report = parts.Report(agent, replay, partial(make_stream, replay, "report"), logger, args)
        acting = parts.Acting(agent)
        content = {
            "step": step,
            "agent": agent,
            "replay": replay,
            "stream": stream,
            "learn": learn,
            "episodes": episodes,
            "acting": acting,
        }
        directory = Path(args.logdir) / "ckpt"
        save = Save(directory, content, args, lambda: episodes.recent_score)
        stack.callback(save.close)
        save.restore()

        driver = parts.make_driver(acting.reseed(make_envs()), args, mode="train")
        stack.enter_context(contextlib.closing(driver))
        driver.on_step(lambda tran, worker: step.increment())
        driver.on_step(replay.add)
        driver.on_step(episodes.on_step)
        acting.begin(driver)
        log = parts.Log(logger, learn, episodes, replay, driver, args)

        while not (step >= args.steps or episodes.reached(args.stop_score) or interrupt.requested):
            with elements.timer.section("act"):
                driver(agent.policy, steps=args.envs)
            learn()
            report()
            log()
            save()
        log(final=True)
        save(final=True)
