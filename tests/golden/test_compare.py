"""The comparison program itself: it sees what differs, and names what it does not compare."""

import json

import jax
import numpy as np
import pytest

from embodied.jax import outs
from tests.golden import compare, inventory, replay_facts, sets
from tests.golden import params as updated
from tests.golden.models import WHOLE, make_config, make_model, read_spaces
from tests.golden.probe import Draws, Probe, flatten
from tests.golden.reference import Numbers
from tests.golden.report import Report, error

FLAGS = ("is_first", "is_last", "is_terminal")


def space(dtype, *shape, **limits):
    return {"dtype": dtype, "shape": list(shape), **limits}


MIXED = {
    "obs": {
        "camera": space("uint8", 64, 64, 3),
        "depth": space("uint8", 64, 64, 1),
        "joints": space("float32", 5),
        "grid": space("float32", 2, 3),
        "room": space("int32", low=0, high=4),
        "items": space("int32", 3, low=0, high=6),
        "reward": space("float32"),
        **{k: space("bool") for k in FLAGS},
    },
    "act": {
        "button": space("int32", low=0, high=5),
        "stick": space("float32", 2, low=-1, high=1),
    },
}


def batch(rng, spaces):
    data = {}
    for key, value in spaces.items():
        shape = (2, 7, *value.shape)
        if value.dtype == bool:
            data[key] = rng.random(shape) < 0.2
        elif np.issubdtype(value.dtype, np.integer):
            data[key] = rng.integers(value.low, value.high, shape, value.dtype)
        else:
            data[key] = rng.standard_normal(shape, np.float32).clip(-1, 1)
    data["consec"] = np.broadcast_to(np.int32([[0], [1]]), (2, 7)).copy()
    return data


def write_inputs(folder):
    (folder / "mixed_spaces.json").write_text(json.dumps(MIXED))
    spaces = read_spaces(folder / "mixed_spaces.json")
    model = make_model(*spaces, make_config("debug", **WHOLE))
    rng = np.random.default_rng(0)
    data = batch(rng, {**spaces[0], **spaces[1], **model.ext_space})
    inputs = {f"batch0/{k}": v for k, v in data.items()}
    shapes = inventory.parameters("debug", *spaces, **WHOLE)
    for key, value in shapes.items():
        array = np.zeros(value.shape, value.dtype)
        if not key.startswith(("opt/", "slowval_count/")):
            array += rng.standard_normal(value.shape, np.float32) / 5
        inputs[f"params/{key}"] = array
    inputs["carry/3/button"] = np.int32([1, 2])
    inputs["carry/3/stick"] = np.float32([[0.5, 0], [0, -0.5]])
    np.savez(folder / "mixed_inputs.npz", **inputs)


def test_set_of_all_kinds(tmp_path, monkeypatch):
    """Numbers that our own model has made are read, used and compared without a remainder."""
    write_inputs(tmp_path)
    data = sets.Set(tmp_path, "mixed")
    made = {}
    for variant, shift in sets.VARIANTS.items():
        args = (data.params, data.carry, data.batches[0])
        found, grads = data.probe.loss(Draws(shift), *args)
        want = {f"loss0/{k}": v for k, v in flatten(found).items()}
        want |= {f"grad0/{k}": v for k, v in grads.items()}
        made[variant] = jax.tree.map(np.array, want)
        np.savez(tmp_path / f"mixed_{variant}.npz", **made[variant])
    monkeypatch.setattr(sets, "Set", lambda folder, name: data)  # Compiled already.
    report = Report(silent=True)
    sets.compare(tmp_path, "mixed", report)
    assert not report.failures
    for part in ("imag", "repl", "losses", "prevact", "tokens", "prior_logit", "carry_out"):
        assert any(x.startswith(f"mixed_det/loss0/{part}:") for x in report.lines)
    assert not [x for x in report.lines if x.startswith("not compared")]

    losses = {k.split("/")[-1] for k in made["det"] if k.startswith("loss0/losses/")}
    assert {"camera", "depth", "joints", "grid", "room", "items"} < losses
    assert {"loss0/imag/ent/button", "loss0/imag/logpi/stick"} < set(made["det"])
    mean = "grad0/pol/head/stick/mean/kernel"
    assert not made["det"][mean].any()
    assert made["det2"][mean].any()
    shift = made["det2"]["loss0/imag/act/stick"] - made["det"]["loss0/imag/act/stick"]
    assert (shift[:, 0] > 0.05).all()

    made["det"]["loss0/imag/rew"][0, 0] *= 2
    made["det"]["grad0/unknown"] = np.ones(1, np.float32)
    del made["det"]["loss0/losses/grid"]
    np.savez(tmp_path / "mixed_det.npz", **made["det"])
    report = Report(silent=True)
    sets.compare(tmp_path, "mixed", report)
    groups = ["mixed_det/loss0/losses", "mixed_det/loss0/imag", "mixed_det/grad0"]
    assert sorted(report.failures) == sorted(groups)
    assert [x for x in report.lines if "not in the reference: losses/grid" in x]


