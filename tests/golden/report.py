"""The comparison's result: one line per group of quantities, and the verdict."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .reference import Numbers


class Report:
    """Collects groups and prints each as one line.

    Args:
      silent: whether lines are only kept.
    """

    def __init__(self, silent: bool = False) -> None:
        self.silent = silent
        self.lines: list[str] = []
        self.failures: list[str] = []

    def compare(
        self,
        group: str,
        got: Mapping[str, Any],
        want: Numbers,
        tolerance: float,
        *,
        names: Iterable[str] | None = None,
        each: bool = False,
        floor: float = 0.0,
    ) -> None:
        """Compares quantities with their reference, and adds a line.

        Args:
          group: name of the group.
          got: computed values; those that the reference lacks are not looked at.
          want: the reference; a name that is missing in `got` is a failure.
          tolerance: greatest relative error, see `error`.
          names: which of the reference's names, by default all.
          each: see `error`.
          floor: see `error`.
        """
        names = list(want) if names is None else list(names)
        errors, problems, values = {}, [], 0
        for name in names:
            expected = want[name]
            values += expected.size
            if name not in got:
                problems.append(f"{name} is missing")
                continue
            value = np.asarray(got[name])
            if value.shape != expected.shape:
                problems.append(f"{name} has shape {value.shape}, not {expected.shape}")
                continue
            errors[name] = error(value, expected, each, floor)
        self.add(group, values, errors, tolerance, problems)

    def add(
        self,
        group: str,
        values: int,
        errors: Mapping[str, float],
        tolerance: float,
        problems: Iterable[str] = (),
        unit: str = "relative error",
    ) -> None:
        """Adds a line for errors that are known already; any problem is a failure."""
        problems = list(problems)
        worst = max(errors, key=lambda k: errors[k], default="")
        greatest = errors.get(worst, 0.0)
        ok = not problems and greatest <= tolerance
        where = f" at {worst}" if greatest > 0 else ""
        more = f"; {len(problems)} problems: {', '.join(problems[:3])}" if problems else ""
        line = f"{group}: {values} values, worst {unit} {greatest:.1e}{where}, "
        self._print(f"{line}tolerance {tolerance:.0e}, {'ok' if ok else 'FAIL'}{more}")
        if not ok:
            self.failures.append(group)

    def fail(self, group: str, reason: str) -> None:
        """Adds a failure that is not a difference of numbers."""
        self.failures.append(group)
        self._print(f"{group}: FAIL, {reason}")

    def uncompared(self, file: str, names: Iterable[str]) -> None:
        """Says what was found in a file and not looked at, if anything."""
        names = sorted(names)
        if names:
            shown = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
            self._print(f"not compared: {file}: {len(names)} names: {shown}")

    def extend(self, other: "Report", note: str = "") -> None:
        """Takes over another report's lines, each with a note, and failures."""
        self.failures += other.failures
        for line in other.lines:
            self._print(line + note)

    def _print(self, line: str) -> None:
        self.lines.append(line)
        if not self.silent:
            print(line, flush=True)


def error(got: Any, want: Any, each: bool = False, floor: float = 0.0) -> float:
    """Greatest relative error of an array.

    Args:
      got: computed values, of the reference's shape.
      want: the reference.
      each: whether every entry is measured by its own size; otherwise all are measured by the
        greatest entry, as suits entries that are sums of terms of both signs.
      floor: least size by which an error is divided.

    Returns:
      The error, and infinity where kinds, infinite entries, integers or booleans differ.
    """
    got, want = np.asarray(got), np.asarray(want)
    floating = [np.issubdtype(x.dtype, np.floating) for x in (got, want)]
    if not all(floating):
        return 0.0 if not any(floating) and np.array_equal(got, want) else np.inf
    finite = np.isfinite(want)
    if not np.array_equal(got[~finite], want[~finite], equal_nan=True):
        return np.inf
    got, want = got[finite].astype(np.float64), want[finite].astype(np.float64)
    if not want.size:
        return 0.0
    off = np.abs(got - want)
    size = np.maximum(np.abs(want) if each else np.abs(want).max(), floor)
    relative = np.where(off == 0, 0.0, off / np.maximum(size, np.finfo(np.float64).tiny))
    return np.inf if np.isnan(relative).any() else float(relative.max())
