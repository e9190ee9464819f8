"""Streams: endless iterators over batches whose position can be saved."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .base import Data, Stream
from .errors import ConfigError, ReplayError


class Stateless(Stream):
    """Calls a function for every item; there is no position to save.

    Args:
      next_fn: takes nothing and returns the next item.
    """

    def __init__(self, next_fn: Callable[[], Any]):
        self._next_fn = next_fn

    def __next__(self) -> Any:
        return self._next_fn()

    def save(self) -> None:
        """Nothing."""

    def load(self, data: None) -> None:
        """Nothing."""


class Prefetch(Stream):
    """Draws items ahead of time in a thread.

    The thread starts with the first `next` and holds at most `amount` items that are drawn and
    not yet handed out. Since these age, do not prefetch what is needed only now and then.
    An exception of the source or the transform comes out of the `next` that it belongs to; the
    `next` after it tries again.

    Args:
      source: touched by nobody else while the thread runs.
      transform: applied to every item in the thread.
      amount: see above, at least one.
    """

    def __init__(
        self, source: Stream, transform: Callable[[Any], Any] | None = None, amount: int = 1
    ):
        if amount < 1:
            raise ConfigError(f"Prefetch got amount {amount}: it must be at least 1.")
        self._source = source
        self._transform = transform
        self._amount = amount
        self._changed = threading.Condition()
        self._ready: collections.deque[tuple[Any, Any, BaseException | None]] = collections.deque()
        self._thread: threading.Thread | None = None
        self._state: Any = None  # of the source after the last item handed out
        self._stop = False
        self._closed = False

    def __next__(self) -> Any:
        with self._changed:
            if self._closed:
                raise StopIteration
            if self._thread is None:
                self._start()
            self._changed.wait_for(lambda: self._ready or self._closed)
            if self._closed:
                raise StopIteration
            item, state, error = self._ready.popleft()
            if error is not None:
                self._thread = None
                raise error
            self._state = state
            self._changed.notify_all()
            return item

    def save(self) -> Any:
        """The position after the last item handed out: what was drawn ahead will be repeated."""
        with self._changed:
            if self._thread is None and not self._closed:
                return self._source.save()
            return self._state

    def load(self, data: Any) -> None:
        """Discards what was drawn ahead and continues from a saved position."""
        self._end()
        self._source.load(data)

    def close(self) -> None:
        """Ends the thread and the stream, and closes the source if it can be closed.

        A source that does not return from `next` is waited for ten seconds and then left alone.
        """
        with self._changed:
            if not self._closed:
                self._state = self.save()
            self._closed = True
        self._end(timeout=10)
        _close(self._source)

    def _start(self) -> None:
        self._state = self._source.save()
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)
        self._thread.start()

    def _end(self, timeout: float | None = None) -> None:
        with self._changed:
            thread, self._thread, self._stop = self._thread, None, True
            self._changed.notify_all()
        if thread is not None:
            thread.join(timeout)
        self._ready.clear()

    def _run(self) -> None:
        error = None
        while error is None:
            with self._changed:
                self._changed.wait_for(lambda: self._stop or len(self._ready) < self._amount)
                if self._stop:
                    return
            item = state = None
            try:
                item = next(self._source)
                if self._transform is not None:
                    item = self._transform(item)
                state = self._source.save()
            except BaseException as raised:  # handed over to the consumer
                error = raised
            with self._changed:
                self._ready.append((item, state, error))
                self._changed.notify_all()


class Consec(Stream):
    """Cuts each long sequence into consecutive batches.

    Cut i has the steps from `i * length` to `(i + 1) * length + prefix` of a sequence: `length`
    new ones after `prefix` steps of context.

    Args:
      source: batches of arrays [B, consec * length + prefix, ...].
      length: new steps per batch.
      consec: batches per sequence.
      prefix: steps that are shared with the batch before.
      strict: whether a longer sequence is an error; otherwise its rest is left out.
      contiguous: whether the arrays handed out are copied into contiguous memory.

    Returns:
      The arrays [B, T, ...] with T = length + prefix, and `consec` int32 [B, T], the index i.
    """

    def __init__(
        self,
        source: Stream,
        length: int,
        consec: int,
        prefix: int,
        strict: bool = True,
        contiguous: bool = False,
    ):
        if length < 1 or consec < 1 or prefix < 0:
            raise ConfigError(
                f"Consec got length {length}, consec {consec} and prefix {prefix}: they must be "
                "at least 1, 1 and 0."
            )
        self._source = source
        self._length = length
        self._consec = consec
        self._prefix = prefix
        self._strict = strict
        self._contiguous = contiguous
        self._index = 0
        self._current: Data | None = None  # the sequence, while cuts of it are left

    def __next__(self) -> Data:
        if self._current is None:
            self._current = self._check(next(self._source))
            self._index = 0
        start = self._index * self._length
        stop = start + self._length + self._prefix
        batch = {key: value[:, start:stop] for key, value in self._current.items()}
        if self._contiguous:
            batch = {key: np.ascontiguousarray(value) for key, value in batch.items()}
        rows = len(next(iter(batch.values())))
        batch["consec"] = np.full((rows, stop - start), self._index, np.int32)
        self._index += 1
        if self._index == self._consec:
            self._current = None
        return batch

    def save(self) -> Data:
        """The source's position and the sequence, if cuts of it are left."""
        return {"source": self._source.save(), "index": self._index, "current": self._current}

    def load(self, data: Data) -> None:
        """Continues with the cut that comes next."""
        self._source.load(data["source"])
        self._index = int(data["index"])
        self._current = data["current"]

    def close(self) -> None:
        """Closes the source if it can be closed."""
        _close(self._source)

    def _check(self, sequence: Data) -> Data:
        wanted = self._consec * self._length + self._prefix
        if "consec" in sequence:
            raise ReplayError("The key 'consec' of a step is set by the stream: rename it.")
        for key, value in sequence.items():
            found = value.shape[1]
            if found < wanted or (self._strict and found > wanted):
                raise ReplayError(
                    f"A sequence has {found} steps for key {key!r}, but {self._consec} batches of "
                    f"{self._length} steps with {self._prefix} steps of context need {wanted}."
                )
        return sequence


