import json
import logging
import threading
from pathlib import Path

import numpy as np
import pytest

from embodied.core.errors import ConfigError, ReplayError
from embodied.core.replay import Replay
from embodied.core.selectors import Fifo, Mixture, Prioritized, Recency, Uniform

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "replay.json").read_text())
ADDS = GOLDEN["adds_scenarios"]
SAVES = GOLDEN["save_load"]


def transition(worker, value, is_first=False, is_last=False):
    return {
        "worker": np.int32(worker),
        "step": np.int32(value),
        "is_first": np.bool_(is_first),
        "is_last": np.bool_(is_last),
    }


def fill(replay, adds):
    for worker, value, is_first, is_last in adds:
        replay.add(transition(worker, value, is_first, is_last), worker)


def make(facts, **kwargs):
    names = ("length", "capacity", "chunksize", "online")
    return Replay(**{k: facts[k] for k in names if k in facts}, **kwargs)


def sequences(replay):
    """All items, oldest first, as [worker, [steps]]."""
    table = replay._table
    if not len(replay):
        return []
    addresses = table.items(np.arange(table.first, table.stop))
    with replay._lock:
        data = table.gather(addresses, replay._schema)
    assert (data["worker"] == data["worker"][:, :1]).all()
    return [[int(w[0]), s.tolist()] for w, s in zip(data["worker"], data["step"], strict=True)]


def queued(replay):
    table = replay._table
    return table.items(np.array(replay._queue, np.int64)).tolist()


def count(replay, worker, start, stop):
    for value in range(start, stop):
        replay.add(transition(worker, value, value == 0), worker)


def files(directory):
    """Names of the files with steps, oldest first."""
    names = sorted(path.name for path in directory.iterdir())
    return [name for name in names if "-context-" not in name]


def lengths(directory):
    return sorted(int(name.rsplit("-", 1)[1].removesuffix(".npz")) for name in files(directory))


