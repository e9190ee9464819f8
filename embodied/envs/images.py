"""Resizing of frames as the benchmarks do it, by the library that their numbers come from."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..core.base import Array
from ..core.errors import EnvError
from .adapter import image_size, require


def make_resize(method: str, size: tuple[int, int], suite: str) -> Callable[[Array], Array]:
    """Returns a function from images uint8 [H, W, C] to images of the given size.

    Args:
      method: "pillow" for Pillow's bilinear filter, which takes in every pixel when it shrinks;
        "opencv" for OpenCV's mean over areas.
      size: height and width.
      suite: name of the suite, for errors.

    Raises:
      EnvError: if there is no such method or the size is not positive.
      MissingPackageError: if the library is not installed.
    """
    height, width = image_size(size)
    if method == "pillow":
        pillow = require("PIL.Image", suite, "pillow")

        def scale(image: Array) -> Array:
            return np.asarray(
                pillow.fromarray(image).resize((width, height), pillow.Resampling.BILINEAR)
            )
    elif method == "opencv":
        cv2 = require("cv2", suite, "opencv-python-headless")

        def scale(image: Array) -> Array:
            return cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    else:
        raise EnvError(f"There is no resize method {method!r}: use 'pillow' or 'opencv'.")

    def resize(image: Array) -> Array:
        if image.shape[:2] == (height, width):
            return image
        # Both libraries want images of one channel without the axis for it.
        flat = image[..., 0] if image.shape[-1] == 1 else image
        return scale(flat).reshape(height, width, image.shape[-1])

    return resize
