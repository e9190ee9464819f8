"""The clause of a run's loop that saves, and what starts a run from saved things."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import elements

from ..core.base import Agent
from ..core.checkpoint import Checkpoint, load_part
from ..core.clock import GlobalClock
from ..core.errors import CheckpointError, ReplayError

log = logging.getLogger(__name__)

section = elements.timer.section


class Save:
    """Writes checkpoints of everything that a run is, and restores them.

    A checkpoint that cannot be written is said, and the next one is tried when it is due.

    Args:
      directory: where the checkpoints go.
      content: objects by name; those without `save` and `load` are left out.
      args: `save_every` in seconds, `save_steps` in environment steps, 0 for never; `keep` and
        `keep_best`; `from_checkpoint` and `from_checkpoint_regex`.
      score: tells how good the agent is, None while that is not known.
    """

    def __init__(
        self,
        directory: Path,
        content: Mapping[str, Any],
        args: Any,
        score: Callable[[], float | None] | None = None,
    ):
        self._step = content["step"]
        self._checkpoint = Checkpoint(directory, args.keep, self._step, args.keep_best, score)
        self._content = content
        for name, value in content.items():
            if hasattr(value, "save") and hasattr(value, "load"):
                setattr(self._checkpoint, name, value)
        self._args = args
        self._due = GlobalClock(args.save_every)
        self._saved = 0  # the step of the latest checkpoint
        self._writing = False  # whether it is not yet known to be on the disk
        self._fails = False

    def restore(self) -> None:
        """Resumes the run, or starts it: from the agent of another run's checkpoint if asked to.

        Raises:
          CheckpointError: if a checkpoint is there and cannot be loaded, or if the first one
            cannot be written.
        """
        if self._checkpoint.exists():
            folder = self._checkpoint.load()
            self._saved = int(self._step)
            print(f"Resumed from {folder} at step {self._saved:,}.", flush=True)
            return
        if self._args.from_checkpoint:
            folder = load_agent(
                self._args.from_checkpoint,
                self._content["agent"],
                self._args.from_checkpoint_regex,
            )
            print(f"The agent starts from {folder}.")
        self._checkpoint.save()

    def __call__(self, final: bool = False) -> None:
        """Saves, if it is time or the run ends; only at the end it waits for the disk.

        Raises:
          CheckpointError, ReplayError: at the end, if the last checkpoint cannot be written.
        """
        if self._writing and (final or not self._checkpoint.saving):
            self._writing = False
            if self._try(self._checkpoint.wait):
                self._fails = False
        steps = 0 < self._args.save_steps <= int(self._step) - self._saved
        if not (self._due() or steps or final):
            return
        self._saved = int(self._step)
        with section("save"):
            if final:
                self._checkpoint.save()
            else:
                self._writing = self._try(self._checkpoint.save, wait=False)

    def close(self) -> None:
        """Waits until what is being written is on the disk."""
        self._try(self._checkpoint.wait)

    def _try(self, fn: Callable[..., Any], **kwargs: Any) -> bool:
        """Whether it worked; otherwise it was said, unless it has failed before."""
        try:
            fn(**kwargs)
        except (CheckpointError, ReplayError) as e:
            if not self._fails:
                log.warning("%s Training goes on, and every save tries again.", e)
            self._fails = True
            return False
        return True


def load_agent(path: str | Path, agent: Agent, regex: str = ".*") -> Path:
    """Loads an agent from another run.

    Args:
      path: a checkpoint folder, a directory of checkpoints, or a run's logdir.
      agent: what to load.
      regex: the parameters to load; `.*` loads the agent whole.

    Returns:
      The folder of the checkpoint.
    """
    load = agent.load if regex in ("", ".*") else partial(agent.load, regex=regex)
    return load_part(path, {"agent": load})
