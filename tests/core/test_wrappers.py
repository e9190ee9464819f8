import logging

import elements
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from embodied.core import wrappers
from embodied.core.base import BatchedEnv, Env
from embodied.core.errors import EnvError, SpaceError
from embodied.envs.dummy import Dummy
from embodied.testing import check_env, find_violations

f32 = np.float32


def dummy(length=10, task="cont"):
    return Dummy(task, size=(8, 8), length=length)


def act(disc=1, cont=None, reset=False):
    cont = np.zeros(6, f32) if cont is None else np.asarray(cont, f32)
    return {"reset": np.bool_(reset), "act_disc": np.int32(disc), "act_cont": cont}


class Recorder(Env):
    """Keeps the actions that arrive; its spaces are given."""

    def __init__(self, act_space, obs_space=None, obs=None):
        self._act_space = {"reset": elements.Space(bool), **act_space}
        self._extra = obs_space or {}
        self.obs = obs or {}
        self.actions = []
        self.closed = False

    @property
    def act_space(self):
        return self._act_space

    @property
    def obs_space(self):
        flags = dict.fromkeys(("is_first", "is_last", "is_terminal"), elements.Space(bool))
        return {"reward": elements.Space(f32), **flags, **self._extra}

    def step(self, action):
        first = not self.actions or bool(action["reset"])
        self.actions.append(action)
        flags = {"is_first": first, "is_last": False, "is_terminal": False}
        return {"reward": f32(0), **flags, **self.obs}

    def close(self):
        self.closed = True


def box(low, high, shape=(3,), dtype=f32):
    return Recorder({"action": elements.Space(dtype, shape, low, high)})


def step(env, value=None, **kwargs):
    action = {"reset": np.bool_(False), **kwargs}
    if value is not None:
        action["action"] = value
    return env.step(action)


# Base


def test_base_passes_everything_on():
    inner = dummy()
    env = wrappers.Wrapper(wrappers.Wrapper(inner))
    assert env.obs_space.keys() == inner.obs_space.keys()
    assert env.act_space.keys() == inner.act_space.keys()
    assert env.step(act())["is_first"]
    assert env.step(act())["reward"] == 1
    inner.nickname = "Otto"
    assert env.nickname == "Otto"
    with pytest.raises(AttributeError):
        env.other
    recorder = box(0, 1)
    wrappers.Wrapper(recorder).close()
    assert recorder.closed


@pytest.mark.parametrize(
    "wrap",
    [
        lambda env: wrappers.TimeLimit(env, 7),
        lambda env: wrappers.TimeLimit(env, 1),
        lambda env: wrappers.ActionRepeat(env, 3),
        lambda env: wrappers.NormalizeAction(env, "act_cont"),
        lambda env: wrappers.ClipAction(env, "act_cont"),
        lambda env: wrappers.DiscretizeAction(env, "act_cont"),
        lambda env: wrappers.UnifyDtypes(env),
        lambda env: wrappers.CheckSpaces(env),
        lambda env: wrappers.ResizeImage(env, (5, 12)),
        lambda env: wrappers.RestartOnException(lambda: env),
        lambda env: wrappers.BackwardReturn(env, 10),
        lambda env: wrappers.AddObs(env, "id", 3, elements.Space(np.int32, (), 0, 4)),
        lambda env: wrappers.FlattenObs(env),
    ],
)
def test_all_wrappers_keep_the_contract(wrap):
    check_env(wrap(dummy()))


# Episodes


def test_time_limit_ends_and_restarts_without_being_asked():
    env = wrappers.TimeLimit(dummy(length=100), 3)
    obs = [env.step(act()) for _ in range(8)]
    assert [bool(o["is_last"]) for o in obs] == [False, False, False, True] * 2
    assert [bool(o["is_first"]) for o in obs] == [True, False, False, False] * 2
    assert not any(o["is_terminal"] for o in obs)
    assert [float(o["count"]) for o in obs] == [0, 1, 2, 3] * 2


def test_time_limit_counts_anew_after_a_reset_in_the_middle():
    env = wrappers.TimeLimit(dummy(length=100), 3)
    for reset in (False, False, False, True, False, False):
        assert not env.step(act(reset=reset))["is_last"]
    assert env.step(act())["is_last"]


