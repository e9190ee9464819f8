import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import dreamerv3.config
import embodied.envs
from embodied.core.errors import EnvError, MissingPackageError
from embodied.core.spaces import sample
from embodied.envs.craftax import Craftax
from embodied.testing import check_env

REPO = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def batch():
    pytest.importorskip("craftax")
    return Craftax("classic_symbolic", envs=3)


def act(value=0, reset=False, envs=3):
    return {"action": np.full(envs, value, np.int32), "reset": np.full(envs, reset)}


def restart(batch, seed):
    """The batch as if it was made with a seed, without compiling anew."""
    import jax

    batch._keys = jax.random.split(jax.random.PRNGKey(seed), batch.length)
    batch._count = 0
    batch._over[:] = True
    return batch


def test_batch_keeps_the_contract(batch):
    assert embodied.envs.is_batched("craftax_classic_symbolic")
    space = batch.obs_space["vector"]
    assert (space.dtype, space.shape) == (np.float32, (1345,))
    assert len([x for x in batch.obs_space if x.startswith("log/achievement_")]) == 22
    check_env(batch, steps=60)


def test_worlds_follow_from_the_seed_and_differ(batch):
    def run(seed):
        restart(batch, seed)
        rng = np.random.default_rng(0)
        steps = [rng.integers(0, 17, 3).astype(np.int32) for _ in range(20)]
        resets = [np.array([False, i == 10, False]) for i in range(20)]
        pairs = zip(steps, resets, strict=True)
        return [batch.step({"action": a, "reset": r}) for a, r in pairs]

    one, same, other = run(1), run(1), run(2)
    assert all(np.array_equal(a[k], b[k]) for a, b in zip(one, same, strict=True) for k in a)
    starts = [one[0]["vector"][i] for i in range(3)]
    starts += [other[0]["vector"][0], one[10]["vector"][1]]
    for i, start in enumerate(starts):
        assert not any(np.array_equal(start, x) for x in starts[:i])


def test_only_the_asked_for_world_is_reset(batch):
    restart(batch, 0)
    batch.step(act())
    for _ in range(3):
        batch.step(act(1))
    obs = batch.step({**act(1), "reset": np.array([False, True, False])})
    assert obs["is_first"].tolist() == [False, True, False]
    assert batch._world[1].timestep.tolist() == [4, 0, 4]


def test_death_is_terminal_and_a_time_limit_is_not(batch):
    restart(batch, 0)
    batch.step(act())
    obs, state = batch._world
    health, time = state.player_health.at[0].set(0), state.timestep.at[1].set(9999)
    batch._world = obs, state.replace(player_health=health, timestep=time)
    obs = batch.step(act())
    assert obs["is_last"].tolist() == [True, True, False]
    assert obs["is_terminal"].tolist() == [True, False, False]
    assert batch.step(act())["is_first"].tolist() == [True, True, False]


def test_achievements_are_logged_until_the_episode_ends(batch):
    restart(batch, 0)
    batch.step(act())
    obs, state = batch._world
    batch._world = obs, state.replace(achievements=state.achievements.at[2, 0].set(True))
    for _ in range(2):
        assert batch.step(act())["log/achievement_collect_wood"].tolist() == [0, 0, 1]
    assert batch.step(act(reset=True))["log/achievement_collect_wood"].tolist() == [0, 0, 0]


def test_it_runs_on_the_cpu_under_the_rules_of_the_agent(batch):
    import jax

    with jax.transfer_guard("disallow"):
        batch.step(act(1))
    assert batch._world[0].devices() == {jax.local_devices(backend="cpu")[0]}


def test_steps_and_starts_compile_once(batch):
    restart(batch, 0)
    for i in range(4):
        batch.step(act(i, reset=i == 2))
    assert batch._start._cache_size() == batch._advance._cache_size() == 1


def test_a_worker_leaves_accelerators_alone():
    pytest.importorskip("craftax")
    code = """
    import multiprocessing
    from embodied.envs.craftax import Craftax

    def work():
        import jax
        Craftax("classic_symbolic")
        assert jax.config.jax_platforms == "cpu"

    if __name__ == "__main__":
        process = multiprocessing.get_context("fork").Process(target=work)
        process.start()
        process.join()
        assert process.exitcode == 0
    """
    env = {"PATH": "", "PYTHONPATH": str(REPO), "JAX_PLATFORMS": ""}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_preset_names_a_task_and_its_options():
    config = dreamerv3.config.compose(["craftax"])
    pytest.importorskip("craftax")
    assert embodied.envs.is_batched(config.task)
    env = Craftax(config.task.removeprefix("craftax_"), **config.env.craftax)
    assert env.obs_space[env._obs_key].shape


@pytest.mark.slow  # prepares textures and compiles for minutes
@pytest.mark.parametrize(
    ("task", "key", "shape", "actions"),
    [
        ("symbolic", "vector", (8268,), 43),
        ("pixels", "image", (130, 110, 3), 43),
        ("classic_pixels", "image", (63, 63, 3), 17),
    ],
)
def test_other_tasks_keep_the_contract(task, key, shape, actions):
    pytest.importorskip("craftax")
    env = embodied.envs.make(f"craftax_{task}")
    assert env.obs_space[key].shape == shape
    assert env.act_space["action"].high == actions
    check_env(env, steps=30)
    if key == "image":
        rng = np.random.default_rng(0)
        obs = env.step({k: sample(v, rng) for k, v in env.act_space.items()})
        assert obs["image"].std() > 10


def test_unknown_tasks_get_the_nearest():
    with pytest.raises(EnvError, match="of Craftax 'clasic_pixels': try 'classic_pixels'"):
        Craftax("clasic_pixels")


def test_missing_package_is_named(monkeypatch):
    for name in [x for x in sys.modules if x.split(".")[0] == "craftax"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "craftax", None)
    with pytest.raises(MissingPackageError, match=r"suite 'craftax' .* 'dreamerv3\[craftax\]'"):
        Craftax("symbolic")
