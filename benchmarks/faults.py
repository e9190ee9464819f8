"""Kills a training process at random moments, damages its files, and counts what was lost.

    python -m benchmarks.faults --kills 50 --damages 200 --out faults.json

The environment counts its steps in what it observes, so that a step that is missing, doubled or
mixed from two shows. Every start goes on from the files that the kill before has left.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import elements
import numpy as np

from dreamerv3 import factory
from dreamerv3.config import compose
from embodied.core import ckptdir
from embodied.core.errors import CheckpointError

from .machine import describe

ENVS = 2
KEEP = 3
TURNS = 20  # of the loop after which the updates are compiled


def main() -> None:
    """Runs the benchmark from the command line and prints its figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="how often the process is killed")
    parser.add_argument("--damages", type=int, default=200, help="how many files are damaged")
    parser.add_argument("--save_steps", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--seconds", type=float, default=5.0, help="most seconds before a kill")
    parser.add_argument("--random_agent", action="store_true", help="learn nothing: much faster")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="file for the figures")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = run(
            Path(folder) / "run", args.kills, args.damages, args.save_steps, args.seconds,
            args.random_agent, args.seed,
        )  # fmt: skip
    text = json.dumps({**result, "machine": describe()}, indent=2)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


def run(
    logdir: Path,
    kills: int,
    damages: int,
    save_steps: int = 20,
    seconds: float = 5.0,
    random_agent: bool = False,
    seed: int = 0,
) -> dict[str, Any]:
    """Does all kills, then all damages, each to a copy of what the last kill has left.

    Returns:
      Figures, and under `problems` a sentence for everything that went wrong.
    """
    rng = random.Random(seed)
    start = time.monotonic()
    flags = {
        "logdir": str(logdir),
        "task": "dummy_disc",
        "random_agent": random_agent,
        "replay.chunksize": 32,
        "run.envs": ENVS,
        "run.save_every": 0,
        "run.save_steps": save_steps,
        "run.keep": KEEP,
        "run.log_every": -1,
        "run.report_every": 0,
        "run.usage.psutil": False,
        "logger.outputs": ["jsonl"],
        "logger.timer": False,
    }
    config = compose(["debug"], flags)
    result: dict[str, Any] = {
        **_kill(config, flags, kills, seconds, rng),
        "kill_seconds": round(time.monotonic() - start, 1),
    }
    problems = result.pop("problems")
    start = time.monotonic()
    damaged = _damage(config, damages, rng)
    problems += damaged.pop("problems")
    return {
        **result,
        **damaged,
        "damage_seconds": round(time.monotonic() - start, 1),
        "problems": problems,
    }


# Kills


def _kill(
    config: elements.Config, flags: dict[str, Any], kills: int, seconds: float, rng: random.Random
) -> dict[str, Any]:
    logdir = Path(config.logdir)
    problems: list[str] = []
    lost, saving, sequences, survived, resumed = [0], 0, 0, 0, 0
    for index in range(kills):
        leftovers = {*logdir.rglob("*.tmp")}
        output, last = _train_and_kill(flags, rng.uniform(0, seconds))
        before, count = len(problems), re.search(r"Resumed from .* at step ([\d,]+)\.", output)
        begun = int(count[1].replace(",", "")) if count else 0
        if begun != resumed:
            problems.append(f"start {index} went on from {begun}, not from {resumed}:\n{output}")
        unfinished = any((logdir / "ckpt").glob("*.partial"))
        saving += unfinished or bool({*logdir.rglob("*.tmp")} - leftovers)
        with _messages():
            folder = ckptdir.resolve(logdir)
        resumed = int(folder.name.split("-")[1])
        lost.append(last - resumed)
        # One that was being written when it was killed is lost, too.
        if lost[-1] > (config.run.save_steps + ENVS) * (1 + unfinished):
            problems.append(f"kill {index} lost {lost[-1]} steps")
        checked, broken = _check_replay(config, folder)
        sequences += checked
        if broken:
            problems.append(f"kill {index} left {broken} broken sequences")
        survived += len(problems) == before
    return {
        "kills": kills,
        "survived": survived,
        "killed_while_saving": saving,
        "save_steps": config.run.save_steps,
        "most_steps_lost": max(lost),
        "mean_steps_lost": round(sum(lost) / max(1, kills), 1),
        "steps": resumed,
        "sequences_checked": sequences,
        "problems": problems,
    }


def _train_and_kill(flags: dict[str, Any], delay: float) -> tuple[str, int]:
    """Runs a process until some time after its first updates; returns output and last step."""
    argv = [sys.executable, "-m", "dreamerv3.main", "--configs", "debug", "--jax.debug", "False"]
    for key, value in flags.items():
        text = ",".join(value) if isinstance(value, list) else str(value)
        argv += [f"--{key}", text]
    lines: list[str] = []
    turns = 0
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        timer = threading.Timer(delay, process.kill)
        for line in process.stdout:
            lines.append(line)
            turns += line.startswith("Step ")
            if turns == TURNS and line.startswith("Step "):
                timer.start()
        timer.cancel()
    output = "".join(x for x in lines if not x.startswith("Step "))
    steps = [x for x in lines if re.match(r"Step [\d,]+ of ", x)]
    if not steps:
        raise RuntimeError(f"The training process ended before it was killed:\n{output}")
    return output, int(steps[-1].split()[1].replace(",", ""))


