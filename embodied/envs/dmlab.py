"""The levels of DMLab-30: https://github.com/google-deepmind/lab.

Not run against the real package, which has to be built from source with Bazel: this follows the
documentation of its Python interface, and the tests use a stand-in that speaks it.
"""

from __future__ import annotations

import re
import zlib
from typing import Any

import elements
import numpy as np

from ..core.base import Array, Data, Env, Spaces
from ..core.errors import EnvError
from . import unknown
from .adapter import class_actions, flag_spaces, flags, image_size, require

_INSTALL = (
    "deepmind_lab-1.0-py3-none-any.whl  # built as python/pip_package/README.md in "
    "https://github.com/google-deepmind/lab says"
)
_LEVELS = """
explore_goal_locations_large explore_goal_locations_small explore_object_locations_large
explore_object_locations_small explore_object_rewards_few explore_object_rewards_many
explore_obstructed_goals_large explore_obstructed_goals_small
language_answer_quantitative_question language_execute_random_task
language_select_described_object language_select_located_object lasertag_one_opponent_large
lasertag_one_opponent_small lasertag_three_opponents_large lasertag_three_opponents_small
natlab_fixed_large_map natlab_varying_map_randomized natlab_varying_map_regrowth
psychlab_arbitrary_visuomotor_mapping psychlab_continuous_recognition
psychlab_sequential_comparison psychlab_visual_search rooms_collect_good_objects_test
rooms_collect_good_objects_train rooms_exploit_deferred_effects_test
rooms_exploit_deferred_effects_train rooms_keys_doors_puzzle rooms_select_nonmatching_object
rooms_watermaze skymaze_irreversible_path_hard skymaze_irreversible_path_varied
"""
_HELD_OUT = {"allowHoldOutLevels": "true", "mixerSeed": str(0x600D5EED)}
# The 15 actions of Hessel et al. 2018, "Multi-task Deep Reinforcement Learning with PopArt": look
# right and look up, in pixels per frame; strafe right, move forward, fire.
_ACTIONS = (
    (0, 0, 0, 1, 0),
    (0, 0, 0, -1, 0),
    (0, 0, -1, 0, 0),
    (0, 0, 1, 0, 0),
    (-10, 0, 0, 0, 0),
    (10, 0, 0, 0, 0),
    (-60, 0, 0, 0, 0),
    (60, 0, 0, 0, 0),
    (0, 10, 0, 0, 0),
    (0, -10, 0, 0, 0),
    (-10, 0, 0, 1, 0),
    (10, 0, 0, 1, 0),
    (-60, 0, 0, 1, 0),
    (60, 0, 0, 1, 0),
    (0, 0, 0, 0, 1),
)
_CONTROLS = (
    "LOOK_LEFT_RIGHT_PIXELS_PER_FRAME",
    "LOOK_DOWN_UP_PIXELS_PER_FRAME",
    "STRAFE_LEFT_RIGHT",
    "MOVE_BACK_FORWARD",
    "FIRE",
)
_WORDS, _WORD_SIZE = 16, 16  # of an instruction that are kept; of the code of a word


class DMLab(Env):
    """Makes an `embodied.Env` of a level of DMLab-30.

    The levels with a language task have an observation `instr` [16, 16] in addition, which holds
    a fixed random code for each of the first 16 words. A finished level shows nothing any more:
    the last observation of an episode repeats the image before it.

    Args:
      level: name of the level, e.g. "explore_goal_locations_small". Those that end in "_test"
        use the levels that are held out from training.
      size: height and width of the image.
      repeat: frames that every action is held for; the rewards are summed.
      episodic: whether the end of an episode is terminal, as the published results have it.
        Levels do not say whether their time has run out or their goal is reached; it is mostly
        the time.
      use_seed: whether levels follow from the seed; else DMLab chooses them.
      seed: any non-negative number.

    Raises:
      EnvError: if the level does not exist or an option is wrong.
      MissingPackageError: if deepmind_lab is not installed.
    """

    def __init__(
        self,
        level: str,
        size: tuple[int, int] = (64, 64),
        repeat: int = 4,
        episodic: bool = True,
        use_seed: bool = True,
        seed: int = 0,
    ):
        if level not in _LEVELS.split():
            raise unknown("level of DMLab", level, _LEVELS.split())
        if repeat < 1:
            raise EnvError(f"The option repeat is {repeat}, but must be at least 1.")
        lab = require("deepmind_lab", "dmlab", _INSTALL)
        self._language = level.startswith("language_")
        self._size = height, width = image_size(size)
        config = {"height": str(height), "width": str(width), "logLevel": "WARN"}
        self._env = lab.Lab(
            f"contributed/dmlab30/{level}",
            ["RGB_INTERLEAVED", *(["INSTR"] if self._language else [])],
            config={**config, **(_HELD_OUT if level.endswith("_test") else {})},
        )
        self._actions = _raw_actions(self._env.action_spec())
        self._repeat = repeat
        self._episodic = episodic
        self._rng = np.random.default_rng(seed) if use_seed else None
        self._over = True
        self._frame: Data = {}

    @property
    def obs_space(self) -> Spaces:
        """The image, perhaps the instruction, reward and flags."""
        spaces = {"image": elements.Space(np.uint8, (*self._size, 3))}
        if self._language:
            spaces["instr"] = elements.Space(np.float32, (_WORDS, _WORD_SIZE))
        return {**spaces, **flag_spaces()}

    @property
    def act_space(self) -> Spaces:
        """One of 15 actions, and `reset`."""
        return class_actions(len(self._actions))

    def step(self, action: Data) -> Data:
        """Holds the action for `repeat` frames, or starts an episode; see `Env.step`."""
        if action["reset"] or self._over:
            seed = None if self._rng is None else int(self._rng.integers(2**31))
            self._env.reset(seed=seed)
            self._over = False
            self._frame = self._observe()
            return {**self._frame, **flags(first=True)}
        raw = self._actions[action["action"]]
        reward = self._env.step(raw, num_steps=self._repeat)
        self._over = not self._env.is_running()
        if not self._over:
            self._frame = self._observe()
        terminal = self._over and self._episodic
        return {**self._frame, **flags(reward, False, self._over, terminal)}

    def close(self) -> None:
        """Frees the level."""
        self._env.close()

    def _observe(self) -> Data:
        values = self._env.observations()
        obs = {"image": np.array(values["RGB_INTERLEAVED"])}
        if self._language:
            obs["instr"] = _encode(values["INSTR"])
        return obs


def _raw_actions(spec: list[dict[str, Any]]) -> Array:
    """The actions [15, controls] in the order of the controls in DMLab's specification."""
    names = [x["name"] for x in spec]
    actions = np.zeros((len(_ACTIONS), len(names)), np.intc)
    actions[:, [names.index(x) for x in _CONTROLS]] = _ACTIONS
    return actions


def _encode(instruction: str | bytes) -> Array:
    """A fixed random code for each of the first words; zeros where there are none."""
    text = instruction.decode() if isinstance(instruction, bytes) else str(instruction)
    codes = np.zeros((_WORDS, _WORD_SIZE), np.float32)
    for i, word in enumerate(re.findall(r"\w+", text.lower())[:_WORDS]):
        rng = np.random.default_rng(zlib.crc32(word.encode()))
        codes[i] = rng.standard_normal(_WORD_SIZE)
    return codes
