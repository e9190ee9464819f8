"""Updates that are not finite: undone on the device, and written to a file to be looked into."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import elements
import jax
import jax.numpy as jnp
import ninjax as nj
import numpy as np

from ..core import treefile
from ..core.base import Data, Spaces
from ..core.errors import CheckpointError, NonFiniteError
from . import internal, nets

log = logging.getLogger(__name__)

DECISIVE = ("loss", "grad_norm")  # metrics, below any prefix
MOST_IN_A_ROW = 100  # skipped updates, after which something must be wrong for good


@dataclasses.dataclass(frozen=True)
class Update:
    """An update that was started, and what it started from.

    Attributes:
      number: of batches that were trained on before.
      seed: its seed.
      carry: the carry before.
      data: its batch.
      fetch: waits, and gives whether it was undone, its outputs and its metrics.
    """

    number: int
    seed: jax.Array
    carry: Any
    data: Data
    fetch: Callable[[], tuple[np.ndarray, Data, Data]]


class Incidents:
    """Says which updates were undone, writes the first to a file, and ends the run if asked to.

    Args:
      mode: stop or skip.
      logdir: folder of the file.
      obs_space: of the agent.
      act_space: of the agent.

    Attributes:
      row: how many updates without a good one in between were undone.
    """

    def __init__(self, mode: str, logdir: str, obs_space: Spaces, act_space: Spaces):
        self.row = 0
        self._mode, self._logdir = mode, logdir
        self._spaces = obs_space, act_space
        self._path: Path | None = None

    def add(self, update: Update, metrics: Data, fetch_params: Callable[[], Data]) -> None:
        """Takes note of an update that was undone.

        Args:
          update: which changed nothing.
          metrics: what it gave.
          fetch_params: gives all parameters, whole, as numpy arrays.

        Raises:
          NonFiniteError: if the mode is stop, or if too many in a row were undone.
        """
        self.row += 1
        what = f"The update on batch {update.number} is not finite ({describe(metrics)})"
        if self.row > MOST_IN_A_ROW:
            raise NonFiniteError(
                f"{what}, like the {MOST_IN_A_ROW} before it: skipping updates does not help."
            )
        first = self._path is None
        way = self._write(update, metrics, fetch_params) if first else f"see {self._path}"
        if self._mode == "stop":
            raise NonFiniteError(f"{what}: {way}; --jax.nonfinite skip goes on without it.")
        if first:
            log.warning("%s, so that it is skipped: %s.", what, way)

    def _write(self, update: Update, metrics: Data, fetch_params: Callable[[], Data]) -> str:
        """Writes the file and returns what to do with it, or why there is none."""
        name = f"nonfinite-{update.number:09d}.safetensors"
        self._path = Path(self._logdir).expanduser() / name
        try:
            write(self._path, update, fetch_params(), metrics, *self._spaces)
        except CheckpointError as e:
            return str(e).rstrip(".")
        return f"`python scripts/triage.py {self._path}` finds out where that begins"


def undoing(train: Callable) -> Callable:
    """Makes a model's `train` change nothing where something is not finite.

    That is its batch, its carry, or one of its metrics `loss` and `grad_norm`.

    The state before or after is chosen on the device, by one boolean; this takes room for
    another copy of what changes, at most.

    Args:
      train: see `embodied.jax.Agent`.

    Returns:
      A function of `(hold, carry, data)`, which changes nothing either if `hold` is true: then
      the update before was undone and nobody has seen that yet. It returns `(undone, carry, outs,
      metrics)`, where `undone` does not tell about `hold`.
    """

    def call(hold: jax.Array, carry: Any, data: Data) -> tuple[jax.Array, Any, Data, Data]:
        context = nj.context()
        before = dict(context)
        after, outs, metrics = train(carry, data)
        decisive = [v for k, v in metrics.items() if k.split("/")[-1] in DECISIVE]
        undone = ~_all_finite((carry, data, decisive))
        if axes := internal.get_data_axes():
            undone = jax.lax.pmax(undone.astype(jnp.int32), axes) > 0
        same = undone | hold
        changed = {k: v for k, v in context.items() if v is not before[k]}
        context.update({k: jnp.where(same, before[k], v) for k, v in changed.items()})
        after = jax.tree.map(lambda old, new: jnp.where(same, old, new), carry, after)
        return undone, after, outs, metrics

    return call


def write(
    path: Path, update: Update, params: Data, metrics: Data, obs_space: Spaces, act_space: Spaces
) -> None:
    """Writes all that repeats an update to a file; one that exists already stays.

    With several processes, all of them must call this together; the first one writes.

    Args:
      path: of the file.
      update: which changed nothing.
      params: all parameters, whole, as numpy arrays.
      metrics: what the update gave.
      obs_space: of the agent.
      act_space: of the agent.

    Raises:
      CheckpointError: if it cannot be written.
    """
    data, carry = (internal.fetch_whole(x) for x in (update.data, update.carry))
    if jax.process_index() or path.exists():
        return
    norms = {k: float(np.linalg.norm(v.astype(np.float64))) for k, v in params.items()}
    content = {
        "number": update.number,
        "seed": np.array(update.seed),
        "batch": data,
        "carry": carry,
        "norms": norms,
        "metrics": metrics,
        "compute_dtype": jnp.dtype(nets.COMPUTE_DTYPE).name,
        "spaces": {"obs": _spaces_to_tree(obs_space), "act": _spaces_to_tree(act_space)},
        "params": params,
    }
    treefile.write(path, content)


def read(path: Path) -> dict[str, Any]:
    """Reads what `write` wrote; `spaces` holds spaces then.

    Raises:
      CheckpointError: if the file is missing, damaged or of another kind.
    """
    content = treefile.read(path)
    content["spaces"] = {
        kind: {k: elements.Space(np.dtype(v["dtype"]), *v["rest"]) for k, v in spaces.items()}
        for kind, spaces in content["spaces"].items()
    }
    return content


def _spaces_to_tree(spaces: Spaces) -> dict[str, Any]:
    return {
        k: {"dtype": v.dtype.name, "rest": (v.shape, np.array(v.low), np.array(v.high))}
        for k, v in spaces.items()
    }


def _all_finite(tree: Any) -> jax.Array:
    floats = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    return jnp.array([jnp.isfinite(x).all() for x in floats]).all()


def describe(metrics: Data) -> str:
    """The losses and gradients that are not finite, such as `loss/rew inf`."""
    parts = [
        f"{k} {v}"
        for k, v in metrics.items()
        if np.ndim(v) == 0 and v.dtype.kind == "f" and not np.isfinite(v)
    ]
    order = sorted(parts, key=lambda x: ("loss/" not in x, "grad_norm" not in x))
    more = f" and {len(order) - 4} more" if len(order) > 4 else ""
    return (
        ", ".join(order[:4]) + more if order else "its losses are, but its batch or carry is not"
    )
