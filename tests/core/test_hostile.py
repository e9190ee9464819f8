"""Files from strangers: nothing in them is executed, and none takes more memory than bytes."""

import ast
import io
import os
import pickle
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

import dreamerv3
import embodied
from embodied.core.replay import Replay

# Messages to and from processes that we have started are pickled; nothing else is.
ALLOWED = {"embodied/core/worker.py": {"pickle", "cloudpickle"}}
UNSAFE = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "jsonpickle"}
STEPS = 4


def sources():
    for package in (embodied, dreamerv3):
        root = Path(package.__file__).parent
        for path in root.rglob("*.py"):
            yield path.relative_to(root.parent).as_posix(), ast.parse(path.read_text("utf-8"))


def test_nothing_that_executes_what_it_reads_is_imported():
    for name, tree in sources():
        found = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found |= {x.name.split(".")[0] for x in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.split(".")[0])
        assert found & UNSAFE <= ALLOWED.get(name, set()), name


def test_nothing_asks_numpy_for_pickles_and_nothing_is_evaluated():
    for name, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert node.value.value is False, name
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "compile"), name


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self._path = path

    def __reduce__(self):
        return open, (str(self._path), "w")


def npy(header, data=b""):
    text = header.encode("latin1")
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


def archive(members, compression=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as z:
        for name, data in members.items():
            z.writestr(name, data)
    return file.getvalue()


def hostile(path):
    """Contents of a chunk file by kind."""
    pickled = pickle.dumps(Trap(path))
    objects = io.BytesIO()
    np.save(objects, np.array([Trap(path)], object), allow_pickle=True)
    huge = "{'descr': '|u1', 'fortran_order': False, 'shape': (1099511627776,)}"
    return {
        "pickle": pickled,
        "pickled array": archive({"x.npy": objects.getvalue()}),
        "object array": archive({
            "x.npy": npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", pickled)
        }),
        "code in a header": archive({"x.npy": npy(f"open({str(path)!r}, 'w')")}),
        "huge array": archive({"x.npy": npy(huge)}),
        "huge header": archive({"x.npy": b"\x93NUMPY\x02\x00\xff\xff\xff\xff"}),
        "bomb": archive({"x.npy": bytes(2**28)}, zipfile.ZIP_DEFLATED),
        "path": archive({f"../../{path.name}.npy": b""}),
        "empty": b"",
        "noise": np.random.default_rng(0).bytes(1000),
    }  # fmt: skip


def fill(replay):
    for i in range(STEPS):
        replay.add({"x": np.uint8(i), "is_first": np.bool_(i == 0)})


@pytest.mark.parametrize("kind", sorted(hostile(Path("x"))))
@pytest.mark.parametrize("place", ["steps", "context"])
def test_hostile_chunk_files_are_named_and_left_alone(tmp_path, caplog, kind, place):
    trap = tmp_path / "trap"
    content = hostile(trap)[kind]
    directory = tmp_path / "replay"
    replay = Replay(2, directory=directory, chunksize=STEPS)
    fill(replay)
    replay.save()
    whole = next(x for x in directory.iterdir() if x.name.endswith(f"-{STEPS}.npz"))
    created, uuid = whole.name.split("-")[:2]
    if place == "steps":
        file = directory / f"{created}-{'ab' * 16}-{'00' * 16}-{STEPS}.npz"
    else:
        file = directory / f"{created}-{uuid}-context-1.npz"
    file.write_bytes(content)
    tracemalloc.start()
    again = Replay(2, directory=directory, chunksize=STEPS)
    again.load()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**26
    assert len(again) == STEPS - 1
    assert file.name in caplog.text
    assert not trap.exists()
    assert file.exists()


@pytest.mark.parametrize("kind", ["pipe", "folder", "link"])
def test_what_is_no_file_is_no_chunk(tmp_path, caplog, kind):
    replay = Replay(2, directory=tmp_path, chunksize=STEPS)
    fill(replay)
    replay.save()
    file = tmp_path / f"20260101T000000F000000-{'ab' * 16}-{'00' * 16}-{STEPS}.npz"
    if kind == "pipe":
        os.mkfifo(file)  # reading it would wait for ever
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to("/dev/zero")
    again = Replay(2, directory=tmp_path, chunksize=STEPS)
    again.load()
    assert len(again) == STEPS - 1
    assert file.name in caplog.text
