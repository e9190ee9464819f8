import contextlib
import hashlib
import json
import logging
import os
import resource
import shutil
import threading

import ml_dtypes
import numpy as np
import pytest

from embodied.core import ckptdir
from embodied.core.base import Deferred
from embodied.core.checkpoint import Checkpoint, find_damage, load_part, resolve
from embodied.core.errors import CheckpointError, ReplayError


class Part:
    def __init__(self, data=None):
        self.data = data

    def save(self):
        return self.data

    def load(self, data):
        self.data = data


def content(seed):
    rng = np.random.default_rng(seed)
    return {
        "params": {"enc/kernel": rng.normal(size=(3, 4)).astype(np.float32)},
        "low": np.ones(3, ml_dtypes.bfloat16),
        "shape": (1, 2),
        "count": seed,
    }


def make(directory, keep=1, step=None, **parts):
    cp = Checkpoint(directory, keep, step)
    for name, part in parts.items():
        setattr(cp, name, part)
    return cp


def test_saves_and_loads_in_a_new_object(tmp_path):
    folder = make(tmp_path, agent=Part(content(1)), step_=Part(7)).save()
    assert {x.name for x in folder.iterdir()} == {
        *("agent.json", "agent.safetensors", "step_.json"),
        *("manifest.json", "done"),
    }
    agent, count = Part(), Part()
    cp = make(tmp_path, agent=agent, step_=count)
    assert cp.exists()
    assert cp.load() == folder == cp.latest()
    assert count.data == 7
    assert agent.data["shape"] == (1, 2)
    assert agent.data["low"].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(
        agent.data["params"]["enc/kernel"], content(1)["params"]["enc/kernel"]
    )


def test_folder_is_named_by_time_and_step(tmp_path):
    folder = make(tmp_path, step=1234, agent=Part(1)).save()
    assert folder.name.endswith("-000000001234")
    assert (tmp_path / "latest").read_text() == folder.name


def test_keeps_the_newest(tmp_path):
    cp = make(tmp_path, keep=2, part=Part(0))
    foreign = tmp_path / "notes.partial"
    foreign.mkdir()
    folders = [cp.save() for _ in range(4)]
    assert {x for x in tmp_path.iterdir() if x.is_dir()} == {*folders[2:], foreign}


def test_load_or_save(tmp_path):
    part = Part(3)
    assert not make(tmp_path, part=part).load_or_save()
    part.data = 9
    assert make(tmp_path, part=part).load_or_save()
    assert part.data == 3


def test_only_the_asked_for_keys_are_loaded(tmp_path):
    make(tmp_path, a=Part(1), b=Part(2)).save()
    a, b = Part(), Part()
    make(tmp_path, a=a, b=b).load(keys=["b"])
    assert (a.data, b.data) == (None, 2)


def test_an_older_checkpoint_can_be_chosen(tmp_path):
    part = Part(1)
    cp = make(tmp_path, keep=3, part=part)
    first = cp.save()
    part.data = 2
    cp.save()
    cp.load(first)
    assert part.data == 1


def test_part_is_loaded_from_logdir_directory_or_folder(tmp_path):
    folder = make(tmp_path / "ckpt", agent=Part(5)).save()
    for path in (tmp_path, tmp_path / "ckpt", folder, str(folder)):
        agent = Part()
        assert load_part(path, {"agent": agent.load}) == folder
        assert agent.data == 5


def test_missing_part_is_named_and_nothing_is_loaded(tmp_path):
    make(tmp_path, a=Part(1), b=Part(2)).save()
    a = Part()
    with pytest.raises(CheckpointError, match="holds no 'agent'; it holds a, b"):
        load_part(tmp_path, {"a": a.load, "agent": Part().load})
    assert a.data is None


def test_missing_checkpoint_is_an_error(tmp_path):
    with pytest.raises(CheckpointError, match="There is no checkpoint at"):
        make(tmp_path, a=Part()).load()
    assert not make(tmp_path, a=Part()).exists()


def test_only_saveable_objects_are_taken(tmp_path):
    with pytest.raises(CheckpointError, match=r"cannot hold 'agent' of type dict"):
        make(tmp_path, agent={})
    with pytest.raises(CheckpointError, match=r"\.\./agent"):
        make(tmp_path, **{"../agent": Part()})


