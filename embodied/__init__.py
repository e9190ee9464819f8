"""A small runtime for embodied agents: environments, drivers, replay, streams and run loops."""

from .core.base import Agent, Env, Stream, agent_spaces
from .core.errors import EmbodiedError
