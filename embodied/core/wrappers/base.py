"""The base of all wrappers."""

from __future__ import annotations

from typing import Any

from ..base import Data, Env, Spaces


class Wrapper(Env):
    """Passes everything on to the wrapped environment; the base of all wrappers.

    Args:
      env: the environment to wrap.
    """

    def __init__(self, env: Env):
        self.env = env

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    @property
    def obs_space(self) -> Spaces:
        """The spaces of the observations."""
        return self.env.obs_space

    @property
    def act_space(self) -> Spaces:
        """The spaces of the actions."""
        return self.env.act_space

    def step(self, action: Data) -> Data:
        """Steps the wrapped environment; see `Env.step`."""
        return self.env.step(action)

    def close(self) -> None:
        """Closes the wrapped environment."""
        self.env.close()
