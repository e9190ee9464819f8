"""Meshes of devices, and moving arrays between host and devices; `setup` starts JAX.

A mesh has the axes `d` (data), `f` (data, with parameters sharded too) and `t` (tensor). Batches
are split over `d` and `f`. Several processes may form one mesh; each then feeds its own rows.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from ..core.errors import DeviceError
from .backend import devices as devices
from .backend import select as select
from .backend import setup as setup

AXES = ("d", "f", "t")
DATA_AXES = ("d", "f")
BATCH = P(DATA_AXES)  # Rows split over the data axes.
REPLICATED = P()

_bound = threading.local()


def mesh(devices: Sequence[jax.Device], shape: str = "-1,1,1") -> Mesh:
    """Arranges devices on the axes d, f and t.

    Args:
      devices: those to use, each once.
      shape: the axes' sizes; one may be -1 and takes what is left.

    Raises:
      DeviceError: the sizes do not multiply to the number of devices.
    """
    try:
        sizes = [int(x) for x in shape.split(",")]
        free = sizes.count(-1)
        if free == 1:
            sizes[sizes.index(-1)] = len(devices) // -math.prod(sizes)
        valid = len(sizes) == 3 and min(sizes) > 0 and math.prod(sizes) == len(devices)
    except (ValueError, ZeroDivisionError):
        valid = False
    if not valid:
        raise DeviceError(
            f"The mesh {shape!r} does not fit {len(devices)} devices: it must be three sizes "
            f"d,f,t whose product is {len(devices)}, one of them possibly -1."
        )
    return Mesh(np.array(devices).reshape(sizes), AXES)


def processes(mesh: Mesh) -> int:
    """The number of processes that a mesh spans."""
    return len({x.process_index for x in mesh.devices.flat})


def check_split(name: str, rows: int, mesh: Mesh, role: str) -> None:
    """Raises a `DeviceError` unless rows can be split evenly over the mesh's data axes.

    Args:
      name: what the rows are, for the message, e.g. `"batch_size"`.
      rows: of this process.
      mesh: over whose data axes the rows of all its processes are split.
      role: of the devices, for the message, e.g. `"train"`.
    """
    rows *= processes(mesh)
    size = math.prod(mesh.shape[x] for x in DATA_AXES)
    if rows % size or not rows:
        raise DeviceError(
            f"{name} {rows} cannot be split evenly over {size} {role} devices: choose a multiple "
            f"of {size}."
        )


# ----------------------------------------------------------------------------------------------
# Axes that are visible while tracing
# ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def bind_axes(names: Sequence[str]) -> Iterator[None]:
    """While tracing inside `jax.shard_map` in this thread, makes its axis names known."""
    before = get_named_axes()
    _bound.axes = tuple(names)
    try:
        yield
    finally:
        _bound.axes = before


def get_named_axes() -> tuple[str, ...]:
    """The mesh axes over which collectives can be called here; none outside of `shard_map`."""
    return getattr(_bound, "axes", ())


def get_data_axes() -> tuple[str, ...]:
    """The axes over which the batch is split here and means must be averaged.

    Empty under automatic sharding, where a mean over the batch is already one over all devices.
    """
    return tuple(x for x in get_named_axes() if x in DATA_AXES)


# ----------------------------------------------------------------------------------------------
# Moving arrays
# ----------------------------------------------------------------------------------------------


def device_put(tree: Any, shardings: Any) -> Any:
    """Puts host values that every process holds in full onto devices.

    Args:
      tree: of numpy arrays; they must not change until the transfer is done.
      shardings: one for all, or a tree of the same structure.
    """
    if jax.process_count() == 1:
        return jax.device_put(tree, shardings)

    def put(x, sharding):
        x = np.asarray(x)
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])

    if isinstance(shardings, NamedSharding):
        return jax.tree.map(lambda x: put(x, shardings), tree)
    return jax.tree.map(put, tree, shardings)


def to_global(tree: Any, sharding: NamedSharding) -> Any:
    """Joins the rows of each process into global arrays; the transfer goes on in background.

    Args:
      tree: of numpy arrays [rows, ...] of this process; on CPUs the devices may keep on reading
        them, so they must not change afterwards.
      sharding: of the global arrays.
    """
    if jax.process_count() == 1:
        return jax.device_put(tree, sharding)
    return jax.tree.map(lambda x: jax.make_array_from_process_local_data(sharding, x), tree)


def local_sharding(sharding: NamedSharding) -> NamedSharding:
    """The same partition over the devices of this process only."""
    return NamedSharding(sharding.mesh.local_mesh, sharding.spec)


def to_local(tree: Any) -> Any:
    """The part of each array that lies on this process, as arrays of this process alone.

    Replicated arrays stay whole; of arrays split by rows, this process's rows are left.
    """

    def local(x):
        if x.is_fully_addressable:
            return x
        sharding = local_sharding(x.sharding)
        parts = [math.prod(sharding.mesh.shape[a] for a in axes) for axes in _axes(sharding.spec)]
        parts += [1] * (x.ndim - len(parts))
        sizes = x.sharding.shard_shape(x.shape)
        shape = tuple(n * size for n, size in zip(parts, sizes, strict=True))
        shards = [shard.data for shard in x.addressable_shards]
        return jax.make_array_from_single_device_arrays(shape, sharding, shards)

    return jax.tree.map(local, tree)


def _axes(spec: P) -> list[tuple[str, ...]]:
    return [(x,) if isinstance(x, str) else tuple(x or ()) for x in spec]


def fetch_async(tree: Any) -> Callable[[], Any]:
    """Starts copying arrays to the host; the function returned waits for them.

    Returns:
      A function that gives the tree with writable numpy arrays, of which each process gets its
      own rows. It may be called several times.
    """
    tree = to_local(tree)
    for x in jax.tree.leaves(tree):
        x.copy_to_host_async()
    return lambda: jax.tree.map(np.array, tree)


def fetch_whole(tree: Any) -> Any:
    """The tree with whole numpy arrays; with several processes, all of them must call this."""
    return fetch_async(_whole(tree))()


_copy = jax.jit(lambda tree: jax.tree.map(jax.numpy.copy, tree))


@functools.cache
def _replicate(mesh: Mesh) -> Callable[[Any], Any]:
    return jax.jit(lambda tree: tree, out_shardings=NamedSharding(mesh, REPLICATED))


def _whole(tree: Any) -> Any:
    """The whole arrays on this process alone; those that lie here entirely stay as they are."""
    leaves = jax.tree.leaves(tree)
    if all(x.is_fully_addressable for x in leaves):
        return tree
    return to_local(_replicate(leaves[0].sharding.mesh)(tree))


def move(tree: Any, shardings: Any) -> Any:
    """Copies arrays to other shardings, maybe on other devices, without waiting.

    The result shares no buffer with the source, which may be donated afterwards.

    Args:
      tree: of arrays.
      shardings: a tree of the same structure.
    """
    leaves = jax.tree.leaves(tree)
    targets = jax.tree.leaves(shardings)
    if all(x.sharding == y for x, y in zip(leaves, targets, strict=True)):
        return _copy(tree)  # A third of the time that `device_put` takes for many arrays.
    return jax.device_put(_whole(tree), shardings, may_alias=False)


def grouped_ckpt_fns(
    shardings: Mapping[str, NamedSharding], sizes: Mapping[str, int], chunksize: int = -1
) -> list[tuple[list[str], Callable, Callable]]:
    """Splits parameters into groups for checkpoints, to bound the memory that copies take.

    Args:
      shardings: of every parameter.
      sizes: bytes of every parameter.
      chunksize: bytes of a group at most, unless one parameter is larger; -1 for one group.

    Returns:
      A list of `(keys, gather, scatter)`, see `ckpt_fn`.
    """
    groups: list[list[str]] = [[]]
    filled = 0
    for key in shardings:
        if chunksize > 0 and groups[-1] and filled + sizes[key] > chunksize:
            groups.append([])
            filled = 0
        groups[-1].append(key)
        filled += sizes[key]
    return [(keys, *ckpt_fn({k: shardings[k] for k in keys})) for keys in groups]


def ckpt_fn(shardings: dict[str, NamedSharding]) -> tuple[Callable, Callable]:
    """How a group of parameters goes into and comes out of a checkpoint.

    Returns:
      `gather(params)` gives whole numpy arrays; `scatter(arrays)` gives some of them back as
      sharded arrays. With several processes, all of them must call these together.
    """

    def gather(params):
        return fetch_whole(params)

    def scatter(arrays):
        return device_put(arrays, {k: shardings[k] for k in arrays})

    return gather, scatter