class TestMain:
    @pytest.mark.parametrize("argv", [[], ["a", "b"], ["/nowhere"]])
    def test_wrong_arguments(self, argv, capsys):
        assert compare.main(argv) == 2
        assert capsys.readouterr().out.startswith("Usage: python -m tests.golden.compare DIR")

    def write(self, folder, **arrays):
        np.savez(folder / "pure.npz", **{f"symexp/{k}": v for k, v in arrays.items()})

    def test_difference(self, tmp_path, capsys):
        x = np.float32([0, 1, -2])
        self.write(tmp_path, x=x, y=np.sign(x) * np.expm1(np.abs(x)))
        assert compare.main([str(tmp_path)]) == 0
        self.write(tmp_path, x=x, y=np.sign(x) * np.expm1(np.abs(x)) * np.float32(1.0001))
        assert compare.main([str(tmp_path)]) == 1
        assert "pure/symexp: 3 values, worst relative error 1.0e-04" in capsys.readouterr().out

    def test_unknown_things_are_named(self, tmp_path, capsys):
        x = np.float32([0, 1, -2])
        self.write(tmp_path, x=x, z=x)
        np.savez(tmp_path / "other.npz", x=x)
        (tmp_path / "some_spaces.json").write_text(json.dumps(MIXED))
        np.savez(tmp_path / "some_det.npz", x=x)
        (tmp_path / "notes.txt").touch()
        compare.main([str(tmp_path)])
        output = capsys.readouterr().out
        assert "not compared: pure.npz: 1 names: symexp/z" in output
        assert "2 names: other.npz, some_det.npz" in output


class TestReport:
    def test_missing_names_and_other_shapes_fail(self):
        report = Report(silent=True)
        want = Numbers({"a": np.ones(3, np.float32), "b": np.ones(3, np.float32)})
        report.compare("group", {"a": np.ones((3, 1), np.float32)}, want, 1e-4)
        assert report.failures == ["group"]
        assert "a has shape (3, 1), not (3,), b is missing" in report.lines[0]
        assert not want.unread

    def test_extend(self):
        report, other = Report(silent=True), Report(silent=True)
        other.add("group", 1, {"a": 1.0}, 0.5)
        report.extend(other, " (note)")
        assert report.failures == ["group"]
        assert report.lines[0].endswith("FAIL (note)")


class TestError:
    def test_scale(self):
        got, want = np.float32([1.0, 101.0]), np.float32([2.0, 100.0])
        assert error(got, want) == pytest.approx(0.01)
        assert error(got, want, each=True) == pytest.approx(0.5)
        assert error(got, want, each=True, floor=10) == pytest.approx(0.1)
        assert error(np.float32([0, 1]), np.float32([0, 0])) > 1

    @pytest.mark.parametrize(
        ("got", "want"),
        [
            (np.float32([np.inf]), np.float32([1])),
            (np.float32([1]), np.float32([np.inf])),
            (np.float32([np.nan]), np.float32([1])),
            (np.int32([1]), np.int32([2])),
            (np.bool_([True]), np.bool_([False])),
            (np.int32([1]), np.float32([1])),
        ],
    )
    def test_kinds_and_infinities(self, got, want):
        assert error(got, want) == np.inf
        assert error(want, want) == 0


class TestUpdatedParameters:
    def state(self, value, squares):
        names = {"pol/kernel": value, "opt/state/1/1/pol/kernel": squares}
        return {k: np.float32(v) for k, v in names.items()}

    @pytest.mark.parametrize(
        ("off", "ok"), [([0, 1.9e-3], True), ([0, 2.2e-3], False), ([1.9e-3, 0], False)]
    )
    def test_only_noise_is_excused(self, off, ok):
        want = self.state([1, 1], [1, 1e-12])
        state = self.state(np.ones(2) + off, [1, 1e-12])
        report = Report(silent=True)
        updated.compare("params", state, Numbers(want), [0, 1e-3], report)
        assert (not report.failures) == ok

    def test_state_that_the_reference_lacks(self):
        want = self.state([1, 1], [1, 1])
        state = {**want, "opt/more": np.float32(1)}
        report = Report(silent=True)
        updated.compare("params", state, Numbers(want), [1e-3], report)
        assert "opt/more is not in the reference" in report.lines[0]


def test_ties_decide_what_follows():
    probe = Probe.__new__(Probe)
    probe.model = type("Model", (), {})()
    logits = np.float32([[1, 1 + 1e-6, 0], [1, 2, 0]])

    def draw():
        return outs.Categorical(logits).sample(None)

    for tie, wanted in [(0.0, [1, 1]), (1e-5, [0, 1])]:
        assert probe._run(draw, Draws(tie=tie), {})[1].tolist() == wanted


def test_replay_facts(tmp_path):
    fact = {"name": "elements.when.Ratio(0.5)", "out": [1, 0, 1, 0, 1], "comment": "?"}
    for out, ok in [(fact["out"], True), ([1, 1, 1, 1, 1], False)]:
        (tmp_path / "replay.json").write_text(json.dumps([{**fact, "out": out}]))
        report = Report(silent=True)
        replay_facts.compare(tmp_path / "replay.json", report)
        assert (not report.failures) == ok
        assert report.lines[-1] == "not compared: replay.json: 1 names: comment (1 times)"
