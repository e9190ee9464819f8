import numpy as np
import pytest

from embodied.core.chunk import NO_CHUNK, Chunk
from embodied.core.chunkfile import ChunkName, read_members, write_temporary
from embodied.core.chunksource import Source
from embodied.core.errors import ReplayError
from embodied.core.schema import Schema

STEP = {"image": np.zeros((2, 3), np.uint8), "reward": np.float32(0), "is_first": np.bool_(True)}


def make_chunk(steps=3, size=4, **kwargs):
    chunk = Chunk(size, **kwargs)
    schema = Schema.of(STEP)
    for index in range(steps):
        chunk.append({**STEP, "reward": np.float32(index)}, schema, [])
    return chunk, schema


def write(folder, chunk, **changes):
    """Writes a file and gives its path, what its name says, and the arrays in it."""
    snapshot = chunk.snapshot()
    path, arrays = folder / snapshot.name, {**snapshot.steps, **changes}
    write_temporary(path, arrays, {}).rename(path)
    return path, ChunkName.parse(path.name), arrays


def read(path, name, codecs=None):
    source = Source.open(path, name, None, codecs or {})
    return source.chunk(), source.read(), source.schema


class TestSchema:
    def test_log_keys_are_left_out(self):
        schema = Schema.of({**STEP, "log/score": np.float32(1)})
        assert [key for key, _, _ in schema.specs] == ["image", "is_first", "reward"]
        schema.check_keys({**STEP, "log/other": "text"})

    @pytest.mark.parametrize("key", ["stepid", "priority"])
    def test_reserved_key(self, key):
        with pytest.raises(ReplayError, match=f"'{key}'.*rename"):
            Schema.of({key: np.float32(0)})

    @pytest.mark.parametrize("value", ["text", np.array([None]), np.zeros(2, "datetime64[s]")])
    def test_values_that_are_not_numeric(self, value):
        with pytest.raises(ReplayError, match=r"'bad'.*convert"):
            Schema.of({"bad": value})

    def test_missing_and_extra_keys_are_named(self):
        schema = Schema.of(STEP)
        step = {"image": STEP["image"], "reward": STEP["reward"], "other": 1}
        with pytest.raises(ReplayError, match=r"missing \['is_first'\], unexpected \['other'\]"):
            schema.check_keys(step)
        schema.check_keys({**STEP, "log/a": 1})
        with pytest.raises(ReplayError, match="unexpected"):
            schema.check_keys({**STEP, "a": 1})

    def test_python_numbers_are_32_bit(self):
        specs = Schema.of({"i": 3, "f": 0.5, "b": True, "n": np.float64(1)}).specs
        assert {k: str(d) for k, d, _ in specs} == {
            "i": "int32", "f": "float32", "b": "bool", "n": "float64",
        }  # fmt: skip

    def test_wrong_shape_names_both(self):
        with pytest.raises(ReplayError, match=r"'image'.*\(3, 3\).*\(2, 3\)"):
            Schema.of(STEP).convert("image", np.zeros((3, 3), np.uint8))

    @pytest.mark.parametrize(
        ("dtype", "value"),
        [
            (np.int32, np.float32(0.5)),
            (np.uint8, np.int64(3)),
            (np.bool_, np.int32(1)),
            (np.float32, np.complex64(1)),
            (np.int8, np.int32(300)),
        ],
    )
    def test_unsafe_casts_are_refused(self, dtype, value):
        schema = Schema.of({"x": np.zeros((), dtype)})
        with pytest.raises(ReplayError, match=f"'x'.*{np.dtype(dtype)}.*declared space"):
            schema.convert("x", value)

    @pytest.mark.parametrize(
        ("dtype", "value"),
        [(np.float32, 3), (np.float32, np.float64(0.5)), (np.int32, np.int64(7)), (np.int64, 2)],
    )
    def test_safe_casts_keep_the_dtype(self, dtype, value):
        result = Schema.of({"x": np.zeros((), dtype)}).convert("x", value)
        assert result.dtype == dtype
        assert result == value


class TestChunk:
    def test_empty_chunk_holds_no_memory(self):
        chunk, _ = make_chunk(0)
        assert chunk.nbytes == 0
        chunk, _ = make_chunk(1)
        assert chunk.nbytes == 4 * (6 + 4 + 1 + 20)

    def test_refused_step_is_not_stored(self):
        chunk, schema = make_chunk(2)
        with pytest.raises(ReplayError):
            chunk.append({**STEP, "reward": "text"}, schema, [])
        assert chunk.length == 2

    def test_stepid_is_uuid_and_big_endian_index(self):
        chunk = Chunk(300, uuid=bytes(range(16)))
        chunk.append(STEP, Schema.of(STEP), [])
        assert chunk.data["stepid"].dtype == np.uint8
        assert bytes(chunk.data["stepid"][258]) == bytes(range(16)) + bytes([0, 0, 1, 2])

    def test_spare_arrays_are_used_again(self):
        old, schema = make_chunk(4)
        new = Chunk(4)
        spare = [old.data]
        new.append(STEP, schema, spare)
        assert new.data["image"] is old.data["image"]
        assert not spare
        assert bytes(new.data["stepid"][3, :16]) == new.uuid

    def test_names_sort_by_creation(self):
        names = [make_chunk(1)[0].snapshot().name for _ in range(50)]
        assert names == sorted(names)

    def test_snapshot_stays_while_the_chunk_is_busy(self):
        chunk, schema = make_chunk(2)
        chunk.busy, steps = True, chunk.snapshot().steps
        chunk.overwrite(0, 2, {"reward": np.float32([9, 9])})
        chunk.append({**STEP, "reward": np.float32(7)}, schema, [])
        np.testing.assert_array_equal(steps["reward"], [0, 1])
        np.testing.assert_array_equal(chunk.data["reward"][:3], [9, 9, 7])


