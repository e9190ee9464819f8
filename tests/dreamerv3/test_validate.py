import pytest

from dreamerv3.config import compose
from dreamerv3.validate import notes, validate
from embodied.core.errors import ConfigError


class TestValidate:
    @pytest.mark.parametrize(
        ("flags", "sentence"),
        [
            # Batches and devices that do not fit: both numbers are named.
            (
                {"batch_size": 13, "jax.train_devices": "0,1"},
                "batch_size 13 must be a multiple of 2",
            ),
            ({"run.envs": 3, "jax.policy_devices": "0,1"}, "run.envs 3 must be a multiple of 2"),
            (
                {"jax.train_devices": "0,1", "jax.train_mesh": "3,1,1"},
                "train devices 2, not '3,1,1'",
            ),
            ({"jax.train_mesh": "-1,-1,1"}, "one of them possibly -1"),
            # Workers.
            (
                {"run.envs": 16, "run.envs_per_worker": 3},
                "run.envs must be a multiple of run.envs_per_worker, but 16 is none of 3",
            ),
            ({"run.envs_per_worker": -1}, "'run.envs_per_worker' must be at least 0, not -1"),
            ({"run.env_restarts": -1}, "'run.env_restarts' must be at least 0, not -1"),
            ({"run.env_timeout": 0}, "'run.env_timeout' must be at least 0.1, not 0.0"),
            (
                {"run.start_method": "forks"},
                "'run.start_method' cannot be 'forks': did you .*fork",
            ),
            ({"jax.train_mesh": "2"}, "three numbers d,f,t"),
            ({"jax.policy_devices": "0,0"}, "names a device twice: 0, 0"),
            # A replay that could never fill a batch.
            (
                {"replay.size": 1039},
                r"replay.size 1039 is less than one batch of 16 sequences x 65 steps = 1040",
            ),
            (
                {"replay.fracs.uniform": 0},
                "One of replay.fracs.uniform, priority and recency must be greater",
            ),
            # Sizes that do not divide.
            ({"agent.dyn.rssm.deter": 500}, "deter must be a multiple .*500 is none of 8"),
            ({"agent.dec.simple.depth": 3}, "12 is none of 8: .*set agent.dec.simple.bspace to 0"),
            ({"agent.dyn.rssm.blocks": 0}, "'agent.dyn.rssm.blocks' must be at least 1, not 0"),
            ({"agent.enc.simple.mults": "2,0"}, "mults' must be at least 1, not 0"),
            ({"agent.imag_length": 0}, "'agent.imag_length' must be at least 1, not 0"),
            ({"report_length": 0}, "'report_length' must be at least 1"),
            ({"replay_context": -1}, "'replay_context' must be at least 0, not -1"),
            ({"agent.policy.unimix": 1.5}, "must be between 0 and 1, not 1.5"),
            ({"agent.enc.keys": "(image"}, "agent.enc.keys is no regular expression: missing"),
            # Names.
            ({"agent.policy_dist_disc": "onehott"}, "cannot be 'onehott': did you mean 'onehot'"),
            ({"agent.policy_dist_cont": "normal"}, "cannot be 'normal'"),
            ({"task": "gimnasium_CartPole-v1"}, "task 'gimnasium_.*did you mean 'gymnasium_NAME'"),
            ({"task": "CartPole-v1"}, "not one of a known suite"),
            ({"task": "dmc"}, "task 'dmc' is not one"),
            ({"task": "custom_nowhere:make"}, "There is no module 'nowhere' in "),
            ({"task": "custom_os:mkdri"}, "module 'os' has no 'mkdri': did you mean 'mkdir'"),
            (
                {"task": "custom_os:mkdir", "env.custom.kwargs": "a=1"},
                "options 'a=1' are not valid JSON",
            ),
            ({"script": "trian"}, "'script' cannot be 'trian': did you mean 'train'"),
            ({"jax.platform": "gpu0"}, "'jax.platform' cannot be 'gpu0': did you mean 'gpu'"),
            ({"replay.priosignal": "value"}, "cannot be 'value': valid names are model"),
            ({"logger.outputs": "json"}, "cannot be 'json': did you mean 'jsonl'"),
        ],
    )
    def test_refuses_in_one_sentence(self, flags, sentence):
        with pytest.raises(ConfigError, match=sentence) as error:
            validate(compose([], flags))
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize(
        "flags",
        [
            {"batch_size": 14, "jax.train_devices": "0,1"},
            {"batch_size": 13, "jax.train_devices": "0,1", "jax.train_mesh": "1,1,-1"},
            {"replay.size": 1040},
            {"run.envs": 15, "run.envs_per_worker": 5},
            {"run.envs": 15, "run.envs_per_worker": 0},
            {"agent.dec.simple.depth": 3, "agent.dec.simple.bspace": 0},
            {"report_length": 1, "replay_context": 0},
        ],
    )
    def test_accepts(self, flags):
        validate(compose([], flags))


class TestNotes:
    @pytest.mark.parametrize(
        ("flags", "rate"),
        [
            ({"batch_size": 1, "run.train_ratio": 512}, "8 updates per environment step"),
            ({"batch_size": 1, "run.train_ratio": 64}, "1 update per environment step"),
            ({}, "one update per 32 environment steps"),
            ({"run.train_ratio": 0}, "no updates"),
        ],
    )
    def test_updates_per_step(self, flags, rate):
        note = notes(compose([], flags))[0]
        assert rate in note
        assert f"train ratio {flags.get('run.train_ratio', 32)} " in note

    def test_a_flag_that_lowers_the_presets_train_ratio_is_said_with_both(self):
        presets = ["dmc_proprio"]
        lowered = notes(compose(presets, {"run.train_ratio": 32}), presets)
        expected = "run.train_ratio is 32.0 by a flag, instead of 1024.0 by preset dmc_proprio."
        assert lowered[1:] == [expected]

    def test_a_regex_or_another_key_counts_too(self):
        presets = ["dmc_vision"]
        changed = notes(compose(presets, {r"run\.(steps|envs)": 10}), presets)
        assert changed[1:] == [
            "run.steps is 10 by a flag, instead of 1100000 by preset dmc_vision."
        ]

    def test_silent_without_replacement(self):
        presets = ["dmc_proprio", "debug"]
        flags = {"task": "dmc_cheetah_run", "seed": 3, "run.train_ratio": 8}
        assert len(notes(compose(presets, flags), presets)) == 1
