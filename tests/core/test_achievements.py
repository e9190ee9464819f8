import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied.core.achievements import Achievements, crafter_score


def test_score_by_hand():
    assert crafter_score([0, 0]) == 0
    assert crafter_score([1, 1, 1]) == pytest.approx(100)
    assert crafter_score([0.5, 0.01]) == pytest.approx(math.sqrt(51 * 2) - 1)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=22))
def test_score_lies_between_zero_and_the_mean(rates):
    assert 0 <= crafter_score(rates) <= 100 * np.mean(rates) + 1e-6


def test_rates_are_shares_of_episodes():
    achievements = Achievements()
    assert achievements.stats() == {}
    achievements.add({"log/achievement_a": 3.0, "log/achievement_b": 0.0, "log/speed": 5.0})
    achievements.add({"log/achievement_a": 0.0, "log/achievement_b": 0.0, "log/speed": 5.0})
    assert achievements.stats() == {
        "success_rate/a": 0.5,
        "success_rate/b": 0.0,
        "crafter_score": pytest.approx(math.sqrt(51) - 1),
    }


def test_other_environments_have_none():
    achievements = Achievements()
    achievements.add({"log/speed": 5.0})
    assert achievements.stats() == {}
