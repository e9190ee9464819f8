import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import embodied.envs
from dreamerv3.config import compose
from dreamerv3.factory import make_env
from embodied.core.base import BatchedEnv
from embodied.core.driver import Driver
from embodied.core.errors import EnvError, SpaceError
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

class Frames(gymnasium.Env):
    observation_space = gymnasium.spaces.Dict({
        "cam": gymnasium.spaces.Box(0, 255, (16, 20, 3), np.uint8),
        "far": gymnasium.spaces.Box(-1, 1, (2,)),
        "say": gymnasium.spaces.Text(3),
    })
    action_space = gymnasium.spaces.Discrete(2)
    render_mode = None
    def reset(self, seed=None, options=None):
        return {**self.observation_space.sample(), "far": np.float32([2, 2])}, {}
    def step(self, action):
        return self.reset()[0], 1.0, False, False, {}

def frames():
    return Frames()

def vector_of_frames(num_envs):
    return gymnasium.vector.SyncVectorEnv([Frames] * num_envs)

def pictures():
    return Dummy("disc", (16, 20), 9)

def shows(render):
    class Shows(Dummy):
        obs_space = property(lambda self: {**super().obs_space, "log/image": Dummy.space})
    Dummy.space = Dummy("disc", (16, 20)).obs_space["image"]
    return Shows("disc", (16, 20), 9)

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


def steps(env, count):
    action = {k: np.zeros(v.shape, v.dtype) for k, v in env.act_space.items()}
    return [env.step(action) for _ in range(count)]


@pytest.mark.parametrize("name", ["frames", "pictures"])
def test_images_are_resized_actions_repeated_and_episodes_cut_off(name):
    ignore = {"ignore": "say", "bounds": False} if name == "frames" else {}
    env = make(name, size=(8, 12), repeat=2, length=5, **ignore)
    key = "cam" if name == "frames" else "image"
    assert env.obs_space[key].shape == (8, 12, 3)
    obs = steps(env, 4)
    assert obs[0][key].shape == (8, 12, 3)
    assert [bool(x["is_last"]) for x in obs] == [False, False, False, True]
    assert not obs[3]["is_terminal"]
    if name == "frames":
        assert [float(x["reward"]) for x in obs] == [0, 2, 2, 1]
    check_env(env, steps=20)


def test_actions_of_dm_env_are_repeated():
    env = make("dm", repeat=3, length=4)
    obs = steps(env, 2)
    assert (obs[1]["reward"], obs[1]["is_last"]) == (1, True)  # it ends after one step
    check_env(env, steps=20)


def test_keys_and_bounds_of_gymnasium_can_be_left_out():
    with pytest.raises(SpaceError, match=r"or leave it out by --env\.custom\.ignore say"):
        make("frames")
    env = make("frames", ignore="say")
    assert env.obs_space["far"].high.max() == 1
    for name in ("frames", "vector_of_frames"):
        env = make(name, ignore="say", bounds=False)
        assert "say" not in env.obs_space
        assert np.isinf(env.obs_space["far"].high).all()
        env.close()


def test_options_of_the_same_name_reach_the_factory():
    make("own", length=4, kwargs='{"length": 7}')
    assert sys.modules["my_package.envs"].calls[-1][2] == 7


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("own", {"render": True}, "an embodied.Env, to which --env.custom.render cannot be"),
        ("own", {"render": True}, "observe frames as 'log/image' in an embodied.Env, or return"),
        ("dm", {"render": True}, "returned a dm_env.Environment, to which --env.custom.render"),
        ("vector", {"render": True}, "returned a VectorEnv, to which --env.custom.render cannot"),
        ("Batch", {"render": True}, "an embodied.BatchedEnv, to which --env.custom.render"),
        ("own", {"ignore": "x"}, "--env.custom.ignore cannot be applied: do that in the env"),
        ("dm", {"bounds": False}, "--env.custom.bounds cannot be applied"),
        ("vector", {"repeat": 2}, "--env.custom.repeat cannot be applied"),
        ("vector", {"length": 2}, "--env.custom.length cannot be applied"),
        ("Batch", {"size": (8, 8)}, "--env.custom.size cannot be applied"),
        ("own", {"repeat": 0}, "action repeat is 0"),
        ("own", {"length": -1}, "time limit is -1"),
        ("own", {"size": (8, 7)}, r"size [8, 7] is no height and width"),
    ],
)
def test_changes_that_cannot_be_made_are_refused(name, options, text):
    with pytest.raises(EnvError) as info:
        make(name, **options)
    assert text in str(info.value)


def test_environments_that_render_themselves_may_be_asked_to():
    assert "log/image" in make("shows", render=True).obs_space


def test_the_config_has_the_options():
    flags = {"custom": {"size": [8, 12], "repeat": 2, "ignore": "say", "bounds": False}}
    config = compose(["debug"]).update(task="custom_my_package.envs:frames", env=flags)
    env = make_env(config, 0)
    assert env.obs_space["cam"].shape == (8, 12, 3)
    env.close()


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
        "my_suite = my_dist.envs:make\n"
        "my_suite_two = my_dist.envs:make_two\n"
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
        "def make_two(name, seed, length=9):\n"
        "    return Dummy(name, (16, 16), length, seed)\n"
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


def test_names_of_suites_may_hold_underscores_and_share_beginnings(distribution, tmp_path):
    code = """
    from dreamerv3.config import compose
    from dreamerv3.factory import make_env
    from dreamerv3.validate import problems
    from embodied import envs

    assert envs.parse_task("my_suite_disc") == ("my_suite", "disc")
    assert envs.parse_task("my_suite_two_disc") == ("my_suite_two", "disc")
    assert envs.parse_task("my_suite_twodisc") == ("my_suite", "twodisc")
    assert envs.parse_task("my_suite") == ("my_suite", "")
    assert envs.parse_task("your_suite_disc") == ("your", "suite_disc")
    assert envs.parse_task("gym_CartPole-v1") == ("gym", "CartPole-v1")
    sections = [envs.section(x + "_a") for x in ("gym", "dmc", "custom", "my_suite", "mysuite")]
    assert sections == ["gymnasium", "dmc", "custom", "custom", "custom"]
    assert envs.make("my_suite_disc").obs_space["image"].shape == (4, 4, 3)

    options = {"custom": {"size": (8, 9), "kwargs": '{"length": 3}'}}
    config = compose(["debug"]).update(task="my_suite_two_disc", env=options)
    assert not list(problems(config))
    env = make_env(config, 0)
    assert env.obs_space["image"].shape == (8, 9, 3)
    print(*problems(config.update({"task": "my_suite"})), sep="|")
    print(*problems(config.update({"env.custom.kwargs": "[3]"})), sep="|")
    """
    lines = fresh(code, tmp_path, distribution).splitlines()
    assert lines[0].startswith("The task 'my_suite' is not one of a known suite: ")
    assert lines[1].startswith("The options '[3]' must be a JSON object")


def test_a_task_of_ones_own_trains(package):
    code = """
    from dreamerv3.main import main
    main(["--configs", "debug", "--task", "custom_my_package.envs:own", "--random_agent", "True",
          "--env.custom.kwargs", '{"length": 3}', "--run.steps", "40",
          "--logger.outputs", "jsonl", "--logdir", "logdir"])
    """
    fresh(code, package)
    assert '"episode/length": 3' in (package / "logdir" / "metrics.jsonl").read_text()
