"""A small runtime for embodied agents: environments, drivers, replay, streams and run loops.

    import embodied

    driver = embodied.Driver([make_env] * 4)
    replay = embodied.Replay(length=64)
    driver.on_step(replay.add)

It knows numpy and no JAX; `embodied.jax` is imported by those who want it.
"""

from .core import clock, limiters, selectors, streams, wrappers
from .core.base import Agent, BatchedEnv, Env, Stream, agent_spaces
from .core.checkpoint import Checkpoint
from .core.driver import Driver
from .core.episodes import Episodes
from .core.errors import EmbodiedError
from .core.logger import Logger
from .core.random import RandomAgent
from .core.replay import Replay
from .core.wrappers import Wrapper
