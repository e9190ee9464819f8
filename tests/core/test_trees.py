import json

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp

from embodied.core.errors import CheckpointError
from embodied.core.trees import decode, encode

arrays = hnp.arrays(
    st.sampled_from([np.float32, np.float64, np.uint8, np.int32, np.bool_]),
    hnp.array_shapes(min_dims=0, min_side=0, max_side=3),
)
leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary())
keys = st.one_of(st.text(), st.integers(), st.tuples(st.integers(), st.text()))
trees = st.recursive(
    leaves | arrays,
    lambda x: (
        st.lists(x, max_size=3)
        | st.tuples(x, x)
        | st.dictionaries(keys, x, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "a/b", "b", "$array"]), x, max_size=3)
    ),
    max_leaves=12,
)


def assert_same(left, right):
    assert type(left) is type(right)
    if isinstance(left, np.ndarray):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)
    elif isinstance(left, dict):
        assert list(left) == list(right)
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, list | tuple):
        assert len(left) == len(right)
        for pair in zip(left, right, strict=True):
            assert_same(*pair)
    else:
        assert left == right or (left != left and right != right)


@settings(max_examples=200, deadline=None)
@given(trees)
def test_every_tree_comes_back_as_it_was(tree):
    skeleton, stored = encode(tree)
    text = json.dumps(skeleton, allow_nan=False)
    assert_same(decode(json.loads(text), stored), tree)


def test_arrays_are_named_by_their_path():
    tree = {"params": {"enc/kernel": np.zeros(2)}, "list": [np.ones(1), 3]}
    assert set(encode(tree)[1]) == {"params/enc/kernel", "list/0"}


def test_same_paths_do_not_collide():
    tree = {"a": {"b": np.zeros(1)}, "a/b": np.ones(1)}
    skeleton, stored = encode(tree)
    back = decode(skeleton, stored)
    assert back["a"]["b"] == 0
    assert back["a/b"] == 1


def test_numpy_scalars_and_views_become_contiguous_arrays():
    skeleton, stored = encode({"x": np.float32(3), "y": np.arange(6).reshape(2, 3).T})
    back = decode(skeleton, stored)
    assert back["x"].dtype == np.float32
    assert back["x"].shape == ()
    assert stored["y"].flags.c_contiguous
    np.testing.assert_array_equal(back["y"], np.arange(6).reshape(2, 3).T)


def test_bfloat16_is_kept():
    stored = encode({"x": np.ones(3, ml_dtypes.bfloat16)})[1]
    assert stored["x"].dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("value", [object(), {1, 2}, np.array(["a"]), np.array([None])])
def test_other_values_are_named(value):
    with pytest.raises(CheckpointError, match=r"agent: 'a/x' is .* cannot hold"):
        encode({"a": {"x": value}}, "agent")


def test_unknown_tags_are_refused():
    with pytest.raises(ValueError, match="unknown tag"):
        decode({"$call": "os.system"}, {})
