"""Ends a run by a signal without losing anything."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Interrupt:
    """While it is entered, the first SIGTERM or SIGINT is a request; the second one kills.

        with Interrupt() as interrupt:
            while not interrupt.requested:
                work()
            save()

    Outside of the main thread, where Python takes no signals, it changes nothing.

    Attributes:
      requested: whether the program has been asked to end.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._handle) for s in _SIGNALS}
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.requested = True
        name = signal.Signals(number).name
        text = f"\n{name}: saving and ending the run; a second signal ends it at once.\n"
        # Not `print`, which must not be interrupted by itself.
        with contextlib.suppress(OSError):
            os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, text.encode())
