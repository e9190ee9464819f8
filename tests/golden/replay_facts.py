"""The replay, its streams and its ratios against `replay.json`.

Left out, and named as such, is what is ours on purpose: the order of random draws, an online queue
that starts at a worker's first step and forgets evicted items, one file per chunk however often it
is saved. `tests/core` holds these to what they should be.
"""

import collections
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from embodied.core.clock import Ratio
from embodied.core.limiters import SamplesPerInsert
from embodied.core.replay import Replay
from embodied.core.selectors import Fifo
from embodied.core.streams import Consec, Map, Stateless
from tests.core import test_replay as helpers

from .reference import Numbers, read_json
from .report import Report


def compare(path: Path, report: Report) -> None:
    """Compares all facts that a function below knows, by the fact's name or by its keys."""
    problems, count, unread = [], 0, collections.Counter()
    for stored in read_json(path):
        fact = Numbers(stored)
        name = fact["name"]
        function = next((v for k, v in FACTS.items() if k in name or k in fact), None)
        for label, got, want in function(fact) if function else ():
            count += 1
            if got != want:
                problems.append(f"{name}: {label} is {got}, not {want}")
        unread.update(fact.unread)
    report.add(path.name, count, {}, 0.0, problems)
    report.uncompared(path.name, [f"{k} ({v} times)" for k, v in unread.items()])


Checks = Iterator[tuple[str, Any, Any]]


def _replay(fact, **kwargs):
    names = [k for k in ("length", "capacity", "chunksize", "online") if k in fact]
    return Replay(**{**{k: fact[k] for k in names}, **kwargs})


def adding(fact: Numbers) -> Checks:
    """Items and chunks while steps are added."""
    replay, lengths, chunks = _replay(fact), [], []
    for add in fact["adds"]:
        helpers.fill(replay, [add])
        lengths.append(len(replay))
        chunks.append(len(replay._table.occupied()))
    yield "length", lengths, fact["len_after_each_add"]
    yield "chunks", chunks, fact["num_chunks_after_each_add"]
    yield "items", helpers.sequences(replay), [x[1:] for x in fact["items"]]
    slots = [replay._table.chunk(x) for x in replay._table.occupied()]
    sizes = [x.length for x in sorted(slots, key=lambda x: x.created)]
    yield "chunk lengths", sizes, fact["chunk_lengths"]
    yield "keys", sorted(_replayed(fact).sample(1, "report")), fact["keys_stored"]
    for _ in fact.all.get("train_batches_of_2", ()):
        replay.sample(2)
    yield "stats", replay.stats(), fact["stats"]


def _replayed(fact):
    replay = _replay(fact)
    helpers.fill(replay, fact["adds"])
    return replay


def saving(fact: Numbers) -> Checks:
    """Items and files after saving, and items after loading."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        replay = _replay(fact, directory=directory)
        helpers.fill(replay, fact["adds"])
        yield "items", sorted(helpers.sequences(replay)), _items(fact["items_before"])
        replay.save()
        yield "files", helpers.lengths(directory), sorted(fact["file_chunk_lengths"])
        first = helpers.files(directory)[0]
        with np.load(directory / first) as file:
            yield "file keys", sorted(file.files), sorted(fact["file_keys"])
        if "more_adds_after_save" in fact:
            helpers.fill(replay, fact["more_adds_after_save"])
            replay.save()
        if "corrupted_file_index" in fact:
            path = directory / helpers.files(directory)[fact["corrupted_file_index"]]
            path.write_bytes(path.read_bytes()[: fact["corrupted_length"]])
        loaded = _replay(fact, directory=directory, capacity=fact["load_capacity"])
        loaded.load(amount=fact["load_amount"])
        items = helpers.sequences(loaded)
        yield "loaded items", sorted(items), _items(fact["items_after_load"])
        yield "order", items, [x[-2:] for x in fact["insertion_order_after_load"]]
        yield "queue", helpers.queued(loaded), fact["online_queue_after_load"]


def _items(items):
    """Items as [worker, [steps]] in order; stored ones may begin with a number."""
    return sorted(x[-2:] for x in items)


def bounded(fact: Numbers) -> Checks:
    """Items and chunks while many more steps are added than fit."""
    replay = Replay(length=5, capacity=100, chunksize=10)
    workers, found = 3 if "3 workers" in fact["name"] else 1, []
    trace = [x[:2] for x in fact["trace"]]
    for _ in trace:
        for value in range(200):
            for worker in range(workers):
                replay.add(helpers.transition(worker, value), worker)
        found.append([len(replay), len(replay._table.occupied())])
    yield "items and chunks", found, trace


def updating(fact: Numbers) -> Checks:
    """Values written back into items that overlap."""
    replay = Replay(length=4, chunksize=3, selector=Fifo())
    for value in range(8):
        replay.add({**helpers.transition(0, value), "ctx": np.float32(0)})
    read = lambda i: replay._table.gather(replay._table.items(np.array([i])), replay._schema)  # noqa: E731
    replay.update({"stepid": read(1)["stepid"][:, 1:], "ctx": np.float32([[10, 20, 30]])})
    for number, values in fact["result"].items():
        yield f"item {number}", read(int(number))["ctx"][0].tolist(), values


def consecutive(fact: Numbers) -> Checks:
    """Cuts of replay sequences."""
    numbers = iter(range(1, 100))
    build = lambda i: {"step": np.arange(8)[None] + 100 * i, "is_first": np.zeros((1, 8), bool)}  # noqa: E731
    stream = Consec(Map(Stateless(lambda: next(numbers)), build), length=3, consec=2, prefix=2)
    for chunk in fact["chunks"]:
        yield "chunk", {k: v.tolist() for k, v in next(stream).items()}, chunk


def limiting(fact: Numbers) -> Checks:
    """What a samples-per-insert limiter allows."""
    limiter = SamplesPerInsert(2.0, tolerance=4, minsize=3)
    for op, *want in fact["trace"]:
        found = [limiter.want_insert(), limiter.want_sample(), limiter.avail, limiter.size]
        yield "state", found, want
        limiter.insert() if op == "i" else limiter.sample()


def repeating(fact: Numbers) -> Checks:
    """How often to train at each step."""
    name, want = fact["name"], fact["out"]
    ratio = Ratio(float(name.split("(")[1].split(")")[0]))
    start = 1000 if "starting at step 1000" in name else 0
    yield "repeats", [ratio(start + i) for i in range(len(want))], want


FACTS: dict[str, Callable[[Numbers], Checks]] = {
    "len_after_each_add": adding,
    "file_chunk_lengths": saving,
    "bounded memory": bounded,
    "update entries": updating,
    "Consec(length=3,consec=2,prefix=2)": consecutive,
    "SamplesPerInsert(2.0, tol 4, minsize 3)": limiting,
    "when.Ratio": repeating,
}
