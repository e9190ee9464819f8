import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied.core.errors import ConfigError, ReplayError
from embodied.core.replay import Replay
from embodied.core.selectors import Fifo, Mixture, Prioritized, Recency, Uniform
from embodied.core.sumtree import SumTree

DRAWS = 20000


def make(selector, items=10, length=1, chunksize=4, capacity=None, workers=1):
    """A replay whose steps count up; returns it with the step ids by step."""
    replay = Replay(length, capacity, chunksize=chunksize, selector=selector)
    for step in range(items + length - 1):
        for worker in range(workers):
            replay.add({"step": np.int32(step)}, worker)
    return replay


def stepids(replay, steps):
    """The ids of these steps of the first worker, old ones and those in no whole window, too."""
    found = {}
    for slot in replay._table.occupied():
        chunk = replay._table.chunk(slot)
        if chunk.length:
            rows = zip(chunk.data["step"][: chunk.length], chunk.data["stepid"], strict=False)
            found.update((int(step), stepid) for step, stepid in rows)
    return np.array([found[step] for step in steps])


def prioritize(replay, priorities):
    ids = stepids(replay, priorities)
    replay.update({"stepid": ids, "priority": np.array(list(priorities.values()), float)})


def frequencies(replay, size, draws=DRAWS, batch=100):
    steps = [replay.sample(batch)["step"][:, 0] for _ in range(draws // batch)]
    return np.bincount(np.concatenate(steps), minlength=size)


def assert_law(counts, weights):
    """Chi-square: five standard deviations above its mean at most; nothing where weight is 0."""
    weights = np.asarray(weights, float)
    assert len(counts) == len(weights)
    expected = counts.sum() * weights / weights.sum()
    assert not counts[expected == 0].any()
    dof = (expected > 0).sum() - 1
    chi = ((counts - expected)[expected > 0] ** 2 / expected[expected > 0]).sum()
    assert chi < dof + 5 * np.sqrt(2 * dof) + 1e-9


def test_the_check_itself_finds_wrong_laws():
    counts = frequencies(make(Uniform(), 10), 10)
    weights = np.ones(10)
    assert_law(counts, weights)
    weights[3] = 1.15
    with pytest.raises(AssertionError):
        assert_law(counts, weights)


class TestSimple:
    def test_fifo(self):
        replay = make(Fifo(), 30, capacity=10)
        assert (replay.sample(20)["step"] == 20).all()

    @pytest.mark.parametrize("capacity", [None, 10])
    def test_uniform(self, capacity):
        replay = make(Uniform(1), 25, capacity=capacity)
        weights = np.ones(25)
        weights[: 25 - len(replay)] = 0
        assert_law(frequencies(replay, 25), weights)

    def test_draws_are_independent(self):
        replay = make(Uniform(2), 6)
        pairs = np.stack([replay.sample(2)["step"][:, 0] for _ in range(5000)])
        assert_law(np.bincount(pairs[:, 0] * 6 + pairs[:, 1], minlength=36), np.ones(36))

    def test_seed(self):
        first, same, other = (make(Uniform(seed), 50).sample(99)["step"] for seed in (1, 1, 2))
        assert (first == same).all()
        assert (first != other).any()

    def test_a_selector_serves_one_replay(self):
        selector = Uniform()
        make(selector)
        with pytest.raises(ConfigError, match="one per replay"):
            make(selector)

    @pytest.mark.parametrize("items", [1, 5, 12])
    def test_recency(self, items):
        uprobs = 1 / np.arange(1, 9) ** 1.5
        replay = make(Recency(uprobs, seed=3), items)
        weights = np.zeros(items)
        weights[::-1][: len(uprobs)] = uprobs[:items]
        assert_law(frequencies(replay, items), weights)

    def test_recency_skips_ages_of_weight_zero(self):
        replay = make(Recency([1, 0, 2, 0, 0, 1]), 6)
        assert_law(frequencies(replay, 6), [1, 0, 0, 2, 0, 1])

    @pytest.mark.parametrize("uprobs", [[], [0, 1], [1, -1], [1, np.inf], [[1]]])
    def test_recency_needs_weights(self, uprobs):
        with pytest.raises(ConfigError, match="Recency"):
            Recency(uprobs)


class TestPrioritized:
    @pytest.mark.parametrize(
        ("exponent", "maxfrac", "length"), [(1, 0, 1), (0.7, 0.5, 3), (2, 1, 2), (0, 0.3, 2)]
    )
    def test_law(self, exponent, maxfrac, length):
        replay = make(Prioritized(exponent, maxfrac, branching=3, seed=4), 9, length)
        prios = np.random.default_rng(0).uniform(0, 4, 9 + length - 1)
        prios[5] = 0
        prioritize(replay, dict(enumerate(prios)))
        powers = np.where(prios > 0, prios**exponent, 0)
        windows = np.lib.stride_tricks.sliding_window_view(powers, length)
        weights = maxfrac * windows.max(1) + (1 - maxfrac) * windows.mean(1)
        assert_law(frequencies(replay, 9), weights)

    def test_new_items_come_first_when_initial_is_infinite(self):
        replay = make(Prioritized(initial=np.inf, seed=5), 8)
        prioritize(replay, dict.fromkeys(range(5), 1000))
        assert_law(frequencies(replay, 8), [0] * 5 + [1] * 3)
        prioritize(replay, {5: 0, 6: 500, 7: 0})
        assert_law(frequencies(replay, 8), [2] * 5 + [0, 1, 0])

    def test_one_infinite_step_makes_the_window_infinite(self):
        replay = make(Prioritized(0.5, 0.5, seed=6), 6, length=3, chunksize=2)
        prioritize(replay, {4: np.inf})
        assert_law(frequencies(replay, 6), [0, 0, 1, 1, 1, 0])

    def test_all_zero_is_uniform(self):
        replay = make(Prioritized(initial=0, seed=7), 12, capacity=5)
        assert_law(frequencies(replay, 12), [0] * 7 + [1] * 5)

    def test_zero_on_sample(self):
        replay = make(Prioritized(initial=np.inf, zero_on_sample=True), 12, chunksize=5)
        assert sorted(replay.sample(1)["step"][0, 0] for _ in range(12)) == list(range(12))
        prioritize(replay, {3: 1e-3})
        assert replay.sample(1)["step"] == 3

    def test_zero_on_sample_reaches_overlapping_windows(self):
        replay = make(Prioritized(zero_on_sample=True, maxfrac=1), 5, length=2, chunksize=2)
        prioritize(replay, dict.fromkeys(range(6), 0) | {2: 1})
        step = replay.sample(1)["step"][0, 0]
        assert step in (1, 2)
        assert_law(frequencies(replay, 5), np.ones(5))

    def test_evicted_items_are_never_drawn(self):
        replay = make(Prioritized(seed=8), 3, capacity=4)
        rng = np.random.default_rng(0)
        for step in range(3, 200):
            replay.add({"step": np.int32(step)})
            drawn = replay.sample(5)
            assert (drawn["step"] > step - 4).all()
            replay.update({"stepid": drawn["stepid"], "priority": rng.uniform(0, 9, (5, 1))})

    def test_new_chunks_in_old_slots_start_anew(self):
        replay = make(Prioritized(initial=1, seed=9), 4, capacity=4, chunksize=2)
        for step in range(4, 40):
            prioritize(replay, {step - 1: 1e6})
            replay.add({"step": np.int32(step)})
        prioritize(replay, {36: 1, 37: 1, 38: 1})
        assert_law(frequencies(replay, 40), [0] * 36 + [1] * 4)

    def test_many_adds_without_a_draw(self):
        replay = make(Prioritized(seed=10), 10000, length=2, capacity=20, chunksize=16)
        assert len(replay._selector._stale) < 4096
        assert_law(frequencies(replay, 10000), [0] * 9980 + [1] * 20)

    def test_large_and_small_priorities(self):
        replay = make(Prioritized(exponent=3, seed=11), 4)
        prioritize(replay, {0: 1e300, 1: 1e-300, 2: 1, 3: 0})
        assert (replay.sample(50)["step"] == 0).all()
        prioritize(replay, {0: 0})
        assert (replay.sample(50)["step"] == 2).all()

    @pytest.mark.parametrize(
        "kwargs",
        [{"exponent": -1}, {"maxfrac": 1.5}, {"initial": np.nan}, {"branching": 1}],
    )
    def test_numbers_out_of_range(self, kwargs):
        with pytest.raises(ConfigError, match=next(iter(kwargs))):
            Prioritized(**kwargs)

    @settings(max_examples=40, deadline=None)
    @given(
        length=st.integers(1, 4),
        chunksize=st.integers(1, 5),
        capacity=st.integers(1, 15),
        ops=st.lists(
            st.tuples(st.integers(0, 1), st.lists(st.floats(0, 9, width=16), max_size=6)),
            max_size=30,
        ),
    )
    def test_weights_follow_every_change(self, length, chunksize, capacity, ops):
        selector = Prioritized(1, 0.25)
        replay = Replay(length, capacity, chunksize=chunksize, selector=selector)
        prios, table = {}, replay._table
        for step, (worker, values) in enumerate(ops):
            replay.add({"step": np.int32(step)}, worker)
            prios[step] = 1.0
            recent = range(max(0, step + 1 - len(values)), step + 1)
            held = {
                int(step)
                for slot in table.occupied()
                for chunk in [table.chunk(slot)]
                if chunk.length
                for step in chunk.data["step"][: chunk.length]
            }
            change = {s: v for s, v in zip(recent, values, strict=False) if s in held}
            if change:
                prioritize(replay, change)
                prios.update(change)
        if not len(replay):
            return
        items = table.items(np.arange(table.first, table.stop))
        windows = table.gather(items, replay._schema)["step"]
        powers = np.vectorize(prios.get)(windows)
        selector._flush()
        leaves = selector._finite._levels[0]
        np.testing.assert_allclose(
            leaves[items], 0.25 * powers.max(1) + 0.75 * powers.mean(1), rtol=1e-6
        )
        assert np.isclose(selector._finite.total, leaves[items].sum())
        assert (leaves > 0).sum() == (leaves[items] > 0).sum()


class TestMixture:
    def test_law(self):
        prio = Prioritized(seed=1)
        parts = {"u": Uniform(2), "p": prio, "r": Recency([3, 1], 3), "none": Fifo()}
        fractions = {"r": 0.2, "none": 0, "u": 0.5, "p": 0.3}
        replay = make(Mixture(parts, fractions, seed=4), 5)
        prioritize(replay, {0: 0, 1: 4, 2: 0, 3: 0, 4: 1})
        uniform, priority = np.full(5, 0.1), 0.3 * np.array([0, 0.8, 0, 0, 0.2])
        recency = 0.2 * np.array([0, 0, 0, 0.25, 0.75])
        assert_law(frequencies(replay, 5), uniform + priority + recency)

    def test_other_fractions_than_saved(self):
        first = make(Mixture({"a": Uniform(), "b": Fifo()}, {"a": 0.5, "b": 0.5}))
        second = make(Mixture({"a": Uniform(), "b": Fifo()}, {"a": 1, "b": 0}))
        with pytest.raises(ReplayError, match="same fractions"):
            second.load(first.save())

    @pytest.mark.parametrize(
        "fractions", [{"a": 1}, {"a": 0.5, "b": 0.6}, {"a": 1.5, "b": -0.5}, {}]
    )
    def test_fractions_must_fit(self, fractions):
        with pytest.raises(ConfigError, match="Mixture"):
            Mixture({"a": Uniform(), "b": Fifo()}, fractions)


class TestSumTree:
    @settings(max_examples=60, deadline=None)
    @given(
        branching=st.integers(2, 5),
        sizes=st.lists(st.integers(1, 40), min_size=1, max_size=3),
        data=st.data(),
    )
    def test_inversion_of_the_cumulative_sum(self, branching, sizes, data):
        tree, weights = SumTree(branching, np.float64), np.zeros(0)
        for size in np.cumsum(sizes):
            tree.resize(size)
            weights = np.append(weights, np.zeros(size - len(weights)))
            index = st.lists(st.integers(0, int(size) - 1), min_size=1, unique=True)
            leaves = np.array(data.draw(index))
            weights[leaves] = data.draw(
                st.lists(st.integers(0, 9), min_size=len(leaves), max_size=len(leaves))
            )
            tree.set(leaves, weights[leaves])
        assert tree.total == weights.sum()
        if weights.sum():
            ticks = np.arange(int(weights.sum()))
            wanted = np.repeat(np.arange(len(weights)), weights.astype(int))
            np.testing.assert_array_equal(tree.sample((ticks + 0.5) / weights.sum()), wanted)

    def test_zero_weights_are_not_drawn_at_the_edges(self):
        tree = SumTree(4, np.float64)
        tree.resize(16)
        tree.set(np.arange(16), np.array([0, 0.1, 0, 0.1, 0.3, 0, 0, 0, 0, 0, 0, 0.7, 0, 0, 0, 0]))
        drawn = tree.sample(np.array([0, np.nextafter(1, 0), 0.5, 1 / 12]))
        assert set(drawn) <= {1, 3, 4, 11}
        assert drawn[:2].tolist() == [1, 11]
