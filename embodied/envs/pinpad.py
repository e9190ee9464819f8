"""PinPad: a room whose coloured pads have to be stepped on in one order.

The benchmark for long-horizon exploration of Hafner et al. 2022, "Deep Hierarchical Planning from
Pixels", written anew from its description.
"""

from __future__ import annotations

import collections

import elements
import numpy as np

from ..core.base import Array, Data, Env, Spaces
from ..core.errors import EnvError
from . import unknown
from .adapter import class_actions, flag_spaces, flags

# Where the pads lie, as directions of the compass, in the order that is asked for.
_LAYOUTS = {
    "three": ["nw", "se", "ne"],
    "four": ["nw", "se", "ne", "sw"],
    "five": ["nw", "se", "ne", "sw", "n"],
    "six": ["nw", "s", "ne", "sw", "n", "se"],
    "seven": ["nw", "e", "sw", "n", "se", "w", "ne"],
    "eight": ["nw", "e", "sw", "n", "se", "w", "ne", "s"],
}
_ROWS, _COLUMNS = 14, 16  # of the room, walls included
_PAD_ROWS = {"n": (1, 3), "s": (11, 13), "": (6, 8)}
_PAD_COLUMNS = {"w": (1, 5), "e": (11, 15), "": (6, 10)}
_MOVES = np.array([(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)])  # stay, up, down, left, right
_REWARD = 10.0
_CELL = 4  # pixels

_FLOOR, _WALL, _EMPTY = -1, -2, -3
_AGENT = (0, 0, 0)
_COLOURS = {
    _FLOOR: (255, 255, 255),
    _WALL: (96, 96, 96),
    _EMPTY: (192, 192, 192),
    0: (220, 40, 40),
    1: (40, 170, 60),
    2: (40, 80, 220),
    3: (240, 200, 30),
    4: (160, 60, 190),
    5: (30, 190, 200),
    6: (250, 130, 30),
    7: (230, 110, 170),
}


class PinPad(Env):
    """The room with three to eight pads.

    The agent moves by one cell and steps on pads. The last N different ones, N being the number
    of pads, are its history, which the bottom of the image shows from left to right. When the
    history is all pads in the right order, which is the same in every episode, the reward is 10;
    with the next action, whatever it is, the agent goes on from a random place on the floor and
    with an empty history. Nothing is terminal.

    Args:
      task: "three", "four", "five", "six", "seven" or "eight".
      length: actions per episode.
      seed: any non-negative number.

    Raises:
      EnvError: if the task does not exist or the length is not positive.
    """

    def __init__(self, task: str, length: int = 10_000, seed: int = 0):
        if task not in _LAYOUTS:
            raise unknown("task of PinPad", task, _LAYOUTS)
        if length < 1:
            raise EnvError(f"The option length is {length}, but must be at least 1.")
        self._map = _make_map(_LAYOUTS[task])  # [rows, columns]: wall, floor or number of a pad
        self._floor = np.argwhere(self._map == _FLOOR)
        self._pads = len(_LAYOUTS[task])
        self._background = _paint(self._map)
        self._length = length
        self._rng = np.random.default_rng(seed)
        self._history: collections.deque[int] = collections.deque(maxlen=self._pads)
        self._position = self._floor[0]
        self._steps = 0
        self._over = True

    @property
    def obs_space(self) -> Spaces:
        """The image uint8 [64, 64, 3], reward and flags."""
        return {"image": elements.Space(np.uint8, (64, 64, 3)), **flag_spaces()}

    @property
    def act_space(self) -> Spaces:
        """Stay, up, down, left or right, and `reset`."""
        return class_actions(len(_MOVES))

    def step(self, action: Data) -> Data:
        """Moves the agent or starts an episode; see `Env.step`."""
        if action["reset"] or self._over:
            self._steps = 0
            self._over = False
            self._place()
            return {"image": self._image(), **flags(first=True)}
        if self._solved():
            self._place()
        else:
            self._move(_MOVES[action["action"]])
        self._steps += 1
        self._over = self._steps >= self._length
        reward = _REWARD if self._solved() else 0.0
        return {"image": self._image(), **flags(reward, False, self._over)}

    def _place(self) -> None:
        self._position = self._floor[self._rng.integers(len(self._floor))]
        self._history.clear()

    def _move(self, move: Array) -> None:
        target = self._position + move
        if self._map[tuple(target)] == _WALL:
            return
        self._position = target
        pad = int(self._map[tuple(target)])
        if pad >= 0 and (not self._history or self._history[-1] != pad):
            self._history.append(pad)

    def _solved(self) -> bool:
        return list(self._history) == list(range(self._pads))

    def _image(self) -> Array:
        room = self._background.copy()
        room[tuple(self._position)] = _AGENT
        history = np.full((2, _COLUMNS), _EMPTY)
        for i, pad in enumerate(self._history):
            history[:, 2 * i : 2 * i + 2] = pad
        cells = np.concatenate([room, _paint(history)])  # [16, 16, 3]
        return cells.repeat(_CELL, axis=0).repeat(_CELL, axis=1)


def _make_map(pads: list[str]) -> Array:
    cells = np.full((_ROWS, _COLUMNS), _WALL)
    cells[1:-1, 1:-1] = _FLOOR
    for number, place in enumerate(pads):
        rows = _PAD_ROWS[place.strip("we")]
        columns = _PAD_COLUMNS[place.strip("ns")]
        cells[slice(*rows), slice(*columns)] = number
    return cells


def _paint(cells: Array) -> Array:
    """From numbers [rows, columns] to colours uint8 [rows, columns, 3]."""
    return np.array([[_COLOURS[x] for x in row] for row in cells.tolist()], np.uint8)
