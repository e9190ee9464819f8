"""The wrapper around a model: parameters, compilation, devices, seeds and checkpoints."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from ..core import base
from ..core.base import Data, Spaces
from ..core.errors import ConfigError, DeviceError, NonFiniteError
from . import internal, nonfinite, transform
from . import params as matching
from .batches import BatchStream
from .checks import check_finite, check_obs, check_spaces, finite_rows
from .internal import BATCH, REPLICATED
from .options import Options
from .profiler import Profiler

if TYPE_CHECKING:
    from .agent import Agent

MODES = ("train", "eval")
_SEED_KINDS = ("params", "carry", "train", "eval", "batch")


class Wrapper(base.Agent):
    """Hosts a model: to the outside an `embodied.Agent` from numpy to numpy.

    Batch sizes are those of this process. `policy` may run in another thread than `train`.

    Args:
      model: what computes.
      obs_space: see `Agent`.
      act_space: see `Agent`.
      config: see `Agent`.
      options: from `internal.setup`.

    Attributes:
      model: what computes.
      params: parameters on the train mesh, by name.
      counters: `updates`, updates `skipped` since they were not finite, `batches` that either
        took, and `actions`: calls of the training policy.
    """

    def __init__(
        self, model: Agent, obs_space: Spaces, act_space: Spaces, config: Any, options: Options
    ):
        super().__init__(obs_space, act_space, config)
        self.model = model
        self.options = options
        check_spaces(obs_space=obs_space, act_space=act_space, ext_space=model.ext_space)
        self._spaces = {**obs_space, **act_space, **model.ext_space}
        self.train_mesh = internal.mesh(
            internal.select(options, options.train_devices), options.train_mesh
        )
        self.policy_mesh = internal.mesh(
            internal.select(options, options.policy_devices, local=True), options.policy_mesh
        )
        self._rows = config.batch_size // internal.processes(self.train_mesh)
        internal.check_split("batch_size", self._rows, self.train_mesh, "train")
        self.counters = {"updates": 0, "skipped": 0, "batches": 0, "actions": 0}
        self._evals = 0  # Calls of the evaluation policy since the last one of the training one.
        self._train_lock = threading.Lock()
        self._policy_lock = threading.Lock()
        self._settled: tuple[Data, Data] = ({}, {})  # outputs and metrics nobody has seen
        self._started: nonfinite.Update | None = None  # whose outcome is not yet known
        self._incidents = nonfinite.Incidents(
            options.nonfinite, config.logdir, obs_space, act_space
        )
        no = NamedSharding(self.train_mesh, REPLICATED)
        self._go = internal.device_put(np.array(False), no)
        self._hold = self._go
        self._compiled: set[str] = set()
        self._profiler = Profiler(config.logdir) if options.profiler else None
        self._create_params()
        self._create_functions()
        if options.debug:
            self._print_params()
        if options.precompile:
            self._precompile()

    # ------------------------------------------------------------------------------------------
    # Construction
    # ------------------------------------------------------------------------------------------

    def _create_params(self) -> None:
        def everything(obs, data):
            model = self.model
            model.train(model.init_train(self.config.batch_size), data)
            if self.options.enable_policy:
                model.policy(model.init_policy(1), obs, "train")

        obs = {k: jax.ShapeDtypeStruct((1, *s.shape), s.dtype) for k, s in self.obs_space.items()}
        data = self._data_shapes(self.config.batch_length)
        self.params, self._shardings = transform.init(
            everything, self.train_mesh, self._seed("params"), (obs, data), self.model.param_rules
        )
        sizes = {k: x.nbytes for k, x in self.params.items()}
        self._groups = internal.grouped_ckpt_fns(
            self._shardings, sizes, self.options.ckpt_chunksize
        )
        self._policy_shardings: dict[str, NamedSharding] = {}
        self._policy_params: transform.Params = {}
        self._fresh_params: transform.Params | None = None
        if self.options.enable_policy:
            used = {k: x for k, x in self.params.items() if re.search(self.model.policy_keys, k)}
            rules = self.model.param_rules
            self._policy_shardings = transform.partition(used, self.policy_mesh, rules)
        self._share_params()

    def _create_functions(self) -> None:
        model, options = self.model, self.options
        train = (self.train_mesh, self._shardings)
        policy = (self.policy_mesh, self._policy_shardings)
        self._init_train = transform.apply(model.init_train, *train, (), BATCH, static_argnums=[0])
        self._init_report = transform.apply(
            model.init_report, *train, (), BATCH, static_argnums=[0]
        )
        self._train = transform.apply(
            nonfinite.undoing(model.train),
            *train,
            (REPLICATED, BATCH, BATCH),
            (REPLICATED, BATCH, BATCH, REPLICATED),
            update=True,
            use_shardmap=options.use_shardmap,
            act_partition_rules=model.act_rules,
        )
        self._report = transform.apply(
            model.report,
            *train,
            (BATCH, BATCH),
            (BATCH, REPLICATED),
            ignore_writes=True,
            use_shardmap=options.use_shardmap,
            act_partition_rules=model.act_rules,
        )
        self._init_policy = transform.apply(
            model.init_policy, *policy, (), BATCH, static_argnums=[0]
        )
        self._policy = transform.apply(
            model.policy,
            *policy,
            (BATCH, BATCH),
            BATCH,
            static_argnums=[2],
            act_partition_rules=model.act_rules,
        )

    def _precompile(self) -> None:
        for name, length in [
            ("train", self.config.batch_length),
            ("report", self.config.report_length),
        ]:
            sharding = NamedSharding(self.train_mesh, BATCH)
            data = {
                k: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
                for k, x in self._data_shapes(length).items()
            }
            carry = self._init_carry(getattr(self, f"_init_{name}"), self._rows)
            with self._context():
                more = (self._hold,) if name == "train" else ()
                compiled = getattr(self, f"_{name}").lower(
                    self.params, self._put_seed("carry"), *more, carry, data
                )
                compiled.compile()

    def _data_shapes(self, length: int) -> dict[str, jax.ShapeDtypeStruct]:
        lead = (self.config.batch_size, length + self.config.replay_context)
        return {
            k: jax.ShapeDtypeStruct((*lead, *s.shape), s.dtype) for k, s in self._spaces.items()
        }

    def _print_params(self) -> None:
        for key, x in self.params.items():
            spec = self._shardings[key].spec
            print(f"{key:60} {x.dtype!s:9} {x.shape!s:18} {spec}")
        total = sum(x.size for x in self.params.values())
        print(f"{total:,} parameters: {matching.count_modules(self.params)}")

    # ------------------------------------------------------------------------------------------
    # Acting
    # ------------------------------------------------------------------------------------------

    def init_policy(self, batch_size: int) -> Any:
        """The policy's carry, on the policy devices, at the start of `batch_size` environments."""
        internal.check_split("The number of environments", batch_size, self.policy_mesh, "policy")
        params, _ = self._latest_params()
        with self._context():
            return self._init_policy(params, self._seed("carry"), batch_size)

    def policy(self, carry: Any, obs: Data, mode: str = "train") -> tuple[Any, Data, Data]:
        """Chooses actions, see `embodied.Agent`; arrays come from and go to the host.

        Raises:
          SpaceError: an observation is missing or has a wrong shape or type.
          NonFiniteError: an observation, an action or an output is not finite.
        """
        if mode not in MODES:
            raise ConfigError(f"The policy has the modes train and eval, but not {mode!r}.")
        obs = check_obs(obs, self.obs_space)
        params, seed = self._latest_params(mode)
        key = f"policy {mode} {len(obs['is_first'])}"
        with self._context(key, "device_to_device"):
            # The compiled function takes numpy arrays to the device itself, which is the fastest,
            # but with several processes it refuses to.
            if jax.process_count() > 1:
                obs = internal.to_global(obs, NamedSharding(self.policy_mesh, BATCH))
            carry, acts, outs = self._policy(params, seed, carry, obs, mode)
        acts, outs = internal.fetch_async((acts, outs))()
        for key, finite in outs.pop("finite", {}).items():
            check_finite(f"output {key!r} of the policy", finite)
        for key, value in acts.items():
            check_finite(f"action {key!r}", finite_rows(value))
            acts[key] = value.astype(self.act_space[key].dtype, copy=False)
        return carry, acts, outs

    def _latest_params(self, mode: str | None = None) -> tuple[transform.Params, np.ndarray]:
        """The policy's parameters, and the seed of an action in this mode."""
        if not self.options.enable_policy:
            raise DeviceError("This process cannot act, since jax.enable_policy is False.")
        with self._policy_lock:
            if self._fresh_params is not None:
                self._policy_params, self._fresh_params = self._fresh_params, None
            actions = self.counters["actions"]
            if mode == "train":
                self.counters["actions"] += 1
                self._evals = 0
            elif mode == "eval":
                # Evaluation draws nothing from the seeds of training, however often it is done.
                self._evals += 1
            return self._policy_params, self._seed(mode or "carry", actions, self._evals)

    def _share_params(self) -> None:
        """Copies the policy's parameters; the policy takes them when it is called next."""
        if self.options.enable_policy:
            used = {k: self.params[k] for k in self._policy_shardings}
            fresh = internal.move(used, self._policy_shardings)
            with self._policy_lock:
                self._fresh_params = fresh

    # ------------------------------------------------------------------------------------------
    # Learning
    # ------------------------------------------------------------------------------------------

    def init_train(self, batch_size: int) -> Any:
        """The training carry, on the train devices, at the start of `batch_size` sequences."""
        return self._init_carry(self._init_train, batch_size)

    def init_report(self, batch_size: int) -> Any:
        """The report's carry, on the train devices, at the start of `batch_size` sequences."""
        return self._init_carry(self._init_report, batch_size)

    def _init_carry(self, init: Callable, rows: int) -> Any:
        internal.check_split("The batch size", rows, self.train_mesh, "train")
        with self._train_lock, self._context():
            rows *= internal.processes(self.train_mesh)
            return init(self.params, self._put_seed("carry"), rows)

    def train(self, carry: Any, data: Data) -> tuple[Any, Data, Data]:
        """Starts an update and returns what the previous one gave.

        Outputs and metrics are those of the previous call, whose update has had the time to
        finish; the first call gives empty ones. So does an update that was undone, since a loss
        or gradient was not finite; the metric `skipped` counts these.

        Raises:
          NonFiniteError: the previous update was undone, and `jax.nonfinite` is stop; or too many
            in a row were undone.
        """
        data = dict(data)
        seed = data.pop("seed")
        if self._profiler:
            self._profiler.step()
        with self._train_lock:
            new_carry, update = self._start(seed, carry, data)
            undone, outs, metrics = self._settle()
            if undone:  # So that this one was held, and could change nothing either.
                new_carry, update = self._start(seed, carry, data)
            self._started = update
            self.counters["updates"] += 1
            self.counters["batches"] += 1
            if self.options.debug:
                self._check_params()
        return new_carry, outs, metrics

    def _start(self, seed: jax.Array, carry: Any, data: Data) -> tuple[Any, nonfinite.Update]:
        """Starts an update, which is held if the one before turns out to be undone."""
        with self._context(f"train {data['is_first'].shape}"):
            self.params, (self._hold, new_carry, outs, metrics) = self._train(
                self.params, seed, self._hold, carry, data
            )
        self._share_params()
        fetch = internal.fetch_async((self._hold, outs, metrics))
        return new_carry, nonfinite.Update(self.counters["batches"], seed, carry, data, fetch)

    def _settle(self) -> tuple[bool, Data, Data]:
        """Waits for the update that was started last: whether it was undone, and what it gave."""
        update, self._started = self._started, None
        if update is None:
            (outs, metrics), self._settled = self._settled, ({}, {})
            return False, outs, metrics
        undone, outs, metrics = update.fetch()
        if undone:
            self._hold = self._go
            self.counters["updates"] -= 1
            self.counters["skipped"] += 1
            self._incidents.add(update, metrics, self._fetch_params)
            outs, metrics = {}, {}
        else:
            self._incidents.row = 0
        metrics["skipped"] = np.array(self.counters["skipped"], np.float32)
        return bool(undone), outs, metrics

    def report(self, carry: Any, data: Data) -> tuple[Any, Data]:
        """Computes metrics and videos on a batch and waits for them."""
        data = dict(data)
        seed = data.pop("seed")
        key = f"report {data['is_first'].shape}"
        with self._train_lock, self._context(key):
            carry, metrics = self._report(self.params, seed, carry, data)
        return carry, internal.fetch_async(metrics)()

    def stream(self, st: Iterator[Data]) -> BatchStream:
        """Turns a stream of host batches into one for `train` or `report`."""
        return BatchStream(
            st,
            self._spaces,
            self.train_mesh,
            lambda number: self._seed("batch", number),
            lambda: self.counters["batches"],
        )

    def _check_params(self) -> None:
        for key, x in self.params.items():
            if jnp.issubdtype(x.dtype, jnp.floating) and not bool(jnp.isfinite(x).all()):
                raise NonFiniteError(
                    f"The parameter {key!r} is not finite after update {self.counters['updates']}."
                )

    # ------------------------------------------------------------------------------------------
    # Checkpoints
    # ------------------------------------------------------------------------------------------

    def save_carry(self, carry: Any) -> Any:
        """A carry as numpy arrays; see `embodied.Agent`."""
        return internal.fetch_async(carry)()

    def load_carry(self, data: Any, mode: str) -> Any:
        """Puts a carry that `save_carry` returned on the devices of `policy` or `train`."""
        mesh = {"policy": self.policy_mesh, "train": self.train_mesh}[mode]
        return internal.to_global(data, NamedSharding(mesh, BATCH))

    def save(self) -> Data:
        """Parameters and counters, and outputs and metrics that `train` has not returned yet.

        With several processes, all of them must call this together.
        """
        with self._train_lock:
            _, outs, metrics = self._settle()
            self._settled = outs, metrics
            params = self._fetch_params()
            counters = dict(self.counters)
        return {
            "params": params,
            "counters": counters,
            "waiting": {"outs": outs, "metrics": metrics},
        }

    def _fetch_params(self) -> Data:
        params: Data = {}
        for keys, gather, _ in self._groups:
            params.update(gather({k: self.params[k] for k in keys}))
        return params

    def load(self, data: Data, regex: str | None = None) -> None:
        """Restores what `save` returned, on any mesh.

        Args:
          data: from `save`.
          regex: load only the parameters in whose name it is found, and no counters.

        Raises:
          CheckpointError: parameters are missing, unexpected or of another shape, or the regex
            matches none.
        """
        saved = data["params"]
        match = matching.compare(self.params, saved, regex)
        matching.check(match, regex)
        with self._train_lock:
            for keys, _, scatter in self._groups:
                arrays = {
                    k: np.array(saved[k], self.params[k].dtype) for k in keys if k in match.matched
                }
                self.params.update(scatter(arrays))
            if regex is None:
                self.counters.update({k: int(v) for k, v in data["counters"].items()})
                waiting = data.get("waiting", {})
                self._started, self._hold = None, self._go
                self._settled = waiting.get("outs", {}), waiting.get("metrics", {})
            self._share_params()
        print(f"Loaded {len(match.matched)} parameters: {matching.count_modules(match.matched)}.")

    # ------------------------------------------------------------------------------------------
    # Helpers
    # ------------------------------------------------------------------------------------------

    def _seed(self, kind: str, *numbers: int) -> np.ndarray:
        """A seed (uint32 [2]) that depends on the run's seed, its kind and numbers alone."""
        process = jax.process_index() if kind in MODES else 0
        entropy = (self.config.seed, _SEED_KINDS.index(kind), process, *numbers)
        return np.random.SeedSequence(entropy).generate_state(2)

    def _put_seed(self, kind: str, *numbers: int) -> jax.Array:
        sharding = NamedSharding(self.train_mesh, REPLICATED)
        return internal.device_put(self._seed(kind, *numbers), sharding)

    @contextlib.contextmanager
    def _context(self, key: str = "", guard: str = "") -> Iterator[None]:
        """Settings of JAX in which a function runs, for this thread only.

        Args:
          key: names function and shapes; from the second time on, transfers are guarded.
          guard: direction to guard, `device_to_device` or all of them.
        """
        options = self.options
        with contextlib.ExitStack() as stack:
            if not options.jit:
                stack.enter_context(jax.disable_jit())
            elif key in self._compiled and options.transfer_guard:
                name = f"transfer_guard_{guard}" if guard else "transfer_guard"
                stack.enter_context(getattr(jax, name)("disallow"))
            if options.debug_nans:
                stack.enter_context(jax.debug_nans(True))
            if options.debug and key and key not in self._compiled:
                print(f"Compiling {key}.")
            yield
        if key:
            self._compiled.add(key)