class TestFiles:
    def test_round_trip(self, tmp_path):
        chunk, schema = make_chunk()
        chunk.succ = bytes(range(16))
        path, name, arrays = write(tmp_path, chunk)
        assert list(tmp_path.iterdir()) == [path]
        assert name == (chunk.created, chunk.uuid, chunk.succ, 3)
        loaded, data, found = read(path, name)
        assert not schema.differences(found)
        assert (loaded.uuid, loaded.succ, loaded.length) == (chunk.uuid, chunk.succ, 3)
        for key, array in arrays.items():
            np.testing.assert_array_equal(data[key], array)
            assert data[key].dtype == array.dtype

    def test_other_readers_of_npz_can_read_it(self, tmp_path):
        path, _, arrays = write(tmp_path, make_chunk()[0])
        with np.load(path) as file:
            assert {key: file[key].tolist() for key in file.files} == {
                key: array.tolist() for key, array in arrays.items()
            }

    def test_file_without_checksum(self, tmp_path):
        path, name, arrays = write(tmp_path, make_chunk()[0])
        np.savez(path, **arrays)
        np.testing.assert_array_equal(read(path, name)[1]["reward"], [0, 1, 2])
        content = bytearray(path.read_bytes())
        content[content.index(name.uuid)] ^= 1
        path.write_bytes(content)
        with pytest.raises(ReplayError, match="unreadable"):
            read(path, name)

    def test_any_key_name(self, tmp_path):
        chunk = Chunk(1)
        step = {"file": 1, "dyn/deter": np.ones(2, np.float16), "allow_pickle": True, "a.npy": 2}
        chunk.append(step, Schema.of(step), [])
        path, name, _ = write(tmp_path, chunk)
        assert read(path, name)[1].keys() == {*step, "stepid"}

    @pytest.mark.parametrize(
        "name",
        [
            "x.npz",
            "20260101T000000F000000-12-34-1.npz",
            f"20260101T000000F000000-{'0' * 32}-{'0' * 32}-0.npz",
            f"20260101T000000F000000-{'0' * 32}-{'0' * 32}-1.npz.tmp",
            f"../20260101T000000F000000-{'0' * 32}-{'0' * 32}-1.npz",
        ],
    )
    def test_foreign_names(self, name):
        assert ChunkName.parse(name) is None

    @pytest.mark.parametrize("cut", [0, 10, 200, -30, -8, -1])
    def test_truncated(self, tmp_path, cut):
        path, name, _ = write(tmp_path, make_chunk()[0])
        path.write_bytes(path.read_bytes()[:cut])
        with pytest.raises(ReplayError, match=r"-3\.npz.*unreadable"):
            read(path, name)

    def test_every_flipped_byte_is_detected(self, tmp_path):
        # Headers, names, times and the checksum itself included.
        path, name, _ = write(tmp_path, make_chunk()[0])
        content = path.read_bytes()
        for position in range(len(content)):
            damaged = bytearray(content)
            damaged[position] ^= 1 << position % 8
            path.write_bytes(damaged)
            with pytest.raises(ReplayError, match="unreadable"):
                read(path, name)

    def test_name_must_fit_the_content(self, tmp_path):
        path, name, _ = write(tmp_path, make_chunk()[0])
        for wrong in [name._replace(uuid=NO_CHUNK), name._replace(length=2**32)]:
            with pytest.raises(ReplayError, match="its name says"):
                read(path, wrong)

    def test_arrays_must_have_the_length(self, tmp_path):
        path, name, _ = write(tmp_path, make_chunk()[0], reward=np.zeros(2, np.float32))
        with pytest.raises(ReplayError, match="'reward'"):
            read(path, name)

    def test_unknown_codec_is_named(self, tmp_path):
        path, name, arrays = write(tmp_path, make_chunk()[0])
        for tag, message in [("zip", "no codec 'zip'"), ("bfloat16", "not what the codec")]:
            write_temporary(path, arrays, {"reward": tag}).rename(path)
            with pytest.raises(ReplayError, match=message):
                read(path, name)

    def test_pickled_content_is_not_executed(self, tmp_path):
        path, _, arrays = write(tmp_path, make_chunk()[0])
        np.savez(path, allow_pickle=True, **arrays, bomb=np.array([Bomb()] * 3))
        with pytest.raises(ReplayError, match=r"unreadable.*object"):
            read_members(path)


class Bomb:
    def __reduce__(self):
        return pytest.exit, ("executed",)
