"""Compares variants that live in processes of their own, by asking them in turn for rounds.

The parent starts one child per variant, which prepares itself, prints facts about that as one JSON
line, and then makes a round whenever it is asked. So all variants see the same moods of the
machine, and each has its own peak of memory.

    # parent
    results = compare("benchmarks.update", {"vector": ["--inputs", "vector"]}, rounds=5)
    # child, when called with --child
    serve(facts, make_round)
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def compare(
    module: str,
    variants: Mapping[str, Sequence[str]],
    rounds: int,
    env: Mapping[str, str] | None = None,
) -> dict[str, dict[str, Any]]:
    """Runs the variants of a benchmark.

    Args:
      module: name of the benchmark's module.
      variants: for every name the arguments of its child, to which `--child` is added.
      rounds: how often each is asked in turn.
      env: more environment variables for the children.

    Returns:
      For every variant the facts of its preparation, and for every number that its rounds
      give the median and the least over all rounds.
    """
    children = {}
    results: dict[str, dict[str, Any]] = {}
    for name, args in variants.items():  # one after the other, so that none disturbs another
        children[name] = subprocess.Popen(
            [sys.executable, "-m", module, "--child", *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )
        results[name] = _answer(children[name], name)
    answers: dict[str, list[dict[str, float]]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, child in children.items():
            assert child.stdin is not None
            child.stdin.write("round\n")
            child.stdin.flush()
            answers[name].append(_answer(child, name))
    for name, child in children.items():
        child.communicate()
        for key in answers[name][0] if answers[name] else ():
            values = [x[key] for x in answers[name]]
            results[name][key] = _short(statistics.median(values))
            results[name][f"{key}_least"] = _short(min(values))
    return results


def serve(facts: Mapping[str, Any], make_round: Callable[[], Mapping[str, float]]) -> None:
    """What a child does: tells facts, then makes rounds until its input ends."""
    print(json.dumps(facts), flush=True)
    for _ in sys.stdin:
        print(json.dumps(make_round()), flush=True)


def _answer(child: subprocess.Popen, name: str) -> dict[str, Any]:
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith("{"):  # whatever else is printed is not for us
            return json.loads(line)
    raise SystemExit(f"The variant {name!r} ended with status {child.wait()}.")


def _short(value: float) -> float:
    return float(f"{value:.4g}")