class TestGolden:
    @pytest.mark.parametrize("facts", ADDS, ids=lambda f: f["name"])
    def test_adding(self, facts):
        replay = make(facts)
        wanted = zip(facts["len_after_each_add"], facts["num_chunks_after_each_add"], strict=True)
        for add, (items, chunks) in zip(facts["adds"], wanted, strict=True):
            fill(replay, [add])
            assert len(replay) == items
            assert len(replay._table.occupied()) == chunks
        assert sequences(replay) == facts["items"]
        slots = replay._table.occupied()
        chunks = sorted((replay._table.chunk(slot) for slot in slots), key=lambda c: c.created)
        assert [chunk.length for chunk in chunks] == facts["chunk_lengths"]
        assert sorted(replay.sample(1, "report")) == facts["keys_stored"]

    @pytest.mark.parametrize("facts", ADDS, ids=lambda f: f["name"])
    def test_stats(self, facts):
        replay = make(facts)
        fill(replay, facts["adds"])
        for _ in range(facts["batches"]):
            replay.sample(2)
        assert replay.stats() == facts["stats"]
        again = replay.stats()
        assert [again[k] for k in ("inserts", "samples", "replay_ratio")] == [0, 0, 0]

    @pytest.mark.parametrize("facts", [f for f in ADDS if f["online"]], ids=lambda f: f["name"])
    def test_online_queue_starts_at_the_first_step(self, facts):
        # Unlike the reference, whose first window starts at a worker's second step and whose
        # queue keeps evicted items.
        length, live = facts["length"], [tuple(map(str, item)) for item in facts["items"]]
        expected, seen = [], {}
        for worker, value, *_ in facts["adds"]:
            steps = seen.setdefault(worker, [])
            steps.append(value)
            if len(steps) % length == 0:
                expected.append([worker, steps[-length:]])
        expected = [item for item in expected if tuple(map(str, item)) in live]
        replay = make(facts)
        fill(replay, facts["adds"])
        handed = []
        while replay._queue:
            batch = replay.sample(1)
            handed.append([int(batch["worker"][0, 0]), batch["step"][0].tolist()])
        assert handed == expected

    def test_abandoned_episodes(self):
        facts = next(f for f in ADDS if f["name"] == "abandoned episodes")
        replay = make({**facts, "online": False}, selector=Fifo())
        fill(replay, facts["adds"])
        batch = replay.sample(2)
        assert batch["is_first"][0].tolist() == [True, False, False, True, False, False]
        assert batch["is_last"][0].tolist() == [False, False, True, False, False, False]
        np.testing.assert_array_equal(batch["is_last"][0], batch["is_last"][1])

    @pytest.mark.parametrize("workers", [1, 3])
    def test_bounded_memory(self, workers):
        name = "bounded memory" if workers == 1 else "bounded memory 3 workers"
        replay = Replay(length=5, capacity=100, chunksize=10)
        for items, chunks, *_ in GOLDEN[name]:
            for value in range(200):
                for worker in range(workers):
                    replay.add(transition(worker, value), worker)
            assert (len(replay), len(replay._table.occupied())) == (items, chunks)
            assert len(replay._table.chunks) <= 32

    def test_update(self):
        replay = Replay(length=4, chunksize=3, selector=Fifo())
        for value in range(8):
            replay.add({**transition(0, value), "ctx": np.float32(0)})
        table = replay._table
        second = table.gather(table.items(np.array([1])), replay._schema)
        assert second["step"].tolist() == [[1, 2, 3, 4]]
        replay.update({"stepid": second["stepid"][:, 1:], "ctx": np.float32([[10, 20, 30]])})
        for number, wanted in GOLDEN["update entries"]["result"].items():
            item = table.gather(table.items(np.array([int(number)])), replay._schema)
            assert item["ctx"][0].tolist() == wanted

    @pytest.mark.parametrize("facts", SAVES, ids=lambda f: f["name"])
    def test_save_and_load(self, facts, tmp_path):
        replay = make(facts, directory=tmp_path)
        fill(replay, facts["adds"])
        assert sorted(sequences(replay)) == facts["items_before"]
        replay.save()
        assert lengths(tmp_path) == facts["file_chunk_lengths"]
        with np.load(tmp_path / files(tmp_path)[0]) as file:
            assert sorted(file.files) == facts["file_keys"]
        if "more_adds_after_save" in facts:
            fill(replay, facts["more_adds_after_save"])
            replay.save()
            # Unlike the reference, which begins a new chunk at every save ([1, 2, 5, 5, 5]), ours
            # goes on filling the chunk and replaces its file.
            assert sum(facts["file_chunk_lengths_after_second_save"]) == 18
            assert lengths(tmp_path) == [3, 5, 5, 5]
        if "corrupted_file_index" in facts:
            path = tmp_path / files(tmp_path)[facts["corrupted_file_index"]]
            path.write_bytes(path.read_bytes()[:100])
        loaded = make({**facts, "capacity": facts["load_capacity"]}, directory=tmp_path)
        loaded.load(amount=facts["load_amount"])
        assert sequences(loaded) == facts["insertion_order_after_load"]
        assert queued(loaded) == facts["online_queue_after_load"]


class TestAdd:
    def test_sizes_below_one(self):
        for kwargs in [{"length": 0}, {"length": 1, "capacity": 0}, {"length": 1, "chunksize": 0}]:
            with pytest.raises(ConfigError, match="at least 1"):
                Replay(**kwargs)

    def test_refused_step_changes_nothing(self):
        replay = Replay(length=2)
        count(replay, 0, 0, 3)
        with pytest.raises(ReplayError, match="'step'"):
            replay.add({**transition(0, 3), "step": np.float32(3)})
        with pytest.raises(ReplayError, match="missing"):
            replay.add({"step": np.int32(3)})
        count(replay, 0, 3, 5)
        assert sequences(replay) == [[0, [i, i + 1]] for i in range(4)]

    def test_log_keys_are_dropped(self):
        replay = Replay(length=1)
        replay.add({**transition(0, 0), "log/score": np.float32(1)})
        assert "log/score" not in replay.sample(1)

    @pytest.mark.parametrize("chunksize", [1, 2, 5])
    @pytest.mark.parametrize("selector", [Uniform, Fifo, Prioritized, lambda: Recency([1.0])])
    def test_capacity_one(self, selector, chunksize):
        replay = Replay(
            length=3, capacity=1, chunksize=chunksize, selector=selector(), online=True
        )
        for value in range(40):
            replay.add(transition(0, value))
            if value >= 2:
                assert len(replay) == 1
                assert replay.sample(2)["step"].tolist() == [[value - 2, value - 1, value]] * 2

    @pytest.mark.parametrize("length", [1, 7])
    def test_idle_worker_keeps_its_window(self, length):
        replay = Replay(length=length, capacity=2, chunksize=2)
        count(replay, 0, 0, 6)
        count(replay, 1, 0, 50)
        count(replay, 0, 6, 7)
        assert sequences(replay)[-1] == [0, list(range(7 - length, 7))]


