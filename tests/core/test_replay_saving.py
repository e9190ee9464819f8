"""Saves that are written while the replay goes on, and kills at every stage of them."""

import logging
import shutil
import threading

import numpy as np
import pytest

from embodied.core import chunkdir
from embodied.core.errors import ReplayError
from embodied.core.selectors import Uniform

from .test_replay import files, lengths, queued, sequences
from .test_replay_storage import contexts, fill, make, write_back


def content(replay):
    """All that a saved state stands for."""
    chains = [(k, x.pending, x.items) for k, x in replay._workers.items()]
    return sequences(replay), contexts(replay), queued(replay), chains


def go_on(replay, start, stop):
    for value in range(start, stop):
        fill(replay, value, value + 1, value % 2)
        if value % 3 == 0 and len(replay):
            write_back(replay, 2 * value)


def loaded(folder, state, **kwargs):
    replay = make(folder, capacity=14, online=True, length=3, **kwargs)
    replay.load(state)
    return replay


@pytest.mark.parametrize("disk", [False, True])
@pytest.mark.parametrize("stage", ["begun", "partly", "written", "complete", "done"])
def test_a_kill_at_any_stage_leaves_a_whole_checkpoint(stage, disk, tmp_path, monkeypatch, caplog):
    replay = make(tmp_path / "a", capacity=14, online=True, length=3, disk=disk)
    go_on(replay, 0, 31)
    state, wanted = replay.save(), content(replay)
    go_on(replay, 31, 38)
    later, newer = replay.save_later(), content(replay)
    if stage == "partly":
        write, count = chunkdir.chunkfile.write_temporary, iter(range(1000))

        def write_some(*args):
            if next(count) >= 2:
                raise OSError("killed")
            return write(*args)

        monkeypatch.setattr(chunkdir.chunkfile, "write_temporary", write_some)
    go_on(replay, 38, 50)  # drops chunks, completes some, and writes back into others
    if stage == "partly":
        with pytest.raises(ReplayError, match=r"killed|could not be written"):
            later.write()
        monkeypatch.undo()
        caplog.clear()
    elif stage != "begun":
        later.write()
        go_on(replay, 50, 57)
    if stage in ("complete", "done"):
        state, wanted = later.tree, newer
    if stage == "done":
        later.done()
    replay.close()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with caplog.at_level(logging.WARNING, "embodied"):
        again = loaded(tmp_path / "b", state, disk=disk)
    assert content(again) == wanted
    assert not caplog.text
    go_on(again, 60, 70)
    state, wanted = again.save(), content(again)
    again.close()
    assert len(files(tmp_path / "b")) == len(state["chunks"])
    assert content(loaded(tmp_path / "b", state, disk=disk)) == wanted


@pytest.mark.parametrize("disk", [False, True])
def test_a_save_that_failed_is_made_up_for(disk, tmp_path, monkeypatch):
    def fail(*args):
        raise OSError("no space left")

    replay = make(tmp_path, capacity=14, online=True, length=3, disk=disk)
    go_on(replay, 0, 31)
    state, wanted = replay.save(), content(replay)
    for start in (31, 38):
        go_on(replay, start, start + 7)
        later = replay.save_later()
        with monkeypatch.context() as patch:
            patch.setattr(chunkdir.chunkfile, "write_temporary", fail)
            with pytest.raises(ReplayError, match="no space left"):
                later.write()
        shutil.copytree(tmp_path, tmp_path / f"copy{start}")
        assert content(loaded(tmp_path / f"copy{start}", state, disk=disk)) == wanted
        shutil.rmtree(tmp_path / f"copy{start}")
    assert content(loaded(tmp_path, replay.save(), disk=disk)) == content(replay)


def test_only_the_newest_save_can_be_written(tmp_path):
    replay = make(tmp_path)
    fill(replay, 0, 6)
    first = replay.save_later()
    second = replay.save_later()
    with pytest.raises(ReplayError, match="not written before the next"):
        first.write()
    second.write()
    again = make(tmp_path)
    again.load(second.tree)
    assert sequences(again) == sequences(replay)


