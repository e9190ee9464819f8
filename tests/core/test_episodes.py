from types import SimpleNamespace

import numpy as np
import pytest

from embodied.core import episodes as module
from embodied.core.episodes import Episodes
from embodied.core.trees import decode, encode


def step(first=False, last=False, reward=0.0, **kwargs):
    flags = {"is_first": np.bool_(first), "is_last": np.bool_(last)}
    return {**flags, "reward": np.float32(reward), **kwargs}


def run(episodes, rewards, worker=0, **kwargs):
    """One episode whose reset is followed by one decision for every reward."""
    episodes.on_step(step(first=True, **kwargs), worker)
    for i, reward in enumerate(rewards):
        episodes.on_step(step(last=i == len(rewards) - 1, reward=reward, **kwargs), worker)


@pytest.fixture
def ended():
    return []


@pytest.fixture
def episodes(ended):
    return Episodes(ended.append)


def test_length_counts_decisions_and_not_the_reset(episodes, ended):
    run(episodes, [0, 1, 1, -0.5])
    run(episodes, [2])
    assert ended == [{"score": 1.5, "length": 4}, {"score": 2.0, "length": 1}]


def test_workers_are_kept_apart(episodes, ended):
    for worker in (0, 1):
        episodes.on_step(step(first=True), worker)
    for i in range(3):
        episodes.on_step(step(reward=1), 0)
        episodes.on_step(step(reward=10, last=i == 2), 1)
    assert ended == [{"score": 30.0, "length": 3}]


def test_abandoned_episodes_do_not_count(episodes, ended):
    episodes.on_step(step(first=True), 0)
    episodes.on_step(step(reward=100), 0)
    run(episodes, [1, 1])
    assert ended == [{"score": 2.0, "length": 2}]


def test_episodes_without_their_start_do_not_count(episodes, ended):
    episodes.on_step(step(reward=5), 0)
    episodes.on_step(step(reward=5, last=True), 0)
    assert not ended
    assert episodes.stats() == {}


def test_an_episode_without_a_decision(episodes, ended):
    episodes.on_step(step(first=True, last=True), 0)
    assert ended == [{"score": 0.0, "length": 0}]
    assert episodes.stats() == {}


def test_reward_rate_is_the_share_of_changes(episodes):
    run(episodes, [0, 0, 1, 1, 0, 0, 0, 0, 0, 0])
    assert episodes.stats()["reward_rate"] == pytest.approx(0.2)
    run(episodes, [1] * 100)
    run(episodes, [0] * 100)
    assert episodes.stats()["reward_rate"] == pytest.approx(0.005)
    assert episodes.stats() == {}


def test_log_values_are_averaged_over_episodes(episodes):
    for scale in (1, 3):
        episodes.on_step(step(first=True, **{"log/x": np.float32(0)}), 0)
        for i in range(1, 4):
            value = {"log/x": np.float32(scale * i), "log/vector": np.ones(3)}
            episodes.on_step(step(last=i == 3, **value), 0)
    stats = episodes.stats()
    assert stats["log/x/avg"] == pytest.approx((6 / 4 + 18 / 4) / 2)
    assert stats["log/x/max"] == 6
    assert stats["log/x/sum"] == 12
    assert not any("vector" in key for key in stats)


def test_success_rates_and_score_are_of_all_episodes(episodes):
    def play(*unlocked):
        logs = {f"log/achievement_{k}": np.float32(k in unlocked) for k in ("wood", "iron")}
        run(episodes, [0, 0], **logs)
        return episodes.stats()

    assert play("wood")["success_rate/wood"] == 1
    play("wood", "iron")
    play()
    stats = play()
    assert (stats["success_rate/wood"], stats["success_rate/iron"]) == (0.5, 0.25)
    assert stats["crafter_score"] == pytest.approx((51 * 26) ** 0.5 - 1)
    assert stats["log/achievement_wood/max"] == 0


