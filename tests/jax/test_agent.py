import threading

import elements
import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import embodied.jax
from embodied.core import base
from embodied.core.errors import (
    CheckpointError,
    ConfigError,
    DeviceError,
    NonFiniteError,
    SpaceError,
)
from embodied.jax import nets

from . import toy


@pytest.fixture(autouse=True)
def _keep_dtype(monkeypatch):
    monkeypatch.setattr(nets, "COMPUTE_DTYPE", nets.COMPUTE_DTYPE)


@pytest.fixture(scope="module", autouse=True)
def _compile_once(tmp_path_factory):
    """Lets agents of one layout share compiled programs: compiling is most of the time here."""
    values = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("compiled")),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {k: getattr(jax.config, k) for k in values}
    for settings in (values, before):
        for key, value in settings.items():
            jax.config.update(key, value)
        compilation_cache.reset_cache()
        if settings is values:
            yield


@pytest.fixture(scope="module")
def agent():
    """For tests that leave its parameters alone."""
    return toy.make_agent(noise=0.1)


def equal(first, second):
    assert jax.tree.structure(first) == jax.tree.structure(second)
    return jax.tree.all(jax.tree.map(lambda x, y: bool((np.asarray(x) == y).all()), first, second))


class TestConstruction:
    def test_gives_the_wrapper_around_the_model(self, agent):
        assert isinstance(agent, base.Agent)
        assert type(agent.model) is toy.Toy
        assert agent.model.config is agent.config
        assert embodied.jax.nets is nets

    def test_the_seed_alone_decides_the_parameters(self, agent):
        assert equal(agent.params, toy.make_agent(noise=0.1).params)
        other = toy.make_agent(seed=1)
        assert not equal(agent.params["pol/kernel"], other.params["pol/kernel"])

    def test_unknown_option(self):
        with pytest.raises(ConfigError, match=r"jax\.traindevices: did you mean jax\.train_dev"):
            toy.make_agent(traindevices=(0,))

    def test_device_that_is_not_there(self):
        with pytest.raises(DeviceError, match=r"no device 63"):
            toy.make_agent(train_devices=(63,))

    @pytest.mark.parametrize(
        ("act_space", "text"),
        [
            ({"reward": elements.Space(np.float32)}, r"'reward' is both in obs_space and in act"),
            ({"a": elements.Space(np.int64, (), 0, 2)}, r"'a' in act_space has the type int64"),
        ],
    )
    def test_spaces_that_cannot_be(self, act_space, text):
        with pytest.raises(SpaceError, match=text):
            toy.Toy(toy.OBS_SPACE, act_space, toy.make_config())


