"""Updates whose losses are not finite: undone, counted, written to a file, and looked into."""

from pathlib import Path

import jax
import jax.numpy as jnp
import ninjax as nj
import numpy as np
import pytest

from dreamerv3 import config as configs
from dreamerv3.factory import make_learner
from dreamerv3.logdir import open_logdir
from embodied.core.errors import CheckpointError, ConfigError, NonFiniteError
from embodied.jax import nets, nonfinite, opt
from scripts import triage

from . import common


def make_agent(logdir):
    flags = {
        "logdir": str(logdir),
        "batch_size": 2,
        "batch_length": 4,
        "report_length": 4,
        "jax.platform": "cpu",
        "jax.debug": False,
        "jax.enable_policy": False,
        "replay.fracs.priority": 0.5,
        r"agent\..*\.units": 8,
        r"agent\.policy\.unimix": 0.01,
        "agent.imag_length": 3,
        "agent.slowvalue.every": 1,
    }
    config = configs.compose(["debug"], flags)
    open_logdir(config)
    return make_learner(config, {**common.VECTOR, **common.FLAGS}, common.DISCRETE)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """An agent and what it was made with."""
    agent = make_agent(tmp_path_factory.mktemp("run"))
    return agent, agent.save()


@pytest.fixture
def start(made, tmp_path):
    """Gives the agent as it was made; what it writes goes to a new folder."""

    def start(mode="skip", change=lambda params: None):
        agent, data = made
        data = jax.tree.map(np.array, data)
        change(data["params"])
        agent.load(data)
        spaces = agent.obs_space, agent.act_space
        agent._incidents = nonfinite.Incidents(mode, str(tmp_path), *spaces)
        return agent

    return start


class Root:
    """A model with two losses, both finite, of which one has no finite gradient."""

    scales = {"mean": 1.0, "root": 1.0}  # noqa: RUF012

    def __init__(self):
        self.layers = [nets.Linear(4, name=x) for x in "ab"]
        self.opt = opt.Optimizer(self.layers, opt.chain(), name="opt")

    def loss(self, data):
        x = data["x"]
        for layer in self.layers:
            x = layer(x)
        losses = {"mean": x.mean(0), "root": jnp.sqrt(0 * x.mean(0))}
        metrics = {f"loss/{k}": v.mean() for k, v in losses.items()}
        return sum(v.mean() for v in losses.values()), ((), (), {"losses": losses}, metrics)

    def train(self, carry, data):
        metrics, aux = self.opt(self.loss, data, has_aux=True)
        return carry, {}, metrics | aux[3]


def batches(agent, *changes):
    """Batches, of which some hold another number at one place."""
    for number, change in enumerate(changes):
        batch = common.make_batch(agent.model, 4, number if change is None else 100)
        if change:
            key, value = change
            batch[key][1, 3] = value
        yield batch


def run(agent, *changes):
    """Trains on batches and returns what every update gave."""
    stream = agent.stream(batches(agent, *changes))
    carry, results = agent.init_train(2), []
    for batch in stream:
        carry, outs, metrics = agent.train(carry, batch)
        results.append((outs, metrics))
    saved = agent.save()
    waiting = saved["waiting"]["outs"], saved["waiting"]["metrics"]
    return [*results[1:], waiting], saved, agent.save_carry(carry)


def equal(first, second):
    jax.tree.map(np.testing.assert_array_equal, first, second)


NAN = ("vector", np.nan)


class TestUndone:
    def test_changes_nothing(self, start, tmp_path):
        agent = start()
        before, carry = agent.save(), agent.save_carry(agent.init_train(2))
        ((outs, metrics),), after, new_carry = run(agent, NAN)
        equal(after["params"], before["params"])
        equal(new_carry, carry)
        assert (outs, metrics) == ({}, {"skipped": 1})
        assert after["counters"] == {**before["counters"], "skipped": 1, "batches": 1}

    def test_those_after_it_are_as_if_it_had_never_been(self, start):
        # Bad ones in a row, at the start and at the end; seeds follow the number of batches.
        changes = (NAN, None, ("reward", np.inf), NAN, None, None, NAN)
        results, found, carry = run(start(), *changes)
        assert [m["skipped"] for _, m in results] == [1, 1, 2, 3, 3, 3, 4]
        assert [bool(o) for o, _ in results] == [x is None for x in changes]
        assert found["counters"]["updates"] == 3

        agent = start()
        source = list(batches(agent, *changes))
        stream, good = agent.stream(iter(source)), []
        other, wanted = agent.init_train(2), []
        for batch, change in zip(stream, changes, strict=True):
            if change is None:
                other, _, metrics = agent.train(other, batch)
                good.append(metrics)
        wanted = agent.save()
        equal(found["params"], wanted["params"])
        equal(carry, agent.save_carry(other))
        losses = [m["opt/loss"] for o, m in results if o]
        assert losses[:2] == [m["opt/loss"] for m in good[1:]]
        assert np.isfinite(losses).all()

    def test_stop_says_what_and_where(self, start, tmp_path):
        agent = start("stop")
        before = agent.save()
        with pytest.raises(
            NonFiniteError, match=r"batch 1 .*\(loss/\w+ nan, .*triage.py .*nonfinite-000000001"
        ):
            run(agent, None, NAN, None)
        (file,) = tmp_path.glob("nonfinite-*")
        with pytest.raises(NonFiniteError, match=r"batch 2 .*see .*nonfinite-000000001"):
            run(agent, NAN)
        assert list(tmp_path.glob("nonfinite-*")) == [file]
        assert agent.save()["counters"]["updates"] == before["counters"]["updates"] + 1

    def test_too_many_in_a_row(self, start, monkeypatch):
        monkeypatch.setattr(nonfinite, "MOST_IN_A_ROW", 2)
        agent = start()
        run(agent, NAN, NAN, None, NAN, NAN)
        with pytest.raises(NonFiniteError, match=r"like the 2 before it: skipping"):
            run(agent, NAN)


