import sys
from types import SimpleNamespace

import numpy as np
import pytest

import embodied.envs
from dreamerv3 import factory
from dreamerv3.config import compose
from embodied.core.errors import EnvError, MissingPackageError
from embodied.envs.dmlab import DMLab
from embodied.testing import check_env

CONTROLS = [
    ("LOOK_LEFT_RIGHT_PIXELS_PER_FRAME", -512, 512),
    ("LOOK_DOWN_UP_PIXELS_PER_FRAME", -512, 512),
    ("STRAFE_LEFT_RIGHT", -1, 1),
    ("MOVE_BACK_FORWARD", -1, 1),
    ("FIRE", 0, 1),
    ("JUMP", 0, 1),
    ("CROUCH", 0, 1),
]


class Lab:
    """Speaks the documented interface of `deepmind_lab.Lab`; a level takes 40 frames."""

    made: list = []  # noqa: RUF012

    def __init__(self, level, observations, config=None, renderer="software"):
        assert all(isinstance(x, str) for pair in config.items() for x in pair)
        self.level, self.names, self.config = level, observations, config
        self.seeds, self.actions, self.closed = [], [], False
        self._frame = None
        self.made.append(self)

    def action_spec(self):
        return [{"name": name, "min": low, "max": high} for name, low, high in CONTROLS]

    def reset(self, episode=-1, seed=None):
        self.seeds.append(seed)
        self._rng = np.random.default_rng(seed)
        self._frame = 0

    def is_running(self):
        return self._frame is not None and self._frame < 40

    def step(self, action, num_steps=1):
        assert self.is_running(), "Environment in wrong status for call to step()"
        assert action.dtype == np.intc
        assert action.shape == (len(CONTROLS),)
        for value, (_, low, high) in zip(action, CONTROLS, strict=True):
            assert low <= value <= high
        self.actions.append(action.tolist())
        self._frame += num_steps
        return 0.5 * num_steps

    def observations(self):
        assert self.is_running(), "Environment in wrong status for call to observations()"
        size = int(self.config["height"]), int(self.config["width"]), 3
        values = {"RGB_INTERLEAVED": self._rng.integers(0, 256, size, np.uint8)}
        if "INSTR" in self.names:
            values["INSTR"] = "Pick the red Object" if self._frame < 20 else b"pick the ball"
        return values

    def close(self):
        self.closed = True


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch):
    monkeypatch.setattr(Lab, "made", [])
    monkeypatch.setitem(sys.modules, "deepmind_lab", SimpleNamespace(Lab=Lab))


def act(env, action=0, reset=False):
    return env.step({"action": np.int32(action), "reset": np.bool_(reset)})


@pytest.mark.parametrize(
    "task", ["dmlab_explore_goal_locations_small", "dmlab_language_execute_random_task"]
)
def test_keeps_the_contract(task):
    env = embodied.envs.make(task, size=(12, 16))
    check_env(env)
    assert env.obs_space["image"].shape == (12, 16, 3)
    env.close()
    assert Lab.made[0].closed


def test_what_the_level_is_asked_for():
    DMLab("rooms_watermaze", size=(48, 96))
    DMLab("rooms_collect_good_objects_test")
    train, test = Lab.made
    assert train.level == "contributed/dmlab30/rooms_watermaze"
    assert train.config == {"height": "48", "width": "96", "logLevel": "WARN"}
    assert train.names == ["RGB_INTERLEAVED"]
    assert test.config["allowHoldOutLevels"] == "true"


def test_thirty_levels():
    with pytest.raises(EnvError, match="no level of DMLab 'rooms_watermase': try 'rooms_waterm"):
        embodied.envs.make("dmlab_rooms_watermase")
    with pytest.raises(EnvError, match="repeat is 0, but must be at least 1"):
        DMLab("rooms_watermaze", repeat=0)


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "deepmind_lab", None)
    with pytest.raises(MissingPackageError, match="'dmlab' needs the package 'deepmind_lab', wh"):
        DMLab("rooms_watermaze")


def test_every_action_arrives():
    env = DMLab("rooms_watermaze", repeat=1)
    act(env)
    for action in range(15):
        act(env, action)
    sent = Lab.made[0].actions
    assert env.act_space["action"].classes == 15
    assert len({tuple(x) for x in sent}) == 15
    assert sent[0] == [0, 0, 0, 1, 0, 0, 0]
    assert sent[6] == [-60, 0, 0, 0, 0, 0, 0]
    assert sent[14] == [0, 0, 0, 0, 1, 0, 0]


@pytest.mark.parametrize("episodic", [True, False])
def test_the_end_repeats_the_image(episodic):
    env = DMLab("rooms_watermaze", repeat=4, episodic=episodic)
    obs = [act(env) for _ in range(12)]
    assert [i for i, x in enumerate(obs) if x["is_last"]] == [10]
    assert obs[10]["is_terminal"] == episodic
    assert [float(x["reward"]) for x in obs] == [0] + [2] * 10 + [0]
    assert np.array_equal(obs[10]["image"], obs[9]["image"])
    assert not np.array_equal(obs[9]["image"], obs[8]["image"])


def test_episodes_follow_from_the_seed():
    def seeds(**options):
        env = embodied.envs.make("dmlab_rooms_watermaze", **options)
        for _ in range(3):
            act(env, reset=True)
        return Lab.made[-1].seeds

    assert seeds(seed=1) == seeds(seed=1) != seeds(seed=2)
    assert len(set(seeds(seed=1))) == 3
    assert seeds(use_seed=False) == [None] * 3


def test_instructions_are_codes_of_words():
    env = DMLab("language_select_described_object", repeat=4)
    obs = [act(env)["instr"] for _ in range(8)]
    assert obs[0].shape == env.obs_space["instr"].shape
    used = [np.abs(x).any(-1).sum() for x in (obs[0], obs[-1])]
    assert used == [4, 3]
    assert np.array_equal(obs[0], obs[1])
    assert np.array_equal(obs[0][:2], obs[-1][:2])
    assert not np.array_equal(obs[0][2], obs[-1][2])


def test_preset():
    config = compose(["dmlab"])
    env = factory.make_env(config, 0)
    assert env.obs_space["image"].shape == (64, 64, 3)
    assert act(env, reset=True)["is_first"]
    assert Lab.made[0].level.endswith("explore_goal_locations_small")
