"""Conformance tests for whoever writes an environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import elements
import numpy as np

from .core import masks as masking
from .core.base import Array, BatchedEnv, Data, Env, Spaces
from .core.errors import EnvError
from .core.spaces import describe, fault, same_space, sample

_OBS = {
    "reward": elements.Space(np.float32),
    "is_first": elements.Space(bool),
    "is_last": elements.Space(bool),
    "is_terminal": elements.Space(bool),
}
_ACT = {"reset": elements.Space(bool)}

AnyEnv = Env | BatchedEnv


def check_env(
    env: AnyEnv,
    steps: int = 200,
    seed: int = 0,
    again: Callable[[], AnyEnv] | None = None,
    masks: dict[str, str] | None = None,
) -> None:
    """Checks an environment, or a batch of them, against its contract; leaves it open.

    Random actions are taken; episodes are also cut short by `reset`, and started anew both with
    and without it. The contract is that of `embodied.Env` or of `embodied.BatchedEnv`; where the
    latter has a false attribute `resets_alone`, no episode is cut short but all together.

    Args:
      env: the environment, not stepped before.
      steps: how many calls of `step` to make.
      seed: of the random actions.
      again: makes the environment once more with the same seed. If given, both have to give the
        same observations for the same actions.
      masks: for discrete actions, the observation that tells which classes are allowed: no other
        ones are taken then.

    Raises:
      EnvError: if there is a violation; its message has a line for each of them.
    """
    if violations := find_violations(env, steps, seed, again, masks):
        raise EnvError("The environment breaks the contract:\n" + "\n".join(violations))


def find_violations(
    env: AnyEnv,
    steps: int = 200,
    seed: int = 0,
    again: Callable[[], AnyEnv] | None = None,
    masks: dict[str, str] | None = None,
) -> list[str]:
    """What `check_env` finds, one line each: key, expected, found, and the first step of it."""
    report = Report()
    spaces = _check_spaces(report, env)
    if spaces:
        _Run(report, env, *spaces, again, _usable_masks(report, masks or {}, *spaces)).play(
            steps, np.random.default_rng(seed)
        )
    return report.lines


class Report:
    """Collects violations as lines; of several alike only the first is kept."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str], str] = {}

    @property
    def lines(self) -> list[str]:
        """The violations in the order in which they were found."""
        return list(self._lines.values())

    def add(
        self,
        key: str,
        expected: str,
        found: Any,
        step: int | None = None,
        index: int | None = None,
    ) -> None:
        """Adds a violation.

        Args:
          key: what it is about, usually a key of the observation.
          expected: what would be right.
          found: what there is instead.
          step: how many steps came before, if that matters.
          index: number of the environment, if there are several.
        """
        where = f" in environment {index}" if index is not None else ""
        where += f" at step {step}" if step is not None else ""
        line = f"{key!r}{where}: expected {expected}, found {found}."
        self._lines.setdefault((key, expected), " ".join(line.split()))

    def flags(
        self, obs: Data, starts: bool, step: int | None = None, index: int | None = None
    ) -> None:
        """Checks reward and flags of one observation, given whether an episode has to start."""
        if starts and not obs["is_first"]:
            self.add("is_first", "true where an episode starts", False, step, index)
        if not starts and obs["is_first"]:
            self.add("is_first", "false within an episode", True, step, index)
        if starts and obs["reward"] != 0:
            self.add("reward", "0 where an episode starts", obs["reward"], step, index)
        if obs["is_terminal"] and not obs["is_last"]:
            self.add("is_terminal", "false unless is_last is true", True, step, index)


