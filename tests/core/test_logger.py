import contextlib
import logging
import math

import elements
import ml_dtypes
import numpy as np
import pytest

from embodied.core.logger import Aggregate, Logger
from embodied.core.outputs import JSONLOutput, TerminalOutput


def test_metrics_get_the_step_at_which_they_were_added():
    step = elements.Counter(3)
    seen = []
    logger = Logger(step, [seen.extend], multiplier=4)
    logger.add({"score": np.float32(0.5)}, prefix="episode")
    step.increment()
    logger.add({"fps": 2})
    assert not seen
    logger.write()
    logger.write()
    assert seen == [(12, "episode/score", 0.5), (16, "fps", 2)]


def test_values_keep_their_kind():
    seen = []
    logger = Logger(elements.Counter(), [seen.extend])
    logger.add({
        "text": "hi", "int": np.int64(3), "flag": True, "low": ml_dtypes.bfloat16(0.5),
        "vector": [1, 2], "video": np.zeros((2, 4, 4, 3), np.uint8),
    })  # fmt: skip
    logger.write()
    values = {name: value for _, name, value in seen}
    assert values["text"] == "hi"
    assert type(values["int"]) is int
    assert values["flag"] is True
    assert values["low"] == 0.5
    assert values["vector"].shape == (2,)
    assert values["video"].dtype == np.uint8


@pytest.mark.parametrize("value", [object(), None, np.zeros((1,) * 5), np.array(["a"])])
def test_other_values_are_named(value):
    logger = Logger(elements.Counter(), [])
    with pytest.raises(ValueError, match="metric 'a/x' has type"):
        logger.add({"x": value}, prefix="a")


class Flaky:
    def __init__(self, every):
        self.every = every
        self.calls = 0
        self.written = []

    def __call__(self, metrics):
        self.calls += 1
        if self.calls % self.every == 0:
            raise OSError("disk full")
        self.written += metrics

    def close(self):
        raise RuntimeError("cannot close")


def test_a_failing_output_is_named_once_and_stops_nothing(tmp_path, caplog):
    flaky = Flaky(every=3)
    logger = Logger(elements.Counter(), [flaky, JSONLOutput(tmp_path / "metrics.jsonl")])
    with caplog.at_level(logging.WARNING):
        for i in range(9):
            logger.add({"i": i})
            logger.write()
        logger.close()
    assert [value for _, _, value in flaky.written] == [0, 1, 3, 4, 6, 7]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 9
    assert len(caplog.records) == 2
    assert "Logging to Flaky failed (OSError: disk full)" in caplog.text
    assert "Logging to Flaky failed (RuntimeError: cannot close)" in caplog.text


def test_close_writes_what_is_left():
    seen = []
    logger = Logger(elements.Counter(5), [seen.extend])
    logger.add({"x": 1})
    logger.close()
    assert seen == [(5, "x", 1)]


class TestAggregate:
    def test_means_joins_and_last(self):
        agg = Aggregate(limit=3)
        agg.add({"loss": 1.0, "hist": np.array([1, 2]), "note": "a", "image": np.zeros((2, 2, 3))})
        agg.add({"loss": 3, "hist": np.array([3, 4]), "note": "b", "image": np.ones((2, 2, 3))})
        agg.add({"late": np.float32(7)}, prefix="x")
        result = agg.result()
        assert result["loss"] == 2
        assert result["hist"].tolist() == [1, 2, 3]
        assert result["note"] == "b"
        assert result["image"].min() == 1
        assert result["x/late"] == 7
        assert agg.result() == {}

    def test_a_number_that_is_not_finite_shows(self):
        agg = Aggregate()
        for value in (1.0, math.nan, 2.0):
            agg.add({"loss": value})
        assert math.isnan(agg.result()["loss"])

    def test_callers_arrays_stay_as_they_are(self):
        agg = Aggregate()
        value = np.array([1.0, 2.0])
        agg.add({"x": value})
        agg.add({"x": value})
        agg.result()["x"][:] = 0
        assert value.tolist() == [1, 2]


def test_an_aggregate_goes_on_from_what_was_saved():
    first = {"a": 1.0, "v": np.ones(2), "s": "x", "i": np.zeros((2, 2))}
    second = {"a": 3.0, "v": np.zeros(1)}
    agg, whole = Aggregate(), Aggregate()
    for each in (agg, whole):
        each.add(first)
    other = Aggregate()
    other.load(agg.save())
    agg.add({"a": 100.0})  # what was saved does not change with it
    for each in (other, whole):
        each.add(second)
    found, expected = other.result(), whole.result()
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value)


def test_a_full_disk_is_said_once_per_output(tmp_path, monkeypatch, caplog):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    stdout = open("/dev/full", "w")  # noqa: SIM115
    monkeypatch.setattr("sys.stdout", stdout)
    outputs = [JSONLOutput(tmp_path / "metrics.jsonl"), TerminalOutput()]
    logger = Logger(elements.Counter(), outputs)
    for _ in range(5):
        logger.add({"score": 1.0})
        logger.write()
    logger.close()
    monkeypatch.undo()
    with contextlib.suppress(OSError):
        stdout.close()
    assert [x.split()[2] for x in caplog.messages] == ["JSONLOutput", "TerminalOutput"]
    assert all("training goes on" in x for x in caplog.messages)