def test_time_limit_keeps_terminal_ends():
    env = wrappers.TimeLimit(dummy(length=3), 3)
    assert [bool(env.step(act())["is_terminal"]) for _ in range(8)] == [False] * 3 + [True] + [
        False
    ] * 3 + [True]
    env = wrappers.TimeLimit(dummy(length=2), 3)
    assert [bool(env.step(act())["is_last"]) for _ in range(6)] == [False, False, True] * 2


def test_action_repeat_sums_rewards_and_stops_at_the_end():
    env = wrappers.ActionRepeat(dummy(length=7), 3)
    obs = [env.step(act()) for _ in range(8)]
    assert [float(o["count"]) for o in obs] == [0, 3, 6, 7] * 2
    assert [float(o["reward"]) for o in obs] == [0, 3, 3, 1] * 2
    assert [bool(o["is_last"]) for o in obs] == [False, False, False, True] * 2
    assert obs[1]["reward"].dtype == f32


def test_action_repeat_resets_in_one_step():
    env = wrappers.ActionRepeat(dummy(length=7), 3)
    env.step(act())
    env.step(act())
    obs = env.step(act(reset=True))
    assert (obs["count"], obs["is_first"], obs["reward"]) == (0, True, 0)


def test_action_repeat_stops_at_an_unexpected_start():
    class Restarts(wrappers.Wrapper):
        def step(self, action):
            obs = self.env.step(action)
            return self.env.step(act(reset=True)) if obs["count"] == 2 else obs

    env = wrappers.ActionRepeat(Restarts(dummy()), 4)
    env.step(act())
    obs = env.step(act())
    assert (obs["count"], obs["is_first"], obs["reward"]) == (0, True, 0)


@pytest.mark.parametrize("wrapper", [wrappers.TimeLimit, wrappers.ActionRepeat])
def test_counts_below_one_are_refused(wrapper):
    with pytest.raises(EnvError, match=r"is 0.*must be at least 1"):
        wrapper(dummy(), 0)


class Fragile(wrappers.Wrapper):
    """Raises in every step listed in `faults`, counted over all instances."""

    made = 0
    closed = 0
    steps = 0
    faults = ()

    def __init__(self):
        super().__init__(dummy())
        type(self).made += 1

    def step(self, action):
        type(self).steps += 1
        if self.steps in self.faults:
            raise OSError(f"step {self.steps}")
        return self.env.step(action)

    def close(self):
        type(self).closed += 1
        raise OSError("stuck")


def fragile(*faults):
    return type("Fragile", (Fragile,), {"faults": faults})


def test_restart_begins_an_episode_with_a_new_environment(caplog):
    make = fragile(3)
    env = wrappers.RestartOnException(make, wait=0)
    with caplog.at_level(logging.WARNING):
        obs = [env.step(act()) for _ in range(5)]
    assert [bool(o["is_first"]) for o in obs] == [True, False, True, False, False]
    assert [float(o["count"]) for o in obs] == [0, 1, 0, 1, 2]
    assert (make.made, make.closed) == (2, 1)
    assert "Restarting an environment after OSError: step 3" in caplog.text
    assert "Closing it raised OSError: stuck" in caplog.text


def test_restart_gives_up_after_too_many_failures():
    env = wrappers.RestartOnException(fragile(2, 3, 4), max_fails=2, wait=0)
    env.step(act())
    with pytest.raises(OSError, match="step 4"):
        env.step(act())


def test_restart_counts_failures_within_the_window_only():
    env = wrappers.RestartOnException(fragile(2, 3, 4), window=0, max_fails=1, wait=0)
    env.step(act())
    assert env.step(act())["is_first"]


def test_restart_survives_a_failing_constructor():
    tries = []

    def make():
        tries.append(1)
        if len(tries) == 2:
            raise OSError("no port")
        return fragile(2)()

    env = wrappers.RestartOnException(make, wait=0)
    env.step(act())
    assert env.step(act())["is_first"]
    assert len(tries) == 3


def test_restart_leaves_other_exceptions_alone():
    env = wrappers.RestartOnException(fragile(1), exceptions=(ValueError,), wait=0)
    with pytest.raises(OSError, match="step 1"):
        env.step(act())


# Actions


def test_normalize_maps_bounds_affinely():
    inner = box(0, 800)
    env = wrappers.NormalizeAction(inner)
    assert env.act_space["action"].low.tolist() == [-1] * 3
    assert env.act_space["action"].high.tolist() == [1] * 3
    step(env, np.array([-1, 0, 1], f32))
    assert inner.actions[0]["action"].tolist() == [0, 400, 800]
    assert inner.actions[0]["action"].dtype == f32


