import av
import pytest

from dreamerv3.main import main as run
from embodied.core.errors import CheckpointError, ConfigError
from scripts import play


def train(logdir, *flags):
    run([
        *("--configs", "debug", "--random_agent", "True", "--run.steps", "20"),
        *("--logger.outputs", "jsonl", "--logdir", str(logdir), *flags),
    ])  # fmt: skip


def frames(path):
    with av.open(str(path)) as container:
        return [x.to_ndarray(format="rgb24") for x in container.decode(video=0)]


def test_plays_episodes_into_a_video(tmp_path, capsys):
    train(tmp_path / "run")
    out = tmp_path / "new" / "agent.mp4"
    play.main([str(tmp_path / "run"), "--out", str(out), "--episodes", "2"])
    assert len(frames(out)) == 2 * 101
    text = capsys.readouterr().out
    assert "Episode 2: return" in text
    assert "100 actions" in text
    assert "Mean return" in text


def test_renders_what_the_agent_does_not_see(tmp_path):
    train(tmp_path / "run", "--task", "gymnasium_CartPole-v1")
    play.main([str(tmp_path / "run"), "--out", str(tmp_path / "agent.gif")])
    assert frames(tmp_path / "agent.gif")[0].shape == (400, 600, 3)


def test_a_moved_run_and_unknown_keys(tmp_path, capsys):
    train(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "moved")
    with (tmp_path / "moved" / "config.yaml").open("a") as f:
        f.write("old_key: 3\n")
    play.main([str(tmp_path / "moved"), "--out", str(tmp_path / "agent.mp4")])
    assert "mean nothing here: old_key" in capsys.readouterr().out


def test_errors_say_what_is_wrong(tmp_path):
    with pytest.raises(ConfigError, match=r"should hold a config\.yaml"):
        play.main([str(tmp_path), "--out", "x.mp4"])
    with pytest.raises(ConfigError, match=r"must end in \.mp4 or \.gif"):
        play.main([str(tmp_path), "--out", "x.avi"])
    train(tmp_path / "run")
    for file in (tmp_path / "run" / "ckpt").glob("*/agent.json"):
        file.unlink()
    with pytest.raises(CheckpointError, match=r"agent\.json is missing"):
        play.main([str(tmp_path / "run"), "--out", "x.mp4"])
