import elements
import numpy as np
import pytest

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