def test_normalize_shifts_entries_with_one_bound_and_leaves_those_without(caplog):
    low, high = np.array([0, -np.inf, 2, -np.inf]), np.array([10, 5, np.inf, np.inf])
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            inner = Recorder({"odd": elements.Space(np.float64, (4,), low, high)})
            env = wrappers.NormalizeAction(inner, "odd")
    space = env.act_space["odd"]
    assert space.low.tolist() == [-1, -np.inf, -1, -np.inf]
    assert space.high.tolist() == [1, 1, np.inf, np.inf]
    for value in ([0, 0.25, 3, -7], [-1, 1, -1, 0]):
        step(env, odd=np.array(value, f32))
    values = [x["odd"] for x in inner.actions]
    assert values[0].tolist() == [5, 4.25, 6, -7]
    assert values[1].tolist() == [0, 5, 2, 0]
    assert values[0].dtype == np.float64
    assert caplog.text.count("The action 'odd' is float64 (4,)") == 1
    assert "entries with one finite bound are shifted" in caplog.text


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6), st.floats(-1, 1, width=32))
def test_normalize_never_leaves_the_bounds(low, span, value):
    for dtype in (np.float32, np.float64):
        inner = box(dtype(low), dtype(low + span), (1,), dtype)
        env = wrappers.CheckSpaces(inner)
        step(env, np.zeros(1, dtype), reset=np.bool_(True))
        step(wrappers.NormalizeAction(env), np.full(1, value, f32))  # raises if it does
        scale = max(abs(low), abs(low + span), 1)
        right = low + (value + 1) / 2 * span
        assert abs(inner.actions[1]["action"][0] - right) < 1e-6 * scale


def test_clip_keeps_actions_within_bounds():
    inner = box(np.array([0, -np.inf, 2]), np.array([10, 5, np.inf]))
    env = wrappers.ClipAction(inner)
    step(env, np.array([-1, 100, 100], f32))
    step(env, np.array([3, -100, 0], f32))
    assert inner.actions[0]["action"].tolist() == [0, 5, 100]
    assert inner.actions[1]["action"].tolist() == [3, -100, 2]


def test_clip_after_normalize_bounds_what_the_environment_sees():
    inner = box(0, 800)
    step(wrappers.ClipAction(wrappers.NormalizeAction(inner)), np.array([-9, 0, 9], f32))
    assert inner.actions[0]["action"].tolist() == [0, 400, 800]


@pytest.mark.parametrize(("shape", "classes"), [((3,), [0, 2, 4]), ((), 4), ((2, 1), [[1], [3]])])
def test_discretize_offers_evenly_spaced_values(shape, classes):
    inner = box(-2, 2, shape)
    env = wrappers.DiscretizeAction(inner, bins=5)
    space = env.act_space["action"]
    assert (space.dtype, space.shape, np.max(space.classes)) == (np.int32, shape, 5)
    step(env, np.array(classes, np.int32))
    value = inner.actions[0]["action"]
    assert value.tolist() == (np.array(classes) - 2).tolist()
    assert value.dtype == f32


@pytest.mark.parametrize("bins", [1, 0])
def test_discretize_needs_two_bins(bins):
    with pytest.raises(SpaceError, match=f"cut into {bins} bins, but 2 are the least"):
        wrappers.DiscretizeAction(box(0, 1), bins=bins)


def test_discretize_takes_effect_beside_other_actions_and_resets():
    env = wrappers.DiscretizeAction(dummy(length=2), "act_cont", bins=3)
    move = {**act(), "act_cont": np.array([0, 1, 2, 0, 1, 2], np.int32)}
    obs = [env.step(move) for _ in range(4)]
    assert [float(o["reward"]) for o in obs] == [0, 1, 1, 0]


def test_discretize_needs_finite_bounds():
    with pytest.raises(SpaceError, match="only finite bounds"):
        wrappers.DiscretizeAction(box(0, np.inf))


@pytest.mark.parametrize(
    "wrapper", [wrappers.NormalizeAction, wrappers.ClipAction, wrappers.DiscretizeAction]
)
def test_float_actions_are_needed(wrapper):
    with pytest.raises(SpaceError, match=r"'act_disc' is int32 .*, expected a space of floats"):
        wrapper(dummy(), "act_disc")
    with pytest.raises(SpaceError, match="'jump' is absent, expected a space of floats"):
        wrapper(dummy(), "jump")


