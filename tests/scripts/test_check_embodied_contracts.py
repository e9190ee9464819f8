import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from embodied.core.base import agent_spaces
from embodied.core.driver import Driver
from embodied.core.random import RandomAgent
from embodied.envs.dummy import Dummy
from embodied.testing import Report
from scripts import check_embodied_contracts as script

REPO = Path(__file__).parents[2]

MODULE = '''
import elements
import gymnasium
import numpy as np
from embodied.core.wrappers import Wrapper
from embodied.envs.dummy import Dummy

def good(seed=0, length=4):
    return Dummy("cont", (4, 4), length, seed)

def vector(envs):
    return gymnasium.make_vec("CartPole-v1", envs, "sync")

class Changed(Wrapper):
    """Changes what comes out from the third step of an episode on."""
    def __init__(self, change):
        super().__init__(good())
        self.change = change
    def step(self, action):
        obs = self.env.step(action)
        return self.change(obs) if obs["count"] >= 2 else obs

def wide():
    return Changed(lambda obs: {**obs, "vector": obs["vector"].astype(np.float64)})

def nan():
    return Changed(lambda obs: {**obs, "vector": obs["vector"] * np.nan})

def outside():
    return Changed(lambda obs: {**obs, "token": np.int32(300)})

def again_first():
    return Changed(lambda obs: {**obs, "is_first": np.bool_(True)})

def two_faults():
    return Changed(lambda obs: {**obs, "token": np.int32(300), "is_terminal": np.bool_(True)})

def raises():
    return Changed(lambda obs: 1 / 0)

class RaisesAtOnce(Wrapper):
    def step(self, action):
        if not action["reset"]:
            raise ZeroDivisionError
        return self.env.step(action)

def raises_at_once():
    return RaisesAtOnce(good())

def random():
    seed = np.random.SeedSequence().entropy
    return Dummy("disc", (4, 4), 4, seed)

class Deaf(Wrapper):
    """Goes on after the last step unless it is told to reset."""
    def __init__(self):
        super().__init__(good())
        self.over = False
    def step(self, action):
        if self.over and not action["reset"]:
            return self.last
        self.last = self.env.step(action)
        self.over = self.last["is_last"]
        return self.last

class Reserved(Wrapper):
    def __init__(self):
        super().__init__(good())
    @property
    def obs_space(self):
        return {**self.env.obs_space, "priority": elements.Space(np.float32)}
    def step(self, action):
        return {**self.env.step(action), "priority": np.float32(0)}

class NoFlag(Wrapper):
    def __init__(self):
        super().__init__(good())
    @property
    def obs_space(self):
        return {k: v for k, v in self.env.obs_space.items() if k != "is_terminal"}
    def step(self, action):
        obs = self.env.step(action)
        return {k: v for k, v in obs.items() if k != "is_terminal"}

class Odd(Wrapper):
    """Observes one more key, or nothing at all."""
    def __init__(self, key="", rank=0):
        super().__init__(good())
        self.key, self.rank = key, rank
    @property
    def obs_space(self):
        spaces = {k: v for k, v in self.env.obs_space.items() if v.dtype == bool or k == "reward"}
        if self.key:
            spaces[self.key] = elements.Space(np.float32, (2,) * self.rank)
        return spaces
    def step(self, action):
        obs = self.env.step(action)
        obs[self.key] = np.zeros((2,) * self.rank, np.float32)
        return {k: obs[k] for k in self.obs_space}

class Many(Wrapper):
    """Takes one more action."""
    def __init__(self):
        super().__init__(good())
    @property
    def act_space(self):
        return {**self.env.act_space, "many": elements.Space(np.int32, (), 0, 2000)}
    def step(self, action):
        return self.env.step({k: v for k, v in action.items() if k != "many"})

class Masked(Wrapper):
    """Allows one class at a time and refuses all others."""
    def __init__(self):
        super().__init__(Dummy("disc", (4, 4), 4))
        self.mask = np.zeros(5, bool)
    @property
    def obs_space(self):
        return {**self.env.obs_space, "mask_act_disc": elements.Space(bool, 5)}
    def step(self, action):
        obs = self.env.step(action)
        if not obs["is_first"] and not self.mask[action["act_disc"]]:
            raise ValueError("This action is illegal.")
        self.mask = np.arange(5) == (int(obs["count"]) * 2 + 1) % 5
        return {**obs, "mask_act_disc": self.mask}

def together(envs):
    return gymnasium.make_vec("CartPole-v1", envs, "vector_entry_point")

def unbuildable():
    raise OSError("no game here")
'''


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "my_envs.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("my_envs", None)


