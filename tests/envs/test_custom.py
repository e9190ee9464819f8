import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import embodied.envs
from embodied.core.base import BatchedEnv
from embodied.core.driver import Driver
from embodied.core.errors import EnvError
from embodied.envs.custom import Single, adapt
from embodied.envs.dummy import Dummy
from embodied.testing import check_env

REPO = Path(__file__).parents[2]

MODULE = """
import dm_env
import gymnasium
import numpy as np
from dm_env import specs
from embodied.core.base import BatchedEnv
from embodied.envs.dummy import Dummy

number = 3
calls = []

class DM(dm_env.Environment):
    def reset(self):
        return dm_env.restart(np.zeros(2))
    def step(self, action):
        return dm_env.termination(1.0, np.ones(2))
    def observation_spec(self):
        return specs.Array((2,), float)
    def action_spec(self):
        return specs.DiscreteArray(3)

class Own(Dummy):
    def __init__(self, seed):
        super().__init__("disc", (4, 4), 5, seed)

class Batch(BatchedEnv):
    def __init__(self, envs, seed=0):
        self.length = envs
        self._envs = [Dummy("disc", (4, 4), 5, seed + i) for i in range(envs)]
    obs_space = property(lambda self: self._envs[0].obs_space)
    act_space = property(lambda self: self._envs[0].act_space)
    def step(self, action):
        obs = [e.step({k: v[i] for k, v in action.items()}) for i, e in enumerate(self._envs)]
        return {k: np.stack([x[k] for x in obs]) for k in obs[0]}

def own(seed, index, length=5):
    calls.append((seed, index, length))
    return Dummy("disc", (4, 4), length, seed)

def gym(**kwargs):
    assert not kwargs, kwargs
    return gymnasium.make("CartPole-v1")

def rendered(render):
    return gymnasium.make("CartPole-v1", render_mode="rgb_array" if render else None)

def dm():
    return DM()

def vector(num_envs):
    return gymnasium.make_vec("CartPole-v1", num_envs, "sync")

def nothing():
    Dummy("disc")

def a_class():
    return Dummy

def a_number():
    return 3

def old():
    class Old:
        __module__ = "gym.envs.classic"
        step = reset = None
    return Old()

def duck():
    class Duck:
        step = reset = None
    return Duck()

def raises():
    raise ValueError("no such level.")

def batch_of_two(envs):
    return Batch(2)

def batch_unasked():
    return Batch(2)

def single_asked(envs):
    return Dummy("disc")
"""


@pytest.fixture(autouse=True)
def package(tmp_path, monkeypatch):
    """A package in the current directory, which is not on the path before."""
    folder = tmp_path / "my_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "envs.py").write_text(MODULE)
    (folder / "needy.py").write_text("import not_there_at_all\n")
    (folder / "wrong.py").write_text("\n\nnumber = 1 / 0\n")
    (folder / "typo.py").write_text("def f(:\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [x for x in sys.path if x])
    yield tmp_path
    for name in [x for x in sys.modules if x.split(".")[0] == "my_package"]:
        del sys.modules[name]


def make(name, **kwargs):
    return embodied.envs.make(f"custom_my_package.envs:{name}", **kwargs)


@pytest.mark.parametrize("name", ["own", "Own", "gym", "dm", "vector", "Batch"])
def test_each_kind_of_environment_works(name):
    env = make(name, index=2, seed=1)
    check_env(env, steps=50)
    env.close()


def test_factories_get_what_they_name():
    seed = embodied.envs.env_seed(4, 3)
    make("own", index=3, seed=4)
    make("own", kwargs='{"length": 7}')
    calls = sys.modules["my_package.envs"].calls
    assert calls[0] == (seed, 3, 5)
    assert calls[1][2] == 7
    assert "log/image" not in make("rendered").obs_space
    env = make("rendered", render=True)
    assert "log/image" in env.obs_space
    env.close()


def test_batches_are_told_from_their_signature():
    batched = {
        x: embodied.envs.is_batched(f"custom_my_package.envs:{x}")
        for x in ("own", "Own", "gym", "vector", "Batch", "raises")
    }
    assert [k for k, v in batched.items() if v] == ["vector", "Batch"]
    assert not embodied.envs.is_batched("dummy_disc")


@pytest.mark.parametrize("name", ["vector", "Batch"])
def test_batches(name):
    env = embodied.envs.make_batched(f"custom_my_package.envs:{name}", 3, index=1, seed=2)
    assert isinstance(env, BatchedEnv)
    assert env.length == 3
    check_env(env, steps=50)
    env.close()


def test_single_environments_are_no_batches():
    with pytest.raises(EnvError, match="'dummy_disc' makes single environments, not batches of 4"):
        embodied.envs.make_batched("dummy_disc", 4)


def test_a_batch_of_one_is_a_single_environment():
    env = make("Batch", seed=3)
    assert isinstance(env, Single)
    action = {"act_disc": np.int32(1), "reset": np.bool_(False)}
    obs = [env.step(action) for _ in range(3)]
    assert [x["reward"] for x in obs] == [0, 1, 1]
    assert obs[0]["image"].shape == (4, 4, 3)


FACTORY = "The factory 'my_package.envs:{}' "


@pytest.mark.parametrize(
    ("task", "text"),
    [
        ("my_package.envs", "must name a module and a function in it, as in custom_my_package"),
        ("my-package.envs:own", "must name a module and a function"),
        (":own", "must name a module and a function"),
        ("your_package.envs:own", "There is no module 'your_package' in {cwd} nor among"),
        ("my_package.env:own", "There is no module 'my_package.env' in {cwd} nor among"),
        ("my_package.needy:own", "'my_package.needy' imports 'not_there_at_all', which is not"),
        (
            "my_package.wrong:own",
            "Importing the module 'my_package.wrong' raised ZeroDivisionError: division by zero "
            "({cwd}/my_package/wrong.py, line 3).",
        ),
        ("my_package.typo:own", "Importing the module 'my_package.typo' raised SyntaxError: "),
        ("my_package.envs:owm", "has no 'owm': did you mean 'own'"),
        ("my_package.envs:xyz", "The module 'my_package.envs' has no 'xyz': check its name."),
        ("my_package.envs:number", FACTORY.format("number") + "cannot be called: it is of the"),
        (
            "my_package.envs:raises",
            FACTORY.format("raises")
            + "raised ValueError: no such level ({cwd}/my_package/envs.py",
        ),
        ("my_package.envs:nothing", FACTORY.format("nothing") + "returned None: it should return"),
        (
            "my_package.envs:a_class",
            "returned the class Dummy and not an instance of it: return D",
        ),
        ("my_package.envs:a_number", "returned an object of the type builtins.int: it should"),
        ("my_package.envs:old", "an environment of the old package gym: make it a gymnasium.Env."),
        ("my_package.envs:duck", "which has step and reset but is none of an embodied.Env"),
        ("my_package.envs:batch_of_two", "returned a batch of 2 where 1 are due"),
        ("my_package.envs:batch_unasked", "returned a batch of environments: give it a parameter"),
        ("my_package.envs:single_asked", "returned a single one: return an embodied.BatchedEnv"),
    ],
)
def test_mistakes_are_one_sentence(task, text, package):
    with pytest.raises(EnvError) as info:
        embodied.envs.make(f"custom_{task}")
    assert text.format(cwd=package) in str(info.value)
    assert "\n" not in str(info.value)


def test_causes_are_kept():
    with pytest.raises(EnvError) as info:
        make("raises")
    assert isinstance(info.value.__cause__, ValueError)


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        (
            '{"lenght": 7}',
            r"cannot be called with seed, index, lenght: .*'lenght'; its param.*leng",
        ),
        ("{length: 7}", "are not valid JSON"),
        ("[7]", """must be a JSON object, as in '{"level": 3}'"""),
    ],
)
def test_options_that_do_not_fit_are_named(kwargs, text):
    with pytest.raises(EnvError, match=text):
        make("own", kwargs=kwargs)


