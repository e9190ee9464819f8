"""What the Minecraft task asks of MineRL: its world, observations and commands."""

from __future__ import annotations

from typing import Any

from .adapter import require

_PICKAXES = ["wooden_pickaxe", "stone_pickaxe", "iron_pickaxe"]
ITEMS = [
    *("dirt", "log", "planks", "stick", "crafting_table", "stone", "cobblestone", "furnace"),
    *("coal", "iron_ore", "iron_ingot", "diamond", *_PICKAXES),
]
EQUIPMENT = ["air", "other", *ITEMS]
_KEYS = ["attack", "back", "forward", "jump", "left", "right"]
_INSTALL = "minerl==0.4.4  # with Java 8, and setuptools==65.5.0 to build gym 0.19"


def make_minerl(size: tuple[int, int], break_speed: float) -> Any:
    """Makes the game in MineRL, an environment of the old gym; it starts with its first reset.

    Args:
      size: height and width of the image.
      break_speed: how many times faster than normal blocks break.

    Raises:
      MissingPackageError: if minerl is not installed.
    """
    handlers = require("minerl.herobraine.hero.handlers", "minecraft", _INSTALL)
    keymap = require("minerl.herobraine.hero.mc", "minecraft", _INSTALL).INVERSE_KEYMAP
    base: Any = require("minerl.herobraine.env_spec", "minecraft", _INSTALL).EnvSpec
    handler: Any = require("minerl.herobraine.hero.handler", "minecraft", _INSTALL).Handler
    height, width = size

    class BreakSpeed(handler):
        def to_string(self) -> str:
            return f"break_speed({break_speed})"

        def xml_template(self) -> str:
            return f"<BreakSpeedMultiplier>{break_speed}</BreakSpeedMultiplier>"

    class Spec(base):
        def __init__(self) -> None:
            super().__init__(name="Diamond-v0", max_episode_steps=None)

        def create_agent_start(self) -> list[Any]:
            return [BreakSpeed()]

        def create_observables(self) -> list[Any]:
            return [
                handlers.POVObservation((width, height)),
                handlers.FlatInventoryObservation(ITEMS),
                handlers.EquippedItemObservation(EQUIPMENT, _default="air", _other="other"),
                handlers.ObservationFromLifeStats(),
            ]

        def create_actionables(self) -> list[Any]:
            none = {"_other": "none", "_default": "none"}
            return [
                *(handlers.KeybasedCommandAction(x, keymap[x]) for x in _KEYS),
                handlers.CameraAction(),
                handlers.PlaceBlock(["none", "dirt", "crafting_table", "furnace"], **none),
                handlers.EquipAction(["none", *_PICKAXES], **none),
                handlers.CraftAction(["none", "planks", "stick", "crafting_table"], **none),
                handlers.CraftNearbyAction(["none", *_PICKAXES, "furnace"], **none),
                handlers.SmeltItemNearby(["none", "iron_ingot"], **none),
            ]

        def create_server_world_generators(self) -> list[Any]:
            return [handlers.DefaultWorldGenerator(force_reset=True)]

        def create_server_quit_producers(self) -> list[Any]:
            return [handlers.ServerQuitWhenAnyAgentFinishes()]

        def create_server_initial_conditions(self) -> list[Any]:
            return [
                handlers.TimeInitialCondition(allow_passage_of_time=True, start_time=0),
                handlers.SpawningInitialCondition(allow_spawning=True),
            ]

        def _nothing(self, *args: Any) -> list[Any]:
            return []

        create_agent_handlers = create_monitors = create_rewardables = _nothing
        create_server_decorators = create_mission_handlers = _nothing

        def is_from_folder(self, folder: str) -> bool:
            return False

        def get_docstring(self) -> str:
            return "Find a diamond."

        def determine_success_from_rewards(self, rewards: list[float]) -> bool:
            return True

    return Spec().make()
