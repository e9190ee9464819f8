"""Vector environments of Gymnasium: many environments that are stepped at once."""

from __future__ import annotations

from typing import Any

import elements
import numpy as np

from ..core import masks
from ..core.base import Array, BatchedEnv, Data, Spaces
from ..core.errors import EnvError, SpaceError
from .adapter import flag_spaces
from .gymspaces import OWN_OBS, FlatSpace


class GymnasiumVector(BatchedEnv):
    """Makes an `embodied.BatchedEnv` of a vector environment of Gymnasium.

    Observations and actions are those of `Gymnasium`, without rendered frames. All three
    autoreset modes are understood, and each gives the last observation of an episode as well as
    the first of the next:

    - NEXT_STEP: the vector environment itself starts an episode at the step after the last.
    - SAME_STEP: the last observation comes from `final_obs`. The next episode, which began
      already, is begun again at the next step.
    - DISABLED: finished environments are reset before they are stepped.

    A vector environment always steps all its environments. One that has to start an episode while
    others go on is therefore stepped with them and then reset alone, which Gymnasium's own
    classes, and all whose mode is DISABLED, can do by the option `reset_mask`. The action of that
    step has no effect; it is 0, or the first class that is allowed by whatever may be a mask:
    observations of booleans or 0 and 1 that have one entry per class.

    Attributes:
      length: the number of environments E.
      resets_alone: whether an episode can begin in the middle of another, in one of them alone.

    Args:
      env: the vector environment.
      seed: given to the first reset; the environment of number i gets the seed plus i.
      ignore: regular expression of the observation keys to leave out, such as those of texts.
      bounds: whether floats outside their bounds are errors; without, float vectors have none.

    Raises:
      EnvError: if it is of an unknown kind whose mode is SAME_STEP.
      SpaceError: if one of its spaces is not supported.
    """

    def __init__(self, env: Any, seed: int = 0, ignore: str = "", bounds: bool = True):
        from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

        self._env = env
        self.length = int(env.num_envs)
        mode = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self._next_step = mode == AutoresetMode.NEXT_STEP
        self._disabled = mode == AutoresetMode.DISABLED
        own = isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        self.resets_alone = own or self._disabled
        if not self.resets_alone and not self._next_step:
            raise EnvError(
                f"The vector environment {type(env.unwrapped).__name__} resets in the step that "
                "ends an episode: make it with the autoreset mode NEXT_STEP or DISABLED."
            )
        self._obs = FlatSpace(
            env.single_observation_space,
            "vector",
            "observation",
            OWN_OBS,
            ignore,
            bounds and not _of_gymnasium(env.get_attr("spec")[0] if own else env.spec),
            "custom",
        )
        self._act = FlatSpace(env.single_action_space, "action", "action", ("reset",))
        if shared := self._obs.spaces.keys() & self._act.spaces.keys():
            raise SpaceError(f"The key {min(shared)!r} is both an observation and an action.")
        self._masks = {
            key: [k for k, v in self._obs.spaces.items() if masks.fits(v, space)]
            for key, space in self._act.spaces.items()
        }
        self._present: Data = {}  # the masks in the states that the next step begins from
        self._seed: int | None = seed
        self._over = np.ones(self.length, bool)  # who starts an episode at the next step

    @property
    def obs_space(self) -> Spaces:
        """The environment's observations, reward and flags."""
        return {**self._obs.spaces, **flag_spaces()}

    @property
    def act_space(self) -> Spaces:
        """The environment's actions and `reset`."""
        return {**self._act.spaces, "reset": elements.Space(bool)}

    def step(self, action: Data) -> Data:
        """Steps or resets every environment; see `BatchedEnv.step`.

        Raises:
          EnvError: if a single environment shall start anew in the middle of an episode and the
            vector environment cannot do that.
        """
        first = action["reset"] | self._over
        if first.all():
            seed, self._seed = self._seed, None
            value, _ = self._env.reset(seed=seed)
            obs = self._encode(value)
            self._note_masks(obs)
            return self._observe(obs, first, *np.zeros((3, self.length)))
        again = first & ~self._over if self._next_step else first
        if again.any() and not self.resets_alone:
            raise EnvError(
                f"The vector environment {type(self._env.unwrapped).__name__} cannot start a new "
                f"episode in its environment {again.argmax()} while others are in the middle of "
                "theirs: make it with the autoreset mode DISABLED, or reset all at once."
            )
        if self._over.any() and self._disabled:
            self._reset(self._over)
        value, *results, info = self._env.step(self._act.decode(self._legal(action, first)))
        obs = self._encode(value)
        self._note_masks(obs)
        for lane in np.flatnonzero(info.get("_final_obs", ())):
            for key, last in self._obs.encode(info["final_obs"][lane]).items():
                obs[key][lane] = last
        if again.any():
            for key, fresh in self._reset(again).items():
                obs[key][again] = fresh[again]
        return self._observe(obs, first, *results)

    def close(self) -> None:
        """Closes the environments."""
        self._env.close()

    def _reset(self, lanes: Array) -> Data:
        obs = self._encode(self._env.reset(options={"reset_mask": lanes.copy()})[0])
        for key, mask in self._present.items():
            mask[lanes] = obs[key][lanes]
        return obs

    def _note_masks(self, obs: Data) -> None:
        self._present = {k: obs[k].copy() for keys in self._masks.values() for k in keys}

    def _encode(self, value: Any) -> Data:
        return {k: np.array(v) for k, v in self._obs.encode(value).items()}

    def _legal(self, action: Data, ignored: Array) -> Data:
        """The actions, with legal ones in place of those that have no effect."""
        legal = {}
        for key, space in self._act.spaces.items():
            legal[key] = action[key].copy()
            legal[key][ignored] = np.clip(0, space.low, space.high)
            if self._masks[key]:
                allowed = masks.existing(space)
                for mask in self._masks[key]:
                    allowed = masks.restrict(allowed, self._present[mask])
                legal[key][ignored] = allowed.argmax(-1)[ignored]
        return legal

    def _observe(
        self, obs: Data, first: Array, reward: Array, terminated: Array, truncated: Array
    ) -> Data:
        terminal = np.asarray(terminated, bool) & ~first
        self._over = terminal | (np.asarray(truncated, bool) & ~first)
        return {
            **obs,
            "reward": np.where(first, 0, reward).astype(np.float32),
            "is_first": first,
            "is_last": self._over.copy(),
            "is_terminal": terminal,
        }


def _of_gymnasium(spec: Any) -> bool:
    """Whether an environment is one of Gymnasium's own, whose bounds are estimates."""
    return str(getattr(spec, "entry_point", "")).startswith("gymnasium.")
