import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from embodied.core.errors import ConfigError, DeviceError
from embodied.jax import backend, internal, nets
from embodied.jax.options import Options

from . import subprocesses


@pytest.fixture(autouse=True)
def _keep_dtype(monkeypatch):
    monkeypatch.setattr(nets, "COMPUTE_DTYPE", nets.COMPUTE_DTYPE)


def setup(**options):
    return internal.setup(**{"platform": "cpu", "compilation_cache": "", **options})


class TestOptions:
    @pytest.mark.parametrize(
        ("values", "found", "right"),
        [
            ({"plattform": "cpu"}, "jax.plattform", "jax.platform"),
            ({"train_device": (0,)}, "jax.train_device", "jax.train_devices"),
            ({"platform": "gpus"}, "'gpus'", "'gpu'"),
            ({"compute_dtype": "bf16"}, "'bf16'", "'bfloat16'"),
            ({"gpuflags": "True"}, "'True'", "--xla_name=value"),
        ],
    )
    def test_names_and_values_are_checked(self, values, found, right):
        with pytest.raises(ConfigError) as e:
            Options.make(**values)
        assert found in str(e.value)
        assert right in str(e.value)

    def test_missing_ones_take_defaults(self):
        assert Options.make(platform="cpu") == Options(platform="cpu")


class TestSetup:
    def test_resolves_automatic_choices(self):
        options = setup(platform="auto")
        assert options.platform == jax.default_backend()
        dtype = "float32" if options.platform == "cpu" else "bfloat16"
        assert options.compute_dtype == dtype

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
    def test_sets_the_compute_dtype(self, dtype):
        setup(compute_dtype=dtype)
        assert nets.cast(jnp.zeros(3)).dtype == dtype

    def test_unavailable_platform_is_one_sentence(self):
        with pytest.raises(DeviceError, match=r"platform 'tpu' is not available here"):
            setup(platform="tpu")

    def test_mock_devices_that_come_too_late(self):
        there = len(jax.devices("cpu"))
        setup(mock_devices=there)
        with pytest.raises(DeviceError, match=rf"asks for {there + 1} .* with {there}"):
            setup(mock_devices=there + 1)

    def test_expected_devices(self):
        there = len(jax.devices("cpu"))
        setup(expect_devices=there)
        with pytest.raises(DeviceError, match=rf"asks for 99 devices, but there are {there}"):
            setup(expect_devices=99)

    def test_processes_that_come_too_late(self):
        with pytest.raises(DeviceError, match=r"before JAX is first used"):
            setup(num_processes=2, coordinator_address="localhost:1")

    def test_late_flags_are_said(self, tmp_path):
        with pytest.warns(UserWarning, match=r"too late: --xla_dump_to"):
            setup(xladump=str(tmp_path))

    def test_in_a_new_process(self, tmp_path):
        code = """if True:
            import json, os, jax
            from embodied.jax import internal
            for _ in range(2):
                internal.setup(
                    mock_devices=3, deterministic=True, autotune=2, xladump="ours",
                    gpuflags="--xla_gpu_enable_latency_hiding_scheduler=true", prealloc=False)
            names = ["XLA_FLAGS", "XLA_PYTHON_CLIENT_PREALLOCATE"]
            found = [len(jax.devices("cpu")), jax.config.jax_compilation_cache_dir]
            print(json.dumps([*found, *(os.environ[x] for x in names)]))
        """
        dump = f"--xla_dump_to={tmp_path / 'theirs'}"
        devices, cache, flags, prealloc = subprocesses.run_json(
            code, XLA_FLAGS=dump, XDG_CACHE_HOME=str(tmp_path), JAX_PLATFORMS=None
        )
        assert devices == 3
        assert cache.startswith(str(tmp_path / "dreamerv3" / "jax"))
        assert flags.split() == [
            dump,
            "--xla_gpu_deterministic_ops=true",
            "--xla_gpu_autotune_level=2",
            "--xla_gpu_enable_latency_hiding_scheduler=true",
            "--xla_dump_hlo_as_text=true",
        ]
        assert prealloc == "false"

    def test_no_accelerator_is_said_once(self, tmp_path):
        (tmp_path / "file").touch()
        code = """if True:
            from embodied.jax import internal
            internal.setup()
            internal.setup()
        """
        out = subprocesses.run(code, XDG_CACHE_HOME=str(tmp_path / "file")).splitlines()
        assert out[0] == "No accelerator was found: running on the CPU."
        assert out[1].startswith("Compiled programs are not kept")
        assert len(out) == 2


class TestFlags:
    def test_the_users_win(self, monkeypatch):
        monkeypatch.setenv("FLAGS", "--a=1 --b")
        backend.add_flags("FLAGS", ["--a=2", "--c=3"])
        assert backend.os.environ["FLAGS"] == "--a=1 --b --c=3"

    def test_none_leave_the_variable_alone(self, monkeypatch):
        monkeypatch.delenv("FLAGS", raising=False)
        backend.add_flags("FLAGS", [])
        assert "FLAGS" not in backend.os.environ

    def test_gpu_flags_only_where_a_gpu_can_be(self):
        gpu = Options(deterministic=True, autotune=1, gpuflags="--xla_gpu_x=1 --xla_gpu_y=2")
        assert backend._xla_flags(gpu) == [
            "--xla_gpu_deterministic_ops=true",
            "--xla_gpu_autotune_level=1",
            "--xla_gpu_x=1",
            "--xla_gpu_y=2",
        ]
        assert backend._xla_flags(Options(platform="cpu", deterministic=True, autotune=1)) == []

    def test_the_cache_keeps_the_users_folder(self, tmp_path):
        before = jax.config.jax_compilation_cache_dir
        try:
            jax.config.update("jax_compilation_cache_dir", str(tmp_path / "theirs"))
            setup(compilation_cache="auto")
            assert jax.config.jax_compilation_cache_dir == str(tmp_path / "theirs")
            setup(compilation_cache=str(tmp_path / "ours"))
            assert jax.config.jax_compilation_cache_dir == str(tmp_path / "ours")
            assert (tmp_path / "ours").is_dir()
        finally:
            jax.config.update("jax_compilation_cache_dir", before)


