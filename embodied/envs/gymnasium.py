"""Environments of Gymnasium: https://gymnasium.farama.org."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import elements
import numpy as np

from ..core.base import Array, Data, Env, Spaces
from ..core.errors import EnvError, MissingPackageError, SpaceError
from . import unknown
from .adapter import flag_spaces, flags, require

_OWN_OBS = ("reward", "is_first", "is_last", "is_terminal", "log/image")
_MOST_CLASSES = 256  # integers with more values than this are numbers, not classes


class Gymnasium(Env):
    """Makes an `embodied.Env` of an environment of Gymnasium.

    A single observation is called `image` if it has bytes [H, W, C] and `vector` otherwise, a
    single action is called `action`. The entries of nested dicts get their keys joined by `_`.
    Floats become float32. Integers with up to 256 values become classes that count from 0;
    integers with more values become float32. Truncation ends an episode, termination ends it
    terminally.

    Args:
      env: the id of a registered environment, or an environment.
      seed: given to the first reset; later episodes follow from it.
      render: whether to add the rendered frame as `log/image`. Otherwise nothing is rendered.
      **kwargs: options of the environment, if an id is given.

    Raises:
      EnvError: if the environment cannot be made.
      SpaceError: if one of its spaces is not supported.
      MissingPackageError: if a package that it needs is missing.
    """

    def __init__(self, env: Any, seed: int = 0, render: bool = False, **kwargs: Any):
        self._env = _make(env, render, kwargs) if isinstance(env, str) else env
        self._obs = _FlatSpace(self._env.observation_space, "vector", "observation", _OWN_OBS)
        self._act = _FlatSpace(self._env.action_space, "action", "action", ("reset",))
        if shared := self._obs.spaces.keys() & self._act.spaces.keys():
            raise SpaceError(f"The key {min(shared)!r} is both an observation and an action.")
        self._seed: int | None = seed
        self._over = True
        self._start: Any = None  # an observation that is waiting to be the first
        self._frame_shape: tuple[int, ...] | None = None
        if render:
            self._start = self._reset()
            self._frame_shape = self._render().shape

    @property
    def obs_space(self) -> Spaces:
        """The environment's observations, reward, flags and perhaps `log/image`."""
        spaces = {
            **self._obs.spaces,
            **flag_spaces(),
        }
        if self._frame_shape:
            spaces["log/image"] = elements.Space(np.uint8, self._frame_shape)
        return spaces

    @property
    def act_space(self) -> Spaces:
        """The environment's actions and `reset`."""
        return {**self._act.spaces, "reset": elements.Space(bool)}

    def step(self, action: Data) -> Data:
        """Steps or resets the environment; see `Env.step`."""
        if action["reset"] or self._over:
            self._over = False
            start, self._start = self._start, None
            return self._observe(self._reset() if start is None else start, is_first=True)
        value, reward, terminated, truncated, _ = self._env.step(self._act.decode(action))
        self._over = bool(terminated or truncated)
        return self._observe(value, reward, is_terminal=terminated)

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()

    def _reset(self) -> Any:
        seed, self._seed = self._seed, None
        return self._env.reset(seed=seed)[0]

    def _observe(
        self, value: Any, reward: Any = 0.0, is_first: bool = False, is_terminal: bool = False
    ) -> Data:
        obs = {
            **self._obs.encode(value),
            **flags(reward, is_first, self._over, is_terminal),
        }
        if self._frame_shape:
            obs["log/image"] = self._render()
        return obs

    def _render(self) -> Array:
        import gymnasium

        try:
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


def _make(name: str, render: bool, kwargs: dict[str, Any]) -> Any:
    gymnasium = require("gymnasium", "gymnasium", "'dreamerv3[classic]'")
    if render:
        kwargs = {**kwargs, "render_mode": "rgb_array"}
    try:
        return gymnasium.make(name, **kwargs)
    except gymnasium.error.DependencyNotInstalled as error:
        raise EnvError(f"The environment {name!r} cannot be made: {error}") from error
    except ModuleNotFoundError as error:
        package = error.name or str(error)
        raise MissingPackageError(f"the environment {name!r}", package, package) from error
    except gymnasium.error.Error as error:
        raise unknown("environment of Gymnasium", name, gymnasium.registry) from error


