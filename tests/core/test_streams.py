import itertools
import json
import threading
from pathlib import Path

import numpy as np
import pytest

from embodied.core.base import Stream
from embodied.core.errors import ConfigError, ReplayError
from embodied.core.replay import Replay
from embodied.core.streams import Consec, Map, Mixer, Prefetch, Stateless, Zip

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "replay.json").read_text())


class Counter(Stream):
    """Counts up; `fail` holds the numbers at which it raises instead, once."""

    def __init__(self, start=0, fail=()):
        self.value = start
        self.fail = set(fail)
        self.closed = False
        self.threads = set()

    def __next__(self):
        self.threads.add(threading.current_thread())
        if self.value in self.fail:
            self.fail.remove(self.value)
            raise ValueError(f"at {self.value}")
        self.value += 1
        return self.value - 1

    def save(self):
        return self.value

    def load(self, data):
        self.value = data

    def close(self):
        self.closed = True


def take(stream, amount):
    return [next(stream) for _ in range(amount)]


def sequences(steps, rows=2, start=0):
    """Batches whose entries are all different."""

    def build(index):
        step = np.arange(steps) + 1000 * index + 100 * np.arange(rows)[:, None]
        return {"step": step, "image": np.repeat(step[..., None], 3, 2)}

    return Map(Counter(start), build)


def drain(prefetch, source, amount):
    """Waits until the thread has drawn all that it may."""
    with prefetch._changed:
        assert prefetch._changed.wait_for(lambda: len(prefetch._ready) == amount, timeout=60)
    return source.value


class TestStateless:
    def test_calls_the_function(self):
        stream = Stateless(iter(range(3)).__next__)
        assert stream.save() is None
        stream.load(None)
        assert list(stream) == [0, 1, 2]

    def test_replay(self):
        replay = Replay(length=2)
        for value in range(4):
            replay.add({"step": np.int32(value)})
        assert next(Stateless(lambda: replay.sample(3, "report")))["step"].shape == (3, 2)


