"""Environments that users bring along: `custom_my_package.my_module:make_env`.

The factory is called with those of the keywords `seed` (of 32 bits), `index` (of the environment
in its driver), `envs` or `num_envs` (how many environments to make at once) and `render` that it
names among its parameters, and with the options that the user gives. It returns an
`embodied.Env`, an environment of Gymnasium or a `dm_env.Environment`; if it has the parameter
`envs` or `num_envs`, an `embodied.BatchedEnv` or a `gymnasium.vector.VectorEnv`. What it returns
is changed as `Changes` say.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ..core.base import BatchedEnv, Data, Env, Spaces
from ..core.errors import EmbodiedError, EnvError
from ..core.wrappers import ActionRepeat, ResizeImage, TimeLimit
from .adapter import check_options

_BATCH = ("envs", "num_envs")
_KINDS = "an embodied.Env, a gymnasium.Env or a dm_env.Environment"
_BATCHED_KINDS = "an embodied.BatchedEnv or a gymnasium.vector.VectorEnv"


class Changes(NamedTuple):
    """What is changed about an environment: the options of `env.custom`, without `kwargs`.

    Attributes:
      render: add rendered frames as `log/image`: only for Gymnasium's environments. Others have
        to observe that by themselves.
      repeat: how many times every action is taken: not for batches.
      length: steps of the environment after which episodes are cut off, or 0: not for batches.
      size: height and width that images are resized to, or zeros: not for batches.
      ignore: regular expression of the observation keys to leave out: only for Gymnasium's
        environments and vector environments.
      bounds: False lets floats leave their bounds: only for the same.
    """

    render: bool = False
    repeat: int = 1
    length: int = 0
    size: tuple[int, int] = (0, 0)
    ignore: str = ""
    bounds: bool = True


_UNCHANGED = Changes()


class Factory:
    """Makes environments by a function that takes and returns what the module's docstring says.

    Args:
      function: makes an environment or a batch of them.
      title: what to call it in errors.
      args: its first arguments.
      guard: whether to turn what it raises into one sentence, and not to give it a `seed` that
        it has no parameter for.

    Attributes:
      batched: whether it makes batches.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        title: str,
        args: tuple[Any, ...] = (),
        guard: bool = True,
    ):
        self._function = function
        self._title = title
        self._args = args
        self._guard = guard
        self._signature = _signature(function)
        self.batched = any(x in self._signature.parameters for x in _BATCH)

    def __call__(
        self,
        seed: int,
        index: int,
        envs: int,
        render: bool = False,
        kwargs: str = "{}",
        **options: Any,
    ) -> Env | BatchedEnv:
        """Makes an environment, or a batch if that is what it makes.

        Args:
          seed: of this environment.
          index: of this environment.
          envs: how many to make, if it makes batches.
          render: whether to add rendered frames as `log/image`.
          kwargs: more options, as a JSON object.
          **options: for the function, but for the names of `Changes`.

        Raises:
          EnvError: if the function does not take the options, raises, or returns anything else,
            or if what it returns cannot be changed.
        """
        offers = {"seed": seed, "index": index, "render": render, **dict.fromkeys(_BATCH, envs)}
        takes = self._signature.parameters
        named = {k: v for k, v in offers.items() if k in takes}
        if not self._guard:
            return self._function(*self._args, **{"seed": seed, **named, **options})
        fields = {k: options.pop(k) for k in Changes._fields if k in options}
        changes = Changes(render, **fields)
        options = {**named, **options, **parse_options(kwargs)}
        try:
            self._signature.bind(*self._args, **options)
        except TypeError as error:
            raise EnvError(
                f"{self._title} cannot be called with {', '.join(options) or 'no options'}: "
                f"{error}; its parameters are {self._signature}."
            ) from error
        try:
            env = self._function(*self._args, **options)
        except EmbodiedError:
            raise
        except Exception as error:
            _fail(f"{self._title} raised", error)
        env = adapt(env, self._title, seed, changes)
        if isinstance(env, BatchedEnv) != self.batched:
            self._refuse(env)
        if isinstance(env, BatchedEnv) and env.length != envs:
            env.close()
            raise EnvError(f"{self._title} returned a batch of {env.length} where {envs} are due.")
        return env

    def _refuse(self, env: Env | BatchedEnv) -> NoReturn:
        env.close()
        if self.batched:
            raise EnvError(
                f"{self._title} has a parameter for the number of environments but returned a "
                f"single one: return {_BATCHED_KINDS}, or rename the parameter."
            )
        raise EnvError(
            f"{self._title} returned a batch of environments: give it a parameter `envs`, which "
            "says how many to make."
        )


def load(name: str) -> Factory:
    """The factory that a custom task names.

    Args:
      name: `package.module:function`; the current directory counts as well.

    Raises:
      EnvError: if there is no such function, or the module cannot be imported.
    """
    module_name, _, attribute = name.partition(":")
    if not all(x.isidentifier() for x in (*module_name.split("."), attribute)):
        raise EnvError(
            f"The custom task {name!r} must name a module and a function in it, as in "
            "custom_my_package.my_module:make_env."
        )
    module = _import(module_name)
    function = getattr(module, attribute, None)
    title = f"The factory {name!r}"
    if function is None:
        names = [x for x in vars(module) if not x.startswith("_")]
        near = difflib.get_close_matches(attribute, names, 3, 0.5)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "check its name."
        raise EnvError(f"The module {module_name!r} has no {attribute!r}: {hint}")
    if not callable(function):
        raise EnvError(f"{title} cannot be called: it is of the type {type(function).__name__}.")
    return Factory(function, title)


