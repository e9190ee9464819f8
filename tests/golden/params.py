"""Updated parameters against the reference, with allowance for gradients at noise level.

An update is the gradient divided by the root of its mean square. Where a gradient is nothing but
rounding, that is a sign at random: there, parameters may differ by twice the learning rate per
update, and the momentum by the greatest difference of two signs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .reference import Numbers
from .report import Report

TOLERANCE = 1e-4

# A gradient below this share of its tensor's greatest one is taken to be rounding: sums in
# float32 are exact to some 1e-7 of their greatest terms, so that it has not three digits left.
NOISE = 1e-4

SQUARES, MOMENTUM = "opt/state/1/1/", "opt/state/2/1/"


def compare(
    group: str, state: Mapping[str, Any], want: Numbers, rates: Sequence[float], report: Report
) -> None:
    """Compares the state after `len(rates)` updates, made with these learning rates."""
    errors, problems, values, excused = {}, [], 0, 0
    for name in want:
        expected = want[name]
        values += expected.size
        found = np.asarray(state[name]) if name in state else None
        if found is None or found.shape != expected.shape:
            problems.append(f"{name} is {'missing' if found is None else found.shape}")
            continue
        slack, name_of = _slack(name, sum(rates))
        noise = np.zeros(expected.shape, bool)
        if slack and SQUARES + name_of in state:
            size = np.sqrt(np.asarray(state[SQUARES + name_of], np.float64))
            noise = size <= NOISE * size.max()
        off = np.abs(found.astype(np.float64) - expected)
        excused += int((noise & (off > TOLERANCE * np.abs(expected).max(initial=0))).sum())
        off = np.where(noise, np.maximum(off - slack, 0), off)
        errors[name] = _relative(off, expected)
    missing = sorted(set(state) - set(want)) if any(k.startswith("opt/") for k in want) else []
    problems += [f"{k} is not in the reference" for k in missing]
    group += f" ({excused} signs of noise)" if excused else ""
    report.add(group, values, errors, TOLERANCE, problems)


def _slack(name, moved):
    """How far an entry with a random gradient may be off, and the parameter it belongs to."""
    if name.startswith(MOMENTUM):
        return 2.0, name.removeprefix(MOMENTUM)
    if name.startswith("opt/"):
        return 0.0, name
    return 2 * moved, name.replace("slowval/", "val/", 1)


def _relative(off, expected):
    if np.issubdtype(expected.dtype, np.integer):
        return float(np.inf if off.any() else 0)
    size = np.abs(expected).max(initial=np.finfo(np.float64).tiny)
    return float(off.max(initial=0.0) / size) if off.any() else 0.0