class TestPrefetch:
    def test_items_in_order_with_transform(self):
        stream = Prefetch(Counter(), lambda x: x * 10, amount=3)
        assert take(stream, 20) == list(range(0, 200, 10))
        stream.close()

    def test_draws_nothing_before_the_first_next_and_holds_amount(self):
        source = Counter()
        stream = Prefetch(source, amount=2)
        assert (source.value, stream._thread) == (0, None)
        next(stream)
        assert drain(stream, source, 2) == 3
        take(stream, 4)
        assert drain(stream, source, 2) == 7
        assert threading.current_thread() not in source.threads
        stream.close()

    @pytest.mark.parametrize("used", [0, 1, 5])
    def test_saved_position_is_that_of_the_last_item_handed_out(self, used):
        source = Counter()
        stream = Prefetch(source, amount=3)
        assert take(stream, used) == list(range(used))
        if used:
            drain(stream, source, 3)
        state = stream.save()
        assert state == used
        rest = take(stream, 4)
        again = Prefetch(Counter(), amount=1)
        again.load(state)
        assert take(again, 4) == rest
        stream.load(state)
        assert take(stream, 4) == rest
        stream.close()
        again.close()

    def test_error_comes_in_its_turn_and_the_next_call_goes_on(self):
        stream = Prefetch(Counter(fail=[2, 3]), amount=2)
        assert take(stream, 2) == [0, 1]
        for value in (2, 3):
            with pytest.raises(ValueError, match=f"at {value}"):
                next(stream)
            assert next(stream) == value
        assert stream.save() == 4
        stream.close()

    def test_error_of_the_transform(self):
        stream = Prefetch(Counter(), lambda x: 1 // x)
        with pytest.raises(ZeroDivisionError):
            next(stream)
        assert next(stream) == 1
        stream.close()

    def test_end_of_the_source(self):
        stream = Prefetch(Stateless(iter(range(3)).__next__), amount=2)
        assert list(stream) == [0, 1, 2]
        stream.close()

    def test_close_ends_thread_and_stream(self):
        source = Counter()
        stream = Prefetch(source, amount=2)
        take(stream, 3)
        thread = stream._thread
        assert thread.is_alive()
        stream.close()
        stream.close()
        assert not thread.is_alive()
        assert source.closed
        assert list(stream) == []
        assert stream.save() == 3

    def test_close_before_the_start(self):
        stream = Prefetch(Counter(4))
        stream.close()
        assert stream.save() == 4
        assert list(stream) == []

    def test_close_wakes_a_waiting_consumer(self):
        gate, got = threading.Event(), []
        stream = Prefetch(Stateless(gate.wait))
        consumer = threading.Thread(target=lambda: got.append(list(stream)))
        consumer.start()
        with stream._changed:
            stream._changed.wait_for(lambda: stream._thread, timeout=0.1)
        closer = threading.Thread(target=stream.close)
        closer.start()
        gate.set()
        closer.join()
        consumer.join()
        assert len(got) == 1

    def test_amount_below_one(self):
        with pytest.raises(ConfigError, match="at least 1"):
            Prefetch(Counter(), amount=0)


class TestConsec:
    def test_golden(self):
        def build(index):
            row = np.arange(8)[None] + 100 * (index + 1)
            return {"step": row, "is_first": np.zeros((1, 8), bool)}

        stream = Consec(Map(Counter(), build), length=3, consec=2, prefix=2)
        for facts in GOLDEN["consec"]:
            batch = next(stream)
            assert {key: value.tolist() for key, value in batch.items()} == facts
            assert batch["consec"].dtype == np.int32

    @pytest.mark.parametrize(("length", "consec", "prefix"), [(4, 1, 0), (1, 3, 2), (5, 4, 1)])
    def test_new_steps_cover_the_sequence_once(self, length, consec, prefix):
        total = consec * length + prefix
        stream = Consec(sequences(total), length, consec, prefix)
        for whole in take(sequences(total), 3):
            cuts = take(stream, consec)
            assert all(cut["image"].shape == (2, length + prefix, 3) for cut in cuts)
            assert [int(cut["consec"].max()) for cut in cuts] == list(range(consec))
            new = np.concatenate([cut["step"][:, prefix:] for cut in cuts], 1)
            np.testing.assert_array_equal(new, whole["step"][:, prefix:])
            for before, after in itertools.pairwise(cuts):
                context = before["step"][:, length:]
                np.testing.assert_array_equal(after["step"][:, :prefix], context)

    @pytest.mark.parametrize("used", range(4))
    def test_resumes_within_a_sequence(self, used):
        stream = Consec(sequences(7), 2, 3, 1)
        take(stream, used)
        state = stream.save()
        other = Consec(sequences(7), 2, 3, 1)
        next(other)
        other.load(state)
        for one, two in zip(take(stream, 7), take(other, 7), strict=True):
            np.testing.assert_equal(one, two)

    def test_a_sequence_that_cannot_be_drawn_again_is_kept(self):
        draws = iter(take(sequences(4), 3))
        stream = Consec(Stateless(draws.__next__), 2, 2, 0)
        next(stream)
        state = stream.save()
        other = Consec(Stateless(draws.__next__), 2, 2, 0)
        other.load(state)
        np.testing.assert_equal(next(other), next(stream))

    def test_wrong_lengths(self):
        with pytest.raises(ReplayError, match=r"8 steps.*need 7"):
            next(Consec(sequences(8), 3, 2, 1))
        with pytest.raises(ReplayError, match=r"6 steps.*need 7"):
            next(Consec(sequences(6), 3, 2, 1, strict=False))
        cuts = take(Consec(sequences(8), 3, 2, 1, strict=False), 2)
        assert cuts[1]["step"][0].tolist() == [3, 4, 5, 6]

    def test_contiguous(self):
        for contiguous in (False, True):
            cut = next(Consec(sequences(6), 3, 2, 0, contiguous=contiguous))
            assert cut["step"].flags.c_contiguous == contiguous

    def test_source_is_not_changed(self):
        (batch,) = take(sequences(4), 1)
        next(Consec(Stateless(lambda: batch), 2, 2, 0))
        assert batch.keys() == {"step", "image"}

    def test_key_that_is_taken(self):
        stream = Consec(Stateless(lambda: {"consec": np.zeros((1, 2))}), 1, 2, 0)
        with pytest.raises(ReplayError, match=r"'consec'.*rename"):
            next(stream)

    @pytest.mark.parametrize("sizes", [(0, 1, 0), (1, 0, 0), (1, 1, -1)])
    def test_sizes_out_of_range(self, sizes):
        with pytest.raises(ConfigError, match="Consec"):
            Consec(Counter(), *sizes)

    def test_replay_with_prefetch_is_contiguous_across_cuts(self):
        replay = Replay(length=7, chunksize=4)
        for value in range(40):
            replay.add({"step": np.int32(value), "is_first": np.bool_(value % 9 == 0)})
        source = Prefetch(Stateless(lambda: replay.sample(3)))
        stream = Consec(source, length=2, consec=3, prefix=1)
        for _ in range(5):
            steps = np.concatenate([cut["step"][:, 1:] for cut in take(stream, 3)], 1)
            assert (np.diff(steps) == 1).all()
        stream.close()
        assert list(source) == []


class TestZip:
    def test_joins_along_the_batch(self):
        stream = Zip([sequences(3, rows=1), sequences(3, rows=2, start=5)])
        batch = next(stream)
        assert batch["image"].shape == (3, 3, 3)
        assert batch["step"][:, 0].tolist() == [0, 5000, 5100]

    def test_save_and_load(self):
        def build():
            return Zip([sequences(2), sequences(2, start=7)])

        first, second = build(), build()
        take(first, 3)
        second.load(first.save())
        np.testing.assert_equal(next(second), next(first))

    def test_keys_must_agree(self):
        other = Stateless(lambda: {"other": np.zeros(1)})
        with pytest.raises(ReplayError, match="'other'"):
            next(Zip([sequences(2), other]))
        with pytest.raises(ConfigError, match="at least one"):
            Zip([])


class TestMap:
    def test_maps_and_saves(self):
        stream = Map(Counter(), str)
        assert take(stream, 3) == ["0", "1", "2"]
        other = Map(Counter(), str)
        other.load(stream.save())
        assert next(other) == "3"


class TestMixer:
    def build(self, seed=0, a=1, b=3):
        return Mixer({"a": Counter(), "b": Counter(10**6)}, {"b": b, "a": a}, seed)

    def test_law(self):
        drawn = np.array(take(self.build(), 4000)) < 10**6
        assert abs(drawn.mean() - 0.25) < 5 * np.sqrt(0.25 * 0.75 / 4000)
        assert max(take(self.build(b=0), 100)) == 99

    def test_seed(self):
        first, same, other = (take(self.build(seed), 60) for seed in (1, 1, 2))
        assert first == same != other

    def test_resume(self):
        first, second = self.build(), self.build(5)
        take(first, 30)
        second.load(json.loads(json.dumps(first.save())))
        assert take(first, 30) == take(second, 30)

    @pytest.mark.parametrize("weights", [{"a": 1}, {"a": 1, "b": -1}, {"a": 0, "b": 0}])
    def test_weights_must_fit(self, weights):
        with pytest.raises(ConfigError, match="Mixer"):
            Mixer({"a": Counter(), "b": Counter()}, weights)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda s: Consec(s, 1, 1, 0),
        lambda s: Zip([s]),
        lambda s: Map(s, str),
        lambda s: Mixer({"a": s}, {"a": 1}),
        lambda s: Zip([Stateless(int), Map(s, str)]),
    ],
)
def test_closing_reaches_the_source(wrap):
    source = Counter()
    wrap(source).close()
    assert source.closed
