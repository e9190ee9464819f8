"""Compares the program with reference numbers: `python -m tests.golden.compare DIR`.

The numbers were recorded from danijar/dreamerv3 at commit e3f0224, in float32 on a CPU with jax
0.10.2; they are numbers only. `data` beside this file holds a compact part of them, in the same
format:

    pure.npz, init_stats.json   functions, layers, optimizer; initial values
    inventory.json              names, shapes and counts of parameters by preset and set
    replay.json                 facts about the replay
    <set>_spaces.json           spaces of a set: dtype, shape, low, high by key
    <set>_inputs.npz            parameters and batches of a set
    <set>_det.npz, _det2.npz    the whole agent with draws at the mode (and at mean + std/2)
    <set>_sampled.npz           the same with real draws, for plausibility

All files are optional, but for a set's spaces and inputs. Every group of quantities gives a line
with its number of values, worst relative error, where that is, and the tolerance; what is in a
file and not compared is named in lines that begin with `not compared`. The exit status is 1 if
anything differs by more than its tolerance, and 2 if the folder is not one of this format.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp

from embodied.jax import nets

from . import inventory, pure, replay_facts, sets, stats
from .reference import Numbers
from .report import Report


def compare(folder: Path, report: Report) -> None:
    """Compares everything in a folder; float32 must be the compute dtype."""
    names = sorted(x.name.removesuffix("_spaces.json") for x in folder.glob("*_spaces.json"))
    files = {x.name for x in folder.iterdir() if x.suffix in (".npz", ".json")}
    if "pure.npz" in files:
        numbers = Numbers.load(folder / "pure.npz")
        pure.compare(numbers, report)
        report.uncompared("pure.npz", numbers.unread)
    for file, part in [
        ("init_stats.json", stats),
        ("inventory.json", inventory),
        ("replay.json", replay_facts),
    ]:
        if file in files:
            part.compare(folder / file, report)
    known = {"pure.npz", "init_stats.json", "inventory.json", "replay.json"}
    known |= {f"{name}_spaces.json" for name in names}
    for name in names:
        if f"{name}_inputs.npz" in files:
            sets.compare(folder, name, report)
            known |= {f"{name}_{x}.npz" for x in ("inputs", "sampled", *sets.VARIANTS)}
    report.uncompared(str(folder), files - known)


def main(argv: Sequence[str]) -> int:
    """Compares the folder that the arguments name; returns the exit status."""
    folder = Path(argv[0]) if len(argv) == 1 else None
    if folder is None or not any(folder.glob("*.npz")):
        found = f"{str(folder)!r} has no .npz files" if folder else f"found {len(argv)} arguments"
        print(f"Usage: python -m tests.golden.compare DIR, a folder of numbers; {found}.")
        return 2
    jax.config.update("jax_platforms", "cpu")
    nets.COMPUTE_DTYPE = jnp.float32
    report = Report()
    compare(folder, report)
    if report.failures:
        print(f"{len(report.failures)} groups differ: {', '.join(report.failures)}")
        return 1
    print(f"All of {len(report.lines)} lines agree or name what is not compared.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
