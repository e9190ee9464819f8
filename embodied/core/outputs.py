"""Where metrics go: the terminal, JSON lines, TensorBoard, Scope and video files.

Each output takes a list of (step, name, value), with values as in `Logger.add`, and leaves alone
the kinds that it cannot show.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .errors import MissingPackageError
from .logger import Metric, Value
from .video import encode_png, encode_video, to_rgb


class TerminalOutput:
    """Prints the scalars whose names match on one line; repeated names are averaged.

    Args:
      pattern: regular expression that is searched in the names.
    """

    def __init__(self, pattern: str = ".*"):
        self._pattern = re.compile(pattern)

    def __call__(self, metrics: list[Metric]) -> None:
        """Prints the metrics."""
        values: dict[str, list[float]] = {}
        for _, name, value in metrics:
            if isinstance(value, int | float) and self._pattern.search(name):
                values.setdefault(name, []).append(value)
        if values:
            shown = [f"{k} {_short(sum(v) / len(v))}" for k, v in values.items()]
            print(f"[{metrics[-1][0]}] " + " / ".join(shown), flush=True)


class JSONLOutput:
    """Appends one line of strict JSON per step with the scalars whose names match.

    Numbers that are not finite become null. A line that an earlier run left unfinished is ended
    first, so that it spoils nothing but itself.

    Args:
      path: the file, usually `metrics.jsonl`.
      pattern: regular expression that is searched in the names.
    """

    def __init__(self, path: str | Path, pattern: str = ".*"):
        self._path = Path(path)
        self._pattern = re.compile(pattern)
        self._path.parent.mkdir(parents=True, exist_ok=True)

    def __call__(self, metrics: list[Metric]) -> None:
        """Appends the metrics."""
        rows: dict[int, dict[str, Any]] = {}
        for step, name, value in metrics:
            if isinstance(value, int | float) and self._pattern.search(name):
                row = rows.setdefault(step, {"step": step})
                row[name] = value if math.isfinite(value) else None
        lines = [json.dumps(row, allow_nan=False) + "\n" for row in rows.values()]
        if lines:
            with self._path.open("ab+") as f:
                if f.tell() and (f.seek(-1, 2), f.read(1))[1] != b"\n":
                    lines.insert(0, "\n")
                f.write("".join(lines).encode())


class TensorBoardOutput:
    """Writes TensorBoard event files, without TensorFlow.

    Scalars, text, histograms of vectors, images, and videos as animated GIF.

    Args:
      logdir: folder that TensorBoard is pointed at.
      fps: frames per second of videos.

    Raises:
      MissingPackageError: if tensorboardX is not installed.
    """

    def __init__(self, logdir: str | Path, fps: float = 15):
        try:
            from tensorboardX import summary
            from tensorboardX.event_file_writer import EventsWriter
            from tensorboardX.proto import event_pb2, summary_pb2
        except ImportError as e:
            raise MissingPackageError(
                "The logger output 'tensorboard'", "tensorboardX", "dreamerv3[tensorboard]"
            ) from e
        self._summary, self._proto = summary, summary_pb2
        self._event = event_pb2.Event
        self._fps = fps
        Path(logdir).mkdir(parents=True, exist_ok=True)
        # The writer itself and not the package's thread around it, which on a full disk dies
        # and blocks the program for ever.
        self._writer = EventsWriter(str(Path(logdir) / "events"), f".{time.time_ns()}")

    def __call__(self, metrics: list[Metric]) -> None:
        """Writes and flushes the metrics."""
        for step, name, value in metrics:
            summary = self._convert(name, value)
            event = self._event(wall_time=time.time(), step=step, summary=summary)
            self._writer.write_event(event)
        self._writer.flush()

    def close(self) -> None:
        """Closes the event file."""
        self._writer.close()

    def _convert(self, name: str, value: Value) -> Any:
        if isinstance(value, str):
            return self._summary.text(name, value)
        if isinstance(value, int | float):
            content = {"simple_value": value}
        elif value.ndim == 1:
            content = {"histo": self._histogram(value)}
        else:
            video = value.ndim == 4
            value = value[..., None] if value.ndim == 2 else value
            data = encode_video(value, self._fps, "gif") if video else encode_png(value)
            height, width = value.shape[-3:-1]
            content = {
                "image": self._proto.Summary.Image(
                    height=height, width=width, colorspace=3, encoded_image_string=data
                )
            }
        return self._proto.Summary(value=[self._proto.Summary.Value(tag=name, **content)])

    def _histogram(self, value: np.ndarray) -> Any:
        value = value[np.isfinite(value)].astype(np.float64)
        if not value.size:
            return self._proto.HistogramProto()
        counts, edges = np.histogram(value, 30)
        return self._proto.HistogramProto(
            min=value.min(), max=value.max(), num=value.size, sum=value.sum(),
            sum_squares=np.square(value).sum(), bucket_limit=edges[1:], bucket=counts,
        )  # fmt: skip


class ScopeOutput:
    """Writes Scope columns: scalars, text, images and videos; Scope has no histograms.

    Names are put in Scope's alphabet: small letters, digits, underscores and slashes.

    Args:
      logdir: the run's folder; columns go to `logdir/scope`.
      fps: frames per second of videos.

    Raises:
      MissingPackageError: if scope is not installed.
    """

    def __init__(self, logdir: str | Path, fps: float = 15):
        try:
            import scope
            from scope import formats
        except ImportError as e:
            raise MissingPackageError(
                "The logger output 'scope'", "scope", "dreamerv3[scope]"
            ) from e
        kinds = [formats.Text(), formats.Float(), formats.Image(), formats.Video(fps=fps)]
        self._make: Callable = lambda: scope.Writer(Path(logdir), workers=0, formats=kinds)
        self._writer = self._make()

    def __call__(self, metrics: list[Metric]) -> None:
        """Writes the metrics."""
        try:
            for step, name, value in metrics:
                if not isinstance(value, np.ndarray):
                    self._writer.add(step, {self._key(name): value})
                elif value.ndim > 1:
                    self._writer.add(step, {self._key(name): _even(value)})
            self._writer.flush()
        except Exception:
            # A writer keeps what it could not write, without bound.
            self._writer = self._make()
            raise

    def _key(self, name: str) -> str:
        return re.sub(r"[^a-z0-9_/]+", "_", name.lower()).strip("/") or "_"


class VideoOutput:
    """Writes every video to `directory/<name>-<step>.mp4`.

    Args:
      directory: where the files go; created by the first video.
      fps: frames per second.
    """

    def __init__(self, directory: str | Path, fps: float = 15):
        self._directory = Path(directory)
        self._fps = fps

    def __call__(self, metrics: list[Metric]) -> None:
        """Writes the videos among the metrics."""
        for step, name, value in metrics:
            if isinstance(value, np.ndarray) and value.ndim == 4:
                self._directory.mkdir(parents=True, exist_ok=True)
                name = re.sub(r"[^A-Za-z0-9_.-]+", "_", name)
                path = self._directory / f"{name}-{step:012d}.mp4"
                path.write_bytes(encode_video(value, self._fps))


def _even(value: np.ndarray) -> np.ndarray:
    """An image, or a video padded to even sides, as Scope's encoder needs them."""
    value = to_rgb(value[..., None] if value.ndim == 2 else value)
    if value.ndim == 3:
        return value
    height, width = value.shape[1:3]
    return np.pad(value, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)), "edge")


def _short(value: float) -> str:
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e12 else f"{value:.4g}"
