"""The JAX runtime: the agent's outer wrapper, sharded transformations, layers and optimizer.

Knows JAX and no Dreamer. Subclass `Agent` to write a model; the modules load when first used.
"""

import importlib
from typing import Any

from .agent import Agent as Agent

_MODULES = ("blocks", "heads", "internal", "nets", "opt", "outs", "transform", "utils")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