def _check_replay(config: elements.Config, folder: Path) -> tuple[int, int]:
    """Loads the replay as a resumed run does; how many sequences were checked, and are broken."""
    replay = factory.make_replay(config, "replay")
    replay.load(ckptdir.read(folder, ["replay"])["replay"])
    checked = broken = 0
    for _ in range(min(50, 4 * len(replay) // 64)):
        broken += int((~_whole(replay.sample(64, "report"))).sum())
        checked += 64
    return checked, broken


def _whole(data: dict[str, np.ndarray]) -> np.ndarray:
    """Which sequences [B] have whole steps that follow each other."""
    count = data["count"].astype(np.int64)
    steps = (data["token"] == count % 256) & (data["is_last"] == (count == 100))
    steps &= (data["image"] == (count % 256)[..., None, None, None]).all((-3, -2, -1))
    steps &= (data["int2d"] == (count % 4)[..., None, None]).all((-2, -1))
    steps[:, 1:] &= np.where(data["is_first"][:, 1:], count[:, 1:] == 0, np.diff(count) == 1)
    return steps.all(1)


# Damage


def _damage(config: elements.Config, damages: int, rng: random.Random) -> dict[str, Any]:
    logdir = Path(config.logdir)
    named = used = sequences = 0
    problems: list[str] = []
    with _messages():
        folders = [x for x in ckptdir.folders(logdir / "ckpt") if not ckptdir.find_damage(x)]
    _remove_unused(logdir, ckptdir.read(folders[0], ["replay"])["replay"])
    copy = elements.Config({**config.flat, "logdir": f"{logdir}-damaged"})
    for index in range(damages):
        shutil.rmtree(copy.logdir, ignore_errors=True)
        shutil.copytree(logdir, copy.logdir)
        files = [x for x in Path(copy.logdir).rglob("*") if x.is_file() and x.stat().st_size]
        file = rng.choice([x for x in files if {"ckpt", "replay"} & set(x.parts)])
        kind = rng.choice([_flip, _truncate, _delete])
        kind(file, rng)
        place = f"damage {index}, {kind.__name__[1:]} {file.relative_to(copy.logdir)}"
        with _messages() as messages:
            try:
                folder = _newest(copy, [x.name for x in folders], file)
                checked, broken = _check_replay(copy, folder)
            except Exception as error:  # whatever it is, it is the result
                problems.append(f"{place}: {error!r}")
                continue
        sequences += checked
        text = "\n".join(messages)
        # Chunks that are gone can be named by what identifies them only.
        names = [file.name, *re.findall(r"-([0-9a-f]{32})-", file.name)]
        if any(name in text for name in names):
            named += 1
        else:
            problems.append(f"{place}: not named in {text!r}")
        if checked and not broken:
            used += 1
        else:
            problems.append(f"{place}: {broken} of {checked} sequences are broken")
    shutil.rmtree(copy.logdir, ignore_errors=True)
    return {
        "damages": damages,
        "damages_named": named,
        "rest_used": used,
        "sequences_checked_after_damage": sequences,
        "problems": problems,
    }


def _remove_unused(logdir: Path, data: dict[str, Any]) -> None:
    """Removes what a resumed run does not read, so that its damage would not matter."""
    for leftover in (logdir / "ckpt").glob("*.partial/"):
        shutil.rmtree(leftover)
    used = set()
    columns = zip(*(data[k] for k in ("chunks", "successors", "lengths", "contexts")), strict=True)
    for uuid, succ, length, context in columns:
        uuid, succ = bytes(uuid).hex(), bytes(succ).hex()
        used |= {f"{uuid}-{succ}-{length}", f"{uuid}-context-{context}"}
    for path in (logdir / "replay").iterdir():
        if path.stem.split("-", 1)[1] not in used:
            path.unlink()


def _newest(config: elements.Config, names: list[str], damaged: Path) -> Path:
    """The checkpoint that is taken, which must be the newest that is whole."""
    folder = ckptdir.resolve(config.logdir)
    whole = [x for x in names if x != damaged.parent.name]
    if folder.name != whole[0]:
        raise CheckpointError(f"{folder.name} was taken instead of {whole[0]}.")
    if damaged.parent.name in names:  # older ones are looked at when they are needed only
        problem = ckptdir.find_damage(damaged.parent)
        logging.getLogger("embodied").warning("%s", problem)
    return folder


def _flip(file: Path, rng: random.Random) -> None:
    data = bytearray(file.read_bytes())
    data[rng.randrange(len(data))] ^= rng.randrange(1, 256)
    file.write_bytes(data)


def _truncate(file: Path, rng: random.Random) -> None:
    with file.open("r+b") as f:
        f.truncate(rng.randrange(file.stat().st_size))


def _delete(file: Path, rng: random.Random) -> None:
    file.unlink()


@contextlib.contextmanager
def _messages() -> Iterator[list[str]]:
    """Collects warnings instead of printing them."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore
    logger = logging.getLogger("embodied")
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield messages
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate


if __name__ == "__main__":
    main()