def load_plugin(point: EntryPoint, name: str) -> Factory:
    """The factory of a suite that another distribution brings.

    Args:
      point: the entry point `suite = "package.module:function"`.
      name: of the environment within the suite, the function's first argument.

    Raises:
      EnvError: if it cannot be loaded.
    """
    source = f" of the distribution {point.dist.name!r}" if point.dist else ""
    try:
        function = point.load()
    except Exception as error:
        _fail(f"The suite {point.name!r}{source} cannot load {point.value!r}:", error)
    return Factory(function, f"The suite {point.name!r}", (name,))


def adapt(env: Any, title: str, seed: int = 0, changes: Changes = _UNCHANGED) -> Env | BatchedEnv:
    """Makes an environment of ours of one of any kind that we know.

    Args:
      env: the environment, or a batch of them.
      title: of what made it, for errors.
      seed: of environments that are seeded when they are reset.
      changes: what to change about it.

    Raises:
      EnvError: if it is of another kind, or cannot be changed like that.
    """
    check_options(changes.repeat, changes.length, changes.size)
    if isinstance(env, Env | BatchedEnv):
        able = {"render"} if "log/image" in env.obs_space else set()
        if isinstance(env, BatchedEnv):
            _check_changes(changes, able, f"{title} returned an embodied.BatchedEnv")
            return env
        able |= {"repeat", "length", "size"}
        _check_changes(changes, able, f"{title} returned an embodied.Env")
        return _changed(env, changes)
    # Whoever has made such an environment has imported its package.
    gymnasium, dm_env = sys.modules.get("gymnasium"), sys.modules.get("dm_env")
    if gymnasium and isinstance(env, gymnasium.vector.VectorEnv):
        from .gymnasium_vector import GymnasiumVector

        _check_changes(changes, {"ignore", "bounds"}, f"{title} returned a VectorEnv")
        return GymnasiumVector(env, seed, changes.ignore, changes.bounds)
    if gymnasium and isinstance(env, gymnasium.Env):
        from .gymnasium import Gymnasium

        return Gymnasium(env, seed=seed, **changes._asdict())
    if dm_env and isinstance(env, dm_env.Environment):
        from .dm_env import DMEnv

        able = {"repeat", "length", "size"}
        _check_changes(changes, able, f"{title} returned a dm_env.Environment")
        return _changed(DMEnv(env), changes)
    raise EnvError(f"{title} returned {_wrong(env)}.")


def parse_options(text: str) -> dict[str, Any]:
    """Reads options given as a JSON object.

    Raises:
      EnvError: if it is none.
    """
    try:
        options = json.loads(text)
    except ValueError as error:
        raise EnvError(f"The options {text!r} are not valid JSON: {error}.") from error
    if not isinstance(options, dict):
        raise EnvError(f"""The options {text!r} must be a JSON object, as in '{{"level": 3}}'.""")
    return options


class Single(Env):
    """Makes an `embodied.Env` of a batch of one environment."""

    def __init__(self, env: BatchedEnv):
        self._env = env

    @property
    def obs_space(self) -> Spaces:
        """The spaces of the observations."""
        return self._env.obs_space

    @property
    def act_space(self) -> Spaces:
        """The spaces of the actions."""
        return self._env.act_space

    def step(self, action: Data) -> Data:
        """Steps the environment; see `Env.step`."""
        obs = self._env.step({k: np.asarray(v)[None] for k, v in action.items()})
        return {k: v[0] for k, v in obs.items()}

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()


def _check_changes(changes: Changes, able: set[str], found: str) -> None:
    """Refuses the changes that an environment of a kind is not able to take.

    Raises:
      EnvError: with the first of them.
    """
    for name, value in changes._asdict().items():
        if name in able or value == getattr(_UNCHANGED, name):
            continue
        how = "do that in the environment itself"
        if name == "render":
            how = "observe frames as 'log/image' in an embodied.Env, or return a gymnasium.Env"
        raise EnvError(f"{found}, to which --env.custom.{name} cannot be applied: {how}.")


def _changed(env: Env, changes: Changes) -> Env:
    if changes.length:
        env = TimeLimit(env, changes.length)
    if changes.repeat > 1:
        env = ActionRepeat(env, changes.repeat)
    return ResizeImage(env, changes.size) if any(changes.size) else env


def _import(name: str) -> Any:
    folder = os.getcwd()
    if folder not in sys.path and "" not in sys.path:
        sys.path.insert(0, folder)  # as `python -m` does
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(f"{missing}."):
            raise EnvError(
                f"There is no module {missing!r} in {folder} nor among the installed packages: "
                "start in the folder that holds it, or set PYTHONPATH to that folder."
            ) from error
        raise EnvError(
            f"The module {name!r} imports {missing!r}, which is not installed."
        ) from error
    except Exception as error:
        _fail(f"Importing the module {name!r} raised", error)


def _fail(start: str, error: Exception) -> NoReturn:
    """Raises a sentence with an exception and the line of code that it comes from."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    text = traceback.format_exception_only(error)[-1].strip().removesuffix(".")
    raise EnvError(f"{start} {text} ({frame.filename}, line {frame.lineno}).") from error


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except ValueError:  # some functions written in C have none
        return inspect.Signature()


def _wrong(env: Any) -> str:
    """What is wrong with something that is no environment."""
    if env is None:
        return f"None: it should return {_KINDS}"
    if isinstance(env, type):
        return f"the class {env.__name__} and not an instance of it: return {env.__name__}(...)"
    kind = type(env)
    name = f"an object of the type {kind.__module__}.{kind.__qualname__}"
    if any(x.__module__.split(".")[0] == "gym" for x in kind.__mro__):
        return f"{name}, an environment of the old package gym: make it a gymnasium.Env"
    if hasattr(env, "step") and hasattr(env, "reset"):
        return f"{name}, which has step and reset but is none of {_KINDS}: derive it from one"
    return f"{name}: it should return {_KINDS}"
