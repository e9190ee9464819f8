"""Reference numbers: arrays by name, in folders whose format `compare.py` describes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np


class Numbers:
    """Arrays of one file, which remembers the names that nobody has asked for yet.

    Args:
      arrays: array per name.
      prefix: only names that begin so are seen, and are called by what follows.
      unread: names without prefix that have not been read, shared with all views.
    """

    def __init__(self, arrays: dict, prefix: str = "", unread: set[str] | None = None):
        self.all, self.prefix = arrays, prefix
        self.unread = set(arrays) if unread is None else unread

    @classmethod
    def load(cls, path: Path) -> "Numbers":
        """Reads an `.npz` file."""
        with np.load(path) as file:
            return cls({k: file[k] for k in file.files})

    def __getitem__(self, name: str) -> np.ndarray:
        value = self.all[self.prefix + name]
        self.unread.discard(self.prefix + name)
        return value

    def __contains__(self, name: str) -> bool:
        return self.prefix + name in self.all

    def __iter__(self) -> Iterator[str]:
        start = len(self.prefix)
        return (k[start:] for k in self.all if k.startswith(self.prefix))

    def under(self, prefix: str) -> "Numbers":
        """A view of the names that begin with a prefix."""
        return Numbers(self.all, self.prefix + prefix, self.unread)

    def read(self) -> dict[str, np.ndarray]:
        """All arrays of this view, by name."""
        return {k: self[k] for k in self}

    def heads(self) -> list[str]:
        """The first part of every name, once and in order."""
        return list(dict.fromkeys(k.split("/")[0] for k in self))


def read_json(path: Path) -> Any:
    """The contents of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))
