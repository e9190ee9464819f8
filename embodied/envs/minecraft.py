"""Minecraft through MineRL 0.4: https://minerl.readthedocs.io/en/v0.4.4.

Not run against the real package, which needs Java and a release of gym that no longer installs:
this follows its documentation, and the tests use a stand-in that speaks its interface.
"""

from __future__ import annotations

from typing import Any

import elements
import numpy as np

from ..core.base import Array, Data, Env, Spaces
from ..core.errors import EnvError
from . import unknown
from .adapter import class_actions, flag_spaces, flags, image_size
from .minecraft_spec import EQUIPMENT, ITEMS, make_minerl

# What each action does, in the terms of MineRL. Camera: degrees of pitch and yaw.
_ACTIONS: dict[str, dict[str, Any]] = {
    "noop": {},
    "attack": {"attack": 1},
    "turn_up": {"camera": (-15, 0)},
    "turn_down": {"camera": (15, 0)},
    "turn_left": {"camera": (0, -15)},
    "turn_right": {"camera": (0, 15)},
    "forward": {"forward": 1},
    "back": {"back": 1},
    "left": {"left": 1},
    "right": {"right": 1},
    "jump": {"jump": 1, "forward": 1},
    "place_dirt": {"place": "dirt"},
    "place_crafting_table": {"place": "crafting_table"},
    "place_furnace": {"place": "furnace"},
    "craft_planks": {"craft": "planks"},
    "craft_stick": {"craft": "stick"},
    "craft_crafting_table": {"craft": "crafting_table"},
    "craft_wooden_pickaxe": {"nearbyCraft": "wooden_pickaxe"},
    "craft_stone_pickaxe": {"nearbyCraft": "stone_pickaxe"},
    "craft_iron_pickaxe": {"nearbyCraft": "iron_pickaxe"},
    "craft_furnace": {"nearbyCraft": "furnace"},
    "smelt_iron_ingot": {"nearbySmelt": "iron_ingot"},
    "equip_wooden_pickaxe": {"equip": "wooden_pickaxe"},
    "equip_stone_pickaxe": {"equip": "stone_pickaxe"},
    "equip_iron_pickaxe": {"equip": "iron_pickaxe"},
}
_MILESTONES = [
    *("log", "planks", "stick", "crafting_table", "wooden_pickaxe", "cobblestone"),
    *("stone_pickaxe", "iron_ore", "furnace", "iron_ingot", "iron_pickaxe", "diamond"),
]
_LIFE, _FOOD, _AIR = 20.0, 20.0, 300.0  # when full
_PER_LIFE_POINT = 0.01  # reward
_PITCH = 60  # degrees up and down that the agent can look
_JUMP_STEPS = 10  # that a jump is held, so that it leads up a block
_ATTACK_STEPS = 30  # that an attack is held, so that it breaks a block, at the normal speed


