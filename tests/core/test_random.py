import elements
import numpy as np
import pytest

from embodied.core.base import Agent
from embodied.core.errors import CheckpointError
from embodied.core.random import RandomAgent

ACT_SPACE = {
    "move": elements.Space(np.int32, (), 0, 4),
    "force": elements.Space(np.float32, (2, 3), -2, 5),
}
OBS = {"is_first": np.zeros(6, bool)}


def act(agent):
    return agent.policy(agent.init_policy(6), OBS)[1]


def equal(a, b):
    return all(np.array_equal(a[k], b[k]) for k in ACT_SPACE)


def test_actions_fit_their_spaces():
    acts = act(RandomAgent({}, ACT_SPACE))
    assert acts.keys() == ACT_SPACE.keys()
    assert (acts["move"].dtype, acts["move"].shape) == (np.int32, (6,))
    assert (acts["force"].dtype, acts["force"].shape) == (np.float32, (6, 2, 3))
    assert (acts["force"] >= -2).all()
    assert (acts["force"] <= 5).all()


def test_actions_follow_from_seed_and_calls():
    one, same, other = (RandomAgent({}, ACT_SPACE, seed) for seed in (1, 1, 2))
    first, second = act(one), act(one)
    assert equal(act(same), first)
    assert equal(act(same), second)
    assert not equal(first, second)
    assert not equal(act(other), first)


def test_save_and_load_continue():
    old = RandomAgent({}, ACT_SPACE, seed=3)
    act(old)
    new = RandomAgent({}, ACT_SPACE, seed=99)
    new.load(old.save())
    assert equal(act(new), act(old))
    with pytest.raises(CheckpointError, match="no parameters that 'dec' could match"):
        new.load(old.save(), regex="dec")


def test_it_is_a_whole_agent():
    agent = RandomAgent({}, ACT_SPACE)
    assert isinstance(agent, Agent)
    batches = iter([{"x": np.zeros((2, 3))}])
    carry, outs, metrics = agent.train(agent.init_train(2), next(agent.stream(batches)))
    assert (outs, metrics) == ({}, {})
    assert agent.report(carry, {}) == (carry, {})


def test_masked_actions_are_drawn_among_what_is_allowed():
    space = elements.Space(np.int32, (2,), [3, 3], [6, 7])  # three and four classes
    agent = RandomAgent({}, {"move": space, "flag": elements.Space(bool)}, 0, {"move": "mask"})
    mask = np.zeros((3000, 2, 4), bool)
    mask[:1000, :, [0, 2]] = True
    mask[1000:2000, :, 3] = True  # which the first entry does not have, so that it is free
    obs = {"is_first": np.zeros(3000, bool), "mask": mask}
    move = agent.policy((), obs)[1]["move"]
    assert (move.dtype, move.shape) == (np.int32, (3000, 2))
    for rows, allowed in (
        (move[:1000], [[3, 5], [3, 5]]),
        (move[1000:2000], [[3, 4, 5], [6]]),
        (move[2000:], [[3, 4, 5], [3, 4, 5, 6]]),
    ):
        for entry, values in zip(rows.T, allowed, strict=True):
            found, counts = np.unique(entry, return_counts=True)
            assert found.tolist() == values
            np.testing.assert_allclose(counts, 1000 / len(values), rtol=0.2)
