"""Describes the model of a config without building it: no JAX, no device, no environment.

python scripts/inspect_model_config.py defaults debug size1m
python scripts/inspect_model_config.py defaults --set jax.platform=cpu
python scripts/inspect_model_config.py --config-file ~/logdir/run/config.yaml
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import elements

from dreamerv3.config import PATTERN, compose, flatten, load_configs, nearest, override
from dreamerv3.summary import summarize
from embodied.core.errors import ConfigError


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the summary of the config that the arguments name."""
    args = parse_args(argv)
    if args.config_file:
        config, warnings = from_file(args.config_file, args.configs)
    else:
        config, warnings = compose(args.configs), []
    for key, value in args.set:
        config = override(config, {key: value})
    print(summarize(config, warnings))


def from_file(path: str, names: list[str]) -> tuple[elements.Config, list[str]]:
    """Composes a config from a file, whose unknown keys become a warning.

    Args:
      path: the `config.yaml` of a run, laid over the presets; or a file that has presets of its
        own, among them `defaults`.
      names: of the presets.
    """
    content = load_configs(path)
    layers = [content]
    if "defaults" in content:
        layers, presets, names = [], names, []
        for name in ["defaults", *presets]:
            if name not in content:
                raise ConfigError(
                    f"There is no preset {name!r} in '{path}': {nearest(name, content)}"
                )
            layers.append(content[name])
    config, unknown = compose(names), []
    for layer in map(flatten, layers):
        strange = {k for k in layer if not PATTERN.search(k) and k not in config}
        unknown += [key for key in layer if key in strange]
        config = override(config, {k: v for k, v in layer.items() if k not in strange})
    warnings = (
        [f"Keys of the file that mean nothing here: {', '.join(unknown)}."] if unknown else []
    )
    return config, warnings


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parses config names, `--set` pairs and `--config-file`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("configs", nargs="*", metavar="NAME", help="presets, applied in order")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=assignment,
        metavar="KEY=VALUE",
        help="change a key, or all keys that a regular expression matches; may be repeated",
    )
    parser.add_argument(
        "--config-file", metavar="FILE", help="a config.yaml to lay over the presets"
    )
    return parser.parse_args(argv)


def assignment(text: str) -> tuple[str, str]:
    """Splits `key=value`."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} must look like KEY=VALUE")
    return key, value


if __name__ == "__main__":
    try:
        main()
    except ConfigError as e:
        print(f"Error: {e}", file=sys.stderr)
        sys.exit(2)
