"""What the functions for sections of `pure.npz` share.

Such a function gets a section's numbers, those of the whole file, and the groups of the pattern
that matched the section's name; it reads the inputs and returns the outputs by their names.
"""

from collections.abc import Callable
from typing import Any

import jax
import ninjax as nj

from .reference import Numbers

# A number in the name of a section.
NUMBER = r"([\d.e-]+)"

Section = Callable[..., dict[str, Any]]


def run(make: Callable, x: Numbers, *args: Any, call: Callable | None = None, name: str = "m"):
    """Builds a module and calls it on arrays, with the parameters of a section."""

    def fun(*args):
        module = make(name=name)
        return call(module, *args) if call else module(*args)

    return nj.pure(fun)(x.under("param/").read(), *args)[1]


def grad(fun: Callable, *args: Any) -> Any:
    """Gradient of a sum with respect to the first argument."""
    return jax.grad(lambda *xs: fun(*xs).sum())(*args)
