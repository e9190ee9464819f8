import re

import elements
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamerv3.config import compose, flatten, load_configs, nearest, override, parse, split
from dreamerv3.validate import problems
from embodied.core.errors import ConfigError

PRESETS = list(load_configs())
DEFAULTS = compose()
SIZES = {
    "size1m": (512, 64, 4, 4, 64),
    "size12m": (2048, 256, 16, 16, 256),
    "size25m": (3072, 384, 24, 24, 384),
    "size50m": (4096, 512, 32, 32, 512),
    "size100m": (6144, 768, 48, 48, 768),
    "size200m": (8192, 1024, 64, 64, 1024),
    "size400m": (12288, 1536, 96, 96, 1536),
}


class TestPresets:
    @pytest.mark.parametrize("name", PRESETS)
    def test_every_preset_composes_and_is_valid(self, name):
        config = compose([name])
        assert config.flat.keys() == DEFAULTS.flat.keys()
        assert {k: type(v) for k, v in config.flat.items()} == {
            k: type(v) for k, v in DEFAULTS.flat.items()
        }
        assert list(problems(config)) == []

    @pytest.mark.parametrize("name", SIZES)
    def test_sizes(self, name):
        deter, hidden, classes, depth, units = SIZES[name]
        agent = compose([name]).agent
        rssm = agent.dyn.rssm
        assert (rssm.deter, rssm.hidden, rssm.classes) == (deter, hidden, classes)
        assert (rssm.stoch, rssm.blocks) == (32, 8)
        for net in (agent.enc.simple, agent.dec.simple):
            assert (net.depth, net.units, net.mults) == (depth, units, (2, 3, 4, 4))
        heads = (agent.rewhead, agent.conhead, agent.policy, agent.value)
        assert {head.units for head in heads} == {units}

    def test_debug_reaches_every_network(self):
        agent = compose(["debug"]).agent
        layers = [value for key, value in agent.flat.items() if key.endswith(".layers")]
        assert layers == [1] * 6
        assert (agent.dyn.rssm.imglayers, agent.dyn.rssm.deter) == (2, 8)

    def test_the_jax_section_is_the_options_of_the_agent(self):
        from embodied.jax.options import Options  # here, since it loads JAX

        assert Options.make(**DEFAULTS.jax) == Options()

    def test_later_presets_win(self):
        assert compose(["debug", "size1m"]).agent.dyn.rssm.deter == 512
        assert compose(["size1m", "debug"]).agent.dyn.rssm.deter == 8
        assert compose(["size1m", "defaults"]).agent.dyn.rssm.deter == 8192

    def test_defaults_are_always_the_base(self):
        assert compose(["defaults", "size1m"]).agent == compose(["size1m"]).agent

    def test_misspelt_preset(self):
        with pytest.raises(ConfigError, match=r"no preset 'size1n': did you mean 'size1m'"):
            compose(["size1n"])
        with pytest.raises(
            ConfigError, match=r"no preset 'xyz': valid names are defaults, size1m"
        ):
            compose(["xyz"])


class TestSplit:
    def test_presets_and_flags(self):
        argv = "--configs debug size1m --seed 1 --task=dmc_walker_walk --configs a,b"
        presets, flags = split(argv.split())
        assert presets == ["debug", "size1m", "a", "b"]
        assert flags == {"seed": "1", "task": "dmc_walker_walk"}

    def test_values_keep_equals_signs_and_minus(self):
        argv = ["--run.from_checkpoint=/a=b", "--env.dmc.camera", "-1", "--jax.xladump="]
        flags = {"run.from_checkpoint": "/a=b", "env.dmc.camera": "-1", "jax.xladump": ""}
        assert split(argv) == ([], flags)

    def test_last_occurrence_counts_for_value_and_order(self):
        line = r"--agent.value.units 1 --.*\.units 2 --agent.value.units 3"
        argv = line.split()
        assert parse(argv).agent.value.units == 3
        assert parse(argv[:4]).agent.value.units == 2

    def test_flag_without_value(self):
        with pytest.raises(ConfigError, match=r"flag --jax.debug needs a value"):
            split(["--jax.debug", "--seed", "1"])

    def test_value_without_flag(self):
        with pytest.raises(ConfigError, match=r"'debug' follows no flag.*--configs debug"):
            split(["debug"])


