"""Compiles stateful ninjax functions into pure ones over a mesh of devices.

    params, shardings = init(model.train, mesh, seed, dummy_inputs=(carry, data))
    train = apply(model.train, mesh, shardings, (BATCH, BATCH), (BATCH, BATCH, REPLICATED))
    params, (carry, outs, metrics) = train(params, seed, carry, data)

Rules are lists of (regex, `PartitionSpec`); the first whose regex is found in a key holds.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ninjax as nj
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from ..core.errors import DeviceError
from . import internal, nets

Rules = Sequence[tuple[str, P]]
Params = dict[str, jax.Array]

REPLICATE: Rules = ((".*", P()),)

# Tracing reads and sets state of the process (ninjax's scope, the layer callback), so only one
# thread traces at a time.
_tracing = threading.RLock()


def init(
    fn: Callable,
    mesh: Mesh,
    seed: Any,
    dummy_inputs: Any = (),
    param_partition_rules: Rules = REPLICATE,
) -> tuple[Params, dict[str, NamedSharding]]:
    """Creates the parameters that a function reads, without doing what else the function does.

    The function is traced once; the compiler drops all that does not lead to initial values.

    Args:
      fn: uses ninjax state and seeds.
      mesh: on which the parameters live.
      seed: uint32 [2].
      dummy_inputs: arguments of `fn`; of arrays (or `jax.ShapeDtypeStruct`) only shape and dtype
        matter.
      param_partition_rules: how parameters are split over the mesh.

    Returns:
      The parameters and their shardings, by name.

    Raises:
      DeviceError: no rule matches a parameter, or its shape cannot be split so.
    """

    def create(seed):
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), dummy_inputs)
        with _trace_state(None, ()):
            state, _ = nj.pure(fn)({}, *zeros, seed=seed, create=True, modify=True, ignore=True)
        return state

    shapes = jax.eval_shape(create, seed)
    shardings = partition(shapes, mesh, param_partition_rules)
    # On CPUs the many random draws take long to compile, and run only once.
    cpu = mesh.devices.flat[0].platform == "cpu"
    fast = {"xla_backend_optimization_level": 0} if cpu else None
    make = jax.jit(create, out_shardings=shardings, compiler_options=fast)
    return make(seed), shardings


def apply(
    fn: Callable,
    mesh: Mesh,
    param_shardings: Mapping[str, NamedSharding],
    arg_specs: Sequence[P],
    out_specs: Any,
    *,
    update: bool = False,
    ignore_writes: bool = False,
    static_argnums: Sequence[int] = (),
    act_partition_rules: Rules = (),
    use_shardmap: bool = False,
) -> Callable:
    """Compiles a function of ninjax state for a mesh.

    With `use_shardmap`, each device runs `fn` on its rows with a seed of its own, and collectives
    are up to `fn` (see `internal.get_data_axes`), which must leave equal parameters everywhere.
    Of replicated outputs floating scalars are then averaged and others are the first device's.

    Args:
      fn: uses ninjax state and seeds.
      mesh: on which it runs.
      param_shardings: from `init`.
      arg_specs: a spec for each argument that is not static: `internal.BATCH` or `REPLICATED`.
      out_specs: a spec, or a tuple of them, for the output.
      update: return the new parameters too, in the buffers of the old ones.
      ignore_writes: drop what `fn` writes to parameters; else, unless `update`, it may not write.
      static_argnums: numbers of arguments of `fn` that are Python values.
      act_partition_rules: how layers' outputs are split, by the layers' paths.
      use_shardmap: see above.

    Returns:
      A jitted function of `(params, seed, *args)` that returns the output, or `(params, output)`
      with `update`.
    """
    assert not (use_shardmap and static_argnums)
    if use_shardmap and mesh.shape["t"] > 1:
        raise DeviceError(
            f"jax.use_shardmap splits only the batch, but the mesh has {mesh.shape['t']} tensor "
            f"devices: set the last size of jax.train_mesh to 1."
        )
    callback = None
    if act_partition_rules and not use_shardmap:
        callback = functools.partial(_constrain, mesh=mesh, rules=act_partition_rules)
    axes = mesh.axis_names if use_shardmap else ()
    pure = nj.pure(fn)
    writes = update or ignore_writes

    def call(params, seed, *args):
        with _trace_state(callback, axes):
            state, out = pure(
                params, *args, seed=seed, create=False, modify=writes, ignore=ignore_writes
            )
        return (state, out) if update else out

    if use_shardmap:
        call = _over_data(call, mesh, arg_specs, out_specs, update)
    shard = functools.partial(NamedSharding, mesh)
    outs = jax.tree.map(shard, out_specs)
    return jax.jit(
        call,
        in_shardings=(dict(param_shardings), shard(P()), *map(shard, arg_specs)),
        out_shardings=(dict(param_shardings), outs) if update else outs,
        donate_argnums=[0] if update else [],
        static_argnums=[2 + x for x in static_argnums],
    )


def partition(shapes: Mapping[str, Any], mesh: Mesh, rules: Rules) -> dict[str, NamedSharding]:
    """The sharding of each parameter by the first rule that matches its name.

    Args:
      shapes: things with a `shape`, by name.
      mesh: on which the parameters live.
      rules: the first whose regex is found in a name holds.

    Raises:
      DeviceError: no rule matches a name, or the shape cannot be split so.
    """
    result = {}
    for key, value in shapes.items():
        spec = _match(key, rules, "parameter")
        _check_spec(key, value.shape, spec, mesh)
        result[key] = NamedSharding(mesh, spec)
    return result


def _match(key: str, rules: Rules, kind: str) -> P:
    for pattern, spec in rules:
        if re.search(pattern, key):
            return spec
    raise DeviceError(
        f"No partition rule matches the {kind} {key!r}: add one, for example ('.*', P()) as the "
        f"last."
    )


def _check_spec(key: str, shape: Sequence[int], spec: P, mesh: Mesh) -> None:
    pieces = [
        math.prod(mesh.shape[x] for x in ((axes,) if isinstance(axes, str) else axes or ()))
        for axes in spec
    ]
    fits = len(pieces) <= len(shape)
    if not fits or any(n % m for n, m in zip(shape, pieces, strict=False)):
        raise DeviceError(
            f"The partition rule for {key!r} splits its axes into {tuple(pieces)} pieces, which "
            f"its shape {tuple(shape)} does not allow: add a rule for it above."
        )


def _constrain(x: jax.Array, path: str, mesh: Mesh, rules: Rules) -> jax.Array:
    spec = _match(path, rules, "activation")
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))


@contextlib.contextmanager
def _trace_state(callback: Callable | None, axes: Sequence[str]) -> Iterator[None]:
    with _tracing, internal.bind_axes(axes):
        before = nets.LAYER_CALLBACK
        nets.LAYER_CALLBACK = callback
        try:
            yield
        finally:
            nets.LAYER_CALLBACK = before


def _over_data(
    call: Callable, mesh: Mesh, arg_specs: Sequence[P], out_specs: Any, update: bool
) -> Callable:
    """Maps a function of `(params, seed, *args)` over the rows that each device holds."""

    def local(params, seed, *args):
        index = jax.lax.axis_index(internal.DATA_AXES)
        result = call(params, jax.random.fold_in(seed, index), *args)
        state, out = result if update else (None, result)
        agree = functools.partial(jax.tree.map, functools.partial(_agree, index))
        out = jax.tree.map(lambda spec, x: agree(x) if spec == P() else x, out_specs, out)
        return (state, out) if update else out

    return jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(P(), P(), *arg_specs),
        out_specs=(P(), out_specs) if update else out_specs,
        check_vma=False,
    )


def _agree(index: jax.Array, x: jax.Array) -> jax.Array:
    """One value for all devices: the mean of floating scalars, else that of the first device."""
    names = internal.DATA_AXES
    if x.ndim == 0 and jnp.issubdtype(x.dtype, jnp.floating):
        return jax.lax.pmean(x, names)
    first = jax.lax.psum(jnp.where(index == 0, x, jnp.zeros_like(x)), names)
    return first.astype(x.dtype)