def _check_spaces(report: Report, env: AnyEnv) -> tuple[Spaces, Spaces] | None:
    """Checks the spaces; returns those that are usable, or None if no step can be made."""
    if not isinstance(env, AnyEnv):
        report.add("environment", "an embodied.Env or an embodied.BatchedEnv", _type(env))
        return None
    if isinstance(env, BatchedEnv):
        length = getattr(env, "length", None)
        if not isinstance(length, int | np.integer) or length < 1:
            report.add("length", "the number of environments", repr(length))
            return None
    usable = []
    for name, required in (("obs_space", _OBS), ("act_space", _ACT)):
        try:
            spaces = getattr(env, name)
        except Exception as error:
            report.add(name, "a dict", _raised(error))
            return None
        if not isinstance(spaces, dict):
            report.add(name, "a dict", _type(spaces))
            return None
        for key, space in spaces.items():
            if not isinstance(space, elements.Space):
                report.add(key, "an elements.Space", _type(space))
            elif not space.dtype.itemsize:
                report.add(key, "numbers or booleans", f"texts in {name}")
        for key, space in required.items():
            if key not in spaces:
                report.add(key, f"a key of {name}", "none")
            elif isinstance(spaces[key], elements.Space):
                _check_required(report, key, space, spaces[key])
        usable.append({k: v for k, v in spaces.items() if _usable(v)})
    for key in sorted(env.obs_space.keys() & env.act_space.keys()):
        report.add(key, "either an observation or an action", "both")
    obs_space, act_space = usable
    return (obs_space, act_space) if len(act_space) == len(env.act_space) else None


def _usable_masks(
    report: Report, masks: dict[str, str], obs_space: Spaces, act_space: Spaces
) -> dict[str, str]:
    """Checks the masks; returns those that can be followed."""
    usable = {}
    for action, mask in masks.items():
        if action not in act_space:
            report.add(action, "an action that has a mask", "none")
        elif mask not in obs_space:
            report.add(mask, f"a mask of the action {action!r}", "none")
        elif not masking.fits(obs_space[mask], act_space[action]):
            expected = f"a mask of the action {action!r}, {describe(act_space[action])}"
            report.add(mask, expected, describe(obs_space[mask]))
        else:
            usable[action] = mask
    return usable


def _check_required(
    report: Report, key: str, required: elements.Space, space: elements.Space
) -> None:
    if (space.dtype, space.shape) != (required.dtype, required.shape):
        report.add(key, f"{required.dtype.name} {required.shape}", describe(space))


def _usable(space: Any) -> bool:
    return isinstance(space, elements.Space) and bool(space.dtype.itemsize)


