"""Environments that speak the interface of https://github.com/google-deepmind/dm_env."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import elements
import numpy as np

from ..core.base import Array, Data, Env, Spaces
from ..core.errors import SpaceError
from ..core.spaces import channels_last, is_channels_first, is_gray, move_channels
from .adapter import flag_spaces, flags

_MOST_CLASSES = 256  # integers with more values than this are numbers, not classes


class DMEnv(Env):
    """Makes an `embodied.Env` of a `dm_env.Environment`.

    The entries of nested observations and actions get their keys joined by `_`, which also
    replaces slashes in them. A single observation is called `image` if it has bytes [H, W, C]
    and `vector` otherwise, a single action is called `action`. Images [H, W] of bytes get an
    axis for their channel and images [C, H, W] have it moved to the end, as in `FlatSpace`.
    Floats become float32. Integers with up to 256 values and booleans become classes that count
    from 0; integers with more values become float32. Arrays without elements are not observed.
    An episode that ends with a discount of 0 ends terminally; one that ends with any other was
    cut off.

    Args:
      env: the environment; whoever makes it seeds it.

    Raises:
      SpaceError: if one of its specs is not supported.
    """

    def __init__(self, env: Any):
        self._env = env
        self._act_spec = env.action_spec()
        self._obs = _flat(env.observation_spec(), "vector", "observation", tuple(flag_spaces()))
        self._act = _flat(self._act_spec, "action", "action", ("reset",))
        if shared := self._obs.keys() & self._act.keys():
            raise SpaceError(f"The key {min(shared)!r} is both an observation and an action.")
        self._over = True

    @property
    def obs_space(self) -> Spaces:
        """The environment's observations, reward and flags."""
        return {**{k: v.space for k, v in self._obs.items()}, **flag_spaces()}

    @property
    def act_space(self) -> Spaces:
        """The environment's actions and `reset`."""
        return {**{k: v.space for k, v in self._act.items()}, "reset": elements.Space(bool)}

    def step(self, action: Data) -> Data:
        """Steps or resets the environment; see `Env.step`."""
        first = bool(action["reset"]) or self._over
        if first:
            time_step = self._env.reset()
        else:
            parts = {leaf.path: leaf.decode(action[k]) for k, leaf in self._act.items()}
            time_step = self._env.step(_nested(self._act_spec, parts))
        first = first or time_step.first()
        self._over = time_step.last()
        reward = 0.0 if first or time_step.reward is None else time_step.reward
        obs = {k: x.encode(_entry(time_step.observation, x.path)) for k, x in self._obs.items()}
        return {
            **obs,
            **flags(reward, first, self._over, self._over and time_step.discount == 0),
        }

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()


class _Leaf(NamedTuple):
    """An array within a spec, and the way of its values to the agent and back."""

    path: tuple[Any, ...]
    space: elements.Space
    encode: Callable[[Any], Array]
    decode: Callable[[Array], Any]


def _flat(spec: Any, name: str, kind: str, taken: tuple[str, ...]) -> dict[str, _Leaf]:
    """A spec, nested or not, as a flat dict.

    Args:
      spec: the spec.
      name: key of a spec without parts, unless it holds an image.
      kind: "observation" or "action", for errors.
      taken: keys that are not free.
    """
    leaves: dict[str, _Leaf] = {}
    for path, part in _parts(spec):
        key = "_".join(str(x).replace("/", "_") for x in path)
        if part.dtype.kind not in "biuf":
            where = f"entry {key!r} of the {kind}" if key else kind
            raise SpaceError(
                f"The {where} is {part}, which is not supported: use arrays of numbers or "
                "booleans."
            )
        if 0 in part.shape:
            continue
        leaf = _leaf(path, part)
        if kind == "observation" and is_channels_first(leaf.space):
            leaf = _channels_last(leaf)
        key = key or ("image" if leaf.space.dtype == np.uint8 else name)
        if key in leaves or key in taken:
            raise SpaceError(f"Two entries of the {kind} would be called {key!r}: rename one.")
        leaves[key] = leaf
    return leaves


def _channels_last(leaf: _Leaf) -> _Leaf:
    return leaf._replace(
        space=channels_last(leaf.space), encode=lambda x: move_channels(leaf.encode(x))
    )


def _parts(spec: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The arrays within a spec and the keys that lead to them."""
    if hasattr(spec, "dtype"):
        yield path, spec
        return
    items = spec.items() if hasattr(spec, "items") else enumerate(spec)
    for key, part in items:
        yield from _parts(part, (*path, key))


def _entry(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def _nested(spec: Any, values: dict[tuple[Any, ...], Any], path: tuple[Any, ...] = ()) -> Any:
    """Values in the structure of a spec; what the agent does not choose has no elements."""
    if hasattr(spec, "dtype"):
        return values[path] if path in values else np.zeros(spec.shape, spec.dtype)
    if hasattr(spec, "items"):
        return {k: _nested(v, values, (*path, k)) for k, v in spec.items()}
    return type(spec)(_nested(v, values, (*path, i)) for i, v in enumerate(spec))


def _leaf(path: tuple[Any, ...], spec: Any) -> _Leaf:
    dtype, shape = spec.dtype, spec.shape
    if dtype == np.uint8 and len(shape) == 3:
        return _Leaf(path, elements.Space(np.uint8, shape), np.array, np.array)
    low, high = _bounds(spec)
    if is_gray(elements.Space(dtype, shape, low, high)):
        gray = elements.Space(np.uint8, (*shape, 1))
        return _Leaf(path, gray, lambda x: np.array(x)[..., None], lambda x: np.array(x)[..., 0])
    if dtype.kind in "biu" and (high.astype(float) - low.astype(float) < _MOST_CLASSES).all():
        start = low.astype(np.int64)
        count = high.astype(np.int64) - start + 1
        return _Leaf(
            path,
            elements.Space(np.int32, shape, 0, count),
            lambda x: np.array(np.asarray(x) - start, np.int32),
            lambda x: (x + start).astype(dtype),
        )
    with np.errstate(over="ignore"):  # bounds beyond float32 are infinite there
        space = elements.Space(np.float32, shape, low.astype(np.float32), high.astype(np.float32))
    rounded = np.rint if dtype.kind in "iu" else np.asarray
    return _Leaf(
        path,
        space,
        lambda x: np.array(x, np.float32),
        # A bound may not be a number of float32, so that the nearest lies beyond it.
        lambda x: np.asarray(np.clip(rounded(x), low, high), dtype),
    )


def _bounds(spec: Any) -> tuple[Array, Array]:
    """The least and the greatest values, both allowed, in the shape of a spec."""
    low: Any = -np.inf
    high: Any = np.inf
    if hasattr(spec, "minimum"):
        low, high = spec.minimum, spec.maximum
    elif spec.dtype == bool:
        low, high = False, True
    elif spec.dtype.kind in "iu":
        low, high = np.iinfo(spec.dtype).min, np.iinfo(spec.dtype).max
    return np.broadcast_to(low, spec.shape), np.broadcast_to(high, spec.shape)