class Minecraft(Env):
    """Makes an `embodied.Env` of the task to find a diamond, from the start in a new world.

    Each of the twelve items on the way pays 1 when it first lies in the inventory in an episode;
    every point of life won or lost pays or costs 0.01. Death ends an episode terminally; the
    time limit, or the server, not terminally.

    Observations are the `image`; `inventory` and `inventory_max`, the count of each item, now and
    at most so far in the episode; `equipped`, the item in the hand as a class; and `health`,
    `hunger` and `breath`, from 0 to 1.

    Args:
      task: "diamond".
      size: height and width of the image.
      break_speed: how many times faster than normal blocks break. At the normal speed of 1, an
        attack is held until a block breaks.
      logs: whether to log which items were obtained in the episode so far, from which `Episodes`
        computes success rates.
      length: actions per episode.
      seed: any non-negative number; each episode's world follows from it.

    Raises:
      EnvError: if the task does not exist or length or size are not positive.
      MissingPackageError: if minerl is not installed.
    """

    def __init__(
        self,
        task: str,
        size: tuple[int, int] = (64, 64),
        break_speed: float = 100.0,
        logs: bool = True,
        length: int = 36_000,
        seed: int = 0,
    ):
        if task != "diamond":
            raise unknown("task of Minecraft", task, ["diamond"])
        if length < 1:
            raise EnvError(f"The option length is {length}, but must be at least 1.")
        self._size = image_size(size)
        self._env = make_minerl(self._size, break_speed)
        self._controls = _Controls(self._env.action_space.noop(), hold_attack=break_speed == 1)
        self._log_keys = {f"log/achievement_{x}": x for x in _MILESTONES} if logs else {}
        self._length = length
        self._rng = np.random.default_rng(seed)
        self._steps = 0
        self._life = _LIFE
        self._most = np.zeros(len(ITEMS), np.float32)
        self._over = True

    @property
    def obs_space(self) -> Spaces:
        """Image, inventory and so on, reward, flags and perhaps what is logged."""
        counts = elements.Space(np.float32, (len(ITEMS),), 0)
        return {
            "image": elements.Space(np.uint8, (*self._size, 3)),
            "inventory": counts,
            "inventory_max": counts,
            "equipped": elements.Space(np.int32, (), 0, len(EQUIPMENT)),
            **{k: elements.Space(np.float32, (), 0, 1) for k in ("health", "hunger", "breath")},
            **flag_spaces(),
            **{k: elements.Space(np.float32, (), 0, 1) for k in self._log_keys},
        }

    @property
    def act_space(self) -> Spaces:
        """One of 25 actions, and `reset`."""
        return class_actions(len(_ACTIONS))

    def step(self, action: Data) -> Data:
        """Takes the action or starts an episode in a new world; see `Env.step`."""
        if action["reset"] or self._over:
            self._env.seed(int(self._rng.integers(2**31)))
            raw = self._env.reset()
            self._controls.reset()
            self._steps = 0
            self._over = False
            self._most = _inventory(raw)
            self._life = float(raw["life_stats"]["life"])
            return {**self._observe(raw), **flags(first=True)}
        raw, _, done, _ = self._env.step(self._controls(int(action["action"])))
        self._steps += 1
        reward = self._reward(raw)
        dead = self._life <= 0
        self._over = dead or bool(done) or self._steps >= self._length
        return {**self._observe(raw), **flags(reward, False, self._over, dead)}

    def close(self) -> None:
        """Ends the game's process."""
        self._env.close()

    def _reward(self, raw: Data) -> float:
        """Takes note of items and life; returns what has changed for the better."""
        before, self._most = self._most, np.maximum(self._most, _inventory(raw))
        new = sum(before[i] == 0 < self._most[i] for i in map(ITEMS.index, _MILESTONES))
        life, self._life = self._life, float(raw["life_stats"]["life"])
        return float(new) + _PER_LIFE_POINT * (self._life - life)

    def _observe(self, raw: Data) -> Data:
        item, stats = str(raw["equipped_items"]["mainhand"]["type"]), raw["life_stats"]
        levels = {
            "health": stats["life"] / _LIFE,
            "hunger": stats["food"] / _FOOD,
            "breath": stats["air"] / _AIR,
        }
        return {
            "image": np.array(raw["pov"], np.uint8),
            "inventory": _inventory(raw),
            "inventory_max": self._most.copy(),
            "equipped": np.int32(EQUIPMENT.index(item if item in EQUIPMENT else "other")),
            **{k: np.float32(np.clip(v, 0, 1)) for k, v in levels.items()},
            **{k: np.float32(self._most[ITEMS.index(x)] > 0) for k, x in self._log_keys.items()},
        }


class _Controls:
    """From the number of an action to what MineRL takes.

    Jumps, and attacks if wanted, are held for some steps whatever is chosen next; an attack keeps
    the agent from jumping. The pitch stays within its limits.

    Args:
      noop: MineRL's action of doing nothing, with all its keys.
      hold_attack: whether to hold attacks.
    """

    def __init__(self, noop: Data, hold_attack: bool):
        self._noop = noop
        self._attack_steps = _ATTACK_STEPS if hold_attack else 1
        self.reset()

    def reset(self) -> None:
        """Lets go of everything and looks straight ahead, as at the start of an episode."""
        self._attack = self._jump = 0
        self._pitch = 0.0

    def __call__(self, action: int) -> Data:
        """Returns the action for MineRL."""
        chosen = list(_ACTIONS.values())[action]
        self._attack = self._attack_steps if chosen.get("attack") else max(0, self._attack - 1)
        self._jump = _JUMP_STEPS if chosen.get("jump") else max(0, self._jump - 1)
        raw = {**self._noop, **chosen}
        if self._attack:
            raw |= {"attack": 1, "jump": 0}
        elif self._jump:
            raw |= {"jump": 1, "forward": 1}
        pitch, yaw = chosen.get("camera", (0, 0))
        if abs(self._pitch + pitch) > _PITCH:
            pitch = 0
        self._pitch += pitch
        raw["camera"] = np.array([pitch, yaw], np.float32)
        return raw


def _inventory(raw: Data) -> Array:
    """The count of each item, float32 [items]."""
    return np.array([raw["inventory"][x] for x in ITEMS], np.float32)