# Checks


def test_unify_dtypes_both_ways():
    inner = Recorder(
        {"a": elements.Space(np.float64, (), 0, 1), "b": elements.Space(np.int64, (), 0, 3)},
        {
            "x": elements.Space(np.float64, (2,), -1, 1),
            "y": elements.Space(np.uint16, (), 0, 10),
            "z": elements.Space(np.int64),
            "image": elements.Space(np.uint8, (2, 2, 3)),
        },
        {"x": np.ones(2), "y": np.uint16(9), "z": 5, "image": np.ones((2, 2, 3), np.uint8)},
    )
    inner.obs["reward"] = 1.5
    env = wrappers.UnifyDtypes(inner)
    dtypes = {k: v.dtype for k, v in env.obs_space.items()}
    assert (dtypes["x"], dtypes["y"], dtypes["z"]) == (f32, np.int32, np.int32)
    assert (dtypes["image"], dtypes["is_last"]) == (np.uint8, bool)
    assert (env.obs_space["y"].low, env.obs_space["y"].high) == (0, 10)
    assert (env.obs_space["z"].high, env.obs_space["x"].high.tolist()) == (2**31 - 1, [1, 1])
    obs = step(env, a=f32(0.5), b=np.int32(2))
    assert {k: np.asarray(v).dtype for k, v in obs.items()} == dtypes
    assert (inner.actions[0]["a"].dtype, inner.actions[0]["b"].dtype) == (np.float64, np.int64)
    wrappers.CheckSpaces(env).step({"reset": np.bool_(True)} | {"a": f32(0), "b": np.int32(0)})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (2**40, "'z' has the value 1099511627776, which does not fit into int32"),
        (1.5, r"'z' is float64 \(\), expected int64 \(\)"),
        (np.int32(3), r"'z' is int32 \(\), expected int64"),
        (np.float32(1), r"'z' is float32"),
    ],
)
def test_unify_dtypes_refuses_what_is_not_declared(value, message):
    inner = Recorder({}, {"z": elements.Space(np.int64)}, {"z": value})
    with pytest.raises(SpaceError, match=message):
        step(wrappers.UnifyDtypes(inner))
    with pytest.raises(SpaceError, match=f"In environment 7 at step 0: .*{message}"):
        step(wrappers.CheckSpaces(wrappers.UnifyDtypes(inner), 7))


def test_unify_dtypes_finds_values_too_large_for_float32():
    inner = Recorder({}, {"x": elements.Space(np.float64)}, {"x": np.float64(1e300)})
    with pytest.raises(SpaceError, match="'x' in environment 0 at step 0 is the value inf"):
        step(wrappers.CheckSpaces(wrappers.UnifyDtypes(inner), 0))
    inner.obs["x"] = np.float64(-1e30)
    assert step(wrappers.UnifyDtypes(inner))["x"] == f32(-1e30)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_check_spaces_can_leave_alone_what_is_not_finite(value):
    inner = Recorder({}, {"x": elements.Space(f32, (2,), 1, 3)}, {"x": np.array([value, 2], f32)})
    env = wrappers.CheckSpaces(inner, finite=False)
    np.testing.assert_equal(step(env)["x"], inner.obs["x"])
    inner.obs["x"][1] = 4
    with pytest.raises(SpaceError, match=r"'x' at step 1 is the value 4\.0, expected"):
        step(env)


@given(st.floats(-1e3, 1e3), st.floats(0.1, 1e3))
def test_unified_bounds_of_actions_lie_within(low, span):
    inner = Recorder({"a": elements.Space(np.float64, (), low, low + span)})
    env = wrappers.UnifyDtypes(inner)
    space = env.act_space["a"]
    for value in (space.low, space.high):
        env.step({"a": f32(value), "reset": np.False_})
        assert low <= inner.actions[-1]["a"] <= low + span


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        (
            {"x": np.zeros(3, f32)},
            r"observation .x. at step 2 is float32 \(3,\), exp.*\(2,\)",
        ),
        ({"x": np.zeros(2)}, r"'x' at step 2 is float64 \(2,\), expected float32 \(2,\)"),
        ({"x": np.array([0, np.nan], f32)}, "'x' at step 2 is the value nan"),
        ({"x": np.array([0, 7], f32)}, r"'x' at step 2 is the value 7.0, expected .*0.0\.\.5.0"),
        ({"reward": f32(np.inf)}, "'reward' at step 2 is the value inf"),
        ({"y": 1}, r"at step 2 has the keys .*'y'"),
    ],
)
def test_check_spaces_names_bad_observations(obs, message):
    inner = Recorder({}, {"x": elements.Space(f32, (2,), 0, 5)}, {"x": np.zeros(2, f32)})
    env = wrappers.CheckSpaces(inner)
    step(env)
    step(env)
    inner.obs.update(obs)
    with pytest.raises(SpaceError, match=message):
        step(env)


