import numpy as np
import pytest

from embodied.core import treefile
from embodied.core.errors import CheckpointError


def test_comes_back_as_it_was(tmp_path):
    tree = {"a": (np.arange(3), {"b": np.float32(np.nan)}), "c": [1, None, np.inf], "d": "x"}
    treefile.write(tmp_path / "new" / "file", tree)
    found = treefile.read(tmp_path / "new" / "file")
    np.testing.assert_equal(found, tree)
    assert found["a"][0].dtype == tree["a"][0].dtype
    assert [x.name for x in (tmp_path / "new").iterdir()] == ["file"]


@pytest.mark.parametrize("content", [None, b"", b"\x08\0\0\0\0\0\0\0{}      ", b"\xff" * 99])
def test_what_is_no_such_file(tmp_path, content):
    if content is not None:
        (tmp_path / "file").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"file cannot be read .*this program wrote"):
        treefile.read(tmp_path / "file")


def test_what_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"inside cannot be written: "):
        treefile.write(tmp_path / "file" / "inside", {})
