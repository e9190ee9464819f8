"""Collects metrics and hands them to outputs, none of which can stop the training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import elements
import numpy as np

log = logging.getLogger(__name__)

Value = str | int | float | np.ndarray
Metric = tuple[int, str, Value]  # step, name, value
Output = Callable[[list[Metric]], Any]


class Logger:
    """Gives every metric its step and writes them to all outputs.

    An output that raises is named once per kind of error and tried again at every write; what
    it failed to write is lost to it alone.

    Args:
      step: the run's step counter; read whenever metrics are added.
      outputs: callables that take a list of (step, name, value); one with a `close()` is closed
        at the end.
      multiplier: environment frames per step, for environments that repeat actions.
    """

    def __init__(self, step: elements.Counter, outputs: Iterable[Output], multiplier: int = 1):
        self.step = step
        self._outputs = list(outputs)
        self._multiplier = multiplier
        self._metrics: list[Metric] = []
        self._reported: set[tuple[str, str]] = set()

    def add(self, mapping: Mapping[str, Any], prefix: str | None = None) -> None:
        """Keeps metrics for the next write.

        Args:
          mapping: by name: a string; a number; or an array that is a vector [N] (a histogram),
            an image [H, W] or [H, W, C], or a video [T, H, W, C].
          prefix: put before each name, with a slash.

        Raises:
          ValueError: if a value is of another kind.
        """
        step = int(self.step) * self._multiplier
        for name, value in mapping.items():
            name = f"{prefix}/{name}" if prefix else name
            self._metrics.append((step, name, _convert(name, value)))

    def write(self) -> None:
        """Hands the metrics since the last write to every output."""
        metrics, self._metrics = self._metrics, []
        if metrics:
            for output in self._outputs:
                self._guard(output, output, metrics)

    def close(self) -> None:
        """Writes what is left and closes the outputs."""
        self.write()
        for output in self._outputs:
            self._guard(output, getattr(output, "close", lambda: None))

    def _guard(self, output: Output, fn: Callable, *args: Any) -> None:
        try:
            fn(*args)
        except Exception as e:
            name = getattr(output, "__name__", type(output).__name__)
            kind = (name, type(e).__name__)
            if kind not in self._reported:
                self._reported.add(kind)
                text = "Logging to %s failed (%s: %s); training goes on, each write tries again."
                log.warning(text, *kind, e)


class Aggregate:
    """Brings the metrics of many updates down to one value each.

    Numbers are averaged, and one that is not finite makes the mean not finite; vectors are
    joined, up to a limit; of strings, images and videos the last one stays.

    Args:
      limit: greatest length of a joined vector.
    """

    def __init__(self, limit: int = 100_000):
        self._limit = limit
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._vectors: dict[str, np.ndarray] = {}
        self._last: dict[str, Any] = {}

    def add(self, mapping: Mapping[str, Any], prefix: str | None = None) -> None:
        """Takes in metrics, as `Logger.add` does."""
        for name, value in mapping.items():
            name = f"{prefix}/{name}" if prefix else name
            ndim = -1 if isinstance(value, str) else np.ndim(value)
            if ndim == 0:
                self._sums[name] = self._sums.get(name, 0.0) + float(value)
                self._counts[name] = self._counts.get(name, 0) + 1
            elif ndim == 1:
                joined = [self._vectors[name], value] if name in self._vectors else [value]
                self._vectors[name] = np.concatenate(joined)[: self._limit]
            else:
                self._last[name] = value

    def save(self) -> dict[str, Any]:
        """What was taken in since the last result."""
        return {
            "sums": dict(self._sums),
            "counts": dict(self._counts),
            "vectors": dict(self._vectors),
            "last": dict(self._last),
        }

    def load(self, data: Mapping[str, Any]) -> None:
        """Continues from what `save` returned."""
        self._sums, self._counts = dict(data["sums"]), dict(data["counts"])
        self._vectors, self._last = dict(data["vectors"]), dict(data["last"])

    def result(self) -> dict[str, Any]:
        """Returns one value for each name and starts anew."""
        means = {name: total / self._counts[name] for name, total in self._sums.items()}
        result = {**means, **self._vectors, **self._last}
        for part in (self._sums, self._counts, self._vectors, self._last):
            part.clear()
        return result


def _convert(name: str, value: Any) -> Value:
    if isinstance(value, str):
        return value
    array = np.asarray(value)
    if array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    if array.dtype.kind not in "biuf" or array.ndim > 4:
        raise ValueError(
            f"The metric {name!r} has type {array.dtype} and shape {array.shape}; it should be a "
            "string, a number, a vector, an image [H, W, C] or a video [T, H, W, C]."
        )
    return array.item() if array.ndim == 0 else array