def run(capsys, *args):
    """Status and printed lines."""
    status = script.main(list(args))
    return status, capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("which", "modes"),
    [
        (("--factory", "my_envs:good", "--kwargs", '{"length": 1}'), "env, driver, replay"),
        (("--factory", "my_envs:vector", "--parallel-envs", "3"), "env, driver, replay"),
        (("--task", "dummy_disc", "--mode", "replay", "--steps", "3"), "replay"),
        (("--task", "dummy_cont", "--mode", "env", "--deterministic"), "env"),
    ],
)
def test_good_environments(which, modes, capsys):
    status, lines = run(capsys, *which)
    assert (status, len(lines)) == (0, 1), lines
    assert lines[0].endswith(f"keeps the contracts of: {modes}.")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("wide", "env: 'vector' at step 2: expected float32 (7,) within -inf..inf, found float64"),
        (
            "nan",
            "env: 'vector' at step 2: expected float32 (7,) within -inf..inf, found the value",
        ),
        (
            "outside",
            "env: 'token' at step 2: expected int32 () within 0..255, found the value 300",
        ),
        (
            "again_first",
            "env: 'is_first' at step 2: expected false within an episode, found True.",
        ),
        ("raises", "env: 'step' at step 2: expected no exception, found ZeroDivisionError: div"),
        (
            "Deaf",
            "env: 'is_first' at step 10: expected true where an episode starts, found False.",
        ),
        ("NoFlag", "env: 'is_terminal': expected a key of obs_space, found none."),
        (
            "unbuildable",
            "env: 'constructor': expected an environment, found The factory 'my_envs:",
        ),
    ],
)
def test_faults_of_environments(name, line, capsys):
    status, lines = run(capsys, "--mode", "env", "--factory", f"my_envs:{name}")
    assert status == 1
    assert any(x.startswith(line) for x in lines), lines


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ('{"key": "x"}', ""),
        (
            "{}",
            "env: 'obs_space': expected an observation, found The environment has no observation "
            "for the agent to encode.",
        ),
        (
            '{"key": "x", "rank": 4}',
            "env: 'obs_space': expected ranks up to 3, found The observation 'x' has shape "
            "(2, 2, 2, 2), but only ranks up to 3 can be encoded: reshape it in the environment.",
        ),
        *(
            (
                f'{{"key": "{key}"}}',
                f"env: 'obs_space': expected names that are free, found The observation '{key}' "
                "has the name of a loss: rename it in the environment.",
            )
            for key in ("rep", "value", "rec")
        ),
    ],
)
def test_what_an_agent_refuses(options, line, capsys):
    args = ("--mode", "env", "--factory", "my_envs:Odd", "--kwargs", options)
    status, lines = run(capsys, *args)
    assert status == bool(line)
    assert lines == [line or "custom_my_envs:Odd keeps the contracts of: env."]


def test_actions_that_an_agent_refuses(capsys):
    status, lines = run(capsys, "--mode", "env", "--factory", "my_envs:Many")
    assert (status, len(lines)) == (1, 1)
    assert "'act_space': expected actions for a policy, found The action 'many' is " in lines[0]


@pytest.mark.parametrize("mask", ["mask_act_disc", "mask_{action}"])
def test_action_masks(mask, capsys):
    args = ("--factory", "my_envs:Masked", "--steps", "60")
    assert run(capsys, *args, "--action-mask", mask)[0] == 0
    status, lines = run(capsys, *args)
    assert status == 1
    assert "found ValueError: This action is illegal." in lines[0]


def test_action_masks_that_do_not_exist(capsys):
    args = ("--mode", "env", "--factory", "my_envs:good", "--action-mask", "maks")
    status, lines = run(capsys, *args)
    assert (status, len(lines)) == (1, 1)
    assert lines[0].startswith("env: 'action_mask': expected the mask of an action, found agent.")


def test_environments_that_only_reset_together(capsys):
    status, lines = run(capsys, "--factory", "my_envs:together", "--steps", "60")
    assert (status, len(lines)) == (0, 2), lines
    assert lines[0].startswith("Note: resets in the middle of episodes were skipped, since custom")


def test_chance_is_found_on_demand(capsys):
    args = ("--mode", "env", "--factory", "my_envs:random")
    assert run(capsys, *args)[0] == 0
    status, lines = run(capsys, *args, "--deterministic")
    assert (status, len(lines)) == (1, 2)
    assert "'float2d' at step 0: expected the same in a second environment" in lines[0]


@pytest.mark.parametrize(
    ("name", "starts"),
    [
        (
            "two_faults",
            [
                "driver: 'token' in environment 0 at step 2: expected int32 () within 0..255",
                "driver: 'is_terminal' in environment 0 at step 2: expected false unless is_last",
            ],
        ),
        ("nan", ["driver: 'driver' at step 2: expected that it runs to the end, found The obs"]),
        ("raises", ["driver: 'driver' at step 2: expected that it runs to the end, found Worker"]),
        ("NoFlag", ["driver: 'driver': expected environments in worker processes, found "]),
    ],
)
def test_faults_in_a_driver(name, starts, capsys):
    status, lines = run(capsys, "--mode", "driver", "--factory", f"my_envs:{name}")
    assert (status, len(lines)) == (1, len(starts)), lines
    assert all(x.startswith(y) for x, y in zip(lines, starts, strict=True)), lines


