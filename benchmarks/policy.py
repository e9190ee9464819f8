"""Milliseconds of one call of the policy, numpy in to numpy out, by number of environments.

python -m benchmarks.policy                                  # size1m, vectors and images
python -m benchmarks.policy --sizes size12m --envs 1 16 256

Prints JSON. Every variant is a process of its own; their calls are interleaved.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from typing import Any

from .interleave import compare, serve
from .machine import describe, memory_gb


def main() -> None:
    """Measures what the arguments ask for and prints it."""
    args = parse_args()
    if args.child:
        child(args)
        return
    variants = {}
    for size, inputs in itertools.product(args.sizes, args.inputs):
        envs = map(str, args.envs)
        variants[f"{size} {inputs}"] = ["--sizes", size, "--inputs", inputs, "--envs", *envs]
    report = {
        "command": "python -m benchmarks.policy " + " ".join(sys.argv[1:]),
        "machine": describe(),
        "results": compare("benchmarks.policy", variants, args.rounds),
    }
    print(json.dumps(report, indent=1))


def parse_args() -> Any:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description="Measures the policy.")
    parser.add_argument("--sizes", nargs="+", default=["size1m"])
    parser.add_argument("--inputs", nargs="+", default=["vector", "image"])
    parser.add_argument("--envs", nargs="+", type=int, default=[1, 16, 256])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def child(args: Any) -> None:
    """Prepares one variant and calls the policy when asked."""
    from .agents import make_agent, make_obs

    agent = make_agent(args.sizes, args.inputs[0], {})
    carries = {count: agent.init_policy(count) for count in args.envs}
    obs = {count: make_obs(agent, count) for count in args.envs}
    facts: dict[str, float] = {}

    def calls(count: int, amount: int) -> float:
        times = []
        for _ in range(amount):
            start = time.perf_counter()
            carries[count], _, _ = agent.policy(carries[count], obs[count])
            times.append(1e3 * (time.perf_counter() - start))
        return statistics.median(times)

    for count in args.envs:
        facts[f"first_call_ms_{count}"] = round(calls(count, 1), 1)
        calls(count, 10)

    def make_round() -> dict[str, float]:
        # As many calls as take some tenths of a second.
        result = {f"ms_{x}": calls(x, max(5, min(100, 1000 // x))) for x in args.envs}
        return {**result, "peak_memory_gb": memory_gb("VmHWM")}

    serve(facts, make_round)


if __name__ == "__main__":
    main()
