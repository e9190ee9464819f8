"""Says what works on this machine, and how to get the rest.

python scripts/check_install.py
python scripts/check_install.py --suites dmc,atari --json

Everything is tried in a process of its own, so that a driver that crashes or hangs does no harm.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import importlib.metadata
import json
import multiprocessing
import os
import pathlib
import platform
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from dreamerv3 import factory
from dreamerv3.config import compose, flatten, load_configs
from embodied import envs
from embodied.core.errors import EmbodiedError, EnvError, MissingPackageError

RENDERERS = {
    "egl": "the Debian packages libegl1 and libgl1, and a driver such as libgl1-mesa-dri",
    "osmesa": "the Debian package libosmesa6",
}
LOGGERS = {"tensorboard": "TensorBoardOutput", "scope": "ScopeOutput"}
SCENE = "<mujoco><worldbody><light pos='0 0 4'/><geom size='1'/></worldbody></mujoco>"


class Row(NamedTuple):
    """What was tried, whether it works (`yes`, `missing` or `no`), and what there is to say."""

    kind: str
    name: str
    works: str
    details: str


def main(argv: Sequence[str] | None = None) -> None:
    """Prints a line for each thing, as soon as it was tried, or all as JSON."""
    args = parse_args(argv)
    rows = []
    for row in check(args.suites, args.timeout):
        rows.append(row)
        if not args.json:
            print(f"{row.kind:10} {row.name:14} {row.works:8} {row.details}", flush=True)
    if args.json:
        print(json.dumps([row._asdict() for row in rows], indent=2))


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description="Says what works on this machine.")
    parser.add_argument(
        "--suites",
        type=lambda text: [x for x in text.split(",") if x],
        help="only these suites or presets, joined by commas; default: all",
    )
    parser.add_argument("--timeout", type=float, default=120, help="seconds for each thing")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    args = parser.parse_args(argv)
    names = {x for example in examples() for x in example[:2]}
    if unknown := sorted(set(args.suites or ()) - names):
        parser.error(f"there is no suite {unknown[0]!r}: choose from {', '.join(sorted(names))}")
    return args


def check(suites: Sequence[str] | None, timeout: float) -> Iterator[Row]:
    """Tries everything.

    Args:
      suites: suites or presets to try; None for all.
      timeout: seconds for each thing.
    """
    version = sys.version_info[:2]
    fits = "yes" if (3, 11) <= version < (3, 14) else "no"
    details = f"{platform.python_version()}; versions from 3.11 to 3.13 are right"
    yield Row("python", "python", fits, details)
    yield Row("jax", "jax", *attempt(try_jax, (), timeout))
    for name, needs in RENDERERS.items():
        works, details = attempt(try_renderer, (name,), timeout)
        hint = f"; it needs {needs}" if works == "no" else ""
        yield Row("rendering", name, works, details + hint)
    for name in LOGGERS:
        yield Row("logger", name, *attempt(try_logger, (name,), timeout))
    for preset, suite in examples():
        if suites is None or {preset, suite} & set(suites):
            yield Row("suite", preset, *attempt(try_suite, (preset, suite), timeout))


def examples() -> list[tuple[str, str]]:
    """The presets that choose a task and their suites; other distributions' suites as well.

    Of presets that make the same environment only the last counts.
    """
    found = {}
    for preset, values in load_configs().items():
        flat = flatten(values)
        if preset != "defaults" and "task" in flat:
            env = {k: v for k, v in flat.items() if k == "task" or k.startswith("env.")}
            found[str(env)] = (preset, flat["task"].split("_")[0])
    plugins = [x.name for x in importlib.metadata.entry_points(group="embodied.envs")]
    return [*found.values(), *((x, x) for x in plugins)]


def attempt(probe: Callable[..., str], args: tuple[Any, ...], timeout: float) -> tuple[str, str]:
    """Runs a function in a new process; returns whether it works and what there is to say."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(sender, probe, args), daemon=True)
    process.start()
    sender.close()
    try:
        if not receiver.poll(timeout):
            return "no", f"no answer within {timeout:g} s"
        return receiver.recv()
    except EOFError:
        process.join()
        code = process.exitcode or 0
        end = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        return "no", f"its process {end}"
    finally:
        _end(process)
        receiver.close()


def _end(process: Any) -> None:
    """Kills a process and whatever it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()  # it may not lead its group yet
    process.join()


# Below: what runs in the new process.


def _serve(conn: Connection, probe: Callable[..., str], args: tuple[Any, ...]) -> None:
    os.setpgid(0, 0)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)  # what packages print would break the table
    os.dup2(null, 2)
    try:
        answer = ("yes", probe(*args))
    except MissingPackageError as error:
        answer = ("missing", str(error))
    except EmbodiedError as error:
        answer = ("no", str(error))
    except BaseException as error:
        answer = ("no", f"{type(error).__name__}: {error}")
    conn.send((answer[0], " ".join(answer[1].split())))


def try_jax() -> str:
    """Lists JAX's devices after it has computed something on the first."""
    import jax

    assert int(jax.numpy.arange(4).sum()) == 6
    kinds = collections.Counter(f"{x.platform} ({x.device_kind})" for x in jax.devices())
    devices = ", ".join(f"{number} x {kind}" for kind, number in kinds.items())
    return f"version {jax.__version__} with {devices}"


def try_renderer(name: str) -> str:
    """Renders a frame with MuJoCo through a graphics library."""
    os.environ["MUJOCO_GL"] = name
    try:
        import mujoco
    except ModuleNotFoundError as error:
        raise MissingPackageError("rendering", "mujoco", "'dreamerv3[dmc]'") from error
    model = mujoco.MjModel.from_xml_string(SCENE)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    with mujoco.Renderer(model, 48, 64) as renderer:
        renderer.update_scene(data)
        if not renderer.render().any():
            raise EnvError("The rendered frame is black.")
    return "rendered a frame of MuJoCo"


def try_logger(name: str) -> str:
    """Makes a logger's output in a folder that is deleted at once."""
    from embodied.core import outputs

    with tempfile.TemporaryDirectory() as folder:
        getattr(outputs, LOGGERS[name])(pathlib.Path(folder), 15)
    return f"--logger.outputs {name}"


def try_suite(preset: str, suite: str) -> str:
    """Makes a preset's environment and starts an episode; loads other distributions' suites."""
    if preset not in load_configs():
        envs.is_batched(f"{suite}_name")
        return f"tasks {suite}_NAME"
    config = compose([preset])
    env = factory.make_env(config, 0)
    try:
        action = {k: np.zeros(v.shape, v.dtype) for k, v in env.act_space.items()}
        obs = env.step({**action, "reset": np.bool_(True)})
    finally:
        env.close()
    flags = ("reward", "is_first", "is_last", "is_terminal")
    keys = [k for k in obs if k not in flags and not k.startswith("log/")]
    more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
    return f"--configs {preset} --task {config.task} observes {', '.join(keys[:3])}{more}"


if __name__ == "__main__":
    main()
