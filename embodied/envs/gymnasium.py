"""Environments of Gymnasium: https://gymnasium.farama.org."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import elements
import numpy as np

from ..core.base import Array, Data, Env, Spaces
from ..core.errors import EnvError, MissingPackageError, SpaceError
from ..core.spaces import is_image
from ..core.wrappers.observations import resize_image, resized_space
from . import unknown
from .adapter import check_options, flag_spaces, flags, require
from .gymspaces import OWN_OBS, FlatSpace
from .mujoco_gl import graphics


class Gymnasium(Env):
    """Makes an `embodied.Env` of an environment of Gymnasium.

    A single observation is called `image` if it holds images [H, W, C] and `vector` otherwise, a
    single action is called `action`; see `FlatSpace` for the keys and values of all others.
    Truncation ends an episode, termination ends it terminally. Where an environment resets itself
    and gives the first observation of the next episode together with the end of this one, the
    last observation is taken from `final_obs` or `final_observation` in its info.

    Bounds of float vectors are dropped for Gymnasium's own environments, since those are
    estimates that some of them leave by far, such as LunarLander and BipedalWalker.

    Args:
      env: the id of a registered environment, or an environment.
      seed: given to the first reset; later episodes follow from it.
      render: whether to add the rendered frame as `log/image`. Otherwise nothing is rendered.
      repeat: how many times every action is taken; the rewards are summed.
      length: the environment's steps after which episodes are cut off, with an id in place of
        its own limit; 0 keeps that.
      size: height and width that image observations are resized to; zeros keep them.
      ignore: regular expression of the observation keys to leave out, such as those of texts.
      bounds: whether floats outside their bounds are errors; without, float vectors have none.
      **kwargs: options of the environment, if an id is given.

    Raises:
      EnvError: if the environment cannot be made.
      SpaceError: if one of its spaces is not supported.
      MissingPackageError: if a package that it needs is missing.
    """

    def __init__(
        self,
        env: Any,
        seed: int = 0,
        render: bool = False,
        repeat: int = 1,
        length: int = 0,
        size: tuple[int, int] = (0, 0),
        ignore: str = "",
        bounds: bool = True,
        **kwargs: Any,
    ):
        check_options(repeat, length, size)
        section = "gymnasium" if isinstance(env, str) else "custom"  # where the config has options
        if isinstance(env, str):
            limit = {"max_episode_steps": length} if length else {}
            env = _make(env, render, {**kwargs, **limit})
        elif length:
            env = _limited(env, length)
        self._env = env
        own = type(getattr(env, "unwrapped", env)).__module__.startswith("gymnasium.")
        bounds = bounds and not own
        self._obs = FlatSpace(
            env.observation_space, "vector", "observation", OWN_OBS, ignore, bounds, section
        )
        self._act = FlatSpace(env.action_space, "action", "action", ("reset",))
        if shared := self._obs.spaces.keys() & self._act.spaces.keys():
            raise SpaceError(f"The key {min(shared)!r} is both an observation and an action.")
        self._obs_space = {**self._obs.spaces, **flag_spaces()}
        self._resized = {}
        for key, space in self._obs.spaces.items():
            if any(size) and is_image(space) and not key.startswith("log/"):
                self._resized[key] = space
                self._obs_space[key] = resized_space(space, size)
        self._size = size
        self._repeat = repeat
        self._seed: int | None = seed
        self._over = True
        self._origin: Any = None  # what the episode began from
        self._start: Any = None  # an observation that is waiting to be the first, and its origin
        self._renders = render
        if render:
            self._start = self._reset()
            self._obs_space["log/image"] = elements.Space(np.uint8, self._render().shape)

    @property
    def obs_space(self) -> Spaces:
        """The environment's observations, reward, flags and perhaps `log/image`."""
        return self._obs_space

    @property
    def act_space(self) -> Spaces:
        """The environment's actions and `reset`."""
        return {**self._act.spaces, "reset": elements.Space(bool)}

    def step(self, action: Data) -> Data:
        """Steps the environment up to `repeat` times, or resets it; see `Env.step`."""
        if action["reset"] or self._over:
            self._over = False
            start, self._start = self._start, None
            value, self._origin = start or self._reset()
            return self._observe(value, is_first=True)
        reward: Any = 0.0
        move = self._act.decode(action)
        for _ in range(self._repeat):
            value, gain, terminated, truncated, info = _unpacked(self._env.step(move))
            reward = reward + np.asarray(gain, np.float64)
            self._over = bool(terminated or truncated)
            if self._over:
                value = self._last(value, info)
                break
        return self._observe(value, reward, is_terminal=bool(terminated))

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()

    def save_episode(self) -> Any:
        """The seed or the random state from which the episode began; None if there is none."""
        return self._origin

    def load_episode(self, data: Any) -> None:
        """Lets the next episode begin from there."""
        self._start = None
        self._seed = data if isinstance(data, int) else None
        if self._seed is None:
            self._env.unwrapped.np_random.bit_generator.state = data

    def _reset(self) -> tuple[Any, Any]:
        """The first observation of an episode, and from which seed or random state it began."""
        seed, self._seed = self._seed, None
        random = getattr(getattr(self._env, "unwrapped", self._env), "np_random", None)
        state = random.bit_generator.state if isinstance(random, np.random.Generator) else None
        result = self._env.reset(seed=seed)
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
            raise EnvError(
                "The environment's reset must return a pair of an observation and a dict of "
                f"infos, but returned {_count(result)}."
            )
        return result[0], state if seed is None else seed

    def _last(self, value: Any, info: Any) -> Any:
        """The last observation of an episode; keeps the first of the next if it came along."""
        infos = info if isinstance(info, Mapping) else {}
        for key in ("final_obs", "final_observation"):
            if infos.get(key) is not None:
                self._start = value, None
                return infos[key]
        return value

    def _observe(
        self, value: Any, reward: Any = 0.0, is_first: bool = False, is_terminal: bool = False
    ) -> Data:
        obs = {
            **self._obs.encode(value),
            **flags(reward, is_first, self._over, is_terminal),
        }
        for key, space in self._resized.items():
            obs[key] = resize_image(obs[key], space, self._size, key)
        if self._renders:
            obs["log/image"] = self._render()
        return obs

    def _render(self) -> Array:
        import gymnasium

        try:
            with graphics(True):
                frame = self._env.render()
        except gymnasium.error.DependencyNotInstalled as error:
            raise MissingPackageError(
                "rendering this environment", "pygame", "'dreamerv3[classic]'"
            ) from error
        if not isinstance(frame, np.ndarray):
            raise EnvError(
                f"The environment renders {type(frame).__name__} where an array is needed: make "
                "it with render_mode='rgb_array'."
            )
        return frame