class TestSample:
    def test_too_few_steps(self):
        replay = Replay(length=3, name="eval replay")
        count(replay, 0, 0, 2)
        count(replay, 1, 0, 2)
        with pytest.raises(ReplayError, match=r"eval replay.*3 steps"):
            replay.sample(1)

    def test_empty_selector_is_not_replaced(self):
        replay = Replay(length=1, selector=Fifo())
        count(replay, 0, 0, 50)
        assert replay.sample(20)["step"].tolist() == [[0]] * 20

    def test_online_only_in_train_mode(self):
        replay = Replay(length=2, online=True, selector=Fifo())
        count(replay, 0, 0, 6)
        drawn = replay.sample(20, "report")["step"]
        assert len(np.unique(drawn[:, 0])) > 1
        assert (drawn[:, 1] == drawn[:, 0] + 1).all()
        assert replay.sample(2)["step"].tolist() == [[0, 1], [2, 3]]
        assert replay.sample(2)["step"].tolist() == [[4, 5], [0, 1]]

    def test_online_queue_without_training_is_bounded(self):
        replay = Replay(length=2, capacity=10, online=True)
        count(replay, 0, 0, 1001)
        assert len(replay._queue) <= 5
        assert replay.sample(1)["step"].tolist() == [[990, 991]]

    @pytest.mark.parametrize("view", [lambda x: x, lambda x: x[1:, ::2], lambda x: x.reshape(-1)])
    def test_batch_that_is_held_is_not_overwritten(self, view):
        replay = Replay(length=3)
        count(replay, 0, 0, 50)
        held, copies = [], []
        for _ in range(10):
            held.append(view(replay.sample(4)["step"]))
            copies.append(held[-1].copy())
            replay.sample(4)["step"][:] = -1
        np.testing.assert_array_equal(held, copies)

    def test_released_memory_is_used_again(self):
        replay = Replay(length=3)
        count(replay, 0, 0, 50)
        addresses = set()
        for _ in range(20):
            addresses.add(replay.sample(4)["step"].ctypes.data)
        assert len(addresses) <= 2

    def test_annotation_leaves_the_stored_steps_alone(self):
        replay = Replay(length=3, selector=Fifo())
        for value in range(4):
            replay.add(transition(0, value, is_first=value == 2))
        for _ in range(2):
            batch = replay.sample(1)
            assert batch["is_first"].tolist() == [[True, False, True]]
            assert batch["is_last"].tolist() == [[False, True, False]]
        chunk = replay._table.chunk(0)
        assert chunk.data["is_first"][:4].tolist() == [False, False, True, False]
        assert not chunk.data["is_last"][:4].any()


