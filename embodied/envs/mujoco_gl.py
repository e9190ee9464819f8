"""How MuJoCo finds a graphics library: dm_control and Gymnasium load one when it is needed."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from types import ModuleType

from ..core.errors import EnvError, MissingPackageError


@contextlib.contextmanager
def graphics(render: bool) -> Iterator[None]:
    """Sets which graphics library is loaded inside: none if not needed, EGL without a display.

    What the user has set as MUJOCO_GL counts before that, and is set again afterwards.
    """
    chosen = os.environ.get("MUJOCO_GL")
    backend = chosen
    if not render:
        backend = "disable"
    elif not chosen and sys.platform == "linux" and "DISPLAY" not in os.environ:
        backend = "egl"
    if backend:
        os.environ["MUJOCO_GL"] = backend
    try:
        yield
    finally:
        if chosen is None:
            os.environ.pop("MUJOCO_GL", None)
        else:
            os.environ["MUJOCO_GL"] = chosen


def load(module: str, suite: str, install: str, render: bool) -> ModuleType:
    """Imports a module that imports dm_control, with graphics or without.

    Args:
      module: dotted name.
      suite: name of the suite, for errors.
      install: what follows `pip install` to get the packages of the suite.
      render: whether anything will be rendered.

    Raises:
      EnvError: if the machine cannot render.
      MissingPackageError: if a package is not installed.
    """
    with graphics(render):
        try:
            loaded = importlib.import_module(module)
            _choose_renderer(render)
        except ModuleNotFoundError as error:
            package = (error.name or module).split(".")[0]
            if package in ("OpenGL", "glfw"):
                raise rendering_error(error) from error
            raise MissingPackageError(f"the suite {suite!r}", package, install) from error
        except (ImportError, AttributeError, RuntimeError) as error:
            raise rendering_error(error) from error
    return loaded


def rendering_error(error: Exception) -> EnvError:
    """The error for a machine that cannot render, given what went wrong."""
    return EnvError(
        f"MuJoCo cannot render here ({type(error).__name__}: {error}): set MUJOCO_GL=egl, "
        "which needs the Debian packages libegl1 and libgl1, or MUJOCO_GL=osmesa, which needs "
        "libosmesa6."
    )


def _choose_renderer(render: bool) -> None:
    """Lets dm_control choose again if it was first imported where no rendering was wanted."""
    renderer = importlib.import_module("dm_control._render")
    if render and renderer.BACKEND in renderer.constants.NO_RENDERER:
        importlib.reload(renderer)
