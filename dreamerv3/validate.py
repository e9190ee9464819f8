"""What must hold between config values, and what is worth saying about them; no JAX.

validate(config)                    # raises before anything is built
for line in notes(config, presets): # said at the start of a run
    print(line)
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

import elements

from embodied import envs
from embodied.core.errors import ConfigError, EnvError
from embodied.envs.custom import parse_options

from .config import PATTERN, compose, flatten, load_configs, nearest

SCRIPTS = ("train",)

_CHOICES = {
    r"script": SCRIPTS,
    r"jax\.platform": ("auto", "cpu", "gpu", "cuda", "rocm", "tpu"),
    r"jax\.compute_dtype": ("auto", "float32", "bfloat16", "float16"),
    r"(run|jax)\.nonfinite": ("stop", "skip"),
    r"run\.start_method": ("spawn", "fork"),
    r"logger\.outputs": ("terminal", "jsonl", "tensorboard", "scope"),
    r"replay\.priosignal": ("model",),
    r"replay\.backing": ("ram", "disk"),
    r"replay\.context_dtype": ("float32", "bfloat16"),
    r"agent\.dyn\.typ": ("rssm",),
    r"agent\.(enc|dec)\.typ": ("simple",),
    r"agent\.policy_dist_disc": ("categorical", "onehot"),
    r"agent\.policy_dist_cont": ("bounded_normal", "normal_logstd"),
    r"agent\.opt\.schedule": ("const", "linear", "cosine"),
    r"agent\.(ret|val|adv)norm\.impl": ("none", "meanstd", "perc"),
}

_RANGES = {
    r"batch_(size|length)|report_length|consec_.*|replay\.(size|chunksize)|logger\.fps": (1, None),
    r"run\.(envs|report_batches|keep)|agent\.(imag_length|horizon)": (1, None),
    r"agent\..*\.(deter|hidden|stoch|classes|blocks|depth|mults|units|kernel|bins)": (1, None),
    r"seed|replay_context|replay\.(max_gb|fracs\..*)|agent\.imag_last": (0, None),
    r"run\.(steps|envs_per_worker|env_restarts)": (0, None),
    r"agent\..*\.(.*layers|bspace|lr|agc|wd|warmup|anneal)": (0, None),
    r"run\.env_timeout": (0.1, None),
    r"agent\..*\.(unimix|lam|rate|beta[12])": (0, 1),
}


def validate(config: elements.Config) -> None:
    """Refuses a config whose values cannot work together.

    Raises:
      ConfigError: with the first of the `problems`.
    """
    for problem in problems(config):
        raise ConfigError(problem)


def problems(config: elements.Config) -> Iterator[str]:
    """Yields one sentence per value, or pair of values, that cannot work."""
    for key, value in config.flat.items():
        for item in value if isinstance(value, tuple) else (value,):
            yield from _choice_problems(key, item)
            yield from _range_problems(key, item)
    yield from _task_problems(config)
    yield from _model_problems(config.agent)
    yield from _data_problems(config)
    yield from _worker_problems(config.run)
    yield from _device_problems(config)


def notes(config: elements.Config, presets: Sequence[str] = ()) -> list[str]:
    """Sentences for the start of a run: updates per environment step, and what flags replace.

    Args:
      config: as composed from `presets` and flags.
      presets: the names of those presets.
    """
    return [_updates_note(config), *_replaced_notes(config, presets)]


def _choice_problems(key: str, value: object) -> Iterator[str]:
    for pattern, choices in _CHOICES.items():
        if re.fullmatch(pattern, key) and value not in choices:
            yield f"The config key '{key}' cannot be {value!r}: {nearest(str(value), choices)}"


def _range_problems(key: str, value: object) -> Iterator[str]:
    if not isinstance(value, (int, float)):
        return
    for pattern, (low, high) in _RANGES.items():
        if not re.fullmatch(pattern, key):
            continue
        if value < low or (high is not None and value > high):
            span = f"between {low} and {high}" if high is not None else f"at least {low}"
            yield f"The config key '{key}' must be {span}, not {value}."


def _task_problems(config: elements.Config) -> Iterator[str]:
    suite, name = envs.parse_task(config.task)
    if suite not in envs.suites() or not name:
        tasks = [f"{suite}_NAME" for suite in envs.suites()]
        yield (
            f"The task {config.task!r} is not one of a known suite: "
            f"{nearest(f'{suite}_NAME', tasks)}"
        )
        return
    try:
        envs.is_batched(config.task)  # imports a factory of the user's, which may not exist
        if envs.section(config.task) == "custom":
            parse_options(config.env.custom.kwargs)
    except EnvError as error:
        yield str(error)


def _model_problems(agent: elements.Config) -> Iterator[str]:
    for name in ("enc", "dec"):
        try:
            re.compile(agent[name]["keys"])
        except re.error as error:
            yield f"agent.{name}.keys is no regular expression: {error}."
    rssm, dec = agent.dyn.rssm, agent.dec.simple
    if rssm.blocks > 0 and rssm.deter % rssm.blocks:
        yield (
            f"agent.dyn.rssm.deter must be a multiple of agent.dyn.rssm.blocks, "
            f"but {rssm.deter} is none of {rssm.blocks}."
        )
    sizes = {
        "agent.dyn.rssm.deter": rssm.deter,
        "agent.dec.simple.depth times the last of agent.dec.simple.mults": (
            dec.depth * dec.mults[-1]
        ),
    }
    for name, size in sizes.items():
        if dec.bspace > 0 and size % dec.bspace:
            yield (
                f"{name} must be a multiple of agent.dec.simple.bspace, but {size} is none of "
                f"{dec.bspace}: choose another number or set agent.dec.simple.bspace to 0."
            )


def _data_problems(config: elements.Config) -> Iterator[str]:
    length = config.consec_train * config.batch_length + config.replay_context
    steps = config.batch_size * length
    if config.replay.size < steps:
        yield (
            f"replay.size {config.replay.size} is less than one batch of {config.batch_size} "
            f"sequences x {length} steps = {steps}, so training could never begin."
        )
    if not sum(config.replay.fracs.values()) > 0:
        yield "One of replay.fracs.uniform, priority and recency must be greater than 0."


def _worker_problems(run: elements.Config) -> Iterator[str]:
    if run.envs_per_worker > 0 and run.envs % run.envs_per_worker:
        yield (
            f"run.envs must be a multiple of run.envs_per_worker, but {run.envs} is none of "
            f"{run.envs_per_worker}; run.envs_per_worker 0 divides them as evenly as it can."
        )


def _device_problems(config: elements.Config) -> Iterator[str]:
    for mode, name, size in [
        ("train", "batch_size", config.batch_size),
        ("policy", "run.envs", config.run.envs),
    ]:
        devices, mesh = config.jax[f"{mode}_devices"], config.jax[f"{mode}_mesh"]
        if len(set(devices)) < len(devices):
            yield f"jax.{mode}_devices names a device twice: {', '.join(map(str, devices))}."
        axes = _mesh(mesh, len(devices))
        if axes is None:
            yield (
                f"jax.{mode}_mesh must be three numbers d,f,t, one of them possibly -1, whose "
                f"product is the number of {mode} devices {len(devices)}, not {mesh!r}."
            )
        elif size % (axes[0] * axes[1]):
            yield (
                f"{name} {size} must be a multiple of {axes[0] * axes[1]}, the number of "
                f"{mode} devices that share it."
            )


def _mesh(text: str, devices: int) -> list[int] | None:
    """Resolves a mesh such as `-1,1,1` to axis sizes, or to nothing if it does not fit."""
    if not re.fullmatch(r"(-1|[1-9]\d*)(,(-1|[1-9]\d*)){2}", text):
        return None
    axes = [int(x) for x in text.split(",")]
    if axes.count(-1) == 1:
        axes[axes.index(-1)] = devices // -math.prod(axes)
    return axes if math.prod(axes) == devices and min(axes) > 0 else None


def _updates_note(config: elements.Config) -> str:
    updates = config.run.train_ratio / (config.batch_size * config.batch_length)
    if updates == 0:
        rate = "no updates, since it is 0"
    elif updates < 0:
        rate = "one update per step of all environments, since it is negative"
    elif updates >= 1:
        rate = f"{updates:.4g} update{'s' * (updates != 1)} per environment step"
    else:
        rate = f"one update per {1 / updates:.4g} environment steps"
    return (
        f"The train ratio {config.run.train_ratio:g} makes {rate} "
        f"(batches of {config.batch_size} x {config.batch_length} steps)."
    )


def _replaced_notes(config: elements.Config, presets: Sequence[str]) -> Iterator[str]:
    asked = compose(presets)
    source = {key: name for name in presets for key in flatten(load_configs()[name])}
    for key, name in source.items():
        literal = not PATTERN.search(key) and key not in ("task", "logdir") and name != "defaults"
        if literal and config[key] != asked[key]:
            yield f"{key} is {config[key]} by a flag, instead of {asked[key]} by preset {name}."
