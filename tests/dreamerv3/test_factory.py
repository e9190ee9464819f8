import json
import logging
import subprocess
import sys
from functools import partial

import cloudpickle
import elements
import numpy as np
import pytest

import embodied
from dreamerv3 import factory
from dreamerv3.config import compose
from embodied.core.driver import Driver
from embodied.core.errors import ConfigError, MissingPackageError, SpaceError
from embodied.core.random import RandomAgent
from embodied.envs.dummy import Dummy


def config(tmp_path, **flags):
    base = {"logdir": str(tmp_path), "random_agent": True, "task": "dummy_cont"}
    return compose(["debug"], {**base, **{k.replace("__", "."): v for k, v in flags.items()}})


class TestEnv:
    def test_actions_are_normalised_and_dtypes_unified(self, tmp_path):
        env = factory.make_env(config(tmp_path, task="gymnasium_Pendulum-v1"), 0)
        space = env.act_space["action"]
        assert space.dtype == np.float32
        assert (space.low == -1).all()
        assert (space.high == 1).all()
        obs = env.step({"action": np.zeros(1, np.float32), "reset": np.bool_(True)})
        assert obs["vector"].dtype == np.float32
        env.step({"action": np.full(1, 5, np.float32), "reset": np.bool_(False)})  # clipped
        env.close()

    def test_values_outside_their_space_are_errors(self, tmp_path):
        env = factory.make_env(config(tmp_path), 0)
        env.step({"act_disc": np.int32(0), "act_cont": np.zeros(6, np.float32), "reset": np.True_})
        with pytest.raises(SpaceError, match="act_disc"):
            env.step(
                {"act_disc": np.int32(5), "act_cont": np.zeros(6, np.float32), "reset": np.False_}
            )

    def first(self, config, index, **kwargs):
        env = factory.make_env(config, index, **kwargs)
        reset = {"act_disc": np.int32(0), "act_cont": np.zeros(6, np.float32), "reset": np.True_}
        return env.step(reset)["vector"].tolist()

    def test_seed_follows_from_the_configs_seed_and_the_index(self, tmp_path):
        one = config(tmp_path, seed=1)
        assert self.first(one, 0) == self.first(one, 0)
        others = [self.first(one, 1), self.first(config(tmp_path, seed=2), 0)]
        assert self.first(one, 0) not in others

    def test_another_seed_follows_from_a_restart(self, tmp_path):
        seeds = [config(tmp_path, seed=seed) for seed in (1, 2)]
        firsts = [self.first(x, i, restarts=n) for x in seeds for i in (0, 1) for n in (0, 1, 2)]
        assert len({tuple(x) for x in firsts}) == 12

    def test_overrides_replace_options(self, tmp_path):
        env = factory.make_env(config(tmp_path), 0, size=(8, 12))
        assert env.obs_space["image"].shape == (8, 12, 3)

    def test_workers_do_not_load_jax(self, tmp_path):
        code = (
            "import sys, cloudpickle\n"
            "env = cloudpickle.loads(sys.stdin.buffer.read())(3)\n"
            "assert env.obs_space['image'].shape\n"
            "assert not {'jax', 'av', 'tensorboardX'} & set(sys.modules), sys.modules.keys()\n"
        )
        payload = cloudpickle.dumps(partial(factory.make_env, config(tmp_path)))
        subprocess.run([sys.executable, "-c", code], input=payload, check=True)


BATCH = """
import numpy as np
import embodied
from embodied.envs.dummy import Dummy

class Batch(embodied.BatchedEnv):
    def __init__(self, envs, seed, index):
        self.envs = [Dummy("disc", size=(8, 8), length=5, seed=seed + i) for i in range(envs)]
        self.length = envs
        self.index = index
        self.obs_space, self.act_space = self.envs[0].obs_space, self.envs[0].act_space

    obs_space = act_space = None

    def step(self, action):
        obs = [env.step({k: v[i] for k, v in action.items()}) for i, env in enumerate(self.envs)]
        return {k: np.stack([x[k] for x in obs]) for k in obs[0]}
"""


