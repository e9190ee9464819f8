"""Checks an environment of yours against the contracts, before anything is trained on it.

python scripts/check_embodied_contracts.py --factory my_package.my_module:make_env
python scripts/check_embodied_contracts.py --task dmc_walker_walk --mode driver --parallel-envs 4

Every violation is one line: key, environment, step, what is expected and what was found. The exit
status is 0 if there is none, 1 if there are some, and 2 if the arguments are wrong. The mode env
also finds observations and actions that the agent, in its default config, does not take.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from dreamerv3 import actions, observations
from embodied import envs
from embodied.core.base import Data, Spaces, agent_spaces
from embodied.core.driver import Driver
from embodied.core.errors import EmbodiedError
from embodied.core.random import RandomAgent
from embodied.core.replay import Replay
from embodied.core.spaces import describe, fault
from embodied.envs.custom import parse_options
from embodied.testing import Report, find_violations

MODES = ("env", "driver", "replay")

_WINDOW = 8  # steps of the sequences drawn from the replay
_BATCH, _BATCHES = 16, 8


def main(argv: Sequence[str] | None = None) -> int:
    """Checks what the arguments ask for, prints the violations and returns the exit status."""
    try:
        args = parse_args(argv)
        envs.is_batched(args.task)
    except EmbodiedError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    modes = MODES if args.mode == "all" else (args.mode,)
    lines = [f"{mode}: {line}" for mode, found in check(args, modes) for line in found]
    print("\n".join(lines or [f"{args.task} keeps the contracts of: {', '.join(modes)}."]))
    return int(bool(lines))


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parses the command line; a factory becomes a custom task."""
    parser = argparse.ArgumentParser(
        description="Checks an environment against all contracts that it has to keep."
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--factory", help="module:callable that makes the environment")
    which.add_argument("--task", help="suite_name, for example dmc_walker_walk")
    parser.add_argument("--mode", choices=(*MODES, "all"), default="all")
    parser.add_argument("--kwargs", default="{}", help="options of either, as a JSON object")
    parser.add_argument(
        "--ignore",
        metavar="REGEX",
        default="",
        help="keys to leave out, as by --env.custom.ignore or --env.gymnasium.ignore",
    )
    parser.add_argument("--parallel-envs", type=_positive, default=2, help="environments")
    parser.add_argument("--steps", type=_positive, default=200, help="steps of each environment")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--action-mask",
        metavar="KEY",
        default="",
        help="observation that tells legal discrete actions; {action}: the action's name",
    )
    parser.add_argument(
        "--deterministic", action="store_true", help="equal seeds have to give equal episodes"
    )
    args = parser.parse_args(argv)
    args.task = args.task or f"custom_{args.factory}"
    args.options = parse_options(args.kwargs)
    if envs.section(args.task) == "custom":
        args.options = {"kwargs": args.kwargs}  # the factory's own, whatever their names
    if args.ignore:
        args.options["ignore"] = args.ignore
    return args