class TestPolicy:
    def test_shapes_and_types(self, agent):
        carry = agent.init_policy(4)
        carry, acts, outs = agent.policy(carry, toy.make_obs())
        assert {k: (v.shape, v.dtype) for k, v in acts.items()} == {
            "move": ((4, 2), np.float32),
            "button": ((4,), np.int32),
        }
        assert set(outs) == {"hidden"}
        assert all(type(x) is np.ndarray for x in [*acts.values(), *outs.values()])
        assert type(carry["hidden"]) is not np.ndarray

    def test_every_action_has_its_own_seed(self, agent):
        carry = agent.init_policy(4)
        moves = [agent.policy(carry, toy.make_obs())[1]["move"] for _ in range(2)]
        assert (moves[0] != moves[1]).all()

    def test_the_carry_remembers(self, agent):
        carry = agent.init_policy(4)
        obs = {**toy.make_obs(), "is_first": np.zeros(4, bool)}
        second, first, _ = agent.policy(carry, obs, mode="eval")
        _, again, _ = agent.policy(second, obs, mode="eval")
        assert not equal(first, again)
        _, reset, _ = agent.policy(second, {**obs, "is_first": np.ones(4, bool)}, mode="eval")
        assert equal(first, reset)

    def test_evaluation_leaves_training_alone(self):
        moves = []
        for evals in [0, 3]:
            agent = toy.make_agent()
            carry = agent.init_policy(4)
            for number in range(2):
                for _ in range(evals):
                    agent.policy(carry, toy.make_obs(), mode="eval")
                carry, acts, _ = agent.policy(carry, toy.make_obs(number))
            moves.append(acts)
            assert agent.counters["actions"] == 2
        assert equal(*moves)

    def test_the_drivers_buffers_are_not_read_afterwards(self, agent):
        obs = toy.make_obs()
        _, _, outs = agent.policy(agent.init_policy(4), obs)
        before = outs["hidden"].copy()
        for value in obs.values():
            value[:] = 0
        assert equal(before, outs["hidden"])

    @pytest.mark.parametrize(
        ("key", "value", "text"),
        [
            ("vector", None, r"lacks the key 'vector'; it has image, is_first"),
            ("image", np.zeros((4, 3, 2, 3), np.uint8), r"'image' has shape \(3, 2, 3\).*\(2, 2"),
            ("vector", np.zeros((4, 4)), r"'vector' has .*float64.* and float32 are right"),
        ],
    )
    def test_observations_that_do_not_fit(self, agent, key, value, text):
        obs = {k: v for k, v in toy.make_obs().items() if k != key}
        obs.update({key: value} if value is not None else {})
        with pytest.raises(SpaceError, match=text):
            agent.policy(agent.init_policy(4), obs)

    @pytest.mark.parametrize("number", [np.nan, np.inf])
    def test_observations_that_are_not_finite(self, agent, number):
        obs = toy.make_obs()
        obs["vector"][2, 1] = number
        with pytest.raises(NonFiniteError, match=r"observation 'vector' of environment 2 is not"):
            agent.policy(agent.init_policy(4), obs)

    def test_actions_that_are_not_finite(self):
        agent = toy.make_agent()
        data = agent.save()
        data["params"]["pol/bias"][0] = np.nan
        agent.load(data)
        with pytest.raises(NonFiniteError, match=r"action 'move' of environment 0"):
            agent.policy(agent.init_policy(4), toy.make_obs())
        data["params"]["net/core/bias"][0] = np.nan
        agent.load(data)
        with pytest.raises(
            NonFiniteError, match=r"output 'hidden' of the policy of environment 0"
        ):
            agent.policy(agent.init_policy(4), toy.make_obs())

    def test_can_be_left_out(self):
        agent = toy.make_agent(enable_policy=False)
        toy.run_updates(agent, 1)
        with pytest.raises(DeviceError, match=r"jax\.enable_policy is False"):
            agent.policy(None, toy.make_obs())

    def test_acts_while_training(self):
        agent = toy.make_agent()
        failed = []

        def act():
            try:
                carry = agent.init_policy(4)
                for number in range(60):
                    carry, _, _ = agent.policy(carry, toy.make_obs(number))
            except Exception as e:
                failed.append(e)

        thread = threading.Thread(target=act)
        thread.start()
        toy.run_updates(agent, 30)
        thread.join()
        assert not failed
        assert agent.counters == {"updates": 30, "skipped": 0, "batches": 30, "actions": 60}

    def test_modes(self, agent):
        with pytest.raises(ConfigError, match=r"not 'explore'"):
            agent.policy(agent.init_policy(4), toy.make_obs(), mode="explore")


