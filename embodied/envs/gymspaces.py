"""Spaces of Gymnasium, nested or not, as flat dicts of `elements.Space`, and their values."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import elements
import numpy as np

from ..core.base import Array, Data, Spaces
from ..core.errors import SpaceError
from ..core.spaces import (
    channels_last,
    is_channels_first,
    is_gray,
    is_image,
    move_channels,
    to_array,
)

OWN_OBS = ("reward", "is_first", "is_last", "is_terminal", "log/image")
_MOST_CLASSES = 256  # an integer Box with more values is a number to the agent
_SUPPORTED = (
    "use Box with up to three axes and none of size 0, Discrete, MultiDiscrete, MultiBinary, or a "
    "Dict or Tuple of these"
)


class FlatSpace:
    """A space of Gymnasium as a flat dict of spaces, with its values, which may be batches.

    Keys of nested Dicts and indices of Tuples are joined by `_`, signs that no name can hold
    become `_` too. A space without parts is called `image` if it holds images and `name` if not;
    the parts of a Tuple are called `observation_0` or `action_0` and so on.

    Observations keep their values and dtypes, but integers beyond 32 bits become float32, and
    images [H, W] of bytes get an axis for their channel and images [C, H, W] have it moved to the
    end, where `is_channels_first` knows them. Actions are floats, or classes that
    count from 0; an integer Box with more than 256 values takes float32, which are rounded.

    Args:
      space: the space of Gymnasium.
      name: key of a space without parts.
      kind: "observation" or "action".
      taken: keys that are not free.
      ignore: regular expression of the keys to leave out, with all that is below them.
      section: where the config has the option `ignore`, for errors.
      bounds: whether to keep the bounds of floats that are no images.

    Raises:
      SpaceError: if a part is not supported or two have the same key.
    """

    def __init__(
        self,
        space: Any,
        name: str,
        kind: str,
        taken: tuple[str, ...],
        ignore: str = "",
        bounds: bool = True,
        section: str = "gymnasium",
    ):
        from gymnasium import spaces

        self._name = name
        self._kind = kind
        self._flag = f"--env.{section}.ignore"
        self._ignore = _compiled(ignore, self._flag) if ignore else None
        self._bounds = bounds
        self._ignored = False
        self.spaces: Spaces = {}
        self._taken = taken
        self._root = self._build(space, (kind,) if isinstance(space, spaces.Tuple) else ())
        if ignore and not self._ignored:
            raise SpaceError(f"{self._flag} {ignore!r} matches no key of the {kind}: {space}.")
        if not self.spaces:
            raise SpaceError(f"The {kind} has the space {space}, of which nothing is left.")

    def encode(self, value: Any) -> Data:
        """From Gymnasium's value to a flat dict.

        Raises:
          SpaceError: if it is not made of the parts of the space. Values of a wrong shape or
            dtype pass unchanged, for `CheckSpaces` to find.
        """
        flat: Data = {}
        self._encode(self._root, value, flat)
        return flat

    def decode(self, flat: Data) -> Any:
        """From a flat dict to Gymnasium's value, in the types and dtypes of its space."""
        return _decode(self._root, flat)

    def _build(self, space: Any, path: tuple[Any, ...]) -> _Part | _Leaf | None:
        from gymnasium import spaces

        key = _key(path)
        if self._ignore and self._ignore.fullmatch(key):
            self._ignored = True
            return None
        if isinstance(space, spaces.Dict):
            parts = {k: self._build(v, (*path, k)) for k, v in space.spaces.items()}
            return _Part(key, dict, parts)
        if isinstance(space, spaces.Tuple):
            return _Part(
                key, tuple, {i: self._build(v, (*path, i)) for i, v in enumerate(space.spaces)}
            )
        make = _observation if self._kind == "observation" else _action
        leaf = make(space)
        if leaf is None:
            where = f"entry {key!r} of the {self._kind}" if path else self._kind
            hint = ""
            if path and make is _observation:
                hint = f", or leave it out by {self._flag} {key}"
            raise SpaceError(
                f"The {where} has the space {space}, which is not supported: {_SUPPORTED}{hint}."
            )
        if not self._bounds and leaf.space.dtype.kind == "f" and not is_image(leaf.space):
            leaf = leaf._replace(space=elements.Space(leaf.space.dtype, leaf.space.shape))
        return self._add(leaf, key)

    def _add(self, leaf: _Leaf, key: str) -> _Leaf:
        if not key:
            key = "image" if self._kind == "observation" and is_image(leaf.space) else self._name
        if key in self._taken:
            raise SpaceError(
                f"An entry of the {self._kind} would be called {key!r}, which is the name of "
                "something else here: rename it, for example to "
                f"{'my_' + key.replace('/', '_')!r}."
            )
        if key in self.spaces:
            raise SpaceError(
                f"Two entries of the {self._kind} would be called {key!r}: rename one."
            )
        self.spaces[key] = leaf.space
        return leaf._replace(key=key)

    def _encode(self, node: _Part | _Leaf | None, value: Any, flat: Data) -> None:
        if isinstance(node, _Leaf):
            flat[node.key] = node.convert(value)
        elif isinstance(node, _Part):
            if fault := node.fault(value):
                where = f"entry {node.key!r} of the {self._kind}" if node.key else self._kind
                raise SpaceError(f"The {where} is {fault}.")
            for name, part in node.parts.items():
                self._encode(part, value[name], flat)