def check(args: argparse.Namespace, modes: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Runs the checks of some modes; returns the violations of each."""
    found = []
    try:
        makers(args)[0]().close()
    except Exception as error:
        return [("env", [f"'constructor': expected an environment, found {in_words(error)}."])]
    if "env" in modes:
        found.append(("env", check_env(args)))
    if "driver" in modes or "replay" in modes:
        report = Report()
        episodes, obs_space, act_space = run_driver(args, report)
        if "driver" in modes:
            for index, steps in enumerate(episodes):
                check_transitions(report, steps, obs_space, act_space, index)
        found.append(("driver", report.lines))
        if "replay" in modes:
            found.append(("replay", check_replay(episodes, args.seed)))
    return found


def check_env(args: argparse.Namespace) -> list[str]:
    """Checks one environment, or one batch, in this process, and whether an agent takes it."""
    make = makers(args)[0]
    again = make if args.deterministic else None
    env, report = make(), Report()
    if not getattr(env, "resets_alone", True):
        print(
            f"Note: resets in the middle of episodes were skipped, since {args.task} cannot begin "
            "an episode in one environment while others go on."
        )
    try:
        masks = check_agent(args, report, env)
        return [*find_violations(env, args.steps, args.seed, again, masks), *report.lines]
    finally:
        env.close()


def check_agent(args: argparse.Namespace, report: Report, env: Any) -> dict[str, str]:
    """Checks whether an agent takes the spaces, and returns the masks of the actions."""
    try:
        obs_space, act_space = agent_spaces((env.obs_space, env.act_space))
        sizes = [space.dtype.itemsize for space in (obs_space | act_space).values()]
    except Exception:  # which are not even spaces, as is said elsewhere
        return {}
    if not all(sizes):  # nor do texts make spaces
        return {}
    inputs = observations.inputs(obs_space)
    for key, expected, check_spaces in (
        ("obs_space", "an observation", partial(observations.select, inputs, ".*", "")),
        ("obs_space", "ranks up to 3", partial(observations.split, inputs)),
        ("obs_space", "names that are free", partial(observations.check_names, inputs)),
        ("act_space", "actions for a policy", partial(actions.check, act_space)),
    ):
        try:
            check_spaces()
        except EmbodiedError as error:
            report.add(key, expected, in_words(error))
    return find_masks(args, report, obs_space, act_space)


def find_masks(
    args: argparse.Namespace, report: Report, obs_space: Spaces, act_space: Spaces
) -> dict[str, str]:
    """The masks of the actions that have one."""
    try:
        return actions.find_masks(args.action_mask, observations.inputs(obs_space), act_space)
    except EmbodiedError as error:
        report.add("action_mask", "the mask of an action", in_words(error))
        return {}


def run_driver(
    args: argparse.Namespace, report: Report
) -> tuple[list[list[Data]], Spaces, Spaces]:
    """Lets a random policy act in worker processes.

    Returns:
      The transitions of each environment, as far as it comes, and the two kinds of spaces.
    """
    episodes: list[list[Data]] = [[] for _ in range(args.parallel_envs)]
    try:
        driver = Driver(makers(args), parallel=True)
    except EmbodiedError as error:
        report.add("driver", "environments in worker processes", in_words(error))
        return episodes, {}, {}
    spaces = agent_spaces((driver.obs_space, driver.act_space))
    agent = RandomAgent(*spaces, args.seed, find_masks(args, report, *spaces))
    driver.on_step(lambda tran, index: episodes[index].append(tran))
    driver.reset(agent.init_policy)
    try:
        driver(agent.policy, steps=args.steps * args.parallel_envs)
    except EmbodiedError as error:
        report.add("driver", "that it runs to the end", in_words(error), len(episodes[0]))
    finally:
        driver.close()
    return episodes, driver.obs_space, driver.act_space


def makers(args: argparse.Namespace) -> list[Callable[[], Any]]:
    """One constructor per environment; a batched task has one for all of them."""
    if envs.is_batched(args.task):
        number = args.parallel_envs
        return [partial(envs.make_batched, args.task, number, 0, args.seed, **args.options)]
    return [
        partial(envs.make, args.task, index, args.seed, **args.options)
        for index in range(args.parallel_envs)
    ]


def check_transitions(
    report: Report, steps: Sequence[Data], obs_space: Spaces, act_space: Spaces, index: int
) -> None:
    """Checks what a driver hands on of one environment."""
    starts = True
    for step, tran in enumerate(steps):
        last = bool(tran["is_last"])
        for key in sorted(tran.keys() ^ (obs_space.keys() | act_space.keys())):
            report.add(key, "the keys of both spaces", "it missing or unexpected", step, index)
        for key, space in (obs_space if last else {**obs_space, **act_space}).items():
            if key in tran and (found := fault(space, tran[key])):
                report.add(key, describe(space), found, step, index)
        if last:
            for key in act_space.keys() - {"reset"}:
                if np.any(tran[key]):
                    report.add(key, "0 where an episode ends", tran[key], step, index)
        if tran["reset"] != last:
            report.add("reset", "what is_last is", tran["reset"], step, index)
        report.flags(tran, starts, step, index)
        starts = last


def check_replay(episodes: Sequence[Sequence[Data]], seed: int) -> list[str]:
    """Stores transitions in a replay, draws sequences and compares them."""
    report = Report()
    length = min(_WINDOW, *map(len, episodes))
    if not length:  # the driver has failed, which is said elsewhere
        return []
    replay = Replay(length, seed=seed)
    try:
        for index, steps in enumerate(episodes):
            for step, tran in enumerate(steps):
                replay.add({**tran, **_marks(index, step)}, index)
        for _ in range(_BATCHES):
            data = replay.sample(_BATCH)
            for row in range(_BATCH):
                check_window(report, {k: v[row] for k, v in data.items()}, episodes)
    except EmbodiedError as error:
        report.add("replay", "that it takes all steps", in_words(error))
    return report.lines


def check_window(report: Report, window: Data, episodes: Sequence[Sequence[Data]]) -> None:
    """Checks one sequence [T, ...] against the transitions that it is made of."""
    (index, start), *_ = places = np.stack([window[k] for k in _marks(0, 0)], -1)
    for offset, place in enumerate(places):
        if place.tolist() != [index, start + offset]:
            report.add("stepid", f"step {start + offset} of {index}", place, start, index)
            return
    steps = episodes[index][start : start + len(places)]
    for key in (k for k in steps[0] if not k.startswith("log/")):
        right = np.stack([step[key] for step in steps])
        if key == "is_first":
            right[0] = True
        if key == "is_last":
            right[:-1] |= np.array([step["is_first"] for step in steps[1:]], bool)
        found = window[key]
        if (found.dtype, found.shape) != (right.dtype, right.shape):
            expected = f"{right.dtype.name} {right.shape}"
            report.add(key, expected, f"{found.dtype.name} {found.shape}", start, index)
        elif not np.array_equal(found, right):
            report.add(key, "what the environment gave", "other values", start, index)


def in_words(error: Exception) -> str:
    """An exception as one line without its traceback."""
    text = str(error).partition("\n")[0].removesuffix(".")
    return text if isinstance(error, EmbodiedError) else f"{type(error).__name__}: {text}"


def _marks(index: int, step: int) -> Data:
    """Where a step comes from, stored next to it."""
    return {"check/environment": np.int32(index), "check/step": np.int32(step)}


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