class _Leaf(NamedTuple):
    """A space without parts, and the way of its values to the agent and back."""

    path: tuple[str, ...]
    space: elements.Space
    encode: Callable[[Any], Array]
    decode: Callable[[Array], Any]


class _FlatSpace:
    """A space of Gymnasium, nested or not, as a flat dict of spaces.

    Args:
      space: the space of Gymnasium.
      name: key of a space without parts, unless it holds an image.
      kind: "observation" or "action", for errors.
      taken: keys that are not free.
    """

    def __init__(self, space: Any, name: str, kind: str, taken: tuple[str, ...]):
        self._leaves: dict[str, _Leaf] = {}
        for leaf in _leaves(space, (), kind):
            key = "_".join(leaf.path)
            if not key:
                key = "image" if leaf.space.dtype == np.uint8 else name
            if key in self._leaves or key in taken:
                raise SpaceError(f"Two entries of the {kind} would be called {key!r}: rename one.")
            self._leaves[key] = leaf
        self.spaces: Spaces = {k: v.space for k, v in self._leaves.items()}

    def encode(self, value: Any) -> Data:
        """From Gymnasium's value to a flat dict."""
        flat = {}
        for key, leaf in self._leaves.items():
            part = value
            for name in leaf.path:
                part = part[name]
            flat[key] = leaf.encode(part)
        return flat

    def decode(self, flat: Data) -> Any:
        """From a flat dict to Gymnasium's value."""
        root: dict[str, Any] = {}
        for key, leaf in self._leaves.items():
            part = leaf.decode(flat[key])
            if not leaf.path:
                return part
            node = root
            for name in leaf.path[:-1]:
                node = node.setdefault(name, {})
            node[leaf.path[-1]] = part
        return root


def _leaves(space: Any, path: tuple[str, ...], kind: str) -> list[_Leaf]:
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return [x for k, v in space.spaces.items() for x in _leaves(v, (*path, k), kind)]
    if isinstance(space, spaces.Discrete):
        return [_classes(path, (), space.n, space.start, lambda x: np.int64(x))]
    if isinstance(space, spaces.MultiDiscrete):
        cast = space.dtype.type
        return [_classes(path, space.shape, space.nvec, space.start, lambda x: x.astype(cast))]
    if isinstance(space, spaces.MultiBinary):
        return [_classes(path, space.shape, 2, 0, lambda x: x.astype(np.int8))]
    if isinstance(space, spaces.Box) and 0 not in space.shape:
        return [_box(space, path)]
    where = f"entry {'_'.join(path)!r} of the {kind}" if path else kind
    raise SpaceError(
        f"The {where} has the space {space}, which is not supported: use Box, Discrete, "
        "MultiDiscrete, MultiBinary or a Dict of these."
    )


def _classes(
    path: tuple[str, ...], shape: tuple[int, ...], count: Any, start: Any, cast: Callable
) -> _Leaf:
    return _Leaf(
        path,
        elements.Space(np.int32, shape, 0, np.asarray(count, np.int64)),
        lambda x: np.asarray(np.asarray(x) - start, np.int32),
        lambda x: cast(x + np.asarray(start)),
    )


def _box(space: Any, path: tuple[str, ...]) -> _Leaf:
    cast = space.dtype.type
    if space.dtype == np.uint8 and len(space.shape) == 3:
        return _Leaf(path, elements.Space(np.uint8, space.shape), np.asarray, cast)
    if space.dtype.kind in "iu":
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        if (high - low < _MOST_CLASSES).all():
            low = space.low.astype(np.int64)
            count = space.high.astype(np.int64) - low + 1
            return _classes(path, space.shape, count, low, lambda x: x.astype(cast))
    with np.errstate(over="ignore"):  # bounds beyond float32 are infinite there
        low, high = space.low.astype(np.float32), space.high.astype(np.float32)
    return _Leaf(
        path,
        elements.Space(np.float32, space.shape, low, high),
        lambda x: np.asarray(x, np.float32),
        lambda x: x.astype(cast),
    )
