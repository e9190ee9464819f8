"""What every adapter of a suite needs: flags of an observation, checks, the package's import."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import elements
import numpy as np

from ..core.base import Data, Spaces
from ..core.errors import EnvError, MissingPackageError
from ..core.spaces import LEAST_IMAGE_SIDE


def flag_spaces() -> Spaces:
    """The spaces of the reward and of the three flags that every observation has."""
    return {
        "reward": elements.Space(np.float32),
        "is_first": elements.Space(bool),
        "is_last": elements.Space(bool),
        "is_terminal": elements.Space(bool),
    }


def flags(
    reward: Any = 0.0, first: bool = False, last: bool = False, terminal: bool = False
) -> Data:
    """The values that belong to `flag_spaces`; a terminal step has to be a last one too."""
    return {
        "reward": np.float32(reward),
        "is_first": np.bool_(first),
        "is_last": np.bool_(last),
        "is_terminal": np.bool_(terminal),
    }


def image_size(size: tuple[int, int], least: int = LEAST_IMAGE_SIDE) -> tuple[int, int]:
    """The height and width that an option asks for.

    Args:
      size: the value of the option.
      least: smallest height and width; what is smaller than its default is no image to the agent.

    Raises:
      EnvError: if they are no two numbers of at least that.
    """
    if len(size) != 2 or min(size) < least:
        raise EnvError(
            f"The size {size} is not a height and a width: both must be at least {least}."
        )
    return size[0], size[1]


def check_options(repeat: int, length: int, size: tuple[int, int]) -> None:
    """Checks the options of environments of any origin.

    Args:
      repeat: how many times every action is taken.
      length: steps after which episodes are cut off; 0 for no such limit.
      size: height and width that images are resized to; zeros for as they are.

    Raises:
      EnvError: with the first that is wrong.
    """
    if repeat < 1:
        raise EnvError(f"The action repeat is {repeat}, but must be at least 1.")
    if length < 0:
        raise EnvError(f"The time limit is {length} steps: use 0 for the environment's own.")
    if len(size) != 2 or (any(size) and min(size) < LEAST_IMAGE_SIDE):
        raise EnvError(
            f"The size {list(size)} is no height and width: use two numbers of at least "
            f"{LEAST_IMAGE_SIDE}, or [0, 0] for images as they are."
        )


def class_actions(count: int) -> Spaces:
    """The space of an `action` that is one of `count` classes, and that of `reset`."""
    return {"action": elements.Space(np.int32, (), 0, count), "reset": elements.Space(bool)}


def require(module: str, suite: str, install: str) -> ModuleType:
    """Imports a module of a suite's package.

    Args:
      module: dotted name.
      suite: name of the suite, for the error.
      install: what follows `pip install` to get the package.

    Raises:
      MissingPackageError: if the package, or one that it needs, is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = (error.name or module).split(".")[0]
        raise MissingPackageError(f"the suite {suite!r}", package, install) from error
