import json
from pathlib import Path

import pytest

from embodied.core.errors import ConfigError
from embodied.core.limiters import SamplesPerInsert

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "replay.json").read_text())


def test_golden_trace():
    limiter = SamplesPerInsert(2.0, tolerance=4, minsize=3)
    for op, want_insert, want_sample, avail, size in GOLDEN["samples_per_insert"]:
        assert limiter.want_insert() == want_insert
        assert limiter.want_sample() == want_sample
        assert (limiter.avail, limiter.size) == (avail, size)
        limiter.insert() if op == "i" else limiter.sample()


@pytest.mark.parametrize("ratio", [0.3, 1, 2.5])
def test_ratio_is_held_from_both_sides(ratio):
    limiter = SamplesPerInsert(ratio, tolerance=5, minsize=10)
    inserts = samples = 0
    for _ in range(2000):
        while limiter.want_insert():
            limiter.insert()
            inserts += 1
        assert samples <= ratio * inserts
        while limiter.want_sample():
            limiter.sample()
            samples += 1
    assert abs(samples - ratio * inserts) <= 10 + 10 * ratio + 5


def test_save_and_load():
    first = SamplesPerInsert(2.0, 4, 3)
    for _ in range(5):
        first.insert()
    first.sample()
    second = SamplesPerInsert(2.0, 4, 3)
    second.load(first.save())
    assert second.save() == first.save() == {"size": 5, "avail": 2.0}


@pytest.mark.parametrize("args", [(0, 1, 1), (1, -1, 1), (1, 1, 0)])
def test_numbers_out_of_range(args):
    with pytest.raises(ConfigError, match="SamplesPerInsert"):
        SamplesPerInsert(*args)