class TestTrain:
    def test_learns_and_shows_it_to_the_policy(self):
        agent = toy.make_agent()
        carry = agent.init_policy(4)
        _, before, _ = agent.policy(carry, toy.make_obs(), mode="eval")
        losses, *_ = toy.run_updates(agent, 60)
        _, after, _ = agent.policy(carry, toy.make_obs(), mode="eval")
        assert np.mean(losses[-5:]) < 0.7 * np.mean(losses[:5])
        assert not equal(before, after)

    def test_gives_what_the_previous_call_computed(self):
        agent = toy.make_agent()
        stream = agent.stream(toy.Source())
        carry = agent.init_train(8)
        batch = next(toy.Source())
        carry, outs, metrics = agent.train(carry, next(stream))
        assert (outs, metrics) == ({}, {})
        carry, outs, metrics = agent.train(carry, next(stream))
        assert equal(outs["replay"]["stepid"], batch["stepid"])
        assert outs["replay"]["hidden"].shape == (8, 6, toy.UNITS)
        assert metrics["loss"].shape == ()
        assert all(type(x) is np.ndarray for x in jax.tree.leaves((outs, metrics)))

    def test_reports_change_nothing(self):
        agent = toy.make_agent()
        stream = agent.stream(toy.Source())
        before = agent.save()
        carry, metrics = agent.report(agent.init_report(8), next(stream))
        assert metrics["video"].shape == (2, 6, 2, 2, 3)
        assert metrics["video"].dtype == np.uint8
        assert equal(before, agent.save())
        agent.report(carry, next(stream))

    def test_reports_do_not_move_the_seeds_of_training(self):
        losses = []
        for reports in [0, 2]:
            agent = toy.make_agent(noise=1.0)
            other = agent.stream(toy.Source())
            found, carry, stream = toy.run_updates(agent, 2)
            for _ in range(reports):
                agent.report(agent.init_report(8), next(other))
            losses.append(found + toy.run_updates(agent, 2, stream, carry)[0])
        assert losses[0] == losses[1]

    def test_without_jit(self):
        losses = []
        for jit in (False, True):
            agent = toy.make_agent(jit=jit)
            losses.append(toy.run_updates(agent, 3)[0])
        np.testing.assert_allclose(*losses, rtol=1e-5)

    @pytest.mark.parametrize("shardmap", [False, True])
    def test_an_update_that_is_not_finite_is_undone(self, shardmap, tmp_path):
        config = toy.make_config(nonfinite="skip", use_shardmap=shardmap)
        agent = toy.Toy(toy.OBS_SPACE, toy.ACT_SPACE, config.update(logdir=str(tmp_path)))
        _, carry, _ = toy.run_updates(agent, 1)
        before, hidden = agent.save()["params"], agent.save_carry(carry)
        bad = next(toy.Source())
        bad["move"][2, 1] = np.inf
        carry, _, _ = agent.train(carry, next(agent.stream(iter([bad]))))
        assert equal(agent.save()["params"], before)
        assert equal(agent.save_carry(carry), hidden)
        assert agent.counters == {"updates": 1, "skipped": 1, "batches": 2, "actions": 0}

    @pytest.mark.parametrize("guard", [True, False])
    def test_transfers_that_nobody_asked_for(self, guard):
        agent = toy.make_agent(transfer_guard=guard)
        _, carry, stream = toy.run_updates(agent, 1)
        batch = jax.tree.map(np.array, next(stream))
        if guard:
            with pytest.raises(Exception, match=r"Disallowed host-to-device transfer"):
                agent.train(carry, batch)
        else:
            agent.train(carry, batch)

    def test_debug_prints_and_checks_parameters(self, capsys):
        agent = toy.make_agent(debug=True)
        assert "net/core/kernel" in capsys.readouterr().out
        data = agent.save()
        data["params"]["net/head/bias"][0] = np.nan
        agent.load(data)
        with pytest.raises(NonFiniteError, match=r"parameter '.*' is not finite after update 1"):
            toy.run_updates(agent, 1)

    def test_debug_nans_finds_the_operation(self):
        agent = toy.make_agent(debug_nans=True)
        data = agent.save()
        data["params"]["pol/kernel"][:] = np.inf
        agent.load(data)
        with pytest.raises(FloatingPointError, match=r"nan"):
            agent.policy(agent.init_policy(4), toy.make_obs(), mode="eval")

    def test_a_profile_is_recorded(self, tmp_path):
        config = toy.make_config(profiler=True).update(logdir=str(tmp_path))
        toy.run_updates(toy.Toy(toy.OBS_SPACE, toy.ACT_SPACE, config), 10)
        assert list((tmp_path / "profiler").glob("**/*.xplane.pb"))


class TestCompilation:
    @pytest.fixture
    def compiled(self):
        """The number of compilations so far."""
        count = []

        def listen(event, duration, **kwargs):
            if event == "/jax/core/compile/backend_compile_duration":
                count.append(event)

        jax.monitoring.register_event_duration_secs_listener(listen)
        yield lambda: len(count)
        jax.monitoring.unregister_event_duration_listener(listen)

    def use(self, agent, stream, carries):
        train, report, act = carries
        train, _, _ = agent.train(train, next(stream))
        report, _ = agent.report(report, next(stream))
        for mode in ["train", "eval"]:
            act, _, _ = agent.policy(act, toy.make_obs(), mode)
        return train, report, act

    def start(self, agent):
        return agent.init_train(8), agent.init_report(8), agent.init_policy(4)

    def test_ends_after_two_calls(self, compiled):
        agent = toy.make_agent()
        stream = agent.stream(toy.Source())
        carries = self.start(agent)
        before = compiled()
        for _ in range(2):
            carries = self.use(agent, stream, carries)
        assert (after := compiled()) > before
        data = agent.save()
        agent.load(data)
        agent.load(data, regex="^net/")
        carries = self.start(agent)
        for _ in range(3):
            carries = self.use(agent, stream, carries)
        assert compiled() == after

    def test_can_be_done_in_advance(self, compiled):
        agent = toy.make_agent(precompile=True)
        train = agent.stream(toy.Source(length=6))
        report = agent.stream(toy.Source(length=4))
        carries = agent.init_train(8), agent.init_report(8)
        batches = next(train), next(report)
        before = compiled()
        agent.train(carries[0], batches[0])
        agent.report(carries[1], batches[1])
        assert compiled() == before