def test_check_spaces_names_bad_actions_unless_they_are_ignored():
    env = wrappers.CheckSpaces(dummy(length=2))
    env.step(act(disc=9))  # the first step only starts
    env.step(act(disc=9, reset=True))
    with pytest.raises(SpaceError, match=r"action 'act_disc' at step 2 is the value 5, .* 0\.\.4"):
        env.step(act(disc=5))
    with pytest.raises(SpaceError, match="action at step 2 has the keys"):
        env.step({"reset": np.bool_(False)})
    env.step(act())
    assert env.step(act())["is_last"]
    env.step(act(disc=9))


def test_check_spaces_names_the_environment():
    inner = Recorder({}, {"x": elements.Space(f32, (2,), 0, 5)}, {"x": np.zeros(3, f32)})
    with pytest.raises(SpaceError, match=r"'x' in environment 3 at step 0 is float32 \(3,\)"):
        step(wrappers.CheckSpaces(inner, 3))
    env = wrappers.CheckSpaces(dummy(), 3)
    env.step(act(disc=7))
    with pytest.raises(SpaceError, match=r"action 'act_disc' in environment 3 at step 1 is"):
        env.step(act(disc=7))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32, np.int64, np.uint64, f32, float])
def test_check_spaces_takes_everything_that_lies_in_a_space(dtype):
    kind = np.iinfo if np.dtype(dtype).kind in "iu" else np.finfo
    inner = Recorder({}, {"x": elements.Space(dtype, (2,))})
    env = wrappers.CheckSpaces(inner)
    inner.obs["x"] = np.array([kind(dtype).min, kind(dtype).max], dtype)
    step(env)


def test_check_spaces_wants_distinct_keys():
    inner = Recorder({"x": elements.Space(f32)}, {"x": elements.Space(f32)})
    with pytest.raises(SpaceError, match="'x' is both an observation and an action"):
        wrappers.CheckSpaces(inner)


class Batch(BatchedEnv):
    """Dummies of different lengths that are stepped together."""

    def __init__(self, *lengths):
        self.length = len(lengths)
        self.envs = [dummy(length) for length in lengths]
        self.spoil = lambda obs: None
        self.actions = []

    @property
    def obs_space(self):
        return self.envs[0].obs_space | {
            "count": elements.Space(f32, (), 0, 1000),
            "wide": elements.Space(float, (2,), 0, 1),
        }

    @property
    def act_space(self):
        return self.envs[0].act_space | {"act_cont": elements.Space(float, (6,), 0, 800)}

    def step(self, action):
        self.actions.append(action)
        obs = [e.step({k: v[i] for k, v in action.items()}) for i, e in enumerate(self.envs)]
        obs = {k: np.stack([o[k] for o in obs]) for k in obs[0]}
        obs["wide"] = np.full((self.length, 2), 0.1)
        self.spoil(obs)
        return obs


def batch_act(disc=1, cont=0.0, reset=False):
    def rows(value, dtype, shape=()):
        return np.broadcast_to(np.asarray(value, dtype), (3, *shape)).copy()

    return {
        "act_disc": rows(disc, np.int32),
        "act_cont": rows(cont, f32, (6,)),
        "reset": rows(reset, bool),
    }


def wrapped_batch(*lengths):
    inner = Batch(*lengths)
    env = wrappers.UnifyDtypes(wrappers.NormalizeAction(inner, "act_cont"))
    return inner, wrappers.ClipAction(wrappers.CheckSpaces(env, 10), "act_cont")


