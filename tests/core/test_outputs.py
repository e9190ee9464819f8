import builtins
import io
import json
import math

import av
import numpy as np
import pytest

from embodied.core.errors import MissingPackageError
from embodied.core.outputs import (
    JSONLOutput,
    ScopeOutput,
    TensorBoardOutput,
    TerminalOutput,
    VideoOutput,
)

IMAGE = np.full((9, 12, 3), (200, 20, 20), np.uint8)
VIDEO = np.stack([np.full((9, 12, 3), 20 * t, np.uint8) for t in range(5)])
METRICS = [
    (10, "episode/score", 1.0),
    (12, "episode/score", 2.0),
    (12, "train/loss/rew", math.nan),
    (12, "notes", "hello"),
    (12, "hist", np.arange(100.0)),
    (12, "report/Image-A", IMAGE),
    (12, "report/openloop", VIDEO),
]


def frames(data):
    with av.open(data) as container:
        return np.stack([x.to_ndarray(format="rgb24") for x in container.decode(video=0)])


class TestTerminal:
    def test_prints_matching_scalars_averaged(self, capsys):
        TerminalOutput("score|loss")(METRICS)
        assert capsys.readouterr().out == "[12] episode/score 1.5 / train/loss/rew nan\n"

    def test_numbers_are_short(self, capsys):
        TerminalOutput()([(1, "a", 1234567), (1, "b", 0.123456), (1, "c", 1e15)])
        assert capsys.readouterr().out == "[1] a 1,234,567 / b 0.1235 / c 1e+15\n"

    def test_prints_nothing_without_a_match(self, capsys):
        TerminalOutput("fps")(METRICS)
        assert capsys.readouterr().out == ""


class TestJSONL:
    def read(self, path):
        def refuse(constant):
            raise ValueError(constant)

        return [json.loads(x, parse_constant=refuse) for x in path.read_text().splitlines()]

    def test_one_strict_line_per_step(self, tmp_path):
        path = tmp_path / "new" / "metrics.jsonl"
        JSONLOutput(path)(METRICS)
        assert self.read(path) == [
            {"step": 10, "episode/score": 1.0},
            {"step": 12, "episode/score": 2.0, "train/loss/rew": None},
        ]

    def test_pattern_and_appending(self, tmp_path):
        path = tmp_path / "scores.jsonl"
        JSONLOutput(path, "episode/score")(METRICS)
        JSONLOutput(path, "episode/score")([(20, "episode/score", 5), (20, "fps", 3)])
        assert self.read(path)[-1] == {"step": 20, "episode/score": 5}
        assert len(self.read(path)) == 3

    def test_an_unfinished_line_is_ended_first(self, tmp_path):
        path = tmp_path / "metrics.jsonl"
        path.write_text('{"step": 1}\n{"step": 2, "x"')
        JSONLOutput(path)([(3, "x", 1)])
        assert path.read_text().splitlines()[-1] == '{"step": 3, "x": 1}'

    def test_no_scalar_no_line(self, tmp_path):
        JSONLOutput(tmp_path / "x.jsonl")([(1, "text", "a")])
        assert not (tmp_path / "x.jsonl").exists()


@pytest.mark.filterwarnings("ignore::ImportWarning")  # from a package that tensorboardX tries
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # from inside tensorboard's reader
class TestTensorBoard:
    def read(self, logdir):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        return EventAccumulator(str(logdir)).Reload()

    def test_everything_reads_back(self, tmp_path):
        output = TensorBoardOutput(tmp_path, fps=10)
        output(METRICS)
        output([(13, "episode/score", 3)])
        events = self.read(tmp_path)
        scores = events.Scalars("episode/score")
        assert [(x.step, x.value) for x in scores] == [(10, 1), (12, 2), (13, 3)]
        assert math.isnan(events.Scalars("train/loss/rew")[0].value)
        histogram = events.Histograms("hist")[0].histogram_value
        assert (histogram.min, histogram.max, histogram.num) == (0, 99, 100)
        assert sum(histogram.bucket) == 100
        text = events.Tensors("notes/text_summary")[0].tensor_proto.string_val
        assert list(text) == [b"hello"]
        output.close()

    def test_images_and_videos_read_back(self, tmp_path):
        output = TensorBoardOutput(tmp_path)
        output([*METRICS, (12, "gray", np.full((4, 6), 0.5))])
        output.close()
        events = self.read(tmp_path)
        image = events.Images("report/Image-A")[0]
        assert (image.height, image.width) == (9, 12)
        np.testing.assert_array_equal(frames(io.BytesIO(image.encoded_image_string))[0], IMAGE)
        video = events.Images("report/openloop")[0].encoded_image_string
        assert np.abs(frames(io.BytesIO(video)).astype(int) - VIDEO).max() <= 4
        assert events.Images("gray")[0].width == 6

    def test_vectors_without_a_finite_number(self, tmp_path):
        output = TensorBoardOutput(tmp_path)
        output([(1, "hist", np.array([np.nan, np.inf])), (1, "x", 1)])
        output.close()
        assert self.read(tmp_path).Scalars("x")[0].value == 1

    def test_a_second_run_keeps_the_first_ones_file(self, tmp_path):
        for step in range(2):
            output = TensorBoardOutput(tmp_path)
            output([(step, "x", step)])
            output.close()
        assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 2


class TestScope:
    def test_everything_reads_back(self, tmp_path):
        import scope

        output = ScopeOutput(tmp_path, fps=10)
        output(METRICS)
        output([(13, "episode/score", 3)])
        reader = scope.Reader(tmp_path)
        steps, values = reader["episode/score"]
        assert steps.tolist() == [10, 12, 13]
        assert values.tolist() == [1, 2, 3]
        assert "hist" not in list(reader.keys())
        _, names = reader["report/image_a"]
        np.testing.assert_array_equal(reader.load("report/image_a", names[0]), IMAGE)
        _, names = reader["report/openloop"]
        video = frames(str(tmp_path / "scope" / "report-openloop.mp4" / names[0]))
        assert video.shape == (5, 10, 12, 3)

    def test_a_failed_write_is_not_kept(self, tmp_path):
        output = ScopeOutput(tmp_path)
        output([(1, "x", 1.0)])
        with pytest.raises(ValueError, match="invalid value"):
            output([(2, "y", 1.0), (2, "x", "text")])
        output([(3, "x", 3.0)])
        import scope

        assert scope.Reader(tmp_path)["x"][0].tolist() == [1, 3]
        assert "y" not in list(scope.Reader(tmp_path).keys())


def test_videos_become_files(tmp_path):
    VideoOutput(tmp_path / "videos", fps=10)(METRICS)
    path = tmp_path / "videos" / "report_openloop-000000000012.mp4"
    assert list(path.parent.iterdir()) == [path]
    assert frames(str(path)).shape == (5, 10, 12, 3)


def test_no_folder_without_a_video(tmp_path):
    VideoOutput(tmp_path / "videos")([(1, "x", 1.0)])
    assert not (tmp_path / "videos").exists()


@pytest.mark.parametrize(
    ("cls", "package"), [(TensorBoardOutput, "tensorboardX"), (ScopeOutput, "scope")]
)
def test_missing_packages_are_named_with_the_pip_command(tmp_path, monkeypatch, cls, package):
    load = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.split(".")[0] == package:
            raise ImportError(name)
        return load(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(
        MissingPackageError, match=rf"pip install dreamerv3\[{package.lower()[:5]}"
    ):
        cls(tmp_path)