class _Leaf(NamedTuple):
    """A space without parts, and the way of its values to the agent, or of actions from it."""

    space: elements.Space
    convert: Callable[[Any], Any]
    key: str = ""


class _Part(NamedTuple):
    """A Dict, or a Tuple whose parts are numbered; what is ignored is None."""

    key: str
    kind: type
    parts: dict[Any, Any]

    def fault(self, value: Any) -> str | None:
        """What is wrong with a value's own structure, and what would be right."""
        names = list(self.parts)
        if self.kind is dict:
            if not isinstance(value, Mapping):
                return f"of the type {type(value).__name__}, expected a dict"
            if value.keys() != self.parts.keys():
                return f"a dict of {sorted(map(str, value))}, expected {sorted(map(str, names))}"
        elif not isinstance(value, tuple | list):
            return f"of the type {type(value).__name__}, expected a tuple"
        elif len(value) != len(names):
            return f"a tuple of {len(value)} parts, expected {len(names)}"
        return None


def _compiled(ignore: str, flag: str) -> re.Pattern[str]:
    try:
        return re.compile(ignore)
    except re.error as error:
        raise SpaceError(f"{flag} {ignore!r} is no regular expression: {error}.") from error


def _decode(node: _Part | _Leaf | None, flat: Data) -> Any:
    if isinstance(node, _Leaf):
        return node.convert(flat[node.key])
    assert node is not None  # actions are never left out
    parts = {k: _decode(v, flat) for k, v in node.parts.items()}
    return tuple(parts.values()) if node.kind is tuple else parts


def _key(path: tuple[Any, ...]) -> str:
    name = "_".join(map(str, path))
    prefix = "log/" if name.startswith("log/") else ""
    return prefix + re.sub(r"[^A-Za-z0-9_]", "_", name[len(prefix) :])


def _observation(space: Any) -> _Leaf | None:
    """The leaf of an observation, or None if its space is not supported."""
    limits = _limits(space)
    if limits is None:
        return None
    low, high = limits
    dtype = np.dtype(space.dtype)
    if dtype.kind in "fb":
        ours = elements.Space(dtype, space.shape, low, high)
    elif low.min() < np.iinfo(np.int32).min or high.max() > np.iinfo(np.int32).max:
        ours = elements.Space(np.float32, space.shape)
    else:
        top = np.iinfo(dtype).max
        above = np.where(high == top, top, high.astype(np.int64) + 1)
        ours = elements.Space(dtype, space.shape, low, above)

    def encode(value: Any) -> Array:
        array = to_array(value, dtype)
        if np.can_cast(array.dtype, dtype):  # what Gymnasium calls a value of the space
            return array.astype(ours.dtype, copy=False)
        if not _is_box(space) and array.dtype.kind in "iub":  # there it takes any integers
            cast = array.astype(ours.dtype)
            return array if (cast != array).any() else cast
        return array

    if is_gray(ours):
        return _Leaf(elements.Space(np.uint8, (*space.shape, 1)), lambda x: encode(x)[..., None])
    if is_channels_first(ours):
        return _Leaf(channels_last(ours), lambda x: move_channels(encode(x)))
    return _Leaf(ours, encode)


def _action(space: Any) -> _Leaf | None:
    """The leaf of an action, or None if its space is not supported."""
    limits = _limits(space)
    if limits is None:
        return None
    dtype = np.dtype(space.dtype)
    if dtype.kind == "f":
        return _Leaf(elements.Space(dtype, space.shape, *limits), lambda x: np.asarray(x, dtype))
    low, high = (x.astype(np.float64) for x in limits)
    if not _is_box(space) or (high - low < _MOST_CLASSES).all():
        start = limits[0].astype(np.int64)
        count = limits[1].astype(np.int64) - start + 1

        def to_class(x: Array) -> Any:
            value = np.asarray(x + start, dtype)
            return value if _is_box(space) else value[()]  # a Discrete one may become an index

        return _Leaf(elements.Space(np.int32, space.shape, 0, count), to_class)
    least, most = float(np.iinfo(dtype).min), float(np.iinfo(dtype).max)
    ours = elements.Space(
        np.float32,
        space.shape,
        np.where((low == least) & (least < 0), -np.inf, low),
        np.where(high == most, np.inf, high),
    )
    if most > np.iinfo(dtype).max:
        high = np.minimum(high, np.nextafter(most, 0))
    return _Leaf(
        ours, lambda x: np.asarray(np.clip(np.rint(np.float64(x)), low, high).astype(dtype))
    )


def _limits(space: Any) -> tuple[Array, Array] | None:
    """The least and greatest values of a space of numbers, or None if it is no such space."""
    from gymnasium import spaces

    if 0 in (space.shape or ()) or len(space.shape or ()) > 3:
        return None
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        count = space.n if isinstance(space, spaces.Discrete) else space.nvec
        low = np.asarray(space.start, np.int64)
        return low, low + np.asarray(count, np.int64) - 1
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(space.shape, np.int8), np.ones(space.shape, np.int8)
    return None


def _is_box(space: Any) -> bool:
    from gymnasium import spaces

    return isinstance(space, spaces.Box)
