"""Milliseconds, memory and arithmetic of an update, by size, kind of input and dtype.

python -m benchmarks.update                                  # size1m, vectors and images
python -m benchmarks.update --sizes size1m size12m --inputs vector --dtypes float32 bfloat16

Prints JSON. Every variant is a process of its own; their updates are interleaved.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from typing import Any

from .interleave import compare, serve
from .machine import describe, matrix_peak, memory_gb


def main() -> None:
    """Measures what the arguments ask for and prints it."""
    args = parse_args()
    if args.child:
        child(args)
        return
    variants = {}
    for size, inputs, dtype in itertools.product(args.sizes, args.inputs, args.dtypes):
        child_args = ["--sizes", size, "--inputs", inputs, "--dtypes", dtype]
        child_args += ["--updates", str(args.updates), *args.flags]
        variants[f"{size} {inputs} {dtype}"] = child_args
    report = {
        "command": "python -m benchmarks.update " + " ".join(sys.argv[1:]),
        "machine": describe(),
        "matrix_peak_gflops": matrix_peak(),
        "results": compare("benchmarks.update", variants, args.rounds),
    }
    for result in report["results"].values():
        rate = result["gflop"] / result["update_ms"] * 1e3
        result["share_of_matrix_peak"] = round(rate / report["matrix_peak_gflops"], 3)
    print(json.dumps(report, indent=1))


def parse_args() -> Any:
    """Parses the command line; what it does not know are flags of the config."""
    parser = argparse.ArgumentParser(description="Measures updates.")
    parser.add_argument("--sizes", nargs="+", default=["size1m"])
    parser.add_argument("--inputs", nargs="+", default=["vector", "image"])
    parser.add_argument("--dtypes", nargs="+", default=["auto"])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--updates", type=int, default=3, help="per round")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args, args.flags = parser.parse_known_args()
    return args


def child(args: Any) -> None:
    """Prepares one variant and makes updates when asked."""
    import jax

    from dreamerv3.config import split

    from .agents import make_agent, make_batch

    with tempfile.TemporaryDirectory() as cache:
        start = time.perf_counter()
        flags = {"jax.compute_dtype": args.dtypes[0], "jax.compilation_cache": cache}
        flags.update(split(args.flags)[1])
        agent = make_agent(args.sizes, args.inputs[0], flags)
        data = make_batch(agent)
        stream = agent.stream(iter(lambda: data, None))
        carry = agent.init_train(agent.config.batch_size)

        def updates(count: int) -> list[float]:
            nonlocal carry
            times = []
            for _ in range(count):
                batch = next(stream)
                begin = time.perf_counter()
                carry, _, _ = agent.train(carry, batch)
                jax.block_until_ready(agent.params)
                times.append(1e3 * (time.perf_counter() - begin))
            return times

        updates(1)
        facts = {"to_first_update_s": round(time.perf_counter() - start, 2)}
        updates(2)
        cost = count_cost(agent, carry, next(stream))

        def make_round() -> dict[str, float]:
            time_ms = statistics.median(updates(args.updates))
            steps = agent.config.batch_size * agent.config.batch_length
            return {
                "update_ms": time_ms,
                "trained_steps_per_second": 1e3 * steps / time_ms,
                "peak_memory_gb": memory_gb("VmHWM"),
            }

        serve({**facts, **cost}, make_round)


def count_cost(agent: Any, carry: Any, data: dict[str, Any]) -> dict[str, float]:
    """What the compiler counts in an update: billions of operations and of bytes accessed."""
    import jax
    import ninjax as nj

    data = {k: v for k, v in data.items() if k != "seed"}
    update = jax.jit(nj.pure(agent.model.train))
    compiled = update.lower(agent.params, carry, data, seed=jax.random.key_data(jax.random.key(0)))
    cost = compiled.compile().cost_analysis()
    return {
        "gflop": round(cost["flops"] / 1e9, 2),
        "gbytes_accessed": round(cost["bytes accessed"] / 1e9, 2),
    }


if __name__ == "__main__":
    main()
