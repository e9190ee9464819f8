"""Selectors: which of the replay's items to draw; an item is its address in a `Table`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .errors import ConfigError, ReplayError
from .sumtree import SumTree
from .table import Table


class Selector:
    """Draws items of one replay, which tells it of every item that comes and goes.

    Each selector has its own random generator. All calls come under the replay's lock.

    Args:
      seed: of the random generator.
    """

    def __init__(self, seed: int = 0):
        self._rng = np.random.default_rng(seed)
        self._bound: Table | None = None

    @property
    def table(self) -> Table:
        """The table of the replay that the selector belongs to."""
        assert self._bound is not None
        return self._bound

    def bind(self, table: Table) -> None:
        """Joins the selector to a replay's table, once and before anything is stored."""
        if self._bound is not None:
            raise ConfigError("This selector belongs to a replay already: make one per replay.")
        self._bound = table

    def open(self, slot: int) -> None:
        """A new chunk has taken the slot: nothing is known of its steps yet."""

    def insert(self, address: int) -> None:
        """An item has entered the table."""

    def evict(self, address: int) -> None:
        """The item, the oldest one, has left the table."""

    def sample(self, batch: int) -> np.ndarray:
        """Draws int64 [batch] addresses of live items, of which there is at least one."""
        raise NotImplementedError

    def prioritize(self, addresses: np.ndarray, priorities: np.ndarray) -> None:
        """Sets the priorities [N] of the steps at the addresses [N]; the last of equals wins."""

    def save(self, slots: np.ndarray) -> dict[str, Any]:
        """Random state, and what is known of the chunks in these slots, in this order."""
        return {"random": self._rng.bit_generator.state}

    def load(self, data: Mapping[str, Any], slots: np.ndarray) -> None:
        """Restores `save`; `slots` says where the chunks of then are now, -1 for nowhere."""
        self._rng.bit_generator.state = data["random"]


class Fifo(Selector):
    """Always the oldest item."""

    def sample(self, batch: int) -> np.ndarray:
        """See the class."""
        return self.table.items(np.full(batch, self.table.first))


class Uniform(Selector):
    """Every live item with the same probability, independently."""

    def sample(self, batch: int) -> np.ndarray:
        """See the class."""
        return self.table.items(self._rng.integers(self.table.first, self.table.stop, batch))


class Recency(Selector):
    """An item of age a, where the newest has age 0, with probability proportional to uprobs[a].

    Items older than `len(uprobs)` are not drawn; while there are fewer items than that, the
    probabilities of the ages that exist are scaled to sum to one.

    Args:
      uprobs: non-negative weights by age, the first one positive.
      seed: of the random generator.
    """

    def __init__(self, uprobs: Any, seed: int = 0):
        super().__init__(seed)
        weights = np.asarray(uprobs, np.float64)
        if weights.ndim != 1 or not len(weights) or not np.isfinite(weights).all():
            raise ConfigError(
                f"Recency got weights of shape {weights.shape}: it needs one finite number an age."
            )
        if (weights < 0).any() or weights[0] <= 0:
            raise ConfigError(
                f"Recency got weights of which the first is {weights[0]} and the least "
                f"{weights.min()}: none may be negative and the first must be positive."
            )
        self._sums = np.cumsum(weights)

    def sample(self, batch: int) -> np.ndarray:
        """See the class."""
        sums = self._sums[: len(self.table)]
        # The strict bound keeps rounding from reaching an age without weight.
        draws = np.minimum(self._rng.random(batch) * sums[-1], np.nextafter(sums[-1], 0))
        ages = np.searchsorted(sums, draws, side="right")
        return self.table.items(self.table.stop - 1 - ages)