class TestUpdate:
    def make(self, **kwargs):
        replay = Replay(length=2, chunksize=3, selector=Fifo(), **kwargs)
        for value in range(8):
            replay.add({**transition(0, value), "ctx": np.zeros(2, np.float32)})
        return replay

    def test_unknown_and_evicted_steps_are_ignored(self):
        replay = self.make(capacity=2)
        known = replay.sample(1)["stepid"]
        old = known.copy()
        for value in range(8, 14):
            replay.add({**transition(0, value), "ctx": np.zeros(2, np.float32)})
        alien = np.zeros((1, 2, 20), np.uint8)
        far = replay.sample(1)["stepid"].copy()
        far[..., 16] = 255
        for stepid in (old, alien, far):
            data = {"stepid": stepid, "ctx": np.ones((1, 2, 2)), "priority": np.ones((1, 2))}
            replay.update(data)
        assert replay.stats()["updates"] == 0
        assert not replay.sample(5)["ctx"].any()

    def test_integer_values_keep_the_dtype(self):
        replay = self.make()
        stepid = replay.sample(1)["stepid"]
        replay.update({"stepid": stepid, "ctx": np.ones((1, 2, 2), int)})
        assert replay.sample(1)["ctx"].dtype == np.float32
        assert replay.sample(1)["ctx"].all()
        replay.update({"stepid": stepid[:, :0], "ctx": np.ones((1, 0, 2))})

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            ({"other": np.ones((1, 2))}, "'other'"),
            ({"ctx": np.ones((1, 2, 3))}, r"'ctx'.*\(1, 2, 3\).*\(1, 2, 2\)"),
            ({"step": np.ones((1, 2))}, "'step'.*float64"),
            ({"priority": np.ones((2, 1))}, "'priority'"),
            ({"priority": np.array([[1, np.nan]])}, "priority nan"),
            ({"priority": np.array([[1, -2]])}, "priority -2"),
        ],
    )
    def test_wrong_values_are_named_and_nothing_changes(self, data, message):
        replay = self.make()
        stepid = replay.sample(1)["stepid"]
        with pytest.raises(ReplayError, match=message):
            replay.update({"stepid": stepid, "ctx": np.ones((1, 2, 2)), **data})
        assert not replay.sample(1)["ctx"].any()

    @pytest.mark.parametrize("stepid", [None, np.zeros((2, 19), np.uint8), np.zeros((2, 20))])
    def test_step_ids_must_be_step_ids(self, stepid):
        with pytest.raises(ReplayError, match=r"'stepid'.*uint8"):
            self.make().update({"stepid": stepid})

    def test_priorities_change_the_frequencies(self):
        replay = Replay(length=1, selector=Prioritized())
        count(replay, 0, 0, 10)
        table = replay._table
        data = table.gather(table.items(np.arange(10)), replay._schema)
        replay.update({"stepid": data["stepid"], "priority": (data["step"] == 4) * 1.0})
        assert (replay.sample(100)["step"] == 4).all()