def damage_flip(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def damage_truncate(file):
    file.write_bytes(file.read_bytes()[:-1])


def damage_delete(file):
    file.unlink()


def damage_link(file):
    outside = file.parent.parent / "outside"
    shutil.copy(file, outside)
    file.unlink()
    file.symlink_to(outside)


@pytest.mark.parametrize("damage", [damage_flip, damage_truncate, damage_delete, damage_link])
@pytest.mark.parametrize("name", ["agent.json", "agent.safetensors", "manifest.json", "done"])
def test_damage_is_named_and_the_newest_whole_one_taken(tmp_path, caplog, damage, name):
    part = Part(content(1))
    cp = make(tmp_path, keep=3, agent=part)
    cp.save()
    part.data = content(2)
    whole = cp.save()
    part.data = content(3)
    newest = cp.save()
    damage(newest / name)
    with caplog.at_level(logging.WARNING):
        assert cp.load() == whole
    assert part.data["count"] == 2
    assert str(newest) in caplog.text
    assert name in caplog.text
    with pytest.raises(CheckpointError, match=newest.name):
        cp.load(newest)


def test_every_flipped_byte_is_detected(tmp_path):
    folder = make(tmp_path, agent=Part(content(1))).save()
    rng = np.random.default_rng(0)
    files = sorted(folder.iterdir())
    for _ in range(200):
        file = files[rng.integers(len(files))]
        before = file.read_bytes()
        after = bytearray(before)
        after[rng.integers(len(after))] ^= 1 << rng.integers(8)
        file.write_bytes(after)
        assert find_damage(folder), file
        file.write_bytes(before)
    assert find_damage(folder) is None


def test_a_run_with_only_damaged_checkpoints_does_not_start_anew(tmp_path):
    cp = make(tmp_path, agent=Part(1))
    damage_flip(cp.save() / "agent.json")
    with pytest.raises(CheckpointError, match=r"Every checkpoint in .* is damaged.*agent\.json"):
        cp.load_or_save()


def test_a_save_that_was_cut_short_is_no_checkpoint(tmp_path):
    cp = make(tmp_path, agent=Part(1))
    folder = cp.save()
    partial = tmp_path / "29990101T000000F000000.partial"
    shutil.copytree(folder, partial)
    assert cp.latest() == folder
    newest = cp.save()
    assert {x for x in tmp_path.iterdir() if x.is_dir()} == {newest}


@pytest.mark.parametrize("text", ["", "gone", "../../etc", "\x00\xff"])
def test_a_broken_latest_file_does_not_matter(tmp_path, text):
    cp = make(tmp_path, keep=2, agent=Part(1))
    cp.save()
    newest = cp.save()
    (tmp_path / "latest").write_text(text)
    assert cp.latest() == newest
    (tmp_path / "latest").unlink()
    assert cp.latest() == newest


@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "large"])
def test_a_hostile_latest_file_is_named_and_passed_over(tmp_path, caplog, kind):
    cp = make(tmp_path, agent=Part(1))
    newest = cp.save()
    make_hostile(tmp_path / "latest", kind)
    assert cp.latest() == newest
    assert "latest is passed over" in caplog.text


@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "large"])
@pytest.mark.parametrize("name", ["manifest.json", "done", "agent.json"])
def test_hostile_files_are_only_damage(tmp_path, name, kind):
    cp = make(tmp_path, agent=Part(1))
    folder = cp.save()
    make_hostile(folder / name, kind)
    assert find_damage(folder)


def make_hostile(path, kind):
    path.unlink()
    if kind == "link":
        path.symlink_to("/etc/passwd")
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)  # reading it would wait for ever
    else:
        with path.open("wb") as f:
            f.truncate(2**40)  # reading it would take all memory


def forge_sums(folder):
    """Gives a folder a manifest that is right for what lies in it."""
    files = [x for x in folder.iterdir() if x.suffix in (".json", ".safetensors")]
    files = [x for x in files if x.name != "manifest.json"]
    forge(folder, {
        "version": 1,
        "files": {
            x.name: {
                "size": x.stat().st_size,
                "sha256": hashlib.sha256(x.read_bytes()).hexdigest(),
            }
            for x in files
        },
    })  # fmt: skip


def safetensors(header, data=b"", size=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if size is None else size).to_bytes(8, "little") + text + data


