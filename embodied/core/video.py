"""Encodes frames as mp4 (H.264), animated GIF or PNG with PyAV, which needs no other program."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import IO, Any

import av
import numpy as np

FORMATS = ("mp4", "gif")


def to_rgb(image: np.ndarray) -> np.ndarray:
    """Turns any image-like array into 8-bit RGB.

    Args:
      image: [..., H, W, C] of any C: one or two channels show the first in gray, more than three
        show the first three. Floats are scaled from 0..1, booleans are black and white.

    Returns:
      uint8 [..., H, W, 3].
    """
    image = np.asarray(image)
    image = image[..., :3] if image.shape[-1] >= 3 else np.repeat(image[..., :1], 3, -1)
    if image.dtype == np.bool_ or np.issubdtype(image.dtype, np.inexact):
        image = np.nan_to_num(image.astype(np.float32), nan=0.0) * 255
    return np.clip(image, 0, 255).astype(np.uint8)


def encode_video(frames: Iterable[np.ndarray], fps: float, fmt: str = "mp4") -> bytes:
    """Encodes frames in memory; see `write_video`."""
    buffer = io.BytesIO()
    write_video(buffer, frames, fps, fmt)
    return buffer.getvalue()


def write_video(
    target: str | Path | IO[bytes], frames: Iterable[np.ndarray], fps: float, fmt: str = ""
) -> None:
    """Encodes frames one by one, so that a long video needs no memory.

    Args:
      target: a path, or a binary file to write to.
      frames: images [H, W, C] of one size, as `to_rgb` takes them.
      fps: frames per second.
      fmt: "mp4" or "gif"; the path's ending by default.

    Raises:
      ValueError: if there is no frame, the frames differ in size or the format is unknown.
    """
    if isinstance(target, str | Path):
        target = Path(target)
        fmt = fmt or target.suffix.removeprefix(".")
        target = str(target)
    if fmt not in FORMATS:
        raise ValueError(f"Videos are written as {' or '.join(FORMATS)}, not as {fmt!r}.")
    images = (to_rgb(x) for x in frames)
    first = next(images, None)
    if first is None:
        raise ValueError("A video needs at least one frame.")
    write = _write_mp4 if fmt == "mp4" else _write_gif
    write(target, _same_size(first, images), first.shape, Fraction(fps).limit_denominator(1000))


def encode_png(image: np.ndarray) -> bytes:
    """Encodes an image [H, W, C], as `to_rgb` takes it."""
    frame = av.VideoFrame.from_ndarray(to_rgb(image), format="rgb24")
    codec = av.CodecContext.create("png", "w")
    codec.height, codec.width, codec.pix_fmt = frame.height, frame.width, "rgb24"
    codec.time_base = Fraction(1)
    return b"".join(bytes(x) for x in codec.encode(frame) + codec.encode(None))


def _same_size(first: np.ndarray, others: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    yield first
    for image in others:
        if image.shape != first.shape:
            raise ValueError(
                f"The frames of a video have one size, but {first.shape} is followed by "
                f"{image.shape}."
            )
        yield image


def _write_mp4(target: Any, images: Iterable[np.ndarray], shape: tuple, fps: Fraction) -> None:
    height, width = shape[0] + shape[0] % 2, shape[1] + shape[1] % 2
    with _stream(target, "mp4", "libx264", "yuv420p", (height, width), fps) as (container, stream):
        pad = ((0, height - shape[0]), (0, width - shape[1]), (0, 0))
        for image in images:
            # Chroma is stored at half the size, which needs even sides.
            frame = av.VideoFrame.from_ndarray(np.pad(image, pad, "edge"), format="rgb24")
            container.mux(stream.encode(frame))


def _write_gif(target: Any, images: Iterable[np.ndarray], shape: tuple, fps: Fraction) -> None:
    with _stream(target, "gif", "gif", "pal8", shape[:2], fps) as (container, stream):
        graph = _palette_graph(shape, fps)
        for index, image in enumerate(images):
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.pts, frame.time_base = index, 1 / fps
            graph.vpush(frame)
            container.mux(stream.encode(graph.vpull()))


def _palette_graph(shape: tuple, fps: Fraction) -> av.filter.Graph:
    """A filter that gives every frame its own best 256 colours."""
    graph = av.filter.Graph()
    source = graph.add_buffer(width=shape[1], height=shape[0], format="rgb24", time_base=1 / fps)
    split, sink = graph.add("split"), graph.add("buffersink")
    palette = graph.add("palettegen", "stats_mode=single")
    use = graph.add("paletteuse", "new=1:dither=none")
    source.link_to(split)
    split.link_to(use, 0, 0)
    split.link_to(palette, 1, 0)
    palette.link_to(use, 0, 1)
    use.link_to(sink)
    graph.configure()
    return graph


@contextlib.contextmanager
def _stream(
    target: Any, fmt: str, codec: str, pixels: str, size: tuple[int, ...], fps: Fraction
) -> Iterator[tuple[Any, Any]]:
    with av.open(target, "w", format=fmt) as container:
        stream = container.add_stream(codec, rate=fps)
        stream.height, stream.width = size
        stream.pix_fmt = pixels
        yield container, stream
        container.mux(stream.encode(None))