def _limited(env: Any, length: int) -> Any:
    from gymnasium.wrappers import TimeLimit

    return TimeLimit(env, length)


def _unpacked(result: Any) -> tuple[Any, Any, Any, Any, Any]:
    if isinstance(result, tuple) and len(result) == 5:
        return result
    raise EnvError(
        "The environment's step must return observation, reward, terminated, truncated and info, "
        f"but returned {_count(result)}."
    )


def _count(result: Any) -> str:
    if isinstance(result, tuple):
        return f"a tuple of {len(result)}: {', '.join(type(x).__name__ for x in result)}"
    return f"an object of the type {type(result).__name__}"


def _make(name: str, render: bool, kwargs: dict[str, Any]) -> Any:
    gymnasium = require("gymnasium", "gymnasium", "'dreamerv3[classic]'")
    # Our own checks say more than those of Gymnasium, which warn and go on.
    kwargs = {"disable_env_checker": True, **kwargs}
    if render:
        kwargs["render_mode"] = "rgb_array"
    try:
        return gymnasium.make(name, **kwargs)
    except gymnasium.error.DependencyNotInstalled as error:
        raise EnvError(f"The environment {name!r} cannot be made: {error}") from error
    except ModuleNotFoundError as error:
        package = error.name or str(error)
        raise MissingPackageError(f"the environment {name!r}", package, package) from error
    except gymnasium.error.Error as error:
        raise unknown("environment of Gymnasium", name, gymnasium.registry) from error