class TestSaveLoad:
    def test_loading_twice_changes_nothing(self, tmp_path):
        replay = Replay(length=3, capacity=20, directory=tmp_path, chunksize=4)
        count(replay, 0, 0, 40)
        state = replay.save()
        for data in (None, state):
            loaded = Replay(length=3, capacity=20, directory=tmp_path, chunksize=4)
            loaded.load(data)
            before = sequences(loaded)
            assert len(before) == 20
            loaded.load(data)
            assert sequences(loaded) == before
            replay.load(data)
            assert sequences(replay) == before

    def test_nothing_to_load(self, tmp_path):
        replay = Replay(3, directory=tmp_path / "new", selector=Prioritized())
        replay.load()
        assert len(replay) == 0
        replay.load(json.loads(json.dumps(replay.save(), default=lambda x: x.tolist())))
        with pytest.raises(ReplayError, match="no replay directory"):
            replay.load(directory=tmp_path / "absent")

    def test_without_directory_the_random_state_is_kept(self):
        replays = [Replay(length=1) for _ in range(2)]
        for replay in replays:
            count(replay, 0, 0, 30)
        replays[0].sample(7)
        replays[1].load(replays[0].save())
        np.testing.assert_array_equal(*(replay.sample(50)["step"] for replay in replays))

    @pytest.mark.parametrize("kind", ["uniform", "recency", "prioritized", "mixture"])
    def test_draws_go_on_as_before(self, kind, tmp_path):
        def build():
            prio = Prioritized(0.8, 0.5, float("inf"), zero_on_sample=True, seed=3)
            selector = {
                "uniform": Uniform(1),
                "recency": Recency(1 / np.arange(1, 100), 2),
                "prioritized": prio,
                "mixture": Mixture({"a": Uniform(5), "b": prio}, {"a": 0.5, "b": 0.5}, 6),
            }[kind]
            return Replay(3, 30, tmp_path, 4, online=True, selector=selector)

        def learn(replay, steps):
            drawn = []
            for _ in range(steps):
                batch = replay.sample(2)
                drawn.append([batch["worker"].tolist(), batch["step"].tolist()])
                priority = batch["step"] % 5 + 0.5
                replay.update({"stepid": batch["stepid"], "priority": priority})
            return drawn, replay.stats()

        replay = build()
        for value in range(50):
            for worker in range(3):
                if worker < 2 or value < 20:
                    replay.add(transition(worker, value, value == 0), worker)
            if value > 10:
                learn(replay, 1)
        replay.stats()
        count(replay, 1, 50, 60)
        state = json.loads(json.dumps(replay.save(), default=lambda x: x.tolist()))
        other = build()
        other.load(state)
        assert sequences(other) == sequences(replay)
        first, second = learn(replay, 20), learn(other, 20)
        assert first[0] == second[0]
        assert {**first[1], "streams": 0, "chunks": 0, "ram_gb": 0} == {
            **second[1], "streams": 0, "chunks": 0, "ram_gb": 0,
        }  # fmt: skip

    def test_evicted_windows_do_not_come_back(self, tmp_path):
        replay = Replay(length=2, capacity=4, directory=tmp_path, chunksize=100)
        count(replay, 0, 0, 10)
        count(replay, 1, 0, 30)
        state = replay.save()
        loaded = Replay(length=2, capacity=100, directory=tmp_path, chunksize=100)
        loaded.load(state)
        assert sequences(loaded) == sequences(replay) == [[1, [i, i + 1]] for i in range(25, 29)]

    def test_steps_that_no_state_knows_are_loaded_without_one(self, tmp_path):
        replay = Replay(length=2, directory=tmp_path, chunksize=4)
        count(replay, 0, 0, 6)
        state = replay.save()
        count(replay, 0, 6, 9)
        replay.close()
        for data, stop in [(state, 5), (None, 7)]:
            loaded = Replay(length=2, directory=tmp_path, chunksize=4)
            loaded.load(data)
            assert sequences(loaded) == [[0, [i, i + 1]] for i in range(stop)]

    def test_written_back_values_are_durable(self, tmp_path):
        replay = Replay(length=4, directory=tmp_path, chunksize=4, selector=Fifo())
        for value in range(8):
            replay.add({**transition(0, value), "ctx": np.float32(0)})
        replay.save()
        names = files(tmp_path)
        batch = replay.sample(1)
        replay.update({"stepid": batch["stepid"], "ctx": np.float32([[5, 6, 7, 8]])})
        replay.save()
        assert files(tmp_path) == names
        loaded = Replay(length=4, directory=tmp_path, chunksize=4, selector=Fifo())
        loaded.load()
        assert loaded.sample(1)["ctx"].tolist() == [[5, 6, 7, 8]]

    def test_clean_chunks_are_not_written_again(self, tmp_path):
        replay = Replay(length=2, directory=tmp_path, chunksize=4)
        count(replay, 0, 0, 6)
        replay.save()
        for path in tmp_path.iterdir():
            path.write_bytes(b"untouched")
        count(replay, 0, 6, 7)
        replay.save()
        assert [p.read_bytes() == b"untouched" for p in sorted(tmp_path.iterdir())] == [
            True,
            False,
        ]

    def test_files_of_dropped_chunks_are_removed_at_the_next_save(self, tmp_path):
        replay = Replay(length=2, capacity=4, directory=tmp_path, chunksize=4)
        count(replay, 0, 0, 10)
        replay.save()
        first = files(tmp_path)
        count(replay, 0, 10, 30)
        assert set(first) <= set(files(tmp_path))
        replay.save()
        assert not set(files(tmp_path)) & set(first)
        assert lengths(tmp_path) == [2, 4]

    def test_own_directory_by_another_name(self, tmp_path):
        replay = Replay(length=2, capacity=4, directory=tmp_path, chunksize=4)
        count(replay, 0, 0, 10)
        replay.save()
        loaded = Replay(length=2, capacity=4, directory=tmp_path, chunksize=4)
        loaded.load(directory=str(tmp_path / ".." / tmp_path.name))
        assert len(loaded) == 4
        count(loaded, 0, 10, 30)
        loaded.save()
        assert lengths(tmp_path) == [4, 4]

    def test_another_directory_is_copied_and_left_alone(self, tmp_path):
        source = Replay(length=2, directory=tmp_path / "a", chunksize=4)
        count(source, 0, 0, 30)
        source.save()
        before = {p: p.read_bytes() for p in (tmp_path / "a").iterdir()}
        target = Replay(length=2, capacity=10, directory=tmp_path / "b", chunksize=4)
        target.load(directory=tmp_path / "a")
        assert len(target) == 10
        count(target, 0, 0, 6)
        target.save()
        assert {p: p.read_bytes() for p in (tmp_path / "a").iterdir()} == before
        again = Replay(length=2, directory=tmp_path / "b", chunksize=4)
        again.load(directory=str(tmp_path / "b"))
        assert sequences(again)[-5:] == [[0, [i, i + 1]] for i in range(5)]
        assert [0, [28, 29]] in sequences(again)

    def test_new_steps_do_not_join_loaded_ones(self, tmp_path):
        replay = Replay(length=3, directory=tmp_path, chunksize=4)
        count(replay, 0, 0, 6)
        replay.save()
        loaded = Replay(length=3, directory=tmp_path, chunksize=4)
        loaded.load()
        count(loaded, 0, 6, 10)
        steps = [steps for _, steps in sequences(loaded)]
        assert [6, 7, 8] in steps
        assert [4, 5, 6] not in steps

    def test_damaged_missing_and_foreign_files(self, tmp_path, caplog):
        replay = Replay(length=3, directory=tmp_path, chunksize=4)
        count(replay, 0, 0, 22)
        state = replay.save()
        names = files(tmp_path)
        newest = tmp_path / names[-1]
        newest.write_bytes(newest.read_bytes()[:-50])
        (tmp_path / names[2]).unlink()
        (tmp_path / "notes.txt").write_text("mine")
        (tmp_path / (names[0] + ".tmp")).write_text("left by a killed save")
        for data in (None, state):
            caplog.clear()
            loaded = Replay(length=3, directory=tmp_path, chunksize=4)
            with caplog.at_level(logging.WARNING, "embodied"):
                loaded.load(data)
            assert [s for _, s in sequences(loaded)] == [
                [i, i + 1, i + 2] for i in [*range(6), *range(12, 18)]
            ]
            assert newest.name in caplog.text
            assert "notes.txt" in caplog.text
            assert ".tmp" not in caplog.text
            assert ("2 of 6 saved chunks are missing" in caplog.text) == (data is not None)
        count(loaded, 0, 100, 110)
        loaded.save()
        assert newest.exists()
        assert (tmp_path / "notes.txt").exists()

    def test_older_version_of_a_damaged_chunk(self, tmp_path):
        replay = Replay(length=2, directory=tmp_path, chunksize=10)
        count(replay, 0, 0, 4)
        replay.save()
        (old,) = tmp_path.iterdir()
        content = old.read_bytes()
        count(replay, 0, 4, 8)
        replay.save()
        (new,) = tmp_path.iterdir()
        old.write_bytes(content)
        loaded = Replay(length=2, directory=tmp_path, chunksize=10)
        loaded.load()
        assert len(loaded) == 7
        loaded.save()
        assert files(tmp_path) == [new.name]
        old.write_bytes(content)
        new.write_bytes(b"")
        loaded = Replay(length=2, directory=tmp_path, chunksize=10)
        loaded.load()
        assert len(loaded) == 3

    def test_chunks_of_another_form_are_named(self, tmp_path, caplog):
        for form in (np.zeros(3, np.float32), np.zeros(4, np.float32)):
            replay = Replay(length=1, directory=tmp_path, chunksize=4)
            replay.add({"x": form})
            replay.save()
        with caplog.at_level(logging.WARNING, "embodied"):
            replay = Replay(length=1, directory=tmp_path, chunksize=4)
            replay.load()
        assert len(replay) == 1
        assert "float32[3] instead of float32[4] for key 'x'" in caplog.text
        small = Replay(length=1, directory=tmp_path / "small", chunksize=2)
        big = Replay(length=1, directory=tmp_path / "big", chunksize=8)
        count(big, 0, 0, 5)
        big.save()
        caplog.clear()
        with caplog.at_level(logging.WARNING, "embodied"):
            small.load(directory=tmp_path / "big")
        assert len(small) == 0
        assert "has 5 steps, but the chunk size of this replay is 2" in caplog.text

    def test_links_from_strangers_cannot_loop(self, tmp_path):
        replay = Replay(length=2, directory=tmp_path, chunksize=4)
        count(replay, 0, 0, 8)
        replay.save()
        first, second = sorted(tmp_path.iterdir())
        uuid = first.name.split("-")[1]
        parts = second.name.split("-")
        second.rename(tmp_path / "-".join([*parts[:2], uuid, parts[3]]))
        loaded = Replay(length=2, directory=tmp_path, chunksize=4)
        loaded.load()
        assert sequences(loaded) == [[0, [i, i + 1]] for i in range(7)]

    def test_directory_that_cannot_be_written(self, tmp_path):
        (tmp_path / "file").write_text("")
        replay = Replay(length=2, directory=tmp_path / "file" / "replay")
        count(replay, 0, 0, 4)
        for _ in range(2):
            with pytest.raises(ReplayError, match=r"cannot be written.*file/replay"):
                replay.save()
        (tmp_path / "file").unlink()
        replay.save()
        assert lengths(tmp_path / "file" / "replay") == [4]

    def test_amount_counts_from_the_newest(self, tmp_path):
        replay = Replay(length=1, directory=tmp_path, chunksize=5)
        count(replay, 0, 0, 23)
        replay.save()
        loaded = Replay(length=1, directory=tmp_path, chunksize=5)
        loaded.load(amount=4)
        assert [s for _, s in sequences(loaded)] == [[i] for i in range(15, 23)]
        loaded.save()
        assert lengths(tmp_path) == [3, 5, 5, 5, 5]


