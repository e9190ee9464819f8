"""The clauses of a run's loop, shared by all run scripts: act, learn, report and log.

Each is made once and called at every turn of the loop; it knows by itself whether it is due.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, SupportsInt

import elements

from ..core.base import Agent, BaseReplay, Data, Stream
from ..core.clock import GlobalClock, Ratio
from ..core.driver import Driver
from ..core.episodes import Episodes
from ..core.logger import Aggregate, Logger
from ..core.parallel import worker_count
from ..core.serial import MakeEnv

log = logging.getLogger(__name__)

section = elements.timer.section


def make_driver(make_env_fns: Sequence[MakeEnv], args: Any, **policy_kwargs: Any) -> Driver:
    """Makes the driver of a run.

    Args:
      make_env_fns: constructors of all environments.
      args: `envs`, `envs_per_worker`, `env_timeout`, `env_restarts`, `start_method`,
        `nonfinite`; `debug` keeps the environments in this process.
      **policy_kwargs: handed to every call of the policy.
    """
    # A process of its own makes a single environment slower, but lets it be started anew.
    parallel = not args.debug and (args.envs > 1 or args.env_restarts > 0)
    return Driver(
        make_env_fns,
        parallel,
        args.env_timeout,
        args.start_method,
        worker_count(args.envs, args.envs_per_worker),
        args.env_restarts,
        args.nonfinite == "skip",
        **policy_kwargs,
    )


class Acting:
    """Carries environments and policy over from the process before.

    Args:
      agent: acts.
    """

    def __init__(self, agent: Agent):
        self._agent = agent
        self._driver: Driver | None = None
        self._before: Data | None = None
        self._starts = 0  # of environments in the processes before, restarts included

    def reseed(self, make_env_fns: Sequence[MakeEnv]) -> list[MakeEnv]:
        """Lets constructors that take `restarts` choose other seeds than in processes before."""
        if not self._starts:
            return list(make_env_fns)
        return [
            partial(_make_again, fn, self._starts)
            if "restarts" in inspect.signature(fn).parameters
            else fn
            for fn in make_env_fns
        ]

    def begin(self, driver: Driver) -> None:
        """Brings a new driver to where the saved one was, or to the start of episodes."""
        self._driver = driver
        driver.reset(self._agent.init_policy)
        before, self._before = self._before, None
        if before is not None:
            going_on = driver.load(before, partial(self._agent.load_carry, mode="policy"))
            print(f"The episodes of {going_on} of {driver.length} environments go on.", flush=True)

    def save(self) -> Data:
        """Returns where the driver is."""
        driver, before = self._driver, self._before
        if driver is not None:
            before = driver.save(self._agent.save_carry)
        return {"starts": self._starts + (driver.restarts if driver else 0), "driver": before}

    def load(self, data: Data) -> None:
        """Takes what `save` returned, for `begin`."""
        self._starts, self._before = int(data["starts"]) + 1, data["driver"]


def _make_again(make_env: MakeEnv, before: int, restarts: int = 0) -> Any:
    return make_env(restarts=before + restarts)


class Learn:
    """Makes the updates that are due by the train ratio, once the replay can fill a batch.

    Args:
      agent: learns.
      replay: its length is watched; takes back what the agent gives as `outs["replay"]`.
      stream: batches as `agent.stream` returns them.
      step: counts environment steps.
      args: `train_ratio` in replayed steps per environment step; `batch_size`, `batch_length`.

    Attributes:
      metrics: what the updates reported since the metrics were last taken.
      updates: number of updates that this process made.
    """

    def __init__(
        self,
        agent: Agent,
        replay: BaseReplay,
        stream: Iterator[Data],
        step: SupportsInt,
        args: Any,
    ):
        self.metrics = Aggregate()
        self.updates = 0
        self.batch_steps = args.batch_size * args.batch_length
        self._agent, self._replay, self._stream, self._step = agent, replay, stream, step
        self._batch_size = args.batch_size
        self._ratio = Ratio(args.train_ratio / self.batch_steps)
        self._carry = agent.init_train(args.batch_size)

    def __call__(self) -> None:
        """Makes the updates."""
        if len(self._replay) < self._batch_size:
            return
        for _ in range(self._ratio(self._step)):
            with section("sample"):
                batch = next(self._stream)
            with section("train"):
                self._carry, outs, metrics = self._agent.train(self._carry, batch)
            self.updates += 1
            self.metrics.add(metrics)
            if "replay" in outs:
                with section("replay_update"):
                    self._replay.update(outs["replay"])

    def save(self) -> Data:
        """Returns the count of the train ratio, the carry, and metrics that are not yet logged."""
        return {
            "ratio": self._ratio.save(),
            "carry": self._agent.save_carry(self._carry),
            "metrics": self.metrics.save(),
        }

    def load(self, data: Data) -> None:
        """Continues from there, so that a resumed run has no updates to catch up on."""
        self._ratio.load(data["ratio"])
        self._carry = self._agent.load_carry(data["carry"], "train")
        self.metrics.load(data["metrics"])


class Report:
    """Lets the agent evaluate its model on batches that are drawn at that moment.

    Args:
      agent: reports.
      replay: its length is watched.
      make_stream: makes a stream of host batches for reports. Every report has a new one, since
        a stream that reads ahead would show what the replay held at the report before.
      logger: takes the metrics, under `report/`.
      args: `report_every` in seconds, `report_batches`, `consec_report`, `batch_size`.
    """

    def __init__(
        self,
        agent: Agent,
        replay: BaseReplay,
        make_stream: Callable[[], Stream],
        logger: Logger,
        args: Any,
    ):
        self._agent, self._replay, self._logger = agent, replay, logger
        self._make_stream = make_stream
        self._batch_size = args.batch_size
        self._batches = args.report_batches * args.consec_report
        self._due = GlobalClock(args.report_every)

    def __call__(self) -> None:
        """Reports, if it is time and the replay can fill a batch."""
        if not self._due() or len(self._replay) < self._batch_size:
            return
        with section("report"):
            metrics = Aggregate()
            carry = self._agent.init_report(self._batch_size)
            stream = self._agent.stream(self._make_stream())
            for _ in range(self._batches):
                carry, values = self._agent.report(carry, next(stream))
                metrics.add(values)
            close(stream)
            self._logger.add(metrics.result(), prefix="report")


class Log:
    """Gathers what all parts have to tell, writes it, and prints how far the run is.

    Made after the run was restored: rates are counted from the step at that time.

    Args:
      logger: writes the metrics.
      learn: gives the metrics of the updates, under `train/`.
      episodes: gives the statistics of finished episodes, under `epstats/`.
      replay: gives its figures, under `replay/`.
      driver: tells how many of its processes were started anew, as `env_restarts`, and how many
        episodes were abandoned since they were not finite, as `env_nonfinite`.
      args: `log_every` in seconds, `steps`, `usage`.
    """

    def __init__(
        self,
        logger: Logger,
        learn: Learn,
        episodes: Episodes,
        replay: BaseReplay,
        driver: Driver,
        args: Any,
    ):
        self._logger, self._learn, self._episodes, self._replay = logger, learn, episodes, replay
        self._driver = driver
        self._steps = args.steps
        self._due = GlobalClock(args.log_every)
        nvsmi = args.usage.nvsmi and shutil.which("nvidia-smi") is not None
        self._usage = elements.Usage(psutil=args.usage.psutil, nvsmi=nvsmi)
        self._before = self._now()

    def __call__(self, final: bool = False) -> None:
        """Logs, if it is time or the run ends."""
        if not (self._due() or final):
            return
        now = self._now()
        seconds, steps, updates = (x - y for x, y in zip(now, self._before, strict=True))
        self._before = now
        with section("log"):
            rates = {
                "policy": steps / max(seconds, 1e-9),
                "train": updates * self._learn.batch_steps / max(seconds, 1e-9),
            }
            usage = {k: v for k, v in self._usage.stats().items() if not isinstance(v, str)}
            self._logger.add(self._learn.metrics.result(), prefix="train")
            self._logger.add(self._episodes.stats(), prefix="epstats")
            self._logger.add(self._replay.stats(), prefix="replay")
            faults = {"restarts": self._driver.restarts, "nonfinite": self._driver.nonfinite}
            self._logger.add({f"env_{k}": v for k, v in faults.items()})
            self._logger.add(usage, prefix="usage")
            self._logger.add(rates, prefix="fps")
            self._logger.add(timer_stats(), prefix="timer")
            self._logger.write()
        score = self._episodes.recent_score
        text = progress(now[1], self._steps, rates["policy"], score, updates / max(steps, 1))
        with contextlib.suppress(OSError):  # a full disk or a lost terminal ends no run
            print(text, flush=True)

    def _now(self) -> tuple[float, int, int]:
        return time.monotonic(), int(self._logger.step), self._learn.updates


def close(part: Any) -> None:
    """Closes a stream or replay that holds threads or memory, of those that have `close`."""
    getattr(part, "close", lambda: None)()


def timer_stats() -> dict[str, float]:
    """Share of the time and mean seconds of every timed section since the previous call."""
    timer = elements.timer.global_timer
    stats = timer.stats() if timer.enabled and timer.paths else {}
    paths = [
        x.removesuffix("/count") for x, count in stats.items() if x.endswith("/count") and count
    ]
    return {
        f"{path}/{kind}": stats[f"{path}/{kind}"] for path in paths for kind in ("frac", "mean")
    }


def progress(
    step: int, steps: int, rate: float, score: float | None, updates_per_step: float
) -> str:
    """One line that says how far a run is.

    Args:
      step: environment steps taken.
      steps: environment steps of the whole run.
      rate: environment steps per second.
      score: mean score of the latest episodes, if there are any.
      updates_per_step: updates per environment step.
    """
    eta = _duration(max(0, steps - step) / rate) if rate > 0 else "unknown"
    return " | ".join([
        f"Step {step:,} of {steps:,} ({min(1.0, step / max(steps, 1)):.0%})",
        f"{rate:,.1f} steps/s",
        f"ETA {eta}",
        "no episode yet" if score is None else f"score {score:.1f}",
        f"{updates_per_step:.3g} updates/step",
    ])  # fmt: skip


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days:,}d {hours}h"
    return f"{hours}h {minutes}m" if hours else f"{minutes}m {seconds}s"
