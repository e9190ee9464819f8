import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import embodied.envs
from dreamerv3 import factory
from dreamerv3.config import compose
from embodied.core.errors import EnvError
from embodied.envs import pinpad
from embodied.envs.pinpad import PinPad
from embodied.testing import check_env

TASKS = ["three", "four", "five", "six", "seven", "eight"]
STAY, UP, DOWN, LEFT, RIGHT = range(5)


def act(env, action=STAY, reset=False):
    return env.step({"action": np.int32(action), "reset": np.bool_(reset)})


def colours(image):
    return {tuple(x) for x in image.reshape(-1, 3).tolist()}


def position(obs):
    """Row and column of the agent, as the image shows it."""
    rows, columns = np.where((obs["image"][::4, ::4] == 0).all(-1))
    assert len(rows) == 1
    return int(rows[0]), int(columns[0])


def visit(env, targets):
    """Starts and visits cells, without other pads on the way, until there is a reward."""
    obs = [act(env, reset=True)]
    for row, column in targets:
        near, far = (min((4, 9), key=lambda x: abs(x - y)) for y in (position(obs[-1])[0], row))
        for axis, goal in ((0, near), (1, 5), (0, far), (1, column), (0, row)):
            while position(obs[-1])[axis] != goal:
                after = goal > position(obs[-1])[axis]
                obs.append(act(env, [(UP, DOWN), (LEFT, RIGHT)][axis][after]))
                if obs[-1]["reward"]:
                    return obs
    return obs


def centers(task):
    cells = pinpad._make_map(pinpad._LAYOUTS[task])
    return [tuple(np.argwhere(cells == i)[3].tolist()) for i in range(cells.max() + 1)]


@pytest.mark.parametrize("task", TASKS)
def test_keeps_the_contract(task):
    check_env(embodied.envs.make(f"pinpad_{task}"), steps=300)
    check_env(embodied.envs.make(f"pinpad_{task}", length=20), steps=300)


def test_unknown_tasks_get_the_nearest():
    with pytest.raises(EnvError, match="no task of PinPad 'tree': try 'three'"):
        embodied.envs.make("pinpad_tree")


def test_the_length_is_positive():
    with pytest.raises(EnvError, match="length is 0, but must be at least 1"):
        PinPad("three", length=0)


@pytest.mark.parametrize("count", range(3, 9))
def test_image_shows_the_pads_and_the_agent(count):
    task = TASKS[count - 3]
    image = act(PinPad(task))["image"]
    # Floor, wall, the empty history, the agent, and the pads.
    assert len(colours(image)) == 4 + count
    assert len(colours(image[56:])) == 1
    assert len(centers(task)) == count


def test_episodes_follow_from_the_seed():
    def run(seed):
        env, rng = embodied.envs.make("pinpad_three", seed=seed), np.random.default_rng(0)
        return np.stack(
            [act(env, rng.integers(5), reset=i % 50 == 0)["image"] for i in range(200)]
        )

    one = run(1)
    assert np.array_equal(one, run(1))
    assert not np.array_equal(one, run(2))
    assert not np.array_equal(one[0], one[50])


def test_moves():
    env = PinPad("three")
    assert position(visit(env, [(5, 7)])[-1]) == (5, 7)
    assert position(act(env, STAY)) == (5, 7)
    assert position(act(env, UP)) == (4, 7)
    assert position(act(env, LEFT)) == (4, 6)
    assert position(act(env, DOWN)) == (5, 6)
    assert position(act(env, RIGHT)) == (5, 7)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from([UP, DOWN, LEFT, RIGHT]), max_size=20), st.integers(0, 99))
def test_walls_hold(moves, seed):
    env = PinPad("eight", seed=seed)
    obs = act(env)
    for move in itertools.chain.from_iterable([x] * 5 for x in moves):
        obs = act(env, move)
        row, column = position(obs)
        assert 1 <= row <= 12
        assert 1 <= column <= 14


@pytest.mark.parametrize("task", TASKS)
def test_the_right_order_pays(task):
    env = PinPad(task)
    obs = visit(env, centers(task))
    rewards = [float(x["reward"]) for x in obs]
    assert sum(rewards) == rewards[-1] == 10
    assert len(colours(obs[-1]["image"][56:])) == len(centers(task)) + (task != "eight")
    after = act(env, STAY)
    assert after["reward"] == 0
    assert not after["is_last"]
    assert len(colours(after["image"][56:])) == 1  # an empty history
    assert position(after) != position(obs[-1])


@pytest.mark.parametrize(
    ("order", "pays"),
    [
        *((x, x == (0, 1, 2)) for x in itertools.permutations(range(3))),
        ((0, 1, 0, 1, 2), True),
        ((2, 1, 0, 1, 2), True),
        ((0, 1, 1, 2), True),
        ((0, 0, 1, 2), True),
        ((0, 1), False),
        ((0, 2, 1, 2), False),
    ],
)
def test_the_latest_pads_count(order, pays):
    obs = visit(PinPad("three"), [centers("three")[x] for x in order])
    assert [x["reward"] for x in obs if x["reward"]] == [10] * pays


def test_time_limit_is_not_terminal():
    env = PinPad("three", length=5)
    obs = [act(env) for _ in range(12)]
    assert [i for i, x in enumerate(obs) if x["is_last"]] == [5, 11]
    assert [i for i, x in enumerate(obs) if x["is_first"]] == [0, 6]
    assert not any(x["is_terminal"] for x in obs)


def test_preset():
    config = compose(["pinpad"])
    env = factory.make_env(config, 0)
    assert config.env.pinpad.length == 10_000
    assert env.act_space["action"].classes == 5
    assert act(env, reset=True)["is_first"]
