"""DreamerV3: reinforcement learning by imagination in a learned world model."""

from typing import Any

__version__ = "3.0.0"


def __getattr__(name: str) -> Any:
    # Importing the agent loads JAX, which the command line and worker processes do without.
    if name == "Agent":
        from .agent import Agent

        return Agent
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
