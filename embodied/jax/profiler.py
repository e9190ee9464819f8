"""A profile of a few updates, to see where their time goes."""

from __future__ import annotations

from pathlib import Path

import jax

_FIRST, _LAST = 5, 8  # Calls; the first ones compile.


class Profiler:
    """Records a few calls of a function into `<logdir>/profiler`, for TensorBoard or Perfetto."""

    def __init__(self, logdir: str):
        self._folder = Path(logdir).expanduser() / "profiler"
        self._calls = 0

    def step(self) -> None:
        """Begins or ends the recording if it is time; to be called before every call."""
        if self._calls == _FIRST:
            jax.profiler.start_trace(str(self._folder))
        elif self._calls == _LAST:
            jax.profiler.stop_trace()
            print(f"A profile of {_LAST - _FIRST} updates is in {self._folder}.")
        self._calls += 1
