import elements
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied.core.spaces import describe, fault, is_gray, same_space, sample, to_array

f32 = np.float32


@pytest.mark.parametrize(
    "other",
    [
        elements.Space(np.float64, (2,), 0, 1),
        elements.Space(f32, (3,), 0, 1),
        elements.Space(f32, (2,), -1, 1),
        elements.Space(f32, (2,), 0, 2),
        elements.Space(f32, (2,)),
    ],
)
def test_spaces_differ_by_every_field(other):
    space = elements.Space(f32, (2,), 0, 1)
    assert same_space(space, elements.Space(f32, (2,), 0.0, 1.0))
    assert not same_space(space, other)


@pytest.mark.parametrize(
    ("space", "value", "found"),
    [
        (elements.Space(f32), f32(1e30), None),
        (elements.Space(f32), 1.0, "float64 ()"),
        (elements.Space(f32), f32(np.nan), "the value nan"),
        (elements.Space(f32, (2,)), np.array([0, -np.inf], f32), "the value -inf"),
        (elements.Space(f32, (2,)), np.zeros(3, f32), "float32 (3,)"),
        (elements.Space(f32, (2,), 0, 1), np.array([1, 1.5], f32), "the value 1.5"),
        (elements.Space(f32, (), 0, 0.1), f32(0.1), None),  # as float64 it is above the bound
        (elements.Space(np.int32, (), 0, 5), np.int32(4), None),
        (elements.Space(np.int32, (), 0, 5), np.int32(5), "the value 5"),
        (elements.Space(np.int32, (), 0, 5), np.int32(-1), "the value -1"),
        (elements.Space(np.int32), np.int32(2**31 - 1), None),
        (elements.Space(np.uint8, (1, 1, 3)), np.full((1, 1, 3), 255, np.uint8), None),
        (elements.Space(np.uint8, (), 0, 256), np.uint8(255), None),
        (elements.Space(np.int32, (2,), 0, np.array([2, 5])), np.array([2, 4], np.int32), "2"),
        (elements.Space(bool), True, None),
        (elements.Space(bool), np.uint8(1), "uint8 ()"),
    ],
)
def test_fault(space, value, found):
    text = fault(space, value)
    assert (text is None) if found is None else (text is not None and found in text)


@pytest.mark.parametrize(
    ("value", "dtype", "found"),
    [
        (1, np.float32, np.float32),
        (1.5, np.float32, np.float32),
        (1e300, np.float32, np.float32),
        ([1, 2.5], np.float16, np.float16),
        ([0, 255], np.uint8, np.uint8),
        ([0, 256], np.uint8, np.int64),
        (-1, np.uint8, np.int64),
        (1.0, np.int32, np.float64),
        (True, np.int32, np.int32),
        (1, bool, np.int64),
        (np.float64(1), np.float32, np.float64),
        (np.zeros(2, np.int32), np.int64, np.int32),
        (None, np.float32, object),
    ],
)
def test_to_array_casts_the_numbers_of_python_alone(value, dtype, found):
    assert to_array(value, np.dtype(dtype)).dtype == found


@pytest.mark.parametrize(
    ("space", "gray"),
    [
        (elements.Space(np.uint8, (8, 9)), True),
        (elements.Space(np.uint8, (8, 9), 0, 256), True),
        (elements.Space(np.uint8, (8, 9), 0, 10), False),
        (elements.Space(np.uint8, (7, 9)), False),
        (elements.Space(np.uint8, (8, 9, 1)), False),
        (elements.Space(f32, (8, 9), 0, 1), False),
    ],
)
def test_matrices_of_bytes_are_gray_images(space, gray):
    assert is_gray(space) == gray


def test_describe_gives_inclusive_bounds():
    assert describe(elements.Space(np.int32, (2,), 0, 5)) == "int32 (2,) within 0..4"
    assert describe(elements.Space(f32, (), -1, 1)) == "float32 () within -1.0..1.0"
    assert describe(elements.Space(bool)) == "bool ()"


def _spaces():
    limits = st.floats(-6e4, 6e4, width=16)
    infinite = st.sampled_from([-np.inf, np.inf])
    dtypes = st.sampled_from([np.float16, np.float32, np.float64])
    shapes = st.sampled_from([(), (3,), (2, 2)])
    floats = st.builds(
        lambda dtype, shape, a, b: elements.Space(dtype, shape, min(a, b), max(a, b)),
        dtypes,
        shapes,
        st.one_of(limits, infinite.map(lambda x: -abs(x))),
        st.one_of(limits, infinite.map(abs)),
    )
    ints = st.builds(
        lambda shape, low, count: elements.Space(np.int32, shape, low, low + count),
        shapes,
        st.integers(-100, 100),
        st.integers(1, 100),
    )
    plain = st.builds(
        elements.Space, st.sampled_from([bool, np.uint8, np.int32, np.int64]), shapes
    )
    return st.one_of(floats, ints, plain)


@given(_spaces(), st.integers(0, 100))
def test_samples_lie_in_their_space(space, seed):
    values = sample(space, np.random.default_rng(seed), (4,))
    assert values.shape == (4, *space.shape)
    for value in values:
        assert fault(space, value) is None


def test_samples_are_uniform_over_classes_and_bounds():
    rng = np.random.default_rng(0)
    counts = np.bincount(sample(elements.Space(np.int32, (), -1, 2), rng, (3000,)) + 1)
    assert counts.shape == (3,)
    assert (np.abs(counts - 1000) < 150).all()
    values = sample(elements.Space(f32, (), 10, 20), rng, (3000,))
    assert abs(values.mean() - 15) < 0.3
    assert values.min() < 10.1
    assert values.max() > 19.9
    flips = sample(elements.Space(bool), rng, (1000,))
    assert 400 < flips.sum() < 600
