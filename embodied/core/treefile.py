"""One tree of containers, numbers and arrays in one safetensors file; no code can be in it."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from .errors import CheckpointError
from .trees import decode, encode

_SKELETON = "$tree"  # the array that holds the JSON


def write(path: Path, tree: Any) -> None:
    """Writes a file whole or not at all.

    Args:
      path: of the file, which is replaced if it exists.
      tree: what `trees.encode` takes.

    Raises:
      CheckpointError: if it cannot be written, or if the tree holds something else.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    skeleton, arrays = encode(tree, str(path))
    text = json.dumps(skeleton, allow_nan=False).encode()
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({**arrays, _SKELETON: np.frombuffer(text, np.uint8)}, partial)
        partial.replace(path)
    except (OSError, SafetensorError) as e:
        with contextlib.suppress(OSError):  # what is in the way may be a folder
            partial.unlink()
        raise CheckpointError(f"The file {path} cannot be written: {e}.") from e


def read(path: Path) -> Any:
    """Reads what `write` wrote.

    Raises:
      CheckpointError: if it is missing, damaged or no such file.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        arrays = load_file(path)
        skeleton = json.loads(arrays.pop(_SKELETON).tobytes())
        return decode(skeleton, arrays)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as e:
        raise CheckpointError(
            f"The file {path} cannot be read ({type(e).__name__}: {e}): it must be one that this "
            "program wrote."
        ) from e
