"""Names, shapes and types of all parameters against `inventory.json`."""

import contextlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ninjax as nj
import numpy as np

from .models import make_config, make_model, read_spaces
from .reference import read_json
from .report import Report


def compare(path: Path, report: Report, keys: list[str] | None = None) -> None:
    """Compares every `<preset>/<set>`, or some of them; nothing is computed for it."""
    skipped = []
    for key, stored in read_json(path).items():
        preset, name = key.split("/")
        spaces = path.parent / f"{name}_spaces.json"
        if not spaces.exists() or (keys is not None and key not in keys):
            skipped.append(key)
            continue
        found = parameters(preset, *read_spaces(spaces))
        _compare(f"inventory/{key}", found, dict(stored), report)
    report.uncompared(path.name, skipped)


def parameters(
    preset: str, obs_space: dict, act_space: dict, **flags: Any
) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and types of the state that the first update creates, by name."""
    model = make_model(obs_space, act_space, make_config(preset, **flags))

    def fun(data):
        return model.train(model.init_train(2), data)

    spaces = {**obs_space, **act_space, **model.ext_space}
    data = {k: jax.ShapeDtypeStruct((2, 3, *v.shape), v.dtype) for k, v in spaces.items()}
    seed = jax.ShapeDtypeStruct((2,), jnp.uint32)
    with contextlib.redirect_stdout(None):  # The optimizer prints its counts.
        return jax.eval_shape(lambda data, seed: nj.init(fun)({}, data, seed=seed), data, seed)


def _compare(group, found, stored, report):
    problems = []
    params = {k: v for k, v in found.items() if not k.startswith("opt/")}
    state = {k: v for k, v in found.items() if k.startswith("opt/")}
    values = 0
    if "params" in stored:
        values = _differences(params, stored.pop("params"), problems)
    sizes = {k: int(np.prod(v.shape, dtype=np.int64)) for k, v in found.items()}
    optimizer = stored.pop("opt_state")
    if list(optimizer) == ["note"]:
        text = f"{len(state)} entries, {sum(sizes[k] for k in state)} elements"
        _check("optimizer state", text, optimizer["note"], problems)
        values += 2
    else:
        values += _differences(state, optimizer, problems)
    modules = stored.pop("by_module")
    for name in sorted({*modules, *(k.split("/")[0] for k in sizes)}):
        size = sum(v for k, v in sizes.items() if k.split("/")[0] == name)
        _check(f"elements of {name}", size, modules.get(name), problems)
    names = ("dyn", "enc", "dec", "rew", "con", "pol", "val")
    size = sum(v for k, v in sizes.items() if k.split("/")[0] in names)
    _check("optimised elements", size, stored.pop("optimised"), problems)
    values += len(modules) + 1
    problems += [f"{k} is not known" for k in stored]
    report.add(group, values, {}, 0.0, problems)


def _differences(found, stored, problems):
    got = {k: (list(v.shape), str(v.dtype)) for k, v in found.items()}
    want = {k: (v["shape"], v["dtype"]) for k, v in stored.items()}
    for name in sorted({*got, *want}):
        _check(name, got.get(name), want.get(name), problems)
    return len(want)


def _check(name, got, want, problems):
    if got != want:
        problems.append(f"{name} is {got}, not {want}")
