"""What a space holds: images, classes or numbers."""

import elements
import numpy as np
import pytest

from embodied.core.spaces import (
    channels_last,
    classes,
    is_channels_first,
    is_classes,
    is_image,
)

f32 = np.float32


@pytest.mark.parametrize(
    ("space", "image"),
    [
        (elements.Space(np.uint8, (8, 500, 6)), True),
        (elements.Space(f32, (64, 64, 3), 0, 1), True),
        (elements.Space(f32, (8, 8, 2), 0, np.array([1, 255])), True),
        (elements.Space(np.uint8, (7, 64, 3)), False),
        (elements.Space(np.uint8, (64, 64)), False),
        (elements.Space(np.uint8, (2, 64, 64, 3)), False),
        (elements.Space(f32, (64, 64, 3)), False),
        (elements.Space(f32, (8, 8, 2), 0, np.array([1, np.inf])), False),
        # Such bounds are finite but mean that there are none.
        (elements.Space(f32, (8, 8, 2), np.finfo(f32).min, np.finfo(f32).max), False),
        (elements.Space(bool, (64, 64, 3)), False),
        (elements.Space(np.int32, (64, 64, 3), 0, 256), False),
    ],
)
def test_is_image(space, image):
    assert is_image(space) == image


@pytest.mark.parametrize(
    ("space", "found"),
    [
        (elements.Space(bool, (3,)), True),
        (elements.Space(np.uint8, (7, 7, 3)), True),
        (elements.Space(np.int32, (), -512, 512), True),
        (elements.Space(np.int32, (2,), 0, np.array([2, 1025])), False),
        (elements.Space(np.uint8, (3, 64, 64)), False),  # 3 million classes in all
        (elements.Space(np.int32), False),
        (elements.Space(np.int64), False),
        (elements.Space(f32, (), 0, 1), False),
    ],
)
def test_is_classes(space, found):
    assert is_classes(space) == found


def test_number_of_classes():
    assert classes(elements.Space(np.int32, (2,), np.array([0, 3]), 5)).tolist() == [5, 2]
    assert (
        classes(elements.Space(np.uint8)) == classes(elements.Space(np.uint8, (), 0, 256)) == 256
    )
    assert classes(elements.Space(bool, (2,))).tolist() == [2, 2]
    assert classes(elements.Space(np.int64)) > 2**60


@pytest.mark.parametrize(
    ("space", "found"),
    [
        (elements.Space(np.uint8, (4, 84, 84)), True),
        (elements.Space(np.uint8, (3, 210, 160)), True),
        (elements.Space(np.uint8, (12, 84, 84)), True),  # four frames of three colours
        (elements.Space(f32, (1, 8, 8), 0, 1), True),
        (elements.Space(f32, (4, 84, 84)), False),
        (elements.Space(np.int32, (4, 84, 84), 0, 256), False),
        (elements.Space(np.uint8, (4, 7, 84)), False),
        (elements.Space(np.uint8, (84, 84)), False),
        (elements.Space(np.uint8, (84, 84, 4)), False),
        (elements.Space(np.uint8, (64, 64, 64)), False),
        (elements.Space(np.uint8, (12, 84, 90)), False),
        (elements.Space(f32, (7, 9, 21), 0, 1), False),  # may be a small map of 21 planes
    ],
)
def test_is_channels_first(space, found):
    assert is_channels_first(space) == found


def test_channels_are_moved_with_their_bounds():
    low = np.broadcast_to(np.float32([0, -1]).reshape(2, 1, 1), (2, 8, 9))
    space = channels_last(elements.Space(f32, (2, 8, 9), low, low + 2))
    assert (space.dtype, space.shape) == (f32, (8, 9, 2))
    assert space.low[3, 4].tolist() == [0, -1]
    assert space.high[3, 4].tolist() == [2, 1]
