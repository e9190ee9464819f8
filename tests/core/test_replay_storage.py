"""How the replay keeps steps: compactly, within a limit, on disk, in files that show damage."""

import logging
import os
import random

import numpy as np
import pytest

from embodied.core import chunkdir
from embodied.core.codecs import BFloat16, OneHot
from embodied.core.errors import ConfigError, ReplayError
from embodied.core.replay import Replay
from embodied.core.selectors import Fifo, Uniform

from .test_replay import files, lengths, sequences, transition

CODECS = {"deter": BFloat16(), "stoch": OneHot(4), "absent": BFloat16()}


def make(tmp_path=None, codecs=CODECS, **kwargs):
    kwargs = {"length": 2, "chunksize": 4, "selector": Fifo(), **kwargs}
    return Replay(directory=tmp_path, codecs=codecs, **kwargs)


def step(value, deter=0.0):
    stoch = np.zeros((3, 4), np.float32)
    stoch[:2, value % 4] = 1  # the last one is zero, as at the start of an episode
    return {**transition(0, value), "deter": np.full(8, deter, np.float32), "stoch": stoch}


def fill(replay, start, stop, worker=0):
    for value in range(start, stop):
        replay.add({**step(value, value), "worker": np.int32(worker)}, worker)


def contexts(replay):
    table = replay._table
    with replay._lock:
        data = table.gather(table.items(np.arange(table.first, table.stop)), replay._schema)
    return {
        int(s): d[0] for s, d in zip(data["step"].flat, data["deter"].reshape(-1, 8), strict=True)
    }


def write_back(replay, value, which=slice(None)):
    stepid = replay.sample(1)["stepid"][:, which]
    replay.update({"stepid": stepid, "deter": np.full((*stepid.shape[:2], 8), value)})


class TestCompact:
    @pytest.mark.parametrize("disk", [False, True])
    def test_batches_have_the_declared_form(self, disk, tmp_path):
        replay = make(tmp_path, disk=disk)
        fill(replay, 0, 6)
        batch = replay.sample(2)
        assert batch["stoch"].dtype == batch["deter"].dtype == np.float32
        np.testing.assert_array_equal(batch["stoch"][1], [step(i)["stoch"] for i in (0, 1)])
        np.testing.assert_array_equal(batch["deter"][1, 1], np.ones(8))

    def test_bytes(self):
        plain, compact = make(codecs={}), make()
        for replay in (plain, compact):
            fill(replay, 0, 4)
        difference = plain._bytes - compact._bytes
        assert difference == 4 * (8 * 4 + 12 * 4 - 8 * 2 - 3)

    def test_what_is_written_back_is_rounded(self):
        replay = make()
        fill(replay, 0, 3)
        write_back(replay, 0.7)
        (value,) = np.unique(replay.sample(1)["deter"])
        assert value != np.float32(0.7)
        assert abs(value - 0.7) <= 2**-9  # half of the last of 8 significant bits

    def test_what_no_codec_can_represent_is_refused(self):
        replay = make()
        fill(replay, 0, 3)
        wrong = {**step(3), "stoch": np.full((3, 4), 0.25, np.float32)}
        with pytest.raises(ReplayError, match=r"'stoch' holds .*no one-hot"):
            replay.add(wrong)
        with pytest.raises(ReplayError, match=r"'deter' holds .*beyond"):
            write_back(replay, 3.4e38)
        fill(replay, 3, 4)
        assert len(replay) == 3
        assert (replay.sample(1)["deter"][0, 1] == 1).all()
        with pytest.raises(ReplayError, match=r"'stoch' is float32\[8\].*onehot4"):
            make().add({"stoch": np.zeros(8, np.float32)})

    @pytest.mark.parametrize("disk", [False, True])
    @pytest.mark.parametrize(("old", "new"), [({}, CODECS), (CODECS, {})])
    def test_files_in_the_other_form(self, old, new, disk, tmp_path):
        replay = make(tmp_path, old)
        fill(replay, 0, 10)
        write_back(replay, 50)
        state = replay.save()
        wanted = contexts(replay)
        loaded = make(tmp_path, new, disk=disk)
        loaded.load(state)
        loaded.save()
        again = make(tmp_path, new, disk=disk)
        again.load()
        for other in (loaded, again):
            assert sequences(other) == sequences(replay)
            assert contexts(other) == wanted
        with np.load(tmp_path / files(tmp_path)[0]) as file:
            assert file["deter"].dtype == (np.uint16 if new else np.float32)


