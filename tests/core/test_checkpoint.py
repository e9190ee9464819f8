import json
import logging
import shutil

import ml_dtypes
import numpy as np
import pytest

from embodied.core.checkpoint import Checkpoint, find_damage, load_part, resolve
from embodied.core.errors import CheckpointError


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


def forge(folder, manifest):
    import hashlib

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
