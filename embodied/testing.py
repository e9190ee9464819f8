"""Conformance tests for whoever writes an environment."""

from __future__ import annotations

from typing import Any

import elements
import numpy as np

from .core.base import Data, Env, Spaces
from .core.errors import EnvError
from .core.spaces import describe, fault, same_space, sample

_OBS = {
    "reward": elements.Space(np.float32),
    "is_first": elements.Space(bool),
    "is_last": elements.Space(bool),
    "is_terminal": elements.Space(bool),
}
_ACT = {"reset": elements.Space(bool)}


def check_env(env: Env, steps: int = 200, seed: int = 0) -> None:
    """Checks an environment against the contract of `embodied.Env`; leaves it open.

    Random actions are taken; episodes are also cut short by `reset`, and started anew both with
    and without it.

    Args:
      env: the environment, not stepped before.
      steps: how many calls of `step` to make.
      seed: of the random actions.

    Raises:
      EnvError: if there is a violation; its message has a line for each of them.
    """
    violations = find_violations(env, steps, seed)
    if violations:
        raise EnvError("The environment breaks the contract:\n" + "\n".join(violations))


def find_violations(env: Env, steps: int = 200, seed: int = 0) -> list[str]:
    """What `check_env` finds, one line each: key, expected, found, and the first step of it."""
    check = _Check()
    if check.spaces(env):
        _run(check, env, steps, np.random.default_rng(seed))
    return list(check.lines.values())


class _Check:
    """Collects violations; of several alike only the first is kept."""

    def __init__(self) -> None:
        self.lines: dict[tuple, str] = {}

    def report(self, key: str, expected: str, found: Any, step: int | None = None) -> None:
        where = "" if step is None else f" at step {step}"
        line = f"{key!r}{where}: expected {expected}, found {found}."
        self.lines.setdefault((key, expected), line)

    def spaces(self, env: Env) -> bool:
        """Checks the spaces; returns whether the environment can be stepped at all."""
        usable = True
        for name, required in (("obs_space", _OBS), ("act_space", _ACT)):
            spaces = getattr(env, name)
            if not isinstance(spaces, dict):
                self.report(name, "a dict", type(spaces).__name__)
                return False
            for key, space in spaces.items():
                if not isinstance(space, elements.Space):
                    self.report(key, "an elements.Space", type(space).__name__)
                    usable = False
            for key, space in required.items():
                if key not in spaces:
                    self.report(key, f"a key of {name}", "none")
                elif not isinstance(spaces[key], elements.Space):
                    continue
                elif (spaces[key].dtype, spaces[key].shape) != (space.dtype, space.shape):
                    expected = f"{space.dtype.name} {space.shape}"
                    self.report(key, expected, describe(spaces[key]))
        for key in sorted(env.obs_space.keys() & env.act_space.keys()):
            self.report(key, "either an observation or an action", "both")
        return usable

    def observation(self, spaces: Spaces, obs: Any, step: int) -> bool:
        """Checks one observation's values; returns whether its flags can be used."""
        if not isinstance(obs, dict):
            self.report("observation", "a dict", type(obs).__name__, step)
            return False
        for key in sorted(obs.keys() | spaces.keys()):
            if key not in obs:
                self.report(key, "a key of the observation", "none", step)
            elif key not in spaces:
                self.report(key, "only keys of obs_space", "this key", step)
            elif found := fault(spaces[key], obs[key]):
                self.report(key, describe(spaces[key]), found, step)
        return all(key in obs and np.ndim(obs[key]) == 0 for key in _OBS)

    def flags(self, obs: Data, starts: bool, step: int) -> None:
        """Checks reward and flags of one observation, given whether an episode has to start."""
        if starts and not obs["is_first"]:
            self.report("is_first", "true where an episode starts", False, step)
        if not starts and obs["is_first"]:
            self.report("is_first", "false within an episode", True, step)
        if starts and obs["reward"] != 0:
            self.report("reward", "0 where an episode starts", obs["reward"], step)
        if obs["is_terminal"] and not obs["is_last"]:
            self.report("is_terminal", "false unless is_last is true", True, step)


def _run(check: _Check, env: Env, steps: int, rng: np.random.Generator) -> None:
    obs_space, act_space = env.obs_space, env.act_space
    starts = True
    for step in range(steps):
        action: Data = {k: sample(v, rng) for k, v in act_space.items()}
        action["reset"] = np.bool_(rng.random() < (0.5 if starts else 0.03))
        starts = starts or bool(action["reset"])
        try:
            obs = env.step(action)
        except Exception as error:
            check.report("step", "no exception", f"{type(error).__name__}: {error}", step)
            return
        if not check.observation(obs_space, obs, step):
            return
        check.flags(obs, starts, step)
        starts = bool(obs["is_last"])
    for name, before in (("obs_space", obs_space), ("act_space", act_space)):
        after = getattr(env, name)
        if after.keys() != before.keys() or not all(
            same_space(after[k], before[k]) for k in before
        ):
            check.report(name, "the same spaces at all times", "other spaces", steps)
