"""Rates of the replay: add, sample, write back, prioritise, save and load, and bytes per step.

python -m benchmarks.replay
python -m benchmarks.replay --selectors uniform --workers 16 --steps 100000

Prints JSON. Steps hold a 64x64 image and latent states of size12m, sequences have 65 steps; the
variants take turns in one process.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from embodied.core import selectors
from embodied.core.replay import Replay

from .machine import describe
from .replay_memory import codecs_of, make_steps, step_bytes

LENGTH, BATCH = 65, 16


def main() -> None:
    """Measures what the arguments ask for and prints it."""
    args = parse_args()
    steps = make_steps("size12m", 256)
    variants = {
        f"{selector}, {workers} workers, {store}": (selector, workers, store)
        for selector, workers, store in itertools.product(
            args.selectors, args.workers, args.stores
        )
    }
    replays = {k: fill(*v, steps, args.steps) for k, v in variants.items()}
    results: dict[str, dict[str, list[float]]] = {k: {} for k in variants}
    for _ in range(args.rounds):
        for name, (selector, workers, _) in variants.items():
            for key, rate in measure(replays[name], selector, workers, steps, args).items():
                results[name].setdefault(key, []).append(rate)
    report = {
        "command": "python -m benchmarks.replay " + " ".join(sys.argv[1:]),
        "machine": describe(("numpy",)),
        "bytes_per_step": step_bytes("size12m"),
        "per_second": {
            name: {key: round(statistics.median(rates)) for key, rates in keys.items()}
            for name, keys in results.items()
        },
        "small_steps": save_and_load(args.small),
    }
    print(json.dumps(report, indent=1))


def parse_args() -> Any:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description="Measures the replay.")
    parser.add_argument("--selectors", nargs="+", default=["uniform", "priority", "mixture"])
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--stores", nargs="+", default=["plain", "compact"])
    parser.add_argument("--steps", type=int, default=20_000, help="in every replay")
    parser.add_argument("--small", type=int, default=100_000, help="steps to save and load")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.2, help="per round, variant and rate")
    return parser.parse_args()


def fill(selector: str, workers: int, store: str, steps: list, count: int) -> Replay:
    """A replay that is full: what is added from now on drops something."""
    replay = Replay(
        LENGTH,
        capacity=count - workers * LENGTH,
        selector=make_selector(selector),
        codecs=codecs_of("size12m") if store == "compact" else None,
    )
    for number in range(count):
        replay.add(steps[number % len(steps)], number % workers)
    return replay


def make_selector(name: str) -> selectors.Selector:
    """The selector of a name, with the settings of the defaults."""
    if name == "uniform":
        return selectors.Uniform(0)
    priority = selectors.Prioritized(exponent=0.8, maxfrac=0.5, initial=1.0, seed=0)
    if name == "priority":
        return priority
    parts = {"uniform": selectors.Uniform(0), "priority": priority}
    return selectors.Mixture(parts, {"uniform": 0.5, "priority": 0.5}, 0)


def measure(
    replay: Replay, selector: str, workers: int, steps: list, args: Any
) -> dict[str, float]:
    """Calls per second, of everything that a selector can do."""
    numbers = itertools.count()

    def add() -> None:
        number = next(numbers)
        replay.add(steps[number % len(steps)], number % workers)

    batch = replay.sample(BATCH)
    latents = {k: batch[k] for k in ("stepid", "dyn/deter", "dyn/stoch")}
    priorities = {
        "stepid": batch["stepid"],
        "priority": np.random.default_rng(0).random((BATCH, LENGTH)),
    }
    rates = {
        "add": per_second(add, args.seconds),
        "sample": per_second(lambda: replay.sample(BATCH), args.seconds),
        "write_back": per_second(lambda: replay.update(latents), args.seconds),
    }
    if selector != "uniform":
        rates["prioritise"] = per_second(lambda: replay.update(priorities), args.seconds)
    return rates


def per_second(call: Callable[[], Any], seconds: float) -> float:
    """How often a function can be called per second."""
    count, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        call()
        count += 1
    return count / passed


def save_and_load(count: int) -> dict[str, float]:
    """Seconds to save and to load steps of a few numbers."""
    with tempfile.TemporaryDirectory() as folder:
        replay = Replay(LENGTH, directory=Path(folder))
        for number in range(count):
            replay.add({"x": np.float32(number), "is_first": np.bool_(False)}, number % 16)
        start = time.perf_counter()
        state = replay.save()
        saved = time.perf_counter()
        other = Replay(LENGTH, directory=Path(folder))
        other.load(state)
        loaded = time.perf_counter()
        replay.close()
        other.close()
    return {
        "steps": count,
        "save_s": round(saved - start, 3),
        "load_s": round(loaded - saved, 3),
    }


if __name__ == "__main__":
    main()