class TestMesh:
    @given(d=st.integers(1, 4), f=st.integers(1, 4), t=st.integers(1, 4), free=st.integers(0, 3))
    def test_sizes(self, d, f, t, free):
        sizes = [d, f, t]
        devices = list(range(d * f * t))
        if free < 3:
            sizes[free] = -1
        found = internal.mesh(devices, ",".join(map(str, sizes)))
        assert dict(found.shape) == {"d": d, "f": f, "t": t}
        assert list(found.devices.flat) == devices

    @pytest.mark.parametrize("shape", ["2,2,1", "-1,-1,1", "-1,3,1", "1,1", "0,-1,1", "a,b,c", ""])
    def test_misfits_name_both_numbers(self, shape):
        with pytest.raises(DeviceError, match=rf"mesh '{shape}' does not fit 5 devices"):
            internal.mesh(list(range(5)), shape)

    def test_devices_that_are_not_there(self):
        with pytest.raises(DeviceError, match=r"no device 7"):
            internal.select(Options(platform="cpu"), (0, 7))

    @pytest.mark.parametrize(("rows", "devices"), [(13, 2), (3, 2), (0, 1)])
    def test_rows_that_cannot_be_split(self, rows, devices):
        found = jax.devices("cpu")[:1] * devices
        mesh = jax.sharding.Mesh(np.array(found).reshape(devices, 1, 1), internal.AXES)
        with pytest.raises(DeviceError, match=rf"batch_size {rows} .* {devices} train devices"):
            internal.check_split("batch_size", rows, mesh, "train")


def test_axes_are_known_only_inside_shard_map():
    mesh = internal.mesh(jax.devices("cpu")[:1])
    assert internal.get_named_axes() == internal.get_data_axes() == ()
    with internal.bind_axes(mesh.axis_names):
        assert internal.get_named_axes() == ("d", "f", "t")
        assert internal.get_data_axes() == ("d", "f")
    assert internal.get_data_axes() == ()


class TestMoving:
    @pytest.fixture
    def sharding(self):
        return NamedSharding(internal.mesh(jax.devices("cpu")[:1]), internal.BATCH)

    def test_round_trip_is_writable(self, sharding):
        tree = {"a": np.arange(6.0, dtype=np.float32).reshape(3, 2), "b": [np.arange(3)[:, None]]}
        fetch = internal.fetch_async(internal.to_global(tree, sharding))
        for _ in range(2):
            found = fetch()
            np.testing.assert_array_equal(found["a"], tree["a"])
            np.testing.assert_array_equal(found["b"][0], tree["b"][0])
            found["a"][:] = 0

    def test_fetched_values_outlive_donation(self, sharding):
        x = internal.device_put(np.ones((8, 8), np.float32), sharding)
        fetch = internal.fetch_async(x)
        found = fetch()
        jax.jit(lambda x: x + 1, donate_argnums=0)(x).block_until_ready()
        assert (found == 1).all()

    @pytest.mark.parametrize("spec", [P(), internal.BATCH])
    def test_moved_arrays_outlive_donation(self, sharding, spec):
        x = {"x": internal.device_put(np.ones((8, 8), np.float32), sharding)}
        y = internal.move(x, {"x": NamedSharding(sharding.mesh, spec)})
        jax.jit(lambda x: x["x"] + 1, donate_argnums=0)(x).block_until_ready()
        assert (np.asarray(y["x"]) == 1).all()

    def test_local_parts_of_one_process_are_all(self, sharding):
        x = internal.device_put(np.ones((4, 2), np.float32), sharding)
        assert internal.to_local({"x": x})["x"] is x
        assert internal.local_sharding(sharding) == sharding

    @given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=12), chunk=st.integers(-1, 80))
    def test_checkpoint_groups(self, sizes, chunk):
        sharding = NamedSharding(internal.mesh(jax.devices("cpu")[:1]), P())
        keys = [str(i) for i in range(len(sizes))]
        groups = internal.grouped_ckpt_fns(
            dict.fromkeys(keys, sharding), dict(zip(keys, sizes, strict=True)), chunk
        )
        assert [k for group, _, _ in groups for k in group] == keys
        totals = [(len(group), sum(sizes[int(k)] for k in group)) for group, _, _ in groups]
        if chunk <= 0:
            assert len(groups) == 1
        else:
            assert all(count == 1 or total <= chunk for count, total in totals)

    def test_checkpoint_functions(self, sharding):
        value = np.arange(4.0, dtype=np.float32)
        gather, scatter = internal.ckpt_fn({"a": sharding, "b": sharding})
        params = scatter({"b": value})
        assert params["b"].sharding == sharding
        np.testing.assert_array_equal(gather(params)["b"], value)