class TestEnvs:
    def drive(self, config, steps=24, **kwargs):
        driver = Driver(factory.make_envs(config), mode="train", **kwargs)
        agent = factory.make_agent(config)
        driver.reset(agent.init_policy)
        seqs = [[] for _ in range(driver.length)]
        driver.on_step(lambda tran, worker: seqs[worker].append(tran))
        driver(agent.policy, steps=steps)
        driver.close()
        return seqs

    def test_one_constructor_each(self, tmp_path):
        cfg = config(tmp_path, run__envs=3)
        makers = factory.make_envs(cfg)
        assert len(makers) == 3
        firsts = [seq[0]["vector"] for seq in self.drive(cfg, steps=3, parallel=False)]
        assert [x.tolist() for x in firsts] == [TestEnv().first(cfg, i) for i in range(3)]

    @pytest.fixture
    def batched(self, tmp_path, monkeypatch):
        (tmp_path / "my_batches.py").write_text(BATCH)
        monkeypatch.syspath_prepend(str(tmp_path))
        return {"task": "custom_my_batches:Batch", "run__envs": 6}

    @pytest.mark.parametrize(("per_worker", "lengths"), [(6, [6]), (3, [3, 3]), (1, [6])])
    def test_batched_tasks_make_a_batch_per_worker(self, tmp_path, batched, per_worker, lengths):
        makers = factory.make_envs(config(tmp_path, **batched, run__envs_per_worker=per_worker))
        made = [make() for make in makers]
        assert [env.length for env in made] == lengths
        assert [env.index for env in made] == list(range(0, 6, lengths[0]))
        assert all(isinstance(env, embodied.BatchedEnv) for env in made)

    def test_batched_tasks_run(self, tmp_path, batched):
        cfg = config(tmp_path, **batched, run__envs_per_worker=3)
        seqs = self.drive(cfg, steps=42, workers=2)
        assert len(seqs) == 6
        for seq in seqs:
            assert [int(x["count"]) for x in seq] == [0, 1, 2, 3, 4, 5, 0]
            assert [bool(x["is_last"]) for x in seq] == [False] * 5 + [True, False]


def test_random_agent_sees_what_an_agent_sees(tmp_path):
    agent = factory.make_agent(config(tmp_path))
    assert isinstance(agent, RandomAgent)
    assert set(agent.act_space) == {"act_disc", "act_cont"}
    assert not any(key.startswith("log/") for key in agent.obs_space)


class Masked(Dummy):
    """Allows the class that follows from the count."""

    def __init__(self):
        super().__init__("disc", (4, 4), 9)

    @property
    def obs_space(self):
        return {**super().obs_space, "mask": elements.Space(bool, 5)}

    def step(self, action):
        obs = super().step(action)
        return {**obs, "mask": np.arange(5) == int(obs["count"]) % 5}


def test_random_agent_obeys_action_masks(tmp_path, monkeypatch):
    monkeypatch.setattr(factory, "make_env", lambda config, index: Masked())
    agent = factory.make_agent(config(tmp_path, agent__action_mask="mask"))
    driver = Driver([Masked], parallel=False)
    trans = []
    driver.on_step(lambda tran, worker: trans.append(tran))
    driver.reset(agent.init_policy)
    driver(agent.policy, steps=40)
    assert all(x["is_last"] or x["act_disc"] == x["count"] % 5 for x in trans)
    with pytest.raises(ConfigError, match="action_mask is 'maks'"):
        factory.make_agent(config(tmp_path, agent__action_mask="maks"))


@pytest.mark.parametrize(("fraction", "signal"), [(0.0, ""), (0.5, "model")])
def test_agent_learns_what_concerns_it(tmp_path, monkeypatch, fraction, signal):
    from dreamerv3 import agent

    monkeypatch.setattr(agent, "Agent", lambda *args: args)
    flags = {"random_agent": False, "report_length": 998, "replay__fracs__priority": fraction}
    obs_space, act_space, given = factory.make_agent(config(tmp_path, seed=3, **flags))
    assert "is_first" in obs_space
    assert "reset" not in act_space
    assert given.priosignal == signal
    assert given.report_length == given.batch_length == 10
    assert (given.seed, given.batch_size, given.replay_context) == (3, 8, 1)
    assert given.logdir == str(tmp_path)
    assert given.jax.platform == "cpu"
    assert given.opt.warmup == 1000


