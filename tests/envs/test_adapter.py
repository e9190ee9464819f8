import pytest

from embodied import envs
from embodied.core.errors import EnvError, MissingPackageError


@pytest.mark.parametrize("size", [(0, 0), (64, -1), (64,), (64, 7)])
@pytest.mark.parametrize(
    "task",
    [
        "atari_pong",
        "crafter_reward",
        "dmc_walker_walk",
        "loconav_ant_empty",
        "memmaze_9x9",
        "metaworld_reach",
        "minigrid_DoorKey-5x5-v0",
        "nle_score",
    ],
)
def test_sizes_that_are_none(task, size):
    try:
        with pytest.raises(EnvError, match="is not a height and a width: both must be at least"):
            envs.make(task, size=size)
    except MissingPackageError as error:
        pytest.skip(str(error))


def test_dummies_may_be_small():
    assert envs.make("dummy_disc", size=(4, 4)).obs_space["image"].shape == (4, 4, 3)
    with pytest.raises(EnvError, match="both must be at least 1"):
        envs.make("dummy_disc", size=(4, 0))


def test_meta_world_takes_an_action_at_least_once():
    with pytest.raises(EnvError, match="action repeat is 0, but must be at least 1"):
        envs.make("metaworld_reach", repeat=0)