HUGE = {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    "content",
    [
        safetensors({}, size=2**62),
        safetensors({}, size=2**24 + 1),
        safetensors({"x": HUGE}, bytes(4)),
        safetensors({"x": {**HUGE, "data_offsets": [0, 2**42]}}, bytes(4)),
        safetensors({"x": {**HUGE, "dtype": "object", "shape": [1]}}, bytes(4)),
        safetensors(b"[" * 100_000),
        safetensors(b"cos\nsystem\n(S'exit 1'\ntR."),
        b"",
        b"\x80\x04\x95",
    ],
)
def test_hostile_arrays_are_an_error(tmp_path, content):
    folder = make(tmp_path, agent=Part({"x": np.ones(1)})).save()
    (folder / "agent.safetensors").write_bytes(content)
    forge_sums(folder)
    part = Part()
    with pytest.raises(CheckpointError, match=r"part 'agent' of the checkpoint .* cannot be read"):
        make(tmp_path, agent=part).load()
    assert part.data is None


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"$array": "/etc/passwd"}',
        '{"$array": ["x"]}',
        '{"$bytes": 3}',
        '{"$dict": [[[], 1]]}',
        '{"$class": "os.system"}',
        "9" * 5000,
        "nonsense",
    ],
)
def test_hostile_trees_are_an_error(tmp_path, text):
    folder = make(tmp_path, agent=Part({"x": np.ones(1)})).save()
    (folder / "agent.json").write_text(text)
    forge_sums(folder)
    with pytest.raises(CheckpointError, match=r"part 'agent' of the checkpoint .* cannot be read"):
        make(tmp_path, agent=Part()).load()


def test_arrays_that_the_manifest_does_not_list_are_not_read(tmp_path):
    folder = make(tmp_path, agent=Part({"x": 3})).save()
    (folder / "agent.json").write_text('{"$array": "x"}')
    forge_sums(folder)
    other = make(tmp_path / "other", agent=Part({"x": np.ones(1)})).save()
    shutil.copy(other / "agent.safetensors", folder)
    with pytest.raises(CheckpointError, match=r"part 'agent' of the checkpoint .* cannot be read"):
        make(tmp_path, agent=Part()).load()


def test_what_does_not_fit_its_object_is_an_error(tmp_path):
    class Picky(Part):
        def load(self, data):
            self.data = data["count"]

    folder = make(tmp_path, agent=Part([1, 2])).save()
    with pytest.raises(CheckpointError, match=f"part 'agent' of the checkpoint {folder} is not"):
        make(tmp_path, agent=Picky()).load()


def test_links_to_folders_are_no_checkpoints(tmp_path):
    folder = make(tmp_path / "a", agent=Part(1)).save()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / folder.name).symlink_to(folder)
    with pytest.raises(CheckpointError, match="There is no checkpoint"):
        resolve(tmp_path / "b")
    make(tmp_path / "b", agent=Part(2)).save()
    assert resolve(folder) == folder  # was not cleaned up through the link


def forge(folder, manifest):
    text = json.dumps(manifest).encode()
    (folder / "manifest.json").write_bytes(text)
    (folder / "done").write_text(hashlib.sha256(text).hexdigest())


def test_paths_cannot_leave_the_folder(tmp_path):
    folder = make(tmp_path, agent=Part(1)).save()
    secret = tmp_path / "secret.json"
    secret.write_text("1")
    forge(folder, {"version": 1, "files": {"../secret.json": {"size": 1, "sha256": ""}}})
    with pytest.raises(CheckpointError, match="is not a file of the folder"):
        resolve(folder)


@pytest.mark.parametrize(
    "manifest",
    [
        [],
        {},
        {"version": 2, "files": {}},
        {"version": 1, "files": []},
        {"version": 1, "files": {"a": 3}},
    ],
)
def test_hostile_manifests_are_only_damage(tmp_path, manifest):
    folder = make(tmp_path, agent=Part(1)).save()
    forge(folder, manifest)
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        resolve(folder)


def test_unsaveable_values_leave_the_last_checkpoint(tmp_path):
    part = Part(1)
    cp = make(tmp_path, agent=part)
    folder = cp.save()
    part.data = {"x": object()}
    with pytest.raises(CheckpointError, match="agent: 'x' is of type object"):
        cp.save()
    assert cp.latest() == folder


class Slow(Part):
    """Its checkpoint can only be written once `go` is set, and fails if `fails` is."""

    def __init__(self, data=None):
        super().__init__(data)
        self.go = threading.Event()
        self.fails = False

    def patch(self, monkeypatch):
        write = ckptdir.write

        def wait(*args):
            assert self.go.wait(20)
            if self.fails:
                raise CheckpointError("The disk is full.")
            write(*args)

        monkeypatch.setattr(ckptdir, "write", wait)
        return self


