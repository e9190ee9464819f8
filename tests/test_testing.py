import elements
import numpy as np
import pytest

from embodied.core.base import BatchedEnv
from embodied.core.errors import EnvError
from embodied.core.wrappers import Wrapper
from embodied.envs.dummy import Dummy
from embodied.testing import check_env, find_violations


def dummy(length=5):
    return Dummy("cont", size=(4, 4), length=length)


class Changed(Wrapper):
    """A dummy whose observations and spaces are changed."""

    def __init__(self, obs=None, obs_space=None, act_space=None):
        super().__init__(dummy())
        self._change = obs or (lambda obs: obs)
        self._spaces = (obs_space or {}, act_space or {})

    @property
    def obs_space(self):
        return without_none({**self.env.obs_space, **self._spaces[0]})

    @property
    def act_space(self):
        return without_none({**self.env.act_space, **self._spaces[1]})

    def step(self, action):
        return self._change(self.env.step(action))


def without_none(mapping):
    return {k: v for k, v in mapping.items() if v is not None}


def later(**values):
    """Changes observations from the third of an episode on; None takes a key away."""
    return lambda obs: without_none({**obs, **values}) if obs["count"] >= 2 else obs


def test_a_good_environment_has_no_violation():
    check_env(dummy())
    assert find_violations(dummy()) == []


@pytest.mark.parametrize(
    ("env", "line"),
    [
        (
            Changed(later(vector=np.zeros(6, np.float32))),
            "'vector' at step 2: expected float32 (7,)",
        ),
        (Changed(later(vector=np.zeros(7))), "found float64 (7,)."),
        (Changed(later(vector=np.full(7, np.nan, np.float32))), "found the value nan."),
        (
            Changed(later(token=np.int32(256))),
            "expected int32 () within 0..255, found the value 256.",
        ),
        (Changed(later(reward=1.0)), "'reward' at step 2: expected float32 ()"),
        (Changed(later(is_last=1)), "'is_last' at step 2: expected bool (), found int64 ()."),
        (Changed(later(image=None)), "'image' at step 2: expected a key of the observation"),
        (Changed(later(extra=1)), "'extra' at step 2: expected only keys of obs_space"),
        (Changed(later(is_first=True)), "'is_first' at step 2: expected false within an episode"),
        (
            Changed(later(is_terminal=True)),
            "'is_terminal' at step 2: expected false unless is_last",
        ),
        (Changed(lambda o: {**o, "is_first": False}), "'is_first' at step 0: expected true where"),
        (
            Changed(lambda o: {**o, "reward": np.float32(2)}),
            "'reward' at step 0: expected 0 where",
        ),
        (Changed(lambda o: list(o)), "'observation' at step 0: expected a dict, found list."),
        (
            Changed(obs_space={"is_last": None}),
            "'is_last': expected a key of obs_space, found none.",
        ),
        (
            Changed(obs_space={"is_last": elements.Space(np.int32)}),
            "'is_last': expected bool (), found",
        ),
        (
            Changed(obs_space={"act_cont": elements.Space(bool)}),
            "expected either an observation or",
        ),
        (
            Changed(obs_space={"vector": (7,)}),
            "'vector': expected an elements.Space, found tuple.",
        ),
        (Changed(act_space={"reset": None}), "'reset': expected a key of act_space, found none."),
        (
            Changed(act_space={"reset": elements.Space(bool, (1,))}),
            "'reset': expected bool (), found",
        ),
    ],
)
def test_violations_are_named(env, line):
    lines = find_violations(env)
    assert any(line in x for x in lines), lines


class NoRestart(Wrapper):
    """Needs to be told to start the next episode."""

    over = False

    def step(self, action):
        if self.over and not action["reset"]:
            return self.last
        self.last = self.env.step(action)
        self.over = self.last["is_last"]
        return self.last


class DeafToReset(Wrapper):
    def step(self, action):
        return self.env.step({**action, "reset": np.bool_(False)})


class Raises(Wrapper):
    def step(self, action):
        obs = self.env.step(action)
        if obs["count"] == 3:
            raise RuntimeError("out of fuel")
        return obs


class Growing(Wrapper):
    size = 1

    @property
    def obs_space(self):
        self.size += 1
        return {**self.env.obs_space, "vector": elements.Space(np.float32, (self.size,))}


class BadSpaces(Wrapper):
    obs_space = ("image",)