def test_wrapped_batches_are_batches():
    inner, env = wrapped_batch(2, 3, 9)
    assert isinstance(env, BatchedEnv)
    assert isinstance(env, wrappers.ClipAction)
    assert env.length == 3
    assert not isinstance(wrappers.ClipAction(dummy(), "act_cont"), BatchedEnv)
    env.step(batch_act(reset=True))
    obs = env.step(batch_act(cont=[[-9], [0], [9]]))
    assert inner.actions[1]["act_cont"][:, 0].tolist() == [0, 400, 800]
    assert inner.actions[1]["act_cont"].dtype == float
    assert obs["wide"].dtype == f32
    assert obs["image"].shape == (3, 8, 8, 3)
    assert obs["reward"].tolist() == [1, 1, 1]
    env.close()


def test_checks_of_batches_name_the_environment_of_the_row():
    inner, env = wrapped_batch(2, 3, 9)
    env.step(batch_act(disc=[9, 9, 9]))  # starts only
    inner.spoil = lambda obs: obs["vector"].__setitem__((1, 0), np.nan)
    with pytest.raises(SpaceError, match="'vector' in environment 11 at step 1 is the value nan"):
        env.step(batch_act())
    inner.spoil = lambda obs: obs.update(token=obs["token"][:2])
    with pytest.raises(
        SpaceError,
        match=r"'token' in environments 10..12 at step 1 is int32 \(2,\), expected 3 of",
    ):
        env.step(batch_act())
    inner.spoil = lambda obs: obs.update(wide=obs["wide"].astype(f32))
    with pytest.raises(SpaceError, match=r"(?s)In environments 10..12 at step 1: .*'wide' is"):
        env.step(batch_act())
    with pytest.raises(SpaceError, match="action 'act_disc' in environment 12 at step 1 is"):
        env.step(batch_act(disc=[0, 0, 9]))


def test_checks_of_batches_ignore_the_actions_of_rows_that_start():
    _, env = wrapped_batch(1, 3, 9)
    env.step(batch_act())
    assert env.step(batch_act())["is_last"].tolist() == [True, False, False]
    obs = env.step(batch_act(disc=[9, 9, 1], reset=[False, True, False]))
    assert obs["is_first"].tolist() == [True, True, False]
    with pytest.raises(SpaceError, match="'act_disc' in environment 10"):
        env.step(batch_act(disc=[9, 1, 1]))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda env: wrappers.TimeLimit(env, 7),
        lambda env: wrappers.ActionRepeat(env, 3),
        lambda env: wrappers.DiscretizeAction(env, "act_cont"),
        lambda env: wrappers.ResizeImage(env, (5, 12)),
        lambda env: wrappers.RestartOnException(lambda: env),
        lambda env: wrappers.BackwardReturn(env, 10),
        lambda env: wrappers.AddObs(env, "id", 3, elements.Space(np.int32, (), 0, 4)),
        lambda env: wrappers.FlattenObs(env),
    ],
)
def test_other_wrappers_refuse_batches(wrap):
    with pytest.raises(EnvError, match=r"takes one environment and no batch of 3"):
        wrap(Batch(2, 3, 9))


# Observations


def images(**shapes):
    rng = np.random.default_rng(0)
    obs = {k: rng.integers(0, 256, v, np.uint8, endpoint=False) for k, v in shapes.items()}
    return Recorder({}, {k: elements.Space(np.uint8, v) for k, v in shapes.items()}, obs)


@pytest.mark.parametrize("shape", [(210, 160, 3), (64, 64, 3), (16, 20, 3), (84, 84, 1)])
@pytest.mark.parametrize("size", [(64, 64), (32, 48)])
def test_resize_agrees_with_pillow(shape, size):
    inner = images(image=shape)
    env = wrappers.ResizeImage(inner, size)
    image = step(env)["image"]
    assert env.obs_space["image"].shape == image.shape == (*size, shape[-1])
    assert image.dtype == np.uint8
    channels = [Image.fromarray(inner.obs["image"][..., c]) for c in range(shape[-1])]
    right = np.stack([x.resize(size[::-1], Image.Resampling.BILINEAR) for x in channels], -1)
    assert np.abs(image.astype(int) - right.astype(int)).max() <= 1