def test_environments_of_ours_are_used_as_they_are():
    dummy = Dummy("disc")
    assert adapt(dummy, "It") is dummy


def fresh(code, cwd, *path):
    """Runs code in a new process started elsewhere."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (REPO, *path)))},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_workers_find_the_module_in_the_current_directory():
    def constructor():
        return embodied.envs.make("custom_my_package.envs:own")

    def policy(carry, obs):
        return carry, {"act_disc": np.ones(len(obs["reward"]), np.int32)}, {}

    driver = Driver([constructor, constructor], parallel=True, start_method="spawn")
    try:
        rewards = []
        driver.on_step(lambda tran, worker: rewards.append(float(tran["reward"])))
        driver(policy, steps=6)
        assert rewards == [0, 0, 1, 1, 1, 1]
    finally:
        driver.close()


@pytest.fixture
def distribution(tmp_path):
    """A folder with what pip installs of a distribution that brings suites."""
    site = tmp_path / "site"
    info = site / "my_dist-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-dist\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[embodied.envs]\n"
        "mysuite = my_dist.envs:make\n"
        "broken = my_dist.nowhere:make\n"
        "dummy = my_dist.nowhere:make\n"
    )
    package = site / "my_dist"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "envs.py").write_text(
        "import embodied\n"
        "from embodied.envs.dummy import Dummy\n"
        "def make(name, seed):\n"
        "    if name == 'nothing': return None\n"
        "    return Dummy(name, (4, 4), 5, seed)\n"
    )
    return site


def test_other_distributions_bring_suites(distribution, tmp_path):
    code = """
    from embodied import envs
    from embodied.core.errors import EnvError
    from embodied.envs.dummy import Dummy
    from embodied.testing import check_env

    assert {"mysuite", "broken", "dummy"} <= set(envs.suites())
    check_env(envs.make("mysuite_cont", seed=3), steps=20)
    assert isinstance(envs.make("dummy_disc"), Dummy)
    for task in ("mysuit_disc", "broken_disc", "mysuite", "mysuite_nothing", "mysuite_disk"):
        try:
            envs.make(task)
        except EnvError as error:
            print(error)
    """
    lines = fresh(code, tmp_path, distribution).splitlines()
    starts = [
        "There is no suite 'mysuit': try 'mysuite'",
        "The suite 'broken' of the distribution 'my-dist' cannot load 'my_dist.nowhere:make': "
        "ModuleNotFoundError: No module named 'my_dist.nowhere' (",
        "The task 'mysuite' names no environment: write mysuite_NAME.",
        "The suite 'mysuite' returned None: it should return",
        "There is no task of the suite 'dummy' 'disk': try 'disc'",
    ]
    assert len(lines) == len(starts)
    assert all(x.startswith(y) for x, y in zip(lines, starts, strict=True)), lines


def test_a_task_of_ones_own_trains(package):
    code = """
    from dreamerv3.main import main
    main(["--configs", "debug", "--task", "custom_my_package.envs:own", "--random_agent", "True",
          "--env.custom.kwargs", '{"length": 3}', "--run.steps", "40",
          "--logger.outputs", "jsonl", "--logdir", "logdir"])
    """
    fresh(code, package)
    assert '"episode/length": 3' in (package / "logdir" / "metrics.jsonl").read_text()