@pytest.mark.parametrize(
    ("wrap", "line"),
    [
        (NoRestart, "expected true where an episode starts, found False."),
        (DeafToReset, "expected true where an episode starts, found False."),
        (Raises, "'step' at step 3: expected no exception, found RuntimeError: out of fuel."),
        (Growing, "'obs_space' at step 200: expected the same spaces at all times"),
        (BadSpaces, "'obs_space': expected a dict, found tuple."),
    ],
)
def test_misbehaviour_is_named(wrap, line):
    lines = find_violations(wrap(dummy()))
    assert any(line in x for x in lines), lines


def test_all_violations_are_found_in_one_pass_and_said_once():
    env = Changed(
        later(vector=np.zeros(3, np.float32), reward=np.float32(np.inf), extra=1),
        obs_space={"act_disc": elements.Space(np.int32, (), 0, 5)},
    )
    with pytest.raises(EnvError) as info:
        check_env(env)
    heading, *lines = str(info.value).split("\n")
    assert heading == "The environment breaks the contract:"
    assert sorted(x.split("'")[1] for x in lines) == [
        "act_disc",
        "act_disc",
        "extra",
        "reward",
        "vector",
    ]


def test_actions_lie_in_their_spaces():
    class Strict(Wrapper):
        def step(self, action):
            assert action.keys() == self.env.act_space.keys()
            assert all(action[k] in v for k, v in self.env.act_space.items())
            assert action["act_disc"] < 5
            return self.env.step(action)

    check_env(Strict(dummy()))


class ReusesBuffer(Wrapper):
    buffer = np.zeros(7, np.float32)

    def step(self, action):
        obs = self.env.step(action)
        self.buffer[:] = obs["vector"]
        return {**obs, "vector": self.buffer}


class ChangesAction(Wrapper):
    def step(self, action):
        action["act_cont"] *= 2
        return self.env.step(action)


class TakesReset(Wrapper):
    def step(self, action):
        return self.env.step({"reset": action.pop("reset"), **action})


class RaisesAlways(Wrapper):
    def step(self, action):
        raise ValueError("two\nlines")


class Ragged(Wrapper):
    def step(self, action):
        return {**self.env.step(action), "vector": [[1], [2, 3]]}


class HidesEnds(Wrapper):
    """Starts episodes without having ended those before."""

    def step(self, action):
        obs = self.env.step(action)
        return {**obs, "is_last": np.bool_(False), "is_terminal": np.bool_(False)}


class Broken(Wrapper):
    @property
    def obs_space(self):
        raise KeyError("size")


class Texts(Wrapper):
    @property
    def obs_space(self):
        return {**self.env.obs_space, "mission": elements.Space(str)}

    def step(self, action):
        return {**self.env.step(action), "mission": "go"}


class DeclaresNothing(Wrapper):
    @property
    def act_space(self):
        return {"reset": elements.Space(bool), "act_disc": 5}


@pytest.mark.parametrize(
    ("wrap", "lines"),
    [
        (
            ReusesBuffer,
            ["'vector' at step 1: expected that an observation stays as it was, found that step"],
        ),
        (
            ChangesAction,
            ["'act_cont' at step 0: expected that step leaves the actions as they are"],
        ),
        (TakesReset, ["'reset' at step 0: expected that step leaves the actions as they are"]),
        (
            RaisesAlways,
            ["'step' at step 0: expected no exception, found ValueError: two lines."],
        ),
        (Ragged, ["'vector' at step 0: expected float32 (7,)"]),
        (HidesEnds, ["'is_first' at step 6: expected false within an episode, found True."]),
        (Broken, ["'obs_space': expected a dict, found KeyError: 'size'."]),
        (Texts, ["'mission': expected numbers or booleans, found texts in obs_space."]),
        (DeclaresNothing, ["'act_disc': expected an elements.Space, found int."]),
        (lambda env: env.step, ["'environment': expected an embodied.Env or an embodied.B"]),
        (lambda env: type(env), ["'environment': expected an embodied.Env or an embodied.B"]),
    ],
)
def test_each_fault_is_one_line(wrap, lines):
    found = find_violations(wrap(dummy()))
    assert len(found) == len(lines), found
    assert all(x.startswith(y) for x, y in zip(found, lines, strict=True)), found


def test_the_check_goes_on_after_an_exception():
    class RaisesOnce(Wrapper):
        steps = 0

        def step(self, action):
            self.steps += 1
            if self.steps == 3:
                raise RuntimeError("out of fuel")
            obs = self.env.step(action)
            return {**obs, "extra": 1} if self.steps > 100 else obs

    lines = find_violations(RaisesOnce(dummy()))
    assert [x.split("'")[1] for x in lines] == ["step", "extra"]
    assert "at step 2:" in lines[0]
    assert "at step 100:" in lines[1]


