"""Environment steps per second of whole training runs, and where their time goes.

python -m benchmarks.end_to_end                      # walker from vectors, train ratios 32 and 512
python -m benchmarks.end_to_end --ratios 32 --seconds 60 --configs dmc_vision size1m

Prints JSON. Each run trains for some time after its first update; rates are those of its last log.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from .machine import describe


def main() -> None:
    """Measures what the arguments ask for and prints it."""
    args = parse_args()
    report = {
        "command": "python -m benchmarks.end_to_end " + " ".join(sys.argv[1:]),
        "machine": describe(),
        "results": {f"train ratio {ratio:g}": run(ratio, args) for ratio in args.ratios},
    }
    print(json.dumps(report, indent=1))


def parse_args() -> Any:
    """Parses the command line; what it does not know are flags of the config."""
    parser = argparse.ArgumentParser(description="Measures whole runs.")
    parser.add_argument("--configs", nargs="+", default=["dmc_proprio"])
    parser.add_argument("--task", default="dmc_walker_walk")
    parser.add_argument("--ratios", nargs="+", type=float, default=[32, 512])
    parser.add_argument("--seconds", type=float, default=40, help="per run, after its first log")
    args, args.flags = parser.parse_known_args()
    return args


def run(ratio: float, args: Any) -> dict[str, Any]:
    """Trains for a while and returns the rates and shares of the last log."""
    with tempfile.TemporaryDirectory() as logdir:
        command = [sys.executable, "-m", "dreamerv3.main", "--configs", *args.configs]
        command += ["--task", args.task, "--logdir", logdir, "--run.train_ratio", str(ratio)]
        command += ["--run.log_every", "10", "--run.report_every", "0", *args.flags]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        log, end = Path(logdir) / "metrics.jsonl", float("inf")
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.5)
            if end == float("inf") and log.exists() and "train/loss" in log.read_text():
                end = time.monotonic() + args.seconds
        logs = [json.loads(x) for x in log.read_text().splitlines()]
        process.send_signal(signal.SIGTERM)
        process.wait()
    last = [x for x in logs if "fps/policy" in x][-1]
    shares = {k: v for k, v in last.items() if k.startswith("timer/") and k.endswith("/frac")}
    return {
        "env_steps_per_second": round(last["fps/policy"], 1),
        "trained_steps_per_second": round(last["fps/train"], 1),
        "shares": {k.split("/")[-2]: round(v, 3) for k, v in sorted(shares.items())},
    }


if __name__ == "__main__":
    main()
