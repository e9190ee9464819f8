"""Seconds from the start of a program to its first update, cold and from the compilation cache.

python -m benchmarks.startup
python -m benchmarks.startup --sizes size12m --inputs image --runs 2

Prints JSON. Every measurement is a new process; kinds take turns. `cold` compiles everything,
`cached` finds what another process has compiled.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from .machine import describe


def main() -> None:
    """Measures what the arguments ask for and prints it."""
    args = parse_args()
    if args.child:
        child(args.sizes[0], args.inputs[0], args.child)
        return
    results: dict[str, dict[str, list[float]]] = {}
    for _ in range(args.runs):
        for size, inputs in itertools.product(args.sizes, args.inputs):
            with tempfile.TemporaryDirectory() as cache:
                for kind in ("cold", "cached"):
                    times = results.setdefault(f"{size} {inputs} {kind}", {})
                    for key, seconds in run(size, inputs, cache).items():
                        times.setdefault(key, []).append(seconds)
    report = {
        "command": "python -m benchmarks.startup " + " ".join(sys.argv[1:]),
        "machine": describe(),
        "seconds": {
            name: {key: round(statistics.median(x), 2) for key, x in times.items()}
            for name, times in results.items()
        },
    }
    print(json.dumps(report, indent=1))


def parse_args() -> Any:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description="Measures the start of the program.")
    parser.add_argument("--sizes", nargs="+", default=["size1m"])
    parser.add_argument("--inputs", nargs="+", default=["vector"])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def run(size: str, inputs: str, cache: str) -> dict[str, float]:
    """The times of one process."""
    command = [sys.executable, "-m", "benchmarks.startup", "--sizes", size, "--inputs", inputs]
    done = subprocess.run(
        [*command, "--child", cache], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.strip().splitlines()[-1])


def child(size: str, inputs: str, cache: str) -> None:
    """Makes an agent and an update, and prints when each was done."""
    begin = time.perf_counter()
    from .agents import make_agent, make_batch, make_obs

    agent = make_agent([size], inputs, {"jax.compilation_cache": cache})
    made = time.perf_counter()
    agent.policy(agent.init_policy(16), make_obs(agent, 16))
    acted = time.perf_counter()
    data = make_batch(agent)
    stream = agent.stream(iter(lambda: data, None))
    import jax

    agent.train(agent.init_train(agent.config.batch_size), next(stream))
    jax.block_until_ready(agent.params)
    trained = time.perf_counter()
    times = {"agent": made, "first_action": acted, "first_update": trained}
    print(json.dumps({key: x - begin for key, x in times.items()}))


if __name__ == "__main__":
    main()