class _Run:
    """Steps an environment, or a batch of them, and reports what is wrong on the way."""

    def __init__(
        self,
        report: Report,
        env: AnyEnv,
        obs_space: Spaces,
        act_space: Spaces,
        again: Callable[[], AnyEnv] | None,
        masks: dict[str, str],
    ):
        self._report = report
        self._env = env
        self._obs_space = obs_space
        self._act_space = act_space
        self._ignored = env.obs_space.keys() - obs_space.keys()
        self._twin = again() if again else None
        self._masks = masks
        self._resets_alone = getattr(env, "resets_alone", True)
        self._batched = isinstance(env, BatchedEnv)
        self._length = env.length if isinstance(env, BatchedEnv) else 1
        self._returned: tuple[Data, Data] = ({}, {})  # the newest observation and a copy of it

    def play(self, steps: int, rng: np.random.Generator) -> None:
        """Makes the steps; after two in a row of no use no more."""
        starts = np.ones(self._length, bool)
        useless = 0
        obs: Data | None = None
        for step in range(steps):
            chance = np.where(starts, 0.5, 0.03)
            reset = rng.random(self._length) < chance
            reset &= starts | self._resets_alone
            reset |= bool(useless) or step == steps // 2
            action = {k: sample(v, rng, (self._length,)) for k, v in self._act_space.items()}
            action = self._obey(action, obs or {}, rng)
            action["reset"] = reset
            starts |= reset
            obs = self._step(action, step)
            useless = 0 if obs else useless + 1
            if useless == 2:
                break
            if obs:
                starts = self._check(obs, starts, step)
        self._check_spaces_again(steps)
        if self._twin:
            self._twin.close()

    def _obey(self, action: Data, obs: Data, rng: np.random.Generator) -> Data:
        """Actions [E, ...] that obey the masks, as far as the previous observation has them."""
        usable = {
            key: mask
            for key, mask in self._masks.items()
            if _array(obs.get(mask)).shape == (self._length, *masking.shape(self._act_space[key]))
        }
        return masking.redraw(action, obs, usable, self._act_space, rng)

    def _step(self, batch: Data, step: int) -> Data | None:
        """Takes a step and returns the observation, if it is one, with a leading axis."""
        action = batch if self._batched else {k: v[0].copy() for k, v in batch.items()}
        before = _copy(action)
        obs = self._call(self._env, action, step)
        for key in _differing(action, before):
            expected = "that step leaves the actions as they are"
            self._report.add(key, expected, "that it changed this one", step)
        for key in _differing(*self._returned):
            expected = "that an observation stays as it was"
            self._report.add(key, expected, "that step changed the previous one", step)
        self._returned = ({}, {})
        if obs is None:
            return None
        if self._twin:
            self._compare(obs, self._call(self._twin, before, step), step)
        self._returned = (dict(obs), _copy(obs))
        return obs if self._batched else {k: _array(v)[None] for k, v in obs.items()}

    def _call(self, env: AnyEnv, action: Data, step: int) -> Data | None:
        try:
            obs = env.step(action)
        except Exception as error:
            self._report.add("step", "no exception", _raised(error), step)
            return None
        if not isinstance(obs, dict):
            self._report.add("observation", "a dict", _type(obs), step)
            return None
        return obs

    def _compare(self, obs: Data, other: Data | None, step: int) -> None:
        for key in _differing(obs, other or obs):
            expected = "the same in a second environment with the same seed and actions"
            self._report.add(key, expected, "another value", step)

    def _check(self, obs: Data, starts: Array, step: int) -> Array:
        """Checks an observation [E, ...]; returns which episodes have to start next."""
        for key in sorted((obs.keys() | self._obs_space.keys()) - self._ignored):
            if key not in obs:
                self._report.add(key, "a key of the observation", "none", step)
            elif key not in self._obs_space:
                self._report.add(key, "only keys of obs_space", "this key", step)
            else:
                self._check_value(key, _array(obs[key]), step)
        if all(_array(obs.get(k)).shape == starts.shape for k in _OBS):
            for index in range(self._length):
                values = {k: obs[k][index] for k in _OBS}
                self._report.flags(values, bool(starts[index]), step, self._number(index))
        last = _array(obs.get("is_last"))
        return last.astype(bool) if last.shape == starts.shape else np.zeros_like(starts)

    def _check_value(self, key: str, value: Array, step: int) -> None:
        space = self._obs_space[key]
        shape = (self._length, *space.shape)
        if self._batched and (value.dtype, value.shape) != (space.dtype, shape):
            expected = f"{space.dtype.name} {shape}"
            self._report.add(key, expected, f"{value.dtype.name} {value.shape}", step)
            return
        for index in range(self._length):
            if found := fault(space, value[index]):
                self._report.add(key, describe(space), found, step, self._number(index))

    def _number(self, index: int) -> int | None:
        return index if self._batched else None

    def _check_spaces_again(self, step: int) -> None:
        before = {"obs_space": self._obs_space, "act_space": self._act_space}
        for name, spaces in before.items():
            after = {k: v for k, v in getattr(self._env, name).items() if _usable(v)}
            if after.keys() != spaces.keys() or not all(
                same_space(after[k], spaces[k]) for k in spaces
            ):
                self._report.add(name, "the same spaces at all times", "other spaces", step)


def _array(value: Any) -> Array:
    try:
        return np.asarray(value)
    except ValueError:  # lists of unequal lengths
        return np.asarray(None)


def _copy(data: Data) -> Data:
    return {k: np.array(v) if isinstance(v, np.ndarray) else v for k, v in data.items()}


def _differing(data: Data, other: Data) -> list[str]:
    """The keys whose values differ."""
    return [
        key
        for key in sorted(data.keys() | other.keys())
        if key not in data or key not in other or not _equal(data[key], other[key])
    ]


def _equal(a: Any, b: Any) -> bool:
    a, b = _array(a), _array(b)
    return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def _raised(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(".")


def _type(value: Any) -> str:
    return type(value).__name__
