"""Resident memory of a replay that is limited in bytes, and bytes per step.

    python -m benchmarks.replay_memory --steps 1000000 --max_gb 1

Pushes steps with 64x64x3 images and latent states of size12m through a limited replay, samples
and writes latent states back meanwhile, and prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from embodied.core.codecs import BFloat16, Codec, OneHot
from embodied.core.replay import Replay
from embodied.core.schema import Schema

from .machine import describe, memory_gb

SIZES = {"size12m": (2048, 32, 16), "size200m": (8192, 32, 64)}  # deter, stoch, classes


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--max_gb", type=float, default=1.0)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--disk", action="store_true", help="keep complete chunks on disk")
    args = parser.parse_args()
    figures = {
        "machine": describe(("numpy",)),
        "bytes_per_step": {size: step_bytes(size) for size in SIZES},
        **push(args.steps, args.max_gb, args.workers, args.disk),
    }
    print(json.dumps(figures, indent=2))


def step_bytes(size: str) -> dict[str, float]:
    """Bytes of a step and of its latent state, before and after compact storage."""
    step, codecs = make_steps(size, 1)[0], codecs_of(size)
    plain, compact = Schema.of(step), Schema.of(step, codecs)
    latent = {k: v for k, v in step.items() if k in codecs}
    before = sum(value.nbytes for value in latent.values())
    after = before - plain.nbytes + compact.nbytes
    return {
        "step_before": plain.nbytes,
        "step_after": compact.nbytes,
        "context_before": before,
        "context_after": after,
        "context_ratio": round(after / before, 4),
    }


def push(steps: int, max_gb: float, workers: int, disk: bool) -> dict[str, Any]:
    """Adds the steps; the level is what is resident after twice the steps that reach the limit."""
    ring = make_steps("size12m", 256)
    base, trace, full_at = resident_gib(), [], None
    with tempfile.TemporaryDirectory() as folder:
        replay = Replay(
            length=65,
            directory=Path(folder) if disk else None,
            max_bytes=int(max_gb * 2**30),
            disk=disk,
            codecs=codecs_of("size12m"),
        )
        start = time.perf_counter()
        for number in range(steps):
            replay.add(ring[number % len(ring)], number % workers)
            if number % 4096 == 4095 and len(replay):
                batch = replay.sample(16)
                replay.update({k: batch[k] for k in ("stepid", "dyn/deter", "dyn/stoch")})
            if number % max(1, steps // 100) == 0:
                stats = replay.stats()
                held = stats["ram_gb"] + stats.get("disk_gb", 0)
                trace.append([number, round(resident_gib() - base, 4), round(held, 4)])
            if full_at is None and replay._table.first:
                full_at = number
        seconds = time.perf_counter() - start
        replay.close()
    level = [gib for number, gib, _ in trace if full_at is not None and number > 2 * full_at]
    return {
        "steps": steps,
        "limit_gib": max_gb,
        "disk": disk,
        "steps_per_second": round(steps / seconds),
        "limit_reached_at": full_at,
        "level_gib": [min(level), max(level)] if level else None,
        "level_spread": round((max(level) - min(level)) / max(level), 4) if level else None,
        "trace": trace,  # step, GiB of resident memory above that of the start, GiB of steps
    }


def make_steps(size: str, count: int) -> list[dict[str, np.ndarray]]:
    """Steps as a driver gives them, all different."""
    rng = np.random.default_rng(0)
    deter, stoch, classes = SIZES[size]
    return [
        {
            "image": rng.integers(0, 256, (64, 64, 3), np.uint8),
            "reward": np.float32(index),
            "is_first": np.bool_(index == 0),
            "is_last": np.bool_(False),
            "is_terminal": np.bool_(False),
            "action": rng.uniform(-1, 1, 6).astype(np.float32),
            "reset": np.bool_(False),
            "dyn/deter": rng.uniform(-1, 1, deter).astype(np.float32),
            "dyn/stoch": np.eye(classes, dtype=np.float32)[rng.integers(0, classes, stoch)],
        }
        for index in range(count)
    ]


def codecs_of(size: str) -> dict[str, Codec]:
    """How the latent state is stored."""
    return {"dyn/deter": BFloat16(), "dyn/stoch": OneHot(SIZES[size][2])}


def resident_gib() -> float:
    """Memory that the process has now."""
    return memory_gb("VmRSS") * 1e9 / 2**30


if __name__ == "__main__":
    main()
