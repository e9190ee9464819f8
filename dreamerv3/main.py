"""The command line: presets and flags become a config, and the config a run.

python -m dreamerv3.main --configs quickstart --logdir ~/logdir/cartpole
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import elements

from embodied import Agent
from embodied.core.errors import EmbodiedError

from .config import compose, split
from .help import help_text
from .logdir import lock_logdir, open_logdir
from .validate import notes, validate


def main(argv: Sequence[str] | None = None) -> None:
    """Runs what the arguments ask for.

    Args:
      argv: presets and flags; None stands for the process's own arguments.

    Raises:
      EmbodiedError: for everything that a user can cause and mend.
    """
    argv = sys.argv[1:] if argv is None else argv
    if "--help" in argv or "-h" in argv:
        print(help_text())
        return
    presets, flags = split(argv)
    config = compose(presets, flags)
    validate(config)
    for note in notes(config, presets):
        print(note)
    # Processes that train together share the folder.
    alone = config.jax.num_processes == 1
    with lock_logdir(config.logdir) if alone else contextlib.nullcontext():
        print(f"Logdir: {open_logdir(config)}", flush=True)
        launch(config)


def launch(config: elements.Config) -> None:
    """Runs the script of a valid config with the parts that the config describes."""
    # Only here, since these load JAX: mistakes in the config are said before, at once.
    from embodied.run.train import train

    from . import factory

    def make_agent() -> Agent:
        agent: Any = factory.make_agent(config)
        extra = {} if config.random_agent else agent.model.ext_space
        print(factory.replay_note(agent.obs_space, agent.act_space, extra, config), flush=True)
        return agent

    train(
        make_agent,
        partial(factory.make_replay, config, "replay"),
        partial(factory.make_envs, config),
        partial(factory.make_stream, config),
        partial(factory.make_logger, config),
        run_args(config),
    )


def run_args(config: elements.Config) -> elements.Config:
    """What a run script reads: the section `run` and the sizes that batches have."""
    names = (
        "logdir",
        "seed",
        "batch_size",
        "batch_length",
        "report_length",
        "consec_train",
        "consec_report",
        "replay_context",
    )
    return elements.Config(**config.run, **{name: config[name] for name in names})


def console() -> None:
    """`main` for a terminal: an error is one sentence and status 2, an interrupt status 130."""
    try:
        main()
    except EmbodiedError as e:
        print(f"Error: {e}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    console()
