r"""Configs: presets and flags, laid over the defaults and checked, become one `elements.Config`.

    config = compose(["debug", "size1m"], {"run.train_ratio": 32, r".*\.units": 64})
    config = parse(["--configs", "debug", "size1m", "--run.train_ratio", "32"])
    validate(config)

Keys with a character other than letters, digits, `_`, `.` and `-` are regular expressions; they
must match a whole key. Nothing here imports JAX, so that mistakes are said at once.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.resources
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import elements
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from embodied.core.errors import ConfigError

PATTERN = re.compile(r"[^A-Za-z0-9_.-]")

_KINDS = {bool: "True or False", int: "an integer", float: "a number", str: "one string"}
_WORDS = {"True": True, "true": True, "False": False, "false": False}


def load_configs(path: str | os.PathLike | None = None) -> dict[str, Any]:
    """Reads a YAML file, by default the packaged one: preset name to nested dict.

    Raises:
      ConfigError: if the file is missing, is not YAML, or holds no keys.
    """
    if path is None:
        source: Any = importlib.resources.files(__package__) / "configs.yaml"
    else:
        source = Path(path).expanduser()
    try:
        configs = YAML(typ="safe").load(source.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"The config file '{source}' cannot be read: {e}.") from e
    except YAMLError as e:
        problem = " ".join(str(e).split())
        raise ConfigError(f"The config file '{source}' is not valid YAML: {problem}.") from e
    if not isinstance(configs, dict):
        raise ConfigError(f"The config file '{source}' must hold `key: value` lines.")
    return configs


def flatten(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Joins nested keys by dots; below or above a regular expression, by an escaped dot."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        key = str(name)
        if not isinstance(value, Mapping):
            flat[key] = value
            continue
        for sub, leaf in flatten(value).items():
            if PATTERN.search(key) or PATTERN.search(sub):
                flat[rf"{_as_regex(key)}\.{_as_regex(sub)}"] = leaf
            else:
                flat[f"{key}.{sub}"] = leaf
    return flat


def parse(argv: Sequence[str]) -> elements.Config:
    """Composes the config that command line arguments ask for; see `split` and `compose`."""
    return compose(*split(argv))


def split(argv: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Splits command line arguments into presets and flags.

    Args:
      argv: such as `["--configs", "debug", "size1m", "--seed=1", "--jax.train_devices", "0,1"]`.

    Returns:
      The preset names, and one entry per flag in the order of their last occurrence: a string,
      or a list of strings where several values follow the flag.

    Raises:
      ConfigError: for a value without a flag, or a flag without a value.
    """
    groups: list[tuple[str, list[str]]] = []
    for token in argv:
        if token.startswith("--"):
            key, equals, value = token[2:].partition("=")
            groups.append((key, [value] if equals else []))
        elif groups:
            groups[-1][1].append(token)
        else:
            raise ConfigError(
                f"The argument {token!r} follows no flag: presets are given as "
                f"`--configs {token}`, values as `--key {token}`."
            )
    presets: list[str] = []
    flags: dict[str, Any] = {}
    for key, values in groups:
        if not values:
            raise ConfigError(f"The flag --{key} needs a value, as in `--{key} VALUE`.")
        if key == "configs":
            presets += _commas(values)
        else:
            flags.pop(key, None)
            flags[key] = values[0] if len(values) == 1 else values
    return presets, flags


def compose(
    presets: Sequence[str] = (), flags: Sequence[str] | Mapping[str, Any] = ()
) -> elements.Config:
    """Lays presets and then flags over the defaults.

    Args:
      presets: names from `configs.yaml`, applied in order.
      flags: config keys or regular expressions with values, or command line arguments.

    Returns:
      The config with every key of the defaults. In `logdir`, `{timestamp}` is replaced by the
      time and `~` by the home folder.

    Raises:
      ConfigError: for an unknown preset or key, a regular expression that matches no key, or a
        value of the wrong type.
    """
    if not isinstance(flags, Mapping):
        more, flags = split(flags)
        presets = [*presets, *more]
    configs = load_configs()
    flat = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in flatten(configs["defaults"]).items()
    }
    for name in presets:
        if name not in configs:
            raise ConfigError(f"There is no preset {name!r}: {nearest(name, configs)}")
        flat = _override(flat, configs[name])
    flat = _override(flat, flags)
    logdir = flat["logdir"].replace("{timestamp}", elements.timestamp())
    return elements.Config({**flat, "logdir": os.path.expanduser(logdir)})