class TestFile:
    def test_only_the_first_is_written(self, start, tmp_path, caplog):
        agent = start()
        run(agent, None, None)
        before = agent.save()["params"]
        run(agent, None, NAN, NAN)
        (file,) = tmp_path.glob("nonfinite-*")
        assert len([x for x in caplog.messages if "is skipped" in x]) == 1
        assert file.name in caplog.text
        content = nonfinite.read(file)
        assert content["number"] == 3
        assert content["seed"].dtype == np.uint32
        assert np.isnan(content["batch"]["vector"][1, 3]).all()
        assert content["params"].keys() == before.keys()
        norm = np.linalg.norm(content["params"]["dyn/dynin0/kernel"])
        assert content["norms"]["dyn/dynin0/kernel"] == pytest.approx(norm)
        # Those of the update itself: one good update after the first two.
        assert content["params"]["opt/step/value"] == 3

    def test_an_older_one_is_left_alone(self, start, tmp_path):
        file = tmp_path / "nonfinite-000000000.safetensors"
        file.write_text("old")
        run(start(), NAN)
        assert file.read_text() == "old"

    def test_a_folder_that_cannot_be_written(self, start, tmp_path, caplog):
        (tmp_path / "nonfinite-000000000.safetensors.partial").mkdir()
        run(start(), NAN)
        assert "cannot be written" in caplog.text


@pytest.fixture(scope="module")
def learners():
    return []


class TestTriage:
    @pytest.fixture
    def find(self, made, learners, tmp_path, capsys, monkeypatch):
        """What is found about the file that was written, by headings."""

        def make(*args):
            # Once for all tests, since it takes long to compile.
            learners.append(make_learner(*args)) if not learners else None
            return learners[0]

        def find():
            monkeypatch.setattr(triage, "make_learner", make)
            (file,) = tmp_path.glob("nonfinite-*")
            config = Path(made[0].config.logdir) / "config.yaml"
            (tmp_path / config.name).write_bytes(config.read_bytes())
            triage.main([str(file)])
            lines = capsys.readouterr().out.splitlines()
            return {k.strip(): v for k, _, v in (x.partition(": ") for x in lines)}

        return find

    def test_an_observation(self, start, find):
        run(start(), NAN)
        found = find()
        assert found["Batch"] == "vector (3 of 30, the first at [1, 3, 0])"
        assert found["Carry"] == found["Parameters"] == "none"
        assert found["Layers"].startswith("enc/")
        assert found["Losses"].startswith("dyn nan, rep nan")
        assert found["The first of each"].startswith("batch: vector (3 of 30")

    @pytest.mark.parametrize(("value", "losses"), [(np.nan, "rew nan, "), (np.inf, "none")])
    def test_a_reward(self, start, find, value, losses):
        run(start(), ("reward", value))
        found = find()
        assert found["Batch"].startswith("reward (1 of 10")
        assert found["Layers"] == "none"
        assert found["Losses"].startswith(losses)

    def test_a_parameter(self, start, find):
        def change(params):
            key = next(k for k in params if k.startswith("dec/") and k.endswith("kernel"))
            params[key].flat[0] = np.nan

        run(start(change=change), None)
        found = find()
        assert found["Batch"] == "none"
        assert found["Parameters"].startswith("dec/")
        assert found["Layers"].startswith("dec/")
        assert found["Losses"] == "vector nan"

    def test_a_gradient(self):
        model = Root()
        content = {
            "number": 0,
            "seed": np.zeros(2, np.uint32),
            "carry": {},
            "batch": {"x": np.ones((2, 3), np.float32)},
            "compute_dtype": "float32",
            "metrics": {"opt/grad_norm": np.float32(np.nan)},
        }
        kw = {"create": True, "ignore": True}
        params, _ = nj.pure(model.train)({}, {}, content["batch"], seed=0, **kw)
        content["params"] = params
        lines = "\n".join(triage.report(model, params, content, "float32"))
        assert "gave:\n  opt/grad_norm nan\n" in lines
        assert "Layers: none\n  Losses: none\n  Gradients: b, a\n" in lines
        assert "Gradients of the loss: root\n" in lines
        assert lines.endswith("The first of each: gradients: b; gradients of the loss: root.")

    def test_errors_say_what_is_wrong(self, start, tmp_path):
        with pytest.raises(CheckpointError, match="cannot be read"):
            triage.main([str(tmp_path / "missing")])
        run(start(), NAN)
        (file,) = tmp_path.glob("nonfinite-*")
        with pytest.raises(ConfigError, match=r"should hold a config\.yaml"):
            triage.main([str(file)])