class TestThreads:
    def test_adding_sampling_updating_and_saving_at_once(self, tmp_path):
        selector = Mixture({"u": Uniform(), "p": Prioritized()}, {"u": 0.5, "p": 0.5})
        replay = Replay(3, 20, tmp_path, 4, online=True, selector=selector)
        count(replay, 0, 0, 3)
        errors, done = [], threading.Event()

        def guard(fn):
            def run():
                try:
                    fn()
                except BaseException as error:
                    errors.append(error)

            return threading.Thread(target=run)

        def learn():
            while not done.is_set():
                batch = replay.sample(4)
                assert (np.diff(batch["step"], axis=1) == 1).all()
                assert (batch["worker"] == batch["worker"][:, :1]).all()
                replay.update({"stepid": batch["stepid"], "priority": batch["step"] + 1.0})

        def save():
            while not done.is_set():
                replay.save()

        adders = [guard(lambda w=worker: count(replay, w, 0, 400)) for worker in (1, 2)]
        others = [guard(learn), guard(learn), guard(save)]
        for thread in adders + others:
            thread.start()
        for thread in adders:
            thread.join()
        done.set()
        for thread in others:
            thread.join()
        assert not errors
        assert len(replay) == 20
        state = replay.save()
        loaded = Replay(3, 20, tmp_path, 4)
        loaded._selector = Mixture({"u": Uniform(), "p": Prioritized()}, {"u": 0.5, "p": 0.5})
        loaded._selector.bind(loaded._table)
        loaded.load(state)
        assert sequences(loaded) == sequences(replay)


def test_drawing_for_a_report_leaves_training_as_it_was():
    draws = []
    for reports in (0, 3):
        replay = Replay(length=2, selector=Prioritized(zero_on_sample=True, seed=1), seed=3)
        for i in range(50):
            replay.add({"step": np.int32(i), "is_first": i == 0, "is_last": False})
        for _ in range(reports):
            assert replay.sample(4, mode="report")["step"].shape == (4, 2)
        draws.append(replay.sample(8)["step"])
    np.testing.assert_array_equal(*draws)
