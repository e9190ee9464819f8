"""A replay under random use, kills included, against lists."""

import os
import tempfile

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from embodied.core.codecs import BFloat16, OneHot
from embodied.core.replay import Replay
from embodied.core.selectors import Mixture, Prioritized, Uniform

from .test_replay import sequences, transition

CLASSES = 5
# Every chunk is synced, which takes no time in memory.
FAST = next((path for path in ["/dev/shm"] if os.path.isdir(path)), None)
STEP_BYTES = 4 + 4 + 1 + 1 + 2 + 2 + 20


def context(value):
    """What is written back: a number that bfloat16 holds, and one-hot vectors; 0 are zeros."""
    onehot = np.eye(CLASSES + 1, CLASSES, dtype=np.float32)
    digits = np.array([value % (CLASSES + 1), value // 7 % (CLASSES + 1)])
    return {"deter": np.float32(value), "stoch": onehot[digits - 1]}


class Model(RuleBasedStateMachine):
    """Items are lists of step numbers; `ctx` holds the contexts that a step has had, in order."""

    @initialize(
        length=st.integers(1, 5),
        limit=st.none() | st.integers(1, 12) | st.just("bytes"),
        chunksize=st.integers(1, 6),
        kind=st.sampled_from(["uniform", "prioritized", "mixture"]),
        disk=st.booleans(),
    )
    def start(self, length, limit, chunksize, kind, disk):
        self.folder = tempfile.TemporaryDirectory(dir=FAST)
        self.kind = kind
        self.args = {"length": length, "chunksize": chunksize, "disk": disk}
        # Three workers, each with a chunk being filled and those with the start of a window.
        chunks = 3 * (2 + length // chunksize) + 2
        self.args["max_bytes"] = chunks * chunksize * STEP_BYTES if limit == "bytes" else None
        self.args["capacity"] = limit if limit != "bytes" else None
        self.replay = self.build()
        self.clock = 1
        self.items, self.queue, self.chains = [], [], {}
        self.made = {}  # windows of each worker
        self.ctx, self.stepids = {}, {}
        self.saved = self.begun = self.unfinished = None

    def build(self):
        prio = Prioritized(0.8, 0.5, float("inf"), zero_on_sample=True)
        selector = {
            "uniform": Uniform(),
            "prioritized": prio,
            "mixture": Mixture({"u": Uniform(), "p": prio}, {"u": 0.5, "p": 0.5}),
        }[self.kind]
        codecs = {"deter": BFloat16(), "stoch": OneHot(CLASSES)}
        return Replay(
            **self.args, directory=self.folder.name, online=True, selector=selector, codecs=codecs
        )

    def evict(self):
        # How many chunks a limit of bytes leaves is not modelled: only that the oldest go.
        if self.args["capacity"]:
            del self.items[: -self.args["capacity"]]
        if self.args["max_bytes"]:
            del self.items[: len(self.items) - len(self.replay)]
        self.queue = [window for window in self.queue if window in self.items]

    @rule(worker=st.integers(0, 2), steps=st.integers(1, 8))
    def add(self, worker, steps):
        if worker not in self.chains:
            self.chains[worker] = []
        chain, length = self.chains[worker], self.args["length"]
        for _ in range(steps):
            self.replay.add({**transition(worker, self.clock), **context(0)}, worker)
            self.ctx[self.clock] = [0]
            chain.append(self.clock)
            self.clock += 1
            if len(chain) >= length:
                window = (worker, chain[-length:])
                self.items.append(window)
                if self.made.setdefault(worker, 0) % length == 0:
                    self.queue.append(window)
                self.made[worker] += 1
        self.evict()

    @precondition(lambda self: self.items)
    @rule(batch=st.integers(1, 5), mode=st.sampled_from(["train", "report"]))
    def sample(self, batch, mode):
        data = self.replay.sample(batch, mode)
        drawn = [
            (int(w[0]), s.tolist()) for w, s in zip(data["worker"], data["step"], strict=True)
        ]
        if mode == "train":
            online, self.queue = self.queue[:batch], self.queue[batch:]
            assert drawn[: len(online)] == online
        for row, window in enumerate(drawn):
            assert window in self.items
            for index, step in enumerate(window[1]):
                for key, value in context(self.ctx[step][-1]).items():
                    np.testing.assert_array_equal(data[key][row, index], value)
                self.stepids[step] = data["stepid"][row, index].copy()

    @precondition(lambda self: self.stepids)
    @rule(data=st.data())
    def update(self, data):
        steps = data.draw(st.lists(st.sampled_from(sorted(self.stepids)), max_size=12))
        values = [(self.clock + index) % 250 for index in range(len(steps))]
        stepid = np.array([self.stepids[step] for step in steps], np.uint8).reshape(-1, 20)
        written = {
            key: np.array([context(value)[key] for value in values], np.float32).reshape(
                len(steps), *context(0)[key].shape
            )
            for key in context(0)
        }
        priority = np.array([value % 3 for value in values])
        self.replay.update({"stepid": stepid, **written, "priority": priority})
        for step, value in zip(steps, values, strict=True):
            self.ctx[step].append(value)
        self.clock += len(steps)

    @rule()
    def begin_save(self):
        """What is saved is what there is now."""
        if self.unfinished:
            self.finish_save()
        self.deferred = self.replay.save_later()
        chains = {worker: list(chain) for worker, chain in self.chains.items()}
        ctx = {step: values[-1] for step, values in self.ctx.items()}
        self.begun = list(self.items), list(self.queue), chains, dict(self.made), ctx

    @precondition(lambda self: self.begun)
    @rule(complete=st.booleans())
    def write_save(self, complete):
        """A kill may come between the three steps."""
        self.deferred.write()
        if complete:
            self.complete_save()
        self.begun = None

    def complete_save(self):
        self.saved = self.deferred.tree, *self.begun
        self.unfinished = self.deferred

    @precondition(lambda self: self.unfinished)
    @rule()
    def finish_save(self):
        self.unfinished.done()
        self.unfinished = None

    @rule()
    def save(self):
        self.begin_save()
        self.write_save(complete=True)
        self.finish_save()

    @rule()
    def save_and_restart(self):
        """Goes on as if nothing had been."""
        self.save()
        self.kill()

    @precondition(lambda self: self.saved)
    @rule()
    def kill(self):
        """All is as it was when the last complete checkpoint was begun."""
        state, items, queue, chains, made, ctx = self.saved
        self.replay.close()
        self.replay = self.build()
        self.replay.load(state)
        self.items, self.queue, self.made = list(items), list(queue), dict(made)
        self.chains = {worker: list(chain) for worker, chain in chains.items()}
        self.ctx = {step: [value] for step, value in ctx.items()}
        self.stepids = {}
        self.begun = self.unfinished = None

    @invariant()
    def same_contexts(self):
        if not hasattr(self, "replay") or not len(self.replay):
            return
        table = self.replay._table
        addresses = table.items(np.arange(table.first, table.stop))
        with self.replay._lock:
            data = table.gather(addresses, self.replay._schema)
        values = [[context(self.ctx[step][-1]) for step in steps] for _, steps in self.items]
        for key in context(0):
            wanted = np.array([[value[key] for value in row] for row in values])
            np.testing.assert_array_equal(data[key], wanted)

    @invariant()
    def same_items(self):
        if hasattr(self, "replay"):
            assert [tuple(item) for item in sequences(self.replay)] == self.items
            assert len(self.replay) == len(self.items)
            assert len(self.replay._queue) == len(self.queue)

    @invariant()
    def limits_hold(self):
        if hasattr(self, "replay") and self.args["max_bytes"]:
            table = self.replay._table
            size = sum(table.chunk(slot).nbytes for slot in table.occupied())
            assert size == self.replay._bytes <= self.args["max_bytes"]

    def teardown(self):
        if hasattr(self, "folder"):
            self.replay.close()
            self.folder.cleanup()


class TestModel(Model.TestCase):
    settings = settings(
        max_examples=30,
        stateful_step_count=25,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.slow
class TestModelForLong(Model.TestCase):
    settings = settings(
        max_examples=500,
        stateful_step_count=50,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
