import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied.core.errors import CheckpointError
from embodied.jax import params

HERE = {"enc/a": np.zeros(2), "enc/b": np.zeros((2, 3)), "dyn/c": np.zeros(())}
paths = st.lists(st.text("ab", min_size=1, max_size=2), min_size=1, max_size=3).map("/".join)


def test_kinds_of_misfits():
    saved = {"enc/a": np.ones(2), "enc/b": np.ones((3, 2)), "pol/d": np.ones(4)}
    match = params.compare(HERE, saved)
    assert match.matched == ["enc/a"]
    assert match.missing == {"dyn/c": ()}
    assert match.unexpected == {"pol/d": (4,)}
    assert match.reshaped == {"enc/b": ((2, 3), (3, 2))}
    assert set(match.misfits) == {"dyn/c", "pol/d", "enc/b"}
    with pytest.raises(CheckpointError, match=r"the regex '\^enc/a\$' loads what fits\.$"):
        params.check(match)


def test_a_regex_chooses_what_is_compared():
    match = params.compare(HERE, {"enc/a": np.ones(2), "dyn/c": np.ones(7)}, "enc/a|pol")
    assert match.matched == ["enc/a"]
    assert not match.misfits
    params.check(match, "enc/a|pol")


def test_nothing_fits():
    match = params.compare(HERE, {"x": np.ones(1)})
    with pytest.raises(CheckpointError, match=r"and 1 more; no parameter fits\.$"):
        params.check(match)


@given(matched=st.sets(paths, max_size=8), misfits=st.sets(paths, max_size=8))
def test_the_fitting_regex_finds_all_that_match_and_no_misfit(matched, misfits):
    regex = params.fitting_regex(matched - misfits, misfits)
    found = {x for x in matched | misfits if regex and re.search(regex, x)}
    assert found == matched - misfits


def test_modules_are_counted():
    assert params.count_modules(HERE) == "dyn 1, enc 2"