@pytest.mark.parametrize("shape", [(30, 20), (6, 8)])
def test_resize_makes_images_of_matrices_of_bytes(shape):
    inner = images(matrix=(30, 20), small=(7, 20))
    env = wrappers.ResizeImage(inner, shape)
    obs = step(env)
    assert obs["matrix"].shape == env.obs_space["matrix"].shape == (*shape, 1)
    assert obs["small"].shape == (7, 20)
    assert not find_violations(env, steps=1)
    if shape == (30, 20):
        assert np.array_equal(obs["matrix"][..., 0], inner.obs["matrix"])


def test_resize_keeps_floats_within_their_bounds():
    low, high = np.array([-1, 0, 5], f32), np.array([1, 0.1, 6], f32)
    space = elements.Space(f32, (9, 12, 3), low, high)
    inner = Recorder({}, {"x": space}, {"x": np.broadcast_to(high, (9, 12, 3))})
    env = wrappers.CheckSpaces(wrappers.ResizeImage(inner, (16, 16)))
    assert env.obs_space["x"].high[0, 0].tolist() == high.tolist()
    assert np.allclose(step(env)["x"], high)


@pytest.mark.parametrize("image", [np.zeros((9, 10, 3), np.uint8), np.zeros((10, 10, 3), f32)])
def test_resize_finds_images_that_are_not_as_declared(image):
    inner = images(a=(10, 10, 3))
    inner.obs["a"] = image
    with pytest.raises(SpaceError, match=r"'a' is .*, expected uint8 \(10, 10, 3\)"):
        step(wrappers.ResizeImage(inner, (8, 8)))


def test_resize_needs_a_size():
    with pytest.raises(EnvError, match=r"image size \[0, 8\]"):
        wrappers.ResizeImage(images(a=(10, 10, 3)), (0, 8))


def test_resize_leaves_what_is_no_image():
    inner = images(a=(10, 10, 3), b=(20, 30, 4), matrix=(7, 10), **{"log/image": (10, 10, 3)})
    inner.obs["floats"] = np.zeros((10, 10, 3), f32)
    inner._extra["floats"] = elements.Space(f32, (10, 10, 3))
    env = wrappers.ResizeImage(inner, (8, 6))
    obs = step(env)
    assert (obs["a"].shape, obs["b"].shape) == ((8, 6, 3), (8, 6, 4))
    for key in ("matrix", "log/image", "floats"):
        assert obs[key] is inner.obs[key]
    assert not find_violations(env, steps=1)


def test_resize_keeps_black_and_white():
    inner = images(image=(13, 7, 3))
    for value in (0, 255):
        inner.obs["image"] = np.full((13, 7, 3), value, np.uint8)
        assert (step(wrappers.ResizeImage(inner, (64, 64)))["image"] == value).all()


def test_backward_return_starts_anew_with_each_episode():
    env = wrappers.BackwardReturn(dummy(length=3), horizon=2)
    values = [float(env.step(act())["bwreturn"]) for _ in range(8)]
    assert values == [0, 1, 1.5, 1.75] * 2
    env.step(act())
    env.step(act())
    assert env.step(act(reset=True))["bwreturn"] == 0


@pytest.mark.parametrize("horizon", [0.5, 0])
def test_backward_return_needs_a_horizon(horizon):
    with pytest.raises(EnvError, match="must be at least 1"):
        wrappers.BackwardReturn(dummy(), horizon)


def test_backward_return_needs_its_key():
    with pytest.raises(SpaceError, match="'bwreturn'"):
        wrappers.BackwardReturn(wrappers.BackwardReturn(dummy(), 5), 5)


def test_add_obs():
    space = elements.Space(f32, (2,), 0, 1)
    env = wrappers.AddObs(dummy(), "goal", [0.5, 1], space)
    assert env.step(act())["goal"].tolist() == [0.5, 1]
    assert env.obs_space["goal"] is space
    with pytest.raises(SpaceError, match=r"'goal' is the value 2.0"):
        wrappers.AddObs(dummy(), "goal", [2, 0], space)
    with pytest.raises(SpaceError, match="'image' of the constant to add is taken"):
        wrappers.AddObs(dummy(), "image", [0, 0], space)


def test_flatten_obs_makes_vectors_and_keeps_images():
    inner = dummy()
    env = wrappers.FlattenObs(inner)
    shapes = {k: v.shape for k, v in env.obs_space.items()}
    assert (shapes["float2d"], shapes["int2d"], shapes["image"]) == ((20,), (6,), (8, 8, 3))
    assert env.obs_space["int2d"].high.tolist() == [4] * 6
    assert env.step(act())["float2d"].shape == (20,)
