import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from embodied.core.errors import ConfigError
from scripts import plot

ROOT = Path(__file__).parents[2]


def write(folder, scores, name="scores.jsonl"):
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"step": step, "episode/score": score}) for step, score in scores]
    (folder / name).write_text("".join(line + "\n" for line in lines))


def test_runs_are_found_at_any_depth(tmp_path):
    write(tmp_path / "seed0", [(1, 1.0)])
    write(tmp_path / "a" / "b" / "seed1", [(1, 2.0)], "metrics.jsonl")
    (tmp_path / "a" / "empty").mkdir()
    assert sorted(x[0, 1] for x in plot.load_runs(tmp_path)) == [1, 2]


def test_a_logdir_without_scores_is_an_error(tmp_path):
    write(tmp_path, [])
    with pytest.raises(ConfigError, match="There are no scores in or below"):
        plot.load_runs(tmp_path)


def test_scores_are_preferred_to_metrics(tmp_path):
    write(tmp_path, [(1, 1.0)])
    write(tmp_path, [(1, 5.0), (2, 6.0)], "metrics.jsonl")
    assert plot.load_scores(tmp_path).tolist() == [[1, 1]]


def test_broken_lines_are_counted_and_left_out(tmp_path, capsys):
    write(tmp_path, [(1, 1.0), (2, 2.0), (3, None), (4, float("nan"))])
    with (tmp_path / "scores.jsonl").open("ab") as f:
        f.write(b'{"step": 5, "epis\n[1]\n3\n\xff\xfe\n{"episode/score": 3}\n{"step": "x"}\n')
        f.write(b'{"step": 6, "train/loss": 1}\n{"step": 7, "episode/score": 7}')
    assert plot.load_scores(tmp_path).tolist() == [[1, 1], [2, 2], [7, 7]]
    assert "left out 6 broken lines" in capsys.readouterr().out


def test_a_resumed_run_replaces_what_was_lost(tmp_path):
    write(tmp_path, [(10, 1.0), (20, 2.0), (30, 3.0), (15, 9.0), (25, 8.0)])
    assert plot.load_scores(tmp_path).tolist() == [[10, 1], [15, 9], [25, 8]]


def test_runs_of_unequal_length(tmp_path):
    short = np.array([[step, 10.0] for step in range(5, 51, 5)])
    long = np.array([[step, 30.0] for step in range(5, 101, 5)])
    curve = plot.summarize([short, long], 10)
    np.testing.assert_allclose(curve.steps, np.arange(5, 100, 10))
    np.testing.assert_allclose(curve.mean, [20] * 5 + [30] * 5)
    np.testing.assert_allclose(curve.low, [10] * 5 + [30] * 5)
    np.testing.assert_allclose(curve.high, [30] * 10)


def test_scores_in_a_bin_are_averaged_and_gaps_interpolated():
    run = np.array([[1.0, 2.0], [9.0, 4.0], [35.0, 9.0], [100.0, 0.0]])
    curve = plot.summarize([run], 10)
    np.testing.assert_allclose(curve.mean[:4], [3, 5, 7, 9])
    np.testing.assert_allclose(curve.mean[-1], 0)
    np.testing.assert_allclose(curve.low, curve.high)


def test_a_run_counts_only_where_it_was(tmp_path):
    late = np.array([[90.0, 5.0], [100.0, 5.0]])
    curve = plot.summarize([late], 10)
    assert curve.steps.tolist() == [85, 95]


def test_a_run_of_one_episode_at_step_zero():
    assert plot.summarize([np.array([[0.0, 1.0]])], 3).mean.tolist() == [1]


def test_command_writes_a_picture(tmp_path):
    write(tmp_path / "one", [(step, step / 10) for step in range(0, 1000, 10)])
    for seed in range(3):
        scores = [(step, seed + step / 20) for step in range(0, 500 * (seed + 1), 20)]
        write(tmp_path / "three" / str(seed), scores)
    out = tmp_path / "new" / "curve.png"
    command = [sys.executable, "-m", "scripts.plot", "--out", str(out), "--logdirs"]
    command += [str(tmp_path / "one"), str(tmp_path / "three")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "Plotted 4 runs" in result.stdout
    assert out.read_bytes().startswith(b"\x89PNG")


def test_command_ends_with_a_sentence_and_status_2(tmp_path):
    command = [sys.executable, "-m", "scripts.plot", "--out", "x.png", "--logdirs", str(tmp_path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr.startswith("Error: There are no scores")
    assert "Traceback" not in result.stderr