def test_nothing_is_copied_but_what_changes(tmp_path):
    replay = make(tmp_path)
    for worker in (0, 1):
        fill(replay, 0, 3, worker)
    replay.save_later()
    chunks = [replay._table.chunk(slot) for slot in replay._table.occupied()]
    write_back(replay, 50)
    for chunk in chunks:
        same = {k for k, x in chunk.frozen.steps.items() if np.shares_memory(x, chunk.data[k])}
        changed = {"deter"} if chunk is chunks[0] else set()
        assert chunk.data.keys() - same == changed
        assert bool(chunk.frozen.copied) == bool(changed)


@pytest.mark.parametrize("disk", [False, True])
def test_updates_wait_for_a_slow_disk(disk, tmp_path, monkeypatch):
    replay = make(tmp_path, disk=disk)
    fill(replay, 0, 41)
    replay.save()
    write_back(replay, 50)
    later = replay.save_later()
    write_back(replay, 60)
    go, write, wait = threading.Event(), chunkdir.chunkfile.write_temporary, replay._dir._idle.wait

    def slow(*args):
        assert go.wait(20)
        return write(*args)

    def waits():
        go.set()
        wait()

    monkeypatch.setattr(chunkdir, "_COPIES", 0)
    monkeypatch.setattr(chunkdir.chunkfile, "write_temporary", slow)
    monkeypatch.setattr(replay._dir._idle, "wait", waits)
    thread = threading.Thread(target=later.write)
    thread.start()
    while not replay._dir._writing:
        pass
    write_back(replay, 70)
    assert go.is_set()
    thread.join()
    later.done()
    again = make(tmp_path, disk=disk)
    again.load(later.tree)
    assert contexts(again) == {**contexts(replay), 0: 50, 1: 50}


class TestVersions:
    def build(self, tmp_path):
        """States of a chunk with 2 and 3 steps, and its files."""
        replay, states, copies = make(tmp_path, chunksize=8), [], {}
        for start, stop in [(0, 2), (2, 3)]:
            fill(replay, start, stop)
            states.append(replay.save())
            copies |= {path: path.read_bytes() for path in tmp_path.iterdir()}
        return states, list(copies.items())

    def load(self, tmp_path, state):
        replay = make(tmp_path, chunksize=8)
        replay.load(state)
        return replay

    def test_an_older_one_is_named(self, tmp_path, caplog):
        states, ((old, data), (new, _)) = self.build(tmp_path)
        new.unlink()
        old.write_bytes(data)
        replay = self.load(tmp_path, states[1])
        assert f"{old} is taken, since the file with the 3 steps" in caplog.text
        assert sequences(replay) == [[0, [0, 1]]]

    def test_of_a_newer_one_only_what_was_saved_is_taken(self, tmp_path, caplog):
        states, (_, (new, _)) = self.build(tmp_path)
        replay = self.load(tmp_path, states[0])
        assert f"{new} is taken, since the file with the 2 steps" in caplog.text
        assert sequences(replay) == [[0, [0, 1]]]
        fill(replay, 7, 8)
        assert sequences(replay) == [[0, [0, 1]], [0, [1, 7]]]
        replay.save()
        assert lengths(tmp_path) == [3]
        assert sequences(self.load(tmp_path, None)) == sequences(replay)

    def test_what_was_written_back_later_is_named(self, tmp_path, caplog):
        replay = make(tmp_path)
        fill(replay, 0, 5)
        states = []
        for value in (50, 60):
            write_back(replay, value)
            states.append(replay.save())
        (newest,) = tmp_path.glob("*-context-2.npz")
        again = make(tmp_path)
        again.load(states[0])
        assert f"{newest} is taken; the version saved is missing" in caplog.text
        assert contexts(again) == contexts(replay)


@pytest.mark.parametrize("disk", [False, True])
def test_without_contexts(disk, tmp_path):
    replay = make(tmp_path, disk=disk, save_context=False, selector=Uniform())
    fill(replay, 0, 8)
    replay.save()
    write_back(replay, 50)
    state = replay.save()
    assert not list(tmp_path.glob("*-context-*"))
    again = make(tmp_path, disk=disk, save_context=False)
    again.load(state)
    assert contexts(again) == {i: i for i in range(8)}
