import csv
import sys
import urllib.error

import numpy as np
import pytest

import dreamerv3.config
import embodied.envs
from embodied.core.errors import EnvError, MissingPackageError
from embodied.core.spaces import sample
from embodied.envs.bsuite import BSuite
from embodied.testing import check_env

bsuite = pytest.importorskip("bsuite.bsuite")
EXPERIMENTS = [x for x in bsuite.EXPERIMENT_NAME_TO_ENVIRONMENT if not x.startswith("mnist")]


def act(value=0, reset=False):
    return {"action": np.int32(value), "reset": np.bool_(reset)}


def test_preset_keeps_the_contract():
    config = dreamerv3.config.compose(["bsuite"])
    env = embodied.envs.make(config.task, **config.env.bsuite)
    assert (env.obs_space["vector"].dtype, env.obs_space["vector"].shape) == (np.float32, (10, 5))
    assert env.act_space["action"].high == 3
    check_env(env)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_experiments_keep_the_contract_and_follow_from_the_seed(experiment):
    def run(seed):
        env = embodied.envs.make(f"bsuite_{experiment}/2", seed=seed)
        rng = np.random.default_rng(0)
        steps = [{k: sample(v, rng) for k, v in env.act_space.items()} for _ in range(60)]
        return [env.step({**x, "reset": np.bool_(i == 30)}) for i, x in enumerate(steps)]

    check_env(BSuite(f"{experiment}/2"), steps=60)
    one, same, other = run(1), run(1), run(2)
    assert equal(one, same)
    # The rules of the others do not depend on chance.
    fixed = ("bandit", "bandit_scale", "deep_sea", "discounting_chain")
    assert equal(one, other) == (experiment in fixed)


def equal(one, other):
    return all(np.array_equal(a[k], b[k]) for a, b in zip(one, other, strict=True) for k in a)


def test_catch_pays_at_the_end_and_ends_terminally():
    env = BSuite("catch/0", seed=1)
    obs = [env.step(act(1)) for _ in range(11)]
    assert [bool(x["is_last"]) for x in obs] == [False] * 9 + [True, False]
    assert obs[9]["is_terminal"]
    assert obs[9]["reward"] in (-1, 1)
    assert sum(x["vector"].sum() for x in obs[:9]) == 18  # a ball and a paddle


def test_results_are_written_once(tmp_path):
    env = BSuite("catch/0", results=str(tmp_path / "results"))
    for _ in range(30):
        env.step(act())
    (file,) = (tmp_path / "results").iterdir()
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert [x["episode"] for x in rows] == ["1", "2", "3"]
    assert "total_regret" in rows[0]
    with pytest.raises(EnvError, match="already has results of 'catch/0': name a new folder"):
        BSuite("catch/0", results=str(tmp_path / "results"))


def test_mnist_is_an_observation_of_its_images(monkeypatch):
    data = np.arange(4 * 28 * 28, dtype=np.int8).reshape(4, 28, 28), np.arange(4, dtype=np.uint8)
    monkeypatch.setattr("bsuite.utils.datasets.load_mnist", lambda: (data, data))
    env = BSuite("mnist/0")
    assert env.obs_space["vector"].shape == (28, 28)
    check_env(env, steps=20)


def test_mnist_that_cannot_be_downloaded_is_one_sentence(monkeypatch):
    def fail():
        raise urllib.error.URLError("no network")

    monkeypatch.setattr("bsuite.utils.datasets.load_mnist", fail)
    with pytest.raises(EnvError, match=r"'mnist_noise/0' needs MNIST, .*no network.*: put the"):
        BSuite("mnist_noise/0")


@pytest.mark.parametrize("task", ["catch", "catch/99", "katch/0"])
def test_unknown_tasks_get_the_nearest(task):
    with pytest.raises(EnvError, match=rf"of bsuite '{task}': try .*'catch/\d+'"):
        BSuite(task)


def test_missing_package_is_named(monkeypatch):
    for name in [x for x in sys.modules if x.split(".")[0] == "bsuite"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "bsuite", None)
    with pytest.raises(MissingPackageError, match=r"suite 'bsuite' .* 'dreamerv3\[bsuite\]'"):
        BSuite("catch/0")