class TestContextFile:
    def test_only_it_is_written_again(self, tmp_path):
        replay = make(tmp_path)
        fill(replay, 0, 9)
        replay.save()
        before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
        write_back(replay, 50)
        replay.save()
        after = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
        (new,) = after.keys() - before.keys()
        assert new.name.endswith("-context-1.npz")
        assert {path: after[path] for path in before} == before
        with np.load(new) as file:
            assert sorted(file.files) == ["deter", "stepid"]
        loaded = make(tmp_path)
        loaded.load()
        assert contexts(loaded) == contexts(replay)

    @pytest.mark.parametrize("disk", [False, True])
    @pytest.mark.parametrize("damage", ["missing", "truncated", "flipped", "foreign"])
    def test_without_it_steps_are_as_first_stored(self, damage, disk, tmp_path, caplog):
        replay = make(tmp_path, disk=disk)
        fill(replay, 0, 9)
        replay.save()
        write_back(replay, 50)
        state, wanted = replay.save(), sequences(replay)
        (path,) = tmp_path.glob("*-context-*.npz")
        content = path.read_bytes()
        if damage == "missing":
            path.unlink()
        elif damage == "truncated":
            path.write_bytes(content[:-9])
        elif damage == "flipped":
            path.write_bytes(content[:99] + bytes([content[99] ^ 4]) + content[100:])
        else:
            path.write_bytes((tmp_path / files(tmp_path)[1]).read_bytes())
        loaded = make(tmp_path, disk=disk)
        with caplog.at_level(logging.WARNING, "embodied"):
            loaded.load(state)
        assert "as first stored" in caplog.text
        assert (path.name if damage != "missing" else files(tmp_path)[0]) in caplog.text
        assert sequences(loaded) == wanted
        assert contexts(loaded) == {i: i for i in range(9)}

    def test_of_a_chunk_that_has_grown(self, tmp_path):
        replay = make(tmp_path)
        fill(replay, 0, 3)
        write_back(replay, 50)
        replay.save()
        fill(replay, 3, 6)
        replay.close()  # killed; the complete chunk is on disk
        loaded = make(tmp_path)
        loaded.load()
        assert contexts(loaded) == {0: 50, 1: 50, 2: 2, 3: 3}

    def test_without_steps_it_is_named_and_removed(self, tmp_path, caplog):
        replay = make(tmp_path)
        fill(replay, 0, 4)
        write_back(replay, 50)
        replay.save()
        (context,) = tmp_path.glob("*-context-*.npz")
        (tmp_path / files(tmp_path)[0]).unlink()
        loaded = make(tmp_path)
        loaded.load()
        assert context.name in caplog.text
        loaded.save()
        assert not context.exists()


class TestLimit:
    @pytest.mark.parametrize("disk", [False, True])
    def test_bytes_stay_below_it(self, disk, tmp_path):
        row = make()
        fill(row, 0, 1)
        chunk = row._bytes
        replay = make(tmp_path, max_bytes=10 * chunk, disk=disk)
        most = 0
        for value in range(200):
            fill(replay, value, value + 1, worker=value % 3)
            most = max(most, replay._bytes + (0 if disk else len(replay._spare) * chunk))
        assert 9 * chunk <= most <= 10 * chunk
        assert sequences(replay)[-1][1] == [196, 199]
        assert len(replay) >= 4 * 10 - 3 * 2 * 4
        replay.save()
        replay.close()
        assert len(files(tmp_path)) <= 10
        loaded = make(tmp_path, max_bytes=4 * chunk, disk=disk)
        loaded.load()
        assert 0 < loaded._bytes <= 4 * chunk
        everything = sequences(replay)
        assert all(item in everything for item in sequences(loaded))

    def test_one_that_the_workers_cannot_keep_is_named(self):
        replay = make(max_bytes=150)
        with pytest.raises(ReplayError, match=r"limited to 150 bytes.* 1 workers"):
            fill(replay, 0, 1)

    def test_values(self):
        with pytest.raises(ConfigError, match="max_bytes"):
            make(max_bytes=0)