class TestReplay:
    def filled(self, config, mode="train"):
        replay = factory.make_replay(config, "replay", mode)
        agent = factory.make_agent(config)
        make_env = partial(factory.make_env, config, 0, size=(8, 8))
        driver = Driver([make_env], parallel=False)
        driver.on_step(replay.add)
        driver.reset(agent.init_policy)
        driver(agent.policy, steps=250)
        driver.close()
        return replay

    def test_length_fits_the_train_stream(self, tmp_path):
        cfg = config(tmp_path, consec_train=2, replay_context=3)
        replay = self.filled(cfg)
        assert replay.length == 2 * 10 + 3
        stream = factory.make_stream(cfg, replay, "train")
        batches = [next(stream) for _ in range(4)]
        assert [x["consec"][0, 0] for x in batches] == [0, 1, 0, 1]
        assert batches[0]["reward"].shape == (8, 13)
        np.testing.assert_array_equal(batches[0]["stepid"][:, 10:], batches[1]["stepid"][:, :3])

    @pytest.mark.parametrize("length", [1, 5, 7, 10])
    def test_reports_of_any_length(self, tmp_path, length):
        cfg = config(tmp_path, report_length=length)
        batch = next(factory.make_stream(cfg, self.filled(cfg), "report"))
        assert batch["reward"].shape == (8, length + 1)

    def test_a_report_longer_than_the_sequences_is_cut(self, tmp_path, caplog):
        cfg = config(tmp_path, report_length=999)
        replay = self.filled(cfg)
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                batch = next(factory.make_stream(cfg, replay, "report"))
        assert batch["reward"].shape == (8, 11)
        assert caplog.text.count("report_length 999 is more than") == 1

    def test_a_buffer_for_evaluation_holds_report_sequences(self, tmp_path):
        cfg = config(tmp_path, report_length=4, consec_report=2)
        replay = self.filled(cfg, "eval")
        assert replay.length == 9
        assert replay.capacity == 1000

    def test_capacity_below_one_batch_is_refused(self, tmp_path):
        with pytest.raises(ConfigError, match=r"replay.size 80 .* 8 sequences x 11 steps"):
            factory.make_replay(config(tmp_path, replay__size=80), "replay")

    @pytest.mark.parametrize("part", ["priority", "recency"])
    def test_fractions_choose_the_selectors(self, tmp_path, part):
        flags = {"replay__fracs__uniform": 0.0, f"replay__fracs__{part}": 2.0}
        cfg = config(tmp_path, replay__recexp=4.0, replay__online=False, **flags)
        replay = self.filled(cfg)
        newest = replay.sample(1)["stepid"].dtype  # draws without an error
        assert newest == np.uint8
        if part == "recency":
            counts = [int(x["count"][0, -1]) for x in (replay.sample(1) for _ in range(50))]
            assert np.median(counts) >= 40  # the last of 250 steps has count 47

    def test_the_runs_seed_reaches_the_sampler(self, tmp_path):
        def draws(seed):
            replay = self.filled(config(tmp_path, seed=seed, replay__online=False))
            return replay.sample(16)["count"][:, 0].tolist()

        assert draws(1) == draws(1)
        assert draws(1) != draws(2)


class TestLogger:
    @pytest.mark.filterwarnings("ignore::ImportWarning")  # from a package that tensorboardX tries
    def test_outputs_of_the_config(self, tmp_path, capsys):
        outputs = ["terminal", "jsonl", "tensorboard", "scope"]
        logger = factory.make_logger(config(tmp_path, logger__outputs=outputs))
        logger.add({"score": 1.0, "length": 3}, prefix="episode")
        logger.add({"video": np.zeros((3, 8, 8, 3), np.uint8)})
        logger.close()
        assert "episode/score 1" in capsys.readouterr().out
        scores = (tmp_path / "scores.jsonl").read_text()
        assert json.loads(scores) == {"step": 0, "episode/score": 1.0}
        assert json.loads((tmp_path / "metrics.jsonl").read_text())["episode/length"] == 3
        assert list(tmp_path.glob("events.out.tfevents.*"))
        assert (tmp_path / "scope" / "episode-score.float").exists()
        assert (tmp_path / "videos" / "video-000000000000.mp4").exists()

    def test_steps_count_the_action_repeat(self, tmp_path):
        cfg = config(
            tmp_path, task="dmc_walker_walk", env__dmc__repeat=4, logger__outputs=["jsonl"]
        )
        logger = factory.make_logger(cfg)
        logger.step.increment(5)
        logger.add({"x": 1.0})
        logger.close()
        assert json.loads((tmp_path / "metrics.jsonl").read_text())["step"] == 20

    def test_an_unknown_output_is_an_error(self, tmp_path):
        cfg = config(tmp_path, logger__outputs=["jsonl", "tensorbord"])
        with pytest.raises(
            ConfigError, match="no logger output 'tensorbord': valid ones are term"
        ):
            factory.make_logger(cfg)

    def test_a_missing_package_is_said_and_left_out(self, tmp_path, capsys, monkeypatch):
        from embodied.core import outputs

        def missing(*args):
            raise MissingPackageError("The logger output 'scope'", "scope", "dreamerv3[scope]")

        monkeypatch.setattr(outputs, "ScopeOutput", missing)
        logger = factory.make_logger(config(tmp_path, logger__outputs=["scope", "jsonl"]))
        logger.add({"x": 1.0})
        logger.close()
        assert "pip install dreamerv3[scope]" in capsys.readouterr().out
        assert (tmp_path / "metrics.jsonl").exists()

    @pytest.mark.parametrize("enabled", [True, False])
    def test_timer_can_be_switched_off(self, tmp_path, monkeypatch, enabled):
        monkeypatch.setattr(elements.timer.global_timer, "enabled", True)
        factory.make_logger(config(tmp_path, logger__timer=enabled, logger__outputs=["jsonl"]))
        assert elements.timer.global_timer.enabled is enabled
