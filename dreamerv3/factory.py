"""Config to parts: every function makes one part of a run.

Nothing is imported before it is needed, since worker processes import this file and shall not
load JAX.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import elements
import numpy as np

import embodied
from embodied import envs
from embodied.core import wrappers
from embodied.core.base import Spaces
from embodied.core.batch import split
from embodied.core.errors import ConfigError, MissingPackageError
from embodied.core.parallel import worker_count
from embodied.core.serial import MakeEnv

from . import actions, observations

log = logging.getLogger(__name__)


def make_agent(config: elements.Config) -> embodied.Agent:
    """Makes the agent for the task's spaces, on which an environment is asked and closed."""
    env = make_env(config, 0)
    try:
        obs_space, act_space = embodied.agent_spaces((env.obs_space, env.act_space))
    finally:
        env.close()
    if config.random_agent:
        from embodied.core.random import RandomAgent

        decoded = observations.inputs(obs_space)
        masks = actions.find_masks(config.agent.action_mask, decoded, act_space)
        return RandomAgent(obs_space, act_space, config.seed, masks)
    return make_learner(config, obs_space, act_space)


def make_learner(config: elements.Config, obs_space: Spaces, act_space: Spaces) -> Any:
    """Makes the agent that learns, for spaces that are known."""
    from .agent import Agent as Model

    make: Any = Model  # calling a model gives the agent that hosts it
    shared = ("logdir", "seed", "jax", "batch_size", "batch_length", "replay_context")
    priosignal = config.replay.priosignal if config.replay.fracs.priority > 0 else ""
    agent_config = elements.Config(
        **config.agent,
        **{key: config[key] for key in shared},
        report_length=_report_length(config),
        priosignal=priosignal,
    )
    return make(obs_space, act_space, agent_config)


def make_envs(config: elements.Config) -> list[MakeEnv]:
    """Makes the constructors of a run's environments: one each, or one per batch of them.

    Tasks that are batched by nature make a batch for every worker, and a single one of all
    environments by default: with one environment a worker, nothing would be left to batch.
    """
    run = config.run
    if not envs.is_batched(config.task):
        return [functools.partial(make_env, config, index) for index in range(run.envs)]
    workers = 1 if run.envs_per_worker == 1 else worker_count(run.envs, run.envs_per_worker)
    parts = split(run.envs, workers)
    return [
        functools.partial(make_batch, config, part.start, part.stop - part.start) for part in parts
    ]


def make_env(
    config: elements.Config, index: int, restarts: int = 0, **overrides: Any
) -> embodied.Env:
    """Makes the task's environment of an index, wrapped for the agent.

    Its seed follows from the config's seed and the index. Floats are float32 and integers int32;
    bounded float actions are -1..1; whatever does not lie in its space is an error.

    Args:
      config: the run's config.
      index: number of the environment.
      restarts: how often its worker was started anew; another number is another seed.
      **overrides: options of the suite that replace those in the config.
    """
    options = {**_suite_options(config), **overrides}
    env = envs.make(config.task, index, _seed(config, restarts), **options)
    return wrap_env(env, index, config.run.nonfinite == "stop")


def make_batch(
    config: elements.Config, index: int, length: int, restarts: int = 0
) -> embodied.BatchedEnv:
    """Makes environments of a batched task as one object, wrapped for the agent.

    Args:
      config: the run's config.
      index: number of the first of the environments.
      length: the number of environments E.
      restarts: how often their worker was started anew; another number is another seed.
    """
    options, seed = _suite_options(config), _seed(config, restarts)
    env = envs.make_batched(config.task, length, index, seed, **options)
    return wrap_env(env, index, config.run.nonfinite == "stop")


