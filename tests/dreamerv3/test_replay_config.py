import elements
import numpy as np
import pytest

from dreamerv3 import factory
from dreamerv3.config import compose
from dreamerv3.validate import problems
from embodied.core.errors import ConfigError

FLOAT = elements.Space(np.float32)
OBS = {"image": elements.Space(np.uint8, (64, 64, 3)), "reward": FLOAT}
ACT = {"action": elements.Space(np.float32, (6,))}


def ext(deter, classes):
    return {
        "consec": elements.Space(np.int32),
        "stepid": elements.Space(np.uint8, 20),
        "dyn/deter": elements.Space(np.float32, deter),
        "dyn/stoch": elements.Space(np.float32, (32, classes)),
    }


@pytest.mark.parametrize(
    ("size", "deter", "classes", "before"),
    [("size12m", 2048, 16, 10_240), ("size200m", 8192, 64, 40_960)],
)
def test_context_takes_at_most_42_hundredths(size, deter, classes, before):
    config = compose([size], {"task": "dummy_disc"})
    rest = 64 * 64 * 3 + 4 + 6 * 4 + 1 + 20
    after = deter * 2 + 32
    assert after <= 0.42 * before
    note = factory.replay_note(OBS, ACT, ext(deter, classes), config)
    assert f"takes {rest + after:,} bytes of memory" in note
    assert f"({rest + before:,} before compact storage)" in note
    assert f"5,000,000 steps take {(rest + after) * 5e6 / 2**30:.1f} GiB." in note


def test_note_on_other_ways_to_keep_steps():
    flags = {"replay.max_gb": 2.0, "replay.backing": "disk", "replay.context_dtype": "float32"}
    config = compose(["size12m"], {"task": "dummy_disc", **flags})
    note = factory.replay_note(OBS, ACT, ext(2048, 16), config)
    step = 64 * 64 * 3 + 4 + 6 * 4 + 1 + 20 + 2048 * 4 + 32
    assert f"takes {step:,} bytes of disk" in note
    assert f"{int(2 * 2**30 / step):,} steps fill the 2 GiB of replay.max_gb." in note
    assert "before compact" not in factory.replay_note(OBS, ACT, {}, config)


def test_a_limit_that_holds_too_little_is_refused():
    config = compose(["size12m"], {"task": "dummy_disc", "replay.max_gb": 0.4})
    with pytest.raises(ConfigError, match=r"max_gb 0.4 .* 16 environments need at least 0.5"):
        factory.replay_note(OBS, ACT, ext(2048, 16), config)


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("replay.max_gb", -1.0, "must be at least 0"),
        ("replay.backing", "tape", "cannot be 'tape'"),
        ("replay.context_dtype", "float16", "cannot be 'float16'"),
    ],
)
def test_values(flag, value, message):
    (problem,) = problems(compose([], {"task": "dummy_disc", flag: value}))
    assert message in problem


def test_the_replay_is_made_so(tmp_path):
    flags = {"replay.max_gb": 0.5, "replay.backing": "disk", "logdir": str(tmp_path)}
    config = compose(["debug"], {"task": "dummy_disc", **flags})
    replay = factory.make_replay(config, "replay")
    assert (replay.max_bytes, replay.disk) == (2**29, True)
    assert factory.make_replay(config, "eval", "eval").max_bytes == int(0.05 * 2**30)
    assert (
        factory.make_replay(compose(["debug"], {"logdir": str(tmp_path)}), "x").max_bytes is None
    )


@pytest.mark.parametrize("wanted", [True, False])
def test_renewed_latent_states_are_saved_if_wanted(tmp_path, wanted):
    flags = {"replay.save_context": wanted, "logdir": str(tmp_path)}
    replay = factory.make_replay(compose(["debug"], flags), "replay")
    for _ in range(100):
        replay.add({"dyn/deter": np.zeros(8, np.float32)})
    replay.save()
    batch = replay.sample(1)
    replay.update({"stepid": batch["stepid"], "dyn/deter": batch["dyn/deter"] + 1})
    replay.save()
    assert any((tmp_path / "replay").glob("*-context-*")) == wanted
