"""Plots learning curves of one or many runs.

python scripts/plot.py --logdirs ~/logdir/cartpole ~/logdir/other --out curves.png

Every logdir is one curve, whatever runs lie in it or below it: the mean over the runs, with a band
from the least to the greatest of them.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from embodied.core.errors import ConfigError, EmbodiedError, MissingPackageError

KEY = "episode/score"
FILES = ("scores.jsonl", "metrics.jsonl")


class Curve(NamedTuple):
    """Mean, least and greatest score over runs [bins], at the steps [bins]."""

    steps: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def main(argv: Sequence[str] | None = None) -> None:
    """Plots what the arguments name."""
    args = parse_args(argv)
    groups = {Path(x).resolve().name or x: load_runs(Path(x).expanduser()) for x in args.logdirs}
    draw(groups, args.bins, args.out)
    print(f"Plotted {sum(map(len, groups.values()))} runs to {args.out}.")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description="Plots learning curves.")
    parser.add_argument(
        "--logdirs", nargs="+", required=True, help="folders with runs in or below"
    )
    parser.add_argument("--out", required=True, help="the picture to write, such as curve.png")
    parser.add_argument("--bins", type=int, default=30, help="points per curve")
    return parser.parse_args(argv)


def load_runs(logdir: Path) -> list[np.ndarray]:
    """Loads the scores [N, 2] (step, score) of every run in or below a folder.

    Raises:
      ConfigError: if there is no run.
    """
    found = {x.parent for name in FILES for x in logdir.rglob(name)}
    runs = [load_scores(folder) for folder in sorted(found)]
    runs = [run for run in runs if len(run)]
    if not runs:
        raise ConfigError(
            f"There are no scores in or below {logdir}: it should hold a run that has finished "
            f"an episode, with its {FILES[0]} or {FILES[1]}."
        )
    return runs


def load_scores(folder: Path) -> np.ndarray:
    """Loads the scores [N, 2] (step, score) of one run; broken lines are counted and left out.

    Where the steps go back, the run was resumed from there, and what it had logged beyond is
    replaced by what follows.
    """
    file = next(folder / name for name in FILES if (folder / name).exists())
    scores: list[tuple[float, float]] = []
    broken = 0
    for line in file.read_text("utf-8", "replace").splitlines():
        try:
            row = json.loads(line)
            step, score = float(row["step"]), row.get(KEY)
        except (ValueError, TypeError, KeyError, AttributeError):
            broken += 1
            continue
        while scores and scores[-1][0] > step:
            scores.pop()
        if isinstance(score, int | float) and math.isfinite(score):
            scores.append((step, score))
    if broken:
        print(f"{file}: left out {broken} broken line{'s' * (broken > 1)}.")
    return np.array(scores, np.float64).reshape(-1, 2)


def summarize(runs: Sequence[np.ndarray], bins: int) -> Curve:
    """Bins runs of any length by steps.

    A bin holds the mean of a run's scores in it. Between its first and its last score, a run's
    empty bins are interpolated; beyond, the run does not count.

    Args:
      runs: scores [N, 2] (step, score) of each.
      bins: number of bins from step 0 to the greatest step.
    """
    edges = np.linspace(0, max(run[-1, 0] for run in runs), bins + 1)
    centers = (edges[:-1] + edges[1:]) / 2
    rows = np.full((len(runs), bins), np.nan)
    for row, run in zip(rows, runs, strict=True):
        index = np.clip(np.searchsorted(edges, run[:, 0]) - 1, 0, bins - 1)
        filled = np.unique(index)
        means = [run[index == i, 1].mean() for i in filled]
        inside = slice(filled[0], filled[-1] + 1)
        row[inside] = np.interp(centers[inside], centers[filled], means)
    some = ~np.isnan(rows).all(0)
    rows = rows[:, some]
    return Curve(centers[some], np.nanmean(rows, 0), np.nanmin(rows, 0), np.nanmax(rows, 0))


def draw(groups: dict[str, list[np.ndarray]], bins: int, out: str) -> None:
    """Draws one curve per group; a group of one run also gets a dot for every episode."""
    try:
        import matplotlib
    except ImportError as e:
        raise MissingPackageError("plotting", "matplotlib", "dreamerv3[plot]") from e
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for name, runs in groups.items():
        curve = summarize(runs, bins)
        label = name if len(runs) == 1 else f"{name} ({len(runs)} runs)"
        (line,) = axes.plot(curve.steps, curve.mean, label=label)
        if len(runs) == 1:
            axes.plot(*runs[0].T, ".", color=line.get_color(), alpha=0.25, markersize=3)
        else:
            band = {"color": line.get_color(), "alpha": 0.2, "linewidth": 0}
            axes.fill_between(curve.steps, curve.low, curve.high, **band)
    axes.set(xlabel="Environment steps", ylabel="Episode score")
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    Path(out).expanduser().parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(Path(out).expanduser(), dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    try:
        main()
    except EmbodiedError as e:
        print(f"Error: {e}", file=sys.stderr)
        sys.exit(2)