def wrap_env(env: Any, index: int, finite: bool = True) -> Any:
    """Brings an environment, or a batch of them, into the form that the agent expects.

    Args:
      env: an `embodied.Env` or `embodied.BatchedEnv`.
      index: its number in the driver, or that of the first in the batch.
      finite: whether an observation that is not finite is an error here.
    """
    floats = [k for k, v in env.act_space.items() if v.dtype.kind == "f"]
    for key in floats:
        env = wrappers.NormalizeAction(env, key)
    env = wrappers.CheckSpaces(wrappers.UnifyDtypes(env), index, finite)
    for key in floats:
        env = wrappers.ClipAction(env, key)
    return env


def make_replay(config: elements.Config, folder: str, mode: str = "train") -> Any:
    """Makes a replay buffer below the logdir, whose items are as long as a stream needs.

    Args:
      config: the run's config.
      folder: name of the folder below the logdir.
      mode: "train", or "eval" for episodes that are only reported on.

    Raises:
      ConfigError: if the replay cannot hold one batch.
    """
    from embodied.core.replay import Replay

    train = mode == "train"
    consec = config.consec_train if train else config.consec_report
    length = consec * (config.batch_length if train else config.report_length)
    length += config.replay_context
    capacity = int(config.replay.size if train else config.replay.size / 10)
    if capacity < config.batch_size * length:
        raise ConfigError(
            f"replay.size {config.replay.size} leaves {capacity} steps in the {folder} buffer, "
            f"less than one batch of {config.batch_size} sequences x {length} steps."
        )
    max_bytes = int(config.replay.max_gb * (1 if train else 0.1) * 2**30)
    return Replay(
        length,
        capacity,
        directory=Path(config.logdir) / folder,
        max_bytes=max_bytes or None,
        disk=config.replay.backing == "disk",
        codecs=replay_codecs(config),
        chunksize=config.replay.chunksize,
        online=config.replay.online and train,
        selector=_make_selector(config, capacity) if train else None,
        seed=config.seed,
        name=folder,
        save_context=config.replay.save_context,
    )


def replay_codecs(config: elements.Config) -> dict[str, Any]:
    """How the replay stores the latent states that the policy gives, by key."""
    from embodied.core.codecs import BFloat16, OneHot

    codecs = {"dyn/stoch": OneHot(config.agent.dyn.rssm.classes)}
    return codecs | ({"dyn/deter": BFloat16()} if config.replay.context_dtype != "float32" else {})


def replay_note(
    obs_space: Spaces, act_space: Spaces, ext_space: Spaces, config: elements.Config
) -> str:
    """The sentence that says how much room the replay takes.

    Args:
      obs_space: what the agent observes.
      act_space: its actions.
      ext_space: what it has the replay store besides, with `consec` and `stepid`, which are not.
      config: the run's config.

    Raises:
      ConfigError: `replay.max_gb` is too small for these steps.
    """
    from embodied.core.schema import Schema

    spaces = {"reset": elements.Space(bool), **obs_space, **act_space, **ext_space}
    specs = {k: (v.dtype, v.shape) for k, v in spaces.items() if k not in ("consec", "stepid")}
    plain, schema = Schema(specs).nbytes, Schema(specs, replay_codecs(config))
    size, gib = int(config.replay.size), config.replay.max_gb
    total = schema.nbytes * size / 2**30
    # Every environment fills a chunk while windows still begin in the one before it.
    least = 2 * config.run.envs * config.replay.chunksize * schema.nbytes / 2**30
    if 0 < gib < least:
        raise ConfigError(
            f"replay.max_gb {gib:g} is too little: a step takes {schema.nbytes:,} bytes, so that "
            f"{config.run.envs} environments need at least {least:.2g} GiB for chunks of "
            f"{config.replay.chunksize} steps; raise it, or lower replay.chunksize."
        )
    what = "memory" if config.replay.backing == "ram" else "disk"
    note = f"A step takes {schema.nbytes:,} bytes of {what} in the replay"
    note += f" ({plain:,} before compact storage)" if plain != schema.nbytes else ""
    if 0 < gib < total:
        fits = int(gib * 2**30 / schema.nbytes)
        return f"{note}: {fits:,} steps fill the {gib:g} GiB of replay.max_gb."
    note += f": {size:,} steps take {total:.1f} GiB."
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    if what == "memory" and total > memory:
        note += (
            f" This machine has {memory:.1f} GiB: set replay.max_gb, lower replay.size, or choose "
            "replay.backing disk."
        )
    return note


