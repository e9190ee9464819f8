"""Atari games through ale-py, which brings the games along: https://ale.farama.org."""

from __future__ import annotations

import collections
from typing import Any

import elements
import numpy as np

from ..core.base import Array, Data, Env, Spaces
from ..core.errors import EnvError
from . import unknown
from .adapter import class_actions, flag_spaces, flags, require
from .images import make_resize

_LIVES = ("unused", "discount", "reset")
_STICKINESS = 0.25  # chance that a frame repeats the action of the frame before


class Atari(Env):
    """Makes an `embodied.Env` of an Atari game; the defaults are the protocol of 200M frames.

    An episode is a game, unless `lives` says otherwise. It ends terminally with the game, and
    not terminally at the time limit.

    Args:
      game: name of the game, e.g. "pong" or "ms_pacman".
      size: height and width of the image; the games' own is [210, 160], for most of them.
      repeat: frames that every action is held for; the rewards are summed.
      sticky: whether each frame repeats the previous frame's action with a chance of 25%.
      gray: whether the image shows the luminance, in one channel, or colours, in three.
      actions: "all" for the 18 actions, "needed" for those that do something in this game.
      lives: what a lost life means. "unused": nothing. "discount": it ends the episode
        terminally, and the game goes on in the next episode, so that an episode's score is that
        of one life. "reset": it ends the episode terminally and the game with it.
      noops: most frames without action at the start of a game; their number is random.
      autostart: whether to press fire and then up at the start of an episode.
      pooling: newest frames that make up an image, all from the current episode.
      aggregate: how they do: "max", or "mean".
      resize: "pillow" or "opencv"; see `make_resize`.
      clip_reward: whether to give only the sign of the reward.
      length: frames after which a game is cut off.
      seed: any number of 32 bits.

    Raises:
      EnvError: if the game does not exist or an option is wrong.
      MissingPackageError: if ale-py or the library that resizes is not installed.
    """

    def __init__(
        self,
        game: str,
        size: tuple[int, int] = (96, 96),
        repeat: int = 4,
        sticky: bool = True,
        gray: bool = True,
        actions: str = "all",
        lives: str = "unused",
        noops: int = 30,
        autostart: bool = False,
        pooling: int = 2,
        aggregate: str = "max",
        resize: str = "pillow",
        clip_reward: bool = False,
        length: int = 108_000,
        seed: int = 0,
    ):
        _check("actions", actions, ("all", "needed"))
        _check("lives", lives, _LIVES)
        _check("aggregate", aggregate, ("max", "mean"))
        for option, value, least in [
            ("repeat", repeat, 1),
            ("pooling", pooling, 1),
            ("length", length, 1),
            ("noops", noops, 0),
        ]:
            if value < least:
                raise EnvError(f"The option {option} is {value}, but must be at least {least}.")
        self._resize = make_resize(resize, size, "atari")
        self._ale = _load(game, sticky, seed)
        self._size = tuple(size)
        self._repeat = repeat
        self._gray = gray
        all_actions = actions == "all"
        ale = self._ale
        self._actions = ale.getLegalActionSet() if all_actions else ale.getMinimalActionSet()
        self._lives_mode = lives
        self._noops = noops
        self._autostart = autostart
        self._aggregate = aggregate
        self._clip = clip_reward
        self._length = length
        self._rng = np.random.default_rng(seed)
        self._frames: collections.deque[Array] = collections.deque(maxlen=pooling)
        self._lives = 0
        self._duration = 0
        self._over = True
        self._game_goes_on = False

    @property
    def obs_space(self) -> Spaces:
        """The image, reward and flags."""
        shape = (*self._size, 1 if self._gray else 3)
        return {"image": elements.Space(np.uint8, shape), **flag_spaces()}

    @property
    def act_space(self) -> Spaces:
        """One of the joystick's actions, and `reset`."""
        return class_actions(len(self._actions))

    def step(self, action: Data) -> Data:
        """Holds the action for `repeat` frames, or starts an episode; see `Env.step`."""
        if action["reset"] or self._over:
            self._start()
            return self._observe(0.0, first=True)
        reward, terminal = 0.0, False
        for _ in range(self._repeat):
            reward += self._advance(self._actions[action["action"]])
            self._duration += 1
            terminal = self._ale.game_over() or self._life_ends()
            self._over = terminal or self._duration >= self._length
            if self._over:
                break
        self._game_goes_on = (
            terminal
            and self._lives_mode == "discount"
            and not self._ale.game_over()
            and self._duration < self._length
        )
        return self._observe(np.sign(reward) if self._clip else reward, terminal=terminal)

    def _start(self) -> None:
        if self._over and self._game_goes_on:
            self._clear_frames()
        else:
            self._start_game()
        if self._autostart:
            for button in ("FIRE", "UP"):
                self._advance(self._button(button))
                if self._ale.game_over():
                    self._start_game()
        self._lives = self._ale.lives()
        self._over = False

    def _start_game(self) -> None:
        self._duration = 0
        self._ale.reset_game()
        for _ in range(self._rng.integers(self._noops + 1)):
            self._ale.act(self._button("NOOP"))
            if self._ale.game_over():
                self._ale.reset_game()
        self._clear_frames()

    def _advance(self, action: Any) -> float:
        reward = self._ale.act(action)
        self._frames.append(self._screen())
        return reward

    def _clear_frames(self) -> None:
        self._frames.clear()
        self._frames.append(self._screen())

    def _screen(self) -> Array:
        if self._gray:
            return self._ale.getScreenGrayscale()[..., None]
        return self._ale.getScreenRGB()

    def _life_ends(self) -> bool:
        before, self._lives = self._lives, self._ale.lives()
        # Games show no lives for some frames before they are over, which ends them anyway.
        return self._lives_mode != "unused" and 0 < self._lives < before

    def _button(self, name: str) -> Any:
        return next(x for x in self._ale.getLegalActionSet() if x.name == name)

    def _observe(self, reward: float, first: bool = False, terminal: bool = False) -> Data:
        if self._aggregate == "max":
            image = np.max(self._frames, axis=0)
        else:
            image = np.rint(np.mean(self._frames, axis=0)).astype(np.uint8)
        return {
            "image": self._resize(image),
            **flags(reward, first, self._over, terminal),
        }


def _check(option: str, value: str, valid: tuple[str, ...]) -> None:
    if value not in valid:
        choice = ", ".join(repr(x) for x in valid)
        raise EnvError(f"The option {option} is {value!r}, but must be one of {choice}.")


def _load(game: str, sticky: bool, seed: int) -> Any:
    ale_py = require("ale_py", "atari", "'dreamerv3[atari]'")
    roms = require("ale_py.roms", "atari", "'dreamerv3[atari]'")
    ids = roms.get_all_rom_ids()
    # Some benchmarks write james_bond or river_raid where the ROMs are jamesbond and riverraid.
    rom = {x.replace("_", ""): x for x in ids}.get(game.replace("_", ""))
    if rom is None:
        raise unknown("game of Atari", game, ids)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.setInt("random_seed", seed % 2**31)
    ale.setFloat("repeat_action_probability", _STICKINESS if sticky else 0.0)
    ale.loadROM(roms.get_rom_path(rom))
    return ale
