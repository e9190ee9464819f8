"""The base of all wrappers."""

from __future__ import annotations

from typing import Any

from ..base import BatchedEnv, Data, Env, Spaces
from ..errors import EnvError


class Wrapper(Env):
    """Passes everything on to the wrapped environment; the base of all wrappers.

    A wrapper that treats every number by itself works around an `embodied.BatchedEnv` as well,
    whose `length` is then its own. One that does not sets `batched` to False.

    Args:
      env: the environment to wrap.

    Raises:
      EnvError: if the environment is a batch and the wrapper cannot take one.
    """

    batched = True  # whether it can wrap a batch of environments

    def __init__(self, env: Env | BatchedEnv):
        if not self.batched and batch_length(env) is not None:
            raise EnvError(
                f"{type(self).__name__} takes one environment and no batch of "
                f"{batch_length(env)}: wrap the environments before they are put together."
            )
        self.env = env
        if isinstance(env, BatchedEnv):
            self.__class__ = _batched_class(type(self))

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


def batch_length(env: Env | BatchedEnv) -> int | None:
    """The number E of environments in an `embodied.BatchedEnv`, wrapped or not; else None."""
    return env.length if isinstance(env, BatchedEnv) else None


def _batched_class(cls: type[Wrapper]) -> type[Wrapper]:
    """The same class, of which every object is an `embodied.BatchedEnv` too."""
    return type(cls.__name__, (cls, BatchedEnv), {"__module__": cls.__module__})