def make_stream(config: elements.Config, replay: Any, mode: str) -> embodied.Stream:
    """Makes a stream of host batches [B, context + T, ...] from a replay.

    Args:
      config: the run's config.
      replay: where the sequences come from.
      mode: "train" for batches of the batch length, "report" for those of the report length.
    """
    from embodied.core import streams

    train = mode == "train"
    return streams.Consec(
        streams.Stateless(functools.partial(replay.sample, config.batch_size, mode)),
        length=config.batch_length if train else _report_length(config),
        consec=config.consec_train if train else config.consec_report,
        prefix=config.replay_context,
        strict=train,
    )


def make_logger(config: elements.Config) -> Any:
    """Makes the logger with the outputs that the config names; videos always become files.

    An output whose package is not installed is named on the terminal and left out.

    Raises:
      ConfigError: for an output that does not exist.
    """
    from embodied.core import outputs
    from embodied.core.logger import Logger

    elements.timer.global_timer.enabled = config.logger.timer
    logdir, fps = Path(config.logdir), config.logger.fps
    makers: dict[str, Callable[[], list[Any]]] = {
        "terminal": lambda: [outputs.TerminalOutput(config.logger.filter)],
        "jsonl": lambda: [
            outputs.JSONLOutput(logdir / "metrics.jsonl"),
            outputs.JSONLOutput(logdir / "scores.jsonl", "^episode/score$"),
        ],
        "tensorboard": lambda: [outputs.TensorBoardOutput(logdir, fps)],
        "scope": lambda: [outputs.ScopeOutput(logdir, fps)],
    }
    chosen: list[Any] = [outputs.VideoOutput(logdir / "videos", fps)]
    for name in config.logger.outputs:
        if name not in makers:
            valid = ", ".join(makers)
            raise ConfigError(f"There is no logger output {name!r}: valid ones are {valid}.")
        try:
            chosen += makers[name]()
        except MissingPackageError as e:
            print(f"{e} The run goes on without this output.", flush=True)
    repeat = _suite_options(config).get("repeat", 1)
    return Logger(elements.Counter(), chosen, repeat)


def _suite_options(config: elements.Config) -> dict[str, Any]:
    return dict(config.env.get(envs.section(config.task), {}))


def _seed(config: elements.Config, restarts: int) -> int:
    # The first 64 bits tell the seed of the run and the environment, so that this repeats none.
    return config.seed + (restarts << 64)


def _make_selector(config: elements.Config, capacity: int) -> Any:
    """The mixture that `replay.fracs` asks for; None, which stands for uniform, if it is that."""
    from embodied.core import selectors

    fracs = dict(config.replay.fracs)
    if not fracs["priority"] and not fracs["recency"]:
        return None
    seeds = np.random.SeedSequence(config.seed).generate_state(4).tolist()
    weights = np.arange(1, capacity + 1, dtype=np.float64) ** -config.replay.recexp
    parts = {
        "uniform": selectors.Uniform(seeds[0]),
        "priority": selectors.Prioritized(**config.replay.prio, seed=seeds[1]),
        "recency": selectors.Recency(weights, seeds[2]),
    }
    total = sum(fracs.values())
    return selectors.Mixture(parts, {k: v / total for k, v in fracs.items()}, seeds[3])


@functools.cache
def _warn_report_length(asked: int, given: int) -> None:
    log.warning("report_length %d is more than replay sequences hold; using %d.", asked, given)


def _report_length(config: elements.Config) -> int:
    """The report length, cut to what the replay's sequences hold."""
    fits = max(1, config.consec_train * config.batch_length // config.consec_report)
    if config.report_length > fits:
        _warn_report_length(config.report_length, fits)
    return min(config.report_length, fits)
