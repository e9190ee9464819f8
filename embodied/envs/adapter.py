"""What every adapter of a suite needs: flags of an observation, checks, the package's import."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import elements
import numpy as np

from ..core.base import Data, Spaces
from ..core.errors import EnvError, MissingPackageError


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


def image_size(size: tuple[int, int]) -> tuple[int, int]:
    """The height and width that an option asks for.

    Raises:
      EnvError: if they are no two positive numbers.
    """
    if len(size) != 2 or min(size) < 1:
        raise EnvError(f"The size {size} is not a height and a width: both must be at least 1.")
    return size[0], size[1]


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