class Prioritized(Selector):
    """An item with probability proportional to its weight, independently within a batch.

    The weight is `maxfrac * max(p ** exponent) + (1 - maxfrac) * mean(p ** exponent)` over the
    priorities p of the steps in the item's window, overlapping windows sharing the priorities of
    their steps. While items of infinite weight exist, one of them is drawn, each with the same
    probability. If all weights are zero, every item has the same probability.

    Args:
      exponent: see above; at 0, priorities other than 0 make no difference.
      maxfrac: see above, from 0 to 1.
      initial: priority of a new step; infinite to draw new items first.
      zero_on_sample: whether the steps of drawn items get priority zero after every batch, until
        they are given another.
      branching: children per node of the sum tree.
      seed: of the random generator.
    """

    def __init__(
        self,
        exponent: float = 1.0,
        maxfrac: float = 0.0,
        initial: float = 1.0,
        zero_on_sample: bool = False,
        branching: int = 16,
        seed: int = 0,
    ):
        super().__init__(seed)
        for name, value, valid, right in [
            ("exponent", exponent, exponent >= 0, "at least 0"),
            ("maxfrac", maxfrac, 0 <= maxfrac <= 1, "from 0 to 1"),
            ("initial", initial, initial >= 0, "at least 0"),
            ("branching", branching, branching >= 2, "at least 2"),
        ]:
            if not valid:
                raise ConfigError(f"Prioritized got {name} {value}: it must be {right}.")
        self._exponent = exponent
        self._maxfrac = maxfrac
        self._initial = self._power(np.float64(initial))
        self._zero_on_sample = zero_on_sample
        self._steps = np.zeros(0, np.float32)  # p ** exponent by address
        self._finite = SumTree(branching, np.float64)
        self._infinite = SumTree(branching, np.int64)
        self._stale: list[int] = []

    def open(self, slot: int) -> None:
        """See the base class."""
        size, chunksize = len(self.table.live), self.table.chunksize
        if len(self._steps) < size:
            grown = np.zeros(size, np.float32)
            grown[: len(self._steps)] = self._steps
            self._steps = grown
            self._finite.resize(size)
            self._infinite.resize(size)
        self._steps[slot * chunksize : (slot + 1) * chunksize] = self._initial

    def insert(self, address: int) -> None:
        """See the base class."""
        self._touch(address)

    def evict(self, address: int) -> None:
        """See the base class."""
        self._touch(address)

    def sample(self, batch: int) -> np.ndarray:
        """See the class."""
        self._flush()
        if self._infinite.total:
            addresses = self._infinite.sample(self._rng.random(batch))
        elif self._finite.total:
            addresses = self._finite.sample(self._rng.random(batch))
        else:
            numbers = self._rng.integers(self.table.first, self.table.stop, batch)
            addresses = self.table.items(numbers)
        if self._zero_on_sample:
            windows = self.table.walk(addresses[:, None], np.arange(self.table.length)).reshape(-1)
            self.prioritize(windows, np.zeros(windows.shape))
        return addresses

    def prioritize(self, addresses: np.ndarray, priorities: np.ndarray) -> None:
        """See the base class."""
        if not len(addresses):
            return
        self._steps[addresses] = self._power(priorities)
        starts = self._starts(np.unique(addresses))
        self._refresh(starts[self.table.live[starts]])

    def save(self, slots: np.ndarray) -> dict[str, Any]:
        """See the base class."""
        steps = self._steps.reshape(-1, self.table.chunksize)
        return {**super().save(slots), "steps": steps[slots]}

    def load(self, data: Mapping[str, Any], slots: np.ndarray) -> None:
        """See the base class."""
        super().load(data, slots)
        steps = self._steps.reshape(-1, self.table.chunksize)
        for slot, saved in zip(slots, data["steps"], strict=True):
            if slot >= 0:
                width = min(len(saved), self.table.chunksize)
                steps[slot, :width] = saved[:width]
        self._stale.clear()
        for start in range(self.table.first, self.table.stop, 4096):
            numbers = np.arange(start, min(start + 4096, self.table.stop))
            self._refresh(self.table.items(numbers))

    def _power(self, priorities: Any) -> Any:
        # Zero means "never" at every exponent, and only infinity itself is infinite.
        with np.errstate(over="ignore"):
            powers = np.where(priorities > 0, np.power(priorities, self._exponent), 0)
        finite = np.minimum(powers, np.finfo(np.float32).max)
        return np.where(np.isinf(priorities), np.inf, finite).astype(np.float32)

    def _touch(self, address: int) -> None:
        # Weights are brought up to date many at a time, which costs a fraction of one by one.
        self._stale.append(address)
        if len(self._stale) >= 4096:
            self._flush()

    def _flush(self) -> None:
        if self._stale:
            self._refresh(np.unique(self._stale))
            self._stale.clear()

    def _refresh(self, starts: np.ndarray) -> None:
        weights = np.zeros(len(starts))
        live = self.table.live[starts]
        weights[live] = self._weights(starts[live])
        infinite = np.isinf(weights)
        self._infinite.set(starts, infinite)
        self._finite.set(starts, np.where(infinite, 0, weights))

    def _weights(self, starts: np.ndarray) -> np.ndarray:
        table, length = self.table, self.table.length
        slots, index = np.divmod(starts, table.chunksize)
        whole = index + length <= table.span[slots]
        windows = np.empty((len(starts), length), np.float32)
        if whole.any():
            strided = np.lib.stride_tricks.sliding_window_view(self._steps, length)
            windows[whole] = strided[starts[whole]]
        if not whole.all():
            steps = table.walk(starts[~whole, None], np.arange(length))
            windows[~whole] = self._steps[steps]
        weights = np.zeros(len(starts))
        # Only terms that count: 0 * inf is not a number.
        if self._maxfrac > 0:
            weights += self._maxfrac * windows.max(1).astype(np.float64)
        if self._maxfrac < 1:
            weights += (1 - self._maxfrac) * windows.mean(1, dtype=np.float64)
        return weights

    def _starts(self, addresses: np.ndarray) -> np.ndarray:
        # Of the sorted steps: the starts of all windows that contain one, run by run.
        breaks = (np.diff(addresses) != 1) | (addresses[1:] % self.table.chunksize == 0)
        heads = addresses[np.append(True, breaks)]
        counts = addresses[np.append(breaks, True)] - heads + self.table.length
        ends = np.cumsum(counts)
        offsets = np.arange(ends[-1]) - np.repeat(ends - counts, counts) - self.table.length + 1
        starts = self.table.walk(np.repeat(heads, counts), offsets)
        return starts[starts >= 0]