def test_a_thread_writes_what_was_gathered_before(tmp_path, monkeypatch):
    part = Slow({"x": 1}).patch(monkeypatch)
    cp = make(tmp_path, agent=part)
    folder = cp.save(wait=False)
    assert cp.saving
    assert not folder.exists()
    part.data["x"] = 2
    part.go.set()
    cp.wait()
    assert not cp.saving
    assert cp.latest() == folder
    cp.load()
    assert part.data == {"x": 1}


def test_one_save_waits_for_the_one_before(tmp_path, monkeypatch):
    part = Slow(1).patch(monkeypatch)
    cp = make(tmp_path, keep=2, agent=part)
    first = cp.save(wait=False)
    threading.Timer(0.1, part.go.set).start()
    second = cp.save(wait=False)
    assert first.exists()
    cp.wait()
    assert second.exists()
    assert cp.latest() == second


def test_an_error_in_the_thread_comes_out_once(tmp_path, monkeypatch):
    part = Slow(1).patch(monkeypatch)
    part.go.set()
    cp = make(tmp_path, agent=part)
    part.fails = True
    cp.save(wait=False)
    with pytest.raises(CheckpointError, match="disk is full"):
        cp.wait()
    cp.wait()
    cp.save(wait=False)
    with pytest.raises(CheckpointError, match="disk is full"):
        cp.save()
    part.fails = False
    assert cp.save() == cp.latest()


@contextlib.contextmanager
def full_disk(room):
    """Lets no file grow beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room", [0, 50, 400, 3000])
@pytest.mark.parametrize("wait", [True, False])
def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path, room, wait):
    part = Part({"x": np.zeros(1000)})
    cp = make(tmp_path, agent=part)
    folder = cp.save()
    before = sorted(tmp_path.rglob("*"))
    part.data = {"x": np.ones(1000)}
    with full_disk(room), pytest.raises(CheckpointError, match=r"cannot be written .*have room"):
        cp.save() if wait else (cp.save(wait=False), cp.wait())
    assert sorted(tmp_path.rglob("*")) == before
    assert cp.load() == folder
    assert not part.data["x"].any()
    assert cp.save() == cp.latest() != folder


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="cannot be written"):
        make(tmp_path / "file", agent=Part(1)).save()


def test_keeps_the_best_besides_the_newest(tmp_path):
    metrics = iter([3.0, None, 9.0, float("nan"), 5.0, 9.0, 1.0, float("inf"), 2.0])
    cp = Checkpoint(tmp_path, keep=2, keep_best=2, metric=lambda: next(metrics))
    cp.part = Part(0)
    folders = [cp.save() for _ in range(9)]
    kept = [i for i, x in enumerate(folders) if x.exists()]
    assert kept == [2, 5, 7, 8]
    assert cp.latest() == folders[-1]


def test_the_best_need_not_be_kept(tmp_path):
    cp = Checkpoint(tmp_path, metric=iter([3.0, 2.0]).__next__)
    cp.part = Part(0)
    assert [x.exists() for x in (cp.save(), cp.save())] == [False, True]


def test_an_unfinished_checkpoint_is_named(tmp_path, caplog):
    folder = make(tmp_path, agent=Part(1)).save()
    shutil.copytree(folder, tmp_path / "29990101T000000F000000.partial")
    assert resolve(tmp_path) == folder
    assert "29990101T000000F000000.partial is passed over: it was never finished" in caplog.text


class Later(Part):
    """Leaves work for later, and notes what there is when it is called."""

    def __init__(self, directory, error=None):
        super().__init__(1)
        self.directory, self.error, self.calls = directory, error, []

    def save_later(self):
        return Deferred(self.data, self.write, lambda: self.note("done"))

    def write(self):
        self.note("write")
        if self.error:
            raise self.error

    def note(self, call):
        latest = self.directory / "latest"
        self.calls.append((call, latest.read_text() if latest.exists() else None))


@pytest.mark.parametrize("wait", [True, False])
def test_what_is_left_for_later_is_written_before_the_checkpoint_is_complete(tmp_path, wait):
    part = Later(tmp_path)
    cp = make(tmp_path, part=part)
    folder = cp.save(wait)
    cp.wait()
    assert part.calls == [("write", None), ("done", folder.name)]


@pytest.mark.parametrize("wait", [True, False])
def test_a_checkpoint_fails_with_what_was_left_for_later(tmp_path, wait):
    part = Later(tmp_path, ReplayError("The replay cannot be written."))
    cp = make(tmp_path, part=part)
    with pytest.raises(ReplayError, match="replay cannot be written"):
        cp.save() if wait else (cp.save(wait=False), cp.wait())
    cp.wait()
    assert not list(tmp_path.iterdir())
    assert [call for call, _ in part.calls] == ["write"]
