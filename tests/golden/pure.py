"""Pure functions and single layers against `pure.npz`.

Every section of the file has a function, found by the section's name; see `sections.py`.
"""

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from . import pure_dreamer, pure_nets, pure_opt, pure_outs
from .reference import Numbers
from .report import Report, error

SECTIONS = {**pure_nets.SECTIONS, **pure_outs.SECTIONS, **pure_dreamer.SECTIONS}
TOLERANCE = 1e-5

# Sections whose entries do not add up terms of both signs, so that each is exact by itself; of the
# activations, those down to 1, since the tails of some are differences.
EACH = r"symlog|symexp|twohot_bins\d+|act|slow_.*"
FLOOR = {"act": 1.0}

# Stacks of layers that magnify rounding a thousandfold, by norms of two channels that nearly
# cancel. Run operation by operation as the reference was, they are equal to it where processors
# round alike; elsewhere they are held to ten times what other rounding of the inputs changes.
STACKS = r"(encoder|decoder)_.*"
ROUNDING = 6e-8


def compare(numbers: Numbers, report: Report, exact: bool = True) -> None:
    """Compares all sections; float32 must be the compute dtype.

    Args:
      numbers: of `pure.npz`.
      report: gets a line per section.
      exact: whether stacks are run operation by operation, which takes longer.
    """
    for section in numbers.heads():
        if section == "opt":
            pure_opt.compare(numbers.under("opt/"), report, TOLERANCE)
            continue
        view = numbers.under(section + "/")
        function = _find(section)
        if function is None:
            continue
        stack, tolerance = bool(re.fullmatch(STACKS, section)), TOLERANCE
        with jax.disable_jit(stack and exact):
            got = jax.jit(lambda: function(view, numbers))()  # noqa: B023
        names = [k for k in view if k in got]
        each, floor = bool(re.fullmatch(EACH, section)), FLOOR.get(section, 0.0)
        if stack:
            other = Numbers(_rounded(view)).under(view.prefix)
            with jax.disable_jit(exact):
                again = jax.jit(lambda: function(other, numbers))()  # noqa: B023
            tolerance = max(tolerance, *(10 * error(again[k], got[k]) for k in names))
        report.compare(
            f"pure/{section}", got, view, tolerance, names=names, each=each, floor=floor
        )


def _rounded(view):
    """The arrays below a view, with floats changed at random by what float32 cannot hold."""
    rng, found = np.random.default_rng(0), {}
    for key in view:
        value = view.all[view.prefix + key]
        if value.dtype == np.float32:
            value = value * (1 + ROUNDING * rng.choice([-1, 1], value.shape))
        found[view.prefix + key] = value.astype(view.all[view.prefix + key].dtype)
    return found


def _find(section: str) -> Callable[[Numbers, Numbers], dict[str, Any]] | None:
    for pattern, function in SECTIONS.items():
        match = re.fullmatch(pattern, section)
        if match:
            return functools.partial(_call, function, match.groups())
    return None


def _call(function, groups, x, other):
    return function(x, other, *groups)
