"""What a benchmark's figures belong to: the machine and the versions of the packages."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from pathlib import Path
from typing import Any

PACKAGES = ("jax", "jaxlib", "numpy", "gymnasium", "elements", "ninjax", "optax")


def describe(packages: tuple[str, ...] = PACKAGES) -> dict[str, Any]:
    """Processor, cores, memory, system, Python, and the versions of the packages installed."""
    versions = {}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages * size / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": versions,
    }


def matrix_peak(size: int = 2048, seconds: float = 2.0) -> float:
    """GFLOP/s of the fastest of many float32 products of square matrices on JAX's first device."""
    import jax
    import jax.numpy as jnp

    matrix = jnp.ones((size, size), jnp.float32)
    product = jax.jit(lambda a, b: a @ b)
    product(matrix, matrix).block_until_ready()
    least, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        product(matrix, matrix).block_until_ready()
        least = min(least, time.perf_counter() - start)
    return round(2 * size**3 / least / 1e9, 1)


def memory_gb(field: str) -> float:
    """Memory of this process in GB: `VmRSS` is resident now, `VmHWM` was the most so far."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024 / 1e9
    raise RuntimeError("This system does not say how much memory a process has.")


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
