"""Environment steps per second of the driver, in process and in workers, with random actions.

python -m benchmarks.driver
python -m benchmarks.driver --envs 16 --places fork --inputs image --seconds 2

Prints JSON. The variants take turns in one process; the environment is the dummy one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from functools import partial
from typing import Any

from embodied import Driver, RandomAgent, agent_spaces
from embodied.envs.dummy import Dummy

from .machine import describe


def main() -> None:
    """Measures what the arguments ask for and prints it."""
    args = parse_args()
    drivers = {}
    for envs, place, inputs in itertools.product(args.envs, args.places, args.inputs):
        drivers[f"{envs} {place} {inputs}"] = make_driver(envs, place, inputs)
    rates: dict[str, list[float]] = {name: [] for name in drivers}
    for _ in range(args.rounds):
        for name, (driver, policy) in drivers.items():
            rates[name].append(rate(driver, policy, args.seconds))
    for driver, _ in drivers.values():
        driver.close()
    report = {
        "command": "python -m benchmarks.driver " + " ".join(sys.argv[1:]),
        "machine": describe(("numpy",)),
        "steps_per_second": {k: round(statistics.median(v)) for k, v in rates.items()},
        "most": {k: round(max(v)) for k, v in rates.items()},
    }
    print(json.dumps(report, indent=1))


def parse_args() -> Any:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description="Measures the driver.")
    parser.add_argument("--envs", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--places", nargs="+", default=["process", "spawn", "fork"])
    parser.add_argument("--inputs", nargs="+", default=["vector", "image"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="per round and variant")
    return parser.parse_args()


def make_driver(envs: int, place: str, inputs: str) -> tuple[Driver, Any]:
    """A driver that has taken some steps, and a policy for it.

    Args:
      envs: number of environments E.
      place: "process" for this one, else how workers start.
      inputs: "vector" for the dummy without its image, or "image".
    """
    make_env = partial(make_dummy, inputs)
    workers = {} if place == "process" else {"start_method": place}
    driver = Driver([make_env] * envs, parallel=place != "process", **workers)
    agent = RandomAgent(*agent_spaces((driver.obs_space, driver.act_space)), seed=0)
    driver.reset(agent.init_policy)
    driver.on_step(lambda tran, worker: None)
    driver(agent.policy, steps=20 * envs)
    return driver, agent.policy


def make_dummy(inputs: str) -> Dummy:
    """The dummy environment with discrete actions, with or without its image."""
    return Dummy("disc") if inputs == "image" else Vectors("disc")


def rate(driver: Driver, policy: Any, seconds: float) -> float:
    """Environment steps per second."""
    steps, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        driver(policy, steps=driver.length)
        steps += driver.length
    return steps / passed


class Vectors(Dummy):
    """The dummy environment without its image."""

    def __init__(self, task: str):
        super().__init__(task, size=(1, 1))
        self._spaces = {k: v for k, v in super().obs_space.items() if k != "image"}

    @property
    def obs_space(self) -> Any:
        """All observations but the image."""
        return self._spaces

    def step(self, action: Any) -> Any:
        """Steps the environment; see `Env.step`."""
        obs = super().step(action)
        del obs["image"]
        return obs


if __name__ == "__main__":
    main()
