import io
import zipfile

import numpy as np
import pytest

from embodied.core.chunk import NO_CHUNK, Chunk, ChunkName, Schema, write_file
from embodied.core.errors import ReplayError

STEP = {"image": np.zeros((2, 3), np.uint8), "reward": np.float32(0), "is_first": np.bool_(True)}


def make_chunk(steps=3, size=4, **kwargs):
    chunk = Chunk(size, **kwargs)
    schema = Schema.of(STEP)
    for index in range(steps):
        chunk.append({**STEP, "reward": np.float32(index)}, schema, [])
    return chunk, schema


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
        names = [make_chunk(1)[0].snapshot()[0] for _ in range(50)]
        assert names == sorted(names)

    def test_snapshot_is_a_copy(self):
        chunk, _ = make_chunk(2)
        _, data = chunk.snapshot()
        chunk.data["reward"][:] = 9
        np.testing.assert_array_equal(data["reward"], [0, 1])


class TestFiles:
    def test_round_trip(self, tmp_path):
        chunk, schema = make_chunk()
        chunk.succ = bytes(range(16))
        name, data = chunk.snapshot()
        write_file(tmp_path / name, data)
        assert [p.name for p in tmp_path.iterdir()] == [name]
        parsed = ChunkName.parse(name)
        assert parsed == (chunk.created, chunk.uuid, chunk.succ, 3)
        loaded, found = Chunk.read(tmp_path / name, parsed)
        assert not schema.differences(found)
        assert (loaded.uuid, loaded.succ, loaded.length) == (chunk.uuid, chunk.succ, 3)
        for key, array in data.items():
            np.testing.assert_array_equal(loaded.data[key], array)
            assert loaded.data[key].dtype == array.dtype

    def test_any_key_name(self, tmp_path):
        chunk = Chunk(1)
        step = {"file": 1, "dyn/deter": np.ones(2, np.float16), "allow_pickle": True, "a.npy": 2}
        chunk.append(step, Schema.of(step), [])
        name, data = chunk.snapshot()
        write_file(tmp_path / name, data)
        loaded, _ = Chunk.read(tmp_path / name, ChunkName.parse(name))
        assert loaded.data.keys() == {*step, "stepid"}

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

    @pytest.mark.parametrize("cut", [0, 10, 200, -30])
    def test_truncated(self, tmp_path, cut):
        chunk, _ = make_chunk()
        name, data = chunk.snapshot()
        write_file(tmp_path / name, data)
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[:cut])
        with pytest.raises(ReplayError, match=r"-3\.npz.*unreadable"):
            Chunk.read(tmp_path / name, ChunkName.parse(name))

    def test_every_flipped_byte_of_the_data_is_detected(self, tmp_path):
        chunk, _ = make_chunk()
        name, data = chunk.snapshot()
        write_file(tmp_path / name, data)
        content = (tmp_path / name).read_bytes()
        offset = content.index(chunk.uuid)
        for position in range(offset, offset + 60, 7):
            damaged = bytearray(content)
            damaged[position] ^= 1
            (tmp_path / name).write_bytes(damaged)
            with pytest.raises(ReplayError):
                Chunk.read(tmp_path / name, ChunkName.parse(name))

    def test_name_must_fit_the_content(self, tmp_path):
        chunk, _ = make_chunk()
        name, data = chunk.snapshot()
        parsed = ChunkName.parse(name)
        write_file(tmp_path / name, data)
        for wrong in [parsed._replace(uuid=NO_CHUNK), parsed._replace(length=2**32)]:
            with pytest.raises(ReplayError, match="its name says"):
                Chunk.read(tmp_path / name, wrong)

    def test_arrays_must_have_the_length(self, tmp_path):
        chunk, _ = make_chunk()
        name, data = chunk.snapshot()
        write_file(tmp_path / name, {**data, "reward": data["reward"][:2]})
        with pytest.raises(ReplayError, match="'reward'"):
            Chunk.read(tmp_path / name, ChunkName.parse(name))

    def test_pickled_content_is_not_executed(self, tmp_path):
        chunk, _ = make_chunk()
        name, data = chunk.snapshot()
        write_file(tmp_path / name, data)
        buffer = io.BytesIO()
        np.save(buffer, np.array([Bomb()] * 3), allow_pickle=True)
        with zipfile.ZipFile(tmp_path / name, "a") as archive:
            archive.writestr("bomb.npy", buffer.getvalue())
        with pytest.raises(ReplayError, match="unreadable"):
            Chunk.read(tmp_path / name, ChunkName.parse(name))


class Bomb:
    def __reduce__(self):
        return pytest.exit, ("executed",)