class TestDisk:
    def test_only_chunks_being_filled_are_in_memory(self, tmp_path):
        replay = make(tmp_path, disk=True, selector=Uniform())
        for value in range(150):
            fill(replay, value, value + 1, value % 2)
        replay.save()
        stats = replay.stats()
        chunk = replay._table.chunk(replay._table.occupied()[0]).nbytes
        assert stats["ram_gb"] * 2**30 == 2 * chunk
        assert stats["disk_gb"] * 2**30 == 36 * chunk
        for _ in range(30):
            batch = replay.sample(4)
            assert (batch["deter"][..., 0] == batch["step"]).all()

    def test_what_is_written_back_is_read_and_saved(self, tmp_path):
        replay = make(tmp_path, disk=True, length=4)
        fill(replay, 0, 12)
        replay.save()
        for value, which in [(50, [1, 3]), (60, [0]), (70, [1])]:
            write_back(replay, value, which)
        wanted = {**{i: i for i in range(12)}, 0: 60, 1: 70, 3: 50}
        assert contexts(replay) == wanted
        replay.save()
        write_back(replay, 80, [2])
        assert contexts(replay) == {**wanted, 2: 80}
        loaded = make(tmp_path, disk=True, length=4)
        loaded.load()
        assert contexts(loaded) == wanted
        write_back(loaded, 90, [1])
        assert contexts(loaded) == {**wanted, 1: 90}

    def test_a_removed_file_is_named(self, tmp_path):
        replay = make(tmp_path, disk=True)
        fill(replay, 0, 9)
        replay.save()
        name = files(tmp_path)[0]
        for content in (b"short", None):
            if content is None:
                (tmp_path / name).unlink()
            else:
                (tmp_path / name).write_bytes(content)
            with pytest.raises(ReplayError, match=f"{name}.*leave the replay's folder alone"):
                replay.sample(1)

    def test_another_directory_is_copied(self, tmp_path):
        source = make(tmp_path / "a")
        fill(source, 0, 10)
        source.save()
        replay = make(tmp_path / "b", disk=True)
        replay.load(directory=tmp_path / "a")
        assert lengths(tmp_path / "b") == [2, 4, 4]
        for path in (tmp_path / "a").iterdir():
            path.unlink()
        assert contexts(replay) == {i: i for i in range(10)}

    def test_it_needs_a_directory(self):
        with pytest.raises(ConfigError, match="give it a directory"):
            make(disk=True)


class TestBackground:
    def test_complete_chunks_are_written_without_a_save(self, tmp_path):
        replay = make(tmp_path)
        fill(replay, 0, 11)
        replay.close()
        assert lengths(tmp_path) == [4, 4]

    def test_files_that_no_save_knows_go_with_their_chunks(self, tmp_path):
        replay = make(tmp_path, capacity=5)
        fill(replay, 0, 100)
        replay.close()
        assert len(files(tmp_path)) <= 3

    @pytest.mark.parametrize("disk", [False, True])
    def test_failures(self, disk, tmp_path, monkeypatch, caplog):
        def fail(*args):
            raise OSError("no space left")

        replay = make(tmp_path / "new", disk=disk)
        with monkeypatch.context() as patch:
            patch.setattr(chunkdir.chunkfile, "write_temporary", fail)
            if disk:  # where memory does not hold all steps, they cannot go on for ever
                with pytest.raises(ReplayError, match=r"cannot be written to .*new"):
                    fill(replay, 0, 400)
            else:
                fill(replay, 0, 400)
            with pytest.raises(ReplayError, match="no space left"):
                replay.save()
            assert caplog.text.count("complete chunks cannot be written") == 1
        wanted = sequences(replay)
        replay.save()
        loaded = make(tmp_path / "new", disk=disk)
        loaded.load()
        assert sequences(loaded) == wanted


