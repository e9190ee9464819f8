"""The text of `--help`, made from the comments in `configs.yaml`."""

from __future__ import annotations

import importlib.resources
import re

from .config import flatten, load_configs

_LINE = re.compile(r"( *)([\w-]+):( .*?)?(?: +# (.*))?")

_USAGE = """\
Usage: dreamerv3 [--configs PRESET ...] [--KEY VALUE ...]

Trains an agent in an environment. Later presets and flags override earlier ones. Lists are
given as `--KEY A,B`. A KEY with a character other than letters, digits, `_`, `.` and `-` is a
regular expression that must match whole keys:

  dreamerv3 --configs quickstart --logdir ~/logdir/cartpole
  dreamerv3 --configs dmc_proprio size12m --task dmc_cheetah_run --run.train_ratio 512
  dreamerv3 --configs dmc_vision '--.*\\.units' 256 --logger.outputs jsonl,terminal
"""


def help_text() -> str:
    """Usage, then every preset and every config key with its default and its comment."""
    notes = comments()
    configs = load_configs()
    presets = [(name, notes[name]) for name in configs]
    defaults = flatten(configs["defaults"])
    keys = [(f"{key} {_show(value)}", notes[key]) for key, value in defaults.items()]
    return f"{_USAGE}\nPresets:\n{_table(presets)}\n\nKeys and defaults:\n{_table(keys)}"


def comments() -> dict[str, str]:
    """The comment beside each preset's name and each key of the defaults."""
    text = (importlib.resources.files(__package__) / "configs.yaml").read_text(encoding="utf-8")
    result: dict[str, str] = {}
    path: list[str] = []
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if not match:
            continue
        indent, key, _, comment = match.groups()
        path = [*path[: len(indent) // 2], key]
        if comment and path[0] == "defaults" and len(path) > 1:
            result[".".join(path[1:])] = comment
        elif comment and len(path) == 1:
            result[key] = comment
    return result


def _show(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "''" if value == "" else str(value)


def _table(rows: list[tuple[str, str]]) -> str:
    width = min(40, max(len(name) for name, _ in rows))
    return "\n".join(f"  {name.ljust(width)}  {comment}" for name, comment in rows)
