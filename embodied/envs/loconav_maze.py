"""The mazes of LocoNav and the task to walk through them, on dm_control's locomotion library.

This module imports dm_control, so that `mujoco_gl.load` has to import it.
"""

from __future__ import annotations

import importlib
from typing import Any

from dm_control import composer, mjcf
from dm_control.locomotion.arenas import mazes
from dm_control.locomotion.props import target_sphere
from dm_control.locomotion.tasks import random_goal_maze
from dm_control.locomotion.walkers import ant, base, legacy_base
from dm_control.suite import common, quadruped

from ..core.base import Array

# P is where the walker starts and G where it has to go; a * is a wall.
LAYOUTS = {
    "empty": """
*******
*G    *
*     *
*     *
*     *
*    P*
*******
""",
    "maze_s": """
*****
*G* *
* *P*
*   *
*****
""",
    "maze_m": """
*******
*G    *
***** *
*P  * *
* * * *
* *   *
*******
""",
    "maze_l": """
*********
*G  *   *
*** * * *
*   * * *
* *** * *
* *   * *
* * *** *
*     *P*
*********
""",
    "maze_xl": """
***********
*G    *   *
* *** * * *
* *P* * * *
* * * * * *
* * *   * *
*** ***** *
*   *     *
* *** *** *
*     *   *
***********
""",
}
TIME_LIMITS = {"empty": 20, "maze_s": 30, "maze_m": 60, "maze_l": 90, "maze_xl": 120}  # seconds

_CELL = 2.5  # metres
_WALL_HEIGHT = 1.5  # metres
_COLORS = {  # of the walls in the four quarters of a maze, so that images tell where one is
    "1": (0.8, 0.3, 0.3),
    "2": (0.3, 0.7, 0.3),
    "3": (0.3, 0.4, 0.8),
    "4": (0.8, 0.7, 0.2),
}


def make(walker: str, layout: str, seed: int) -> Any:
    """Builds the `dm_env.Environment`.

    Args:
      walker: a key of `WALKERS`.
      layout: a key of `LAYOUTS`.
      seed: of the directions in which the walker starts.
    """
    task = GoalMaze(WALKERS[walker](), _arena(LAYOUTS[layout]))
    return composer.Environment(
        task,
        time_limit=TIME_LIMITS[layout],
        random_state=seed,
        recompile_mjcf_every_episode=False,
        strip_singleton_obs_buffer_dim=True,
    )


def color_walls(layout: str) -> str:
    """The layout with the number of its quarter for every wall."""
    rows = layout.strip().split("\n")
    half = len(rows) / 2
    return "".join(
        "".join(
            str(1 + 2 * (i > half) + (j > half)) if cell == "*" else cell
            for j, cell in enumerate(row)
        )
        + "\n"
        for i, row in enumerate(rows)
    )


def _arena(layout: str) -> Any:
    labmaze = importlib.import_module("labmaze")
    text = color_walls(layout)
    return mazes.MazeWithTargets(
        labmaze.FixedMazeWithRandomGoals(text, num_spawns=1, num_objects=1),
        xy_scale=_CELL,
        z_height=_WALL_HEIGHT,
        wall_textures={k: _Texture(v, f"wall{k}") for k, v in _COLORS.items() if k in text},
        floor_textures=_Texture((0.4, 0.4, 0.4), "floor"),
    )


class GoalMaze(random_goal_maze.NullGoalMaze):
    """Pays 1 and ends when the walker touches the goal; ends without when it lies on its back."""

    def __init__(self, walker: Any, arena: Any):
        super().__init__(
            walker,
            arena,
            contact_termination=False,
            physics_timestep=0.005,
            control_timestep=0.02,
        )
        walker.observables.egocentric_camera.enabled = False
        self.camera = walker.egocentric_camera.full_identifier
        self._target = target_sphere.TargetSphere(radius=0.6, height_above_ground=0.6)
        arena.attach(self._target)

    def initialize_episode_mjcf(self, random_state: Any) -> None:
        """Places the goal."""
        super().initialize_episode_mjcf(random_state)
        frame = mjcf.get_attachment_frame(self._target.mjcf_model)
        frame.pos = self._maze_arena.target_positions[0]

    def initialize_episode(self, physics: Any, random_state: Any) -> None:
        """Places the walker at the start, in any direction."""
        super().initialize_episode(physics, random_state)
        self._target.reset(physics)

    def should_terminate_episode(self, physics: Any) -> bool:
        """Whether the goal is reached or the walker lies on its back."""
        return self._target.activated or super().should_terminate_episode(physics)

    def get_discount(self, physics: Any) -> float:
        """0 where the episode terminates; asked for before `should_terminate_episode`."""
        return 0.0 if self.should_terminate_episode(physics) else 1.0

    def get_reward(self, physics: Any) -> float:
        """1 where the goal is reached."""
        return float(self._target.activated)


class _Texture(composer.Entity):
    """One texture with a checkerboard of a colour, so that motion is visible."""

    def _build(self, color: tuple[float, float, float], name: str) -> None:
        self._mjcf_root = mjcf.RootElement(model=name)
        texture = self._mjcf_root.asset.add(
            "texture",
            type="2d",
            name="texture",
            builtin="checker",
            rgb1=color,
            rgb2=[0.8 * x for x in color],
            width=100,
            height=100,
        )
        # One texture alone: the arena draws among several from NumPy's global generator.
        self.textures = [texture]

    @property
    def mjcf_model(self) -> Any:
        return self._mjcf_root


class _Quadruped(legacy_base.Walker):
    """The quadruped of the DeepMind Control suite as a walker."""

    def _build(self, name: str = "walker") -> None:
        super()._build()
        self._mjcf_root = root = mjcf.from_xml_string(quadruped.make_model(), assets=common.ASSETS)
        root.model = name
        # The arena has its own floor, sky and settings.
        root.find("geom", "floor").remove()
        root.find("joint", "root").remove()
        for texture in root.asset.find_all("texture"):
            if texture.type == "skybox":
                texture.remove()
        root.visual.remove()
        root.option.remove()

    def _build_observables(self) -> Any:
        return legacy_base.WalkerObservables(self)

    @property
    def mjcf_model(self) -> Any:
        return self._mjcf_root

    @property
    def upright_pose(self) -> Any:
        return base.WalkerPose(xpos=(0, 0, 0.57))

    @composer.cached_property
    def actuators(self) -> Any:
        return self._mjcf_root.find_all("actuator")

    @composer.cached_property
    def root_body(self) -> Any:
        return self._mjcf_root.find("body", "torso")

    @composer.cached_property
    def observable_joints(self) -> Any:
        return self._mjcf_root.find_all("joint")

    @composer.cached_property
    def end_effectors(self) -> Any:
        return [x for x in self._mjcf_root.find_all("body") if x.name.startswith("toe_")]

    @composer.cached_property
    def ground_contact_geoms(self) -> Any:
        return [geom for body in self.end_effectors for geom in body.find_all("geom")]

    @composer.cached_property
    def egocentric_camera(self) -> Any:
        return self._mjcf_root.find("camera", "egocentric")

    def aliveness(self, physics: Any) -> Array:
        """From 0 for upright to -1 for upside down."""
        return (physics.bind(self.root_body).xmat[-1] - 1) / 2


WALKERS = {"ant": ant.Ant, "quadruped": _Quadruped}