def test_a_driver_that_makes_a_single_step(capsys):
    status, lines = run(capsys, "--mode", "replay", "--factory", "my_envs:raises_at_once")
    assert (status, len(lines)) == (1, 1), lines
    assert lines[0].startswith("driver: 'driver' at step 1: expected that it runs to the end")


def test_faults_in_a_replay(capsys):
    status, lines = run(capsys, "--mode", "replay", "--factory", "my_envs:Reserved")
    assert status == 1
    assert lines == [
        "replay: 'replay': expected that it takes all steps, found The key 'priority' of a step "
        "is set by the replay itself: rename it."
    ]


def test_all_modes_speak_in_one_pass(capsys):
    status, lines = run(capsys, "--factory", "my_envs:two_faults")
    assert status == 1
    assert [x.split("'")[0] + x.split("'")[1] for x in lines] == [
        "env: token",
        "env: is_terminal",
        "driver: token",
        "driver: is_terminal",
    ]


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("--factory", "nowhere:make"), "Error: There is no module 'nowhere' in "),
        (("--factory", "my_envs"), "must name a module and a function in it"),
        (("--task", "xqz_1"), "Error: There is no suite 'xqz'"),
        (("--task", "dummy_disc", "--kwargs", "a=1"), "are not valid JSON"),
        ((), "one of the arguments --factory --task is required"),
        (("--task", "dummy_disc", "--steps", "0"), "--steps: must be at least 1, not 0"),
        (("--task", "dummy_disc", "--parallel-envs", "x"), "must be at least 1, not x"),
        (("--task", "dummy_disc", "--mode", "agent"), "invalid choice: 'agent'"),
    ],
)
def test_wrong_arguments(args, text, capsys):
    try:
        status = script.main(list(args))
    except SystemExit as error:
        status = error.code
    assert status == 2
    assert text in capsys.readouterr().err


def gather():
    driver = Driver([lambda: Dummy("cont", (4, 4), 4)], parallel=False)
    agent = RandomAgent(*agent_spaces((driver.obs_space, driver.act_space)))
    steps = []
    driver.on_step(lambda tran, index: steps.append({k: np.array(v) for k, v in tran.items()}))
    driver(agent.policy, steps=20)
    return steps, driver.obs_space, driver.act_space


@pytest.mark.parametrize(
    ("step", "key", "value", "text"),
    [
        (4, "act_disc", np.int32(1), "expected 0 where an episode ends, found 1"),
        (4, "reset", np.bool_(False), "expected what is_last is, found False"),
        (3, "reset", np.bool_(True), "expected what is_last is, found True"),
        (5, "is_first", np.bool_(False), "expected true where an episode starts, found False"),
        (2, "act_disc", np.int32(5), "expected int32 () within 0..4, found the value 5"),
        (2, "extra", np.int32(5), "expected the keys of both spaces, found it missing or unexp"),
    ],
)
def test_faults_of_a_driver(step, key, value, text):
    steps, *spaces = gather()
    report = Report()
    script.check_transitions(report, steps, *spaces, 0)
    assert report.lines == []
    steps[step][key] = value
    script.check_transitions(report, steps, *spaces, 0)
    assert len(report.lines) == 1
    assert report.lines[0].startswith(f"{key!r} in environment 0 at step {step}: ")
    assert text in report.lines[0]


def test_faults_of_a_replay():
    steps, *_ = gather()
    assert script.check_replay([steps, steps], seed=0) == []
    window = {k: np.stack([x[k] for x in steps[3:8]]) for k in steps[0]}
    window["is_first"][0] = True
    window["check/environment"] = np.zeros(5, int)
    window["check/step"] = np.arange(3, 8)
    cases = {
        "token": (window["token"] + np.int32(1), "expected what the environment gave"),
        "reward": (window["reward"].astype(float), "expected float32 (5,), found float64 (5,)"),
        "is_first": (window["is_first"] & False, "expected what the environment gave"),
        "is_last": (window["is_last"] & False, "expected what the environment gave"),
    }
    report = Report()
    script.check_window(report, window, [steps])
    assert report.lines == []
    for key, (value, text) in cases.items():
        report = Report()
        script.check_window(report, {**window, key: value}, [steps])
        assert len(report.lines) == 1
        assert report.lines[0].startswith(f"{key!r} in environment 0 at step 3: {text}")
    places = np.array([3, 4, 5, 7, 8])
    script.check_window(report := Report(), {**window, "check/step": places}, [steps])
    assert "expected step 6 of 0" in report.lines[0]


def test_it_runs_without_jax(module):
    code = (
        "import sys\n"
        "from scripts.check_embodied_contracts import main\n"
        "assert main(['--factory', 'my_envs:good', '--steps', '20']) == 0\n"
        "assert 'jax' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(REPO)},
        cwd=module,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "custom_my_envs:good keeps the contracts of: env, driver, replay.\n"