class TestStream:
    def test_moves_checks_and_seeds(self, agent):
        source = toy.Source()
        stream = agent.stream({**next(source), "log/extra": np.zeros((8, 6))} for _ in range(2))
        batch = next(stream)
        spaces = {**toy.OBS_SPACE, **toy.ACT_SPACE, **toy.EXT_SPACE}
        assert set(batch) == {*spaces, "seed"}
        assert all(isinstance(x, jax.Array) for x in batch.values())
        assert batch["seed"].dtype == np.uint32
        assert not equal(batch["seed"], next(stream)["seed"])
        with pytest.raises(StopIteration):
            next(stream)
        assert stream.save() is None
        stream.close()

    def test_nothing_is_drawn_ahead(self, agent):
        source = toy.Source()
        stream = agent.stream(source)
        assert source.number == 0
        first = next(stream)
        assert stream.save() == {"number": 1}
        second = next(stream)
        stream.load({"number": 0})
        assert equal(next(stream)["vector"], first["vector"])
        assert equal(next(stream)["vector"], second["vector"])

    @pytest.mark.parametrize(
        ("key", "change", "text"),
        [
            ("consec", None, r"lacks the key 'consec'"),
            ("reward", lambda x: x.astype(np.float64), r"'reward' has .*float64, but .*float32"),
            ("move", lambda x: x[..., :1], r"'move' has shape \(8, 6, 1\) .*\(8, 6, 2\)"),
            ("stepid", lambda x: x[:, :3], r"'stepid' has shape \(8, 3, 20\) .*\(8, 6, 20\)"),
        ],
    )
    def test_batches_that_do_not_fit(self, agent, key, change, text):
        good, bad = next(toy.Source()), next(toy.Source())
        value = bad.pop(key)
        bad.update({key: change(value)} if change else {})
        stream = agent.stream(iter([good, bad]))
        next(stream)
        with pytest.raises(SpaceError, match=text):
            next(stream)


class TestCheckpoint:
    @pytest.mark.parametrize("chunksize", [-1, 200])
    def test_continues_bit_for_bit(self, chunksize):
        def act(agent, carry):
            return agent.policy(carry, toy.make_obs())

        first = toy.make_agent(noise=1.0, ckpt_chunksize=chunksize)
        _, carry, stream = toy.run_updates(first, 3)
        acting, _, _ = act(first, first.init_policy(4))
        data = first.save()
        carry = jax.tree.map(np.array, carry)
        acting = jax.tree.map(np.array, acting)
        expected, _, _ = toy.run_updates(first, 3, stream, first_carry(first, carry))
        _, acts, _ = act(first, acting)

        second = toy.make_agent(noise=1.0)
        second.load(data)
        stream = second.stream(toy.Source())
        stream.load({"number": 3})
        found, _, _ = toy.run_updates(second, 3, stream, first_carry(second, carry))
        assert found == expected
        assert len(found) == 3  # The metrics that were on their way are not lost.
        assert equal(second.params, first.params)
        assert second.counters == {"updates": 6, "skipped": 0, "batches": 6, "actions": 1}
        assert equal(act(second, acting)[1], acts)

    def test_is_not_touched_by_what_follows(self):
        agent = toy.make_agent()
        data = agent.save()
        before = jax.tree.map(np.array, data)
        toy.run_updates(agent, 2)
        assert equal(before, data)
        agent.load(data)
        toy.run_updates(agent, 2)
        assert equal(before, data)

    def test_parts_by_regex(self, agent, capsys):
        other = toy.make_agent(seed=1)
        toy.run_updates(other, 1)
        before = other.save()
        saved = agent.save()
        other.load(saved, regex="^net/")
        assert capsys.readouterr().out.endswith("Loaded 4 parameters: net 4.\n")
        after = other.save()
        assert after["counters"] == before["counters"]
        for key, value in after["params"].items():
            assert equal(value, (saved if key.startswith("net/") else before)["params"][key])

    def test_a_regex_that_matches_nothing(self, agent):
        with pytest.raises(CheckpointError, match=r"regex '\^nett' matches no parameter"):
            agent.load(agent.save(), regex="^nett")

    def test_misfits_are_named_with_a_way_out(self, agent):
        data = agent.save()
        params = data["params"]
        params["pol/kernel"] = np.zeros((9, 5), np.float32)
        params["pol/more"] = np.zeros(2, np.float32)
        del params["opt/state/0/count"]
        with pytest.raises(CheckpointError) as e:
            agent.load(data)
        assert "'pol/kernel' is (8, 5) here but (9, 5) in it" in str(e.value)
        assert "'opt/state/0/count' () is missing from it" in str(e.value)
        assert "'pol/more' (2,) is only in it" in str(e.value)
        regex = str(e.value).split("the regex ")[1].split("'")[1]
        agent.load(data, regex=regex)
        assert regex == "^(net/|opt/state/0/mu/|opt/state/0/nu/|pol/bias$)"


def first_carry(agent, carry):
    """Puts a saved training carry back onto the devices."""
    sharding = jax.tree.map(lambda x: x.sharding, agent.init_train(8))
    return jax.device_put(carry, sharding)