class Mixture(Selector):
    """Each draw comes from one of several selectors, which is chosen by its fraction.

    Args:
      selectors: the parts by name.
      fractions: probability of each part by the same names; they sum to one. A part with
        fraction zero is left out.
      seed: of the random generator.
    """

    def __init__(
        self, selectors: Mapping[str, Selector], fractions: Mapping[str, float], seed: int = 0
    ):
        super().__init__(seed)
        if selectors.keys() != fractions.keys():
            raise ConfigError(
                f"Mixture got selectors {sorted(selectors)} and fractions for "
                f"{sorted(fractions)}: the names must be the same."
            )
        if min(fractions.values(), default=0) < 0 or abs(sum(fractions.values()) - 1) > 1e-6:
            raise ConfigError(
                f"Mixture got the fractions {dict(fractions)}: they must be non-negative and "
                "sum to one."
            )
        self._parts = {k: v for k, v in selectors.items() if fractions[k] > 0}
        probs = np.array([fractions[key] for key in self._parts])
        self._probs = probs / probs.sum()

    def bind(self, table: Table) -> None:
        """See the base class."""
        super().bind(table)
        for part in self._parts.values():
            part.bind(table)

    def open(self, slot: int) -> None:
        """See the base class."""
        for part in self._parts.values():
            part.open(slot)

    def insert(self, address: int) -> None:
        """See the base class."""
        for part in self._parts.values():
            part.insert(address)

    def evict(self, address: int) -> None:
        """See the base class."""
        for part in self._parts.values():
            part.evict(address)

    def sample(self, batch: int) -> np.ndarray:
        """See the class."""
        choice = self._rng.choice(len(self._parts), batch, p=self._probs)
        addresses = np.empty(batch, np.int64)
        for index, part in enumerate(self._parts.values()):
            mask = choice == index
            if mask.any():
                addresses[mask] = part.sample(int(mask.sum()))
        return addresses

    def prioritize(self, addresses: np.ndarray, priorities: np.ndarray) -> None:
        """See the base class."""
        for part in self._parts.values():
            part.prioritize(addresses, priorities)

    def save(self, slots: np.ndarray) -> dict[str, Any]:
        """See the base class."""
        parts = {key: part.save(slots) for key, part in self._parts.items()}
        return {**super().save(slots), "parts": parts}

    def load(self, data: Mapping[str, Any], slots: np.ndarray) -> None:
        """See the base class."""
        if data["parts"].keys() != self._parts.keys():
            raise ReplayError(
                f"The saved replay drew by {sorted(data['parts'])}, this one draws by "
                f"{sorted(self._parts)}: use the same fractions."
            )
        super().load(data, slots)
        for key, part in self._parts.items():
            part.load(data["parts"][key], slots)