class TestDamage:
    def test_any_damage_is_named_and_the_rest_is_used(self, tmp_path, caplog):
        rng = random.Random(0)
        replay = make(tmp_path, length=3)
        for value in range(40):
            fill(replay, value, value + 1, worker=value % 2)
        for _ in range(4):
            write_back(replay, 50)
        state = replay.save()
        whole = {path: path.read_bytes() for path in tmp_path.iterdir()}
        everything = sequences(replay)
        for trial in range(60):
            path, content = rng.choice(sorted(whole.items()))
            place = rng.randrange(len(content))
            if trial % 3 == 0:
                path.unlink()
            elif trial % 3 == 1:
                path.write_bytes(content[:place])
            else:
                flipped = content[place] ^ 1 << rng.randrange(8)
                path.write_bytes(content[:place] + bytes([flipped]) + content[place + 1 :])
            caplog.clear()
            loaded = make(tmp_path, length=3)
            loaded.load(state)
            uuid = path.name.split("-")[1]
            assert path.name in caplog.text or uuid in caplog.text
            found = sequences(loaded)
            assert all(item in everything for item in found)
            lost = 0 if "-context-" in path.name else 4 + 2
            assert len(everything) - lost <= len(found) <= len(everything)
            path.write_bytes(content)

    def test_half_written_files_are_removed(self, tmp_path, caplog):
        replay = make(tmp_path)
        fill(replay, 0, 9)
        state = replay.save()
        left = [tmp_path / f"{name}.tmp" for name in os.listdir(tmp_path)]
        for path in left:
            path.write_bytes(b"left by a killed process")
        (tmp_path / "notes.tmp").write_text("mine")
        loaded = make(tmp_path)
        loaded.load(state)
        loaded.save()
        assert not any(path.exists() for path in left)
        assert (tmp_path / "notes.tmp").exists()


class TestGoingOn:
    @pytest.mark.parametrize("disk", [False, True])
    @pytest.mark.parametrize("added", [1, 5, 8, 9, 10])
    def test_as_if_nothing_had_been(self, added, disk, tmp_path):
        replays = [
            make(tmp_path / name, length=3, online=True, selector=Uniform(1), disk=disk)
            for name in "ab"
        ]
        for replay in replays:
            for worker in (0, 1):
                fill(replay, 0, added + worker, worker)
        state = replays[1].save()
        replays[1] = make(tmp_path / "b", length=3, online=True, selector=Uniform(1), disk=disk)
        replays[1].load(state)
        for replay in replays:
            for worker in (0, 1):
                fill(replay, added + worker, added + 11, worker)
        assert sequences(replays[0]) == sequences(replays[1])
        draws = [replay.sample(20)["step"].tolist() for replay in replays]
        assert draws[0] == draws[1]

    def test_not_where_steps_were_written_since(self, tmp_path):
        replay = make(tmp_path)
        fill(replay, 0, 3)
        state = replay.save()
        fill(replay, 3, 5)
        replay.close()
        loaded = make(tmp_path)
        loaded.load(state)
        fill(loaded, 3, 6)
        assert [s for _, s in sequences(loaded)] == [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5]]

    def test_where_an_earlier_chunk_is_lost(self, tmp_path):
        replay = make(tmp_path, length=7)
        fill(replay, 0, 10)
        state = replay.save()
        (tmp_path / files(tmp_path)[1]).unlink()
        loaded = make(tmp_path, length=7)
        loaded.load(state)
        fill(loaded, 10, 16)
        assert [s for _, s in sequences(loaded)] == [[*range(8, 15)], [*range(9, 16)]]


def test_adding_while_everything_is_on_disk_and_limited(tmp_path):
    replay = make(tmp_path, disk=True, max_bytes=4000, length=3, selector=Uniform())
    for value in range(300):
        fill(replay, value, value + 1, value % 2)
        if len(replay) and value % 7 == 0:
            batch = replay.sample(3)
            assert (np.diff(batch["step"], axis=1) == 2).all()
            replay.update({"stepid": batch["stepid"], "deter": batch["deter"]})
        if value % 50 == 0:
            replay.save()
    assert replay._bytes <= 4000