def test_recent_score_is_the_mean_of_ten(episodes):
    assert episodes.recent_score is None
    for score in range(1, 21):
        run(episodes, [score])
    assert episodes.recent_score == 15.5


def test_a_score_is_reached_by_ten_episodes_together(episodes):
    for _ in range(9):
        run(episodes, [20])
        assert not episodes.reached(15)
    run(episodes, [10])
    assert episodes.reached(19)
    assert not episodes.reached(19.5)
    assert not episodes.reached(float("inf"))


class TestVideo:
    def frames(self, episodes, length, worker, **kwargs):
        run(episodes, [0] * length, worker, **kwargs)
        return {k: v for k, v in episodes.stats().items() if k.startswith("policy_")}

    def test_images_of_worker_zero(self, episodes):
        image = np.zeros((4, 6, 3), np.uint8)
        videos = self.frames(episodes, 5, 0, image=image, **{"log/view": image})
        assert {k: v.shape for k, v in videos.items()} == {
            "policy_image": (6, 4, 6, 3),
            "policy_view": (6, 4, 6, 3),
        }
        assert self.frames(episodes, 5, 1, image=image) == {}

    def test_frames_are_copied(self, episodes):
        image = np.zeros((2, 2, 3), np.uint8)
        episodes.on_step(step(first=True, image=image), 0)
        image[:] = 9
        episodes.on_step(step(last=True, image=image), 0)
        assert episodes.stats()["policy_image"][:, 0, 0, 0].tolist() == [0, 9]

    def test_memory_is_bounded(self, episodes, monkeypatch):
        monkeypatch.setattr(module, "_VIDEO_BYTES", 10 * 12)
        image = np.zeros((2, 2, 3), np.uint8)
        assert self.frames(episodes, 100, 0, image=image)["policy_image"].shape[0] == 10

    def test_can_be_left_out(self, ended):
        image = np.zeros((2, 2, 3), np.uint8)
        assert self.frames(Episodes(ended.append, video=False), 5, 0, image=image) == {}


class TestTimeout:
    @pytest.fixture
    def now(self, monkeypatch):
        state = SimpleNamespace(time=100.0)
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: state.time))
        return state

    def two_workers(self, timeout, ended):
        episodes = Episodes(ended.append, timeout)
        for worker in (0, 1):
            episodes.on_step(step(first=True), worker)
        return episodes

    @pytest.mark.parametrize(("timeout", "finished"), [(30, [0]), (0, [0, 1]), (100, [0, 1])])
    def test_a_stale_episode_is_dropped(self, now, ended, timeout, finished):
        episodes = self.two_workers(timeout, ended)
        now.time += 60
        episodes.on_step(step(), 0)
        episodes.stats()
        for worker in (0, 1):
            episodes.on_step(step(reward=worker, last=True), worker)
        assert [x["score"] for x in ended] == finished

    def test_a_pause_of_everyone_drops_nothing(self, now, ended):
        episodes = self.two_workers(30, ended)
        now.time += 1000
        episodes.stats()
        for worker in (0, 1):
            episodes.on_step(step(last=True), worker)
        assert len(ended) == 2


def test_goes_on_from_what_was_saved(episodes, ended):
    logs = {"log/achievement_a": np.float32(1), "log/speed": np.float32(2)}
    run(episodes, [1, 2], **logs)
    episodes.on_step(step(first=True, **logs), 3)
    episodes.on_step(step(reward=5, **logs), 3)
    again = []
    other = Episodes(again.append)
    skeleton, arrays = encode(episodes.save())
    other.load(decode(skeleton, arrays))
    for each in (episodes, other):
        each.on_step(step(reward=4, last=True, **logs), 3)
    assert again == ended[1:] == [{"score": 9.0, "length": 2}]
    assert other.recent_score == episodes.recent_score == 6.0
    assert other.stats() == episodes.stats()
