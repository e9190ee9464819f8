"""How images of any size are laid out, and which observations are images."""

import math

import numpy as np
import pytest
from elements import Space
from hypothesis import given
from hypothesis import strategies as st

from dreamerv3 import observations
from dreamerv3.observations import layout
from embodied.core.errors import SpaceError

MULTS = (2, 3, 4, 4)


@pytest.mark.parametrize(
    ("size", "padded", "grid"),
    [
        # What halving in every stage suits, stays as it is.
        ((64, 64), (64, 64), (4, 4)),
        ((96, 96), (96, 96), (6, 6)),
        ((64, 128), (64, 128), (4, 8)),
        ((256, 48), (256, 48), (16, 3)),
        # The rest is padded, and halved less or more often.
        ((84, 84), (96, 96), (6, 6)),
        ((210, 160), (224, 160), (7, 5)),
        ((32, 32), (32, 32), (4, 4)),
        ((8, 8), (8, 8), (4, 4)),
        ((256, 100), (256, 112), (8, 7)),
        ((8, 500), (8, 512), (4, 8)),
        ((33, 9), (48, 12), (3, 3)),
    ],
)
def test_sizes(size, padded, grid):
    found = layout(size, MULTS, outer=False)
    assert found.grid == grid
    assert tuple(s + sum(p) for s, p in zip(size, found.pads, strict=True)) == padded


sides = st.integers(8, 700)


@given(size=st.tuples(sides, sides), stages=st.integers(1, 6), outer=st.booleans())
def test_every_size_has_a_layout(size, stages, outer):
    mults = tuple(range(1, stages + 1))
    found = layout(size, mults, outer)
    assert len(found.mults) == len(found.factors) >= stages
    assert found.mults[:stages] == mults
    assert set(found.mults[stages:]) <= {stages}
    assert not outer or found.factors[0] == (1, 1)
    halvings = stages - outer
    configured = all(x % 2**halvings == 0 and 3 <= x >> halvings <= 16 for x in size)
    for axis in range(2):
        factor = math.prod(x[axis] for x in found.factors)
        pads = found.pads[axis]
        assert size[axis] + sum(pads) == found.grid[axis] * factor
        assert sum(pads) < factor
        assert abs(pads[0] - pads[1]) <= 1
        assert 3 <= found.grid[axis] <= (16 if configured else 8)
        assert not configured or factor == 2**halvings


def test_groups_of_equal_size():
    spaces = {
        "b": Space(np.uint8, (16, 24, 3)),
        "c": Space(np.uint8, (16, 24, 1)),
        "a": Space(np.float32, (9, 8, 2), 0, 1),
        "v": Space(np.float32, (9, 8, 2)),
    }
    veckeys, imgkeys = observations.split(spaces)
    assert (veckeys, imgkeys) == (["v"], ["a", "b", "c"])
    groups = observations.group_images(spaces, imgkeys, MULTS, False)
    assert [(x.keys, x.prefix) for x in groups] == [(["a"], "9x8_"), (["b", "c"], "16x24_")]
    (group,) = observations.group_images(spaces, ["b", "c"], MULTS, False)
    assert group.prefix == ""


@pytest.mark.parametrize(
    ("space", "value", "expected"),
    [
        (Space(np.uint8, (8, 8, 1)), 51, 0.2),
        (Space(np.float32, (8, 8, 1), 0, 1), 0.25, 0.25),
        (Space(np.float32, (8, 8, 1), -2, 6), 0, 0.25),
        (Space(np.float32, (8, 8, 1), 3, 3), 3, 0),
    ],
)
def test_images_are_scaled_by_their_bounds(space, value, expected):
    image = observations.scale_image(space, np.full(space.shape, value, np.float32))
    assert image.dtype == np.float32
    np.testing.assert_allclose(image, expected, rtol=1e-6)


def test_bounds_may_differ_by_channel():
    space = Space(np.float32, (8, 8, 2), 0, np.array([1, 10]))
    image = observations.scale_image(space, np.ones((8, 8, 2), np.float32))
    np.testing.assert_allclose(image[0, 0], [1, 0.1])


def test_images_with_channels_first_are_refused():
    with pytest.raises(SpaceError, match=r"'cam' has shape \(3, 64, 64\).*move them to the end"):
        observations.split({"cam": Space(np.uint8, (3, 64, 64))})
