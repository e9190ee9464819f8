from types import SimpleNamespace

import pytest

from embodied.core import clock
from embodied.core.clock import GlobalClock, LocalClock, Ratio


@pytest.fixture
def now(monkeypatch):
    state = SimpleNamespace(time=100.0)
    monkeypatch.setattr(clock, "time", SimpleNamespace(monotonic=lambda: state.time))
    return state


@pytest.mark.parametrize("cls", [LocalClock, GlobalClock])
class TestClocks:
    def test_zero_is_never(self, cls, now):
        due = cls(0, first=True)
        for _ in range(3):
            assert not due()
            now.time += 1e6

    def test_negative_is_always(self, cls, now):
        due = cls(-1)
        assert [due() for _ in range(3)] == [True] * 3

    def test_strikes_once_per_period(self, cls, now):
        due = cls(10)
        answers = []
        for _ in range(8):
            answers.append(due())
            now.time += 4
        assert answers == [False, False, False, True, False, False, True, False]

    def test_first_strikes_at_once_and_starts_a_period(self, cls, now):
        due = cls(10, first=True)
        now.time += 5
        assert due()
        now.time += 9
        assert not due()
        now.time += 1
        assert due()

    def test_a_long_pause_is_not_made_up_for(self, cls, now):
        due = cls(10)
        now.time += 1000
        assert [due() for _ in range(3)] == [True, False, False]


def test_replicas_take_the_leaders_answer(now):
    leader = []
    first = GlobalClock(10, agree=lambda due: leader.append(due) or due)
    now.time += 5
    second = GlobalClock(10, agree=lambda due: leader.pop(0))
    now.time += 6
    assert first() is True
    assert second() is True
    now.time += 5
    assert first() is False
    assert second() is False


@pytest.mark.parametrize(
    ("ratio", "start", "expected"),
    [
        (0.3, 0, [1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0]),
        (2.5, 0, [1, 2, 3, 2, 3, 2, 3, 2, 3, 2]),
        (2.5, 1000, [1, 2, 3, 2, 3, 2, 3, 2, 3, 2]),
        (0, 0, [0] * 5),
        (-1, 0, [1] * 5),
    ],
)
def test_ratio_follows_the_steps(ratio, start, expected):
    due = Ratio(ratio)
    assert [due(start + i) for i in range(len(expected))] == expected


def test_ratio_skips_steps_without_losing_updates():
    due = Ratio(0.25)
    assert sum(due(step) for step in range(0, 4001, 16)) == 1 + 4000 // 4


def test_ratio_resumes_without_a_burst():
    due = Ratio(0.5)
    before = [due(step) for step in range(11)]
    resumed = Ratio(0.5)
    resumed.load(due.save())
    after = [resumed(step) for step in range(11, 21)]
    whole = Ratio(0.5)
    assert before + after == [whole(step) for step in range(21)]


def test_ratio_that_never_started_starts_after_a_load():
    due = Ratio(4)
    due.load(Ratio(4).save())
    assert due(5000) == 1