def override(config: elements.Config, values: Mapping[str, Any]) -> elements.Config:
    """Changes a composed config by the rules of flags; see `compose`."""
    return elements.Config(_override(config.flat, values))


def nearest(name: str, names: Iterable[str]) -> str:
    """Ends a sentence about an unknown name with the valid names that are most like it."""
    names = list(names)
    word = re.sub(r"[^\w.-]", "", name).strip(".")
    close = [x for x in names if x.startswith(f"{word}.")][:3]
    close += difflib.get_close_matches(word, names, 3)
    leaves = {x.rpartition(".")[2]: x for x in reversed(names)}
    close += [
        leaves[x] for x in difflib.get_close_matches(word.rpartition(".")[2], leaves, 3, 0.8)
    ]
    if close:
        return f"did you mean {' or '.join(map(repr, dict.fromkeys(close[:3])))}?"
    if len(names) <= 30:
        return f"valid names are {', '.join(names)}."
    return "`--help` lists all names."


def _override(flat: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a copy of `flat` with `values` cast to the types of what they replace."""
    result = dict(flat)
    for name, value in flatten(values).items():
        for key in _matches(name, flat):
            result[key] = _cast(key, value, flat[key])
    return result


def _matches(name: str, flat: Mapping[str, Any]) -> list[str]:
    if not PATTERN.search(name):
        if name not in flat:
            raise ConfigError(f"There is no config key {name!r}: {nearest(name, _names(flat))}")
        return [name]
    try:
        keys = [key for key in flat if re.fullmatch(name, key)]
    except re.error as e:
        raise ConfigError(f"'{name}' is not a valid regular expression: {e}.") from e
    if not keys:
        raise ConfigError(
            f"The regular expression '{name}' matches no whole config key: "
            f"{nearest(name, _names(flat))}"
        )
    return keys


def _names(flat: Mapping[str, Any]) -> list[str]:
    return [*flat, "configs"]


def _cast(key: str, value: Any, default: Any) -> Any:
    """Casts a value, or one as text, to the type of the default."""
    try:
        if not isinstance(default, tuple):
            return _scalar(value, type(default))
        items = value if isinstance(value, (list, tuple)) else [value]
        result = tuple(_scalar(x, type(default[0])) for x in _commas(items))
        if not result:
            raise ValueError
        return result
    except (TypeError, ValueError):
        kind = _KINDS[type(default[0] if isinstance(default, tuple) else default)]
        if isinstance(default, tuple):
            kind = f"a list, such as '{','.join(map(str, default))}', with each value {kind}"
        raise ConfigError(f"The config key {key!r} must be {kind}, not {value!r}.") from None


def _scalar(value: Any, kind: type) -> Any:
    if value is None or isinstance(value, (list, tuple, Mapping)):
        raise TypeError
    if kind is str:
        return str(value)
    if kind is bool:
        if isinstance(value, bool):
            return value
        if value not in _WORDS:
            raise ValueError
        return _WORDS[value]
    return _number(value, kind)


def _number(value: Any, kind: type) -> int | float:
    if isinstance(value, bool):
        raise TypeError
    if kind is int and not isinstance(value, float):
        with contextlib.suppress(ValueError):
            return int(value)
    number = float(value)
    if math.isnan(number) or (kind is int and not number.is_integer()):
        raise ValueError
    return int(number) if kind is int else number


def _commas(values: Iterable[Any]) -> list[Any]:
    parts = [x.split(",") if isinstance(x, str) else [x] for x in values]
    words = [x.strip() if isinstance(x, str) else x for part in parts for x in part]
    return [x for x in words if x != ""]


def _as_regex(key: str) -> str:
    return f"(?:{key})" if PATTERN.search(key) else re.escape(key)