class Zip(Stream):
    """Joins the batches of several streams along the batch axis.

    Args:
      sources: at least one; their batches have the same keys and agree in all but axis 0.
    """

    def __init__(self, sources: Sequence[Stream]):
        if not sources:
            raise ConfigError("Zip got no streams: it needs at least one.")
        self._sources = list(sources)

    def __next__(self) -> Data:
        parts = [next(source) for source in self._sources]
        for part in parts[1:]:
            if part.keys() != parts[0].keys():
                raise ReplayError(
                    f"Streams to be joined have the keys {sorted(parts[0])} and {sorted(part)}: "
                    "they must be the same."
                )
        return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}

    def save(self) -> list[Any]:
        """The positions of all sources."""
        return [source.save() for source in self._sources]

    def load(self, data: Sequence[Any]) -> None:
        """Continues from saved positions."""
        for source, position in zip(self._sources, data, strict=True):
            source.load(position)

    def close(self) -> None:
        """Closes those sources that can be closed."""
        for source in self._sources:
            _close(source)


class Map(Stream):
    """Applies a function to every item.

    Args:
      source: where items come from.
      fn: takes an item and returns what is handed out.
    """

    def __init__(self, source: Stream, fn: Callable[[Any], Any]):
        self._source = source
        self._fn = fn

    def __next__(self) -> Any:
        return self._fn(next(self._source))

    def save(self) -> Any:
        """The source's position."""
        return self._source.save()

    def load(self, data: Any) -> None:
        """Continues from a saved position."""
        self._source.load(data)

    def close(self) -> None:
        """Closes the source if it can be closed."""
        _close(self._source)


class Mixer(Stream):
    """Takes each item from one of several streams, chosen at random.

    Args:
      sources: streams by name.
      weights: non-negative numbers by the same names, to which the probabilities are
        proportional.
      seed: of the random choice.
    """

    def __init__(self, sources: Mapping[str, Stream], weights: Mapping[str, float], seed: int = 0):
        if sources.keys() != weights.keys():
            raise ConfigError(
                f"Mixer got streams {sorted(sources)} and weights for {sorted(weights)}: the "
                "names must be the same."
            )
        if min(weights.values(), default=0) < 0 or not sum(weights.values()) > 0:
            raise ConfigError(
                f"Mixer got the weights {dict(weights)}: none may be negative and one must be "
                "positive."
            )
        self._sources = dict(sources)
        probs = np.array([weights[name] for name in self._sources], np.float64)
        self._probs = probs / probs.sum()
        self._rng = np.random.default_rng(seed)

    def __next__(self) -> Any:
        choice = self._rng.choice(len(self._probs), p=self._probs)
        return next(list(self._sources.values())[choice])

    def save(self) -> Data:
        """The random state and the positions of all sources."""
        sources = {name: source.save() for name, source in self._sources.items()}
        return {"random": self._rng.bit_generator.state, "sources": sources}

    def load(self, data: Data) -> None:
        """Continues from a saved random state and positions."""
        self._rng.bit_generator.state = data["random"]
        for name, source in self._sources.items():
            source.load(data["sources"][name])

    def close(self) -> None:
        """Closes those sources that can be closed."""
        for source in self._sources.values():
            _close(source)


def _close(source: Stream) -> None:
    if close := getattr(source, "close", None):
        close()