def test_chance_is_found_by_a_second_environment():
    def make(seed):
        return lambda: Dummy("cont", size=(4, 4), length=5, seed=seed)

    assert find_violations(make(1)(), again=make(1)) == []
    expected = "the same in a second environment with the same seed and actions"
    assert find_violations(make(1)(), again=make(2)) == [
        f"'float2d' at step 0: expected {expected}, found another value.",
        f"'vector' at step 0: expected {expected}, found another value.",
    ]


class Batch(BatchedEnv):
    """Three dummies; a function may change what comes out."""

    def __init__(self, change=None, length=3):
        self.length = length
        self._envs = [dummy(5 + i) for i in range(3)]
        self._change = change or (lambda obs: obs)

    @property
    def obs_space(self):
        return self._envs[0].obs_space | {"count": elements.Space(np.float32, (), 0, 7)}

    @property
    def act_space(self):
        return self._envs[0].act_space

    def step(self, action):
        assert {k: v.dtype for k, v in action.items()} == {
            k: v.dtype for k, v in self.act_space.items()
        }
        obs = [e.step({k: v[i] for k, v in action.items()}) for i, e in enumerate(self._envs)]
        return self._change({k: np.stack([np.asarray(x[k]) for x in obs]) for k in obs[0]})


def at(key, index, value):
    """Changes one environment's value from the second of its episode on."""

    def change(obs):
        if obs["count"][index] >= 1:
            obs[key][index] = value
        return obs

    return change


def test_a_good_batch_has_no_violation():
    check_env(Batch())
    assert find_violations(Batch()) == []


@pytest.mark.parametrize(
    ("env", "line"),
    [
        (Batch(at("vector", 1, np.nan)), "'vector' in environment 1 at step 1: expected float32"),
        (Batch(at("token", 2, 999)), "'token' in environment 2 at step 1: expected int32 ()"),
        (Batch(at("is_first", 0, True)), "'is_first' in environment 0 at step 1: expected false"),
        (Batch(at("is_terminal", 2, True)), "'is_terminal' in environment 2 at step 1: expected"),
        (
            Batch(lambda o: {**o, "vector": o["vector"][0]}),
            "'vector' at step 0: expected float32 (3, 7), found float32 (7,).",
        ),
        (
            Batch(lambda o: {**o, "reward": o["reward"].astype(np.float64)}),
            "'reward' at step 0: expected float32 (3,), found float64 (3,).",
        ),
        (
            Batch(lambda o: {**o, "is_last": o["is_last"][:2]}),
            "'is_last' at step 0: expected bool (3,), found bool (2,).",
        ),
        (Batch(lambda o: None), "'observation' at step 0: expected a dict, found NoneType."),
        (Batch(length=0), "'length': expected the number of environments, found 0."),
        (Batch(length=None), "'length': expected the number of environments, found None."),
    ],
)
def test_faults_of_batches_name_the_environment(env, line):
    lines = find_violations(env)
    assert len(lines) == 1, lines
    assert lines[0].startswith(line)


def test_batches_have_to_start_each_episode_by_itself():
    class Together(Batch):
        def step(self, action):
            reset = np.full(3, action["reset"].any())
            return super().step({**action, "reset": reset})

    lines = find_violations(Together())
    assert any("'is_first' in environment" in x and "false within" in x for x in lines)


@pytest.mark.parametrize(
    ("masks", "line"),
    [
        ({"jump": "image"}, "'jump': expected an action that has a mask, found none."),
        ({"act_disc": "maks"}, "'maks': expected a mask of the action 'act_disc', found none."),
        ({"act_disc": "token"}, "'token': expected a mask of the action 'act_disc', int32 () wit"),
    ],
)
def test_masks_that_do_not_fit_are_named(masks, line):
    (found,) = find_violations(dummy(), masks=masks)
    assert found.startswith(line)


@pytest.mark.parametrize("mask", [{}, {"mask": np.zeros(4, bool)}, {"mask": "no"}])
def test_masks_that_are_broken_are_named(mask):
    env = Changed(lambda obs: {**obs, **mask}, {"mask": elements.Space(bool, (5,))})
    (line,) = find_violations(env, masks={"act_disc": "mask"})
    assert line.startswith("'mask' at step 0: expected ")


def test_batches_that_reset_together_are_not_asked_for_more():
    class Together(Batch):
        resets_alone = False

        def __init__(self):
            super().__init__()
            self.resets = []
            self.over = np.ones(3, bool)

        def step(self, action):
            self.resets.append((action["reset"] & ~self.over).tolist())
            obs = super().step(action)
            self.over = obs["is_last"]
            return obs

    check_env(env := Together())
    assert [True] * 3 in env.resets
    Together.resets_alone = True
    check_env(env := Together())
    assert any(0 < sum(x) < 3 for x in env.resets)