class TestFlags:
    def test_typical_command_line(self):
        line = (
            "--configs dmc_vision --run.train_ratio 32 --agent.dyn.rssm.deter 256 "
            "--env.dmc.image False --logger.outputs jsonl,terminal"
        )
        config = parse(line.split())
        assert config.run.train_ratio == 32.0
        assert config.agent.dyn.rssm.deter == 256
        assert config.env.dmc.image is False
        assert config.logger.outputs == ("jsonl", "terminal")

    @pytest.mark.parametrize(
        ("key", "text", "value"),
        [
            ("jax.debug", "true", True),
            ("run.steps", "1e6", 1_000_000),
            ("run.steps", "123456789012345678", 123456789012345678),
            ("run.train_ratio", "512", 512.0),
            ("replay.prio.initial", "inf", float("inf")),
            ("agent.opt.lr", "6e-4", 6e-4),
            ("jax.xladump", "5", "5"),
            ("jax.train_devices", "3", (3,)),
            ("jax.train_devices", "0, 1", (0, 1)),
            ("jax.policy_mesh", "1,-1,1", "1,-1,1"),
            ("env.dmc.size", ["96", "96"], (96, 96)),
            ("env.dmc.size", (96, 96.0), (96, 96)),
            ("logger.outputs", ["jsonl,", "scope"], ("jsonl", "scope")),
            ("run.envs", 2.0, 2),
        ],
    )
    def test_casts(self, key, text, value):
        result = compose([], {key: text})[key]
        assert result == value
        assert type(result) is type(value)

    @pytest.mark.parametrize(
        ("key", "value", "kind"),
        [
            ("jax.debug", "no", "True or False"),
            ("jax.debug", "1", "True or False"),
            ("jax.debug", 1, "True or False"),
            ("run.envs", "four", "an integer"),
            ("run.envs", "2.5", "an integer"),
            ("run.envs", "inf", "an integer"),
            ("run.envs", True, "an integer"),
            ("agent.opt.lr", "fast", "a number"),
            ("agent.opt.lr", "nan", "a number"),
            ("agent.opt.lr", None, "a number"),
            ("task", ["a", "b"], "one string"),
            ("jax.train_devices", "0,x", "a list, such as '0', with each value an integer"),
            ("logger.outputs", ",", "a list, such as 'terminal,jsonl,tensorboard,scope'"),
        ],
    )
    def test_wrong_types_name_key_value_and_type(self, key, value, kind):
        sentence = f"config key '{key}' must be {kind}.*{re.escape(repr(value))}"
        with pytest.raises(ConfigError, match=sentence):
            compose([], {key: value})

    def test_nested_dicts_and_argument_lists(self):
        nested = compose([], {"agent": {"opt": {"lr": 1}, r".*": {r"units": 7}}})
        assert (nested.agent.opt.lr, nested.agent.value.units) == (1.0, 7)
        assert compose(["debug"], ["--seed", "3", "--configs", "size1m"]).seed == 3

    @pytest.mark.parametrize(
        ("key", "found"),
        [
            ("run.trainratio", "'run.train_ratio'"),
            ("train_ratio", "'run.train_ratio'"),
            ("deter", "'agent.dyn.rssm.deter'"),
            ("run.usage", "'run.usage.psutil' or 'run.usage.nvsmi'"),
            ("config", "'configs'"),
            ("xyzzy", "`--help` lists all names"),
        ],
    )
    def test_unknown_keys_get_the_nearest(self, key, found):
        with pytest.raises(ConfigError, match=f"no config key '{key}': .*{found}"):
            compose([], {key: 1})

    @given(st.text("abcdefgh._-", max_size=20))
    def test_nearest_always_ends_a_sentence(self, name):
        assert nearest(name, DEFAULTS.flat)[-1] in "?."


class TestRegex:
    def test_matches_whole_keys_only(self):
        config = compose([], {r"agent\..*\.layers": 9, r".*\.unit.": 3})
        assert config.agent.dyn.rssm.imglayers == 2
        assert config.agent.value.layers == 9
        assert config.agent.value.units == 3
        with pytest.raises(ConfigError, match="matches no whole config key"):
            compose([], {r".*\.unit[^s]?": 3})

    def test_alternation_under_a_nested_key_stays_inside(self):
        config = compose([], {"agent": {"enc|dec": {"simple": {"units": 3}}}})
        assert (config.agent.enc.simple.units, config.agent.dec.simple.units) == (3, 3)
        assert config.agent.enc.simple.layers == 3

    def test_values_are_cast_for_each_key(self):
        assert compose([], {r"replay\.fracs\..*": "1"}).replay.fracs.uniform == 1.0
        with pytest.raises(ConfigError, match=r"'run.debug' must be True or False, not '3'"):
            compose([], {r".*debug": "3"})

    def test_no_match_and_no_regex(self):
        with pytest.raises(ConfigError, match=r"matches no whole config key: .*simple\.units'"):
            parse([r"--.*\.unit", "3"])
        with pytest.raises(ConfigError, match="not a valid regular expression"):
            parse(["--.*(", "3"])


class TestCompose:
    def test_logdir_gets_time_and_home(self, monkeypatch):
        monkeypatch.setenv("HOME", "/home/me")
        assert re.fullmatch(r"/home/me/logdir/\d{8}T\d{6}", compose().logdir)
        assert compose([], {"logdir": "~/x"}).logdir == "/home/me/x"

    def test_override_leaves_the_original(self):
        changed = override(DEFAULTS, {"seed": 5})
        assert (changed.seed, DEFAULTS.seed) == (5, 0)
        assert isinstance(changed, elements.Config)

    def test_unreadable_files(self, tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            load_configs(tmp_path / "missing.yaml")
        for text in ("a: [", "just words"):
            (tmp_path / "bad.yaml").write_text(text)
            with pytest.raises(ConfigError, match=r"bad\.yaml"):
                load_configs(tmp_path / "bad.yaml")

    def test_flatten_keeps_plain_keys(self):
        assert flatten({"a": {"b": {"c": 1}}, "d.e": 2}) == {"a.b.c": 1, "d.e": 2}
