import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from embodied.core.codecs import BFloat16, Codec, OneHot
from embodied.core.errors import ReplayError

F32 = np.dtype(np.float32)


def decoded(codec, stored, shape):
    out = np.full(shape, 7, np.float32)
    codec.decode(np.ascontiguousarray(stored), out)
    return out


class TestBFloat16:
    @given(
        hnp.arrays(
            np.float32, st.integers(1, 20), elements=st.floats(-(2.0**127), 2.0**127, width=32)
        )
    )
    def test_error_is_at_most_half_a_unit(self, values):
        codec = BFloat16()
        back = decoded(codec, codec.encode(values, "x"), values.shape)
        # Eight significant bits, so half of the last one is 2 ** -8 of the leading one.
        _, exponent = np.frexp(values.astype(np.float64))
        unit = np.maximum(np.ldexp(1.0, exponent - 8), 2.0**-133)
        assert (np.abs(back.astype(np.float64) - values) <= unit / 2).all()
        np.testing.assert_array_equal(codec.encode(back, "x"), codec.encode(values, "x"))

    def test_states_between_minus_one_and_one_lose_at_most_two_thousandths(self):
        values = np.random.default_rng(0).uniform(-1, 1, (300, 101)).astype(np.float32)
        codec = BFloat16()
        error = np.abs(decoded(codec, codec.encode(values, "x"), values.shape) - values)
        assert 2**-9.1 < error.max() <= 2**-9

    @pytest.mark.parametrize(
        "bits", [0x7F800000, 0xFF800000, 0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001]
    )
    def test_infinities_and_nans(self, bits):
        values = np.array([bits, 0x3F800000], np.uint32).view(np.float32)
        codec = BFloat16()
        back = decoded(codec, codec.encode(values, "x"), (2,))
        np.testing.assert_array_equal(back, values)

    def test_what_rounds_to_infinity_is_refused(self):
        with pytest.raises(ReplayError, match=r"'x'.*-3\.3999.*beyond the range"):
            BFloat16().encode(np.float32([0, -3.4e38]), "x")

    def test_many_values_are_like_few(self):
        values = np.random.default_rng(0).normal(size=(3, 5, 4001)).astype(np.float32)
        stored = BFloat16().encode(values, "x")
        assert (stored.dtype, stored.shape) == (np.uint16, values.shape)
        np.testing.assert_array_equal(stored[1, 2], BFloat16().encode(values[1, 2], "x"))


class TestOneHot:
    @pytest.mark.parametrize("classes", [1, 2, 16, 255, 256, 300])
    def test_exact_with_an_index_for_zeros(self, classes):
        values = np.eye(classes + 1, classes, dtype=np.float32).repeat(2, 0)
        codec = OneHot(classes)
        stored = codec.encode(values, "x")
        assert stored.dtype == (np.uint8 if classes < 256 else np.uint16)
        np.testing.assert_array_equal(decoded(codec, stored, values.shape), values)

    @pytest.mark.parametrize(
        "wrong", [[0.5, 0.5], [1, 1], [2, 0], [0, -1], [np.nan, 0], [0, np.nan], [1, 1e-30]]
    )
    def test_other_vectors_are_refused(self, wrong):
        values = np.zeros((3, 4, 2), np.float32)
        values[..., 1] = 1
        values[1, 2] = wrong
        with pytest.raises(ReplayError, match=r"'x'.*no one-hot vector"):
            OneHot(2).encode(values, "x")

    def test_negative_zeros_are_zeros(self):
        values = np.float32([[-0.0, 1], [-0.0, -0.0]])
        np.testing.assert_array_equal(OneHot(2).encode(values, "x"), [1, 2])


@pytest.mark.parametrize(
    ("codec", "declared", "stored"),
    [
        (BFloat16(), (F32, (8,)), (np.dtype(np.uint16), (8,))),
        (OneHot(4), (F32, (2, 4)), (np.dtype(np.uint8), (2,))),
        (OneHot(4), (F32, (2, 3)), None),
        (OneHot(4), (F32, ()), None),
        (BFloat16(), (np.dtype(np.float16), (8,)), None),
    ],
)
def test_specs_and_tags(codec, declared, stored):
    assert codec.stored(declared) == stored
    again = Codec.parse(codec.tag)
    assert (type(again), again.tag) == (type(codec), codec.tag)
    if stored:
        assert again.declared(stored) == declared
    assert again.declared((np.dtype(np.int32), (3,))) is None


@pytest.mark.parametrize("tag", ["onehot0", "onehot", "onehot123456", "float8"])
def test_unknown_tags(tag):
    with pytest.raises(ReplayError, match="no codec"):
        Codec.parse(tag)
